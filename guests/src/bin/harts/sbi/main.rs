//! The SBI calls that do not move the machine: base, the debug console, software events, firmware features, counters, and what every call
//! answers to nonsense.
#![no_std]
#![no_main]

mod counters;
mod events;
mod features;

use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;
use guests::paging::{Space, TEST_VA};
use guests::sbi::{self, ALL_HARTS, INVALID_PARAM, NOT_SUPPORTED, SUCCESS, call};
use guests::{Check, Text, access, board, ensure, ensure_eq, hart, paging, run, trap};
use rv::Interrupt;
use rv::format::SV39;
use sbi_spec::{base, dbcn, dbtr, fwft, hsm, legacy, pmu, rfnc, spi, srst, sse, susp, time};

guests::entry_point!(main);

fn main() {
    run("sbi/spec-version", spec_version);
    run("sbi/impl-id", impl_id);
    run("sbi/vendor-ids", vendor_ids);
    run("sbi/probe-present", probe_present);
    run("sbi/probe-absent", probe_absent);
    run("sbi/unknown-extension", unknown_extension);
    run("sbi/unknown-function", unknown_function);
    run("sbi/registers-preserved", registers_preserved);
    run("sbi/console-write", console_write);
    run("sbi/console-write-nothing", console_write_nothing);
    run("sbi/console-write-across-pages", console_write_across_pages);
    run("sbi/console-write-byte", console_write_byte);
    run("sbi/console-read", console_read);
    run("sbi/set-timer-far", set_timer_far);
    run("sbi/legacy", legacy_calls);
    run("sbi/legacy-hart-mask", legacy_hart_mask);
    run("sbi/empty-hart-mask", empty_hart_mask);
    run("sbi/hart-status", hart_status);
    run("sbi/reset-bad-type", reset_bad_type);
    run("sbi/no-system-suspend", no_system_suspend);
    events::checks();
    counters::checks();
    features::checks();
    if sbi::is_gnomon() {
        // OpenSBI 1.5.1 answers "failed" to a high half, and writes from anything it may access.
        run("sbi/console-write-bad-address", || console_bad_address(dbcn::CONSOLE_WRITE));
        run("sbi/console-read-bad-address", || console_bad_address(dbcn::CONSOLE_READ));
        // OpenSBI 1.5.1 ignores harts that are not there.
        run("sbi/bad-hart-masks", bad_hart_masks);
        run("sbi/console-write-unmapped-ram", console_write_unmapped_ram);
        run("sbi/ids-are-virtual", ids_are_virtual);
        // The bare machine has triggers.
        run("sbi/no-triggers", || absent(dbtr::EID_DBTR));
    }
}

const EXTENSIONS: [(usize, &str); 10] = [
    (base::EID_BASE, "base"),
    (time::EID_TIME, "TIME"),
    (spi::EID_SPI, "IPI"),
    (rfnc::EID_RFNC, "RFENCE"),
    (hsm::EID_HSM, "HSM"),
    (srst::EID_SRST, "SRST"),
    (dbcn::EID_DBCN, "DBCN"),
    (fwft::EID_FWFT, "FWFT"),
    (sse::EID_SSE, "SSE"),
    (pmu::EID_PMU, "PMU"),
];

/// Unused extension ids: unassigned, of the experimental space, with high bits set.
const UNKNOWN: [usize; 5] = [0x0e, 0x5858_5858, 0x0800_0000, usize::MAX, 1 << 32 | dbcn::EID_DBCN];

fn spec_version() -> Check {
    ensure_eq!(sbi::base(base::GET_SBI_SPEC_VERSION), (SUCCESS, 0x0200_0000), "spec version");
    Ok(())
}

fn impl_id() -> Check {
    ensure_eq!(sbi::base(base::GET_SBI_IMPL_ID).0, SUCCESS, "impl id");
    ensure_eq!(sbi::base(base::GET_SBI_IMPL_VERSION).0, SUCCESS, "impl version");
    Ok(())
}

fn vendor_ids() -> Check {
    for fid in [base::GET_MVENDORID, base::GET_MARCHID, base::GET_MIMPID] {
        ensure_eq!(sbi::base(fid).0, SUCCESS, "base function {fid}");
    }
    Ok(())
}

/// SiFive's vendor id would turn on errata workarounds in Linux: every fence becomes a global one.
fn ids_are_virtual() -> Check {
    const SIFIVE: u64 = 0x489;
    ensure!(sbi::base(base::GET_MVENDORID).1 != SIFIVE, "mvendorid is SiFive's");
    Ok(())
}

fn probe_present() -> Check {
    for (eid, name) in EXTENSIONS {
        ensure!(sbi::probe(eid), "{name} is missing");
    }
    Ok(())
}

