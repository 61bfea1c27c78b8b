//! The G-stage engine, one behaviour at a time.

use mmu::gstage::{Comes, SwapSlot};
use mmu::{
    Ad, AddressSpace, AllocError, Frames, How, Images, Object, Owner, Policy, Prot, Region, RegionError, Residence,
    ResolveError, Resolved, Returned, Span, Stale, Superpages, Use,
};
use oracle::Machine;
use rv::format::{SV39X4, SV48X4};
use rv::{Access, Addr, Fence, FenceScope, Gpa, Hpa, Level, Pfn, PhysMem, PteFlags};

const VM: Owner = Owner::Vm(0);
const RAM: u64 = 0x8_0000;
const PAGES: u64 = 4096;

/// Remembers the fences.
#[derive(Default)]
struct Fences(Vec<FenceScope<Gpa>>);

impl Fence<Gpa> for Fences {
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        self.0.push(scope);
    }
}

struct Vm {
    frames: Frames,
    mem: Machine,
    space: AddressSpace,
}

fn vm(superpages: Superpages, regions: &[Region]) -> Vm {
    vm_on(PAGES, superpages, regions)
}

fn vm_on(pages: u64, superpages: Superpages, regions: &[Region]) -> Vm {
    let mut frames = Frames::new();
    frames.add(Pfn::new(RAM), pages);
    let mut mem = Machine::with_ram(Pfn::new(RAM), pages);
    let mut space = AddressSpace::new(
        &SV39X4,
        VM,
        Policy { superpages, images: Images::Shared, residence: Residence::Pageable, ad: Ad::AsNeeded },
        &frames,
        &mut mem,
    )
    .unwrap();
    regions.iter().for_each(|region| space.add_region(*region, &mem).unwrap());
    Vm { frames, mem, space }
}

fn region(start: u64, pages: u64, prot: Prot, object: Object) -> Region {
    Region { start: Pfn::new(start), pages, prot, object }
}

fn ram(start: u64, pages: u64) -> Region {
    region(start, pages, Prot::RWX, Object::Anonymous)
}

fn page_range(page: u64, pages: u64) -> FenceScope<Gpa> {
    FenceScope::Range { start: Pfn::new(page).base(), bytes: pages * 4096 }
}

impl Vm {
    fn rest(&mut self, page: Pfn<Gpa>) {
        let stale = self.space.rest(page, &mut self.mem);
        self.space.tell(stale, &mut self.mem).flush(&mut Fences::default(), &self.frames);
    }

    fn resolve(&mut self, page: u64, access: Access) -> Result<Resolved, ResolveError> {
        self.space.resolve(Pfn::new(page).at(8), access, &self.frames, &mut self.mem)
    }

    /// Touches a page that has something behind it.
    fn touch(&mut self, page: u64, access: Access) -> (Addr<Hpa>, How, Stale<Gpa>) {
        match self.resolve(page, access).unwrap() {
            Resolved::Mapped { hpa, how, stale, publish } => {
                assert_eq!(publish.is_some(), how == How::Copied);
                if let Some(publish) = publish {
                    assert_eq!(self.level(page), None, "unmapped until it is published");
                    publish.publish(&mut self.mem);
                }
                (hpa, how, stale)
            }
            Resolved::Hole => panic!("page {page:#x} is a hole"),
        }
    }

    fn unmap(&mut self, page: u64, pages: u64) -> Result<Stale<Gpa>, AllocError> {
        self.space.unmap(Pfn::new(page), pages, &self.frames, &mut self.mem)
    }

    fn level(&self, page: u64) -> Option<Level> {
        self.space.translate(Pfn::new(page).base(), &self.mem).map(|t| t.level)
    }
}

#[test]
fn the_root_is_sixteen_kib_aligned_and_clear() {
    let vm = vm(Superpages::Mega, &[]);
    assert!(vm.space.root().is_aligned(4));
    assert!((0..4).all(|i| vm.mem.frame(vm.space.root().add(i)).iter().all(|word| *word == 0)));
    assert_eq!(vm.frames.usage(VM).table, 4);
    assert_eq!((vm.space.format(), vm.space.owner()), (&SV39X4, VM));
}

