//! What there is where the lane changes roots: the table of those that the vCPU knows, and what it publishes. And what docs/lane.md
//! says that comes of a write of `satp`.

use super::hart::Event;
use super::image::{BRIEF, LANE, NEVER, WRITE_MASK, WRITES_SATP, X};
use super::insn::Order;
use super::memory::Memory;
use super::scene::{After, Random, Scene};
use rv::context::token;
use rv::{Lane, LaneRoot, LaneRoots};

/// As many as there may be, so that none of these meet.
const PLACES: usize = LaneRoot::MOST;
const TABLE: u64 = 0xf000_0000;
const POSTING: u64 = 0xf100_0000;
/// ASIDs whose places there are, and frames of tables for ASID 0.
const ASIDS: [u64; 4] = [0, 1, 7, 0xffff];
const FRAMES: [u64; 3] = [1, 0x8_0307, 0xf_ffff_ffff];

/// A value that the guest may write.
fn written(random: &mut Random) -> u64 {
    let frame = random.any(&FRAMES) | if random.once_in(8) { random.below(1 << 30) << 8 } else { 0 };
    random.any(&[8, 8, 8, 9, 10, 0, 15]) << 60 | random.any(&ASIDS) << 44 | frame
}

/// Where the pair is in which the root is that goes by this.
fn at(satp: u64) -> u64 {
    let asid = rv::Asid((satp >> 44) as u16);
    TABLE + (LaneRoot::place(asid, satp, PLACES) * LaneRoot::BYTES) as u64
}

/// Adds what the lane finds there. Returns what registers are to hold, if the instruction is to be a write.
pub fn furnish(memory: &mut Memory, random: &mut Random) -> Option<[u64; 32]> {
    let head = memory.word(LANE + Lane::LOG_HEAD_AT as u64);
    let those: [u64; 6] = std::array::from_fn(|_| written(random));
    let registers = std::array::from_fn(|_| if random.once_in(8) { written(random) } else { random.any(&those) });
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
                for (word, value) in [
                    (LaneRoot::KEY_AT, key),
                    (LaneRoot::HEAD_AT, left),
                    (LaneRoot::ROOT_AT, random.next()),
                    (LaneRoot::ASID_AT, random.next()),
                    (LaneRoot::SATP_AT, random.next()),
                ] {
                    memory.set(slot + word as u64, value);
                }
            }
        }
    }
    memory.set(POSTING, random.next());
    memory.set(POSTING + LaneRoots::POSTED_AT as u64, if random.once_in(6) { 1 << random.below(64) } else { 0 });
    for (at, value) in [
        (Lane::WRITE_MASK_AT, WRITE_MASK),
        (Lane::WRITE_MATCHES_AT, if random.once_in(8) { NEVER } else { WRITES_SATP }),
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
    /// Whether the lane is to take the trap for a write of `satp`: then what is written.
    pub fn written(&self) -> Option<u64> {
        let way = self.block.way;
        let csr = |number| self.hart.csrs[&number];
        let insn = csr(way.tval);
        let is_write = csr(way.cause) == way.fence
            && csr(way.status) & way.supervisor != 0
            && insn & WRITE_MASK == self.lane(Lane::WRITE_MATCHES_AT)
            && insn >> 15 & 31 != 0;
        is_write.then(|| self.hart.x[(insn >> 15 & 31) as usize])
    }

    /// The root of the pair that the write is of, if there is one: the first.
    fn root(&self, written: u64) -> Option<u64> {
        let pair = [at(written), at(written) + LaneRoot::BYTES as u64];
        pair.into_iter().find(|slot| self.hart.memory.word(slot + LaneRoot::KEY_AT as u64) == written)
    }

    /// Whether the root is the second of its pair.
    pub fn is_second(&self, written: u64) -> bool {
        self.root(written) != Some(at(written))
    }

    /// What a write of `satp` comes to.
    pub fn after_write(&self, written: u64) -> After {
        let way = self.block.way;
        let head = self.lane(Lane::LOG_HEAD_AT);
        let Some(slot) = self.root(written) else { return self.left("an unknown root") };
        let word = |at: usize| self.hart.memory.word(slot + at as u64);
        let mut after = self.left("a root that is out of date");
        after.hart.memory.set(X + 8 * 28, self.hart.x[28]);
        if word(LaneRoot::HEAD_AT) != head {
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
        (28..32).for_each(|n| hart.memory.set(X + 8 * n, self.hart.x[n as usize]));
        hart.csrs.insert(way.satp, word(LaneRoot::SATP_AT));
        let epc = hart.csrs.get_mut(&way.epc).expect("it is there");
        *epc = epc.wrapping_add(4);
        hart.events = events;
        hart.events.extend([Event::Store { at: left, value: head }, Event::Return(way.xret)]);
        After { what: "another root", hart, is_left: false }
    }
}
