//! Accesses to the memory of the program whose space the hart translates by.
//!
//! They are made by the program's own translations, without a lock ([`machine::copy`]). Only a page that is not mapped needs the
//! space's.
#![expect(unsafe_code, reason = "plain values are copied as bytes")]

use super::space::{Refusal, Rights, Space, USER_END};
use crate::errno::{Errno, Result};
#[cfg(feature = "machine")]
use crate::machine;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

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
    linux_raw_sys::system::new_utsname,
    linux_raw_sys::system::sysinfo,
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

fn refused(why: Refusal) -> Errno {
    if why == Refusal::NoMemory { Errno::NOMEM } else { Errno::FAULT }
}

impl Space {
    /// Reads bytes of the program. The space is this hart's.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    #[cfg(feature = "machine")]
    pub fn get_bytes(&self, at: u64, to: &mut [u8]) -> Result<()> {
        check(at, to.len())?;
        let start = to.as_mut_ptr().expose_provenance() as u64;
        let mut left = to.len();
        loop {
            let done = (to.len() - left) as u64;
            // SAFETY: `to` is borrowed for writing; the program's range was checked.
            left = unsafe { machine::copy(start + done, at + done, left) };
            if left == 0 {
                return Ok(());
            }
            self.fault(at + (to.len() - left) as u64, Rights::R).map_err(refused)?;
        }
    }

    /// Writes bytes of the program. The space is this hart's.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`; the bytes before the first page that cannot be written are written.
    #[cfg(feature = "machine")]
    pub fn put_bytes(&self, at: u64, from: &[u8]) -> Result<()> {
        check(at, from.len())?;
        let start = from.as_ptr().expose_provenance() as u64;
        let mut left = from.len();
        loop {
            let done = (from.len() - left) as u64;
            // SAFETY: `from` is borrowed; the program's range was checked.
            left = unsafe { machine::copy(at + done, start + done, left) };
            if left == 0 {
                return Ok(());
            }
            self.fault(at + (from.len() - left) as u64, Rights::W).map_err(refused)?;
        }
    }

    /// Zeroes bytes of the program. The space is this hart's.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    #[cfg(feature = "machine")]
    pub fn zero_bytes(&self, at: u64, bytes: usize) -> Result<()> {
        check(at, bytes)?;
        let mut left = bytes;
        loop {
            // SAFETY: the program's range was checked.
            left = unsafe { machine::zero(at + (bytes - left) as u64, left) };
            if left == 0 {
                return Ok(());
            }
            self.fault(at + (bytes - left) as u64, Rights::W).map_err(refused)?;
        }
    }

    /// Loads an aligned word of the program.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`; `EINVAL` if the word is not aligned.
    #[cfg(feature = "machine")]
    pub fn load_word(&self, at: u64) -> Result<u32> {
        check_word(at)?;
        loop {
            // SAFETY: the address was checked.
            if let Some(word) = unsafe { machine::load_word(at) } {
                return Ok(word);
            }
            self.fault(at, Rights::R).map_err(refused)?;
        }
    }

    /// Replaces an aligned word of the program if it is the expected one. Returns the word before.
    ///
    /// # Errors
    /// As [`Space::load_word`].
    #[cfg(feature = "machine")]
    pub fn compare_exchange(&self, at: u64, old: u32, new: u32) -> Result<u32> {
        check_word(at)?;
        loop {
            // SAFETY: the address was checked.
            if let Some(word) = unsafe { machine::compare_exchange(at, old, new) } {
                return Ok(word);
            }
            self.fault(at, Rights::W).map_err(refused)?;
        }
    }

    /// Reads bytes of the program.
    ///
    /// # Errors
    /// `EFAULT`.
    #[cfg(not(feature = "machine"))]
    pub fn get_bytes(&self, at: u64, to: &mut [u8]) -> Result<()> {
        check(at, to.len())?;
        self.read(at, to)
    }

    /// Writes bytes of the program.
    ///
    /// # Errors
    /// `EFAULT`.
    #[cfg(not(feature = "machine"))]
    pub fn put_bytes(&self, at: u64, from: &[u8]) -> Result<()> {
        check(at, from.len())?;
        self.write(at, from)
    }

    /// Zeroes bytes of the program.
    ///
    /// # Errors
    /// `EFAULT`.
    #[cfg(not(feature = "machine"))]
    pub fn zero_bytes(&self, at: u64, bytes: usize) -> Result<()> {
        self.put_bytes(at, &alloc::vec![0; bytes])
    }

    /// Loads an aligned word of the program.
    ///
    /// # Errors
    /// `EFAULT`; `EINVAL` if the word is not aligned.
    #[cfg(not(feature = "machine"))]
    pub fn load_word(&self, at: u64) -> Result<u32> {
        check_word(at)?;
        self.get(at)
    }

    /// Replaces an aligned word of the program if it is the expected one. Returns the word before.
    ///
    /// # Errors
    /// As [`Space::load_word`].
    #[cfg(not(feature = "machine"))]
    pub fn compare_exchange(&self, at: u64, old: u32, new: u32) -> Result<u32> {
        let word = self.load_word(at)?;
        if word == old {
            self.put(at, &new)?;
        }
        Ok(word)
    }

    /// Checks that the program can write all pages of a range, and maps them.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn check_writable(&self, at: u64, bytes: u64) -> Result<()> {
        check(at, bytes as usize)?;
        let page = super::frames::PAGE as u64;
        for page in (at / page..(at + bytes).div_ceil(page)).map(|number| number * page) {
            self.ensure(page, Rights::W).map_err(refused)?;
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
    if at % 4 != 0 {
        return Err(Errno::INVAL);
    }
    check(at, 4)
}
