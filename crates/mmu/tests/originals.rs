//! Originals of images that go and come back, as one address space sees them.

use mmu::frames::{Neglect, Original};
use mmu::gstage::in_portions;
use mmu::{
    Ad, AddressSpace, Frames, How, Images, Object, Owner, Policy, Prot, Ready, Region, Residence, ResolveError,
    Resolved, Superpages, Use,
};
use oracle::Machine;
use rv::format::SV39X4;
use rv::{Access, Addr, Fence, FenceScope, Gpa, Hpa, Level, Pfn, PhysMem};

const VM: Owner = Owner::Vm(0);
const RAM: u64 = 0x8_0000;
const PAGES: u64 = 4096;
/// The bundle is in front of what is handed out. The image is its second part.
const BUNDLE_PAGES: u64 = 1536;
const IMAGE: u64 = RAM + 512;
const IMAGE_PAGES: u64 = 1024;

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

/// A VM that has the image at its first page; the n-th page of it holds 1000 + n.
fn vm(images: Images) -> Vm {
    let mut frames = Frames::new();
    frames.add(Pfn::new(RAM + BUNDLE_PAGES), PAGES - BUNDLE_PAGES);
    frames.add_images(std::slice::from_ref(&(IMAGE..IMAGE + IMAGE_PAGES)));
    let mut mem = Machine::with_ram(Pfn::new(RAM), PAGES);
    (0..IMAGE_PAGES).for_each(|n| mem.write_u64(Pfn::<Hpa>::new(IMAGE + n).base(), 1000 + n));
    let policy = Policy { superpages: Superpages::Mega, images, residence: Residence::Pageable, ad: Ad::AsNeeded };
    let mut space = AddressSpace::new(&SV39X4, VM, policy, &frames, &mut mem).unwrap();
    let object = Object::Image { first: Pfn::new(IMAGE) };
    space.add_region(Region { start: Pfn::new(0), pages: IMAGE_PAGES, prot: Prot::RWX, object }, &mem).unwrap();
    Vm { frames, mem, space }
}

/// Frees an original, as a sweep does that has taken it from all VMs; its frame has another use at once.
fn let_go(frames: &Frames, number: u64, mem: &mut Machine) {
    let originals = frames.originals();
    originals.lapse(number);
    originals.settle(number);
    let frame = originals.release(number).expect("it is idle");
    mem.write_u64(frame.first().base(), 666);
    frames.free(frame);
}

/// Brings an original back, into another frame.
fn bring_in(frames: &Frames, number: u64, mem: &mut Machine) {
    let frame = frames.alloc(Owner::Host, Use::Image, 0).unwrap();
    mem.write_u64(frame.first().base(), 1000 + number);
    frames.originals().restore(number, frame);
}

impl Vm {
    fn touch(&mut self, page: u64, access: Access) -> Result<How, ResolveError> {
        match self.space.resolve(Pfn::new(page).base(), access, &self.frames, &mut self.mem)? {
            Resolved::Mapped { how, stale, publish, hpa } => {
                self.space.settle(stale, publish, &mut Fences::default(), &mut self.mem).release(&self.frames);
                let there = self.space.translate(Pfn::new(page).base(), &self.mem);
                assert_eq!(there.map(|there| there.hpa), Some(hpa), "page {page}");
                Ok(how)
            }
            Resolved::Hole => panic!("page {page} is a hole"),
        }
    }

    fn there(&self, page: u64) -> Option<(Level, u64)> {
        let there = self.space.translate(Pfn::new(page).base(), &self.mem)?;
        Some((there.level, self.mem.read_u64(there.hpa)))
    }

    /// Takes the originals from the VM that it may use there.
    fn rest(&mut self, page: u64) {
        let (level, _) = self.space.look_for_original(Pfn::new(page), &self.mem);
        assert!(level.is_some(), "page {page} is shown");
        let mut fences = Fences::default();
        let stale = self.space.rest(Pfn::new(page), &mut self.mem);
        self.space.tell(stale, &mut self.mem).flush(&mut fences, &self.frames);
        assert_eq!(fences.0.len(), 1, "TLBs know it");
        assert_eq!(self.there(page), None);
    }
}

