//! The vocabulary of the RISC-V privileged architecture: addresses, page-table formats and
//! entries, requests, traps, CSR fields, and the machine's interface as traits over plain data.
//!
//! Nothing here touches hardware. Names follow the privileged specification; `norm:` ids are the
//! ISA manual's own names for its rules.
#![no_std]
#![forbid(unsafe_code)]

pub mod addr;
pub mod csr;
pub mod exit;
pub mod fence;
pub mod format;
pub mod insn;
pub mod mem;
pub mod plain;
pub mod pte;
pub mod request;
pub mod step;
pub mod system;
pub mod trap;

pub use addr::{Addr, Gpa, Gva, Hpa, L2Gpa, L2Gva, PAGE_BYTES, PAGE_SHIFT, Pfn, Space};
pub use exit::Exit;
pub use fence::{Asid, Fence, FenceScope, Vmid};
pub use format::{Format, Level};
pub use mem::PhysMem;
pub use pte::{Caps, Entry, Leaf, Pte, PteFlags, Why};
pub use request::{Access, Mode, Request};
pub use trap::{Cause, Exception, Interrupt, Trap};
