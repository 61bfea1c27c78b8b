//! Exits of guests on shadow tables, handled on a host.

use crate::fake::{self, Event, MEMORY, World, printed, read_word as read, shadow_world, write_word as write};
use abi::bundle::{GUEST_ENTRY, GUEST_RAM_BASE, MmuMode};
use abi::root_cache::{EXTENSION, NO_PAGE, SET_PAGE, bytes};
use hypervisor::device::uart::START as UART;
use hypervisor::vm::outcome::{Brief, Known, Outcome};
use hypervisor::vm::vcpu::NO_SPACE;
use lane::LaneRoot;
use mmu::ids::IdSlot;
use mmu::shadow::GuestFence;
use rv::csr::status;
use rv::{Addr, Exception, Exit, Mode};
use std::sync::atomic::Ordering;

const VIRTUAL: u64 = Exception::VirtualInstruction as u64;
const LOAD: u64 = Exception::LoadPage as u64;
const STORE: u64 = Exception::StorePage as u64;
/// The guest's root: the first page of RAM. Its entry 2 is a gigapage over RAM.
const ROOT: u64 = GUEST_RAM_BASE >> 12;
const SV39: u64 = 8 << 60;
const A0: usize = 10;
const A1: usize = 11;

/// Encodes CSR instructions on `satp`: funct3, the source in rs1, a1 in rd.
const fn satp(funct3: u64, source: u64) -> u64 {
    0x180 << 20 | source << 15 | funct3 << 12 | (A1 as u64) << 7 | 0x73
}

/// Encodes `sfence.vma` with these registers.
const fn sfence(rs1: u64, rs2: u64) -> u64 {
    0x1200_0073 | rs2 << 20 | rs1 << 15
}

/// Makes a guest with paging on, and RAM mapped one to one.
fn paging(mode: MmuMode) -> World {
    let mut w = shadow_world(mode, 1);
    write(&mut w, GUEST_RAM_BASE + 16, ROOT << 10 | 0xcf);
    w.run.context.x[A0] = SV39 | 5 << 44 | ROOT;
    assert_eq!(w.exit(VIRTUAL, satp(1, A0 as u64), 0, 0), Outcome::Resume);
    w.hart.events.clear();
    w
}

#[test]
fn satp_is_what_the_guest_wrote() {
    let mut w = paging(MmuMode::Lazy);
    assert_eq!((w.run.bank.csrs.vsatp, w.run.context.x[A1]), (SV39 | 5 << 44 | ROOT, 0));
    assert_eq!(w.run.context.pc, GUEST_ENTRY + 4);
    assert_eq!(w.run.shared.satp.load(Ordering::SeqCst), SV39 | 5 << 44 | ROOT);
    let cases = [
        (2, 0, 0, SV39 | 5 << 44 | ROOT),               // csrrs x0: a read
        (2, A0, 2 << 44, SV39 | 7 << 44 | ROOT),        // sets
        (3, A0, 1 << 44, SV39 | 6 << 44 | ROOT),        // clears
        (6, 1, 0, SV39 | 6 << 44 | ROOT | 1),           // sets an immediate
        (7, 1, 0, SV39 | 6 << 44 | ROOT),               // clears one
        (1, A0, 9 << 60 | ROOT, SV39 | 6 << 44 | ROOT), // a format that the harts lack: no effect
        (5, 0, 0, 0),                                   // csrrwi 0: paging off
    ];
    for (funct3, source, operand, now) in cases {
        let before = w.run.bank.csrs.vsatp;
        w.run.context.x[A0] = operand;
        assert_eq!(w.exit(VIRTUAL, satp(funct3, source as u64), 0, 0), Outcome::Resume);
        assert_eq!((w.run.bank.csrs.vsatp, w.run.context.x[A1]), (now, before), "funct3 {funct3}");
        assert!(w.run.shadow.root.is_some());
    }
    assert_eq!(w.run.shared.satp.load(Ordering::SeqCst), NO_SPACE);
}

