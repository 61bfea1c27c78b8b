//! Tests of the control channel's end in Gnomon: its answers, and its handling of malformed frames.

use crate::fake::{self, Hart, World, machine, park, start_due, vm_config, world};
use abi::bundle::VmConfig;
use abi::control::frame::{Reader, decode, encode, encode_as};
use abi::control::{
    Answer, Event, Events, HartTimes, MOST_ANSWER_BYTES, MOST_EVENTS, MOST_MS, MOST_OUTPUT, MOST_TYPED, Request, Trace,
    VmState, Whose,
};
use abi::record::EndReason;
use hypervisor::backend::channel::{Channel, Line};
use hypervisor::control;
use hypervisor::device::offer::GuestTimer;
use hypervisor::gnomon::Gnomon;
use hypervisor::life::lifecycle;
use hypervisor::life::lifecycle::put_aside;
use hypervisor::measure::probe::Doing;
use hypervisor::vm::vcpu::request;
use hypervisor::vm::{Departure, Phase};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A line that has been given pieces, and what was sent by it; and the piece that is being read.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Both>>, Vec<u8>);

type Both = (VecDeque<Vec<u8>>, Vec<u8>);

impl Line for Wire {
    fn acknowledge(&mut self) {}

    fn piece(&mut self) -> Option<&[u8]> {
        if self.1.is_empty() {
            self.1 = self.0.lock().unwrap().0.pop_front()?;
        }
        Some(&self.1)
    }

    fn release(&mut self) {
        self.1.clear();
    }

    fn has_more(&mut self) -> bool {
        !self.1.is_empty() || !self.0.lock().unwrap().0.is_empty()
    }

    fn send(&mut self, frame: Vec<u8>) {
        self.0.lock().unwrap().1.extend(frame);
    }
}

impl Wire {
    /// Lets that come, in pieces of a size.
    fn comes(&self, bytes: &[u8], piece: usize) {
        self.0.lock().unwrap().0.extend(bytes.chunks(piece).map(<[u8]>::to_vec));
    }

    /// Returns the answers since the last time.
    fn answers(&self) -> Vec<(u32, Answer)> {
        let bytes = std::mem::take(&mut self.0.lock().unwrap().1);
        let (mut reader, mut rest) = (Reader::new(MOST_ANSWER_BYTES), bytes.as_slice());
        let frames = std::iter::from_fn(|| reader.next(&mut rest));
        frames.map(|frame| decode(&frame.expect("no longer than is said")).expect("an answer")).collect()
    }
}

fn with_line(g: &mut Gnomon) -> Wire {
    let wire = Wire::default();
    g.channel = Channel::new(Some(Box::new(wire.clone())));
    wire
}

/// Asks by the line.
fn ask(g: &Gnomon, hart: &mut Hart, wire: &Wire, request: &Request) -> Answer {
    wire.comes(&encode(9, request), 64);
    while wire.clone().has_more() || g.channel.is_due() {
        hart.events.clear();
        control::attend(g, hart);
        assert_eq!(g.channel.is_due(), hart.events.contains(&fake::Event::AttendSoon));
    }
    let mut answers = wire.answers();
    assert_eq!((answers.len(), answers[0].0), (1, 9));
    answers.remove(0).1
}

fn states(g: &Gnomon, hart: &mut Hart, wire: &Wire) -> Vec<(String, VmState)> {
    let Answer::Vms(vms) = ask(g, hart, wire, &Request::Vms) else { panic!("VMs") };
    vms.vms.into_iter().map(|vm| (vm.name, vm.state)).collect()
}

fn is_refused(answer: &Answer, part: &str) -> bool {
    matches!(answer, Answer::Refused(why) if why.contains(part))
}

