//! L1's own shadow tables, by which it reaches the same memory: as it has no paging, they map all of it onto itself.

use super::harts::{AllHarts, Mem};
use super::{AMPLE, L2, L2_PAGES, PAGES, RAM, Rig, VM};
use lane::FenceLog;
use mmu::shadow::{Answer, Config, Host, Lists, Paging, Root, Sabotage, Shadow, Upkeep, Views, companion};
use mmu::walk::{AdPolicy, Ram, walk};
use mmu::{Frames, with_ready};
use rv::{Access, Addr, Asid, Caps, Gpa, Gva, Hpa, Request};

pub(super) struct Own {
    pub(super) engine: Shadow,
    root: Option<Root>,
    views: Views,
    log: FenceLog<Gva>,
}

/// Runs an operation on L1's engine, with that of its guests beside it.
macro_rules! own {
    ($rig:ident, |$own:ident, $host:ident| $act:expr) => {{
        let (mut mem, mut hw) = (Mem(&$rig.bus), AllHarts(&$rig.bus));
        let $own = $rig.own.as_mut().expect("L1 is on shadow tables");
        with_ready(&$rig.frames, &mut mem, |ready, mem| {
            let host = Host::new(&mut $rig.space, (&$rig.frames, ready), mem, &mut hw).within(AMPLE);
            host.beside($rig.shadow.as_mut().map(companion), |$host| $act)
        })
        .expect("frames")
    }};
}

impl Rig {
    /// Puts L1 on shadow tables.
    pub(super) fn shadow_own(&mut self, sabotage: Option<Sabotage>) {
        let upkeep = [Upkeep::Lazy, Upkeep::Unsync, Upkeep::Shadow][self.pick(3) as usize];
        let config =
            Config { upkeep, ad: AdPolicy::Svade, globals: false, pages: 256, first_serial: 1, quiet_after: 0 };
        let mut lists = Lists::new(RAM, PAGES);
        assert_eq!(lists.prepare(u64::MAX, VM, &self.frames, &mut Mem(&self.bus)), Ok(true));
        let mut engine = Shadow::new(config, VM, lists, &self.frames).expect("frames");
        if let Some(sabotage) = sabotage {
            engine.sabotage(sabotage);
        }
        self.own = Some(Own { engine, root: None, views: Views::new(8, 0), log: FenceLog::new(9) });
        for _ in 0..1000 {
            let what = (Paging::Bare, Asid(0));
            let loaded = own!(self, |own, host| own.engine.attach(&mut own.root, what, &mut own.views, &own.log, host));
            if loaded.is_some() {
                return;
            }
        }
        panic!("PROGRESS: L1 has no root");
    }

    pub(super) fn resolve_own(&mut self, gpa: Addr<Gpa>, access: Access) -> Option<Addr<Hpa>> {
        own!(self, |own, host| own.engine.resolve(gpa, access, host))
    }

    /// An access of L1's.
    pub(super) fn access_own(&mut self) {
        let page = self.any(&[L2 + self.pick(L2_PAGES), 512 + self.pick(16), 1024 + self.pick(16), self.pick(PAGES)]);
        let access = if self.pick(2) == 0 { Access::Load } else { Access::Store };
        let (gva, request) = (Addr::<Gva>::new(RAM.add(page).base().raw()), Request::supervisor(access));
        for _ in 0..200 {
            let answer = own!(self, |own, host| {
                let root = own.root.expect("attached");
                own.engine.fault(&root, gva, &request, host)
            });
            match answer {
                Answer::Filled { .. } if self.reaches(gva, &request).is_some() => return,
                Answer::Filled { .. } | Answer::Retry => {}
                other => panic!("BESIDE: {gva:?} {request:?}: {other:?}"),
            }
        }
        panic!("PROGRESS: L1's access to {gva:?}");
    }

    /// Returns where an access of L1's arrives by its shadow tables.
    fn reaches(&self, gva: Addr<Gva>, request: &Request) -> Option<Addr<Hpa>> {
        let root = self.own.as_ref()?.root?;
        let machine = &self.bus.0.borrow().machine;
        walk(root.format, root.table, gva, request, Caps::default(), &mut Ram(machine)).ok().map(|walk| walk.out)
    }

    /// Checks all that L1 may use.
    pub(super) fn audit_own(&self) {
        if self.own.is_none() {
            return;
        }
        for page in (0..PAGES).filter(|page| page % 512 < 64) {
            let gpa = RAM.add(page).base();
            let there = self.space.translate(gpa, &self.bus.0.borrow().machine);
            for access in [Access::Load, Access::Store] {
                let found = self.reaches(Addr::new(gpa.raw()), &Request::supervisor(access));
                let allowed = there.filter(|there| access == Access::Load || there.flags.contains(rv::PteFlags::W));
                assert!(
                    found.is_none() || found == allowed.map(|there| there.hpa),
                    "BESIDE: {access:?} of {gpa:?} arrives at {found:?}, and {there:?} is there"
                );
            }
        }
    }
}

impl Own {
    pub(super) fn finish(mut self, frames: &Frames) {
        self.engine.detach_all(self.root.as_ref(), &mut self.views, &self.log);
        self.engine.destroy().for_each(|run| frames.free(run));
    }
}