#[test]
fn a_page_that_the_kernel_shares_has_the_roots_that_the_lane_changes_to() {
    const AT: u64 = GUEST_RAM_BASE + 0x5000;
    let root = |asid: u64| SV39 | asid << 44 | ROOT;
    for (mode, has_lane) in [(MmuMode::Lazy, true), (MmuMode::Steered, true), (MmuMode::Shadow, false)] {
        let mut w = paging(mode);
        let change = |w: &mut World, satp_to: u64| {
            w.run.context.x[A0] = satp_to;
            assert_eq!(w.exit(VIRTUAL, satp(1, A0 as u64), 0, 0), Outcome::Resume);
        };
        let entries = |w: &mut World| [0, 16, 32].map(|at| (read(w, AT + 64 + at), read(w, AT + 72 + at)));
        let shown = |roots: [u64; 3]| roots.map(|root| if has_lane { (root, root) } else { (0, 0) });
        write(&mut w, AT, 1);
        write(&mut w, AT + 8, bytes(2));
        write(&mut w, AT + 96, 0x3e57);
        assert_eq!(w.sbi(EXTENSION, SET_PAGE as u64, &[AT, 0, 0]), (0, 0), "{mode:?}");
        let places = if has_lane { 2 } else { 0 };
        assert_eq!([0, 8, 16].map(|at| read(&mut w, AT + at)), [1 | 1 << 32, 1 << 32 | bytes(2), places], "{mode:?}");
        // It is there from the start, if there is one; what is not shared stays as it was.
        assert_eq!(entries(&mut w)[..2], shown([root(5), 0, 0])[..2], "{mode:?}");
        assert_eq!(read(&mut w, AT + 96), 0x3e57);
        change(&mut w, root(6));
        assert_eq!(entries(&mut w)[..2], shown([root(5), root(6), 0])[..2], "{mode:?}");
        change(&mut w, root(7));
        // The oldest is gone, and whatever the lane loads no more: such a small VM has few roots that are held.
        let other = if w.run.shadow.views.lane_loads(root(6)) { root(6) } else { 0 };
        assert_eq!(entries(&mut w)[..2], shown([root(7), other, 0])[..2], "{mode:?}");
        w.run.shadow.views.forget_ids();
        change(&mut w, root(8));
        assert_eq!(entries(&mut w)[..2], shown([root(8), 0, 0])[..2], "{mode:?}");
        assert_eq!(w.sbi(EXTENSION, SET_PAGE as u64, &[NO_PAGE, NO_PAGE, 0]), (0, 0));
        change(&mut w, root(9));
        assert_eq!(entries(&mut w)[..2], shown([root(8), 0, 0])[..2], "{mode:?}: it is shared no more");
    }
}

#[test]
fn user_mode_may_do_nothing_of_this() {
    let mut w = paging(MmuMode::Lazy);
    for insn in [satp(1, A0 as u64), sfence(0, 0), sfence(A0 as u64, 0)] {
        w.hart.mode = Mode::User;
        w.run.context.pc = GUEST_ENTRY;
        assert_eq!(w.exit(VIRTUAL, insn, 0, 0), Outcome::Resume);
        assert_eq!((w.hart.regs.vscause, w.hart.regs.vstval), (2, insn));
    }
}

#[test]
fn fences_reach_this_harts_tlb_as_far_as_they_must() {
    let mut w = paging(MmuMode::Lazy);
    w.run.context.x[A0] = GUEST_RAM_BASE + 0x5123;
    let page = Some(Addr::new(GUEST_RAM_BASE + 0x5000));
    for (insn, asid, event) in [
        (sfence(10, 11), 5, Event::GuestFence(page, None)),
        (sfence(10, 0), 5, Event::GuestFence(page, None)),
        (sfence(0, 11), 5, Event::GuestRootFence),
        (sfence(0, 11), 6, Event::GuestFence(None, None)),
        (sfence(0, 0), 5, Event::GuestFence(None, None)),
    ] {
        w.run.context.x[A1] = asid;
        w.hart.events.clear();
        assert_eq!(w.exit(VIRTUAL, insn, 0, 0), Outcome::Resume);
        assert!(w.hart.events.contains(&event), "{insn:#x}: {:?}", w.hart.events);
    }
    let c = &w.run.shared.counters;
    let counts = [&c.fences_page, &c.fences_page_global, &c.fences_asid, &c.fences_all].map(|c| c.get());
    assert_eq!(counts, [1, 1, 2, 1]);
}

