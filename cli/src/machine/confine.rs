//! QEMU's process: `gnomon confine`, which only this program starts. It confines itself, and then becomes QEMU.
//!
//! QEMU reads what guests write: requests of virtio devices, images of disks. A guest that takes it over has what this sandbox leaves: the
//! machine's own files, and sockets that are already open. System calls are restricted here and by QEMU itself (`-sandbox on`).

use super::disk::{Disk, Use};
use super::qemu::{self, Boot, MachineSpec};
use crate::host::place::{IoError, find_program};
use crate::host::sandbox::{Calls, Reach, Sandbox, SandboxError, close_descriptors, drop_privileges, end_with};
use crate::host::size::{MIB, Size};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The `gnomon` program, if it is not the one that runs: set by tests, which are programs of their own.
pub static GNOMON: OnceLock<PathBuf> = OnceLock::new();
/// This program, also if its file was replaced meanwhile.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// Programs, libraries, their data, and the kernel's description of the system. Those that a system lacks are left out.
const SYSTEM: [&str; 12] = [
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/sys/devices/system",
    "/proc/sys/vm",
];
/// Most descriptors of a machine: files of disks, sockets, and QEMU's own.
const DESCRIPTORS: u64 = 1024;
/// The memory that QEMU may have besides the machine's RAM: translated code (1 GiB), stacks, buffers, the meter's counts.
const MEMORY: u64 = 4096 * MIB;
/// Most bytes of a thread's stack.
const STACK: u64 = 8 << 20;
/// The directory of the process itself in `/proc`.
const OWN_PROCESS: &str = "/proc/self";
/// The privileges of root's QEMU: it opens files whose rights leave root out.
const PRIVILEGES: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);
/// The exit status if there is no program, as a shell's.
const NOT_STARTED: u8 = 126;

/// The command line.
#[derive(Debug, clap::Args)]
pub struct ConfineArgs {
    /// The process that has started it, and without which it ends.
    #[arg(long)]
    parent: i32,
    /// Sets limits only.
    #[arg(long)]
    no_sandbox: bool,
    /// Files and directories that may be read.
    #[arg(long)]
    read: Vec<PathBuf>,
    /// Files and directories that may be read and written.
    #[arg(long)]
    write: Vec<PathBuf>,
    /// Most bytes of memory.
    #[arg(long, default_value_t = u64::MAX)]
    memory: u64,
    /// Allows new sockets.
    #[arg(long)]
    sockets: bool,
    /// Descriptors that the program gets beside the standard ones.
    #[arg(long)]
    keep: Vec<i32>,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

impl ConfineArgs {
    /// Becomes the program. Returns the exit status if that is not possible.
    #[must_use]
    pub fn run(self) -> u8 {
        let name = self.program[0].to_string_lossy().into_owned();
        let why = match self.become_program() {
            Ok(never) => match never {},
            Err(why) => why,
        };
        crate::host::tty::say(&format!("{name}: {why}"));
        NOT_STARTED
    }

    fn become_program(mut self) -> Result<std::convert::Infallible, Box<dyn std::error::Error>> {
        close_descriptors(&self.keep);
        end_with(self.parent)?;
        // Threads have stacks of that size, which count as memory.
        let stack = getrlimit(Resource::Stack);
        let current = stack.current.map_or(STACK, |most| most.min(STACK));
        setrlimit(Resource::Stack, Rlimit { current: Some(current), maximum: stack.maximum })?;
        if self.no_sandbox {
            crate::host::sandbox::limit(DESCRIPTORS, self.memory)?;
        } else {
            // Kept open until the program is there: a file that has no name is opened anew by its descriptor.
            let kept = self.open_unnamed()?;
            self.confine()?;
            drop_privileges(PRIVILEGES);
            std::mem::forget(kept);
        }
        let mut program = self.program.into_iter();
        let why = Command::new(program.next().unwrap_or_default()).args(program).exec();
        Err(why.into())
    }

