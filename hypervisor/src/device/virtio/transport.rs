//! Virtio over MMIO (chapter 4.2), version 2.

use super::backend::{Backend, Progress};
use super::queue::{Agreed, Layout, Trouble};
use super::queues::Queues;
use super::wire::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use crate::backend::User;
use crate::device::interface::{Answer, Device, Outside, Place, Unsaved, Wild};
use abi::snapshot::device::{DeviceState, VirtioState};
use alloc::vec::Vec;
use dtoolkit::model::DeviceTreeProperty;

const MAGIC: u64 = 0x000;
const VERSION: u64 = 0x004;
const DEVICE_ID: u64 = 0x008;
const VENDOR_ID: u64 = 0x00c;
const DEVICE_FEATURES: u64 = 0x010;
const DEVICE_FEATURES_SEL: u64 = 0x014;
const DRIVER_FEATURES: u64 = 0x020;
const DRIVER_FEATURES_SEL: u64 = 0x024;
const QUEUE_SEL: u64 = 0x030;
const QUEUE_SIZE_MAX: u64 = 0x034;
const QUEUE_SIZE: u64 = 0x038;
const QUEUE_READY: u64 = 0x044;
const QUEUE_NOTIFY: u64 = 0x050;
const INTERRUPT_STATUS: u64 = 0x060;
const INTERRUPT_ACK: u64 = 0x064;
const STATUS: u64 = 0x070;
const QUEUE_DESC_LOW: u64 = 0x080;
const QUEUE_DESC_HIGH: u64 = 0x084;
const QUEUE_DRIVER_LOW: u64 = 0x090;
const QUEUE_DRIVER_HIGH: u64 = 0x094;
const QUEUE_DEVICE_LOW: u64 = 0x0a0;
const QUEUE_DEVICE_HIGH: u64 = 0x0a4;
/// Length and base of a shared memory region, four words: there is none.
const SHARED_MEMORY: core::ops::RangeInclusive<u64> = 0x0b0..=0x0bc;
const CONFIG_GENERATION: u64 = 0x0fc;
const CONFIG: u64 = 0x100;
/// Bytes of the register file, the configuration included.
const BYTES: u64 = 0x200;

/// "virt".
const MAGIC_VALUE: u32 = 0x7472_6976;
/// "GNMN".
const VENDOR: u32 = 0x4e4d_4e47;

const FEATURES_OK: u8 = 8;
const DRIVER_OK: u8 = 4;
const NEEDS_RESET: u8 = 64;
const FAILED: u8 = 128;

/// A queue has something for the driver.
const USED: u8 = 1;
/// The configuration has changed, or the device needs a reset.
const CHANGED: u8 = 2;

/// Memory that a queue needs is not there yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Later;

/// A device with its registers.
#[derive(Debug)]
pub struct Mmio<B> {
    start: u64,
    source: u32,
    /// The device behind them.
    backend: B,
    device_features_sel: u32,
    driver_features_sel: u32,
    driver_features: u64,
    queue_sel: u32,
    queues: Queues,
    status: u8,
    interrupts: u8,
    generation: u32,
    /// Notifications, those that went on with an earlier one included.
    notifications: u64,
    /// The number of times that a ring was malformed.
    malformed: u64,
}

fn with_low(of: u64, value: u32) -> u64 {
    of & !0xffff_ffff | u64::from(value)
}

fn with_high(of: u64, value: u32) -> u64 {
    of & 0xffff_ffff | u64::from(value) << 32
}

/// Returns half number `sel` of a word of features.
const fn half(of: u64, sel: u32) -> u32 {
    match sel {
        0 => of as u32,
        1 => (of >> 32) as u32,
        _ => 0,
    }
}

impl<B: Backend> Mmio<B> {
    /// Makes a device at GPA `start`, after reset.
    #[must_use]
    pub fn new(start: u64, source: u32, backend: B) -> Self {
        Self {
            start,
            source,
            device_features_sel: 0,
            driver_features_sel: 0,
            driver_features: 0,
            queue_sel: 0,
            queues: Queues::new(backend.queues(), B::MOST_ENTRIES),
            backend,
            status: 0,
            interrupts: 0,
            generation: 0,
            notifications: 0,
            malformed: 0,
        }
    }

