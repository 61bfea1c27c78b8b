//! PMU: which counters there are, what they count, and what nonsense is answered.
#![expect(unsafe_code, reason = "scounteren")]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use guests::expect::{ILLEGAL, ensure_trap, execute};
use guests::sbi::{
    self, ALREADY_STARTED, ALREADY_STOPPED, INVALID_PARAM, NO_SHMEM, NOT_SUPPORTED, SUCCESS, call, remote_fence,
};
use guests::trap::pending;
use guests::{Check, Text, board, ensure, ensure_eq, hart, run};
use metal::csr;
use rv::Interrupt::SSoft;
use sbi_spec::pmu::flags::{CounterCfgFlags, CounterStartFlags, CounterStopFlags};
use sbi_spec::pmu::{self, event_type, firmware_event, hardware_event};
use sbi_spec::rfnc;

pub fn checks() {
    run("sbi/counters-information", information);
    run("sbi/counters-firmware", firmware);
    run("sbi/counters-fences", fences);
    run("sbi/counters-hardware", hardware);
    run("sbi/counters-bad-sets", bad_sets);
    if sbi::is_gnomon() {
        // OpenSBI 1.5.1 has them otherwise: a counter of `cycle`'s own, memory that it shares, values of counters that have stopped.
        run("sbi/counters-several", several);
        run("sbi/counters-instructions", instructions);
        run("sbi/counters-platform", platform);
        run("sbi/counters-restart", restart);
    }
}

const IS_FIRMWARE: u64 = 1 << 63;
const CLEAR: u64 = CounterCfgFlags::CLEAR_VALUE.bits() as u64;
const START: u64 = CounterCfgFlags::AUTO_START.bits() as u64;
const SKIP_MATCH: u64 = CounterCfgFlags::SKIP_MATCH.bits() as u64;
const INIT_VALUE: u64 = CounterStartFlags::INIT_VALUE.bits() as u64;
const INIT_SNAPSHOT: u64 = CounterStartFlags::INIT_SNAPSHOT.bits() as u64;
const RESET: u64 = CounterStopFlags::RESET.bits() as u64;
const TAKE_SNAPSHOT: u64 = CounterStopFlags::TAKE_SNAPSHOT.bits() as u64;

const CYCLES: u64 = hardware_event::CPU_CYCLES as u64;
const INSTRUCTIONS: u64 = hardware_event::INSTRUCTIONS as u64;

fn pmu(function: usize, args: [u64; 5]) -> (i64, u64) {
    let [a, b, c, d, e] = args;
    call(pmu::EID_PMU, function, [a, b, c, d, e, 0])
}

fn count() -> u64 {
    pmu(pmu::NUM_COUNTERS, [0; 5]).1
}

/// All counters, as a mask from 0.
fn all() -> u64 {
    (0..count()).filter(|n| info(*n).0 == SUCCESS).fold(0, |mask, n| mask | 1 << n)
}

fn info(counter: u64) -> (i64, u64) {
    pmu(pmu::COUNTER_GET_INFO, [counter, 0, 0, 0, 0])
}

fn configure(flags: u64, event: u64, data: u64) -> (i64, u64) {
    pmu(pmu::COUNTER_CONFIG_MATCHING, [0, all(), flags, event, data])
}

fn start(counter: u64, flags: u64, value: u64) -> i64 {
    pmu(pmu::COUNTER_START, [counter, 1, flags, value, 0]).0
}

fn stop(counter: u64, flags: u64) -> i64 {
    pmu(pmu::COUNTER_STOP, [counter, 1, flags, 0, 0]).0
}

/// The value of a firmware counter.
fn read(counter: u64) -> Result<u64, Text> {
    let (error, value) = pmu(pmu::COUNTER_FW_READ, [counter, 0, 0, 0, 0]);
    if error == SUCCESS { Ok(value) } else { Err(Text::of(format_args!("read of counter {counter}: error {error}"))) }
}

const fn of_firmware(code: usize) -> u64 {
    (event_type::FIRMWARE << 16 | code) as u64
}

const fn read_csr(number: u64) -> u32 {
    (number as u32) << 20 | 0x2573
}

/// The value of a hardware counter, by its CSR.
fn read_hardware(counter: u64) -> Result<u64, Text> {
    let number = info(counter).1 & 0xfff;
    execute(read_csr(number), 0).map_err(|trap| Text::of(format_args!("csrr of {number:#x}: {trap:x?}")))
}

