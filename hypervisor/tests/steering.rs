//! Exits of steered guests: access faults by poison, those that nothing explains, and entries that are never fenced.

use crate::fake::{self, Event, World, shadow_world, vm_config};
use abi::bundle::{GUEST_ENTRY, GUEST_RAM_BASE, MmuMode, VmConfig};
use hypervisor::device::offer::{Denial, Offer};
use hypervisor::device::uart::START as UART;
use hypervisor::exit::watch;
use hypervisor::vm::Translation;
use hypervisor::vm::outcome::{Brief, Known, Outcome};
use mmu::two_stage::TINST_PTE_READ;
use rv::{Addr, Exception, Exit, Pfn};

const VIRTUAL: u64 = Exception::VirtualInstruction as u64;
const LOAD: u64 = Exception::LoadAccess as u64;
const STORE: u64 = Exception::StoreAccess as u64;
const FETCH_DENIED: u64 = Exception::FetchGuestPage as u64;
const LOAD_DENIED: u64 = Exception::LoadGuestPage as u64;
const STORE_DENIED: u64 = Exception::StoreGuestPage as u64;
/// The address that poison leads to, as such a trap reports it.
const POISON: u64 = 1 << 55;
const LOAD_PAGE: u64 = Exception::LoadPage as u64;
/// The guest's root: the first page of RAM. Its entry 0 is a gigapage over the devices, its entry 2 one over RAM.
const ROOT: u64 = GUEST_RAM_BASE >> 12;
const SV39: u64 = 8 << 60;
/// `csrw satp, a0`, `sfence.vma a0, x0`, `sb a1, 0(a0)`.
const WRITE_SATP: u64 = 0x1805_1073;
const FENCE: u64 = 0x1205_0073;
const SB: u64 = 0x00b5_0023;

fn write(w: &mut World, gpa: u64, bytes: &[u8]) {
    let vm = w.run.vm.clone();
    fake::write(&w.g, &vm, Addr::new(gpa), bytes, &mut w.hart).unwrap();
}

fn steered() -> World {
    let mut w = shadow_world(MmuMode::Steered, 1);
    write(&mut w, GUEST_RAM_BASE, &0xcf_u64.to_le_bytes());
    write(&mut w, GUEST_RAM_BASE + 16, &(ROOT << 10 | 0xcf).to_le_bytes());
    w.run.context.x[10] = SV39 | ROOT;
    assert_eq!(w.exit(VIRTUAL, WRITE_SATP, 0, 0), Outcome::Resume);
    assert!(w.run.shadow.root.is_some_and(|root| root.steers));
    w.hart.events.clear();
    w
}

#[test]
fn poison_is_filled_and_the_guest_hears_nothing_of_it() {
    let mut w = steered();
    assert_eq!(w.exit(LOAD, GUEST_RAM_BASE + 0x5000, 0, 0), Outcome::Resume);
    assert_eq!(w.exit(STORE, GUEST_RAM_BASE + 0x6000, 0, 0), Outcome::Resume);
    let c = &w.run.shared.counters;
    assert_eq!((c.exits_steered.get(), c.inject_exception.get()), (2, 0));
}

#[test]
fn where_a_g_stage_denies_the_frame_it_is_a_guest_page_fault() {
    let mut w = steered();
    let c = |w: &World| {
        let c = &w.run.shared.counters;
        [c.exits_steered.get(), c.exits_load.get() + c.exits_store.get(), c.inject_exception.get()]
    };
    // By a leaf, and by a pointer: the trap says what was denied, which is no memory of the guest's.
    assert_eq!(w.exit(LOAD_DENIED, GUEST_RAM_BASE + 0x5008, POISON | 8, 0x21), Outcome::Resume);
    assert_eq!(w.exit(STORE_DENIED, GUEST_RAM_BASE + 0x6000, POISON | 0x40, TINST_PTE_READ), Outcome::Resume);
    assert_eq!(w.exit(FETCH_DENIED, GUEST_RAM_BASE + 0x7000, 0, TINST_PTE_READ), Outcome::Resume);
    assert_eq!(c(&w), [3, 0, 0]);
    // A fault that the guest's own tables cause is still the guest's.
    assert_eq!(w.exit(LOAD_DENIED, 3 << 30, POISON, TINST_PTE_READ), Outcome::Resume);
    assert_eq!((w.hart.regs.vscause, w.hart.regs.vstval, c(&w)), (LOAD_PAGE, 3 << 30, [4, 0, 1]));
    // So is a fault without a cause, as an access fault.
    for _ in 0..4 {
        assert_eq!(w.exit(STORE_DENIED, GUEST_RAM_BASE + 0x6008, POISON | 8, 0), Outcome::Resume);
    }
    assert_eq!((w.hart.regs.vscause, w.hart.regs.vstval), (STORE, GUEST_RAM_BASE + 0x6008));
}

#[test]
fn what_the_tables_refuse_is_a_page_fault_of_the_guests() {
    let mut w = steered();
    assert_eq!(w.exit(LOAD, 3 << 30, 0, 0), Outcome::Resume);
    assert_eq!((w.hart.regs.vscause, w.hart.regs.vstval), (LOAD_PAGE, 3 << 30));
}

