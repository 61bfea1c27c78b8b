//! Leaves of 1 GiB: joined, broken, and taken away in parts at random, beside a flat model of where each page is, the fence model, and
//! the account. Contents are not looked at: nothing of this copies any.

use crate::random::Random;
use mmu::gstage::{Ready, Resolved, Sight, Span};
use mmu::{Ad, AddressSpace, Frames, Images, Object, Owner, Policy, Prot, Region, Residence, Stale, Superpages, Use};
use oracle::{FenceModel, Machine};
use rv::format::{SV39X4, SV48X4};
use rv::{Access, Addr, Fence, FenceScope, Format, Gpa, Hpa, Level, Pfn, PhysMem};
use std::collections::BTreeMap;

const VM: Owner = Owner::Vm(2);
const GIGA: u64 = Level::GIGA.pages();
const MEGA: u64 = Level::MEGA.pages();
/// The host's GiB, and some frames for tables and images below it.
const HOST: u64 = 3 * GIGA;
const BELOW: u64 = 4 * MEGA;
/// The guest's GiB, between an image and some more memory.
const FIRST: u64 = 2 * GIGA;
const IMAGE: u64 = 64;
const ABOVE: u64 = 3 * MEGA;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    None,
    /// Changes of leaves that the guest could still reach are not fenced.
    DropsFences,
    /// Fences of everything are of leaves only: tables that are gone are walked still.
    FencesLeavesOnly,
    /// A table of a broken leaf lacks an entry.
    ForgetsOne,
    /// An entry of a broken leaf's table maps a neighbour.
    MapsNext,
    /// 2 MiB are joined that do not follow one another.
    JoinsAny,
}

/// Memory of which only tables are looked at.
struct World {
    model: FenceModel,
    mutant: Mutant,
    writes: u64,
    /// The entry of a table whose leaves are read as if they followed one another.
    first: Option<u64>,
}

impl PhysMem for World {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        let found = self.model.read_u64(at);
        let index = at.page_offset() / 8;
        match self.first.filter(|table| *table == at.pfn().raw() && found & 0xf == 0xf) {
            Some(table) => {
                let first = self.model.read_u64(Pfn::<Hpa>::new(table).base());
                ((first & !0x3ff) + ((index * MEGA) << 10)) | (found & 0x3ff)
            }
            None => found,
        }
    }
    fn write_u64(&mut self, at: Addr<Hpa>, mut value: u64) {
        let is_mega = value & 0xf == 0xf && (value >> 10).is_multiple_of(MEGA) && !self.model.is_linked(at.pfn());
        self.writes += u64::from(is_mega);
        if is_mega && self.writes % 512 == 77 {
            match self.mutant {
                Mutant::ForgetsOne => value = 0,
                Mutant::MapsNext => value += MEGA << 10,
                _ => {}
            }
        }
        self.model.write_u64(at, value);
    }
    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        let old = self.model.read_u64(at);
        self.write_u64(at, value);
        old
    }
    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        let found = self.model.read_u64(at);
        if found != old {
            return Err(found);
        }
        self.write_u64(at, new);
        Ok(())
    }
    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        // Of guest memory there is none here.
        if pages <= 4 {
            self.model.zero_frames(first, pages);
        }
    }
    fn zeroed_at_once(&self) -> u64 {
        MEGA
    }
    fn copy_frames(&mut self, _: Pfn<Hpa>, _: Pfn<Hpa>, _: u64) {}
    fn read_bytes(&self, _: Addr<Hpa>, _: &mut [u8]) {
        unreachable!("contents are not looked at")
    }
    fn write_bytes(&mut self, _: Addr<Hpa>, _: &[u8]) {
        unreachable!("contents are not looked at")
    }
}

/// The fence of an operation that leaves it to its caller.
struct NoTlb;

impl Fence<Gpa> for NoTlb {
    fn fence(&mut self, _: FenceScope<Gpa>) {
        panic!("it is the caller's");
    }
}

impl Fence<Gpa> for World {
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        match (self.mutant, scope) {
            (Mutant::DropsFences, _) => {}
            (Mutant::FencesLeavesOnly, FenceScope::Everything) => {
                self.model.fence(FenceScope::Range { start: Addr::new(0), bytes: 1 << 50 });
            }
            _ => self.model.fence(scope),
        }
    }
}

