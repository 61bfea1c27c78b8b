//! Known numbers of events, so that the runner can assert on Gnomon's counters. `/chosen/bootargs` may
//! name one phase; otherwise all are run. What each phase costs stands in `docs/test-guests.md`.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "CSR swaps")]

use core::hint::black_box;
use guests::console::UART;
use guests::paging::{self, RW, RWX, Space, TEST_VA, page};
use guests::trap::pending;
use guests::user::User;
use guests::{Check, Named, access, board, ensure, ensure_eq, hart, run, sbi};
use metal::{csr, fence};
use rv::Interrupt::SSoft;
use rv::PteFlags;
use sbi_spec::base;

guests::entry_point!(main);

/// The rounds of each thing that needs no exit.
const MANY: u64 = 10_000;

fn main() {
    let wanted = board().bootargs.split_whitespace().next().unwrap_or("");
    let phases: [Named<fn() -> Check>; 6] = [
        ("base-calls", base_calls),
        ("self-ipis", self_ipis),
        ("first-touches", first_touches),
        ("uart-accesses", uart_accesses),
        ("no-exits", no_exits),
        ("nothing", || Ok(())),
    ];
    for (name, phase) in phases {
        if wanted.is_empty() || wanted == name {
            run(guests::Text::of(format_args!("counters/{name}")).as_str(), phase);
        }
    }
}

/// 100 calls of base.
fn base_calls() -> Check {
    for _ in 0..100 {
        ensure_eq!(sbi::base(base::GET_SBI_SPEC_VERSION), (0, 0x0200_0000), "spec version");
    }
    Ok(())
}

/// 50 IPIs to itself.
fn self_ipis() -> Check {
    for _ in 0..50 {
        ensure_eq!(sbi::send_ipi(1, hart::id()), 0, "send_ipi");
        ensure!(hart::wait_for(hart::PATIENCE_MS, || pending() & SSoft.bit() != 0), "SSIP does not come");
        // SAFETY: a pending bit.
        unsafe { csr::sip::clear(SSoft.bit()) };
    }
    Ok(())
}

/// 64 first touches, each in a 2 MiB block of its own.
fn first_touches() -> Check {
    const BLOCK: u64 = 2 << 20;
    let (from, to) = board().largest_free();
    let from = from.next_multiple_of(BLOCK);
    ensure!(from + 64 * BLOCK <= to, "not enough RAM: {} bytes", board().ram_bytes);
    for n in 0..64 {
        access::poke(from + n * BLOCK + n * 4096, n);
    }
    Ok(())
}

/// 5 stores to and 5 loads from the UART's scratch register.
fn uart_accesses() -> Check {
    for value in 1..=5 {
        access::out8(UART + 7, value);
        ensure_eq!(access::in8(UART + 7), value, "scratch");
    }
    Ok(())
}

/// Work that hardware does by itself: clocks, fences, CSRs, `satp`, traps from U, page faults.
fn no_exits() -> Check {
    let space = Space::new(&rv::format::SV39, 1);
    let (code, data) = (page(), page());
    code.fill(&0x73_u32.to_le_bytes());
    space.map(TEST_VA, code.address(), RWX | PteFlags::U);
    space.map(TEST_VA + 0x1000, data.address(), RW);
    // What will be touched is touched before.
    space.enter();
    access::poke(TEST_VA + 0x1000, 1);
    let mut user = User::at(TEST_VA);
    ensure_eq!(user.run().cause, 8, "cause");
    for round in 0..MANY {
        black_box(metal::time());
        fence::sfence_all();
        paging::fence_page(TEST_VA);
        paging::fence_asid(1);
        fence::instruction();
        // SAFETY: scratch only.
        unsafe { csr::sscratch::write(round) };
        black_box(csr::sstatus::read());
        space.switch();
        user.pc = TEST_VA;
        if user.run().cause != 8 {
            guests::fail!("not an ecall in round {round}");
        }
        let fault = access::ld(TEST_VA + (1 << 30));
        if fault.is_ok() {
            guests::fail!("no page fault in round {round}");
        }
        if board().has("sstc") {
            // SAFETY: far away.
            unsafe { csr::stimecmp::write(u64::MAX - round) };
        }
    }
    paging::leave();
    Ok(())
}
