use super::frames::{Garbled, Stream, Verdict, is_incoming, outgoing};
use super::*;
use crate::machine::net::{GATEWAY, GATEWAY_MAC, NAMES};
use crate::machine::passt::{GATEWAY_IPV6, NAMES_IPV6};
use abi::credit::Counts;
use rustix::event::Timespec;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, getpriority_process};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

const A: Mac = Mac([0x52, 0x54, 0, 0x67, 0x6e, 1]);
const B: Mac = Mac([0x52, 0x54, 0, 0x67, 0x6e, 2]);
const ALL: Mac = Mac([0xff; 6]);

fn frame(to: Mac, from: Mac, kind: [u8; 2], content: &[u8]) -> Vec<u8> {
    [&to.0[..], &from.0, &kind, content].concat()
}

fn arp(from: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let content = [&[0, 1, 8, 0, 6, 4, 0, 1], &from.0[..], &sender.octets(), &[0; 6], &target.octets()].concat();
    frame(ALL, from, [8, 6], &content)
}

/// The sum of RFC 1071 over words of 16 bits.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum = words.fold(0, |sum: u32, word| (sum + word) % 0xffff);
    (!(sum as u16)).to_be_bytes()
}

/// An IPv4 frame of VM `from`'s, with the word of flags and offset.
fn ipv4(from: Mac, to: (Mac, Ipv4Addr), fragment: u16, protocol: u8, content: &[u8]) -> Vec<u8> {
    let source = Ipv4Addr::new(10, 0, 2, 14 + from.0[5]);
    let mut header = vec![0x45, 0];
    header.extend((20 + content.len() as u16).to_be_bytes());
    header.extend([0, 7]);
    header.extend(fragment.to_be_bytes());
    header.extend([64, protocol, 0, 0]);
    header.extend(source.octets());
    header.extend(to.1.octets());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    frame(to.0, from, [8, 0], &[&header, content].concat())
}

/// A UDP packet without a checksum.
fn udp(ports: (u16, u16), content: &[u8]) -> Vec<u8> {
    let length = (8 + content.len() as u16).to_be_bytes();
    [&ports.0.to_be_bytes()[..], &ports.1.to_be_bytes(), &length, &[0, 0], content].concat()
}

fn ipv6(to: Mac, protocol: u8, content: &[u8]) -> Vec<u8> {
    let header = [&[0x60, 0, 0, 0, 0, content.len() as u8, protocol, 255][..], &[0xfe; 32]].concat();
    frame(to, A, [0x86, 0xdd], &[&header, content].concat())
}

/// Nothing is sent there: frames to it are only looked at.
const WORLD: (Mac, Ipv4Addr) = (GATEWAY_MAC, Ipv4Addr::new(192, 0, 2, 1));

