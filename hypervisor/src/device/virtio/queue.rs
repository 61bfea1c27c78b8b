//! The device's side of a split virtqueue (chapter 2.7).
//!
//! The rings are the guest's memory, and its other harts write there at any time. So each thing is read once, and what was read is
//! checked: nothing is trusted twice. Every loop is bounded by the queue's size.

use crate::device::interface::{GuestMemory, Unreached};
use abi::snapshot::device::QueueState;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{Ordering, fence};

/// Most entries of a queue, and so most buffers in a chain.
pub const MOST: usize = 256;
/// Most entries of a queue of most devices.
pub const USUAL: usize = 64;

/// The driver has more buffers after this one (`VIRTQ_DESC_F_NEXT`).
const NEXT: u16 = 1;
/// The device writes the buffer (`VIRTQ_DESC_F_WRITE`).
const WRITE: u16 = 2;
/// The buffer is a table of descriptors (`VIRTQ_DESC_F_INDIRECT`).
const INDIRECT: u16 = 4;
/// The driver wants no interrupts (`VIRTQ_AVAIL_F_NO_INTERRUPT`).
const NO_INTERRUPT: u16 = 1;
/// Descriptors of a table that most requests have no more of.
const FEW: usize = 8;
/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;

/// The place of a queue, as the driver has set it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Layout {
    /// The number of entries: a power of two, [`MOST`] at most.
    pub size: u16,
    /// GPA of the descriptor table.
    pub descriptors: u64,
    /// GPA of the driver's ring (available).
    pub driver: u64,
    /// GPA of the device's ring (used).
    pub device: u64,
}

impl Layout {
    /// Returns whether a queue can be like that. Its memory is checked when it is used.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let size = u64::from(self.size);
        let fits =
            |start: u64, bytes: u64, align: u64| start.is_multiple_of(align) && start.checked_add(bytes).is_some();
        self.size.is_power_of_two()
            && usize::from(self.size) <= MOST
            && fits(self.descriptors, DESCRIPTOR * size, 16)
            && fits(self.driver, 6 + 2 * size, 2)
            && fits(self.device, 6 + 8 * size, 4)
    }
}

impl Layout {
    /// Returns the state for a snapshot: of a ready queue, with those counts.
    pub(super) const fn save(&self, ready: Option<[u16; 3]>) -> QueueState {
        let Self { size, descriptors, driver, device } = *self;
        QueueState { size, descriptors, driver, device, ready }
    }

    /// Returns the layout of a saved queue.
    pub(super) const fn of(state: &QueueState) -> Self {
        Self { size: state.size, descriptors: state.descriptors, driver: state.driver, device: state.device }
    }
}

/// The features that both sides have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Agreed {
    /// Tables of descriptors outside of the queue's own (`VIRTIO_F_INDIRECT_DESC`).
    pub indirect: bool,
    /// Each side says from where on it wants to hear from the other (`VIRTIO_F_EVENT_IDX`).
    pub event_index: bool,
}

/// The fault of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// There is no memory where it is.
    Unreached,
    /// The driver's index is further ahead than the queue is long.
    RunsAhead,
    /// A chain begins or goes on with a descriptor that does not exist.
    NoDescriptor,
    /// A chain has more buffers than the queue has entries: it is a loop, or as bad.
    TooLong,
    /// The device is to read a buffer after one that it is to write.
    Order,
    /// A table of descriptors that has no size that it may have, or stands where there may be none.
    Table,
}

/// The reason why an operation on a ring fails. Nothing has happened then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The ring is malformed.
    Malformed(Malformed),
    /// Its memory is not there yet: the same, made again, goes on.
    Later,
}

impl From<Malformed> for Trouble {
    fn from(why: Malformed) -> Self {
        Trouble::Malformed(why)
    }
}

impl From<Unreached> for Trouble {
    fn from(why: Unreached) -> Self {
        match why {
            Unreached::Nowhere => Trouble::Malformed(Malformed::Unreached),
            Unreached::Later => Trouble::Later,
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::Unreached => "there is no memory where the ring is",
            Malformed::RunsAhead => "the driver's index is ahead by more than the queue's size",
            Malformed::NoDescriptor => "there is no such descriptor",
            Malformed::TooLong => "a chain is longer than the queue",
            Malformed::Order => "a buffer to be read comes after one to be written",
            Malformed::Table => "an indirect table of no possible size, or in no possible place",
        })
    }
}

/// A buffer. It is not checked yet that there is memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// The guest physical address.
    pub gpa: u64,
    /// The length in bytes.
    pub bytes: u32,
    /// Set if the device is to write the buffer; else it reads.
    pub is_written: bool,
}

/// The buffers that the driver has made available at once: buffers to be read, then buffers to be written.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Chain {
    /// The index of its first descriptor, which names the chain.
    head: u16,
    /// The number of descriptors that were read for it, one by one: those of a table are one.
    pub descriptors: usize,
    /// The buffers.
    pub buffers: Vec<Buffer>,
}

