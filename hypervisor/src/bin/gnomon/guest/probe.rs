//! The properties of a hart that the device tree does not give, found by writing WARL fields and reading them back.

use super::bank::with_bank;
use crate::seat::Seat;
use alloc::string::String;
use alloc::vec::Vec;
use hypervisor::device::offer::GuestMode;
use metal::csr;
use rv::Format;
use rv::csr::{COUNTEREN_HPM, atp};
use rv::format::{SV39, SV39X4, SV48, SV48X4, SV57, SV57X4};

/// The abilities that guests find on a hart: the same on every hart that Gnomon uses, for they run on any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// The bits of `henvcfg` (in S mode: `menvcfg`) that could be set.
    pub environment: u64,
    /// The G-stage format: the smallest that the hart has (each covers far more than any board's RAM,
    /// and fewer levels make shorter walks). Without the H extension, that of tables which only
    /// software walks.
    pub g_format: &'static Format,
    /// Bits of the VMID field; 0 without the H extension.
    pub vmid_bits: u32,
    /// The formats that `vsatp` (in S mode: `satp`) takes, the smallest first.
    pub formats: Vec<&'static Format>,
    /// Bits of that register's ASID field.
    pub asid_bits: u32,
    /// Bytes in a vector register, 0 without V.
    pub vlenb: usize,
    /// Set if reads of `hpmcounter3` to `hpmcounter8` come to Gnomon.
    pub has_counters: bool,
}

/// Tries what the registers of this hart hold, whose guests run in that mode. No guest is loaded.
pub(super) fn probe(guest: GuestMode, environment: u64, vlenb: usize, has_counters: bool) -> Result<Abilities, String> {
    let (g_format, vmid_bits) = match guest {
        GuestMode::Virtual => probe_g_stage().ok_or("the hart has no G-stage format that Gnomon knows")?,
        GuestMode::Supervisor => (&SV39X4, 0),
    };
    let formats: Vec<_> = [&SV39, &SV48, &SV57].into_iter().filter(|f| takes(guest, f, 0).is_some()).collect();
    let least = formats.first().ok_or("the hart has no page-table format that Gnomon knows")?;
    let asids = takes(guest, least, atp::ASID_BITS).unwrap_or(0);
    Ok(Abilities { environment, g_format, vmid_bits, formats, asid_bits: asids.count_ones(), vlenb, has_counters })
}

/// Checks whether the guest's root register takes the format; if so, returns the ASID bits that remain.
fn takes(guest: GuestMode, format: &Format, asid_bits: u64) -> Option<u64> {
    let mode = u64::from(format.mode);
    // SAFETY: no guest is entered meanwhile, and Gnomon's own addresses do not go through it.
    let read = with_bank!(guest, |bank| unsafe {
        bank::satp::write(mode << atp::MODE_SHIFT | asid_bits << atp::ID_SHIFT);
        let read = bank::satp::read();
        bank::satp::write(0);
        read
    });
    (read >> atp::MODE_SHIFT == mode).then_some(read >> atp::ID_SHIFT & atp::ASID_BITS)
}

fn probe_g_stage() -> Option<(&'static Format, u32)> {
    [&SV39X4, &SV48X4, &SV57X4].into_iter().find_map(|format| {
        let mode = u64::from(format.mode);
        // SAFETY: no guest is entered meanwhile.
        let read = unsafe {
            csr::hgatp::write(mode << atp::MODE_SHIFT | atp::VMID_BITS << atp::ID_SHIFT);
            let read = csr::hgatp::read();
            csr::hgatp::write(0);
            read
        };
        let vmids = read >> atp::ID_SHIFT & atp::VMID_BITS;
        (read >> atp::MODE_SHIFT == mode).then_some((format, vmids.count_ones()))
    })
}

/// Returns whether guests' reads of `hpmcounter3` to `hpmcounter8` come to Gnomon, and Gnomon may read `cycle` and `instret`. In VS mode
/// such a read traps as a virtual instruction if HS mode may read the counter, and else is illegal, which is the guest's own.
pub(super) fn counters_trap(seat: Seat, mode: GuestMode) -> bool {
    match (seat, mode) {
        (Seat::Firmware, GuestMode::Virtual) => csr::mcounteren::read() & COUNTEREN_HPM == COUNTEREN_HPM,
        // All illegal instructions come to Gnomon.
        (_, GuestMode::Supervisor) => true,
        // SAFETY: HS mode; no guest has been loaded, and the firmware passes illegal instructions of HS mode on to it.
        (Seat::Payload, GuestMode::Virtual) => unsafe {
            csr::cycle::exists_for_supervisor()
                && csr::instret::exists_for_supervisor()
                && csr::hpmcounter3::exists_for_supervisor()
                && csr::hpmcounter4::exists_for_supervisor()
                && csr::hpmcounter5::exists_for_supervisor()
                && csr::hpmcounter6::exists_for_supervisor()
                && csr::hpmcounter7::exists_for_supervisor()
                && csr::hpmcounter8::exists_for_supervisor()
        },
    }
}
