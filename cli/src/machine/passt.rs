//! passt: the process that connects one VM with the world.
//!
//! It translates a VM's frames into sockets of this host, without privileges, in a sandbox of its own (user namespace, empty root, seccomp).
//! Only options that the versions of Debian 12 and of Debian 13 have are used.

use crate::guest::debian::{self, DebianError};
use crate::host::place::find_program;
use crate::machine::net::{GATEWAY, GATEWAY_MAC, NAMES, Uplink};
use crate::machine::priority;
use crate::machine::said::last_messages;
use abi::mac::Mac;
use miette::Diagnostic;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The program.
pub const PASST: &str = "passt";
/// The gateway's IPv6 address, which leads to this host's loopback, and the name server's.
pub(crate) const GATEWAY_IPV6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
pub(crate) const NAMES_IPV6: [u8; 16] = [0xfe, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];
/// The size of the number in front of each frame, in big-endian byte order: the frame's length in bytes.
pub(crate) const LENGTH: usize = 4;

/// Starts passt with bounds, and its socket as descriptor 3. Arguments: descriptors, KiB of address
/// space, passt's command line. A bound that is already lower stays.
///
/// passt cannot be given its socket as standard input: newer versions close standard output and error then.
const START: &str = "ulimit -n \"$1\" 2>/dev/null; ulimit -v \"$2\" 2>/dev/null; shift 2; exec \"$@\" 3<&0 </dev/null";
/// Most file descriptors of a passt. It has one for each TCP connection and each UDP port of the VM, and some 70 besides.
const DESCRIPTORS: u32 = 4096;
/// Most KiB of address space of a passt: Debian 13's has 200 MiB, and asks for no more while it runs.
const ADDRESS_SPACE: u32 = 1 << 20;
/// Bytes that a socket to a passt should hold in each direction. The system may allow less.
const BUFFER: usize = 1 << 20;
/// The date of the first version that will do, as a number.
const LEAST_DATE: u32 = 20_250_503;
/// The time limit for a passt to answer after its start.
const PATIENCE: Duration = Duration::from_secs(20);
/// The interval of looks at a passt that starts.
const PAUSE: Duration = Duration::from_millis(50);

/// A VM that cannot be connected with the world.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum UplinkError {
    /// passt is missing, and cannot be fetched.
    #[error("VM `{vm}` has a network, and the program `{PASST}`, which connects it with the world, is {state}: {why}")]
    #[diagnostic(help(
        "run, on Debian 13 or newer: apt-get install {PASST}; or leave the network out (`net` in the VM file, --net); or {}",
        why.help().map_or_else(|| "try again".into(), |help| help.to_string())
    ))]
    Missing {
        /// The VM.
        vm: String,
        /// The state of the system's own.
        state: &'static str,
        /// The reason.
        why: Box<DebianError>,
    },
    /// passt has ended at once.
    #[error("the network of VM `{vm}` did not start: {why}")]
    #[diagnostic(help("{}", remedy(.why)))]
    Failed {
        /// The VM.
        vm: String,
        /// The reason, with passt's own words.
        why: String,
    },
    /// This process could not start or reach it.
    #[error("the network of VM `{vm}` did not start: {why}")]
    #[diagnostic(help("see that {PASST} works by itself: {PASST} --foreground, which Ctrl-C ends"))]
    Io {
        /// The VM.
        vm: String,
        /// The operating system's error.
        why: std::io::Error,
    },
}

/// The remedy for a passt that has ended with such words.
fn remedy(why: &str) -> &'static str {
    let is_about = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if is_about(&["namespace", "unshare", "mount", "pivot_root", "umount", "sandbox"]) {
        "passt confines itself by a user namespace, and this system forbids those. Allow them (sysctl user.max_user_namespaces and \
         kernel.unprivileged_userns_clone; in a container: options such as --security-opt seccomp=unconfined), or leave the network \
         out (`net` in the VM file, --net)"
    } else if is_about(&["bind", "port"]) {
        "choose another port of the host: `forward` in the VM file, or --forward"
    } else {
        "passt's man page has more about its messages; or leave the network out (`net` in the VM file, --net)"
    }
}

/// Returns the passt to start: the one in the path, or if that will not do, Debian 13's.
fn program(vm: &str) -> Result<PathBuf, UplinkError> {
    static PROGRAM: Mutex<Option<PathBuf>> = Mutex::new(None);
    // VMs of one run start theirs together.
    let mut known = PROGRAM.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = &*known {
        return Ok(program.clone());
    }
    let state = match find_program(PASST.as_ref()) {
        None => "not installed",
        Some(found) if is_too_old(&found) => "too old",
        Some(found) => return Ok(known.insert(found).clone()),
    };
    let provided =
        debian::passt::provide().map_err(|why| UplinkError::Missing { vm: vm.into(), state, why: why.into() })?;
    Ok(known.insert(provided).clone())
}

/// Returns whether a passt is like Debian 12's, which repeats what a program of the world says after the guest's program has said its
/// last word (by TCP), without end. One whose version says no date will do.
fn is_too_old(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    output.is_ok_and(|output| date(&String::from_utf8_lossy(&output.stdout)).is_some_and(|date| date < LEAST_DATE))
}

