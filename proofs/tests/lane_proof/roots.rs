//! A write of `satp`: what it may load and store, and what has to be true where it ends.

use super::ends::End;
use super::image::{BRIEF, LANE, NEVER, READS_SATP, WRITE_MASK, WRITES_SATP};
use super::insn::{How, Order};
use super::memory::ADDRESSES;
use super::prover::{Did, HEAD, Proved, Prover, State};
use super::solver::Value;
use lane::{Lane, LaneRoot, LaneRoots};

/// The words that are loaded of a root that the vCPU may know, each once.
const WORDS: [usize; 5] =
    [LaneRoot::KEY_AT, LaneRoot::HEAD_AT, LaneRoot::ROOT_AT, LaneRoot::ASID_AT, LaneRoot::SATP_AT];

/// The path's knowledge of what the vCPU publishes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Published {
    /// The published value is as it was.
    Unchanged,
    /// This was there, and what is written is there now.
    Changed(Value),
}

impl Prover<'_> {
    /// Of the inputs of the lane.
    pub fn assume_roots(&mut self) {
        for (at, on) in [(Lane::WRITE_MATCHES_AT, WRITES_SATP), (Lane::READ_MATCHES_AT, READS_SATP)] {
            let (matches, on, off) = (self.lane(at), Value::Known(on), Value::Known(NEVER));
            let is_either = self.solver.some([self.solver.is(matches, on), self.solver.is(matches, off)]);
            self.solver.assume(is_either);
        }
        self.assume_below(self.lane(Lane::LAST_PAIR_AT), (LaneRoot::MOST / LaneRoot::PAIR) as u64);
        let alignment = LaneRoot::BYTES as u64;
        for (at, alignment) in [(Lane::ROOTS_AT, alignment), (Lane::PRESENT_AT, alignment), (Lane::POSTING_AT, 8)] {
            let address = self.lane(at);
            self.assume_bits(address, alignment - 1, 0);
            self.assume_below(address, ADDRESSES);
        }
    }

    /// The address of the pair for the root of the written value.
    fn pair(&mut self) -> Result<Value, String> {
        let Some(written) = self.before.written else { return Err("an access from the front".into()) };
        let asid = self.solver.with(How::Right, written, 44);
        let asid = self.solver.with(How::And, asid, 0xffff);
        let is_none = self.solver.is(asid, Value::Known(0));
        let by = if self.solver.must_be(is_none) {
            written
        } else {
            self.must(self.solver.not(is_none), "it is not looked at whether there is an ASID")?;
            asid
        };
        let pair = self.solver.compute(How::And, by, self.lane(Lane::LAST_PAIR_AT));
        let offset = self.solver.with(How::Left, pair, (LaneRoot::PAIR * LaneRoot::BYTES).trailing_zeros().into());
        Ok(self.solver.compute(How::Add, offset, self.lane(Lane::ROOTS_AT)))
    }

    fn is_word(&mut self, at: Value, base: Value, offset: usize) -> bool {
        let expected = self.solver.with(How::Add, base, offset as u64);
        let is_it = self.solver.is(at, expected);
        self.solver.must_be(is_it)
    }

    /// A load from elsewhere than the context.
    pub fn load_for_roots(&mut self, state: &mut State, from: Value) -> Result<Value, String> {
        let posting = self.lane(Lane::POSTING_AT);
        if self.before.reads.is_some() && self.is_word(from, posting, 0) && state.read.is_none() {
            let value = self.anything(state);
            state.read = Some(value);
            return Ok(value);
        }
        let pair = self.pair()?;
        for nth in 0..LaneRoot::PAIR {
            for word in WORDS.map(|word| nth * LaneRoot::BYTES + word) {
                if self.is_word(from, pair, word) {
                    // It is the hart's own.
                    if let Some(known) = state.of_root.get(&word) {
                        return Ok(*known);
                    }
                    let value = self.anything(state);
                    state.of_root.insert(word, value);
                    return Ok(value);
                }
            }
        }
        if self.is_word(from, posting, LaneRoots::POSTED_AT) && state.published != Published::Unchanged {
            let value = self.anything(state);
            state.posted = Some(value);
            return Ok(value);
        }
        // Of the root whose head is another one.
        let nth = usize::from(!state.of_root.contains_key(&LaneRoot::HEAD_AT));
        match state.of_root.get(&(nth * LaneRoot::BYTES + LaneRoot::ROOT_AT)) {
            Some(root) if self.block.syncs => self.load_for_rest(state, *root, from),
            _ => Err("a load from something else".into()),
        }
    }

    /// A store to elsewhere than the context.
    pub fn store_for_roots(&mut self, state: &mut State, at: Value, value: Value) -> Proved {
        self.pair()?;
        let (posting, present) = (self.lane(Lane::POSTING_AT), self.lane(Lane::PRESENT_AT));
        match state.published {
            Published::Changed(old) if self.is_word(at, posting, 0) => {
                self.same(value, old, "another root is published than was")?;
                state.published = Published::Unchanged;
                Ok(())
            }
            _ if self.is_word(at, present, LaneRoot::HEAD_AT) => {
                state.did.push(Did::Left { head: value });
                Ok(())
            }
            _ => Err("a store to something else".into()),
        }
    }

    /// An exchange: what is written is published, before it is looked at what is posted.
    pub fn swap_for_roots(
        &mut self,
        state: &mut State,
        at: Value,
        value: Value,
        order: Order,
    ) -> Result<Value, String> {
        let Some(written) = self.before.written else { return Err("an exchange from the front".into()) };
        let posting = self.lane(Lane::POSTING_AT);
        if !self.is_word(at, posting, 0) || state.published != Published::Unchanged || state.posted.is_some() {
            return Err("an exchange of something else".into());
        }
        self.same(value, written, "another root is published than is written")?;
        if !order.acquires {
            return Err("it may look at what is posted before it is seen".into());
        }
        let old = self.anything(state);
        state.published = Published::Changed(old);
        Ok(old)
    }

    /// The end back in the guest: it is a write, from supervisor mode; the root is one that the vCPU knows, no fence
    /// has passed over it and none is posted; and all is as it was, except what changes with the root.
    pub fn changes(&mut self, state: &State, written: Value) -> Proved {
        let way = self.block.way;
        let insn = self.before.csrs[&way.tval];
        self.is_the_kernels()?;
        let kind = self.solver.with(How::And, insn, WRITE_MASK);
        self.same(kind, Value::Known(WRITES_SATP), "another instruction")?;
        self.same(self.lane(Lane::WRITE_MATCHES_AT), Value::Known(WRITES_SATP), "a lane that is off")?;

        let head = self.before.context.word(HEAD);
        // It is the one of which more than the key has been loaded.
        let nth = usize::from(!state.of_root.contains_key(&LaneRoot::HEAD_AT));
        let of_root = |word| {
            let word = state.of_root.get(&(nth * LaneRoot::BYTES + word));
            word.copied().ok_or("not all of the root is loaded")
        };
        self.same(of_root(LaneRoot::KEY_AT)?, written, "another root")?;
        let is_at_rest = state.rest != [None; 2];
        if is_at_rest {
            self.is_at_rest(state)?;
        } else {
            self.same(of_root(LaneRoot::HEAD_AT)?, head, "a root that is out of date")?;
        }
        let posted = state.posted.ok_or("it is not looked at what is posted")?;
        self.same(posted, Value::Known(0), "something is posted")?;
        if state.published == Published::Unchanged {
            return Err("the root is not published".into());
        }
        let did = match (is_at_rest, &state.did[..]) {
            // What the root's tables are is seen after what it says.
            (true, [Did::Fence(0b10, 0b11), did @ ..]) | (false, did) => did,
            (true, _) => return Err("it is not looked at the root first".into()),
        };
        let [Did::Left { head: left }] = *did else {
            return Err(format!("what it does, or in what order: {:?}", state.did));
        };
        self.same(left, head, "another head of the root that is left")?;

        self.goes_on(state, &self.before.x.clone(), &[(way.satp, of_root(LaneRoot::SATP_AT)?)])?;
        let asid = self.solver.with(How::And, written, 0xffff << 44);
        let is_none = self.solver.is(asid, Value::Known(0));
        self.ends.insert(End::Root { has_asid: !self.solver.must_be(is_none), nth, is_at_rest });
        let pair = self.pair()?;
        let root = self.solver.with(How::Add, pair, (nth * LaneRoot::BYTES) as u64);
        let changes = self.solver.with(How::Add, self.lane(Lane::CHANGES_AT), 1);
        let words = [
            (Lane::PRESENT_AT, root),
            (Lane::ROOT_AT, of_root(LaneRoot::ROOT_AT)?),
            (Lane::ASID_AT, of_root(LaneRoot::ASID_AT)?),
            (Lane::CHANGES_AT, changes),
        ];
        let words = words.map(|(at, value)| (LANE + at as u64, value));
        self.context_is(state, &[words.as_slice(), &[(BRIEF, Value::Known(0))]].concat())
    }
}
