//! The interfaces between a device and the board, and between a device and the outside.

use crate::backend::User;
use abi::snapshot::device::DeviceState;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt::Debug;
use dtoolkit::model::DeviceTreeProperty;
use mmu::frames::Loan;
use mmu::{Returned, Span};

/// The place of a device on the board.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// GPA of its first register.
    pub start: u64,
    /// Bytes of its registers.
    pub bytes: u64,
}

impl Place {
    /// Returns the offset of `gpa` in it, in bytes, if it is there.
    #[must_use]
    pub const fn offset(&self, gpa: u64) -> Option<u64> {
        let offset = gpa.wrapping_sub(self.start);
        if offset < self.bytes { Some(offset) } else { None }
    }
}

/// The result of an access to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<T> {
    /// The access is done, with the value that was read.
    Done(T),
    /// The access waits for something outside of the guest, and nothing has happened yet. It is made again when the
    /// device has called [`Outside::wake`], which it does not do before it was given a [`Device::moment`] that it asked
    /// for.
    Later,
    /// A part of it is done. The guest makes it once more, after interrupts have had their turn; that goes on with it.
    Again,
    /// There is no such register, or none so wide: an access fault.
    Refused,
}

/// A device on a guest's board. Its registers are reached by loads and stores of 1, 2, 4 or 8 bytes that lie wholly in its
/// [`Place`], aligned or not.
pub trait Device: Any + Debug + Send {
    /// Returns its name in the device tree, before the `@`.
    fn name(&self) -> &'static str;
    /// Returns the device's place on the board.
    fn place(&self) -> Place;
    /// Returns its PLIC source, 1..=95.
    fn source(&self) -> u32;
    /// Returns its properties in the device tree, beyond `reg` and the one that names its interrupt.
    fn properties(&self) -> Vec<DeviceTreeProperty>;
    /// Reads `width` bytes at `offset`.
    fn load(&mut self, offset: u64, width: u8, outside: &mut dyn Outside) -> Answer<u64>;
    /// Writes the low `width` bytes of `value` at `offset`.
    fn store(&mut self, offset: u64, width: u8, value: u64, outside: &mut dyn Outside) -> Answer<()>;
    /// Returns the level of its interrupt line.
    fn interrupt(&self) -> bool;
    /// Notes that the guest has claimed its interrupt.
    fn claimed(&mut self) {}
    /// Notes that the guest has handled the interrupt that it claimed.
    fn completed(&mut self) {}
    /// Does the work of a moment that it, or another device of the guest's, asked for.
    fn moment(&mut self, outside: &mut dyn Outside);
    /// Resets the device: the machine starts over.
    fn reset(&mut self);
    /// Attaches the device to its VM, which has a slot, under its number: devices of the host report to it from now on.
    fn attach(&mut self, _user: User) {}
    /// Reports each of its counters by its name in `docs/counters.md`. Counters of the same name are added up.
    fn counters(&self, _report: &mut dyn FnMut(&'static str, u64)) {}
    /// Saves all that it needs to go on elsewhere as if nothing had been.
    ///
    /// # Errors
    /// [`Unsaved`].
    fn save(&self) -> Result<DeviceState, Unsaved>;
    /// Restores the device from a saved state. It has just been reset. A driver could not have brought it into a state
    /// that is refused.
    ///
    /// # Errors
    /// [`Wild`]. It is to be reset then.
    fn restore(&mut self, state: &DeviceState) -> Result<(), Wild>;
}

/// The reason why a device's state cannot be saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsaved {
    /// Something is under way that has to be waited for; the guest's harts stand still meanwhile.
    Busy,
    /// The state cannot be saved as long as the guest uses the device as it does: the reason, and the remedy.
    Never(&'static str),
}

/// The fault of a saved state: no such device exists, or it cannot be in that state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wild(pub &'static str);

impl Wild {
    /// The state is another device's.
    pub const OTHER: Self = Self("it has another device at a place of the board");
}

/// The reason why guest memory is not reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreached {
    /// There is none, or none that may be reached so.
    Nowhere,
    /// The memory is not present yet: the same access, made again, reaches it at some time.
    Later,
}

/// The guest's memory, as devices reach it by guest physical addresses. Its other harts do so at the same time.
pub trait GuestMemory {
    /// Reads bytes.
    ///
    /// # Errors
    /// [`Unreached`]; a part may have been read.
    fn read(&mut self, gpa: u64, into: &mut [u8]) -> Result<(), Unreached>;
    /// Writes bytes.
    ///
    /// # Errors
    /// [`Unreached`]; a part may have been written.
    fn write(&mut self, gpa: u64, from: &[u8]) -> Result<(), Unreached>;
    /// Reads the two bytes at an even address, both at once.
    ///
    /// # Errors
    /// [`Unreached`].
    fn load_u16(&mut self, gpa: u64) -> Result<u16, Unreached>;
    /// Writes them, both at once.
    ///
    /// # Errors
    /// [`Unreached`].
    fn store_u16(&mut self, gpa: u64, value: u16) -> Result<(), Unreached>;
    /// Makes a loan of the guest's RAM: of nothing yet, and of `most` pieces at most.
    fn loan(&self, most: usize) -> Loan;
    /// Lends what is at those places, by address and bytes (1 or more), to a device of the host's, which reads it while
    /// the guest may change it, or lose it: in their order, as much as the loan takes, and as may be faulted in at
    /// once. Returns the number of pages that were faulted in, and [`Unreached`] if the memory behind the loan is not
    /// reached.
    fn lend(
        &mut self,
        places: &mut dyn Iterator<Item = (u64, usize)>,
        loan: &mut Loan,
    ) -> (usize, Result<(), Unreached>);
    /// Makes pages of RAM untouched again, as many as may be done at once: in their order, as if each span followed the
    /// one before.
    fn give_back(&mut self, spans: &[Span]) -> Returned;
}

/// The services that devices use beyond their registers.
pub trait Outside: GuestMemory {
    /// Returns the host's `time`, in ticks.
    fn now(&self) -> u64;
    /// Prints on the guest's console; says how many bytes were taken. The others are to be offered again.
    fn print(&mut self, bytes: &[u8]) -> usize;
    /// Notes that there is room for input from the guest's console.
    fn take_input(&mut self);
    /// Asks for a [`Device::moment`] soon: a fraction of a millisecond from now.
    fn soon(&mut self);
    /// Returns whether this hart runs the guest, or no hart does: then work for the guest costs no other guest.
    fn is_own(&self) -> bool;
    /// Asks for one at `time` of the host, or a little later.
    fn at(&mut self, time: u64);
    /// Accesses that were to be made later are made again, as soon as the console has room.
    fn wake(&mut self);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use mmu::frames::Frames;
    use rv::Addr;

