//! A VM with shadow tables under test: random guests on up to 4 harts, the oracle, and after every step all that
//! must hold.
//!
//! The guest's physical memory is three times 2 MiB: anonymous memory, an image, anonymous memory. A pool of
//! pages in all three are its tables, each at any level, at several places. It writes to them through its own
//! translations: a *window*, which maps all memory in every root.

/// Runs an operation on the engine and a [`Host`] that may want 2 MiB made ready first, or a page that is out.
macro_rules! ready {
    ($rig:ident, |$shadow:ident, $host:ident| $attempt:expr) => {
        loop {
            let (mut mem, mut hw) = (Mem(&$rig.bus), AllHarts(&$rig.bus));
            let $shadow = $rig.shadow.as_mut().expect("until the end");
            let done = with_ready(&$rig.frames, &mut mem, |ready, mem| {
                $shadow.alone(mem, |$shadow, mem| {
                    let $host =
                        &mut Host::new(&mut $rig.space, (&$rig.frames, ready), mem, &mut hw).within($rig.budget);
                    $attempt
                })
            });
            match done {
                Err(ResolveError::Out { page, slot }) => $rig.bring_in(page, slot),
                done => break done.expect("frames"),
            }
        }
    };
}

/// Runs an operation that never wants such.
macro_rules! host {
    ($rig:ident, |$shadow:ident, $host:ident| $act:expr) => {
        host!($rig, (&mut mmu::Ready::Nothing, $rig.budget), |$shadow, $host| $act)
    };
    ($rig:ident, ($ready:expr, $budget:expr), |$shadow:ident, $host:ident| $act:expr) => {{
        let (mut mem, mut hw) = (Mem(&$rig.bus), AllHarts(&$rig.bus));
        $rig.shadow.as_mut().expect("until the end").alone(&mut mem, |$shadow, mem| {
            let ready = $ready;
            let $host =
                &mut mmu::shadow::Host::new(&mut $rig.space, (&$rig.frames, ready), mem, &mut hw).within($budget);
            $act
        })
    }};
}

mod accesses;
mod audit;
mod edits;
mod gathering;
pub mod hardware;
pub mod history;
pub mod lane;
mod paging;
mod promoting;
mod roots;
mod spells;
pub mod subject;

use crate::keeper::{Deaf, Keeper};
use ::lane::FenceLog;
use audit::{Away, extended};
use hardware::{AllHarts, Bus, Hardware, Hart, Meddling, Mem};
use history::{Fences, History, Time};
use mmu::globals::Globals;
use mmu::shadow::{Config, Counters, GuestFence, Host, Lists, Paging, Root, Shadow, Upkeep, Views};
use mmu::walk::AdPolicy;
use mmu::{
    Ad, AddressSpace, Frames, Images, Object, Owner, Policy, Promotion, Prot, Region, Residence, ResolveError,
    Superpages, with_ready,
};
use oracle::Machine;
use rv::format::SV39X4;
use rv::{Access, Addr, Asid, Format, Gpa, Hpa, Pfn, PhysMem, Request};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use subject::Subject;

const RAM: Pfn<Gpa> = Pfn::new(0x8_0000);
const PAGES: u64 = 1536;
const HOST: Pfn<Hpa> = Pfn::new(0x10_0000);
const IMAGE: Pfn<Hpa> = Pfn::new(0x20_0000);
const VM: Owner = Owner::Vm(2);
/// Pages from the start of RAM that the window's own tables take, one for each level below the root and one more.
const WINDOW_TABLES: u64 = 5;
/// More steps than any operation of these guests takes.
const AMPLE: u32 = 8192;
/// Steps in which wide fences are many, where there is a storm of them, and few else.
const INTERVAL: u64 = 20;
const STORM: usize = 40;
/// The indices of tables' entries, and so of addresses.
const INDICES: [u64; 4] = [0, 1, 5, 511];

