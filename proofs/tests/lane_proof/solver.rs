//! Values of 64 bits that are known, or terms of an SMT solver (z3, by easy-smt).
//!
//! A term is written out wherever it is used: none is long. So equal questions are equal, and each is asked once: it has all that is
//! assumed in it that could matter, and the names in it mean the same at all times (a value that may be any).

use super::insn::{How, Test};
use easy_smt::{Context, ContextBuilder, Response, SExpr};
use std::collections::{HashMap, HashSet};
use std::io;

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
            How::Or => a.known & b.known | a.value | b.value,
            How::Left if is_known(&b) => a.known << b.value | ((1 << b.value) - 1),
            How::Right if is_known(&b) => a.known >> b.value | !(u64::MAX >> b.value),
            _ if is_known(&a) && is_known(&b) => u64::MAX,
            _ => 0,
        };
        Self { known, value: how.of(a.value, b.value) & known }
    }
}

/// A statement about values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    Known(bool),
    Term(SExpr),
}

/// The solver, what it has been told, and what it has answered.
pub struct Solver {
    smt: Context,
    declared: HashSet<SExpr>,
    /// The names in a term.
    names: HashMap<SExpr, Vec<SExpr>>,
    /// Bits of terms that are known: most jumps need no answer then.
    bits: HashMap<SExpr, Bits>,
    /// The present assumptions.
    assumed: Vec<SExpr>,
    /// The answers so far: whether all of these statements can be true at once.
    answers: HashMap<Vec<SExpr>, bool>,
}

impl Solver {
    pub fn new() -> Self {
        let mut smt = ContextBuilder::new().with_z3_defaults().build().expect("z3 can be started");
        smt.set_logic("QF_BV").expect("z3 answers");
        let (declared, names, bits) = (HashSet::new(), HashMap::new(), HashMap::new());
        Self { smt, declared, names, bits, assumed: Vec::new(), answers: HashMap::new() }
    }

    /// The number of questions so far.
    pub fn asked(&self) -> usize {
        self.answers.len()
    }

    /// The value of that name, which may be any.
    pub fn any(&mut self, name: &str) -> Value {
        let term = self.smt.atom(name);
        if self.declared.insert(term) {
            let sort = self.smt.bit_vec_sort(self.smt.numeral(64));
            self.smt.declare_const(name, sort).expect("z3 answers");
        }
        Value::Term(term)
    }

    /// The value of that name, which has `value` in the bits of `known`. The name is for these bits alone.
    pub fn any_with(&mut self, name: &str, known: u64, value: u64) -> Value {
        let any = self.any(name);
        let has = self.with(How::And, any, known);
        let claim = self.is(has, Value::Known(value));
        self.assume(claim);
        let Value::Term(term) = any else { unreachable!("nothing is known of it") };
        self.bits.insert(term, Bits { known, value });
        any
    }

    fn term(&self, value: Value) -> SExpr {
        match value {
            Value::Known(value) => self.smt.binary(64, value),
            Value::Term(term) => term,
        }
    }

    fn bits_of(&self, value: Value) -> Bits {
        match value {
            Value::Known(value) => Bits { known: u64::MAX, value },
            Value::Term(term) => self.bits.get(&term).copied().unwrap_or(Bits { known: 0, value: 0 }),
        }
    }

    pub fn compute(&mut self, how: How, a: Value, b: Value) -> Value {
        let bits = Bits::of(how, self.bits_of(a), self.bits_of(b));
        if bits.known == u64::MAX {
            return Value::Known(bits.value);
        }
        if matches!(how, How::Add | How::Left | How::Right) && b == Value::Known(0) {
            return a;
        }
        let (a, b, smt) = (self.term(a), self.term(b), &self.smt);
        let term = match how {
            How::Add => smt.bvadd(a, b),
            How::And => smt.bvand(a, b),
            How::Or => smt.bvor(a, b),
            How::Left => smt.bvshl(a, b),
            How::Right => smt.bvlshr(a, b),
            How::AddEighth => smt.bvadd(smt.bvshl(a, smt.binary(64, 3u64)), b),
        };
        if bits.known != 0 {
            self.bits.insert(term, bits);
        }
        Value::Term(term)
    }

    /// Computes with a known value.
    pub fn with(&mut self, how: How, a: Value, b: u64) -> Value {
        self.compute(how, a, Value::Known(b))
    }

    /// Minus a value.
    pub fn negative(&self, value: Value) -> Value {
        match value {
            Value::Known(value) => Value::Known(value.wrapping_neg()),
            Value::Term(term) => Value::Term(self.smt.bvneg(term)),
        }
    }

