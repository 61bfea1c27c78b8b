//! A heap of a fixed size, for programs of one thread.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull, null_mut};
use rlsf::Tlsf;

/// The heap's size. Linux provides memory for the pages that are used.
const BYTES: usize = 4 << 20;
/// Free blocks by size: powers of two from 32 bytes on, each in so many parts.
const POWERS: usize = 18;
const PARTS: usize = 8;

/// The heap's memory.
#[repr(align(64))]
struct Memory(UnsafeCell<MaybeUninit<[u8; BYTES]>>);

// SAFETY: programs have one thread.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new(MaybeUninit::uninit()));

/// The allocator's state.
#[derive(Debug)]
pub struct Heap(UnsafeCell<State>);

#[derive(Debug)]
struct State {
    free: Tlsf<'static, u32, u8, POWERS, PARTS>,
    has_memory: bool,
}

// SAFETY: programs have one thread.
unsafe impl Sync for Heap {}

impl Heap {
    /// Makes the heap, of which a program has one.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "the heap is a constant")]
    pub const fn new() -> Self {
        Self(UnsafeCell::new(State { free: Tlsf::new(), has_memory: false }))
    }
}

// SAFETY: passes on to an allocator, which one thread uses.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the only thread, and the allocator calls nothing that would allocate.
        let state = unsafe { &mut *self.0.get() };
        if !state.has_memory {
            state.has_memory = true;
            let block = ptr::slice_from_raw_parts_mut(MEMORY.0.get().cast::<u8>(), BYTES);
            if let Some(block) = NonNull::new(block) {
                // SAFETY: the memory is the heap's, and is added once.
                unsafe { state.free.insert_free_block_ptr(block) };
            }
        }
        state.free.allocate(layout).map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if let Some(block) = NonNull::new(at) {
            // SAFETY: the only thread; allocated here with that alignment, by the caller's promise.
            unsafe { (*self.0.get()).free.deallocate(block, layout.align()) };
        }
    }
}