#[test]
fn vms_are_told_of_through_their_lives() {
    let after = VmConfig { after: Some(0), ..vm_config("second", 2) };
    let (mut g, mut hart) = machine(vec![vm_config("first", 1), after], 2, GuestTimer::Sstc);
    let wire = with_line(&mut g);
    let named = |first, second| vec![("first".to_owned(), first), ("second".to_owned(), second)];
    assert_eq!(states(&g, &mut hart, &wire), named(VmState::Waiting, VmState::Waiting));
    lifecycle::start_due(&g, &mut hart);
    assert_eq!(states(&g, &mut hart, &wire), named(VmState::Starting, VmState::Waiting));
    start_due(&g, &mut hart);
    assert_eq!(states(&g, &mut hart, &wire), named(VmState::Running, VmState::Waiting));
    let Answer::Vms(vms) = ask(&g, &mut hart, &wire, &Request::Vms) else { panic!("VMs") };
    assert_eq!((vms.vms[0].since, vms.vms[1].since, vms.now), (Some(1000), None, 1000));
    // The one that waits can be stopped as well: it never starts.
    assert_eq!(ask(&g, &mut hart, &wire, &Request::Stop(1)), Answer::Done);
    assert_eq!(states(&g, &mut hart, &wire), named(VmState::Running, VmState::Ending));
    assert_eq!(ask(&g, &mut hart, &wire, &Request::Stop(0)), Answer::Done);
    while lifecycle::go_on(&g, &mut hart) {}
    assert_eq!(states(&g, &mut hart, &wire), []);
    assert!(g.is_over());
    for request in [Request::Stop(0), Request::Pause(1), Request::Resume(0)] {
        assert!(is_refused(&ask(&g, &mut hart, &wire, &request), "has ended"), "{request:?}");
    }
    assert!(is_refused(&ask(&g, &mut hart, &wire, &Request::Pause(7)), "never was"));
    let Answer::Counters(counters) = ask(&g, &mut hart, &wire, &Request::Counters(Whose::Vm(0))) else {
        panic!("what is told of it stays")
    };
    assert!(counters.is_sorted() && counters.iter().any(|(name, _)| name == "exits.total"));
}

/// Makes a vCPU of a VM that is paused.
fn paused() -> (World, Wire) {
    let mut w = world(1, GuestTimer::Sstc);
    let wire = with_line(&mut w.g);
    assert_eq!(ask(&w.g, &mut w.hart, &wire, &Request::Pause(0)), Answer::Done);
    assert_ne!(w.run.shared.posted.load(Ordering::SeqCst) & request::PAUSE, 0, "it is to leave its hart");
    assert!(is_refused(&ask(&w.g, &mut w.hart, &wire, &Request::Pause(0)), "already"));
    (w, wire)
}

#[test]
fn a_vm_is_paused_and_goes_on() {
    let (World { g, mut hart, run }, wire) = paused();
    g.sched.stopped();
    put_aside(&g, run, &mut hart);
    assert_eq!(states(&g, &mut hart, &wire)[0].1, VmState::Paused);
    assert!(g.sched.take(0).is_none(), "nothing of it runs");
    assert_eq!(ask(&g, &mut hart, &wire, &Request::Resume(0)), Answer::Done);
    assert!(is_refused(&ask(&g, &mut hart, &wire, &Request::Resume(0)), "not paused"));
    assert!(g.sched.take(0).is_some());
}

#[test]
fn a_paused_vm_can_be_stopped_before_and_after_its_vcpus_have_left() {
    for has_left in [false, true] {
        let (World { g, mut hart, run }, wire) = paused();
        g.sched.stopped();
        let run = if has_left {
            put_aside(&g, run, &mut hart);
            None
        } else {
            Some(run)
        };
        assert_eq!(ask(&g, &mut hart, &wire, &Request::Stop(0)), Answer::Done);
        run.into_iter().for_each(|run| park(&g, run, &mut hart));
        while lifecycle::go_on(&g, &mut hart) {}
        assert!(g.is_over(), "{has_left}");
        assert_eq!(g.frames().free_count(), g.frames().total_count());
    }
}

#[test]
fn a_vm_that_starts_over_is_not_paused_and_can_be_stopped() {
    let mut w = world(1, GuestTimer::Sstc);
    let wire = with_line(&mut w.g);
    let World { g, mut hart, run } = w;
    let vm = run.vm.clone();
    lifecycle::depart(&g, &vm, Departure::Reboot, &mut hart);
    g.sched.stopped();
    lifecycle::park(&g, run, &mut hart);
    assert!(is_refused(&ask(&g, &mut hart, &wire, &Request::Pause(0)), "starting"));
    assert_eq!(ask(&g, &mut hart, &wire, &Request::Stop(0)), Answer::Done);
    while lifecycle::go_on(&g, &mut hart) {}
    assert_eq!(*vm.phase.lock(), Phase::Ended);
    assert!(g.is_over());
}

#[test]
fn tunables_are_told_and_set() {
    let mut w = world(1, GuestTimer::Sstc);
    let wire = with_line(&mut w.g);
    let set = |w: &mut World, text: &str| ask(&w.g, &mut w.hart, &wire, &Request::Set(text.into()));
    assert_eq!(set(&mut w, "read-ahead=3"), Answer::Done);
    assert!(is_refused(&set(&mut w, "read-ahead=99"), "0 to 15"));
    assert!(is_refused(&set(&mut w, "nothing=1"), "no tunable `nothing`"));
    assert!(is_refused(&set(&mut w, "\u{1e}\n"), "is not a setting"));
    let Answer::Tunables(all) = ask(&w.g, &mut w.hart, &wire, &Request::Tunables) else { panic!("tunables") };
    assert!(all.contains(&("read-ahead".into(), "3".into())) && all.contains(&("reclaim".into(), "on".into())));
}

