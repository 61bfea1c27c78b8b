//! A hart: follows what its software does, and drives the models.

mod access;
mod exit;
mod trap;

pub use access::{AccessSite, MemoryAccess, Seen};
use access::{Filter, Made};
use exit::Exits;

use crate::args::Level;
use crate::array::{Invalidation, Regime};
use crate::block::{Block, NOWHERE};
use crate::check::{Check, Event};
use crate::core::ArraySpec;
use crate::counts::HartCounts;
use crate::insn::{Csr, FenceKind, Special};
use crate::mode::{Mode, PerMode};
use crate::model::{Model, Use};
use crate::shared::{Mark, Shared, Trap};
use crate::walk::{Roots, Space, Trace, Walker, Words, permissive};
use rv::Access;
use rv::csr::atp;

/// Codes of the marker instruction.
pub const MARK_BEGIN: i16 = 1;
/// The end of a region.
pub const MARK_END: i16 = 2;

/// A register that the meter reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "each is the register of its name")]
pub enum Register {
    Satp,
    Vsatp,
    Hgatp,
    Mtvec,
    Stvec,
    Vstvec,
    Mcause,
    Scause,
    Mepc,
    Sepc,
    Mtval,
    Stval,
    Mstatus,
    Sstatus,
    Vsstatus,
    Vscause,
    Vsepc,
    Vstval,
    Hstatus,
    Pc,
    /// An integer register.
    X(u8),
}

/// The machine, as far as it can be asked.
pub trait Machine: Words {
    /// A register of the hart whose callback this is, as software of its present mode would read it:
    /// with V=1 the supervisor's are those of the guest. 0 if the hart has none of the name.
    fn register(&self, register: Register) -> u64;
    /// The physical address of the access whose callback this is.
    fn physical(&self) -> Option<u64>;
}

/// The words that generated code reads and adds to, for each hart.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct Scoreboard {
    /// The place of the code that ran last; see [`Block::place`]. Blocks of other places call
    /// [`Hart::enter_block`].
    pub place: u64,
    /// Instructions that were attempted.
    pub insns: PerMode<u64>,
}

/// Effects that count only if execution continues behind the instruction; otherwise it has trapped.
#[derive(Clone, Copy, Debug)]
struct Pending {
    next: u64,
    mode: Mode,
    what: Effect,
}

impl Pending {
    /// Returns whether the instruction itself has raised this trap. Otherwise it was executed, and the trap came behind it.
    fn has_raised(&self, trap: &Trap) -> bool {
        // All instructions of `Special` have four bytes. What was translated for one virtual address runs
        // at others, too: only offsets can be compared.
        !trap.is_interrupt() && (self.next.wrapping_sub(4) ^ trap.epc) & (rv::PAGE_BYTES - 1) == 0
    }
}

#[derive(Clone, Copy, Debug)]
enum Effect {
    Fence { kind: FenceKind, address: Option<u64>, id: Option<u64> },
    CsrWrite(Csr),
}

/// The page and mode of a hart when it enters a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Here {
    at: u64,
    mode: Mode,
}

/// The page that was fetched from last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fetched {
    page: u64,
    mode: Mode,
    /// Of [`Shared::epoch`].
    epoch: u64,
}

/// A hart.
#[derive(Debug)]
pub struct Hart {
    roots: Roots,
    /// The translation below M, with V=0 and with V=1.
    spaces: [Option<Space>; 2],
    /// Trap vectors of M, S, VS.
    vectors: [u64; 3],
    pending: Option<Pending>,
    /// The target of the return from a trap that was about to be executed.
    returning: Option<u64>,
    exits: Exits,
    made: Made,
    filter: Filter,
    /// The filter may keep two pages: no TLB drops the last page but one for a new one.
    keeps_two: bool,
    fetched: Option<Fetched>,
    trace: Trace,
    models: Vec<Model>,
    counts: HartCounts,
    check: Option<Check>,
    block: u64,
    /// The counts at each mark.
    snapshots: Vec<HartCounts>,
}

