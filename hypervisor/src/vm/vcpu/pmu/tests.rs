//! Counters against a model that adds each event to each counter when it happens.

use super::*;
use crate::random::Random;
use sbi_spec::pmu::{event_type, firmware_event};

const CYCLES: u64 = 1;
const INSTRUCTIONS: u64 = 2;
const TIMER: u64 = (event_type::FIRMWARE << 16 | firmware_event::SET_TIMER) as u64;
const FENCES: u64 = (event_type::FIRMWARE << 16 | firmware_event::SFENCE_VMA_SENT) as u64;
const EXITS: (u64, u64) = ((event_type::FIRMWARE << 16 | firmware_event::PLATFORM) as u64, 1);
const ALL: (u64, u64) = (0, (1 << COUNTERS) - 1);
const OFFERED: EventsOffered = EventsOffered { misaligned: false, hypervisor: false };

const SKIP_MATCH: u64 = 1;
const CLEAR: u64 = 2;
const AUTO_START: u64 = 4;

struct Rig {
    pmu: Pmu,
    totals: VcpuCounters,
    /// The hart's counters.
    now: Sample,
}

impl Rig {
    fn new() -> Self {
        Self { pmu: Pmu::default(), totals: VcpuCounters::default(), now: Sample::default() }
    }

    fn configure(&mut self, set: (u64, u64), flags: u64, event: (u64, u64)) -> Result<u64, Error> {
        self.pmu.configure(set, flags, event, OFFERED, &self.totals)
    }

    fn start(&mut self, set: (u64, u64), flags: u64, initial: u64) -> Result<u64, Error> {
        self.pmu.start(set, flags, initial, &self.totals)
    }

    fn stop(&mut self, set: (u64, u64), flags: u64) -> Result<u64, Error> {
        self.pmu.stop(set, flags, &self.totals)
    }

    /// Runs the guest for so many cycles, and half as many instructions; Gnomon runs before.
    fn run(&mut self, cycles: u64, is_l2: bool) {
        self.passes(1000);
        self.pmu.enter(self.now);
        self.passes(cycles);
        self.pmu.leave(self.now, is_l2);
        self.passes(77);
    }

    fn passes(&mut self, cycles: u64) {
        self.now = self.now.plus(Sample { cycles, instructions: cycles / 2, time: cycles / 10 });
    }
}

#[test]
fn a_counter_counts_while_it_runs_and_only_in_the_guest() {
    let mut rig = Rig::new();
    assert_eq!(rig.configure(ALL, 0, (CYCLES, 0)), Ok(0));
    assert_eq!(rig.configure(ALL, 0, (INSTRUCTIONS, 0)), Ok(1));
    rig.run(500, false);
    assert_eq!((rig.pmu.hardware(0, &rig.totals), rig.pmu.samples()), (0, false));
    assert_eq!(rig.start((0, 3), 1, 7), Ok(0));
    assert!(rig.pmu.samples());
    rig.run(500, false);
    rig.run(500, true);
    assert_eq!((rig.pmu.hardware(0, &rig.totals), rig.pmu.hardware(1, &rig.totals)), (1007, 507));
    assert_eq!(rig.start((1, 1), 1, 9), Err(Error::AlreadyStarted), "and stays as it is");
    assert_eq!(rig.stop((1, 1), 0), Ok(0));
    rig.run(10, false);
    assert_eq!((rig.pmu.hardware(0, &rig.totals), rig.pmu.hardware(1, &rig.totals)), (1017, 507));
    assert_eq!(rig.start((0, 3), 0, 0), Err(Error::AlreadyStarted), "one of them");
    rig.run(10, false);
    assert_eq!((rig.pmu.hardware(0, &rig.totals), rig.pmu.hardware(1, &rig.totals)), (1027, 512));
    assert_eq!(rig.stop(ALL, 1), Err(Error::AlreadyStopped), "most of them");
    assert!(!rig.pmu.samples());
    assert_eq!(rig.start((0, 1), 0, 0), Err(Error::InvalidParam), "it has no event now");
    assert_eq!(rig.configure(ALL, AUTO_START, (CYCLES, 0)), Ok(0));
    rig.run(3, false);
    assert_eq!(rig.pmu.hardware(0, &rig.totals), 1030, "the value is not cleared unless that is asked for");
    assert_eq!(rig.configure(ALL, AUTO_START | CLEAR, (CYCLES, 0)), Ok(1));
    assert_eq!(rig.pmu.hardware(1, &rig.totals), 0);
}

