//! 2 MiB of the VM's own where images end, and in the place of 4 KiB leaves.

use mmu::{
    Ad, AddressSpace, Frames, How, Images, Object, Owner, Policy, Prot, Region, Residence, Resolved, Stale, Superpages,
    Use,
};
use oracle::Machine;
use rv::format::SV39X4;
use rv::{Access, Addr, Fence, FenceScope, Gpa, Hpa, Level, Pfn, PhysMem};

const VM: Owner = Owner::Vm(0);
const RAM: u64 = 0x8_0000;
const PAGES: u64 = 6144;

/// Fences; and what a guest on another hart does until it has left for one.
#[derive(Default)]
struct Fences<'a> {
    scopes: Vec<FenceScope<Gpa>>,
    meanwhile: Option<(&'a mut Machine, Addr<Hpa>, u64)>,
}

impl Fence<Gpa> for Fences<'_> {
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        if let Some((mem, at, value)) = self.meanwhile.take() {
            mem.write_u64(at, value);
        }
        self.scopes.push(scope);
    }
}

struct Vm {
    frames: Frames,
    mem: Machine,
    space: AddressSpace,
    image: Pfn<Hpa>,
}

/// A VM; the n-th page of the image holds 1000 + n.
fn vm(regions: impl FnOnce(Pfn<Hpa>) -> Vec<Region>) -> Vm {
    let mut frames = Frames::new();
    frames.add(Pfn::new(RAM), PAGES);
    let mut mem = Machine::with_ram(Pfn::new(RAM), PAGES);
    let image = frames.alloc(Owner::Host, Use::Image, 10).unwrap().first();
    for n in 0..1024 {
        mem.write_u64(image.add(n).base(), 1000 + n);
    }
    let policy = Policy {
        superpages: Superpages::Mega,
        images: Images::Shared,
        residence: Residence::Pageable,
        ad: Ad::AsNeeded,
    };
    let mut space = AddressSpace::new(&SV39X4, VM, policy, &frames, &mut mem).unwrap();
    regions(image).into_iter().for_each(|region| space.add_region(region, &mem).unwrap());
    Vm { frames, mem, space, image }
}

fn region(start: u64, pages: u64, object: Object) -> Region {
    Region { start: Pfn::new(start), pages, prot: Prot::RWX, object }
}

impl Vm {
    fn resolve(&mut self, page: u64, access: Access) -> (How, Stale<Gpa>, Option<Box<mmu::gstage::Publish>>) {
        match self.space.resolve(Pfn::new(page).base(), access, &self.frames, &mut self.mem).unwrap() {
            Resolved::Mapped { how, stale, publish, .. } => (how, stale, publish),
            Resolved::Hole => panic!("page {page} is a hole"),
        }
    }

    fn touch(&mut self, page: u64, access: Access) -> How {
        let (how, stale, publish) = self.resolve(page, access);
        self.space.settle(stale, publish, &mut Fences::default(), &mut self.mem).release(&self.frames);
        how
    }

    fn there(&self, page: u64) -> Option<(Level, u64)> {
        let there = self.space.translate(Pfn::new(page).base(), &self.mem)?;
        Some((there.level, self.mem.read_u64(there.hpa)))
    }

    fn store(&mut self, page: u64, value: u64) {
        let there = self.space.translate(Pfn::new(page).base(), &self.mem).expect("mapped");
        self.mem.write_u64(there.hpa, value);
    }
}

/// Memory, 300 pages of an image from the middle of 2 MiB on, memory, and 20 pages more of it.
fn patches(image: Pfn<Hpa>) -> Vec<Region> {
    vec![
        region(0, 600, Object::Anonymous),
        region(600, 300, Object::Image { first: image.add(88) }),
        region(900, 20, Object::Anonymous),
        region(920, 20, Object::Image { first: image.add(3) }),
        region(940, 84, Object::Anonymous),
    ]
}

#[test]
fn one_leaf_maps_what_several_regions_have() {
    for (page, access) in [(512, Access::Load), (700, Access::Fetch), (950, Access::Store)] {
        // One part is too many: 4 KiB.
        let mut vm = vm(patches);
        let how = vm.touch(page, access);
        assert_eq!(vm.there(page).unwrap().0, Level::PAGE, "{how:?}");

        let mut vm =
            self::vm(|image| patches(image).into_iter().take(3).chain([region(920, 104, Object::Anonymous)]).collect());
        assert_eq!(vm.touch(page, access), How::Copied);
        let expected = |page| match page {
            600..900 => 1088 + page - 600,
            _ => 0,
        };
        (512..1024).for_each(|page| assert_eq!(vm.there(page), Some((Level::MEGA, expected(page))), "page {page}"));
        assert_eq!((vm.frames.usage(VM).guest, vm.space.counters().copies_2m), (512, 1));
        // All of it is the guest's to write to.
        assert_eq!(vm.touch(600, Access::Store), How::Spurious);
        // Below there is nothing but memory.
        assert_eq!((vm.touch(5, Access::Load), vm.there(5)), (How::Filled, Some((Level::MEGA, 0))));
    }
}

