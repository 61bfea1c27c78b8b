//! Addresses of sockets, and the table of those that are bound.

use super::{Socket, Style};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use linux_raw_sys::net;

/// The most bytes of a local address behind its family.
pub const MOST_PATH: usize = 108;

/// The family of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// `AF_UNIX`.
    Local,
    /// `AF_INET`.
    Internet,
    /// `AF_INET6`.
    Internet6,
}

impl Family {
    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Local => net::AF_UNIX as u16,
            Self::Internet => net::AF_INET as u16,
            Self::Internet6 => net::AF_INET6 as u16,
        }
    }
}

/// An address with the port, in the format of IPv6. Addresses of IPv4 are mapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Internet {
    /// The address.
    pub ip: [u8; 16],
    /// The port; 0 is none yet.
    pub port: u16,
}

const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Internet {
    /// Returns an address of IPv4.
    #[must_use]
    pub fn mapped(ip: [u8; 4], port: u16) -> Self {
        let mut all = [0; 16];
        all[..12].copy_from_slice(&MAPPED);
        all[12..].copy_from_slice(&ip);
        Self { ip: all, port }
    }

    /// Returns the address by which a family names all of the machine.
    #[must_use]
    pub fn any(family: Family) -> Self {
        if family == Family::Internet { Self::mapped([0; 4], 0) } else { Self { ip: [0; 16], port: 0 } }
    }

    /// Returns the address by which a family names this machine.
    #[must_use]
    pub fn loopback(family: Family) -> Self {
        let mut six = [0; 16];
        six[15] = 1;
        if family == Family::Internet { Self::mapped([127, 0, 0, 1], 0) } else { Self { ip: six, port: 0 } }
    }

    /// Returns whether it names all of the machine.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.ip == [0; 16] || self.ip[..12] == MAPPED && self.ip[12..] == [0; 4]
    }

    /// Returns the address in the format of IPv4, if it is one.
    #[must_use]
    pub fn ipv4(&self) -> Option<[u8; 4]> {
        if self.ip[..12] == MAPPED { self.ip[12..].try_into().ok() } else { None }
    }

    /// Returns whether it names this machine for programs of this machine alone.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        !self.is_any() && self.is_own() && crate::net::own().is_none_or(|own| own.ip != self.ip)
    }

    /// Returns whether it names this machine.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.is_any()
            || crate::net::own().is_some_and(|own| own.ip == self.ip)
            || self.ip[..12] == MAPPED && self.ip[12] == 127
            || self.ip == Self::loopback(Family::Internet6).ip
    }
}

/// An address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Address {
    /// None.
    #[default]
    Unnamed,
    /// The path of a file.
    Path(Vec<u8>),
    /// A name without a file.
    Abstract(Vec<u8>),
    /// An address of the Internet.
    Internet(Internet),
}

impl Address {
    /// Reads the address that a program names.
    ///
    /// # Errors
    /// `EINVAL` for a wrong length or family; `EAFNOSUPPORT`.
    pub fn decode(bytes: &[u8], family: Family) -> Result<Self> {
        let (number, rest) = bytes.split_first_chunk::<2>().ok_or(Errno::INVAL)?;
        let number = u16::from_le_bytes(*number);
        let port = || rest.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes)).ok_or(Errno::INVAL);
        match family {
            Family::Local if number != family.number() => Err(Errno::INVAL),
            Family::Local if rest.len() > MOST_PATH => Err(Errno::INVAL),
            Family::Local => Ok(match rest.first() {
                None => Self::Unnamed,
                Some(0) => Self::Abstract(rest[1..].to_vec()),
                Some(_) => Self::Path(rest.split(|byte| *byte == 0).next().unwrap_or(rest).to_vec()),
            }),
            Family::Internet if number == Family::Internet.number() => {
                let ip = rest.get(2..6).and_then(|ip| ip.try_into().ok()).filter(|_| bytes.len() >= 16);
                Ok(Self::Internet(Internet::mapped(ip.ok_or(Errno::INVAL)?, port()?)))
            }
            Family::Internet6 if number == Family::Internet6.number() => {
                let ip = rest.get(6..22).and_then(|ip| ip.try_into().ok()).ok_or(Errno::INVAL)?;
                Ok(Self::Internet(Internet { ip, port: port()? }))
            }
            _ if bytes.len() < 16 => Err(Errno::INVAL),
            _ => Err(Errno::AFNOSUPPORT),
        }
    }

    /// Returns the address by which receivers name this sender.
    #[must_use]
    pub fn as_sender(&self, family: Family) -> Self {
        match self {
            Self::Internet(address) if address.is_any() => {
                Self::Internet(Internet { port: address.port, ..Internet::loopback(family) })
            }
            other => other.clone(),
        }
    }

    /// Returns whether a socket with the other address is the one that this address names.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Internet(one), Self::Internet(other)) => {
                one.port == other.port && (one.ip == other.ip || one.is_any() || other.is_any())
            }
            (one, other) => one == other,
        }
    }

    /// Returns the bytes of the address, as a socket of a family has it.
    #[must_use]
    pub fn encode(&self, family: Family) -> Vec<u8> {
        let mut bytes = family.number().to_le_bytes().to_vec();
        match (self, family) {
            (Self::Path(path), _) => {
                bytes.extend(path);
                bytes.push(0);
            }
            (Self::Abstract(name), _) => {
                bytes.push(0);
                bytes.extend(name);
            }
            (Self::Unnamed, Family::Local) => {}
            (_, family) => {
                let address = if let Self::Internet(address) = self { *address } else { Internet::any(family) };
                bytes.extend(address.port.to_be_bytes());
                if family == Family::Internet {
                    bytes.extend(&address.ip[12..]);
                    bytes.extend([0; 8]);
                } else {
                    bytes.extend([0; 4]);
                    bytes.extend(address.ip);
                    bytes.extend([0; 4]);
                }
            }
        }
        bytes
    }
}

/// The key of a bound socket.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Name {
    /// A node of a file system.
    Node((u64, u64)),
    /// A name without a file, of a style.
    Abstract(Style, Vec<u8>),
    /// A port.
    Port(Style, u16),
}

static BOUND: Mutex<BTreeMap<Name, Weak<Socket>>> = Mutex::new(BTreeMap::new());

/// Binds a socket.
///
/// # Errors
/// `EADDRINUSE`.
pub fn bind(name: Name, socket: &Arc<Socket>) -> Result<()> {
    let mut bound = BOUND.lock();
    if bound.get(&name).is_some_and(|known| known.strong_count() > 0) {
        return Err(Errno::ADDRINUSE);
    }
    bound.insert(name, Arc::downgrade(socket));
    Ok(())
}

/// Binds a socket to the first free one of some names.
///
/// # Errors
/// `EADDRINUSE` if none is free.
pub fn bind_any<T>(names: impl Iterator<Item = (Name, T)>, socket: &Arc<Socket>) -> Result<T> {
    for (name, value) in names {
        if bind(name, socket).is_ok() {
            return Ok(value);
        }
    }
    Err(Errno::ADDRINUSE)
}

/// Frees the name of a socket that is gone.
pub fn unbind(name: &Name) {
    let mut bound = BOUND.lock();
    if bound.get(name).is_some_and(|socket| socket.strong_count() == 0) {
        bound.remove(name);
    }
}

/// Returns the socket of a name.
#[must_use]
pub fn find(name: &Name) -> Option<Arc<Socket>> {
    let bound = BOUND.lock();
    bound.get(name)?.upgrade()
}
