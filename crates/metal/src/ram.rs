//! Host RAM by physical address. In both seats Gnomon's addresses are physical ones: M mode has no
//! translation, HS mode runs on an identity map.

use core::arch::asm;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rv::{Addr, Hpa, PAGE_BYTES, Pfn, PhysMem};

/// The machine's RAM. Holding one says: the addresses passed are frames that Gnomon's frame
/// allocator or the boot bundle accounts for, never Gnomon's own image, heap or stacks.
#[derive(Clone, Copy, Debug)]
pub struct Ram {
    /// Bytes that `cbo.zero` clears, 0 where the hart cannot (Zicboz).
    zero_block: u64,
}

/// Blocks that are cleared in a row.
const BLOCKS_AT_ONCE: u64 = 32;

impl Ram {
    /// Gives access to RAM.
    ///
    /// # Safety
    /// Every address later passed to this value's methods must lie in frames handed out by the
    /// frame allocator (or in the bundle, for reading), which no Rust object occupies.
    /// `zero_block` is the hart's `cbo.zero` block size in bytes (a power of two that divides
    /// 4096), or 0 where the instruction does not exist or is not enabled for this mode.
    #[must_use]
    pub const unsafe fn new(zero_block: u64) -> Self {
        // No hart that is known has larger ones.
        Self { zero_block: if zero_block * BLOCKS_AT_ONCE <= PAGE_BYTES { zero_block } else { 0 } }
    }

    #[inline(always)]
    fn word(at: Addr<Hpa>) -> *mut u64 {
        if !at.is_aligned(8) {
            unaligned(at);
        }
        ptr::with_exposed_provenance_mut(at.raw() as usize)
    }

    #[inline(always)]
    fn atomic<'a>(at: Addr<Hpa>) -> &'a AtomicU64 {
        // SAFETY: aligned (checked), in a frame that no Rust object occupies (promise of `new`);
        // all code, and hardware walkers, access such words atomically.
        unsafe { AtomicU64::from_ptr(Self::word(at)) }
    }
}

// Apart: a call in the way of each access would cost more than the access.
#[cold]
#[inline(never)]
fn unaligned(at: Addr<Hpa>) -> ! {
    panic!("unaligned word access to {at}")
}

/// Compares the words at these offsets from two addresses: 1 if one of them differs, else 0.
macro_rules! any_differs {
    ($one:ident, $other:ident, $offsets:literal) => {{
        let mut differs = 1u64;
        // SAFETY: reads what `read_u64` does. Whatever is read later is not older.
        unsafe {
            asm!(
                concat!(".irp at, ", $offsets),
                "ld {a}, \\at({one})", "ld {b}, \\at({other})", "bne {a}, {b}, 2f",
                ".endr",
                "li {differs}, 0",
                "2: fence r, rw",
                one = in(reg) $one.raw(), other = in(reg) $other.raw(), differs = inout(reg) differs,
                a = out(reg) _, b = out(reg) _,
                options(nostack)
            );
        }
        differs != 0
    }};
}

