//! Every permission of a guest's leaf, against every kind of guest memory, in every context, for every upkeep: a fault on
//! shadow tables comes to what the oracle says of the guest's tables, and what the shadow then allows is what hardware
//! would, by the same oracle. Nothing is sampled.

use crate::engine::{self, HOST, Hardware, RAM, VM};
use ::lane::FenceLog;
use mmu::shadow::{Answer, Config, Host, Root, Sabotage, Shadow, Upkeep, Views};
use mmu::{AdPolicy, AddressSpace, Frames, Object, Prot, Ready, ResolveError, Resolved, with_ready};
use oracle::{Ad, Context, Machine as Memory, Table, Words};
use rv::format::SV39;
use rv::{Access, Addr, Asid, Gva, Hpa, Mode, PAGE_BYTES, Pfn, PhysMem, PteFlags, Request};

const IMAGE: Pfn<Hpa> = Pfn::new(0x20_0000);
const GVA: Addr<Gva> = Addr::new(0x123);
/// Guest pages: its tables, from the root down, and one of each kind of memory.
const TABLES: [u64; 3] = [0, 1, 2];
const ANONYMOUS: u64 = 16;
const IMAGE_PAGE: u64 = 512;
const ROM: u64 = 1024;

/// The guest's memory as words, for the oracle.
struct GuestWords<'a>(&'a AddressSpace, &'a Memory);

impl Words for GuestWords<'_> {
    fn load(&mut self, at: u64) -> Option<u64> {
        self.0.region_of(Addr::new(at).pfn())?;
        Some(self.0.translate(Addr::new(at), self.1).map_or(0, |there| self.1.peek(there.hpa.raw()).expect("memory")))
    }
    fn store(&mut self, _: u64, _: u64) {}
}

/// The shadow as words: as hardware sees it.
struct ShadowWords<'a>(&'a Memory);

impl Words for ShadowWords<'_> {
    fn load(&mut self, at: u64) -> Option<u64> {
        self.0.peek(at)
    }
    fn store(&mut self, at: u64, _: u64) {
        panic!("SUBSET: hardware would write {at:#x}");
    }
}

struct World {
    mem: Memory,
    frames: Frames,
    space: AddressSpace,
    shadow: Shadow,
    views: Views,
    log: FenceLog,
    root: Root,
}

impl World {
    fn new(upkeep: Upkeep, ad: AdPolicy) -> Self {
        let mut mem = Memory::with_ram(HOST, 2048);
        mem.add(IMAGE, 512);
        mem.zero_frames(IMAGE, 512);
        let mut frames = Frames::new();
        frames.add(HOST, 2048);
        let regions = [
            (Prot::RWX, Object::Anonymous),
            (Prot::RWX, Object::Image { first: IMAGE }),
            (Prot::R.union(Prot::X), Object::Anonymous),
        ];
        let mut space = engine::space(&regions, &frames, &mut mem);
        let config = Config { upkeep, ad, globals: true, pages: 64, first_serial: 1, quiet_after: 0 };
        let mut shadow = engine::shadow(config, 1536, &frames, &mut mem);
        let (mut views, log) = (Views::default(), FenceLog::new(0));
        for (table, next) in TABLES.into_iter().zip(TABLES.into_iter().skip(1)) {
            poke(&mut space, &frames, &mut mem, table, (RAM.raw() + next) << 10 | 1);
        }
        let mut root = None;
        let what = (&SV39, TABLES[0], Asid(0));
        engine::attach(&mut shadow, &mut root, what, (&mut views, &log), (&mut space, &frames), &mut mem);
        let root = root.expect("it is loaded");
        Self { mem, frames, space, shadow, views, log, root }
    }

    /// Returns the answer of the guest's tables to an access.
    fn guest_says(&self, request: &Request, ad: Ad) -> Result<u64, u64> {
        let root = RAM.add(TABLES[0]).base().raw();
        oracle::translate(&mut GuestWords(&self.space, &self.mem), &context(request, root, ad), GVA.raw())
            .map_err(|raised| raised.cause)
    }

    /// Returns the answer of hardware on the shadow.
    fn shadow_says(&self, request: &Request) -> Result<u64, u64> {
        let context = context(request, self.root.table.base().raw(), Ad::Fault);
        oracle::translate(&mut ShadowWords(&self.mem), &context, GVA.raw()).map_err(|raised| raised.cause)
    }

    /// Returns the guest physical address that hardware lets an access through to. Checks that the guest's tables allow
    /// it with A and D as they are, and so does its memory.
    fn through(&self, request: &Request, what: &str) -> Result<u64, u64> {
        let hpa = self.shadow_says(request)?;
        let gpa = self.guest_says(request, Ad::Fault);
        let gpa = gpa.unwrap_or_else(|cause| panic!("SUBSET: {what}: {request:?} is let through, and not {cause}"));
        let there = self.space.translate(Addr::new(gpa), &self.mem).expect("the shadow leads there");
        assert_eq!(there.hpa.raw(), hpa, "{what}");
        let may_store = there.flags.contains(PteFlags::W);
        assert!(request.access != Access::Store || may_store, "OWNERSHIP: {what}: {request:?} is let through");
        Ok(gpa)
    }

    fn fault(&mut self, request: &Request) -> Answer {
        let mut hw = Hardware;
        let (space, frames) = (&mut self.space, &self.frames);
        let answer = with_ready(frames, &mut self.mem, |ready, mem| {
            self.shadow.fault(&self.root, GVA, request, &mut Host::new(space, (frames, ready), mem, &mut hw))
        });
        answer.expect("frames")
    }

