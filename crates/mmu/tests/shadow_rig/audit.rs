//! The rules that must hold, and the answers that the guest should find.

use super::hardware::permits;
use super::subject::Subject;
use super::{IMAGE, PAGES, RAM, Rig, VM};
use mmu::gstage::SwapSlot;
use mmu::shadow::{LEAVES, Paging};
use mmu::table::is_poison;
use mmu::walk::AdPolicy;
use mmu::{AddressSpace, Use};
use oracle::{Ad, Machine, Table};
use rv::{Addr, Caps, Entry, Format, Gpa, Hpa, Leaf, Level, Pfn, Pte, PteFlags, Request};
use std::collections::BTreeMap;

impl<S: Subject> Rig<S> {
    /// Returns the answer of real hardware, by the guest's tables as they are: the oracle's word.
    pub(super) fn expected(&self, n: usize, gva: Addr<S>, request: &Request) -> Result<(), u64> {
        let table = match self.vcpus[n].paging {
            Paging::Bare => None,
            Paging::Tables { format, root } => Some(Table {
                levels: u32::from(format.levels),
                root: root.base().raw(),
                ad: if self.ad == AdPolicy::Svadu { Ad::Hardware } else { Ad::Fault },
                svnapot: false,
                svpbmt: false,
            }),
        };
        let context = S::context(table, request);
        let mut guest = GuestWords { space: &self.space, away: &self.away, machine: &self.bus.0.borrow().machine };
        let arrived = oracle::translate(&mut guest, &context, gva.raw()).map_err(|raised| raised.cause)?;
        let is_ram = self.space.region_of(Addr::new(arrived).pfn()).is_some();
        if is_ram { Ok(()) } else { Err(0) }
    }

    pub(super) fn guest_word(&self, at: Addr<Gpa>) -> Option<u64> {
        GuestWords { space: &self.space, away: &self.away, machine: &self.bus.0.borrow().machine }.get(at.raw())
    }

    /// TLB-LIKE and SUBSET: that vCPU `n` may translate `gva` to `hpa` with these rights. Returns the guest physical
    /// address by which it may.
    /// If the hart remembers it, and it is global, another root may have given it.
    pub(super) fn check(
        &self,
        n: usize,
        gva: Addr<S>,
        (flags, level): (PteFlags, Level),
        hpa: Addr<Hpa>,
        is_remembered: bool,
    ) -> Addr<Gpa> {
        let vcpu = &self.vcpus[n];
        let is_global = flags.contains(PteFlags::G);
        assert!(self.globals || !is_global, "TLB-LIKE: {gva} is global");
        let found = match vcpu.paging {
            Paging::Bare => Some(Addr::new(gva.raw())).filter(|gpa| !is_global && self.leads_to(*gpa, flags, hpa)),
            Paging::Tables { format, root } => {
                let since = (vcpu.fences.wide(vcpu.asid), vcpu.fences.page(vcpu.asid, gva));
                let own = self.search(format, root, format.root_level(), (gva, since), flags, hpa);
                own.or_else(|| {
                    let mut others = vcpu.globals(gva).filter(|_| is_remembered && is_global);
                    others.find_map(|(root, since)| {
                        self.search(format, root, format.root_level(), (gva, since), flags, hpa)
                    })
                })
            }
        };
        found.unwrap_or_else(|| {
            panic!("TLB-LIKE: vCPU {n} translates {gva} to {hpa} {flags:?} at {level:?}, {:?}", vcpu.paging)
        })
    }

    /// Returns whether the G-stage takes `gpa` to `hpa`, and allows stores if `flags` do.
    pub(super) fn leads_to(&self, gpa: Addr<Gpa>, flags: PteFlags, hpa: Addr<Hpa>) -> bool {
        self.space.translate(gpa, &self.bus.0.borrow().machine).is_some_and(|there| {
            there.hpa.pfn() == hpa.pfn() && (there.flags.contains(PteFlags::W) || !flags.contains(PteFlags::W))
        })
    }

