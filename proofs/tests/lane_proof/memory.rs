//! The places that the lane may load and store, besides the words of the context. Each access is proved to be to one of
//! them, and the assumptions about their contents are the engine's promises (docs/lane.md).

use super::image::{LANE, MARK, VALID};
use super::insn::{How, Order, Test};
use super::prover::{Did, Proved, Prover, State};
use super::solver::{Claim, Value};
use lane::{FenceLog, Lane, LaneSync};
use mmu::table::poison_pointer;

pub const RING: u64 = LANE + Lane::LOG_RING_AT as u64;
pub const RING_BYTES: u64 = 8 * <FenceLog>::LENGTH;
/// The frame of the gate and the log.
const LOG_BYTES: u64 = 4096;
/// Beyond all addresses.
pub const ADDRESSES: u64 = 1 << 56;
/// Bits of an entry above the number of its frame, and the uppermost bit of that, which only poison has.
const POISON_SHIFT: u64 = 53;

/// The words that are loaded once on a path, where entries are synchronised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// The address of the guest's table, in the header of the table of level 0.
    Header,
    /// The guest's entry.
    Guests,
    /// The word of `LEAVES` for it.
    Leaf,
    /// The word for its 2 MiB of guest memory.
    Chunk,
    /// The entry of the G-stage for its page, in the table that this word names.
    Page,
}

const PLACES: [Place; 5] = [Place::Header, Place::Guests, Place::Leaf, Place::Chunk, Place::Page];

/// The path's knowledge of the gate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Gate {
    Unknown,
    /// This was there. If it is not 0, the hart holds the gate.
    Taken(Value),
    /// This was there, and that is from now on.
    Opened(Value, Value),
}

