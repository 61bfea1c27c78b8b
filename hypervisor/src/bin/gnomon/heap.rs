//! Gnomon's own heap: a small one in the image to begin with, then a share of RAM.

use buddy_system_allocator::Heap;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hypervisor::counters::HeapUse;
use hypervisor::machine::Span;
use spin::{Mutex, MutexGuard};

const ORDERS: usize = 33;

/// A heap that counts how often a hart waits for its lock.
struct CountedHeap {
    heap: Mutex<Heap<ORDERS>>,
    waits: AtomicU64,
}

#[global_allocator]
static HEAP: CountedHeap = CountedHeap { heap: Mutex::new(Heap::new()), waits: AtomicU64::new(0) };

/// Enough to read a device tree.
const FIRST_BYTES: usize = 1 << 20;
static mut FIRST: [u64; FIRST_BYTES / 8] = [0; FIRST_BYTES / 8];

impl CountedHeap {
    fn lock(&self) -> MutexGuard<'_, Heap<ORDERS>> {
        self.heap.try_lock().unwrap_or_else(|| {
            self.waits.fetch_add(1, Relaxed);
            self.heap.lock()
        })
    }
}

// SAFETY: passes on to an allocator, under its lock.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.lock().alloc(layout).map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if let Some(at) = NonNull::new(at) {
            // SAFETY: allocated here, by the caller's promise.
            unsafe { self.lock().dealloc(at, layout) };
        }
    }
}

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

/// How it is doing.
pub fn in_use() -> HeapUse {
    HeapUse { used: HEAP.lock().stats_alloc_user() as u64, waits: HEAP.waits.load(Relaxed) }
}