impl Hart {
    /// A hart that has just been reset.
    #[must_use]
    pub fn new(shared: &Shared) -> Self {
        Self {
            roots: Roots::default(),
            spaces: [None; 2],
            vectors: [0; 3],
            pending: None,
            returning: None,
            exits: Exits::default(),
            made: Made::default(),
            filter: Filter::default(),
            keeps_two: shared.cores.iter().all(|core| core.l1d.iter().all(ArraySpec::keeps_recent)),
            fetched: None,
            trace: Trace::default(),
            models: shared.cores.iter().map(Model::new).collect(),
            counts: HartCounts::new(shared.cores.len()),
            check: (shared.level == Level::Check).then(Check::default),
            block: 0,
            snapshots: Vec::new(),
        }
    }

    /// The counts at each mark of [`Shared::marks`], and now.
    #[must_use]
    pub fn counts(&self, board: &Scoreboard) -> (Vec<HartCounts>, HartCounts) {
        (self.snapshots.clone(), self.now(board))
    }

    /// The findings of check mode.
    #[must_use]
    pub fn check(&self) -> Option<&Check> {
        self.check.as_ref()
    }

    fn now(&self, board: &Scoreboard) -> HartCounts {
        HartCounts { insns: board.insns, accesses: self.made.accesses(), ..self.counts.clone() }
    }

    /// Takes note of marks that other harts have set.
    fn catch_up(&mut self, board: &Scoreboard, shared: &Shared) {
        while self.snapshots.len() < shared.mark_count() {
            self.snapshots.push(self.now(board));
            self.counts.traps.marked();
        }
    }

    /// Sets a mark; whether it is kept.
    fn mark(&mut self, mark: Mark, board: &Scoreboard, shared: &Shared) -> bool {
        self.catch_up(board, shared);
        let is_kept = shared.mark(mark);
        if is_kept {
            self.catch_up(board, shared);
        }
        is_kept
    }

    /// A block is about to run, which is in another place than the one before, or is watched, or
    /// crosses into another page; for [`Level::Counts`], only one that is watched or comes behind an
    /// instruction of [`Special`]. Where it is, the register `pc` tells.
    pub fn enter_block(&mut self, block: Block, board: &mut Scoreboard, shared: &Shared, machine: &impl Machine) {
        self.catch_up(board, shared);
        board.place = block.place();
        let here = Here { at: machine.register(Register::Pc), mode: block.mode };
        self.block = here.at;
        let returning = self.returning.take();
        let mut traps = self.arrived(here, returning, machine);
        if let Some(pending) = self.pending.take()
            && !traps.iter().flatten().any(|trap| pending.has_raised(trap))
        {
            self.apply(pending, here.mode, shared, machine);
            // It may have been the vector that was set, and an interrupt may be there already.
            traps = self.arrived(here, returning, machine);
        }
        for trap in traps.iter().flatten() {
            self.take(trap, here.mode, shared, machine);
            self.left(trap, board);
        }
        if shared.level == Level::Counts {
            return;
        }
        self.fetch(here.at, here.mode, shared, machine);
        if block.crosses {
            self.fetch((here.at | (rv::PAGE_BYTES - 1)) + 1, here.mode, shared, machine);
            // What comes next was translated elsewhere, even in the first page.
            board.place = NOWHERE;
        }
    }

    /// Instructions are fetched from the page of `at`.
    fn fetch(&mut self, at: u64, mode: Mode, shared: &Shared, machine: &impl Machine) {
        let page = Some(Fetched { page: at >> rv::PAGE_SHIFT, mode, epoch: shared.epoch() });
        if self.fetched != page {
            self.translate(at, mode, Use::Fetch, shared, machine);
            self.fetched = page;
        }
    }

    /// An access to the page of `at`, which QEMU has allowed.
    #[inline]
    fn translate(&mut self, at: u64, mode: Mode, how: Use, shared: &Shared, machine: &impl Machine) {
        let Some(space) = space_of(&self.spaces, mode) else { return };
        let page = at >> rv::PAGE_SHIFT;
        // Most need no walk, nor all that goes with it.
        if self.check.is_some() || !self.models.iter_mut().all(|model| model.hits(how, page, space.ids)) {
            self.look_closely(at, mode, how, shared, machine);
        }
    }

