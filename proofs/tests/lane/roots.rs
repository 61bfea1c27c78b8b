//! The data by which the lane changes roots: the table of those that the vCPU knows, and what it publishes. And the
//! result of a write of `satp` by docs/lane.md.

use super::hart::Event;
use super::image::{BRIEF, LANE, NEVER, READ_MASK, READS_SATP, WRITE_MASK, WRITES_SATP, X};
use super::insn::Order;
use super::memory::Memory;
use super::scene::{After, Random, Scene};
use super::steered::{self, rest_at};
use lane::context::token;
use lane::{Lane, LaneRoot, LaneRoots};

/// The most roots that there may be, so that none of these meet.
const PLACES: usize = LaneRoot::MOST;
const TABLE: u64 = 0xf000_0000;
const POSTING: u64 = 0xf100_0000;
/// The end of the roots' headers, and the bytes of one.
const HEADERS: u64 = 0xf200_0000;
const HEADER: u64 = 64;
/// ASIDs whose places there are, and frames of tables for ASID 0.
const ASIDS: [u64; 4] = [0, 1, 7, 0xffff];
const FRAMES: [u64; 3] = [1, 0x8_0307, 0xf_ffff_ffff];

/// A value that the guest may write.
fn written(random: &mut Random) -> u64 {
    let frame = random.any(&FRAMES) | if random.once_in(8) { random.below(1 << 30) << 8 } else { 0 };
    random.any(&[8, 8, 8, 9, 10, 0, 15]) << 60 | random.any(&ASIDS) << 44 | frame
}

/// The address of the pair for the root of this `satp`.
fn at(satp: u64) -> u64 {
    let asid = rv::Asid((satp >> 44) as u16);
    TABLE + (LaneRoot::place(asid, satp, PLACES) * LaneRoot::BYTES) as u64
}

/// Adds what the lane finds there. `epoch`: what roots say that are at rest, in `steered`. Returns what registers are to hold, if the instruction is to be a write.
pub fn furnish(memory: &mut Memory, epoch: Option<u64>, random: &mut Random) -> Option<[u64; 32]> {
    let head = memory.word(LANE + Lane::LOG_HEAD_AT as u64);
    let those: [u64; 6] = std::array::from_fn(|_| written(random));
    let registers = std::array::from_fn(|_| if random.once_in(8) { written(random) } else { random.any(&those) });
    let mut roots = 0;
    for asid in ASIDS {
        for frame in FRAMES {
            let pair = at(asid << 44 | frame);
            let mut wanted = those.into_iter().filter(|satp| at(*satp) == pair);
            for slot in [pair, pair + LaneRoot::BYTES as u64] {
                // One of those that are there, or none.
                let key = if random.once_in(6) { random.next() } else { wanted.next().unwrap_or(0) };
                let left = match random.below(6) {
                    0 => LaneRoot::NEVER,
                    1 => head - token::STEP,
                    _ => head,
                };
                let root = HEADERS + HEADER * roots;
                roots += 1;
                let says = epoch.filter(|_| random.once_in(2)).unwrap_or_else(|| random.next());
                memory.set(rest_at(root), says);
                for (word, value) in [
                    (LaneRoot::KEY_AT, key),
                    (LaneRoot::HEAD_AT, left),
                    (LaneRoot::ROOT_AT, root + Lane::POINTER_FLAGS),
                    (LaneRoot::ASID_AT, random.next()),
                    (LaneRoot::SATP_AT, random.next()),
                ] {
                    memory.set(slot + word as u64, value);
                }
            }
        }
    }
    if epoch.is_none() {
        memory.set(LANE + Lane::GATE_AT as u64, 0);
    }
    memory.set(POSTING, random.next());
    memory.set(POSTING + LaneRoots::POSTED_AT as u64, if random.once_in(6) { 1 << random.below(64) } else { 0 });
    for (at, value) in [
        (Lane::WRITE_MASK_AT, WRITE_MASK),
        (Lane::WRITE_MATCHES_AT, if random.once_in(8) { NEVER } else { WRITES_SATP }),
        (Lane::READ_MASK_AT, READ_MASK),
        (Lane::READ_MATCHES_AT, if random.once_in(8) { NEVER } else { READS_SATP }),
        (Lane::ROOTS_AT, TABLE),
        (Lane::LAST_PAIR_AT, (PLACES / LaneRoot::PAIR) as u64 - 1),
        (Lane::PRESENT_AT, at(registers[0])),
        (Lane::POSTING_AT, POSTING),
    ] {
        memory.set(LANE + at as u64, value);
    }
    random.once_in(3).then_some(registers)
}