/// Counters of both kinds; a hardware counter has a CSR that a kernel can read.
fn information() -> Check {
    ensure!(sbi::probe(pmu::EID_PMU), "PMU is missing");
    let count = count();
    ensure!((2..=64).contains(&count), "{count} counters");
    let (mut of_hardware, mut of_firmware) = (0, 0);
    for n in (0..count).filter(|n| info(*n).0 == SUCCESS) {
        let (_, found) = info(n);
        if found & IS_FIRMWARE != 0 {
            of_firmware += 1;
        } else {
            of_hardware += 1;
            ensure!((0xc00..0xc20).contains(&(found & 0xfff)), "counter {n}: CSR {:#x}", found & 0xfff);
            read_hardware(n)?;
        }
    }
    ensure!(of_hardware > 0 && of_firmware > 0, "{of_hardware} hardware counters, {of_firmware} firmware counters");
    for absent in [count, 64, 1 << 20, 1 << 32, u64::MAX] {
        if absent == 1 << 32 && !sbi::is_gnomon() {
            // To OpenSBI 1.5.1 numbers of counters have 32 bits.
            continue;
        }
        ensure_eq!(info(absent).0, INVALID_PARAM, "information about counter {absent:#x}");
        ensure_eq!(pmu(pmu::COUNTER_FW_READ, [absent, 0, 0, 0, 0]).0, INVALID_PARAM, "read of counter {absent:#x}");
    }
    for (event, what) in [(hardware_event::NO_EVENT, "no event"), (4 << 16 | 1, "a type that is not there")] {
        ensure!(configure(0, event as u64, 0).0 < 0, "{what} is counted");
    }
    Ok(())
}

/// A firmware counter counts what its event names, while it runs.
fn firmware() -> Check {
    let timers = |n| (0..n).for_each(|_| _ = sbi::set_timer(u64::MAX));
    let (error, counter) = configure(CLEAR, of_firmware(firmware_event::SET_TIMER), 0);
    ensure_eq!(error, SUCCESS, "configure");
    ensure!(info(counter).1 & IS_FIRMWARE != 0, "counter {counter} is a hardware counter");
    timers(3);
    ensure_eq!(start(counter, INIT_VALUE, 100), SUCCESS, "start");
    timers(5);
    ensure_eq!(read(counter)?, 105, "calls that set the timer, from 100 on");
    ensure_eq!(pmu(pmu::COUNTER_FW_READ_HI, [counter, 0, 0, 0, 0]), (SUCCESS, 0), "the upper half");
    if sbi::is_gnomon() {
        // OpenSBI 1.5.1 starts it anew, and says nothing of a second stop.
        ensure_eq!(start(counter, 0, 0), ALREADY_STARTED, "start of a counter that runs");
    }
    ensure_eq!(stop(counter, 0), SUCCESS, "stop");
    timers(7);
    ensure_eq!(read(counter)?, 105, "after the stop");
    let found = stop(counter, RESET);
    ensure!(found == ALREADY_STOPPED || !sbi::is_gnomon(), "stop of a counter that has stopped: {found}");
    if sbi::is_gnomon() {
        // OpenSBI 1.5.1 does not count those of a hart to itself.
        ipis(firmware_event::IPI_SENT)?;
        ipis(firmware_event::IPI_RECEIVED)?;
    }
    Ok(())
}

/// IPIs of this hart to itself.
fn ipis(event: usize) -> Check {
    let (error, counter) = configure(CLEAR | START, of_firmware(event), 0);
    ensure_eq!(error, SUCCESS, "configure, event {event}");
    for _ in 0..4 {
        ensure_eq!(sbi::send_ipi(1, hart::id()), SUCCESS, "send_ipi");
        ensure!(hart::wait_for(hart::PATIENCE_MS, || pending() & SSoft.bit() != 0), "SSIP does not come");
        // SAFETY: a pending bit.
        unsafe { csr::sip::clear(SSoft.bit()) };
    }
    ensure_eq!(read(counter)?, 4, "IPIs, event {event}");
    ensure_eq!(stop(counter, RESET), SUCCESS, "stop, event {event}");
    Ok(())
}

