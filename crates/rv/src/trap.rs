//! Traps: causes, and what the hardware writes beside them.

/// Synchronous exception codes (privileged spec, table "Supervisor cause register values", with
/// the hypervisor extension's).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Exception {
    /// Instruction address misaligned.
    FetchMisaligned = 0,
    /// Instruction access fault.
    FetchAccess = 1,
    /// Illegal instruction.
    IllegalInstruction = 2,
    /// Breakpoint.
    Breakpoint = 3,
    /// Load address misaligned.
    LoadMisaligned = 4,
    /// Load access fault.
    LoadAccess = 5,
    /// Store/AMO address misaligned.
    StoreMisaligned = 6,
    /// Store/AMO access fault.
    StoreAccess = 7,
    /// Environment call from U or VU.
    EcallFromU = 8,
    /// Environment call from HS (or S).
    EcallFromS = 9,
    /// Environment call from VS.
    EcallFromVs = 10,
    /// Environment call from M.
    EcallFromM = 11,
    /// Instruction page fault.
    FetchPage = 12,
    /// Load page fault.
    LoadPage = 13,
    /// Store/AMO page fault.
    StorePage = 15,
    /// Software check.
    SoftwareCheck = 18,
    /// Hardware error.
    HardwareError = 19,
    /// Instruction guest-page fault.
    FetchGuestPage = 20,
    /// Load guest-page fault.
    LoadGuestPage = 21,
    /// Virtual instruction.
    VirtualInstruction = 22,
    /// Store/AMO guest-page fault.
    StoreGuestPage = 23,
}

impl Exception {
    /// All codes that are defined, ascending.
    pub const ALL: [Exception; 21] = [
        Self::FetchMisaligned,
        Self::FetchAccess,
        Self::IllegalInstruction,
        Self::Breakpoint,
        Self::LoadMisaligned,
        Self::LoadAccess,
        Self::StoreMisaligned,
        Self::StoreAccess,
        Self::EcallFromU,
        Self::EcallFromS,
        Self::EcallFromVs,
        Self::EcallFromM,
        Self::FetchPage,
        Self::LoadPage,
        Self::StorePage,
        Self::SoftwareCheck,
        Self::HardwareError,
        Self::FetchGuestPage,
        Self::LoadGuestPage,
        Self::VirtualInstruction,
        Self::StoreGuestPage,
    ];

    /// The code.
    #[must_use]
    pub const fn code(self) -> u64 {
        self as u64
    }

    /// The bit of this cause in `medeleg` and `hedeleg`.
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self as u64
    }

    /// The exception with this code, if it is a defined one.
    #[must_use]
    pub fn from_code(code: u64) -> Option<Self> {
        // A table: every exit asks.
        const BY_CODE: [Option<Exception>; 24] = {
            let (mut table, mut at) = ([None; 24], 0);
            while at < Exception::ALL.len() {
                table[Exception::ALL[at] as usize] = Some(Exception::ALL[at]);
                at += 1;
            }
            table
        };
        BY_CODE.get(code as usize).copied().flatten()
    }
}

/// Interrupt codes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Interrupt {
    /// Supervisor software.
    SSoft = 1,
    /// VS software.
    VsSoft = 2,
    /// Machine software.
    MSoft = 3,
    /// Supervisor timer.
    STimer = 5,
    /// VS timer.
    VsTimer = 6,
    /// Machine timer.
    MTimer = 7,
    /// Supervisor external.
    SExternal = 9,
    /// VS external.
    VsExternal = 10,
    /// Machine external.
    MExternal = 11,
    /// Supervisor guest external.
    SGuestExternal = 12,
}

impl Interrupt {
    /// All codes that are defined, ascending.
    pub const ALL: [Interrupt; 10] = [
        Self::SSoft,
        Self::VsSoft,
        Self::MSoft,
        Self::STimer,
        Self::VsTimer,
        Self::MTimer,
        Self::SExternal,
        Self::VsExternal,
        Self::MExternal,
        Self::SGuestExternal,
    ];

    /// The bit of this interrupt in `mip`, `sip`, `hvip` and their like.
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// The cause in `mcause` or `scause`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// A synchronous exception.
    Exception(Exception),
    /// An interrupt.
    Interrupt(Interrupt),
    /// A value the hypervisor has no name for.
    Unknown(u64),
}

impl Cause {
    /// Reads a cause register.
    #[must_use]
    pub fn from_register(value: u64) -> Self {
        const INTERRUPT: u64 = 1 << 63;
        let code = value & !INTERRUPT;
        if value & INTERRUPT != 0 {
            let found = Interrupt::ALL.into_iter().find(|i| *i as u64 == code);
            found.map_or(Cause::Unknown(value), Cause::Interrupt)
        } else {
            Exception::from_code(code).map_or(Cause::Unknown(value), Cause::Exception)
        }
    }
}

/// A trap as it is delivered to a guest (or raised by a walk): what goes into the cause and value
/// registers. `tval2` and `tinst` are for traps into a hypervisor: the faulting guest physical
/// address shifted right by 2, and the transformed or pseudo instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Trap {
    /// Which exception.
    pub exception: Exception,
    /// `stval`.
    pub tval: u64,
    /// `htval` (or `mtval2`): GPA >> 2 for guest-page faults, else 0.
    pub tval2: u64,
    /// `htinst` (or `mtinst`), 0 if nothing is known.
    pub tinst: u64,
}

impl Trap {
    /// A trap with no hypervisor-only values.
    #[must_use]
    pub const fn new(exception: Exception, tval: u64) -> Self {
        Self { exception, tval, tval2: 0, tinst: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back_from_registers() {
        for e in Exception::ALL {
            assert_eq!(Cause::from_register(e.code()), Cause::Exception(e));
        }
        for i in Interrupt::ALL {
            assert_eq!(Cause::from_register(1 << 63 | i as u64), Cause::Interrupt(i));
        }
        assert_eq!(Cause::from_register(14), Cause::Unknown(14));
        assert_eq!(Cause::from_register(1 << 63 | 40), Cause::Unknown(1 << 63 | 40));
    }
}
