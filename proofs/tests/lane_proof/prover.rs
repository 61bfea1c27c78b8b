//! Executes the lane with terms for values, along every path that can be taken, and proves at each step and end what has to be
//! true there (`memory` has the accesses, `ends` the ends).
//!
//! A trap's way has two parts. The *front* tells a fence from everything else, and brings its address to t5: to `lane_own` or
//! `lane_all` by one of 32 times 32 entries of its jump tables. The *walk* goes on from there. Each is proved by itself: what
//! the front has been shown to arrive with is what the walk begins with.

use super::ends::End;
use super::image::{
    Block, CONTEXT, FENCE_MASK, Image, LANE, NEVER, READ_MASK, READS_SATP, SFENCE_VMA, WRITE_MASK, WRITES_SATP, X,
};
use super::insn::{How, Op, Test, decode};
use super::memory::{Gate, Place};
use super::roots::Published;
use super::solver::{Claim, Solver, Value};
use lane::context::token;
use lane::{Context, Lane};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::size_of;

pub const TOKEN: u64 = LANE + Lane::TOKEN_AT as u64;
pub const HEAD: u64 = LANE + Lane::LOG_HEAD_AT as u64;
/// More than any path has.
const MOST_STEPS: u32 = 200;

/// The effects that others see.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Did {
    Fence(u32, u32),
    /// A store to an entry of a table.
    Entry {
        at: Value,
        value: Value,
    },
    /// A store to the line of the log that the gate names, so many bytes from its beginning.
    Line {
        offset: u64,
        value: Value,
    },
    /// A store to the ring of the context.
    Ring {
        at: Value,
        value: Value,
    },
    Forget {
        address: Value,
        is_virtual: bool,
    },
    /// All addresses.
    ForgetAll {
        is_virtual: bool,
    },
    /// A store to the head of the present root.
    Left {
        head: Value,
    },
}

/// The hart on its way.
#[derive(Clone)]
pub struct State {
    pub pc: u64,
    pub x: [Value; 32],
    pub csrs: BTreeMap<u32, Value>,
    pub context: Words,
    pub did: Vec<Did>,
    /// The entry that led to the table that the walk has come to, and that table's level.
    pub pointer: Value,
    pub level: u64,
    pub gate: Gate,
    /// The further words that have been loaded, each once.
    pub seen: BTreeMap<Place, Value>,
    /// Of the pair in which a write of `satp` names a root, by the offset.
    pub of_root: BTreeMap<usize, Value>,
    pub published: Published,
    /// The posted requests, if they have been read.
    pub posted: Option<Value>,
    /// The root's word and that of roots at rest, as far as they have been read.
    pub rest: [Option<Value>; 2],
    /// The guest's `satp`, if that has been read.
    pub read: Option<Value>,
    pub loads: u32,
    steps: u32,
}

/// The words of the context.
#[derive(Clone)]
pub struct Words(Vec<Value>);

impl Words {
    /// The word at an address, if it is one of the context's.
    pub fn at(&mut self, at: u64) -> Option<&mut Value> {
        let index = at.wrapping_sub(CONTEXT) / 8;
        if at.is_multiple_of(8) { self.0.get_mut(usize::try_from(index).ok()?) } else { None }
    }

    /// The word at an address that is one of the context's.
    pub fn word(&self, at: u64) -> Value {
        self.0[((at - CONTEXT) / 8) as usize]
    }

    /// All, by their addresses.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Value)> {
        (CONTEXT..).step_by(8).zip(self.0.iter().copied())
    }

    pub fn set(&mut self, at: u64, value: Value) {
        self.0[((at - CONTEXT) / 8) as usize] = value;
    }
}

