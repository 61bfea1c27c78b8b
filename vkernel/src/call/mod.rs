//! System calls.
//!
//! A call that never waits is a function. Those that may wait are tried at once first; only if they have to wait, a future is made
//! ([`slow`]).

mod clock;
mod event;
mod file;
mod fork;
mod futex;
mod handle;
mod identity;
mod lock;
mod memory;
mod message;
mod name;
mod program;
mod schedule;
mod signal;
mod socket;
mod system;
mod timer;
mod transfer;
mod wait;

use crate::errno::{Errno, Result};
use crate::fs::descriptors::OpenFile;
use crate::fs::path::{Last, Place, Position};
use crate::fs::{MOST_PATH, descriptors::Descriptors};
use crate::machine::reg;
use crate::memory::frames;
use crate::share;
use crate::sync::Mutex;
use crate::task::credentials::{Capability, Credentials};
use crate::task::process::{self, Process};
use crate::task::{Task, Thread};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as linux;
pub use program::{Strings, load};
pub use timer::{Timer, delete_all as delete_timers};

/// The arguments of a call.
type Args = [u64; 6];

/// The descriptor that stands for the current directory.
const CURRENT: u64 = (linux::AT_FDCWD as i64).cast_unsigned();

/// Calls of numbers that the kernel does not have: a bit for each that was named.
static UNKNOWN: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Handles a call that needs nothing but the thread, for the trap vector: it has not stored the program's registers. `None` if it is
/// another one.
#[must_use]
pub fn light(thread: &Thread, number: u64) -> Option<u64> {
    match number as u32 {
        linux::__NR_getpid => Some(thread.process.pid.into()),
        linux::__NR_getppid => Some(thread.process.parent_pid().into()),
        linux::__NR_gettid => Some(thread.tid.into()),
        _ => None,
    }
}

/// Handles a call of the program.
pub async fn handle(task: &mut Task) {
    let (number, args) = (task.context.x[reg::A7] as u32, task.context.args());
    let mut result = attempt(task, number, args).await;
    if share::is_used() {
        while result == Err(Errno::HOST) {
            task.leave_hart();
            result = match task.thread.host.settle(&task.thread).await {
                Ok(()) => attempt(task, number, args).await,
                Err(why) => Err(why),
            };
        }
        task.thread.host.clear();
    }
    if let Err(Errno::RESTART | Errno::RESTART_UNHANDLED) = result {
        task.call = Some(args[0]);
    }
    task.context.x[reg::A0] = result.unwrap_or_else(Errno::to_register);
}

/// Makes a call. It ends with [`Errno::HOST`] if an operation on a share has to wait, and is made again then.
async fn attempt(task: &mut Task, number: u32, args: Args) -> Result<u64> {
    if frames::is_short() && takes_memory(number) {
        return Err(Errno::NOMEM);
    }
    match quick(task, number, args) {
        Some(result) => result,
        None => {
            task.leave_hart();
            slow(task, number, args).await
        }
    }
}

/// Returns whether a call makes something that takes memory of the kernel's.
const fn takes_memory(number: u32) -> bool {
    matches!(
        number,
        linux::__NR_clone
            | linux::__NR_clone3
            | linux::__NR_execve
            | linux::__NR_execveat
            | linux::__NR_openat
            | linux::__NR_openat2
            | linux::__NR_pidfd_open
            | linux::__NR_pipe2
            | linux::__NR_eventfd2
            | linux::__NR_signalfd4
            | linux::__NR_timer_create
            | linux::__NR_timerfd_create
            | linux::__NR_epoll_create1
            | linux::__NR_epoll_ctl
            | linux::__NR_memfd_create
            | linux::__NR_mmap
            | linux::__NR_mprotect
            | linux::__NR_mremap
            | linux::__NR_mkdirat
            | linux::__NR_mknodat
            | linux::__NR_symlinkat
            | linux::__NR_linkat
            | linux::__NR_setitimer
            | linux::__NR_timerfd_settime
            | linux::__NR_write
            | linux::__NR_writev
            | linux::__NR_pwrite64
            | linux::__NR_sendfile
            | linux::__NR_socket
            | linux::__NR_socketpair
            | linux::__NR_bind
            | linux::__NR_connect
            | linux::__NR_sendto
            | linux::__NR_sendmsg
            | linux::__NR_sendmmsg
            | linux::__NR_copy_file_range
    )
}

