//! A Goldfish RTC as guests see it ("Goldfish Virtual Hardware", chapter on the RTC; where that is silent, as QEMU's
//! `virt`): nanoseconds since 1970, UTC, and an alarm.

use super::interface::{Answer, Device, Outside, Place, Unsaved, Wild};
use crate::device::offer::Offer;
use crate::machine::clock::Clock;
use abi::bundle::VmConfig;
use abi::snapshot::device::{DeviceState, RtcState};
use alloc::boxed::Box;
use alloc::vec::Vec;
use dtoolkit::model::DeviceTreeProperty;

const TIME_LOW: u64 = 0x00;
const TIME_HIGH: u64 = 0x04;
const ALARM_LOW: u64 = 0x08;
const ALARM_HIGH: u64 = 0x0c;
const IRQ_ENABLED: u64 = 0x10;
const CLEAR_ALARM: u64 = 0x14;
const ALARM_STATUS: u64 = 0x18;
const CLEAR_INTERRUPT: u64 = 0x1c;
/// Bytes of the register file.
const BYTES: u64 = 0x24;

/// The GPA and the PLIC source of the clock.
const AT: (u64, u32) = (0x10_1000, 11);

/// Makes the clock of a VM, if the host has one.
pub fn make(_: &VmConfig, offer: &Offer) -> Vec<Box<dyn Device>> {
    let rtc = offer.clock.map(|clock| Rtc::new(AT.0, AT.1, clock));
    rtc.into_iter().map(|rtc| Box::new(rtc) as _).collect()
}

/// The device.
#[derive(Debug)]
pub struct Rtc {
    start: u64,
    source: u32,
    clock: Clock,
    /// The nanoseconds that the guest's clock is ahead of the host's, modulo 2^64.
    ahead: u64,
    /// The upper half of the time whose lower half was read last.
    high: u32,
    /// The time of the alarm, in nanoseconds of the guest's clock.
    alarm: u64,
    is_set: bool,
    is_pending: bool,
    is_enabled: bool,
}

fn with_low(of: u64, value: u32) -> u64 {
    of & !0xffff_ffff | u64::from(value)
}

fn with_high(of: u64, value: u32) -> u64 {
    of & 0xffff_ffff | u64::from(value) << 32
}

impl Rtc {
    /// Makes a clock at GPA `start` that shows the host's time.
    #[must_use]
    pub const fn new(start: u64, source: u32, clock: Clock) -> Self {
        let (ahead, high, alarm) = (0, 0, 0);
        Self { start, source, clock, ahead, high, alarm, is_set: false, is_pending: false, is_enabled: false }
    }

    fn time(&self, outside: &dyn Outside) -> u64 {
        self.clock.nanoseconds(outside.now()).wrapping_add(self.ahead)
    }

    fn set_time(&mut self, time: u64, outside: &dyn Outside) {
        self.ahead = self.ahead.wrapping_add(time.wrapping_sub(self.time(outside)));
    }

    /// Lets the alarm go off if it is time, else asks to be asked again then.
    fn look(&mut self, outside: &mut dyn Outside) {
        let now = self.time(outside);
        if self.alarm <= now {
            (self.is_set, self.is_pending) = (false, true);
        } else {
            outside.at(outside.now().saturating_add(self.clock.ticks(self.alarm - now)));
        }
    }
}

