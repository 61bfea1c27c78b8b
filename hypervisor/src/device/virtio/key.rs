//! A power key: an input device (chapter 5.8) with one key, by which a user asks the guest to shut down.
//!
//! A press is four events: the key goes down, a report ends, the key comes up, a report ends. Each fills one buffer of the event queue.
//! Events for which there is no buffer yet wait until the driver notifies of more. A driver that has not set the device up misses the press.

use super::backend::{Backend, Progress, read_bytes};
use super::portion::{self, Budget, STEP, Stop, next_chain};
use super::queue::{Chain, Queue, Trouble};
use super::queues::Queues;
use super::transport::Mmio;
use crate::device::interface::{Device, Outside, Unsaved, Wild};
use crate::device::offer::Offer;
use abi::bundle::VmConfig;
use abi::snapshot::State;
use abi::snapshot::device::OwnState;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The most that a portion may cost, in bytes that are copied.
const PORTION: usize = 64 << 10;

/// The GPA and the PLIC source of the key, behind the console.
const AT: (u64, u32) = (0x1001_0000, 18);

/// The queue of events. The other one is for LEDs and sounds, which a key does not have.
const EVENTS: usize = 0;
const COUNT: usize = 2;

const SELECT: u64 = 0;
const SUBSELECT: u64 = 1;

/// `VIRTIO_INPUT_CFG_ID_NAME`.
const ID_NAME: u8 = 0x01;
/// `VIRTIO_INPUT_CFG_EV_BITS`: the codes of the type of events that `subsel` names, a bit for each.
const EV_BITS: u8 = 0x11;
const NAME: &[u8] = b"Gnomon power key";

/// Types and codes of events, as Linux numbers them (`input-event-codes.h`).
const EV_KEY: u8 = 1;
const KEY_POWER: u8 = 116;
/// The bitmap of codes up to [`KEY_POWER`].
const KEYS: [u8; KEY_POWER as usize / 8 + 1] = {
    let mut bits = [0; KEY_POWER as usize / 8 + 1];
    bits[KEY_POWER as usize / 8] = 1 << (KEY_POWER % 8);
    bits
};

/// The events of a press: type, code and value, little endian.
const PRESS: [[u8; 8]; 4] =
    [[EV_KEY, 0, KEY_POWER, 0, 1, 0, 0, 0], REPORT, [EV_KEY, 0, KEY_POWER, 0, 0, 0, 0, 0], REPORT];
/// `EV_SYN`, `SYN_REPORT`: the end of events that belong together.
const REPORT: [u8; 8] = [0; 8];

/// Makes the power key of a VM, if it has one. A VM that is restored from a snapshot has one if it had one there.
pub fn make(config: &VmConfig, _: &Offer) -> Vec<Box<dyn Device>> {
    let has_key = match &config.restore {
        None => config.power_key,
        Some(bytes) => {
            State::decode(&bytes.0).is_some_and(|state| state.devices.iter().any(|placed| placed.at == AT.0))
        }
    };
    let key = has_key.then(|| Mmio::new(AT.0, AT.1, PowerKey::default()));
    key.into_iter().map(|key| Box::new(key) as _).collect()
}

/// The device's counts. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Presses that the driver was, or will be, told of.
    pub presses: u64,
    /// Buffers that came back empty, since there is no room in them, or no memory.
    pub refused: u64,
}

impl Counts {
    /// Returns every count with its name, as `docs/counters.md` lists them.
    pub(super) const fn each(&self) -> [(&'static str, u64); 2] {
        [("power_key.presses", self.presses), ("power_key.refused", self.refused)]
    }
}

/// The device.
#[derive(Debug, Default)]
pub struct PowerKey {
    /// The part of the configuration that the driver has selected.
    select: u8,
    subselect: u8,
    /// The events of a press that are still to be sent: the last ones of [`PRESS`].
    left: usize,
    /// The chain for the next event.
    filling: Option<Chain>,
    counts: Counts,
}

impl PowerKey {
    /// Returns the selected part of the configuration.
    const fn selected(&self) -> &'static [u8] {
        match (self.select, self.subselect) {
            (ID_NAME, 0) => NAME,
            (EV_BITS, EV_KEY) => &KEYS,
            _ => &[],
        }
    }

