//! Where a payload and an initrd stand in a guest's RAM.

use crate::payload::Payload;
use crate::size::{PAGE, SUPERPAGE, Size};
use abi::bundle::GUEST_RAM_BASE;
use miette::Diagnostic;

/// The end of RAM is left to the device tree, which Gnomon puts there.
pub const RESERVED_AT_TOP: u64 = SUPERPAGE;

/// The places of what a VM starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Where the payload is placed.
    pub payload_gpa: u64,
    /// Where the initrd is placed, if there is one.
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

/// Places a payload where it wants to be, and the initrd on the next 2 MiB boundary after it.
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
    Ok(Layout { payload_gpa: payload.gpa, initrd_gpa: initrd_bytes.map(|_| after) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Kind;

    #[test]
    fn the_initrd_follows_the_kernel() {
        let payload = Payload {
            kind: Kind::Linux,
            bytes: vec![],
            gpa: 0x8020_0000,
            entry_gpa: 0x8020_0000,
            span_bytes: 0x20_0001,
        };
        let layout = place("a", Size(64 << 20), &payload, Some(5)).expect("fits");
        assert_eq!(layout, Layout { payload_gpa: 0x8020_0000, initrd_gpa: Some(0x8060_0000) });
        let error = place("a", Size(8 << 20), &payload, Some(5)).expect_err("too small");
        assert_eq!(error.need, Size(10 << 20));
        assert!(place("a", error.need, &payload, Some(5)).is_ok());
        assert_eq!(place("a", Size(8 << 20), &payload, None).expect("fits").initrd_gpa, None);
    }
}
