//! The control channel: what the commands ask a Gnomon that runs, and what it answers.
//!
//! Each message is a [`frame`]. A client numbers its requests, and each is answered by one message with the same
//! number. Nothing else is sent, so without a client the channel costs nothing. `docs/control.md` says more.

pub mod debug;
pub mod frame;
pub mod port;
pub mod save;

use crate::bundle::MmuMode;
use crate::snapshot::bytes::Bytes;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Version of all that is said. It stands in each frame, where every version has it.
pub const VERSION: u16 = 8;
/// The longest request, in bytes of a frame or of a long message: some pages of RAM.
pub const MOST_REQUEST_BYTES: usize = 68 << 10;
/// The longest answer, in bytes of a frame or of a long message. A client with one request in flight never has more to read.
pub const MOST_ANSWER_BYTES: usize = 68 << 10;

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Asks for the machine's description: [`Answer::Hello`].
    Hello,
    /// All VMs that there are, and those that are to be: [`Answer::Vms`].
    Vms,
    /// Counters: [`Answer::Counters`].
    Counters(Whose),
    /// Asks for the counters without their names, for a client that knows them from before: [`Answer::Values`].
    Values(Whose),
    /// All tunables: [`Answer::Tunables`].
    Tunables,
    /// Set a tunable, `name=value` ([`crate::tunable`]): [`Answer::Done`].
    Set(String),
    /// Pause the VM of that number: [`Answer::Done`] when its vCPUs are asked to leave their harts.
    Pause(u64),
    /// Let it go on: [`Answer::Done`].
    Resume(u64),
    /// End it: [`Answer::Done`] when its end has begun.
    Stop(u64),
    /// Note for so many milliseconds how long each hart does what: [`Answer::Harts`], with what was noted before. No longer than
    /// [`MOST_MS`].
    Harts(u32),
    /// Note exits: [`Answer::Events`], with some that were noted before.
    Trace(Trace),
    /// A debugger's request about the VM of that number.
    Debug(u64, debug::Debug),
    /// A snapshot's request about the VM of that number.
    Save(u64, save::Save),
    /// A request about a VM that arrives, the one of that number.
    Load(u64, save::Load),
    /// Asks for output of the VM of that number: [`Answer::Output`].
    Output {
        /// The VM.
        vm: u64,
        /// The first byte that is wanted, by its place among all that it has printed; `None`: the last screenful that is kept.
        from: Option<u64>,
    },
    /// Type something on the console of the VM of that number, up to [`MOST_TYPED`] bytes: [`Answer::Taken`].
    Type(u64, Vec<u8>),
    /// A request for the program that is connected to a port of the VM of that number; the second number is the port's
    /// among the VM's, from 0.
    Port(u64, u32, port::Wish),
    /// A wish about the power of the VM of that number: [`Answer::Done`] when its guest was asked, or what needs no guest has begun;
    /// [`Answer::Later`] if its guest does not listen yet.
    Power(u64, Power),
}

/// A wish about a VM's power.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Power {
    /// Ask the guest to shut down.
    Off,
    /// Ask the guest to shut down; when it has, the VM starts over.
    Restart,
    /// Withdraw that: the VM does not start over when its guest powers off.
    Stay,
    /// Reset the VM at once.
    Reset,
}

/// The longest that harts note something without being asked again, in milliseconds.
pub const MOST_MS: u32 = 10_000;
/// Most exits in an answer.
pub const MOST_EVENTS: usize = 96;

/// Most bytes that are typed at a time.
pub const MOST_TYPED: usize = 128;
/// Most bytes of output in an answer.
pub const MOST_OUTPUT: usize = 8 << 10;

/// Which exits are to be noted, and which of those that were are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trace {
    /// For how long they are noted, in milliseconds; no longer than [`MOST_MS`].
    pub ms: u32,
    /// Those of the VM of that number, or of all.
    pub vm: Option<u64>,
    /// The hart whose oldest ones are taken: none is given out twice.
    pub hart: u32,
}

