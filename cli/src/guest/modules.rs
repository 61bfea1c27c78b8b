//! Drivers for what Gnomon emulates and Debian's kernel has as modules.

use crate::guest::debian::{DebianError, Modules};
pub use crate::guest::drivers::Needs;
use crate::host::place::IoError;
use miette::Diagnostic;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The folder of drivers in the initramfs: [`crate::guest::initramfs`] loads all that it holds.
pub const FOLDER: &str = "lib/modules/";

/// More memory than unpacking takes, in KiB, and more bytes than a driver has.
const XZ_KIB: u32 = 1 << 18;
const MOST_BYTES: u64 = 64 << 20;

/// The reason why drivers could not be provided.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ModulesError {
    /// The drivers could not be fetched.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Debian(#[from] DebianError),
    /// One could not be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
    /// One is damaged.
    #[error("cannot unpack {path}: {source}")]
    #[diagnostic(help("remove that file, and start again to download it anew"))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reader's error.
        source: std::io::Error,
    },
}

/// The drivers for that which belong to Debian's kernel, which may be another version of it from then on: paths in the initramfs, and the
/// modules, uncompressed.
///
/// # Errors
/// [`ModulesError`].
pub fn provide(needs: Needs) -> Result<Vec<(String, Vec<u8>)>, ModulesError> {
    let wanted = needs.drivers();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let Modules { files, .. } = Modules::provide(&wanted)?;
    let unpacked = wanted.iter().zip(&files).map(|((name, _), file)| Ok((format!("{FOLDER}{name}.ko"), unpack(file)?)));
    unpacked.collect()
}

fn unpack(path: &Path) -> Result<Vec<u8>, ModulesError> {
    let packed = std::fs::read(path).map_err(IoError::at("read", path))?;
    let mut unpacked = Vec::new();
    let mut reader = lzma_rust2::XzReader::new_mem_limit(packed.as_slice(), false, XZ_KIB).take(MOST_BYTES);
    let read = reader.read_to_end(&mut unpacked);
    read.map_err(|source| ModulesError::Damaged { path: path.to_owned(), source })?;
    Ok(unpacked)
}