#[test]
fn page_faults_are_the_guests_or_gnomons() {
    let mut w = paging(MmuMode::Lazy);
    let (mapped, unmapped) = (GUEST_RAM_BASE + 0x3000, 0x1000);
    assert_eq!(w.exit(LOAD, mapped, 0, 0), Outcome::Resume);
    assert_eq!(w.run.shared.counters.inject_exception.get(), 0);
    let pc = w.run.context.pc;
    assert_eq!(w.exit(LOAD, unmapped, 0, 0), Outcome::Resume);
    assert_eq!((w.hart.regs.vscause, w.hart.regs.vstval, w.hart.regs.vsepc), (13, unmapped, pc));
    // A user access to a supervisor page, and one the other way round without SUM.
    w.hart.mode = Mode::User;
    assert_eq!(w.exit(STORE, mapped, 0, 0), Outcome::Resume);
    assert_eq!((w.hart.regs.vscause, w.hart.regs.vsstatus & status::SPP), (15, 0));
    // Beyond RAM: an access fault.
    let beyond = GUEST_RAM_BASE + MEMORY;
    assert_eq!(w.exit(LOAD, beyond, 0, 0), Outcome::Resume);
    assert_eq!((w.hart.regs.vscause, w.hart.regs.vstval), (5, beyond));
}

#[test]
fn stores_to_protected_tables_are_emulated_where_they_can_be() {
    for (mode, emulated) in [(MmuMode::Shadow, true), (MmuMode::Unsync, true), (MmuMode::Lazy, false)] {
        let mut w = paging(mode);
        // The root is a table; a gigapage makes it reachable. sd a1, 0(a0); a0 is its entry 3.
        let entry = GUEST_RAM_BASE + 24;
        (w.run.context.x[A0], w.run.context.x[A1]) = (entry, 0x1234 << 10 | 1);
        let pc = w.run.context.pc;
        let sd = 0x00b0_3023;
        assert_eq!(w.exit(STORE, entry, 0, sd), Outcome::Resume);
        let done = w.run.context.pc == pc + 4;
        assert_eq!(done, emulated, "{mode}");
        assert_eq!(read(&mut w, entry), if done { 0x1234 << 10 | 1 } else { 0 }, "{mode}");
        // A store-conditional is the guest's own affair: the page is let go, and the guest tries again.
        let pc = w.run.context.pc;
        let sc = 0x18b0_352f;
        assert_eq!(w.exit(STORE, entry, 0, sc), Outcome::Resume);
        assert_eq!(w.run.context.pc, pc, "{mode}");
    }
}

/// Makes a world whose vCPU has just stored to the UART at `ALIAS`, by `sb a1, 0(a0)` at its entry, and is about to do
/// so again.
fn after_a_byte(tinst: u64) -> (World, Exit) {
    let mut w = paging(MmuMode::Lazy);
    // A gigapage over the first GiB: the UART, one to one.
    write(&mut w, GUEST_RAM_BASE, 0xcf);
    let vm = w.run.vm.clone();
    let code = [SB as u32; 8].map(u32::to_le_bytes);
    fake::write(&w.g, &vm, Addr::new(GUEST_ENTRY), code.as_flattened(), &mut w.hart).unwrap();
    w.run.context.pc = GUEST_ENTRY;
    (w.run.context.x[A0], w.run.context.x[A1]) = (UART, u64::from(b'A'));
    let exit = Exit { cause: STORE, tval: UART, tval2: 0, tinst };
    let there = Known::NoRam(Addr::new(UART));
    assert_eq!(w.brief(exit).known(), Some(there), "the way is not known yet");
    assert_eq!(w.exit(STORE, UART, 0, tinst), Outcome::Resume);
    (w, exit)
}

const SB: u64 = 0x00b5_0023;
/// [`SB`], transformed.
const SB_TRANSFORMED: u64 = 0x00b0_0023;

#[test]
fn a_vcpu_remembers_its_way_to_the_uart() {
    for tinst in [SB_TRANSFORMED, 0] {
        let (mut w, exit) = after_a_byte(tinst);
        for count in 2..5 {
            assert_eq!(w.brief(exit), Brief::OVER);
            let c = &w.run.shared.counters;
            assert_eq!((c.exits.get(), c.exits_page_fault.get(), c.mmio_uart.get()), (count + 1, count, count));
            assert_eq!(c.mmio_decoded.get(), if tinst == 0 { count } else { 0 });
            assert_eq!(w.run.context.pc, GUEST_ENTRY + 4 * count);
        }
        // A line that ends has to leave: that is no brief exit, but it is known what it is.
        w.run.context.x[A1] = u64::from(b'\n');
        let sends = w.brief(exit);
        assert_eq!(sends.known(), Some(Known::Sends { rs: A1 as u8, length: 4 }));
        assert_eq!(w.exit(STORE, UART, 0, tinst), Outcome::Resume);
        assert_eq!(w.run.context.pc, GUEST_ENTRY + 20);
        let c = &w.run.shared.counters;
        assert_eq!((c.exits_page_fault.get(), c.mmio_uart.get(), c.faults_mmio.get()), (5, 5, 5));
        hypervisor::io::host_events::go_on(&w.g, 1, &mut w.hart);
        assert!(printed().ends_with("AAAA\r\n"));
    }
}