#[test]
#[should_panic(expected = "not a G-stage format")]
fn only_g_stage_formats_will_do() {
    let (frames, mut mem) = (Frames::new(), Machine::new());
    let policy = Policy {
        superpages: Superpages::Never,
        images: Images::Shared,
        residence: Residence::Pageable,
        ad: Ad::AsNeeded,
    };
    let _ = AddressSpace::<Gpa>::new(&rv::format::SV39, VM, policy, &frames, &mut mem);
}

#[test]
fn there_is_no_address_space_without_a_root() {
    let (frames, mut mem) = (Frames::new(), Machine::new());
    let policy = Policy {
        superpages: Superpages::Never,
        images: Images::Shared,
        residence: Residence::Pageable,
        ad: Ad::AsNeeded,
    };
    let space = AddressSpace::<Gpa>::new(&SV48X4, VM, policy, &frames, &mut mem);
    assert_eq!(space.err(), Some(AllocError::OutOfMemory));
}

#[test]
fn regions_are_disjoint_and_sorted() {
    let mut vm = vm(Superpages::Never, &[ram(100, 10), ram(10, 5), ram(110, 1)]);
    let starts: Vec<u64> = vm.space.regions().map(|r| r.start.raw()).collect();
    assert_eq!(starts, [10, 100, 110]);
    for (start, pages, other) in [(9, 2, 10), (14, 1, 10), (0, 1000, 10), (99, 2, 100), (105, 1, 100), (110, 1, 110)] {
        let error = vm.space.add_region(ram(start, pages), &vm.mem).unwrap_err();
        assert!(matches!(error, RegionError::Overlap(r) if r.start.raw() == other), "{start} +{pages}: {error:?}");
    }
    vm.space.add_region(ram(15, 85), &vm.mem).unwrap();
    assert_eq!(vm.space.region_of(Pfn::new(99)).unwrap().start.raw(), 15);
    assert_eq!(vm.space.region_of(Pfn::new(111)), None);
    assert_eq!(vm.space.region_of(Pfn::new(9)), None);
}

#[test]
fn regions_that_no_table_can_express_are_refused() {
    let mut vm = vm(Superpages::Never, &[]);
    let end = Pfn::new(1 << 29);
    assert_eq!(vm.space.add_region(ram(5, 0), &vm.mem), Err(RegionError::Empty));
    assert_eq!(vm.space.add_region(ram((1 << 29) - 1, 2), &vm.mem), Err(RegionError::TooHigh { end }));
    assert_eq!(vm.space.add_region(ram(u64::MAX, 2), &vm.mem), Err(RegionError::TooHigh { end }));
    for prot in [Prot::empty(), Prot::W, Prot::W | Prot::X] {
        let bad = region(0, 1, prot, Object::Anonymous);
        assert_eq!(vm.space.add_region(bad, &vm.mem), Err(RegionError::BadProt(prot)));
    }
    vm.space.add_region(ram((1 << 29) - 1, 1), &vm.mem).unwrap();
    assert_eq!(vm.touch((1 << 29) - 1, Access::Store).1, How::Filled);
}

#[test]
fn a_hole_is_not_an_error() {
    let mut vm = vm(Superpages::Mega, &[ram(512, 512)]);
    for page in [0, 511, 1024, 1 << 29, 1 << 50] {
        assert!(matches!(vm.resolve(page, Access::Load), Ok(Resolved::Hole)), "{page:#x}");
    }
}

#[test]
fn anonymous_memory_comes_by_2_mib_where_the_region_has_room() {
    let mut vm = vm(Superpages::Mega, &[ram(500, 1100)]);
    for (page, level) in [(511, Level::PAGE), (512, Level::MEGA), (1535, Level::MEGA), (1536, Level::PAGE)] {
        let (hpa, how, stale) = vm.touch(page, Access::Store);
        assert_eq!((how, stale.is_none(), vm.level(page)), (How::Filled, true, Some(level)));
        assert!(vm.mem.frame(hpa.pfn()).iter().all(|word| *word == 0));
    }
    let counters = vm.space.counters();
    assert_eq!((counters.anonymous_2m, counters.anonymous_4k, counters.tables), (2, 2, 3));
    assert_eq!(vm.frames.usage(VM).guest, 2 * 512 + 2);
    assert_eq!(vm.touch(600, Access::Load).1, How::Spurious);
}

