//! The file that Gnomon pages to: the host's virtio block device that `--swap` asks for.

use crate::host::size::{PAGE, Size};
use crate::machine::disk::block_device;
use miette::Diagnostic;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The file to page to, and its size: `FILE[:SIZE]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapSpec {
    /// The file.
    pub path: PathBuf,
    /// The size of the file; `None`: its present size, or the size of all VMs' memory if it does not exist or is empty.
    pub size: Option<Size>,
}

impl FromStr for SwapSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, size) = match text.rsplit_once(':') {
            Some((path, size)) if size.parse::<Size>().is_ok() => (path, size.parse().ok()),
            _ => (text, None),
        };
        if path.is_empty() {
            return Err("name a file: --swap FILE or --swap FILE:SIZE, such as --swap swap.img:2G".into());
        }
        Ok(Self { path: path.into(), size })
    }
}

/// A file that cannot be paged to.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum SwapError {
    /// The file cannot be created or opened.
    #[error("cannot use {path} for --swap: {source}")]
    #[diagnostic(help("name a file that you may write, on a file system with room for it"))]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file exists with another size, so something else may be in it.
    #[error("{path} already exists and has {have}, not {want}")]
    #[diagnostic(help("leave out the size to use the file as it is (its content is overwritten), or remove the file"))]
    OtherSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        have: Size,
        /// The request.
        want: Size,
    },
    /// The size is not a positive multiple of 4 KiB.
    #[error("--swap cannot have the size {size}: it must be a positive multiple of 4 KiB")]
    #[diagnostic(help("choose a multiple of 4 KiB, such as --swap {path}:1G", path = path.display()))]
    NoPages {
        /// The file.
        path: PathBuf,
        /// The request.
        size: Size,
    },
}

impl SwapSpec {
    /// Creates the file if it does not exist: sparse, and readable by the user only.
    ///
    /// # Errors
    /// [`SwapError`].
    pub fn provide(&self, all_memory: Size) -> Result<PathBuf, SwapError> {
        let unusable = |source| SwapError::Unusable { path: self.path.clone(), source };
        let have = match std::fs::metadata(&self.path) {
            Ok(meta) if !meta.is_file() => return Err(unusable(std::io::Error::other("it is not a regular file"))),
            Ok(meta) => Some(Size(meta.len())).filter(|size| size.0 > 0),
            Err(_) => None,
        };
        let size = self.size.or(have).unwrap_or(all_memory);
        if size.0 == 0 || !size.0.is_multiple_of(PAGE) {
            return Err(SwapError::NoPages { path: self.path.clone(), size });
        }
        if let Some(have) = have.filter(|have| *have != size) {
            return Err(SwapError::OtherSize { path: self.path.clone(), have, want: size });
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&self.path);
        file.and_then(|file| file.set_len(size.0)).map_err(unusable)?;
        Ok(self.path.clone())
    }
}

/// QEMU's arguments. The cache may be lost with the machine: paged-out memory is useless then, too.
pub(crate) fn args(path: &Path) -> Vec<String> {
    block_device("swap", path, "format=raw,cache=unsafe,discard=unmap", abi::SWAP_SERIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_a_size() {
        let spec = |path: &str, size| Ok(SwapSpec { path: path.into(), size });
        assert_eq!("a".parse(), spec("a", None));
        assert_eq!("a:2G".parse(), spec("a", Some(Size(2 << 30))));
        assert_eq!("a:b".parse(), spec("a:b", None));
        assert!(":1G".parse::<SwapSpec>().is_err() && "".parse::<SwapSpec>().is_err());
    }

    #[test]
    fn the_file_is_made_once_and_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("swap");
        let provide = |size: Option<u64>| SwapSpec { path: path.clone(), size: size.map(Size) }.provide(Size(8 * PAGE));
        assert!(matches!(provide(Some(5)), Err(SwapError::NoPages { .. })));
        provide(None).expect("made");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 8 * PAGE);
        provide(Some(8 * PAGE)).expect("as it is");
        assert!(matches!(provide(Some(4 * PAGE)), Err(SwapError::OtherSize { .. })));
        let in_dir = SwapSpec { path: dir.path().join("no/swap"), size: None };
        assert!(matches!(in_dir.provide(Size(PAGE)), Err(SwapError::Unusable { .. })));
    }
}