/// The part that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Nothing.
    None,
    /// Fences of all harts do nothing.
    DropsFences,
    /// This hart does not forget what a fault or a root switch says that it must.
    KeepsOwn,
    /// This hart does not forget pointers to poison when an access fault says that nothing is denied.
    KeepsPoison,
    /// A hart does not forget global translations when another vCPU comes, or paging is off.
    KeepsGlobals,
    /// The lane changes to roots that fences have passed over.
    ChangesBlindly,
    /// The lane does wide fences though tables may have been written.
    FencesBlindly,
    /// A vCPU goes nested by the VMID that it had before: its TLB has what it fenced elsewhere meanwhile.
    KeepsVmid,
    /// The engine is broken in this place.
    Engine(mmu::shadow::Sabotage),
}

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub upkeep: Upkeep,
    pub seed: u64,
    pub mutant: Mutant,
}

impl Setup {
    /// Returns whether the guest has tables of user pages in this life that can be coalesced: in others it would hide
    /// other faults.
    const fn gathers(&self) -> bool {
        matches!(self.upkeep, Upkeep::Steered) && self.seed % 5 == 3
    }
}

struct Vcpu<S: Subject> {
    paging: Paging,
    asid: Asid,
    root: Root<S>,
    views: Views<S>,
    /// Of the present root, where the lane may leave it.
    place: Option<usize>,
    fences: Fences<S>,
    /// Roots of tables that it had, and when it had each last: what is remembered of their global leaves serves for others.
    had: Vec<(Pfn<Gpa>, Time)>,
}

impl<S: Subject> Vcpu<S> {
    /// The roots whose global leaves for `gva` may be remembered, and since when, as for [`Rig::search`].
    fn globals(&self, gva: Addr<S>) -> impl Iterator<Item = (Pfn<Gpa>, (Time, Time))> {
        let since = (self.fences.widest(), self.fences.global(gva));
        let present = match self.paging {
            Paging::Tables { root, .. } => Some(root),
            Paging::Bare => None,
        };
        let had = self.had.iter().filter(move |(_, last)| *last >= since.1).map(|(root, _)| *root);
        had.chain(present).map(move |root| (root, since))
    }

    /// Notes that the vCPU leaves its root.
    fn leave(&mut self, now: Time) {
        let Paging::Tables { root, .. } = self.paging else { return };
        self.had.retain(|(known, _)| *known != root);
        self.had.push((root, now));
    }
}

pub struct Rig<S: Subject> {
    setup: Setup,
    format: &'static Format,
    ad: AdPolicy,
    /// Set if shadow leaves keep the guest's G.
    globals: bool,
    bus: Bus<S>,
    frames: Frames,
    space: AddressSpace,
    keeper: Keeper,
    shadow: Option<Shadow<S>>,
    vcpus: Vec<Vcpu<S>>,
    /// Steps that each operation may take. With few, much of the work is left for later.
    budget: u32,
    /// Addresses that came up lately: interesting things happen to the same ones.
    recent: RefCell<Vec<Addr<S>>>,
    /// Accesses that came through, and traps that the guest got.
    pub tally: [u64; 4],
    /// Set if the host takes memory away for a time. Each time that fences all harts, which hides other faults.
    is_paged: bool,
    /// Pages that are on the swap device.
    away: BTreeMap<Pfn<Gpa>, Away>,
    /// The swap device's copies of pages that have come in since; some have been written to, and the engine has forgone
    /// those.
    copies: BTreeMap<Pfn<Gpa>, Away>,
    /// Pages that could not become idle within the budget.
    pub postponed: u64,
    /// Faults that were answered with a share of the lock.
    pub answered_beside: u64,
    /// The promotion under way, and the number of those that made one leaf.
    promoting: Option<Promotion>,
    pub promoted: u64,
    /// Steps so far.
    clock: u64,
    /// Roots that the lane has loaded, those of them that fences had passed over, and wide fences that it has done.
    pub changed_in_lane: u64,
    pub changed_at_rest: u64,
    pub fenced_at_rest: u64,
    /// Spells that vCPUs were nested for.
    pub spells: u64,
}

