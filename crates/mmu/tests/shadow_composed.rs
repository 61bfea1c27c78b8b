//! Random lives of a guest that is a hypervisor (L1), whose guests (L2) run on tables that lead from their virtual addresses to the host's: two
//! stages of guests' tables, and the VM's memory behind them. L1 edits its G-stage tables and L2 its own, all at any time; both fence
//! now and then. After each step, all that a hart may use has to follow from values that the entries had since its fences, and what
//! guests are told has to be what the oracle says.

use crate::shadow_composed::harts::{AllHarts, Bus, Hart, Mem, Refusal};
use crate::shadow_composed::own::Own;
use lane::FenceLog;
use mmu::shadow::{
    Answer, Config, Forget, GuestFence, Host, Lists, Paging, Root, Sabotage, Shadow, Upkeep, Views, companion,
};
use mmu::walk::AdPolicy;
use mmu::{
    Ad, AddressSpace, Edits, Frames, Images, Object, Owner, Policy, Prot, Region, Residence, Span, Superpages,
    with_ready,
};
use oracle::{Machine, Words};
use rv::format::{SV39, SV39X4};
use rv::{Access, Addr, Asid, Gpa, Hpa, L2Gva, Mode, Pfn, PhysMem, PteFlags, Request};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::catch_unwind;

mod audit;
mod harts;
mod own;
mod tables;

const RAM: Pfn<Gpa> = Pfn::new(0x8_0000);
const PAGES: u64 = 1536;
const HOST: Pfn<Hpa> = Pfn::new(0x10_0000);
const IMAGE: Pfn<Hpa> = Pfn::new(0x20_0000);
const VM: Owner = Owner::Vm(2);
/// Pages of RAM: the roots of L1's G-stages, of four frames; its other tables by level; the pages that L2's first ones begin as.
const G_ROOTS: [u64; 2] = [8, 16];
const G_MEGAS: [u64; 2] = [24, 25];
const G_PAGES: [u64; 3] = [27, 28, 29];
const L2: u64 = 40;
const L2_PAGES: u64 = 16;
/// L2's pages: its roots, and tables of the two levels below.
const ROOTS: [u64; 2] = [1, 2];
const MEGAS: [u64; 2] = [3, 4];
const TABLES: [u64; 3] = [5, 6, 7];
const INDICES: [u64; 3] = [0, 1, 5];
const AMPLE: u32 = 8192;

type Time = u64;

/// A fence that a hart did.
#[derive(Clone, Copy, Debug)]
struct Fenced {
    /// Set if it was one of the G-stage's, of that hypervisor's guest or of all.
    is_g_stage: bool,
    context: Option<usize>,
    asid: Option<Asid>,
    page: Option<u64>,
    at: Time,
}

struct Vcpu {
    context: usize,
    paging: Paging,
    asid: Asid,
    root: Option<Root<L2Gva>>,
    views: Views<L2Gva>,
    log: FenceLog<L2Gva>,
    fences: Vec<Fenced>,
    /// Names the stay in a context: the hart's ASIDs are others in each.
    stay: u64,
}

impl Vcpu {
    /// The time of the last fence that is about a leaf of the virtual page, or, without one, about pointers.
    fn own(&self, page: Option<u64>) -> Time {
        let is_about = |f: &&Fenced| {
            !f.is_g_stage
                && f.context.is_none_or(|context| context == self.context)
                && f.asid.is_none_or(|asid| asid == self.asid)
                && (f.page.is_none() || f.page == page)
        };
        self.fences.iter().filter(is_about).map(|fenced| fenced.at).max().unwrap_or(0)
    }

    /// The time of the last fence of the G-stage that is about a leaf of so many pages, or, without one, about pointers.
    fn below(&self, leaf: Option<(u64, u64)>) -> Time {
        let covers = |page: u64| leaf.is_some_and(|(of, pages)| page & !(pages - 1) == of & !(pages - 1));
        let is_about = |f: &&Fenced| {
            f.is_g_stage && f.context.is_none_or(|context| context == self.context) && f.page.is_none_or(covers)
        };
        self.fences.iter().filter(is_about).map(|fenced| fenced.at).max().unwrap_or(0)
    }
}