    /// The guest's leaf becomes `leaf`, by a store as the guest makes it and a fence.
    fn set_leaf(&mut self, leaf: u64) {
        poke(&mut self.space, &self.frames, &mut self.mem, TABLES[2], leaf);
        self.shadow.host_wrote(RAM.add(TABLES[2]), &mut self.mem);
        let mut hw = Hardware;
        let mut ready = Ready::Nothing;
        let mut host = Host::new(&mut self.space, (&self.frames, &mut ready), &mut self.mem, &mut hw);
        let fence = mmu::shadow::GuestFence { range: Some((GVA, 1)), asid: Some(Asid(0)) };
        self.shadow.fence(&fence, self.root, &mut self.views, &mut self.log, &mut host);
    }

    /// Makes the access, with all the faults that it takes. Returns its result.
    fn access(&mut self, request: &Request, what: &str) -> Result<u64, u64> {
        for _ in 0..3 {
            if let Ok(gpa) = self.through(request, what) {
                return Ok(gpa);
            }
            match self.fault(request) {
                Answer::Filled { .. } => {}
                Answer::Inject(trap) => return Err(trap.exception.code()),
                other => panic!("{what}: {other:?}"),
            }
        }
        panic!("PROGRESS: {what}")
    }
}

fn context(request: &Request, root: u64, ad: Ad) -> Context {
    Context {
        vs: Some(Table { levels: 3, root, ad, svnapot: false, svpbmt: false }),
        g: None,
        access: request.access,
        user: request.mode == Mode::User,
        sum: request.sum,
        vs_mxr: request.mxr,
        hs_mxr: false,
    }
}

/// Writes the first word of a guest page, as the host.
fn poke(space: &mut AddressSpace, frames: &Frames, mem: &mut Memory, page: u64, value: u64) {
    let resolved: Result<Resolved, ResolveError> = space.resolve(RAM.add(page).base(), Access::Store, frames, mem);
    let Ok(Resolved::Mapped { hpa, stale, .. }) = resolved else { panic!("anonymous memory") };
    assert!(stale.is_none());
    mem.write_u64(hpa, value);
}

/// The fault that memory raises which does not allow the access.
const fn access_fault(access: Access) -> u64 {
    match access {
        Access::Load | Access::LoadExec => 5,
        Access::Store => 7,
        Access::Fetch => 1,
    }
}

/// Every access in every context.
fn requests() -> Vec<Request> {
    let of = |bits: u32| {
        let mode = if bits & 1 == 0 { Mode::User } else { Mode::Supervisor };
        [Access::Load, Access::Store, Access::Fetch].map(|access| Request {
            access,
            mode,
            sum: bits & 2 != 0,
            mxr: bits & 4 != 0,
            hs_mxr: false,
        })
    };
    (0..8).flat_map(of).collect()
}

fn matrix(upkeep: Upkeep, ad: AdPolicy, sabotage: Option<Sabotage>) -> u64 {
    let mut world = World::new(upkeep, ad);
    if let Some(sabotage) = sabotage {
        world.shadow.sabotage(sabotage);
    }
    let guests = if ad == AdPolicy::Svadu { Ad::Hardware } else { Ad::Fault };
    let (mut count, requests) = (0, requests());
    for (page, prot) in [(ANONYMOUS, Prot::RWX), (IMAGE_PAGE, Prot::RWX), (ROM, Prot::R.union(Prot::X))] {
        for flags in 0..256 {
            for request in &requests {
                let what = format!("{upkeep:?} {ad:?}, page {page}, leaf {flags:#x}, {request:?}");
                world.set_leaf((RAM.raw() + page) << 10 | flags);
                // The guest's tables first; where they let it through, its memory.
                let allowed = match request.access {
                    Access::Load => prot.contains(Prot::R),
                    Access::Store => prot.contains(Prot::W),
                    _ => prot.contains(Prot::X),
                };
                let expected = world.guest_says(request, guests);
                let expected =
                    expected.and_then(|gpa| if allowed { Ok(gpa) } else { Err(access_fault(request.access)) });
                assert_eq!(world.access(request, &what), expected, "{what}");
                // What the shadow allows others now.
                for other in &requests {
                    count += 1 + u64::from(world.through(other, &what).is_ok());
                }
            }
        }
        // Each kind was used; the image's page was read first, and is a copy since the first store.
        assert!(world.space.translate(RAM.add(page).base(), &world.mem).is_some(), "page {page}");
    }
    let World { mem, frames, space, mut shadow, mut views, log, root, .. } = world;
    shadow.detach_all(Some(&root), &mut views, &log);
    shadow.destroy().for_each(|run| frames.free(run));
    assert!(!space.destroy(&mut Hardware).release(u32::MAX, &frames, &mem, |_| panic!("nothing is out")));
    assert_eq!(frames.usage(VM).total() * PAGE_BYTES, 0);
    count
}

#[test]
fn faults_are_what_the_oracle_says() {
    for upkeep in [Upkeep::Shadow, Upkeep::Unsync, Upkeep::Lazy] {
        for ad in [AdPolicy::Svade, AdPolicy::Svadu] {
            let count = matrix(upkeep, ad, None);
            println!("{upkeep:?} {ad:?}: {count}");
            assert!(count > 3 * 256 * 24 * 24);
        }
    }
}

#[test]
fn bad_permissions_are_caught() {
    for sabotage in [Sabotage::IgnoresDirty, Sabotage::ForgetsUser, Sabotage::IgnoresHost] {
        let failed = std::panic::catch_unwind(|| matrix(Upkeep::Lazy, AdPolicy::Svade, Some(sabotage)));
        assert!(failed.is_err(), "{sabotage:?} was not caught");
    }
}
