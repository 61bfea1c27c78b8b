//! VMs' network cards, and how the host's ports lead to them.

use abi::mac::{Mac, NoMac};
use miette::Diagnostic;
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::num::NonZeroU16;
use std::str::FromStr;

/// The VMs' network (RFC 1918): the first three bytes of its addresses.
const NETWORK: [u8; 3] = [10, 0, 2];
/// The address on the Ethernet that the gateway and the name server have.
pub(crate) const GATEWAY_MAC: Mac = Mac([0x52, 0x55, 10, 0, 2, 2]);
/// The gateway, by which a VM reaches this host's loopback and all that this host reaches.
pub const GATEWAY: Ipv4Addr = address(2);
/// The name server.
pub const NAMES: Ipv4Addr = address(3);
/// The last byte of the first VM's address.
const FIRST: u8 = 15;
/// The first bytes of cards' addresses: QEMU's prefix, and "gn".
const CARD: [u8; 5] = [0x52, 0x54, 0x00, 0x67, 0x6e];

/// A VM's network card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Card {
    /// Its address on the Ethernet.
    pub mac: Mac,
    /// The VM's address, which ports are forwarded to.
    pub address: Ipv4Addr,
    /// Ports of the host's that lead to it.
    pub forwards: Vec<Forward>,
}

const fn address(last: u8) -> Ipv4Addr {
    let [a, b, c] = NETWORK;
    Ipv4Addr::new(a, b, c, last)
}

/// An address, or several, as a guest has to say them: this host has another one there.
pub(crate) fn seen_by_guest(text: &str) -> String {
    let host = GATEWAY.to_string();
    ["localhost", "127.0.0.1", "[::1]"].iter().fold(text.to_owned(), |text, own| {
        text.replace(&format!("://{own}:"), &format!("://{host}:"))
            .replace(&format!("://{own}/"), &format!("://{host}/"))
    })
}

impl Card {
    /// The card of the VM at this place of the run, below 64.
    #[must_use]
    pub fn of(place: usize, mac: Option<Mac>, forwards: Vec<Forward>) -> Self {
        let [a, b, c, d, e] = CARD;
        let place = place as u8;
        Self { mac: mac.unwrap_or(Mac([a, b, c, d, e, place + 1])), address: address(FIRST + place), forwards }
    }

    /// The `ip=` setting for Linux's command line.
    #[must_use]
    pub fn ip(&self) -> String {
        format!("ip={}::{}:255.255.255.0::eth0:off:{}", self.address, GATEWAY, NAMES)
    }
}

/// A TCP port of the host that leads to a VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Forward {
    /// The host's address.
    pub at: Ipv4Addr,
    /// The port there.
    pub host: NonZeroU16,
    /// The VM's.
    pub guest: NonZeroU16,
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at != Ipv4Addr::LOCALHOST {
            write!(f, "{}:", self.at)?;
        }
        write!(f, "{}:{}", self.host, self.guest)
    }
}

impl FromStr for Forward {
    type Err = String;

    /// `HOSTPORT:GUESTPORT`, with an address of the host and `:` in front.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let (at, host, guest) = match parts[..] {
            [host, guest] => (Ipv4Addr::LOCALHOST, host, guest),
            [at, host, guest] => {
                let at = at.parse().map_err(|_| format!("`{at}` is not an IPv4 address of the host"))?;
                (at, host, guest)
            }
            _ => return Err("give a port of the host and a port of the VM, such as 8080:80".into()),
        };
        let port = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a port: use 1 to 65535"));
        Ok(Self { at, host: port(host)?, guest: port(guest)? })
    }
}

impl TryFrom<String> for Forward {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A port that leads to a VM, as an option says it: with the VM's name where there are several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForwardTo {
    /// The VM.
    pub vm: Option<String>,
    /// The port.
    pub forward: Forward,
}

impl FromStr for ForwardTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (vm, forward) = text.split_once('=').map_or((None, text), |(vm, forward)| (Some(vm.to_owned()), forward));
        Ok(Self { vm, forward: forward.parse()? })
    }
}

/// Reads a card's address from a VM file.
pub(crate) fn mac<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Mac>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(|why: NoMac| serde::de::Error::custom(format!("`{text}` is {why}")))
}

/// A network that cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Diagnostic)]
pub enum NetError {
    /// A port is to lead to a VM that is not there.
    #[error("--forward {forward} names the VM `{vm}`, which does not exist")]
    #[diagnostic(help("the VMs are {vms}"))]
    NoVm {
        /// The requested value.
        forward: Forward,
        /// The VM.
        vm: String,
        /// The existing ones.
        vms: String,
    },
    /// The option names no VM, and there are several.
    #[error("--forward {0} does not name a VM, and there are several")]
    #[diagnostic(help("put its name in front, such as --forward {1}={0}; or set `forward` in its VM file"))]
    WhichVm(Forward, String),
    /// A port is to lead to a VM that has no network.
    #[error("port {forward} cannot be forwarded to VM `{vm}`, which has no network")]
    #[diagnostic(help(
        "leave out `net = false` in the VM file, or --net off: a VM with a forwarded port has a network"
    ))]
    NoNetwork {
        /// The requested value.
        forward: Forward,
        /// The VM.
        vm: String,
    },
    /// A card has an address, and is not there.
    #[error("VM `{0}` has no network, so `mac` has no effect")]
    #[diagnostic(help("give it one: `net = true` in the VM file, or --net; or leave `mac` out"))]
    NoCard(String),
    /// An address that no card can have.
    #[error("the network card of VM `{vm}` cannot have the address {mac}, which is a multicast address or zero")]
    #[diagnostic(help("choose an address whose first byte is even, such as 52:54:00:67:6e:01; or leave `mac` out"))]
    Group {
        /// The VM.
        vm: String,
        /// The requested value.
        mac: Mac,
    },
    /// The address of what is outside.
    #[error("the network card of VM `{0}` cannot have the address {GATEWAY_MAC}, which is the gateway's")]
    #[diagnostic(help("choose another one, such as 52:54:00:67:6e:01; or leave `mac` out"))]
    Gateway(String),
    /// Two cards have one address.
    #[error("the network cards of VMs `{0}` and `{1}` both have the address {2}")]
    #[diagnostic(help("leave out `mac` in one of the VM files: by default each VM has its own address"))]
    TwiceMac(String, String, Mac),
    /// A port leads to two.
    #[error("port {0} of the host is forwarded twice")]
    #[diagnostic(help("choose another port of the host for one of them"))]
    TwicePort(NonZeroU16),
    /// A port of the host's cannot be had.
    #[error("port {port} of the host ({at}) cannot be forwarded: {why}")]
    #[diagnostic(help("choose a free port, such as --forward {free}:{guest}", free = free_port(), guest = .guest))]
    Port {
        /// The host's address.
        at: Ipv4Addr,
        /// The port.
        port: NonZeroU16,
        /// The VM's port that it was to lead to.
        guest: NonZeroU16,
        /// The operating system's error.
        why: String,
    },
}

