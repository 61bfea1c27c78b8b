//! The default guest's initramfs: Debian's busybox and an init script, as a cpio archive.

use crate::guest::agent;
use crate::guest::modules::FOLDER;
use cpio::newc::{Builder, ModeFileType};
use miette::Diagnostic;
use std::collections::BTreeSet;
use std::io::Write;

/// The first process. `docs/console.md` describes what it prints.
const INIT: &str = include_str!("initramfs/init.sh");
/// The first process where a whole system is on the first disk, to which it hands over.
const INIT_ROOT: &str = include_str!("initramfs/init-root.sh");
/// The part that gives the agent to the system of [`INIT_ROOT`].
const AGENT_ROOT: &str = include_str!("initramfs/agent-root.sh");
/// The common start of both scripts.
const COMMON: &str = include_str!("initramfs/common.sh");
/// The only user.
pub(super) const PASSWD: &str = "root::0:0:root:/root:/bin/sh\n";
/// Its groups.
pub(super) const GROUP: &str = "root:x:0:\ntty:x:5:\n";
const PROFILE: &str = "export PATH=/bin HOME=/root PS1='\\h:\\w# '\n";

/// The folders that are always there.
const FOLDERS: [&str; 10] = ["bin", "dev", "etc", "lib", "mnt", "proc", "root", "run", "sys", "tmp"];

/// The path of the script of `--exec`.
const EXEC_PATH: &str = "exec.sh";

/// The path of a file with the date and time for [`First::Root`], in seconds since 1970.
pub const NOW_PATH: &str = "etc/now";
/// The path of the ssh keys for logging in.
pub const KEYS_PATH: &str = "etc/authorized_keys";

/// The task of the first process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// Gives a shell of busybox's, or runs the script in it.
    Shell,
    /// Starts the system that is on the first disk, or runs the script there.
    Root,
}

/// The initramfs could not be made.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum InitramfsError {
    /// The list of applets was not found in the program.
    #[error("the busybox program holds no table of applets with `{0}`")]
    #[diagnostic(help("this version of Gnomon does not know that version of busybox; please report it"))]
    NoApplets(&'static str),
    /// The archive could not be written.
    #[error("cannot make the initramfs: {0}")]
    #[diagnostic(help("this is a bug of Gnomon's; please report it"))]
    Archive(#[from] std::io::Error),
}

/// Builds the archive. Equal input makes equal output. With a script, init runs that and powers
/// off, instead of giving a shell.
///
/// # Errors
/// [`InitramfsError`].
pub fn build(busybox: &[u8], exec: Option<&str>) -> Result<Vec<u8>, InitramfsError> {
    build_with(busybox, exec, &[])
}

/// Like [`build`], with further files, such as programs and their libraries: the path and the content. Folders
/// that are not there are made. Kernel modules ([`FOLDER`]) are loaded by init, in their order.
///
/// # Errors
/// [`InitramfsError`].
pub fn build_with(busybox: &[u8], exec: Option<&str>, files: &[(&str, &[u8])]) -> Result<Vec<u8>, InitramfsError> {
    build_for(First::Shell, busybox, exec, files)
}

/// Like [`build_with`], with a choice of the first process.
///
/// # Errors
/// [`InitramfsError`].
pub fn build_for(
    first: First,
    busybox: &[u8],
    exec: Option<&str>,
    files: &[(&str, &[u8])],
) -> Result<Vec<u8>, InitramfsError> {
    let mut archive = Archive::default();
    for dir in FOLDERS {
        archive.add(dir, ModeFileType::Directory, 0o755, &[])?;
    }
    archive.add("init", ModeFileType::Regular, 0o755, init(first, files).as_bytes())?;
    archive.add("bin/busybox", ModeFileType::Regular, 0o755, busybox)?;
    for applet in applets(busybox)? {
        archive.add(&format!("bin/{applet}"), ModeFileType::Symlink, 0o777, b"busybox")?;
    }
    let mut folders = BTreeSet::from(FOLDERS);
    for (path, content) in files {
        // Linux makes no folder of its own for a file.
        for (end, _) in path.match_indices('/') {
            if folders.insert(&path[..end]) {
                archive.add(&path[..end], ModeFileType::Directory, 0o755, &[])?;
            }
        }
        archive.add(path, ModeFileType::Regular, 0o755, content)?;
    }
    archive.add("etc/gnomon.sh", ModeFileType::Regular, 0o644, COMMON.as_bytes())?;
    archive.add("etc/passwd", ModeFileType::Regular, 0o644, PASSWD.as_bytes())?;
    archive.add("etc/group", ModeFileType::Regular, 0o644, GROUP.as_bytes())?;
    archive.add("etc/profile", ModeFileType::Regular, 0o644, PROFILE.as_bytes())?;
    if let Some(script) = exec {
        archive.add(EXEC_PATH, ModeFileType::Regular, 0o644, format!("{script}\n").as_bytes())?;
    }
    archive.finish()
}

/// The first process, which loads those of the files that are modules once it has mounted what drivers use, and starts
/// the agent if that is one of the files.
fn init(first: First, files: &[(&str, &[u8])]) -> String {
    const AFTER: &str = ". /etc/gnomon.sh\n";
    let modules = files.iter().filter(|(path, _)| path.starts_with(FOLDER));
    let load: String = modules.map(|(path, _)| format!("insmod /{path}\n")).collect();
    let script = match first {
        First::Shell => INIT,
        First::Root => INIT_ROOT,
    };
    let script = script.replacen(AFTER, &format!("{AFTER}{load}"), 1);
    if !files.iter().any(|(path, _)| *path == agent::PATH) {
        return script;
    }
    // A guest without it starts as ever, to the instruction.
    let (before, start) = match first {
        First::Shell => ("cd /root\n", "gnomon-agent &\n"),
        First::Root => ("[ ! -e /bin/mark ]", AGENT_ROOT),
    };
    script.replacen(before, &format!("{start}{before}"), 1)
}

/// An archive that is being made.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    count: u32,
}