/// The owner of the counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Whose {
    /// Gnomon's own.
    Host,
    /// Those of the VM of that number, whether it is there or gone.
    Vm(u64),
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// A refusal, with its reason.
    Refused(String),
    /// The request was carried out.
    Done,
    /// The machine's description.
    Hello(Hello),
    /// The VMs, in the order of their numbers.
    Vms(Vms),
    /// Counters, in the order of their names.
    Counters(Vec<(String, u64)>),
    /// The counters alone, in the same order. Of one VM, and of Gnomon itself, the names stay the same.
    Values(Vec<u64>),
    /// Tunables and their values, as people write them.
    Tunables(Vec<(String, String)>),
    /// The times of harts, by their numbers.
    Harts(Vec<HartTimes>),
    /// Exits.
    Events(Events),
    /// The request has to wait for milliseconds, and was not carried out. The same request, sent again, continues it.
    Later,
    /// The state of a VM under a debugger.
    Stopped(debug::Stopped),
    /// A vCPU's registers.
    Registers(Box<debug::Registers>),
    /// Bytes of a VM's memory.
    Memory(Vec<u8>),
    /// The snapshot of a VM is begun.
    Saving(save::Saving),
    /// A part of a VM's state.
    State(Bytes),
    /// Some pages of a VM's RAM.
    Pages(save::Pages),
    /// Pages that have changed.
    Changed(save::Changed),
    /// Output of a VM.
    Output(Output),
    /// The number of typed bytes, from the first on, that the VM had room for.
    Taken(u32),
    /// The bytes that a port's guest has sent, and the number that it has taken.
    Heard(port::Heard),
}

/// Output of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Output {
    /// The place of the first byte among all that it has printed. If it is a later one than was asked for, those between are lost.
    pub at: u64,
    /// The bytes, up to [`MOST_OUTPUT`].
    pub bytes: Vec<u8>,
    /// True if the VM has ended, and this is the last of it.
    pub is_over: bool,
}

/// The times of a hart by activity, in ticks, during the spans in which recording was requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HartTimes {
    /// The time in guests.
    pub guest: u64,
    /// The time in Gnomon.
    pub host: u64,
    /// The time without work.
    pub idle: u64,
}

/// Exits that a hart has noted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Events {
    /// Ticks in a second.
    pub timebase: u64,
    /// The exits, oldest first: up to [`MOST_EVENTS`].
    pub events: Vec<Event>,
    /// The number of earlier events that were lost, since they were not fetched in time.
    pub lost: u64,
}

/// An exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Event {
    /// The time of the exit, in ticks.
    pub at: u64,
    /// The time until the hart entered a guest again, in ticks.
    pub took: u64,
    /// The part of that in which the hart was idle.
    pub idle: u64,
    /// The VM's number.
    pub vm: u64,
    /// The vCPU.
    pub vcpu: u32,
    /// The cause, as the hart's register has it.
    pub cause: u64,
    /// The instruction's address.
    pub pc: u64,
    /// The trap value: mostly the virtual address.
    pub tval: u64,
    /// Of a guest-page fault, the guest physical address, of an SBI call the extension; of an interrupt [`FOR_CONTROL`] if the control
    /// channel was its reason; else 0.
    pub detail: u64,
}

/// [`Event::detail`] of an interrupt by the control channel, such as a trace's own requests make.
pub const FOR_CONTROL: u64 = 1;

/// The machine's description.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Gnomon's version.
    pub version: String,
    /// Harts in use.
    pub harts: u32,
}

/// The VMs at a time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Vms {
    /// The time since the machine was started, in ticks.
    pub now: u64,
    /// Ticks in a second.
    pub timebase: u64,
    /// The VMs.
    pub vms: Vec<VmInfo>,
    /// By the name of a VM, devices of it whose host's side has ended. The run adds them; the machine knows of none.
    pub lost: Vec<(String, String)>,
    /// Ports that programs of the host are connected to. The run adds them as well.
    pub ports: Vec<PortUse>,
    /// Disks that VMs write to, each VM's in their order. The run adds them as well.
    pub disks: Vec<DiskUse>,
}

