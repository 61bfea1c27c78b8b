//! Locks of files: of ranges (`fcntl`), of processes or of open files, and of whole files (`flock`).
//!
//! A table has an entry for each file with locks. Locks of whole files and of ranges do not see each other.

use super::Status;
use super::descriptors::OpenFile;
use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use crate::task::wait::WaitQueue;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The most locks that there may be, of all files: each takes memory of the kernel's.
const MOST: usize = 1 << 14;

/// The owner of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// A process, by its number.
    Process(u32),
    /// An open file, by its address.
    File(usize),
}

impl Owner {
    /// Returns an open file as an owner.
    #[must_use]
    pub fn of(file: &OpenFile) -> Self {
        Self::File(core::ptr::from_ref(file).addr())
    }
}

/// A lock of a range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The owner.
    pub owner: Owner,
    /// The first byte.
    pub first: u64,
    /// The last byte; `i64::MAX` for all that follow.
    pub last: u64,
    /// True if no other owner may have a lock of the range.
    pub is_exclusive: bool,
}

impl Lock {
    /// The last byte that a file can have.
    pub const END: u64 = i64::MAX as u64;

    /// Returns a lock of a whole file.
    #[must_use]
    pub const fn whole(owner: Owner, is_exclusive: bool) -> Self {
        Self { owner, first: 0, last: Self::END, is_exclusive }
    }

    const fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn conflicts(&self, other: &Self) -> bool {
        self.owner != other.owner && self.overlaps(other) && (self.is_exclusive || other.is_exclusive)
    }
}

/// The locks of a file, of one kind.
#[derive(Debug, Default)]
struct Held(Vec<Lock>);

impl Held {
    /// Returns the first lock of another owner that excludes this one.
    fn conflict(&self, wanted: &Lock) -> Option<Lock> {
        self.0.iter().filter(|held| wanted.conflicts(held)).min_by_key(|held| held.first).copied()
    }

    /// Removes an owner's locks of a range. Parts outside of it stay.
    fn clear(&mut self, range: &Lock) {
        let mut kept = Vec::new();
        self.0.retain(|held| {
            if held.owner != range.owner || !held.overlaps(range) {
                return true;
            }
            if held.first < range.first {
                kept.push(Lock { last: range.first - 1, ..*held });
            }
            if held.last > range.last {
                kept.push(Lock { first: range.last + 1, ..*held });
            }
            false
        });
        self.0.append(&mut kept);
    }

    /// Adds a lock in place of the owner's others of its range. It becomes one with those of its kind next to it.
    fn set(&mut self, mut lock: Lock) {
        self.clear(&lock);
        self.0.retain(|held| {
            let is_alike = held.owner == lock.owner && held.is_exclusive == lock.is_exclusive;
            let is_next = held.last.checked_add(1) == Some(lock.first) || lock.last.checked_add(1) == Some(held.first);
            if is_alike && is_next {
                (lock.first, lock.last) = (lock.first.min(held.first), lock.last.max(held.last));
            }
            !(is_alike && is_next)
        });
        self.0.push(lock);
    }
}

/// The kind of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Of a range.
    Range,
    /// Of a whole file.
    Whole,
}

/// A file whose locks are of one kind.
type Key = ((u64, u64), Kind);

/// A lock that a thread waits for.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    key: Key,
    lock: Lock,
}

/// All locks, and those that are waited for, by threads.
#[derive(Debug, Default)]
struct Table {
    files: BTreeMap<Key, Held>,
    waiting: BTreeMap<u32, Waiting>,
}

impl Table {
    fn count(&self) -> usize {
        self.files.values().map(|held| held.0.len()).sum()
    }

    fn conflict(&self, key: Key, lock: &Lock) -> Option<Lock> {
        self.files.get(&key)?.conflict(lock)
    }

    /// Changes the locks of a file.
    fn change(&mut self, key: Key, change: impl FnOnce(&mut Held)) {
        let held = self.files.entry(key).or_default();
        change(held);
        if held.0.is_empty() {
            self.files.remove(&key);
        }
    }

    /// Returns whether an owner waits, over others, for itself.
    fn is_circle(&self, waiter: Owner, blocker: Owner) -> bool {
        let (mut seen, mut open) = (BTreeSet::new(), Vec::from([blocker]));
        while let Some(owner) = open.pop() {
            if owner == waiter {
                return true;
            }
            if seen.insert(owner) {
                let waits = self.waiting.values().filter(|waiting| waiting.lock.owner == owner);
                open.extend(waits.filter_map(|waiting| Some(self.conflict(waiting.key, &waiting.lock)?.owner)));
            }
        }
        false
    }
}

static TABLE: Mutex<Table> = Mutex::new(Table { files: BTreeMap::new(), waiting: BTreeMap::new() });
/// Locks that are held, so that a file without any is closed without the table's lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Tasks that wait for a lock.
static CHANGED: WaitQueue = WaitQueue::new();

/// A request for a lock of a file.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    key: Key,
    lock: Lock,
}

