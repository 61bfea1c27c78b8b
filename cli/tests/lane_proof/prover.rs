//! Executes the lane with terms for values, along every path that can be taken, and proves at each step and end what has to be
//! true there.
//!
//! A trap's way has two parts. The *front* tells a fence from everything else, and brings its address to t5: to `lane_own` or
//! `lane_all` by one of 32 times 32 entries of its jump tables. The *walk* goes on from there. Each is proved by itself: what
//! the front has been shown to arrive with is what the walk begins with.

use super::image::{CONTEXT, FENCE_MASK, Image, LANE, MARK, NEVER, SFENCE_VMA, VALID, Way, X, lane_table};
use super::insn::{How, Op, decode};
use super::solver::{Solver, Value};
use easy_smt::SExpr;
use rv::context::token;
use rv::{Context, FenceLog, Lane};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::size_of;

const TOKEN: u64 = LANE + Lane::TOKEN_AT as u64;
const HEAD: u64 = LANE + Lane::LOG_HEAD_AT as u64;
const RING: u64 = LANE + Lane::LOG_RING_AT as u64;
const RING_BYTES: u64 = 8 * <FenceLog>::LENGTH;
/// More than any path has.
const MOST_STEPS: u32 = 200;
/// More than any jump has.
const MOST_TARGETS: usize = 40;

/// What others see.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Did {
    Fence(u32, u32),
    /// A store to an entry of a table.
    Entry {
        value: Value,
    },
    /// A store to the log's ring.
    Ring {
        at: Value,
        value: Value,
    },
    Forget {
        address: Value,
        is_virtual: bool,
    },
}

/// The hart on its way.
#[derive(Clone)]
struct State {
    pc: u64,
    x: [Value; 32],
    csrs: BTreeMap<u32, Value>,
    /// The words of the context.
    context: BTreeMap<u64, Value>,
    did: Vec<Did>,
    /// The table that the walk has come to, and its level.
    table: Value,
    at_level: u64,
    steps: u32,
}

/// What was there before the trap, and from where on it is proved.
struct Before {
    x: [Value; 32],
    csrs: BTreeMap<u32, Value>,
    context: BTreeMap<u64, Value>,
    /// The address of the fence, in the walk.
    address: Option<Value>,
}

/// One way out of a guest, for one format of tables.
pub struct Prover<'a> {
    image: &'a Image,
    way: &'a Way,
    levels: u64,
    solver: Solver,
    /// The level of the table in a frame, by its number; for frames that hold none, some other number.
    level: SExpr,
    own: u64,
    all: u64,
    full: u64,
    table: u64,
    before: Before,
    /// Ends that are not the full path: a front's at a walk, and a walk's in the guest.
    taken: u32,
    /// The addresses of the instructions that can be executed.
    pub executed: BTreeSet<u64>,
}

type Proved = Result<(), String>;

impl<'a> Prover<'a> {
    /// `levels`: of the tables. `zba`: whether the harts have Zba, 0 or 1.
    pub fn new(image: &'a Image, way: &'a Way, (levels, zba): (u64, u64)) -> Self {
        let mut solver = Solver::new();
        let level = solver.function("level");
        let table = lane_table(way, levels, zba);
        let label = |name: &str| image.at(&table.replace("table", name));
        let before =
            Before { x: [Value::Known(0); 32], csrs: BTreeMap::new(), context: BTreeMap::new(), address: None };
        Self {
            image,
            way,
            levels,
            solver,
            level,
            own: label("own"),
            all: label("all"),
            full: image.at(way.full),
            table: image.at(&table),
            before,
            taken: 0,
            executed: BTreeSet::new(),
        }
    }

