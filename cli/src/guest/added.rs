//! The user's files in a guest's initramfs.

use miette::Diagnostic;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folder of added files in the guest: the home directory, in which shells and commands start.
const HOME: &str = "root";

/// The reason why something cannot be added.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum AddError {
    /// The file cannot be read.
    #[error("cannot add {path}: {source}")]
    #[diagnostic(help("give --add (or `add` in the VM file) files and directories that you may read"))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The path has no name that the file could have in the guest.
    #[error("cannot add {0}: it has no name of its own")]
    #[diagnostic(help("name a file or a directory, in UTF-8: not `..`, and not `/`"))]
    NoName(PathBuf),
    /// Something else has its name.
    #[error("cannot add {path}: another added file is called `{name}`")]
    #[diagnostic(help(
        "added files keep their names, in /root: rename one of them, or put each in a directory of its own"
    ))]
    Twice {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
}

/// Reads files, and all that is in directories; returns their paths in the guest, without a leading `/`, and contents.
/// Links are followed.
///
/// # Errors
/// [`AddError`].
pub fn read(paths: &[PathBuf]) -> Result<BTreeMap<String, Vec<u8>>, AddError> {
    let mut files = BTreeMap::new();
    for path in paths {
        add(path, HOME, &mut files)?;
    }
    Ok(files)
}

fn add(path: &Path, folder: &str, files: &mut BTreeMap<String, Vec<u8>>) -> Result<(), AddError> {
    let unreadable = |source| AddError::Unreadable { path: path.to_owned(), source };
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| AddError::NoName(path.to_owned()))?;
    let name = format!("{folder}/{name}");
    let kind = std::fs::metadata(path).map_err(unreadable)?;
    if kind.is_dir() {
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            add(&entry.map_err(unreadable)?.path(), &name, files)?;
        }
        return Ok(());
    }
    if !kind.is_file() {
        return Err(unreadable(std::io::Error::other("it is neither a file nor a directory")));
    }
    let content = std::fs::read(path).map_err(unreadable)?;
    match files.insert(name.clone(), content) {
        None => Ok(()),
        Some(_) => Err(AddError::Twice { path: path.to_owned(), name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_keep_their_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(path("tree/deep")).expect("a directory");
        for name in ["tool", "tree/a", "tree/deep/b"] {
            std::fs::write(path(name), name).expect("a file");
        }
        let files = read(&[path("tool"), path("tree")]).expect("readable");
        let expected = [("root/tool", "tool"), ("root/tree/a", "tree/a"), ("root/tree/deep/b", "tree/deep/b")];
        assert!(
            files
                .iter()
                .map(|(path, content)| (path.as_str(), content.as_slice()))
                .eq(expected.iter().map(|(path, content)| (*path, content.as_bytes())))
        );
        assert!(matches!(read(&[path("tool"), path("tool")]), Err(AddError::Twice { .. })));
        assert!(matches!(read(&[path("missing")]), Err(AddError::Unreadable { .. })));
        assert!(matches!(read(&["/dev/null".into()]), Err(AddError::Unreadable { .. })));
        assert!(matches!(read(&["/".into()]), Err(AddError::NoName(_))));
        assert!(matches!(read(&[path("..")]), Err(AddError::NoName(_))));
    }
}