#[test]
fn harts_are_asked_and_kicked_once() {
    let mut w = world(1, GuestTimer::Sstc);
    let wire = with_line(&mut w.g);
    let harts = |w: &mut World| ask(&w.g, &mut w.hart, &wire, &Request::Harts(20));
    assert_eq!(harts(&mut w), Answer::Harts(vec![HartTimes::default(); 2]));
    assert!([0, 1].iter().all(|hart| w.hart.events.contains(&fake::Event::Ipi(*hart))), "both are to look");
    assert!(w.g.asked.is_on(w.hart.time + 199_999) && !w.g.asked.is_on(w.hart.time + 200_000), "20 ms");
    // As the harts do then.
    w.g.harts[0].probe.begin(Doing::Guest, w.hart.time, w.g.asked.until());
    w.hart.time += 50;
    let expected = [HartTimes { guest: 50, ..HartTimes::default() }, HartTimes::default()];
    assert_eq!(harts(&mut w), Answer::Harts(expected.into()));
    assert!(!w.hart.events.contains(&fake::Event::Ipi(0)) && w.hart.events.contains(&fake::Event::Ipi(1)));
    // A hart that slept while its time lapsed is to take up the next one.
    w.hart.time += 1_000_000;
    assert!(matches!(harts(&mut w), Answer::Harts(times) if times[0].guest == 200_000));
    assert!(w.hart.events.contains(&fake::Event::Ipi(0)), "it is kicked");
    // The time that a request asks for is bounded.
    let _ = ask(&w.g, &mut w.hart, &wire, &Request::Harts(u32::MAX));
    assert!(!w.g.asked.is_on(w.hart.time + u64::from(MOST_MS) * 10_000));
}

#[test]
fn exits_are_given_out_once_and_in_portions() {
    let mut w = world(1, GuestTimer::Sstc);
    let wire = with_line(&mut w.g);
    let trace =
        |w: &mut World, hart| ask(&w.g, &mut w.hart, &wire, &Request::Trace(Trace { ms: 10, vm: Some(4), hart }));
    assert!(is_refused(&trace(&mut w, 2), "no such hart"));
    let none = Events { timebase: 10_000_000, events: Vec::new(), lost: 0 };
    assert_eq!(trace(&mut w, 1), Answer::Events(none.clone()));
    let now = w.hart.time;
    assert!(
        w.g.asked.wants_exits(4, now) && !w.g.asked.wants_exits(0, now) && !w.g.asked.wants_exits(4, now + 100_000)
    );
    let event = |at| Event { at, vm: 4, ..Event::default() };
    (0..MOST_EVENTS as u64 + 2).for_each(|at| w.g.harts[1].probe.note(event(at)));
    let Answer::Events(first) = trace(&mut w, 1) else { panic!("exits") };
    assert_eq!((first.events.len(), first.events[0], first.lost), (MOST_EVENTS, event(0), 0));
    let rest = vec![event(MOST_EVENTS as u64), event(MOST_EVENTS as u64 + 1)];
    assert_eq!(trace(&mut w, 1), Answer::Events(Events { events: rest, ..none.clone() }));
    assert_eq!(trace(&mut w, 1), Answer::Events(none));
}

#[test]
fn the_longest_answers_fit() {
    let vms = (0..64).map(|n| vm_config(&format!("a-rather-long-name-of-a-vm-{n:04}"), 1)).collect();
    let (mut g, mut hart) = machine(vms, 2, GuestTimer::Sstc);
    let wire = with_line(&mut g);
    start_due(&g, &mut hart);
    assert_eq!(states(&g, &mut hart, &wire).len(), 64);
    for whose in [Whose::Host, Whose::Vm(63)] {
        assert!(
            matches!(ask(&g, &mut hart, &wire, &Request::Counters(whose)), Answer::Counters(all) if all.len() > 20)
        );
    }
    let long = vm_config(&"x".repeat(MOST_ANSWER_BYTES), 1);
    let (mut g, mut hart) = machine(vec![long], 2, GuestTimer::Sstc);
    let wire = with_line(&mut g);
    assert!(is_refused(&ask(&g, &mut hart, &wire, &Request::Vms), "too long"));
}

