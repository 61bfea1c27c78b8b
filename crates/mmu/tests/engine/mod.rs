//! An engine under test with one root, on hardware that remembers nothing.

pub mod steered;

use ::lane::FenceLog;
use mmu::shadow::{Config, Host, Lists, Paging, Root, Shadow, Views};
use mmu::{Ad, AddressSpace, Frames, Images, Object, Owner, Policy, Prot, Region, Residence, Superpages, with_ready};
use rv::format::SV39X4;
use rv::{Asid, Fence, FenceScope, Format, Gpa, Hpa, Pfn, PhysMem};

pub const VM: Owner = Owner::Vm(0);
pub const HOST: Pfn<Hpa> = Pfn::new(0x10_0000);
pub const RAM: Pfn<Gpa> = Pfn::new(0x8_0000);
/// Pages of each region.
pub const REGION: u64 = 512;

thread_local! {
    /// Set if guest memory comes by 2 MiB in this test.
    pub static IS_MEGA: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// No hart but the one that asks, which remembers nothing.
pub struct Hardware;

impl Fence<Gpa> for Hardware {
    fn fence(&mut self, _: FenceScope<Gpa>) {}
}

/// Guest memory in pieces of 4 KiB: these regions, one after another.
pub fn space(regions: &[(Prot, Object)], frames: &Frames, mem: &mut impl PhysMem) -> AddressSpace {
    let policy = Policy {
        superpages: if IS_MEGA.get() { Superpages::Mega } else { Superpages::Never },
        images: Images::Shared,
        residence: Residence::Pageable,
        ad: Ad::AsNeeded,
    };
    let mut space = AddressSpace::new(&SV39X4, VM, policy, frames, mem).expect("frames");
    for (start, &(prot, object)) in (0..).step_by(REGION as usize).zip(regions) {
        space.add_region(Region { start: RAM.add(start), pages: REGION, prot, object }, mem).expect("disjoint");
    }
    space
}

/// An engine for so many pages of RAM.
pub fn shadow(config: Config, pages: u64, frames: &Frames, mem: &mut impl PhysMem) -> Shadow {
    let mut lists = Lists::new(RAM, pages);
    assert_eq!(lists.prepare(u64::MAX, VM, frames, mem), Ok(true));
    Shadow::new(config, VM, lists, frames).expect("frames")
}

/// The root for the guest's table of a format at a page of RAM, in place of that before.
pub fn attach(
    shadow: &mut Shadow,
    root: &mut Option<Root>,
    (format, page, asid): (&'static Format, u64, Asid),
    (views, log): (&mut Views, &FenceLog),
    (space, frames): (&mut AddressSpace, &Frames),
    mem: &mut impl PhysMem,
) {
    let paging = Paging::Tables { format, root: RAM.add(page) };
    let loaded = with_ready(frames, mem, |ready, mem| {
        shadow.alone(mem, |shadow, mem| {
            shadow.attach(root, (paging, asid), views, log, &mut Host::new(space, (frames, ready), mem, &mut Hardware))
        })
    });
    loaded.expect("frames").expect("nothing is to be taken back");
}