struct Rig {
    bus: Bus,
    frames: Frames,
    space: AddressSpace,
    shadow: Option<Shadow<L2Gva>>,
    /// L1's own shadow tables, if it is on such.
    own: Option<Own>,
    vcpus: Vec<Vcpu>,
    /// The values that words of tables had, by address: since when each.
    history: BTreeMap<u64, Vec<(Time, u64)>>,
    clock: Time,
    g_ad: AdPolicy,
    vs_ad: AdPolicy,
    budget: u32,
    /// Accesses that came through, traps of L2's own, of L1's, devices.
    tally: [u64; 4],
    /// Fences of the G-stage by address that had nothing to do, and others.
    below: [u64; 2],
}

/// Runs an operation on the engine with what it needs, in the context of vCPU `n`.
macro_rules! host {
    ($rig:ident, $n:expr, |$shadow:ident, $host:ident| $act:expr) => {{
        let (mut mem, mut hw) = (Mem(&$rig.bus), AllHarts(&$rig.bus));
        let (below, vs_ad) = ($rig.below($n), $rig.vs_ad);
        let $shadow = $rig.shadow.as_mut().expect("until the end");
        with_ready(&$rig.frames, &mut mem, |ready, mem| {
            mmu::shadow::go_by($shadow, below, vs_ad);
            let host = Host::new(&mut $rig.space, (&$rig.frames, ready), mem, &mut hw).within($rig.budget);
            host.beside($rig.own.as_mut().map(|own| companion(&mut own.engine)), |$host| $act)
        })
        .expect("frames")
    }};
}

mod matrix;

impl Rig {
    fn new(seed: u64, sabotage: Option<Sabotage>, is_shadowed: bool) -> Self {
        let bus = Bus(RefCell::new(harts::Hardware::new(seed)));
        let mut machine = Machine::with_ram(HOST, 4096);
        machine.add(IMAGE, 512);
        machine.zero_frames(IMAGE, 512);
        let mut frames = Frames::new();
        frames.add(HOST, 4096);
        let pick = |n| bus.0.borrow_mut().pick(n);
        let superpages = if pick(3) == 0 { Superpages::Never } else { Superpages::Mega };
        let policy = Policy { superpages, images: Images::Shared, residence: Residence::Pageable, ad: Ad::AsNeeded };
        let mut space = AddressSpace::new(&SV39X4, VM, policy, &frames, &mut machine).expect("frames");
        let objects = [Object::Anonymous, Object::Image { first: IMAGE }, Object::Anonymous];
        for (n, object) in (0..).zip(objects) {
            let region = Region { start: RAM.add(512 * n), pages: 512, prot: Prot::RWX, object };
            space.add_region(region, &machine).expect("disjoint");
        }
        let ad = |hardware| if hardware { AdPolicy::Svadu } else { AdPolicy::Svade };
        let (g_ad, vs_ad) = (ad(pick(2) == 0), ad(pick(2) == 0));
        let pages = if pick(2) == 0 { Config::least_pages::<L2Gva>(3) } else { 256 };
        let budget = if pick(2) == 0 { AMPLE } else { 100 + pick(1000) as u32 };
        let config = Config { upkeep: Upkeep::Lazy, ad: g_ad, globals: false, pages, first_serial: 1, quiet_after: 0 };
        let mut lists = Lists::new(RAM, PAGES);
        assert_eq!(lists.prepare(u64::MAX, VM, &frames, &mut machine), Ok(true));
        let mut shadow = Shadow::new(config, VM, lists, &frames).expect("frames");
        if let Some(sabotage) = sabotage {
            shadow.sabotage(sabotage);
        }
        let count = 1 + pick(3) as usize;
        let vcpus = (0..count).map(|n| Vcpu {
            context: n % 2,
            paging: Paging::Bare,
            asid: Asid(0),
            root: None,
            views: Views::new(8, 0),
            log: FenceLog::new(n as u32),
            fences: Vec::new(),
            stay: n as u64,
        });
        let vcpus = vcpus.collect();
        {
            let mut hardware = bus.0.borrow_mut();
            hardware.machine = machine;
            hardware.harts = (0..count).map(|_| Hart::default()).collect();
        }
        let mut rig = Self {
            bus,
            frames,
            space,
            shadow: Some(shadow),
            own: None,
            vcpus,
            history: BTreeMap::new(),
            clock: 1,
            g_ad,
            vs_ad,
            budget,
            tally: [0; 4],
            below: [0; 2],
        };
        if is_shadowed {
            rig.shadow_own(sabotage);
        }
        rig.build();
        (0..count).for_each(|n| rig.load(n));
        rig
    }