    /// A world that prints what it has room for, and remembers what was asked of it.
    #[derive(Debug)]
    pub(in crate::device) struct World {
        pub(in crate::device) now: u64,
        pub(in crate::device) room: usize,
        pub(in crate::device) printed: Vec<u8>,
        pub(in crate::device) is_soon: bool,
        pub(in crate::device) is_awake: bool,
        /// Another hart than the guest's.
        pub(in crate::device) is_foreign: bool,
        pub(in crate::device) at: Option<u64>,
        /// RAM, from [`RAM`] on.
        pub(in crate::device) ram: Vec<u8>,
        /// Pages that were given back.
        pub(in crate::device) given_back: Vec<u64>,
        /// The number of pages that may be given back in one portion.
        pub(in crate::device) portion: u64,
        /// A third of the accesses find that memory is not there yet: which, this says.
        pub(in crate::device) later: Option<u64>,
        pub(in crate::device) accesses: u64,
        /// The number of pages that were faulted in to be lent, if each is.
        pub(in crate::device) faulted: Option<usize>,
    }

    /// The start of the guest's RAM.
    pub(in crate::device) const RAM: u64 = 0x8000_0000;

    impl Default for World {
        fn default() -> Self {
            let ram = Vec::new();
            let (now, room, printed, given_back, portion) = (0, usize::MAX, Vec::new(), Vec::new(), u64::MAX);
            Self {
                now,
                room,
                printed,
                is_soon: false,
                is_awake: false,
                is_foreign: false,
                at: None,
                ram,
                given_back,
                portion,
                later: None,
                accesses: 0,
                faulted: None,
            }
        }
    }

