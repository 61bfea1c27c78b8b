//! Fields of the CSRs that the hypervisor reads and writes. Values are whole registers.

/// `mstatus` (and its `sstatus`/`vsstatus` views).
pub mod status {
    /// Supervisor interrupt enable.
    pub const SIE: u64 = 1 << 1;
    /// Machine interrupt enable.
    pub const MIE: u64 = 1 << 3;
    /// Previous SIE.
    pub const SPIE: u64 = 1 << 5;
    /// Previous MIE.
    pub const MPIE: u64 = 1 << 7;
    /// Previous privilege of a trap to S: 1 = supervisor.
    pub const SPP: u64 = 1 << 8;
    /// Vector state: 0 off, 1 initial, 2 clean, 3 dirty.
    pub const VS_SHIFT: u32 = 9;
    /// Mask of the vector state.
    pub const VS: u64 = 3 << VS_SHIFT;
    /// Previous privilege of a trap to M (1 = S).
    pub const MPP_S: u64 = 1 << 11;
    /// Mask of MPP.
    pub const MPP: u64 = 3 << 11;
    /// Floating-point state: 0 off, 1 initial, 2 clean, 3 dirty.
    pub const FS_SHIFT: u32 = 13;
    /// Mask of the floating-point state.
    pub const FS: u64 = 3 << FS_SHIFT;
    /// Loads and stores use MPP's privilege.
    pub const MPRV: u64 = 1 << 17;
    /// Supervisor may access user pages.
    pub const SUM: u64 = 1 << 18;
    /// Executable pages are readable.
    pub const MXR: u64 = 1 << 19;
    /// Trap `satp` and fences in S.
    pub const TVM: u64 = 1 << 20;
    /// Trap WFI below M.
    pub const TW: u64 = 1 << 21;
    /// Trap `sret` in S.
    pub const TSR: u64 = 1 << 22;
    /// UXL = 64 bits, as `vsstatus` resets.
    pub const UXL_64: u64 = 2 << 32;
    /// Guest virtual address in `mtval` (see docs: not trusted on QEMU).
    pub const GVA: u64 = 1 << 38;
    /// Previous virtualization mode of a trap to M.
    pub const MPV: u64 = 1 << 39;
}

/// `hstatus`.
pub mod hstatus {
    /// Guest virtual address in `stval`.
    pub const GVA: u64 = 1 << 6;
    /// Previous virtualization mode of a trap to HS.
    pub const SPV: u64 = 1 << 7;
    /// Privilege of the guest before the trap, for HLV/HSV.
    pub const SPVP: u64 = 1 << 8;
    /// HLV, HLVX and HSV in U mode.
    pub const HU: u64 = 1 << 9;
    /// Trap `satp` and fences in VS.
    pub const VTVM: u64 = 1 << 20;
    /// Trap WFI in VS.
    pub const VTW: u64 = 1 << 21;
    /// Trap `sret` in VS.
    pub const VTSR: u64 = 1 << 22;
    /// VSXL = 64 bits.
    pub const VSXL_64: u64 = 2 << 32;
}

/// `menvcfg` and `henvcfg`.
pub mod envcfg {
    /// Fences of devices are fences of memory, too.
    pub const FIOM: u64 = 1;
    /// CBIE = 01: `cbo.inval` performs a flush, so that no hart reads stale memory behind the caches.
    pub const CBIE_FLUSH: u64 = 1 << 4;
    /// `cbo.clean` and `cbo.flush` allowed.
    pub const CBCFE: u64 = 1 << 6;
    /// The bits that let user mode clean, flush or invalidate cache blocks: CBCFE, and CBIE other than 00.
    pub const USER_CBO: u64 = CBCFE | 0b11 << 4;
    /// `cbo.zero` allowed.
    pub const CBZE: u64 = 1 << 7;
    /// Hardware updating of A and D (Svadu).
    pub const ADUE: u64 = 1 << 61;
    /// Svpbmt enabled.
    pub const PBMTE: u64 = 1 << 62;
    /// Sstc enabled.
    pub const STCE: u64 = 1 << 63;
}

/// `satp`, `vsatp` and `hgatp`.
pub mod atp {
    use crate::addr::{Pfn, Space};
    use crate::fence::{Asid, Vmid};
    use crate::format::Format;

    /// Lowest bit of MODE.
    pub const MODE_SHIFT: u32 = 60;
    /// Lowest bit of the ASID, and of the VMID in `hgatp`.
    pub const ID_SHIFT: u32 = 44;
    /// PPN field.
    pub const PPN: u64 = (1 << 44) - 1;
    /// The VMID field has 14 bits (QEMU lets all 16 through: mask).
    pub const VMID_BITS: u64 = (1 << 14) - 1;

    /// The ASID field has 16 bits.
    pub const ASID_BITS: u64 = (1 << 16) - 1;

    /// An `hgatp` for a G-stage table.
    #[must_use]
    pub const fn hgatp<S: Space>(format: &Format, vmid: Vmid, root: Pfn<S>) -> u64 {
        (format.mode as u64) << MODE_SHIFT | (vmid.0 as u64) << ID_SHIFT | root.raw()
    }

    /// A `satp` or `vsatp`.
    #[must_use]
    pub const fn satp<S: Space>(format: &Format, asid: Asid, root: Pfn<S>) -> u64 {
        (format.mode as u64) << MODE_SHIFT | (asid.0 as u64) << ID_SHIFT | root.raw()
    }

    /// The fields of a `satp` or `vsatp`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Satp {
        /// MODE: 0 is Bare.
        pub mode: u64,
        /// The ASID.
        pub asid: Asid,
        /// The root's page number, in whatever space the register's tables are.
        pub ppn: u64,
    }

    impl Satp {
        /// The register's fields.
        #[must_use]
        pub const fn decode(value: u64) -> Self {
            let asid = Asid((value >> ID_SHIFT & ASID_BITS) as u16);
            Self { mode: value >> MODE_SHIFT, asid, ppn: value & PPN }
        }

        /// The format and the root, or `None` for Bare and for reserved modes.
        #[must_use]
        pub const fn table<S: Space>(&self) -> Option<(&'static Format, Pfn<S>)> {
            match Format::of_vs_mode(self.mode) {
                Some(format) => Some((format, Pfn::new(self.ppn))),
                None => None,
            }
        }
    }

    /// The fields of an `hgatp`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Hgatp {
        /// MODE: 0 is Bare.
        pub mode: u64,
        /// The VMID.
        pub vmid: Vmid,
        /// The page number of the root, whose two lowest bits are 0 (norm:hgatp-ppn_op).
        pub ppn: u64,
    }

    impl Hgatp {
        /// Decodes a value of the register.
        #[must_use]
        pub const fn decode(value: u64) -> Self {
            let vmid = Vmid((value >> ID_SHIFT & VMID_BITS) as u16);
            Self { mode: value >> MODE_SHIFT, vmid, ppn: value & PPN & !3 }
        }

        /// The format and the root, or `None` for Bare and for reserved modes.
        #[must_use]
        pub const fn table<S: Space>(&self) -> Option<(&'static Format, Pfn<S>)> {
            match Format::of_g_mode(self.mode) {
                Some(format) => Some((format, Pfn::new(self.ppn))),
                None => None,
            }
        }
    }
}

/// `hcounteren` and its like: cycle, time and instret.
pub const COUNTEREN_BASE: u64 = 0b111;
/// Their bits of `hpmcounter3` to `hpmcounter8`.
pub const COUNTEREN_HPM: u64 = 0b111111 << 3;
/// Their bit of `time`.
pub const COUNTEREN_TM: u64 = 0b010;
