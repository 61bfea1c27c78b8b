//! Files that commands write for their users. A command replaces files of the same kind, whole or not at all, and no others.

use super::place::{IoError, Place};
use memchr::memmem;
use miette::Diagnostic;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The mark of a file is within so many bytes from its beginning.
const MARKED_BYTES: usize = 512;
/// The rights of a file that others may read, as far as the user's mask lets them; and of one that has a guest's memory.
const PUBLIC: u32 = 0o666;
const PRIVATE: u32 = 0o600;

/// A kind of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// A description, as in "is not a trace".
    pub what: &'static str,
    /// A text that is near the beginning of each file of the kind, and of no others.
    pub mark: &'static [u8],
}

/// A file that cannot be written.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum OutputError {
    /// The file or its directory cannot be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
    /// The file exists, and is of another kind.
    #[error("{path} exists and is not {what}, so it is not replaced")]
    #[diagnostic(help("choose another name, or remove the file if it is not needed"))]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The description of the kind.
        what: &'static str,
    },
}

impl Kind {
    /// Returns whether a file that begins like this is one of the kind, or is empty.
    #[must_use]
    pub fn has(&self, start: &[u8]) -> bool {
        start.is_empty() || memmem::find(&start[..start.len().min(MARKED_BYTES)], self.mark).is_some()
    }

    /// Checks that a file of the kind can be written at that path. What is there stays as it is.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn check(&self, path: &Path) -> Result<(), OutputError> {
        self.place(path, PUBLIC).map(drop)
    }

    /// Writes a file of the kind, whole or not at all.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), OutputError> {
        debug_assert!(self.has(bytes), "{} bears its mark", self.what);
        let place = self.place(path, PUBLIC)?;
        Ok(place.write(bytes).map_err(IoError::at("write", path))?)
    }

    /// Begins a file of the kind that other users may not read. It replaces what is there when it is whole.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn begin_private(&self, path: &Path) -> Result<Unfinished, OutputError> {
        Ok(Unfinished { place: self.place(path, PRIVATE)?, path: path.to_owned() })
    }

    fn place(&self, path: &Path, mode: u32) -> Result<Place, OutputError> {
        let place = Place::of(path, mode).map_err(IoError::at("write", path))?;
        if let Place::Beside(_, target) = &place
            && let Ok(there) = File::open(target)
        {
            let mut start = Vec::new();
            there.take(MARKED_BYTES as u64).read_to_end(&mut start).map_err(IoError::at("read", path))?;
            if !self.has(&start) {
                return Err(OutputError::Foreign { path: path.to_owned(), what: self.what });
            }
        }
        Ok(place)
    }
}

/// A file that is being written. It is removed if it is dropped before its end.
#[derive(Debug)]
pub struct Unfinished {
    place: Place,
    path: PathBuf,
}

impl Unfinished {
    /// To write it.
    pub fn file(&self) -> &File {
        self.place.file()
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn sync(&self) -> Result<(), IoError> {
        match &self.place {
            Place::Beside(file, _) => file.as_file().sync_all().map_err(IoError::at("write", &self.path)),
            Place::Itself(_) => Ok(()),
        }
    }

    /// Gives the file its name, in place of what was there.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn keep(self) -> Result<(), IoError> {
        self.place.keep().map_err(IoError::at("write", self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    const KIND: Kind = Kind { what: "a test", mark: b"<test>" };

    #[test]
    fn files_of_other_kinds_are_not_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a");
        let write = |text: &str| KIND.write(&path, text.as_bytes());
        KIND.check(&path).expect("it is free");
        assert!(!path.exists());
        write("one <test>").and_then(|()| write("two <test>")).expect("it is replaced");
        assert_eq!(fs::read(&path).expect("a file"), b"two <test>");
        for other in ["x".to_owned(), format!("{:600}<test>", "")] {
            fs::write(&path, &other).expect("a file");
            for result in [KIND.check(&path), write("<test>"), KIND.begin_private(&path).map(drop)] {
                let why = result.expect_err("it is another file").to_string();
                assert!(why.ends_with("a exists and is not a test, so it is not replaced"), "{why}");
            }
            assert_eq!(fs::read_to_string(&path).expect("a file"), other);
        }
        fs::write(&path, "").expect("a file");
        write("<test>").expect("an empty one has nothing to lose");
        write("<test>").and_then(|()| KIND.write(Path::new("/dev/null"), b"<test>")).expect("a device is no file");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing else is left");
    }

    #[test]
    fn a_private_file_appears_when_it_is_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a");
        let begun = KIND.begin_private(&path).expect("a file");
        begun.file().write_all(b"<test>").expect("written");
        assert!(!path.exists());
        begun.sync().and_then(|()| begun.keep()).expect("a file");
        assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        drop(KIND.begin_private(&path).expect("another one"));
        assert_eq!(fs::read(&path).expect("a file"), b"<test>");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing else is left");
    }
}
