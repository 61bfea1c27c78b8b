//! The machine under test: memory, and harts whose TLBs remember what they saw. Another hart may store and
//! fence, by the lane, in the middle of whatever the engine does: that is what [`Bus::tick`] is for.

use super::history::History;
use super::lane;
use super::subject::Subject;
use ::lane::context::token;
use ::lane::{FenceLog, LaneSync};
use mmu::globals::Globals;
use mmu::shadow::{MARK, Root};
use mmu::table::{self, State, Writer};
use oracle::Machine;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rv::{
    Access, Addr, Caps, Entry, Fence, FenceScope, Format, Gpa, Hpa, Leaf, Level, Mode, Pfn, PhysMem, Pte, PteFlags,
    Request,
};
use std::cell::RefCell;
use std::rc::Rc;

/// The reason for which hardware does not let an access through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A table says so.
    PageFault,
    /// A frame is denied, of a table or of memory.
    AccessFault,
}

/// A translation that a TLB holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached {
    /// The number that stands for its ASID ([`Hart::id`]).
    pub id: u64,
    pub page: u64,
    pub level: Level,
    pub leaf: Leaf<Hpa>,
}

impl Cached {
    fn covers(&self, id: u64, page: u64) -> bool {
        (self.id == id || self.is_global()) && self.page == page & !(self.level.pages() - 1)
    }

    /// Returns whether it serves for all ASIDs.
    pub fn is_global(&self) -> bool {
        self.leaf.flags.contains(PteFlags::G)
    }

    /// Returns whether it leads to the denied frame.
    pub fn is_poison(&self) -> bool {
        table::is_poison(Entry::Leaf(self.leaf).encode())
    }

    pub fn hpa<S: Subject>(&self, gva: Addr<S>) -> Addr<Hpa> {
        self.leaf.pfn.at(gva.raw() & (self.level.bytes() - 1))
    }
}

/// A hart's TLB, and what it translates by.
pub struct Hart<S: Subject> {
    pub tlb: Vec<Cached>,
    /// Translations by the guest's own tables that it remembers under the VMID of the vCPU here, which a fence of the
    /// G-stage need not end: which root and ASID, which page, and where that leads.
    pub nested: Vec<(u64, u64, Addr<Gpa>, PteFlags)>,
    /// Pointers that it remembers: whose, above which page and at which level, and where they lead.
    pub pointers: Vec<(u64, u64, Level, Pfn<Hpa>)>,
    /// The owner of the global translations that there may be.
    pub globals: Globals,
    /// Names the stay of the vCPU on this hart: it has other ASIDs in each.
    pub stay: u64,
    /// The ASID that stands for the present root, its table and how it is walked.
    pub root: Option<(u64, Pfn<Hpa>, &'static Format)>,
    /// Set if the lane may take fences of all address spaces, and of the hart's own.
    pub lane: (bool, bool),
    /// The inputs by which the lane brings entries in step, if it does.
    pub sync: Option<LaneSync>,
    pub token: u64,
    pub log: Rc<RefCell<FenceLog<S>>>,
}

impl<S: Subject> Hart<S> {
    pub fn forget_all(&mut self) {
        self.tlb.clear();
        self.pointers.clear();
    }

    /// Returns the number that stands for the vCPU's ASID for a root here.
    fn id(&self, root: &Root<S>) -> u64 {
        self.stay << 32 | root.serial
    }

    /// Global translations stay.
    pub fn forget_root(&mut self, root: &Root<S>) {
        let id = self.id(root);
        self.tlb.retain(|cached| cached.id != id || cached.is_global());
        self.pointers.retain(|(whose, ..)| *whose != id);
    }

    /// The root is the present one.
    pub fn load(&mut self, root: &Root<S>) {
        self.root = Some((self.id(root), root.table, root.format));
    }