    pub fn holds(&self, test: Test, a: Value, b: Value) -> Claim {
        match (a, b) {
            (Value::Known(a), Value::Known(b)) => return Claim::Known(test.of(a, b)),
            _ if a == b => return Claim::Known(test == Test::Equal),
            _ => {}
        }
        let (a, b) = (self.term(a), self.term(b));
        Claim::Term(match test {
            Test::Equal => self.smt.eq(a, b),
            Test::Less => self.smt.bvslt(a, b),
            Test::Below => self.smt.bvult(a, b),
        })
    }

    pub fn is(&self, a: Value, b: Value) -> Claim {
        self.holds(Test::Equal, a, b)
    }

    pub fn not(&self, claim: Claim) -> Claim {
        match claim {
            Claim::Known(known) => Claim::Known(!known),
            Claim::Term(term) => Claim::Term(self.smt.not(term)),
        }
    }

    pub fn all<const N: usize>(&self, claims: [Claim; N]) -> Claim {
        if claims.contains(&Claim::Known(false)) {
            return Claim::Known(false);
        }
        let terms: Vec<SExpr> = claims.into_iter().filter_map(Claim::term).collect();
        if terms.is_empty() { Claim::Known(true) } else { Claim::Term(self.smt.and_many(terms)) }
    }

    pub fn some<const N: usize>(&self, claims: [Claim; N]) -> Claim {
        let none = self.all(claims.map(|claim| self.not(claim)));
        self.not(none)
    }

    pub fn assume(&mut self, claim: Claim) {
        match claim {
            Claim::Known(true) => {}
            Claim::Known(false) => self.assumed.push(self.smt.false_()),
            Claim::Term(term) => self.assumed.push(term),
        }
    }

    /// Marks the present assumptions. [`Solver::forget`] with the result forgets those made since.
    pub fn remember(&self) -> usize {
        self.assumed.len()
    }

    pub fn forget(&mut self, from: usize) {
        self.assumed.truncate(from);
    }

    /// The names in a term.
    fn names_in(&mut self, term: SExpr) -> Vec<SExpr> {
        if let Some(names) = self.names.get(&term) {
            return names.clone();
        }
        let parts = self.smt.get_list(term).map(<[SExpr]>::to_vec);
        let all: HashSet<SExpr> = match parts {
            Some(parts) => parts.into_iter().flat_map(|part| self.names_in(part)).collect(),
            None => self.declared.get(&term).copied().into_iter().collect(),
        };
        let names: Vec<SExpr> = all.into_iter().collect();
        self.names.insert(term, names.clone());
        names
    }

    /// The assumptions about the names in `claim`, and about those that they name, and so on. The others say nothing
    /// about them.
    fn about(&mut self, claim: SExpr) -> Vec<SExpr> {
        let mut names: HashSet<SExpr> = self.names_in(claim).into_iter().collect();
        let mut rest = self.assumed.clone();
        let mut about = vec![claim];
        loop {
            let before = about.len();
            for term in std::mem::take(&mut rest) {
                let its = self.names_in(term);
                if its.is_empty() || its.iter().any(|name| names.contains(name)) {
                    names.extend(its);
                    about.push(term);
                } else {
                    rest.push(term);
                }
            }
            if about.len() == before {
                return about;
            }
        }
    }

    fn ask(&mut self, question: &[SExpr]) -> io::Result<bool> {
        self.smt.push()?;
        self.smt.assert(self.smt.and_many(question.iter().copied()))?;
        let response = self.smt.check()?;
        self.smt.pop()?;
        match response {
            Response::Sat => Ok(true),
            Response::Unsat => Ok(false),
            Response::Unknown => Err(io::Error::other("z3 does not know")),
        }
    }

    /// Returns whether a claim can be true under the assumptions, if those can be.
    pub fn may_be(&mut self, claim: Claim) -> bool {
        let claim = match claim {
            Claim::Known(known) => return known,
            Claim::Term(term) => term,
        };
        if self.assumed.contains(&claim) {
            return true;
        }
        let question = self.about(claim);
        if let Some(answer) = self.answers.get(&question) {
            return *answer;
        }
        let answer = self.ask(&question).expect("z3 answers");
        self.answers.insert(question, answer);
        answer
    }

    /// Returns whether the claim must be true.
    pub fn must_be(&mut self, claim: Claim) -> bool {
        match claim {
            Claim::Term(term) if self.assumed.contains(&term) => true,
            _ => !self.may_be(self.not(claim)),
        }
    }
}

impl Claim {
    fn term(self) -> Option<SExpr> {
        match self {
            Claim::Known(_) => None,
            Claim::Term(term) => Some(term),
        }
    }
}