#[test]
fn what_passt_has_a_use_for_passes() {
    let all = Mac([0x33, 0x33, 0, 0, 0, 2]);
    let neighbour = |target: [u8; 16]| [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat();
    for (name, frame) in [
        ("a question for the gateway", arp(A, Ipv4Addr::new(10, 0, 2, 15), GATEWAY)),
        ("a question for the name server", arp(A, Ipv4Addr::new(10, 0, 2, 15), NAMES)),
        ("TCP", ipv4(A, WORLD, 0x4000, 6, &[0; 20])),
        ("UDP", ipv4(A, WORLD, 0, 17, &udp((1, 2), b"x"))),
        ("a ping to the world", ipv4(A, WORLD, 0, 1, &[8, 0, 0, 0, 0, 0, 0, 0])),
        ("DHCP", ipv4(A, (ALL, Ipv4Addr::BROADCAST), 0, 17, &udp((68, 67), &[0; 240]))),
        ("a question for a router", ipv6(all, 58, &[133, 0, 0, 0, 0, 0, 0, 0])),
        ("a question for the gateway, IPv6", ipv6(all, 58, &neighbour(GATEWAY_IPV6))),
        ("a question for the name server, IPv6", ipv6(all, 58, &neighbour(NAMES_IPV6))),
        ("DHCPv6", ipv6(all, 17, &udp((546, 547), b"x"))),
        ("TCP, IPv6", ipv6(GATEWAY_MAC, 6, &[0; 20])),
    ] {
        assert_eq!(outgoing(&frame), Verdict::Pass, "{name}");
        // No part of one passes as something else, and nothing is read behind its end.
        for end in 0..frame.len() {
            let _ = outgoing(&frame[..end]);
        }
    }
}

#[test]
fn what_no_stack_sends_is_dropped() {
    let all = Mac([0x33, 0x33, 0, 0, 0, 2]);
    let other = arp(A, Ipv4Addr::new(10, 0, 2, 15), Ipv4Addr::new(10, 0, 2, 16));
    let mut answer = arp(A, Ipv4Addr::new(10, 0, 2, 15), GATEWAY);
    answer[21] = 2;
    let neighbour = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &[0xfe; 16]].concat();
    for (name, frame) in [
        ("a question for another VM, which passt would answer", other),
        ("an answer", answer),
        ("a frame for another VM", ipv4(A, (B, Ipv4Addr::new(10, 0, 2, 16)), 0, 6, &[0; 20])),
        ("a later fragment", ipv4(A, WORLD, 1, 17, &udp((1, 2), b"x"))),
        ("a fragment far behind", ipv4(A, WORLD, 0x1fff, 17, &udp((1, 2), b"x"))),
        ("a first fragment", ipv4(A, WORLD, 0x2000, 17, &udp((1, 2), b"x"))),
        ("a protocol that passt does not know", ipv4(A, WORLD, 0, 47, &[0; 20])),
        ("UDP to all that is not DHCP", ipv4(A, (ALL, Ipv4Addr::BROADCAST), 0, 17, &udp((68, 69), b"x"))),
        ("an IPv4 header of another version", frame(GATEWAY_MAC, A, [8, 0], &[0x65; 60])),
        ("an IPv4 header that is too short", frame(GATEWAY_MAC, A, [8, 0], &[0x44; 60])),
        ("a question for another VM, IPv6", ipv6(all, 58, &neighbour)),
        ("a report of groups", ipv6(all, 0, &[0; 8])),
        ("a fragment, IPv6", ipv6(GATEWAY_MAC, 44, &[17, 0, 0, 8, 0, 0, 0, 1])),
        ("another type", frame(ALL, A, [0x88, 0xcc], &[0; 46])),
        ("nothing", Vec::new()),
    ] {
        assert_eq!(outgoing(&frame), Verdict::Drop, "{name}");
    }
}

#[test]
fn the_gateway_answers_pings() {
    for content in [&b"abcdefg"[..], &[0xff; 56], &[0; 1000], &[0xf7, 0xfe]] {
        let mut ping = [&[8, 0, 0, 0, 0x12, 0x34, 0, 1], content].concat();
        let sum = checksum(&ping);
        ping[2..4].copy_from_slice(&sum);
        let Verdict::Answer(answer) = outgoing(&ipv4(A, (GATEWAY_MAC, GATEWAY), 0x4000, 1, &ping)) else {
            panic!("no answer")
        };
        assert_eq!(answer[..12], [A.0, GATEWAY_MAC.0].concat());
        assert_eq!(answer[26..34], [10, 0, 2, 2, 10, 0, 2, 15]);
        assert_eq!(answer[34..36], [0, 0]);
        assert_eq!(answer[42..], *content);
        for part in [&answer[14..34], &answer[34..]] {
            assert!(matches!(checksum(part), [0, 0] | [0xff, 0xff]), "{part:x?}");
        }
    }
}

#[test]
fn a_passt_reaches_its_own_vm_only() {
    let content = [0; 46];
    assert!(is_incoming(&frame(A, GATEWAY_MAC, [8, 0], &content), Some(A)));
    assert!(is_incoming(&frame(B, GATEWAY_MAC, [8, 0], &content), None));
    for frame in [
        frame(B, GATEWAY_MAC, [8, 0], &content),
        frame(ALL, GATEWAY_MAC, [8, 6], &content),
        frame(A, B, [8, 0], &content),
        frame(A, GATEWAY_MAC, [8, 0], &[0; 1501]),
        vec![0; 13],
    ] {
        assert!(!is_incoming(&frame, Some(A)), "{frame:x?}");
    }
}