#[test]
fn a_way_is_not_for_others_and_ends_with_each_fence() {
    type Change = fn(&mut World);
    let with_h: [(&str, Change); 8] = [
        ("user mode", |w| w.hart.mode = Mode::User),
        ("another space", |w| w.run.bank.csrs.vsatp ^= 1 << 44),
        ("the lane's fence", |w| w.run.context.lane.log.push(Addr::new(0))),
        ("a fence of all", |w| {
            w.exit(VIRTUAL, sfence(0, 0), 0, 0);
        }),
        ("a fence of a page", |w| {
            w.exit(VIRTUAL, sfence(A0 as u64, 0), 0, 0);
        }),
        ("a fence of an ASID", |w| {
            w.exit(VIRTUAL, sfence(0, A0 as u64), 0, 0);
        }),
        ("another vCPU's fence", |w| {
            let fence = GuestFence { range: None, asid: None };
            let translation = w.run.vm.translation;
            translation.fence(&w.g, &mut w.run, &fence, &mut w.hart);
        }),
        ("a new life", |w| {
            let translation = w.run.vm.translation;
            translation.forget(&mut w.run);
        }),
    ];
    let without_h: [(&str, Change); 5] = [
        ("its tables were edited", |w| _ = w.run.vm.tlb.edits.fetch_add(1, Ordering::SeqCst)),
        ("it is another instruction", |w| write(w, GUEST_ENTRY, SB | (SB | 1 << 12) << 32)),
        ("it goes elsewhere", |w| w.run.context.x[A0] += 1),
        ("the code is in another page", |w| w.run.context.pc += 4096),
        ("and not all in one", |w| w.run.context.pc = GUEST_ENTRY + 4094),
    ];
    let both = with_h.iter().flat_map(|change| [(0, change), (SB_TRANSFORMED, change)]);
    for (tinst, (what, change)) in both.chain(without_h.iter().map(|change| (0, change))) {
        let (mut w, exit) = after_a_byte(tinst);
        change(&mut w);
        // What is found out there, it does not remember.
        let brief = w.brief(exit);
        assert!(!matches!(brief.known(), Some(Known::Sends { .. })) && brief != Brief::OVER, "{what}");
    }
    // Nor is one remembered that user mode, or SUM, may have opened.
    for change in [(|w| w.hart.mode = Mode::User) as Change, |w| w.hart.regs.vsstatus |= status::SUM] {
        let mut w = paging(MmuMode::Lazy);
        write(&mut w, GUEST_RAM_BASE, 0xdf);
        change(&mut w);
        assert_eq!(w.exit(STORE, UART, 0, SB_TRANSFORMED), Outcome::Resume);
        assert_eq!((w.run.shared.counters.mmio_uart.get(), w.run.context.brief), (1, lane::BriefExits::NONE));
    }
}

#[test]
fn no_exit_panics() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let interesting = [
        0,
        0xfff,
        GUEST_ENTRY,
        GUEST_RAM_BASE,
        GUEST_RAM_BASE + MEMORY - 1,
        GUEST_RAM_BASE + MEMORY,
        u64::MAX,
        1 << 38,
    ];
    for mode in [MmuMode::Shadow, MmuMode::Unsync, MmuMode::Lazy] {
        let mut w = paging(mode);
        for _ in 0..60_000 {
            let mut pick = |choices: &[u64]| match random() % 4 {
                0 => random(),
                _ => choices[random() as usize % choices.len()],
            };
            for register in 1..32 {
                w.run.context.x[register] = pick(&interesting);
            }
            w.run.context.x[A0] = pick(&[SV39 | ROOT, SV39 | 3 << 44 | (ROOT + 1), SV39 | 0x10, 0, 9 << 60]);
            w.run.context.pc = pick(&interesting) & !1;
            w.hart.regs.vstvec = pick(&interesting);
            w.hart.mode = if pick(&[0, 1]) == 0 { Mode::User } else { Mode::Supervisor };
            let insns =
                [satp(1, 10), satp(2, 12), satp(4, 3), sfence(12, 13), sfence(12, 0), sfence(0, 13), sfence(0, 0)];
            let cause = pick(&[22, 22, 12, 13, 15, 15, 10]);
            let tval = if cause == 22 { pick(&insns) } else { pick(&interesting) };
            let tinst = pick(&[0, 0x2583, 0x00b0_3023, 0x18b0_352f, 0x3000]);
            let _ = w.exit(cause, tval, 0, tinst);
            assert!(w.run.shadow.root.is_some(), "without a root it must not run");
            if random() % 64 == 0 {
                let at = GUEST_RAM_BASE + random() % 0x2000 / 8 * 8;
                let value = random();
                write(&mut w, at, value);
            }
            for queued in w.g.sched.remove_vm(0) {
                w.set_aside(queued);
            }
        }
    }
}

