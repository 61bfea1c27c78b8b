//! The conditions at the end of a path.

use super::image::{Block, CONTEXT, FENCE_MASK, LANE, READS_SATP, SFENCE_VMA, VALID, X};
use super::insn::{How, Test};
use super::memory::{Gate, Place, RING, RING_BYTES};
use super::prover::{Did, HEAD, Proved, Prover, State, TOKEN};
use super::roots::Published;
use super::solver::Value;
use lane::context::token;
use lane::{FenceLog, Lane, LaneSync};
use mmu::table::is_poison;
use rv::Pte;
use std::collections::{BTreeMap, BTreeSet};

/// An end at which the trap is not passed on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum End {
    /// A front's, at a walk.
    Walk { rs1: u64, rs2: u64 },
    /// In the guest, by another root. How it is chosen: by an ASID, or without; and which it is of its pair.
    /// And whether fences have passed over it, which had nothing to do.
    Root { has_asid: bool, nth: usize, is_at_rest: bool },
    /// In the guest, with its `satp` in that register.
    Read { register: u64 },
    /// In the guest, after a fence of everything, which had nothing to do.
    Wide,
    /// A walk's, in the guest.
    Guest { of_all: bool, what: What },
}

/// A walk's effect on the entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    /// There is a token in it.
    Token,
    /// The entry is synchronised, by nothing more than `LEAVES`, by the word of a chunk, or by an entry of the G-stage.
    Step(Option<Place>),
    /// There is none, and the log knows.
    Noted,
}

impl End {
    /// All that the walks of a block come to.
    pub fn of_walks(block: &Block) -> BTreeSet<Self> {
        let steps = [None, Some(Place::Chunk), Some(Place::Page)].map(What::Step);
        let deeds = if block.syncs { [steps.as_slice(), &[What::Noted]].concat() } else { vec![What::Token] };
        let wide = block.syncs.then_some(End::Wide);
        let walks = deeds.into_iter().flat_map(|what| [false, true].map(|of_all| End::Guest { of_all, what }));
        walks.chain(wide).collect()
    }
}

