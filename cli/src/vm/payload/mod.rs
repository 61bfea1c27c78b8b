//! Payloads: what a VM boots, read from a file.

mod compressed;
mod elf;
mod image;
mod linux;
mod sniff;

use crate::host::place;
use abi::bundle::GUEST_ENTRY;
pub use image::{Kind, Payload, Unfit};
use miette::Diagnostic;
use std::path::{Path, PathBuf};

/// A file that no VM can boot.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum PayloadError {
    /// The file cannot be read.
    #[error("cannot read the kernel {path}: {source}")]
    #[diagnostic(help(
        "give --kernel the path of a RISC-V Linux Image, ELF file or raw binary, or leave it out to boot Debian's kernel"
    ))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is not a RISC-V payload.
    #[error("the kernel {path} {what}")]
    #[diagnostic(help("{remedy}"))]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The reason: a predicate.
        what: String,
        /// The remedy.
        remedy: String,
    },
}

impl Payload {
    /// Reads a file, and uncompresses it if it is compressed.
    ///
    /// # Errors
    /// [`PayloadError`] if it cannot be read or is recognisably something else.
    pub fn read(path: &Path) -> Result<Self, PayloadError> {
        let bytes = place::read(path).map_err(|source| PayloadError::Unreadable { path: path.to_owned(), source })?;
        Self::from_bytes(bytes).map_err(|Unfit { what, remedy }| PayloadError::Unfit {
            path: path.to_owned(),
            what,
            remedy,
        })
    }

    /// The kernel configuration embedded in a Linux Image (`CONFIG_IKCONFIG`), if any.
    #[must_use]
    pub fn kernel_config(&self) -> Option<String> {
        (self.kind == Kind::Linux).then(|| linux::config(&self.bytes)).flatten()
    }

    /// Like [`Payload::read`], for the content of a file.
    ///
    /// # Errors
    /// [`Unfit`] if it is recognisably something else.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Unfit> {
        let bytes = compressed::unpack(&bytes).unwrap_or(Ok(bytes))?;
        if linux::is_image(&bytes) {
            return linux::read(bytes);
        }
        if elf::is_elf(&bytes) {
            return elf::read(&bytes);
        }
        sniff::refuse(&bytes)?;
        let span_bytes = bytes.len() as u64;
        Ok(Self { kind: Kind::Raw, bytes, gpa: GUEST_ENTRY, entry_gpa: GUEST_ENTRY, span_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_binaries_go_to_the_entry() {
        let payload = Payload::from_bytes(vec![0x13, 0, 0, 0]).expect("raw");
        assert_eq!(
            (payload.kind, payload.gpa, payload.entry_gpa, payload.span_bytes),
            (Kind::Raw, GUEST_ENTRY, GUEST_ENTRY, 4)
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let message = Payload::read(Path::new("/nowhere/Image")).expect_err("missing").to_string();
        assert!(message.contains("/nowhere/Image"), "{message}");
    }
}