    pub(super) fn search(
        &self,
        format: &'static Format,
        table: Pfn<Gpa>,
        level: Level,
        (gva, since): (Addr<S>, (u64, u64)),
        flags: PteFlags,
        hpa: Addr<Hpa>,
    ) -> Option<Addr<Gpa>> {
        let at = table.at(8 * format.index(gva, level) as u64);
        let present = self.guest_word(at)?;
        let history = &self.bus.0.borrow().history;
        // What was never written is as it is.
        let present = [(0, present)];
        let values = |since| Some(history.since(at, since)).filter(|values| !values.is_empty()).unwrap_or(&present);
        let (pointers, leaves) = (values(since.0), values(since.1));
        for (_, value) in pointers.iter().copied() {
            match Pte(value).decode::<Gpa>(level, Caps::default()) {
                Entry::Table(next) => {
                    let below = level.down()?;
                    let found = self.search(format, next, below, (gva, since), flags, hpa);
                    if found.is_some() {
                        return found;
                    }
                }
                Entry::Leaf(leaf) if leaves.iter().any(|(_, known)| *known == value) => {
                    let gpa = leaf.pfn.at(gva.raw() & (level.bytes() - 1));
                    if allows(leaf.flags, flags) && self.leads_to(gpa, flags, hpa) {
                        return Some(gpa);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Returns whether vCPU `n`'s tables now translate `gva` by a page to that leaf's, with its rights at least: then
    /// [`Rig::check`] has nothing to object. `near`: the table of the address before.
    // A table of 512 leaves has one way to it.
    fn is_so_now(&self, n: usize, gva: Addr<S>, leaf: &Leaf<Hpa>, near: &mut Option<(u64, Option<Pfn<Hpa>>)>) -> bool {
        let Paging::Tables { format, root } = self.vcpus[n].paging else { return false };
        let part = gva.raw() >> Level::MEGA.shift();
        let table = match near {
            Some((known, table)) if *known == part => *table,
            _ => self.table_of(format, root, gva),
        };
        *near = Some((part, table));
        let entry = table.map(|table| {
            let words = self.bus.0.borrow();
            Pte(words.machine.frame(table)[format.index(gva, Level::PAGE)]).decode::<Gpa>(Level::PAGE, Caps::default())
        });
        match entry {
            Some(Entry::Leaf(guests)) => {
                allows(guests.flags, leaf.flags) && self.leads_to(guests.pfn.base(), leaf.flags, leaf.pfn.base())
            }
            _ => false,
        }
    }

    /// Returns the frame of the guest's table of leaves by which `gva` is translated now, if it is in memory.
    fn table_of(&self, format: &'static Format, root: Pfn<Gpa>, gva: Addr<S>) -> Option<Pfn<Hpa>> {
        let mut levels = format.levels_down().filter(|level| *level > Level::PAGE);
        let table = levels.try_fold(root, |table, level| {
            let word = self.guest_word(table.at(8 * format.index(gva, level) as u64))?;
            match Pte(word).decode::<Gpa>(level, Caps::default()) {
                Entry::Table(next) => Some(next),
                _ => None,
            }
        })?;
        let is_away = self.away.contains_key(&table);
        let there = self.space.resident(table.base(), &self.bus.0.borrow().machine).filter(|_| !is_away);
        there.map(|there| there.hpa.pfn())
    }

    /// Returns whether vCPU `n`'s tables gave a page fault for the access at some time since the last fence that covers
    /// it.
    pub(super) fn may_fault(&self, n: usize, gva: Addr<S>, request: &Request) -> bool {
        let vcpu = &self.vcpus[n];
        let Paging::Tables { format, root } = vcpu.paging else { return false };
        let since = (vcpu.fences.wide(vcpu.asid), vcpu.fences.page(vcpu.asid, gva));
        let level = format.root_level();
        // What is remembered of a global leaf denies it in other address spaces, too.
        !format.fits(gva)
            || self.search_fault(format, root, level, (gva, since), (request, false))
            || self.globals
                && vcpu
                    .globals(gva)
                    .any(|(root, since)| self.search_fault(format, root, level, (gva, since), (request, true)))
    }

    fn search_fault(
        &self,
        format: &'static Format,
        table: Pfn<Gpa>,
        level: Level,
        (gva, since): (Addr<S>, (u64, u64)),
        (request, globals_only): (&Request, bool),
    ) -> bool {
        let at = table.at(8 * format.index(gva, level) as u64);
        let Some(present) = self.guest_word(at) else { return false };
        let history = &self.bus.0.borrow().history;
        let present = [(0, present)];
        let values = |since| Some(history.since(at, since)).filter(|values| !values.is_empty()).unwrap_or(&present);
        let decode = |value: &(u64, u64)| Pte(value.1).decode::<Gpa>(level, Caps::default());
        let leads = values(since.0).iter().any(|value| match (decode(value), level.down()) {
            (Entry::Table(next), Some(below)) => {
                self.search_fault(format, next, below, (gva, since), (request, globals_only))
            }
            _ => false,
        });
        leads
            || values(since.1).iter().any(|value| match decode(value) {
                Entry::Table(_) => false,
                Entry::Leaf(leaf) => {
                    !permits(leaf.flags, request) && (!globals_only || leaf.flags.contains(PteFlags::G))
                }
                Entry::Invalid | Entry::Reserved(_) => !globals_only,
            })
    }

    /// All that hart `n` may use now, by the shadow of its root and by its TLB.
    pub(super) fn audit(&self, n: usize) {
        let (mut seen, root) = (Vec::new(), self.bus.0.borrow().harts[n].root.expect("loaded"));
        let level = root.2.root_level();
        for frame in 0..S::ROOT_FRAMES as u64 {
            self.collect(root.1.add(frame), level, frame << (level.shift() + 9), root.2, &mut seen);
        }
        let pointers = self.bus.0.borrow().harts[n].pointers.clone();
        // No access gets through by poison.
        let through = pointers.into_iter().filter(|(.., table)| !is_poison(Entry::Table(*table).encode()));
        for (id, page, level, table) in through {
            if id == root.0 {
                self.collect(table, level.down().expect("a pointer is above level 0"), page << 12, root.2, &mut seen);
            } else {
                assert_eq!(self.frames.owner_of(table), Some((VM, Use::Table)), "OWNERSHIP: a table at {table:?}");
            }
        }
        let walked = seen.len();
        let tlb: Vec<_> = self.bus.0.borrow().harts[n].tlb.clone();
        for cached in tlb.into_iter().filter(|cached| !cached.is_poison()) {
            self.check_owner(cached.leaf.pfn, cached.level, cached.leaf.flags);
            if cached.id == root.0 || cached.is_global() {
                seen.push((cached.page << 12, cached.level, cached.leaf));
            }
        }
        let mut near = None;
        for (at, (gva, level, leaf)) in seen.into_iter().enumerate() {
            if is_poison(Entry::Leaf(leaf).encode()) {
                continue;
            }
            self.check_owner(leaf.pfn, level, leaf.flags);
            let offset = self.pick(level.pages()) << 12;
            let is_plain = level == Level::PAGE && !leaf.flags.contains(PteFlags::G);
            if is_plain && self.is_so_now(n, Addr::new(gva), &leaf, &mut near) {
                continue;
            }
            self.check(n, Addr::new(gva + offset), (leaf.flags, level), leaf.pfn.at(offset), at >= walked);
        }
    }

    pub(super) fn collect(
        &self,
        table: Pfn<Hpa>,
        level: Level,
        gva: u64,
        format: &'static Format,
        seen: &mut Vec<(u64, Level, rv::Leaf<Hpa>)>,
    ) {
        assert_eq!(self.frames.owner_of(table), Some((VM, Use::Table)), "OWNERSHIP: a table at {table:?}");
        let words = self.bus.0.borrow();
        // Most are invalid: eight are looked at together.
        let (eights, _) = words.machine.frame(table).as_chunks::<8>();
        let used = eights.iter().enumerate().filter(|(_, eight)| eight.iter().fold(0, |any, word| any | word) & 1 == 1);
        let words =
            used.flat_map(|(place, eight)| eight.iter().enumerate().map(move |(n, word)| (8 * place + n, *word)));
        for (index, word) in words.filter(|(_, word)| word & 1 == 1) {
            let gva = extended(gva | (index as u64) << level.shift(), format);
            match Pte(word).decode::<Hpa>(level, Caps::default()) {
                Entry::Table(_) if is_poison(Pte(word)) => {}
                Entry::Table(next) => self.collect(next, level.down().expect("decode says so"), gva, format, seen),
                Entry::Leaf(leaf) => seen.push((gva, level, leaf)),
                other => panic!("SUBSET: {other:?} in a shadow table"),
            }
        }
    }

    /// Checks what the lane is told of memory: that 2 MiB are by one leaf that allows everything, or which table has
    /// their leaves.
    pub(super) fn audit_chunks(&self) {
        let Some(inputs) = self.shadow.as_ref().and_then(|shadow| shadow.lane_inputs()) else { return };
        let machine = &self.bus.0.borrow().machine;
        for first in (0..PAGES / 512).map(|n| RAM.add(512 * n)) {
            let word = machine.peek(inputs.chunks + first.raw() / 512 * 8).expect("the lane's memory");
            let page = first.add(self.tally[0] % 512);
            let there = self.space.translate(page.base(), machine);
            if word >> 63 == 1 {
                let there = there.unwrap_or_else(|| panic!("CHUNKS: {page:?} is nowhere"));
                let leaf = Pte(page.raw() << 10 | 0xdf).0.wrapping_add(LEAVES[0xdf]).wrapping_add(word);
                let all = PteFlags::R | PteFlags::W | PteFlags::X;
                assert!(there.flags.contains(all) && leaf >> 10 == there.hpa.pfn().raw(), "CHUNKS: {page:?} {leaf:#x}");
            } else if word != 0 {
                let at = |page: Pfn<Gpa>| machine.peek(word + page.raw() % 512 * 8).map(Pte);
                let same = there.is_none_or(|there| at(page).is_some_and(|pte| pte.pfn() == there.hpa.pfn()));
                let owner = self.frames.owner_of(Addr::<Hpa>::new(word).pfn());
                assert!(same && owner == Some((VM, Use::Table)), "CHUNKS: {page:?} by the table at {word:#x}");
            }
        }
    }

    pub(super) fn check_owner(&self, frame: Pfn<Hpa>, level: Level, flags: PteFlags) {
        // The first and the last of a superpage.
        let last = (level > Level::PAGE).then(|| frame.add(level.pages() - 1));
        for page in core::iter::once(frame).chain(last) {
            let is_image = page >= IMAGE && page < IMAGE.add(512);
            let is_own = self.frames.owner_of(page) == Some((VM, Use::Guest));
            assert!(is_own || is_image && !flags.contains(PteFlags::W), "OWNERSHIP: {page:?} {flags:?}");
        }
    }
}

/// Returns whether a guest's leaf allows a leaf of ours with these rights.
fn allows(guests: PteFlags, ours: PteFlags) -> bool {
    let rights = PteFlags::R | PteFlags::W | PteFlags::X | PteFlags::U | PteFlags::G;
    let mut most = guests & rights;
    most.set(PteFlags::W, guests.contains(PteFlags::W | PteFlags::D));
    let same_user = !most.symmetric_difference(ours).contains(PteFlags::U);
    guests.contains(PteFlags::A) && same_user && most.contains(ours & rights)
}

/// The address that the format translates, with those of its bits that are significant.
pub(super) fn extended(bits: u64, format: &Format) -> u64 {
    let unused = 64 - format.input_bits();
    if format.is_g_stage() { bits << unused >> unused } else { ((bits << unused) as i64 >> unused) as u64 }
}

/// A page that is out.
#[derive(Clone)]
pub(super) struct Away {
    /// Its place on the swap device.
    pub slot: SwapSlot,
    /// Its contents.
    pub words: Box<[u64; 512]>,
}

/// The guest's memory as words, for the oracle. Untouched memory is as it begins.
struct GuestWords<'a> {
    space: &'a AddressSpace,
    away: &'a BTreeMap<Pfn<Gpa>, Away>,
    machine: &'a Machine,
}

impl GuestWords<'_> {
    fn get(&self, at: u64) -> Option<u64> {
        self.space.region_of(Addr::new(at).pfn())?;
        let (page, word) = (Addr::new(at).pfn(), at as usize % 4096 / 8);
        if let Some(away) = self.away.get(&page) {
            return Some(away.words[word]);
        }
        match self.space.resident(Addr::new(at), self.machine) {
            Some(there) => self.machine.peek(there.hpa.raw()),
            // Images and anonymous memory are zero here.
            None => Some(0),
        }
    }
}

impl oracle::Words for GuestWords<'_> {
    fn load(&mut self, at: u64) -> Option<u64> {
        self.get(at)
    }
    fn store(&mut self, _: u64, _: u64) {}
}
