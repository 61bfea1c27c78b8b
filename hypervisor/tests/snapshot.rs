//! Snapshots: taken by the control channel, and gone on from on another machine.

use crate::fake::{self, Hart, MEMORY, World, bundle_page, machine, printed, start_due, vm_config, world_of};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, Segment, VmConfig};
use abi::control::debug::Debug;
use abi::control::frame::{Reader, decode, encode};
use abi::control::save::{NOT_YET, Save, Saving};
use abi::control::{Answer, MOST_ANSWER_BYTES, Request};
use abi::snapshot::bytes::Bytes;
use abi::snapshot::{NEVER, RootCacheState, State};
use hypervisor::control;
use hypervisor::device::offer::{GuestMode, GuestTimer, Offer};
use hypervisor::gnomon::Gnomon;
use hypervisor::io::host_events;
use hypervisor::life::lifecycle;
use hypervisor::life::lifecycle::put_aside;
use hypervisor::life::snapshot::check;
use hypervisor::machine::isa::Isa;
use hypervisor::vm::vcpu::pmu::Sample;
use hypervisor::vm::vcpu::{RootCache, VcpuRun, hsm, request};
use hypervisor::vm::{Departure, Phase};
use rv::csr::status;
use rv::{Addr, Mode, PhysMem};
use sbi_spec::pmu::{COUNTER_CONFIG_MATCHING, EID_PMU};
use sbi_spec::{hsm as hsm_call, sse};
use std::sync::atomic::Ordering;

/// Asks, as a command does.
pub fn ask(g: &Gnomon, hart: &mut Hart, request: &Request) -> Answer {
    let mut frames = Reader::new(MOST_ANSWER_BYTES);
    let frame = frames.next(&mut encode(1, request).as_slice()).expect("whole");
    let answer = control::answer_frame(g, frame, hart).expect("it is a request");
    let answer = frames.next(&mut answer.as_slice()).expect("whole");
    decode(&answer.expect("no longer than is said")).expect("an answer").1
}

fn is_refused(answer: &Answer, part: &str) -> bool {
    matches!(answer, Answer::Refused(why) if why.contains(part))
}

pub fn begin(g: &Gnomon, hart: &mut Hart) -> Saving {
    match ask(g, hart, &Request::Save(0, Save::Begin)) {
        Answer::Saving(saving) => saving,
        other => panic!("{other:?}"),
    }
}

/// The state of a VM, and those of its pages that are not zero.
pub type Taken = (State, Vec<(u64, Vec<u8>)>);

pub fn take(g: &Gnomon, hart: &mut Hart, saving: &Saving) -> Taken {
    let (id, mut state, mut pages, mut from) = (saving.id, Vec::new(), Vec::new(), 0);
    while state.len() < saving.state_bytes as usize {
        let from = state.len() as u32;
        let Answer::State(part) = ask(g, hart, &Request::Save(0, Save::State { id, from })) else { panic!("a part") };
        state.extend(part.0);
    }
    while from < saving.pages {
        match ask(g, hart, &Request::Save(0, Save::Pages { id, from })) {
            Answer::Pages(some) => {
                assert!(some.next > from && some.first.iter().all(|page| (from..some.next).contains(page)));
                pages.extend(some.first.into_iter().zip(some.bytes.0.chunks(4096).map(<[u8]>::to_vec)));
                from = some.next;
            }
            Answer::Later => while lifecycle::go_on(g, hart) {},
            other => panic!("{other:?}"),
        }
    }
    (State::decode(&state).expect("a state"), pages)
}

/// Makes a vCPU leave its hart for a pause, like its hart.
pub fn leave(g: &Gnomon, run: Box<VcpuRun>, hart: &mut Hart) {
    assert_ne!(run.shared.posted.fetch_and(!request::PAUSE, Ordering::SeqCst) & request::PAUSE, 0);
    g.sched.stopped();
    put_aside(g, run, hart);
}

const HANDLER: u64 = 0x8020_0400;
const PAGES: [u64; 4] = [0, 3, 0x200, 0x7ff];