#[test]
fn frames_come_in_pieces() {
    let bytes = [0, 0, 0, 2, 1, 2, 0, 0, 0, 1, 3];
    for cut in 0..bytes.len() {
        let (mut stream, mut found) = (Stream::default(), Vec::new());
        for piece in [&bytes[..cut], &bytes[cut..]] {
            stream.push(piece);
            while let Some(frame) = stream.take().expect("frames") {
                found.push(frame.to_vec());
            }
        }
        assert_eq!(found, [vec![1, 2], vec![3]], "cut at {cut}");
    }
    for length in [0_u32, 65_551, u32::MAX] {
        let mut stream = Stream::default();
        stream.push(&length.to_be_bytes());
        assert_eq!(stream.take(), Err(Garbled), "{length}");
    }
}

/// A relay with two VMs, and the machine's end.
struct Rig {
    machine: OwnedFd,
    /// The frames that each VM has taken.
    taken: [Counts; 2],
    /// The VMs that report what they have taken.
    reports: [bool; 2],
    ends: std::sync::mpsc::Receiver<UplinkEnd>,
    /// The process of each VM's passt.
    passts: Vec<u32>,
    thread: JoinHandle<()>,
}

impl Rig {
    fn new() -> Self {
        let uplink = |vm: &str, mac: Mac| Uplink {
            vm: vm.into(),
            mac: Some(mac),
            address: Ipv4Addr::new(10, 0, 2, 14 + mac.0[5]),
            forwards: Vec::new(),
        };
        let network = Network { uplinks: vec![uplink("a", A), uplink("b", B)] };
        let ways = ways(&network).expect("two passts");
        let passts: Vec<_> = ways.iter().map(|way| way.passt.as_ref().expect("one").0.id()).collect();
        // QEMU goes first, which has the priority of this process.
        let niceness = |process| getpriority_process(process).expect("a process");
        let nicest = passts.iter().map(|passt| niceness(Pid::from_raw(*passt as i32)));
        assert!(nicest.into_iter().all(|passt| passt == (niceness(None) + 10).min(19)));
        let (card, machine) = Card::pair().expect("a pair");
        let (report, ends) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _ = relay(card, ways, |end| report.send(end).expect("a receiver"));
        });
        Self { machine, taken: [Counts::default(); 2], reports: [true; 2], ends, passts, thread }
    }

    fn send(&mut self, frame: &[u8]) {
        send(&self.machine, frame, SendFlags::empty()).expect("the relay always reads");
    }

    /// Takes a frame as its VM, and reports that as Gnomon does.
    fn take(&mut self, frame: &[u8]) {
        let vm = usize::from(frame.starts_with(&B.0));
        if self.reports[vm] {
            self.taken[vm].come += 1;
            self.taken[vm].done += 1;
            let mut report = [0; 64];
            let length = credit::write([A, B].into_iter().zip(self.taken), &mut report);
            self.send(&report[..length]);
        }
    }

    /// Waits for a frame that is so, up to 100 ms.
    fn look(&mut self, is_wanted: &impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        let end = Instant::now() + Duration::from_millis(100);
        let (mut frame, pause) = ([0; 2048], Timespec { tv_sec: 0, tv_nsec: 10_000_000 });
        while Instant::now() < end {
            let mut sockets = [PollFd::new(&self.machine, PollFlags::IN)];
            if poll(&mut sockets, Some(&pause)).expect("poll") == 1 {
                let (length, _) = recv(&self.machine, &mut frame[..], RecvFlags::empty()).expect("a frame");
                self.take(&frame[..length]);
                if is_wanted(&frame[..length]) {
                    return Some(frame[..length].to_vec());
                }
            }
        }
        None
    }

    /// Waits for a frame that is so, up to a second.
    fn wait(&mut self, is_wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        let end = Instant::now() + Duration::from_secs(1);
        std::iter::repeat_with(|| self.look(&is_wanted)).take_while(|_| Instant::now() < end).find_map(|found| found)
    }

    /// Returns whether a VM's passt answers. It is asked again and again: a frame is lost while the VM has too much in flight.
    fn is_answered(&mut self, vm: Mac) -> bool {
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            self.send(&arp(vm, Ipv4Addr::new(10, 0, 2, 14 + vm.0[5]), GATEWAY));
            if self.look(&|frame| frame.starts_with(&vm.0) && frame[12..14] == [8, 6]).is_some() {
                return true;
            }
        }
        false
    }

    /// The number of file descriptors of a VM's passt.
    fn descriptors(&self, vm: usize) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.passts[vm])).map_or(0, Iterator::count)
    }

    fn is_running(id: u32) -> bool {
        std::path::Path::new(&format!("/proc/{id}")).exists()
    }
}