/// A file of the host that is a disk which a VM writes to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskUse {
    /// The VM's number.
    pub vm: u64,
    /// The file's path.
    pub file: String,
    /// Its device and inode.
    pub identity: (u64, u64),
    /// The reason why the run cannot give it to another run, if it cannot.
    pub obstacle: Option<String>,
}

/// A port that a program of the host is connected to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortUse {
    /// The VM's number.
    pub vm: u64,
    /// The port's name.
    pub port: String,
    /// The process id of the program on the host; 0 if it is not known.
    pub process: u32,
    /// True if a program in the guest has the port open; `None` if it is not known yet.
    pub is_open: Option<bool>,
}

/// The description of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmInfo {
    /// Its number, which no other VM of the run ever has.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// The VM's state.
    pub state: VmState,
    /// The mode of memory virtualization; `None`: it is chosen when the VM is created.
    pub mode: Option<MmuMode>,
    /// The number of vCPUs.
    pub vcpus: u32,
    /// Its RAM, in bytes.
    pub memory_bytes: u64,
    /// The memory that the VM has frames for, in bytes.
    pub resident_bytes: u64,
    /// The time of the VM's last start, in ticks; `None` if it has not started.
    pub since: Option<u64>,
}

/// The state of a VM in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VmState {
    /// The VM starts when another one has ended.
    Waiting,
    /// The VM is being started, for the first time or after a reset.
    Starting,
    /// The VM arrives from another machine, and has not started here.
    Arriving,
    /// The VM runs.
    Running,
    /// The VM is paused.
    Paused,
    /// The VM is paused, and was given to another machine.
    GivenAway,
    /// The VM is being stopped.
    Ending,
    /// The VM was destroyed.
    Ended,
}

impl VmState {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Starting => "starting",
            Self::Arriving => "arriving",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::GivenAway => "given away",
            Self::Ending => "ending",
            Self::Ended => "ended",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::frame::{Bad, Frame, Reader, decode, encode};
    use super::*;
    use alloc::vec;

    fn answers() -> Vec<Answer> {
        let vm = VmInfo {
            number: 3,
            name: "linux".into(),
            state: VmState::Paused,
            mode: Some(MmuMode::Lazy),
            vcpus: 4,
            memory_bytes: 1 << 30,
            resident_bytes: 0,
            since: Some(77),
        };
        vec![
            Answer::Done,
            Answer::Refused("why".into()),
            Answer::Hello(Hello { version: "0.1".into(), harts: 64 }),
            Answer::Vms(Vms {
                now: u64::MAX,
                timebase: 10_000_000,
                vms: vec![vm; 64],
                lost: Vec::new(),
                ports: Vec::new(),
                disks: Vec::new(),
            }),
            Answer::Counters(vec![("exits.total".into(), 0), ("zeroes".into(), u64::MAX)]),
            Answer::Values(vec![0, 300, u64::MAX]),
            Answer::Tunables(vec![("reclaim".into(), "on".into())]),
            Answer::Harts(vec![HartTimes { guest: 1, host: 2, idle: u64::MAX }; 64]),
            Answer::Events(Events { timebase: 1, events: vec![Event { at: 5, ..Event::default() }; 2], lost: 3 }),
            Answer::Later,
            Answer::Stopped(debug::Stopped::AtBreak(31)),
            Answer::Registers(Box::new(debug::Registers { pc: u64::MAX, is_supervisor: true, ..Default::default() })),
            Answer::Memory(vec![0; debug::MOST_READ as usize]),
            Answer::Saving(save::Saving { id: 1, state_bytes: 70_000, pages: 1 << 20, was_running: true }),
            Answer::State(Bytes(vec![7; save::MOST_STATE])),
            Answer::Pages(save::Pages {
                next: u64::MAX,
                first: vec![u64::MAX; save::MOST_PAGES],
                bytes: Bytes(vec![0xff; save::MOST_PAGES * 4096]),
            }),
            Answer::Changed(save::Changed {
                next: u64::MAX,
                changed: vec![(u64::MAX, u64::MAX); save::MOST_RUNS],
                zero: vec![(1, u64::MAX); save::MOST_RUNS],
            }),
            Answer::Output(Output { at: u64::MAX, bytes: vec![0; MOST_OUTPUT], is_over: true }),
            Answer::Taken(128),
            Answer::Heard(port::Heard {
                taken: u64::MAX,
                waiting: u32::MAX,
                bytes: Bytes(vec![0xff; port::MOST_KEPT]),
                is_open: true,
            }),
        ]
    }

