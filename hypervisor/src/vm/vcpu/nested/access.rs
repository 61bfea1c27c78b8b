//! The hypervisor CSRs and the VS-level CSRs, as L1 reads and writes them: which fields there are, and which values a field takes
//! (privileged spec, "Hypervisor and Virtual Supervisor CSRs"). No guest external interrupts (GEILEN is 0), VSXLEN is 64.

use super::csrs::VS_INTERRUPTS;
use super::state::Nested;
use crate::device::offer::{GuestTimer, Offer};
use rv::csr::atp::{Hgatp, Satp};
use rv::csr::{COUNTEREN_BASE, envcfg, hstatus, status};
use rv::format::SV39X4;
use rv::system::number;
use rv::{Exception, Format, Interrupt};

/// The features of L1's machine that decide which fields can be set.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// The formats that `vsatp` takes.
    pub formats: &'a [&'static Format],
    /// The bits of `henvcfg` that can be set.
    pub henvcfg: u64,
    /// L1's time.
    pub time: u64,
}

/// Exceptions that `hedeleg` can delegate (privileged spec, table "Bits of hedeleg that must be writable or must be read-only zero").
const HEDELEG: u64 = Exception::FetchMisaligned.bit()
    | Exception::FetchAccess.bit()
    | Exception::IllegalInstruction.bit()
    | Exception::Breakpoint.bit()
    | Exception::LoadMisaligned.bit()
    | Exception::LoadAccess.bit()
    | Exception::StoreMisaligned.bit()
    | Exception::StoreAccess.bit()
    | Exception::EcallFromU.bit()
    | Exception::FetchPage.bit()
    | Exception::LoadPage.bit()
    | Exception::StorePage.bit()
    | Exception::SoftwareCheck.bit()
    | Exception::HardwareError.bit();
const HSTATUS: u64 =
    hstatus::GVA | hstatus::SPV | hstatus::SPVP | hstatus::HU | hstatus::VTVM | hstatus::VTW | hstatus::VTSR;
const HIE: u64 = VS_INTERRUPTS | Interrupt::SGuestExternal.bit();
const VSSTATUS: u64 = status::SIE | status::SPIE | status::SPP | status::VS | status::FS | status::SUM | status::MXR;
const SD: u64 = 1 << 63;
/// Modes of `stvec`: direct and vectored.
const VECTOR_MODES: u64 = 1;

impl Limits<'_> {
    /// Returns the bits of `henvcfg` that L1 can set: those of the extensions that its machine has.
    #[must_use]
    pub fn environment_of(offer: &Offer, svadu: bool) -> u64 {
        let with = |has, bits| if has { bits } else { 0 };
        Self::ENVIRONMENT
            | with(offer.isa.has("zicbom"), envcfg::USER_CBO)
            | with(offer.isa.has("zicboz"), envcfg::CBZE)
            | with(offer.timer == GuestTimer::Sstc, envcfg::STCE)
            | with(svadu, envcfg::ADUE)
    }

    /// Returns the value that `henvcfg` takes. CBIE = 10 is reserved, and becomes 00.
    const fn environment(&self, value: u64) -> u64 {
        const CBIE: u64 = 3 << 4;
        let value = value & self.henvcfg;
        if value & CBIE == 2 << 4 { value & !CBIE } else { value }
    }

    /// Returns whether `vsatp` takes that value's MODE.
    fn takes(&self, vsatp: u64) -> bool {
        let mode = Satp::decode(vsatp).mode;
        mode == 0 || self.formats.iter().any(|format| u64::from(format.mode) == mode)
    }
}

/// Returns the value that `hgatp` takes in the place of `old`: an unsupported MODE leaves the register as it was.
const fn hgatp(old: u64, value: u64) -> u64 {
    let Hgatp { mode, vmid, ppn } = Hgatp::decode(value);
    if mode != 0 && mode != SV39X4.mode as u64 {
        return old;
    }
    mode << rv::csr::atp::MODE_SHIFT | (vmid.0 as u64) << rv::csr::atp::ID_SHIFT | ppn
}