    fn pick(&self, below: u64) -> u64 {
        self.bus.0.borrow_mut().pick(below)
    }

    fn any(&self, of: &[u64]) -> u64 {
        of[self.pick(of.len() as u64) as usize]
    }

    /// The third context is Bare.
    fn below(&self, n: usize) -> Paging {
        match G_ROOTS.get(self.vcpus[n].context) {
            Some(root) => Paging::Tables { format: &SV39X4, root: RAM.add(*root) },
            None => Paging::Bare,
        }
    }

    /// Stores a word of the guests', wherever it is.
    fn poke(&mut self, gpa: Addr<Gpa>, value: u64) {
        let hpa = if self.own.is_some() && self.pick(2) == 0 {
            self.resolve_own(gpa, Access::Store)
        } else {
            host!(self, 0, |shadow, host| shadow.resolve(gpa, Access::Store, host))
        };
        Mem(&self.bus).write_u64(hpa.expect("RAM"), value);
    }

    /// A word of the VM's memory; what is not touched is 0.
    fn word(&self, at: u64) -> Option<u64> {
        let at = Addr::<Gpa>::new(at);
        self.space.region_of(at.pfn())?;
        let machine = &self.bus.0.borrow().machine;
        Some(self.space.resident(at, machine).map_or(0, |there| machine.peek(there.hpa.raw()).expect("memory")))
    }

    /// Notes what has changed in tables.
    fn look(&mut self) {
        self.clock += 1;
        let frames = G_ROOTS.into_iter().flat_map(|root| root..root + 4);
        let frames = frames.chain(G_MEGAS).chain(G_PAGES).chain(L2..L2 + L2_PAGES).chain(512..520).chain(1024..1032);
        for page in frames.chain(0..8) {
            for index in (0..L2_PAGES).chain([511]) {
                let at = RAM.add(page).at(8 * index).raw();
                let now = self.word(at).expect("RAM");
                let known = self.history.entry(at).or_insert_with(|| vec![(0, 0)]);
                if known.last().is_none_or(|(_, last)| *last != now) {
                    known.push((self.clock, now));
                }
            }
        }
    }

    /// Gives the vCPU the root that it asks for.
    fn load(&mut self, n: usize) {
        for _ in 0..1000 {
            let vcpu = &mut self.vcpus[n];
            let (mut root, what) = (vcpu.root.take(), (vcpu.paging, vcpu.asid));
            let mut views = core::mem::take(&mut vcpu.views);
            let log = vcpu.log.clone();
            let loaded = host!(self, n, |shadow, host| shadow.attach(&mut root, what, &mut views, &log, host));
            let vcpu = &mut self.vcpus[n];
            (vcpu.root, vcpu.views) = (root, views);
            let Some(loaded) = loaded else { continue };
            let id = (vcpu.stay, root.expect("loaded").serial);
            if loaded.fence {
                self.bus.0.borrow_mut().harts[n].forget(id);
            }
            return;
        }
        panic!("PROGRESS: no root");
    }

    fn access(&mut self, n: usize, gva: Addr<L2Gva>, request: &Request) {
        for _ in 0..200 {
            let root = self.vcpus[n].root.expect("loaded");
            let id = (self.vcpus[n].stay, root.serial);
            match self.bus.0.borrow_mut().translate(n, (id, root.table), gva, request) {
                Ok(_) => {
                    self.tally[0] += 1;
                    return;
                }
                Err(Refusal::PageFault) => {}
            }
            let asked = self.ask(n, gva, request);
            let answer = host!(self, n, |shadow, host| {
                match shadow.fault_in_known_tables(&root, gva, request, host.space, host.mem) {
                    Some(answer) => Ok(Some(answer)),
                    None if !mmu::shadow::is_current(shadow, &root, host) => Ok(None),
                    None => shadow.fault_from_root(&root, gva, request, host).map(Some),
                }
            });
            match answer {
                None => self.load(n),
                Some(Answer::Filled { forget: Forget::Nothing, .. } | Answer::Retry) => {}
                Some(Answer::Filled { .. }) => self.bus.0.borrow_mut().harts[n].forget_page(gva),
                Some(Answer::Inject(trap)) => {
                    let is_l1s = trap.tval2 != 0 || trap.exception.code() >= 20;
                    self.tally[if is_l1s { 2 } else { 1 }] += 1;
                    let raised = oracle::Raised {
                        cause: trap.exception.code(),
                        tval: trap.tval,
                        htval: trap.tval2,
                        htinst: trap.tinst,
                    };
                    // One leaf cannot say that a page is L2's to execute and L1's to read.
                    let is_known =
                        request.access == Access::Load && (request.mxr || request.hs_mxr) && !is_l1s && asked.is_ok();
                    if !is_known {
                        assert_eq!(asked, Err(raised), "REFUSAL: {gva:?} {request:?}");
                    }
                    return;
                }
                Some(Answer::Device { gpa }) => {
                    self.tally[3] += 1;
                    // The oracle knows no permissions of the known tables' any more.
                    assert!(self.space.region_of(gpa.pfn()).is_none(), "DEVICE: {gpa:?}");
                    return;
                }
                Some(Answer::TableWrite { .. }) => panic!("nothing is protected"),
            }
            self.look();
        }
        panic!("PROGRESS: {gva:?} {request:?} {:?}", self.ask(n, gva, request));
    }