impl<S: Subject> Rig<S> {
    pub fn new(setup: Setup) -> Self {
        let mut rng = hardware::rng(setup.seed);
        let mut pick = |n: u64| proptest::prelude::Rng::next_u64(&mut rng) % n;
        let format = S::FORMATS[(pick(4) as usize).saturating_sub(1)];
        let ad = if pick(3) == 0 && setup.upkeep != Upkeep::Steered { AdPolicy::Svadu } else { AdPolicy::Svade };
        let superpages = if pick(3) == 0 { Superpages::Never } else { Superpages::Mega };
        let vcpus = 1 + pick(4) as usize;
        let pages = if pick(2) == 0 { Config::least_pages::<S>(4) } else { 256 };
        let budget = if pick(2) == 0 { AMPLE } else { 24 + pick(600) as u32 };
        let is_paged = pick(3) == 0;
        let is_stubborn = pick(2) == 0;
        let globals = S::HAS_GLOBALS && pick(4) != 0;
        // To fill a table of 512 entries takes some.
        let (pages, budget) = match setup.gathers() {
            true if setup.seed.is_multiple_of(2) => (256, budget),
            true => (256, AMPLE),
            false => (pages, budget),
        };
        let mut machine = Machine::with_ram(HOST, 4096);
        machine.add(IMAGE, 512);
        machine.zero_frames(IMAGE, 512);
        let mut frames = Frames::new();
        frames.add(HOST, 4096);
        let mut space = AddressSpace::new(
            &SV39X4,
            VM,
            Policy { superpages, images: Images::Shared, residence: Residence::Pageable, ad: Ad::AsNeeded },
            &frames,
            &mut machine,
        )
        .expect("frames");
        for (n, object) in
            [Object::Anonymous, Object::Image { first: IMAGE }, Object::Anonymous].into_iter().enumerate()
        {
            let region = Region { start: RAM.add(512 * n as u64), pages: 512, prot: Prot::RWX, object };
            space.add_region(region, &machine).expect("disjoint");
        }
        let keeper = Keeper::join(&mut space, Deaf::No);
        // With few comparisons, tables become quiet that are written a moment later.
        let quiet_after = [2, 1, 0, 1][(setup.seed % 4) as usize];
        let config = Config { upkeep: setup.upkeep, ad, globals, pages, first_serial: 1, quiet_after };
        let mut lists = Lists::new(RAM, PAGES);
        assert_eq!(lists.prepare(u64::MAX, VM, &frames, &mut machine), Ok(true));
        let mut shadow = Shadow::new(config, VM, lists, &frames).expect("frames");
        if let Mutant::Engine(sabotage) = setup.mutant {
            shadow.sabotage(sabotage);
        }
        // Without room for its memory, the lane passes all fences on.
        if setup.upkeep == Upkeep::Steered && pick(4) != 0 {
            shadow.begin_lane(&mut space, RAM.add(PAGES), &frames, &mut machine);
        }
        shadow.begin_sharing(vcpus);
        let sync = shadow.lane_inputs();
        let harts = (0..vcpus).map(|n| Hart {
            log: Rc::new(RefCell::new(FenceLog::new(n as u32))),
            token: ::lane::context::token::start(n as u32),
            tlb: Vec::new(),
            nested: Vec::new(),
            pointers: Vec::new(),
            globals: Globals::new(),
            stay: n as u64,
            root: None,
            lane: (false, false),
            sync,
        });
        let bus = Bus(RefCell::new(Hardware {
            machine,
            harts: harts.collect(),
            history: History::default(),
            rng,
            meddling: None,
            events: Vec::new(),
            drops_fences: setup.mutant == Mutant::DropsFences,
            is_stubborn,
        }));
        let mut rig = Self {
            setup,
            format,
            ad,
            globals,
            bus,
            frames,
            space,
            keeper,
            shadow: Some(shadow),
            vcpus: Vec::new(),
            budget,
            recent: RefCell::default(),
            tally: [0; 4],
            is_paged,
            away: BTreeMap::new(),
            copies: BTreeMap::new(),
            postponed: 0,
            answered_beside: 0,
            promoting: None,
            promoted: 0,
            clock: 0,
            changed_in_lane: 0,
            changed_at_rest: 0,
            fenced_at_rest: 0,
            spells: 0,
        };
        rig.build_tables();
        for n in 0..vcpus {
            // What is held cannot be recycled.
            let held = if pages == 256 { 1 + setup.seed as usize % 8 } else { 1 };
            let mut views = Views::new([8, 16, 256][setup.seed as usize % 3], held);
            let root = rig.load(n, None, Paging::Bare, Asid(0), &mut views);
            rig.vcpus.push(Vcpu {
                paging: Paging::Bare,
                asid: Asid(0),
                root,
                views,
                place: None,
                fences: Fences::none(),
                had: Vec::new(),
            });
        }
        rig
    }

