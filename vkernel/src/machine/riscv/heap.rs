//! The kernel's heap: grows by blocks of frames, and keeps them.

use crate::memory::frames;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull, null_mut};
use rlsf::Tlsf;
use spin::Mutex;

/// Free blocks by size: powers of two from 32 bytes on, each in so many parts.
const POWERS: usize = 22;
const PARTS: usize = 8;
/// Frames by which the heap grows, at least: 64 KiB.
const LEAST_ORDER: u32 = 4;

struct Heap(Mutex<Tlsf<'static, u32, u8, POWERS, PARTS>>);

#[global_allocator]
static HEAP: Heap = Heap(Mutex::new(Tlsf::new()));

/// Adds a block of frames that has room for an allocation.
fn grow(heap: &mut Tlsf<'static, u32, u8, POWERS, PARTS>, layout: Layout) -> Option<()> {
    // Room for the block's header, and for alignment.
    let bytes = layout.size() + layout.align() + 256;
    let order = bytes.div_ceil(frames::PAGE).next_power_of_two().trailing_zeros();
    let order = order.max(LEAST_ORDER);
    let first = frames::take_block(order)?;
    let block = ptr::slice_from_raw_parts_mut(frames::address(first), frames::PAGE << order);
    // SAFETY: the frames are the heap's from now on.
    unsafe { heap.insert_free_block_ptr(NonNull::new(block)?) };
    Some(())
}

// SAFETY: passes on to an allocator, under its lock.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut heap = self.0.lock();
        let found = heap.allocate(layout).or_else(|| {
            grow(&mut heap, layout)?;
            heap.allocate(layout)
        });
        found.map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if let Some(at) = NonNull::new(at) {
            // SAFETY: allocated here with that alignment, by the caller's promise.
            unsafe { self.0.lock().deallocate(at, layout.align()) };
        }
    }
}