impl Nested {
    /// Returns the limits of L1's CSRs at L1's time `time`.
    #[must_use]
    pub fn limits<'o>(&self, offer: &'o Offer, time: u64) -> Limits<'o> {
        Limits { formats: &offer.formats, henvcfg: self.environment, time }
    }

    /// Returns the value of one of these CSRs, which L1 reads. `None` if it is none of them.
    #[must_use]
    pub const fn read(&self, csr: u16, limits: &Limits<'_>) -> Option<u64> {
        let (csrs, vs) = (&self.csrs, &self.other);
        Some(match csr {
            number::HSTATUS => csrs.hstatus | hstatus::VSXL_64,
            number::HEDELEG => csrs.hedeleg,
            number::HIDELEG => csrs.hideleg,
            number::HIE => csrs.hie,
            number::HCOUNTEREN => csrs.hcounteren,
            number::HTIMEDELTA => csrs.htimedelta,
            number::HTVAL => csrs.htval,
            number::HTINST => csrs.htinst,
            number::HGATP => csrs.hgatp,
            number::HENVCFG => csrs.henvcfg,
            number::HIP => self.hip(limits.time),
            number::HVIP => vs.hvip,
            number::HGEIE | number::HGEIP => 0,
            number::VSSTATUS => {
                let is_dirty = vs.vsstatus & status::FS == status::FS || vs.vsstatus & status::VS == status::VS;
                vs.vsstatus & !SD | if is_dirty { SD } else { 0 }
            }
            // What `hideleg` does not delegate reads as 0 (privileged spec, "Virtual Supervisor Interrupt Registers").
            number::VSIE => (csrs.hie & csrs.hideleg) >> 1,
            number::VSIP => (self.hip(limits.time) & csrs.hideleg) >> 1,
            number::VSTVEC => vs.vstvec,
            number::VSSCRATCH => vs.vsscratch,
            number::VSEPC => vs.vsepc,
            number::VSCAUSE => vs.vscause,
            number::VSTVAL => vs.vstval,
            number::VSATP => vs.vsatp,
            number::VSTIMECMP => vs.vstimecmp,
            _ => return None,
        })
    }

    /// Writes one of these CSRs for L1: one that [`Nested::read`] knows. Fields that do not take the value keep theirs.
    pub fn write(&mut self, csr: u16, value: u64, limits: &Limits<'_>) {
        let (csrs, vs) = (&mut self.csrs, &mut self.other);
        match csr {
            number::HSTATUS => csrs.hstatus = value & HSTATUS,
            number::HEDELEG => csrs.hedeleg = value & HEDELEG,
            number::HIDELEG => csrs.hideleg = value & VS_INTERRUPTS,
            number::HIE => csrs.hie = value & HIE,
            number::HCOUNTEREN => csrs.hcounteren = value & COUNTEREN_BASE,
            number::HTIMEDELTA => csrs.htimedelta = value,
            number::HTVAL => csrs.htval = value,
            number::HTINST => csrs.htinst = value,
            number::HGATP => csrs.hgatp = hgatp(csrs.hgatp, value),
            number::HENVCFG => csrs.henvcfg = limits.environment(value),
            number::HVIP => vs.hvip = value & VS_INTERRUPTS,
            // Of pending interrupts, software can write VSSIP only, which is that of `hvip`.
            number::HIP => vs.hvip = put(vs.hvip, value, Interrupt::VsSoft.bit()),
            number::VSIP => vs.hvip = put(vs.hvip, value << 1, Interrupt::VsSoft.bit() & csrs.hideleg),
            number::VSIE => csrs.hie = put(csrs.hie, value << 1, csrs.hideleg),
            number::VSSTATUS => vs.vsstatus = value & VSSTATUS | status::UXL_64,
            number::VSTVEC => vs.vstvec = value & (!3 | VECTOR_MODES),
            number::VSSCRATCH => vs.vsscratch = value,
            number::VSEPC => vs.vsepc = value & !1,
            number::VSCAUSE => vs.vscause = value,
            number::VSTVAL => vs.vstval = value,
            number::VSATP if limits.takes(value) => vs.vsatp = value,
            number::VSTIMECMP => vs.vstimecmp = value,
            _ => {}
        }
    }
}