    fn pick(&self, below: u64) -> u64 {
        self.bus.0.borrow_mut().pick(below)
    }

    fn any(&self, of: &[u64]) -> u64 {
        of[self.pick(of.len() as u64) as usize]
    }

    /// Guest memory as firmware would find it.
    fn poke(&mut self, gpa: Addr<Gpa>, value: u64) {
        let hpa = ready!(self, |shadow, host| shadow.resolve(gpa, Access::Store, host)).expect("RAM");
        Mem(&self.bus).write_u64(hpa, value);
    }

    fn build_tables(&mut self) {
        let leaf = |gfn: u64| (RAM.raw() + gfn) << 10 | S::LEAF | 0xc;
        let pointer = |gfn: u64| (RAM.raw() + gfn) << 10 | 1;
        let levels = u64::from(self.format.levels);
        // Below the root: tables 0, 1, ... down to one of 2 MiB leaves and one of 4 KiB leaves, each at index 0.
        for table in 0..levels - 3 {
            self.poke(RAM.add(table).base(), pointer(table + 1));
        }
        let megas = RAM.add(levels - 3);
        self.poke(megas.at(0), leaf(0));
        self.poke(megas.at(8), leaf(512));
        self.poke(megas.at(16), pointer(WINDOW_TABLES - 1));
        for n in 0..512 {
            self.poke(RAM.add(WINDOW_TABLES - 1).at(8 * n), leaf(1024 + n));
        }
        for root in S::ROOTS {
            self.poke(Self::window_entry(RAM.add(root)), pointer(0));
        }
        let tables = (0..).zip(S::TABLES).map(|(n, table)| (n % (levels - 1), table));
        for (level, table) in tables.chain(Self::root_frames().map(|root| (levels - 1, root))) {
            for index in INDICES {
                self.poke(RAM.add(table).at(8 * index), self.good_value(level));
            }
        }
        self.bus.0.borrow_mut().events.clear();
    }

    /// The root's entry that leads to the window.
    fn window_entry(root: Pfn<Gpa>) -> Addr<Gpa> {
        root.at(8 * S::WINDOW)
    }

    /// The pages of RAM that are frames of roots.
    fn root_frames() -> impl Iterator<Item = u64> {
        S::ROOTS.into_iter().flat_map(|root| (0..S::ROOT_FRAMES as u64).map(move |frame| root + frame))
    }

    /// Returns whether a page of RAM is a frame of a root.
    fn is_root(page: u64) -> bool {
        Self::root_frames().any(|frame| frame == page)
    }

    /// Storms hide much of what else may be wrong.
    fn has_storms(&self) -> bool {
        self.setup.upkeep == Upkeep::Steered && self.setup.seed % 4 == 3
    }

    /// The window's address of a page of RAM.
    fn window(&self, gpa: Addr<Gpa>) -> Addr<S> {
        let top = extended(S::WINDOW << self.format.root_level().shift(), self.format);
        Addr::new(top + (gpa.raw() - RAM.base().raw()))
    }

    /// An address that the tables may say something about.
    fn address(&self) -> Addr<S> {
        let known = self.recent.borrow().len() as u64;
        if known != 0 && self.pick(4) != 0 {
            return self.recent.borrow()[self.pick(known) as usize];
        }
        let fresh = self.fresh_address();
        let mut recent = self.recent.borrow_mut();
        if recent.len() == 6 {
            recent.remove(self.pick(6) as usize);
        }
        recent.push(fresh);
        fresh
    }

    fn fresh_address(&self) -> Addr<S> {
        if self.pick(8) == 0 {
            return self
                .window(RAM.add(self.any(&[0, 4, 5, 6, 513, 515, 700, 1024, 1300, 1535])).at(8 * self.pick(512)));
        }
        let mut gva = 8 * self.pick(512);
        for level in self.format.levels_down() {
            gva |= self.any(&INDICES) << level.shift();
        }
        let frame = self.any_frame() << (self.format.root_level().shift() + 9);
        Addr::new(extended(gva | frame, self.format))
    }