#[test]
fn leaves_are_user_accessed_and_dirty_when_writable() {
    let read_only = region(1024, 8, Prot::R, Object::Anonymous);
    let mut vm = vm(Superpages::Mega, &[ram(0, 1024), read_only]);
    drop(vm.touch(0, Access::Fetch));
    drop(vm.touch(1024, Access::Load));
    let flags = |page| vm.space.translate(Pfn::new(page).base(), &vm.mem).unwrap().flags;
    let both = PteFlags::U | PteFlags::A | PteFlags::R | mmu::gstage::OWNED;
    assert_eq!(flags(0), both | PteFlags::W | PteFlags::X | PteFlags::D);
    assert_eq!(flags(1024), both);
}

#[test]
fn a_2_mib_run_that_cannot_be_had_becomes_4_kib() {
    let mut vm = vm(Superpages::Mega, &[ram(0, 1024)]);
    vm.frames.set_limit(VM, 100);
    drop(vm.touch(3, Access::Load));
    assert_eq!((vm.level(3), vm.level(4)), (Some(Level::PAGE), None));
    assert_eq!(vm.space.counters().mega_denied, 1);
    // A table is there now, so the rest of these 2 MiB comes by 4 KiB, limit or not.
    vm.frames.set_limit(VM, u64::MAX);
    drop(vm.touch(4, Access::Load));
    drop(vm.touch(512, Access::Load));
    assert_eq!((vm.level(4), vm.level(512)), (Some(Level::PAGE), Some(Level::MEGA)));
    assert_eq!(vm.space.counters().mega_denied, 1);
}

#[test]
fn a_failure_says_who_is_to_blame_and_changes_nothing() {
    let mut vm = vm(Superpages::Never, &[ram(0, 1024)]);
    vm.frames.set_limit(VM, 6);
    let error = ResolveError::OutOfFrames(AllocError::OverLimit { owner: VM, limit: 6 });
    assert_eq!(vm.resolve(0, Access::Load).unwrap_err(), error);
    assert_eq!(vm.frames.usage(VM).total(), 4);
    vm.frames.set_limit(VM, u64::MAX);
    while vm.frames.alloc(Owner::Host, Use::Other, 0).map(drop).is_ok() {}
    assert_eq!(vm.resolve(0, Access::Load).unwrap_err(), ResolveError::OutOfFrames(AllocError::OutOfMemory));
    assert_eq!((vm.level(0), vm.space.counters()), (None, Default::default()));
}

#[test]
fn a_protection_is_the_guests_business() {
    let regions = [(0, Prot::R), (1, Prot::X), (2, Prot::R | Prot::W)]
        .map(|(start, prot)| region(start, 1, prot, Object::Anonymous));
    let mut vm = vm(Superpages::Never, &regions);
    for (page, access) in [(0, Access::Store), (0, Access::Fetch), (1, Access::Load), (2, Access::LoadExec)] {
        assert_eq!(vm.resolve(page, access).unwrap_err(), ResolveError::Denied);
    }
    assert_eq!(vm.space.counters().denied, 4);
    drop(vm.touch(1, Access::LoadExec));
}

/// A VM with an image at 2 MiB, congruent, and the first frame of the image.
fn with_image(prot: Prot) -> (Vm, Pfn<Hpa>) {
    let mut vm = vm(Superpages::Mega, &[]);
    let image = vm.frames.alloc(Owner::Host, Use::Image, 10).unwrap().first();
    for i in 0..1024 {
        vm.mem.write_u64(image.add(i).base(), i);
    }
    vm.space.add_region(region(512, 1024, prot, Object::Image { first: image }), &vm.mem).unwrap();
    (vm, image)
}

#[test]
fn an_image_is_shared_until_it_is_written() {
    let (mut vm, image) = with_image(Prot::RWX);
    let (hpa, how, _) = vm.touch(520, Access::Fetch);
    assert_eq!((hpa, how, vm.level(520)), (image.add(8).at(8), How::Filled, Some(Level::MEGA)));
    assert_eq!(vm.frames.usage(VM).guest, 0);

    // The 2 MiB around it become the VM's own, and stay whole.
    let (hpa, how, stale) = vm.touch(520, Access::Store);
    assert_eq!((how, stale.scope()), (How::Copied, Some(page_range(512, 512))));
    assert!(stale.retired().is_empty());
    assert_eq!(vm.mem.read_u64(hpa.pfn().base()), 8);
    assert_eq!((vm.level(520), vm.frames.usage(VM).guest), (Some(Level::MEGA), 512));
    let (hpa, how, stale) = vm.touch(521, Access::Store);
    assert_eq!((vm.mem.read_u64(hpa.pfn().base()), how, stale.is_none()), (9, How::Spurious, true));
    // What lies beyond still is the image's.
    let (hpa, how, _) = vm.touch(1025, Access::Load);
    assert_eq!((hpa, how), (image.add(513).at(8), How::Filled));
    let counters = vm.space.counters();
    assert_eq!((counters.copies, counters.copies_2m, counters.splits, counters.image_2m), (0, 1, 0, 2));
}

