//! Debian 13's passt for this host, from the cache: for systems whose own passt is missing or too old.

use super::DebianError;
use super::apt::Apt;
use crate::guest::deb;
use crate::host::place::{CacheLock, IoError, cache};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Starts passt with the C library that came with it: the system's may be older.
const START: &str = "#!/bin/sh\nhere=$(dirname -- \"$(readlink -f -- \"$0\")\")\nloader=$(echo \"$here\"/usr/lib/*/ld-linux-*.so.*)\n\
    exec \"$loader\" --library-path \"$(dirname -- \"$loader\")\" --argv0 passt \"$here/usr/bin/passt\" \"$@\"\n";

/// Provides the program: from the cache, else from the Debian archive. It needs no root.
///
/// # Errors
/// [`DebianError`].
pub fn provide() -> Result<PathBuf, DebianError> {
    let dir = cache("")?.join("passt");
    let program = dir.join("passt");
    if program.is_file() {
        return Ok(program);
    }
    let _lock = CacheLock::take()?;
    // Another run may have fetched it while this one waited.
    if !program.is_file() {
        fetch(&dir)?;
    }
    Ok(program)
}

fn fetch(dir: &Path) -> Result<(), DebianError> {
    let apt = Apt::of_host()?;
    let parent = cache("")?;
    let new = tempfile::tempdir_in(&parent).map_err(IoError::at("create a directory in", &parent))?;
    let libraries = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let [loader, library] = ["ld-linux", "libc.so"].map(|name| format!("{libraries}/{name}"));
    let wanted = [("passt", vec!["usr/bin/passt"]), ("libc6", vec![loader.as_str(), library.as_str()])];
    for (package, paths) in wanted {
        let deb = apt.download(package, None)?;
        for file in deb::extract_under(&deb, &paths, new.path())? {
            runnable(&new.path().join(file))?;
        }
        fs::remove_file(&deb).map_err(IoError::at("remove", &deb))?;
    }
    let start = new.path().join("passt");
    fs::write(&start, START).map_err(IoError::at("write", &start))?;
    runnable(&start)?;
    runnable(new.path())?;
    // One of an older kind, or a part.
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(IoError::at("remove", dir))?;
    }
    Ok(fs::rename(new.keep(), dir).map_err(IoError::at("write", dir))?)
}

fn runnable(path: &Path) -> Result<(), IoError> {
    fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(IoError::at("write", path))
}
