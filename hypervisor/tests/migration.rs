//! Migration: a VM's memory is copied while it runs, then its state, and it goes on elsewhere as if nothing had happened.

use crate::fake::{self, Hart, MEMORY, World, machine, read_word, shadow_world, vm_config, world_of, write_word};
use crate::snapshot::{ask, begin, leave};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, VmConfig};
use abi::control::save::{Changed, Load, MOST_PAGES, Pages, Save};
use abi::control::{Answer, Request, VmState};
use abi::snapshot::bytes::Bytes;
use abi::snapshot::{MOST_TIME, State};
use hypervisor::device::offer::GuestTimer;
use hypervisor::gnomon::Gnomon;
use hypervisor::life::lifecycle;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::request;
use rv::{Addr, Mode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;

/// The pages that the other machine has so far.
#[derive(Default)]
struct Copy {
    pages: BTreeMap<u64, Vec<u8>>,
    pending: BTreeSet<u64>,
    sent: u64,
}

fn save(g: &Gnomon, hart: &mut Hart, save: Save) -> Answer {
    ask(g, hart, &Request::Save(0, save))
}

impl Copy {
    /// A round: collects what has changed. `between` happens after each portion.
    fn collect(&mut self, g: &Gnomon, hart: &mut Hart, is_first: bool, mut between: impl FnMut(&mut Hart)) {
        let mut from = 0;
        while from < MEMORY / 4096 {
            let answer = save(g, hart, Save::Changed { from, is_first });
            if answer == Answer::Later {
                continue;
            }
            let Answer::Changed(Changed { next, changed, zero }) = answer else { panic!("runs of pages: {answer:?}") };
            self.pending.extend(changed.iter().flat_map(|(first, count)| *first..first + count));
            for page in zero.iter().flat_map(|(first, count)| *first..first + count) {
                self.pending.remove(&page);
                self.pages.remove(&page);
            }
            from = next;
            between(hart);
        }
    }

    fn fetch(&mut self, g: &Gnomon, hart: &mut Hart) {
        while let Some(page) = self.pending.first().copied() {
            // By numbers, or as they follow one another.
            let mut some = [u64::MAX; MOST_PAGES];
            some.iter_mut().zip(&self.pending).for_each(|(place, page)| *place = *page);
            let is_run = page.is_multiple_of(2);
            let wish = if is_run { Save::Look { from: page, end: u64::MAX } } else { Save::Fetch(some) };
            let Answer::Pages(Pages { next, first, bytes }) = save(g, hart, wish) else { panic!("pages") };
            let done: Vec<u64> = if is_run { (page..next).collect() } else { some.into() };
            for page in done {
                if self.pending.remove(&page) {
                    self.pages.remove(&page);
                    if let Some(at) = first.iter().position(|found| *found == page) {
                        self.pages.insert(page, bytes.0[4096 * at..4096 * (at + 1)].to_vec());
                        self.sent += 1;
                    }
                }
            }
        }
    }

    /// The whole of it, as the other machine has it.
    fn load(&self, g: &Gnomon, hart: &mut Hart) {
        for piece in self.pages.iter().collect::<Vec<_>>().chunks(MOST_PAGES) {
            let first = piece.iter().map(|(page, _)| **page).collect();
            let bytes = Bytes(piece.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect());
            let load = Load::Pages(Pages { next: 0, first, bytes });
            assert_eq!(ask(g, hart, &Request::Load(0, load)), Answer::Done);
        }
    }
}

fn state_of(g: &Gnomon, hart: &mut Hart) -> Vec<u8> {
    let saving = begin(g, hart);
    let mut state = Vec::new();
    while state.len() < saving.state_bytes as usize {
        let wish = Save::State { id: saving.id, from: state.len() as u32 };
        let Answer::State(part) = save(g, hart, wish) else { panic!("a part") };
        state.extend(part.0);
    }
    state
}

fn let_go(g: &Gnomon, hart: &mut Hart, state: &[u8]) -> Answer {
    for (n, piece) in state.chunks(1000).enumerate() {
        let load = Load::State { from: 1000 * n as u32, bytes: Bytes(piece.into()) };
        assert_eq!(ask(g, hart, &Request::Load(0, load)), Answer::Done);
    }
    match ask(g, hart, &Request::Load(0, Load::Check)) {
        Answer::Done => ask(g, hart, &Request::Load(0, Load::Start)),
        refused => refused,
    }
}

fn vm_state(g: &Gnomon, hart: &mut Hart) -> VmState {
    let Answer::Vms(vms) = ask(g, hart, &Request::Vms) else { panic!("VMs") };
    vms.vms[0].state
}

fn word(page: u64) -> u64 {
    GUEST_RAM_BASE + 4096 * page + 16
}

/// A machine to which a VM comes, of which an earlier state is known.
fn awaiting(earlier: Vec<u8>, mmu: MmuMode) -> (Gnomon, Hart) {
    let restore = Some(Bytes(earlier));
    let config = VmConfig {
        mmu: Some(mmu),
        svvptc: false,
        svadu: Some(false),
        segments: Vec::new(),
        restore,
        incoming: true,
        ..vm_config("vm", 1)
    };
    let (mut g, mut hart) = machine(vec![config], 1, GuestTimer::Sstc);
    // Otherwise it is unknown whether hardware sets A and D behind a G-stage.
    g.offer.two_stage_svadu = true;
    fake::start_due(&g, &mut hart);
    assert!(g.vms.numbered(0).is_some(), "{}", fake::printed());
    assert_eq!(vm_state(&g, &mut hart), VmState::Arriving);
    (g, hart)
}

#[test]
fn a_vm_moves_while_it_runs_from_each_mode_to_another() {
    let modes =
        [MmuMode::TwoStage, MmuMode::Shadow, MmuMode::Unsync, MmuMode::Lazy, MmuMode::Steered, MmuMode::Adaptive];
    for (from, to) in modes.into_iter().zip(modes.into_iter().cycle().skip(1)) {
        let config =
            VmConfig { mmu: Some(from), svvptc: false, svadu: Some(false), segments: Vec::new(), ..vm_config("vm", 1) };
        let mut w = world_of(config, GuestTimer::Sstc);
        (0..40).for_each(|n| write_word(&mut w, word(13 * n), n + 1));
        let World { g, mut hart, run } = w;
        assert!(matches!(save(&g, &mut hart, Save::Changed { from: 0, is_first: true }), Answer::Refused(_)), "no log");
        assert_eq!(save(&g, &mut hart, Save::Log(true)), Answer::Done);
        let (mut copy, vm) = (Copy::default(), run.vm.clone());
        let mut count = 100;
        // Whatever is written meanwhile.
        let mut write = |hart: &mut Hart| {
            count += 1;
            let (at, bytes) = (Addr::new(word(13 * (count % 47))), u64::to_le_bytes(count));
            fake::write(&g, &vm, at, &bytes, hart).unwrap();
        };
        copy.collect(&g, &mut hart, true, &mut write);
        (0..20).for_each(|_| write(&mut hart));
        copy.fetch(&g, &mut hart);
        let all = copy.sent;
        copy.collect(&g, &mut hart, false, &mut write);
        copy.fetch(&g, &mut hart);
        assert!(copy.sent - all <= 24 && copy.sent > all, "{from:?}: {all} and {} pages", copy.sent - all);
        write(&mut hart);
        assert_eq!(save(&g, &mut hart, Save::Begin), Answer::Later);
        leave(&g, run, &mut hart);
        let state = state_of(&g, &mut hart);
        copy.collect(&g, &mut hart, false, |_| {});
        copy.fetch(&g, &mut hart);
        assert_eq!(save(&g, &mut hart, Save::Give(1)), Answer::Done);
        lifecycle::toggle_pause(&g, &g.vms.numbered(0).expect("it is here"), &mut hart);
        assert_eq!(vm_state(&g, &mut hart), VmState::GivenAway, "a key does not resume it");
        // There.
        let (there, mut its) = awaiting(state.clone(), to);
        copy.load(&there, &mut its);
        let zero = Load::Zero { from: 0x600, end: 0x680 };
        assert_eq!(ask(&there, &mut its, &Request::Load(0, Load::Pages(page_of_ones(0x612)))), Answer::Done);
        let Answer::Pages(done) = ask(&there, &mut its, &Request::Load(0, zero)) else { panic!("how far") };
        assert!(done.next > 0x612);
        assert_eq!(let_go(&there, &mut its, &state), Answer::Done, "{from:?} to {to:?}");
        assert_eq!(vm_state(&there, &mut its), VmState::Running);
        let moved = there.vms.numbered(0).expect("it is there");
        for page in 0..MEGA_PAGES {
            let (mut here, mut now) = (vec![1; 4096], vec![2; 4096]);
            let at = Addr::new(GUEST_RAM_BASE + 4096 * page);
            fake::read(&g, &vm, at, &mut here, &mut hart).unwrap();
            fake::read(&there, &moved, at, &mut now, &mut its).unwrap();
            assert!(here == now, "{from:?} to {to:?}: page {page}");
        }
        // Here it is stopped, and no frame is left.
        assert_eq!(ask(&g, &mut hart, &Request::Stop(0)), Answer::Done);
        while lifecycle::go_on(&g, &mut hart) {}
        assert!(matches!(ask(&there, &mut its, &Request::Load(0, Load::Start)), Answer::Refused(_)), "once is enough");
    }
}

/// Pages that are compared.
const MEGA_PAGES: u64 = 0x700;

fn page_of_ones(page: u64) -> Pages {
    Pages { next: 0, first: vec![page], bytes: Bytes(vec![1; 4096]) }
}

#[test]
fn a_migration_that_ends_leaves_the_vm_as_it_was() {
    let mut w = shadow_world(MmuMode::TwoStage, 1);
    write_word(&mut w, word(5), 5);
    assert_eq!(save(&w.g, &mut w.hart, Save::Log(true)), Answer::Done);
    let mut copy = Copy::default();
    copy.collect(&w.g, &mut w.hart, true, |_| {});
    assert_eq!(save(&w.g, &mut w.hart, Save::Log(false)), Answer::Done);
    assert!(matches!(save(&w.g, &mut w.hart, Save::Look { from: 0, end: 1 }), Answer::Refused(_)));
    write_word(&mut w, word(5), 6);
    assert_eq!(read_word(&mut w, word(5)), 6);
}

#[test]
fn what_cannot_arrive_is_refused_and_ends_nothing() {
    let w = shadow_world(MmuMode::TwoStage, 1);
    let World { g, mut hart, run } = w;
    assert_eq!(save(&g, &mut hart, Save::Begin), Answer::Later);
    leave(&g, run, &mut hart);
    let state = state_of(&g, &mut hart);
    let refused = |answer: Answer, part: &str| {
        assert!(matches!(&answer, Answer::Refused(why) if why.contains(part)), "{part}: {answer:?}");
    };
    refused(ask(&g, &mut hart, &Request::Load(0, Load::Start)), "does not arrive");
    let (there, mut its) = awaiting(state.clone(), MmuMode::Lazy);
    let mut ask_there = |load| ask(&there, &mut its, &Request::Load(0, load));
    refused(ask_there(Load::Start), "malformed");
    refused(ask_there(Load::Pages(page_of_ones(u64::MAX))), "so many pages");
    refused(ask_there(Load::Pages(page_of_ones(MEMORY / 4096))), "so many pages");
    refused(ask_there(Load::Pages(Pages { next: 0, first: vec![1, 2], bytes: Bytes(vec![1; 4096]) })), "whole pages");
    refused(ask_there(Load::Zero { from: u64::MAX, end: 0 }), "so many pages");
    assert!(matches!(ask_there(Load::Zero { from: 3, end: 0 }), Answer::Pages(_)));
    refused(ask_there(Load::State { from: 9, bytes: Bytes(vec![1]) }), "missing");
    let mut late = State::decode(&state).expect("a state");
    late.told.time = MOST_TIME;
    refused(let_go(&there, &mut its, &late.encode()), "impossible time");
    late.told.time = 5;
    late.told.timebase += 1;
    refused(let_go(&there, &mut its, &late.encode()), "clock");
    // It may be stopped, as any other.
    assert_eq!(ask(&there, &mut its, &Request::Stop(0)), Answer::Done);
    while lifecycle::go_on(&there, &mut its) {}
    refused(ask(&there, &mut its, &Request::Load(0, Load::Check)), "has ended");
}

#[test]
fn gnomon_sets_a_and_d_in_place_of_hardware_while_the_log_is_on() {
    const ROOT: u64 = GUEST_RAM_BASE + 0x10_0000;
    const HANDLER: u64 = 0x8020_0400;
    let config =
        VmConfig { mmu: Some(MmuMode::TwoStage), svadu: Some(true), segments: Vec::new(), ..vm_config("vm", 1) };
    let (mut g, mut hart) = machine(vec![config], 1, GuestTimer::Sstc);
    g.offer.two_stage_svadu = true;
    fake::start_due(&g, &mut hart);
    let run = g.sched.take(0).unwrap_or_else(|| panic!("{}", fake::printed()));
    // Its harts would do so unseen from now until the log is on.
    let refused = save(&g, &mut hart, Save::Log(true));
    assert!(matches!(&refused, Answer::Refused(why) if why.contains("stands still")), "{refused:?}");
    assert_eq!(save(&g, &mut hart, Save::Begin), Answer::Later);
    leave(&g, run, &mut hart);
    let saving = begin(&g, &mut hart);
    assert_eq!(save(&g, &mut hart, Save::Log(true)), Answer::Done);
    assert_eq!(save(&g, &mut hart, Save::End(saving.id)), Answer::Done);
    let run = g.sched.take(0).expect("it goes on");
    assert!(run.vm.tlb.sets_ad.load(SeqCst));
    let mut w = World { g, hart, run };
    let leaf = (GUEST_RAM_BASE >> 12) << 10;
    let (r, w_, u, a, d) = (1 << 1, 1 << 2, 1 << 4, 1 << 6, 1 << 7);
    w.hart.vsatp = 8 << 60 | ROOT >> 12;
    w.hart.mode = Mode::User;
    w.hart.regs.vstvec = HANDLER;
    // As when a vCPU of it is loaded.
    w.hart.sets_ad = true;
    let access = |w: &mut World, pte: u64, cause: u64| {
        write_word(w, ROOT, leaf | pte | 1);
        w.run.context.pc = 0x1000;
        w.hart.mode = Mode::User;
        assert_eq!(w.exit_until_ready(cause, 0x123, 0, 0), Outcome::Resume);
        (read_word(w, ROOT) & !leaf & !1, w.run.context.pc == HANDLER)
    };
    const LOAD: u64 = 13;
    const STORE: u64 = 15;
    assert_eq!(access(&mut w, r | w_ | u, LOAD), (r | w_ | u | a, false));
    assert_eq!(access(&mut w, r | w_ | u, STORE), (r | w_ | u | a | d, false));
    assert_eq!(access(&mut w, r | w_ | u | a, STORE), (r | w_ | u | a | d, false));
    assert_eq!(access(&mut w, r | u, STORE), (r | u, true), "its kernel's own");
    assert_eq!(access(&mut w, r | w_, LOAD), (r | w_, true));
    // The store to the table is one that the log has seen.
    let World { g, mut hart, run } = w;
    let mut copy = Copy::default();
    copy.collect(&g, &mut hart, true, |_| {});
    copy.pending.clear();
    let mut w = World { g, hart, run };
    w.hart.mode = Mode::User;
    assert_eq!(w.exit_until_ready(LOAD, 0x123, 0, 0), Outcome::Resume);
    assert_eq!(read_word(&mut w, ROOT) & !leaf, r | w_ | 1, "nothing to set");
    write_word(&mut w, ROOT, leaf | r | u | 1);
    let World { g, mut hart, run } = w;
    copy.collect(&g, &mut hart, false, |_| {});
    assert!(copy.pending.remove(&((ROOT - GUEST_RAM_BASE) / 4096)));
    let mut w = World { g, hart, run };
    w.hart.mode = Mode::User;
    assert_eq!(w.exit_until_ready(LOAD, 0x123, 0, 0), Outcome::Resume);
    let World { g, mut hart, run } = w;
    copy.collect(&g, &mut hart, false, |_| {});
    assert!(copy.pending.contains(&((ROOT - GUEST_RAM_BASE) / 4096)), "A was set");
    // When the log ends, vCPUs are loaded anew.
    assert_eq!(save(&g, &mut hart, Save::Log(false)), Answer::Done);
    assert!(!run.vm.tlb.sets_ad.load(SeqCst));
    assert_ne!(run.shared.posted.load(SeqCst) & request::PAUSE, 0);
}
