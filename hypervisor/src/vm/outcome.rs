//! The outcome of an exit.

use crate::vm::Departure;
use abi::record::EndReason;
use alloc::string::String;
use rv::{Access, Addr, Gpa, Trap};

/// The way in which a vCPU continues after an exit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// In the guest, at `context.pc`.
    Resume,
    /// Gnomon's timer is due: slices, deadlines.
    Timer,
    /// Another hart wants this one to look at what was posted.
    Kicked,
    /// A device of the host wants attention.
    External,
    /// The vCPU waits for an interrupt.
    Wait,
    /// The vCPU waits for a store of another hart: other vCPUs may as well run.
    Yield,
    /// The vCPU waits for a device, or for the console: this exit is made again when the vCPU is woken
    /// ([`VcpuRun::hold`]).
    ///
    /// [`VcpuRun::hold`]: crate::vm::vcpu::VcpuRun::hold
    Later,
    /// The vCPU stops (SBI hart_stop).
    Stop,
    /// The vCPU waits for an interrupt without its state (SBI hart_suspend, non-retentive): it continues as if it were
    /// started anew ([`VcpuRun::resume_at`]).
    ///
    /// [`VcpuRun::resume_at`]: crate::vm::vcpu::VcpuRun::resume_at
    Sleep {
        /// The guest physical address where the vCPU continues.
        pc: u64,
        /// The value of a1 then.
        opaque: u64,
    },
    /// Its VM ends or starts over.
    Depart(Departure),
}

/// The subject of an exit that may be brief, if that is not a byte. Each kind has a handler, whose frame is no larger
/// than it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An SBI call that sets the timer.
    Timer,
    /// A call that sends IPIs.
    Ipi,
    /// A call of the base extension.
    Base,
    /// A fault on shadow tables.
    Fault,
    /// A fence of one page on shadow tables.
    Fence,
    /// An access to `satp`, on shadow tables.
    Satp,
    /// A page fault of a guest's guest, on collapsed tables.
    FaultOfL2,
    /// A fence of one page by one.
    FenceOfL2,
}

/// The result of an exit that might be brief: in a register, since it must not take long to return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Brief(pub u64);

/// The facts that are known of an exit that turned out not to be brief. Nothing has happened yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// The exit sends a register by the UART.
    Sends {
        /// The register.
        rs: u8,
        /// Bytes of the instruction: 2 or 4.
        length: u8,
    },
    /// The exit is a fault on shadow tables about this guest physical address, where there is no RAM.
    NoRam(Addr<Gpa>),
    /// The exit is a shadow page fault that the existing shadow tables cannot resolve.
    Fault,
}

impl Brief {
    /// The exit is not brief, and nothing is known of it.
    pub const NO: Self = Self(0);
    /// The exit is over: the guest goes on.
    pub const OVER: Self = Self(1);

    const KIND: u64 = 0xff;
    const SENDS: u64 = 2;
    const NO_RAM: u64 = 3;
    const FAULT: u64 = 4;

    /// Makes the result of an exit that is not brief, and of which that is known.
    #[must_use]
    pub const fn not(known: Known) -> Self {
        Self(match known {
            Known::Sends { rs, length } => (rs as u64) << 16 | (length as u64) << 8 | Self::SENDS,
            // It has 56 bits at most.
            Known::NoRam(gpa) => gpa.raw() << 8 | Self::NO_RAM,
            Known::Fault => Self::FAULT,
        })
    }

    /// Returns the facts that are known, if any.
    #[must_use]
    pub const fn known(self) -> Option<Known> {
        match self.0 & Self::KIND {
            Self::SENDS => Some(Known::Sends { rs: (self.0 >> 16) as u8 & 31, length: (self.0 >> 8) as u8 }),
            Self::NO_RAM => Some(Known::NoRam(Addr::new(self.0 >> 8))),
            Self::FAULT => Some(Known::Fault),
            _ => None,
        }
    }
}

impl Outcome {
    /// Ends the VM: the guest did something that Gnomon cannot answer.
    #[must_use]
    pub fn kill(message: String) -> Self {
        Outcome::Depart(Departure::End(EndReason::Killed { message }))
    }
}

/// The result of a page fault.
#[derive(Debug)]
pub enum Faulted {
    /// The guest goes on, and faults again unless what it needs is there now.
    Settled,
    /// Like [`Faulted::Settled`], and the mapping was present already.
    Known,
    /// Its kernel gets this trap.
    Inject(Trap),
    /// The vCPU waits for memory, then faults again.
    Waits {
        /// Events of the pager's before.
        since: u64,
    },
    /// The fault is about a guest physical address where there is no RAM.
    NoRam {
        /// The kind of access.
        access: Access,
        /// The address.
        gpa: Addr<Gpa>,
    },
    /// The VM ends, with this message.
    Fatal(String),
}
