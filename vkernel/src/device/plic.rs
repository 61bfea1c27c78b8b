//! The PLIC, as QEMU's `virt` has it: hart h's S mode is context 2h + 1.
#![expect(unsafe_code, reason = "a device's registers")]

use crate::machine::direct;
use crate::sync::Once;
use metal::mmio::{read32, write32};

const ENABLE: u64 = 0x2000;
const ENABLE_STRIDE: u64 = 0x80;
const CONTEXT: u64 = 0x20_0000;
const CONTEXT_STRIDE: u64 = 0x1000;

/// The address of the registers, and the context of the hart that gets interrupts.
struct Plic {
    at: u64,
    context: u64,
}

static PLIC: Once<Plic> = Once::new();

/// Uses the controller at a physical address, for one hart.
pub fn start(at: Option<u64>, hart: u64) {
    let Some(at) = at else { return };
    let plic = PLIC.call_once(|| Plic { at: direct(at).expose_provenance() as u64, context: 2 * hart + 1 });
    // SAFETY: the device tree names these registers: every priority is accepted.
    unsafe { write32(plic.at + CONTEXT + CONTEXT_STRIDE * plic.context, 0) };
}

/// Lets a source interrupt.
pub fn enable(source: u32) {
    let Some(plic) = PLIC.get() else { return };
    let word = plic.at + ENABLE + ENABLE_STRIDE * plic.context + 4 * u64::from(source / 32);
    // SAFETY: as above.
    unsafe {
        write32(plic.at + 4 * u64::from(source), 1);
        write32(word, read32(word) | 1 << (source % 32));
    }
}

/// Claims what is pending, services the devices, and completes it.
pub fn claim_all() {
    let Some(plic) = PLIC.get() else { return };
    let claim = plic.at + CONTEXT + CONTEXT_STRIDE * plic.context + 4;
    // SAFETY: as above.
    let source = unsafe { read32(claim) };
    super::port::acknowledge();
    super::share::acknowledge();
    super::net::acknowledge();
    super::uart::receive();
    if source != 0 {
        // SAFETY: as above.
        unsafe { write32(claim, source) };
    }
}
