//! SBI PMU as a guest uses it: calls, and reads of the counters' CSRs.

use crate::exits::{nested, trapped};
use crate::fake::{Event, World};
use abi::bundle::GUEST_ENTRY;
use hypervisor::device::offer::GuestMode;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::pmu::Sample;
use rv::{Exception, Mode};
use sbi_spec::pmu::{EID_PMU, event_type, firmware_event};
use sbi_spec::{base, legacy, rfnc, spi, time};

const VIRTUAL: u64 = Exception::VirtualInstruction as u64;
const ILLEGAL: u64 = Exception::IllegalInstruction as u64;

/// `csrr a0, hpmcounterN`.
const fn read(n: u64) -> u64 {
    (0xc00 + n) << 20 | 0x2573
}

/// Configures a counter for an event and starts it; returns its number.
fn counts(w: &mut World, event: usize) -> u64 {
    const CLEAR_AND_START: u64 = 6;
    let (error, counter) = w.sbi(EID_PMU, 2, &[0, 0xffff, CLEAR_AND_START, event as u64]);
    assert_eq!(error, 0, "event {event:#x}");
    counter
}

const fn of_firmware(code: usize) -> usize {
    event_type::FIRMWARE << 16 | code
}

#[test]
fn counters_are_read_by_their_csrs() {
    for cause in [VIRTUAL, ILLEGAL] {
        let mut w = nested();
        assert_eq!(w.sbi(base::EID_BASE, base::PROBE_EXTENSION as u64, &[EID_PMU as u64]), (0, 1));
        assert_eq!(w.sbi(EID_PMU, 0, &[]), (0, 16));
        w.hart.events.clear();
        assert_eq!(counts(&mut w, 1), 0);
        assert!(w.hart.events.contains(&Event::Samples(true)), "its hart takes samples");
        let pmu = w.run.pmu.as_mut().expect("it has been called");
        pmu.enter(Sample { cycles: 100, ..Sample::default() });
        pmu.leave(Sample { cycles: 150, ..Sample::default() }, false);
        if cause == ILLEGAL {
            // The rig's SBI calls are those of VS mode.
            w.g.offer.guest = GuestMode::Supervisor;
        }
        for (n, value) in [(3, 50), (4, 0), (8, 0)] {
            let pc = w.run.context.pc;
            w.run.context.x[10] = 7;
            assert_eq!(w.exit(cause, read(n), 0, 0), Outcome::Resume);
            assert_eq!((w.run.context.x[10], w.run.context.pc), (value, pc + 4), "hpmcounter{n}");
        }
        assert_eq!(w.run.shared.counters.pmu_reads.get(), 3);
        // Others, and writes, are illegal; and so are reads in user mode, if `scounteren` does not let it.
        w.hart.user_counters = 0b1_0000;
        for (insn, mode) in [
            (read(9), Mode::Supervisor),
            (read(31), Mode::Supervisor),
            (0xc035_1073, Mode::Supervisor),
            (read(3), Mode::User),
        ] {
            (w.run.context.pc, w.hart.mode) = (GUEST_ENTRY, mode);
            let outcome = w.exit(cause, insn, 0, 0);
            trapped(&w, outcome, Exception::IllegalInstruction, insn, GUEST_ENTRY);
        }
        (w.run.context.pc, w.hart.mode) = (GUEST_ENTRY, Mode::User);
        assert_eq!(w.exit(cause, read(4), 0, 0), Outcome::Resume);
    }
}

#[test]
fn a_machine_without_them_offers_none() {
    let mut w = nested();
    w.g.offer.has_pmu = false;
    assert_eq!(w.sbi(base::EID_BASE, base::PROBE_EXTENSION as u64, &[EID_PMU as u64]), (0, 0));
    assert_eq!(w.sbi(EID_PMU, 0, &[]).0, -2);
    w.run.context.pc = GUEST_ENTRY;
    let outcome = w.exit(VIRTUAL, read(3), 0, 0);
    trapped(&w, outcome, Exception::IllegalInstruction, read(3), GUEST_ENTRY);
}

#[test]
fn firmware_counters_count_a_guests_calls() {
    let mut w = nested();
    assert_eq!(w.sbi(EID_PMU, 7, &[0x8000_0000, 0, 0]).0, -2, "shared memory is optional");
    assert_eq!(w.run.shared.counters.sbi_unknown.get(), 0, "and no call of what is not there");
    assert_eq!(w.sbi(EID_PMU, 9, &[]).0, -2);
    assert_eq!(w.run.shared.counters.sbi_unknown.get(), 1);
    let codes = [
        firmware_event::SET_TIMER,
        firmware_event::IPI_SENT,
        firmware_event::FENCE_I_SENT,
        firmware_event::SFENCE_VMA_SENT,
        firmware_event::SFENCE_VMA_ASID_SENT,
    ];
    let counters = codes.map(|code| counts(&mut w, of_firmware(code)));
    assert!(!w.run.samples(), "no hardware counter runs");
    w.sbi(time::EID_TIME, 0, &[u64::MAX]);
    w.sbi(legacy::LEGACY_SET_TIMER, 0, &[u64::MAX]);
    w.sbi(spi::EID_SPI, 0, &[1, 0]);
    for (function, calls) in
        [(rfnc::REMOTE_FENCE_I, 1), (rfnc::REMOTE_SFENCE_VMA, 2), (rfnc::REMOTE_SFENCE_VMA_ASID, 3)]
    {
        (0..calls).for_each(|_| assert_eq!(w.sbi(rfnc::EID_RFNC, function as u64, &[1, 0, 0, 0, 0]).0, 0));
    }
    let values = counters.map(|counter| w.sbi(EID_PMU, 5, &[counter]));
    assert_eq!(values, [(0, 2), (0, 1), (0, 1), (0, 2), (0, 3)]);
    assert_eq!(w.sbi(EID_PMU, 6, &[counters[0]]), (0, 0), "the upper half");
    assert_eq!(w.sbi(EID_PMU, 5, &[0]).0, -3, "a hardware counter");
}