#[test]
fn without_a_run_of_2_mib_a_page_is_copied() {
    let (mut vm, image) = with_image(Prot::RWX);
    drop(vm.touch(520, Access::Fetch));
    vm.frames.set_limit(VM, vm.frames.usage(VM).total() + 500);
    let (hpa, how, stale) = vm.touch(520, Access::Store);
    assert_eq!((how, stale.scope()), (How::Copied, Some(page_range(520, 1))));
    assert_eq!(vm.mem.read_u64(hpa.pfn().base()), 8);
    assert_eq!((vm.level(520), vm.level(521), vm.frames.usage(VM).guest), (Some(Level::PAGE), Some(Level::PAGE), 1));
    // The other pages still are the image's.
    let (hpa, how, stale) = vm.touch(521, Access::Load);
    assert_eq!((hpa, how, stale.is_none()), (image.add(9).at(8), How::Spurious, true));
    assert_eq!(vm.touch(521, Access::Store).1, How::Copied);
    let counters = vm.space.counters();
    assert_eq!((counters.copies, counters.copies_2m, counters.splits, counters.mega_denied), (2, 0, 1, 2));
    assert_eq!(counters.promoted, 0);
}

#[test]
fn a_first_store_to_an_image_copies_at_once() {
    let (mut vm, _) = with_image(Prot::RWX);
    let (hpa, how, stale) = vm.touch(530, Access::Store);
    assert_eq!((how, stale.scope()), (How::Copied, Some(page_range(512, 512))));
    assert_eq!(vm.mem.read_u64(hpa.pfn().base()), 18);
    assert_eq!((vm.level(530), vm.level(531)), (Some(Level::MEGA), Some(Level::MEGA)));

    let (mut vm, _) = with_image(Prot::RWX);
    vm.frames.set_limit(VM, vm.frames.usage(VM).total() + 500);
    let (hpa, how, stale) = vm.touch(530, Access::Store);
    assert_eq!((how, stale.scope()), (How::Copied, Some(page_range(530, 1))));
    assert_eq!(vm.mem.read_u64(hpa.pfn().base()), 18);
    assert_eq!((vm.level(530), vm.level(531)), (Some(Level::PAGE), None));
}

#[test]
fn a_copy_need_not_be_congruent() {
    let (mut vm, image) = with_image(Prot::R);
    vm.space.add_region(region(2048, 1000, Prot::RWX, Object::Image { first: image.add(1) }), &vm.mem).unwrap();
    let (hpa, how, _) = vm.touch(2050, Access::Store);
    assert_eq!((vm.mem.read_u64(hpa.pfn().base()), how, vm.level(2048)), (3, How::Copied, Some(Level::MEGA)));
    // The last 488 pages are not 2 MiB.
    let (hpa, how, _) = vm.touch(2600, Access::Store);
    assert_eq!((vm.mem.read_u64(hpa.pfn().base()), how, vm.level(2600)), (553, How::Copied, Some(Level::PAGE)));
}

#[test]
fn an_image_that_is_not_congruent_comes_by_4_kib() {
    let (mut vm, image) = with_image(Prot::R);
    vm.space.add_region(region(2048, 1000, Prot::R, Object::Image { first: image.add(1) }), &vm.mem).unwrap();
    drop(vm.touch(2048, Access::Load));
    assert_eq!(vm.level(2048), Some(Level::PAGE));
    assert_eq!((vm.space.counters().image_4k, vm.space.counters().image_2m), (1, 0));
}