    /// An access that some L1 TLB does not have, or that is to be checked.
    #[inline(never)]
    fn look_closely(&mut self, at: u64, mode: Mode, how: Use, shared: &Shared, machine: &impl Machine) {
        let Some(space) = space_of(&self.spaces, mode) else { return };
        let request = permissive(access_of(how), privilege(mode));
        let mut walker = Walker::new(&mut self.trace, space, at, request, machine);
        for (model, counts) in self.models.iter_mut().zip(&mut self.counts.cores) {
            model.access(how, mode, &mut walker, counts);
        }
        let Some(tables) = shared.tables() else { return };
        let page = at >> rv::PAGE_SHIFT;
        let block = self.block;
        let event = |generation| Event { page, how, mode, space, generation, block };
        if let Some(check) = &mut self.check
            && !check.is_verified(&event(tables.generation()))
        {
            let trace = walker.trace();
            tables.learn_walk(&trace.refs, space.has_g(), machine);
            // Only now: what was learnt is part of what was verified.
            check.access(&event(tables.generation()), &request, trace, &mut self.counts.stale, machine);
        }
        if walker.is_done() {
            let trace = walker.trace();
            self.counts.ad_updates[mode.index()] += tables.take_updates(&trace.refs);
            tables.learn_walk(&trace.refs, space.has_g(), machine);
        }
    }

    /// An instruction of [`Special`] is about to be executed; `next` is the address behind it.
    pub fn before(
        &mut self,
        special: Special,
        mode: Mode,
        next: u64,
        board: &mut Scoreboard,
        shared: &Shared,
        machine: &impl Machine,
    ) {
        if let Some(pending) = self.pending.take() {
            // Nothing between them was looked at; had it trapped, that would have been.
            self.apply(pending, mode, shared, machine);
        }
        let operand = |number: u8| (number != 0).then(|| machine.register(Register::X(number)));
        let pending = |what| Some(Pending { next, mode, what });
        match special {
            Special::Fence { kind, rs1, rs2 } => {
                self.pending = pending(Effect::Fence { kind, address: operand(rs1), id: operand(rs2) });
            }
            Special::CsrWrite(csr) => self.pending = pending(Effect::CsrWrite(csr)),
            Special::Return { from_m } => {
                let register = if from_m { Register::Mepc } else { Register::Sepc };
                self.returning = Some(machine.register(register));
                self.returns(from_m, mode, board, machine);
            }
            Special::Marker { label, code } => {
                let label = operand(label).unwrap_or(0);
                match code {
                    MARK_BEGIN => {
                        self.mark(Mark::Begin(label), board, shared);
                    }
                    MARK_END => {
                        // The marker itself is not of the region.
                        if self.mark(Mark::End(label), board, shared)
                            && let Some(last) = self.snapshots.last_mut()
                        {
                            last.insns[mode.index()] -= 1;
                        }
                    }
                    _ => {}
                }
                return;
            }
        }
        // Whatever block comes next is to be looked at.
        board.place = NOWHERE;
    }

    /// The instruction at `at` is about to be executed, in the block of the one before.
    pub fn reach(&mut self, at: u64, shared: &Shared, machine: &impl Machine) {
        if let Some(pending) = self.pending.take_if(|pending| pending.next == at) {
            self.apply(pending, pending.mode, shared, machine);
        }
    }

    /// Applies the pending effects; `now` is the mode in which registers are read.
    fn apply(&mut self, pending: Pending, now: Mode, shared: &Shared, machine: &impl Machine) {
        self.settle();
        self.forget_recent();
        self.fetched = None;
        match pending.what {
            Effect::Fence { kind, address, id } => self.fence(kind, address, id, pending.mode),
            Effect::CsrWrite(csr) => self.csr_written(csr, pending.mode, now, shared, machine),
        }
    }