/// Makes a guest in the midst of something, whose two vCPUs run; the third is stopped.
fn busy(mmu: Option<MmuMode>, timer: GuestTimer) -> World {
    let config = VmConfig { mmu, svvptc: false, segments: Vec::new(), balloon_bytes: Some(0), ..vm_config("vm", 3) };
    let mut w = world_of(config, timer);
    assert_eq!(w.sbi(hsm_call::EID_HSM, 0, &[1, GUEST_RAM_BASE, 9]), (0, 0));
    assert_eq!(w.sbi(sse::EID_SSE, sse::REGISTER as u64, &[0xffff_0000, HANDLER, 5]), (0, 0));
    assert_eq!(w.sbi(sse::EID_SSE, sse::ENABLE as u64, &[0xffff_0000]), (0, 0));
    // Cycles, which start at once, and instructions.
    assert_eq!(w.sbi(EID_PMU, COUNTER_CONFIG_MATCHING as u64, &[0, 0xf, 4, 1]), (0, 0));
    assert_eq!(w.sbi(EID_PMU, COUNTER_CONFIG_MATCHING as u64, &[0, 0xf, 0, 2]), (0, 1));
    for page in PAGES {
        let at = Addr::new(GUEST_RAM_BASE + 4096 * page + 8);
        fake::write(&w.g, &w.run.vm, at, &[page as u8 | 1; 5], &mut w.hart).unwrap();
    }
    // Touched, and still zero.
    fake::write(&w.g, &w.run.vm, Addr::new(GUEST_RAM_BASE + 4096 * 9), &[0; 5], &mut w.hart).unwrap();
    let run = &mut w.run;
    (1..32).for_each(|n| run.context.x[n] = 0x1111 * n as u64);
    run.context.pc = GUEST_RAM_BASE + 0x500;
    run.bank.mode = Mode::User;
    run.bank.float.f[7] = 77;
    run.bank.float.fcsr = 1;
    let csrs = &mut run.bank.csrs;
    csrs.vsstatus = status::UXL_64 | status::SPP | status::FS;
    (csrs.vstvec, csrs.vsscratch, csrs.vsepc, csrs.vscause, csrs.vstval) = (HANDLER, 2, 4, 5, 6);
    (csrs.vsie, csrs.vsatp, csrs.scounteren) = (0x222, 8 << 60 | 7 << 44 | 0x8_0000, 7);
    match timer {
        GuestTimer::Sstc => csrs.vstimecmp = 5000,
        GuestTimer::Sbi => run.deadline = run.vm.host_time(5000, w.hart.time),
    }
    run.features.is_locked = true;
    let pmu = run.pmu.as_mut().expect("it has counters");
    pmu.enter(Sample::default());
    pmu.leave(Sample { cycles: 1234, ..Sample::default() }, false);
    run.root_cache = Some(Box::new(RootCache::new(Addr::new(GUEST_RAM_BASE + 0x3000), 4, false)));
    run.shared.posted.store(request::SOFTWARE, Ordering::SeqCst);
    run.vm.devices.uart.lock().receive(b'x');
    run.vm.devices.plic.lock().write(4 * 10, 3);
    w.hart.time += 700;
    w
}

/// Pauses it by a snapshot, which is taken.
fn snapshot_of(w: World) -> (Gnomon, Hart, Taken, Saving) {
    let World { g, mut hart, run } = w;
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::Begin)), Answer::Later, "its vCPUs are on harts");
    assert!(is_refused(&ask(&g, &mut hart, &Request::Save(0, Save::Pages { id: 1, from: 0 })), "no snapshot"));
    leave(&g, run, &mut hart);
    let second = g.sched.take(0).expect("the other one");
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::Begin)), Answer::Later);
    leave(&g, second, &mut hart);
    let saving = begin(&g, &mut hart);
    let taken = take(&g, &mut hart, &saving);
    (g, hart, taken, saving)
}

/// Returns the segments of a VM whose RAM has those pages, from the bundle.
pub fn segments(pages: &[(u64, Vec<u8>)]) -> Vec<Segment> {
    let segment = |(n, (page, _)): (u64, &(u64, Vec<u8>))| Segment {
        gpa: GUEST_RAM_BASE + 4096 * page,
        offset: 4096 * n,
        bytes: 4096,
        label: "memory".into(),
    };
    (1..).zip(pages).map(segment).collect()
}

/// Takes a snapshot of a VM with one vCPU, and makes a machine on which the VM goes on from it, described by `config`, its vCPU not loaded.
///
/// # Errors
/// The console's output, if the vCPU does not run there.
pub fn carry(w: World, config: VmConfig) -> Result<World, String> {
    let World { g, mut hart, run } = w;
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::Begin)), Answer::Later);
    leave(&g, run, &mut hart);
    let saving = begin(&g, &mut hart);
    let (state, pages) = take(&g, &mut hart, &saving);
    let config = VmConfig { segments: segments(&pages), restore: Some(Bytes(state.encode())), ..config };
    let (g, mut hart) = fake::machine(vec![config], 1, GuestTimer::Sstc);
    put(&pages, &mut hart);
    fake::start_due(&g, &mut hart);
    let Some(run) = g.sched.take(0) else { return Err(fake::printed()) };
    Ok(World { g, hart, run })
}