#[test]
fn unmapped_memory_is_untouched_again() {
    let mut vm = vm(Superpages::Never, &[ram(0, 1024)]);
    let (hpa, ..) = vm.touch(7, Access::Store);
    vm.mem.write_u64(hpa, 99);
    let stale = vm.unmap(7, 1).unwrap();
    assert_eq!((stale.scope(), stale.retired().len(), vm.level(7)), (Some(page_range(7, 1)), 1, None));
    assert_eq!(vm.frames.usage(VM).guest, 1, "until the fence");
    let mut fences = Fences::default();
    vm.space.tell(stale, &mut vm.mem).flush(&mut fences, &vm.frames);
    assert_eq!((vm.frames.usage(VM).guest, fences.0), (0, vec![page_range(7, 1)]));
    let (hpa, ..) = vm.touch(7, Access::Load);
    assert_eq!(vm.mem.read_u64(hpa), 0);
}

#[test]
fn unmapping_nothing_owes_nothing() {
    let mut vm = vm(Superpages::Mega, &[ram(0, 1024)]);
    drop(vm.touch(7, Access::Store));
    for (page, pages) in [(512, 512), (5, 0), (1 << 29, 5), (u64::MAX, u64::MAX), (4096, u64::MAX)] {
        assert!(vm.unmap(page, pages).unwrap().is_none());
    }
}

#[test]
fn unmapping_2_mib_gives_back_the_table_or_the_leaf_whole() {
    let mut vm = vm(Superpages::Mega, &[ram(0, 512), ram(1000, 24), ram(1024, 512)]);
    drop(vm.touch(0, Access::Store));
    drop(vm.touch(1000, Access::Store));
    let tables = vm.frames.usage(VM).table;
    // A leaf by address; a table needs a fence of everything.
    let leaf = vm.unmap(0, 512).unwrap();
    assert_eq!((leaf.scope(), leaf.retired()[0].order()), (Some(page_range(0, 512)), 9));
    let table = vm.unmap(512, 512).unwrap();
    assert_eq!((table.scope(), table.retired().len()), (Some(FenceScope::Everything), 2));
    vm.space.tell(leaf.join(table), &mut vm.mem).flush(&mut Fences::default(), &vm.frames);
    assert_eq!((vm.frames.usage(VM).guest, vm.frames.usage(VM).table), (0, tables - 1));
}

#[test]
fn unmapping_the_middle_of_2_mib_splits_and_keeps_the_rest() {
    let mut vm = vm(Superpages::Mega, &[ram(0, 2048)]);
    for page in [0, 512, 1024] {
        let (hpa, ..) = vm.touch(page + 1, Access::Store);
        vm.mem.write_u64(hpa, page);
    }
    let stale = vm.unmap(10, 1024 + 490).unwrap();
    assert_eq!(stale.scope(), Some(page_range(10, 1514)));
    assert_eq!(vm.space.counters().splits, 2);
    vm.space.tell(stale, &mut vm.mem).flush(&mut Fences::default(), &vm.frames);
    assert_eq!(vm.frames.usage(VM).guest, 10 + 12);
    assert_eq!(
        (vm.level(9), vm.level(10), vm.level(700), vm.level(1523), vm.level(1524)),
        (Some(Level::PAGE), None, None, None, Some(Level::PAGE))
    );
    assert_eq!(vm.mem.read_u64(vm.space.translate(Pfn::new(1).at(8), &vm.mem).unwrap().hpa), 0);
    // What came back is usable at once.
    drop(vm.touch(10, Access::Store));
}

#[test]
fn a_split_without_a_frame_fails_whole() {
    let mut vm = vm(Superpages::Mega, &[ram(0, 1024)]);
    drop(vm.touch(0, Access::Store));
    drop(vm.touch(512, Access::Store));
    let usage = vm.frames.usage(VM);
    vm.frames.set_limit(VM, usage.total() + 1);
    assert_eq!(vm.unmap(5, 600).unwrap_err(), AllocError::OverLimit { owner: VM, limit: usage.total() + 1 });
    assert_eq!((vm.frames.usage(VM), vm.level(5), vm.level(600)), (usage, Some(Level::MEGA), Some(Level::MEGA)));
    // One frame suffices for one split.
    assert!(!vm.unmap(5, 100).unwrap().is_none());
}

