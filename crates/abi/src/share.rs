//! The way between Gnomon and the server of a share: a virtio network device of QEMU's, whose packets go to the server by
//! a socket that keeps them apart and in order.
//!
//! A 9P message is one packet of up to [`MOST_PACKET`] bytes, or two if it is longer. Answers come in the order of their
//! messages. The number of packets of an answer depends on its message alone ([`has_two_packets`]), so that the driver can
//! offer each packet its place in advance. If it is two, the second ends with [`PADDING`] bytes of zero, even if it has no
//! other content.
//!
//! A packet of [`LOST_BYTES`] bytes says that the server has ended. No other packet has this length.

use crate::mac::Mac;

/// The longest message and the longest answer, in bytes.
pub const MOST_MESSAGE: usize = 128 << 10;
/// The most content of a packet, in bytes. (QEMU passes on packets of up to 68 KiB.)
pub const MOST_PACKET: usize = 64 << 10;
/// The bytes at the end of a second packet of an answer.
pub const PADDING: usize = 16;
/// The length of the packet that says that the server has ended.
pub const LOST_BYTES: usize = 4;

/// Bytes of the head of a message: length (4), type (1), tag (2).
pub const HEAD: usize = 7;
/// Bytes of the answer to a message that reads, in front of what was read.
pub const READ_HEAD: usize = HEAD + 4;
/// The types of the messages that read a directory, and a file.
pub const READS: [u8; 2] = [kind::READDIR, kind::READ];
/// The type of the answer that contains an error (`Rlerror`).
pub const RLERROR: u8 = 7;
/// The offset of the count in the messages that read: behind a file number and an offset.
pub const COUNT_AT: usize = HEAD + 12;

/// Types of messages. The type of the answer is one more.
pub mod kind {
    #![allow(missing_docs, reason = "the protocol's names, as Linux has them in `include/net/9p/9p.h`")]
    pub const STATFS: u8 = 8;
    pub const LOPEN: u8 = 12;
    pub const LCREATE: u8 = 14;
    pub const SYMLINK: u8 = 16;
    pub const MKNOD: u8 = 18;
    pub const READLINK: u8 = 22;
    pub const GETATTR: u8 = 24;
    pub const SETATTR: u8 = 26;
    pub const XATTRWALK: u8 = 30;
    pub const XATTRCREATE: u8 = 32;
    pub const READDIR: u8 = 40;
    pub const FSYNC: u8 = 50;
    pub const LOCK: u8 = 52;
    pub const GETLOCK: u8 = 54;
    pub const LINK: u8 = 70;
    pub const MKDIR: u8 = 72;
    pub const RENAMEAT: u8 = 74;
    pub const UNLINKAT: u8 = 76;
    pub const VERSION: u8 = 100;
    pub const ATTACH: u8 = 104;
    pub const FLUSH: u8 = 108;
    pub const WALK: u8 = 110;
    pub const READ: u8 = 116;
    pub const WRITE: u8 = 118;
    pub const CLUNK: u8 = 120;
    pub const REMOVE: u8 = 122;
}

/// Bits of `Tsetattr`: the attributes that are set.
pub mod set {
    #![allow(missing_docs, reason = "the protocol's names, as Linux has them in `include/net/9p/9p.h`")]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const CTIME: u32 = 1 << 6;
    pub const ATIME_SET: u32 = 1 << 7;
    pub const MTIME_SET: u32 = 1 << 8;
}

/// The first four bytes of a share's address; the number follows.
const PREFIX: [u8; 4] = [0x02, b'g', b's', b'h'];

/// Returns the Ethernet address of the device of share number `number`: [`crate::bundle::ShareConfig::number`].
#[must_use]
pub const fn address(number: u16) -> Mac {
    let [a, b, c, d] = PREFIX;
    let [high, low] = number.to_be_bytes();
    Mac([a, b, c, d, high, low])
}

/// Returns the number of the share whose device has this address, if it is one's.
#[must_use]
pub fn number_of(address: Mac) -> Option<u32> {
    let Mac([a, b, c, d, high, low]) = address;
    ([a, b, c, d] == PREFIX).then_some(u16::from_be_bytes([high, low]).into())
}

/// Returns whether the answer to `message` has two packets: if the message reads more than one has room for.
#[must_use]
pub fn has_two_packets(message: &[u8]) -> bool {
    let reads = message.get(4).is_some_and(|kind| READS.contains(kind));
    let count =
        message.get(COUNT_AT..).and_then(|rest| rest.first_chunk()).map_or(0, |count| u32::from_le_bytes(*count));
    reads && count as usize > MOST_PACKET - READ_HEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_shares() {
        for number in [0, 7, 300] {
            assert_eq!(number_of(address(number)), Some(number.into()));
        }
        assert_eq!(number_of(Mac([0x52, 0x54, 0, 0x67, 0x6e, 1])), None);
    }

    #[test]
    fn long_reads_are_answered_by_two_packets() {
        let message = |kind: u8, count: usize| {
            let mut message = [0; 23];
            message[4] = kind;
            message[COUNT_AT..].copy_from_slice(&(count as u32).to_le_bytes());
            message
        };
        let most = MOST_PACKET - READ_HEAD;
        for kind in READS {
            assert!(!has_two_packets(&message(kind, most)) && has_two_packets(&message(kind, most + 1)));
        }
        assert!(!has_two_packets(&message(118, most + 1)) && !has_two_packets(&message(116, most + 1)[..22]));
    }
}