impl Prover<'_> {
    /// Of the inputs of the lane.
    pub fn assume_inputs(&mut self) {
        let root = self.lane(Lane::ROOT_AT);
        self.assume_bits(root, 0xfff, Lane::POINTER_FLAGS);
        self.assume_below(root, ADDRESSES);
        if !self.block.syncs {
            // The gate's address says that there is none.
            self.promise_no_gate();
        }
        if self.block.syncs {
            for (at, alignment) in [(Lane::GATE_AT, LOG_BYTES), (Lane::LEAVES_AT, 8), (Lane::CHUNKS_AT, 8)] {
                let address = self.lane(at);
                self.assume_bits(address, alignment - 1, 0);
                self.assume_below(address, ADDRESSES);
            }
        }
    }

    fn promise_no_gate(&mut self) {
        let is_none = self.solver.is(self.lane(Lane::GATE_AT), Value::Known(0));
        self.solver.assume(is_none);
    }

    pub fn assume_below(&mut self, value: Value, bound: u64) {
        let claim = self.solver.holds(Test::Below, value, Value::Known(bound));
        self.solver.assume(claim);
    }

    /// Assumes one claim where another holds.
    fn assume_where(&mut self, holds: Claim, claim: Claim) {
        let claim = self.solver.some([self.solver.not(holds), claim]);
        self.solver.assume(claim);
    }

    fn has_bits(&mut self, value: Value, mask: u64, bits: u64) -> Claim {
        let masked = self.solver.with(How::And, value, mask);
        self.solver.is(masked, Value::Known(bits))
    }

    /// A loaded value, which may be anything.
    pub fn anything(&mut self, state: &mut State) -> Value {
        state.loads += 1;
        self.solver.any(&format!("load_{}", state.loads))
    }

    /// An aligned access of the walk's, with the gate held where there is one.
    fn may_access(&mut self, state: &State, at: Value) -> Proved {
        let is_aligned = self.has_bits(at, 7, 0);
        self.must(is_aligned, "an access that is not aligned")?;
        match state.gate {
            _ if !self.block.syncs => Ok(()),
            Gate::Taken(position) => {
                let is_open = self.solver.is(position, Value::Known(0));
                self.must(self.solver.not(is_open), "an access without the gate")
            }
            Gate::Unknown | Gate::Opened(..) => Err("an access without the gate".into()),
        }
    }

    /// A load.
    pub fn load(&mut self, state: &mut State, from: Value) -> Result<Value, String> {
        if let Value::Known(at) = from {
            return state.context.at(at).copied().ok_or_else(|| format!("a load from {at:#x}"));
        }
        if self.before.is_wide {
            return self.load_for_rest(state, self.lane(Lane::ROOT_AT), from);
        }
        if self.before.fence.is_none() {
            return self.load_for_roots(state, from);
        }
        self.may_access(state, from)?;
        if let Some(offset) = self.offset_in_line(state, from) {
            // What the hart has put there itself: no other hart accesses its log.
            let stored = state.did.iter().rev().find_map(|did| match did {
                Did::Line { offset: at, value } if *at == offset => Some(*value),
                _ => None,
            });
            return stored.ok_or_else(|| "a load from the log".into());
        }
        for place in PLACES {
            if !state.seen.contains_key(&place) && self.is_at(state, place, from) {
                let value = self.anything(state);
                state.seen.insert(place, value);
                self.promise(place, value);
                return Ok(value);
            }
        }
        self.must_be_entry(state, from)?;
        let entry = self.anything(state);
        if state.level > 0 {
            self.promise_pointer(entry);
            state.pointer = entry;
            state.level -= 1;
        }
        Ok(entry)
    }

    /// A load of what a root says, or of what those say that are at rest. `root`: as the lane has it.
    pub fn load_for_rest(&mut self, state: &mut State, root: Value, from: Value) -> Result<Value, String> {
        let says =
            self.solver.with(How::Add, root, LaneSync::REST_AT.wrapping_sub_unsigned(Lane::POINTER_FLAGS) as u64);
        let those = self.solver.with(How::Add, self.lane(Lane::GATE_AT), LaneSync::EPOCH_AT);
        if self.before.is_wide && state.did != [Did::Fence(0b11, 0b10)] {
            return Err("it looks before what the guest has seen".into());
        }
        for (n, at) in [says, those].into_iter().enumerate() {
            let is_at = self.solver.is(from, at);
            if self.solver.must_be(is_at) && state.rest[n].is_none() {
                let value = self.anything(state);
                state.rest[n] = Some(value);
                return Ok(value);
            }
        }
        Err("a load from something else".into())
    }

    /// The table that the walk has come to.
    fn table(&mut self, state: &State) -> Value {
        let frame = self.solver.with(How::Right, state.pointer, 10);
        self.solver.with(How::Left, frame, 12)
    }

    /// The fenced address's index at a level, times eight, and a base.
    fn indexed(&mut self, level: u64, base: Value) -> Result<Value, String> {
        let Some((address, _)) = self.before.fence else { return Err("no fence".into()) };
        let index = self.solver.with(How::Right, address, 12 + 9 * level);
        let index = self.solver.with(How::And, index, 511);
        Ok(self.solver.compute(How::AddEighth, index, base))
    }

    /// Proves that the address is that of the fenced address's entry in the table that marked pointers have led to.
    fn must_be_entry(&mut self, state: &State, at: Value) -> Proved {
        let table = self.table(state);
        let expected = self.indexed(state.level, table)?;
        self.same(at, expected, "an access to something else")?;
        if state.level + 1 < self.block.levels {
            let is_marked = self.has_bits(state.pointer, MARK, MARK);
            self.must(is_marked, "an access by a pointer without mark")?;
        }
        Ok(())
    }

    /// An entry above level 0: with the mark, it leads to a shadow page one level lower. In `steered`, what else has one of the
    /// bits above is poison.
    fn promise_pointer(&mut self, entry: Value) {
        let is_marked = self.has_bits(entry, MARK, MARK);
        let is_pointer = self.has_bits(entry, 0x3ff, MARK | VALID);
        let is_below = self.solver.holds(Test::Below, entry, Value::Known(1 << POISON_SHIFT));
        let is_pointer = self.solver.all([is_pointer, is_below]);
        self.assume_where(is_marked, is_pointer);
        if self.block.syncs {
            let is_poison = self.solver.is(entry, Value::Known(poison_pointer().0));
            let is_either = self.solver.some([is_below, is_poison]);
            self.solver.assume(is_either);
        }
    }

    /// Returns whether the address is that of a place, if the place is known by now.
    fn is_at(&mut self, state: &State, place: Place, at: Value) -> bool {
        let Some(expected) = self.address(state, place) else { return false };
        let is_at = self.solver.is(at, expected);
        self.solver.must_be(is_at)
    }

    fn address(&mut self, state: &State, place: Place) -> Option<Value> {
        let seen = |place| state.seen.get(&place).copied();
        let guests = seen(Place::Guests);
        match place {
            Place::Header => {
                let is_marked = self.has_bits(state.pointer, MARK, MARK);
                let is_there = self.block.syncs && state.level == 0 && self.solver.must_be(is_marked);
                let table = self.table(state);
                is_there.then(|| self.solver.with(How::Add, table, LaneSync::GUEST_AT as u64))
            }
            Place::Guests => {
                let table = seen(Place::Header)?;
                self.indexed(0, table).ok()
            }
            Place::Leaf => {
                let index = self.solver.with(How::And, guests?, 0x3ff);
                Some(self.solver.compute(How::AddEighth, index, self.lane(Lane::LEAVES_AT)))
            }
            Place::Chunk => {
                let (number, count) = (self.solver.with(How::Right, guests?, 19), self.lane(Lane::COUNT_AT));
                let is_there = self.solver.holds(Test::Below, number, count);
                let is_there = self.solver.must_be(is_there);
                is_there.then(|| self.solver.compute(How::AddEighth, number, self.lane(Lane::CHUNKS_AT)))
            }
            Place::Page => {
                let table = seen(Place::Chunk)?;
                let is_table = self.is_table(table);
                let number = self.solver.with(How::Right, guests?, 10);
                let number = self.solver.with(How::And, number, 511);
                self.solver.must_be(is_table).then(|| self.solver.compute(How::AddEighth, number, table))
            }
        }
    }

    /// Returns whether the word of a chunk names a table of pages.
    fn is_table(&mut self, word: Value) -> Claim {
        self.solver.holds(Test::Less, Value::Known(0), word)
    }

    /// Assumes the promise about a place's value.
    fn promise(&mut self, place: Place, value: Value) {
        match place {
            Place::Header => {
                self.assume_bits(value, 0xfff, 0);
                self.assume_below(value, ADDRESSES);
            }
            Place::Chunk => {
                let is_table = self.is_table(value);
                let is_aligned = self.has_bits(value, 0xfff, 0);
                let is_below = self.solver.holds(Test::Below, value, Value::Known(ADDRESSES));
                let is_address = self.solver.all([is_aligned, is_below]);
                self.assume_where(is_table, is_address);
            }
            Place::Guests | Place::Leaf | Place::Page => {}
        }
    }

    /// A store: to a word of the context, to the ring, to the line of the log, or to the entry of level 0.
    pub fn store(&mut self, state: &mut State, at: Value, value: Value) -> Proved {
        if let Value::Known(at) = at {
            let word = state.context.at(at).ok_or_else(|| format!("a store to {at:#x}"))?;
            *word = value;
            return Ok(());
        }
        if self.before.fence.is_none() && !self.before.is_wide {
            return self.store_for_roots(state, at, value);
        }
        let slot = self.solver.with(How::Add, at, RING.wrapping_neg());
        let is_aligned = self.has_bits(at, 7, 0);
        let is_slot = self.solver.holds(Test::Below, slot, Value::Known(RING_BYTES));
        if self.solver.must_be(is_slot) && self.solver.must_be(is_aligned) {
            state.did.push(Did::Ring { at, value });
            return Ok(());
        }
        self.may_access(state, at)?;
        if let Some(offset) = self.offset_in_line(state, at) {
            let offset_in_frame = self.behind_gate(at);
            let is_in_frame = self.solver.holds(Test::Below, offset_in_frame, Value::Known(LOG_BYTES));
            self.must(is_in_frame, "a store beyond the log")?;
            state.did.push(Did::Line { offset, value });
            return Ok(());
        }
        if state.level != 0 || self.before.is_wide {
            return Err("a store to a table that is not of level 0".into());
        }
        self.must_be_entry(state, at)?;
        state.did.push(Did::Entry { at, value });
        Ok(())
    }

    /// The number of bytes from the gate to an address.
    fn behind_gate(&mut self, at: Value) -> Value {
        let minus = self.solver.negative(self.lane(Lane::GATE_AT));
        self.solver.compute(How::Add, at, minus)
    }

    /// The offset of an address in the line that the gate names, if it must be in it.
    fn offset_in_line(&mut self, state: &State, at: Value) -> Option<u64> {
        let Gate::Taken(position) = state.gate else { return None };
        (0..LaneSync::LINE_BYTES).step_by(8).find(|offset| {
            let word = self.solver.with(How::Add, position, *offset);
            let is_word = self.solver.is(at, word);
            self.solver.must_be(is_word)
        })
    }

    /// An exchange: takes the gate, or opens it.
    pub fn swap(&mut self, state: &mut State, at: Value, value: Value, order: Order) -> Result<Value, String> {
        if self.before.fence.is_none() && !self.before.is_wide {
            return self.swap_for_roots(state, at, value, order);
        }
        if !self.block.syncs {
            return Err("an exchange where there is no gate".into());
        }
        self.same(at, self.lane(Lane::GATE_AT), "an exchange of something else")?;
        match state.gate {
            Gate::Unknown => {
                if value != Value::Known(0) || !order.acquires || !order.releases {
                    return Err("it does not take the gate".into());
                }
                let position = self.anything(state);
                self.promise_position(position);
                state.gate = Gate::Taken(position);
                Ok(position)
            }
            Gate::Taken(position) => {
                let is_open = self.solver.is(position, Value::Known(0));
                self.must(self.solver.not(is_open), "it opens a gate that it has not taken")?;
                if !order.releases {
                    return Err("it opens the gate, and its stores may come later".into());
                }
                state.gate = Gate::Opened(position, value);
                Ok(self.anything(state))
            }
            Gate::Opened(..) => Err("it takes the gate again".into()),
        }
    }

    /// The gate is closed, or names a line of the log, or its end.
    fn promise_position(&mut self, position: Value) {
        let offset = self.behind_gate(position);
        let before = self.solver.with(How::Add, offset, LaneSync::LINE_BYTES.wrapping_neg());
        let is_whole = self.has_bits(before, LaneSync::LINE_BYTES - 1, 0);
        let is_within = self.solver.holds(Test::Below, before, Value::Known(LOG_BYTES - LaneSync::LINE_BYTES + 1));
        let is_line = self.solver.all([is_whole, is_within]);
        let is_closed = self.solver.is(position, Value::Known(0));
        let is_position = self.solver.some([is_closed, is_line]);
        self.solver.assume(is_position);
    }
}