/// Fences for this hart alone.
fn fences() -> Check {
    for (function, sent, received) in [
        (rfnc::REMOTE_FENCE_I, firmware_event::FENCE_I_SENT, firmware_event::FENCE_I_RECEIVED),
        (rfnc::REMOTE_SFENCE_VMA, firmware_event::SFENCE_VMA_SENT, firmware_event::SFENCE_VMA_RECEIVED),
        (rfnc::REMOTE_SFENCE_VMA_ASID, firmware_event::SFENCE_VMA_ASID_SENT, firmware_event::SFENCE_VMA_ASID_RECEIVED),
    ] {
        for (event, what) in [(sent, "sent"), (received, "received")] {
            let (error, counter) = configure(CLEAR | START, of_firmware(event), 0);
            ensure_eq!(error, SUCCESS, "configure, {what}, function {function}");
            for _ in 0..3 {
                ensure_eq!(remote_fence(function, 1, hart::id(), 0x1000, 0x1000, 1), SUCCESS, "fence {function}");
            }
            ensure_eq!(read(counter)?, 3, "{what}, function {function}");
            ensure_eq!(stop(counter, RESET), SUCCESS, "stop");
        }
    }
    Ok(())
}

/// Work of some 3,000 instructions.
fn work() {
    static SUM: AtomicU64 = AtomicU64::new(0);
    (0..1000).for_each(|n| SUM.store(n, Relaxed));
}

/// A hardware counter counts while it runs, from the value that it is started with.
fn hardware() -> Check {
    const FROM: u64 = 1 << 40;
    // As kernels do when they start: those of `cycle` and `instret` may run.
    pmu(pmu::COUNTER_STOP, [0, all(), RESET, 0, 0]);
    for (event, what) in [(CYCLES, "cycles"), (INSTRUCTIONS, "instructions")] {
        let (error, counter) = configure(0, event, 0);
        ensure_eq!(error, SUCCESS, "configure, {what}");
        ensure_eq!(info(counter).1 & IS_FIRMWARE, 0, "{what} have a firmware counter");
        ensure_eq!(start(counter, INIT_VALUE, FROM), SUCCESS, "start, {what}");
        work();
        let first = read_hardware(counter)?;
        work();
        let second = read_hardware(counter)?;
        ensure!(FROM < first && first < second && second < FROM + (1 << 36), "{what}: {first}, then {second}");
        ensure_eq!(start(counter, 0, 0), ALREADY_STARTED, "start, {what}");
        ensure_eq!(pmu(pmu::COUNTER_FW_READ, [counter, 0, 0, 0, 0]).0, INVALID_PARAM, "read of a hardware counter");
        ensure_eq!(stop(counter, 0), SUCCESS, "stop, {what}");
        let stopped = read_hardware(counter)?;
        work();
        ensure_eq!(read_hardware(counter)?, stopped, "{what} after the stop");
        ensure!(stopped >= second, "{what}: {second}, then {stopped}");
        ensure_eq!(stop(counter, RESET), ALREADY_STOPPED, "stop, {what}");
    }
    Ok(())
}

/// Sets that name a counter which is not there.
fn bad_sets() -> Check {
    let count = count();
    for (base, mask) in [(count, 1), (count - 1, 3), (64, 1)] {
        let found = pmu(pmu::COUNTER_CONFIG_MATCHING, [base, mask, 0, CYCLES, 0]).0;
        ensure_eq!(found, INVALID_PARAM, "configure {mask:#x} from {base}");
        ensure_eq!(pmu(pmu::COUNTER_START, [base, mask, 0, 0, 0]).0, INVALID_PARAM, "start {mask:#x} from {base}");
        ensure_eq!(pmu(pmu::COUNTER_STOP, [base, mask, 0, 0, 0]).0, INVALID_PARAM, "stop {mask:#x} from {base}");
    }
    Ok(())
}