fn probe_absent() -> Check {
    for eid in UNKNOWN {
        let found = call(base::EID_BASE, base::PROBE_EXTENSION, [eid as u64, 0, 0, 0, 0, 0]);
        ensure_eq!(found, (SUCCESS, 0), "probe of {eid:#x}");
    }
    Ok(())
}

fn unknown_extension() -> Check {
    for eid in UNKNOWN {
        for fid in [0, 1, usize::MAX] {
            ensure_eq!(call(eid, fid, [0; 6]).0, NOT_SUPPORTED, "extension {eid:#x}, function {fid:#x}");
        }
    }
    Ok(())
}

fn unknown_function() -> Check {
    for (eid, name) in EXTENSIONS {
        for fid in [99, 1 << 31, usize::MAX] {
            ensure_eq!(call(eid, fid, [0; 6]).0, NOT_SUPPORTED, "{name}, function {fid:#x}");
        }
    }
    Ok(())
}

/// "All registers except a0 and a1 must be preserved across an SBI call by the callee."
#[expect(unsafe_code, reason = "an ecall with every free register loaded")]
fn registers_preserved() -> Check {
    let mut wrong: u64;
    // SAFETY: base's get_spec_version has no effect; the clobbers are declared.
    unsafe {
        asm!(
            "li t0, 0x1005", "li t1, 0x1006", "li t2, 0x1007", "li s2, 0x1018", "li s3, 0x1019", "li s4, 0x1020",
            "li s5, 0x1021", "li s6, 0x1022", "li s7, 0x1023", "li s8, 0x1024", "li s9, 0x1025", "li s10, 0x1026",
            "li s11, 0x1027", "li t3, 0x1028", "li t4, 0x1029", "li t5, 0x1030", "li t6, 0x1031", "li a2, 0x1012",
            "li a3, 0x1013", "li a4, 0x1014", "li a5, 0x1015", "li a6, 0", "li a7, 0x10",
            "ecall",
            "addi a7, a7, -0x10", "or a1, a6, a7",
            "li a0, 0x1005", "xor a0, a0, t0", "or a1, a1, a0",
            "li a0, 0x1006", "xor a0, a0, t1", "or a1, a1, a0",
            "li a0, 0x1007", "xor a0, a0, t2", "or a1, a1, a0",
            "li a0, 0x1018", "xor a0, a0, s2", "or a1, a1, a0",
            "li a0, 0x1019", "xor a0, a0, s3", "or a1, a1, a0",
            "li a0, 0x1020", "xor a0, a0, s4", "or a1, a1, a0",
            "li a0, 0x1021", "xor a0, a0, s5", "or a1, a1, a0",
            "li a0, 0x1022", "xor a0, a0, s6", "or a1, a1, a0",
            "li a0, 0x1023", "xor a0, a0, s7", "or a1, a1, a0",
            "li a0, 0x1024", "xor a0, a0, s8", "or a1, a1, a0",
            "li a0, 0x1025", "xor a0, a0, s9", "or a1, a1, a0",
            "li a0, 0x1026", "xor a0, a0, s10", "or a1, a1, a0",
            "li a0, 0x1027", "xor a0, a0, s11", "or a1, a1, a0",
            "li a0, 0x1028", "xor a0, a0, t3", "or a1, a1, a0",
            "li a0, 0x1029", "xor a0, a0, t4", "or a1, a1, a0",
            "li a0, 0x1030", "xor a0, a0, t5", "or a1, a1, a0",
            "li a0, 0x1031", "xor a0, a0, t6", "or a1, a1, a0",
            "li a0, 0x1012", "xor a0, a0, a2", "or a1, a1, a0",
            "li a0, 0x1013", "xor a0, a0, a3", "or a1, a1, a0",
            "li a0, 0x1014", "xor a0, a0, a4", "or a1, a1, a0",
            "li a0, 0x1015", "xor a0, a0, a5", "or a1, a1, a0",
            out("a0") _, out("a1") wrong, out("a2") _, out("a3") _, out("a4") _, out("a5") _, out("a6") _,
            out("a7") _, out("t0") _, out("t1") _, out("t2") _, out("t3") _, out("t4") _, out("t5") _, out("t6") _,
            out("s2") _, out("s3") _, out("s4") _, out("s5") _, out("s6") _, out("s7") _, out("s8") _, out("s9") _,
            out("s10") _, out("s11") _, options(nostack)
        );
    }
    ensure_eq!(wrong, 0, "bits that changed");
    Ok(())
}

fn console(fid: usize, bytes: u64, low: u64, high: u64) -> (i64, u64) {
    call(dbcn::EID_DBCN, fid, [bytes, low, high, 0, 0, 0])
}

fn console_write() -> Check {
    let text = b"guest: by console write\n";
    let (error, written) = sbi::console_write(text);
    ensure_eq!(error, SUCCESS, "error");
    ensure!((1..=text.len() as u64).contains(&written), "{written} bytes written");
    sbi::console_write(&text[written as usize..]);
    Ok(())
}