/// A descriptor, as it was read.
#[derive(Clone, Copy)]
struct Descriptor {
    buffer: Buffer,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn of(bytes: &[u8; DESCRIPTOR as usize]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = *bytes;
        let flags = u16::from_le_bytes([f0, f1]);
        let buffer = Buffer {
            gpa: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            bytes: u32::from_le_bytes([l0, l1, l2, l3]),
            is_written: flags & WRITE != 0,
        };
        Self { buffer, flags, next: u16::from_le_bytes([n0, n1]) }
    }

    /// Returns the index of the next descriptor.
    fn next(&self) -> Option<u16> {
        (self.flags & NEXT != 0).then_some(self.next)
    }
}

/// Descriptors, aligned so that their words are loaded as such.
#[repr(align(8))]
struct Table<const N: usize>([[u8; DESCRIPTOR as usize]; N]);

/// Adds a buffer to those of a chain, which may have `most`.
fn add(buffers: &mut Vec<Buffer>, buffer: Buffer, most: u16) -> Result<(), Malformed> {
    if buffers.len() >= usize::from(most) {
        return Err(Malformed::TooLong);
    }
    if !buffer.is_written && buffers.last().is_some_and(|last| last.is_written) {
        return Err(Malformed::Order);
    }
    buffers.push(buffer);
    Ok(())
}

/// The ways in which tests break a queue, to see that they notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    /// The queue believes any index.
    RunsAlong,
    /// The queue takes a descriptor that does not exist for another one.
    Wraps,
    /// The queue does not look again when it has asked for notifications.
    LooksNoMore,
    /// The queue forgets what it has given back before it was asked.
    TellsLate,
}

/// A queue that the driver has made ready.
#[derive(Clone, Debug)]
pub struct Queue {
    layout: Layout,
    agreed: Agreed,
    /// Chains that were taken, modulo 2^16.
    taken: u16,
    /// Chains that were given back.
    given: u16,
    /// The count of chains given back of which the driver was notified, or did not want to be.
    told: u16,
    #[cfg(test)]
    broken: Option<Broken>,
}

impl Queue {
    /// Makes a queue from which nothing was taken. `None` if it cannot be like that.
    #[must_use]
    pub fn new(layout: Layout, agreed: Agreed) -> Option<Self> {
        let queue = Self {
            layout,
            agreed,
            taken: 0,
            given: 0,
            told: 0,
            #[cfg(test)]
            broken: None,
        };
        layout.is_possible().then_some(queue)
    }

    /// Returns its state for a snapshot, as if the last `begun` chains had not been taken.
    #[must_use]
    pub const fn save(&self, begun: u16) -> [u16; 3] {
        [self.taken.wrapping_sub(begun), self.given, self.told]
    }

    /// Makes a queue that continues from those counts. `None` if it cannot be like that.
    #[must_use]
    pub fn resume(layout: Layout, agreed: Agreed, [taken, given, told]: [u16; 3]) -> Option<Self> {
        // Each chain was taken before it was given back, and at most so many are out.
        let is_possible = taken.wrapping_sub(given) <= layout.size;
        Self::new(layout, agreed).filter(|_| is_possible).map(|queue| Self { taken, given, told, ..queue })
    }

    #[cfg(test)]
    fn is_broken(&self, how: Broken) -> bool {
        self.broken == Some(how)
    }

    #[cfg(not(test))]
    const fn is_broken(&self, _: Broken) -> bool {
        false
    }

    /// Returns the place in a ring of a count of chains.
    fn slot(&self, count: u16) -> u64 {
        u64::from(count & (self.layout.size - 1))
    }

    /// Returns the number of chains that the driver has made available and that were not taken.
    fn available(&self, mem: &mut (impl GuestMemory + ?Sized)) -> Result<u16, Trouble> {
        let ahead = mem.load_u16(self.layout.driver + 2)?.wrapping_sub(self.taken);
        if ahead > self.layout.size && !self.is_broken(Broken::RunsAlong) {
            return Err(Malformed::RunsAhead.into());
        }
        Ok(ahead)
    }

