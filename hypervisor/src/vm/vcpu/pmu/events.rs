//! The events that SBI PMU can count for a guest.

use super::totals::{Firmware, Guest};
use crate::measure::counters::VcpuCounters;
use sbi_spec::pmu::{event_type, firmware_event, hardware_event};

/// An event, by its numbers (SBI 2.0, chapter 11). Only those that are offered exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// `event_idx`: the type in bits 19 to 16, the code in bits 15 to 0.
    pub index: u32,
    /// `event_data`: 0, or the number of a platform event.
    pub data: u64,
}

/// The properties of a guest's machine that decide which events there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventsOffered {
    /// Misaligned accesses come to Gnomon, which emulates them.
    pub misaligned: bool,
    /// The guest has the H extension.
    pub hypervisor: bool,
}

/// The bit at which the type begins.
const TYPE_SHIFT: u32 = 16;

/// Platform events, by their numbers from 1 on: figures of Gnomon's about the vCPU. `docs/sbi.md` names them.
const PLATFORM: [fn(&VcpuCounters) -> u64; 8] = [
    |counters| counters.exits.get(),
    |counters| counters.faults_memory.get(),
    |counters| counters.exits_page_fault.get(),
    |counters| counters.faults_mmio.get(),
    |counters| counters.wfis.get(),
    |counters| counters.waits.get(),
    |counters| counters.preemptions.get(),
    |counters| counters.migrations.get(),
];

impl Event {
    /// Returns the event of these numbers, if it is offered.
    #[must_use]
    pub fn offered(index: u64, data: u64, offered: EventsOffered) -> Option<Self> {
        let event = Self { index: u32::try_from(index).ok()?, data };
        let code = event.code();
        let is_there = match (index >> TYPE_SHIFT) as usize {
            event_type::HARDWARE_GENERAL => {
                data == 0
                    && matches!(
                        code,
                        hardware_event::CPU_CYCLES
                            | hardware_event::INSTRUCTIONS
                            | hardware_event::BUS_CYCLES
                            | hardware_event::REF_CPU_CYCLES
                    )
            }
            event_type::FIRMWARE => match code {
                firmware_event::PLATFORM => (1..=PLATFORM.len() as u64).contains(&data),
                _ if data != 0 => false,
                firmware_event::MISALIGNED_LOAD | firmware_event::MISALIGNED_STORE => offered.misaligned,
                firmware_event::SET_TIMER
                | firmware_event::IPI_SENT
                | firmware_event::IPI_RECEIVED
                | firmware_event::FENCE_I_SENT
                | firmware_event::FENCE_I_RECEIVED
                | firmware_event::SFENCE_VMA_SENT
                | firmware_event::SFENCE_VMA_RECEIVED
                | firmware_event::SFENCE_VMA_ASID_SENT
                | firmware_event::SFENCE_VMA_ASID_RECEIVED => true,
                firmware_event::HFENCE_GVMA_SENT
                | firmware_event::HFENCE_GVMA_VMID_SENT
                | firmware_event::HFENCE_VVMA_SENT
                | firmware_event::HFENCE_VVMA_ASID_SENT => offered.hypervisor,
                _ => false,
            },
            _ => false,
        };
        is_there.then_some(event)
    }

    /// Returns whether firmware counters count it.
    #[must_use]
    pub const fn is_firmware(self) -> bool {
        self.index >> TYPE_SHIFT == event_type::FIRMWARE as u32
    }

    /// Returns whether it is the receipt of an IPI.
    pub(super) const fn is_of_received_ipis(self) -> bool {
        self.is_firmware() && self.code() == firmware_event::IPI_RECEIVED
    }

    const fn code(self) -> usize {
        self.index as u16 as usize
    }

    /// Returns the number of such events so far, in the worlds that are given by bits.
    pub(super) fn total(self, worlds: u8, guest: &Guest, firmware: &Firmware, counters: &VcpuCounters) -> u64 {
        let code = self.code();
        if !self.is_firmware() {
            let sample = guest.total(worlds);
            return match code {
                hardware_event::CPU_CYCLES => sample.cycles,
                hardware_event::INSTRUCTIONS => sample.instructions,
                // Both have a fixed frequency, which may be that of `time`.
                _ => sample.time,
            };
        }
        match code {
            firmware_event::PLATFORM => PLATFORM[self.data as usize - 1](counters),
            // What is counted anyway, brief exits included.
            firmware_event::SET_TIMER => counters.sbi_time.get().wrapping_add(firmware.of(code)),
            firmware_event::IPI_SENT => counters.inject_software.get(),
            _ => firmware.of(code),
        }
    }
}