impl Prover<'_> {
    /// All but the registers that are saved is as it was before the trap; those are in the context, which is in a0.
    fn is_saved(&mut self, state: &State) -> Proved {
        let mut x = self.before.x;
        x[10] = Value::Known(CONTEXT);
        self.registers_are(&state.x[..29], &x[..29])?;
        let mut csrs = self.before.csrs.clone();
        csrs.insert(self.block.way.scratch, self.before.x[10]);
        self.csrs_are(state, &csrs)?;
        self.context_is(state, &[])
    }

    /// Of registers from x0 on.
    pub fn registers_are(&mut self, now: &[Value], before: &[Value]) -> Proved {
        let mut pairs = now.iter().zip(before).enumerate();
        pairs.try_for_each(|(n, (now, before))| self.same(*now, *before, &format!("x{n} is another")))
    }

    pub fn csrs_are(&mut self, state: &State, csrs: &BTreeMap<u32, Value>) -> Proved {
        csrs.iter().try_for_each(|(csr, value)| self.same(state.csrs[csr], *value, &format!("CSR {csr:#x} is another")))
    }

    /// The trap is of the cause that fences have, and from supervisor mode.
    pub fn is_the_kernels(&mut self) -> Proved {
        let way = self.block.way;
        let [cause, status] = [way.cause, way.status].map(|csr| self.before.csrs[&csr]);
        self.same(cause, Value::Known(way.fence), "another cause")?;
        let supervisor = self.solver.with(How::And, status, way.supervisor);
        self.same(supervisor, Value::Known(way.supervisor), "not from supervisor mode")
    }

    /// The guest continues behind its instruction, with these registers, and with the CSRs that it had, except these.
    pub fn goes_on(&mut self, state: &State, x: &[Value], but: &[(u32, Value)]) -> Proved {
        let way = self.block.way;
        self.registers_are(&state.x, x)?;
        let mut csrs = self.before.csrs.clone();
        let after = self.solver.with(How::Add, csrs[&way.epc], 4);
        csrs.insert(way.epc, after);
        csrs.extend(but.iter().copied());
        self.csrs_are(state, &csrs)
    }

    /// The context is as before, except t4 to t6, which hold what these had, t1 to t3, which may, and these words.
    pub fn context_is(&mut self, state: &State, but: &[(u64, Value)]) -> Proved {
        for (at, now) in state.context.iter() {
            let n = (at.wrapping_sub(X) / 8) as usize;
            let expected = match (but.iter().find(|(word, _)| *word == at), n) {
                (Some((_, value)), _) => *value,
                (None, 29..32) => self.before.x[n],
                (None, 6 | 7 | 28) if now == self.before.x[n] => now,
                _ => self.before.context.word(at),
            };
            self.same(now, expected, &format!("the context at {at:#x} is another"))?;
        }
        Ok(())
    }

    /// The end at which the trap is passed on.
    pub fn leaves_all_as_it_was(&mut self, state: &State) -> Proved {
        match state.gate {
            Gate::Unknown => {}
            Gate::Taken(position) => self.same(position, Value::Known(0), "the gate stays closed")?,
            Gate::Opened(position, now) => self.same(now, position, "the log is another")?,
        }
        if state.published != Published::Unchanged {
            return Err("a root is published that is not loaded".into());
        }
        // What is beyond the log's end is not read, and a fence changes nothing.
        if state.did.iter().any(|did| !matches!(did, Did::Line { .. } | Did::Fence(..))) {
            return Err("it has done something, and passes the trap on".into());
        }
        self.is_saved(state)
    }

    /// The front's end where a walk begins: it is a fence, from supervisor mode, of this address space or of all, and its
    /// address is in t5.
    pub fn arrives(&mut self, state: &State, of_all: bool) -> Proved {
        let (rs1, rs2) = self.is_fence(state)?;
        if rs1 == 0 {
            return Err("a fence of all addresses".into());
        }
        self.ends.insert(End::Walk { rs1, rs2 });
        self.same(state.x[30], self.before.x[rs1 as usize], "another address")?;
        match (of_all, rs2) {
            (true, 0) => Ok(()),
            (true, _) => Err("a fence of one address space is taken for one of all".into()),
            (false, 0) => Err("a fence of all address spaces is taken for one of one".into()),
            (false, _) => {
                self.same(self.before.x[rs2 as usize], self.lane(Lane::ASID_AT), "a fence of another address space")
            }
        }
    }

    /// The front's end where it is a fence of all addresses, from supervisor mode: the instruction is in t4.
    pub fn arrives_wide(&mut self, state: &State) -> Proved {
        let (rs1, rs2) = self.is_fence(state)?;
        if rs1 != 0 {
            return Err("a fence of one address".into());
        }
        self.ends.insert(End::Walk { rs1, rs2 });
        self.same(state.x[29], self.before.csrs[&self.block.way.tval], "another instruction in t4")
    }

    /// The front has done nothing, and it is a fence, from supervisor mode, by a lane that is on. Its registers.
    fn is_fence(&mut self, state: &State) -> Result<(u64, u64), String> {
        self.leaves_all_as_it_was(state)?;
        let way = self.block.way;
        let insn = self.before.csrs[&way.tval];
        self.is_the_kernels()?;
        let kind = self.solver.with(How::And, insn, FENCE_MASK);
        self.same(kind, Value::Known(SFENCE_VMA), "another instruction")?;
        self.same(self.lane(Lane::MATCHES_AT), Value::Known(SFENCE_VMA), "a lane that is off")?;
        let mut register = |shift| {
            let number = self.solver.with(How::Right, insn, shift);
            match self.solver.with(How::And, number, 31) {
                Value::Known(number) => Ok(number),
                Value::Term(_) => Err("the registers are not looked at"),
            }
        };
        Ok((register(15)?, register(20)?))
    }

    /// The end of a walk, back in the guest: after its fence, with all as it was, and the fence done.
    pub fn returns(&mut self, state: &State, insn: u32) -> Proved {
        let way = self.block.way;
        if insn != way.xret {
            return Err("another return".into());
        }
        if let Some(written) = self.before.written {
            return self.changes(state, written);
        }
        if let Some(register) = self.before.reads {
            return self.has_read(state, register);
        }
        if self.before.is_wide {
            return self.fences_all(state);
        }
        let Some((address, of_all)) = self.before.fence else { return Err("it returns from the front".into()) };
        self.goes_on(state, &self.before.x.clone(), &[])?;
        let (what, rest) =
            if self.block.syncs { self.is_in_step(state, address)? } else { self.is_token(state, of_all)? };
        self.ends.insert(End::Guest { of_all, what });
        let rest = if of_all { self.is_in_ring(state, address, rest)? } else { rest };
        match rest {
            [Did::Forget { address: forgotten, is_virtual }] if *is_virtual == way.is_virtual => {
                self.same(*forgotten, address, "another address is forgotten")
            }
            _ => Err(format!("what it does, or in what order: {:?}", state.did)),
        }
    }

    /// The end of a fence of everything: the root is at rest, which was looked at after all that the guest has seen; the log knows of
    /// it, and all translations are forgotten.
    fn fences_all(&mut self, state: &State) -> Proved {
        let way = self.block.way;
        let rs2 = self.solver.with(How::And, self.before.csrs[&way.tval], 31 << 20);
        self.same(rs2, Value::Known(0), "it names an address space")?;
        self.is_at_rest(state)?;
        let (Gate::Opened(position, now), [before, Did::Line { offset: 0, value }, after]) =
            (state.gate, &state.did[..])
        else {
            return Err(format!("what it does, or in what order: {:?}", state.did));
        };
        if (*before, *after) != (Did::Fence(0b11, 0b10), Did::ForgetAll { is_virtual: way.is_virtual }) {
            return Err(format!("what it does, or in what order: {:?}", state.did));
        }
        self.same(*value, Value::Known(LaneSync::WIDE), "another line of the log")?;
        let next = self.solver.with(How::Add, position, LaneSync::LINE_BYTES);
        self.same(now, next, "the log has no line more")?;
        self.goes_on(state, &self.before.x.clone(), &[])?;
        let wide = LANE + Lane::WIDE_AT as u64;
        let count = |prover: &mut Self, at, more| prover.solver.with(How::Add, prover.before.context.word(at), more);
        let words = [(HEAD, count(self, HEAD, <FenceLog>::EVERYTHING)), (wide, count(self, wide, 1))];
        self.ends.insert(End::Wide);
        self.context_is(state, &words)
    }

    /// The root's word is that of roots at rest.
    pub fn is_at_rest(&mut self, state: &State) -> Proved {
        let [Some(says), Some(those)] = state.rest else {
            return Err("it is not looked at whether it is at rest".into());
        };
        self.same(says, those, "it is not at rest")
    }

    /// The end of a read of `satp`: the register has what the vCPU publishes, and nothing else has changed.
    fn has_read(&mut self, state: &State, register: u64) -> Proved {
        self.is_the_kernels()?;
        self.same(self.lane(Lane::READ_MATCHES_AT), Value::Known(READS_SATP), "a lane that is off")?;
        let Some(read) = state.read.filter(|_| state.did.is_empty()) else { return Err("nothing is read".into()) };
        let mut x = self.before.x;
        if register != 0 {
            x[register as usize] = read;
        }
        self.goes_on(state, &x, &[])?;
        let reads = LANE + Lane::READS_AT as u64;
        let count = self.solver.with(How::Add, self.before.context.word(reads), 1);
        self.ends.insert(End::Read { register });
        // Of these registers the lane has the guest's in the context.
        let saved = (register >= 29).then_some((X + 8 * register, read));
        self.context_is(state, &[(reads, count)].into_iter().chain(saved).collect::<Vec<_>>())
    }

    /// The new value of a counter of fences.
    fn counted(&mut self, counter: u64) -> (u64, Value) {
        (counter, self.solver.with(How::Add, self.before.context.word(counter), token::STEP))
    }

    /// The fence is in the ring. What `did` has besides.
    fn is_in_ring<'d>(&mut self, state: &State, address: Value, did: &'d [Did]) -> Result<&'d [Did], String> {
        let [Did::Ring { at, value }, rest @ ..] = did else {
            return Err(format!("the fence is not in the ring: {:?}", state.did));
        };
        let slot = self.solver.with(How::And, state.context.word(HEAD), RING_BYTES - 1);
        let slot = self.solver.with(How::Add, slot, RING);
        self.same(*at, slot, "another slot of the ring")?;
        self.same(*value, address, "another address in the ring")?;
        Ok(rest)
    }

    /// A token is in the entry, the fence is counted by it, and a hart that sees it sees what was stored before.
    /// Returns what else the walk has done.
    fn is_token<'d>(&mut self, state: &'d State, of_all: bool) -> Result<(What, &'d [Did]), String> {
        let (counter, token) = self.counted(if of_all { HEAD } else { TOKEN });
        self.context_is(state, &[(counter, token)])?;
        let [Did::Fence(0b11, 0b01), Did::Entry { value, .. }, rest @ ..] = &state.did[..] else {
            return Err(format!("no token: {:?}", state.did));
        };
        self.same(*value, token, "no token")?;
        let valid = self.solver.with(How::And, *value, VALID);
        self.same(valid, Value::Known(0), "the token is valid")?;
        Ok((What::Token, rest))
    }

    /// The log has a line more, which says what has been done: the entry is in step, or there is none. What it has done besides.
    fn is_in_step<'d>(&mut self, state: &'d State, address: Value) -> Result<(What, &'d [Did]), String> {
        let Gate::Opened(position, now) = state.gate else { return Err("the gate stays closed".into()) };
        let longer = self.solver.with(How::Add, position, LaneSync::LINE_BYTES);
        self.same(now, longer, "the log has not a line more")?;
        let is_counted = self.counted(if self.before.fence.is_some_and(|(_, of_all)| of_all) { HEAD } else { TOKEN });
        self.context_is(state, &[is_counted])?;
        let noted = self.solver.with(How::Or, address, 1);
        match &state.did[..] {
            [
                Did::Line { offset: 0, value: first },
                Did::Line { offset: 8, value: second },
                Did::Entry { at, value },
                rest @ ..,
            ] => {
                let entry = self.solver.with(How::Add, *at, Lane::POINTER_FLAGS);
                self.same(*first, entry, "another entry in the log")?;
                let guests = state.seen[&Place::Guests];
                self.same(*second, guests, "another entry of the guest's in the log")?;
                Ok((self.is_made_of(state, *value)?, rest))
            }
            [Did::Line { offset: 0, value }, rest @ ..] => {
                self.same(*value, noted, "another address in the log")?;
                let poison = Value::Known(POISON);
                let masked = self.solver.compute(How::And, state.pointer, poison);
                self.same(masked, poison, "there may be an entry")?;
                Ok((What::Noted, rest))
            }
            _ => Err(format!("nothing in the log: {:?}", state.did)),
        }
    }

    /// Proves that an entry is what has to be made of the guest's; says by what.
    fn is_made_of(&mut self, state: &State, entry: Value) -> Result<What, String> {
        let seen = |place| state.seen.get(&place).copied();
        let (Some(guests), Some(leaf)) = (seen(Place::Guests), seen(Place::Leaf)) else {
            return Err("it does not look at what to make of the entry".into());
        };
        let faults = self.solver.is(leaf, Value::Known(0));
        let made = self.solver.compute(How::Add, guests, leaf);
        let (by, expected) = match (seen(Place::Chunk), seen(Place::Page)) {
            (None, _) => {
                self.must(faults, "a leaf of nothing")?;
                (None, Value::Known(0))
            }
            (Some(chunk), None) => {
                let is_whole = self.solver.holds(Test::Less, chunk, Value::Known(0));
                self.must(is_whole, "the chunk is not in one piece")?;
                (Some(Place::Chunk), self.solver.compute(How::Add, made, chunk))
            }
            (Some(_), Some(page)) => {
                let allows_all = self.solver.with(How::And, page, 0xf);
                self.same(allows_all, Value::Known(0xf), "the page does not allow everything")?;
                let flags = self.solver.with(How::And, made, 0x3ff);
                let frame = self.solver.with(How::And, page, !0x3ff);
                (Some(Place::Page), self.solver.compute(How::Or, frame, flags))
            }
        };
        if by.is_some() {
            self.must(self.solver.not(faults), "a leaf where the guest's entry faults")?;
        }
        self.same(entry, expected, "the entry is not made of the guest's")?;
        Ok(What::Step(by))
    }
}

/// The bits of poison.
const POISON: u64 = 1 << 53 | VALID;
const _: () = assert!(is_poison(Pte(POISON)) && !is_poison(Pte(POISON & !VALID)) && !is_poison(Pte(VALID)));