    fn address(&self, n: usize) -> Addr<L2Gva> {
        if self.vcpus[n].paging == Paging::Bare && self.pick(8) != 0 {
            let page = self.any(&[0, 0x200, 0xa00, 0x4_0000]) + self.pick(16);
            return Addr::new((page << 12) | (8 * self.pick(512)));
        }
        let index = |shift: u32| self.any(&INDICES) << shift;
        Addr::new(index(30) | index(21) | index(12) | (8 * self.pick(512)))
    }

    fn request(&self) -> Request {
        let access = [Access::Load, Access::Store, Access::Fetch][self.pick(3) as usize];
        let mode = if self.pick(3) == 0 { Mode::User } else { Mode::Supervisor };
        Request { access, mode, sum: self.pick(2) == 0, mxr: self.pick(4) == 0, hs_mxr: false }
    }

    fn fence(&mut self, n: usize) {
        let gva = self.address(n);
        let by_asid = self.pick(2) == 0;
        let page = (self.pick(3) != 0).then_some(gva.pfn().raw());
        let vcpu = &mut self.vcpus[n];
        let asid = by_asid.then_some(vcpu.asid);
        let (root, mut views, mut log) =
            (vcpu.root.expect("loaded"), core::mem::take(&mut vcpu.views), vcpu.log.clone());
        let fence = GuestFence { range: page.map(|_| (gva, 1)), asid };
        host!(self, n, |shadow, host| {
            shadow.fence(&fence, root, &mut views, &mut log, host);
            Ok::<(), mmu::Unresolved>(())
        });
        let (context, at) = (Some(self.vcpus[n].context), self.clock);
        let vcpu = &mut self.vcpus[n];
        (vcpu.views, vcpu.log) = (views, log);
        vcpu.fences.push(Fenced { is_g_stage: false, context, asid, page, at });
        let mut hardware = self.bus.0.borrow_mut();
        match page {
            Some(_) => hardware.harts[n].forget_page(gva),
            None => hardware.harts[n].forget_all(),
        }
    }

    fn fence_below(&mut self, n: usize) {
        let l2 = self.any(&[0, 0x200, 0xa00, 0x4_0000, 0x4_0200]) + self.pick(16);
        let page = (self.pick(3) != 0).then_some(l2);
        let vcpu = &mut self.vcpus[n];
        let (root, mut views, mut log) =
            (vcpu.root.expect("loaded"), core::mem::take(&mut vcpu.views), vcpu.log.clone());
        let range = page.map(|page| (Addr::new(page << 12), 1));
        let ends = host!(self, n, |shadow, host| {
            Ok::<bool, mmu::Unresolved>(mmu::shadow::fence_below(shadow, range, (root, &mut views, &mut log), host))
        });
        let (context, at) = (self.vcpus[n].context, self.clock);
        let vcpu = &mut self.vcpus[n];
        (vcpu.views, vcpu.log) = (views, log);
        let context = if page.is_none() && by_chance(at) { None } else { Some(context) };
        vcpu.fences.push(Fenced { is_g_stage: true, context, asid: None, page, at });
        self.below[usize::from(ends)] += u64::from(page.is_some());
        if ends {
            self.bus.0.borrow_mut().harts[n].forget_all();
        }
    }

