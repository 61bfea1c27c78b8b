//! Values in files of users that are a text, or a table with more, and the words of errors in such files.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::error::Category;
use std::fmt;
use std::marker::PhantomData;

/// A table in place of which a text may stand.
pub trait Table {
    /// A description of both, after "expected".
    const BOTH: &'static str;
}

/// A text, or a table. Errors in the table name its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Written<T> {
    /// The text.
    Text(String),
    /// The table.
    Table(T),
}

struct Either<T>(PhantomData<T>);

impl<'de, T: Table + Deserialize<'de>> Visitor<'de> for Either<T> {
    type Value = Written<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::BOTH)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Written<T>, E> {
        Ok(Written::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Written<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(table)).map(Written::Table)
    }
}

impl<'de, T: Table + Deserialize<'de>> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Either(PhantomData))
    }
}

/// Returns the error of a file in TOML, with its line, in words of TOML: the parser's are partly of Rust.
#[must_use]
pub fn explain(error: &toml::de::Error) -> String {
    error.to_string().replacen(error.message(), &plain(error.message()), 1).trim_end().to_owned()
}

/// Returns the error of a file in JSON, with its line, in words of JSON.
#[must_use]
pub fn explain_json(error: &serde_json::Error) -> String {
    let (message, place) = (error.to_string(), format!(" at line {} column {}", error.line(), error.column()));
    match error.classify() {
        Category::Data => format!("{}{place}", plain(message.trim_end_matches(&place))),
        Category::Eof => "it ends too early: a part of it is missing".into(),
        Category::Syntax | Category::Io => format!("it is not JSON{place}"),
    }
}

fn plain(message: &str) -> String {
    if let Some((word, known)) = named(message, "unknown field `") {
        return format!("unknown key `{word}`{} The keys are {}", meant(word, &known), known.join(", "));
    }
    if let Some((word, known)) = named(message, "unknown variant `") {
        return format!("`{word}` is not possible here{} Choose one of {}", meant(word, &known), known.join(", "));
    }
    if let Some(key) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return format!("the key `{key}` is missing");
    }
    // A choice of names, where the parser allows for tables.
    if message == "wanted string or table" {
        return "this has to be a text in quotes".into();
    }
    let kinds = ["invalid type: ", "invalid value: "];
    let rest = kinds.iter().find_map(|kind| message.strip_prefix(kind));
    match rest.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, wanted)) => format!("this is {}, and has to be {}", value(found), kind(wanted)),
        None => message.to_owned(),
    }
}

/// Takes a message apart that names a wrong word, and those that are known.
fn named<'a>(message: &'a str, begin: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let (word, known) = message.strip_prefix(begin)?.split_once("`, expected ")?;
    Some((word, known.split('`').skip(1).step_by(2).collect()))
}

fn meant(word: &str, known: &[&str]) -> String {
    similar(word, known).map_or_else(|| ".".into(), |known| format!(": did you mean `{known}`?"))
}

/// Returns the beginning of a list of the known words, after a wrong one: a question with the word that is meant most likely, or nothing.
#[must_use]
pub fn did_you_mean(word: &str, known: &[&str]) -> String {
    similar(word, known).map_or_else(String::new, |known| format!("did you mean `{known}`? "))
}

/// Returns that of the known words that a wrong one resembles most, if it does at all.
#[must_use]
pub fn similar<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |word: &str| word.replace(['-', '_'], "").to_lowercase();
    let word = plain(word);
    let likeness = known.iter().map(|known| (strsim::jaro(&word, &plain(known)), *known));
    // As the command line has it.
    let best = likeness.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (best.0 > 0.7).then_some(best.1)
}

/// Returns the name of a value that was found.
fn value(found: &str) -> String {
    let inner = |kind: &str| found.strip_prefix(kind).map(|value| value.trim_matches('`'));
    match found {
        "map" => return "a table".into(),
        "sequence" => return "a list".into(),
        _ => {}
    }
    if let Some(text) = inner("string ") {
        return format!("the text {text}");
    }
    match inner("integer ").or(inner("floating point ")) {
        Some(number) => format!("the number {number}"),
        None => inner("boolean ").unwrap_or(found).to_owned(),
    }
}

/// Returns the name of a kind of values.
fn kind(wanted: &str) -> String {
    match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative, and not too large".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number, and not too large".into(),
        "f32" | "f64" => "a number".into(),
        "a string" => "a text in quotes".into(),
        "path string" => "a path in quotes".into(),
        "a sequence" => "a list, such as [\"...\"]".into(),
        "a boolean" => "true or false".into(),
        other if other.starts_with("struct ") || other == "a map" => "a table".into(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_no_types_of_rust() {
        for (message, said) in [
            (
                "unknown field `memroy`, expected one of `memory`, `mmu`",
                "unknown key `memroy`: did you mean `memory`? The keys are memory, mmu",
            ),
            ("unknown field `x`, expected `dir` or `name`", "unknown key `x`. The keys are dir, name"),
            (
                "unknown variant `hvc`, expected one of `hvc0`, `none`",
                "`hvc` is not possible here: did you mean `hvc0`? Choose one of hvc0, none",
            ),
            ("missing field `file`", "the key `file` is missing"),
            (
                "invalid type: string \"two\", expected u32",
                "this is the text \"two\", and has to be a whole number that is not negative, and not too large",
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "this is the number -1, and has to be a whole number that is not negative, and not too large",
            ),
            ("invalid type: map, expected a sequence", "this is a table, and has to be a list, such as [\"...\"]"),
            ("invalid type: integer `5`, expected path string", "this is the number 5, and has to be a path in quotes"),
            ("invalid type: boolean `true`, expected a string", "this is true, and has to be a text in quotes"),
            ("invalid type: string \"x\", expected f64", "this is the text \"x\", and has to be a number"),
            ("wanted string or table", "this has to be a text in quotes"),
            ("key with no value, expected `=`", "key with no value, expected `=`"),
        ] {
            assert_eq!(plain(message), said);
        }
        #[derive(Debug, serde::Deserialize)]
        struct File {
            #[expect(dead_code, reason = "it is only read")]
            file: Vec<u32>,
        }
        for (text, said) in [
            ("{", "it ends too early: a part of it is missing"),
            ("# TOML", "it is not JSON at line 1 column 1"),
            ("{}", "the key `file` is missing at line 1 column 2"),
            ("{\"file\":\n7}", "this is the number 7, and has to be a list, such as [\"...\"] at line 2 column 1"),
        ] {
            let error = serde_json::from_str::<File>(text).expect_err(text);
            assert_eq!(explain_json(&error), said);
        }
    }

    #[test]
    fn similar_words_are_found() {
        let known = ["readonly", "file", "memory"];
        let found = ["read_only", "READ-ONLY", "fiel", "vcpus", ""].map(|word| similar(word, &known));
        assert_eq!(found, [Some("readonly"), Some("readonly"), Some("file"), None, None]);
        assert_eq!(similar("a", &[]), None);
    }
}
