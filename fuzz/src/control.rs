//! Both ends of the control channel: what Gnomon makes of bytes that come, and what a command makes of what is answered.

use crate::fake::{Event, Hart, machine, printed, start_due, vm_config};
use abi::bundle::VmConfig;
use abi::control::debug::Debug;
use abi::control::frame::{Bad, Reader, decode, encode};
use abi::control::port::{Exchange, Wish};
use abi::control::save::Save;
use abi::control::{Answer, MOST_ANSWER_BYTES, Power, Request, Trace, Whose};
use abi::snapshot::bytes::Bytes;
use arbitrary::{Arbitrary, Result, Unstructured};
use hypervisor::backend::channel::{Channel, Line};
use hypervisor::control;
use hypervisor::device::offer::GuestTimer;
use hypervisor::gnomon::Gnomon;
use hypervisor::life::lifecycle;
use hypervisor::vm::vcpu::request;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Pieces that come, and what is sent; and the piece that is being read.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Both>>, Vec<u8>);

/// The most rounds of a repeated step.
const MOST_ROUNDS: usize = 16;

type Both = (VecDeque<Vec<u8>>, Vec<u8>);

impl Line for Wire {
    fn acknowledge(&mut self) {}

    fn piece(&mut self) -> Option<&[u8]> {
        if self.1.is_empty() {
            self.1 = self.0.lock().expect("one thread").0.pop_front()?;
        }
        Some(&self.1)
    }

    fn release(&mut self) {
        self.1.clear();
    }

    fn has_more(&mut self) -> bool {
        !self.1.is_empty() || !self.0.lock().expect("one thread").0.is_empty()
    }

    fn send(&mut self, frame: Vec<u8>) {
        self.0.lock().expect("one thread").1.extend(frame);
    }
}

fn request(u: &mut Unstructured<'_>) -> Result<Request> {
    let vm = u.int_in_range(0..=3)?;
    Ok(match u.int_in_range(0..=15)? {
        0 => Request::Hello,
        1 => Request::Vms,
        2 => Request::Counters(Whose::Host),
        3 => Request::Counters(Whose::Vm(vm)),
        4 => Request::Tunables,
        5 => Request::Set(if u.arbitrary()? { "reclaim=off".into() } else { String::arbitrary(u)? }),
        6 => Request::Pause(vm),
        7 => Request::Resume(vm),
        11 => Request::Values(Whose::Vm(vm)),
        8 => Request::Harts(u.arbitrary()?),
        9 => Request::Trace(Trace {
            ms: u.arbitrary()?,
            vm: Some(vm).filter(|vm| *vm != 0),
            hart: u.int_in_range(0..=3)?,
        }),
        12 => Request::Debug(vm, debug(u)?),
        14 => {
            let (connection, at, from) = (u.int_in_range(0..=2)?, u.arbitrary()?, u.arbitrary()?);
            let bytes = Bytes(vec![1; u.int_in_range(0..=4000)?]);
            let exchange = Exchange { connection, at, bytes, from, most: u.arbitrary()? };
            let wish = if u.arbitrary()? { Wish::Exchange(exchange) } else { Wish::Close(connection) };
            Request::Port(vm, u.int_in_range(0..=2)?, wish)
        }
        13 => {
            let id = u.int_in_range(0..=3)?;
            let at: u32 = if u.arbitrary()? { u.arbitrary()? } else { 0 };
            Request::Save(
                vm,
                match u.int_in_range(0..=4)? {
                    0 | 1 => Save::Begin,
                    2 => Save::State { id, from: at },
                    3 => Save::Pages { id, from: at.into() },
                    _ => Save::End(id),
                },
            )
        }
        15 => Request::Power(vm, *u.choose(&[Power::Off, Power::Restart, Power::Stay, Power::Reset])?),
        _ => Request::Stop(vm),
    })
}

/// A debugger's request, mostly about addresses in the guest's memory.
fn debug(u: &mut Unstructured<'_>) -> Result<Debug> {
    let vcpu = u.int_in_range(0..=2)?;
    let at = if u.ratio(1, 4)? { u.arbitrary()? } else { u.int_in_range(0x801f_fff0..=0x8020_2000)? };
    Ok(match u.int_in_range(0..=11)? {
        0 | 1 => Debug::Attach,
        2 => Debug::Detach,
        3 => Debug::Halt,
        4 => Debug::State,
        5 => Debug::Registers(vcpu),
        6 => Debug::SetRegister { vcpu, register: u.arbitrary()?, value: at },
        7 => Debug::Read { vcpu, at, bytes: u.arbitrary()? },
        8 => Debug::Write { vcpu, at, bytes: Vec::arbitrary(u)? },
        9 => Debug::Break { vcpu, at },
        10 => Debug::Unbreak(at),
        _ => {
            if u.arbitrary()? {
                Debug::Step(vcpu)
            } else {
                Debug::Continue
            }
        }
    })
}