    fn switch(&mut self, n: usize) {
        let paging = match self.pick(4) {
            0 => Paging::Bare,
            n => Paging::Tables { format: &SV39, root: Pfn::new(ROOTS[n as usize % 2]) },
        };
        let asid = Asid(self.pick(3) as u16);
        let context = if self.pick(3) == 0 { self.pick(3) as usize } else { self.vcpus[n].context };
        if context != self.vcpus[n].context {
            let vcpu = &mut self.vcpus[n];
            let shadow = self.shadow.as_mut().expect("until the end");
            shadow.detach_all(vcpu.root.take().as_ref(), &mut vcpu.views, &vcpu.log);
            (vcpu.views, vcpu.context) = (Views::new(8, 0), context);
            vcpu.stay += 16;
            if self.pick(2) == 0 {
                // L1 fences while the vCPU has no root.
                let all = Fenced { is_g_stage: true, context: None, asid: None, page: None, at: self.clock };
                self.vcpus[n].fences.push(all);
                self.bus.0.borrow_mut().harts[n].forget_all();
            }
        }
        (self.vcpus[n].paging, self.vcpus[n].asid) = (paging, asid);
        self.load(n);
    }

    /// The host takes some of L1's pages.
    fn take(&mut self) {
        let page = self.any(&[L2 + self.pick(L2_PAGES), 512 + self.pick(16), 1024 + self.pick(16), self.any(&G_PAGES)]);
        // A table that is shadowed stays with its contents, or all would be lost soon.
        let is_table = (L2 + 1..L2 + 8).contains(&page) || G_PAGES.contains(&page);
        if is_table && self.pick(8) != 0 {
            return;
        }
        let span = Span { start: RAM.add(page), pages: 1 + self.pick(4) };
        let (mut mem, mut hw) = (Mem(&self.bus), AllHarts(&self.bus));
        let (shadow, collapsed) = (self.own.as_mut().map(|own| &mut own.engine), self.shadow.as_mut());
        let mut ready = mmu::Ready::Nothing;
        let host = &mut Host::new(&mut self.space, (&self.frames, &mut ready), &mut mem, &mut hw).within(AMPLE);
        let _ = Edits { shadow, nested: None, collapsed, host }.give_back(&[span]);
    }

    fn step(&mut self) {
        let n = self.pick(self.vcpus.len() as u64) as usize;
        if self.own.is_some() && self.pick(3) == 0 {
            self.access_own();
        }
        match self.pick(32) {
            0..=13 => {
                let (gva, request) = (self.address(n), self.request());
                self.access(n, gva, &request);
            }
            14..=21 => {
                let (at, value) = self.edit();
                self.poke(at, value);
            }
            22..=24 => self.fence(n),
            25..=27 => self.fence_below(n),
            28..=30 => self.switch(n),
            _ => self.take(),
        }
        self.look();
        if self.pick(16) == 0 {
            self.shadow.as_ref().expect("until the end").audit(&self.bus.0.borrow().machine);
        }
        (0..self.vcpus.len()).filter(|hart| *hart == n || self.pick(4) == 0).for_each(|hart| self.audit(hart));
        self.audit_own();
    }

    fn finish(mut self) -> ([u64; 4], [u64; 2], mmu::shadow::Counters) {
        let mut shadow = self.shadow.take().expect("until the end");
        for vcpu in &mut self.vcpus {
            shadow.detach_all(vcpu.root.as_ref(), &mut vcpu.views, &vcpu.log);
        }
        assert_eq!(shadow.pages_in_use(), 0, "HELD");
        let counters = *shadow.counters();
        shadow.destroy().for_each(|run| self.frames.free(run));
        if let Some(own) = self.own.take() {
            own.finish(&self.frames);
        }
        (self.tally, self.below, counters)
    }
}

/// Returns whether a fence of everything is of all VMIDs.
const fn by_chance(at: Time) -> bool {
    at.is_multiple_of(2)
}

/// The rights of a leaf, without D no W.
fn rights(flags: PteFlags) -> PteFlags {
    let mut rights = flags & (PteFlags::R | PteFlags::W | PteFlags::X);
    rights.set(PteFlags::W, flags.contains(PteFlags::W | PteFlags::D));
    rights
}

/// The VM's memory for the oracle, whose stores are its own.
struct Overlay<'a>(&'a Rig, BTreeMap<u64, u64>);