/// Handles a call that does not wait; `None` if it may have to.
fn quick(task: &mut Task, number: u32, a: Args) -> Option<Result<u64>> {
    Some(match number {
        linux::__NR_read => return transfer::read_now(task, a),
        linux::__NR_write => return transfer::write_now(task, a),
        linux::__NR_getpid => Ok(u64::from(task.thread.process.pid)),
        linux::__NR_getppid => Ok(u64::from(task.thread.process.parent_pid())),
        linux::__NR_gettid => Ok(u64::from(task.thread.tid)),

        linux::__NR_brk => Ok(task.space.set_heap_end(a[0])),
        linux::__NR_mmap => memory::map(task, a),
        linux::__NR_munmap => task.space.unmap(a[0], a[1]).map(|()| 0),
        linux::__NR_mprotect => memory::protect(task, a),
        linux::__NR_mremap => memory::remap(task, a),
        linux::__NR_madvise => memory::advise(task, a),
        linux::__NR_mincore => memory::in_core(task, a),
        linux::__NR_msync => memory::synchronise(task, a),
        linux::__NR_mlock
        | linux::__NR_munlock
        | linux::__NR_mlockall
        | linux::__NR_munlockall
        | linux::__NR_mlock2 => Ok(0),
        #[cfg(feature = "machine")]
        linux::__NR_riscv_flush_icache => memory::flush_code(task),

        linux::__NR_close => file::close(task, a),
        linux::__NR_close_range => file::close_range(task, a),
        linux::__NR_lseek => file::seek(task, a),
        linux::__NR_fstat => file::status(task, a),
        linux::__NR_newfstatat => file::status_at(task, a),
        linux::__NR_statx => file::status_extended(task, a),
        linux::__NR_statfs => file::system_status(task, Some(a[0]), 0, a[1]),
        linux::__NR_fstatfs => file::system_status(task, None, a[0] as u32, a[1]),
        linux::__NR_getdents64 => file::entries(task, a),
        linux::__NR_dup => file::duplicate(task, a),
        linux::__NR_dup3 => file::duplicate_to(task, a),
        linux::__NR_fcntl if !lock::is_lock(a[1] as u32) => file::control(task, a),
        linux::__NR_ioctl => file::device_control(task, a),
        linux::__NR_pipe2 => file::pipe(task, a),
        linux::__NR_ftruncate => file::truncate_open(task, a),
        linux::__NR_truncate => file::truncate(task, a),
        linux::__NR_fallocate => file::allocate(task, a),
        linux::__NR_fsync => file::flush(task, a, false),
        linux::__NR_fdatasync => file::flush(task, a, true),
        linux::__NR_syncfs => task.file(a[0]).map(|_| 0),
        linux::__NR_fadvise64 | linux::__NR_readahead => task.file(a[0]).map(|_| 0),
        linux::__NR_sync => Ok(0),
        linux::__NR_memfd_create => file::memory_file(task, a),
        linux::__NR_fchmod => file::set_mode(task, a),
        linux::__NR_fchown => file::set_owner(task, a),

        linux::__NR_mkdirat => name::make_directory(task, a),
        linux::__NR_mknodat => name::make_node(task, a),
        linux::__NR_unlinkat => name::unlink(task, a),
        linux::__NR_symlinkat => name::symlink(task, a),
        linux::__NR_linkat => name::link(task, a),
        linux::__NR_renameat2 => name::rename(task, a),
        linux::__NR_readlinkat => name::read_link(task, a),
        linux::__NR_faccessat => name::access(task, [a[0], a[1], a[2], 0, 0, 0]),
        linux::__NR_faccessat2 => name::access(task, a),
        linux::__NR_fchmodat => name::set_mode(task, [a[0], a[1], a[2], 0, 0, 0]),
        linux::__NR_fchmodat2 => name::set_mode(task, a),
        linux::__NR_fchownat => name::set_owner(task, a),
        linux::__NR_utimensat => name::set_times(task, a),
        linux::__NR_getcwd => name::current_directory(task, a),
        linux::__NR_chdir => name::change_directory(task, a),
        linux::__NR_fchdir => name::change_directory_open(task, a),
        linux::__NR_chroot => name::change_root(task, a),
        linux::__NR_umask => name::set_mask(task, a),
        linux::__NR_mount => name::mount(task, a),
        linux::__NR_umount2 => name::unmount(task, a),
        linux::__NR_getxattr | linux::__NR_lgetxattr | linux::__NR_fgetxattr => Err(Errno::NODATA),
        linux::__NR_listxattr | linux::__NR_llistxattr | linux::__NR_flistxattr => Ok(0),
        linux::__NR_setxattr | linux::__NR_lsetxattr | linux::__NR_fsetxattr => Err(Errno::OPNOTSUPP),

        linux::__NR_set_tid_address => fork::set_tid_address(task, a),
        linux::__NR_set_robust_list => futex::set_robust_list(task, a),
        linux::__NR_get_robust_list => futex::get_robust_list(task, a),
        linux::__NR_exit => fork::exit(task, a),
        linux::__NR_exit_group => fork::exit_group(task, a),
        linux::__NR_futex if !futex::waits(a[1] as u32) => futex::act(task, a),

        linux::__NR_rt_sigaction => signal::action(task, a),
        linux::__NR_rt_sigprocmask => signal::mask(task, a),
        linux::__NR_rt_sigpending => signal::pending(task, a),
        linux::__NR_rt_sigreturn => crate::task::signal_frame::return_from_handler(task),
        linux::__NR_sigaltstack => signal::alt_stack(task, a),
        linux::__NR_kill => signal::kill(task, a),
        linux::__NR_tkill => signal::kill_thread(task, 0, a[0] as u32, a[1]),
        linux::__NR_tgkill => signal::kill_thread(task, a[0] as u32, a[1] as u32, a[2]),
        linux::__NR_rt_tgsigqueueinfo => signal::queue_to_thread(task, a),
        linux::__NR_rt_sigqueueinfo => signal::queue(task, a),

        linux::__NR_clock_gettime => clock::get(task, a),
        linux::__NR_clock_settime => clock::set(task, a),
        linux::__NR_settimeofday => clock::set_time_of_day(task, a),
        linux::__NR_clock_getres => clock::resolution(task, a),
        linux::__NR_gettimeofday => clock::time_of_day(task, a),
        linux::__NR_times => clock::times(task, a),
        linux::__NR_getitimer => clock::get_interval(task, a),
        linux::__NR_setitimer => clock::set_interval(task, a),

        linux::__NR_timer_create => timer::create(task, a),
        linux::__NR_timer_settime => timer::set(task, a),
        linux::__NR_timer_gettime => timer::get(task, a),
        linux::__NR_timer_getoverrun => timer::overrun(task, a),
        linux::__NR_timer_delete => timer::delete(task, a),
        linux::__NR_signalfd4 => event::signals(task, a),

        linux::__NR_eventfd2 => event::counter(task, a),
        linux::__NR_epoll_create1 => event::create(task, a),
        linux::__NR_epoll_ctl => event::control(task, a),
        linux::__NR_timerfd_create => event::timer(task, a),
        linux::__NR_timerfd_settime => event::set_timer(task, a),
        linux::__NR_timerfd_gettime => event::get_timer(task, a),

        linux::__NR_getuid..=linux::__NR_getegid
        | linux::__NR_getresuid
        | linux::__NR_getresgid
        | linux::__NR_getgroups => identity::get(task, number, a),
        linux::__NR_setreuid
        | linux::__NR_setregid
        | linux::__NR_setgid
        | linux::__NR_setuid
        | linux::__NR_setresuid
        | linux::__NR_setresgid
        | linux::__NR_setfsuid
        | linux::__NR_setfsgid
        | linux::__NR_setgroups => identity::set(task, number, a),
        linux::__NR_setpgid | linux::__NR_getpgid | linux::__NR_getsid | linux::__NR_setsid => {
            identity::group(task, number, a)
        }

        linux::__NR_capget => identity::capabilities(task, a),
        linux::__NR_capset => identity::set_capabilities(task, a),

        linux::__NR_uname => system::name(task, a),
        linux::__NR_sysinfo => system::information(task, a),
        linux::__NR_getrandom => system::random(task, a),
        linux::__NR_prlimit64 => system::limit(task, a),
        linux::__NR_getrlimit => system::limit(task, [0, a[0], 0, a[1], 0, 0]),
        linux::__NR_setrlimit => system::limit(task, [0, a[0], a[1], 0, 0, 0]),
        linux::__NR_getrusage => system::usage(task, a),
        linux::__NR_prctl => system::control(task, a),
        linux::__NR_sched_getaffinity => system::harts(task, a),
        linux::__NR_sched_setaffinity => schedule::set_harts(task, a),
        linux::__NR_sched_getscheduler => schedule::policy(task, a),
        linux::__NR_sched_setscheduler => schedule::set_policy(task, a),
        linux::__NR_sched_getparam => schedule::priority_only(task, a),
        linux::__NR_sched_setparam => schedule::set_priority_only(task, a),
        linux::__NR_sched_get_priority_max => schedule::greatest_priority(a),
        linux::__NR_sched_get_priority_min => schedule::least_priority(a),
        linux::__NR_sched_rr_get_interval => schedule::slice(task, a),
        linux::__NR_getpriority => schedule::nice(task, a),
        linux::__NR_setpriority => schedule::set_nice(task, a),
        linux::__NR_getcpu => system::hart(task, a),
        linux::__NR_membarrier => system::barrier(a),
        #[cfg(feature = "machine")]
        linux::__NR_riscv_hwprobe => system::probe(task, a),
        linux::__NR_personality => Ok(0),
        linux::__NR_syslog => Ok(0),
        linux::__NR_sethostname => system::set_name(task, a, false),
        linux::__NR_setdomainname => system::set_name(task, a, true),
        linux::__NR_pidfd_open => handle::open(task, a),
        linux::__NR_pidfd_send_signal => handle::send_signal(task, a),
        linux::__NR_pidfd_getfd => handle::take_file(task, a),
        linux::__NR_process_vm_readv => handle::copy(task, a, false),
        linux::__NR_process_vm_writev => handle::copy(task, a, true),
        linux::__NR_socket => socket::make(task, a),
        linux::__NR_socketpair => socket::make_pair(task, a),
        linux::__NR_bind => socket::bind(task, a),
        linux::__NR_listen => socket::listen(task, a),
        linux::__NR_getsockname => socket::own_address(task, a),
        linux::__NR_getpeername => socket::peer_address(task, a),
        linux::__NR_getsockopt => socket::get_option(task, a),
        linux::__NR_setsockopt => socket::set_option(task, a),
        linux::__NR_shutdown => socket::shut_down(task, a),
        linux::__NR_rseq => Err(Errno::NOSYS),
        linux::__NR_reboot => system::reboot(task, a),
        _ => return None,
    })
}