    /// Returns the device behind the registers.
    #[must_use]
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// Returns the backend, for a change that its configuration does not show.
    pub(super) const fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Returns the notifications so far, and the rings that were malformed.
    #[must_use]
    pub const fn counts(&self) -> (u64, u64) {
        (self.notifications, self.malformed)
    }

    /// Changes the device in a way that its configuration tells of: so is the driver.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut B)) {
        change(&mut self.backend);
        self.generation = self.generation.wrapping_add(1);
        if self.status & DRIVER_OK != 0 {
            self.interrupts |= CHANGED;
        }
    }

    fn features(&self) -> u64 {
        self.backend.features() | INDIRECT_DESC | EVENT_IDX | VERSION_1
    }

    /// Changes the layout of the selected queue, as the driver may while it is not ready.
    fn set(&mut self, set: impl FnOnce(&mut Layout)) {
        self.queues.set(self.queue_sel as usize, set);
    }

    /// Tells the driver that it has to start over.
    fn fail(&mut self) {
        self.malformed += 1;
        self.status |= NEEDS_RESET;
        if self.status & DRIVER_OK != 0 {
            self.interrupts |= CHANGED;
        }
    }

    const fn agreed(&self) -> Agreed {
        Agreed {
            indirect: self.driver_features & INDIRECT_DESC != 0,
            event_index: self.driver_features & EVENT_IDX != 0,
        }
    }

    fn set_ready(&mut self, is_ready: bool) {
        let (at, agreed) = (self.queue_sel as usize, is_ready.then(|| self.agreed()));
        if !is_ready && self.queues.is_ready(at) {
            self.backend.stop(at);
        }
        if !self.queues.set_ready(at, agreed) {
            self.fail();
        }
    }

    fn set_status(&mut self, value: u8) {
        if value == 0 {
            return self.start_over();
        }
        let mut value = value;
        let is_new = value & FEATURES_OK & !self.status != 0;
        if is_new && !self.may_agree() {
            value &= !FEATURES_OK;
        }
        // That one is the device's.
        self.status = value & !NEEDS_RESET | self.status & NEEDS_RESET;
    }

    /// Returns the answer to the driver's access. A driver that has stopped something goes on once the device stands
    /// still there.
    fn stopped(&mut self, has_stopped: bool) -> Answer<()> {
        if has_stopped && !self.backend.is_still() { Answer::Again } else { Answer::Done(()) }
    }

    /// Returns whether the features that the driver has accepted are possible.
    fn may_agree(&self) -> bool {
        self.driver_features & !self.features() == 0 && self.driver_features & VERSION_1 != 0
    }

    /// Returns whether the driver has set the device up, so that it serves queues.
    const fn is_live(&self) -> bool {
        self.status & (FEATURES_OK | DRIVER_OK | NEEDS_RESET | FAILED) == FEATURES_OK | DRIVER_OK
    }

    fn resume(&mut self, state: &VirtioState) -> Result<(), Wild> {
        if state.id != B::ID {
            return Err(Wild::OTHER);
        }
        self.device_features_sel = state.device_features_sel;
        self.driver_features_sel = state.driver_features_sel;
        self.driver_features = state.driver_features;
        self.queue_sel = state.queue_sel;
        (self.status, self.generation) = (state.status, state.generation);
        self.interrupts = state.interrupts & (USED | CHANGED);
        if self.status & FEATURES_OK != 0 && !self.may_agree() {
            return Err(Wild("a virtio device does not offer what its driver has agreed on: give it the same disks"));
        }
        let agreed = self.agreed();
        if !self.queues.resume(&state.queues, agreed) {
            return Err(Wild("a queue of a virtio device cannot be so"));
        }
        let is_live = self.is_live();
        self.backend.restore(&state.own, is_live)
    }

    /// Resets the device, as the driver asks.
    fn start_over(&mut self) {
        self.backend.reset();
        self.queues.reset();
        (self.driver_features, self.status, self.interrupts) = (0, 0, 0);
        (self.device_features_sel, self.driver_features_sel, self.queue_sel) = (0, 0, 0);
    }

    /// Serves a queue, as the driver asks by a notification.
    fn notify(&mut self, at: u32, outside: &mut dyn Outside) -> Answer<()> {
        self.notifications += 1;
        match self.serve(Some(at as usize), outside) {
            Ok(Progress::Idle) => Answer::Done(()),
            // If the device goes on by itself, the vCPU does not wait for memory that is not there yet.
            Err(Later) if B::GOES_ON => {
                outside.soon();
                Answer::Done(())
            }
            Ok(Progress::More) | Err(Later) => Answer::Again,
        }
    }

    /// Gives one queue its moment.
    pub fn moment_of(&mut self, at: usize, outside: &mut dyn Outside) {
        self.go_on(Some(at), outside);
    }

    fn go_on(&mut self, at: Option<usize>, outside: &mut dyn Outside) {
        if self.serve(at, outside) != Ok(Progress::Idle) {
            outside.soon();
        }
    }

    /// Does a portion of the work for a queue that is notified of, or for all of them.
    fn serve(&mut self, at: Option<usize>, outside: &mut dyn Outside) -> Result<Progress, Later> {
        self.act_on_queues(outside, |backend, queues, outside| match at {
            Some(at) if !queues.is_ready(at) => Ok(Progress::Idle),
            Some(at) => backend.notified(at, queues, outside),
            None => backend.moment(queues, outside),
        })
    }

    /// Does a portion of something else for its queues, with a moment for what is left.
    pub(super) fn act(
        &mut self,
        outside: &mut dyn Outside,
        act: impl FnOnce(&mut B, &mut Queues, &mut dyn Outside) -> Result<Progress, Trouble>,
    ) {
        if self.act_on_queues(outside, act) != Ok(Progress::Idle) {
            outside.soon();
        }
    }

    fn act_on_queues(
        &mut self,
        outside: &mut dyn Outside,
        act: impl FnOnce(&mut B, &mut Queues, &mut dyn Outside) -> Result<Progress, Trouble>,
    ) -> Result<Progress, Later> {
        if !self.is_live() {
            return Ok(Progress::Idle);
        }
        let progress = act(&mut self.backend, &mut self.queues, outside);
        // What was given back before something went wrong was given back.
        let told = self.tell(outside);
        match progress.and_then(|progress| told.map(|()| progress)) {
            Ok(progress) => Ok(progress),
            Err(Trouble::Later) => Err(Later),
            Err(Trouble::Malformed(_)) => {
                self.fail();
                Ok(Progress::Idle)
            }
        }
    }

    /// Interrupts the driver for chains that were given back, if it wants to hear of that in one of the queues.
    fn tell(&mut self, outside: &mut dyn Outside) -> Result<(), Trouble> {
        let mut told = Ok(());
        for queue in self.queues.all_ready() {
            let must_tell = queue.must_tell(outside);
            if must_tell == Ok(true) {
                self.interrupts |= USED;
            }
            told = told.and(must_tell.map(|_| ()));
        }
        told
    }

    fn read(&self, offset: u64) -> u32 {
        let selected = self.queue_sel as usize;
        match offset {
            MAGIC => MAGIC_VALUE,
            VERSION => 2,
            DEVICE_ID => B::ID,
            VENDOR_ID => VENDOR,
            DEVICE_FEATURES => half(self.features(), self.device_features_sel),
            QUEUE_SIZE_MAX if self.queues.has(selected) => B::MOST_ENTRIES as u32,
            QUEUE_READY => self.queues.is_ready(selected).into(),
            INTERRUPT_STATUS => self.interrupts.into(),
            STATUS => self.status.into(),
            offset if SHARED_MEMORY.contains(&offset) => u32::MAX,
            CONFIG_GENERATION => self.generation,
            // Others are for writing, or do not exist.
            _ => 0,
        }
    }

    fn write(&mut self, offset: u64, value: u32, outside: &mut dyn Outside) -> Answer<()> {
        match offset {
            DEVICE_FEATURES_SEL => self.device_features_sel = value,
            DRIVER_FEATURES_SEL => self.driver_features_sel = value,
            // Settled once both sides have said so.
            DRIVER_FEATURES if self.status & FEATURES_OK == 0 => match self.driver_features_sel {
                0 => self.driver_features = with_low(self.driver_features, value),
                1 => self.driver_features = with_high(self.driver_features, value),
                _ => {}
            },
            QUEUE_SEL => self.queue_sel = value,
            QUEUE_SIZE => self.set(|layout| layout.size = value.try_into().unwrap_or(0)),
            QUEUE_READY => {
                self.set_ready(value & 1 != 0);
                return self.stopped(value & 1 == 0);
            }
            QUEUE_NOTIFY => return self.notify(value, outside),
            INTERRUPT_ACK => self.interrupts &= !(value as u8),
            STATUS => {
                self.set_status(value as u8);
                return self.stopped(value as u8 == 0);
            }
            QUEUE_DESC_LOW => self.set(|layout| layout.descriptors = with_low(layout.descriptors, value)),
            QUEUE_DESC_HIGH => self.set(|layout| layout.descriptors = with_high(layout.descriptors, value)),
            QUEUE_DRIVER_LOW => self.set(|layout| layout.driver = with_low(layout.driver, value)),
            QUEUE_DRIVER_HIGH => self.set(|layout| layout.driver = with_high(layout.driver, value)),
            QUEUE_DEVICE_LOW => self.set(|layout| layout.device = with_low(layout.device, value)),
            QUEUE_DEVICE_HIGH => self.set(|layout| layout.device = with_high(layout.device, value)),
            _ => {}
        }
        Answer::Done(())
    }
}

