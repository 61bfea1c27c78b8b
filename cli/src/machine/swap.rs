//! The file that Gnomon pages to: the host's virtio block device that `--swap` asks for.
//!
//! The file begins with a page that says what it is. The device is the rest. So `--swap` overwrites files of its own only.

use crate::host::size::{PAGE, Size, split_size};
use crate::host::words::quoted_path;
use crate::machine::disk::{block_device, file_node};
use miette::Diagnostic;
use serde_json::json;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The name of the device in QEMU.
pub(crate) const DRIVE: &str = "swap";
/// The beginning of the file, which zeroes follow up to a whole page.
const MARK: &[u8] = b"Gnomon's swap file\n";

/// The file to page to, and its size: `FILE[:SIZE]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapSpec {
    /// The file.
    pub path: PathBuf,
    /// The size of the device; `None`: the present one, or the size of all VMs' memory if the file does not exist or is empty.
    pub size: Option<Size>,
}

impl FromStr for SwapSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, size) = split_size(text).map_err(|why| why.to_string())?;
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
    /// The file exists, and was not made by `--swap`.
    #[error("{0} is not a swap file of Gnomon's, and is not overwritten")]
    #[diagnostic(help("name a file that does not exist yet: it is created; or remove this one, if it is not needed: `rm {file}`", file = quoted_path(.0)))]
    Foreign(PathBuf),
    /// The name cannot be passed to QEMU.
    #[error("cannot use {0} for --swap: its path is not UTF-8")]
    #[diagnostic(help("rename the file or its directory"))]
    NotText(PathBuf),
    /// The file exists with another size.
    #[error("{path} already exists and has {have}, not {want}")]
    #[diagnostic(help("leave out the size to use the file as it is, or remove the file"))]
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
    /// Creates the file if it does not exist, or is empty: sparse, and readable by the user only. Returns its absolute path.
    ///
    /// # Errors
    /// [`SwapError`].
    pub fn provide(&self, all_memory: Size) -> Result<PathBuf, SwapError> {
        let unusable = |source| SwapError::Unusable { path: self.path.clone(), source };
        let path = std::path::absolute(&self.path).map_err(unusable)?;
        if path.to_str().is_none() {
            return Err(SwapError::NotText(self.path.clone()));
        }
        let have = match std::fs::metadata(&path) {
            Ok(meta) if !meta.is_file() => return Err(unusable(std::io::Error::other("it is not a regular file"))),
            Ok(meta) if meta.len() > 0 && !has_mark(&path).map_err(unusable)? => {
                return Err(SwapError::Foreign(self.path.clone()));
            }
            Ok(meta) => Some(Size(meta.len().saturating_sub(PAGE))).filter(|size| size.0 > 0),
            Err(_) => None,
        };
        let size = self.size.or(have).unwrap_or(all_memory);
        if size.0 == 0 || !size.0.is_multiple_of(PAGE) {
            return Err(SwapError::NoPages { path: self.path.clone(), size });
        }
        if let Some(have) = have.filter(|have| *have != size) {
            return Err(SwapError::OtherSize { path: self.path.clone(), have, want: size });
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let made = file.and_then(|file| file.write_all_at(MARK, 0).and_then(|()| file.set_len(PAGE + size.0)));
        made.map_err(unusable)?;
        Ok(path)
    }
}

/// Returns whether a file begins with the mark.
fn has_mark(path: &Path) -> std::io::Result<bool> {
    let mut start = vec![0; MARK.len()];
    let read = File::open(path)?.read_at(&mut start, 0)?;
    Ok(start[..read] == *MARK)
}

/// QEMU's arguments. The cache may be lost with the machine: paged-out memory is useless then, too.
pub(crate) fn args(path: &Path) -> Vec<OsString> {
    let node = json!({ "driver": "raw", "offset": PAGE, "file": file_node(path) });
    block_device(DRIVE, &node, "cache=unsafe,discard=unmap", abi::SWAP_SERIAL)
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
        assert!("x:-5G".parse::<SwapSpec>().expect_err("no size").contains("`-5G` is not an amount of memory"));
        assert!(":1G".parse::<SwapSpec>().is_err() && "".parse::<SwapSpec>().is_err());
    }

    #[test]
    fn the_file_is_made_once_and_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("swap");
        let provide = |size: Option<u64>| SwapSpec { path: path.clone(), size: size.map(Size) }.provide(Size(8 * PAGE));
        assert!(matches!(provide(Some(5)), Err(SwapError::NoPages { .. })));
        provide(None).expect("made");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 9 * PAGE, "a page of its own comes first");
        provide(None).expect("as it is");
        provide(Some(8 * PAGE)).expect("as it is");
        assert!(matches!(provide(Some(4 * PAGE)), Err(SwapError::OtherSize { .. })));
        let in_dir = SwapSpec { path: dir.path().join("no/swap"), size: None };
        assert!(matches!(in_dir.provide(Size(PAGE)), Err(SwapError::Unusable { .. })));
    }

    #[test]
    fn other_files_are_not_overwritten() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("precious");
        let provide = || SwapSpec { path: path.clone(), size: Some(Size(PAGE)) }.provide(Size(8 * PAGE));
        for content in [vec![0; PAGE as usize], vec![0; 2 * PAGE as usize], b"x".to_vec(), MARK[1..].to_vec()] {
            std::fs::write(&path, &content).expect("written");
            assert!(matches!(provide(), Err(SwapError::Foreign(_))));
            assert_eq!(std::fs::read(&path).expect("there"), content);
        }
        // An empty one has nothing to lose, and one that a full disk kept from growing is made again.
        for content in [b"", MARK] {
            std::fs::write(&path, content).expect("written");
            provide().expect("made");
            assert_eq!(std::fs::metadata(&path).expect("there").len(), 2 * PAGE);
        }
    }
}