/// Puts those pages into the bundle.
pub fn put(pages: &[(u64, Vec<u8>)], hart: &mut Hart) {
    for (n, (_, bytes)) in (1..).zip(pages) {
        hart.mem.write_bytes(bundle_page(n).base(), bytes);
    }
}

/// Makes a machine on which that goes on.
fn restored(taken: &Taken, mmu: Option<MmuMode>, timer: GuestTimer, guest: GuestMode) -> (Gnomon, Hart) {
    let (state, pages) = taken;
    let config = VmConfig {
        mmu,
        svvptc: false,
        svadu: Some(state.told.svadu),
        balloon_bytes: Some(0),
        segments: segments(pages),
        restore: Some(Bytes(state.encode())),
        ..vm_config("vm", 3)
    };
    let (mut g, mut hart) = machine(vec![config], 1, timer);
    g.offer.guest = guest;
    // Otherwise it is unknown whether hardware sets A and D behind a G-stage.
    g.offer.two_stage_svadu = true;
    if timer == GuestTimer::Sbi {
        g.offer.isa = Isa::from_isa_string("rv64imafdc");
    }
    put(pages, &mut hart);
    // Later than the guest has been, or not.
    hart.time = if guest == GuestMode::Supervisor { 90_000 } else { 50 };
    start_due(&g, &mut hart);
    (g, hart)
}

#[test]
fn a_vm_goes_on_on_another_machine_in_every_mode() {
    for timer in [GuestTimer::Sstc, GuestTimer::Sbi] {
        for from in [Some(MmuMode::TwoStage), Some(MmuMode::Lazy), Some(MmuMode::Adaptive)] {
            let mut w = busy(from, timer);
            if timer == GuestTimer::Sbi {
                w.g.offer.isa = Isa::from_isa_string("rv64imafdc");
            }
            let (.., taken, saving) = snapshot_of(w);
            let (state, pages) = &taken;
            assert!(saving.was_running && saving.pages == MEMORY / 4096);
            let tree = (MEMORY - (64 << 10)) / 4096;
            let found: Vec<u64> =
                pages.iter().map(|(page, _)| *page).filter(|page| *page < tree || *page == 0x7ff).collect();
            assert_eq!(found, PAGES);
            assert_eq!((state.told.time, state.vcpus[0].timer), (700, 5000));
            let counters = &state.vcpus[0].counters;
            assert_eq!(
                counters.iter().map(|it| (it.value, it.is_running)).collect::<Vec<_>>(),
                [(1234, true), (0, false)]
            );
            let started: Vec<bool> = state.vcpus.iter().map(|vcpu| vcpu.is_started).collect();
            assert_eq!(started, [true, true, false]);
            for (mmu, guest) in [
                (Some(MmuMode::TwoStage), GuestMode::Virtual),
                (Some(MmuMode::Adaptive), GuestMode::Virtual),
                (None, GuestMode::Supervisor),
                (Some(MmuMode::Shadow), GuestMode::Supervisor),
                (Some(MmuMode::Lazy), GuestMode::Virtual),
            ] {
                let (g, mut hart) = restored(&taken, mmu, timer, guest);
                let vm = g.vms.numbered(0).unwrap_or_else(|| panic!("{from:?} {mmu:?}: {}", printed()));
                assert_eq!((&*vm.phase.lock(), g.sched.started_count()), (&Phase::Running, 2));
                assert_eq!(vm.vcpus[2].hsm.load(Ordering::SeqCst), hsm::STOPPED);
                for (page, bytes) in pages {
                    let mut there = vec![0; 4096];
                    fake::read(&g, &vm, Addr::new(GUEST_RAM_BASE + 4096 * page), &mut there, &mut hart).unwrap();
                    assert!(there == *bytes, "page {page}");
                }
                // And what goes on from there is the same again.
                lifecycle::pause(&g, &vm, &mut hart);
                while let Some(run) = g.sched.take(0) {
                    let due = vm.host_time(5000, hart.time);
                    if run.shared.id == 0 {
                        assert_ne!(run.shared.posted.load(Ordering::SeqCst) & request::EXTERNAL, 0);
                        if timer == GuestTimer::Sbi && guest == GuestMode::Virtual {
                            assert_eq!((run.deadline, due), (50 + 4300, 50 + 4300), "4300 ticks are left");
                        }
                    }
                    leave(&g, run, &mut hart);
                }
                let saving = begin(&g, &mut hart);
                assert!(!saving.was_running);
                let (mut again, mut same) = (take(&g, &mut hart, &saving), taken.clone());
                if guest == GuestMode::Supervisor {
                    assert_eq!(again.0.told.time, 90_000, "the host's clock is the guest's");
                    // It has passed.
                    let timer = &mut same.0.vcpus[0].timer;
                    *timer = if matches!(g.offer.timer, GuestTimer::Sbi) { 90_000 } else { *timer };
                }
                // Told is what the new machine tells, which is no less.
                assert!(same.0.told.isa.iter().all(|name| again.0.told.isa.contains(name)));
                again.0.told = same.0.told.clone();
                assert_eq!(again.0, same.0, "{from:?} {mmu:?}");
                assert!(again.1 == same.1, "{from:?} {mmu:?}: its memory");
            }
        }
    }
}

