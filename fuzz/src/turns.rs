//! A vCPU that steers, on shadow tables alone or on them and behind its G-stage by turns: whatever its tables say, whatever it does about its
//! translation and whenever it is looked at, none of it panics, and it is never on its way into its guest without a root of its own.

use crate::fake::{World, printed, shadow_world, write};
use abi::bundle::{GUEST_RAM_BASE, MmuMode};
use abi::record::EndReason;
use arbitrary::{Arbitrary, Result, Unstructured};
use hypervisor::exit::watch;
use hypervisor::vm::Departure;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::{ANY_SPACE, Tables};
use mmu::shadow::GuestFence;
use rv::csr::status;
use rv::{Addr, Asid, Exit, Mode};
use std::sync::atomic::Ordering::SeqCst;

/// The first of the guest's tables; they are the first pages of its RAM.
const ROOT: u64 = GUEST_RAM_BASE >> 12;
const TABLES: u64 = 5;
/// An entry that leads to RAM as a gigapage.
const GIGA: u64 = ROOT << 10 | 0xcf;
/// Between two looks for stuck guests, in ticks.
const SECOND: u64 = 10_000_000;
/// a0 is the operand of instructions.
const A0: usize = 10;
/// `csrw satp, a0`; `csrrs a1, satp, a0`; `csrr a1, satp`; `sfence.vma` of everything, of an address, of an ASID, of both.
const INSTRUCTIONS: [u64; 7] =
    [0x1805_1073, 0x1805_25f3, 0x1800_25f3, 0x1200_0073, 0x1205_0073, 0x12a0_0073, 0x12b5_0073];
/// Page faults, access faults, guest-page faults.
const FAULTS: [u64; 9] = [12, 13, 15, 1, 5, 7, 20, 21, 23];

fn satp(u: &mut Unstructured<'_>) -> Result<u64> {
    let (asid, root) = (u.int_in_range(0..=3u64)?, u.int_in_range(0..=TABLES)?);
    // Mostly Sv39, sometimes none, or one that is not offered.
    let mode = *u.choose(&[8, 8, 8, 8, 8, 8, 0, 9])?;
    Ok(mode << 60 | asid << 44 | (ROOT + root))
}

/// An address that tables of three levels may say something about.
fn address(u: &mut Unstructured<'_>) -> Result<u64> {
    let mut index = |most: u64| u.int_in_range(0..=most);
    Ok(index(3)? << 30 | index(2)? << 21 | index(3)? << 12 | index(511)? << 3)
}

/// An entry: a leaf or a pointer, into RAM and the tables or beyond.
fn entry(u: &mut Unstructured<'_>) -> Result<u64> {
    let frame = if u.ratio(3, 4)? { ROOT + u.int_in_range(0..=TABLES + 3)? } else { u64::arbitrary(u)? >> 20 };
    Ok(frame << 10 | u64::from(u8::arbitrary(u)?))
}

fn range(u: &mut Unstructured<'_>) -> Result<GuestFence> {
    let range = if u.arbitrary()? { Some((Addr::new(address(u)?), u.int_in_range(0..=1 << 20)?)) } else { None };
    let asid = if u.arbitrary()? { Some(Asid(u.int_in_range(0..=3)?)) } else { None };
    Ok(GuestFence { range, asid })
}

