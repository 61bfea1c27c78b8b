//! What an exit comes to.

use crate::vm::Departure;
use abi::record::EndReason;
use alloc::string::String;
use rv::{Access, Addr, Gpa, Trap};

/// How a vCPU goes on after an exit.
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
    /// It waits for an interrupt.
    Wait,
    /// It waits for a store of another hart: it may as well let others run.
    Yield,
    /// It waits for a device, or for the console: this exit is made again when it is woken ([`VcpuRun::hold`]).
    ///
    /// [`VcpuRun::hold`]: crate::vm::vcpu::VcpuRun::hold
    Later,
    /// It stops (SBI hart_stop).
    Stop,
    /// It waits for an interrupt without its state (SBI hart_suspend, non-retentive): it goes on as if it were started anew
    /// ([`VcpuRun::resume_at`]).
    ///
    /// [`VcpuRun::resume_at`]: crate::vm::vcpu::VcpuRun::resume_at
    Sleep {
        /// Where, a guest physical address.
        pc: u64,
        /// What it finds in a1.
        opaque: u64,
    },
    /// Its VM ends or starts over.
    Depart(Departure),
}

/// What an exit that may be brief is about, if it is not a byte. Each has a handler, whose frame is no larger than it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An SBI call that sets the timer.
    Timer,
    /// One that sends IPIs.
    Ipi,
    /// One of the base extension.
    Base,
    /// A fault on shadow tables.
    Fault,
    /// A fence of one page on shadow tables.
    Fence,
    /// An access to `satp`, on shadow tables.
    Satp,
}

/// What has come of an exit that might be brief: in a register, since it must not take long to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Brief(pub u64);

/// What is known of an exit that is not brief after all. Nothing has happened yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// It sends a register by the UART.
    Sends {
        /// The register.
        rs: u8,
        /// Bytes of the instruction: 2 or 4.
        length: u8,
    },
    /// It is a fault on shadow tables that is about this guest physical address, where there is no RAM.
    NoRam(Addr<Gpa>),
    /// It is a fault on shadow tables that takes more than tables which are known.
    Fault,
}

impl Brief {
    /// It is not brief, and nothing is known of it.
    pub const NO: Self = Self(0);
    /// It is over: the guest goes on.
    pub const OVER: Self = Self(1);

    const KIND: u64 = 0xff;
    const SENDS: u64 = 2;
    const NO_RAM: u64 = 3;
    const FAULT: u64 = 4;

    /// It is not brief, and that is known of it.
    #[must_use]
    pub const fn not(known: Known) -> Self {
        Self(match known {
            Known::Sends { rs, length } => (rs as u64) << 16 | (length as u64) << 8 | Self::SENDS,
            // It has 56 bits at most.
            Known::NoRam(gpa) => gpa.raw() << 8 | Self::NO_RAM,
            Known::Fault => Self::FAULT,
        })
    }

    /// What is known, if anything is.
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
    /// The guest did what nobody can answer.
    #[must_use]
    pub fn kill(message: String) -> Self {
        Outcome::Depart(Departure::End(EndReason::Killed { message }))
    }
}

/// What a page fault comes to.
#[derive(Debug)]
pub enum Faulted {
    /// The guest goes on, and faults again unless what it needs is there now.
    Settled,
    /// The same, and what it needs was there before.
    Known,
    /// Its kernel gets this trap.
    Inject(Trap),
    /// The vCPU waits for memory, then faults again.
    Waits {
        /// Events of the pager's before.
        since: u64,
    },
    /// It is about a guest physical address where there is no RAM.
    NoRam {
        /// How it was accessed.
        access: Access,
        /// The address.
        gpa: Addr<Gpa>,
    },
    /// The VM ends, with this message.
    Fatal(String),
}
