//! Open files in flight: sent by sockets, and not received yet.
//!
//! Sockets in flight can hold each other, in a circle that no descriptor leads to. [`collect`] finds such circles: files to which
//! nothing leads but messages of sockets in the same state. The lock of [`FLYING`] is taken before that of a socket.

use crate::errno::{Errno, Result};
use crate::fs::descriptors::OpenFile;
use crate::sync::Mutex;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The most files in flight.
const MOST: usize = 4096;

/// A file in flight, and the messages that have it.
#[derive(Debug)]
struct Flying {
    file: Weak<OpenFile>,
    messages: usize,
}

/// Files in flight, by their addresses.
static FLYING: Mutex<BTreeMap<usize, Flying>> = Mutex::new(BTreeMap::new());
/// Sockets among them, with one for each message.
static SOCKETS: AtomicUsize = AtomicUsize::new(0);

fn key(file: &Arc<OpenFile>) -> usize {
    Arc::as_ptr(file).addr()
}

/// The files of a message.
#[derive(Debug, Default)]
pub struct Files(Vec<Arc<OpenFile>>);

impl Files {
    /// Makes the files of a message, while there are fewer than `most` in flight.
    ///
    /// # Errors
    /// `ETOOMANYREFS`.
    pub fn new(files: Vec<Arc<OpenFile>>, most: u64) -> Result<Self> {
        if files.is_empty() {
            return Ok(Self::default());
        }
        let mut flying = FLYING.lock();
        let count: usize = flying.values().map(|flying| flying.messages).sum();
        if count + files.len() > MOST || (count + files.len()) as u64 > most {
            return Err(Errno::TOOMANYREFS);
        }
        for file in &files {
            let new = || Flying { file: Arc::downgrade(file), messages: 0 };
            flying.entry(key(file)).or_insert_with(new).messages += 1;
            SOCKETS.fetch_add(usize::from(file.is_socket()), Ordering::Relaxed);
        }
        drop(flying);
        Ok(Self(files))
    }

    /// Returns whether there are any.
    #[must_use]
    pub fn are_there(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns them, for a collector.
    #[must_use]
    pub fn all(&self) -> &[Arc<OpenFile>] {
        &self.0
    }

    /// Returns them, for a receiver. They stay in flight.
    #[must_use]
    pub fn get(&self) -> Vec<Arc<OpenFile>> {
        self.0.clone()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let mut flying = FLYING.lock();
        for file in &self.0 {
            if let Some(entry) = flying.get_mut(&key(file)) {
                entry.messages -= 1;
                SOCKETS.fetch_sub(usize::from(file.is_socket()), Ordering::Relaxed);
                if entry.messages == 0 {
                    flying.remove(&key(file));
                }
            }
        }
        drop(flying);
        discard(core::mem::take(&mut self.0));
    }
}

/// Files that are to be closed, and whether a hart does so.
static DISCARDED: Mutex<(Vec<Arc<OpenFile>>, bool)> = Mutex::new((Vec::new(), false));

/// Closes files one after the other: a file's end may discard further ones, in a chain of any length.
fn discard(mut files: Vec<Arc<OpenFile>>) {
    {
        let mut discarded = DISCARDED.lock();
        discarded.0.append(&mut files);
        if core::mem::replace(&mut discarded.1, true) {
            return;
        }
    }
    loop {
        let mut discarded = DISCARDED.lock();
        let Some(file) = discarded.0.pop() else {
            discarded.1 = false;
            return;
        };
        drop(discarded);
        drop(file);
    }
}

/// Closes the sockets in flight that no program can receive any more.
pub fn collect() {
    if SOCKETS.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut lost = Vec::new();
    {
        let flying = FLYING.lock();
        let is_held_by_messages = |flying: &Flying| flying.file.strong_count() == flying.messages;
        let candidates: BTreeMap<usize, Arc<OpenFile>> = flying
            .iter()
            .filter(|(_, flying)| is_held_by_messages(flying))
            .filter_map(|(key, flying)| Some((*key, flying.file.upgrade()?)))
            .filter(|(_, file)| file.is_socket())
            .collect();
        let mut held: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut inner: BTreeMap<usize, usize> = BTreeMap::new();
        for (holder, file) in &candidates {
            let Some(socket) = file.stream().and_then(|stream| stream.as_socket()) else { continue };
            socket.each_file(&mut |file| {
                let file = key(file);
                if candidates.contains_key(&file) {
                    held.entry(*holder).or_default().push(file);
                    *inner.entry(file).or_default() += 1;
                }
            });
        }
        // Alive is a file that another message has, and all that its own messages have.
        let has_other = |key: &usize| flying[key].messages > inner.get(key).copied().unwrap_or(0);
        let mut open: Vec<usize> = candidates.keys().copied().filter(has_other).collect();
        let mut alive = BTreeSet::new();
        while let Some(key) = open.pop() {
            if alive.insert(key) {
                open.extend(held.get(&key).into_iter().flatten());
            }
        }
        for (key, file) in &candidates {
            if !alive.contains(key)
                && let Some(socket) = file.stream().and_then(|stream| stream.as_socket())
            {
                lost.extend(socket.take_messages());
            }
        }
        // The last references to files in a circle are those of the messages.
        lost.shrink_to_fit();
        drop(flying);
        discard(candidates.into_values().collect());
    }
    drop(lost);
}
