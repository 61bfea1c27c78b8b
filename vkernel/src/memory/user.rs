//! Accesses to the memory of the program whose space the hart translates by.
//!
//! They are made by the program's own translations, without a lock ([`machine::copy`]). Only a page that is not mapped needs the
//! space's. Where Gnomon shadows the tables, the kernel has none of a program's translations, and walks the table.
#![expect(unsafe_code, reason = "plain values are copied as bytes")]

use super::frames::Frame;
use super::space::{Refusal, Rights, Space, USER_END};
use crate::errno::{Errno, Result};
use crate::machine;
use abi::vmspace::Way;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};

/// A value without padding that matters, valid whatever its bytes are.
///
/// # Safety
/// Every pattern of bits is valid. Padding that a value has is written as it is: values that go to programs are made of zeroes first.
pub unsafe trait Plain: Sized {}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        $(
            // SAFETY: integers and pointers only.
            unsafe impl Plain for $type {}
        )*
    };
}

plain! {
    u8, u16, u32, u64, i8, i16, i32, i64,
    linux_raw_sys::general::__kernel_timespec,
    linux_raw_sys::general::itimerval,
    linux_raw_sys::general::iovec,
    linux_raw_sys::general::pollfd,
    linux_raw_sys::general::rlimit64,
    linux_raw_sys::general::rusage,
    linux_raw_sys::general::stat,
    linux_raw_sys::general::statfs64,
    linux_raw_sys::general::statx,
    linux_raw_sys::general::termios2,
    linux_raw_sys::general::winsize,
}