    fn fence(&mut self, kind: FenceKind, address: Option<u64>, id: Option<u64>, mode: Mode) {
        let form = usize::from(address.is_some()) + 2 * usize::from(id.is_some());
        self.counts.fences[kind as usize][form][mode.index()] += 1;
        let vmid = atp::Hgatp::decode(self.roots.hgatp).vmid.0;
        let asid = id.map(|id| id as u16);
        let page = address.map(|address| address >> rv::PAGE_SHIFT);
        let what = match kind {
            FenceKind::Sfence | FenceKind::Sinval if !mode.is_virtual() => {
                Invalidation { regime: Regime::One, vmid: None, asid, page }
            }
            FenceKind::Sfence | FenceKind::Sinval | FenceKind::HfenceVvma | FenceKind::HinvalVvma => {
                Invalidation { regime: Regime::Two, vmid: Some(vmid), asid, page }
            }
            // norm:hfence-gvma_op: the register has the guest physical address shifted right by 2.
            FenceKind::HfenceGvma | FenceKind::HinvalGvma => Invalidation {
                regime: Regime::G,
                vmid: id.map(|id| (id & atp::VMID_BITS) as u16),
                asid: None,
                page: address.map(|address| address >> (rv::PAGE_SHIFT - 2)),
            },
        };
        self.models.iter_mut().for_each(|model| model.invalidate(&what));
        if let Some(check) = &mut self.check {
            check.invalidate(&what);
        }
    }

    /// Software of `mode` has written a register, which is read in mode `now`.
    fn csr_written(&mut self, csr: Csr, mode: Mode, now: Mode, shared: &Shared, machine: &impl Machine) {
        let before = self.roots;
        // With V=1 `satp` and `stvec` are the guest's: who writes them, and who reads them.
        let guests =
            |with_v: Register, without: Register| machine.register(if now.is_virtual() { with_v } else { without });
        match (csr, mode.is_virtual()) {
            (Csr::Satp, false) => self.roots.satp = machine.register(Register::Satp),
            (Csr::Satp, true) | (Csr::Vsatp, _) => self.roots.vsatp = guests(Register::Satp, Register::Vsatp),
            (Csr::Hgatp, _) => self.roots.hgatp = machine.register(Register::Hgatp),
            (Csr::Mtvec, _) => self.set_vector(0, machine.register(Register::Mtvec), shared),
            (Csr::Stvec, false) => self.set_vector(1, machine.register(Register::Stvec), shared),
            (Csr::Stvec, true) | (Csr::Vstvec, _) => {
                self.set_vector(2, guests(Register::Stvec, Register::Vstvec), shared);
            }
        }
        let now = self.roots;
        let changed = [before.satp != now.satp, before.vsatp != now.vsatp, before.hgatp != now.hgatp];
        if changed == [false; 3] {
            return;
        }
        self.counts.root_switches.iter_mut().zip(changed).for_each(|(count, changed)| *count += u64::from(changed));
        self.spaces = [Space::new(false, now), Space::new(true, now)];
        let id = |root: u64| (root >> atp::ID_SHIFT & atp::ASID_BITS) as u16;
        let vmid = atp::Hgatp::decode(now.hgatp).vmid.0;
        for model in &mut self.models {
            if id(before.satp) != id(now.satp) {
                model.switched_asid(Regime::One, 0);
            }
            if id(before.vsatp) != id(now.vsatp) {
                model.switched_asid(Regime::Two, vmid);
            }
            if id(before.hgatp) != id(now.hgatp) {
                model.switched_vmid();
            }
        }
        if let Some(tables) = shared.tables() {
            for space in self.spaces.iter().flatten() {
                for (frames, level) in space.physical_roots() {
                    tables.learn_root(frames, level, machine);
                }
            }
        }
    }

    fn set_vector(&mut self, whose: usize, vector: u64, shared: &Shared) {
        self.vectors[whose] = vector;
        shared.add_vector(vector, [Mode::M, Mode::S, Mode::VS][whose]);
    }
}

/// The translation for a mode.
fn space_of(spaces: &[Option<Space>; 2], mode: Mode) -> Option<&Space> {
    if mode == Mode::M { None } else { spaces[usize::from(mode.is_virtual())].as_ref() }
}

const fn access_of(how: Use) -> Access {
    match how {
        Use::Fetch => Access::Fetch,
        Use::Load => Access::Load,
        Use::Store => Access::Store,
    }
}

const fn privilege(mode: Mode) -> rv::Mode {
    if mode.is_user() { rv::Mode::User } else { rv::Mode::Supervisor }
}