#[test]
fn an_access_fault_that_nothing_explains_is_the_guests() {
    let mut w = steered();
    let at = GUEST_RAM_BASE + 0x5008;
    let injected = |w: &World| w.run.shared.counters.inject_exception.get();
    for _ in 0..4 {
        assert_eq!((w.exit(STORE, at, 0, 0), injected(&w)), (Outcome::Resume, 0));
    }
    // Another exit in between: it might have been another hart's doing.
    w.run.context.x[10] = at;
    let pc = w.run.context.pc;
    assert_eq!(w.exit(VIRTUAL, FENCE, 0, 0), Outcome::Resume);
    w.run.context.pc = pc;
    for _ in 0..3 {
        assert_eq!((w.exit(STORE, at, 0, 0), injected(&w)), (Outcome::Resume, 0));
    }
    assert_eq!((w.exit(STORE, at, 0, 0), injected(&w)), (Outcome::Resume, 1));
    assert_eq!((w.hart.regs.vscause, w.hart.regs.vstval, w.hart.regs.vsepc), (STORE, at, pc));
}

#[test]
fn an_entry_that_is_never_fenced_is_looked_at_now_and_then() {
    let mut w = steered();
    // A table of level 0 at page 2 below one at page 1; the guest looks at its first entry.
    write(&mut w, GUEST_RAM_BASE + 24, &((ROOT + 1) << 10 | 1).to_le_bytes());
    write(&mut w, GUEST_RAM_BASE + 0x1000, &((ROOT + 2) << 10 | 1).to_le_bytes());
    assert_eq!(w.exit(LOAD, 3 << 30, 0, 0), Outcome::Resume);
    assert_eq!(w.hart.regs.vscause, LOAD_PAGE);
    // It makes it valid, and waits. `vstval` is what it saw last.
    write(&mut w, GUEST_RAM_BASE + 0x2000, &((ROOT + 3) << 10 | 0xcf).to_le_bytes());
    w.hart.events.clear();
    assert_eq!(watch::look(&w.g, &mut w.run, (0, 10), &mut w.hart), None);
    assert!(w.hart.events.contains(&Event::GuestFence(Some(Addr::new(3 << 30)), None)), "{:?}", w.hart.events);
    let synced = hypervisor_counters(&w);
    w.hart.regs.vscause = 8;
    assert_eq!(watch::look(&w.g, &mut w.run, (0, 10), &mut w.hart), None);
    assert_eq!(hypervisor_counters(&w), synced, "only after a page fault");
}

fn hypervisor_counters(w: &World) -> u64 {
    let counters = w.run.vm.translation.counters(&w.run.vm).expect("it is shadowed");
    let synced = counters.each().find(|(name, _)| *name == "shadow.entries_synced");
    synced.expect("it is counted").1
}

/// Makes a guest that is about to send bytes by the UART.
fn sender() -> World {
    let mut w = steered();
    write(&mut w, GUEST_ENTRY, [SB as u32; 4].map(u32::to_le_bytes).as_flattened());
    w.run.context.pc = GUEST_ENTRY;
    (w.run.context.x[10], w.run.context.x[11]) = (UART, u64::from(b'A'));
    w
}

#[test]
fn bytes_by_the_uart_are_brief() {
    let mut w = sender();
    let exit = Exit { cause: STORE, tval: UART, tval2: 0, tinst: 0 };
    assert_eq!(w.brief(exit).known(), Some(Known::NoRam(Addr::new(UART))), "the way is not known yet");
    assert_eq!(w.exit(STORE, UART, 0, 0), Outcome::Resume);
    assert_eq!(w.brief(exit), Brief::OVER);
    assert_eq!((w.run.context.pc, w.run.shared.counters.mmio_uart.get()), (GUEST_ENTRY + 8, 2));
}

#[test]
fn bytes_by_the_uart_are_brief_where_the_trap_names_what_was_denied() {
    let mut w = sender();
    let exit = Exit { cause: STORE_DENIED, tval: UART, tval2: POISON >> 2, tinst: 0 };
    assert_eq!(w.brief(exit), Brief::NO, "the way is not known yet");
    // The first by a pointer, which says nothing of the instruction.
    assert_eq!(w.exit(STORE_DENIED, UART, POISON, TINST_PTE_READ), Outcome::Resume);
    assert_eq!(w.brief(Exit { tinst: 0x00b0_0023 & !2 | 1, ..exit }), Brief::OVER, "the trap says the instruction");
    for tinst in [0, TINST_PTE_READ] {
        w.run.context.pc = GUEST_ENTRY;
        assert_eq!(w.brief(Exit { tinst, ..exit }), Brief::OVER, "the code does");
    }
    assert_eq!((w.run.shared.counters.mmio_uart.get(), w.run.shared.counters.mmio_decoded.get()), (4, 3));
    // Another address whose bits the trap vector cannot tell from it.
    w.run.context.pc = GUEST_ENTRY;
    w.run.context.x[10] = UART | POISON >> 2;
    assert!(w.run.context.brief.has(&Exit { tval: UART | POISON >> 2, ..exit }));
    assert_eq!(w.brief(Exit { tval: UART | POISON >> 2, ..exit }), Brief::NO);
}

#[test]
fn what_cannot_be_steered_is_refused() {
    let w = steered();
    let check = |config: &VmConfig, offer: &Offer| Translation::from(MmuMode::Steered).check(config, offer);
    let config = vm_config("vm", 1);
    assert_eq!(check(&config, &w.g.offer), Ok(()));
    let hole = Offer { denial: Denial::Hole { table: Pfn::new(0x8_0000) }, ..w.g.offer.clone() };
    assert_eq!(check(&config, &hole), Ok(()));
    let elsewhere = Offer { denial: Denial::Nobody, ..w.g.offer.clone() };
    assert!(check(&config, &elsewhere).is_err_and(|message| message.contains("use mmu `lazy`")));
    let svadu = VmConfig { svadu: Some(true), ..config };
    assert!(check(&svadu, &w.g.offer).is_err_and(|message| message.contains("svadu")));
}