#[test]
fn values_wrap() {
    let mut rig = Rig::new();
    assert_eq!(rig.configure(ALL, 0, (CYCLES, 0)), Ok(0));
    assert_eq!(rig.start((0, 1), 1, u64::MAX - 9), Ok(0));
    rig.run(20, false);
    assert_eq!(rig.pmu.hardware(0, &rig.totals), 10);
}

#[test]
fn hints_leave_worlds_out_but_no_mode_of_one() {
    const VUINH: u64 = 1 << 3;
    const VSINH: u64 = 1 << 4;
    const UINH: u64 = 1 << 5;
    const SINH: u64 = 1 << 6;
    for (hints, counted) in [
        (0, 111),
        (UINH, 111),
        (SINH | VUINH, 111),
        (UINH | SINH, 11),
        (VUINH | VSINH, 100),
        (VUINH | VSINH | UINH | SINH, 0),
    ] {
        let mut rig = Rig::new();
        assert_eq!(rig.configure(ALL, AUTO_START | hints, (CYCLES, 0)), Ok(0));
        rig.run(100, false);
        rig.run(11, true);
        assert_eq!(rig.pmu.hardware(0, &rig.totals), counted, "{hints:#x}");
    }
}

#[test]
fn firmware_counters_follow_totals() {
    let mut rig = Rig::new();
    rig.totals.sbi_time.add(5);
    let first = HARDWARE as u64;
    assert_eq!(rig.configure(ALL, AUTO_START, (TIMER, 0)), Ok(first));
    assert_eq!(rig.configure(ALL, AUTO_START, EXITS), Ok(first + 1));
    assert_eq!(rig.configure(ALL, AUTO_START, (FENCES, 0)), Ok(first + 2));
    rig.totals.sbi_time.add(3);
    rig.totals.exits.add(8);
    rig.pmu.count(firmware_event::SET_TIMER, 1);
    rig.pmu.count(firmware_event::SFENCE_VMA_SENT, 6);
    let values = |rig: &Rig| [0, 1, 2].map(|n| rig.pmu.firmware(first + n, &rig.totals));
    assert_eq!(values(&rig), [Ok(4), Ok(8), Ok(6)]);
    assert_eq!(rig.stop((first, 0b11), 0), Ok(0));
    rig.totals.exits.add(8);
    assert_eq!(values(&rig), [Ok(4), Ok(8), Ok(6)]);
    assert!(!rig.pmu.samples(), "no hardware counter runs");
    let ipis = (event_type::FIRMWARE << 16 | firmware_event::IPI_RECEIVED) as u64;
    let counter = rig.configure(ALL, AUTO_START, (ipis, 0)).expect("there is one left");
    assert!(rig.pmu.samples(), "brief exits do not count them");
    rig.pmu.count(firmware_event::IPI_RECEIVED, 2);
    assert_eq!((rig.stop((counter, 1), 1), rig.pmu.firmware(counter, &rig.totals)), (Ok(0), Ok(2)));
    assert!(!rig.pmu.samples());
    assert_eq!(rig.pmu.firmware(0, &rig.totals), Err(Error::InvalidParam), "a hardware counter");
    assert_eq!(rig.pmu.firmware(COUNTERS as u64, &rig.totals), Err(Error::InvalidParam));
}

#[test]
fn sets_that_name_what_is_not_there_change_nothing() {
    let mut rig = Rig::new();
    let count = COUNTERS as u64;
    assert_eq!(rig.configure(ALL, AUTO_START, (CYCLES, 0)), Ok(0));
    for set in [(count, 1), (0, 1 << count | 1), (count - 1, 3), (u64::MAX, 1), (1 << 63, 1), (64, 1), (63, 2), (0, !0)]
    {
        assert_eq!(rig.configure(set, 0, (CYCLES, 0)), Err(Error::InvalidParam), "{set:x?}");
        assert_eq!(rig.start(set, 0, 0), Err(Error::InvalidParam), "{set:x?}");
        assert_eq!(rig.stop(set, 0), Err(Error::InvalidParam), "{set:x?}");
    }
    for base in [0, count, u64::MAX] {
        assert_eq!(rig.configure((base, 0), 0, (CYCLES, 0)), Err(Error::NotSupported), "no counter");
        assert_eq!((rig.start((base, 0), 0, 0), rig.stop((base, 0), 0)), (Ok(0), Ok(0)));
    }
    for flags in [1 << 8, 1 << 63] {
        assert_eq!(rig.configure(ALL, flags, (CYCLES, 0)), Err(Error::InvalidParam));
        assert_eq!(rig.start((0, 1), flags, 0), Err(Error::InvalidParam));
        assert_eq!(rig.stop((0, 1), flags), Err(Error::InvalidParam));
    }
    assert_eq!(rig.start((0, 1), 2, 0), Err(Error::NoShmem));
    assert_eq!(rig.stop((0, 1), 2), Err(Error::NoShmem));
    assert!(rig.pmu.samples(), "the one that runs goes on");
}