impl Scene {
    /// The value that is written, if the lane is to take the trap for a write of `satp`.
    pub fn written(&self) -> Option<u64> {
        let insn = self.insn()?;
        let is_write = insn & WRITE_MASK == self.lane(Lane::WRITE_MATCHES_AT) && insn >> 15 & 31 != 0;
        is_write.then(|| self.hart.x[(insn >> 15 & 31) as usize])
    }

    /// The root of the pair that the write is of, if there is one: the first.
    fn root(&self, written: u64) -> Option<u64> {
        let pair = [at(written), at(written) + LaneRoot::BYTES as u64];
        pair.into_iter().find(|slot| self.hart.memory.word(slot + LaneRoot::KEY_AT as u64) == written)
    }

    /// Returns whether the root is the second of its pair.
    pub fn is_second(&self, written: u64) -> bool {
        self.root(written) != Some(at(written))
    }

    /// The result of a write of `satp`.
    pub fn after_write(&self, written: u64) -> After {
        let way = self.block.way;
        let head = self.lane(Lane::LOG_HEAD_AT);
        let Some(slot) = self.root(written) else { return self.left("an unknown root") };
        let word = |at: usize| self.hart.memory.word(slot + at as u64);
        let mut after = self.left("a root that is out of date");
        after.hart.memory.set(X + 8 * 28, self.hart.x[28]);
        let is_up_to_date = word(LaneRoot::HEAD_AT) == head;
        if !is_up_to_date && self.block.syncs {
            after.hart.events.push(Event::Fence(0b10, 0b11));
        }
        if !is_up_to_date && !self.is_at_rest(word(LaneRoot::ROOT_AT)) {
            return after;
        }
        let order = Order { acquires: true, releases: false };
        after.hart.events.push(Event::Swap { at: POSTING, value: written, order });
        if self.hart.memory.word(POSTING + LaneRoots::POSTED_AT as u64) != 0 {
            let value = self.hart.memory.word(POSTING);
            after.hart.events.push(Event::Store { at: POSTING, value });
            return After { what: "something is posted", ..after };
        }
        let (mut hart, events) = (self.hart.clone(), after.hart.events);
        let left = self.lane(Lane::PRESENT_AT) + LaneRoot::HEAD_AT as u64;
        for (at, value) in [
            (POSTING, written),
            (left, head),
            (LANE + Lane::PRESENT_AT as u64, slot),
            (LANE + Lane::ROOT_AT as u64, word(LaneRoot::ROOT_AT)),
            (LANE + Lane::ASID_AT as u64, word(LaneRoot::ASID_AT)),
            (LANE + Lane::CHANGES_AT as u64, self.lane(Lane::CHANGES_AT).wrapping_add(1)),
            (BRIEF, 0),
        ] {
            hart.memory.set(at, value);
        }
        hart.memory.set(X + 8 * 28, self.hart.x[28]);
        hart.csrs.insert(way.satp, word(LaneRoot::SATP_AT));
        hart.events = events;
        hart.events.push(Event::Store { at: left, value: head });
        self.goes_on(if is_up_to_date { "another root" } else { "another root, at rest" }, hart)
    }

    /// Returns whether a root, as the lane has it, is at rest.
    fn is_at_rest(&self, root: u64) -> bool {
        let says = self.hart.memory.word(rest_at(root - Lane::POINTER_FLAGS));
        self.block.syncs && says == self.hart.memory.word(steered::EPOCH)
    }

    /// The destination register, if the lane is to take the trap for a read of `satp`.
    pub fn read(&self) -> Option<u64> {
        let insn = self.insn()?;
        (insn & READ_MASK == self.lane(Lane::READ_MATCHES_AT)).then_some(insn >> 7 & 31)
    }

    /// The result of a read of `satp`.
    pub fn after_read(&self, register: u64) -> After {
        let mut after = self.goes_on("a read", self.hart.clone());
        let hart = &mut after.hart;
        let value = self.hart.memory.word(POSTING);
        if register != 0 {
            hart.x[register as usize] = value;
        }
        // Of these the lane has the guest's in the context.
        if register >= 29 {
            hart.memory.set(X + 8 * register, value);
        }
        let reads = self.lane(Lane::READS_AT).wrapping_add(1);
        hart.memory.set(LANE + Lane::READS_AT as u64, reads);
        after
    }
}