/// The next bytes on the line: requests, and bytes that are none.
fn bytes(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..u.int_in_range(1..=3)? {
        let mut frame = if u.ratio(1, 4)? { Vec::arbitrary(u)? } else { encode(u.arbitrary()?, &request(u)?) };
        if u.ratio(1, 8)? {
            let at = u.choose_index(frame.len().max(1))?;
            frame.get_mut(at).into_iter().for_each(|byte| *byte ^= 1);
        }
        let kept = if u.ratio(1, 8)? { u.int_in_range(0..=frame.len())? } else { frame.len() };
        bytes.extend(&frame[..kept]);
    }
    Ok(bytes)
}

thread_local! {
    /// A machine without VMs. To make one takes milliseconds; what stays of an input are tunables, and what harts are asked to note.
    static BARE: RefCell<(Gnomon, Hart)> = RefCell::new(machine(Vec::new(), 2, GuestTimer::Sstc));
}

/// Requests of a client to Gnomon without a VM, or with two of which one waits for the other. Each request has one
/// answer; at the end nothing is lost.
pub fn requests(data: &[u8]) {
    let mut u = Unstructured::new(data);
    if u.ratio(1, 32) == Ok(true) {
        let vms = vec![
            VmConfig { ports: vec!["p".into()], ..vm_config("a", 1) },
            VmConfig { after: Some(0), ..vm_config("b", 1) },
        ];
        let (mut g, mut hart) = machine(vms, 2, GuestTimer::Sstc);
        start_due(&g, &mut hart);
        speak(&mut u, &mut g, &mut hart);
    } else {
        BARE.with_borrow_mut(|(g, hart)| speak(&mut u, g, hart));
    }
}

fn speak(u: &mut Unstructured<'_>, g: &mut Gnomon, hart: &mut Hart) {
    let wire = Wire::default();
    g.channel = Channel::new(Some(Box::new(wire.clone())));
    let mut loaded = None;
    for _ in 0..MOST_ROUNDS {
        if u.is_empty() {
            break;
        }
        let Ok(bytes) = bytes(u) else { break };
        let piece = u.int_in_range(1..=256).unwrap_or(1);
        wire.0.lock().expect("one thread").0.extend(bytes.chunks(piece).map(<[u8]>::to_vec));
        while !wire.0.lock().expect("one thread").0.is_empty() || g.channel.is_due() {
            hart.events.clear();
            control::attend(g, hart);
            assert!(!g.channel.is_due() || hart.events.contains(&Event::AttendSoon), "the hart does not attend again");
        }
        // What the hart does then.
        if u.arbitrary().unwrap_or(true) {
            while lifecycle::go_on(g, hart) {}
        }
        loaded = loaded.or_else(|| g.sched.take(0));
        if let Some(run) = loaded.take_if(|_| u.arbitrary().unwrap_or(true)) {
            let posted = run.shared.posted.swap(0, Ordering::SeqCst);
            if posted & (request::PARK | request::PAUSE) == 0 {
                g.sched.requeue(run, 0, 0);
                continue;
            }
            g.sched.stopped();
            if posted & request::PARK != 0 {
                lifecycle::park(g, run, hart);
            } else {
                lifecycle::put_aside(g, run, hart);
            }
        }
    }
    let sent = std::mem::take(&mut wire.0.lock().expect("one thread").1);
    let (mut reader, mut rest) = (Reader::new(MOST_ANSWER_BYTES), sent.as_slice());
    while let Some(frame) = reader.next(&mut rest) {
        let _: (u32, Answer) = decode(&frame.expect("no longer than is said")).expect("an answer");
    }
    printed();
}

/// Answers of a machine: the same frames are found in pieces of any size, and an answer that is decoded and encoded
/// again is the same.
pub fn answers(data: &[u8]) {
    let find = |size: usize| {
        let mut reader = Reader::new(1000);
        let mut found = Vec::new();
        for mut piece in data.chunks(size) {
            found.extend(std::iter::from_fn(|| reader.next(&mut piece)));
        }
        found
    };
    let frames = find(data.len().max(1));
    assert_eq!(frames, find(1 + data.first().map_or(0, |byte| usize::from(*byte))));
    for frame in frames.into_iter().flatten() {
        match decode::<Answer>(&frame) {
            Ok((number, answer)) => {
                let again = encode(number, &answer);
                let frame = Reader::new(again.len()).next(&mut again.as_slice()).expect("whole");
                assert_eq!(decode(&frame.expect("no longer")), Ok((number, answer)));
            }
            Err(Bad::TooLong) => panic!("the reader has said so"),
            Err(_) => {}
        }
    }
    // As if the sum were right: the fuzzer does not find one.
    let _ = postcard::from_bytes::<Answer>(data);
    let _ = postcard::from_bytes::<Request>(data);
}