#[test]
fn counters_are_matched() {
    let mut rig = Rig::new();
    for n in 0..HARDWARE as u64 {
        assert_eq!(rig.configure(ALL, 0, (CYCLES, 0)), Ok(n));
    }
    assert_eq!(rig.configure(ALL, 0, (CYCLES, 0)), Err(Error::NotSupported), "each is about to be started");
    assert_eq!(rig.configure((2, 1), SKIP_MATCH, (INSTRUCTIONS, 0)), Ok(2), "unless the kernel knows better");
    assert_eq!(rig.start((2, 1), 0, 0), Ok(0));
    assert_eq!(rig.configure((2, 3), SKIP_MATCH, (CYCLES, 0)), Err(Error::NotSupported), "the first one runs");
    assert_eq!(rig.configure((0, 1), SKIP_MATCH, (TIMER, 0)), Err(Error::NotSupported), "a hardware counter");
    assert_eq!(rig.configure((0, 0x3f), 0, (TIMER, 0)), Err(Error::NotSupported));
    assert_eq!(rig.configure(ALL, 0, (TIMER, 0)), Ok(HARDWARE as u64));
}

#[test]
fn events_that_are_not_offered_are_refused() {
    let hypervisor = EventsOffered { hypervisor: true, ..OFFERED };
    let misaligned = EventsOffered { misaligned: true, ..OFFERED };
    let firmware = |code: usize| (event_type::FIRMWARE << 16 | code) as u64;
    let is_offered = |index, data, offered| Event::offered(index, data, offered).is_some();
    let plain: Vec<u64> = (0..1 << 21).filter(|index| is_offered(*index, 0, OFFERED)).collect();
    assert_eq!(plain, [1, 2, 7, 10].into_iter().chain((5..=13).map(firmware)).collect::<Vec<_>>());
    for index in [1 << 32 | 1, 1 << 63 | 1, u64::MAX] {
        assert!(!is_offered(index, 0, OFFERED), "{index:#x}");
    }
    assert!(!is_offered(CYCLES, 1, OFFERED) && !is_offered(TIMER, 1, OFFERED), "reserved data");
    let platform: Vec<u64> = (0..100).filter(|data| is_offered(EXITS.0, *data, OFFERED)).collect();
    assert_eq!(platform, (1..=8).collect::<Vec<_>>());
    assert_eq!(
        (0..30).filter(|code| is_offered(firmware(*code), 0, misaligned)).take(3).collect::<Vec<_>>(),
        [0, 1, 5]
    );
    let of_hypervisors: Vec<usize> = (14..30).filter(|code| is_offered(firmware(*code), 0, hypervisor)).collect();
    assert_eq!(of_hypervisors, [14, 16, 18, 20]);
}

#[test]
fn information_names_csrs_that_follow_each_other() {
    for n in 0..HARDWARE as u64 {
        assert_eq!(Pmu::info(n), Ok(63 << 12 | (0xc03 + n)));
    }
    assert_eq!(Pmu::info(HARDWARE as u64), Ok(1 << 63 | 63 << 12));
    for n in [COUNTERS as u64, 1 << 32, u64::MAX] {
        assert_eq!(Pmu::info(n), Err(Error::InvalidParam));
    }
}

#[test]
fn counters_come_back_from_a_snapshot() {
    let mut rig = Rig::new();
    assert_eq!(rig.configure(ALL, AUTO_START, (CYCLES, 0)), Ok(0));
    assert_eq!(rig.configure(ALL, 0, (INSTRUCTIONS, 0)), Ok(1));
    assert_eq!(rig.configure(ALL, AUTO_START, EXITS), Ok(HARDWARE as u64));
    rig.totals.exits.add(9);
    rig.run(100, false);
    let saved = rig.pmu.save(&rig.totals);
    assert_eq!(saved.len(), 3);
    // On another machine its totals begin anew.
    let pmu = *Pmu::restore(&saved, OFFERED, &VcpuCounters::default()).expect("there are some");
    let mut rig = Rig { pmu, ..Rig::new() };
    rig.totals.exits.add(2);
    rig.run(10, false);
    assert_eq!((rig.pmu.hardware(0, &rig.totals), rig.pmu.hardware(1, &rig.totals)), (110, 0));
    assert_eq!(rig.pmu.firmware(HARDWARE as u64, &rig.totals), Ok(11));
    assert_eq!(rig.start((1, 1), 0, 0), Ok(0), "it has its event");
    // A file may say anything.
    let wild = |number, event| CounterState { number, event, is_running: true, ..saved[0] };
    let saved = [wild(0, Some(TIMER as u32)), wild(6, Some(1)), wild(16, Some(1)), wild(255, None), wild(3, Some(!0))];
    let pmu = Pmu::restore(&saved, OFFERED, &rig.totals).expect("there are some");
    assert!(!pmu.samples());
    assert!(Pmu::restore(&[], OFFERED, &rig.totals).is_none());
}

