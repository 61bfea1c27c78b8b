//! Gnomon's own heap: a small one in the image to begin with, then a share of RAM.

use buddy_system_allocator::LockedHeap;
use hypervisor::machine::Span;

#[global_allocator]
static HEAP: LockedHeap<33> = LockedHeap::empty();

/// Enough to read a device tree.
const FIRST_BYTES: usize = 1 << 20;
static mut FIRST: [u64; FIRST_BYTES / 8] = [0; FIRST_BYTES / 8];

/// Starts the heap. Once, by the boot hart.
pub fn start() {
    // SAFETY: called once, before any allocation; nobody else names FIRST.
    unsafe { HEAP.lock().init((&raw mut FIRST) as usize, FIRST_BYTES) };
}

/// Adds RAM to the heap.
///
/// # Safety
/// The range is RAM that nobody else uses, for ever.
pub unsafe fn add(span: Span) {
    // SAFETY: by the caller's promise.
    unsafe { HEAP.lock().add_to_heap(span.start as usize, span.end() as usize) };
}