#[test]
fn one_leaf_maps_originals_only_where_all_are_at_home() {
    let mut vm = vm(Images::Shared);
    assert_eq!((vm.touch(5, Access::Load), vm.there(9)), (Ok(How::Filled), Some((Level::MEGA, 1009))));
    // All of them are in use by that one leaf.
    assert_eq!(vm.frames.originals().state(511), Original::Used);
    vm.rest(7);
    let_go(&vm.frames, 7, &mut vm.mem);
    assert_eq!((vm.touch(5, Access::Load), vm.there(5)), (Ok(How::Filled), Some((Level::PAGE, 1005))));
    let home = Pfn::new(IMAGE + 7);
    assert_eq!(vm.touch(7, Access::Fetch), Err(ResolveError::OriginalOut { page: Pfn::new(7), home }));
    bring_in(&vm.frames, 7, &mut vm.mem);
    assert_eq!((vm.touch(7, Access::Load), vm.there(7)), (Ok(How::Filled), Some((Level::PAGE, 1007))));
    // The other 2 MiB are whole.
    assert_eq!((vm.touch(600, Access::Load), vm.there(600)), (Ok(How::Filled), Some((Level::MEGA, 1600))));
    // No VM is charged for them.
    assert_eq!(vm.frames.usage(VM).guest, 0);
    assert_eq!(vm.frames.usage(Owner::Host).image, IMAGE_PAGES);
}

#[test]
fn a_copy_of_2_mib_takes_originals_from_wherever_they_are() {
    for images in [Images::Shared, Images::Private] {
        let mut vm = vm(images);
        for number in [0, 3, 511] {
            let_go(&vm.frames, number, &mut vm.mem);
        }
        // One that is out cannot be copied; the page itself is there.
        assert_eq!((vm.touch(5, Access::Store), vm.there(5)), (Ok(How::Copied), Some((Level::PAGE, 1005))));
        [0, 3, 511].into_iter().for_each(|number| bring_in(&vm.frames, number, &mut vm.mem));
        assert_eq!(vm.touch(6, Access::Store), Ok(How::Copied));
        (0..512).for_each(|page| assert_eq!(vm.there(page), Some((Level::MEGA, 1000 + page)), "page {page}"));
    }
}

/// Makes a copy of 2 MiB while an original goes, and comes back, between two portions of it. Returns whether the copy
/// has the original's contents, if it is mapped.
fn disturbed(neglect: Option<Neglect>) -> bool {
    let mut vm = vm(Images::Shared);
    neglect.into_iter().for_each(|neglect| vm.frames.originals().neglect(neglect));
    let mut ready = Ready::Nothing;
    let (frames, mem, space) = (&vm.frames, &mut vm.mem, &mut vm.space);
    let mut portions = 0;
    let resolved = loop {
        let done = in_portions(frames, mem, &mut ready, |ready, mem| {
            space.resolve_with(Addr::new(0), Access::Store, ready, frames, mem)
        });
        if let Some(resolved) = done.unwrap() {
            break resolved;
        }
        portions += 1;
        if portions == 2 {
            // As if this had happened while the last pages were copied: some of them already hold what came after.
            let_go(frames, 100, mem);
            let Ready::Mega { run, .. } = &ready else { panic!("{ready:?}") };
            mem.write_u64(run.first().add(100).base(), 666);
            bring_in(frames, 100, mem);
        }
    };
    ready.discard(frames);
    let Resolved::Mapped { stale, publish, .. } = resolved else { panic!("a hole") };
    space.settle(stale, publish, &mut Fences::default(), mem).release(frames);
    assert!(portions > 2);
    vm.there(100).is_none_or(|(_, value)| value == 1100)
}

#[test]
fn a_copy_that_an_original_has_left_meanwhile_is_not_believed() {
    assert!(disturbed(None));
    assert!(!disturbed(Some(Neglect::ForgetsEpoch)), "the stale copy is not noticed");
}

#[test]
fn frames_of_originals_become_memory_like_any_other() {
    let mut vm = vm(Images::Shared);
    let (total, free) = (vm.frames.total_count(), vm.frames.free_count());
    assert_eq!(total - free, IMAGE_PAGES + vm.frames.usage(VM).total());
    (0..IMAGE_PAGES).for_each(|number| let_go(&vm.frames, number, &mut vm.mem));
    assert_eq!((vm.frames.free_count(), vm.frames.usage(Owner::Host).image), (free + IMAGE_PAGES, 0));
    // In one piece, too.
    let runs: Vec<_> = std::iter::from_fn(|| vm.frames.alloc(VM, Use::Guest, 9).ok()).collect();
    assert!(runs.iter().any(|run| run.first() == Pfn::new(IMAGE)), "{runs:?}");
    let rest: Vec<_> = std::iter::from_fn(|| vm.frames.alloc(VM, Use::Guest, 0).ok()).collect();
    assert_eq!(512 * runs.len() as u64 + rest.len() as u64, free + IMAGE_PAGES);
    runs.into_iter().chain(rest).for_each(|run| vm.frames.free(run));
}
