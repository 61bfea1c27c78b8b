//! The network beyond the VM: smoltcp's TCP and UDP, on a virtio network card.
//!
//! A socket of a program that is connected to the outside has a hidden socket of the kernel's as its peer. A task moves what arrives there to
//! smoltcp, and what smoltcp receives to the program's socket. So waits, bounds and the ends of connections are those of local sockets.

mod datagram;
mod link;
mod stream;

pub use datagram::MOST_DATAGRAM;
pub use link::Link;

use crate::errno::{Errno, Result};
use crate::fs::socket::Socket;
use crate::fs::socket::address::Internet;
use crate::sync::Mutex;
use crate::task::executor;
use crate::task::timers;
use crate::task::wait::WaitQueue;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::net::Ipv4Addr;
use core::pin::Pin;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Poll, Waker};
use datagram::{Gate, Port};
use link::Frames;
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, IpEndpoint, Ipv4Cidr};
use stream::{Listener, Stream};

/// Nanoseconds between two looks of the task, at least.
const LEAST_WAIT: u64 = 1_000_000;
/// Rounds in which the task moves data before other tasks run.
const ROUNDS: usize = 8;

/// The settings of a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The VM's address.
    pub address: Ipv4Addr,
    /// Bits of the network's addresses that are the same.
    pub prefix: u8,
    /// The way to other networks.
    pub gateway: Ipv4Addr,
    /// A server of names.
    pub names: Ipv4Addr,
}

impl Settings {
    /// Reads the setting `ip=` of the command line, in Linux's format: the address, a server, the gateway, the mask, the VM's name, the
    /// device, a protocol, a name server.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let setting = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("ip="))?;
        let fields: Vec<&str> = setting.split(':').collect();
        let address = |at: usize| fields.get(at)?.parse::<Ipv4Addr>().ok();
        let mask = address(3)?.to_bits();
        let prefix = mask.leading_ones() as u8;
        if mask.checked_shl(prefix.into()).unwrap_or(0) != 0 {
            return None;
        }
        Some(Self { address: address(0)?, prefix, gateway: address(2)?, names: address(7)? })
    }
}

/// The state of the network.
struct Stack {
    frames: Frames,
    interface: Interface,
    sockets: SocketSet<'static>,
    streams: Vec<Stream>,
    listeners: Vec<Listener>,
    ports: Vec<Port>,
    gates: Vec<Gate>,
}

static STACK: Mutex<Option<Stack>> = Mutex::new(None);
/// The VM's address; 0 is none.
static ADDRESS: AtomicU32 = AtomicU32::new(0);
/// The task, while it waits.
static TASK: WaitQueue = WaitQueue::new();

/// Uses a card. Tasks can be started.
///
/// # Errors
/// `EINVAL` for an address that no machine can have.
pub fn start(link: Box<dyn Link>, mac: [u8; 6], settings: Settings) -> Result<()> {
    let mac = EthernetAddress(mac);
    if !mac.is_unicast() || settings.address.is_unspecified() {
        return Err(Errno::INVAL);
    }
    let mut config = Config::new(HardwareAddress::Ethernet(mac));
    let mut seed = [0; 8];
    crate::random::fill(&mut seed);
    config.random_seed = u64::from_le_bytes(seed);
    let mut frames = Frames(link);
    let mut interface = Interface::new(config, &mut frames, now());
    interface.update_ip_addrs(|all| {
        // There is room for one.
        let _ = all.push(IpCidr::Ipv4(Ipv4Cidr::new(settings.address, settings.prefix)));
    });
    interface.routes_mut().add_default_ipv4_route(settings.gateway).map_err(|_| Errno::INVAL)?;
    *STACK.lock() = Some(Stack {
        frames,
        interface,
        sockets: SocketSet::new(Vec::new()),
        streams: Vec::new(),
        listeners: Vec::new(),
        ports: Vec::new(),
        gates: Vec::new(),
    });
    ADDRESS.store(settings.address.to_bits(), Ordering::Relaxed);
    executor::spawn(run());
    Ok(())
}

fn now() -> Instant {
    Instant::from_micros((timers::now() / 1000) as i64)
}

/// Returns the VM's address, without a port.
#[must_use]
pub fn own() -> Option<Internet> {
    let address = ADDRESS.load(Ordering::Relaxed);
    (address != 0).then(|| Internet::mapped(Ipv4Addr::from_bits(address).octets(), 0))
}