/// The date in a package's version, such as `passt 0.0~git20250503.587980c-2`, as a number.
fn date(version: &str) -> Option<u32> {
    version.lines().next()?.split_once("~git")?.1.get(..8)?.parse().ok()
}

/// A passt that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Passt {
    child: Child,
    messages: Option<JoinHandle<String>>,
}

impl Passt {
    /// Starts one; returns it with the socket that leads to it. It ends when that is closed.
    ///
    /// # Errors
    /// [`UplinkError`].
    pub fn start(uplink: &Uplink) -> Result<(Self, UnixStream), UplinkError> {
        let failed = |why| UplinkError::Io { vm: uplink.vm.clone(), why };
        let (ours, its) = UnixStream::pair().map_err(failed)?;
        for end in [&ours, &its] {
            set_socket_send_buffer_size(end, BUFFER).map_err(|why| failed(why.into()))?;
            set_socket_recv_buffer_size(end, BUFFER).map_err(|why| failed(why.into()))?;
        }
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", START, "sh", &DESCRIPTORS.to_string(), &ADDRESS_SPACE.to_string()])
            .arg(program(&uplink.vm)?);
        command.args(args(uplink)).stdin(OwnedFd::from(its)).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        priority::lower(&child);
        // Else this process would hold its end of the socket.
        drop(command);
        let stderr = child.stderr.take();
        let messages = Some(std::thread::spawn(move || stderr.map(last_messages).unwrap_or_default()));
        Ok((Self { child, messages }, ours))
    }

    /// Waits until it answers, and has thus set up its sandbox and its ports.
    ///
    /// # Errors
    /// [`UplinkError`].
    pub fn await_answer(&mut self, uplink: &Uplink, socket: &UnixStream) -> Result<(), UplinkError> {
        let failed = |why| UplinkError::Io { vm: uplink.vm.clone(), why };
        let question = question(uplink);
        let sent = (&*socket).write_all(&question);
        let end = Instant::now() + PATIENCE;
        socket.set_read_timeout(Some(PAUSE)).map_err(failed)?;
        let mut answer = [0; LENGTH];
        let (mut at, mut rest) = (0, None);
        while rest != Some(0) {
            let mut sink = [0; 2048];
            let room = rest.map_or(&mut answer[at..], |rest: usize| &mut sink[..rest.min(2048)]);
            match (&*socket).read(room) {
                Ok(count @ 1..) if rest.is_some() => rest = rest.map(|rest| rest - count),
                Ok(count @ 1..) => {
                    at += count;
                    rest = (at == LENGTH).then(|| u32::from_be_bytes(answer) as usize);
                }
                Err(why)
                    if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) && Instant::now() < end => {
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => {
                    let why = format!("{PASST} has not answered for {} s", PATIENCE.as_secs());
                    return Err(UplinkError::Failed { vm: uplink.vm.clone(), why });
                }
                Ok(_) | Err(_) => return Err(self.failure(&uplink.vm)),
            }
        }
        sent.map_err(failed)
    }

    fn failure(&mut self, vm: &str) -> UplinkError {
        UplinkError::Failed { vm: vm.into(), why: self.end() }
    }

    /// Ends it if it has not ended. Returns the reason of its end in words.
    fn end(&mut self) -> String {
        // It has closed its socket, and so is about to end by itself, which says more than being killed.
        let end = Instant::now() + Duration::from_millis(200);
        let mut status = self.child.try_wait();
        while matches!(status, Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
            status = self.child.try_wait();
        }
        if matches!(status, Ok(None)) {
            let _ = self.child.kill();
            status = self.child.wait().map(Some);
        }
        let messages = self.messages.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        in_words(status.ok().flatten(), &messages)
    }

    /// Returns the number of its process.
    #[cfg(test)]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it, and returns the reason of its end in words: for one that has closed its socket.
    #[must_use]
    pub fn reason(mut self) -> String {
        self.end()
    }
}

