//! Gnomon's own heap: a small one in the image to begin with, then a share of RAM. To take from it and to give back take a
//! bounded time, whatever is free (TLSF): all harts share its lock.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hypervisor::machine::description::Span;
use hypervisor::measure::counters::HeapUse;
use rlsf::Tlsf;
use spin::{Mutex, MutexGuard};

/// Free blocks by size: so many powers of two from 32 bytes on, each in so many parts.
const POWERS: usize = 26;
const PARTS: usize = 16;

type Blocks = Tlsf<'static, u32, u16, POWERS, PARTS>;

/// A heap that counts how often a hart waits for its lock.
struct CountedHeap {
    blocks: Mutex<Blocks>,
    /// Bytes that were asked for and not given back.
    used: AtomicU64,
    waits: AtomicU64,
}

#[global_allocator]
static HEAP: CountedHeap =
    CountedHeap { blocks: Mutex::new(Blocks::new()), used: AtomicU64::new(0), waits: AtomicU64::new(0) };

/// Enough to read a device tree.
const FIRST_BYTES: usize = 1 << 20;
static mut FIRST: [u64; FIRST_BYTES / 8] = [0; FIRST_BYTES / 8];

impl CountedHeap {
    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.try_lock().unwrap_or_else(|| {
            self.waits.fetch_add(1, Relaxed);
            self.blocks.lock()
        })
    }

    /// Adds memory to it.
    ///
    /// # Safety
    /// The bytes are unowned, and the heap's for ever.
    unsafe fn add(&self, first: *mut u8, bytes: usize) {
        if let Some(block) = NonNull::new(ptr::slice_from_raw_parts_mut(first, bytes)) {
            // SAFETY: by the caller's promise.
            unsafe { self.lock().insert_free_block_ptr(block) };
        }
    }
}

// SAFETY: passes on to an allocator, under its lock.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(at) = self.lock().allocate(layout) else { return null_mut() };
        self.used.fetch_add(layout.size() as u64, Relaxed);
        at.as_ptr()
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if let Some(at) = NonNull::new(at) {
            // SAFETY: allocated here with that alignment, by the caller's promise.
            unsafe { self.lock().deallocate(at, layout.align()) };
            self.used.fetch_sub(layout.size() as u64, Relaxed);
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let grown =
            NonNull::new(at).zip(Layout::from_size_align(size, layout.align()).ok()).and_then(|(at, wanted)| {
                // SAFETY: allocated here with that alignment, by the caller's promise.
                unsafe { self.lock().reallocate(at, wanted) }
            });
        let Some(at) = grown else { return null_mut() };
        self.used.fetch_add(size as u64, Relaxed);
        self.used.fetch_sub(layout.size() as u64, Relaxed);
        at.as_ptr()
    }
}

/// Starts the heap. Once, by the boot hart.
pub fn start() {
    // SAFETY: called once; no other code names FIRST.
    unsafe { HEAP.add((&raw mut FIRST).cast(), FIRST_BYTES) };
}

/// Adds RAM to the heap.
///
/// # Safety
/// The range is RAM that is not otherwise used, for ever.
pub unsafe fn add(span: Span) {
    // SAFETY: by the caller's promise.
    unsafe { HEAP.add(ptr::with_exposed_provenance_mut(span.start as usize), span.bytes as usize) };
}

/// Returns the use of the heap.
pub fn in_use() -> HeapUse {
    HeapUse { used: HEAP.used.load(Relaxed), waits: HEAP.waits.load(Relaxed) }
}