/// A free port of the host; 8080 if none can be found.
fn free_port() -> u16 {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    bound.map_or(8080, |address| address.port())
}

/// The way of one VM to the world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uplink {
    /// The VM's name.
    pub vm: String,
    /// The address of its card, by which the machine's frames are divided. `None` if the machine has one guest and no Gnomon: then all
    /// frames are that guest's.
    pub mac: Option<Mac>,
    /// The VM's IPv4 address.
    pub address: Ipv4Addr,
    /// Ports of the host that lead to it.
    pub forwards: Vec<Forward>,
}

/// The network of a machine: one card of QEMU's, which all VMs share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network {
    /// The VMs, at least one.
    pub uplinks: Vec<Uplink>,
}

impl Network {
    /// The network of a machine with one guest and without Gnomon. The guest has the first VM's address.
    #[must_use]
    pub fn of_one_guest() -> Self {
        Self { uplinks: vec![Uplink { vm: "guest".into(), mac: None, address: address(FIRST), forwards: Vec::new() }] }
    }
}

/// The network of these cards, each with the name of its VM; `None` without a card. Checks that the host's ports are free.
///
/// # Errors
/// [`NetError`].
pub fn provide(cards: &[(&str, &Card)]) -> Result<Option<Network>, NetError> {
    for (at, (vm, card)) in cards.iter().enumerate() {
        if let Some((other, _)) = cards[..at].iter().find(|(_, other)| other.mac == card.mac) {
            return Err(NetError::TwiceMac((*other).into(), (*vm).into(), card.mac));
        }
    }
    let ports: Vec<_> = cards.iter().flat_map(|(_, card)| &card.forwards).collect();
    for (at, forward) in ports.iter().enumerate() {
        let Forward { at: address, host, guest } = **forward;
        if ports[..at].iter().any(|other| other.host == host) {
            return Err(NetError::TwicePort(host));
        }
        let free = TcpListener::bind((address, host.get()));
        free.map_err(|why| NetError::Port { at: address, port: host, guest, why: why.to_string() })?;
    }
    let uplink = |(vm, card): &(&str, &Card)| Uplink {
        vm: (*vm).into(),
        mac: Some(card.mac),
        address: card.address,
        forwards: card.forwards.clone(),
    };
    Ok((!cards.is_empty()).then(|| Network { uplinks: cards.iter().map(uplink).collect() }))
}

/// QEMU's arguments for the card. Its other end is a further argument: the relay's, or [`UNPLUGGED`].
pub(crate) const CARD_ARGS: [&str; 2] = ["-device", "virtio-net-device,netdev=net"];

/// The other end of a card that leads nowhere.
pub(crate) const UNPLUGGED: [&str; 2] = ["-netdev", "hubport,id=net,hubid=1"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_lead_from_the_host_to_a_vm() {
        let port = |text: &str| text.parse::<ForwardTo>();
        let plain = port("8080:80").expect("a forward");
        assert_eq!((plain.vm.as_deref(), plain.forward.to_string().as_str()), (None, "8080:80"));
        assert_eq!(plain.forward.at, Ipv4Addr::LOCALHOST);
        let all = port("web=0.0.0.0:8080:80").expect("a forward");
        assert_eq!((all.vm.as_deref(), all.forward.to_string().as_str()), (Some("web"), "0.0.0.0:8080:80"));
        for text in ["", "80", "0:80", "8080:0", "65536:80", "8080:x", "x:8080:80", "1:2:3:4", "web=", "8080:80=web"] {
            assert!(port(text).is_err(), "{text}");
        }
    }

    #[test]
    fn each_vm_has_addresses_of_its_own() {
        let card = Card::of(63, None, Vec::new());
        assert_eq!((card.mac.to_string().as_str(), card.address), ("52:54:00:67:6e:40", Ipv4Addr::new(10, 0, 2, 78)));
        assert_eq!(Card::of(0, None, Vec::new()).ip(), "ip=10.0.2.15::10.0.2.2:255.255.255.0::eth0:off:10.0.2.3");
    }

    #[test]
    fn this_host_is_the_gateway() {
        assert_eq!(seen_by_guest("http://localhost:3142/debian"), "http://10.0.2.2:3142/debian");
        assert_eq!(seen_by_guest("http://127.0.0.1/a, http://[::1]:8/"), "http://10.0.2.2/a, http://10.0.2.2:8/");
        assert_eq!(seen_by_guest("http://localhost.example/debian"), "http://localhost.example/debian");
    }
}