/// The state before the trap, and the address from which on it is proved.
pub struct Before {
    pub x: [Value; 32],
    pub csrs: BTreeMap<u32, Value>,
    pub context: Words,
    /// In the walk: the address of the fence, and whether it names no ASID.
    pub fence: Option<(Value, bool)>,
    /// True for a fence of all addresses.
    pub is_wide: bool,
    /// The written value, for a write of `satp`.
    pub written: Option<Value>,
    /// The register, for a read of `satp`.
    pub reads: Option<u64>,
}

/// A block of the lane's code, and the vector that leads to it.
pub struct Prover<'a> {
    image: &'a Image,
    pub block: &'a Block,
    pub solver: &'a mut Solver,
    own: u64,
    all: u64,
    /// The address for fences of all addresses, in a block that synchronises entries.
    wide: Option<u64>,
    full: u64,
    pub before: Before,
    /// The ends of paths on which the trap is not passed on: a front's at a walk, and a walk's in the guest.
    pub ends: BTreeSet<End>,
    /// The addresses of the instructions that can be executed.
    pub executed: BTreeSet<u64>,
}

pub type Proved = Result<(), String>;

impl<'a> Prover<'a> {
    pub fn new(image: &'a Image, block: &'a Block, solver: &'a mut Solver) -> Self {
        let label = |name: &str| image.at(&block.symbol(name));
        let before = Before {
            x: [Value::Known(0); 32],
            csrs: BTreeMap::new(),
            context: Words(Vec::new()),
            fence: None,
            is_wide: false,
            written: None,
            reads: None,
        };
        Self {
            image,
            block,
            solver,
            own: label("own"),
            all: label("all"),
            wide: block.syncs.then(|| label("wide")),
            full: image.at(block.way.full),
            before,
            ends: BTreeSet::new(),
            executed: BTreeSet::new(),
        }
    }