#[test]
fn what_is_no_request_is_passed_over_or_refused() {
    let mut w = world(1, GuestTimer::Sstc);
    let wire = with_line(&mut w.g);
    let mut bytes = vec![0xff; 5000];
    bytes.extend(encode(1, &Request::Hello));
    bytes.extend(&encode(2, &Request::Vms)[..7]);
    bytes.extend(encode(3, &123_u8));
    bytes.extend(encode_as(88, 4, &Request::Hello));
    bytes.extend([0; 300]);
    bytes.extend(encode(5, &Request::Hello));
    wire.comes(&bytes, 256);
    while wire.clone().has_more() || w.g.channel.is_due() {
        w.hart.events.clear();
        control::attend(&w.g, &mut w.hart);
        assert_eq!(w.g.channel.is_due(), w.hart.events.contains(&fake::Event::AttendSoon), "the hart attends again");
    }
    let answers = wire.answers();
    // The first is the end of what is no frame: a delimiter stands in front of each.
    assert_eq!(answers.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 3, 4, 5]);
    assert!(is_refused(&answers[1].1, "no such request") && is_refused(&answers[2].1, "another version"));
}

#[test]
fn one_request_is_answered_at_a_time_and_the_rest_soon() {
    let mut w = world(1, GuestTimer::Sstc);
    let wire = with_line(&mut w.g);
    let flood: Vec<u8> = (0..8).flat_map(|number| encode(number, &Request::Hello)).collect();
    wire.comes(&flood, 256);
    for number in 0..8 {
        w.hart.events.clear();
        control::attend(&w.g, &mut w.hart);
        assert_eq!(wire.answers().iter().map(|(number, _)| *number).collect::<Vec<_>>(), [number]);
        assert_eq!(w.hart.events.contains(&fake::Event::AttendSoon), number < 7, "{number}");
        assert_eq!(w.g.channel.is_due(), number < 7);
    }
    control::go_on(&w.g, &mut w.hart);
    assert_eq!(wire.answers(), []);
}

#[test]
fn a_console_is_read_and_typed_on() {
    let World { mut g, run, mut hart } = world(1, GuestTimer::Sstc);
    let wire = with_line(&mut g);
    let vm = run.vm.clone();
    let number = vm.handle.number;
    let output = |g: &Gnomon, hart: &mut Hart, from| match ask(g, hart, &wire, &Request::Output { vm: number, from }) {
        Answer::Output(output) => (output.at, String::from_utf8(output.bytes).expect("text"), output.is_over),
        other => panic!("{other:?}"),
    };
    assert_eq!(output(&g, &mut hart, None), (0, String::new(), false));
    assert_eq!(g.console.write(vm.slot(), b"one\ntwo").0, 7);
    assert_eq!(output(&g, &mut hart, None), (0, "one\ntwo".into(), false));
    assert_eq!(output(&g, &mut hart, Some(4)), (4, "two".into(), false));
    // Two readers see the same, and a request for output that never was gets nothing.
    assert_eq!(output(&g, &mut hart, Some(4)), (4, "two".into(), false));
    assert_eq!(output(&g, &mut hart, Some(u64::MAX)), (7, String::new(), false));
    // A flood: what is kept is the end of it, and an answer has so much of that.
    for _ in 0..500 {
        while g.console.write(vm.slot(), &[b'x'; 100]).0 == 0 {
            let _ = g.console.print();
        }
    }
    let (at, text, _) = output(&g, &mut hart, Some(7));
    assert!(at > 7 && text.len() == MOST_OUTPUT && text.bytes().all(|byte| byte == b'x'), "{at}, {}", text.len());
    // As much as there is room for is taken.
    let mut typed = 0;
    let type_in =
        |g: &Gnomon, hart: &mut Hart| match ask(g, hart, &wire, &Request::Type(number, vec![b'k'; MOST_TYPED])) {
            Answer::Taken(count) => count as usize,
            other => panic!("{other:?}"),
        };
    loop {
        match type_in(&g, &mut hart) {
            0 => break,
            count => typed += count,
        }
    }
    assert_eq!(vm.devices.uart.lock().received().filter(|byte| *byte == b'k').count(), typed);
    assert!(typed >= MOST_TYPED && !vm.devices.uart.lock().has_room());
    vm.devices.uart.lock().drop_received(3);
    assert_eq!((type_in(&g, &mut hart), type_in(&g, &mut hart)), (3, 0));
    // Its last words, and then no more typing.
    let before = output(&g, &mut hart, Some(u64::MAX)).0;
    lifecycle::depart(&g, &vm, Departure::End(EndReason::Poweroff), &mut hart);
    g.console.leave(vm.slot(), b"bye\n");
    park(&g, run, &mut hart);
    let (at, text, is_over) = output(&g, &mut hart, Some(before));
    assert!(at == before && text.starts_with("bye\n") && is_over, "{text}");
    let refused = |answer| matches!(answer, Answer::Refused(why) if why == "it has ended");
    assert!(refused(ask(&g, &mut hart, &wire, &Request::Type(number, vec![1]))));
    let stranger = ask(&g, &mut hart, &wire, &Request::Output { vm: 99, from: None });
    assert!(matches!(stranger, Answer::Refused(_)), "{stranger:?}");
    fake::printed();
}
