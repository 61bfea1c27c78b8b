//! The server of a share, as a process of its own: `gnomon share-server`, which only this program starts.
//!
//! Its standard input is the socket that QEMU's device is at the other end of. It writes one line to its standard output:
//! [`READY`], or the reason why there is no server.

use crate::host::sandbox::{self, Reach, Sandbox, SandboxError};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, getppid, set_parent_process_death_signal, umask};
use share::files::Descriptors;
use share::server::Server;
use std::path::Path;

/// The line that says that the server has confined itself and serves.
pub(super) const READY: &str = "ready";
/// The file numbers of a share at most, as Gnomon bounds them. Each is a descriptor.
const MOST_FILES: u64 = 1 << 16;
/// The descriptors that are no file numbers: the standard ones, the socket, those of an operation.
const OTHER_DESCRIPTORS: u64 = 16;
/// The memory that a server may have of its own, in bytes: file numbers, attributes and messages.
const MEMORY: u64 = 64 << 20;

/// What a server is to serve.
#[derive(Debug, clap::Args)]
pub struct ServerArgs {
    /// The process that has started it, and without which it ends.
    #[arg(long)]
    pub parent: i32,
    /// The guest changes nothing.
    #[arg(long)]
    pub readonly: bool,
    /// Works without Landlock and seccomp.
    #[arg(long)]
    pub no_sandbox: bool,
    /// The directory.
    pub dir: std::path::PathBuf,
}

/// The reason why there is no server.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Sandbox(#[from] SandboxError),
    #[error("{0}: {1}")]
    System(&'static str, rustix::io::Errno),
}

impl ServerArgs {
    /// Serves until QEMU or the process that has started it ends. Returns the exit status.
    #[must_use]
    pub fn run(&self) -> u8 {
        let server = match self.server() {
            Ok(server) => server,
            Err(failure) => {
                println!("{failure}");
                return 1;
            }
        };
        println!("{READY}");
        self.serve(server)
    }

    fn serve(&self, mut server: Server) -> u8 {
        match share::link::serve(std::io::stdin(), &mut server) {
            Ok(()) => 0,
            Err(why) => {
                crate::host::tty::say(&format!("{why}"));
                1
            }
        }
    }

    fn server(&self) -> Result<Server, Failure> {
        let system = |what| move |why| Failure::System(what, why);
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(system("the parent's end"))?;
        if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != self.parent) {
            return Err(Failure::System("the parent", rustix::io::Errno::SRCH));
        }
        // Rights of new files are the guest's to say.
        umask(Mode::empty());
        let root = open(&self.dir).map_err(system("the directory"))?;
        let descriptors = Descriptors::open().map_err(system("/proc/self/fd"))?;
        let most = self.confine(&root)?.saturating_sub(OTHER_DESCRIPTORS);
        Server::new(root, descriptors, self.readonly, most as usize).map_err(system("the directory"))
    }

    /// Returns the descriptors that there may be.
    fn confine(&self, root: &rustix::fd::OwnedFd) -> Result<u64, Failure> {
        let descriptors = MOST_FILES + OTHER_DESCRIPTORS;
        if self.no_sandbox {
            return Ok(sandbox::limit(descriptors, MEMORY)?);
        }
        let reach = if self.readonly { Reach::Read } else { Reach::Write };
        let place = root.try_clone().map_err(|_| Failure::System("the directory", rustix::io::Errno::MFILE))?;
        let sandbox = Sandbox { places: vec![(place, reach)], calls: calls(), descriptors, memory: MEMORY };
        Ok(sandbox.enter()?)
    }
}

fn open(dir: &Path) -> rustix::io::Result<rustix::fd::OwnedFd> {
    rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The system calls of a server.
fn calls() -> Vec<libc::c_long> {
    // Messages, and what is said at the end.
    let link = [libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_write, libc::SYS_close];
    let files = [
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_fcntl,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_fstatfs,
        libc::SYS_lseek,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_getdents64,
        libc::SYS_ftruncate,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_fchmodat,
        libc::SYS_fchownat,
        libc::SYS_utimensat,
        libc::SYS_linkat,
        libc::SYS_symlinkat,
        libc::SYS_readlinkat,
        libc::SYS_mkdirat,
        libc::SYS_mknodat,
        #[cfg(not(target_arch = "riscv64"))]
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_unlinkat,
        libc::SYS_getxattr,
        libc::SYS_setxattr,
        libc::SYS_listxattr,
        libc::SYS_removexattr,
    ];
    // The allocator, and the end of a process, which may be a panic.
    let process = [
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_getrandom,
        libc::SYS_futex,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_tgkill,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    [&link[..], &files, &process].concat()
}
