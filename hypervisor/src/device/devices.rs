//! The devices of one VM.

use crate::device::offer::Offer;
use crate::device::virtio::{Console, Mmio};
use crate::device::{Answer, Device, Outside, Plic, Uart, Wild, uart};
use crate::slots::Handle;
use abi::bundle::VmConfig;
use abi::snapshot::{Placed, State};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use core::iter;

/// The devices of a guest's board. Each has a number: the UART is number 0, those of [`Offer::kinds`] follow.
#[derive(Debug)]
pub struct Devices {
    /// The UART. Console input comes to it, whichever driver reads it.
    pub uart: Uart,
    /// The interrupt controller.
    pub plic: Plic,
    others: Vec<Box<dyn Device>>,
    /// The number of the virtio console, if there is one.
    console: Option<usize>,
}

/// The target of an access to a guest physical address where there is no RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The interrupt controller.
    Plic,
    /// The device of that number; 0 is the UART.
    Device(usize),
}

impl Devices {
    /// Restores all devices from a snapshot. They have just been reset.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn restore(&mut self, state: &State) -> Result<(), Wild> {
        self.plic.restore(&state.plic)?;
        let mut saved = state.devices.iter();
        for device in self.iter_mut() {
            let Placed { at, device: state } = saved.next().ok_or(Wild::OTHER)?;
            if *at != device.place().start {
                return Err(Wild::OTHER);
            }
            device.restore(state)?;
        }
        if saved.next().is_some() { Err(Wild::OTHER) } else { Ok(()) }
    }

    /// Makes the devices of a VM, as they are after reset: of each kind those that its configuration asks for and the
    /// machine has.
    #[must_use]
    pub fn new(config: &VmConfig, offer: &Offer) -> Self {
        let others: Vec<_> = offer.kinds.iter().flat_map(|make| make(config, offer)).collect();
        let console = others.iter().position(|device| (&**device as &dyn Any).is::<Mmio<Console>>());
        let console = console.map(|at| at + 1);
        Self { uart: Uart::default(), plic: Plic::new(config.vcpus), others, console }
    }

    /// Returns all devices except the interrupt controller, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Device> {
        iter::once(&self.uart as &dyn Device).chain(self.others.iter().map(|device| &**device))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut (dyn Device + 'static)> {
        iter::once(&mut self.uart as &mut dyn Device).chain(self.others.iter_mut().map(|device| &mut **device))
    }

    /// Returns the first device of that type, if there is one.
    #[must_use]
    pub fn find<D: Device>(&self) -> Option<&D> {
        self.others.iter().find_map(|device| (&**device as &dyn Any).downcast_ref())
    }

    /// Returns the first device of that type, to be changed, if there is one.
    pub fn find_mut<D: Device>(&mut self) -> Option<&mut D> {
        self.others.iter_mut().find_map(|device| (&mut **device as &mut dyn Any).downcast_mut())
    }

    fn get(&mut self, at: usize) -> &mut (dyn Device + 'static) {
        match at {
            0 => &mut self.uart,
            _ => &mut *self.others[at - 1],
        }
    }

    /// Returns whether device number `at` is the virtio console.
    pub(crate) fn is_console(&self, at: usize) -> bool {
        self.console == Some(at)
    }

    /// Attaches the devices to their VM, which has a slot: devices of the host report to it from now on.
    pub(crate) fn attach(&mut self, vm: Handle) {
        self.iter_mut().for_each(|device| device.attach(vm));
    }

    /// Returns the device of a PLIC source.
    fn of_source(&self, source: u64) -> Option<usize> {
        self.iter().position(|device| u64::from(device.source()) == source & 0xffff_ffff)
    }

    /// Resets them.
    pub fn reset(&mut self, vcpus: u32) {
        self.plic = Plic::new(vcpus);
        self.iter_mut().for_each(Device::reset);
    }

    /// Loads `width` bytes at `offset`. A claim is passed on to the device that it names.
    pub fn load(&mut self, target: Target, offset: u64, width: u8, outside: &mut dyn Outside) -> Answer<u64> {
        match target {
            // Most accesses by far: without a call through a table.
            Target::Device(0) => self.uart.load(offset, width, outside),
            Target::Device(at) => self.get(at).load(offset, width, outside),
            Target::Plic => {
                let answer = self.plic.load(offset, width);
                if let (Answer::Done(source), true) = (answer, Plic::claims(offset))
                    && let Some(at) = self.of_source(source)
                {
                    self.get(at).claimed();
                }
                answer
            }
        }
    }

    /// Stores a value. Before a completion, the device whose interrupt it was is notified.
    pub fn store(
        &mut self,
        target: Target,
        (offset, width): (u64, u8),
        value: u64,
        outside: &mut dyn Outside,
    ) -> Answer<()> {
        match target {
            Target::Device(0) => self.uart.store(offset, width, value, outside),
            Target::Device(at) => {
                let answer = self.get(at).store(offset, width, value, outside);
                // It may have been a buffer for that. If it was not, nobody looks at the console's line.
                if self.is_console(at) {
                    self.pass_input(outside);
                }
                answer
            }
            Target::Plic => {
                if Plic::claims(offset)
                    && width == 4
                    && let Some(at) = self.of_source(value)
                {
                    self.get(at).completed();
                    self.pass_line(at);
                }
                self.plic.store(offset, width, value)
            }
        }
    }

    /// Gives the devices the moment that one of them asked for.
    pub fn moment(&mut self, outside: &mut dyn Outside) {
        self.iter_mut().for_each(|device| device.moment(outside));
        self.pass_input(outside);
    }

    /// Passes input on to the virtio console, if there is one whose driver has buffers. Lines of devices may change.
    pub fn pass_input(&mut self, outside: &mut dyn Outside) {
        let Self { uart, others, console: Some(at), .. } = self else { return };
        let console = (&mut *others[*at - 1] as &mut dyn Any).downcast_mut::<Mmio<Console>>();
        if let Some(console) = console.filter(|_| uart.has_received()) {
            console.take_input(uart, outside);
        }
    }

    /// Passes a device's line on to the PLIC; says whether it has changed.
    pub fn pass_line(&mut self, at: usize) -> bool {
        let (source, high) = match at {
            0 => (uart::SOURCE, self.uart.interrupt()),
            _ => (self.get(at).source(), self.get(at).interrupt()),
        };
        let has_changed = high != self.plic.is_high(source);
        if has_changed {
            self.plic.set_level(source, high);
        }
        has_changed
    }

    /// Passes on the lines of all devices.
    pub fn pass_lines(&mut self) -> bool {
        let count = self.iter().count();
        (0..count).fold(false, |changed, at| self.pass_line(at) | changed)
    }
}