/// Handles a call that may wait.
async fn slow(task: &mut Task, number: u32, a: Args) -> Result<u64> {
    match number {
        linux::__NR_read => transfer::read(task, a).await,
        linux::__NR_write => transfer::write(task, a).await,
        linux::__NR_readv => transfer::read_vector(task, a, None).await,
        linux::__NR_writev => transfer::write_vector(task, a, None).await,
        linux::__NR_pread64 => transfer::read_at(task, a).await,
        linux::__NR_pwrite64 => transfer::write_at(task, a).await,
        linux::__NR_preadv => transfer::read_vector(task, a, Some(a[3])).await,
        linux::__NR_pwritev => transfer::write_vector(task, a, Some(a[3])).await,
        linux::__NR_sendfile => Box::pin(transfer::send_file(task, a)).await,
        linux::__NR_copy_file_range => Box::pin(transfer::copy_range(task, a)).await,
        linux::__NR_preadv2 => Box::pin(transfer::vector_with_flags(task, a, false)).await,
        linux::__NR_pwritev2 => Box::pin(transfer::vector_with_flags(task, a, true)).await,
        linux::__NR_openat2 => Box::pin(file::open_extended(task, a)).await,
        linux::__NR_openat => Box::pin(file::open(task, a)).await,
        linux::__NR_accept => Box::pin(socket::accept(task, [a[0], a[1], a[2], 0, 0, 0])).await,
        linux::__NR_accept4 => Box::pin(socket::accept(task, a)).await,
        linux::__NR_connect => Box::pin(socket::connect(task, a)).await,
        linux::__NR_sendto => Box::pin(message::send_to(task, a)).await,
        linux::__NR_recvfrom => Box::pin(message::receive_from(task, a)).await,
        linux::__NR_sendmsg => Box::pin(message::send_message(task, a)).await,
        linux::__NR_recvmsg => Box::pin(message::receive_message(task, a)).await,
        linux::__NR_sendmmsg => Box::pin(message::send_messages(task, a)).await,
        linux::__NR_recvmmsg => Box::pin(message::receive_messages(task, a)).await,
        linux::__NR_flock => Box::pin(lock::whole_lock(task, a)).await,
        linux::__NR_fcntl => Box::pin(lock::range_lock(task, a)).await,
        linux::__NR_futex => Box::pin(futex::wait(task, a)).await,
        linux::__NR_clone => Box::pin(fork::clone(task, a)).await,
        linux::__NR_clone3 => Box::pin(fork::clone_extended(task, a)).await,
        linux::__NR_execve => Box::pin(program::execute(task, [CURRENT, a[0], a[1], a[2], 0, 0])).await,
        linux::__NR_execveat => Box::pin(program::execute(task, a)).await,
        linux::__NR_wait4 => Box::pin(wait::wait4(task, a)).await,
        linux::__NR_waitid => Box::pin(wait::waitid(task, a)).await,
        linux::__NR_ppoll => Box::pin(event::poll(task, a)).await,
        linux::__NR_pselect6 => Box::pin(event::select(task, a)).await,
        linux::__NR_epoll_pwait => Box::pin(event::wait(task, a)).await,
        linux::__NR_epoll_pwait2 => Box::pin(event::wait_precisely(task, a)).await,
        linux::__NR_rt_sigsuspend => Box::pin(signal::suspend(task, a)).await,
        linux::__NR_rt_sigtimedwait => Box::pin(signal::timed_wait(task, a)).await,
        linux::__NR_nanosleep => clock::sleep(task, [u64::from(linux::CLOCK_MONOTONIC), 0, a[0], a[1], 0, 0]).await,
        linux::__NR_clock_nanosleep => clock::sleep(task, a).await,
        linux::__NR_sched_yield => {
            crate::task::executor::yield_now().await;
            Ok(0)
        }
        unknown => {
            let bit = 1 << (unknown % 64);
            if let Some(word) = UNKNOWN.get(unknown as usize / 64)
                && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
            {
                crate::report(format_args!("system call {unknown} is not there (ENOSYS)"));
            }
            Err(Errno::NOSYS)
        }
    }
}

