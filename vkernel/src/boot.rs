//! The start of the kernel, its first program, and the end of the VM.

use crate::errno::{Errno, Result};
use crate::fs::memory::MemoryNode;
use crate::fs::path::Place;
use crate::fs::{New, Node, device, process as proc};
use crate::net::Settings;
use crate::sync::Once;
use crate::task::credentials::Birth;
use crate::task::process;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The directory in which shares are mounted, by their tags.
pub const MOUNTS: &str = "mnt";
/// Harts in use.
static HARTS: AtomicUsize = AtomicUsize::new(1);
/// The process whose end is the end of the VM; 0 before it is there.
static FIRST: AtomicU32 = AtomicU32::new(0);
static COMMAND_LINE: Once<String> = Once::new();
static ROOT: Once<Arc<Place>> = Once::new();
static DEVICES: Once<Arc<dyn Node>> = Once::new();
static PROC: Once<Arc<dyn Node>> = Once::new();

/// The way in which the VM ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The first process has ended with this status, as a shell has it.
    Status(u8),
    /// The VM starts over.
    Again,
}

/// Returns the number of harts in use.
#[must_use]
pub fn harts() -> usize {
    HARTS.load(Ordering::Relaxed)
}

/// Returns the command line that the VM was started with.
#[must_use]
pub fn command_line() -> &'static str {
    COMMAND_LINE.get().map_or("", String::as_str)
}

/// Returns the words of a command line that are for the first program: variables of its environment, as Linux passes them on.
fn variables(line: &str) -> impl Iterator<Item = &str> {
    const KERNELS_OWN: [&str; 3] = ["console=", "earlycon=", "ip="];
    let is_variable = |word: &&str| word.split_once('=').is_some_and(|(name, _)| !name.contains('.'));
    line.split_ascii_whitespace()
        .filter(is_variable)
        .filter(|word| KERNELS_OWN.iter().all(|known| !word.starts_with(known)))
}

/// Returns the root directory.
///
/// # Panics
/// Before [`make_root`].
#[must_use]
pub fn root() -> Arc<Place> {
    Arc::clone(ROOT.get().expect("the root is made first"))
}

/// Returns the root of the devices' file system.
#[must_use]
pub fn dev_root() -> Arc<dyn Node> {
    let make = || {
        let root = MemoryNode::root(0o755);
        let simple = device::SIMPLE.iter().chain(&[("tty", device::TTY), ("console", device::CONSOLE)]);
        for (name, number) in simple {
            // A directory that is new has room for all names.
            let _ = root.create(name, New::Device(*number), Birth::root(0o666));
        }
        let links = [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ];
        for (name, target) in links {
            let _ = root.create(name, New::Link(target.to_string()), Birth::root(0o777));
        }
        let _ = root.create("shm", New::Directory, Birth::root(0o1777));
        root
    };
    Arc::clone(DEVICES.call_once(make))
}

/// Returns the root of `/proc`.
#[must_use]
pub fn proc_root() -> Arc<dyn Node> {
    Arc::clone(PROC.call_once(|| proc::root(crate::task::run::current)))
}

/// Makes the root directory with the directories that every program expects.
fn make_root() -> Arc<Place> {
    let root = Place::root(MemoryNode::root(0o755));
    ROOT.call_once(|| root);
    self::root()
}

/// Makes a directory, unless it is there.
fn directory(parent: &Arc<dyn Node>, name: &str) -> Result<Arc<dyn Node>> {
    match parent.create(name, New::Directory, Birth::root(0o755)) {
        Err(Errno::EXIST) => parent.lookup(name),
        result => result,
    }
}

/// Adds `/dev`, `/proc` and `/tmp` where they are missing, and mounts shares.
fn mount_systems(root: &Arc<Place>) -> Result<()> {
    for (name, mode) in [("dev", 0o755), ("proc", 0o555), ("tmp", 0o1777)] {
        match root.node.create(name, New::Directory, Birth::root(mode)) {
            Ok(_) | Err(Errno::EXIST) => {}
            Err(why) => return Err(why),
        }
    }
    let on = |name: &str| root.node.lookup(name);
    crate::fs::path::mount(&on("dev")?, dev_root());
    crate::fs::path::mount(&on("proc")?, proc_root());
    if let Some(settings) = Settings::parse(command_line()).filter(|_| crate::net::own().is_some()) {
        let etc = directory(&root.node, "etc")?;
        // Another one is of another network.
        let _ = etc.unlink("resolv.conf", false);
        let file = etc.create("resolv.conf", New::File, Birth::root(0o644))?;
        file.write_at(0, alloc::format!("nameserver {}\n", settings.names).as_bytes())?;
    }
    for tag in crate::share::tags() {
        let on = directory(&directory(&root.node, MOUNTS)?, &tag)?;
        crate::fs::path::mount(&on, crate::share::root(&tag)?);
    }
    Ok(())
}

/// Records the end of a process. The VM ends with the first one.
pub fn process_ended(pid: u32, status: process::ExitStatus) {
    const SIGNALLED: u32 = 128;
    if FIRST.load(Ordering::Relaxed) == pid {
        end(End::Status(match status {
            process::ExitStatus::Exited(status) => status,
            process::ExitStatus::Killed(signal) => (SIGNALLED + signal) as u8,
        }));
    }
}

#[cfg(not(feature = "machine"))]
/// Ends the VM.
///
/// # Panics
/// Off the machine, always.
pub fn end(how: End) -> ! {
    panic!("the VM ends: {how:?}")
}

#[cfg(feature = "machine")]
mod start;
#[cfg(feature = "machine")]
pub use start::{end, main, secondary};

#[cfg(test)]
mod tests {
    #[test]
    fn words_for_the_first_program() {
        let line = "console=ttyS0 earlycon=sbi hostname=vm quiet a.b=c LINES=24 X=";
        assert!(super::variables(line).eq(["hostname=vm", "LINES=24", "X="]));
        assert!(super::variables("").eq([""; 0]));
    }
}