impl Request {
    /// Makes one for the file of a description.
    #[must_use]
    pub const fn new(file: &Status, kind: Kind, lock: Lock) -> Self {
        Self { key: (file.id, kind), lock }
    }

    /// Returns the lock that excludes the wanted one.
    #[must_use]
    pub fn conflict(&self) -> Option<Lock> {
        TABLE.lock().conflict(self.key, &self.lock)
    }

    /// Gives up the owner's locks of the range.
    ///
    /// # Errors
    /// `ENOLCK` if the rest would be more locks than there may be.
    pub fn release(&self) -> Result<()> {
        let mut table = TABLE.lock();
        // Only the middle of a lock leaves more of them.
        let is_middle =
            |held: &Lock| held.owner == self.lock.owner && held.first < self.lock.first && held.last > self.lock.last;
        let splits = table.files.get(&self.key).is_some_and(|held| held.0.iter().any(is_middle));
        if splits && COUNT.load(Ordering::Relaxed) >= MOST {
            return Err(Errno::NOLCK);
        }
        self.change(&mut table, |held| held.clear(&self.lock));
        Ok(())
    }

    /// Takes the lock if no other excludes it.
    ///
    /// # Errors
    /// `EAGAIN`; `ENOLCK` if there are as many locks as there may be.
    pub fn take(&self) -> Result<()> {
        let mut table = TABLE.lock();
        if table.conflict(self.key, &self.lock).is_some() {
            let held =
                table.files.get(&self.key).is_some_and(|held| held.0.iter().any(|held| held.owner == self.lock.owner));
            if held && self.key.1 == Kind::Whole {
                // A lock that cannot be converted is lost (`flock(2)`). A try without one wakes no others, or they would try for ever.
                self.change(&mut table, |held| held.clear(&self.lock));
            }
            return Err(Errno::AGAIN);
        }
        if COUNT.load(Ordering::Relaxed) >= MOST {
            return Err(Errno::NOLCK);
        }
        self.change(&mut table, |held| held.set(self.lock));
        Ok(())
    }

    fn change(&self, table: &mut Table, change: impl FnOnce(&mut Held)) {
        let before = table.files.get(&self.key).map_or(0, |held| held.0.len());
        table.change(self.key, change);
        let after = table.files.get(&self.key).map_or(0, |held| held.0.len());
        COUNT.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        if !table.waiting.is_empty() {
            CHANGED.wake();
        }
    }

    /// Takes the lock as soon as no other excludes it. `thread` waits.
    ///
    /// # Errors
    /// `EDEADLK` if processes would wait for each other; as [`Request::take`].
    pub async fn wait(&self, thread: u32) -> Result<()> {
        let entry = Entry(thread);
        let taken = CHANGED.until(|| match self.take() {
            Err(Errno::AGAIN) => {
                let mut table = TABLE.lock();
                let Some(blocker) = table.conflict(self.key, &self.lock) else {
                    // It has gone meanwhile.
                    drop(table);
                    return Some(self.take()).filter(|result| *result != Err(Errno::AGAIN));
                };
                let is_checked = matches!(self.lock.owner, Owner::Process(_)) && self.key.1 == Kind::Range;
                if is_checked && table.is_circle(self.lock.owner, blocker.owner) {
                    return Some(Err(Errno::DEADLK));
                }
                table.waiting.insert(thread, Waiting { key: self.key, lock: self.lock });
                None
            }
            result => Some(result),
        });
        let result = taken.await;
        drop(entry);
        result
    }
}

/// A thread among those that wait, which goes with the future.
struct Entry(u32);

impl Drop for Entry {
    fn drop(&mut self) {
        TABLE.lock().waiting.remove(&self.0);
    }
}

/// Gives up all locks of an owner in a file.
fn release_file(owner: Owner, file: (u64, u64)) {
    for kind in [Kind::Range, Kind::Whole] {
        let request = Request { key: (file, kind), lock: Lock::whole(owner, false) };
        let mut table = TABLE.lock();
        if table.files.contains_key(&request.key) {
            request.change(&mut table, |held| held.0.retain(|lock| lock.owner != owner));
        }
    }
}

/// Gives up the locks that a process has of a file, because it closes a descriptor of it.
pub fn process_closes(pid: u32, file: &OpenFile) {
    if COUNT.load(Ordering::Relaxed) != 0 {
        release_file(Owner::Process(pid), file.status().id);
    }
}

/// Gives up all locks of a process that has ended.
pub fn process_ends(pid: u32) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut table = TABLE.lock();
    table.files.retain(|_, held| {
        held.0.retain(|lock| lock.owner != Owner::Process(pid));
        !held.0.is_empty()
    });
    COUNT.store(table.count(), Ordering::Relaxed);
    drop(table);
    CHANGED.wake();
}

/// Gives up the locks of an open file that is closed.
pub fn file_closes(file: &OpenFile) {
    release_file(Owner::of(file), file.status().id);
}

#[cfg(test)]
mod tests;