    /// Proves the front: for every instruction that is no fence, and for fences with these pairs of registers, as
    /// numbers below 1024.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn front(&mut self, pairs: impl Iterator<Item = u64>) -> Proved {
        let from = self.solver.remember();
        let trap = self.trap();
        let proved = self.front_from(&trap, pairs);
        self.solver.forget(from);
        proved
    }

    fn front_from(&mut self, trap: &State, pairs: impl Iterator<Item = u64>) -> Proved {
        let from = self.solver.remember();
        let insn = self.solver.any("insn");
        let kind = self.solver.with(How::And, insn, FENCE_MASK);
        let is_fence = self.solver.is(kind, Value::Known(SFENCE_VMA));
        let is_not = self.solver.not(is_fence);
        self.solver.assume(is_not);
        let kind = self.solver.with(How::And, insn, WRITE_MASK);
        let is_write = self.solver.is(kind, Value::Known(WRITES_SATP));
        let is_not = self.solver.not(is_write);
        self.solver.assume(is_not);
        let kind = self.solver.with(How::And, insn, READ_MASK);
        let is_read = self.solver.is(kind, Value::Known(READS_SATP));
        let is_not = self.solver.not(is_read);
        self.solver.assume(is_not);
        self.go_on_by(trap, insn)?;
        self.solver.forget(from);
        let mut expected = BTreeSet::new();
        for registers in pairs {
            // Any but x0 may hold the address; x0 is all addresses.
            if registers & 31 != 0 || self.block.syncs {
                expected.insert(End::Walk { rs1: registers & 31, rs2: registers >> 5 });
            }
            let fence = SFENCE_VMA | (registers & 31) << 15 | registers >> 5 << 20;
            // The upper half may hold anything.
            let insn = self.solver.any_with(&format!("fence_{registers}"), 0xffff_ffff, fence);
            self.go_on_by(trap, insn)?;
            self.solver.forget(from);
        }
        self.has_ended(&expected)
    }

    /// Proves writes of `satp` from these registers.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn writes(&mut self, mut registers: impl Iterator<Item = u64>) -> Proved {
        let from = self.solver.remember();
        let trap = self.trap();
        let proved = registers.try_for_each(|register| {
            let from = self.solver.remember();
            let insn = self.solver.any_with(&format!("write_{register}"), 0xffff_ffff, WRITES_SATP | register << 15);
            // From x0 paging goes off: that is passed on.
            self.before.written = (register != 0).then(|| self.before.x[register as usize]);
            let proved = self.go_on_by(&trap, insn);
            self.solver.forget(from);
            proved
        });
        self.solver.forget(from);
        proved?;
        let rests = if self.block.syncs { [false, true].as_slice() } else { &[false] };
        let of = |is_at_rest: bool| {
            let of_pair = move |nth| [true, false].map(|has_asid| End::Root { has_asid, nth, is_at_rest });
            [0, 1].into_iter().flat_map(of_pair)
        };
        self.has_ended(&rests.iter().flat_map(|is_at_rest| of(*is_at_rest)).collect())
    }

    /// Proves reads of `satp` to these registers.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn reads(&mut self, registers: impl Iterator<Item = u64> + Clone) -> Proved {
        let from = self.solver.remember();
        let trap = self.trap();
        let proved = registers.clone().try_for_each(|register| {
            let from = self.solver.remember();
            let insn = self.solver.any_with(&format!("read_{register}"), 0xffff_ffff, READS_SATP | register << 7);
            self.before.reads = Some(register);
            let proved = self.go_on_by(&trap, insn);
            self.solver.forget(from);
            proved
        });
        self.solver.forget(from);
        proved?;
        self.has_ended(&registers.map(|register| End::Read { register }).collect())
    }

    /// Proves both walks.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn walks(&mut self) -> Proved {
        let from = self.solver.remember();
        let trap = self.trap();
        let labels = [self.own, self.all].into_iter().chain(self.wide);
        let proved = labels.into_iter().try_for_each(|label| {
            let from = self.solver.remember();
            let state = self.arrived(trap.clone(), label);
            let proved = self.go_on(state);
            self.solver.forget(from);
            proved
        });
        self.solver.forget(from);
        proved?;
        self.has_ended(&End::of_walks(self.block))
    }

    /// Checks that each expected end was reached: code that passes everything on would do nothing wrong.
    fn has_ended(&self, expected: &BTreeSet<End>) -> Proved {
        let missing = expected.difference(&self.ends).next();
        missing.map_or(Ok(()), |end| Err(format!("it never comes to {end:?}")))
    }

    /// From the trap on, by an instruction.
    fn go_on_by(&mut self, trap: &State, insn: Value) -> Proved {
        let mut state = trap.clone();
        state.csrs.insert(self.block.way.tval, insn);
        self.before.csrs.insert(self.block.way.tval, insn);
        self.go_on(state)
    }

    pub fn lane(&self, at: usize) -> Value {
        self.before.context.word(LANE + at as u64)
    }

    /// Assumes that a value has these bits, of `mask`.
    pub fn assume_bits(&mut self, value: Value, mask: u64, bits: u64) {
        let masked = self.solver.with(How::And, value, mask);
        let claim = self.solver.is(masked, Value::Known(bits));
        self.solver.assume(claim);
    }

    /// Registers, CSRs and context with anything in them that the lane may find.
    fn trap(&mut self) -> State {
        self.ends.clear();
        let way = self.block.way;
        let solver = &mut self.solver;
        let mut x = [Value::Known(0); 32];
        (1..32).for_each(|n| x[n] = solver.any(&format!("x{n}")));
        // By what they are for, and not by their numbers: of the ways, nearly all questions are the same.
        let named = [(way.epc, "epc"), (way.cause, "cause"), (way.status, "status"), (way.satp, "satp")];
        let mut csrs: BTreeMap<u32, Value> = named.map(|(csr, name)| (csr, solver.any(name))).into();
        csrs.insert(way.scratch, Value::Known(CONTEXT));
        // Where a walk begins, all that is known of the instruction is what the front has found.
        csrs.insert(way.tval, solver.any("insn"));
        let words = (0..size_of::<Context>() / 8).map(|word| solver.any(&format!("context_{word}")));
        let mut context = Words(words.collect());
        context.set(LANE + Lane::MASK_AT as u64, Value::Known(FENCE_MASK));
        context.set(LANE + Lane::WRITE_MASK_AT as u64, Value::Known(WRITE_MASK));
        context.set(LANE + Lane::TABLE_AT as u64, Value::Known(self.image.at(&self.block.table())));
        context.set(LANE + Lane::READ_MASK_AT as u64, Value::Known(READ_MASK));
        self.before = Before {
            x,
            csrs: csrs.clone(),
            context: context.clone(),
            fence: None,
            is_wide: false,
            written: None,
            reads: None,
        };

        let matches = self.lane(Lane::MATCHES_AT);
        let (on, off) = (Value::Known(SFENCE_VMA), Value::Known(NEVER));
        let is_either = self.solver.some([self.solver.is(matches, on), self.solver.is(matches, off)]);
        self.solver.assume(is_either);
        for count in [TOKEN, HEAD] {
            self.assume_bits(context.word(count), token::STEP - 1, 0);
        }
        self.assume_inputs();
        self.assume_roots();
        State {
            pc: self.image.at(way.vector),
            x,
            csrs,
            context,
            did: Vec::new(),
            // As if an entry had led to the root.
            pointer: self.solver.with(How::Right, self.lane(Lane::ROOT_AT), 2),
            level: self.block.levels - 1,
            gate: Gate::Unknown,
            seen: BTreeMap::new(),
            of_root: BTreeMap::new(),
            published: Published::Unchanged,
            posted: None,
            rest: [None; 2],
            read: None,
            loads: 0,
            steps: 0,
        }
    }

    /// The state with which the front arrives where a walk begins (see [`Prover::arrives`]).
    fn arrived(&mut self, trap: State, from: u64) -> State {
        let way = self.block.way;
        let address = self.solver.any("address");
        let (of_all, is_wide) = (from == self.all, Some(from) == self.wide);
        self.before.is_wide = is_wide;
        self.before.fence = (!is_wide).then_some((address, of_all));
        let rs2 = self.solver.with(How::And, trap.csrs[&way.tval], 31 << 20);
        let names_none = self.solver.is(rs2, Value::Known(0));
        let names = if of_all { names_none } else { self.solver.not(names_none) };
        if is_wide {
            // A fence of all addresses.
            self.assume_bits(trap.csrs[&way.tval], FENCE_MASK | 31 << 15, SFENCE_VMA);
        } else {
            self.solver.assume(names);
        }
        let (mut x, mut csrs, mut context) = (self.before.x, self.before.csrs.clone(), self.before.context.clone());
        (29..32).for_each(|n| context.set(X + 8 * n, x[n as usize]));
        csrs.insert(way.scratch, x[10]);
        x[10] = Value::Known(CONTEXT);
        // Where it is of all addresses, that is the instruction.
        x[29] = if is_wide { csrs[&way.tval] } else { self.solver.any("t4") };
        x[30] = if is_wide { self.solver.any("t5") } else { address };
        x[31] = self.solver.any("t6");
        State { pc: from, x, csrs, context, ..trap }
    }

    /// Executes along all paths, and proves each end.
    fn go_on(&mut self, mut state: State) -> Proved {
        loop {
            let at = state.pc;
            let wrong = |what: &str| format!("{what} at {at:#x}");
            if at == self.full {
                return self.leaves_all_as_it_was(&state).map_err(|what| wrong(&what));
            }
            let is_front = self.before.fence.is_none() && !self.before.is_wide;
            if is_front && Some(at) == self.wide {
                return self.arrives_wide(&state).map_err(|what| wrong(&what));
            }
            if is_front && [self.own, self.all].contains(&at) {
                return self.arrives(&state, at == self.all).map_err(|what| wrong(&what));
            }
            state.steps += 1;
            if state.steps > MOST_STEPS {
                return Err(wrong("it goes on for ever"));
            }
            self.executed.insert(at);
            let (op, bytes) = decode(at, |at| self.image.half(at))?;
            let x = |register: u32| state.x[register as usize];
            let mut next = at.wrapping_add(bytes);
            match op {
                Op::Load { rd, base, offset } => {
                    let from = self.solver.with(How::Add, x(base), offset);
                    let value = self.load(&mut state, from).map_err(|what| wrong(&what))?;
                    state.set(rd, value);
                }
                Op::Store { base, offset, source } => {
                    let (to, value) = (self.solver.with(How::Add, x(base), offset), x(source));
                    self.store(&mut state, to, value).map_err(|what| wrong(&what))?;
                }
                Op::Swap { rd, address, source, order } => {
                    let (at, value) = (x(address), x(source));
                    let old = self.swap(&mut state, at, value, order).map_err(|what| wrong(&what))?;
                    state.set(rd, old);
                }
                Op::Immediate { rd, how, a, b } => {
                    let value = self.solver.with(how, x(a), b);
                    state.set(rd, value);
                }
                Op::Registers { rd, how, a, b } => {
                    let value = self.solver.compute(how, x(a), x(b));
                    state.set(rd, value);
                }
                Op::Branch { a, b, test, holds, target } => {
                    return self.branch(
                        &state,
                        (test, x(a), x(b)),
                        if holds { (target, next) } else { (next, target) },
                    );
                }
                Op::Jump { rd, target } => {
                    state.set(rd, Value::Known(next));
                    next = target;
                }
                Op::JumpTo { rd, base, offset } => {
                    let to = self.solver.with(How::Add, x(base), offset);
                    let Value::Known(to) = to else { return Err(wrong("a jump to anywhere")) };
                    state.set(rd, Value::Known(next));
                    next = to & !1;
                }
                Op::Fence(before, after) => state.did.push(Did::Fence(before, after)),
                Op::Exchange { rd, csr, source } => {
                    let new = x(source);
                    let old = state.csrs.insert(csr, new).ok_or_else(|| wrong("an unknown CSR"))?;
                    state.set(rd, old);
                }
                Op::SetBits { rd, csr, source } => {
                    let bits = x(source);
                    let old = *state.csrs.get(&csr).ok_or_else(|| wrong("an unknown CSR"))?;
                    if source != 0 {
                        let new = self.solver.compute(How::Or, old, bits);
                        state.csrs.insert(csr, new);
                    }
                    state.set(rd, old);
                }
                Op::ForgetAll { is_virtual } => state.did.push(Did::ForgetAll { is_virtual }),
                Op::Forget { address, is_virtual } => {
                    state.did.push(Did::Forget { address: x(address), is_virtual });
                }
                Op::Return(insn) => return self.returns(&state, insn).map_err(|what| wrong(&what)),
            }
            state.pc = next;
        }
    }

    /// Goes both ways, as far as they can be taken.
    fn branch(&mut self, state: &State, (test, a, b): (Test, Value, Value), (then, or_else): (u64, u64)) -> Proved {
        let holds = self.solver.holds(test, a, b);
        for (claim, pc) in [(holds, then), (self.solver.not(holds), or_else)] {
            if self.solver.may_be(claim) {
                let from = self.solver.remember();
                self.solver.assume(claim);
                self.go_on(State { pc, ..state.clone() })?;
                self.solver.forget(from);
            }
        }
        Ok(())
    }

    pub fn must(&mut self, claim: Claim, what: &str) -> Proved {
        if self.solver.must_be(claim) { Ok(()) } else { Err(what.into()) }
    }

    pub fn same(&mut self, now: Value, before: Value, what: &str) -> Proved {
        let claim = self.solver.is(now, before);
        self.must(claim, what)
    }
}

impl State {
    fn set(&mut self, register: u32, value: Value) {
        if register != 0 {
            self.x[register as usize] = value;
        }
    }
}
