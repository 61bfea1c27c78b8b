//! Frames: how a stream has them, and which of them pass between a VM and its passt.
//!
//! passt has one guest. It answers ARP and NDP questions for every address but that guest's, so questions that are for other VMs must not
//! reach it. Debian 12's version takes the content of a later fragment for a header of UDP or TCP. What passes is what passt has a use for;
//! a VM's own network stack sends nothing else to the world that could be answered.

use crate::machine::net::{GATEWAY, GATEWAY_MAC, NAMES};
use crate::machine::passt::{GATEWAY_IPV6, LENGTH, NAMES_IPV6};
use abi::mac::Mac;

/// Bytes of the shortest frame: two addresses and a type.
const LEAST: usize = 14;
/// Bytes of the longest frame that a machine sends.
pub const MOST: usize = 65_550;
/// Bytes of the longest frame for a VM: 1500 behind the shortest.
const MOST_FOR_GUEST: usize = LEAST + 1500;
/// The types of frames.
const IPV4: [u8; 2] = [8, 0];
const ARP: [u8; 2] = [8, 6];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Protocols of IP.
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// The one flag of an IPv4 packet that is whole.
const DONT_FRAGMENT: u8 = 0x40;

/// A stream of frames, each behind its length.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    at: usize,
}

/// A length that no frame has: what follows cannot be told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Garbled;

impl Stream {
    /// Takes in what came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next frame out, if it is complete.
    ///
    /// # Errors
    /// [`Garbled`].
    pub fn take(&mut self) -> Result<Option<&[u8]>, Garbled> {
        let rest = &self.bytes[self.at..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length == 0 || length > MOST {
            return Err(Garbled);
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        self.at += LENGTH + length;
        Ok(Some(frame))
    }
}

/// The decision on a VM's frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// passt gets it.
    Pass,
    /// A frame that is dropped.
    Drop,
    /// The answer to a frame, which passt does not get.
    Answer(Vec<u8>),
}

/// Returns the source address that a frame claims.
pub fn source(frame: &[u8]) -> Option<Mac> {
    frame.get(6..12)?.first_chunk().map(|bytes| Mac(*bytes))
}

fn has(frame: &[u8], at: usize, bytes: &[u8]) -> bool {
    frame.get(at..at + bytes.len()) == Some(bytes)
}

/// Decides on a VM's frame to the world.
pub fn outgoing(frame: &[u8]) -> Verdict {
    let (Some(to), Some(kind)) = (frame.first_chunk().map(|bytes| Mac(*bytes)), frame.get(12..14)) else {
        return Verdict::Drop;
    };
    if to != GATEWAY_MAC && !to.is_group() {
        return Verdict::Drop;
    }
    let passes = match [kind[0], kind[1]] {
        ARP => is_question(frame),
        IPV4 => {
            if let Some(answer) = pong(frame) {
                return Verdict::Answer(answer);
            }
            is_ipv4(frame, to)
        }
        IPV6 => is_ipv6(frame, to),
        _ => false,
    };
    if passes { Verdict::Pass } else { Verdict::Drop }
}

/// Returns whether a frame is an ARP question for the gateway or the name server (RFC 826).
fn is_question(frame: &[u8]) -> bool {
    has(frame, 20, &[0, 1]) && (has(frame, 38, &GATEWAY.octets()) || has(frame, 38, &NAMES.octets()))
}

/// Returns whether an IPv4 frame (RFC 791) is an unfragmented packet for the gateway to pass on, or a question for an address (DHCP).
fn is_ipv4(frame: &[u8], to: Mac) -> bool {
    let Some(&[version, _, _, _, _, _, flags, offset, _, protocol]) = frame.get(14..24).and_then(<[u8]>::first_chunk)
    else {
        return false;
    };
    let header = usize::from(version & 15) * 4;
    let is_whole = version >> 4 == 4 && header >= 20 && flags & !DONT_FRAGMENT == 0 && offset == 0;
    let is_for_dhcp = protocol == UDP && has(frame, 14 + header + 2, &[0, 67]);
    is_whole && if to == GATEWAY_MAC { matches!(protocol, ICMP | TCP | UDP) } else { is_for_dhcp }
}

/// Returns whether an IPv6 frame (RFC 8200) is an unfragmented packet for the gateway to pass on, or a question for a router, for its or
/// the name server's hardware address (NDP, RFC 4861), or for settings (DHCPv6).
fn is_ipv6(frame: &[u8], to: Mac) -> bool {
    let Some(&protocol) = frame.get(20) else { return false };
    if to == GATEWAY_MAC {
        return matches!(protocol, ICMPV6 | TCP | UDP);
    }
    let is_for_router = || has(frame, 54, &[133]);
    let is_question = || has(frame, 54, &[135]) && (has(frame, 62, &GATEWAY_IPV6) || has(frame, 62, &NAMES_IPV6));
    match protocol {
        ICMPV6 => is_for_router() || is_question(),
        UDP => has(frame, 56, &[547_u16.to_be_bytes()[0], 547_u16.to_be_bytes()[1]]),
        _ => false,
    }
}

/// The answer to a frame that pings the gateway (RFC 792). passt would need the host's permission to send pings.
fn pong(frame: &[u8]) -> Option<Vec<u8>> {
    let is_ping =
        has(frame, 14, &[0x45]) && has(frame, 20, &[frame.get(20)? & DONT_FRAGMENT, 0]) && has(frame, 23, &[ICMP]);
    let is_for_gateway = has(frame, 0, &GATEWAY_MAC.0) && has(frame, 30, &GATEWAY.octets());
    if !is_ping || !is_for_gateway || !has(frame, 34, &[8, 0]) || frame.len() > MOST_FOR_GUEST {
        return None;
    }
    let mut answer = frame.to_vec();
    answer.get(..42)?;
    answer[..6].copy_from_slice(&frame[6..12]);
    answer[6..12].copy_from_slice(&frame[..6]);
    answer[26..30].copy_from_slice(&frame[30..34]);
    answer[30..34].copy_from_slice(&frame[26..30]);
    answer[34] = 0;
    // The checksum is the complement of a sum that is 0x800 less now (RFC 1624).
    let (sum, carry) = u16::from_be_bytes([frame[36], frame[37]]).overflowing_add(0x800);
    answer[36..38].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
    Some(answer)
}

/// Returns whether a frame from passt may go to the VM whose card has that address; without one, to the only guest.
pub fn is_incoming(frame: &[u8], card: Option<Mac>) -> bool {
    (LEAST..=MOST_FOR_GUEST).contains(&frame.len())
        && has(frame, 6, &GATEWAY_MAC.0)
        && card.is_none_or(|card| has(frame, 0, &card.0))
}