fn console_write_nothing() -> Check {
    ensure_eq!(sbi::console_write(&[]), (SUCCESS, 0), "no bytes");
    Ok(())
}

/// A text that starts on one page of free RAM and ends on the next, neither touched before but by it.
fn console_write_across_pages() -> Check {
    let (from, _) = board().largest_free();
    let text = b"guest: across two pages\n";
    let at = from.next_multiple_of(2 << 20) + (2 << 20) - 11;
    for (offset, byte) in text.iter().enumerate() {
        access::out8(at + offset as u64, *byte);
    }
    let mut written = 0;
    while written < text.len() as u64 {
        let (error, more) = console(dbcn::CONSOLE_WRITE, text.len() as u64 - written, at + written, 0);
        ensure_eq!(error, SUCCESS, "error after {written} bytes");
        ensure!(more > 0, "no progress after {written} bytes");
        written += more;
    }
    Ok(())
}

/// Untouched pages: the console prints 4,096 NUL bytes, or reports how many it took.
fn console_write_unmapped_ram() -> Check {
    let (_, to) = board().largest_free();
    let (error, written) = console(dbcn::CONSOLE_WRITE, 16, (to - (4 << 20)) & !0xfff, 0);
    // The bytes were zeros, and stand on the console: the report starts a line of its own.
    guests::console::line(format_args!(""));
    ensure_eq!(error, SUCCESS, "error");
    ensure!(written <= 16, "{written} bytes written");
    Ok(())
}

/// Buffers that are not RAM, or not wholly: refused, and nothing is written or crashes.
fn console_bad_address(fid: usize) -> Check {
    let end = board().ram_end();
    let bad = [
        (8, 0, 1, "high half set"),
        (8, 0x8020_0000, u64::MAX, "high half all ones"),
        (8, u64::MAX - 3, 0, "wraps around"),
        (u64::MAX, 0x8020_0000, 0, "a length that wraps"),
        (1 << 63, 0x8020_0000, 0, "half of all addresses"),
        (64, end - 32, 0, "runs off the end of RAM"),
        (8, end, 0, "beyond RAM"),
        (8, 1 << 50, 0, "far beyond RAM"),
        (8, 0x1000_0000, 0, "the UART"),
        (8, 0x0, 0, "address zero"),
    ];
    for (bytes, low, high, what) in bad {
        ensure_eq!(console(fid, bytes, low, high).0, INVALID_PARAM, "{what}");
    }
    Ok(())
}

fn console_write_byte() -> Check {
    for byte in b"guest: by bytes\n" {
        let found = call(dbcn::EID_DBCN, dbcn::CONSOLE_WRITE_BYTE, [u64::from(*byte), 0, 0, 0, 0, 0]);
        ensure_eq!(found, (SUCCESS, 0), "byte {byte:#x}");
    }
    Ok(())
}

/// Without input, nothing is read, and the buffer stays as it is.
fn console_read() -> Check {
    let page = paging::page();
    page.0[0].store(0x1234_5678, Relaxed);
    ensure_eq!(console(dbcn::CONSOLE_READ, 64, page.address(), 0), (SUCCESS, 0), "reading 64 bytes");
    ensure_eq!(console(dbcn::CONSOLE_READ, 0, page.address(), 0), (SUCCESS, 0), "reading nothing");
    ensure_eq!(page.0[0].load(Relaxed), 0x1234_5678, "the buffer");
    Ok(())
}

/// A legacy call's reply in a0; a1 must stay as it was.
fn call_legacy(eid: usize, argument: u64) -> Result<i64, Text> {
    const MARK: u64 = 0x5a5a;
    let (value, kept) = call(eid, 0, [argument, MARK, 0, 0, 0, 0]);
    if kept == MARK { Ok(value) } else { Err(Text::of(format_args!("legacy call {eid} leaves {kept:#x} in a1"))) }
}

/// The calls that there were before there were extensions. There is no input.
fn legacy_calls() -> Check {
    for eid in legacy::LEGACY_SET_TIMER..=legacy::LEGACY_SHUTDOWN {
        ensure!(sbi::probe(eid), "legacy call {eid} is missing");
    }
    for (eid, argument, value) in [
        (legacy::LEGACY_CONSOLE_PUTCHAR, b'\n'.into(), 0),
        (legacy::LEGACY_CONSOLE_GETCHAR, 0, -1),
        (legacy::LEGACY_SET_TIMER, u64::MAX, 0),
        (legacy::LEGACY_REMOTE_FENCE_I, 0, 0),
        (legacy::LEGACY_REMOTE_SFENCE_VMA, 0, 0),
        (legacy::LEGACY_REMOTE_SFENCE_VMA_ASID, 0, 0),
    ] {
        ensure_eq!(call_legacy(eid, argument)?, value, "legacy call {eid}");
    }
    Ok(())
}