impl Task {
    /// Makes a step of a call that has no effect before its operations on shares, and repeats it until these have their results.
    async fn ask_host<T>(&self, mut step: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match step() {
                Err(Errno::HOST) => self.thread.host.settle(&self.thread).await?,
                result => {
                    self.thread.host.clear();
                    return result;
                }
            }
        }
    }

    /// The descriptors of the thread.
    fn files(&self) -> Arc<Mutex<Descriptors>> {
        Arc::clone(&self.thread.files.lock())
    }

    /// The file of a descriptor.
    fn file(&self, fd: u64) -> Result<Arc<OpenFile>> {
        self.thread.files.lock().lock().get(fd as u32)
    }

    /// The file of a descriptor that stands for more than a path.
    fn file_not_path(&self, fd: u64) -> Result<Arc<OpenFile>> {
        let file = self.file(fd)?;
        if file.flags() & linux::O_PATH != 0 { Err(Errno::BADF) } else { Ok(file) }
    }

    /// The process with a number, 0 for the caller's.
    fn process(&self, pid: u64) -> Result<Arc<Process>> {
        match pid as u32 {
            0 => Ok(Arc::clone(&self.thread.process)),
            pid => process::find(pid).ok_or(Errno::SRCH),
        }
    }

    /// Gives a file the least free descriptor.
    fn add_file(&self, file: Arc<OpenFile>, closes_at_exec: bool) -> Result<u64> {
        let limit = self.thread.process.limit(linux::RLIMIT_NOFILE);
        self.files().lock().add(file, closes_at_exec, 0, limit).map(u64::from)
    }

    /// Checks that there may be another descriptor.
    fn check_descriptors(&self) -> Result<()> {
        let limit = self.thread.process.limit(linux::RLIMIT_NOFILE);
        self.files().lock().free(0, limit).map(drop)
    }

    /// The credentials of the process.
    fn credentials(&self) -> Arc<Credentials> {
        self.thread.process.credentials()
    }

    /// Checks that the process has a capability in effect.
    fn need(&self, capability: Capability) -> Result<()> {
        self.credentials().need(capability)
    }

    /// The directories of the thread, with the credentials of its process.
    fn position(&self) -> Position {
        let user = self.credentials();
        Position { user, ..self.thread.position.lock().lock().clone() }
    }

    /// The directory that a path is relative to.
    fn start(&self, fd: u64, position: &Position, path: &str) -> Result<Arc<Place>> {
        if fd as i32 == linux::AT_FDCWD || path.starts_with('/') {
            return Ok(Arc::clone(&position.current));
        }
        self.file(fd)?.place.clone().ok_or(Errno::NOTDIR)
    }

    /// A path that the program names.
    fn path(&self, at: u64) -> Result<String> {
        self.space.get_string(at, MOST_PATH)
    }

    /// The place that a path leads to, from a directory's descriptor on; the descriptor's own with an empty path, if that is asked for.
    fn place(&self, fd: u64, at: u64, last: Last, flags: u64) -> Result<Arc<Place>> {
        self.place_from(self.position(), fd, at, last, flags)
    }

    fn place_from(&self, position: Position, fd: u64, at: u64, last: Last, flags: u64) -> Result<Arc<Place>> {
        let path = if at == 0 && flags & u64::from(linux::AT_EMPTY_PATH) != 0 { String::new() } else { self.path(at)? };
        if path.is_empty() && flags & u64::from(linux::AT_EMPTY_PATH) != 0 {
            if fd as i32 == linux::AT_FDCWD {
                return Ok(position.current);
            }
            let file = self.file(fd)?;
            return file.place.clone().ok_or(Errno::NOENT);
        }
        position.present(&self.start(fd, &position, &path)?, &path, last)
    }
}

/// Returns, by flags, the treatment of a link at the end of a path.
const fn last(flags: u64) -> Last {
    if flags & linux::AT_SYMLINK_NOFOLLOW as u64 != 0 { Last::Keep } else { Last::Follow }
}
