//! A swap device that a test holds in its hand: how many requests it takes at a time, how long they take and which of them fail. It
//! looks at frames and touches them as late as it may, and minds what no device could do.

#![allow(dead_code, reason = "models use a part")]

use crate::fake::Mem;
use hypervisor::pager::{Disk, IoError, NotBegun, Token, Way};
use mmu::gstage::SwapSlot;
use rv::{Hpa, PAGE_BYTES, Pfn, PhysMem};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

struct Request {
    token: u16,
    way: Way,
    slot: u64,
    frame: Pfn<Hpa>,
    /// The number of times that it is still looked for in vain.
    patience: u64,
}

/// The device.
#[derive(Default)]
pub struct State {
    pages: u64,
    /// Requests that it takes at a time.
    pub depth: usize,
    /// The longest time that each of them takes: the number of times that it is asked in vain.
    pub delay: u64,
    /// Nothing is finished.
    pub is_held: bool,
    /// Pages that it does not give back, and that it does not take.
    pub bad_reads: BTreeSet<u64>,
    pub bad_writes: BTreeSet<u64>,
    /// Set if the device refuses everything.
    pub is_dead: bool,
    /// Set if the device gives another page back than the one that it is asked for, now and then: a mutant.
    pub mixes: bool,
    mem: Option<Mem>,
    kept: BTreeMap<u64, Vec<u8>>,
    requests: Vec<Request>,
    dice: u64,
    /// The number of times that each page was begun to be written.
    pub writes: BTreeMap<u64, u64>,
    pub reads: u64,
    /// The most requests that there were at a time.
    pub most: usize,
}

/// A test's handle of the device.
#[derive(Clone)]
pub struct Hand(Arc<Mutex<State>>);

/// The pager's end of the device.
pub struct Fake(Hand);

impl Hand {
    pub fn new(pages: u64) -> Self {
        Self(Arc::new(Mutex::new(State { pages, depth: 4, delay: 2, dice: 1, ..State::default() })))
    }

    pub fn disk(&self) -> Box<dyn Disk> {
        Box::new(Fake(self.clone()))
    }

    pub fn get(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Connects the RAM that it reads and writes.
    pub fn plug_into(&self, mem: &Mem) {
        self.get().mem = Some(mem.clone());
    }

    pub fn in_flight(&self) -> usize {
        self.get().requests.len()
    }

    /// Returns the pages that it is to write.
    pub fn begun(&self) -> Vec<u64> {
        self.get().requests.iter().filter(|request| request.way == Way::Out).map(|request| request.slot).collect()
    }

    /// Returns the frames that it fills.
    pub fn frames(&self) -> Vec<Pfn<Hpa>> {
        self.get().requests.iter().filter(|request| request.way == Way::In).map(|request| request.frame).collect()
    }
}

impl State {
    /// Returns the number of its pages that it fails at.
    pub fn bad(&self) -> u64 {
        self.bad_reads.union(&self.bad_writes).count() as u64
    }

    fn throw(&mut self, below: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % below
    }
}

impl Disk for Fake {
    fn pages(&self) -> u64 {
        self.0.get().pages
    }

    fn begin(&mut self, way: Way, SwapSlot(slot): SwapSlot, frame: Pfn<Hpa>) -> Result<Token, NotBegun> {
        let mut state = self.0.get();
        assert!(slot < state.pages, "page {slot} is not there");
        assert!(!state.requests.iter().any(|other| other.slot == slot), "two requests for page {slot} at a time");
        // If a guest has its page back already, the write's data is discarded, and the frame may be written for another
        // page.
        let is_written = |other: &Request| (way, other.way) == (Way::Out, Way::Out);
        let mut of_frame = state.requests.iter().filter(|other| other.frame == frame);
        assert!(of_frame.all(is_written), "two requests for a frame at a time");
        if state.is_dead {
            return Err(NotBegun::Failed);
        }
        if state.requests.len() >= state.depth {
            return Err(NotBegun::Busy);
        }
        match way {
            Way::Out => *state.writes.entry(slot).or_default() += 1,
            Way::In => {
                assert!(state.kept.contains_key(&slot), "page {slot} was never written");
                state.reads += 1;
            }
        }
        // The lowest that is free: soon used again.
        let token = (0..).find(|token| state.requests.iter().all(|other| other.token != *token)).unwrap();
        let delay = state.delay + 1;
        let patience = state.throw(delay);
        state.requests.push(Request { token, way, slot, frame, patience });
        state.most = state.most.max(state.requests.len());
        Ok(Token(token))
    }

    fn finished(&mut self) -> Option<(Token, Result<(), IoError>)> {
        let mut state = self.0.get();
        if state.is_held {
            return None;
        }
        state.requests.iter_mut().for_each(|request| request.patience = request.patience.saturating_sub(1));
        // In any order.
        let at = state.requests.iter().position(|request| request.patience == 0)?;
        let Request { token, way, slot, frame, .. } = state.requests.swap_remove(at);
        let mut mem = state.mem.clone().expect("plugged in");
        let mut bytes = vec![0; PAGE_BYTES as usize];
        let is_bad = match way {
            Way::In => state.bad_reads.contains(&slot),
            Way::Out => state.bad_writes.contains(&slot),
        };
        match way {
            // A failed write leaves arbitrary data on the device.
            Way::Out => {
                mem.read_bytes(frame.base(), &mut bytes);
                if is_bad {
                    bytes.fill(0xbd);
                }
                state.kept.insert(slot, bytes);
            }
            Way::In if is_bad => mem.write_bytes(frame.base(), &bytes),
            Way::In => {
                let other = slot + u64::from(state.mixes && slot.is_multiple_of(5));
                mem.write_bytes(frame.base(), state.kept.get(&other).unwrap_or(&state.kept[&slot]));
            }
        }
        Some((Token(token), if is_bad { Err(IoError) } else { Ok(()) }))
    }
}
