//! A VM's UDP ports, and the ports of this host that stand for them.
//!
//! passt sends a guest's datagrams from the port of this host that has the guest's number. With several VMs that would be one port for
//! several: the passt that opens it last gets the answers of all. It would also be a port that a program of this host has, or one below
//! 1024, which passt may not open. So each of a VM's ports is replaced by a free port of this host, on the way out as source and on the way
//! in as destination. A VM has a bounded number of them: then one that was not used lately stands for the new port. So a VM that
//! sends from all ports has its passt open no more sockets than that.

use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Mutex, PoisonError};

/// Most ports of a VM at a time.
pub const MOST: usize = 1024;
/// Tries to find a port of the host.
const TRIES: usize = 16;
/// Bytes in front of IP's header, and of IPv6's.
const ETHERNET: usize = 14;
const IPV6_HEADER: usize = 40;
/// Protocols of IP.
const ICMP: u8 = 1;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Ports of servers of DHCP and DHCPv6, which are passt itself.
const DHCP: [u16; 2] = [67, 547];

/// Ports of the host that stand for some VM's, of all relays of this process.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A VM's ports.
#[derive(Debug, Default)]
pub struct Ports {
    slots: Vec<Slot>,
    by_guest: HashMap<u16, usize>,
    by_host: HashMap<u16, usize>,
    /// The slot that is looked at next, if one is to stand for another port.
    hand: usize,
}

#[derive(Debug)]
struct Slot {
    guest: u16,
    host: u16,
    /// Set by each use but the first, cleared by the hand: what is used once makes room first.
    is_used: bool,
}

/// The positions of a port and of the checksum that covers it. In IPv4, UDP's checksum may be absent, which is 0.
struct Place {
    port: usize,
    checksum: usize,
    is_udp: bool,
}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// Returns the position behind the IP header that begins there, and the packet's protocol.
fn content(frame: &[u8], at: usize) -> Option<(usize, u8)> {
    match frame.get(at)? >> 4 {
        4 => Some((at + usize::from(frame[at] & 15) * 4, *frame.get(at + 9)?)),
        6 => Some((at + IPV6_HEADER, *frame.get(at + 6)?)),
        _ => None,
    }
}

/// Returns whether a frame has a packet of IPv4 or IPv6.
fn is_ip(frame: &[u8]) -> bool {
    matches!(word(frame, 12), Some(0x0800 | 0x86dd))
}

impl Place {
    /// Replaces the port, and corrects the checksum (RFC 1624, equation 3).
    fn replace(&self, frame: &mut [u8], port: u16) {
        let (Some(old), Some(sum)) = (word(frame, self.port), word(frame, self.checksum)) else { return };
        frame[self.port..self.port + 2].copy_from_slice(&port.to_be_bytes());
        if self.is_udp && sum == 0 {
            return;
        }
        let total = u32::from(!sum) + u32::from(!old) + u32::from(port);
        let folded = (total & 0xffff) + (total >> 16);
        let sum = !((folded & 0xffff) + (folded >> 16)) as u16;
        let sum = if self.is_udp && sum == 0 { 0xffff } else { sum };
        frame[self.checksum..self.checksum + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

impl Ports {
    /// Replaces the source port of a VM's datagram. Returns whether the frame may go: there may be no port of the host for it.
    pub fn translate_outgoing(&mut self, frame: &mut [u8]) -> bool {
        let Some((at, UDP)) = content(frame, ETHERNET).filter(|_| is_ip(frame)) else { return true };
        let (Some(source), Some(destination), Some(_)) = (word(frame, at), word(frame, at + 2), word(frame, at + 6))
        else {
            return false;
        };
        if DHCP.contains(&destination) {
            return true;
        }
        let Some(host) = self.host_port(source) else { return false };
        Place { port: at, checksum: at + 6, is_udp: true }.replace(frame, host);
        true
    }

    /// Replaces the destination port of a datagram for the VM, or the port in an error message about one of the VM's (ICMP). Returns
    /// whether the frame is for the VM.
    pub fn translate_incoming(&mut self, frame: &mut [u8]) -> bool {
        let Some((at, protocol)) = content(frame, ETHERNET).filter(|_| is_ip(frame)) else { return true };
        let place = match protocol {
            UDP if word(frame, at).is_some_and(|source| DHCP.contains(&source)) => return true,
            UDP => Place { port: at + 2, checksum: at + 6, is_udp: true },
            // Destination unreachable: behind 8 bytes is the header of the packet that it is about.
            ICMP | ICMPV6 if frame.get(at) == Some(&if protocol == ICMP { 3 } else { 1 }) => {
                let Some((inner, UDP)) = content(frame, at + 8) else { return true };
                Place { port: inner, checksum: at + 2, is_udp: false }
            }
            _ => return true,
        };
        let Some(host) = word(frame, place.port) else { return false };
        let Some(slot) = self.by_host.get(&host).map(|slot| &mut self.slots[*slot]) else { return false };
        slot.is_used = true;
        let guest = slot.guest;
        place.replace(frame, guest);
        true
    }

    /// Returns the port of the host that stands for a VM's.
    fn host_port(&mut self, guest: u16) -> Option<u16> {
        if let Some(known) = self.by_guest.get(&guest) {
            self.slots[*known].is_used = true;
            return Some(self.slots[*known].host);
        }
        let slot = if self.slots.len() < MOST {
            let host = free_port()?;
            self.by_host.insert(host, self.slots.len());
            self.slots.push(Slot { guest, host, is_used: false });
            self.slots.len() - 1
        } else {
            // The clock algorithm.
            while std::mem::take(&mut self.slots[self.hand].is_used) {
                self.hand = (self.hand + 1) % MOST;
            }
            let slot = self.hand;
            self.hand = (self.hand + 1) % MOST;
            self.by_guest.remove(&self.slots[slot].guest);
            self.slots[slot].guest = guest;
            slot
        };
        self.by_guest.insert(guest, slot);
        Some(self.slots[slot].host)
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        self.slots.iter().for_each(|slot| _ = given.remove(&slot.host));
    }
}

/// Finds a port of this host that no program has, and no other VM.
fn free_port() -> Option<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    (0..TRIES).find_map(|_| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.local_addr().ok().map(|at| at.port()).filter(|port| given.insert(*port))
    })
}
