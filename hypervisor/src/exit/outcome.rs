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
    /// [`VcpuRun::hold`]: crate::vcpu::VcpuRun::hold
    Later,
    /// It stops (SBI hart_stop).
    Stop,
    /// It waits for an interrupt without its state (SBI hart_suspend, non-retentive): it goes on as if it were started anew
    /// ([`VcpuRun::resume_at`]).
    ///
    /// [`VcpuRun::resume_at`]: crate::vcpu::VcpuRun::resume_at
    Sleep {
        /// Where, a guest physical address.
        pc: u64,
        /// What it finds in a1.
        opaque: u64,
    },
    /// Its VM ends or starts over.
    Depart(Departure),
}

/// What has come of an exit that might be brief: in a register, since it must not take long to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Brief(pub u64);

impl Brief {
    /// It is not brief, and nothing has happened.
    pub const NO: Self = Self(0);
    /// It is over: the guest goes on.
    pub const OVER: Self = Self(1);

    /// Nothing has happened, but it is known what it is: an instruction of `length` bytes (2 or 4) that sends register `rs` by the
    /// UART ([`super::send`]).
    #[must_use]
    pub const fn sends(rs: u8, length: u8) -> Self {
        Self((rs as u64) << 8 | length as u64)
    }

    /// That register and that length.
    #[must_use]
    pub const fn store(self) -> (u8, u8) {
        ((self.0 >> 8) as u8 & 31, self.0 as u8)
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