/// Each configured counter is one of its own, and what kernels may not do is refused.
fn several() -> Check {
    let all = all();
    let first = configure(START | CLEAR, CYCLES, 0);
    let second = configure(START | CLEAR, CYCLES, 0);
    ensure_eq!((first.0, second.0), (SUCCESS, SUCCESS), "configure");
    ensure!(first.1 != second.1, "one counter for two events");
    work();
    ensure!(read_hardware(second.1)? > 0, "the second one stands still");
    let same = pmu(pmu::COUNTER_CONFIG_MATCHING, [second.1, 1, SKIP_MATCH, INSTRUCTIONS, 0]);
    ensure_eq!(same.0, NOT_SUPPORTED, "a counter that runs is taken for another event");
    ensure_eq!(start(first.1, INIT_SNAPSHOT, 0), NO_SHMEM, "values from shared memory");
    ensure_eq!(stop(first.1, TAKE_SNAPSHOT), NO_SHMEM, "values to shared memory");
    ensure_eq!(pmu(pmu::SNAPSHOT_SET_SHMEM, [0x8000_0000, 0, 0, 0, 0]).0, NOT_SUPPORTED, "shared memory");
    ensure_eq!(start(first.1, 1 << 40, 0), INVALID_PARAM, "reserved flags");
    for (base, mask) in [(u64::MAX, 1), (1 << 63, 1), (0, u64::MAX), (u64::MAX - 3, 16)] {
        ensure_eq!(pmu(pmu::COUNTER_STOP, [base, mask, 0, 0, 0]).0, INVALID_PARAM, "stop {mask:#x} from {base:#x}");
    }
    ensure_eq!(pmu(pmu::COUNTER_STOP, [0, all, RESET, 0, 0]).0, ALREADY_STOPPED, "stop of all");
    ensure_eq!(start(first.1, 0, 0), INVALID_PARAM, "start without an event");
    // A kernel that knows the numbers.
    let known = pmu(pmu::COUNTER_CONFIG_MATCHING, [2, 1, SKIP_MATCH, INSTRUCTIONS, 0]);
    ensure_eq!(known, (SUCCESS, 2), "counter 2");
    ensure_eq!(stop(2, RESET), ALREADY_STOPPED, "stop of counter 2");
    // What is not there is illegal, and so is a write.
    ensure_trap(execute(read_csr(0xc1f), 0), ILLEGAL, read_csr(0xc1f).into(), "csrr hpmcounter31")?;
    ensure_trap(execute(0xc035_1073, 0), ILLEGAL, 0xc035_1073, "csrw hpmcounter3")
}

/// An SBI call's instructions are not the guest's.
fn instructions() -> Check {
    let (error, counter) = configure(START | CLEAR, INSTRUCTIONS, 0);
    ensure_eq!(error, SUCCESS, "configure");
    let (mut own, mut all) = (1, 0);
    // On another hart, where the vCPU may have gone, `instret` is another: then once more.
    for _ in 0..10 {
        let before = (csr::instret::read(), read_hardware(counter)?);
        for _ in 0..100 {
            _ = sbi::base(sbi_spec::base::GET_SBI_SPEC_VERSION);
        }
        let after = (csr::instret::read(), read_hardware(counter)?);
        (all, own) = (after.0.wrapping_sub(before.0), after.1 - before.1);
        if own < all {
            break;
        }
    }
    ensure_eq!(stop(counter, RESET), SUCCESS, "stop");
    ensure!(own < all, "{own} of the guest's own, of {all}");
    guests::console::line(format_args!("guest: {own} of {all} instructions are the guest's, in 100 SBI calls"));
    Ok(())
}

/// Figures of Gnomon's.
fn platform() -> Check {
    let event = of_firmware(firmware_event::PLATFORM);
    let (error, counter) = configure(START | CLEAR, event, 1);
    ensure_eq!(error, SUCCESS, "configure");
    for _ in 0..10 {
        _ = sbi::base(sbi_spec::base::GET_SBI_SPEC_VERSION);
    }
    let exits = read(counter)?;
    ensure!(exits >= 10, "{exits} exits in 10 calls");
    ensure_eq!(stop(counter, RESET), SUCCESS, "stop");
    for data in [0, 9, u64::MAX] {
        ensure_eq!(configure(0, event, data).0, NOT_SUPPORTED, "platform event {data}");
    }
    ensure_eq!(configure(0, CYCLES, 1).0, NOT_SUPPORTED, "cycles with data");
    Ok(())
}

/// A hart that starts anew has its counters without events and values.
fn restart() -> Check {
    fn leaves_one_running(_: u64) {
        let timers = of_firmware(firmware_event::SET_TIMER);
        let (error, counter) = configure(START, timers, 0);
        assert!(error == SUCCESS && read(counter).ok() == Some(0), "a counter has a value of an earlier life");
        assert_eq!(configure(START, CYCLES, 0), (SUCCESS, 0), "a counter of an earlier life is configured");
        sbi::set_timer(u64::MAX);
        assert_eq!(read(counter).ok(), Some(1), "calls that set the timer");
    }
    for other in board().other_harts() {
        for _ in 0..2 {
            hart::start(other, leaves_one_running, 0)?;
            hart::join(other)?;
        }
    }
    Ok(())
}
