//! Memory and fences as the engine sees them: all is passed on, or one thing is broken on purpose. A check that
//! no mutant can trip checks nothing.

use oracle::{FenceModel, Machine};
use rv::{Addr, Fence, FenceScope, Gpa, Hpa, Pfn, PhysMem};

/// The part that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Nothing.
    None,
    /// Fences do nothing.
    DropsFences,
    /// Only hart 0 fences.
    FencesOneHart,
    /// Only the first page of a range is fenced.
    FencesOnePage,
    /// Fences of everything become fences of all addresses.
    FencesLeavesOnly,
    /// Frames are freed, then the fence happens.
    FreesBeforeTheFence,
    /// Retired frames are never given back.
    Leaks,
    /// Image leaves are writable.
    GrantsWrite,
    /// Leaves are not user pages.
    ForgetsUser,
    /// Leaves have A=0: the guest faults for ever.
    ForgetsAccessed,
    /// A table made by a split lacks an entry.
    ForgetsOneOfASplit,
    /// Pages are not cleared.
    ForgetsToZero,
    /// Image pages are not copied.
    ForgetsToCopy,
    /// Tables are linked before they are complete.
    LinksTooEarly,
    /// Entries of removed leaves stay.
    ForgetsToClear,
    /// The debt of an edit of an image's leaf is not known: the entry is said to have been empty.
    ForgetsDebtOfImages,
    /// The fence of a page that becomes idle does not happen.
    RestsWithoutFence,
    /// An idle page goes before its fence.
    TakesBeforeTheFence,
    /// A page that was idle is mapped without W.
    RevivesReadOnly,
    /// A page that was idle is mapped to a frame of the neighbouring 2 MiB.
    RevivesElsewhere,
    /// Idle 2 MiB are split into pages that harts can use.
    SplitsIntoMapped,
    /// A page comes in without its contents.
    BringsNothing,
    /// Unmapping does not see idle pages.
    ForgetsIdle,
    /// Unmapping does not see pages that are out.
    ForgetsSlots,
    /// The contents of 4 KiB leaves are not taken over by the leaf that replaces them.
    ForgetsToTakeOver,
    /// The contents of 4 KiB leaves are taken over before their table goes, and not after the fence.
    TakesOverEarly,
    /// An original goes that harts may remember.
    WithdrawsWithoutFence,
    /// An original goes that harts reach.
    ForgetsUseOfOriginals,
    /// An original is looked for where it was, and not where it came back to.
    BringsOriginalsHome,
}

/// Entries that the engine sees as if they were 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blind {
    No,
    Idle,
    Out,
}

/// Memory and fences as the engine sees them.
pub struct World {
    pub model: FenceModel,
    pub mutant: Mutant,
    pub blind: Blind,
    /// Writes held back by [`Mutant::LinksTooEarly`].
    held: Vec<Held>,
    writes: u64,
    /// Memory as it was when a table was taken away, until what replaces it is there.
    early: Option<Machine>,
}

enum Held {
    Word(Addr<Hpa>, u64),
    Zero(Pfn<Hpa>, u64),
}

impl World {
    pub fn new(model: FenceModel, mutant: Mutant) -> Self {
        Self { model, mutant, blind: Blind::No, held: vec![], writes: 0, early: None }
    }

    /// Makes the writes visible that were held back.
    pub fn let_go(&mut self) {
        for held in std::mem::take(&mut self.held) {
            match held {
                Held::Word(at, value) => self.model.write_u64(at, value),
                Held::Zero(first, pages) => self.model.zero_frames(first, pages),
            }
        }
    }
}

const LEAF: u64 = 0b1011;
const OWNED: u64 = 1 << 8;
const OUT: u64 = 1 << 9;

/// An entry of an idle page.
const fn is_idle(pte: u64) -> bool {
    pte & (1 | OUT) == 0 && pte != 0
}

impl PhysMem for World {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        let found = self.model.read_u64(at);
        let is_hidden = match self.blind {
            Blind::No => false,
            Blind::Idle => is_idle(found),
            Blind::Out => found & (1 | OUT) == OUT,
        };
        if is_hidden { 0 } else { found }
    }

    fn write_u64(&mut self, at: Addr<Hpa>, mut value: u64) {
        let is_leaf = value & 1 == 1 && value & LEAF != 1;
        self.writes += 1;
        match self.mutant {
            Mutant::GrantsWrite if is_leaf && value & OWNED == 0 => value |= 0x84,
            Mutant::ForgetsUser if is_leaf => value &= !0x10,
            Mutant::ForgetsAccessed if is_leaf => value &= !0x40,
            Mutant::ForgetsOneOfASplit if self.writes % 512 == 300 => return,
            Mutant::ForgetsToClear if value == 0 => return,
            Mutant::RevivesReadOnly if is_leaf && is_idle(self.read_u64(at)) => value &= !0x84,
            Mutant::RevivesElsewhere if is_leaf && is_idle(self.read_u64(at)) => value ^= 1 << 19,
            Mutant::SplitsIntoMapped if !self.model.is_linked(at.pfn()) && is_idle(value) => return,
            Mutant::LinksTooEarly if self.model.is_linked(at.pfn()) => {
                self.model.write_u64(at, value);
                return self.let_go();
            }
            Mutant::LinksTooEarly => return self.held.push(Held::Word(at, value)),
            _ => {}
        }
        self.model.write_u64(at, value);
    }

    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        let old = self.read_u64(at);
        let is_about_taking = matches!(self.mutant, Mutant::TakesOverEarly | Mutant::ForgetsToTakeOver);
        if is_about_taking && old & 1 == 1 && old & LEAF == 1 && value == 0 {
            self.early = Some(self.model.machine.clone());
        }
        self.write_u64(at, value);
        let is_image = old & 1 == 1 && old & LEAF != 1 && old & OWNED == 0;
        if self.mutant == Mutant::ForgetsDebtOfImages && is_image { 0 } else { old }
    }

    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        match self.read_u64(at) {
            found if found == old => {
                self.early = None;
                self.write_u64(at, new);
                Ok(())
            }
            found => Err(found),
        }
    }

    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        match self.mutant {
            Mutant::ForgetsToZero => {}
            Mutant::LinksTooEarly => self.held.push(Held::Zero(first, pages)),
            _ => self.model.zero_frames(first, pages),
        }
    }

    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64) {
        match (self.mutant, self.early.take()) {
            (Mutant::ForgetsToCopy, _) => {}
            (Mutant::ForgetsToTakeOver, Some(early)) => self.early = Some(early),
            (Mutant::TakesOverEarly, Some(early)) => {
                let words = *early.frame(from);
                (0..).zip(words).for_each(|(n, word)| self.model.write_u64(to.at(8 * n), word));
                self.early = Some(early);
            }
            _ => self.model.copy_frames(from, to, pages),
        }
    }

    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]) {
        self.model.read_bytes(at, into);
    }

    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]) {
        self.model.write_bytes(at, from);
    }
}

impl Fence<Gpa> for World {
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        match (self.mutant, scope) {
            (Mutant::DropsFences, _) => {}
            (Mutant::FencesOneHart, _) => self.model.fence_hart(0, scope),
            (Mutant::FencesOnePage, FenceScope::Range { start, .. }) => {
                self.model.fence(FenceScope::Range { start, bytes: 4096 });
            }
            (Mutant::FencesLeavesOnly, FenceScope::Everything) => {
                self.model.fence(FenceScope::Range { start: Addr::new(0), bytes: 1 << 59 });
            }
            _ => self.model.fence(scope),
        }
    }
}
