//! Values of 64 bits that are known, or terms of an SMT solver (z3, by easy-smt).

use super::insn::{How, Test};
use easy_smt::{Context, ContextBuilder, Response, SExpr};
use std::collections::HashMap;

/// A value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    Known(u64),
    Term(SExpr),
}

/// Which bits of a value are known, and what they are.
#[derive(Clone, Copy)]
struct Bits {
    known: u64,
    value: u64,
}

impl Bits {
    fn of(how: How, a: Self, b: Self) -> Self {
        let is_known = |bits: &Self| bits.known == u64::MAX;
        let known = match how {
            How::And => a.known & b.known | a.known & !a.value | b.known & !b.value,
            How::Left if is_known(&b) => a.known << b.value | ((1 << b.value) - 1),
            How::Right if is_known(&b) => a.known >> b.value | !(u64::MAX >> b.value),
            _ if is_known(&a) && is_known(&b) => u64::MAX,
            _ => 0,
        };
        Self { known, value: how.of(a.value, b.value) & known }
    }
}

/// The solver, and names for what it is told.
pub struct Solver {
    smt: Context,
    names: u32,
    /// Bits of terms that are known, and what they are: most jumps need no answer then.
    bits: HashMap<SExpr, Bits>,
}

impl Solver {
    pub fn new() -> Self {
        let smt = ContextBuilder::new().with_z3_defaults().build().expect("z3 can be started");
        let mut solver = Self { smt, names: 0, bits: HashMap::new() };
        // Functions that are not interpreted, of bit vectors.
        solver.smt.set_logic("QF_UFBV").expect("z3 answers");
        solver
    }

    fn name(&mut self, what: &str) -> String {
        self.names += 1;
        format!("{what}_{}", self.names)
    }

    fn bits(&self, n: u32) -> SExpr {
        self.smt.bit_vec_sort(self.smt.numeral(n))
    }

    /// A value that may be any.
    pub fn any(&mut self, what: &str) -> Value {
        let (name, sort) = (self.name(what), self.bits(64));
        Value::Term(self.smt.declare_const(name, sort).expect("z3 answers"))
    }

    /// A function of a word, to a word.
    pub fn function(&mut self, what: &str) -> SExpr {
        let (name, word) = (self.name(what), self.bits(64));
        self.smt.declare_fun(name, vec![word], word).expect("z3 answers")
    }

    pub fn term(&self, value: Value) -> SExpr {
        match value {
            Value::Known(value) => self.smt.binary(64, value),
            Value::Term(term) => term,
        }
    }

    /// A name for a term, so that it is told once.
    fn named(&mut self, term: SExpr) -> Value {
        let (name, sort) = (self.name("v"), self.bits(64));
        Value::Term(self.smt.define_const(name, sort, term).expect("z3 answers"))
    }

    fn bits_of(&self, value: Value) -> Bits {
        match value {
            Value::Known(value) => Bits { known: u64::MAX, value },
            Value::Term(term) => self.bits.get(&term).copied().unwrap_or(Bits { known: 0, value: 0 }),
        }
    }

    /// Any value that has `value` in the bits of `known`.
    pub fn any_with(&mut self, what: &str, known: u64, value: u64) -> Value {
        let any = self.any(what);
        let has = self.with(How::And, any, known);
        let claim = self.is(has, Value::Known(value));
        self.assume(claim);
        let Value::Term(term) = any else { unreachable!("nothing is known of it") };
        self.bits.insert(term, Bits { known, value });
        any
    }

    pub fn apply(&mut self, function: SExpr, to: Value) -> Value {
        let term = self.smt.list(vec![function, self.term(to)]);
        self.named(term)
    }