struct Rig {
    frames: Frames,
    world: World,
    space: AddressSpace,
    random: Random,
    /// By guest page: the frame, of what the guest reaches or would without a fault.
    there: BTreeMap<u64, u64>,
}

fn rig(seed: u64, format: &'static Format, ad: Ad, mutant: Mutant) -> Rig {
    let mut frames = Frames::new();
    frames.add(Pfn::new(HOST - BELOW), BELOW + GIGA);
    let machine = Machine::with_ram(Pfn::new(HOST - BELOW), BELOW + GIGA);
    let mut world = World { model: FenceModel::new(machine, 2), mutant, writes: 0, first: None };
    let policy = Policy { superpages: Superpages::Giga, images: Images::Shared, residence: Residence::Pageable, ad };
    let mut space = AddressSpace::new(format, VM, policy, &frames, &mut world).unwrap();
    world.model.watch(format, space.root());
    let image = Object::Image { first: Pfn::new(HOST - BELOW) };
    for (start, pages, object) in [(FIRST - IMAGE, IMAGE, image), (FIRST, GIGA + ABOVE, Object::Anonymous)] {
        space.add_region(Region { start: Pfn::new(start), pages, prot: Prot::RWX, object }, &world).unwrap();
    }
    (0..2).for_each(|hart| world.model.enter_guest(hart));
    Rig { frames, world, space, random: Random(seed), there: BTreeMap::new() }
}

impl Rig {
    fn page(&mut self) -> u64 {
        FIRST + self.random.below(GIGA + ABOVE)
    }

    /// 2 MiB are given, from that place of the host's or from any.
    fn give(&mut self, page: u64, place: Option<u64>) {
        let first = page & !(MEGA - 1);
        let mut ready = match place.and_then(|host| self.frames.take_ahead_at(Pfn::new(host))) {
            Some(run) => Ready::zeroes_in(run),
            None => Ready::Nothing,
        };
        let (space, frames) = (&mut self.space, &self.frames);
        let gpa = Pfn::<Gpa>::new(page).base();
        let resolved = loop {
            let attempt =
                |ready: &mut Ready, mem: &mut World| space.resolve_with(gpa, Access::Store, ready, frames, mem);
            match mmu::gstage::in_portions(frames, &mut self.world, &mut ready, attempt) {
                Ok(None) => {}
                Ok(Some(resolved)) => break resolved,
                Err(error) => {
                    ready.discard(frames);
                    assert!(matches!(error, mmu::ResolveError::OutOfFrames(_)), "{error:?}");
                    return;
                }
            }
        };
        ready.discard(frames);
        let Resolved::Mapped { stale, publish, .. } = resolved else { panic!("RAM is a hole") };
        assert!(publish.is_none(), "of images there is nothing here");
        self.spend(stale);
        let level = self.space.translate(gpa, &self.world).expect("it is there now").level;
        let new = if level == Level::PAGE { page..page + 1 } else { first..first + MEGA };
        for page in new {
            let there = self.space.translate(Pfn::<Gpa>::new(page).base(), &self.world).expect("all of it is");
            self.there.entry(page).or_insert(there.hpa.pfn().raw());
        }
    }

    fn take_back(&mut self, span: Span) -> (mmu::Returned, Stale<Gpa>) {
        let (mut ready, mut hw) = (mmu::Ready::Nothing, NoTlb);
        let host = &mut mmu::shadow::Host::new(&mut self.space, (&self.frames, &mut ready), &mut self.world, &mut hw);
        mmu::Edits { shadow: None::<&mut mmu::shadow::Shadow>, nested: None, collapsed: None, host }.take_back(&[span])
    }

    fn spend(&mut self, stale: Stale<Gpa>) {
        let retired = self.space.tell(stale, &mut self.world).fence(&mut self.world);
        for run in retired.runs() {
            (0..run.pages()).for_each(|n| self.world.model.free(run.first().add(n)));
        }
        retired.release(&self.frames);
    }