impl Archive {
    /// Adds a file, a directory, or a link to `data`; `mode` are its permissions.
    ///
    /// # Errors
    /// If it is larger than the format can say: 4 GiB.
    pub fn add(&mut self, path: &str, kind: ModeFileType, mode: u32, data: &[u8]) -> std::io::Result<()> {
        self.count += 1;
        let entry = Builder::new(path).ino(self.count).nlink(1).mode(mode).set_mode_file_type(kind);
        self.push(entry, data)
    }

    fn push(&mut self, entry: Builder, data: &[u8]) -> std::io::Result<()> {
        let size = u32::try_from(data.len()).map_err(std::io::Error::other)?;
        let mut writer = entry.write(&mut self.bytes, size);
        writer.write_all(data)?;
        writer.finish().map(drop)
    }

    /// The archive, with the console's device.
    ///
    /// # Errors
    /// [`InitramfsError`].
    pub fn finish(mut self) -> Result<Vec<u8>, InitramfsError> {
        // Linux opens it before init runs: without it, init has no output.
        self.count += 1;
        let console = Builder::new("dev/console").ino(self.count).nlink(1).mode(0o600);
        self.push(console.set_mode_file_type(ModeFileType::Char).rdev_major(5).rdev_minor(1), &[])?;
        cpio::newc::trailer(&mut self.bytes)?;
        Ok(self.bytes)
    }
}