impl Words for Overlay<'_> {
    fn load(&mut self, at: u64) -> Option<u64> {
        self.1.get(&at).copied().or_else(|| self.0.word(at))
    }
    fn store(&mut self, at: u64, value: u64) {
        self.1.insert(at, value);
    }
}

/// Steps in the life of one VM.
const STEPS: u64 = 400;

fn run(seed: u64, sabotage: Option<Sabotage>, is_shadowed: bool) -> ([u64; 4], [u64; 2], mmu::shadow::Counters) {
    let mut rig = Rig::new(seed, sabotage, is_shadowed);
    (0..STEPS).for_each(|_| rig.step());
    rig.finish()
}

#[test]
fn lives() {
    let lives = std::env::var("SHADOW_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(24_000) / STEPS;
    let (mut tally, mut below, mut counters) = ([0; 4], [0; 2], mmu::shadow::Counters::default());
    for seed in 0..lives {
        // In some, L1 is on shadow tables itself.
        let life = catch_unwind(|| run(seed, None, seed % 3 == 2)).unwrap_or_else(|_| panic!("seed {seed}"));
        tally.iter_mut().zip(life.0).for_each(|(sum, n)| *sum += n);
        below.iter_mut().zip(life.1).for_each(|(sum, n)| *sum += n);
        counters += life.2;
    }
    println!("{tally:?} {below:?} {counters:?}");
    assert!(tally.iter().chain(&below).all(|n| *n >= lives / 4), "{tally:?} {below:?}");
    assert!(counters.filled_2m >= lives / 8 && counters.recycled >= lives / 8, "{counters:?}");
}

/// Each fault that is planted, and the checks that may find it.
const MUTANTS: [(Sabotage, &[&str]); 16] = [
    (Sabotage::ForgetsCompanion, &["OWNERSHIP", "TLB-LIKE", "BESIDE"]),
    (Sabotage::ForgetsBelow, &["TLB-LIKE"]),
    (Sabotage::ForgetsUses, &["TLB-LIKE"]),
    (Sabotage::KeepsNear, &["OWNERSHIP", "TLB-LIKE", "PROGRESS"]),
    (Sabotage::ForgetsChanges, &["TLB-LIKE"]),
    (Sabotage::ForgetsNewStages, &["TLB-LIKE"]),
    (Sabotage::LeavesFrames, &["TLB-LIKE"]),
    (Sabotage::KeepsMovedRoots, &["TLB-LIKE"]),
    (Sabotage::MistakesContexts, &["TLB-LIKE", "REFUSAL", "PROGRESS"]),
    (Sabotage::ForgetsFence, &["TLB-LIKE"]),
    (Sabotage::ForgetsWideFence, &["TLB-LIKE"]),
    (Sabotage::ForgetsToCatchUp, &["TLB-LIKE"]),
    (Sabotage::LinksStale, &["TLB-LIKE"]),
    (Sabotage::ForgetsLeaf, &["OWNERSHIP", "TLB-LIKE"]),
    (Sabotage::IgnoresHost, &["OWNERSHIP", "TLB-LIKE"]),
    (Sabotage::KeepsPointers, &["OWNERSHIP", "TLB-LIKE", "SUBSET", "PROGRESS"]),
];

#[test]
fn every_mutant_is_caught() {
    for (mutant, checks) in MUTANTS {
        // First the life that finds it.
        let named = match mutant {
            Sabotage::ForgetsCompanion => 4,
            Sabotage::LeavesFrames => 147,
            Sabotage::ForgetsNewStages => 37,
            Sabotage::KeepsMovedRoots => 175,
            Sabotage::ForgetsFence => 41,
            Sabotage::ForgetsLeaf => 29,
            Sabotage::KeepsPointers => 516,
            _ => 0,
        };
        let caught = core::iter::once(named).chain(0..1000).find_map(|seed| {
            let failed = catch_unwind(|| run(seed, Some(mutant), mutant == Sabotage::ForgetsCompanion)).err()?;
            let text = failed.downcast_ref::<String>().cloned();
            text.or_else(|| failed.downcast_ref::<&str>().map(ToString::to_string)).map(|text| (seed, text))
        });
        let (seed, message) = caught.unwrap_or_else(|| panic!("{mutant:?} was not caught"));
        println!("{mutant:?}: seed {seed}: {message}");
        assert!(checks.iter().any(|check| message.contains(check)), "{mutant:?} was caught by chance: {message}");
    }
}
