//! A vCPU whose guest may be a hypervisor: the hypervisor extension as its guest sees it.
//!
//! The guest is *L1*, and its guests are *L2*. L1 runs in VS mode and believes that it is in HS mode. One of the two worlds is in the hart's
//! VS-level registers; the CSRs of the other are kept here ([`Nested::other`]). The hypervisor CSRs ([`HypervisorCsrs`]) are never in the
//! hart: L1's accesses to them trap, and what they say is translated to the hart's own when the world changes ([`World`]).

mod access;
mod csrs;
mod misses;
mod state;

pub use access::Limits;
pub use csrs::{HypervisorCsrs, VS_INTERRUPTS};
pub use misses::Misses;
pub use state::{Collapsed, Nested, Refused, RefusedOwn, Rights, World};