    impl World {
        fn bytes(&mut self, gpa: u64, bytes: usize) -> Result<&mut [u8], Unreached> {
            self.accesses += 1;
            let hash = |seed: u64| (self.accesses ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            if self.later.is_some_and(|seed| hash(seed).is_multiple_of(3)) {
                return Err(Unreached::Later);
            }
            let start = gpa.checked_sub(RAM).ok_or(Unreached::Nowhere)? as usize;
            self.ram.get_mut(start..start.checked_add(bytes).ok_or(Unreached::Nowhere)?).ok_or(Unreached::Nowhere)
        }
    }

    impl GuestMemory for World {
        fn read(&mut self, gpa: u64, into: &mut [u8]) -> Result<(), Unreached> {
            into.copy_from_slice(self.bytes(gpa, into.len())?);
            Ok(())
        }
        fn write(&mut self, gpa: u64, from: &[u8]) -> Result<(), Unreached> {
            self.bytes(gpa, from.len())?.copy_from_slice(from);
            Ok(())
        }
        fn load_u16(&mut self, gpa: u64) -> Result<u16, Unreached> {
            assert!(gpa.is_multiple_of(2));
            let mut bytes = [0; 2];
            self.read(gpa, &mut bytes)?;
            Ok(u16::from_le_bytes(bytes))
        }
        fn store_u16(&mut self, gpa: u64, value: u16) -> Result<(), Unreached> {
            assert!(gpa.is_multiple_of(2));
            self.write(gpa, &value.to_le_bytes())
        }
        fn loan(&self, most: usize) -> Loan {
            Frames::new().lend(most)
        }
        /// Lends memory. The guest's RAM is at the same addresses as the host's.
        fn lend(
            &mut self,
            places: &mut dyn Iterator<Item = (u64, usize)>,
            loan: &mut Loan,
        ) -> (usize, Result<(), Unreached>) {
            let by_page = |(gpa, bytes)| crate::memory::reach::by_page(Addr::new(gpa), bytes);
            const FAULTS: usize = 16;
            let mut faults = 0;
            for (at, part) in places.flat_map(by_page) {
                if let Err(why) = self.bytes(at.raw(), part.len()) {
                    return (faults, Err(why));
                }
                if !loan.add(Addr::new(at.raw()), part.len()) {
                    break;
                }
                if let Some(faulted) = &mut self.faulted {
                    (*faulted, faults) = (*faulted + 1, faults + 1);
                }
                if faults == FAULTS {
                    break;
                }
            }
            (faults, Ok(()))
        }
        fn give_back(&mut self, spans: &[Span]) -> Returned {
            let pages = spans.iter().flat_map(|span| span.start.raw()..span.start.raw() + span.pages);
            let before = self.given_back.len();
            self.given_back.extend(pages.take(self.portion as usize));
            let passed = (self.given_back.len() - before) as u64;
            Returned { passed, freed: passed, kept: 0 }
        }
    }

    impl Outside for World {
        fn now(&self) -> u64 {
            self.now
        }
        fn print(&mut self, bytes: &[u8]) -> usize {
            let taken = bytes.len().min(self.room);
            self.room -= taken;
            self.printed.extend(&bytes[..taken]);
            taken
        }
        fn take_input(&mut self) {}
        fn soon(&mut self) {
            self.is_soon = true;
        }
        fn is_own(&self) -> bool {
            !self.is_foreign
        }
        fn at(&mut self, time: u64) {
            self.at = Some(time);
        }
        fn wake(&mut self) {
            self.is_awake = true;
        }
    }
}
