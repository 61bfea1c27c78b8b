//! The interface to Linux that programs need: start, arguments, system calls, memory, figures and markers.
#![expect(unsafe_code, reason = "system calls, hints, and no runtime")]

pub mod heap;
pub mod process;

use abi::report::FIGURE;
use core::arch::{asm, global_asm};
use core::ffi::{CStr, c_char};
use core::fmt::{self, Write};
use core::mem::MaybeUninit;

const STDOUT: usize = 1;
const STDERR: usize = 2;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Memory begins at a multiple of this, so that huge pages fit.
const HUGE_PAGE: usize = 2 << 20;

/// System calls by number (Linux, `include/uapi/asm-generic/unistd.h`).
pub mod number {
    #![allow(missing_docs, reason = "the names are Linux's")]
    pub const PIPE2: usize = 59;
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const EXIT_GROUP: usize = 94;
    pub const GETPPID: usize = 173;
    pub const CLONE: usize = 220;
    pub const EXECVE: usize = 221;
    pub const MMAP: usize = 222;
    pub const MADVISE: usize = 233;
    pub const WAIT4: usize = 260;
}

// The entry of a program: Linux has put the number of arguments on the stack, and pointers to them.
global_asm!(".global _start", "_start:", "mv a0, sp", "andi sp, sp, -16", "tail {start}", start = sym start);

/// Names the program's `main`, which takes its [`Args`] and may fail with a [`Failure`].
///
/// Such a program has no heap, unless it says `entry_point!(main, heap)`.
#[macro_export]
macro_rules! entry_point {
    ($main:path) => {
        $crate::entry_point!($main, $crate::linux::NoHeap, $crate::linux::NoHeap);
    };
    ($main:path, heap) => {
        $crate::entry_point!($main, $crate::linux::heap::Heap, $crate::linux::heap::Heap::new());
    };
    ($main:path, $kind:ty, $heap:expr) => {
        #[global_allocator]
        static HEAP: $kind = $heap;

        #[expect(unsafe_code, reason = "the runtime finds the program's main by its symbol")]
        #[unsafe(no_mangle)]
        fn program_main(args: $crate::linux::Args) -> Result<(), $crate::linux::Failure> {
            $main(args)
        }
    };
}

unsafe extern "Rust" {
    safe fn program_main(args: Args) -> Result<(), Failure>;
}

extern "C" fn start(stack: *const usize) -> ! {
    let args = Args(stack);
    match program_main(args) {
        Ok(()) => exit(0),
        Err(failure) => {
            let name = args.get(0).unwrap_or("program");
            print(STDERR, format_args!("{name}: {failure}\n"));
            exit(1)
        }
    }
}

/// There is no heap. The crate `abi` can use one, so the linker asks for it.
#[derive(Debug)]
pub struct NoHeap;

// SAFETY: it never gives memory out.
unsafe impl core::alloc::GlobalAlloc for NoHeap {
    unsafe fn alloc(&self, _: core::alloc::Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: core::alloc::Layout) {}
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    print(STDERR, format_args!("{info}\n"));
    exit(101)
}

/// The reason for which a program gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Wrong arguments; the text is the right usage.
    Usage(&'static str),
    /// A system call failed, with Linux's number of the error.
    Call(&'static str, usize),
    /// A wrong result.
    Wrong(&'static str),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(usage) => write!(f, "usage: {usage}"),
            Self::Call(what, error) => write!(f, "{what} failed with error {error}"),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

/// The program's arguments; number 0 is its own name.
#[derive(Clone, Copy, Debug)]
pub struct Args(*const usize);

impl Args {
    /// An argument, if it is there and is text.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&'static str> {
        // SAFETY: Linux starts a program with `argc` and as many pointers to strings on its stack, which
        // stay; only `start` makes an `Args`, of that.
        let bytes = unsafe {
            if number >= *self.0 {
                return None;
            }
            CStr::from_ptr(*self.0.add(1 + number).cast::<*const c_char>()).to_bytes()
        };
        core::str::from_utf8(bytes).ok()
    }

    /// An argument that is a decimal number.
    #[must_use]
    pub fn number(&self, number: usize) -> Option<u64> {
        self.get(number)?.parse().ok()
    }
}

/// Added to the label of a region, it is that of what the region needed to be prepared.
pub const PREPARING: u64 = 100;

/// Begins the meter's region `label` (docs/meter.md).
pub fn begin(label: u64) {
    // SAFETY: a hint. What comes before it in the program must stay before it: no `nomem`.
    unsafe { asm!("slti zero, {}, 1", in(reg) label, options(nostack)) };
}

/// Ends it.
pub fn end(label: u64) {
    // SAFETY: as for `begin`.
    unsafe { asm!("slti zero, {}, 2", in(reg) label, options(nostack)) };
}

/// Prints a figure for the bench.
pub fn figure(name: &str, value: u64) {
    print(STDOUT, format_args!("{FIGURE}{name} {value}\n"));
}

/// Prints a line.
pub fn line(text: fmt::Arguments<'_>) {
    print(STDOUT, format_args!("{text}\n"));
}

/// Text to be written at once, cut off where there is no room.
struct Buffer {
    bytes: [u8; 256],
    used: usize,
}

impl Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.used..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.used += count;
        Ok(())
    }
}

