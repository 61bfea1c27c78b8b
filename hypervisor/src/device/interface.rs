//! What a device is to the board, and the world outside to a device.

use alloc::vec::Vec;
use core::fmt::Debug;
use dtoolkit::model::DeviceTreeProperty;

/// Where a device is on the board.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// GPA of its first register.
    pub start: u64,
    /// Bytes of its registers.
    pub bytes: u64,
}

impl Place {
    /// The offset of `gpa` in it, in bytes, if it is there.
    #[must_use]
    pub const fn offset(&self, gpa: u64) -> Option<u64> {
        let offset = gpa.wrapping_sub(self.start);
        if offset < self.bytes { Some(offset) } else { None }
    }
}

/// What comes of an access to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<T> {
    /// It is done: what was read.
    Done(T),
    /// It waits for something outside of the guest, and nothing has happened yet. It is made again when the device has
    /// called [`Outside::wake`], which it does not do before it was given a [`Device::moment`] that it asked for.
    Later,
    /// There is no such register, or none so wide: an access fault.
    Refused,
}

/// A device on a guest's board. Its registers are reached by loads and stores of 1, 2, 4 or 8 bytes that lie wholly in its
/// [`Place`], aligned or not.
pub trait Device: Debug + Send {
    /// Its name in the device tree, before the `@`.
    fn name(&self) -> &'static str;
    /// Where it is.
    fn place(&self) -> Place;
    /// Its PLIC source, 1..=95.
    fn source(&self) -> u32;
    /// Its properties in the device tree, beyond `reg` and what names its interrupt.
    fn properties(&self) -> Vec<DeviceTreeProperty>;
    /// Reads `width` bytes at `offset`.
    fn load(&mut self, offset: u64, width: u8, outside: &mut dyn Outside) -> Answer<u64>;
    /// Writes the low `width` bytes of `value` at `offset`.
    fn store(&mut self, offset: u64, width: u8, value: u64, outside: &mut dyn Outside) -> Answer<()>;
    /// The level of its interrupt line.
    fn interrupt(&self) -> bool;
    /// The guest has claimed its interrupt.
    fn claimed(&mut self) {}
    /// The guest says that it has handled the interrupt that it claimed.
    fn completed(&mut self) {}
    /// The time has come that it, or another device of the guest's, asked for.
    fn moment(&mut self, outside: &mut dyn Outside);
    /// The machine starts over.
    fn reset(&mut self);
}

/// What devices reach beyond the guest.
pub trait Outside {
    /// The host's `time`, in ticks.
    fn now(&self) -> u64;
    /// Prints on the guest's console; says how many bytes were taken. The others are to be offered again.
    fn print(&mut self, bytes: &[u8]) -> usize;
    /// There is room for input from the guest's console.
    fn take_input(&mut self);
    /// Asks for a [`Device::moment`] soon: a fraction of a millisecond from now.
    fn soon(&mut self);
    /// Asks for one at `time` of the host, or a little later.
    fn at(&mut self, time: u64);
    /// Accesses that were to be made later are made again, as soon as the console has room.
    fn wake(&mut self);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A world that prints what it has room for, and remembers what was asked of it.
    #[derive(Debug)]
    pub(in crate::device) struct World {
        pub(in crate::device) now: u64,
        pub(in crate::device) room: usize,
        pub(in crate::device) printed: Vec<u8>,
        pub(in crate::device) is_soon: bool,
        pub(in crate::device) is_awake: bool,
        pub(in crate::device) at: Option<u64>,
    }

    impl Default for World {
        fn default() -> Self {
            Self { now: 0, room: usize::MAX, printed: Vec::new(), is_soon: false, is_awake: false, at: None }
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
        fn at(&mut self, time: u64) {
            self.at = Some(time);
        }
        fn wake(&mut self) {
            self.is_awake = true;
        }
    }
}