#[test]
fn one_leaf_has_one_protection_and_no_gap() {
    let read_only = |region: Region| Region { prot: Prot::R | Prot::X, ..region };
    for regions in [
        vec![region(0, 100, Object::Anonymous), read_only(region(100, 412, Object::Anonymous))],
        vec![region(0, 100, Object::Anonymous), region(101, 411, Object::Anonymous)],
        vec![region(1, 511, Object::Anonymous)],
        vec![region(0, 511, Object::Anonymous)],
    ] {
        let mut vm = vm(|_| regions);
        assert_eq!((vm.touch(50, Access::Store), vm.there(50)), (How::Filled, Some((Level::PAGE, 0))));
    }
}

/// An image that lies in memory otherwise than in the bundle.
fn shifted(image: Pfn<Hpa>) -> Vec<Region> {
    vec![
        region(0, 400, Object::Image { first: image.add(1) }),
        region(400, 112, Object::Anonymous),
        region(512, 512, Object::Image { first: image.add(1) }),
    ]
}

#[test]
fn what_is_mapped_by_4_kib_is_copied_whole() {
    // By a store to a page that is mapped, or to one that is not.
    copied_whole(900);
    copied_whole(700);
}

fn copied_whole(store: u64) {
    let mut vm = vm(shifted);
    for page in [512, 513, 900] {
        assert_eq!((vm.touch(page, Access::Load), vm.there(page)), (How::Filled, Some((Level::PAGE, 489 + page))));
    }
    let tables = vm.frames.usage(VM).table;
    let (how, stale, publish) = vm.resolve(store, Access::Store);
    assert_eq!((how, stale.scope(), stale.retired().len()), (How::Copied, Some(FenceScope::Everything), 1));
    assert_eq!(vm.there(512), None, "until it is published");
    vm.space.settle(stale, publish, &mut Fences::default(), &mut vm.mem).release(&vm.frames);
    (512..1024).for_each(|page| assert_eq!(vm.there(page), Some((Level::MEGA, 489 + page))));
    assert_eq!((vm.frames.usage(VM).guest, vm.frames.usage(VM).table), (512, tables - 1));
    let counters = vm.space.counters();
    assert_eq!((counters.promoted, counters.copies, counters.copies_2m), (1, 0, 1));
}

/// Makes so many pages from 512 on the guest's own, by 4 KiB.
fn copied(vm: &mut Vm, pages: u64) {
    let limit = vm.frames.usage(VM).total() + 200;
    vm.frames.set_limit(VM, limit);
    for page in 512..512 + pages {
        assert_eq!(vm.touch(page, Access::Store), How::Copied);
        vm.store(page, page);
    }
    assert_eq!(vm.there(512), Some((Level::PAGE, 512)));
    vm.frames.set_limit(VM, u64::MAX);
}

#[test]
fn what_the_guest_has_written_is_taken_over() {
    let mut vm = vm(shifted);
    copied(&mut vm, 64);
    let (how, stale, publish) = vm.resolve(1000, Access::Store);
    assert_eq!((how, stale.retired().len()), (How::Copied, 65));
    // The frame of page 513, which another hart writes to until it is fenced.
    let late = stale.retired().iter().map(mmu::Run::first).find(|frame| vm.mem.read_u64(frame.base()) == 513).unwrap();
    let Vm { mem, frames, space, .. } = &mut vm;
    let mut elsewhere = mem.clone();
    let mut fences = Fences { meanwhile: Some((&mut elsewhere, late.base(), 77)), ..Fences::default() };
    let retired = space.tell(stale, mem).fence(&mut fences);
    drop(fences);
    *mem = elsewhere;
    publish.unwrap().publish(mem);
    retired.release(frames);
    let expected = |page| match page {
        513 => 77,
        512..576 => page,
        _ => 489 + page,
    };
    (512..1024).for_each(|page| assert_eq!(vm.there(page), Some((Level::MEGA, expected(page))), "page {page}"));
    assert_eq!(vm.frames.usage(VM).guest, 512);
}

#[test]
fn too_many_pages_are_not_taken_over_at_once() {
    let mut vm = vm(shifted);
    copied(&mut vm, 65);
    assert_eq!((vm.touch(1000, Access::Store), vm.there(1000)), (How::Copied, Some((Level::PAGE, 1489))));
    assert_eq!((vm.frames.usage(VM).guest, vm.space.counters().promoted), (66, 0));
}

#[test]
fn a_page_that_is_idle_or_out_stays_apart() {
    let mut vm = vm(shifted);
    copied(&mut vm, 2);
    let stale = vm.space.rest(Pfn::new(512), &mut vm.mem);
    vm.space.tell(stale, &mut vm.mem).flush(&mut Fences::default(), &vm.frames);
    assert_eq!((vm.touch(1000, Access::Store), vm.there(1000)), (How::Copied, Some((Level::PAGE, 1489))));
    // It comes back.
    assert_eq!(vm.touch(512, Access::Store), How::Filled);
    assert_eq!((vm.touch(1001, Access::Store), vm.there(512)), (How::Copied, Some((Level::MEGA, 512))));
    assert_eq!(vm.image, Pfn::new(RAM));
}