/// Gives spans back in as many portions as it takes; returns how many those were, and what came of them.
fn give_back(vm: &mut Vm, spans: &[Span]) -> (u32, Returned) {
    let (mut portions, mut all, mut left) = (0, Returned::default(), spans.to_vec());
    while !left.is_empty() {
        let mut fences = Fences::default();
        let mut ready = mmu::Ready::Nothing;
        let host = &mut mmu::shadow::Host::new(&mut vm.space, (&vm.frames, &mut ready), &mut vm.mem, &mut fences);
        let returned = mmu::Edits { shadow: None::<&mut mmu::shadow::Shadow>, nested: None, collapsed: None, host }
            .give_back(&left);
        assert!(fences.0.len() <= 1, "a fence for each portion");
        portions += 1;
        all.passed += returned.passed;
        all.freed += returned.freed;
        all.kept += returned.kept;
        let mut passed = returned.passed;
        while let Some(first) = left.first_mut() {
            let part = first.pages.min(passed);
            (first.start, first.pages, passed) = (first.start.add(part), first.pages - part, passed - part);
            if first.pages > 0 {
                break;
            }
            left.remove(0);
        }
    }
    (portions, all)
}

fn span(start: u64, pages: u64) -> Span {
    Span { start: Pfn::new(start), pages }
}

#[test]
fn what_is_given_back_goes_whole_where_it_can() {
    let mut vm = vm(Superpages::Mega, &[ram(0, 1 << 20)]);
    for page in [0, 512, 1024] {
        drop(vm.touch(page, Access::Store));
    }
    // A whole leaf; the end of one; and much where nothing was ever.
    let (portions, returned) = give_back(&mut vm, &[span(0, 512), span(1000, 24), span(4096, 1 << 19)]);
    assert_eq!(returned, Returned { passed: 512 + 24 + (1 << 19), freed: 512 + 24, kept: 0 });
    assert!(portions <= 8, "{portions} portions");
    assert_eq!((vm.level(0), vm.level(999), vm.level(1000)), (None, Some(Level::PAGE), None));
    assert_eq!((vm.space.counters().splits, vm.frames.usage(VM).guest), (1, 2 * 512 - 24));
}

#[test]
fn of_whole_leaves_no_more_go_at_once_than_can_be_freed_frame_by_frame() {
    let mut vm = vm_on(60 * 512, Superpages::Mega, &[ram(0, 50 * 512)]);
    (0..50).for_each(|n| drop(vm.touch(512 * n, Access::Store)));
    let (portions, returned) = give_back(&mut vm, &[span(0, 50 * 512)]);
    assert_eq!(returned, Returned { passed: 50 * 512, freed: 50 * 512, kept: 0 });
    assert!((3..6).contains(&portions), "{portions} portions for 50 leaves");
}

#[test]
fn a_table_goes_with_the_last_of_its_leaves() {
    let mut vm = vm(Superpages::Never, &[ram(0, 1024)]);
    (0..512).for_each(|page| drop(vm.touch(page, Access::Store)));
    let tables = vm.frames.usage(VM).table;
    let (portions, returned) = give_back(&mut vm, &[span(0, 512)]);
    assert_eq!(returned, Returned { passed: 512, freed: 512, kept: 0 });
    assert!((2..10).contains(&portions), "{portions} portions for 512 pages");
    assert_eq!((vm.frames.usage(VM).guest, vm.frames.usage(VM).table), (0, tables - 1));
}

#[test]
fn what_cannot_be_split_stays() {
    let mut vm = vm(Superpages::Mega, &[ram(0, 1024)]);
    drop(vm.touch(0, Access::Store));
    drop(vm.touch(512, Access::Store));
    let usage = vm.frames.usage(VM);
    vm.frames.set_limit(VM, usage.total());
    // Once the second leaf has gone, there is a frame for a table.
    let (_, returned) = give_back(&mut vm, &[span(5, 1), span(512, 512), span(6, 1)]);
    assert_eq!(returned, Returned { passed: 514, freed: 512, kept: 2 });
    assert_eq!(vm.frames.usage(VM).guest, 512);
    let (_, returned) = give_back(&mut vm, &[span(6, 1)]);
    assert_eq!((returned.freed, vm.frames.usage(VM).guest), (1, 511));
}