    fn fence(&mut self, n: usize) {
        let gva = self.address();
        let range = match self.pick(5) {
            0 | 1 => None,
            2 => Some((gva.align_down(4096), 4096 * (1 + self.pick(3)))),
            _ => Some((gva, 1)),
        };
        let asid =
            (self.pick(2) == 0).then(|| if self.pick(3) == 0 { Asid(self.pick(3) as u16) } else { self.vcpus[n].asid });
        let pages: Vec<Addr<S>> = match range {
            Some((start, bytes)) => (0..bytes.div_ceil(4096)).map(|k| start.wrapping_add(4096 * k)).collect(),
            None => Vec::new(),
        };
        let by_lane = pages.len() == 1
            && asid.is_none_or(|asid| asid == self.vcpus[n].asid)
            && (self.setup.upkeep == Upkeep::Steered || self.pick(2) == 0)
            && self.bus.0.borrow_mut().lane(n, pages[0], asid.is_some());
        if by_lane {
            return;
        }
        let blindly = self.setup.mutant == Mutant::FencesBlindly;
        let is_wide = self.setup.upkeep == Upkeep::Steered && range.is_none() && asid.is_none();
        if is_wide && self.pick(4) != 0 && self.bus.0.borrow_mut().lane_wide(n, blindly) {
            let time = self.bus.0.borrow_mut().history.fence();
            self.vcpus[n].fences.add(None, None, time);
            self.fenced_at_rest += 1;
            return;
        }
        let time = self.bus.0.borrow_mut().history.fence();
        let log = Rc::clone(&self.bus.0.borrow().harts[n].log);
        let is_storm = self.has_storms() && range.is_none() && self.clock.is_multiple_of(4);
        let (now, fences) = (self.clock, if is_storm { STORM } else { 1 });
        let vcpu = &mut self.vcpus[n];
        let fence = GuestFence { range, asid };
        host!(self, |shadow, host| {
            let known = match (pages.as_slice(), asid) {
                ([page], asid) if asid.is_none_or(|asid| asid == vcpu.asid) => {
                    shadow.fence_in_known_table(&vcpu.root, page.align_down(4096), host.space, host.mem)
                }
                _ => false,
            };
            if known {
                match asid {
                    None => log.borrow_mut().push(pages[0].align_down(4096)),
                    Some(asid) => vcpu.views.outdate_others(Some(asid), &mut log.borrow_mut()),
                }
            } else {
                shadow.tell_time(now, INTERVAL);
                for _ in 0..fences {
                    shadow.fence(&fence, vcpu.root, &mut vcpu.views, &mut log.borrow_mut(), host);
                }
            }
        });
        match range {
            None => vcpu.fences.add(None, asid, time),
            Some(_) => pages.iter().for_each(|page| vcpu.fences.add(Some(*page), asid, time)),
        }
        // What the hypervisor does about this hart's own TLB.
        let mut hardware = self.bus.0.borrow_mut();
        match (range, asid) {
            (Some(_), _) => pages.iter().for_each(|page| hardware.forget_page(n, *page)),
            (None, Some(asid)) if asid == vcpu.asid => hardware.harts[n].forget_root(&vcpu.root),
            (None, _) => hardware.harts[n].forget_all(),
        }
    }

    /// Returns the address at which vCPU `n` finds memory, if it has not broken its own tables.
    fn through(&self, n: usize, gpa: Addr<Gpa>) -> Addr<S> {
        if self.vcpus[n].paging == Paging::Bare { Addr::new(gpa.raw()) } else { self.window(gpa) }
    }

    /// Another hart will store and fence in the middle of the next operation.
    fn arm(&mut self, n: usize) {
        let hart = self.pick(self.vcpus.len() as u64) as usize;
        if hart != n && self.pick(2) == 0 {
            let (gpa, value, gva) = self.edit();
            let store = (self.through(hart, gpa), gpa, value);
            let fence = (gva, self.pick(2) == 0);
            let when = self.pick(60) as u32;
            self.bus.0.borrow_mut().meddling = Some((when, Meddling { hart, store, fence }));
        }
    }

