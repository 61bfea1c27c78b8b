//! The devices of one VM. Each has a lock of its own, and so has the interrupt controller.
//!
//! Locks are taken in this order: the virtio console, any other device, the UART, the controller.

use crate::backend::User;
use crate::device::offer::Offer;
use crate::device::virtio::{Console, Mmio};
use crate::device::{Answer, Device, Outside, Plic, Uart, Wild, uart};
use crate::slots::Handle;
use crate::sync::{Mutex, MutexGuard};
use abi::bundle::VmConfig;
use abi::snapshot::{Placed, State};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::{Any, TypeId};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};

/// The devices of a guest's board. Each has a number: the UART is number 0, those of [`Offer::kinds`] follow, at most 63.
#[derive(Debug)]
pub struct Devices {
    /// The UART. Console input comes to it, whichever driver reads it.
    pub uart: Mutex<Seat<Uart>>,
    /// The interrupt controller.
    pub plic: Mutex<Plic>,
    others: Vec<Mutex<Seat<Box<dyn Device>>>>,
    /// The types of the others, and their sources.
    types: Vec<(TypeId, u32)>,
    /// The number of the virtio console, if there is one.
    console: Option<usize>,
    /// Devices (by bit) that are to get a [`Device::moment`] soon.
    asked: AtomicU64,
    /// Devices (by bit) that have asked for a moment at some time, since they were reset.
    timed: AtomicU64,
}

/// A device, and the level of its line that the controller knows.
#[derive(Debug)]
pub struct Seat<D> {
    device: D,
    is_high: bool,
}

/// The target of an access to a guest physical address where there is no RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The interrupt controller.
    Plic,
    /// The device of that number; 0 is the UART.
    Device(usize),
}

/// The outside of a VM's devices, and its vCPUs.
pub trait Board: Outside {
    /// Makes the board the outside of that device, until it is the next one's.
    fn serve(&mut self, device: usize);
    /// Passes the controller's lines to the vCPUs.
    fn update(&mut self, plic: MutexGuard<'_, Plic>);
    /// Holds the vCPU whose access is to be made later: with the device's lock held, so that the device can wake it only then.
    fn hold(&mut self);
}

impl<D> Seat<D> {
    const fn new(device: D) -> Self {
        Self { device, is_high: false }
    }
}

impl Seat<Box<dyn Device>> {
    /// Returns the device as one of that type, if it is.
    pub fn downcast<D: Device>(&mut self) -> Option<&mut D> {
        (&mut *self.device as &mut dyn Any).downcast_mut()
    }
}

impl<D> Deref for Seat<D> {
    type Target = D;

    #[inline(always)]
    fn deref(&self) -> &D {
        &self.device
    }
}

impl<D> DerefMut for Seat<D> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut D {
        &mut self.device
    }
}

/// Exclusive access to all devices, until it is dropped.
pub struct All<'a> {
    others: Vec<MutexGuard<'a, Seat<Box<dyn Device>>>>,
    uart: MutexGuard<'a, Seat<Uart>>,
    plic: MutexGuard<'a, Plic>,
}

impl<'a> All<'a> {
    /// Returns all devices except the interrupt controller, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Device> {
        let others = self.others.iter().map(|seat| &*seat.device);
        core::iter::once(&self.uart.device as &dyn Device).chain(others)
    }

    /// Returns each device, and what the controller knows of its line.
    fn iter_mut(&mut self) -> impl Iterator<Item = (&mut dyn Device, &mut bool)> {
        let others = self.others.iter_mut().map(|seat| {
            let Seat { device, is_high } = &mut **seat;
            (&mut **device as &mut dyn Device, is_high)
        });
        let Seat { device, is_high } = &mut *self.uart;
        core::iter::once((device as &mut dyn Device, is_high)).chain(others)
    }

    /// Returns the interrupt controller.
    #[must_use]
    pub fn plic(&self) -> &Plic {
        &self.plic
    }

    /// Resets them, for so many vCPUs.
    pub fn reset(&mut self, vcpus: u32) {
        *self.plic = Plic::new(vcpus);
        self.iter_mut().for_each(|(device, is_high)| {
            device.reset();
            *is_high = false;
        });
    }

    /// Restores all devices from a snapshot. They have just been reset.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn restore(&mut self, state: &State) -> Result<(), Wild> {
        self.plic.restore(&state.plic)?;
        let mut saved = state.devices.iter();
        for (device, _) in self.iter_mut() {
            let Placed { at, device: state } = saved.next().ok_or(Wild::OTHER)?;
            if *at != device.place().start {
                return Err(Wild::OTHER);
            }
            device.restore(state)?;
        }
        if saved.next().is_some() { Err(Wild::OTHER) } else { Ok(()) }
    }

    /// Passes the lines of all devices to the controller, which is returned.
    pub(crate) fn into_plic(mut self) -> MutexGuard<'a, Plic> {
        let lines: Vec<(u32, bool)> = self.iter().map(|device| (device.source(), device.interrupt())).collect();
        self.iter_mut().zip(&lines).for_each(|((_, is_high), (_, high))| *is_high = *high);
        lines.into_iter().for_each(|(source, high)| self.plic.set_level(source, high));
        self.plic
    }
}