    fn join(&mut self) {
        if self.world.mutant == Mutant::JoinsAny {
            let slot = self.space.translate(Pfn::<Gpa>::new(FIRST).base(), &self.world);
            self.world.first = slot.filter(|slot| slot.level == Level::MEGA).and_then(|_| self.table_of_megas());
        }
        let joined = self.space.join(Pfn::new(FIRST + self.random.below(GIGA)), &mut self.world);
        self.world.first = None;
        let is_whole = (0..GIGA).all(|n| self.there.get(&(FIRST + n)) == Some(&(HOST + n)));
        let Some((stale, publish)) = joined else { return };
        assert!(is_whole, "joined, and a part is missing or elsewhere");
        self.spend(stale);
        publish.publish(&mut self.world);
        assert_eq!(self.level(FIRST), Level::GIGA);
    }

    fn table_of_megas(&self) -> Option<u64> {
        let mut table = self.space.root().raw();
        for level in (2..u32::from(self.space.format().levels)).rev() {
            let index = FIRST >> (9 * level);
            let pte = self.world.model.machine.peek((table << 12) + 8 * (index & 511))?;
            table = pte >> 10;
        }
        Some(table)
    }

    fn level(&self, page: u64) -> Level {
        self.space.translate(Pfn::<Gpa>::new(page).base(), &self.world).map_or(Level::PAGE, |there| there.level)
    }

    /// Gives all that is missing of the GiB from the host's, in their order, and joins it.
    fn complete(&mut self) {
        for mega in 0..GIGA / MEGA {
            let page = FIRST + mega * MEGA;
            if (page..page + MEGA).all(|page| !self.there.contains_key(&page)) {
                self.give(page, Some(HOST + mega * MEGA));
            }
        }
        self.join();
    }

    fn unmap(&mut self) {
        let start = match self.random.below(4) {
            0 => self.page() & !(MEGA - 1),
            1 => FIRST,
            _ => self.page(),
        };
        let pages = match self.random.below(6) {
            0 => MEGA,
            1 => 3 * MEGA + 5,
            2 => GIGA,
            _ => 1 + self.random.below(700),
        };
        let span = Span { start: Pfn::new(start), pages };
        if self.random.below(2) == 0 {
            let unmapped = self.space.unmap(span.start, span.pages, &self.frames, &mut self.world);
            let Ok(stale) = unmapped else { return };
            self.spend(stale);
            self.there.retain(|page, _| !(start..start + pages).contains(page));
        } else {
            let mut left = span;
            while left.pages > 0 {
                let (returned, stale) = self.take_back(left);
                self.spend(stale);
                if returned.kept > 0 {
                    let gone = |page: &u64| self.space.resident(Pfn::<Gpa>::new(*page).base(), &self.world).is_none();
                    let lost: Vec<u64> =
                        self.there.range(start..start + pages).map(|(page, _)| *page).filter(gone).collect();
                    lost.iter().for_each(|page| _ = self.there.remove(page));
                }
                let end = left.start.raw() + returned.passed;
                if returned.kept == 0 {
                    self.there.retain(|page, _| !(left.start.raw()..end).contains(page));
                }
                left = Span { start: Pfn::new(end), pages: left.pages - returned.passed };
                if returned.passed == 0 {
                    // Leaves of a table that goes with the last of them.
                    let gone = |page: &u64| self.space.resident(Pfn::<Gpa>::new(*page).base(), &self.world).is_none();
                    let lost: Vec<u64> =
                        self.there.range(start..start + pages).map(|(page, _)| *page).filter(gone).collect();
                    lost.iter().for_each(|page| _ = self.there.remove(page));
                }
            }
        }
    }

    /// The sweep comes by: what is larger than 2 MiB is broken, the rest becomes idle, and is used again or goes.
    fn sweep(&mut self) {
        let page = Pfn::<Gpa>::new(self.page());
        match self.space.look(page, &self.world).0 {
            Sight::Mapped(Level::GIGA) => {
                let Some(table) = self.frames.take_ahead(0) else { return };
                let stale = self.space.break_giga(page, table, &self.frames, &mut self.world);
                assert_eq!(self.level(page.raw()), Level::MEGA);
                self.spend(stale);
            }
            Sight::Mapped(_) => {
                let stale = self.space.rest(page, &mut self.world);
                self.spend(stale);
            }
            Sight::Idle(_) => {
                if self.random.below(2) == 0 {
                    self.give(page.raw(), None);
                }
            }
            Sight::Nothing => {}
        }
    }

