//! The further data of the lane where it synchronises entries (mode `steered`): the gate and the log, the guest's
//! tables, and the words of guest memory. And the result by docs/lane.md.

use super::hart::{Event, Hart};
use super::image::{LANE, X};
use super::insn::Order;
use super::memory::Memory;
use super::scene::{After, INDICES, Place, Random, Scene};
use lane::{FenceLog, Lane, LaneSync};
use mmu::shadow::{LEAVES, whole_chunk};
use mmu::table::{State, Writer, is_poison};
use rv::{Caps, Entry, Gpa, Level, Pfn, Pte, PteFlags};

/// The guest's tables of level 0.
pub const GUESTS: u64 = 0xa000_0000;
const LEAVES_AT: u64 = 0xb000_0000;
/// Words that never change, and where they are.
pub const CONSTANTS: (u64, &[u64]) = (LEAVES_AT, &LEAVES);
const CHUNKS: u64 = 0xc000_0000;
const PAGES: u64 = 0xd000_0000;
const GATE: u64 = 0xe000_0000;
/// The value in roots that are at rest.
pub const EPOCH: u64 = GATE + LaneSync::EPOCH_AT;
/// Bytes of a line of the log.
pub const LINE: u64 = LaneSync::LINE_BYTES;

/// The lane's knowledge of 2 MiB of guest memory.
#[derive(Clone, Copy)]
pub enum Chunk {
    /// Nothing.
    Unknown,
    /// The 2 MiB are in one piece there, with all rights.
    Whole(Pfn<rv::Hpa>),
    /// A table of the G-stage there has their pages.
    Pages(u64),
}

impl Chunk {
    fn word(self, number: u64) -> u64 {
        match self {
            Chunk::Unknown => 0,
            Chunk::Whole(there) => whole_chunk(Pfn::new(number * Level::MEGA.pages()), there),
            Chunk::Pages(table) => table,
        }
    }
}

/// Numbers of frames that there may be: no memory is where poison leads.
const FRAMES: u64 = (1 << 43) - 1;