fn print(file: usize, text: fmt::Arguments<'_>) {
    let mut buffer = Buffer { bytes: [0; 256], used: 0 };
    // Formatting numbers and text into a buffer that takes all cannot fail; and a failure to print cannot be reported.
    let _ = buffer.write_fmt(text);
    let _ = call("write", number::WRITE, [file, buffer.bytes.as_ptr().expose_provenance(), buffer.used, 0, 0, 0]);
}

/// Ends the program with a status.
pub fn exit(status: usize) -> ! {
    loop {
        let _ = call("exit", number::EXIT_GROUP, [status, 0, 0, 0, 0, 0]);
    }
}

/// Makes a system call, which is called `what` if it fails.
///
/// # Errors
/// [`Failure::Call`].
#[inline]
pub fn call(what: &'static str, number: usize, args: [usize; 6]) -> Result<usize, Failure> {
    let result: isize;
    // SAFETY: none of the calls made by this package unmaps or changes memory that Rust knows of, but what
    // they are given for that.
    unsafe {
        asm!("ecall", inlateout("a0") args[0] => result, in("a1") args[1], in("a2") args[2], in("a3") args[3],
            in("a4") args[4], in("a5") args[5], in("a7") number, options(nostack));
    }
    if (-4095..0).contains(&result) { Err(Failure::Call(what, result.unsigned_abs())) } else { Ok(result as usize) }
}

/// Maps so many bytes of new memory.
fn map(bytes: usize, flags: usize) -> Result<usize, Failure> {
    const READ_WRITE: usize = 1 | 2;
    const ANONYMOUS: usize = 0x20;
    call("mmap", number::MMAP, [0, bytes, READ_WRITE, ANONYMOUS | flags, usize::MAX, 0])
}

/// Memory for so many elements, which is the program's to the end and has been touched. It begins at a 2 MiB
/// boundary.
///
/// # Errors
/// If Linux has not so much.
pub fn memory<T: Copy>(count: usize, value: T) -> Result<&'static mut [T], Failure> {
    const { assert!(align_of::<T>() <= HUGE_PAGE) };
    let start = map(count * size_of::<T>() + HUGE_PAGE, Pages::Private as usize)?;
    let start = core::ptr::with_exposed_provenance_mut::<MaybeUninit<T>>(start.next_multiple_of(HUGE_PAGE));
    // SAFETY: a new mapping that is never unmapped and has no other user; rounding up left room enough.
    let memory = unsafe { core::slice::from_raw_parts_mut(start, count) };
    for element in &mut *memory {
        element.write(value);
    }
    // SAFETY: all elements have been written, and are as large as what they hold.
    Ok(unsafe { core::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), count) })
}

/// The backing of pages; the values are Linux's flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// By a file in memory, where their content stays when they are unmapped.
    Shared = 1,
    /// By memory that goes when they are unmapped.
    Private = 2,
}

/// Maps pages of zeroes, which the program keeps to its end and which have no memory before they are touched.
///
/// # Errors
/// If Linux has not so much.
pub fn pages(count: usize, kind: Pages) -> Result<&'static mut [[u8; PAGE]], Failure> {
    let start = core::ptr::with_exposed_provenance_mut(map(count * PAGE, kind as usize)?);
    // SAFETY: a new mapping of zeros that is never unmapped and has no other user.
    Ok(unsafe { core::slice::from_raw_parts_mut(start, count) })
}

/// Lets Linux forget where shared pages are mapped; their content stays.
///
/// # Errors
/// [`Failure::Call`].
pub fn unmap_for_now(pages: &mut [[u8; PAGE]]) -> Result<(), Failure> {
    const DONTNEED: usize = 4;
    let start = pages.as_mut_ptr().expose_provenance();
    call("madvise", number::MADVISE, [start, pages.len() * PAGE, DONTNEED, 0, 0, 0]).map(drop)
}
