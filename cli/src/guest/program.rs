//! A Linux program for the vkernel: the archive that its VM starts with.

use crate::guest::debian::{DebianError, Software};
use crate::guest::initramfs::{self, Archive, InitramfsError};
use crate::host::place::IoError;
use abi::exec::{FILE, Start};
use cpio::newc::ModeFileType;
use miette::Diagnostic;
use object::elf::{EM_RISCV, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The name of Debian's busybox, which need not be a file.
pub const BUSYBOX: &str = "busybox";
/// Directories in which a program of a root directory is looked for.
const SEARCHED: [&str; 6] = ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"];
/// Directories that are there in any case.
const FOLDERS: [&str; 6] = ["bin", "dev", "etc", "proc", "root", "tmp"];

/// The reason why a program cannot run.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ProgramError {
    /// The file cannot be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Unreadable(#[from] IoError),
    /// The file is not a program for the VM.
    #[error("{path} {why}")]
    #[diagnostic(help("{remedy}"))]
    Unfit {
        /// The file.
        path: PathBuf,
        /// A description of the file.
        why: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// The root directory has no such program.
    #[error("{root} has no program {program}")]
    #[diagnostic(help(
        "name a file of that directory, such as /usr/bin/env, or a program in one of its bin directories"
    ))]
    Missing {
        /// The root directory.
        root: PathBuf,
        /// The program.
        program: PathBuf,
    },
    /// Debian's busybox cannot be had.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Busybox(#[from] DebianError),
    /// The archive cannot be made.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Archive(#[from] InitramfsError),
}

/// Makes the archive of a program. `start` gets the program's path in the VM, and its first argument.
///
/// # Errors
/// [`ProgramError`].
pub fn archive(program: &Path, root: Option<&Path>, mut start: Start) -> Result<Vec<u8>, ProgramError> {
    let mut archive = Archive::default();
    start.program = match root {
        Some(root) => {
            pack(&mut archive, root, Path::new(""))?;
            in_root(root, program)?
        }
        None => alone(&mut archive, program)?,
    };
    start.arguments.insert(0, program.as_os_str().as_bytes().into());
    let add = |archive: &mut Archive| archive.add(FILE, ModeFileType::Regular, 0o600, &start.encode());
    add(&mut archive).map_err(InitramfsError::from)?;
    Ok(archive.finish()?)
}

/// Adds a program that needs no other file.
fn alone(archive: &mut Archive, program: &Path) -> Result<Vec<u8>, ProgramError> {
    let is_busybox = program.as_os_str() == BUSYBOX && !program.exists();
    let path = if is_busybox { Software::Busybox.provide()?.file } else { program.to_owned() };
    let bytes = fs::read(&path).map_err(IoError::at("read", &path))?;
    check(&path, &bytes)?;
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or("program");
    let add = |archive: &mut Archive| {
        for folder in FOLDERS {
            archive.add(folder, ModeFileType::Directory, 0o755, &[])?;
        }
        archive.add("etc/passwd", ModeFileType::Regular, 0o644, initramfs::PASSWD.as_bytes())?;
        archive.add("etc/group", ModeFileType::Regular, 0o644, initramfs::GROUP.as_bytes())?;
        archive.add(&format!("bin/{name}"), ModeFileType::Regular, 0o755, &bytes)
    };
    add(archive).map_err(InitramfsError::from)?;
    if is_busybox {
        for applet in initramfs::applets(&bytes)? {
            let link = archive.add(&format!("bin/{applet}"), ModeFileType::Symlink, 0o777, BUSYBOX.as_bytes());
            link.map_err(InitramfsError::from)?;
        }
    }
    Ok(format!("/bin/{name}").into_bytes())
}

/// Checks that a file is a program for the VM, and needs no other file.
fn check(path: &Path, bytes: &[u8]) -> Result<(), ProgramError> {
    let unfit = |why, remedy| Err(ProgramError::Unfit { path: path.to_owned(), why, remedy });
    if bytes.starts_with(b"#!") {
        return unfit(
            "is a script",
            "give the directory with its interpreter: --root DIR; or run the interpreter: busybox sh -c ...",
        );
    }
    let header = FileHeader64::<Endianness>::parse(bytes).ok().and_then(|header| Some((header, header.endian().ok()?)));
    let Some((header, endian)) = header.filter(|(header, endian)| header.e_machine(*endian) == EM_RISCV) else {
        return unfit(
            "is not a program for 64-bit RISC-V",
            "build it for riscv64, such as with riscv64-linux-gnu-gcc -static",
        );
    };
    let Ok(segments) = header.program_headers(endian, bytes) else {
        return unfit("is a broken ELF file", "copy it again, or build it again");
    };
    if ![elf::ET_EXEC, elf::ET_DYN].contains(&header.e_type(endian)) {
        return unfit("is an ELF file, but not an executable", "link it to an executable");
    }
    if segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP) {
        return unfit(
            "is dynamically linked, and needs its loader and libraries",
            "link it with -static, or give the directory of a root file system that has both: --root DIR",
        );
    }
    Ok(())
}

