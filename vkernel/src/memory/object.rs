//! Memory that spaces share by reference: contents of files, and shared anonymous memory.

use super::frames::{Frame, PAGE};
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::fmt::Debug;
use core::sync::atomic::{AtomicU64, Ordering};

/// The reason why an object has no frame for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoPage {
    /// The page lies behind the object's end.
    Behind,
    /// There is no free memory.
    Memory,
    /// The host has to be asked for the page. The thread waits ([`crate::share::Ledger::settle`]) and tries again.
    Host,
}

/// Pages that spaces map. Each method may be called with the lock of a space held.
pub trait Object: Debug + Send + Sync {
    /// Returns the frame of a page, by its number. Makes it if there is none yet.
    ///
    /// # Errors
    /// [`NoPage`].
    fn page(&self, number: u64) -> core::result::Result<Frame, NoPage>;

    /// Returns the frame of a page if the page has one.
    fn present(&self, number: u64) -> Option<Frame>;

    /// Returns whether the pages are copies, to which stores would be lost.
    fn is_cache(&self) -> bool {
        false
    }
}

/// An object whose content is in memory only. Pages that were never written have no frames.
#[derive(Debug)]
pub struct Store {
    bytes: AtomicU64,
    pages: Mutex<BTreeMap<u64, Frame>>,
    /// Bytes that the object begins with and that lie elsewhere in RAM: its pages are copied from there when they are asked for.
    origin: &'static [u8],
}

const PAGE_U64: u64 = PAGE as u64;

impl Store {
    /// Makes an object of that size, all zero.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(bytes), pages: Mutex::default(), origin: &[] })
    }

    /// Makes an object with a content that stays in RAM for ever.
    #[must_use]
    pub fn from_static(content: &'static [u8]) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(content.len() as u64), pages: Mutex::default(), origin: content })
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of frames.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.pages.lock().len() as u64
    }

    /// The part of the origin in a page.
    fn original(&self, number: u64) -> &'static [u8] {
        let all = self.origin.len() as u64;
        let start = (number * PAGE_U64).min(all);
        &self.origin[start as usize..(start + PAGE_U64).min(all) as usize]
    }

    fn make(&self, pages: &mut BTreeMap<u64, Frame>, number: u64) -> Option<Frame> {
        if let Some(frame) = pages.get(&number) {
            return Some(frame.clone());
        }
        let frame = Frame::zeroed()?;
        frame.write(0, self.original(number));
        pages.insert(number, frame.clone());
        Some(frame)
    }

    /// Reads bytes from an offset on. Returns how many: less than wanted at the end.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> usize {
        let count = self.bytes().saturating_sub(offset).min(to.len() as u64) as usize;
        let pages = self.pages.lock();
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let within = (at % PAGE_U64) as usize;
            let part = &mut to[done..done + (count - done).min(PAGE - within)];
            match pages.get(&(at / PAGE_U64)) {
                Some(frame) => frame.read(within, part),
                None => {
                    let original = self.original(at / PAGE_U64);
                    let from = original.get(within..).unwrap_or(&[]);
                    let known = from.len().min(part.len());
                    part[..known].copy_from_slice(&from[..known]);
                    part[known..].fill(0);
                }
            }
            done += part.len();
        }
        count
    }

    /// Writes bytes from an offset on, and makes the object longer where they end behind it. Returns how many were written.
    ///
    /// # Errors
    /// `ENOSPC` if there is no memory for the first one.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        let mut pages = self.pages.lock();
        let mut done = 0;
        while done < from.len() {
            let at = offset + done as u64;
            let within = (at % PAGE_U64) as usize;
            let part = &from[done..done + (from.len() - done).min(PAGE - within)];
            let Some(frame) = self.make(&mut pages, at / PAGE_U64) else { break };
            frame.write(within, part);
            done += part.len();
        }
        self.bytes.fetch_max(offset + done as u64, Ordering::Relaxed);
        if done == 0 && !from.is_empty() { Err(Errno::NOSPC) } else { Ok(done) }
    }

    /// Sets the size. What lay behind a smaller one reads as zero if the object grows again.
    pub fn resize(&self, bytes: u64) {
        let mut pages = self.pages.lock();
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        if bytes >= before {
            return;
        }
        // Frames keep what is to read as zero from now on; pages of the origin become frames.
        for number in bytes / PAGE_U64..(self.origin.len() as u64).div_ceil(PAGE_U64) {
            let _ = self.make(&mut pages, number);
        }
        let kept = bytes.div_ceil(PAGE_U64);
        let behind = pages.split_off(&kept);
        if !bytes.is_multiple_of(PAGE_U64)
            && let Some(last) = pages.get(&(bytes / PAGE_U64))
        {
            last.clear_from((bytes % PAGE_U64) as usize);
        }
        if self.origin.len() as u64 > kept * PAGE_U64 {
            // Zero, not the origin again.
            for (number, frame) in behind {
                frame.clear_from(0);
                pages.insert(number, frame);
            }
        }
    }
}

impl Object for Store {
    fn page(&self, number: u64) -> core::result::Result<Frame, NoPage> {
        if number >= self.bytes().div_ceil(PAGE_U64) {
            return Err(NoPage::Behind);
        }
        self.make(&mut self.pages.lock(), number).ok_or(NoPage::Memory)
    }

    fn present(&self, number: u64) -> Option<Frame> {
        self.pages.lock().get(&number).cloned()
    }
}