    /// Proves the front: for every instruction that is no fence, and for fences with these pairs of registers, as
    /// numbers below 1024.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn front(&mut self, pairs: impl Iterator<Item = u64>) -> Proved {
        let trap = self.trap();
        self.solver.push();
        let insn = self.solver.any("csr");
        let kind = self.solver.with(How::And, insn, FENCE_MASK);
        let is_fence = self.solver.is(kind, Value::Known(SFENCE_VMA));
        let is_not = self.solver.not(is_fence);
        self.solver.assume(is_not);
        self.go_on_by(&trap, insn)?;
        self.solver.pop();
        let mut fences = 0;
        for registers in pairs {
            fences += u32::from(registers & 31 != 0);
            self.solver.push();
            let fence = SFENCE_VMA | (registers & 31) << 15 | registers >> 5 << 20;
            // The upper half may hold anything.
            let insn = self.solver.any_with("csr", 0xffff_ffff, fence);
            self.go_on_by(&trap, insn)?;
            self.solver.pop();
        }
        // Any but x0 may hold the address.
        self.has_taken(fences)
    }

    /// Proves both walks.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn walks(&mut self) -> Proved {
        let trap = self.trap();
        [self.own, self.all].into_iter().try_for_each(|from| {
            let state = self.arrived(trap.clone(), from);
            self.go_on(state)
        })?;
        self.has_taken(2)
    }

    /// What always leaves for the full path does nothing wrong.
    fn has_taken(&self, expected: u32) -> Proved {
        if self.taken == expected { Ok(()) } else { Err(format!("it takes {} of {expected}", self.taken)) }
    }

    /// From the trap on, by an instruction.
    fn go_on_by(&mut self, trap: &State, insn: Value) -> Proved {
        let mut state = trap.clone();
        state.csrs.insert(self.way.tval, insn);
        self.before.csrs.insert(self.way.tval, insn);
        self.go_on(state)
    }

    fn csr(&self, number: u32) -> Value {
        self.before.csrs[&number]
    }

    fn lane(&self, at: usize) -> Value {
        self.before.context[&(LANE + at as u64)]
    }

    fn level_of(&mut self, at: Value) -> Value {
        let frame = self.solver.with(How::Right, at, 12);
        self.solver.apply(self.level, frame)
    }

    /// Registers, CSRs and context with anything in them that the lane may find.
    fn trap(&mut self) -> State {
        self.taken = 0;
        let solver = &mut self.solver;
        let mut x = [Value::Known(0); 32];
        x[1..].iter_mut().for_each(|x| *x = solver.any("x"));
        let way = self.way;
        let mut csrs: BTreeMap<u32, Value> =
            [way.epc, way.cause, way.status].map(|csr| (csr, solver.any("csr"))).into();
        csrs.insert(way.scratch, Value::Known(CONTEXT));
        let words = (0..size_of::<Context>() as u64 / 8).map(|word| CONTEXT + 8 * word);
        let mut context: BTreeMap<u64, Value> = words.map(|at| (at, solver.any("context"))).collect();
        context.insert(LANE + Lane::MASK_AT as u64, Value::Known(FENCE_MASK));
        context.insert(LANE + Lane::TABLE_AT as u64, Value::Known(self.table));
        // Where a walk begins, nothing is asked of the instruction any more.
        csrs.insert(way.tval, solver.any("csr"));
        self.before = Before { x, csrs: csrs.clone(), context: context.clone(), address: None };

        let matches = self.lane(Lane::MATCHES_AT);
        let (on, off) = (Value::Known(SFENCE_VMA), Value::Known(NEVER));
        let is_either = self.solver.some(&[self.solver.is(matches, on), self.solver.is(matches, off)]);
        self.solver.assume(is_either);
        let root = self.lane(Lane::ROOT_AT);
        let low = self.solver.with(How::And, root, 0xfff);
        let level = self.level_of(root);
        let is_root = [
            self.solver.is(low, Value::Known(Lane::POINTER_FLAGS)),
            self.solver.is_below(root, Value::Known(1 << 56)),
            self.solver.is(level, Value::Known(self.levels - 1)),
        ];
        is_root.into_iter().for_each(|claim| self.solver.assume(claim));
        for count in [TOKEN, HEAD] {
            let rest = self.solver.with(How::And, context[&count], token::STEP - 1);
            let is_step = self.solver.is(rest, Value::Known(0));
            self.solver.assume(is_step);
        }
        let (table, at_level) = (self.solver.with(How::And, root, !0xfff), self.levels - 1);
        State { pc: self.image.at(way.vector), x, csrs, context, did: Vec::new(), table, at_level, steps: 0 }
    }

    /// What the front arrives with where a walk begins (see [`Prover::arrives`]).
    fn arrived(&mut self, trap: State, from: u64) -> State {
        let address = self.solver.any("address");
        self.before.address = Some(address);
        let (mut x, mut csrs, mut context) = (self.before.x, self.before.csrs.clone(), self.before.context.clone());
        (29..32).for_each(|n| _ = context.insert(X + 8 * n, x[n as usize]));
        csrs.insert(self.way.scratch, x[10]);
        x[10] = Value::Known(CONTEXT);
        x[29] = self.solver.any("x");
        x[30] = address;
        x[31] = self.solver.any("x");
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
            if self.before.address.is_none() && [self.own, self.all].contains(&at) {
                return self.arrives(&state).map_err(|what| wrong(&what));
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
                Op::Immediate { rd, how, a, b } => {
                    let value = self.solver.with(how, x(a), b);
                    state.set(rd, value);
                }
                Op::Registers { rd, how, a, b } => {
                    let value = self.solver.compute(how, x(a), x(b));
                    state.set(rd, value);
                }
                Op::Branch { a, b, test, holds, target } => {
                    let mut taken = self.solver.holds(test, x(a), x(b));
                    if !holds {
                        taken = self.solver.not(taken);
                    }
                    let not_taken = self.solver.not(taken);
                    for (claim, pc) in [(taken, target), (not_taken, next)] {
                        if self.solver.may_be(claim) {
                            self.go_on_if(claim, State { pc, ..state.clone() })?;
                        }
                    }
                    return Ok(());
                }
                Op::Jump { rd, target } => {
                    state.set(rd, Value::Known(next));
                    next = target;
                }
                Op::JumpTo { rd, base, offset } => {
                    let to = self.solver.with(How::Add, x(base), offset);
                    let to = self.solver.with(How::And, to, !1);
                    let targets = self.solver.values(to, MOST_TARGETS);
                    if targets.len() == MOST_TARGETS {
                        return Err(wrong("a jump to anywhere"));
                    }
                    state.set(rd, Value::Known(next));
                    for pc in targets {
                        let claim = self.solver.is(to, Value::Known(pc));
                        self.go_on_if(claim, State { pc, ..state.clone() })?;
                    }
                    return Ok(());
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
                        let new = self.solver.or(old, bits);
                        state.csrs.insert(csr, new);
                    }
                    state.set(rd, old);
                }
                Op::Forget { address, is_virtual } => {
                    state.did.push(Did::Forget { address: x(address), is_virtual });
                }
                Op::Return(insn) => return self.returns(&state, insn).map_err(|what| wrong(&what)),
            }
            state.pc = next;
        }
    }

    fn go_on_if(&mut self, claim: SExpr, state: State) -> Proved {
        self.solver.push();
        self.solver.assume(claim);
        let proved = self.go_on(state);
        self.solver.pop();
        proved
    }

    fn must(&mut self, claim: SExpr, what: &str) -> Proved {
        if self.solver.must_be(claim) { Ok(()) } else { Err(what.into()) }
    }

    /// A load: of a word of the context, or of an entry of some table. That may be anything now, but a pointer if it has the
    /// mark.
    fn load(&mut self, state: &mut State, from: Value) -> Result<Value, String> {
        if let Value::Known(at) = from {
            return state.context.get(&at).copied().ok_or_else(|| format!("a load from {at:#x}"));
        }
        let level = self.entry(state, from)?;
        let entry = self.solver.any("entry");
        let mark = self.solver.with(How::And, entry, MARK);
        let other = self.solver.with(How::And, entry, 0x3ff);
        let to = self.solver.with(How::Right, entry, 10);
        let below = self.solver.apply(self.level, to);
        let above = self.solver.with(How::Add, below, 1);
        let solver = &self.solver;
        let is_pointer = solver.all(&[
            solver.is(other, Value::Known(MARK | VALID)),
            solver.is_below(entry, Value::Known(1 << 54)),
            solver.is(above, level),
        ]);
        let promised = [solver.is(mark, Value::Known(0)), solver.is(level, Value::Known(0)), is_pointer];
        let promised = solver.some(&promised);
        self.solver.assume(promised);
        state.table = self.solver.with(How::Left, to, 12);
        state.at_level = state.at_level.wrapping_sub(1);
        Ok(entry)
    }

    /// Proves that an address is that of the fenced address's entry in the table that the walk has come to; returns the
    /// table's level.
    fn entry(&mut self, state: &State, at: Value) -> Result<Value, String> {
        let Some(address) = self.before.address else { return Err("an access to a table from the front".into()) };
        let index = self.solver.with(How::Right, address, 12 + 9 * (state.at_level & 7));
        let index = self.solver.with(How::And, index, 511);
        let expected = self.solver.compute(How::AddEighth, index, state.table);
        self.same(at, expected, "an access to another entry")?;
        let low = self.solver.with(How::And, at, 7);
        let level = self.level_of(at);
        let solver = &self.solver;
        let claim = solver.all(&[solver.is(low, Value::Known(0)), solver.is_below(level, Value::Known(self.levels))]);
        self.must(claim, "an access out of all tables")?;
        Ok(level)
    }

    /// A store: to a word of the context, to the ring, or to an entry of a table.
    fn store(&mut self, state: &mut State, at: Value, value: Value) -> Proved {
        if let Value::Known(at) = at {
            let word = state.context.get_mut(&at).ok_or_else(|| format!("a store to {at:#x}"))?;
            *word = value;
            return Ok(());
        }
        let slot = self.solver.with(How::Add, at, RING.wrapping_neg());
        let low = self.solver.with(How::And, at, 7);
        let solver = &self.solver;
        let is_slot = solver.all(&[solver.is(low, Value::Known(0)), solver.is_below(slot, Value::Known(RING_BYTES))]);
        if self.solver.may_be(is_slot) && self.must(is_slot, "").is_ok() {
            state.did.push(Did::Ring { at, value });
            return Ok(());
        }
        let level = self.entry(state, at)?;
        let is_lowest = self.solver.is(level, Value::Known(0));
        self.must(is_lowest, "a store to a table that is not of level 0")?;
        state.did.push(Did::Entry { value });
        Ok(())
    }

    fn same(&mut self, now: Value, before: Value, what: &str) -> Proved {
        if now == before {
            return Ok(());
        }
        let claim = self.solver.is(now, before);
        self.must(claim, what)
    }

    /// All but the registers that are saved is as it was before the trap; those are in the context, which is in a0.
    fn is_saved(&mut self, state: &State) -> Proved {
        let mut x = self.before.x;
        x[10] = Value::Known(CONTEXT);
        for n in (0..29).filter(|n| state.x[*n] != x[*n]) {
            self.same(state.x[n], x[n], &format!("x{n} is another"))?;
        }
        let mut csrs = self.before.csrs.clone();
        csrs.insert(self.way.scratch, self.before.x[10]);
        self.csrs_are(state, &csrs)?;
        self.context_is(state, &[])
    }

    fn csrs_are(&mut self, state: &State, csrs: &BTreeMap<u32, Value>) -> Proved {
        csrs.iter().try_for_each(|(csr, value)| self.same(state.csrs[csr], *value, &format!("CSR {csr:#x} is another")))
    }

    /// The context is as before, but for t4 to t6, which hold what these had, and for the words in `but`.
    fn context_is(&mut self, state: &State, but: &[u64]) -> Proved {
        for (at, now) in state.context.iter().filter(|(at, _)| !but.contains(at)) {
            let n = (at.wrapping_sub(X) / 8) as usize;
            let is_saved = *at >= X && (29..32).contains(&n);
            let expected = if is_saved { self.before.x[n] } else { self.before.context[at] };
            self.same(*now, expected, &format!("the context at {at:#x} is another"))?;
        }
        Ok(())
    }

    /// The end at the full path.
    fn leaves_all_as_it_was(&mut self, state: &State) -> Proved {
        if !state.did.is_empty() {
            return Err("it has done something, and goes on to the full path".into());
        }
        self.is_saved(state)
    }

    /// The front's end where a walk begins: it is a fence, from supervisor mode, of this address space or of all, and its
    /// address is in t5.
    fn arrives(&mut self, state: &State) -> Proved {
        self.taken += 1;
        self.leaves_all_as_it_was(state)?;
        let (insn, cause, status) = (self.csr(self.way.tval), self.csr(self.way.cause), self.csr(self.way.status));
        self.same(cause, Value::Known(self.way.fence), "another cause")?;
        let supervisor = self.solver.with(How::And, status, self.way.supervisor);
        self.same(supervisor, Value::Known(self.way.supervisor), "not from supervisor mode")?;
        let kind = self.solver.with(How::And, insn, FENCE_MASK);
        self.same(kind, Value::Known(SFENCE_VMA), "another instruction")?;
        self.same(self.lane(Lane::MATCHES_AT), Value::Known(SFENCE_VMA), "a lane that is off")?;
        let mut register = |shift| {
            let number = self.solver.with(How::Right, insn, shift);
            match self.solver.with(How::And, number, 31) {
                Value::Known(number) => Ok(number as usize),
                Value::Term(_) => Err("the registers are not looked at"),
            }
        };
        let (rs1, rs2) = (register(15)?, register(20)?);
        if rs1 == 0 {
            return Err("a fence of all addresses".into());
        }
        self.same(state.x[30], self.before.x[rs1], "another address")?;
        match (state.pc == self.all, rs2) {
            (true, 0) => Ok(()),
            (true, _) => Err("a fence of one address space is taken for one of all".into()),
            (false, 0) => Err("a fence of all address spaces is taken for one of one".into()),
            (false, _) => self.same(self.before.x[rs2], self.lane(Lane::ASID_AT), "a fence of another address space"),
        }
    }

    /// The end of a walk, back in the guest: after its fence, with all as it was, a token in one entry of level 0, and the
    /// fence counted, or in the log.
    fn returns(&mut self, state: &State, insn: u32) -> Proved {
        self.taken += 1;
        let Some(address) = self.before.address else { return Err("it returns from the front".into()) };
        if insn != self.way.xret {
            return Err("another return".into());
        }
        for n in 0..32 {
            self.same(state.x[n], self.before.x[n], &format!("the guest's x{n} is another"))?;
        }
        let mut csrs = self.before.csrs.clone();
        let after = self.solver.with(How::Add, csrs[&self.way.epc], 4);
        csrs.insert(self.way.epc, after);
        self.csrs_are(state, &csrs)?;
        let is_of_all = state.did.iter().any(|did| matches!(did, Did::Ring { .. }));
        let counter = if is_of_all { HEAD } else { TOKEN };
        self.context_is(state, &[counter])?;
        let token = state.context[&counter];
        let next = self.solver.with(How::Add, self.before.context[&counter], token::STEP);
        self.same(token, next, "the fence is not counted")?;
        let (store, forget) = match state.did[..] {
            [Did::Fence(0b11, 0b01), store, Did::Forget { address, is_virtual }]
                if !is_of_all && is_virtual == self.way.is_virtual =>
            {
                (store, address)
            }
            [
                Did::Fence(0b11, 0b01),
                store,
                Did::Ring { at, value },
                Did::Forget { address: forgotten, is_virtual },
            ] if is_virtual == self.way.is_virtual => {
                let slot = self.solver.with(How::And, token, RING_BYTES - 1);
                let slot = self.solver.with(How::Add, slot, RING);
                self.same(at, slot, "another slot of the log")?;
                self.same(value, address, "another address in the log")?;
                (store, forgotten)
            }
            _ => return Err(format!("what it does, or in what order: {:?}", state.did)),
        };
        self.same(forget, address, "another address is forgotten")?;
        let Did::Entry { value } = store else { return Err("no entry is stored to".into()) };
        self.same(value, token, "no token")?;
        let valid = self.solver.with(How::And, value, VALID);
        self.same(valid, Value::Known(0), "the token is valid")
    }
}

impl State {
    fn set(&mut self, register: u32, value: Value) {
        if register != 0 {
            self.x[register as usize] = value;
        }
    }
}
