//! Harts whose TLBs remember what they saw.

use oracle::Machine;
use rv::format::SV39;
use rv::{
    Access, Addr, Caps, Entry, Fence, FenceScope, Gpa, Hpa, L2Gva, Leaf, Level, Mode, Pfn, PhysMem, Pte, PteFlags,
    Request,
};
use std::cell::RefCell;

/// Names the ASID of a root.
pub type Id = (u64, u64);

/// Hardware does not let an access through.
pub enum Refusal {
    /// A table says so.
    PageFault,
}

/// A translation that a TLB holds.
#[derive(Clone, Copy, Debug)]
pub struct Cached {
    pub id: Id,
    pub page: u64,
    pub level: Level,
    pub leaf: Leaf<Hpa>,
}

/// A hart's TLB: leaves, and pointers above a page at a level.
#[derive(Default)]
pub struct Hart {
    pub tlb: Vec<Cached>,
    pub pointers: Vec<(Id, u64, Level, Pfn<Hpa>)>,
}

impl Hart {
    pub fn forget(&mut self, id: Id) {
        self.tlb.retain(|cached| cached.id != id);
        self.pointers.retain(|(whose, ..)| *whose != id);
    }

    pub fn forget_page(&mut self, gva: Addr<L2Gva>) {
        self.tlb.retain(|c| c.page != gva.pfn().raw() & !(c.level.pages() - 1));
    }

    pub fn forget_all(&mut self) {
        self.tlb.clear();
        self.pointers.clear();
    }
}

pub struct Hardware {
    pub machine: Machine,
    pub harts: Vec<Hart>,
    dice: u64,
}

pub struct Bus(pub RefCell<Hardware>);
pub struct Mem<'a>(pub &'a Bus);
pub struct AllHarts<'a>(pub &'a Bus);

impl Hardware {
    pub fn new(seed: u64) -> Self {
        let dice = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { machine: Machine::new(), harts: Vec::new(), dice }
    }

    /// A number below that one (xorshift64*).
    pub fn pick(&mut self, below: u64) -> u64 {
        self.dice ^= self.dice >> 12;
        self.dice ^= self.dice << 25;
        self.dice ^= self.dice >> 27;
        (self.dice.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20) % below
    }

    /// Translates as hardware does, by what it remembers or by a walk.
    pub fn translate(
        &mut self,
        hart: usize,
        (id, root): (Id, Pfn<Hpa>),
        gva: Addr<L2Gva>,
        request: &Request,
    ) -> Result<Leaf<Hpa>, Refusal> {
        let page = gva.pfn().raw();
        let judge = |leaf: Leaf<Hpa>| if permits(leaf.flags, request) { Ok(leaf) } else { Err(Refusal::PageFault) };
        let covers = |c: &&Cached| c.id == id && c.page == page & !(c.level.pages() - 1);
        if self.pick(4) != 0
            && let Some(known) = self.harts[hart].tlb.iter().find(covers)
        {
            return judge(known.leaf);
        }
        let (mut table, mut from) = (root, Level::GIGA);
        let use_pointers = self.pick(2) == 0;
        let is_on_the_way =
            |p: &&(Id, u64, Level, Pfn<Hpa>)| use_pointers && p.0 == id && p.1 == page & !(p.2.pages() - 1);
        if let Some((_, _, level, next)) = self.harts[hart].pointers.iter().find(is_on_the_way) {
            (table, from) = (*next, level.down().expect("a pointer"));
        }
        if !SV39.fits(gva) {
            return Err(Refusal::PageFault);
        }
        for level in SV39.levels_down().filter(|level| *level <= from) {
            let pte = Pte(self.machine.peek(table.at(8 * SV39.index(gva, level) as u64).raw()).expect("a table"));
            match pte.decode::<Hpa>(level, Caps::default()) {
                Entry::Table(next) => {
                    table = next;
                    let pointers = &mut self.harts[hart].pointers;
                    if pointers.len() < 8 {
                        pointers.push((id, page & !(level.pages() - 1), level, next));
                    }
                }
                Entry::Leaf(leaf) => {
                    let first = page & !(level.pages() - 1);
                    let judged = judge(leaf)?;
                    if self.harts[hart].tlb.len() < 8 {
                        self.harts[hart].tlb.push(Cached { id, page: first, level, leaf });
                    }
                    return Ok(judged);
                }
                Entry::Invalid => return Err(Refusal::PageFault),
                Entry::Reserved(why) => panic!("SUBSET: {why:?} in a shadow table"),
            }
        }
        panic!("SUBSET: a pointer at level 0")
    }

    /// All leaves below a shadow table: the page, the level, the leaf.
    pub fn collect(&self, table: Pfn<Hpa>, level: Level, page: u64, seen: &mut Vec<(u64, Level, Leaf<Hpa>)>) {
        for (index, word) in (0..).zip(self.machine.frame(table)).filter(|(_, word)| **word & 1 == 1) {
            let page = page | (index * level.pages());
            match Pte(*word).decode::<Hpa>(level, Caps::default()) {
                Entry::Table(next) => self.collect(next, level.down().expect("a pointer"), page, seen),
                Entry::Leaf(leaf) => seen.push((page, level, leaf)),
                other => panic!("SUBSET: {other:?} in a shadow table"),
            }
        }
    }
}

/// Returns whether a leaf lets an access through.
fn permits(flags: PteFlags, request: &Request) -> bool {
    let has = |flag| flags.contains(flag);
    let mode = match request.mode {
        Mode::User => has(PteFlags::U),
        Mode::Supervisor => !has(PteFlags::U) || (request.sum && request.access != Access::Fetch),
    };
    mode && has(PteFlags::A)
        && match request.access {
            Access::Load => has(PteFlags::R) || ((request.mxr || request.hs_mxr) && has(PteFlags::X)),
            Access::Store => has(PteFlags::W | PteFlags::D),
            Access::Fetch | Access::LoadExec => has(PteFlags::X),
        }
}

impl PhysMem for Mem<'_> {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        self.0.0.borrow().machine.read_u64(at)
    }
    fn write_u64(&mut self, at: Addr<Hpa>, value: u64) {
        self.0.0.borrow_mut().machine.write_u64(at, value);
    }
    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        self.0.0.borrow_mut().machine.compare_exchange_u64(at, old, new)
    }
    fn exchange_u64(&mut self, at: Addr<Hpa>, new: u64) -> u64 {
        self.0.0.borrow_mut().machine.exchange_u64(at, new)
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

impl Fence<Gpa> for AllHarts<'_> {
    fn fence(&mut self, _: FenceScope<Gpa>) {
        self.0.0.borrow_mut().harts.iter_mut().for_each(Hart::forget_all);
    }
}
