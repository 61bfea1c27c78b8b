//! The places of a payload and an initrd in a guest's RAM.

use crate::host::size::{PAGE, SUPERPAGE, Size};
use crate::vm::payload::Payload;
use abi::bundle::GUEST_RAM_BASE;
use miette::Diagnostic;

/// The end of RAM is left to the device tree, which Gnomon puts there.
pub const RESERVED_AT_TOP: u64 = SUPERPAGE;
/// The largest distance of an initrd in the middle of RAM from the kernel's start, in bytes.
const MOST_BEHIND: u64 = 512 << 20;

/// The places of what a VM starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The address of the payload.
    pub payload_gpa: u64,
    /// The address of the initrd, if there is one.
    pub initrd_gpa: Option<u64>,
}

/// RAM that is too small for what shall be in it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Diagnostic)]
#[error("VM `{vm}` has {memory} of memory, its {what} need {need}")]
#[diagnostic(help("give it at least {need}: set `memory` in the VM file or give --memory"))]
pub struct TooSmall {
    vm: String,
    memory: Size,
    what: &'static str,
    need: Size,
}

/// Places a payload where it wants to be, and the initrd where QEMU has it on a bare machine, on a 2 MiB boundary: in the middle of RAM,
/// 512 MiB behind the kernel at most. So Linux finds its memory as it does there, and hands pages out in the same order. If that is too
/// far for it, it follows the kernel.
///
/// # Errors
/// [`TooSmall`].
pub fn place(vm: &str, memory: Size, payload: &Payload, initrd_bytes: Option<u64>) -> Result<Layout, TooSmall> {
    let after = (payload.gpa + payload.span_bytes).next_multiple_of(SUPERPAGE);
    let end = after + initrd_bytes.unwrap_or(0).next_multiple_of(PAGE);
    let need = Size((end - GUEST_RAM_BASE + RESERVED_AT_TOP).next_multiple_of(SUPERPAGE));
    if memory < need {
        let what = if initrd_bytes.is_some() { "kernel, initrd and device tree" } else { "kernel and device tree" };
        return Err(TooSmall { vm: vm.into(), memory, what, need });
    }
    let initrd_gpa = initrd_bytes.map(|bytes| {
        let middle = (payload.gpa + (memory.0 / 2).min(MOST_BEHIND)).next_multiple_of(SUPERPAGE);
        let fits = middle + bytes.next_multiple_of(PAGE) + RESERVED_AT_TOP <= GUEST_RAM_BASE + memory.0;
        if fits { middle.max(after) } else { after }
    });
    Ok(Layout { payload_gpa: payload.gpa, initrd_gpa })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::payload::Kind;

    #[test]
    fn the_initrd_is_in_the_middle_or_follows_the_kernel() {
        let payload = Payload {
            kind: Kind::Linux,
            bytes: vec![],
            gpa: 0x8020_0000,
            entry_gpa: 0x8020_0000,
            span_bytes: 0x20_0001,
        };
        let initrd = |memory: u64, bytes| {
            let layout = place("a", Size(memory << 20), &payload, Some(bytes)).expect("fits");
            (layout.payload_gpa, layout.initrd_gpa.expect("there is one"))
        };
        assert_eq!(initrd(64, 5), (0x8020_0000, 0x8220_0000));
        assert_eq!(initrd(4096, 5), (0x8020_0000, 0xa020_0000));
        // The last one that fits there, and one that does not.
        assert_eq!(initrd(64, 28 << 20), (0x8020_0000, 0x8220_0000));
        assert_eq!(initrd(64, (28 << 20) + 1), (0x8020_0000, 0x8060_0000));
        let error = place("a", Size(8 << 20), &payload, Some(5)).expect_err("too small");
        assert_eq!(error.need, Size(10 << 20));
        assert!(place("a", error.need, &payload, Some(5)).is_ok());
        assert_eq!(place("a", Size(8 << 20), &payload, None).expect("fits").initrd_gpa, None);
    }
}