/// Returns the offset in the configuration, if the access is one that is answered there.
fn in_config(offset: u64, width: u8) -> Option<u64> {
    offset.checked_sub(CONFIG).filter(|_| width <= 4 && offset.is_multiple_of(width.into()))
}

impl<B: Backend> Device for Mmio<B> {
    fn name(&self) -> &'static str {
        "virtio_mmio"
    }

    fn place(&self) -> Place {
        Place { start: self.start, bytes: BYTES }
    }

    fn source(&self) -> u32 {
        self.source
    }

    fn properties(&self) -> Vec<DeviceTreeProperty> {
        [DeviceTreeProperty::new_unchecked("compatible", "virtio,mmio")].into()
    }

    /// Loads a register, only as a whole, aligned word; the configuration by the width of its fields.
    fn load(&mut self, offset: u64, width: u8, _: &mut dyn Outside) -> Answer<u64> {
        match in_config(offset, width) {
            Some(offset) => Answer::Done(self.backend.read_config(offset, width).into()),
            None if offset < CONFIG && width == 4 && offset.is_multiple_of(4) => Answer::Done(self.read(offset).into()),
            None => Answer::Refused,
        }
    }

    fn store(&mut self, offset: u64, width: u8, value: u64, outside: &mut dyn Outside) -> Answer<()> {
        match in_config(offset, width) {
            Some(offset) => {
                self.backend.write_config(offset, width, value as u32);
                Answer::Done(())
            }
            None if offset < CONFIG && width == 4 && offset.is_multiple_of(4) => {
                self.write(offset, value as u32, outside)
            }
            None => Answer::Refused,
        }
    }

    fn interrupt(&self) -> bool {
        self.interrupts != 0
    }

    fn moment(&mut self, outside: &mut dyn Outside) {
        if B::GOES_ON {
            self.go_on(None, outside);
        }
    }

    fn reset(&mut self) {
        self.start_over();
    }

    fn attach(&mut self, user: User) {
        self.backend.attach(user);
    }

    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let [notifications, malformed] = B::COUNTERS;
        report(notifications, self.notifications);
        report(malformed, self.malformed);
        self.backend.counters(report);
    }

    fn save(&self) -> Result<DeviceState, Unsaved> {
        let own = self.backend.save()?;
        Ok(DeviceState::Virtio(VirtioState {
            id: B::ID,
            device_features_sel: self.device_features_sel,
            driver_features_sel: self.driver_features_sel,
            driver_features: self.driver_features,
            queue_sel: self.queue_sel,
            status: self.status,
            interrupts: self.interrupts,
            generation: self.generation,
            queues: self.queues.save(|at| self.backend.begun(at)),
            own,
        }))
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), Wild> {
        let DeviceState::Virtio(state) = state else { return Err(Wild::OTHER) };
        self.resume(state)
    }
}