#[test]
fn a_hostile_vm_reaches_no_other_and_ends_nothing() {
    let mut rig = Rig::new();
    let [sink, flooded] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
    let [port, flooded_port] = [&sink, &flooded].map(|socket| socket.local_addr().expect("its address").port());
    assert!(rig.is_answered(A) && rig.is_answered(B));
    // What ended QEMU: a fragment whose offset is not 0, before any other of its packet.
    for offset in [1, 185, 0x1fff] {
        rig.send(&ipv4(A, (GATEWAY_MAC, GATEWAY), offset, 17, &udp((1, port), &[0x5a; 1000])));
    }
    // From more ports than a process may have descriptors.
    for source in 1..60_000_u16 {
        rig.send(&ipv4(A, (GATEWAY_MAC, GATEWAY), 0, 17, &udp((source, flooded_port), b"many")));
        if source % 500 == 0 {
            assert!(rig.is_answered(B), "after {source} ports");
        }
    }
    // To as many: newer passts have a socket for each.
    for destination in 20_000..30_000 {
        rig.send(&ipv4(A, (GATEWAY_MAC, GATEWAY), 0, 17, &udp((4000, destination), b"x")));
    }
    assert!(rig.is_answered(A) && rig.is_answered(B));
    let (hostile, other) = (rig.descriptors(0), rig.descriptors(1));
    assert!((udp::MOST..=4096).contains(&hostile) && other < 200, "{hostile} and {other} descriptors");
    // B sends by UDP still, also from a port that A has and no program of this host may have; it gets the answer, and A no fragment ever.
    sink.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let mut content = [0; 2000];
    // Several times: passt of 2025 empties a new socket after its first datagram was sent, and discards an answer that is that quick.
    let answer = (0..20).find_map(|_| {
        rig.send(&ipv4(B, (GATEWAY_MAC, GATEWAY), 0, 17, &udp((123, port), b"from b")));
        let (count, from) = sink.recv_from(&mut content).expect("B's packet");
        assert_eq!(&content[..count], b"from b", "no fragment has become a packet");
        sink.send_to(b"to b", from).expect("an answer");
        rig.wait(|frame| frame.starts_with(&B.0) && frame.ends_with(b"to b"))
    });
    let answer = answer.expect("B gets it");
    assert_eq!(answer[34..38], [port.to_be_bytes(), 123_u16.to_be_bytes()].concat());
    let pseudo = [&answer[26..34], &[0, 17], &answer[38..40], &answer[34..]].concat();
    let is_right = answer[40..42] == [0, 0] || matches!(checksum(&pseudo), [0, 0] | [0xff, 0xff]);
    assert!(is_right, "{answer:x?}");
    assert_eq!(flooded.recv(&mut content).expect("A's packets"), 4);
    // Random bytes in frames that passt gets, for a port of this test's.
    let mut random = 1_u32;
    for _ in 0..20_000 {
        let mut content = [0_u8; 60];
        for byte in &mut content {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (random >> 24) as u8;
        }
        content[2..4].copy_from_slice(&flooded_port.to_be_bytes());
        let protocol = [1, 6, 17][random as usize % 3];
        rig.send(&ipv4(A, (GATEWAY_MAC, GATEWAY), 0, protocol, &content));
    }
    assert!(rig.is_answered(B));
    assert!(rig.ends.try_recv().is_err(), "no passt has ended");
}