    /// Exchanges the translations that the vCPU on this hart has left with those on the other.
    pub fn swap(&mut self, other: &mut Self) {
        core::mem::swap(&mut self.tlb, &mut other.tlb);
        core::mem::swap(&mut self.pointers, &mut other.pointers);
        core::mem::swap(&mut self.globals, &mut other.globals);
    }
}

/// The store and the fence of another hart in the middle of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Meddling<S: Subject> {
    pub hart: usize,
    /// A guest's entry: through which address it is stored to, and what.
    pub store: (Addr<S>, Addr<Gpa>, u64),
    /// The address that it fences then, by the lane, if it can; and whether with its ASID.
    pub fence: (Addr<S>, bool),
}

/// Something that the history must be told, in its order.
#[derive(Clone, Copy, Debug)]
pub enum Event<S: Subject> {
    /// The engine has exchanged a word, a guest's or its own.
    Exchanged(Addr<Hpa>, u64, u64),
    /// The guest has stored one.
    Stored(Addr<Gpa>, u64, u64),
    /// The lane has done a hart's fence, with its ASID or without.
    Fenced(usize, Addr<S>, bool),
}

pub struct Hardware<S: Subject> {
    pub machine: Machine,
    pub harts: Vec<Hart<S>>,
    pub history: History,
    pub rng: TestRng,
    /// The number of accesses of the engine to memory after which another hart does something, and what.
    pub meddling: Option<(u32, Meddling<S>)>,
    /// The events since the history was last told.
    pub events: Vec<Event<S>>,
    /// Fences of all harts do nothing.
    pub drops_fences: bool,
    /// Harts always go by a translation that they remember, and nearly always by a pointer, if they can.
    pub is_stubborn: bool,
}

/// Pointers that a hart remembers.
const MOST_POINTERS: usize = 12;

pub struct Bus<S: Subject>(pub RefCell<Hardware<S>>);

pub struct Mem<'a, S: Subject>(pub &'a Bus<S>);
pub struct AllHarts<'a, S: Subject>(pub &'a Bus<S>);

pub fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