    /// Takes the next chain, if there is one: copies its descriptors, then checks them.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn take(&mut self, mem: &mut (impl GuestMemory + ?Sized)) -> Result<Option<Chain>, Trouble> {
        let mut chain = Chain::default();
        Ok(self.take_into(&mut chain, mem)?.then_some(chain))
    }

    /// Takes the next chain into an existing one, which has room for buffers. Returns whether there was one.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn take_into(&mut self, chain: &mut Chain, mem: &mut (impl GuestMemory + ?Sized)) -> Result<bool, Trouble> {
        if self.available(mem)? == 0 {
            return Ok(false);
        }
        // The index is read before what it tells of.
        fence(Ordering::SeqCst);
        let head = mem.load_u16(self.layout.driver + 4 + 2 * self.slot(self.taken))?;
        let Chain { head: name, descriptors, buffers } = chain;
        (*name, *descriptors) = (head, 0);
        buffers.clear();
        let mut next = Some(head);
        while let Some(at) = next {
            let descriptor = self.descriptor(at, mem)?;
            *descriptors += 1;
            next = descriptor.next();
            if descriptor.flags & INDIRECT == 0 {
                add(buffers, descriptor.buffer, self.layout.size)?;
            } else if !self.agreed.indirect || next.is_some() {
                return Err(Malformed::Table.into());
            } else {
                self.take_table(descriptor.buffer, buffers, mem)?;
            }
        }
        self.taken = self.taken.wrapping_add(1);
        Ok(true)
    }

    fn descriptor(&self, at: u16, mem: &mut (impl GuestMemory + ?Sized)) -> Result<Descriptor, Trouble> {
        if at >= self.layout.size && !self.is_broken(Broken::Wraps) {
            return Err(Malformed::NoDescriptor.into());
        }
        let mut bytes = [0; DESCRIPTOR as usize];
        mem.read(self.layout.descriptors + DESCRIPTOR * self.slot(at), &mut bytes)?;
        Ok(Descriptor::of(&bytes))
    }

    /// Goes through a table of descriptors, which is copied as a whole.
    fn take_table(
        &self,
        table: Buffer,
        buffers: &mut Vec<Buffer>,
        mem: &mut (impl GuestMemory + ?Sized),
    ) -> Result<(), Trouble> {
        let bytes = table.bytes as usize;
        let count = bytes / DESCRIPTOR as usize;
        let is_whole = bytes.is_multiple_of(DESCRIPTOR as usize);
        if !is_whole || count == 0 || count > usize::from(self.layout.size) {
            return Err(Malformed::Table.into());
        }
        // Most tables are short.
        if count <= FEW {
            self.follow::<FEW>(table, buffers, mem)
        } else if count <= USUAL {
            self.follow::<USUAL>(table, buffers, mem)
        } else {
            self.follow::<MOST>(table, buffers, mem)
        }
    }

    /// Follows a chain of at most `N` descriptors.
    #[inline(never)]
    fn follow<const N: usize>(
        &self,
        table: Buffer,
        buffers: &mut Vec<Buffer>,
        mem: &mut (impl GuestMemory + ?Sized),
    ) -> Result<(), Trouble> {
        let mut copy = Table([[0; DESCRIPTOR as usize]; N]);
        let copy = &mut copy.0[..table.bytes as usize / DESCRIPTOR as usize];
        mem.read(table.gpa, copy.as_flattened_mut())?;
        let mut next = Some(0);
        while let Some(at) = next {
            let descriptor = copy.get(usize::from(at)).map(Descriptor::of);
            let descriptor = descriptor.ok_or(Malformed::NoDescriptor)?;
            if descriptor.flags & INDIRECT != 0 {
                return Err(Malformed::Table.into());
            }
            add(buffers, descriptor.buffer, self.layout.size)?;
            next = descriptor.next();
        }
        Ok(())
    }

    /// Gives a chain back, into which `written` bytes were written.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn give(&mut self, chain: &Chain, written: u32, mem: &mut (impl GuestMemory + ?Sized)) -> Result<(), Trouble> {
        let mut element = [0; 8];
        element[..4].copy_from_slice(&u32::from(chain.head).to_le_bytes());
        element[4..].copy_from_slice(&written.to_le_bytes());
        mem.write(self.layout.device + 4 + 8 * self.slot(self.given), &element)?;
        // A driver that sees the index sees the element.
        fence(Ordering::SeqCst);
        let given = self.given.wrapping_add(1);
        mem.store_u16(self.layout.device + 2, given)?;
        self.given = given;
        Ok(())
    }

    /// Returns whether the driver is to be interrupted for the chains given back since the last call.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn must_tell(&mut self, mem: &mut (impl GuestMemory + ?Sized)) -> Result<bool, Trouble> {
        let before = if self.is_broken(Broken::TellsLate) { self.given.wrapping_sub(1) } else { self.told };
        let count = self.given.wrapping_sub(before);
        if self.given == self.told {
            return Ok(false);
        }
        // The driver says what it wants and then looks at the index; here it is the other way round.
        fence(Ordering::SeqCst);
        let driver = self.layout.driver;
        let must_tell = if self.agreed.event_index {
            let event = mem.load_u16(driver + 4 + 2 * u64::from(self.layout.size))?;
            // Whether the index has passed by `event` (`vring_need_event`).
            self.given.wrapping_sub(event).wrapping_sub(1) < count
        } else {
            mem.load_u16(driver)? & NO_INTERRUPT == 0
        };
        self.told = self.given;
        Ok(must_tell)
    }

    /// Asks the driver to notify when it makes more available. Returns whether it has done so meanwhile, perhaps
    /// without notifying.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn await_more(&mut self, mem: &mut (impl GuestMemory + ?Sized)) -> Result<bool, Trouble> {
        if self.agreed.event_index {
            mem.store_u16(self.layout.device + 4 + 8 * u64::from(self.layout.size), self.taken)?;
            // It is asked first, then looked at again; the driver does the opposite.
            fence(Ordering::SeqCst);
        }
        if self.is_broken(Broken::LooksNoMore) {
            return Ok(false);
        }
        Ok(self.available(mem)? != 0)
    }
}

#[cfg(test)]
mod tests;
