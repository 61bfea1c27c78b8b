//! Brief exits: what they come to is what the same exits come to that are not.

use crate::fake::{Event, MEMORY, World, shadow_world, world, write_word as write};
use abi::bundle::{GUEST_ENTRY, GUEST_RAM_BASE, MmuMode};
use hypervisor::device::offer::GuestTimer;
use hypervisor::vm::outcome::{Brief, Known, Outcome};
use hypervisor::vm::vcpu::{NOWHERE, request};
use rv::{Addr, Exception, Exit, Mode};
use sbi_spec::{base, spi, time};
use std::sync::atomic::Ordering::SeqCst;

const VIRTUAL: u64 = Exception::VirtualInstruction.code();
const CALL: u64 = Exception::EcallFromVs.code();
const FAULTS: [u64; 3] = [Exception::FetchPage.code(), Exception::LoadPage.code(), Exception::StorePage.code()];
const DENIED: [u64; 3] = [Exception::FetchAccess.code(), Exception::LoadAccess.code(), Exception::StoreAccess.code()];
const SV39: u64 = 8 << 60;
/// The guest's roots: each maps RAM one to one, by a table of 4 KiB pages.
const ROOTS: [u64; 2] = [GUEST_RAM_BASE, GUEST_RAM_BASE + 0x1000];
const MIDDLE: u64 = GUEST_RAM_BASE + 0x2000;
const LOW: u64 = GUEST_RAM_BASE + 0x3000;

const fn exit(cause: u64, tval: u64) -> Exit {
    Exit { cause, tval, tval2: 0, tinst: 0 }
}

const fn satp(rd: u64, rs1: u64) -> u64 {
    0x180 << 20 | rs1 << 15 | 1 << 12 | rd << 7 | 0x73
}

const fn sfence(rs1: u64, rs2: u64) -> u64 {
    0x1200_0073 | rs2 << 20 | rs1 << 15
}

/// Makes a guest with two roots, in the first of them.
fn paging(mode: MmuMode) -> World {
    let mut w = shadow_world(mode, 1);
    for root in ROOTS {
        write(&mut w, root + 16, MIDDLE >> 2 | 1);
    }
    write(&mut w, MIDDLE, LOW >> 2 | 1);
    for page in 0..512 {
        write(&mut w, LOW + 8 * page, (GUEST_RAM_BASE + (page << 12)) >> 2 | 0xcf);
    }
    write_satp(&mut w, 0);
    w.hart.events.clear();
    w
}

fn root(n: usize) -> u64 {
    SV39 | (n as u64 + 1) << 44 | ROOTS[n] >> 12
}

fn write_satp(w: &mut World, n: usize) {
    w.run.context.x[5] = root(n);
    assert_eq!(w.long_exit(exit(VIRTUAL, satp(0, 5))), Outcome::Resume);
}

/// Returns the state that the guest, and other harts, see after an exit.
fn seen(w: &World) -> impl PartialEq + std::fmt::Debug + use<> {
    let (run, shared) = (&w.run, &w.run.shared);
    let counted: Vec<_> = shared.counters.each().filter(|(name, _)| !name.starts_with("lane.")).collect();
    let registers = (run.context.x, run.context.pc, w.hart.mode, w.hart.regs);
    let translation =
        (run.bank.csrs.vsatp, run.shadow.root.map(|root| (root.paging, root.asid)), shared.satp.load(SeqCst));
    (registers, translation, run.deadline, run.context.lane.log.clone(), counted)
}

#[test]
fn a_brief_exit_comes_to_the_same_as_a_long_one() {
    for mode in [MmuMode::Shadow, MmuMode::Unsync, MmuMode::Lazy, MmuMode::Steered] {
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut one, mut other) = (paging(mode), paging(mode));
        let mut brief = [0; 4];
        for _ in 0..20_000 {
            let page = GUEST_RAM_BASE + 0x8000 + (random(64) << 12);
            let (kind, access) = (random(4) as usize, random(3) as usize);
            let mut x = [0; 32].map(|_: u64| random(u64::MAX));
            let exit = match kind {
                0 => {
                    let causes = if mode == MmuMode::Steered && random(2) == 0 { DENIED } else { FAULTS };
                    let beyond = if random(16) == 0 { MEMORY } else { 0 };
                    exit(causes[access], page + beyond)
                }
                1 => {
                    let (rs1, rs2) = (random(32), random(32));
                    x[rs2 as usize] = random(3);
                    x[rs1 as usize] = page;
                    exit(VIRTUAL, sfence(rs1, rs2))
                }
                2 => {
                    let source = random(32);
                    x[source as usize] = root(random(2) as usize);
                    exit(VIRTUAL, satp(random(32), source))
                }
                _ => {
                    let calls = [(time::EID_TIME, 0), (base::EID_BASE, random(8)), (spi::EID_SPI, 0), (0x1234, 0)];
                    let (extension, function) = calls[random(4) as usize];
                    // An IPI to itself is there at once, or is posted.
                    (x[17], x[16], x[10], x[11]) = (extension as u64, function, 2 * random(2), random(2));
                    exit(CALL, 0)
                }
            };
            x[0] = 0;
            // The guest edits its table now and then, and fences or not.
            let edited = (random(8) == 0).then(|| (LOW + 8 * (8 + random(64)), random(2)));
            let user = random(8) == 0;
            for w in [&mut one, &mut other] {
                if let Some((at, valid)) = edited {
                    write(w, at, (GUEST_RAM_BASE + (((at - LOW) / 8) << 12)) >> 2 | 0xce | valid);
                }
                w.run.context.x = x;
                w.run.context.pc = GUEST_ENTRY;
                w.hart.mode = if user { Mode::User } else { Mode::Supervisor };
            }
            let is_brief = one.run.shared.counters.exits.get();
            let answer = one.brief(exit);
            let outcome = match answer.known() {
                _ if answer == Brief::OVER => Outcome::Resume,
                Some(known) => hypervisor::exit::go_on(&one.g, &mut one.run, known, &mut one.hart),
                None => {
                    assert_eq!(one.run.shared.counters.exits.get(), is_brief, "{exit:x?}: nothing has happened");
                    one.long_exit(exit)
                }
            };
            brief[kind] += u64::from(answer == Brief::OVER);
            assert_eq!(outcome, other.long_exit(exit), "{mode}: {exit:x?}");
            assert_eq!(seen(&one), seen(&other), "{mode}: {exit:x?}");
        }
        assert!(brief.iter().all(|count| *count > 100), "{mode}: {brief:?}");
    }
}