/// A counter of the model.
#[derive(Clone, Copy, Default)]
struct Model {
    event: Option<(u64, u64)>,
    runs: bool,
    value: u64,
}

#[test]
fn a_model_counts_the_same() {
    const EVENTS: [(u64, u64); 5] = [(CYCLES, 0), (INSTRUCTIONS, 0), (TIMER, 0), (FENCES, 0), EXITS];
    for seed in 1..40 {
        let (mut random, mut rig, mut models) = (Random(seed), Rig::new(), [Model::default(); COUNTERS]);
        for _ in 0..500 {
            let event = EVENTS[random.below(5) as usize];
            let mask = 1 << random.below(18);
            let set = (random.below(18), random.below(mask));
            let value = random.below(1000);
            let is_valid = set.1 == 0 || set.0 + u64::from(63 - set.1.leading_zeros()) < COUNTERS as u64;
            let members = || (0..COUNTERS).filter(|n| (*n as u64) >= set.0 && set.1 >> (*n as u64 - set.0) & 1 != 0);
            match random.below(6) {
                0 => {
                    let found = rig.configure(set, CLEAR, event);
                    let suits = |n: &usize| models[*n].event.is_none() && (*n >= HARDWARE) == (event.0 > 9);
                    let expected = members().find(suits);
                    match (is_valid, expected) {
                        (false, _) => assert_eq!(found, Err(Error::InvalidParam)),
                        (true, None) => assert_eq!(found, Err(Error::NotSupported)),
                        (true, Some(n)) => {
                            assert_eq!(found, Ok(n as u64));
                            models[n] = Model { event: Some(event), runs: false, value: 0 };
                        }
                    }
                }
                1 => {
                    let found = rig.start(set, 1, value);
                    if !is_valid || members().any(|n| models[n].event.is_none()) {
                        assert_eq!(found, Err(Error::InvalidParam));
                        continue;
                    }
                    let some_run = members().any(|n| models[n].runs);
                    assert_eq!(found, if some_run { Err(Error::AlreadyStarted) } else { Ok(0) });
                    for n in members() {
                        let model = &mut models[n];
                        *model = Model { runs: true, value: if model.runs { model.value } else { value }, ..*model };
                    }
                }
                2 => {
                    let resets = random.one_in(2);
                    let found = rig.stop(set, resets.into());
                    if !is_valid {
                        assert_eq!(found, Err(Error::InvalidParam));
                        continue;
                    }
                    let all_run = members().all(|n| models[n].runs);
                    assert_eq!(found, if all_run { Ok(0) } else { Err(Error::AlreadyStopped) });
                    for n in members() {
                        models[n].runs = false;
                        if resets {
                            models[n].event = None;
                        }
                    }
                }
                other => {
                    let happens = |models: &mut [Model; COUNTERS], event, n| {
                        models.iter_mut().filter(|it| it.runs && it.event == Some(event)).for_each(|it| it.value += n);
                    };
                    match other {
                        3 => {
                            rig.run(2 * value, false);
                            happens(&mut models, EVENTS[0], 2 * value);
                            happens(&mut models, EVENTS[1], value);
                        }
                        4 => {
                            rig.totals.sbi_time.bump();
                            happens(&mut models, EVENTS[2], 1);
                            rig.pmu.count(firmware_event::SFENCE_VMA_SENT, 3);
                            happens(&mut models, EVENTS[3], 3);
                        }
                        _ => {
                            rig.totals.exits.bump();
                            happens(&mut models, EVENTS[4], 1);
                        }
                    }
                }
            }
            for (n, model) in models.iter().enumerate() {
                let value = match n {
                    0..HARDWARE => rig.pmu.hardware(n, &rig.totals),
                    _ => rig.pmu.firmware(n as u64, &rig.totals).expect("it is one"),
                };
                assert_eq!(value, model.value, "counter {n}, seed {seed}");
            }
            assert_eq!(rig.pmu.samples(), models[..HARDWARE].iter().any(|model| model.runs));
        }
    }
}
