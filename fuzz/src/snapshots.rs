//! Snapshots: what the reader makes of a file, and Gnomon of a state.

use crate::fake::{self, Hart, machine, printed, start_due, vm_config};
use abi::bundle::{MmuMode, VmConfig};
use abi::control::frame::{Reader as Frames, decode, encode};
use abi::control::save::Save;
use abi::control::{Answer, MOST_ANSWER_BYTES, Request};
use abi::mac::Mac;
use abi::record::EndReason;
use abi::snapshot::bytes::Bytes;
use abi::snapshot::file::{MOST_PAGES, PAGE, Part, Reader, Writer};
use abi::snapshot::{MOST_STATE_BYTES, State};
use arbitrary::{Arbitrary, Result, Unstructured};
use hypervisor::control;
use hypervisor::device::Target;
use hypervisor::device::offer::{GuestMode, GuestTimer};
use hypervisor::device::{Answer as Reply, Device};
use hypervisor::gnomon::Gnomon;
use hypervisor::io::host_events;
use hypervisor::io::outside::{Output, Reach};
use hypervisor::life::lifecycle;
use hypervisor::machine::isa::Isa;
use hypervisor::vm::Departure;
use hypervisor::vm::vcpu::request;
use rv::Exit;
use std::cell::RefCell;
use std::sync::atomic::Ordering;

/// Whatever a file is: no more is asked for than there may be, pages ascend within RAM, and a state that is read is written and read again
/// as the same.
fn read(mut file: &[u8]) {
    let (mut reader, mut ram, mut next) = (Reader::default(), 0, 0);
    loop {
        let wants = reader.wants();
        assert!(wants <= MOST_STATE_BYTES);
        let Some((piece, rest)) = file.split_at_checked(wants) else { return };
        file = rest;
        match reader.take(piece) {
            Err(why) => {
                assert!(!why.to_string().is_empty());
                return;
            }
            Ok(Part::Nothing) => {}
            Ok(Part::State(state)) => {
                assert_eq!(State::decode(&state.encode()).as_ref(), Some(&*state));
                ram = state.told.memory_bytes / PAGE as u64;
            }
            Ok(Part::Pages { first, bytes }) => {
                assert!(first >= next && !bytes.is_empty() && bytes.len() <= MOST_PAGES * PAGE);
                next = first + (bytes.len() / PAGE) as u64;
                assert!(next <= ram, "behind the end of RAM");
            }
            Ok(Part::End) => return,
        }
    }
}

/// A file of which each sum is right but what was changed behind.
fn file(u: &mut Unstructured<'_>, state: &[u8]) -> Result<Vec<u8>> {
    let state = if u.ratio(1, 4)? { Vec::arbitrary(u)? } else { patched(u, state)? };
    let (mut writer, mut file) = Writer::begin(&state);
    for _ in 0..u.int_in_range(0..=4)? {
        let first = if u.ratio(1, 8)? { u.arbitrary()? } else { u.int_in_range(0..=0x900)? };
        let pages = vec![7; u.int_in_range(0..=3)? * PAGE];
        file.extend(writer.pages(first, &pages));
        file.extend(pages);
    }
    file.extend(writer.end());
    if u.ratio(1, 2)? {
        let at = u.choose_index(file.len())?;
        file[at] ^= u.arbitrary::<u8>()?;
    }
    Ok(file)
}

/// Bytes with some changed.
fn patched(u: &mut Unstructured<'_>, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    for _ in 0..u.int_in_range(0..=12)? {
        let at = u.choose_index(bytes.len())?;
        match u.int_in_range(0..=5)? {
            0 => bytes[at] = 0,
            1 => bytes.insert(at, u.arbitrary()?),
            2 => _ = bytes.remove(at),
            _ => bytes[at] = u.arbitrary()?,
        }
    }
    Ok(bytes)
}

/// The reader of files.
pub fn snapshot(data: &[u8]) {
    read(data);
    let mut u = Unstructured::new(data);
    let file = STAGE.with_borrow(|stage| file(&mut u, &stage.state));
    file.iter().for_each(|file| read(file));
}

const VCPUS: u32 = 2;

/// A machine on which VMs go on, one after the other, and the state of one.
struct Stage {
    g: Gnomon,
    hart: Hart,
    state: Vec<u8>,
}

thread_local! {
    static STAGE: RefCell<Stage> = RefCell::new(Stage::new());
}

fn config() -> VmConfig {
    VmConfig {
        svvptc: false,
        balloon_bytes: Some(1 << 20),
        disks: vec![3],
        mac: Some(Mac([2, 0, 0, 0, 0, 1])),
        segments: Vec::new(),
        ..vm_config("vm", VCPUS)
    }
}

fn ask(g: &Gnomon, hart: &mut Hart, vm: u64, wish: Save) -> Answer {
    let frame = Frames::new(MOST_ANSWER_BYTES).next(&mut encode(1, &Request::Save(vm, wish)).as_slice());
    let answer = control::answer_frame(g, frame.expect("whole"), hart).expect("it is a request");
    assert!(answer.len() <= MOST_ANSWER_BYTES);
    let answer = Frames::new(MOST_ANSWER_BYTES).next(&mut answer.as_slice()).expect("whole");
    decode(&answer.expect("no longer than is said")).expect("an answer").1
}

