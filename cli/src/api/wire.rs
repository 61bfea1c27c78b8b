//! The lines of the API: requests, and what is sent to the client.

use super::failure::{ApiError, Failure};
use super::limits::MOST_LINE;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the API. A later one has a higher number if it changes or removes something that this one has.
pub const VERSION: u32 = 1;

/// The name of a request, by which its client knows the reply.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Id {
    /// A whole number that is not negative.
    Number(u64),
    /// A text.
    Text(String),
}

/// A request.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Any number or text that no other pending request of this client has.
    pub id: Id,
    /// The method.
    pub method: String,
    /// The parameters; may be left out if the method needs none.
    #[serde(default)]
    pub params: serde_json::Map<String, Value>,
}

/// The first line that a client gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Greeting {
    /// Gnomon's version.
    pub gnomon: String,
    /// The version of the API.
    pub version: u32,
}

impl Default for Greeting {
    fn default() -> Self {
        Self { gnomon: env!("CARGO_PKG_VERSION").into(), version: VERSION }
    }
}

/// A line for the client.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Line {
    /// The first line.
    Greeting(Greeting),
    /// The progress of a request, or an event; the request goes on.
    Notification {
        /// The request.
        id: Id,
        /// The content, as the method has it.
        notification: Value,
    },
    /// The end of a request that was carried out.
    Result {
        /// The request.
        id: Id,
        /// The result, as the method has it.
        result: Value,
    },
    /// The end of a request that failed.
    Error {
        /// The request; null if the line had no valid one.
        id: Option<Id>,
        /// The reason.
        error: Failure,
    },
}

impl Line {
    /// Returns the line's bytes, with its end.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

/// Reads the request in a line.
///
/// # Errors
/// [`ApiError::BadRequest`], with the `id` if the line has a valid one.
pub fn parse(line: &[u8]) -> Result<Request, (Option<Id>, ApiError)> {
    let bad = |why: String| ApiError::BadRequest(why);
    let value: Value = serde_json::from_slice(line).map_err(|why| (None, bad(why.to_string())))?;
    if !value.is_object() {
        return Err((None, bad("it is not a JSON object".into())));
    }
    let id = value.get("id").and_then(|id| Id::deserialize(id).ok());
    match id {
        None if value.get("id").is_some() => Err((None, bad("`id` is neither a text nor a whole number".into()))),
        id => Request::deserialize(value).map_err(|why| (id, bad(why.to_string()))),
    }
}

/// Splits a stream into lines of bounded length.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
    /// The line is too long, and is skipped up to its end.
    is_skipping: bool,
}

impl Lines {
    /// Adds bytes of the stream, and passes each complete line to `take`: `None` for one that is too long. Blank lines are skipped.
    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(Option<&[u8]>)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (content, is_end) = match piece.strip_suffix(b"\n") {
                Some(content) => (content, true),
                None => (piece, false),
            };
            if !self.is_skipping && self.rest.len() + content.len() > MOST_LINE {
                (self.rest, self.is_skipping) = (Vec::new(), true);
            }
            if !self.is_skipping {
                self.rest.extend_from_slice(content);
            }
            if is_end {
                let line = std::mem::take(&mut self.rest);
                match std::mem::take(&mut self.is_skipping) {
                    true => take(None),
                    false if line.trim_ascii().is_empty() => {}
                    false => take(Some(&line)),
                }
            }
        }
    }

    /// Passes the line that the stream ends in to `take`, if it is not complete.
    pub fn finish(mut self, take: impl FnMut(Option<&[u8]>)) {
        self.push(b"\n", take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        let mut take = |line: Option<&[u8]>| found.push(line.map(<[u8]>::to_vec));
        pieces.iter().for_each(|piece| lines.push(piece, &mut take));
        lines.finish(take);
        found
    }

    #[test]
    fn lines_are_found_in_pieces_of_any_size() {
        assert_eq!(lines(&[b"a", b"b\n\n \r\nc", b"\n", b"d"]), ["ab", "c", "d"].map(|line| Some(line.into())));
        let long = vec![b'x'; MOST_LINE];
        assert_eq!(lines(&[&long, b"\n"]), [Some(long.clone())]);
        assert_eq!(lines(&[&long, b"x", &long, b"\nb\n"]), [None, Some(b"b".to_vec())]);
        assert_eq!(lines(&[&long, b"x"]), [None]);
    }

    #[test]
    fn requests_are_read_strictly() {
        let request = parse(br#"{"id": 1, "method": "ps"}"#).expect("a request");
        assert_eq!((request.id, request.method.as_str(), request.params.len()), (Id::Number(1), "ps", 0));
        let one = Some(Id::Number(1));
        let text = Some(Id::Text("\u{1b}".into()));
        for (line, id) in [
            ("", None),
            ("{", None),
            ("[]", None),
            ("7", None),
            ("\0", None),
            ("\u{feff}{}", None),
            (r#"{"method": "ps"}"#, None),
            (r#"{"id": -1, "method": "ps"}"#, None),
            (r#"{"id": 1.5, "method": "ps"}"#, None),
            (r#"{"id": 1e999, "method": "ps"}"#, None),
            (r#"{"id": 18446744073709551616, "method": "ps"}"#, None),
            (r#"{"id": null, "method": "ps"}"#, None),
            (r#"{"id": 1}"#, one.clone()),
            (r#"{"id": 1, "method": 2}"#, one.clone()),
            (r#"{"id": 1, "method": "ps", "params": []}"#, one.clone()),
            (r#"{"id": 1, "method": "ps", "more": 1}"#, one),
            (r#"{"id": "\u001b", "method": 2}"#, text),
        ] {
            let (found, why) = parse(line.as_bytes()).expect_err(line);
            assert_eq!(found, id, "{line}");
            assert!(matches!(why, ApiError::BadRequest(_)), "{line}");
        }
        assert!(parse(b"{\"id\": 1, \"method\": \"\xff\"}").is_err(), "not UTF-8");
        let deep = format!("{{\"id\": 1, \"method\": \"ps\", \"params\": {}", "[".repeat(MOST_LINE - 100));
        assert!(parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_line_has_no_control_characters_and_one_end() {
        let line = Line::Result { id: Id::Text("a\n\u{1b}\0".into()), result: Value::Null };
        assert_eq!(line.bytes(), b"{\"id\":\"a\\n\\u001b\\u0000\",\"result\":null}\n");
    }
}