/// A question that the relay answers itself.
fn ping(from: Mac, length: usize) -> Vec<u8> {
    ipv4(from, (GATEWAY_MAC, GATEWAY), 0x4000, 1, &[&[8, 0, 0xf7, 0xff], &vec![0; length][..]].concat())
}

#[test]
fn a_vm_that_takes_no_frames_is_sent_few_and_delays_no_other() {
    let mut rig = Rig::new();
    let is_pong = |frame: &[u8]| frame.starts_with(&A.0) && frame[12..14] == [8, 0];
    rig.reports[0] = false;
    (0..100).for_each(|_| rig.send(&ping(A, 56)));
    let count = |rig: &mut Rig| std::iter::from_fn(|| rig.look(&is_pong)).count();
    assert_eq!(count(&mut rig), credit::WINDOW as usize);
    assert!(rig.is_answered(B));
    // It has them, and takes none: no time makes it be sent more.
    let mut report = [0; 64];
    let mut counts = Counts { come: credit::WINDOW, done: 0 };
    let length = credit::write([(A, counts)].into_iter(), &mut report);
    rig.send(&report[..length]);
    std::thread::sleep(window::PATIENCE + Duration::from_millis(200));
    assert_eq!(count(&mut rig), 0);
    counts.done = credit::WINDOW;
    let length = credit::write([(A, counts)].into_iter(), &mut report);
    rig.send(&report[..length]);
    assert_eq!(count(&mut rig), credit::WINDOW as usize);
    // A guest on the bare machine may send longer ones than the socket back has room for.
    rig.send(&ping(B, 65_480));
    assert!(rig.is_answered(B));
}

#[test]
fn a_dead_passt_ends_one_network_and_the_machine_all() {
    let mut rig = Rig::new();
    assert!(rig.is_answered(A) && rig.is_answered(B));
    let kill = |id: u32| {
        let pid = rustix::process::Pid::from_raw(id.cast_signed()).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    };
    kill(rig.passts[0]);
    let end = rig.ends.recv_timeout(Duration::from_secs(10)).expect("its end");
    assert_eq!(end, UplinkEnd { vm: "a".into(), why: "passt was ended by signal 9".into() });
    // What A sends is dropped; B goes on.
    for _ in 0..1000 {
        rig.send(&arp(A, Ipv4Addr::new(10, 0, 2, 15), GATEWAY));
    }
    assert!(rig.is_answered(B));
    // One that reads nothing holds up no other, whatever is sent to it.
    let stopped = rustix::process::Pid::from_raw(rig.passts[1].cast_signed()).expect("a process");
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).expect("stopped");
    for _ in 0..4000 {
        rig.send(&ipv4(B, (GATEWAY_MAC, GATEWAY), 0, 17, &udp((1, 9), &[0; 1400])));
    }
    let Rig { machine, passts, thread, .. } = rig;
    drop(machine);
    thread.join().expect("it ends with the machine");
    assert!(!passts.into_iter().any(Rig::is_running), "nothing is left");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let host = taken.local_addr().expect("its address").port();
    let forward = format!("{host}:80").parse().expect("a forward");
    let uplink = Uplink { vm: "a".into(), mac: Some(A), address: Ipv4Addr::new(10, 0, 2, 15), forwards: vec![forward] };
    let network = Network { uplinks: vec![uplink] };
    let Err(why) = Relay::start(&network, |_| {}) else { panic!("it has the port") };
    let (said, help) = (why.to_string(), miette::Diagnostic::help(&why).expect("help").to_string());
    assert!(said.contains("VM `a`") && said.contains(&host.to_string()), "{said}");
    assert!(help.contains("--forward"), "{help}");
}

