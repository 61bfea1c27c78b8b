//! The server of a share, as a process of its own: `gnomon share-server`, which only this program starts.
//!
//! Its standard input is the socket that QEMU's device is at the other end of. It writes one line to its standard output:
//! [`READY`], or the reason why there is no server.

use crate::host::sandbox::{self, Calls, Reach, Sandbox, SandboxError};
use rustix::fs::{Mode, OFlags};
use rustix::process::umask;
use rustix::thread::CapabilitySet;
use share::files::Descriptors;
use share::server::Server;
use std::io::{Write, stdout};
use std::path::Path;

/// The line that says that the server has confined itself and serves.
pub(super) const READY: &str = "ready";
/// The file numbers of a share at most, as Gnomon bounds them. Each is a descriptor.
const MOST_FILES: u64 = 1 << 16;
/// The descriptors that are no file numbers: the standard ones, the socket, those of an operation.
const OTHER_DESCRIPTORS: u64 = 16;
/// The privileges of root's server, by which it acts on files of any owner: it opens and changes them, chooses their owners, and keeps their
/// bits for other users and groups. None is of another thing than files, and devices are not made.
const PRIVILEGES: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER).union(CapabilitySet::FSETID).union(CapabilitySet::CHOWN);
/// The memory that a server may have of its own, in bytes: file numbers, attributes and messages.
const MEMORY: u64 = 64 << 20;

/// The command line of a server.
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
                let _ = writeln!(stdout(), "{failure}");
                return 1;
            }
        };
        match writeln!(stdout(), "{READY}") {
            Ok(()) => self.serve(server),
            // The command that has started it is gone.
            Err(_) => 1,
        }
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
        sandbox::close_descriptors(&[]);
        sandbox::end_with(self.parent).map_err(system("the parent"))?;
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
        let places = vec![(place, reach)];
        // The calls for it are none of a server's.
        sandbox::drop_privileges(PRIVILEGES);
        let sandbox = Sandbox { places, calls: Calls::Listed(calls()), descriptors, memory: MEMORY, has_tcp: false };
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

#[cfg(test)]
mod tests {
    use super::*;
    use seccompiler::{SeccompAction, SeccompFilter};
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    /// Names the directory to a child that confines itself, and the attempt that it makes.
    const DIR: &str = "GNOMON_TEST_SANDBOX";
    const ATTEMPT: &str = "GNOMON_TEST_ATTEMPT";

    /// Opens a file that is none of the share's.
    fn is_denied(path: impl AsRef<Path>) {
        let path = path.as_ref();
        let error = fs::read(path).expect_err(&path.display().to_string());
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{}: {error}", path.display());
    }

    /// Makes the kernel one without Landlock.
    fn hide_landlock() {
        let rules = [(libc::SYS_landlock_create_ruleset, Vec::new())].into();
        let (other, call) = (SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32));
        let arch = std::env::consts::ARCH.try_into().expect("a known processor");
        let filter: seccompiler::BpfProgram =
            SeccompFilter::new(rules, other, call, arch).and_then(TryInto::try_into).expect("a filter");
        seccompiler::apply_filter(&filter).expect("it is in force");
    }

    /// Does what a server could do whose client has taken it over.
    fn attempt(dir: &Path, name: &str) {
        let args = ServerArgs { parent: 0, readonly: name == "readonly", no_sandbox: false, dir: dir.join("share") };
        let root = open(&args.dir).expect("the share");
        if name == "old kernel" {
            hide_landlock();
            let why = args.confine(&root).expect_err("there is no sandbox").to_string();
            assert!(why.starts_with("this kernel lacks Landlock"), "{why}");
            let most = ServerArgs { no_sandbox: true, ..args }.confine(&root).expect("limits");
            assert!(most > 100 && fs::read("/etc/passwd").is_ok());
            return;
        }
        let home = std::env::var_os("HOME").map_or_else(|| "/root".into(), std::path::PathBuf::from);
        args.confine(&root).expect("a sandbox");
        let in_share = |name: &str| format!("/proc/self/fd/{}/{name}", std::os::fd::AsRawFd::as_raw_fd(&root));
        let is_written = fs::write(in_share("new"), "x");
        match name {
            "files" => {
                is_written.expect("the share's own file");
                for path in [&dir.join("secret"), Path::new("/etc/passwd"), Path::new("/proc/self/environ")] {
                    is_denied(path);
                }
                let error = fs::write(home.join(".gnomon-test"), "x").expect_err("the user's home");
                assert!(matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound), "{error}");
                is_denied(in_share("../secret"));
                is_denied(in_share("link"));
                let into = rustix::fs::openat(&root, "..", OFlags::PATH, Mode::empty()).expect("a place, and no more");
                let made = rustix::fs::mkdirat(&into, "made", Mode::RWXU);
                assert_eq!(made, Err(rustix::io::Errno::ACCESS));
                let moved = rustix::fs::renameat(&into, "secret", &root, "got");
                assert!(moved.is_err_and(|why| [rustix::io::Errno::ACCESS, rustix::io::Errno::XDEV].contains(&why)));
            }
            "readonly" => {
                assert_eq!(is_written.expect_err("it is only read").kind(), ErrorKind::PermissionDenied);
                assert_eq!(rustix::fs::mkdirat(&root, "d", Mode::RWXU), Err(rustix::io::Errno::ACCESS));
            }
            "socket" => drop(std::net::UdpSocket::bind("127.0.0.1:0")),
            "program" => drop(Command::new("/bin/true").status()),
            "list" => drop(rustix::process::chdir("/")),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_server_opens_nothing_else() {
        if let (Some(dir), Ok(name)) = (std::env::var_os(DIR), std::env::var(ATTEMPT)) {
            return attempt(Path::new(&dir), &name);
        }
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("share")).expect("made");
        fs::write(dir.path().join("secret"), "secret").expect("written");
        std::os::unix::fs::symlink("../secret", dir.path().join("share/link")).expect("made");
        let status = |name: &str| -> ExitStatus {
            let mut child = Command::new(std::env::current_exe().expect("this program"));
            child.args(["--exact", "machine::server::tests::a_server_opens_nothing_else"]);
            let output = child.env(DIR, dir.path()).env(ATTEMPT, name).output().expect("it runs");
            // What a test prints is written at its end, when this thread has ended.
            if output.status.signal().is_none() && !output.status.success() {
                panic!(
                    "{name}: {}{}",
                    String::from_utf8_lossy(&output.stdout),
                    String::from_utf8_lossy(&output.stderr)
                );
            }
            output.status
        };
        assert!(["files", "readonly", "old kernel"].into_iter().all(|name| status(name).success()));
        for name in ["socket", "program", "list"] {
            assert_eq!(status(name).signal(), Some(libc::SIGSYS), "{name}");
        }
        assert_eq!(fs::read(dir.path().join("secret")).expect("it is there"), b"secret");
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 2);
    }
}