/// Returns the guest's values of `satp` for which its lane may change roots.
fn known_to_lane(w: &mut World) -> Vec<u64> {
    let asids = [5, 6].map(|asid| SV39 | asid << 44 | ROOT);
    let keys: Vec<u64> = w.run.shadow.views.lane_roots().iter().map(LaneRoot::key).collect();
    asids.into_iter().filter(|satp| keys.contains(satp)).collect()
}

#[test]
fn the_lane_loads_no_asid_that_may_be_others_by_now() {
    for (others, roots, left) in [(0, "roots=on", 2), (4, "roots=on", 1), (4, "roots=off", 0), (0, "roots=off", 0)] {
        let mut w = paging(MmuMode::Lazy);
        w.run.last_hart = 0;
        w.run.context.x[A0] = SV39 | 6 << 44 | ROOT;
        assert_eq!(w.exit(VIRTUAL, satp(1, A0 as u64), 0, 0), Outcome::Resume);
        assert_eq!(known_to_lane(&mut w).len(), 2);
        let translation = w.run.vm.translation;
        translation.unload(&mut w.run, &w.hart);
        for _ in 0..others {
            let _ = w.hart.asids.acquire(&mut IdSlot::new());
        }
        w.g.tunables.set(roots).unwrap();
        assert_eq!(translation.load(&w.g, &mut w.run, &mut w.hart), Ok(()));
        assert_eq!(known_to_lane(&mut w).len(), left, "{others} others, {roots}");
        // It has been on another hart.
        w.run.last_hart = 1;
        assert_eq!(translation.load(&w.g, &mut w.run, &mut w.hart), Ok(()));
        assert_eq!(known_to_lane(&mut w).len(), left.min(1), "from another hart, {roots}");
    }
}

/// Makes tables that map `va` by a leaf of 4 KiB, and an access there.
fn touched(w: &mut World, va: u64) {
    write(w, GUEST_RAM_BASE + 8, (ROOT + 1) << 10 | 1);
    write(w, GUEST_RAM_BASE + 0x1000, (ROOT + 2) << 10 | 1);
    write(w, GUEST_RAM_BASE + 0x2000, (ROOT + 5) << 10 | 0xcf);
    w.exit(VIRTUAL, sfence(0, 0), 0, 0);
    (0..3).for_each(|_| _ = w.exit(LOAD, va, 0, 0));
}

#[test]
fn a_fence_of_an_address_that_cannot_be_is_no_way_there() {
    let mut w = paging(MmuMode::Lazy);
    let (va, beyond) = (0x4000_0000, 0x4000_0000 | 1 << 40);
    touched(&mut w, va);
    for _ in 0..2 {
        let before = w.run.shared.counters.inject_exception.get();
        w.exit(LOAD, beyond, 0, 0);
        assert_eq!(w.run.shared.counters.inject_exception.get(), before + 1);
        w.run.context.x[A0] = beyond;
        w.exit(VIRTUAL, sfence(A0 as u64, 0), 0, 0);
    }
}

#[test]
fn what_the_full_path_puts_into_the_log_is_not_the_lanes() {
    let mut w = paging(MmuMode::Steered);
    touched(&mut w, 0x4000_0000);
    for asid in [0, 5] {
        (w.run.context.x[A0], w.run.context.x[A1]) = (0x4000_0000, asid);
        for rs2 in [A1 as u64, 0] {
            w.exit(VIRTUAL, sfence(A0 as u64, rs2), 0, 0);
        }
    }
    w.run.count_lane();
    assert_eq!(w.run.shared.counters.lane_page_global.get(), 0);
}