impl PhysMem for Ram {
    #[inline(always)]
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        Self::atomic(at).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn read_own(&self, at: Addr<Hpa>) -> u64 {
        Self::atomic(at).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn write_own(&mut self, at: Addr<Hpa>, value: u64) {
        Self::atomic(at).store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn any_of_eight(&self, at: Addr<Hpa>) -> bool {
        let mut any = 0u64;
        // SAFETY: reads what `read_u64` does. Whatever is read later is not older.
        unsafe {
            asm!(
                "ld {a}, 0({at})", "ld {b}, 8({at})", "or {any}, {any}, {a}", "or {any}, {any}, {b}",
                "ld {a}, 16({at})", "ld {b}, 24({at})", "or {any}, {any}, {a}", "or {any}, {any}, {b}",
                "ld {a}, 32({at})", "ld {b}, 40({at})", "or {any}, {any}, {a}", "or {any}, {any}, {b}",
                "ld {a}, 48({at})", "ld {b}, 56({at})", "or {any}, {any}, {a}", "or {any}, {any}, {b}",
                "fence r, rw",
                at = in(reg) at.raw(), any = inout(reg) any, a = out(reg) _, b = out(reg) _,
                options(nostack)
            );
        }
        any != 0
    }

    fn any_of_64(&self, at: Addr<Hpa>) -> bool {
        let mut any = 0u64;
        // SAFETY: as above.
        unsafe {
            asm!(
                ".irp at, 0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, \
                    256, 272, 288, 304, 320, 336, 352, 368, 384, 400, 416, 432, 448, 464, 480, 496",
                "ld {a}, \\at({words})", "ld {b}, \\at + 8({words})", "or {any}, {any}, {a}", "or {any}, {any}, {b}",
                ".endr",
                "fence r, rw",
                words = in(reg) at.raw(), any = inout(reg) any, a = out(reg) _, b = out(reg) _,
                options(nostack)
            );
        }
        any != 0
    }

    fn any_differs_of_eight(&self, one: Addr<Hpa>, other: Addr<Hpa>) -> bool {
        any_differs!(one, other, "0, 8, 16, 24, 32, 40, 48, 56")
    }

    fn any_differs_of_64(&self, one: Addr<Hpa>, other: Addr<Hpa>) -> bool {
        any_differs!(
            one,
            other,
            "0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, \
                128, 136, 144, 152, 160, 168, 176, 184, 192, 200, 208, 216, 224, 232, 240, 248, \
                256, 264, 272, 280, 288, 296, 304, 312, 320, 328, 336, 344, 352, 360, 368, 376, \
                384, 392, 400, 408, 416, 424, 432, 440, 448, 456, 464, 472, 480, 488, 496, 504"
        )
    }

    fn differing_of_64(&self, one: Addr<Hpa>, other: Addr<Hpa>) -> u64 {
        let mut found = 0u64;
        // SAFETY: as above.
        unsafe {
            // Most do not differ.
            asm!(
                ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, \
                    24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, \
                    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63",
                "ld {a}, \\n * 8({one})", "ld {b}, \\n * 8({other})", "beq {a}, {b}, 2f",
                "li {a}, 1", "slli {a}, {a}, \\n", "or {found}, {found}, {a}",
                "2:",
                ".endr",
                "fence r, rw",
                one = in(reg) one.raw(), other = in(reg) other.raw(), found = inout(reg) found,
                a = out(reg) _, b = out(reg) _,
                options(nostack)
            );
        }
        found
    }

    #[inline(always)]
    fn write_u64(&mut self, at: Addr<Hpa>, value: u64) {
        // Release: a table's contents are visible before the entry that points to it.
        Self::atomic(at).store(value, Ordering::Release);
    }

    fn fill_frame(&mut self, frame: Pfn<Hpa>, value: u64) {
        let start = ptr::with_exposed_provenance_mut::<u64>(frame.base().raw() as usize);
        // SAFETY: a frame of the caller's, free of Rust objects (promise of `new`).
        let words = unsafe { slice::from_raw_parts_mut(start, PAGE_BYTES as usize / 8) };
        // Left to itself, the compiler takes three instructions for each word.
        words.as_chunks_mut::<16>().0.iter_mut().for_each(|words| *words = [value; 16]);
    }

    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        Self::atomic(at).swap(value, Ordering::AcqRel)
    }

    #[inline(always)]
    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        Self::atomic(at).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(|_| ())
    }

    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        let (start, bytes) = (first.base().raw(), pages * PAGE_BYTES);
        if self.zero_block == 0 {
            // SAFETY: frames of the caller's, free of Rust objects (promise of `new`).
            unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u64>(start as usize), 0, bytes as usize / 8) };
            return;
        }
        let stride = self.zero_block;
        // SAFETY: as above; `cbo.zero` clears the block that holds its address, blocks divide the
        // page, and so do that many in a row. A 2 MiB frame run is 32,768 blocks of 64 bytes, and this is on
        // the guest's fault path.
        unsafe {
            asm!(
                ".option push",
                ".option arch, +zicboz",
                "2:",
                ".rept {blocks}",
                "cbo.zero ({at})",
                "add {at}, {at}, {stride}",
                ".endr",
                "bltu {at}, {end}, 2b",
                ".option pop",
                at = inout(reg) start => _,
                end = in(reg) start + bytes,
                stride = in(reg) stride,
                blocks = const BLOCKS_AT_ONCE,
                options(nostack)
            );
        }
    }

    fn zeroed_at_once(&self) -> u64 {
        // Two instructions a block, or two for 8 bytes: so many take 65,536 at most.
        const AT_ONCE: u64 = 2 << 20;
        match self.zero_block {
            0 => 64,
            block => (block * AT_ONCE / 64 / PAGE_BYTES).min(AT_ONCE / PAGE_BYTES),
        }
    }

    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64) {
        let bytes = (pages * PAGE_BYTES) as usize;
        let from = ptr::with_exposed_provenance::<u8>(from.base().raw() as usize);
        let to = ptr::with_exposed_provenance_mut::<u8>(to.base().raw() as usize);
        // SAFETY: both runs are frames free of Rust objects and do not overlap (trait's contract).
        unsafe { copy_lines(from, to, bytes) };
    }

    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]) {
        let from = ptr::with_exposed_provenance::<u8>(at.raw() as usize);
        // SAFETY: from a frame free of Rust objects to as many bytes of the caller's.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) };
    }

    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]) {
        let to = ptr::with_exposed_provenance_mut::<u8>(at.raw() as usize);
        // SAFETY: as for reading.
        unsafe { copy(from.as_ptr(), to, from.len()) };
    }
}