impl Stage {
    /// The state is that of a VM that has just started, with drivers for its disk and its card.
    fn new() -> Self {
        let (mut g, mut hart) = machine(vec![config()], 1, GuestTimer::Sbi);
        (g.offer.two_stage_svadu, g.offer.isa) = (true, Isa::from_isa_string("rv64imafdc"));
        start_due(&g, &mut hart);
        let run = g.sched.take(0).expect("it is ready");
        let vm = run.vm.clone();
        for device in 1..=3 {
            let devices = &vm.devices;
            let mut outside = Reach::new(&g, &vm, &mut hart, Output::Leave);
            // A driver sets it up, with its first queue.
            for (offset, value) in [
                (0x070, 3),
                (0x024, 1),
                (0x020, 1),
                (0x070, 11),
                (0x038, 8),
                (0x080, 0x8010_0000),
                (0x090, 0x8010_1000),
                (0x0a0, 0x8010_2000),
                (0x044, 1),
                (0x070, 15),
            ] {
                let _: Reply<()> = devices.store(Target::Device(device), (offset, 4), value, &mut outside);
            }
        }
        assert_eq!(ask(&g, &mut hart, 0, Save::Begin), Answer::Later);
        run.shared.posted.fetch_and(!request::PAUSE, Ordering::SeqCst);
        g.sched.stopped();
        lifecycle::put_aside(&g, run, &mut hart);
        let Answer::Saving(saving) = ask(&g, &mut hart, 0, Save::Begin) else { panic!("it stands still") };
        let Answer::State(state) = ask(&g, &mut hart, 0, Save::State { id: saving.id, from: 0 }) else {
            panic!("some")
        };
        assert_eq!(state.0.len(), saving.state_bytes as usize, "it is short");
        fake::end_all(&g, &EndReason::Poweroff, &mut hart);
        Self { g, hart, state: state.0 }
    }
}

/// Restores a VM from any state: it is refused, or runs with what a guest could have done to it by itself. It ends with
/// all its memory given back.
pub fn restore(data: &[u8]) {
    let mut u = Unstructured::new(data);
    STAGE.with_borrow_mut(|stage| {
        let _ = go_on(&mut u, stage);
        printed();
    });
}

fn go_on(u: &mut Unstructured<'_>, Stage { g, hart, state }: &mut Stage) -> Result<()> {
    let modes = [None, Some(MmuMode::TwoStage), Some(MmuMode::Lazy), Some(MmuMode::Steered), Some(MmuMode::Shadow)];
    let mmu = *u.choose(&modes)?;
    g.offer.guest = if u.ratio(1, 4)? { GuestMode::Supervisor } else { GuestMode::Virtual };
    g.offer.timer = if u.arbitrary()? { GuestTimer::Sstc } else { GuestTimer::Sbi };
    let restore = Some(Bytes(patched(u, state)?));
    g.vms.wish(VmConfig { mmu, restore, ..config() }, &g.offer);
    start_due(g, hart);
    let started: Vec<_> = std::iter::from_fn(|| g.sched.take(0)).collect();
    assert!(started.len() <= VCPUS as usize);
    if let Some(vm) = started.first().map(|run| run.vm.clone()) {
        let acted = act(u, g, hart, &vm);
        let mut loaded = Vec::new();
        for mut run in started {
            run.shared.posted.store(0, Ordering::SeqCst);
            if run.vm.translation.load(g, &mut run, hart).is_ok() && acted.is_ok() {
                run.context.exit = Exit { cause: 10, ..Exit::default() };
                let _ = hypervisor::exit::handle(g, &mut run, hart);
            }
            loaded.push(run);
        }
        fake::depart(g, &vm, Departure::End(EndReason::Poweroff), hart);
        for run in loaded {
            g.sched.stopped();
            fake::park(g, run, hart);
        }
    }
    while lifecycle::go_on(g, hart) {}
    assert!(g.is_over(), "it is gone");
    assert_eq!(g.frames().free_count(), g.frames().total_count(), "with all that it had");
    g.vms.reports().clear();
    hart.events.clear();
    Ok(())
}

/// Actions of drivers and of the world.
fn act(u: &mut Unstructured<'_>, g: &Gnomon, hart: &mut Hart, vm: &hypervisor::vm::Vm) -> Result<()> {
    for _ in 0..u.int_in_range(0..=12)? {
        let count = vm.devices.all().iter().map(Device::source).count();
        let at = u.int_in_range(0..=count)?;
        let target = if at == count { Target::Plic } else { Target::Device(at) };
        let offset = if target == Target::Plic { u.int_in_range(0..=0x20_4000)? } else { u.int_in_range(0..=0x120)? };
        let (width, value) = (*u.choose(&[1, 2, 4, 4, 4])?, u.arbitrary()?);
        let devices = &vm.devices;
        let bytes = if target == Target::Device(0) { 8 } else { 0x200 };
        if target != Target::Plic && offset + u64::from(width) > bytes {
            continue;
        }
        let mut outside = Reach::new(g, vm, hart, Output::Leave);
        if u.arbitrary()? {
            let _ = devices.load(target, offset, width, &mut outside);
        } else {
            let _ = devices.store(target, (offset, width), value, &mut outside);
        }
        if u.ratio(1, 4)? {
            hart.time += u.int_in_range(0..=10_000)?;
            host_events::go_on(g, u64::MAX, hart);
        }
    }
    Ok(())
}