impl Device for Rtc {
    fn name(&self) -> &'static str {
        "rtc"
    }

    fn place(&self) -> Place {
        Place { start: self.start, bytes: BYTES }
    }

    fn source(&self) -> u32 {
        self.source
    }

    fn properties(&self) -> Vec<DeviceTreeProperty> {
        [DeviceTreeProperty::new_unchecked("compatible", "google,goldfish-rtc")].into()
    }

    /// Loads a register. Only whole, aligned words can be loaded.
    fn load(&mut self, offset: u64, width: u8, outside: &mut dyn Outside) -> Answer<u64> {
        if width != 4 || !offset.is_multiple_of(4) {
            return Answer::Refused;
        }
        Answer::Done(match offset {
            TIME_LOW => {
                let time = self.time(outside);
                self.high = (time >> 32) as u32;
                time & 0xffff_ffff
            }
            TIME_HIGH => self.high.into(),
            ALARM_LOW => self.alarm & 0xffff_ffff,
            ALARM_HIGH => self.alarm >> 32,
            IRQ_ENABLED => self.is_enabled.into(),
            ALARM_STATUS => self.is_set.into(),
            _ => 0,
        })
    }

    fn store(&mut self, offset: u64, width: u8, value: u64, outside: &mut dyn Outside) -> Answer<()> {
        if width != 4 || !offset.is_multiple_of(4) {
            return Answer::Refused;
        }
        let value = value as u32;
        match offset {
            TIME_LOW => self.set_time(with_low(self.time(outside), value), outside),
            TIME_HIGH => self.set_time(with_high(self.time(outside), value), outside),
            // This one comes last, and sets it.
            ALARM_LOW => {
                self.alarm = with_low(self.alarm, value);
                self.is_set = true;
                self.look(outside);
            }
            ALARM_HIGH => self.alarm = with_high(self.alarm, value),
            IRQ_ENABLED => self.is_enabled = value & 1 != 0,
            CLEAR_ALARM => self.is_set = false,
            CLEAR_INTERRUPT => self.is_pending = false,
            _ => {}
        }
        Answer::Done(())
    }

    fn interrupt(&self) -> bool {
        self.is_pending && self.is_enabled
    }

    fn moment(&mut self, outside: &mut dyn Outside) {
        if self.is_set {
            self.look(outside);
        }
    }

    fn reset(&mut self) {
        *self = Self::new(self.start, self.source, self.clock);
    }

    fn save(&self) -> Result<DeviceState, Unsaved> {
        let Self { ahead, high, alarm, is_set, is_pending, is_enabled, .. } = *self;
        Ok(DeviceState::Rtc(RtcState { ahead, high, alarm, is_set, is_pending, is_enabled }))
    }

    /// Restores the clock: the time of day is the host's then, as far ahead as before. No value is impossible.
    fn restore(&mut self, state: &DeviceState) -> Result<(), Wild> {
        let DeviceState::Rtc(RtcState { ahead, high, alarm, is_set, is_pending, is_enabled }) = *state else {
            return Err(Wild::OTHER);
        };
        *self = Self { ahead, high, alarm, is_set, is_pending, is_enabled, ..*self };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::interface::tests::World;
    use super::*;

    /// 10 MHz; 2026-11-23 06:28:46 at tick 5.
    const THEN: u64 = 1_795_415_326_000_000_000;

    fn rtc() -> Rtc {
        Rtc::new(0x10_1000, 11, Clock::new(10_000_000, 5, THEN))
    }

    fn load(rtc: &mut Rtc, offset: u64, world: &mut World) -> u64 {
        let Answer::Done(value) = rtc.load(offset, 4, world) else { panic!("{offset:#x} is refused") };
        value
    }

    fn time(rtc: &mut Rtc, world: &mut World) -> u64 {
        let low = load(rtc, TIME_LOW, world);
        world.now += 1 << 40; // whatever happens between
        let time = load(rtc, TIME_HIGH, world) << 32 | low;
        world.now -= 1 << 40;
        time
    }

    fn store(rtc: &mut Rtc, offset: u64, value: u64, world: &mut World) {
        assert_eq!(rtc.store(offset, 4, value, world), Answer::Done(()));
    }

    #[test]
    fn it_shows_the_time_and_can_be_set() {
        let (mut rtc, world) = (rtc(), &mut World { now: 5, ..World::default() });
        assert_eq!(time(&mut rtc, world), THEN);
        world.now += 10_000_000;
        assert_eq!(time(&mut rtc, world), THEN + 1_000_000_000);
        store(&mut rtc, TIME_HIGH, 0x0123_4567, world);
        store(&mut rtc, TIME_LOW, 0x89ab_cdef, world);
        assert_eq!(time(&mut rtc, world), 0x0123_4567_89ab_cdef);
        world.now += 1;
        assert_eq!(time(&mut rtc, world), 0x0123_4567_89ab_cdef + 100);
        rtc.reset();
        assert_eq!(time(&mut rtc, world), THEN + 1_000_000_100, "the host's");
    }

    #[test]
    fn the_alarm_goes_off_once() {
        let (mut rtc, world) = (rtc(), &mut World { now: 5, ..World::default() });
        store(&mut rtc, IRQ_ENABLED, 1, world);
        let due = THEN + 150;
        store(&mut rtc, ALARM_HIGH, due >> 32, world);
        store(&mut rtc, ALARM_LOW, due & 0xffff_ffff, world);
        assert_eq!((load(&mut rtc, ALARM_STATUS, world), rtc.interrupt(), world.at), (1, false, Some(7)));
        world.now = 6;
        rtc.moment(world);
        assert!(!rtc.interrupt(), "too early");
        world.now = 7;
        rtc.moment(world);
        assert_eq!((load(&mut rtc, ALARM_STATUS, world), rtc.interrupt()), (0, true));
        store(&mut rtc, CLEAR_INTERRUPT, 0, world);
        rtc.moment(world);
        assert!(!rtc.interrupt());
        store(&mut rtc, ALARM_LOW, 0, world);
        assert!(rtc.interrupt(), "an alarm of the past");
        store(&mut rtc, IRQ_ENABLED, 0, world);
        assert!(!rtc.interrupt());
    }

    #[test]
    fn only_words_are_answered_and_no_value_panics() {
        let (mut rtc, world) = (rtc(), &mut World { now: u64::MAX, ..World::default() });
        for offset in 0..BYTES {
            for width in [1, 2, 4, 8] {
                let is_word = width == 4 && offset % 4 == 0;
                assert_eq!(rtc.load(offset, width, world) != Answer::Refused, is_word, "{offset:#x}, {width}");
                assert_eq!(rtc.store(offset, width, u64::MAX, world) != Answer::Refused, is_word);
            }
        }
    }
}
