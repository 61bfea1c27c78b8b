//! The kernel's heap: grows by blocks of frames, and keeps them.
//!
//! Small blocks that are freed stay with the hart, in lists by size, for its next allocations: of these a call that waits makes several.

use super::hart_index;
use crate::machine::MAX_HARTS;
use crate::memory::frames;
use crate::sync::Mutex;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull, null_mut};
use rlsf::Tlsf;

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
    // Room for the block's header, and for alignment. A free block is found only if every block of its size is large enough.
    let bytes = layout.size() + layout.size().div_ceil(PARTS) + layout.align() + 256;
    let order = bytes.div_ceil(frames::PAGE).next_power_of_two().trailing_zeros();
    let order = order.max(LEAST_ORDER);
    let first = frames::take_block(order)?;
    let block = ptr::slice_from_raw_parts_mut(frames::address(first), frames::PAGE << order);
    // SAFETY: the frames are the heap's from now on.
    unsafe { heap.insert_free_block_ptr(NonNull::new(block)?) };
    Some(())
}

/// Sizes of small blocks are multiples of this.
const STEP: usize = 64;
/// Sizes of small blocks.
const SIZES: usize = 32;
/// Alignment of small blocks.
const ALIGNMENT: usize = 16;
/// Bytes that a hart keeps at most.
const MOST_KEPT: usize = 32 << 10;

/// A small block that is free, in a list.
struct Free {
    next: *mut Self,
}

/// The small blocks that a hart keeps.
struct Kept {
    lists: [*mut Free; SIZES],
    bytes: usize,
}

/// All that harts keep. The kernel runs with interrupts off, and no trap in it allocates, so a hart is never in its own twice.
struct Harts([UnsafeCell<Kept>; MAX_HARTS]);

// SAFETY: each hart uses its own.
unsafe impl Sync for Harts {}

static KEPT: Harts = Harts([const { UnsafeCell::new(Kept { lists: [null_mut(); SIZES], bytes: 0 }) }; MAX_HARTS]);

/// Returns the list of small blocks for an allocation.
const fn list_of(layout: Layout) -> Option<usize> {
    let list = layout.size().saturating_sub(1) / STEP;
    if list < SIZES && layout.align() <= ALIGNMENT { Some(list) } else { None }
}

/// Returns the bytes of the blocks in a list.
const fn size_of_list(list: usize) -> usize {
    (list + 1) * STEP
}

impl Heap {
    fn take(&self, layout: Layout) -> *mut u8 {
        let mut heap = self.0.lock();
        let found = heap.allocate(layout).or_else(|| {
            grow(&mut heap, layout)?;
            heap.allocate(layout)
        });
        found.map_or(null_mut(), NonNull::as_ptr)
    }
}

// SAFETY: passes on to an allocator, under its lock; a block that a hart keeps is allocated there, and in one list alone until it is taken out.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(list) = list_of(layout) else { return self.take(layout) };
        // SAFETY: this hart's.
        let kept = unsafe { &mut *KEPT.0[hart_index()].get() };
        let first = kept.lists[list];
        if first.is_null() {
            return Layout::from_size_align(size_of_list(list), ALIGNMENT)
                .map_or(null_mut(), |layout| self.take(layout));
        }
        // SAFETY: a free block in the list.
        kept.lists[list] = unsafe { (*first).next };
        kept.bytes -= size_of_list(list);
        first.cast()
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if let Some(list) = list_of(layout) {
            // SAFETY: this hart's.
            let kept = unsafe { &mut *KEPT.0[hart_index()].get() };
            if kept.bytes + size_of_list(list) <= MOST_KEPT {
                let block = at.cast::<Free>();
                // SAFETY: it has at least so many bytes with that alignment, and nothing uses it any more.
                unsafe { block.write(Free { next: kept.lists[list] }) };
                kept.lists[list] = block;
                kept.bytes += size_of_list(list);
                return;
            }
        }
        if let Some(block) = NonNull::new(at) {
            let alignment = if list_of(layout).is_some() { ALIGNMENT } else { layout.align() };
            // SAFETY: allocated here with that alignment, by the caller's promise.
            unsafe { self.0.lock().deallocate(block, alignment) };
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let Ok(wanted) = Layout::from_size_align(bytes, layout.align()) else { return null_mut() };
        if list_of(layout).is_some() && list_of(layout) == list_of(wanted) {
            return at;
        }
        // SAFETY: a size that is not 0, by the caller's promise.
        let new = unsafe { self.alloc(wanted) };
        if !new.is_null() {
            // SAFETY: two blocks of at least so many bytes; the old one is given back once.
            unsafe {
                ptr::copy_nonoverlapping(at, new, layout.size().min(bytes));
                self.dealloc(at, layout);
            }
        }
        new
    }
}