/// Replaces the bits `mask` of `old`.
const fn put(old: u64, new: u64, mask: u64) -> u64 {
    old & !mask | new & mask
}

impl Limits<'_> {
    /// The bits of `henvcfg` that are there on each machine with the H extension.
    pub const ENVIRONMENT: u64 = envcfg::FIOM;
}

#[cfg(test)]
mod tests {
    use super::*;
    use rv::format::{SV39, SV48};

    const ALL: u64 = u64::MAX;

    fn limits() -> Limits<'static> {
        const FORMATS: &[&Format] = &[&SV39, &SV48];
        Limits { formats: FORMATS, henvcfg: envcfg::FIOM | envcfg::USER_CBO | envcfg::STCE, time: 1000 }
    }

    fn written(csr: u16, value: u64) -> u64 {
        let mut nested = Nested::new(0, 0, false);
        nested.write(csr, value, &limits());
        nested.read(csr, &limits()).expect("one of these")
    }

    #[test]
    fn fields_take_what_the_manual_lets_them() {
        for (csr, all) in [
            (number::HSTATUS, 0x2_0070_03c0),
            (number::HEDELEG, 0xc_b1ff),
            (number::HIDELEG, 0x444),
            (number::HIE, 0x1444),
            (number::HVIP, 0x444),
            (number::HIP, 0x4),
            (number::HCOUNTEREN, 7),
            (number::HGEIE, 0),
            (number::HENVCFG, 1 << 63 | 0x71),
            (number::VSSTATUS, 1 << 63 | 2 << 32 | 0xc_6722),
            (number::VSTVEC, !2),
            (number::VSEPC, !1),
            (number::HTIMEDELTA, ALL),
            (number::HTVAL, ALL),
            // No MODE of all ones.
            (number::HGATP, 0),
            (number::VSATP, 0),
        ] {
            assert_eq!(written(csr, ALL), all, "{csr:#x}");
        }
        assert_eq!(written(number::HENVCFG, 2 << 4), 0, "CBIE = 10 is reserved");
        assert_eq!(written(number::HGATP, 8 << 60 | 0x3fff << 44 | 7), 8 << 60 | 0x3fff << 44 | 4);
        assert_eq!(written(number::HGATP, 9 << 60 | 4), 0, "Sv48x4 is not offered");
        assert_eq!(written(number::VSATP, 9 << 60 | 4), 9 << 60 | 4);
        assert_eq!(written(number::VSATP, 10 << 60 | 4), 0, "nor is Sv57");
    }

    #[test]
    fn interrupts_have_views() {
        let (mut nested, limits) = (Nested::new(0, 0, false), limits());
        nested.write(number::VSIE, ALL, &limits);
        assert_eq!(nested.csrs.hie, 0, "nothing is delegated");
        nested.write(number::HIDELEG, 0x44, &limits);
        nested.write(number::VSIE, ALL, &limits);
        assert_eq!((nested.csrs.hie, nested.read(number::VSIE, &limits)), (0x44, Some(0x22)));
        nested.write(number::HVIP, 0x444, &limits);
        assert_eq!(nested.read(number::VSIP, &limits), Some(0x22));
        nested.write(number::HIE, 0x444, &limits);
        assert_eq!(nested.undelegated(0), 0x400);
        nested.write(number::VSIP, 0, &limits);
        assert_eq!(nested.read(number::HVIP, &limits), Some(0x440));
    }

    #[test]
    fn a_comparator_raises_the_timer_where_it_is_there() {
        let (mut nested, limits) = (Nested::new(0, 0, false), limits());
        nested.write(number::HTIMEDELTA, 0u64.wrapping_sub(900), &limits);
        nested.write(number::VSTIMECMP, 100, &limits);
        assert_eq!(nested.read(number::HIP, &limits), Some(0));
        nested.write(number::HENVCFG, ALL, &limits);
        assert_eq!(nested.read(number::HIP, &limits), Some(0x40));
        nested.write(number::VSTIMECMP, 101, &limits);
        assert_eq!(nested.read(number::HIP, &limits), Some(0));
    }
}
