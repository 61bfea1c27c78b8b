//! The servers of a machine's shares: they are started before QEMU, watched, and end with it.

use super::confine::gnomon;
use super::priority;
use super::said::last_messages;
use super::server::READY;
use super::share::Share;
use miette::Diagnostic;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The bytes of packets that may wait in a socket.
const WAITING: usize = 256 << 10;

/// A share whose server has ended before the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostShare {
    /// Its number.
    pub number: usize,
    /// The signal, the status, or the last words of the server.
    pub reason: String,
}

/// A server that could not be started.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("cannot serve the share {dir}: {reason}")]
#[diagnostic(help("see docs/troubleshooting.md; --no-sandbox goes on where the kernel cannot confine a server"))]
pub struct ServerError {
    dir: String,
    reason: String,
}

/// The running servers. Dropping this ends them.
#[derive(Debug, Default)]
pub(super) struct Servers(Vec<Server>);

#[derive(Debug)]
struct Server {
    child: Arc<Mutex<Child>>,
    is_over: Arc<AtomicBool>,
    /// Its end of the socket. Without a reader QEMU's end would be told of errors.
    socket: Arc<OwnedFd>,
    /// Until the server is watched: what it says at its end.
    unwatched: Option<ChildStderr>,
}

impl Servers {
    /// Starts the servers, and waits until each has confined itself. Returns QEMU's ends of their sockets as well.
    pub(super) fn start(shares: &[Share], has_sandbox: bool) -> Result<(Self, Vec<OwnedFd>), ServerError> {
        let (mut servers, mut sockets) = (Self::default(), Vec::new());
        for share in shares {
            let failed = |reason: String| ServerError { dir: share.dir.clone(), reason };
            let (server, socket) = start(share, has_sandbox).map_err(|why| failed(why.to_string()))?;
            servers.0.push(server);
            sockets.push(socket);
        }
        Ok((servers, sockets))
    }

    /// Calls `report` for each server that ends before this value does.
    pub(super) fn watch(&mut self, report: impl Fn(LostShare) + Clone + Send + 'static) {
        for (number, server) in self.0.iter_mut().enumerate() {
            let Some(stderr) = server.unwatched.take() else { continue };
            let (child, is_over, report) = (Arc::clone(&server.child), Arc::clone(&server.is_over), report.clone());
            let (id, socket) = (Pid::from_child(&lock(&child)), Arc::clone(&server.socket));
            std::thread::spawn(move || {
                let said = last_messages(stderr);
                // Not with the lock: it may say no more, and not have ended.
                let _ = waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
                let Ok(status) = lock(&child).wait() else { return };
                if status.success() || is_over.load(Ordering::Relaxed) {
                    return;
                }
                // Gnomon hears of it at once, and answers what the guest waits for. If it cannot, QEMU has ended.
                let _ = share::link::say_lost(&socket);
                report(LostShare { number, reason: reason(status, &said) });
            });
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &self.0 {
            server.is_over.store(true, Ordering::Relaxed);
            let mut child = lock(&server.child);
            // Fails only if it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn lock(child: &Mutex<Child>) -> std::sync::MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(share: &Share, has_sandbox: bool) -> std::io::Result<(Server, OwnedFd)> {
    let (qemu, own) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for socket in [&qemu, &own] {
        // The kernel's own choice will do, too.
        let _ = set_socket_send_buffer_size(socket, WAITING);
        let _ = set_socket_recv_buffer_size(socket, WAITING);
    }
    let mut command = gnomon("share-server");
    command.arg(format!("--parent={}", std::process::id()));
    command.args(share.readonly.then_some("--readonly")).args((!has_sandbox).then_some("--no-sandbox"));
    command.arg("--").arg(&share.dir);
    // A key that interrupts this program must not end the server before QEMU.
    command.process_group(0).env_clear().current_dir("/");
    command.stdin(own.try_clone()?).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    priority::lower(&child);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (Some(stdout), Some(stderr)) = (stdout, stderr) else { unreachable!("both are pipes") };
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let line = line.trim();
    if line != READY {
        let _ = child.kill();
        let said = if line.is_empty() { last_messages(stderr) } else { line.to_owned() };
        let status = child.wait()?;
        return Err(std::io::Error::other(if said.is_empty() { status.to_string() } else { said }));
    }
    let (child, is_over) = (Arc::new(Mutex::new(child)), Arc::new(AtomicBool::new(false)));
    Ok((Server { child, is_over, socket: Arc::new(own), unwatched: Some(stderr) }, qemu))
}

fn reason(status: ExitStatus, said: &str) -> String {
    match status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None if said.is_empty() => status.to_string(),
        None => said.to_owned(),
    }
}