#[test]
fn who_has_the_vms_memory_is_not_waited_for() {
    let mut w = paging(MmuMode::Lazy);
    let page = GUEST_RAM_BASE + 0x9000;
    w.run.context.x[5] = page;
    let exits = [exit(FAULTS[1], page), exit(VIRTUAL, sfence(5, 0))];
    // Its table is known from here on.
    assert_eq!(w.long_exit(exits[0]), Outcome::Resume);
    let before = seen(&w);
    let vm = w.run.vm.clone();
    for exit in exits {
        let guard = vm.memory.lock();
        assert_eq!(w.brief(exit), Brief::NO, "{exit:x?}");
        drop(guard);
        w.run.context.exit = Exit::default();
        assert!(seen(&w) == before, "{exit:x?} has changed something");
    }
    for exit in exits {
        assert_eq!(w.brief(exit), Brief::OVER, "{exit:x?}");
    }
}

#[test]
fn a_root_is_not_loaded_while_something_is_posted() {
    let mut w = paging(MmuMode::Shadow);
    write_satp(&mut w, 1);
    write_satp(&mut w, 0);
    w.run.context.x[5] = root(1);
    let load = exit(VIRTUAL, satp(0, 5));
    w.run.shared.posted.store(request::FENCES, SeqCst);
    assert_eq!(w.brief(load), Brief::NO, "its sender may have seen the other root");
    assert_eq!((w.run.shared.satp.load(SeqCst), w.run.bank.csrs.vsatp), (root(0), root(0)));
    w.run.shared.posted.store(0, SeqCst);
    assert_eq!(w.brief(load), Brief::OVER);
    assert_eq!((w.run.shared.satp.load(SeqCst), w.run.bank.csrs.vsatp), (root(1), root(1)));
    // Not one over which a fence has passed.
    w.run.context.x[6] = GUEST_RAM_BASE;
    assert_eq!(w.long_exit(exit(VIRTUAL, sfence(6, 0))), Outcome::Resume);
    w.run.context.x[5] = root(0);
    assert_eq!(w.brief(load), Brief::NO);
}

#[test]
fn a_register_that_a_call_preserves_gets_nothing() {
    let mut w = paging(MmuMode::Shadow);
    w.run.context.x[5] = root(0);
    assert_eq!(w.brief(exit(VIRTUAL, satp(10, 5))), Brief::OVER);
    assert_eq!(w.run.context.x[10], root(0));
    for register in [8, 9, 18, 27] {
        assert_eq!(w.brief(exit(VIRTUAL, satp(register, 5))), Brief::NO);
    }
}

#[test]
fn an_ipi_to_who_waits_is_not_brief() {
    let mut w = world(3, GuestTimer::Sstc);
    let vcpus = w.run.vm.vcpus.clone();
    let call = |w: &mut World, mask: u64, first: u64| {
        (w.run.context.x[17], w.run.context.x[16]) = (spi::EID_SPI as u64, 0);
        (w.run.context.x[10], w.run.context.x[11]) = (mask, first);
        w.hart.events.clear();
        w.brief(exit(CALL, 0))
    };
    vcpus[1].hart.store(1, SeqCst);
    assert_eq!(call(&mut w, 0b11, 0), Brief::OVER);
    assert_eq!(w.hart.events, [Event::SoftwareInterrupt(true), Event::Ipi(1)]);
    assert_eq!(w.run.shared.counters.inject_software.get(), 2);
    vcpus[1].hart.store(NOWHERE, SeqCst);
    vcpus[1].waiting.store(1, SeqCst);
    assert_eq!(call(&mut w, 0b10, 0), Brief::NO);
    vcpus[1].waiting.store(NOWHERE, SeqCst);
    assert_eq!(call(&mut w, 0b1000, 0), Brief::NO, "there is no such vCPU");
    assert_eq!(w.run.shared.counters.inject_software.get(), 2, "counted when it is sent");
}

#[test]
fn what_is_known_fits_a_register() {
    for known in [
        Known::Fault,
        Known::NoRam(Addr::new((1 << 56) - 1)),
        Known::NoRam(Addr::new(0)),
        Known::Sends { rs: 31, length: 4 },
        Known::Sends { rs: 0, length: 2 },
    ] {
        let brief = Brief::not(known);
        assert_eq!(brief.known(), Some(known));
        assert!(brief != Brief::NO && brief != Brief::OVER);
    }
    assert_eq!((Brief::NO.known(), Brief::OVER.known()), (None, None));
}
