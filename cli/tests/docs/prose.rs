//! The rules of prose that a machine can check (docs/development.md, "Prose"): forbidden words, and first words of doc comments.

use regex::Regex;
use std::sync::LazyLock;

/// People in place of parts, and phrases in place of conditions.
static FORBIDDEN: LazyLock<Regex> = LazyLock::new(|| {
    let words = "whoever|whomever|somebody|someone|nobody|everybody|everyone|anybody|anyone|but for|be it|all the same";
    Regex::new(&format!(r"(?i)\b({words})\b")).expect("a pattern")
});

/// First words of a sentence that does not say the thing itself.
static BAD_START: LazyLock<Regex> = LazyLock::new(|| {
    let words = "What|Who|Whose|Whether|Where|When|Why|How|If|That|It|They|So|And|But|As|The same";
    Regex::new(&format!(r"^\W*({words})\b")).expect("a pattern")
});

/// A doc comment: the number of its first line, and its text.
#[derive(Debug, PartialEq, Eq)]
pub struct DocComment {
    pub line: usize,
    pub text: String,
}

/// The doc comments of a source file.
pub fn doc_comments(source: &str) -> Vec<DocComment> {
    let (mut comments, mut open) = (Vec::<DocComment>::new(), None);
    for (number, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let kind = ["///", "//!"].into_iter().find(|kind| line.starts_with(kind) && !line.starts_with("////"));
        if let Some(kind) = kind {
            let text = line[kind.len()..].trim();
            match comments.last_mut().filter(|_| open == Some(kind)) {
                Some(comment) => {
                    comment.text.push(' ');
                    comment.text.push_str(text);
                }
                None => comments.push(DocComment { line: number + 1, text: text.into() }),
            }
        }
        open = kind;
    }
    comments
}

/// The forbidden words of a text, in their order.
pub fn forbidden(text: &str) -> Vec<&str> {
    FORBIDDEN.find_iter(text).map(|word| word.as_str()).collect()
}

/// The complaints about a doc comment.
pub fn complaints(comment: &str) -> Vec<String> {
    let start = BAD_START.captures(comment).map(|found| format!("begins with `{}`", &found[1]));
    start.into_iter().chain(forbidden(comment).into_iter().map(|word| format!("says `{word}`"))).collect()
}

#[test]
fn comments_are_found_and_judged() {
    let source = "//! What it is.\n\n/// Returns x, whoever\n/// asks.\nfn a() {}\n//// no comment\n/// [`A`], as it is.\n//! Other.\n";
    let found = doc_comments(source);
    let lines: Vec<_> = found.iter().map(|comment| (comment.line, complaints(&comment.text).len())).collect();
    assert_eq!(lines, [(1, 1), (3, 1), (7, 0), (8, 0)]);
    assert_eq!(found[1].text, "Returns x, whoever asks.");
    assert_eq!(complaints("The same, but for b"), ["begins with `The same`", "says `but for`"]);
    assert_eq!(complaints("[`What`](a) is"), ["begins with `What`"]);
    assert!(complaints("Itself a noun; the Whole").is_empty());
}