    /// Sends the next event.
    fn step(&mut self, queue: &mut Queue, outside: &mut dyn Outside, budget: &mut Budget) -> Result<(), Stop> {
        let Some(event) = PRESS.len().checked_sub(self.left).and_then(|at| PRESS.get(at)) else {
            return Err(Stop::Idle);
        };
        let Some(chain) = &self.filling else {
            self.filling = next_chain(queue, outside, budget)?;
            return budget.pay(STEP);
        };
        budget.pay(STEP)?;
        let bytes = event.len() as u32;
        // Written again if the ring is not there yet: the driver looks at it when the chain is back.
        let is_sent = chain.room(true) >= bytes.into() && chain.tell(0, event, outside)?;
        queue.give(chain, if is_sent { bytes } else { 0 }, outside)?;
        self.filling = None;
        self.left -= usize::from(is_sent);
        self.counts.refused += u64::from(!is_sent);
        Ok(())
    }
}

impl Mmio<PowerKey> {
    /// Presses the key and lets it go. Returns false, and does nothing, if no driver has set the device up. A press before which
    /// the last one was not sent yet is the same press.
    pub fn press(&mut self, outside: &mut dyn Outside) -> bool {
        let mut is_ready = false;
        self.act(outside, |key, queues, outside| {
            is_ready = queues.is_ready(EVENTS);
            if is_ready && key.left == 0 {
                key.left = PRESS.len();
                key.counts.presses += 1;
            }
            key.notified(EVENTS, queues, outside)
        });
        is_ready
    }
}

impl Backend for PowerKey {
    const ID: u32 = 18;
    const GOES_ON: bool = true;
    const COUNTERS: [&'static str; 2] = ["power_key.notifications", "power_key.malformed"];

    fn queues(&self) -> usize {
        COUNT
    }

    fn read_config(&self, offset: u64, width: u8) -> u32 {
        /// The place of the selected part, behind `select`, `subsel`, its size and five reserved bytes.
        const PART: usize = 8;
        let part = self.selected();
        let mut config = [0; PART + NAME.len()];
        config[..3].copy_from_slice(&[self.select, self.subselect, part.len() as u8]);
        config[PART..][..part.len()].copy_from_slice(part);
        read_bytes(&config, offset, width)
    }

    fn write_config(&mut self, offset: u64, width: u8, value: u32) {
        match (offset, width) {
            (SELECT, 1) => self.select = value as u8,
            (SUBSELECT, 1) => self.subselect = value as u8,
            _ => {}
        }
    }

    /// Sends events that wait. Buffers of the other queue stay there: their drivers have nothing to say to a key.
    fn notified(&mut self, at: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        match queues.ready(at) {
            Some(queue) if at == EVENTS => portion::go_on(PORTION, |budget| self.step(queue, outside, budget)),
            _ => Ok(Progress::Idle),
        }
    }

    fn stop(&mut self, at: usize) {
        if at == EVENTS {
            (self.left, self.filling) = (0, None);
        }
    }

    fn reset(&mut self) {
        *self = Self { counts: self.counts, ..Self::default() };
    }

    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.counts.each().into_iter().for_each(|(name, count)| report(name, count));
    }

    /// Saves nothing: the rest of a press, for which the driver has no buffers, is not in a snapshot, and the command presses again.
    fn save(&self) -> Result<OwnState, Unsaved> {
        Ok(OwnState::Nothing)
    }

    fn begun(&self, at: usize) -> u16 {
        (at == EVENTS && self.filling.is_some()).into()
    }

    fn restore(&mut self, own: &OwnState, _: bool) -> Result<(), Wild> {
        if *own == OwnState::Nothing { Ok(()) } else { Err(Wild::OTHER) }
    }
}

#[cfg(test)]
mod tests;