    pub fn compute(&mut self, how: How, a: Value, b: Value) -> Value {
        let bits = Bits::of(how, self.bits_of(a), self.bits_of(b));
        if bits.known == u64::MAX {
            return Value::Known(bits.value);
        }
        if how == How::Add && b == Value::Known(0) {
            return a;
        }
        let (a, b, smt) = (self.term(a), self.term(b), &self.smt);
        let term = match how {
            How::Add => smt.bvadd(a, b),
            How::And => smt.bvand(a, b),
            How::Left => smt.bvshl(a, b),
            How::Right => smt.bvlshr(a, b),
            How::AddEighth => smt.bvadd(smt.bvshl(a, smt.binary(64, 3u64)), b),
        };
        let value = self.named(term);
        if let (Value::Term(term), true) = (value, bits.known != 0) {
            self.bits.insert(term, bits);
        }
        value
    }

    pub fn or(&mut self, a: Value, b: Value) -> Value {
        let term = self.smt.bvor(self.term(a), self.term(b));
        self.named(term)
    }

    /// `a + b`, `a & b`, `a << b`, `a >> b` with what is known.
    pub fn with(&mut self, how: How, a: Value, b: u64) -> Value {
        self.compute(how, a, Value::Known(b))
    }

    pub fn holds(&self, test: Test, a: Value, b: Value) -> SExpr {
        let (a, b) = (self.term(a), self.term(b));
        match test {
            Test::Equal => self.smt.eq(a, b),
            Test::Less => self.smt.bvslt(a, b),
        }
    }

    pub fn is(&self, a: Value, b: Value) -> SExpr {
        self.holds(Test::Equal, a, b)
    }

    /// Unsigned.
    pub fn is_below(&self, a: Value, b: Value) -> SExpr {
        self.smt.bvult(self.term(a), self.term(b))
    }

    pub fn not(&self, claim: SExpr) -> SExpr {
        self.smt.not(claim)
    }

    pub fn all(&self, claims: &[SExpr]) -> SExpr {
        match claims {
            [] => self.smt.true_(),
            [claim] => *claim,
            _ => self.smt.and_many(claims.iter().copied()),
        }
    }

    pub fn some(&self, claims: &[SExpr]) -> SExpr {
        match claims {
            [] => self.smt.false_(),
            [claim] => *claim,
            _ => self.smt.or_many(claims.iter().copied()),
        }
    }

    pub fn assume(&mut self, claim: SExpr) {
        self.smt.assert(claim).expect("z3 answers");
    }

    /// What is assumed from here on is forgotten at the [`Solver::pop`] that belongs to it.
    pub fn push(&mut self) {
        self.smt.push().expect("z3 answers");
    }

    pub fn pop(&mut self) {
        self.smt.pop().expect("z3 answers");
    }

    fn within<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        self.push();
        let result = work(self);
        self.pop();
        result
    }

    fn check(&mut self) -> bool {
        match self.smt.check().expect("z3 answers") {
            Response::Sat => true,
            Response::Unsat => false,
            Response::Unknown => panic!("z3 does not know"),
        }
    }

    /// Whether a claim can be true, with what is assumed.
    pub fn may_be(&mut self, claim: SExpr) -> bool {
        self.within(|solver| {
            solver.assume(claim);
            solver.check()
        })
    }

    /// Whether it must be.
    pub fn must_be(&mut self, claim: SExpr) -> bool {
        !self.may_be(self.not(claim))
    }

    /// All that a value can be, up to so many.
    pub fn values(&mut self, value: Value, most: usize) -> Vec<u64> {
        let term = match value {
            Value::Known(known) => return vec![known],
            Value::Term(term) => term,
        };
        self.within(|solver| {
            let mut values = Vec::new();
            while values.len() < most && solver.check() {
                let model = solver.smt.get_value(vec![term]).expect("z3 has a model");
                let found = solver.smt.get_u64(model[0].1).expect("a number of 64 bits");
                values.push(found);
                let other = solver.not(solver.is(value, Value::Known(found)));
                solver.assume(other);
            }
            values
        })
    }
}