/// The names of busybox's applets: a sorted table of strings in the program, which we cannot run
/// here to ask.
pub(super) fn applets(busybox: &[u8]) -> Result<Vec<&str>, InitramfsError> {
    const START: &[u8] = b"[\0[[\0";
    let start = busybox.windows(START.len()).position(|window| window == START);
    let table = start.map_or(&[][..], |start| &busybox[start..]);
    let names: Vec<&str> = table
        .split(|byte| *byte == 0)
        .map_while(|name| std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && name.len() < 32))
        .filter(|name| *name != "busybox" && !name.contains('/'))
        .collect();
    for needed in ["sh", "mount", "poweroff", "cttyhack", "setsid"] {
        if !names.contains(&needed) {
            return Err(InitramfsError::NoApplets(needed));
        }
    }
    Ok(names)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const BUSYBOX: &[u8] = b"\x7fELF...\0x\0[\0[[\0busybox\0cttyhack\0mount\0poweroff\0setsid\0sh\0\0\x01other";

    #[test]
    fn applets_are_found() {
        assert_eq!(applets(BUSYBOX).expect("a table"), ["[", "[[", "cttyhack", "mount", "poweroff", "setsid", "sh"]);
        assert!(matches!(applets(b"[\0[[\0sh\0\0"), Err(InitramfsError::NoApplets("mount"))));
        assert!(applets(b"").is_err());
    }

    /// Name, mode and content of what is in an archive.
    pub fn entries(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut rest, mut files) = (archive, Vec::new());
        loop {
            let mut reader = cpio::newc::Reader::new(rest).expect("an entry");
            if reader.entry().is_trailer() {
                return files;
            }
            let mut data = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut data).expect("data");
            files.push((reader.entry().name().to_owned(), reader.entry().mode(), data));
            rest = reader.finish().expect("next");
        }
    }

    #[test]
    fn folders_come_before_their_files_and_once() {
        let further: [(&str, &[u8]); 3] = [("usr/a/x", b"x"), ("usr/y", b"y"), ("lib/z", b"z")];
        let names: Vec<_> = entries(&build_with(BUSYBOX, None, &further).expect("built"))
            .into_iter()
            .map(|(name, ..)| name)
            .filter(|name| name.starts_with("usr") || name.starts_with("lib"))
            .collect();
        assert_eq!(names, ["lib", "usr", "usr/a", "usr/a/x", "usr/y", "lib/z"]);
    }

    #[test]
    fn init_loads_modules_and_is_as_ever_without() {
        let text = |files: &[(&str, &[u8])]| {
            let all = entries(&build_with(BUSYBOX, None, files).expect("built"));
            let init = all.into_iter().find(|(name, ..)| name == "init").expect("there is one");
            String::from_utf8(init.2).expect("text")
        };
        assert_eq!(text(&[("bin/x", b"x")]), INIT);
        let loads = text(&[("lib/modules/b.ko", b"b"), ("lib/modules/a.ko", b"a")]);
        assert_eq!(loads.replace("insmod /lib/modules/b.ko\ninsmod /lib/modules/a.ko\n", ""), INIT);
        let root = super::init(First::Root, &[("lib/modules/b.ko", b"b")]);
        assert_eq!(root.replace("insmod /lib/modules/b.ko\n", ""), INIT_ROOT);
        assert_ne!(root, INIT_ROOT);
        for (first, script, start) in [(First::Shell, INIT, "gnomon-agent &\n"), (First::Root, INIT_ROOT, AGENT_ROOT)] {
            let init = super::init(first, &[(agent::PATH, b"agent")]);
            assert!(init != script && init.replacen(start, "", 1) == script, "{init}");
        }
    }

    #[test]
    fn the_archive_is_the_same_each_time_and_holds_the_script() {
        let archive = build(BUSYBOX, Some("uname")).expect("built");
        assert_eq!(archive, build(BUSYBOX, Some("uname")).expect("built"));
        let files = entries(&archive);
        let find = |name: &str| files.iter().find(|file| file.0 == name).cloned().expect(name);
        assert_eq!(find("exec.sh").2, b"uname\n");
        assert_eq!(find("bin/sh").2, b"busybox");
        assert_eq!(find("bin/sh").1, 0o120_777);
        assert_eq!(find("init").1, 0o100_755);
        assert_eq!(find("dev/console").1, 0o020_600);
        assert!(!build(BUSYBOX, None).expect("built").windows(8).any(|window| window == b"exec.sh\0"));
    }
}