    pub fn step(&mut self) {
        self.clock += 1;
        if self.clock.is_multiple_of(64) && self.setup.upkeep == Upkeep::Steered {
            let now = self.clock;
            host!(self, |shadow, host| shadow.relax(now, INTERVAL, host));
        }
        let n = self.pick(self.vcpus.len() as u64) as usize;
        self.arm(n);
        if self.setup.gathers() && self.pick(10) == 0 {
            self.lay_out_or_gather(n);
            self.learn();
        }
        match self.pick(if self.is_paged { 37 } else { 32 }) {
            0..=14 => {
                let (gva, request) = (self.address(), self.request());
                self.access(n, gva, &request, None);
            }
            15..=22 => {
                let (gpa, value, _) = self.edit();
                let request = S::request(Request { sum: true, ..Request::supervisor(Access::Store) });
                self.access(n, self.through(n, gpa), &request, Some(value));
            }
            23..=27 => self.fence(n),
            28..=30 => self.switch(n),
            32..=34 => self.sweep(),
            35..=36 => self.promote(),
            _ => match self.pick(8) {
                0 | 1 => self.unmap(),
                2 | 3 => self.change_harts(n),
                4..=7 if self.has_spells() => self.spell(n),
                _ => {}
            },
        }
        self.bus.0.borrow_mut().meddling = None;
        self.learn();
        if self.pick(16) == 0 {
            // What was filled at once is learned first.
            host!(self, |_shadow, _host| ());
            self.shadow.as_ref().expect("until the end").audit(&self.bus.0.borrow().machine);
        }
        self.audit_chunks();
        let kept = [1, 5, 11].map(|n| RAM.raw() + self.clock * (512 * n + 7) % PAGES);
        self.keeper.check_and_keep(kept, &self.space, &self.bus.0.borrow().machine);
        let all = 0..self.vcpus.len();
        all.filter(|hart| *hart == n || self.pick(8) == 0).for_each(|hart| self.audit(hart));
    }

    /// Ends the VM: all frames come back, and all pages of the swap device. Says what the engine and the G-stage did.
    pub fn finish(mut self) -> (Counters, mmu::Counters) {
        if let Some(promotion) = self.promoting.take() {
            promotion.discard(&self.frames);
        }
        let mut shadow = self.shadow.take().expect("until the end");
        shadow.stop_moving(&self.frames);
        for (vcpu, hart) in self.vcpus.iter_mut().zip(&self.bus.0.borrow().harts) {
            shadow.detach_all(Some(&vcpu.root), &mut vcpu.views, &hart.log.borrow());
        }
        assert_eq!(shadow.pages_in_use(), 0, "HELD");
        let counters = *shadow.counters();
        shadow.destroy().for_each(|run| self.frames.free(run));
        let space = self.space.counters();
        let mut remains = self.space.destroy(&mut AllHarts(&Bus(RefCell::new(empty::<S>()))));
        let machine = &self.bus.0.borrow().machine;
        let mut slots: Vec<_> = self.away.values().map(|away| away.slot).collect();
        let copies: Vec<_> = self.copies.values().map(|copy| copy.slot).collect();
        let mut forgo = |slot| match slots.iter().position(|out| *out == slot) {
            Some(at) => _ = slots.swap_remove(at),
            None => assert!(copies.contains(&slot), "{slot:?} is given back, and nothing was there"),
        };
        while remains.release(100, &self.frames, machine, &mut forgo) {}
        assert!(slots.is_empty(), "at the end {slots:?} are not given back");
        assert_eq!((self.frames.usage(VM).total(), self.frames.free_count()), (0, 4096), "ACCOUNTED");
        (counters, space)
    }
}

fn empty<S: Subject>() -> Hardware<S> {
    Hardware {
        machine: Machine::new(),
        harts: Vec::new(),
        history: History::default(),
        rng: hardware::rng(0),
        meddling: None,
        events: Vec::new(),
        drops_fences: false,
        is_stubborn: false,
    }
}