#[test]
fn a_snapshot_ends_by_whoever_lets_the_vm_go_on() {
    let (g, mut hart, _, saving) = snapshot_of(busy(None, GuestTimer::Sstc));
    let id = saving.id;
    assert!(is_refused(&ask(&g, &mut hart, &Request::Save(0, Save::Begin)), "another snapshot"));
    assert!(is_refused(&ask(&g, &mut hart, &Request::Debug(0, Debug::Attach)), "a snapshot"));
    assert!(is_refused(&ask(&g, &mut hart, &Request::Save(0, Save::End(NOT_YET))), "no snapshot"));
    assert!(is_refused(&ask(&g, &mut hart, &Request::Save(0, Save::Pages { id, from: u64::MAX })), "so many pages"));
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::State { id, from: u32::MAX })), Answer::State(Bytes(vec![])));
    assert_eq!(ask(&g, &mut hart, &Request::Resume(0)), Answer::Done);
    for wish in [Save::End(id), Save::State { id, from: 0 }, Save::Pages { id, from: 0 }] {
        assert!(is_refused(&ask(&g, &mut hart, &Request::Save(0, wish)), "no snapshot"), "{wish:?}");
    }
    assert_eq!(g.sched.started_count(), 2, "it goes on");
    // Another one is another number.
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::Begin)), Answer::Later);
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::End(NOT_YET))), Answer::Done);
    assert!(is_refused(&ask(&g, &mut hart, &Request::Resume(0)), "not paused"), "it has gone on");
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::Begin)), Answer::Later);
    let runs: Vec<_> = std::iter::from_fn(|| g.sched.take(0)).collect();
    runs.into_iter().for_each(|run| leave(&g, run, &mut hart));
    let second = begin(&g, &mut hart);
    assert!(second.id > id && second.was_running);
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::End(second.id))), Answer::Done);
    assert_eq!(g.sched.started_count(), 2);
    // A client that has not received the number can end the snapshot without it, until the number is used.
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::Begin)), Answer::Later);
    let runs: Vec<_> = std::iter::from_fn(|| g.sched.take(0)).collect();
    runs.into_iter().for_each(|run| leave(&g, run, &mut hart));
    begin(&g, &mut hart);
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::End(NOT_YET))), Answer::Done);
    assert_eq!(g.sched.started_count(), 2);
    // One that was paused before stays paused, and one that ends is gone.
    let (g, mut hart, _, saving) = {
        let mut w = busy(None, GuestTimer::Sstc);
        assert_eq!(ask(&w.g, &mut w.hart, &Request::Pause(0)), Answer::Done);
        snapshot_of(w)
    };
    assert!(!saving.was_running);
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::End(saving.id))), Answer::Done);
    assert_eq!(g.sched.started_count(), 0, "it stays paused");
    let saving = begin(&g, &mut hart);
    assert_eq!(ask(&g, &mut hart, &Request::Stop(0)), Answer::Done);
    while lifecycle::go_on(&g, &mut hart) {}
    assert!(is_refused(&ask(&g, &mut hart, &Request::Save(0, Save::Pages { id: saving.id, from: 0 })), "has ended"));
}