    /// All pages are where they were.
    fn check(&mut self) {
        self.world.model.verdict().expect("no fence rule is broken");
        for _ in 0..200 {
            let page = self.page();
            let found = self.space.resident(Pfn::<Gpa>::new(page).base(), &self.world);
            assert_eq!(found.map(|there| there.hpa.pfn().raw()), self.there.get(&page).copied(), "where {page:#x} is");
        }
        assert_eq!(self.frames.usage(VM).guest, self.there.len() as u64, "the account");
    }

    fn run(mut self, steps: u32) -> (u64, u64) {
        for _ in 0..steps {
            match self.random.below(8) {
                0 => self.complete(),
                1 if self.level(FIRST) != Level::GIGA => {
                    let all = self.space.unmap(Pfn::new(FIRST), GIGA + ABOVE, &self.frames, &mut self.world);
                    self.spend(all.expect("nothing is cut"));
                    self.there.clear();
                    self.complete();
                }
                2 => {
                    let page = self.page();
                    self.give(page, None);
                }
                3 | 4 => self.unmap(),
                _ => self.sweep(),
            }
            self.check();
        }
        for page in FIRST..FIRST + GIGA + ABOVE {
            let found = self.space.resident(Pfn::<Gpa>::new(page).base(), &self.world);
            assert_eq!(found.map(|there| there.hpa.pfn().raw()), self.there.get(&page).copied(), "where {page:#x} is");
        }
        let counters = self.space.counters();
        (0..2).for_each(|hart| self.world.model.detach(hart));
        let mut remains = self.space.destroy(&mut self.world);
        let mut portions = 0;
        while remains.release(1024, &self.frames, &self.world, |_| {}) {
            portions += 1;
        }
        assert!(counters.joined_1g <= counters.splits_1g || portions >= 100, "1 GiB goes in portions: {portions}");
        assert_eq!((self.frames.usage(VM).total(), self.frames.free_count()), (0, BELOW + GIGA));
        (counters.joined_1g, counters.splits_1g)
    }
}

fn histories(mutant: Mutant) -> (u64, u64) {
    let one = |(seed, (format, ad))| rig(seed, format, ad, mutant).run(20);
    let all = (1..).zip([(&SV39X4, Ad::AsNeeded), (&SV48X4, Ad::AsNeeded), (&SV39X4, Ad::Hardware)]).map(one);
    all.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
}

#[test]
fn whole_gib_come_and_go_in_parts() {
    let (joined, broken) = histories(Mutant::None);
    assert!(joined >= 4 && broken >= 4, "{joined} joined, {broken} broken");
}

#[test]
fn mutants_are_caught() {
    for mutant in
        [Mutant::DropsFences, Mutant::FencesLeavesOnly, Mutant::ForgetsOne, Mutant::MapsNext, Mutant::JoinsAny]
    {
        let caught = std::panic::catch_unwind(|| histories(mutant)).is_err();
        assert!(caught, "{mutant:?} is not caught");
    }
}

/// Too little for the table that breaks a leaf: nothing has changed.
#[test]
fn without_a_frame_a_leaf_stays() {
    let mut rig = rig(7, &SV39X4, Ad::AsNeeded, Mutant::None);
    rig.complete();
    let all: Vec<_> = std::iter::from_fn(|| rig.frames.alloc(Owner::Host, Use::Other, 0).ok()).collect();
    assert!(rig.space.unmap(Pfn::new(FIRST + 5), 1, &rig.frames, &mut rig.world).is_err());
    let span = Span { start: Pfn::new(FIRST + 7), pages: 3 };
    let (returned, stale) = rig.take_back(span);
    rig.spend(stale);
    assert_eq!((returned.kept, returned.freed, rig.level(FIRST)), (3, 0, Level::GIGA));
    rig.check();
    all.into_iter().for_each(|run| rig.frames.free(run));
}