    fn confine(&self) -> Result<(), SandboxError> {
        let open = |path: &Path, reach| Some((open_place(path)?, reach));
        let system = SYSTEM.iter().filter_map(|path| open(Path::new(path), Reach::Run));
        let program = find_program(&self.program[0]);
        let program = program.iter().filter_map(|path| open(path, Reach::Run));
        let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let libraries = std::env::split_paths(&libraries).filter(|dir| dir.is_absolute());
        let libraries: Vec<_> = libraries.filter_map(|path| open(&path, Reach::Run)).collect();
        // A file that is gone by now: the program says so itself.
        let read = self.read.iter().filter_map(|path| open(path, Reach::Read));
        let write = self.write.iter().filter_map(|path| open(path, Reach::Write));
        let places = system.chain(program).chain(libraries).chain(read).chain(write).collect();
        let sandbox = Sandbox {
            places,
            calls: Calls::AllBut(calls(self.sockets)),
            descriptors: DESCRIPTORS,
            memory: self.memory,
            has_tcp: self.sockets,
        };
        sandbox.enter().map(drop)
    }

    /// Opens the files that are named by descriptors of another process, and gives them names of descriptors of this one.
    /// By Landlock a process sees nothing of the processes outside of its sandbox.
    fn open_unnamed(&mut self) -> std::io::Result<Vec<OwnedFd>> {
        let mut kept = Vec::new();
        for place in self.read.iter_mut().filter(|place| place.starts_with("/proc") && *place != Path::new(OWN_PROCESS))
        {
            let file = OwnedFd::from(OpenOptions::new().read(true).open(&place)?);
            rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?;
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            for arg in &mut self.program {
                *arg = renamed(arg, place, &path);
            }
            *place = path;
            kept.push(file);
        }
        Ok(kept)
    }
}

/// The system calls that QEMU needs none of, and that Landlock does not look at: all sockets are open when it starts, and a file that it may
/// open keeps its owner, rights and times, as do those that it may not.
fn calls(has_sockets: bool) -> Vec<libc::c_long> {
    let sockets =
        [libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4];
    let files = [
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_fchmodat2,
        libc::SYS_fchown,
        libc::SYS_fchownat,
        libc::SYS_utimensat,
        libc::SYS_truncate,
        libc::SYS_setxattr,
        libc::SYS_lsetxattr,
        libc::SYS_fsetxattr,
        libc::SYS_removexattr,
        libc::SYS_lremovexattr,
        libc::SYS_fremovexattr,
        libc::SYS_open_by_handle_at,
    ];
    #[cfg(target_arch = "x86_64")]
    let older =
        [libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat];
    #[cfg(not(target_arch = "x86_64"))]
    let older = [];
    let others = [
        // By its rings a process would make calls that no list sees.
        libc::SYS_io_uring_setup,
        libc::SYS_kill,
        libc::SYS_tkill,
        libc::SYS_pidfd_send_signal,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_sethostname,
        libc::SYS_setdomainname,
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
    ];
    let sockets = if has_sockets { &[][..] } else { &sockets };
    [sockets, &files, &older, &others].concat()
}

/// An argument in which one path stands for another: where it is the whole, and within an option.
fn renamed(arg: &OsStr, from: &Path, to: &Path) -> OsString {
    let (Some(text), Some(from), Some(to)) = (arg.to_str(), from.to_str(), to.to_str()) else { return arg.into() };
    // Descriptor 1 is not the beginning of descriptor 10.
    let is_whole = |at: usize| !text[at + from.len()..].starts_with(|next: char| next.is_ascii_digit());
    let places = text.match_indices(from).map(|(at, _)| at).filter(|at| is_whole(*at));
    let mut renamed = String::new();
    let mut behind = 0;
    for at in places {
        renamed += &text[behind..at];
        renamed += to;
        behind = at + from.len();
    }
    (renamed + &text[behind..]).into()
}

fn open_place(path: &Path) -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// A command of this program.
pub(super) fn gnomon(action: &str) -> Command {
    let mut command = Command::new(GNOMON.get().map_or(Path::new(THIS_PROGRAM), PathBuf::as_path));
    command.arg0("gnomon").arg(action);
    command
}

/// The command that starts a machine's QEMU, without QEMU's arguments. `scratch` is a directory that QEMU may use, `kept` are the numbers of
/// the descriptors that it gets.
pub(super) fn command(spec: &MachineSpec, scratch: Option<&Path>, kept: impl Iterator<Item = i32>) -> Command {
    let mut command = gnomon("confine");
    command.arg(format!("--parent={}", std::process::id()));
    if !spec.sandbox {
        command.arg("--no-sandbox");
    }
    command.args(kept.map(|number| format!("--keep={number}")));
    let mut place = |option: &str, path: &Path| _ = command.arg(option).arg(path);
    for (path, reach) in places(spec) {
        place(if reach == Reach::Write { "--write" } else { "--read" }, &path);
    }
    scratch.iter().for_each(|path| place("--write", path));
    // Further arguments may ask for more memory, and for sockets.
    if !spec.extra.is_empty() {
        command.arg("--sockets");
    } else if spec.sandbox {
        let Size(memory) = spec.memory;
        command.arg(format!("--memory={}", memory.saturating_add(MEMORY)));
    }
    // Secrets in the user's environment are none of QEMU's.
    let is_kept = |name: &OsStr| {
        let name = name.to_string_lossy();
        ["PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR", "TZ"].contains(&&*name)
            || name.starts_with("LC_")
    };
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_kept(name)));
    if let Some(scratch) = scratch {
        // QEMU keeps there what guests write to a disk that discards it.
        command.env("TMPDIR", scratch);
    }
    command.arg("--").arg(qemu::program());
    if spec.sandbox {
        command.args(["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]);
    }
    command
}

/// The files and directories of a machine.
fn places(spec: &MachineSpec) -> Vec<(PathBuf, Reach)> {
    let mut read: Vec<PathBuf> = match &spec.boot {
        Boot::Gnomon { hypervisor, bundle, .. } => vec![hypervisor.clone(), bundle.clone()],
        Boot::Bare { kernel, initrd, .. } => std::iter::once(kernel.clone()).chain(initrd.clone()).collect(),
    };
    // Files' locks are tried with `/dev/null`.
    let mut write: Vec<PathBuf> = std::iter::once("/dev/null".into()).chain(spec.swap.clone()).collect();
    if let Some(meter) = &spec.meter {
        read.push(meter.plugin.clone());
        // The meter finds the guests' RAM in its own process.
        read.push(OWN_PROCESS.into());
        // The cores that the meter knows have names that are no files.
        read.extend(meter.spec.cores.iter().map(PathBuf::from).filter(|core| core.is_file()));
        write.extend(meter.spec.traps.clone());
    }
    if spec.rng {
        read.push("/dev/urandom".into());
    }
    read.extend_from_slice(qemu::own_data());
    for (file, use_) in spec.disks.iter().flat_map(Disk::files) {
        let files = if use_ == Use::Write { &mut write } else { &mut read };
        files.push(file.to_owned());
    }
    write.extend(spec.extra.iter().flat_map(|arg| named_files(arg)).map(Path::to_owned));
    let read = read.into_iter().map(|path| (path, Reach::Read));
    let write = write.into_iter().map(|path| (path, Reach::Write));
    read.chain(write).chain(spec.files.iter().cloned()).collect()
}

/// The files that exist and that an argument of QEMU's names: as the whole of it, or as the value of an option in it.
fn named_files(arg: &str) -> impl Iterator<Item = &Path> {
    let values = arg.split([',', '=', ':']).chain([arg]).map(Path::new);
    values.filter(|path| path.exists() && !path.is_dir() && !path.starts_with("/proc"))
}

/// Makes the files that QEMU and the meter are to write their logs to, since they may make none.
pub(super) fn make_logs(spec: &MachineSpec) -> Result<(), IoError> {
    let logs = spec.extra.iter().zip(spec.extra.iter().skip(1)).filter(|(option, _)| *option == "-D");
    let logs = logs.map(|(_, log)| Path::new(log));
    let traps = spec.meter.iter().filter_map(|meter| meter.spec.traps.as_deref());
    for file in logs.chain(traps) {
        OpenOptions::new().append(true).create(true).open(file).map_err(IoError::at("write", file))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_renamed_in_arguments() {
        let renamed = |arg: &str| renamed(OsStr::new(arg), Path::new("/proc/7/fd/1"), Path::new("/proc/self/fd/9"));
        assert_eq!(renamed("/proc/7/fd/1"), "/proc/self/fd/9");
        assert_eq!(renamed(r#"a="/proc/7/fd/1",,/proc/7/fd/1"#), r#"a="/proc/self/fd/9",,/proc/self/fd/9"#);
        assert_eq!(renamed("/proc/7/fd/10,/proc/17/fd/1"), "/proc/7/fd/10,/proc/17/fd/1");
    }

    #[test]
    fn files_in_arguments_are_found() {
        let names = |arg| named_files(arg).map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(names("if=none,file=/etc/passwd,format=raw"), ["/etc/passwd"]);
        assert_eq!(names("/etc/passwd"), ["/etc/passwd"; 2]);
        assert!(
            names("rv64,svinval=on").is_empty() && names("path=/etc").is_empty() && names("file=/no/such").is_empty()
        );
    }
}
