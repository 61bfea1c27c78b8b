//! Page walks, with every reference that they make to memory, in their order.

use crate::array::{Ids, Regime};
use mmu::{ReadPte, Reason, walk};
use rv::{Access, Addr, Caps, Format, Gpa, Gva, Hpa, Pfn, Pte, PteFlags, Request};

/// The machine's RAM.
pub trait Words {
    /// The 8 bytes at an 8-aligned physical address, or `None` if no RAM is there.
    fn word(&self, at: u64) -> Option<u64>;
}

/// The registers that hold the roots of tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Roots {
    /// `satp` of S (HS) mode.
    pub satp: u64,
    /// `vsatp`.
    pub vsatp: u64,
    /// `hgatp`.
    pub hgatp: u64,
}

/// A translation that is in force: one stage or two, and the tags of what comes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// The tags.
    pub ids: Ids,
    first: Option<(&'static Format, Pfn<Gpa>)>,
    g: Option<(&'static Format, Pfn<Hpa>)>,
}

impl Space {
    /// The roots' values for V=0 or V=1 (below M mode); `None` if nothing is translated.
    #[must_use]
    pub fn new(is_virtual: bool, roots: Roots) -> Option<Self> {
        use rv::csr::atp::{Hgatp, Satp};
        let root = Satp::decode(if is_virtual { roots.vsatp } else { roots.satp });
        let first = root.table();
        let regime = if is_virtual { Regime::Two } else { Regime::One };
        let asid = root.asid.0;
        let (g, vmid) = if is_virtual {
            let hgatp = Hgatp::decode(roots.hgatp);
            (hgatp.table(), hgatp.vmid.0)
        } else {
            (None, 0)
        };
        let space = Self { ids: Ids { regime, asid, vmid }, first, g };
        (first.is_some() || g.is_some()).then_some(space)
    }

    /// Returns whether `satp` or `vsatp` translates.
    #[must_use]
    pub const fn has_first(&self) -> bool {
        self.first.is_some()
    }

    /// Returns whether `hgatp` translates.
    #[must_use]
    pub const fn has_g(&self) -> bool {
        self.g.is_some()
    }

    /// The frames of its roots that are known without a translation, with their levels.
    pub fn physical_roots(&self) -> impl Iterator<Item = (std::ops::Range<u64>, u8)> + use<> {
        let frames = |root: u64, format: &Format| (root..root + format.root_pages(), format.levels - 1);
        let first = self.first.filter(|_| self.g.is_none()).map(|(format, root)| frames(root.raw(), format));
        let g = self.g.map(|(format, root)| frames(root.raw(), format));
        first.into_iter().chain(g)
    }

    /// The tags of G-stage entries.
    #[must_use]
    pub const fn g_ids(&self) -> Ids {
        Ids { regime: Regime::G, asid: 0, vmid: self.ids.vmid }
    }
}

/// The stage that an entry belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// The stage of `satp` or `vsatp`.
    First,
    /// The stage of `hgatp`.
    G,
}

/// A reference to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// The entry's stage.
    pub stage: Stage,
    /// The level of the entry.
    pub level: u8,
    /// The page that is being translated: virtual, or for the G-stage guest physical.
    pub input: u64,
    /// The physical address of the entry.
    pub at: u64,
    /// The entry.
    pub pte: u64,
}

impl Reference {
    /// Returns whether the entry is a valid pointer to a table.
    #[must_use]
    pub const fn is_pointer(&self) -> bool {
        self.level > 0 && self.pte & 0xf == PteFlags::V.bits()
    }

    /// Returns whether the entry is a valid leaf.
    #[must_use]
    pub const fn is_leaf(&self) -> bool {
        self.pte & 1 != 0 && self.pte & (PteFlags::R.bits() | PteFlags::X.bits()) != 0
    }

    /// log2 of the base pages that the entry stands for.
    #[must_use]
    pub const fn span(&self) -> u8 {
        9 * self.level
    }

    /// The page that the entry leads to: that of a table, or of a leaf.
    #[must_use]
    pub const fn target(&self) -> u64 {
        self.pte >> 10 & rv::csr::atp::PPN
    }
}

/// A leaf of one stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// log2 of its base pages.
    pub span: u8,
    /// Its flags.
    pub flags: PteFlags,
}

