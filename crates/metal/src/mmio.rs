//! Device registers.

use core::ptr;

macro_rules! accessors {
    ($($read:ident $write:ident $type:ty),*) => {$(
        /// Reads a device register.
        ///
        /// # Safety
        /// `at` is the address of a device register of this width that the machine's description
        /// names, mapped for this hart, and reading it does not break Rust's memory.
        #[must_use]
        #[inline(always)]
        pub unsafe fn $read(at: u64) -> $type {
            // SAFETY: by the caller's promise.
            unsafe { ptr::with_exposed_provenance::<$type>(at as usize).read_volatile() }
        }

        /// Writes a device register.
        ///
        /// # Safety
        /// As for reading; the write must not make the device touch Rust's memory.
        #[inline(always)]
        pub unsafe fn $write(at: u64, value: $type) {
            // SAFETY: by the caller's promise.
            unsafe { ptr::with_exposed_provenance_mut::<$type>(at as usize).write_volatile(value) }
        }
    )*};
}

accessors!(read8 write8 u8, read32 write32 u32, read64 write64 u64);