/// The right value of the entry.
enum Made {
    Entry(&'static str, Pte),
    /// The lane cannot know: it passes the fence on.
    Unknown(&'static str),
}

/// The address of a root's word that says whether it is at rest.
pub fn rest_at(root: u64) -> u64 {
    root.wrapping_add_signed(LaneSync::REST_AT)
}

/// Adds whether the roots with these tables are at rest. Returns what those say that are.
pub fn furnish_rest(memory: &mut Memory, roots: impl Iterator<Item = u64>, random: &mut Random) -> u64 {
    let epoch = random.next();
    memory.set(EPOCH, epoch);
    roots.for_each(|root| memory.set(rest_at(root), if random.once_in(4) { random.next() } else { epoch }));
    epoch
}

/// Adds what the lane finds there. `tables`: those of level 0.
pub fn furnish(memory: &mut Memory, tables: impl Iterator<Item = u64>, random: &mut Random) -> Vec<Chunk> {
    let count = 2 + random.below(5);
    let chunk = |number: u64, random: &mut Random| match random.below(8) {
        0 => Chunk::Unknown,
        1..5 => Chunk::Whole(Pfn::new((random.next() & FRAMES) >> 9 << 9)),
        _ => Chunk::Pages(PAGES + number * 4096),
    };
    let chunks: Vec<Chunk> = (0..count).map(|number| chunk(number, random)).collect();
    for (number, chunk) in (0..).zip(&chunks) {
        memory.set(CHUNKS + 8 * number, chunk.word(number));
        for index in INDICES {
            memory.set(PAGES + number * 4096 + 8 * index, page(random));
        }
    }
    for (number, table) in (0..).zip(tables) {
        let guests = GUESTS + 4096 * number;
        memory.set(table.wrapping_add_signed(LaneSync::GUEST_AT), guests);
        INDICES.into_iter().for_each(|index| memory.set(guests + 8 * index, guests_entry(count, random)));
    }
    // The last position is that of a full log.
    let lines = 4096 / LINE;
    let position = match random.below(8) {
        0 => 0,
        1 => GATE + LINE * lines,
        _ => GATE + LINE * (1 + random.below(lines - 1)),
    };
    memory.set(GATE, position);
    if position != 0 && position != GATE + LINE * lines {
        (0..LINE / 8).for_each(|word| memory.set(position + 8 * word, random.next()));
    }
    for (at, value) in
        [(Lane::GATE_AT, GATE), (Lane::LEAVES_AT, LEAVES_AT), (Lane::CHUNKS_AT, CHUNKS), (Lane::COUNT_AT, count)]
    {
        memory.set(LANE + at as u64, value);
    }
    chunks
}

/// An entry of a table of pages of the G-stage.
fn page(random: &mut Random) -> u64 {
    let flags = match random.below(8) {
        0 => random.next() & 0x3ff,
        1 | 2 => random.any(&[0xd1, 0xd3, 0xd7, 0xd9, 0xdb, 0xde, 0]),
        _ => random.any(&[0xdf, 0xcf, 0x1df, 0xff]),
    };
    (random.next() & FRAMES) << 10 | flags
}

/// An entry of a guest's table.
fn guests_entry(chunks: u64, random: &mut Random) -> u64 {
    let flags = if random.once_in(2) { random.any(&[0xcf, 0xdf, 0x5b, 0xd3, 0xe7]) } else { random.next() & 0x3ff };
    let chunk = if random.once_in(8) { chunks + random.next() % (1 << random.below(35)) } else { random.below(chunks) };
    let reserved = if random.once_in(16) { random.next() << 54 } else { 0 };
    reserved | (chunk << 9 | random.any(&INDICES)) << 10 & ((1 << 54) - 1) | flags
}

impl Scene {
    /// The log's next line by the gate; nothing, if it is closed or the log is full.
    pub fn line(&self) -> Option<u64> {
        self.hart.memory.get(GATE).filter(|position| !position.is_multiple_of(4096))
    }

    /// The guest's entry behind the one of that address in a table of level 0.
    pub fn guests(&self, table: u64, at: u64) -> u64 {
        self.hart.memory.word(table.wrapping_add_signed(LaneSync::GUEST_AT)) + at % 4096
    }

    /// Repeats the trap for each low 10 bits that the guest's entry can have, and each chunk of guest memory that it
    /// can be about. `None` if the trap comes to no entry.
    pub fn with_each_entry(mut self) -> Option<impl Iterator<Item = Self>> {
        let (address, _) = self.fence().filter(|_| self.line().is_some())?;
        let Place::Entry(table, at) = self.place(address) else { return None };
        let guests = self.guests(table, at);
        let pages = |number: u64| Chunk::Pages(PAGES + 4096 * number);
        self.chunks = vec![Chunk::Unknown, Chunk::Whole(Pfn::new(0x5_4321_0000)), pages(2), pages(3), pages(4)];
        for (number, chunk) in (0..).zip(&self.chunks) {
            self.hart.memory.set(CHUNKS + 8 * number, chunk.word(number));
        }
        // A page with all rights, one without X, and one that is not there.
        for (number, page) in [(2, 0x123_4567 << 10 | 0xdf), (3, 0x123_4567 << 10 | 0xd7), (4, 0)] {
            self.hart.memory.set(PAGES + 4096 * number + 8 * 5, page);
        }
        let count = self.chunks.len() as u64;
        self.hart.memory.set(LANE + Lane::COUNT_AT as u64, count);
        // One chunk more, which is no RAM.
        let entries = (0..=count).flat_map(|chunk| (0..1 << 10).map(move |low| (chunk << 9 | 5) << 10 | low));
        Some(entries.map(move |pte| {
            self.hart.memory.set(guests, pte);
            self.clone()
        }))
    }

    /// The result of a fence.
    pub fn after_sync(&self, address: u64, by_asid: bool) -> After {
        let position = self.hart.memory.word(GATE);
        let Some(line) = self.line() else {
            return self.left_sync(if position == 0 { "the gate is closed" } else { "the log is full" });
        };
        let (what, words, new) = match self.place(address) {
            Place::Entry(table, at) => {
                let pte = self.hart.memory.word(self.guests(table, at));
                match self.made(pte) {
                    Made::Entry(what, new) => {
                        assert!(State::of(new).may_be_made_by(Writer::LaneAlone, Level::PAGE));
                        (what, [Some(at + Lane::POINTER_FLAGS), Some(pte)], Some((at, new.0)))
                    }
                    Made::Unknown(what) => return self.left_sync(what),
                }
            }
            Place::Other(pte, _) if is_poison(Pte(pte)) => ("noted", [Some(address | 1), None], None),
            Place::Other(..) => return self.left_sync("no way down"),
        };
        let mut hart = self.hart.clone();
        self.takes_gate(&mut hart);
        let words = (line..).step_by(8).zip(words).filter_map(|(at, word)| Some((at, word?)));
        for (at, value) in words.chain(new) {
            hart.memory.set(at, value);
            hart.events.push(Event::Store { at, value });
        }
        self.opens_gate(&mut hart, line + LINE);
        self.taken(what, hart, (address, by_asid))
    }

    /// The result of a fence of all addresses and all ASIDs.
    pub fn after_wide(&self) -> After {
        let looks = Event::Fence(0b11, 0b10);
        let left = |what, events: &[Event]| {
            let mut after = self.left(what);
            after.hart.events = [&[looks], events].concat();
            after
        };
        let root = self.lane(Lane::ROOT_AT) - Lane::POINTER_FLAGS;
        let epoch = self.hart.memory.word(EPOCH);
        if self.hart.memory.word(rest_at(root)) != epoch {
            return left("not at rest", &[]);
        }
        let takes = Event::Swap { at: GATE, value: 0, order: Order { acquires: true, releases: true } };
        let opens = |value| Event::Swap { at: GATE, value, order: Order { acquires: false, releases: true } };
        let position = self.hart.memory.word(GATE);
        let Some(line) = self.line() else {
            let what = if position == 0 { "the gate is closed" } else { "the log is full" };
            return if position == 0 { left(what, &[takes]) } else { left(what, &[takes, opens(position)]) };
        };
        let mut hart = self.hart.clone();
        let count = |at: usize, more: u64| (LANE + at as u64, self.lane(at).wrapping_add(more));
        for (at, value) in [
            (line, LaneSync::WIDE),
            (GATE, line + LINE),
            count(Lane::LOG_HEAD_AT, <FenceLog>::EVERYTHING),
            count(Lane::WIDE_AT, 1),
        ] {
            hart.memory.set(at, value);
        }
        hart.events = vec![
            looks,
            takes,
            Event::Store { at: line, value: LaneSync::WIDE },
            opens(line + LINE),
            Event::ForgetAll { is_virtual: self.block.way.is_virtual },
        ];
        self.goes_on("all, at rest", hart)
    }

    fn takes_gate(&self, hart: &mut Hart) {
        let order = Order { acquires: true, releases: true };
        hart.events.push(Event::Swap { at: GATE, value: 0, order });
        for n in [6, 7, 28] {
            hart.memory.set(X + 8 * n, self.hart.x[n as usize]);
        }
    }

    fn opens_gate(&self, hart: &mut Hart, value: u64) {
        hart.memory.set(GATE, value);
        let order = Order { acquires: false, releases: true };
        hart.events.push(Event::Swap { at: GATE, value, order });
    }

    /// The fence is passed on: the gate is as it was.
    fn left_sync(&self, what: &'static str) -> After {
        let mut after = self.left(what);
        self.takes_gate(&mut after.hart);
        let position = self.hart.memory.word(GATE);
        if position != 0 {
            self.opens_gate(&mut after.hart, position);
        }
        after
    }

    /// The shadow entry that steering makes of a guest's entry (`mmu::shadow`), as far as the lane knows: a leaf that
    /// allows what the guest's does, or nothing, where that faults for every access.
    fn made(&self, pte: u64) -> Made {
        let Entry::Leaf(leaf) = Pte(pte & 0x3ff).decode::<Gpa>(Level::PAGE, Caps::default()) else {
            return Made::Entry("emptied", Pte::INVALID);
        };
        if !leaf.flags.contains(PteFlags::A) {
            return Made::Entry("emptied", Pte::INVALID);
        }
        let mut flags = leaf.flags & (PteFlags::R | PteFlags::X | PteFlags::U) | PteFlags::V | PteFlags::A;
        // It never sets D, so what is not dirty is not for stores.
        if leaf.flags.contains(PteFlags::W | PteFlags::D) {
            flags |= PteFlags::W | PteFlags::D;
        }
        // Bits above the frame's number make it one that is nowhere.
        let gfn = pte >> 10;
        let (what, frame) = match self.chunks.get((gfn / 512) as usize) {
            None => return Made::Unknown("no RAM"),
            Some(Chunk::Unknown) => return Made::Unknown("unknown memory"),
            Some(Chunk::Whole(there)) => ("a whole leaf", there.add(gfn % 512)),
            Some(Chunk::Pages(table)) => {
                let page = Pte(self.hart.memory.word(table + 8 * (gfn % 512)));
                if !page.flags().contains(PteFlags::V | PteFlags::R | PteFlags::W | PteFlags::X) {
                    return Made::Unknown("a page with fewer rights");
                }
                ("a leaf among others", page.pfn())
            }
        };
        Made::Entry(what, Pte(frame.raw() << 10 | flags.bits()))
    }
}