/// A legacy hart mask lies in memory, at a virtual address; if that is not mapped the call faults like a load.
fn legacy_hart_mask() -> Check {
    let mask = 1_u64 << hart::id();
    let at = core::ptr::from_ref(&mask).expose_provenance() as u64;
    let own = || trap::pending() & Interrupt::SSoft.bit() != 0;
    let space = Space::new(&SV39, 0);
    for paged in [false, true] {
        if paged {
            space.enter();
        }
        let sent = call_legacy(legacy::LEGACY_SEND_IPI, at);
        let came = hart::wait_for(hart::PATIENCE_MS, own);
        let cleared = call_legacy(legacy::LEGACY_CLEAR_IPI, 0);
        let stays = own();
        paging::leave();
        ensure_eq!((sent?, came, cleared?, stays), (0, true, 0, false), "an IPI to this hart, paging {paged}");
    }
    space.enter();
    let trap = trap::catch(|| _ = call(legacy::LEGACY_SEND_IPI, 0, [TEST_VA, 0, 0, 0, 0, 0]));
    paging::leave();
    ensure_eq!(trap.map(|trap| (trap.cause, trap.tval)), Some((13, TEST_VA)), "a mask that is not there");
    Ok(())
}

fn set_timer_far() -> Check {
    ensure_eq!(sbi::set_timer(0), SUCCESS, "set_timer(0)");
    let is_pending = || guests::trap::pending() & Interrupt::STimer.bit() != 0;
    ensure!(hart::wait_for(1000, is_pending), "a timer of the past is not pending");
    ensure_eq!(sbi::set_timer(u64::MAX), SUCCESS, "set_timer(-1)");
    ensure!(!is_pending(), "the timer stays pending");
    Ok(())
}

/// Hart masks that name a hart which is not there.
fn bad_hart_masks() -> Check {
    let absent = board().hart_count as u64;
    for (mask, mask_base) in [(1 << absent, 0), (1, absent), (1, 1 << 20), (1, ALL_HARTS - 1), (u64::MAX, 0)] {
        ensure_eq!(sbi::send_ipi(mask, mask_base), INVALID_PARAM, "IPI to {mask:#x} from {mask_base:#x}");
        for fid in [rfnc::REMOTE_FENCE_I, rfnc::REMOTE_SFENCE_VMA, rfnc::REMOTE_SFENCE_VMA_ASID] {
            let error = sbi::remote_fence(fid, mask, mask_base, 0, 0, 0);
            ensure_eq!(error, INVALID_PARAM, "fence {fid} to {mask:#x} from {mask_base:#x}");
        }
    }
    Ok(())
}

fn empty_hart_mask() -> Check {
    ensure_eq!(sbi::send_ipi(0, 0), SUCCESS, "IPI to no hart");
    let error = sbi::remote_fence(rfnc::REMOTE_FENCE_I, 0, 0, 0, 0, 0);
    ensure_eq!(error, SUCCESS, "fence of no hart");
    ensure_eq!(guests::trap::pending() & Interrupt::SSoft.bit(), 0, "SSIP");
    Ok(())
}

fn hart_status() -> Check {
    ensure_eq!(sbi::hart_status(hart::id()), (SUCCESS, 0), "own status");
    for other in board().other_harts() {
        ensure_eq!(sbi::hart_status(other), (SUCCESS, 1), "status of hart {other}");
    }
    for absent in [board().hart_count as u64, 1 << 20, u64::MAX] {
        ensure_eq!(sbi::hart_status(absent).0, INVALID_PARAM, "status of hart {absent}");
    }
    Ok(())
}

/// An extension that is not there.
fn absent(eid: usize) -> Check {
    ensure!(!sbi::probe(eid), "extension {eid:#x} is there");
    for fid in 0..8 {
        ensure_eq!(call(eid, fid, [0; 6]).0, NOT_SUPPORTED, "extension {eid:#x}, function {fid}");
    }
    Ok(())
}

/// A sleeping machine `virt` could not be woken.
fn no_system_suspend() -> Check {
    absent(susp::EID_SUSP)
}

/// Reserved types and reasons; "warm reboot" may be missing, and is left out.
fn reset_bad_type() -> Check {
    for kind in [3, 0x1000, 0xefff_ffff] {
        ensure_eq!(sbi::reset(kind, srst::RESET_REASON_NO_REASON), INVALID_PARAM, "type {kind:#x}");
    }
    for reason in [2, 0x1000, 0xdfff_ffff] {
        ensure_eq!(sbi::reset(srst::RESET_TYPE_SHUTDOWN, reason), INVALID_PARAM, "reason {reason:#x}");
    }
    Ok(())
}
