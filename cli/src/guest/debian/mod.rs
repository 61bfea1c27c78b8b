//! The guests' software: Debian packages for riscv64, fetched by apt, which verifies them, and kept
//! in the cache.

mod apt;
mod host_kernel;
mod modules;
mod packages;
pub mod passt;
mod program;
mod software;
mod system;

pub use apt::{AptError, Suite, host_architecture};
pub use host_kernel::HostKernel;
pub use modules::Modules;
pub use program::{Files, Wanted};
pub use software::{DebianError, LEAN, Package, Software};
use software::{cached, record_of};
pub use system::{System, SystemPackage};
