//! The runtime of Gnomon's test guests: small S-mode programs, one topic each, that run as the
//! payload of a VM and, where a check is not about Gnomon, on a bare machine too.
//!
//! A guest is a binary that names its `main` with [`entry_point!`] and calls
//! [`run`](report::run) for each check. The boot hart runs `main`; other harts run what
//! [`hart::start`] gives them. Paging is off until a guest turns it on, and every address space
//! made by [`paging`] maps the machine's own addresses to themselves, so that code, stacks, devices
//! and SBI buffers stay where they are.
#![no_std]
#![cfg(target_arch = "riscv64")]

mod devices;
pub mod expect;
pub mod hypervisor;
mod machine;
mod memory;
pub mod random;
pub mod report;

pub use devices::{balloon, console, virtio};
pub use machine::board::board;
pub use machine::start::{Boot, at_boot, image_end};
pub use machine::{board, event, hart, sbi, schedule, sleep, trap, user};
pub use memory::{access, fences, paging, ram, region, root_cache, vmspace, window};
pub use report::{Check, Named, Text, run};

/// Names the guest's `main`.
#[macro_export]
macro_rules! entry_point {
    ($main:path) => {
        #[expect(unsafe_code, reason = "the runtime finds the guest's main by its symbol")]
        #[unsafe(no_mangle)]
        fn guest_main() {
            $main();
        }
    };
}

/// Fails the check with a formatted reason.
#[macro_export]
macro_rules! fail {
    ($($message:tt)*) => {
        return Err($crate::Text::of(format_args!($($message)*)))
    };
}

/// Fails the check unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            $crate::fail!($($message)*);
        }
    };
}

/// Fails the check unless both values are equal; the rest of the arguments says what they are.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($message:tt)*) => {
        match ($left, $right) {
            (left, right) => {
                if left != right {
                    $crate::fail!("{}: {left:x?}, not {right:x?}", format_args!($($message)*));
                }
            }
        }
    };
}
