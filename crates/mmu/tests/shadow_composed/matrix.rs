//! All permissions of a page in L2's table and in L1's G-stage table, for each kind of access: what comes through, and what is refused to
//! which guest, is what the oracle says.

use super::{AMPLE, G_PAGES, L2, MEGAS, RAM, ROOTS, Rig, TABLES};
use crate::shadow_composed::harts::{AllHarts, Mem};
use mmu::shadow::{GuestFence, Host, Paging, companion};
use mmu::walk::AdPolicy;
use mmu::with_ready;
use rv::format::SV39;
use rv::{Access, Addr, Asid, Mode, Pfn, Request};

/// L2's page.
const PAGE: u64 = 9;
/// V, R, W, X, U, A, D: bits 0 to 3, 4, 6 and 7.
const FLAGS: [u64; 64] = {
    let (mut all, mut n) = ([0; 64], 0);
    while n < 64 {
        all[n as usize] = 1 | (n & 15) << 1 | (n & 48) << 2;
        n += 1;
    }
    all
};

impl Rig {
    /// Makes vCPU 0 run L2 by tables in which one page has those flags in both stages, with nothing of earlier ones in its TLB.
    fn set(&mut self, own: u64, below: u64) {
        let ptr = |page: u64| page << 10 | 1;
        let words = [
            (RAM.add(L2 + ROOTS[0]), ptr(MEGAS[0])),
            (RAM.add(L2 + MEGAS[0]), ptr(TABLES[0])),
            (RAM.add(L2 + TABLES[0]), PAGE << 10 | own),
        ];
        words.into_iter().for_each(|(table, word)| self.poke(table.at(0), word));
        self.poke(RAM.add(G_PAGES[0]).at(8 * PAGE), (RAM.raw() + L2 + PAGE) << 10 | below);
        let vcpu = &mut self.vcpus[0];
        let (root, mut views, mut log) =
            (vcpu.root.expect("loaded"), core::mem::take(&mut vcpu.views), vcpu.log.clone());
        host!(self, 0, |shadow, host| {
            mmu::shadow::fence_below(shadow, None, (root, &mut views, &mut log), host);
            shadow.fence(&GuestFence { range: None, asid: None }, root, &mut views, &mut log, host);
            Ok::<(), mmu::Unresolved>(())
        });
        let vcpu = &mut self.vcpus[0];
        (vcpu.views, vcpu.log) = (views, log);
        self.bus.0.borrow_mut().harts[0].forget_all();
    }
}

#[test]
fn permissions_of_both_stages() {
    let mut came = [0_u64; 2];
    for g_ad in [AdPolicy::Svade, AdPolicy::Svadu] {
        for vs_ad in [AdPolicy::Svade, AdPolicy::Svadu] {
            let rigs = (0..1000).map(|seed| Rig::new(seed, None, false));
            let is_meant = |rig: &Rig| (rig.g_ad, rig.vs_ad, rig.budget) == (g_ad, vs_ad, AMPLE);
            all_flags(rigs.into_iter().find(is_meant).expect("a rig"), &mut came);
        }
    }
    println!("{came:?}");
    assert!(came[1] > 1000 && came[0] > 1000, "{came:?}");
}

/// Tries all flags on a rig, and counts what is refused and what comes through.
fn all_flags(mut rig: Rig, came: &mut [u64; 2]) {
    let sets = (rig.g_ad, rig.vs_ad) != (AdPolicy::Svade, AdPolicy::Svade);
    rig.vcpus[0].context = 0;
    rig.vcpus[0].paging = Paging::Tables { format: &SV39, root: Pfn::new(ROOTS[0]) };
    rig.vcpus[0].asid = Asid(1);
    rig.load(0);
    for own in FLAGS {
        for below in FLAGS {
            for n in 0..36 {
                let access = [Access::Load, Access::Store, Access::Fetch][n % 3];
                let mode = if n / 3 % 2 == 0 { Mode::User } else { Mode::Supervisor };
                let request = Request { access, mode, sum: n / 6 % 2 == 1, mxr: n / 12 == 1, hs_mxr: n / 12 == 2 };
                // What an earlier access has set is not set any more.
                if n == 0 || sets {
                    rig.set(own, below);
                }
                let (asked, before) = (rig.ask(0, Addr::new(0), &request).is_ok(), rig.tally[0]);
                rig.access(0, Addr::new(0), &request);
                let comes = rig.tally[0] != before;
                if can_differ(own, below, &request) != Some(comes) {
                    assert_eq!(comes, asked, "MATRIX: {own:#x} {below:#x} {request:?}");
                }
                came[usize::from(comes)] += 1;
            }
        }
    }
    let _ = rig.finish();
}

/// Returns what the documented differences from hardware let happen to loads where MXR is set: one leaf has to do for both stages.
fn can_differ(own: u64, below: u64, request: &Request) -> Option<bool> {
    const R: u64 = 1 << 1;
    const X: u64 = 1 << 3;
    let (reads, executes) = (own & below & R != 0, own & below & X != 0);
    let is_about = request.access == Access::Load && (request.mxr || request.hs_mxr) && !reads;
    // Without X in both, each may let it through by another right: refused to L2. With it, L1 may refuse it: not if L2 has executed it.
    is_about.then_some(executes)
}
