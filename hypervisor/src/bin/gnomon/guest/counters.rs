//! The hart's counters, which Gnomon reads for guests (SBI PMU).

use super::GuestHart;
use crate::seat::Seat;
use hypervisor::vm::vcpu::pmu::Sample;
use metal::csr;

impl GuestHart {
    /// Reads the hart's counters.
    pub fn sample(&self) -> Sample {
        let (cycles, instructions) = match self.seat {
            // Every hart has these.
            Seat::Firmware => (csr::mcycle::read(), csr::minstret::read()),
            Seat::Payload => (csr::cycle::read(), csr::instret::read()),
        };
        Sample { cycles, instructions, time: metal::time() }
    }
}