impl Devices {
    /// Makes the devices of a VM, as they are after reset: of each kind those that its configuration asks for and the
    /// machine has.
    ///
    /// # Panics
    /// If they are more than 63.
    #[must_use]
    pub fn new(config: &VmConfig, offer: &Offer) -> Self {
        let others: Vec<_> = offer.kinds.iter().flat_map(|make| make(config, offer)).collect();
        assert!(others.len() < 64, "each has a bit");
        let types: Vec<_> = others.iter().map(|device| ((**device).type_id(), device.source())).collect();
        let console = types.iter().position(|(of, _)| *of == TypeId::of::<Mmio<Console>>()).map(|at| at + 1);
        Self {
            uart: Mutex::new(Seat::new(Uart::default())),
            plic: Mutex::new(Plic::new(config.vcpus)),
            others: others.into_iter().map(|device| Mutex::new(Seat::new(device))).collect(),
            types,
            console,
            asked: AtomicU64::new(0),
            timed: AtomicU64::new(0),
        }
    }

    /// Takes all locks.
    pub fn all(&self) -> All<'_> {
        // In this order: the console is among the others.
        let others = self.others.iter().map(Mutex::lock).collect();
        All { others, uart: self.uart.lock(), plic: self.plic.lock() }
    }

    /// Attaches the devices to their VM, which has a slot: devices of the host report to it from now on.
    pub(crate) fn attach(&self, vm: Handle) {
        let mut all = self.all();
        (0..).zip(all.iter_mut()).for_each(|(device, (seat, _))| seat.attach(User { vm, device }));
    }

    /// Returns whether there is a device of that type.
    #[must_use]
    pub fn has<D: Device>(&self) -> bool {
        self.types.iter().any(|(of, _)| *of == TypeId::of::<D>())
    }

    /// Does something with the first device of that type, if there is one. Its line is passed on.
    pub fn with<D: Device, R>(
        &self,
        board: &mut dyn Board,
        act: impl FnOnce(&mut D, &mut dyn Board) -> R,
    ) -> Option<R> {
        let at = self.types.iter().position(|(of, _)| *of == TypeId::of::<D>())?;
        board.serve(at + 1);
        let mut seat = self.others[at].lock();
        let result = seat.downcast().map(|device| act(device, board));
        self.pass_line(&mut seat, board);
        drop(seat);
        if self.is_console(at + 1) {
            self.pass_input(board);
        }
        result
    }

    /// Returns whether device number `at` is the virtio console.
    fn is_console(&self, at: usize) -> bool {
        self.console == Some(at)
    }

    /// Loads `width` bytes at `offset`. The device of an interrupt that is claimed is told.
    pub fn load(&self, target: Target, offset: u64, width: u8, board: &mut dyn Board) -> Answer<u64> {
        match target {
            // Most accesses by far: without a call through a table.
            Target::Device(0) => {
                board.serve(0);
                let mut seat = self.uart.lock();
                let answer = seat.load(offset, width, board);
                self.accessed(&mut seat, answer, board)
            }
            Target::Device(at) => {
                board.serve(at);
                let mut seat = self.others[at - 1].lock();
                let answer = seat.load(offset, width, board);
                self.accessed(&mut seat, answer, board)
            }
            Target::Plic => {
                let mut plic = self.plic.lock();
                let answer = plic.load(offset, width);
                board.update(plic);
                if let (Answer::Done(source), true) = (answer, Plic::claims(offset)) {
                    self.tell(source, |device| device.claimed(), board);
                }
                answer
            }
        }
    }

    /// Stores a value. Before a completion, the device whose interrupt it was is told.
    pub fn store(&self, target: Target, (offset, width): (u64, u8), value: u64, board: &mut dyn Board) -> Answer<()> {
        match target {
            Target::Device(0) => {
                board.serve(0);
                let mut seat = self.uart.lock();
                let answer = seat.store(offset, width, value, board);
                self.accessed(&mut seat, answer, board)
            }
            Target::Device(at) => {
                board.serve(at);
                let mut seat = self.others[at - 1].lock();
                let answer = seat.store(offset, width, value, board);
                let answer = self.accessed(&mut seat, answer, board);
                drop(seat);
                // It may have been a buffer for input.
                if self.is_console(at) {
                    self.pass_input(board);
                }
                answer
            }
            Target::Plic => {
                if Plic::claims(offset) && width == 4 {
                    self.tell(value, |device| device.completed(), board);
                }
                let mut plic = self.plic.lock();
                let answer = plic.store(offset, width, value);
                board.update(plic);
                answer
            }
        }
    }

    /// Tells the device of a source that its interrupt has been claimed or completed.
    fn tell(&self, source: u64, act: fn(&mut dyn Device), board: &mut dyn Board) {
        let source = source as u32;
        if source == uart::SOURCE {
            let mut seat = self.uart.lock();
            act(&mut seat.device);
            self.pass_line(&mut seat, board);
        } else if let Some(at) = self.types.iter().position(|(_, of)| *of == source) {
            let mut seat = self.others[at].lock();
            act(&mut *seat.device);
            self.pass_line(&mut seat, board);
        }
    }

    #[inline(always)]
    fn accessed<T>(
        &self,
        seat: &mut Seat<impl AsMut<dyn Device>>,
        answer: Answer<T>,
        board: &mut dyn Board,
    ) -> Answer<T> {
        match answer {
            Answer::Done(_) | Answer::Again => self.pass_line(seat, board),
            Answer::Later => board.hold(),
            Answer::Refused => {}
        }
        answer
    }

    /// Passes a device's line to the controller, if it has changed. The UART's is known without a call through a table.
    #[inline(always)]
    pub fn pass_line(&self, seat: &mut Seat<impl AsMut<dyn Device>>, board: &mut dyn Board) {
        let device = seat.device.as_mut();
        let high = device.interrupt();
        if high != seat.is_high {
            seat.is_high = high;
            self.set_line(device.source(), high, board);
        }
    }

    fn set_line(&self, source: u32, high: bool, board: &mut dyn Board) {
        let mut plic = self.plic.lock();
        plic.set_level(source, high);
        board.update(plic);
    }

    /// Notes that a device is to get a moment. Returns whether none was to get one before: then the caller sees to it.
    pub fn ask(&self, device: usize) -> bool {
        let bit = 1 << device;
        // Mostly it has been noted: only then is a look enough.
        self.asked.load(Ordering::SeqCst) & bit == 0 && self.asked.fetch_or(bit, Ordering::SeqCst) == 0
    }

    /// Notes that all devices are to get a moment.
    pub fn ask_all(&self) {
        self.asked.store(u64::MAX, Ordering::SeqCst);
    }

    /// Notes that a device is to get a moment at some time.
    pub fn ask_later(&self, device: usize) {
        self.timed.fetch_or(1 << device, Ordering::SeqCst);
    }

    /// Returns whether a device is to get a moment soon.
    pub fn is_asked(&self, device: usize) -> bool {
        self.asked.load(Ordering::SeqCst) >> device & 1 == 1
    }

    /// Gives a moment to the devices that are to get one, or may.
    pub fn moments(&self, may_be: impl Fn() -> bool, board: &mut dyn Board) {
        let due = self.asked.swap(0, Ordering::SeqCst) | self.timed.load(Ordering::SeqCst);
        for at in (0..=self.others.len()).filter(|at| due >> at & 1 == 1) {
            board.serve(at);
            let had = match at {
                0 => self.moment(&self.uart, &may_be, board),
                _ => self.moment(&self.others[at - 1], &may_be, board),
            };
            if !had {
                self.asked.fetch_or(1 << at, Ordering::SeqCst);
            }
        }
        if may_be() && self.console.is_some_and(|at| (due & 1 | due >> at & 1) != 0) {
            self.pass_input(board);
        }
    }

    /// Gives a device its moment, if it may have one. Returns whether it had it.
    fn moment(
        &self,
        seat: &Mutex<Seat<impl AsMut<dyn Device>>>,
        may_be: impl Fn() -> bool,
        board: &mut dyn Board,
    ) -> bool {
        let mut seat = seat.lock();
        // With the device's lock held: a freeze takes all of them.
        let may = may_be();
        if may {
            seat.device.as_mut().moment(board);
            self.pass_line(&mut seat, board);
        }
        may
    }

    /// Passes input on to the virtio console, if there is one whose driver has buffers, and the lines of both. Without one
    /// the input is the UART's.
    pub fn pass_input(&self, board: &mut dyn Board) {
        let Some(at) = self.console else { return self.pass_line(&mut self.uart.lock(), board) };
        board.serve(at);
        let mut seat = self.others[at - 1].lock();
        let mut uart = self.uart.lock();
        if uart.has_received()
            && let Some(console) = seat.downcast::<Mmio<Console>>()
        {
            console.take_input(&mut uart, board);
        }
        self.pass_line(&mut uart, board);
        drop(uart);
        self.pass_line(&mut seat, board);
    }
}
