//! Words that others read: options of QEMU's, names, digests.

use sha2::{Digest, Sha256};

/// A value in an option of QEMU's, where a comma is written twice.
pub(crate) fn option_value(text: &str) -> String {
    text.replace(',', ",,")
}

/// Whether names may have that character. Those are words in scripts, and names of files, too.
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