/// Makes one step of the vCPU. Returns whether the VM still runs.
fn step(w: &mut World, u: &mut Unstructured<'_>) -> Result<bool> {
    let translation = w.run.vm.translation;
    w.hart.time += u64::from(u.int_in_range(0..=2000u16)?);
    let outcome = match u.int_in_range(0..=7)? {
        0 | 1 => {
            w.hart.mode = Mode::Supervisor;
            w.run.context.x[A0] = if u.arbitrary()? { satp(u)? } else { address(u)? };
            w.run.context.x[A0 + 1] = u.int_in_range(0..=3)?;
            exit(w, 22, *u.choose(&INSTRUCTIONS)?)
        }
        2 | 3 => {
            w.hart.mode = if u.arbitrary()? { Mode::Supervisor } else { Mode::User };
            w.hart.regs.vsstatus = if u.arbitrary()? { status::SUM | status::MXR } else { 0 };
            exit(w, *u.choose(&FAULTS)?, address(u)?)
        }
        4 => {
            // A guest's stores to its tables are not trapped, with either kind of tables.
            let (table, index) = (u.int_in_range(0..=TABLES - 1)?, u.int_in_range(0..=3u64)?);
            let (vm, at) = (w.run.vm.clone(), (ROOT + table) << 12 | index << 3);
            let stored = write(&w.g, &vm, Addr::new(at), &entry(u)?.to_le_bytes(), &mut w.hart);
            assert!(stored.is_ok(), "{stored:?}");
            Outcome::Resume
        }
        5 => {
            let fence = range(u)?;
            translation.fence(&w.g, &mut w.run, &fence, &mut w.hart);
            Outcome::Resume
        }
        6 => {
            let is_elsewhere = u.arbitrary()?;
            reload(w, is_elsewhere)
        }
        _ => {
            if w.run.tables == Tables::TwoStage && u.arbitrary()? {
                w.hart.vsatp = satp(u)?;
            }
            w.hart.time = w.hart.time.max(w.run.watch.due());
            let now = w.hart.time;
            let stuck = watch::look(&w.g, &mut w.run, (now, SECOND), &mut w.hart);
            assert!(w.run.watch.due() > w.hart.time, "it is looked at again before it has run");
            return Ok(stuck.is_none());
        }
    };
    match outcome {
        Outcome::Depart(Departure::End(EndReason::Killed { message })) => {
            assert!(w.hart.mode != Mode::User, "user mode ended its VM: {message}; {:x?}", w.run.context.exit);
            Ok(false)
        }
        Outcome::Depart(_) | Outcome::Stop => Ok(false),
        _ => Ok(true),
    }
}

fn exit(w: &mut World, cause: u64, tval: u64) -> Outcome {
    w.run.context.exit = Exit { cause, tval, tval2: tval >> 2, tinst: 0 };
    hypervisor::exit::handle(&w.g, &mut w.run, &mut w.hart)
}

/// Moves the vCPU off its hart and to another one, or back to the same.
fn reload(w: &mut World, is_elsewhere: bool) -> Outcome {
    let translation = w.run.vm.translation;
    translation.unload(&mut w.run, &w.hart);
    if is_elsewhere {
        w.run.last_hart = 1;
    }
    let loaded = translation.load(&w.g, &mut w.run, &mut w.hart);
    w.run.last_hart = 0;
    loaded.map_or_else(|outcome| outcome, |()| Outcome::Resume)
}

/// OWNERSHIP: what stands between the guest and memory is there, and others know by what it runs. Says whether the VM goes on.
fn enters(w: &mut World) -> bool {
    let mut loads = 0;
    // As a hart does: it has no root where one takes longer than an exit may.
    while !w.run.vm.translation.may_enter(&w.run) {
        loads += 1;
        assert!(loads < 100, "it gets no root");
        if reload(w, false) != Outcome::Resume {
            return false;
        }
    }
    let (is_nested, has_root) = (w.run.tables == Tables::TwoStage, w.run.shadow.root.is_some());
    assert!(is_nested != has_root, "nested: {is_nested}, with a shadow root: {has_root}");
    assert_eq!(is_nested, w.run.shared.satp.load(SeqCst) == ANY_SPACE, "nested: {is_nested}");
    true
}

/// Runs a vCPU through exits and changes between its modes.
pub fn turns(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let what = u8::arbitrary(&mut u).unwrap_or(0);
    let mode = if what & 3 == 0 { MmuMode::Steered } else { MmuMode::Adaptive };
    let mut w = shadow_world(mode, 2);
    let at_random = if what & 4 == 0 { "adapt-at-random=off" } else { "adapt-at-random=on" };
    [at_random, "adapt-look=100"].into_iter().for_each(|set| w.g.tunables.set(set).expect("a tunable"));
    w.hart.load_ticks = if what & 8 == 0 { 0 } else { 5000 };
    w.run.last_hart = 0;
    let vm = w.run.vm.clone();
    for table in 0..TABLES {
        let at = Addr::new(((ROOT + table) << 12) + 16);
        write(&w.g, &vm, at, &GIGA.to_le_bytes(), &mut w.hart).expect("there is RAM");
    }
    let now = w.hart.time;
    w.run.watch.load(now, SECOND, 1);
    while enters(&mut w) && !u.is_empty() && step(&mut w, &mut u).unwrap_or(false) {
        w.hart.events.clear();
    }
    printed();
}