/// Copies bytes, by words where it can, whatever their alignment: the frames of guests' networks have an odd one. A guest may read and
/// write its side meanwhile.
///
/// # Safety
/// `from` may be read and `to` be written, for so many bytes, and they do not overlap.
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // Until words can be written.
    let mut done = (to.addr().wrapping_neg() % 8).min(bytes);
    // SAFETY: by the caller's promise, all of it.
    unsafe {
        copy_singly(from, to, done);
        let (from_here, to_here) = (from.wrapping_add(done), to.wrapping_add(done));
        done += if from_here.addr().is_multiple_of(8) {
            copy_lines(from_here, to_here, bytes - done)
        } else {
            copy_shifted(from_here, to_here, bytes - done)
        };
        copy_singly(from.wrapping_add(done), to.wrapping_add(done), bytes - done);
    }
}

/// Copies byte after byte. Volatile, since a guest may write or read them meanwhile.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn copy_singly(from: *const u8, to: *mut u8, bytes: usize) {
    for at in 0..bytes {
        // SAFETY: by the caller's promise.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}

/// Copies as many pieces of 32 bytes as there are to where words are aligned, from where they are not: each word is made of two. Returns how many
/// bytes that were.
///
/// # Safety
/// As for [`copy`]. The whole words are read that hold the first and the last byte.
#[inline(always)]
unsafe fn copy_shifted(from: *const u8, to: *mut u8, bytes: usize) -> usize {
    let pieces = bytes / 32 * 32;
    if pieces == 0 {
        return 0;
    }
    let shift = 8 * (from.addr() % 8);
    // SAFETY: by the caller's promise. What is read beside the bytes is in the same words, and goes nowhere.
    unsafe {
        asm!(
            "ld {a}, 0({from})",
            "2:",
            "ld {b}, 8({from})", "ld {c}, 16({from})", "ld {d}, 24({from})", "ld {e}, 32({from})",
            "srl {a}, {a}, {right}", "sll {t}, {b}, {left}", "or {a}, {a}, {t}", "sd {a}, 0({to})",
            "srl {b}, {b}, {right}", "sll {t}, {c}, {left}", "or {b}, {b}, {t}", "sd {b}, 8({to})",
            "srl {c}, {c}, {right}", "sll {t}, {d}, {left}", "or {c}, {c}, {t}", "sd {c}, 16({to})",
            "srl {d}, {d}, {right}", "sll {t}, {e}, {left}", "or {d}, {d}, {t}", "sd {d}, 24({to})",
            "mv {a}, {e}",
            "addi {from}, {from}, 32", "addi {to}, {to}, 32",
            "bltu {to}, {end}, 2b",
            from = inout(reg) from.wrapping_sub(from.addr() % 8) => _, to = inout(reg) to => _,
            end = in(reg) to.wrapping_add(pieces), right = in(reg) shift, left = in(reg) 64 - shift,
            a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _, e = out(reg) _, t = out(reg) _,
            options(nostack)
        );
    }
    pieces
}

/// Copies so many bytes in a round, 32 from each of these offsets, until `from` comes to what is named as the end: no round if it is there.
macro_rules! copy_rounds {
    ($end:literal, $bytes:literal, $offsets:literal) => {
        concat!(
            "beq {from}, {",
            $end,
            "}, 3f\n",
            "2: .irp at, ",
            $offsets,
            "\n",
            "ld {a}, \\at({from})\n ld {b}, \\at + 8({from})\n ld {c}, \\at + 16({from})\n ld {d}, \\at + 24({from})\n",
            "sd {a}, \\at({to})\n sd {b}, \\at + 8({to})\n sd {c}, \\at + 16({to})\n sd {d}, \\at + 24({to})\n",
            ".endr\n",
            "addi {from}, {from}, ",
            $bytes,
            "\n addi {to}, {to}, ",
            $bytes,
            "\n",
            "bltu {from}, {",
            $end,
            "}, 2b\n",
            "3:",
        )
    };
}

/// Copies as many whole lines of 64 bytes as there are; returns how many bytes that were. To copy a page is most of what a
/// copy-on-write fault costs, and the data of guests' disks comes by here. A guest may read and write its side meanwhile.
///
/// # Safety
/// As for [`copy`]. Both are aligned to words.
#[inline(always)]
unsafe fn copy_lines(from: *const u8, to: *mut u8, bytes: usize) -> usize {
    // Four lines at a time as long as there are: the loop itself costs the less.
    let (fours, lines) = (bytes / 256 * 256, bytes / 64 * 64);
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            copy_rounds!("fours", "256", "0, 32, 64, 96, 128, 160, 192, 224"),
            copy_rounds!("lines", "64", "0, 32"),
            from = inout(reg) from => _, to = inout(reg) to => _,
            fours = in(reg) from.wrapping_add(fours), lines = in(reg) from.wrapping_add(lines),
            a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
            options(nostack)
        );
    }
    lines
}

/// Bytes that the boot loader left in RAM, such as the device tree or the bundle.
///
/// # Safety
/// `[start, start + bytes)` is RAM that is never written again and that no Rust object occupies.
#[must_use]
pub unsafe fn boot_bytes(start: Addr<Hpa>, bytes: usize) -> &'static [u8] {
    // SAFETY: by the caller's promise.
    unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(start.raw() as usize), bytes) }
}

/// RAM as words that are changed by atomic steps only. Their initial values are arbitrary.
///
/// # Safety
/// `[start, start + bytes)` is RAM without any other user, for ever.
///
/// # Panics
/// If `start` is not a multiple of 4.
#[must_use]
pub unsafe fn words_apart(start: Addr<Hpa>, bytes: usize) -> &'static [AtomicU32] {
    assert!(start.is_aligned(4), "words at {start}");
    // SAFETY: by the caller's promise; any bytes are a word.
    unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(start.raw() as usize), bytes / 4) }
}
