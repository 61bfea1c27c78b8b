//! Words for other programs: QEMU's options, shell words, terminals, names, digests.

use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A value in an option of QEMU's, where a comma is written twice.
pub(crate) fn option_value(value: impl AsRef<OsStr>) -> OsString {
    let bytes = value.as_ref().as_bytes().iter();
    OsString::from_vec(bytes.flat_map(|byte| std::iter::repeat_n(*byte, 1 + usize::from(*byte == b','))).collect())
}

/// A text as a terminal may show it: control characters other than line feed and tab are escaped.
pub(crate) fn shown(text: &str) -> String {
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().map(|c| if is_plain(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// A word that a shell reads back as it is.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Like [`quoted`], for a path.
pub(crate) fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// Like [`quoted`], for a shell that a person copies the word to: control characters are escaped as bash reads them.
pub(crate) fn quoted_for_bash(word: &str) -> String {
    if !word.contains(char::is_control) {
        return quoted(word);
    }
    let escaped = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.into(),
    };
    format!("$'{}'", word.chars().map(escaped).collect::<String>())
}

/// Returns whether names may contain this character. Names are words in scripts, and names of files, too.
pub(crate) fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// Bytes in hexadecimal digits, two for each.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256, in 64 hexadecimal digits.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(shown("a\u{1b}[2J\r\u{9b}1m\u{7f}ä\n\tb"), "a\\u{1b}[2J\\r\\u{9b}1m\\u{7f}ä\n\tb");
    }

    #[test]
    fn a_person_copies_words_without_control_characters() {
        assert_eq!(quoted_for_bash("a b"), "'a b'");
        assert_eq!(quoted_for_bash("\u{1b}[2J'\\ä"), r"$'\u001b[2J\'\\ä'");
    }

    #[test]
    fn commas_of_a_value_are_doubled() {
        assert_eq!(option_value("a,b"), "a,,b");
        assert_eq!(option_value(OsStr::from_bytes(b"\xff,")), OsStr::from_bytes(b"\xff,,"));
    }
}