    fn frames(reader: &mut Reader, mut bytes: &[u8]) -> Vec<Result<Frame, Bad>> {
        core::iter::from_fn(|| reader.next(&mut bytes)).collect()
    }

    #[test]
    fn messages_come_back_from_pieces_of_any_size() {
        let all: Vec<u8> = answers().iter().zip(7..).flat_map(|(answer, number)| encode(number, answer)).collect();
        for size in [1, 2, 3, 100, all.len()] {
            let mut reader = Reader::new(MOST_ANSWER_BYTES);
            let found: Vec<_> = all.chunks(size).flat_map(|piece| frames(&mut reader, piece)).collect();
            let found: Vec<(u32, Answer)> =
                found.into_iter().map(|frame| decode(&frame.expect("whole")).expect("an answer")).collect();
            assert_eq!(found, (7..).zip(answers()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_frame_that_is_damaged_costs_itself_only() {
        let long =
            save::Pages { next: 7, first: vec![5], bytes: Bytes((0..1200).map(|at| (at % 255) as u8).collect()) };
        let long = encode(1, &Request::Load(0, save::Load::Pages(long)));
        damage(&encode(1, &Request::Set("reclaim=off".into())), 0..usize::MAX);
        // Its head and its trailer.
        let head = long.iter().skip(1).position(|byte| *byte == 0).expect("the end of its head") + 2;
        damage(&long, 0..head);
        damage(&long, long.len() - 8..usize::MAX);
        for lost in [1, 7, 8, 9] {
            let (front, back) = long.split_at(long.len() - 500);
            let mut bytes = [front, &back[lost..], &encode(2, &Request::Vms), &encode(3, &Request::Vms)].concat();
            bytes.extend([0; 8]);
            let mut read = frames(&mut Reader::new(MOST_REQUEST_BYTES), &bytes);
            assert_eq!(decode(&read.pop().unwrap().unwrap()), Ok((3, Request::Vms)));
            assert_eq!(read[0], Err(Bad::Garbled));
        }
    }

    /// Damages each bit of these bytes of a frame, and looks for the frame behind it.
    fn damage(first: &[u8], bytes: core::ops::Range<usize>) {
        let second = encode(2, &Request::Vms);
        let mut lost = 0;
        let damaged = bytes.start..bytes.end.min(first.len());
        for at in damaged.clone() {
            for bit in 0..8 {
                let mut bytes = [first, &second].concat();
                bytes[at] ^= 1 << bit;
                let mut reader = Reader::new(MOST_REQUEST_BYTES);
                let mut read: Vec<_> = frames(&mut reader, &bytes)
                    .into_iter()
                    .map(|frame| frame.and_then(|frame| decode::<Request>(&frame)))
                    .collect();
                assert_eq!(read.pop(), Some(Ok((2, Request::Vms))), "byte {at}, bit {bit}");
                // The delimiter in front may as well be another byte: then there is one frame that is none.
                lost += usize::from(read.iter().all(Result::is_err));
            }
        }
        assert_eq!(lost, 8 * damaged.len(), "no damage goes unnoticed");
    }

    #[test]
    fn a_long_message_that_is_too_long_is_passed_over() {
        let state = Answer::State(Bytes(vec![7; 5000]));
        let mut reader = Reader::new(4000);
        let found = frames(&mut reader, &[encode(1, &state), encode(2, &Answer::Done)].concat());
        assert_eq!(found[0], Err(Bad::TooLong));
        assert_eq!(decode(&found.last().unwrap().clone().unwrap()), Ok((2, Answer::Done)));
    }

    #[test]
    fn half_a_frame_and_too_long_a_one_are_passed_over() {
        let whole = encode(5, &Request::Hello);
        let mut reader = Reader::new(MOST_REQUEST_BYTES);
        let half = &whole[..whole.len() / 2];
        assert_eq!(frames(&mut reader, half), []);
        let found = frames(&mut reader, &whole);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], Err(Bad::Garbled));
        assert_eq!(decode(&found[1].clone().unwrap()), Ok((5, Request::Hello)));
        for _ in 0..100 {
            assert_eq!(frames(&mut reader, &[7; 1000]), [], "and it takes no memory");
        }
        assert_eq!(frames(&mut reader, &[0]), [Err(Bad::TooLong)]);
        assert_eq!(frames(&mut reader, &whole).len(), 1);
    }

    #[test]
    fn another_version_is_told_by_its_number() {
        let mut reader = Reader::new(MOST_REQUEST_BYTES);
        let other = frame::encode_as(9, 4, &Request::Hello);
        assert_eq!(frames(&mut reader, &other), [Err(Bad::Version { number: 4, version: 9 })]);
        let unknown = frames(&mut reader, &encode(6, &200_u8)).remove(0).expect("whole");
        assert_eq!(decode::<Request>(&unknown), Err(Bad::Malformed { number: 6 }));
    }

    #[test]
    fn so_many_exits_fit_into_an_answer() {
        let most = u64::MAX;
        let event = Event {
            at: most,
            took: most,
            idle: most,
            vm: 9,
            vcpu: 31,
            cause: most,
            pc: most,
            tval: most,
            detail: most,
        };
        let all = Answer::Events(Events { timebase: most, events: vec![event; MOST_EVENTS], lost: most });
        assert!(encode(1, &all).len() <= MOST_ANSWER_BYTES);
    }

    #[test]
    fn so_many_pages_fit_into_an_answer() {
        let all = answers()
            .into_iter()
            .filter(|answer| matches!(answer, Answer::State(_) | Answer::Pages(_) | Answer::Changed(_)));
        all.for_each(|answer| assert!(encode(u32::MAX, &answer).len() <= MOST_ANSWER_BYTES));
    }

    #[test]
    fn requests_are_as_short_as_is_said() {
        let longest = Request::Set("x".repeat(MOST_REQUEST_BYTES - 128));
        assert!(encode(u32::MAX, &longest).len() <= MOST_REQUEST_BYTES);
        let longest = Request::Type(u64::MAX, vec![0xff; MOST_TYPED]);
        assert!(encode(u32::MAX, &longest).len() <= MOST_REQUEST_BYTES);
        let bytes = Bytes(vec![0xff; port::MOST_SENT]);
        let (connection, most, at) = (u32::MAX, u32::MAX, u64::MAX);
        let exchange = port::Exchange { connection, at, bytes, from: at, most };
        let longest = Request::Port(u64::MAX, u32::MAX, port::Wish::Exchange(exchange));
        assert!(encode(u32::MAX, &longest).len() <= MOST_REQUEST_BYTES);
        let pages = Bytes(vec![0xff; save::MOST_PAGES * 4096]);
        let pages = save::Pages { next: u64::MAX, first: vec![u64::MAX; save::MOST_PAGES], bytes: pages };
        let longest = Request::Load(u64::MAX, save::Load::Pages(pages));
        assert!(encode(u32::MAX, &longest).len() <= MOST_REQUEST_BYTES);
        let bytes = vec![0xff; debug::MOST_WRITE];
        let longest = Request::Debug(u64::MAX, debug::Debug::Write { vcpu: u32::MAX, at: u64::MAX, bytes });
        assert!(encode(u32::MAX, &longest).len() <= MOST_REQUEST_BYTES);
    }
}