#[test]
fn an_images_own_frames_stay_and_copies_go() {
    let (mut vm, _) = with_image(Prot::RWX);
    drop(vm.touch(512, Access::Load));
    assert_eq!(give_back(&mut vm, &[span(512, 512)]).1, Returned { passed: 512, freed: 0, kept: 0 });
    assert_eq!(vm.level(512), Some(Level::MEGA), "nothing would come of it");
    let (copy, ..) = vm.touch(512, Access::Store);
    vm.mem.write_u64(copy, 1);
    assert_eq!(give_back(&mut vm, &[span(512, 512)]).1.freed, 512);
    let (image, ..) = vm.touch(512, Access::Load);
    assert_ne!(vm.mem.read_u64(image), 1, "the image itself");
}

#[test]
fn the_end_gives_everything_back() {
    let (mut vm, _) = with_image(Prot::RWX);
    vm.space.add_region(ram(1 << 28, 2000), &vm.mem).unwrap();
    for page in [512, 1024, (1 << 28) + 3, (1 << 28) + 1999] {
        drop(vm.touch(page, Access::Load));
        drop(vm.touch(page, Access::Store));
    }
    let mut fences = Fences::default();
    let mut remains = vm.space.destroy(&mut fences);
    // What may be looked at is looked at, and not more.
    let mut portions = 1;
    while remains.release(100, &vm.frames, &vm.mem, |_| panic!("nothing is out")) {
        portions += 1;
    }
    assert!(
        (35..50).contains(&portions),
        "{portions} portions for 2048 entries of the root, and 512 of each of three tables"
    );
    assert_eq!((vm.frames.usage(VM).total(), fences.0), (0, vec![FenceScope::Everything]));
    assert_eq!(vm.frames.free_count(), PAGES - 1024);
}

#[test]
fn zeroes_may_go_nowhere_where_memory_begins_as_zeroes() {
    let (mut vm, _) = with_image(Prot::RWX);
    vm.space.add_region(ram(1 << 28, 10), &vm.mem).unwrap();
    let begins = |page| vm.space.begins_as_zeroes(Pfn::new(page));
    assert_eq!([begins(512), begins((1 << 28) + 9), begins((1 << 28) + 10)], [false, true, false]);
}

#[test]
#[should_panic(expected = "an image's if it is untouched")]
fn a_page_of_an_image_does_not_become_the_images_again() {
    let (mut vm, _) = with_image(Prot::RWX);
    vm.frames.set_limit(VM, vm.frames.usage(VM).total() + 8);
    drop(vm.touch(512, Access::Store));
    vm.rest(Pfn::new(512));
    let _ = vm.space.take_out(Pfn::new(512), None, &mut vm.mem);
}

/// A sweep spares what is used again and again, and nothing that was used once, or came unasked.
#[test]
fn what_was_used_when_it_had_been_idle_is_spared_twice() {
    for superpages in [Superpages::Never, Superpages::Mega] {
        let mut vm = vm(superpages, &[ram(0, 1024)]);
        let _ = vm.touch(5, Access::Store);
        let page = Pfn::new(5);
        let rest = |vm: &mut Vm| vm.rest(page);
        rest(&mut vm);
        assert!(!vm.space.spare(page, &mut vm.mem), "it was used once");
        for _ in 0..2 {
            let (hpa, ..) = vm.touch(5, Access::Load);
            rest(&mut vm);
            let spared = [(); 4].map(|()| vm.space.spare(page, &mut vm.mem));
            assert_eq!(spared, [true, true, false, false]);
            assert_eq!(vm.space.resident(page.at(8), &vm.mem).map(|there| there.hpa), Some(hpa));
        }
        if superpages == Superpages::Never {
            let slot = SwapSlot(9);
            // It comes back as if it were new: that it is touched is the first time.
            for comes in [Comes::Ahead, Comes::Wanted] {
                assert!(!vm.space.spare(page, &mut vm.mem));
                let frame = vm.space.take_out(page, Some(slot), &mut vm.mem);
                let stale = vm.space.bring_in(page, slot, (frame, comes), &mut vm.mem).unwrap();
                vm.space.tell(stale, &mut vm.mem).flush(&mut Fences::default(), &vm.frames);
                let _ = vm.touch(5, Access::Load);
                rest(&mut vm);
                assert!(!vm.space.spare(page, &mut vm.mem), "{comes:?}");
            }
        }
        assert!(!vm.space.spare(Pfn::new(700), &mut vm.mem), "nothing is there");
    }
}