/// The result of a walk for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The page after the first stage.
    pub guest_page: u64,
    /// The physical page.
    pub page: u64,
    /// The leaf of the first stage, unless it is Bare.
    pub first: Option<Leaf>,
    /// The leaf of the G-stage, unless it is Bare.
    pub g: Option<Leaf>,
    /// True if it is of all ASIDs: by the leaf, or by a pointer above it.
    pub is_global: bool,
}

impl Mapping {
    /// log2 of the base pages that the whole translation holds for.
    #[must_use]
    pub fn span(&self) -> u8 {
        [self.first, self.g].into_iter().flatten().map(|leaf| leaf.span).min().unwrap_or(0)
    }

    /// log2 of the base pages of the first stage's leaf, or of the whole where there is none.
    #[must_use]
    pub fn first_span(&self) -> u8 {
        self.first.map_or_else(|| self.span(), |leaf| leaf.span)
    }

    /// log2 of the base pages of the larger leaf.
    #[must_use]
    pub fn largest_span(&self) -> u8 {
        [self.first, self.g].into_iter().flatten().map(|leaf| leaf.span).max().unwrap_or(0)
    }

    /// Returns whether D is set in each stage.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        [self.first, self.g].into_iter().flatten().all(|leaf| leaf.flags.contains(PteFlags::D))
    }
}

/// The reason for having no translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The stage that refuses.
    pub stage: Stage,
    /// An entry is where no RAM is.
    pub is_no_memory: bool,
}

/// A walk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The references in their order.
    pub refs: Vec<Reference>,
    /// The result of the references.
    pub outcome: Result<Mapping, Refused>,
}

impl Default for Trace {
    fn default() -> Self {
        Self { refs: Vec::new(), outcome: Err(Refused { stage: Stage::First, is_no_memory: false }) }
    }
}

/// A request that every leaf of the mode allows, whatever SUM and MXR are: for accesses that QEMU has
/// let through.
#[must_use]
pub const fn permissive(access: Access, mode: rv::Mode) -> Request {
    Request { access, mode, sum: true, mxr: true, hs_mxr: true }
}

const CAPS: Caps = Caps { svnapot: true, svpbmt: true };

/// Tables of the G-stage, in RAM.
struct GTables<'a, W> {
    words: &'a W,
    refs: &'a mut Vec<Reference>,
    input: u64,
    level: u8,
}

impl<W: Words> ReadPte<Hpa> for GTables<'_, W> {
    type Error = ();
    fn read(&mut self, at: Addr<Hpa>) -> Result<Pte, ()> {
        let pte = self.words.word(at.raw()).ok_or(())?;
        self.level -= 1;
        let (level, input) = (self.level, self.input);
        self.refs.push(Reference { stage: Stage::G, level, input, at: at.raw(), pte });
        Ok(Pte(pte))
    }
}

/// Tables of the first stage, behind the G-stage if there is one.
struct FirstTables<'a, W> {
    words: &'a W,
    refs: &'a mut Vec<Reference>,
    g: Option<(&'static Format, Pfn<Hpa>)>,
    input: u64,
    level: u8,
}

fn through_g<W: Words>(
    g: Option<(&'static Format, Pfn<Hpa>)>,
    gpa: Addr<Gpa>,
    request: &Request,
    words: &W,
    refs: &mut Vec<Reference>,
) -> Result<(u64, Option<Leaf>), Refused> {
    let Some((format, root)) = g else { return Ok((gpa.raw(), None)) };
    let mut tables = GTables { words, refs, input: gpa.pfn().raw(), level: format.levels };
    match walk(format, root, gpa, request, CAPS, &mut tables) {
        Ok(found) => Ok((found.out.raw(), Some(leaf(&found)))),
        Err(fault) => Err(Refused { stage: Stage::G, is_no_memory: matches!(fault.reason, Reason::Memory(())) }),
    }
}

fn leaf<S: rv::Space>(found: &mmu::Walk<S>) -> Leaf {
    let span = if found.leaf.napot { 4 } else { 9 * found.level.number() };
    Leaf { span, flags: found.leaf.flags }
}

impl<W: Words> ReadPte<Gpa> for FirstTables<'_, W> {
    type Error = Refused;
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, Refused> {
        // An implicit access is a user load of its own (norm:H_vm_gpapriv).
        let (at, _) = through_g(self.g, at, &Request::user(Access::Load), self.words, self.refs)?;
        let pte = self.words.word(at).ok_or(Refused { stage: Stage::First, is_no_memory: true })?;
        self.level -= 1;
        let (level, input) = (self.level, self.input);
        self.refs.push(Reference { stage: Stage::First, level, input, at, pte });
        Ok(Pte(pte))
    }
}