impl Drop for Passt {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn in_words(status: Option<ExitStatus>, messages: &str) -> String {
    let what = match status.map(|status| (status.signal(), status.code())) {
        Some((Some(signal), _)) => format!("{PASST} was ended by signal {signal}"),
        Some((_, Some(code))) => format!("{PASST} has ended with status {code}"),
        _ => format!("{PASST} has ended"),
    };
    match messages.lines().rev().find(|line| !line.trim().is_empty()) {
        // One that was killed has not said why.
        Some(line) if status.and_then(|status| status.code()).is_some_and(|code| code != 0) => {
            format!("{what}: {}", line.trim())
        }
        _ => what,
    }
}

/// passt's arguments.
fn args(uplink: &Uplink) -> Vec<String> {
    let [gateway_v6, names_v6] = [GATEWAY_IPV6, NAMES_IPV6].map(|bytes| std::net::Ipv6Addr::from(bytes).to_string());
    // `--stderr` is for Debian 12's; newer ones write there anyway.
    let mut args: Vec<String> =
        ["--foreground", "--stderr", "--quiet", "--fd", "3", "--mtu", "1500"].map(Into::into).into();
    args.extend(["--mac-addr".into(), GATEWAY_MAC.to_string()]);
    args.extend(["--address".into(), uplink.address.to_string(), "--netmask".into(), "24".into()]);
    args.extend(["--address".into(), std::net::Ipv6Addr::from(ipv6(uplink.address)).to_string()]);
    args.extend(["--gateway".into(), GATEWAY.to_string(), "--gateway".into(), gateway_v6]);
    args.extend(["--dns-forward".into(), NAMES.to_string(), "--dns-forward".into(), names_v6]);
    // By default UDP ports of the same numbers as the forwarded TCP ports lead to the VM, too.
    args.extend(["--udp-ports".into(), "none".into()]);
    let ports = uplink.forwards.iter().map(|forward| format!("{}/{}:{}", forward.at, forward.host, forward.guest));
    args.extend(ports.flat_map(|port| ["--tcp-ports".into(), port]));
    let routes =
        ["/proc/net/route", "/proc/net/ipv6_route"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    args.extend(interface(&routes[0], &routes[1]).into_iter().flatten().map(Into::into));
    args
}

/// Returns the option without which Debian 12's passt has no IPv4 on a host without an IPv4 default route, for that host's routes as the
/// kernel lists them. VMs reach the host's loopback then, and if there is no IPv6 default route either, all that the host has routes for.
fn interface(ipv4: &str, ipv6: &str) -> Option<[&'static str; 2]> {
    let has_ipv4 = ipv4.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|fields| {
        // INTERFACE DESTINATION ... MASK ...
        matches!(fields[..], [_, "00000000", _, _, _, _, _, "00000000", ..])
    });
    let has_ipv6 = ipv6.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).any(|fields| {
        // DESTINATION PREFIX ... INTERFACE; unreachable ones are the loopback's.
        fields.get(1) == Some(&"00") && fields.last().is_some_and(|interface| *interface != "lo")
    });
    match (has_ipv4, has_ipv6) {
        (true, _) => None,
        (false, true) => Some(["--outbound-if4", "lo"]),
        (false, false) => Some(["--interface", "lo"]),
    }
}

/// An IPv6 address in the VMs' network, for a VM without one: the router's announcement has its prefix, by which VMs choose their own.
fn ipv6(address: Ipv4Addr) -> [u8; 16] {
    let mut bytes = NAMES_IPV6;
    bytes[12..].copy_from_slice(&address.octets());
    bytes
}

/// A frame that asks for the gateway's hardware address (ARP), with its length.
fn question(uplink: &Uplink) -> Vec<u8> {
    let mac = uplink.mac.unwrap_or(Mac([2, 0, 0, 0, 0, 1])).0;
    let mut bytes = vec![0, 0, 0, 60];
    bytes.extend([0xff; 6]);
    bytes.extend(mac);
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    bytes.extend(mac);
    bytes.extend(uplink.address.octets());
    bytes.extend([0; 6]);
    bytes.extend(GATEWAY.octets());
    bytes.resize(LENGTH + 60, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passt_is_told_of_addresses_and_ports() {
        let forwards = ["8080:80", "0.0.0.0:2222:22"].map(|text| text.parse().expect("a forward")).into();
        let uplink = Uplink { vm: "a".into(), mac: None, address: Ipv4Addr::new(10, 0, 2, 16), forwards };
        let line = args(&uplink).join(" ");
        for part in [
            "--foreground --stderr --quiet --fd 3 ",
            " --mac-addr 52:55:0a:00:02:02 --address 10.0.2.16 --netmask 24 ",
            " --address fec0::a00:210 ",
            " --gateway 10.0.2.2 --gateway fe80::2 --dns-forward 10.0.2.3 --dns-forward fec0::3 --udp-ports none ",
            " --tcp-ports 127.0.0.1/8080:80 --tcp-ports 0.0.0.0/2222:22",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn hosts_without_a_default_route() {
        let head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n";
        let local = format!("{head}eth0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n");
        let whole = format!("{local}eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n");
        let zero = "0".repeat(32);
        let unreachable = format!("{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n");
        let with =
            format!("{zero} 00 {zero} 00 fd0000000000000000000000000001 00000400 1 0 00000003 eth0\n{unreachable}");
        assert_eq!(interface(&whole, ""), None);
        assert_eq!(interface(&local, &with), Some(["--outbound-if4", "lo"]));
        assert_eq!(interface(&local, &unreachable), Some(["--interface", "lo"]));
        assert_eq!(interface("", ""), Some(["--interface", "lo"]));
    }

    #[test]
    fn a_passt_that_does_not_start_says_why() {
        let status = |wait: i32| Some(ExitStatus::from_raw(wait));
        assert_eq!(in_words(status(9), "x"), "passt was ended by signal 9");
        let sandbox = "Started as root\nCouldn't create user namespace: No space left on device\n";
        let why = in_words(status(1 << 8), sandbox);
        assert_eq!(why, "passt has ended with status 1: Couldn't create user namespace: No space left on device");
        assert!(remedy(&why).contains("user.max_user_namespaces"));
        assert!(remedy("Failed to bind any port").contains("--forward"));
    }
}