// SAFETY: an array of plain values is one.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Returns the bytes of a value.
#[must_use]
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: plain.
    unsafe { core::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

/// Returns a value of zeroes.
#[must_use]
pub fn zeroed<T: Plain>() -> T {
    // SAFETY: plain.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Returns the value that bytes are, if there are enough.
#[must_use]
pub fn value_of<T: Plain>(bytes: &[u8]) -> Option<T> {
    // SAFETY: plain, and long enough.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Checks that a range lies among programs' addresses.
fn check(at: u64, bytes: usize) -> Result<()> {
    match at.checked_add(bytes as u64) {
        Some(end) if end <= USER_END => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// Returns whether the hart translates by the program's table while it is in the kernel. Else the kernel walks the table itself.
fn is_mapped() -> bool {
    cfg!(feature = "machine") && super::translation::way() != Way::Soft
}

/// A word in a frame, which stays.
struct Word(Frame, usize);

impl Deref for Word {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        // SAFETY: aligned and within the frame; all harts access it as an atomic, or programs as they like.
        unsafe { &*self.0.at().add(self.1).cast() }
    }
}

fn refused(why: Refusal) -> Errno {
    if why == Refusal::NoMemory { Errno::NOMEM } else { Errno::FAULT }
}

impl Space {
    /// Reads bytes of the program. The space is this hart's.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn get_bytes(&self, at: u64, to: &mut [u8]) -> Result<()> {
        check(at, to.len())?;
        if !is_mapped() {
            return self.read(at, to);
        }
        let start = to.as_mut_ptr().expose_provenance() as u64;
        let mut left = to.len();
        loop {
            let done = (to.len() - left) as u64;
            // SAFETY: `to` is borrowed for writing; the program's range was checked.
            let Err((rest, refused_at)) = (unsafe { machine::copy(start + done, at + done, left) }) else {
                return Ok(());
            };
            left = rest;
            self.fault_here(refused_at, Rights::R).map_err(refused)?;
        }
    }

    /// Writes bytes of the program. The space is this hart's.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`; the bytes before the first page that cannot be written are written.
    pub fn put_bytes(&self, at: u64, from: &[u8]) -> Result<()> {
        check(at, from.len())?;
        if !is_mapped() {
            return self.write(at, from);
        }
        let start = from.as_ptr().expose_provenance() as u64;
        let mut left = from.len();
        loop {
            let done = (from.len() - left) as u64;
            // SAFETY: `from` is borrowed; the program's range was checked.
            let Err((rest, refused_at)) = (unsafe { machine::copy(at + done, start + done, left) }) else {
                return Ok(());
            };
            left = rest;
            self.fault_here(refused_at, Rights::W).map_err(refused)?;
        }
    }

    /// Loads an aligned word of the program.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`; `EINVAL` if the word is not aligned.
    pub fn load_word(&self, at: u64) -> Result<u32> {
        check_word(at)?;
        if !is_mapped() {
            return Ok(self.word(at, Rights::R)?.load(Ordering::SeqCst));
        }
        loop {
            // SAFETY: the address was checked.
            if let Some(word) = unsafe { machine::load_word(at) } {
                return Ok(word);
            }
            self.fault_here(at, Rights::R).map_err(refused)?;
        }
    }

    /// Replaces an aligned word of the program if it is the expected one. Returns the word before.
    ///
    /// # Errors
    /// As [`Space::load_word`].
    pub fn compare_exchange(&self, at: u64, old: u32, new: u32) -> Result<u32> {
        check_word(at)?;
        if !is_mapped() {
            let word = self.word(at, Rights::W)?;
            return Ok(word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|word| word));
        }
        loop {
            // SAFETY: the address was checked.
            if let Some(word) = unsafe { machine::compare_exchange(at, old, new) } {
                return Ok(word);
            }
            self.fault_here(at, Rights::W).map_err(refused)?;
        }
    }

    /// A word of the program's in its frame.
    fn word(&self, at: u64, access: Rights) -> Result<Word> {
        Ok(Word(self.reach(at, access)?, (at % super::frames::PAGE as u64) as usize))
    }

    /// Checks that the program can write all pages of a range, and maps them.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn check_writable(&self, at: u64, bytes: u64) -> Result<()> {
        check(at, bytes as usize)?;
        let page = super::frames::PAGE as u64;
        for page in (at / page..(at + bytes).div_ceil(page)).map(|number| number * page) {
            self.ensure_here(page, Rights::W).map_err(refused)?;
        }
        Ok(())
    }

    /// Reads a value of the program.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn get<T: Plain>(&self, at: u64) -> Result<T> {
        let mut value = zeroed::<T>();
        // SAFETY: plain.
        let bytes = unsafe { core::slice::from_raw_parts_mut((&raw mut value).cast(), size_of::<T>()) };
        self.get_bytes(at, bytes)?;
        Ok(value)
    }

    /// Writes a value of the program.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn put<T: Plain>(&self, at: u64, value: &T) -> Result<()> {
        self.put_bytes(at, bytes_of(value))
    }

    /// Reads values of the program that follow each other.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn get_all<T: Plain>(&self, at: u64, count: usize) -> Result<Vec<T>> {
        (0..count).map(|n| self.get(at.wrapping_add((n * size_of::<T>()) as u64))).collect()
    }

    /// Reads bytes up to a zero byte, of at most so many.
    ///
    /// # Errors
    /// `EFAULT`; `ENAMETOOLONG`.
    pub fn get_bytes_until_zero(&self, at: u64, most: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 64];
        while bytes.len() < most {
            // Not beyond the page: behind it need not be anything.
            let from = at.wrapping_add(bytes.len() as u64);
            let count = buffer.len().min(super::frames::PAGE - (from % super::frames::PAGE as u64) as usize);
            self.get_bytes(from, &mut buffer[..count])?;
            if let Some(end) = buffer[..count].iter().position(|byte| *byte == 0) {
                bytes.extend_from_slice(&buffer[..end]);
                return Ok(bytes);
            }
            bytes.extend_from_slice(&buffer[..count]);
        }
        Err(Errno::NAMETOOLONG)
    }

    /// Reads a string that ends with a zero byte, of at most so many bytes.
    ///
    /// # Errors
    /// `EFAULT`; `ENAMETOOLONG`; `EINVAL` if it is not UTF-8.
    pub fn get_string(&self, at: u64, most: usize) -> Result<String> {
        String::from_utf8(self.get_bytes_until_zero(at, most)?).map_err(|_| Errno::INVAL)
    }
}

fn check_word(at: u64) -> Result<()> {
    if !at.is_multiple_of(4) {
        return Err(Errno::INVAL);
    }
    check(at, 4)
}