/// Finds a program in a root directory; returns its path there.
fn in_root(root: &Path, program: &Path) -> Result<Vec<u8>, ProgramError> {
    let has = |path: &Path| fs::symlink_metadata(root.join(path)).is_ok();
    let named = program.strip_prefix("/").unwrap_or(program);
    let found = if program.components().count() > 1 {
        Some(named.to_owned()).filter(|path| has(path))
    } else {
        SEARCHED.iter().map(|folder| Path::new(folder).join(named)).find(|path| has(path))
    };
    let missing = || ProgramError::Missing { root: root.to_owned(), program: program.to_owned() };
    Ok(Path::new("/").join(found.ok_or_else(missing)?).as_os_str().as_bytes().to_vec())
}

/// Adds everything in a directory of the host's, by its path from the root directory.
fn pack(archive: &mut Archive, root: &Path, inner: &Path) -> Result<(), ProgramError> {
    let dir = root.join(inner);
    let mut entries =
        fs::read_dir(&dir).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(IoError::at("read", &dir))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, inner) = (entry.path(), inner.join(entry.file_name()));
        let unreadable = |why| IoError::at("read", &path)(why);
        let meta = fs::symlink_metadata(&path).map_err(unreadable)?;
        let mode = meta.permissions().mode() & 0o7777;
        // Names that are not UTF-8 cannot be in the VM.
        let Some(name) = inner.to_str() else { continue };
        let added = if meta.is_dir() {
            archive.add(name, ModeFileType::Directory, mode, &[])
        } else if meta.is_symlink() {
            let target = fs::read_link(&path).map_err(unreadable)?;
            archive.add(name, ModeFileType::Symlink, 0o777, target.as_os_str().as_bytes())
        } else if meta.is_file() {
            archive.add(name, ModeFileType::Regular, mode, &fs::read(&path).map_err(unreadable)?)
        } else {
            // Devices and sockets are the VM's own.
            Ok(())
        };
        added.map_err(InitramfsError::from)?;
        if meta.is_dir() {
            pack(archive, root, &inner)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::exec::Io;

    fn start() -> Start {
        Start { arguments: vec![b"-x".to_vec()], io: Io::Pipes, ..Start::new(b"") }
    }

    #[test]
    fn what_is_no_program_is_refused_with_a_remedy() {
        let dir = tempfile::tempdir().expect("a directory");
        let refused = |bytes: &[u8]| {
            let path = dir.path().join("a");
            fs::write(&path, bytes).expect("written");
            archive(&path, None, start()).expect_err("refused").to_string()
        };
        assert!(refused(b"#!/bin/sh\n").ends_with("is a script"));
        assert!(refused(b"hello").ends_with("is not a program for 64-bit RISC-V"));
        assert!(refused(&fs::read("/proc/self/exe").expect("this program")).ends_with("for 64-bit RISC-V"));
        let missing = archive(&dir.path().join("b"), None, start()).expect_err("refused").to_string();
        assert!(missing.contains("cannot read"), "{missing}");
    }

    #[test]
    fn a_root_directory_is_packed_with_its_links_and_modes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("usr/bin")).expect("made");
        fs::write(path("usr/bin/true"), "x").expect("written");
        fs::set_permissions(path("usr/bin/true"), fs::Permissions::from_mode(0o750)).expect("set");
        std::os::unix::fs::symlink("usr/bin", path("bin")).expect("linked");
        let made = archive(Path::new("true"), Some(dir.path()), start()).expect("an archive");
        let entries = initramfs::tests::entries(&made);
        let find = |name: &str| entries.iter().find(|(known, ..)| known == name).expect("an entry");
        assert_eq!((find("usr/bin/true").1 & 0o7777, &*find("usr/bin/true").2), (0o750, &b"x"[..]));
        assert_eq!(find("bin").2, b"usr/bin");
        let found = Start::decode(&find(FILE).2).expect("the start");
        assert_eq!(
            (found.program.as_slice(), found.arguments),
            (&b"/usr/bin/true"[..], vec![b"true".to_vec(), b"-x".to_vec()])
        );
        let missing = archive(Path::new("false"), Some(dir.path()), start()).expect_err("not there").to_string();
        assert!(missing.ends_with("has no program false"), "{missing}");
    }
}