impl<S: Subject> Hardware<S> {
    pub fn pick(&mut self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    /// The hart's own walk of the shadow, which may begin at a pointer that it remembers.
    fn walk(&mut self, hart: usize, gva: Addr<S>) -> Result<Cached, Refusal> {
        let (id, mut table, format) = self.harts[hart].root.expect("loaded");
        if !format.fits(gva) {
            return Err(Refusal::PageFault);
        }
        let mut skip_to = format.root_level();
        let is_on_the_way = |(whose, page, level, _): &&(u64, u64, Level, _)| {
            *whose == id && *page == gva.pfn().raw() & !(level.pages() - 1)
        };
        let (chance, pick) = (self.pick(8), self.pick(MOST_POINTERS as u64) as usize);
        let pointers = &self.harts[hart].pointers;
        let known = match self.is_stubborn && chance != 0 {
            true => pointers.iter().find(is_on_the_way),
            false => pointers.get(pick).filter(is_on_the_way),
        };
        if let Some(&(_, _, level, next)) = known {
            (table, skip_to) = (next, level.down().expect("a pointer is above level 0"));
        }
        for level in format.levels_down().filter(|level| *level <= skip_to) {
            let word = self.machine.peek(table.at(8 * format.index(gva, level) as u64).raw());
            let pte = Pte(word.ok_or(Refusal::AccessFault)?);
            match pte.decode::<Hpa>(level, Caps::default()) {
                Entry::Table(next) => {
                    table = next;
                    // One to poison, too: it is valid, and whether memory is denied is seen only where it leads.
                    let pointers = &mut self.harts[hart].pointers;
                    if pointers.len() < MOST_POINTERS {
                        pointers.push((id, gva.pfn().raw() & !(level.pages() - 1), level, next));
                    }
                }
                Entry::Leaf(leaf) => {
                    let page = gva.pfn().raw() & !(level.pages() - 1);
                    return Ok(Cached { id, page, level, leaf });
                }
                Entry::Invalid => return Err(Refusal::PageFault),
                Entry::Reserved(why) => panic!("SUBSET: {why:?} in a shadow table: {pte:x?}"),
            }
        }
        panic!("SUBSET: a pointer at level 0")
    }

    /// Returns the hart's translation of `gva`, if it lets the access through.
    ///
    /// # Errors
    /// The reason if it does not.
    pub fn translate(&mut self, hart: usize, gva: Addr<S>, request: &Request) -> Result<Cached, Refusal> {
        let id = self.harts[hart].root.expect("loaded").0;
        let judge = |cached: Cached| match () {
            () if !permits(cached.leaf.flags, request) => Err(Refusal::PageFault),
            () if cached.is_poison() => Err(Refusal::AccessFault),
            () => Ok(cached),
        };
        if self.pick(4) != 0 || self.is_stubborn {
            let page = gva.pfn().raw();
            let known: Vec<Cached> = self.harts[hart].tlb.iter().filter(|c| c.covers(id, page)).copied().collect();
            if !known.is_empty() {
                let known = known[self.pick(known.len() as u64) as usize];
                // A refusal may come out of the TLB, too.
                return judge(known);
            }
        }
        let cached = self.walk(hart, gva)?;
        let judged = judge(cached);
        // Whether memory is denied may be known by the translation only.
        if judged == Err(Refusal::PageFault) {
            return judged;
        }
        let tlb = &mut self.harts[hart].tlb;
        if tlb.len() == 12 {
            let at = (self.rng.next_u64() % 12) as usize;
            tlb.swap_remove(at);
        }
        tlb.push(cached);
        judged
    }

    /// Returns whether the tables let the access through, whatever the hart remembers.
    pub fn is_allowed(&self, hart: usize, gva: Addr<S>, request: &Request) -> bool {
        let (id, mut table, format) = self.harts[hart].root.expect("loaded");
        for level in format.levels_down() {
            let Some(word) = self.machine.peek(table.at(8 * format.index(gva, level) as u64).raw()) else {
                return false;
            };
            match Pte(word).decode::<Hpa>(level, Caps::default()) {
                Entry::Table(next) => table = next,
                Entry::Leaf(leaf) => {
                    let cached = Cached { id, page: 0, level, leaf };
                    return permits(leaf.flags, request) && !cached.is_poison();
                }
                _ => return false,
            }
        }
        false
    }

    /// A store of the guest's that hardware lets through.
    pub fn store(&mut self, gpa: Addr<Gpa>, hpa: Addr<Hpa>, value: u64) {
        let old = self.machine.peek(hpa.raw()).expect("memory");
        self.machine.write_u64(hpa, value);
        self.events.push(Event::Stored(gpa, old, value));
    }

    pub fn forget_page(&mut self, hart: usize, gva: Addr<S>) {
        let page = gva.pfn().raw();
        self.harts[hart].tlb.retain(|c| c.page != page & !(c.level.pages() - 1));
    }

    /// The lane's work (`crates/metal`, `docs/lane.md`), as a model. Says whether it took the fence.
    pub fn lane(&mut self, hart: usize, gva: Addr<S>, by_asid: bool) -> bool {
        let state = &self.harts[hart];
        let (Some((_, mut table, format)), (all, own)) = (state.root, state.lane) else { return false };
        if !(all && (own || !by_asid)) {
            return false;
        }
        if let Some(inputs) = state.sync {
            let log = (!by_asid).then(|| Rc::clone(&state.log));
            if !lane::sync(&mut self.machine, &inputs, (table, format), gva) {
                return false;
            }
            if let Some(log) = log {
                log.borrow_mut().push(gva);
            }
            self.forget_page(hart, gva);
            self.events.push(Event::Fenced(hart, gva, by_asid));
            return true;
        }
        for level in format.levels_down() {
            let at = table.at(8 * format.index(gva, level) as u64);
            if level == Level::PAGE {
                let token = if by_asid {
                    self.harts[hart].token += token::STEP;
                    self.harts[hart].token
                } else {
                    let mut log = self.harts[hart].log.borrow_mut();
                    log.push(gva);
                    log.token()
                };
                assert!(State::of(Pte(token)).may_be_made_by(Writer::Lane, level));
                self.machine.write_u64(at, token);
                break;
            }
            let pte = Pte(self.machine.peek(at.raw()).expect("a shadow table"));
            if !pte.flags().contains(MARK) {
                return false;
            }
            let Entry::Table(next) = pte.decode::<Hpa>(level, Caps::default()) else { panic!("MARK on {pte:x?}") };
            table = next;
        }
        self.forget_page(hart, gva);
        self.events.push(Event::Fenced(hart, gva, by_asid));
        true
    }

    /// Like [`Hardware::lane`], for a fence of all addresses and all ASIDs.
    pub fn lane_wide(&mut self, hart: usize, blindly: bool) -> bool {
        let state = &self.harts[hart];
        let (Some((_, table, _)), Some(inputs), (true, _)) = (state.root, state.sync, state.lane) else { return false };
        if !lane::wide(&mut self.machine, &inputs, table.base(), blindly) {
            return false;
        }
        state.log.borrow_mut().push_everything();
        self.harts[hart].forget_all();
        true
    }

    fn meddle(&mut self, what: Meddling<S>) {
        let (through, gpa, value) = what.store;
        let request = S::request(Request { sum: true, ..Request::supervisor(Access::Store) });
        if let Ok(found) = self.translate(what.hart, through, &request) {
            self.store(gpa, found.hpa(through), value);
        }
        self.lane(what.hart, what.fence.0, what.fence.1);
    }
}

/// Returns whether a leaf lets an access through.
pub fn permits(flags: PteFlags, request: &Request) -> bool {
    let has = |flag| flags.contains(flag);
    let mode = match request.mode {
        Mode::User => has(PteFlags::U),
        Mode::Supervisor => !has(PteFlags::U) || (request.sum && request.access != Access::Fetch),
    };
    mode && has(PteFlags::A)
        && match request.access {
            Access::Load => has(PteFlags::R) || (request.mxr && has(PteFlags::X)),
            Access::Store => has(PteFlags::W | PteFlags::D),
            Access::Fetch | Access::LoadExec => has(PteFlags::X),
        }
}

impl<S: Subject> Bus<S> {
    fn tick(&self) {
        let mut hardware = self.0.borrow_mut();
        match &mut hardware.meddling {
            Some((0, what)) => {
                let what = *what;
                hardware.meddling = None;
                hardware.meddle(what);
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
    }
}

impl<S: Subject> PhysMem for Mem<'_, S> {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        self.0.tick();
        self.0.0.borrow().machine.read_u64(at)
    }
    fn write_u64(&mut self, at: Addr<Hpa>, value: u64) {
        self.0.tick();
        self.0.0.borrow_mut().machine.write_u64(at, value);
    }
    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        self.0.tick();
        self.0.0.borrow_mut().machine.exchange_u64(at, value)
    }
    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        self.0.tick();
        let mut hardware = self.0.0.borrow_mut();
        hardware.machine.compare_exchange_u64(at, old, new)?;
        hardware.events.push(Event::Exchanged(at, old, new));
        Ok(())
    }
    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        self.0.0.borrow_mut().machine.zero_frames(first, pages);
    }
    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64) {
        self.0.0.borrow_mut().machine.copy_frames(from, to, pages);
    }
    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]) {
        self.0.0.borrow().machine.read_bytes(at, into);
    }
    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]) {
        self.0.0.borrow_mut().machine.write_bytes(at, from);
    }
}

impl<S: Subject> Fence<Gpa> for AllHarts<'_, S> {
    fn fence(&mut self, _: FenceScope<Gpa>) {
        let mut hardware = self.0.0.borrow_mut();
        if !hardware.drops_fences {
            hardware.harts.iter_mut().for_each(Hart::forget_all);
        }
    }
}