/// Returns whether an address is beyond the VM, on a network that there is.
#[must_use]
pub fn reaches(to: &Internet) -> bool {
    own().is_some() && to.ipv4().is_some() && !to.is_own()
}

fn endpoint(address: &Internet) -> Result<IpEndpoint> {
    let ip = address.ipv4().ok_or(Errno::NETUNREACH)?;
    Ok(IpEndpoint::new(Ipv4Addr::from(ip).into(), address.port))
}

fn address(endpoint: IpEndpoint) -> Internet {
    let smoltcp::wire::IpAddress::Ipv4(ip) = endpoint.addr;
    Internet::mapped(ip.octets(), endpoint.port)
}

/// Lets the task look for what has changed.
pub fn wake() {
    TASK.wake();
}

/// Does something with the network's state, and lets the task look afterwards.
fn with<T>(act: impl FnOnce(&mut Stack) -> Result<T>) -> Result<T> {
    let result = STACK.lock().as_mut().map_or(Err(Errno::NETUNREACH), act);
    wake();
    result
}

/// Connects a stream to an address beyond the VM. The socket is connecting until the other side has answered.
///
/// # Errors
/// `EISCONN`, `EALREADY`, `EINVAL`; `ENETUNREACH`, `ENOBUFS`.
pub fn connect(socket: &Arc<Socket>, to: Internet) -> Result<()> {
    with(|stack| stack.connect(socket, to))
}

/// Takes connections from beyond the VM for a socket that listens.
///
/// # Errors
/// `ENOBUFS`.
pub fn listen(socket: &Arc<Socket>) -> Result<()> {
    if own().is_none() {
        return Ok(());
    }
    with(|stack| stack.listen(socket))
}

/// Takes datagrams from beyond the VM for a socket that is bound.
///
/// # Errors
/// `ENOBUFS`.
pub fn open_port(socket: &Arc<Socket>) -> Result<()> {
    if own().is_none() {
        return Ok(());
    }
    with(|stack| stack.open_port(socket))
}

/// Returns the hidden socket to which datagrams for an address beyond the VM are sent.
///
/// # Errors
/// `ENETUNREACH`, `ENOBUFS`.
pub fn gate(socket: &Arc<Socket>, to: Internet) -> Result<Arc<Socket>> {
    with(|stack| {
        stack.open_port(socket)?;
        stack.gate(to)
    })
}

/// Moves data, and returns when to look again at the latest: nanoseconds as of [`timers::now`].
fn service(waker: &Waker) -> Option<u64> {
    let mut stack = STACK.lock();
    let stack = stack.as_mut()?;
    for _ in 0..ROUNDS {
        let result = stack.interface.poll(now(), &mut stack.frames, &mut stack.sockets);
        let has_moved = stack.move_streams(waker) | stack.move_datagrams(waker);
        if !has_moved && result == PollResult::None {
            let at = stack.interface.poll_at(now(), &stack.sockets)?;
            let at = (at.total_micros().max(0) as u64).saturating_mul(1000);
            return Some(at.max(timers::now() + LEAST_WAIT));
        }
    }
    Some(timers::now() + LEAST_WAIT)
}

/// The task of the network.
async fn run() {
    let mut sleep: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
    poll_fn(|cx| {
        TASK.add(cx.waker());
        sleep = service(cx.waker()).map(|at| Box::pin(timers::sleep_until(at)) as _);
        if let Some(sleep) = &mut sleep
            && sleep.as_mut().poll(cx).is_ready()
        {
            cx.waker().wake_by_ref();
        }
        Poll::<()>::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::Settings;
    use core::net::Ipv4Addr;

    #[test]
    fn settings_are_those_of_the_command_line() {
        let found =
            Settings::parse("quiet ip=10.0.2.15::10.0.2.2:255.255.255.0::eth0:off:10.0.2.3 x=y").expect("settings");
        let [address, gateway, names] = [15, 2, 3].map(|host| Ipv4Addr::new(10, 0, 2, host));
        assert_eq!(found, Settings { address, prefix: 24, gateway, names });
        for wrong in ["", "ip=", "ip=dhcp", "ip=1.2.3.4::5.6.7.8:255.0.255.0::eth0:off:1.1.1.1", "ip=a::b:c::d:e:f"] {
            assert_eq!(Settings::parse(wrong), None, "{wrong}");
        }
    }
}