impl Trace {
    /// Walks for the address, in place of what was traced before. A and D are not looked at.
    pub fn walk<W: Words>(&mut self, space: &Space, address: u64, request: &Request, words: &W) {
        self.refs.clear();
        self.outcome = self.translate(space, address, request, words);
    }

    fn translate<W: Words>(
        &mut self,
        space: &Space,
        address: u64,
        request: &Request,
        words: &W,
    ) -> Result<Mapping, Refused> {
        let refs = &mut self.refs;
        let (guest, first) = match space.first {
            None => (address, None),
            Some((format, root)) => {
                let input = address >> rv::PAGE_SHIFT;
                let mut tables = FirstTables { words, refs, g: space.g, input, level: format.levels };
                let found = walk(format, root, Addr::<Gva>::new(address), request, CAPS, &mut tables);
                let found = found.map_err(|fault| match fault.reason {
                    Reason::Memory(refused) => refused,
                    _ => Refused { stage: Stage::First, is_no_memory: false },
                })?;
                (found.out.raw(), Some(leaf(&found)))
            }
        };
        let is_global = refs.iter().any(|entry| entry.stage == Stage::First && entry.pte & PteFlags::G.bits() != 0);
        let (page, g) = through_g(space.g, Addr::new(guest), &request.at_g_stage(), words, refs)?;
        let (guest_page, page) = (guest >> rv::PAGE_SHIFT, page >> rv::PAGE_SHIFT);
        Ok(Mapping { guest_page, page, first, g, is_global })
    }
}

/// The target of a walk for `address` that continues from a pointer at `level` to the table at page `table`: the page
/// after the stage (and after the G-stage behind it), if there is one.
pub fn walk_on<W: Words>(
    space: &Space,
    stage: Stage,
    address: u64,
    (level, table): (u8, u64),
    request: &Request,
    words: &W,
) -> Option<u64> {
    // What is left is a walk of fewer levels, for the lower bits of the address.
    let rest = Format { name: "the rest", levels: level, root_extra_bits: 0, mode: 0 };
    let unused = u64::BITS - rest.input_bits();
    let address = ((address << unused) as i64 >> unused) as u64;
    let mut refs = Vec::new();
    match stage {
        Stage::G => {
            let mut tables = GTables { words, refs: &mut refs, input: 0, level };
            let found = walk(&rest, Pfn::new(table), Addr::<Gpa>::new(address), request, CAPS, &mut tables).ok()?;
            Some(found.out.pfn().raw())
        }
        Stage::First => {
            let mut tables = FirstTables { words, refs: &mut refs, g: space.g, input: 0, level };
            let found = walk(&rest, Pfn::new(table), Addr::<Gva>::new(address), request, CAPS, &mut tables).ok()?;
            let (out, _) = through_g(space.g, found.out, &request.at_g_stage(), words, &mut refs).ok()?;
            Some(out >> rv::PAGE_SHIFT)
        }
    }
}

/// A walk that is made when it is first asked for: most accesses need none.
pub struct Walker<'a, W> {
    trace: &'a mut Trace,
    is_done: bool,
    space: &'a Space,
    address: u64,
    request: Request,
    words: &'a W,
}

impl<'a, W: Words> Walker<'a, W> {
    /// A walk for an access that is known to be allowed.
    pub fn new(trace: &'a mut Trace, space: &'a Space, address: u64, request: Request, words: &'a W) -> Self {
        Self { trace, is_done: false, space, address, request, words }
    }

    /// The walk.
    pub fn trace(&mut self) -> &Trace {
        if !self.is_done {
            self.trace.walk(self.space, self.address, &self.request, self.words);
            self.is_done = true;
        }
        self.trace
    }

    /// The walk, if it is done.
    #[must_use]
    pub(crate) const fn trace_done(&self) -> &Trace {
        self.trace
    }

    /// Returns whether the walk was made.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    /// The translation.
    #[must_use]
    pub const fn space(&self) -> &Space {
        self.space
    }

    /// The page that is translated.
    #[must_use]
    pub const fn page(&self) -> u64 {
        self.address >> rv::PAGE_SHIFT
    }

    /// The RAM.
    #[must_use]
    pub const fn words(&self) -> &W {
        self.words
    }
}
