//! Target for the frames that a VM sends to the world, and those that its passt sends.

use abi::mac::Mac;
use gnomon::machine::relay::frames::{Stream, Verdict, is_incoming, outgoing, source};
use gnomon::machine::relay::udp::Ports;

/// The gateway's address on the Ethernet, and on IPv4.
const GATEWAY: [u8; 6] = [0x52, 0x55, 10, 0, 2, 2];
const GATEWAY_IP: [u8; 4] = [10, 0, 2, 2];
/// The types of frames, and protocols of IP.
const ARP: [u8; 2] = [8, 6];
const IPV4: [u8; 2] = [8, 0];
const IPV6: [u8; 2] = [0x86, 0xdd];
const UDP: u8 = 17;
/// Bytes of Ethernet's header.
const ETHERNET: usize = 14;

/// The sum of RFC 1071 over some bytes: 0xffff where they include a right checksum.
fn sum(bytes: &[u8], start: u32) -> u32 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let total = words.fold(u64::from(start), |total, word| total + u64::from(word));
    (0..4).fold(total, |total, _| (total & 0xffff) + (total >> 16)) as u32
}

/// The place of a whole datagram of UDP over IPv4 in a frame, and the sum over it and its pseudo header. `None` if it has no checksum.
fn udp_sum(frame: &[u8]) -> Option<(usize, u32)> {
    let at = ETHERNET + usize::from(frame.get(ETHERNET)? & 15) * 4;
    let is_udp = frame.get(12..14)? == IPV4 && frame[ETHERNET] >> 4 == 4 && *frame.get(23)? == UDP;
    let datagram = frame.get(at..).filter(|datagram| is_udp && datagram.len() >= 8 && datagram[6..8] != [0, 0])?;
    let pseudo = sum(&frame[26..34], u32::from(UDP) + datagram.len() as u32);
    Some((at, sum(datagram, pseudo)))
}

/// The promises about a frame that goes to passt, each written anew.
fn check_passed(frame: &[u8]) {
    let is_group = frame[0] & 1 == 1;
    assert!(is_group || frame[..6] == GATEWAY, "it is for the gateway");
    match [frame[12], frame[13]] {
        ARP => assert!(frame[38..41] == GATEWAY_IP[..3] && matches!(frame[41], 2 | 3), "a question for a VM's address"),
        IPV4 => {
            let fragment = u16::from_be_bytes([frame[20], frame[21]]);
            assert_eq!(fragment & !0x4000, 0, "a fragment");
            assert!(!is_group || frame[23] == UDP, "a datagram for all is DHCP's");
        }
        IPV6 => assert!(matches!(frame[20], 6 | 17 | 58), "a header of IPv6 that may hide a fragment"),
        other => panic!("a frame of type {other:x?}"),
    }
}

fn check_answer(frame: &[u8], answer: &[u8]) {
    assert_eq!((answer.len(), &answer[..6], &answer[6..12]), (frame.len(), &frame[6..12], &frame[..6]));
    assert_eq!((&answer[26..30], &answer[30..34]), (&frame[30..34], &frame[26..30]));
    let is_right = |frame: &[u8]| sum(&frame[34..], 0) == 0xffff;
    assert_eq!(is_right(frame), is_right(answer), "a checksum is as right as it was");
    assert_eq!(sum(&frame[14..34], 0), sum(&answer[14..34], 0), "the header's checksum");
}

/// A VM's frame to the world, and its datagram's answer.
fn send(ports: &mut Ports, frame: &[u8]) {
    let _ = source(frame);
    match outgoing(frame) {
        Verdict::Drop => {}
        Verdict::Answer(answer) => check_answer(frame, &answer),
        Verdict::Pass => {
            check_passed(frame);
            let mut out = frame.to_vec();
            if !ports.translate_outgoing(&mut out) {
                return;
            }
            assert_eq!(out.len(), frame.len());
            let (Some((at, before)), Some((_, after))) = (udp_sum(frame), udp_sum(&out)) else { return };
            assert_eq!(before == 0xffff, after == 0xffff, "a checksum is as right as it was");
            if out == frame {
                return;
            }
            // The answer comes to the port that was given, and goes to the VM's own.
            let mut answer = out.clone();
            answer[at..at + 2].copy_from_slice(&out[at + 2..at + 4]);
            answer[at + 2..at + 4].copy_from_slice(&out[at..at + 2]);
            if ![67, 547].contains(&u16::from_be_bytes([answer[at], answer[at + 1]])) {
                assert!(ports.translate_incoming(&mut answer), "an answer is the VM's");
                assert_eq!(answer[at + 2..at + 4], frame[at..at + 2]);
            }
        }
    }
}

/// Frames, each the length (2 bytes) and its bytes; those with an odd length come from passt. A stream of all of them, cut into pieces.
pub fn frames(data: &[u8]) {
    let mut ports = Ports::default();
    let card = Mac([2, 0, 0, 0, 0, 1]);
    let (mut whole, mut sent) = (Vec::new(), Vec::new());
    let mut rest = data;
    while let [high, low, behind @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([high & 15, *low]));
        let (frame, behind) = behind.split_at(behind.len().min(length));
        rest = behind;
        if frame.is_empty() {
            continue;
        }
        whole.extend((frame.len() as u32).to_be_bytes());
        whole.extend(frame);
        sent.push(frame);
        if length % 2 == 0 {
            send(&mut ports, frame);
        } else if is_incoming(frame, Some(card)) {
            assert!(frame[..6] == card.0 && frame[6..12] == GATEWAY);
            ports.translate_incoming(&mut frame.to_vec());
        }
    }
    let mut stream = Stream::default();
    let mut sent = sent.into_iter();
    for piece in whole.chunks(data.first().map_or(1, |size| usize::from(*size) + 1)) {
        stream.push(piece);
        while let Some(frame) = stream.take().expect("each length is a frame's") {
            assert_eq!(Some(frame), sent.next(), "frames come as they were sent");
        }
    }
    assert_eq!(sent.next(), None, "all frames come");
    // And as a stream that a machine sends which is not QEMU any more.
    let mut stream = Stream::default();
    stream.push(data);
    while let Ok(Some(frame)) = stream.take() {
        send(&mut ports, frame);
    }
}