#[test]
fn devices_of_a_vm_that_is_given_out_stand_still() {
    let (g, mut hart, taken, saving) = snapshot_of(busy(None, GuestTimer::Sstc));
    let vm = g.vms.numbered(0).expect("it is there");
    vm.devices.uart.lock().write(0, b'!');
    printed();
    host_events::go_on(&g, 1, &mut hart);
    assert_eq!((vm.devices.uart.lock().sending(), printed().as_str()), (&b"!"[..], ""));
    assert_eq!(take(&g, &mut hart, &saving), taken, "the same as before");
    hart.events.clear();
    assert_eq!(ask(&g, &mut hart, &Request::Save(0, Save::End(saving.id))), Answer::Done);
    assert!(hart.events.contains(&fake::Event::AttendSoon), "they are looked after then");
    host_events::go_on(&g, 1, &mut hart);
    assert_eq!(vm.devices.uart.lock().sending(), b"");
}

/// Returns the message that refuses a VM that is to go on from a state that was changed.
fn refusal(taken: &Taken, change: impl Fn(&mut State, &mut VmConfig)) -> String {
    let mut state = taken.0.clone();
    let mut config = VmConfig { balloon_bytes: Some(0), segments: Vec::new(), ..vm_config("vm", 3) };
    change(&mut state, &mut config);
    config.restore.get_or_insert(Bytes(state.encode()));
    let (g, mut hart) = machine(vec![config], 1, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    assert!(g.is_over(), "it is refused: {}", printed());
    assert_eq!(g.frames().free_count(), g.frames().total_count());
    printed()
}

/// Makes the second vCPU's kernel share a page: its GPA, places, and whether changes need no fence.
fn share(state: &mut State, (at, places, is_tagged): (u64, u32, bool)) {
    state.vcpus[1].root_cache = Some(RootCacheState { at, places, is_tagged });
}

#[test]
fn a_clock_that_cannot_continue_is_refused() {
    let (.., taken, _) = snapshot_of(busy(None, GuestTimer::Sstc));
    let restore = Some(Bytes(taken.0.encode()));
    let config = VmConfig { restore, balloon_bytes: Some(0), segments: Vec::new(), ..vm_config("vm", 3) };
    let (g, _) = machine(vec![vm_config("vm", 3)], 1, GuestTimer::Sstc);
    assert!(check(&config, &g.offer).is_ok_and(|state| state.is_some()));
    let offer = Offer { firmware_emulates_time: true, ..g.offer.clone() };
    assert!(check(&config, &offer).is_err_and(|why| why.contains("--seat firmware")));
    // In S mode the clock was set for it. What else is refused there is not the clock.
    let offer = Offer { guest: GuestMode::Supervisor, ..g.offer.clone() };
    assert!(check(&config, &offer).err().is_none_or(|why| !why.contains("--seat firmware")));
    // Counters that were offered have to be there.
    let offer = Offer { has_pmu: false, ..g.offer.clone() };
    assert!(check(&config, &offer).is_err_and(|why| why.contains("hpmcounter8")));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let (.., taken, _) = snapshot_of(busy(None, GuestTimer::Sstc));
    type Change = fn(&mut State, &mut VmConfig);
    let cases: [(&str, Change); 36] = [
        ("malformed", |_, config| config.restore = Some(Bytes(vec![0xff; 40]))),
        ("malformed", |_, config| config.restore = Some(Bytes(Vec::new()))),
        ("3 vCPUs, and it is to have 2", |_, config| config.vcpus = 2),
        ("bytes of memory", |_, config| config.memory_bytes *= 2),
        ("impossible time", |state, _| state.told.time = u64::MAX),
        ("its clock counts 1 times", |state, _| state.told.timebase = 1),
        ("have zvbb, which mmu = two-stage does not offer", |state, _| state.told.isa.push("zvbb".into())),
        ("no such names", |state, _| state.told.isa.push("\u{1e}{}\n".into())),
        ("vector registers have 34359738360 bits", |state, _| state.told.vlenb = u32::MAX),
        ("cache blocks", |state, _| state.told.blocks = [64, 0, 0]),
        ("format Sv57", |state, _| state.told.formats.push(10)),
        ("vector registers have 128 bits", |state, _| state.told.vlenb = 16),
        ("svadu = true", |state, _| state.told.svadu = true),
        ("memory balloon", |_, config| config.balloon_bytes = None),
        ("network card", |state, _| state.told.mac = Some(abi::mac::Mac([2; 6]))),
        ("source of random bytes", |_, config| config.rng = true),
        ("virtio console", |_, config| config.virtio_console = true),
        ("other ports", |_, config| config.ports.push("agent".into())),
        ("other shared folders", |state, _| state.told.shares.push("src".into())),
        ("other shared folders", |state, config| {
            state.told.shares.push("src".into());
            config.shares.push(abi::bundle::ShareConfig { number: 3, tag: "lib".into() });
        }),
        ("0 disks, and is to have 1", |_, config| config.disks.push(4)),
        ("1 disks, and is to have 0", |state, _| {
            state.told.disks.push(abi::snapshot::DiskState { sectors: 1, is_read_only: false });
        }),
        ("its disk 0 had 1 sectors, read-only", |state, config| {
            config.disks.push(4);
            state.told.disks.push(abi::snapshot::DiskState { sectors: 1, is_read_only: true });
        }),
        ("5 bytes of vector registers", |state, _| state.vcpus[1].v = Bytes(vec![0; 5])),
        ("page tables of mode 15", |state, _| state.vcpus[1].csrs.satp = u64::MAX),
        ("a root cache that cannot be", |state, _| share(state, (GUEST_RAM_BASE + 8, 4, false))),
        ("a root cache that cannot be", |state, config| share(state, (GUEST_RAM_BASE + config.memory_bytes, 4, false))),
        ("a root cache that cannot be", |state, _| share(state, (0, 4, false))),
        ("a root cache that cannot be", |state, _| share(state, (GUEST_RAM_BASE, 65, false))),
        ("with mmu = two-stage some do", |state, _| share(state, (GUEST_RAM_BASE, 4, true))),
        ("no vCPU of its snapshot is started", |state, _| {
            state.vcpus.iter_mut().for_each(|vcpu| vcpu.is_started = false);
        }),
        ("software events", |state, _| state.events.local[0].state = 9),
        ("software events", |state, _| state.events.global.attributes[3] = 3),
        ("another number of harts", |state, _| state.plic.contexts.clear()),
        ("another device", |state, _| state.devices.swap(0, 1)),
        ("another device", |state, _| state.devices.push(state.devices[0].clone())),
    ];
    for (part, change) in cases {
        let said = refusal(&taken, change);
        assert!(said.contains("vm could not be started: ") && said.contains(part), "no `{part}` in {said}");
    }
}

#[test]
fn a_restored_vm_that_is_to_start_over_ends() {
    let (.., taken, _) = snapshot_of(busy(None, GuestTimer::Sstc));
    let (g, mut hart) = restored(&taken, None, GuestTimer::Sstc, GuestMode::Virtual);
    let vm = g.vms.numbered(0).expect("it is there");
    lifecycle::depart(&g, &vm, Departure::Reboot, &mut hart);
    while lifecycle::go_on(&g, &mut hart) {}
    assert!(g.is_over() && printed().contains("has no kernel: it was restored from a snapshot"));
    assert_eq!(g.frames().free_count(), g.frames().total_count());
}

#[test]
fn wild_registers_are_as_if_the_guest_had_written_them() {
    let (.., mut taken, _) = snapshot_of(busy(None, GuestTimer::Sbi));
    let vcpu = &mut taken.0.vcpus[0];
    (vcpu.x, vcpu.pc, vcpu.fcsr, vcpu.timer) = ([u64::MAX; 32], u64::MAX, u64::MAX, 0);
    (vcpu.csrs.sstatus, vcpu.csrs.satp) = (u64::MAX, 0);
    taken.0.events.unmasked = u64::MAX;
    taken.0.vcpus[1].timer = NEVER;
    taken.0.told.isa.retain(|name| name != "sstc");
    let (g, _hart) = restored(&taken, None, GuestTimer::Sbi, GuestMode::Virtual);
    let runs: Vec<_> = std::iter::from_fn(|| g.sched.take(0)).collect();
    let run = &runs[0];
    assert_eq!((run.context.x[0], run.context.pc, run.bank.float.fcsr), (0, u64::MAX - 1, 0xff));
    let own = status::SIE | status::SPIE | status::SPP | status::VS | status::FS | status::SUM | status::MXR;
    assert_eq!(run.bank.csrs.vsstatus, own | status::UXL_64);
    assert_eq!((run.deadline, run.bank.csrs.hvip & 1 << 6), (u64::MAX, 1 << 6), "one of the past is pending");
    assert_eq!((runs[1].deadline, runs[1].bank.csrs.hvip), (u64::MAX, 0));
}
