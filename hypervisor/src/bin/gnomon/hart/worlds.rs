//! [`Worlds`] made of instructions: L1 and L2 by turns.

use super::Hart;
use super::unplain::Aside;
use hypervisor::device::offer::GuestTimer;
use hypervisor::hart::env::Env;
use hypervisor::hart::worlds::Worlds;
use hypervisor::memory::brief_causes_of_l2;
use hypervisor::vm::vcpu::{Nested, Tables, VcpuRun};
use mmu::ids::IdSlot;
use rv::{Addr, L2Gpa};

impl Worlds for Hart {
    fn load_nested(&mut self, run: &mut VcpuRun) {
        if run.collapses() {
            self.load_shadow(run, false);
            return self.load_collapsed(run);
        }
        let stays = run.last_hart == self.index;
        let Some(nested) = run.nested.as_deref_mut() else { unreachable!("it has no H extension") };
        let Some(root) = nested.root else { unreachable!("L2 runs without a root") };
        let root = (root.format, root.table);
        self.set_g_stage((&run.vm, stays), root, nested.views.id(), run.bank.csrs.vsatp);
    }

    fn fence_nested(&mut self, nested: &mut Nested, page: Option<Addr<L2Gpa>>) {
        let id = *nested.views.id();
        if id != IdSlot::new() {
            self.guest.fence_nested(id, page);
        }
    }

    fn forget_nested(&mut self, nested: &mut Nested) {
        nested.views.forget_ids();
    }

    fn load_collapsed(&mut self, run: &mut VcpuRun) {
        let collapsed = run.nested.as_deref_mut().and_then(|nested| nested.collapsed.as_deref_mut());
        let Some(collapsed) = collapsed else { unreachable!("it has no such tables") };
        // Without one, it is not entered.
        if let Some(root) = collapsed.root {
            self.load_root(&root.as_guest_virtual(), collapsed.views.id(), false);
        }
    }

    fn leave_root(&mut self) {
        self.guest.leave_tables();
    }

    fn change_world(&mut self, run: &mut VcpuRun) {
        let shadows = run.tables == Tables::Shadow;
        if shadows {
            run.follow_lane();
        }
        let own = run.bank.csrs.vsatp;
        let Some(nested) = run.nested.as_deref_mut() else { unreachable!("it has no H extension") };
        run.bank.csrs.vsatp = self.guest.change_world(nested, &self.g.offer);
        let was_shadowed = if nested.runs_l2 { shadows } else { nested.collapsed.is_some() };
        if was_shadowed {
            // The hart's register was Gnomon's.
            nested.other.vsatp = own;
        }
        let runs_l2 = nested.runs_l2;
        self.set_plain_world(runs_l2.then_some(Aside::L2));
        if run.vm.collapses() {
            let (vm, offer) = (run.vm.translation, &self.g.offer);
            run.context.brief_causes = if runs_l2 { brief_causes_of_l2(offer) } else { vm.brief_causes(offer) };
        }
        if runs_l2 {
            // Exits of L2 are none of the lane's.
            run.context.lane.turn_off();
            return self.load_nested(run);
        }
        if shadows {
            let translation = run.vm.translation;
            if translation.load(self.g, run, self).is_err() {
                unreachable!("L1 has a root since it was first on a hart");
            }
            return;
        }
        let Some(table) = run.g_root else { unreachable!("L1 has been on this hart") };
        self.load_two_stage(run, table);
    }

    fn watches_l2(&self) -> bool {
        self.g.offer.timer == GuestTimer::Sstc && self.guest.watches_l2()
    }

    fn watched_comparator(&self) -> u64 {
        self.guest.comparator()
    }

    fn set_watched_comparator(&mut self, at: u64) {
        self.guest.set_comparator_of_world(at);
    }

    fn set_timer_of_l2(&mut self, high: bool) {
        self.guest.set_timer_of_l2(high);
    }

    fn set_world(&mut self, run: &VcpuRun) {
        if let Some(nested) = &run.nested {
            self.guest.set_world(nested.world());
        }
    }

    fn held_interrupts(&self) -> u64 {
        self.guest.held_interrupts()
    }

    fn undelegated_interrupts(&self) -> u64 {
        self.guest.undelegated_interrupts()
    }
}
