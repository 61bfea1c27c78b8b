//! Faults with a share of the lock: those that are resolved, and those that are left to the holder of the lock. `models.rs` has several harts at once, and `gstage_random.rs`
//! random faults.

use mmu::gstage::{Filled, Region};
use mmu::{
    Ad, AddressSpace, Frames, How, Images, Object, Owner, Policy, Prot, Ready, Residence, Resolved, Superpages,
    with_ready,
};
use oracle::Machine;
use rv::format::SV39X4;
use rv::{Access, Addr, Fence, FenceScope, Gpa, Hpa, Level, Pfn, PhysMem};

const VM: Owner = Owner::Vm(0);
const RAM: u64 = 0x8_0000;
const PAGES: u64 = 4096;

struct Vm {
    frames: Frames,
    mem: Machine,
    space: AddressSpace,
}

fn vm(superpages: Superpages, regions: &[Region]) -> Vm {
    let mut frames = Frames::new();
    frames.add(Pfn::new(RAM), PAGES);
    let mut mem = Machine::with_ram(Pfn::new(RAM), PAGES);
    let policy = Policy { superpages, images: Images::Shared, residence: Residence::Pageable, ad: Ad::AsNeeded };
    let mut space = AddressSpace::new(&SV39X4, VM, policy, &frames, &mut mem).unwrap();
    regions.iter().for_each(|region| space.add_region(*region, &mem).unwrap());
    Vm { frames, mem, space }
}

fn region(start: u64, pages: u64, prot: Prot, object: Object) -> Region {
    Region { start: Pfn::new(start), pages, prot, object }
}

fn ram(start: u64, pages: u64) -> Region {
    region(start, pages, Prot::RWX, Object::Anonymous)
}

/// No TLB.
struct NoTlb;

impl Fence<Gpa> for NoTlb {
    fn fence(&mut self, _: FenceScope<Gpa>) {}
}

/// Resolves a touch with a share of the lock, if that is enough.
fn fill(vm: &mut Vm, page: u64, access: Access) -> Option<(Addr<Hpa>, How)> {
    let filled = with_ready(&vm.frames, &mut vm.mem, |ready, mem| {
        vm.space.fill(Pfn::new(page).at(8), access, ready, &vm.frames, mem)
    });
    match filled.expect("all that fails is for the lock") {
        Filled::Mapped { hpa, how } => Some((hpa, how)),
        Filled::Elsewhere => None,
    }
}

#[test]
fn a_filler_does_first_touches_and_leaves_all_else() {
    let image = region(2048, 512, Prot::RWX, Object::Image { first: Pfn::new(0x1000) });
    let fixed = region(4096, 512, Prot::R, Object::Anonymous);
    let mut vm = vm(Superpages::Never, &[ram(0, 1024), image, fixed]);
    let (hpa, how) = fill(&mut vm, 5, Access::Store).expect("a first touch");
    assert_eq!((how, vm.space.translate(Pfn::new(5).at(8), &vm.mem).map(|t| t.hpa)), (How::Filled, Some(hpa)));
    assert_eq!(fill(&mut vm, 5, Access::Load), Some((hpa, How::Spurious)));
    let resolved = vm.space.resolve(Pfn::new(6).at(8), Access::Store, &vm.frames, &mut vm.mem);
    assert!(matches!(resolved, Ok(Resolved::Mapped { how: How::Filled, .. })));
    assert!(fill(&mut vm, 6, Access::Store).is_some_and(|(_, how)| how == How::Spurious));
    // A hole, what is forbidden, an image.
    for (page, access) in [(9999, Access::Load), (4096, Access::Store), (2048, Access::Load), (2048, Access::Store)] {
        assert_eq!(fill(&mut vm, page, access), None, "page {page}");
    }
    let counters = vm.space.counters();
    assert_eq!((counters.anonymous_4k, counters.spurious, counters.tables, counters.denied), (2, 2, 2, 0));
    assert_eq!((vm.frames.usage(VM).guest, vm.frames.usage(VM).table), (2, 4 + 2));
    let stale = vm.space.unmap(Pfn::new(0), 512, &vm.frames, &mut vm.mem).unwrap();
    vm.space.tell(stale, &mut vm.mem).flush(&mut NoTlb, &vm.frames);
    assert_eq!((vm.frames.usage(VM).guest, vm.frames.usage(VM).table), (0, 4 + 1));
}

fn level(vm: &Vm, page: u64) -> Option<Level> {
    vm.space.translate(Pfn::new(page).base(), &vm.mem).map(|t| t.level)
}

#[test]
fn a_filler_gives_two_mib_where_they_are_to_be_had() {
    let mut vm = vm(Superpages::Mega, &[ram(0, 1024)]);
    assert!(fill(&mut vm, 5, Access::Store).is_some());
    assert_eq!((level(&vm, 511), vm.space.counters().anonymous_2m), (Some(Level::MEGA), 1));
    // It has all that it may have, and a table is missing.
    vm.frames.set_limit(VM, vm.frames.usage(VM).total() + 1);
    assert_eq!(fill(&mut vm, 600, Access::Store), None);
    vm.frames.set_limit(VM, vm.frames.usage(VM).total() + 2);
    assert!(fill(&mut vm, 600, Access::Store).is_some());
    assert_eq!((level(&vm, 600), vm.space.counters().mega_denied), (Some(Level::PAGE), 2));
}

/// Memory in which another hart is faster: before each compare-and-exchange the entry is set to the second field.
struct Slow<'a>(&'a mut Machine, u64);

impl PhysMem for Slow<'_> {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        self.0.read_u64(at)
    }
    fn write_u64(&mut self, at: Addr<Hpa>, value: u64) {
        self.0.write_u64(at, value);
    }
    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        self.0.exchange_u64(at, value)
    }
    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        self.0.write_u64(at, self.1);
        self.0.compare_exchange_u64(at, old, new)
    }
    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        self.0.zero_frames(first, pages);
    }
    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64) {
        self.0.copy_frames(from, to, pages);
    }
    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]) {
        self.0.read_bytes(at, into);
    }
    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]) {
        self.0.write_bytes(at, from);
    }
}

#[test]
fn a_filler_that_comes_late_gives_its_frames_back() {
    let mut vm = vm(Superpages::Never, &[ram(0, 1024)]);
    assert!(fill(&mut vm, 0, Access::Store).is_some());
    let (usage, free) = (vm.frames.usage(VM), vm.frames.free_count());
    let leaf = (RAM + 77) << 10 | 0xdf;
    let mut mem = Slow(&mut vm.mem, leaf);
    let filled = vm.space.fill(Pfn::new(1).base(), Access::Store, &mut Ready::Nothing, &vm.frames, &mut mem);
    let there = Pfn::<Hpa>::new(RAM + 77).base();
    assert_eq!(filled, Ok(Filled::Mapped { hpa: there, how: How::Spurious }));
    assert_eq!((vm.frames.usage(VM), vm.frames.free_count(), vm.space.counters().anonymous_4k), (usage, free, 1));
}