#[test]
fn each_vm_has_ports_of_its_own_on_the_host() {
    let mut all = [Ports::default(), Ports::default()];
    let sent = |ports: &mut Ports, source: u16, content: &[u8]| {
        let mut packet = udp((source, 53), content);
        packet[6..8].copy_from_slice(&[0x12, 0x34]);
        let mut frame = ipv4(A, WORLD, 0, 17, &packet);
        assert!(ports.translate_outgoing(&mut frame));
        u16::from_be_bytes([frame[34], frame[35]])
    };
    let (a, b) = (sent(&mut all[0], 5000, b""), sent(&mut all[1], 5000, b""));
    assert_ne!(a, b);
    assert_eq!(sent(&mut all[0], 5000, b""), a, "it stays");
    // A port that is used stays, whatever others come.
    let others: std::collections::BTreeSet<u16> = (10_000..14_000)
        .map(|port| {
            assert_eq!(sent(&mut all[0], 5000, b""), a);
            sent(&mut all[0], port, b"")
        })
        .collect();
    assert_eq!(others.len(), udp::MOST - 1, "no more than that");
    assert!(!others.contains(&b));
    // Answers go to the port that has asked last, by either protocol; what nobody has asked for, nowhere.
    let answer = |to: u16| ipv4(A, (A, Ipv4Addr::new(10, 0, 2, 15)), 0, 17, &udp((53, to), b"x"));
    let mut frame = answer(a);
    assert!(all[0].translate_incoming(&mut frame));
    assert_eq!(frame, answer(5000), "an absent checksum stays absent");
    // One that is there stays right, whichever the port.
    for source in (0..=0xffff).step_by(111) {
        let mut packet = udp((source, 53), b"abc");
        let pseudo = [&[10, 0, 2, 15, 192, 0, 2, 1, 0, 17, 0, 11][..], &packet].concat();
        let sum = checksum(&pseudo);
        packet[6..8].copy_from_slice(&if sum == [0, 0] { [0xff; 2] } else { sum });
        let mut frame = ipv4(A, WORLD, 0, 17, &packet);
        assert!(all[1].translate_outgoing(&mut frame));
        let pseudo = [&frame[26..34], &[0, 17], &frame[38..40], &frame[34..]].concat();
        assert!(matches!(checksum(&pseudo), [0, 0] | [0xff, 0xff]) && frame[40..42] != [0, 0], "{frame:x?}");
    }
    assert!(!all[0].translate_incoming(&mut answer(b)) && !all[0].translate_incoming(&mut answer(5000)));
    // An error about a datagram.
    let error = |source: u16| {
        let about = ipv4(A, WORLD, 0, 17, &udp((source, 53), b""));
        let mut content = [&[3, 3, 0, 0, 0, 0, 0, 0], &about[14..]].concat();
        let sum = checksum(&content);
        content[2..4].copy_from_slice(&sum);
        ipv4(A, (A, Ipv4Addr::new(10, 0, 2, 15)), 0, 1, &content)
    };
    let mut frame = error(a);
    assert!(all[0].translate_incoming(&mut frame));
    assert_eq!(frame, error(5000));
    // DHCP is passt's own, and TCP has other ports.
    let tcp = ipv4(A, WORLD, 0, 6, &udp((5000, 53), &[0; 20]));
    for before in [ipv4(A, (A, Ipv4Addr::BROADCAST), 0, 17, &udp((67, 68), b"x")), tcp.clone(), arp(A, GATEWAY, NAMES)]
    {
        let mut frame = before.clone();
        assert!(all[0].translate_incoming(&mut frame) && frame == before, "{before:x?}");
    }
    for before in [ipv4(A, (ALL, Ipv4Addr::BROADCAST), 0, 17, &udp((68, 67), b"x")), tcp, arp(A, GATEWAY, NAMES)] {
        let mut frame = before.clone();
        assert!(all[0].translate_outgoing(&mut frame) && frame == before, "{before:x?}");
    }
    // Nothing is read or written behind a frame's end.
    for frame in [answer(a), error(a), ipv6(GATEWAY_MAC, 17, &udp((5000, 53), b"x"))] {
        for end in 0..frame.len() {
            let _ = all[0].translate_incoming(&mut frame[..end].to_vec());
            let _ = all[0].translate_outgoing(&mut frame[..end].to_vec());
        }
    }
}
