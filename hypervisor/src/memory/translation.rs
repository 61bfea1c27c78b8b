//! The virtualization of a VM's memory: the meaning of each event in two stages and on shadow tables. No other module
//! asks which of them it is.
//!
//! | event | methods |
//! |---|---|
//! | a VM is built, counted, torn down | [`check`](Translation::check), [`table_frames`](Translation::table_frames), [`images`](Translation::images), [`ad`](Translation::ad), [`isa`](Translation::isa), [`is_tagged`](Translation::is_tagged), [`lists`](Translation::lists), [`build`](Translation::build), [`counters`](Translation::counters), [`tear_down`](Translation::tear_down) |
//! | a vCPU comes to a hart, enters, leaves, is parked | [`load`](Translation::load), [`views`](Translation::views), [`adapts`](Translation::adapts), [`may_enter`](Translation::may_enter), [`unload`](Translation::unload), [`forget`](Translation::forget) |
//! | a page fault, an instruction that trapped | [`page_fault`](Translation::page_fault), [`access_fault`](Translation::access_fault), [`denied_frame`](Translation::denied_frame), [`look_again`](Translation::look_again), [`relax`](Translation::relax), [`choose`](Translation::choose), [`gather`](Translation::gather), [`brief_causes`](Translation::brief_causes), [`brief`](Translation::brief), [`remember_way`](Translation::remember_way), [`instruction`](Translation::instruction), [`satp`](Translation::satp) |
//! | fences | [`fence`](Translation::fence), [`is_urgent`](Translation::is_urgent), [`catch_up`](Translation::catch_up) |
//! | Gnomon reaches the guest's memory | [`reach`](Translation::reach), [`touch`](Translation::touch), [`host_wrote`](Translation::host_wrote) |
//!
//! Gnomon's own edits of guest memory are the same in all modes ([`crate::memory::edits`]).

use crate::device::offer::{GuestMode, Offer};
use crate::device::uart;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::machine::isa::Isa;
use crate::machine::tunables::Tunables;
use crate::memory::engine::reach_in_both;
use crate::memory::{adaptive, coalescing, collapsed, nested, shadow, spaces, two_stage};
use crate::vm::Translation::{Adaptive, Shadow, TwoStage};
use crate::vm::chores::Remains;
use crate::vm::outcome::{Faulted, Outcome};
use crate::vm::vcpu::{Adapts, Tables, Vcpu, VcpuRun};
use crate::vm::{Memory, Translation, Unreachable, Vm};
use abi::bundle::{GUEST_RAM_BASE, VmConfig};
use abi::tunable::Id;
use abi::vmspace::Way;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use lane::{BriefCauses, BriefExits};
use mmu::frames::{Frames, Owner};
use mmu::gstage::{Ad, AddressSpace, Images, Ready};
use mmu::shadow::{Counters, GuestFence, Lists, Upkeep, Views};
use rv::{Access, Addr, Exception, FenceScope, Gpa, Gva, Hpa, L2Gpa, L2Gva, Mode, Pfn, PhysMem, Trap};

/// Says that a VM does not have the way in which its kernel is to run programs.
fn no_way(config: &VmConfig, offer: &Offer) -> String {
    let (way, mode) = (config.vmspace.name(), offer.mode(config));
    let remedy = match (config.vmspace, offer.guest) {
        _ if config.nested => "leave nested off, or use vmspace = direct",
        (Way::Soft, _) => "use mmu = lazy, or vmspace = nested",
        (_, GuestMode::Virtual) => "use mmu = two-stage, or vmspace = soft with mmu = lazy",
        (_, GuestMode::Supervisor) => "these harts lack the H extension; use vmspace = soft with mmu = lazy",
    };
    format!("vmspace = {way} is not in mmu = {mode}: {remedy}")
}

impl Translation {
    /// Checks whether this machine can host such a VM's memory in this way.
    ///
    /// # Errors
    /// A message, if not.
    pub fn check(self, config: &VmConfig, offer: &Offer) -> Result<(), String> {
        let (name, bits) = match self {
            TwoStage => {
                two_stage::check(config, offer)?;
                (offer.g_format.name, offer.g_format.input_bits())
            }
            // A guest without paging runs on an identity map in the lower half of Sv39.
            Shadow(upkeep) => {
                shadow::check(upkeep, config, offer)?;
                ("an identity map in Sv39", 38)
            }
            Adaptive => {
                adaptive::check(config, offer)?;
                let bits = offer.g_format.input_bits().min(38);
                ("both an identity map in Sv39 and the G-stage", bits)
            }
        };
        if config.nested {
            self.check_nested(config, offer)?;
        }
        if !self.has_way(config.vmspace, config.nested) {
            return Err(no_way(config, offer));
        }
        let memory = config.memory_bytes;
        if GUEST_RAM_BASE.checked_add(memory).is_none_or(|end| end > 1 << bits) {
            return Err(format!("{memory} bytes of memory do not fit {name}"));
        }
        Ok(())
    }

    /// Checks whether this machine can host a hypervisor so.
    fn check_nested(self, config: &VmConfig, offer: &Offer) -> Result<(), String> {
        if matches!(self, Shadow(Upkeep::Steered) | Adaptive) {
            let mode = offer.mode(config);
            return Err(format!("nested = true needs mmu = two-stage, lazy, unsync or shadow; it is {mode}"));
        }
        if offer.guest == GuestMode::Virtual && offer.shows_host_time() {
            return Err("nested needs harts with the time CSR, whose htimedelta works: leave nested off".into());
        }
        Ok(())
    }

    /// Returns the frames that a VM may have for its shadow tables, those for its own guests included.
    ///
    /// # Errors
    /// A message, if it is given too little for them.
    pub fn table_frames(self, config: &VmConfig) -> Result<u64, String> {
        match self {
            TwoStage if config.nested => nested::frames(config),
            TwoStage => Ok(0),
            Shadow(upkeep) if config.nested => Ok(shadow::frames(upkeep, config)? + nested::frames(config)?),
            Shadow(upkeep) => shadow::frames(upkeep, config),
            Adaptive => shadow::frames(adaptive::UPKEEP, config),
        }
    }

    /// Returns the way in which a VM's images are mapped.
    #[must_use]
    pub fn images(self, config: &VmConfig, offer: &Offer) -> Images {
        match self {
            TwoStage => two_stage::images(config, offer),
            Shadow(_) | Adaptive => Images::Shared,
        }
    }

    /// Returns the way in which Gnomon learns which memory a VM uses.
    #[must_use]
    pub fn ad(self, config: &VmConfig, offer: &Offer, set: &Tunables) -> Ad {
        match self {
            // What its hart does not walk it sets no bits in: the tables of a hypervisor's guests are others.
            TwoStage if set.is_on(Id::HardwareAd) && offer.two_stage_svadu && !config.nested => Ad::Hardware,
            _ if set.is_on(Id::FaultD) => Ad::Faults,
            _ => Ad::AsNeeded,
        }
    }

    /// Returns the extensions that a VM's harts are told to have.
    #[must_use]
    pub fn isa(self, config: &VmConfig, offer: &Offer) -> Isa {
        match self {
            TwoStage => two_stage::isa(config, offer),
            Shadow(upkeep) => shadow::isa(upkeep, config, offer),
            Adaptive => shadow::isa(adaptive::UPKEEP, config, offer),
        }
    }

    /// Returns whether each of a guest's roots has translations of its own, whatever ASID the guest gives it. Behind a
    /// G-stage only the ASID tells them apart.
    #[must_use]
    pub const fn is_tagged(self) -> bool {
        matches!(self, Shadow(_))
    }

    /// Makes the lists for a VM's shadow tables: for its own, and for those of its guests.
    #[must_use]
    pub fn lists(self, config: &VmConfig) -> Vec<Lists> {
        let count = usize::from(self != TwoStage) + usize::from(config.nested);
        (0..count).map(|_| shadow::lists(config)).collect()
    }

    /// Makes a VM's shadow tables, if it is to have some.
    ///
    /// # Errors
    /// A message, if there is no memory for them.
    pub fn build(
        self,
        g: &Gnomon,
        vm: &Vm,
        lists: &mut Vec<Lists>,
        from: (&mut AddressSpace, Owner, &Frames),
        mem: &mut impl PhysMem,
    ) -> Result<Option<mmu::shadow::Shadow>, String> {
        let upkeep = match self {
            TwoStage => return Ok(None),
            Shadow(upkeep) => upkeep,
            Adaptive => adaptive::UPKEEP,
        };
        lists.pop().map(|lists| shadow::build(g, vm, (upkeep, lists), from, mem)).transpose()
    }

    /// Makes the tables for a VM's own guests, if it may be a hypervisor.
    ///
    /// # Errors
    /// A message, if there is no memory for them.
    pub fn build_nested(
        self,
        vm: &Vm,
        lists: &mut Vec<Lists>,
        frames: &Frames,
    ) -> Result<Option<mmu::shadow::Shadow<L2Gpa>>, String> {
        let lists = lists.pop_if(|_| vm.config.nested && !vm.collapses());
        lists.map(|lists| nested::build(vm, lists, frames)).transpose()
    }

    /// Makes the collapsed tables for a VM's own guests, if they are to run by such.
    ///
    /// # Errors
    /// A message, if there is no memory for them.
    pub fn build_collapsed(
        self,
        vm: &Vm,
        lists: &mut Vec<Lists>,
        frames: &Frames,
    ) -> Result<Option<mmu::shadow::Shadow<L2Gva>>, String> {
        let lists = lists.pop_if(|_| vm.collapses());
        lists.map(|lists| collapsed::build(vm, lists, frames)).transpose()
    }

    /// Returns the counters of a VM's shadow tables, those of earlier lives included; `None` if it has no such
    /// counters. Those of a hypervisor are its guests'.
    #[must_use]
    pub fn counters(self, vm: &Vm) -> Option<Counters> {
        match self {
            _ if vm.config.nested => Some(nested::counters(vm)),
            TwoStage => None,
            Shadow(_) | Adaptive => Some(shadow::counters(vm)),
        }
    }

    /// Takes a VM's memory away, which is to be given back. None of its vCPUs is on a hart.
    pub fn tear_down<E: Env>(self, g: &Gnomon, vm: &Vm, memory: Memory, env: &mut E) -> Remains {
        vm.tlb.spaces.lock().clear();
        match self {
            TwoStage => two_stage::tear_down(g, vm, memory, env),
            Shadow(_) | Adaptive => shadow::tear_down(g, vm, memory, env),
        }
    }

    /// Puts a vCPU on this hart: sets what translates its guest's addresses.
    ///
    /// # Errors
    /// How the vCPU goes on instead, if there is no memory for that. It must not enter its guest then, nor will it.
    pub fn load<E: Env>(self, g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<(), Outcome> {
        match self {
            TwoStage => {
                nested::come(run, env);
                if run.runs_l2() {
                    nested::load(run, env);
                } else {
                    two_stage::load(run, env);
                }
                Ok(())
            }
            Shadow(upkeep) => {
                if upkeep == Upkeep::Steered {
                    coalescing::begin(g, run, env);
                }
                if run.nested.is_some() {
                    nested::come(run, env);
                }
                if run.runs_l2() {
                    env.load_nested(run);
                    return Ok(());
                }
                shadow::roots::load(g, run, upkeep, env)
            }
            Adaptive => adaptive::load(g, run, env),
        }
    }

    /// OWNERSHIP: returns whether the vCPU on this hart may enter its guest. Without a G-stage its root is all that
    /// stands between the guest and memory.
    #[inline(always)]
    #[must_use]
    pub fn may_enter(self, run: &VcpuRun) -> bool {
        run.shadow.root.is_some() || run.tables == Tables::TwoStage
    }

    /// Takes a vCPU off this hart, before its CSRs are cleared.
    pub fn unload<E: Env>(self, run: &mut VcpuRun, env: &E) {
        match self {
            // The hart's register is Gnomon's while L2 runs on collapsed tables.
            TwoStage if run.collapses() => {}
            TwoStage => run.bank.csrs.vsatp = env.vsatp(),
            // It is the guest's all the time.
            Shadow(_) => run.follow_lane(),
            Adaptive => adaptive::unload(run, env),
        }
    }

    /// Forgets everything of the life of a vCPU that is about to be parked.
    pub fn forget(self, run: &mut VcpuRun) {
        run.g_root = None;
        nested::forget(run);
        spaces::forget(run);
        match self {
            TwoStage => {}
            Shadow(_) => {
                run.follow_lane();
                shadow::roots::forget(run);
            }
            Adaptive => adaptive::forget(run),
        }
    }

    /// Handles a page fault that came to Gnomon.
    pub fn page_fault<E: Env>(self, g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Faulted {
        match run.tables {
            Tables::Shadow => shadow::page_fault(g, run, exception, env),
            Tables::TwoStage => two_stage::page_fault(g, run, exception, env),
        }
    }

    /// Handles an access fault that came to Gnomon.
    pub fn access_fault<E: Env>(self, g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Faulted {
        match self {
            Shadow(Upkeep::Steered) | Adaptive if run.tables == Tables::Shadow => {
                shadow::steered::access_fault(g, run, exception, env)
            }
            // It comes from memory that is mapped but cannot be accessed so (an AMO or LR/SC where the platform allows none): the
            // guest's own, as on bare metal.
            TwoStage | Shadow(_) | Adaptive => {
                run.shared.counters.exits_other.bump();
                Faulted::Inject(Trap::new(exception, run.context.exit.tval))
            }
        }
    }

    /// Handles a guest-page fault. `None` if it is not of a frame that a steered guest is denied.
    #[inline(always)]
    pub fn denied_frame<E: Env>(self, g: &Gnomon, run: &mut VcpuRun, access: Access, env: &mut E) -> Option<Faulted> {
        match run.tables {
            Tables::TwoStage => None,
            Tables::Shadow => Some(shadow::steered::denied_frame(g, run, access, env)),
        }
    }

    /// Looks now and then whether the vCPU on this hart waits for something of which no exit tells.
    pub fn look_again<E: Env>(self, g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
        if run.tables == Tables::Shadow {
            run.follow_lane();
            // What has changed for roots that the vCPU gets, it sees when it gets one.
            run.shadow.views.disarm();
            if matches!(self, Shadow(Upkeep::Steered) | Adaptive) {
                shadow::steered::look_again(g, run, env);
            }
        }
    }

    /// Ends what is not worth while any more, an interval after fences made work for it ([`shadow::fence`]).
    pub fn relax<E: Env>(self, g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
        if self != TwoStage {
            shadow::relax(g, run, env);
        }
    }

    /// Returns the initial knowledge of an adaptive vCPU about its roots.
    #[must_use]
    pub fn adapts(self, id: u32) -> Option<Box<Adapts>> {
        (self == Adaptive).then(|| Box::new(Adapts::new(id)))
    }

    /// Looks at the cost of the root by which the vCPU on this hart runs, at host time `now`: it may go on the other
    /// way.
    pub fn choose<E: Env>(self, g: &Gnomon, run: &mut VcpuRun, now: u64, env: &mut E) {
        if self == Adaptive {
            adaptive::look(g, run, now, env);
        }
    }

    /// Looks whether pages of the vCPU on this hart can be coalesced, at host time `now`.
    pub fn gather<E: Env>(self, g: &Gnomon, run: &mut VcpuRun, now: u64, env: &mut E) {
        if self != TwoStage {
            coalescing::look(g, run, now, env);
        }
    }

    /// Returns the initial memory of a vCPU of roots.
    #[must_use]
    pub fn views(self, config: &VmConfig) -> Views {
        match self {
            TwoStage => Views::default(),
            Shadow(upkeep) => shadow::roots::views(upkeep, config),
            Adaptive => shadow::roots::views(adaptive::UPKEEP, config),
        }
    }

    /// Returns the causes by which a vCPU's exits may be brief.
    #[must_use]
    pub fn brief_causes(self, offer: &Offer) -> BriefCauses {
        let causes = BriefCauses::NONE.and(offer.guest.sbi_call().code());
        match self {
            TwoStage => causes,
            Shadow(upkeep) => shadow::brief::causes(causes, upkeep, offer),
            Adaptive => shadow::brief::causes(causes, adaptive::UPKEEP, offer),
        }
    }

    /// Returns the exits that may be brief to begin with and send a byte by the UART.
    #[must_use]
    pub fn brief(self) -> BriefExits {
        match self {
            TwoStage | Adaptive => BriefExits::of_guest_page(uart::START),
            // Until it has been seen how the vCPU gets there.
            Shadow(_) => BriefExits::NONE,
        }
    }

    /// Remembers the way by which a store of the vCPU's is about to reach the UART.
    pub fn remember_way<E: Env>(self, run: &mut VcpuRun, env: &E) {
        // Behind a G-stage its exits say all that is needed.
        if run.tables == Tables::Shadow && !run.runs_l2() {
            run.follow_lane();
            shadow::way::remember_way(run, env);
        }
    }

    /// Handles an instruction that trapped in the mode `from`. `None` if it is none about translation that is Gnomon's
    /// to carry out.
    pub fn instruction<E: Env>(self, g: &Gnomon, run: &mut VcpuRun, what: (u64, Mode), env: &mut E) -> Option<Outcome> {
        match self {
            _ if run.tables == Tables::TwoStage => None,
            Adaptive => adaptive::instruction(g, run, what, env),
            _ => {
                run.follow_lane();
                shadow::roots::instruction(g, run, what, env)
            }
        }
    }

    /// Returns the `satp` of the guest on this hart.
    pub fn satp<E: Env>(self, run: &VcpuRun, env: &E) -> u64 {
        match run.tables {
            Tables::TwoStage if run.collapses() => run.bank.csrs.vsatp,
            Tables::TwoStage => env.vsatp(),
            // The hart's register is Gnomon's.
            Tables::Shadow => run.satp(),
        }
    }

    /// Does a fence of the guest's for the vCPU on this hart, which another vCPU or Gnomon asked for.
    pub fn fence<E: Env>(self, g: &Gnomon, run: &mut VcpuRun, fence: &GuestFence, env: &mut E) {
        match run.tables {
            Tables::TwoStage => two_stage::fence(run, fence, env),
            Tables::Shadow => {
                run.follow_lane();
                shadow::fence(g, run, fence, env);
                if run.runs_l2() {
                    // The hart has the ASID of its guest's root: by its own ones it finds nothing again.
                    run.shadow.views.forget_ids();
                }
            }
        }
    }

    /// Returns whether a hart in the guest of `vcpu` must leave it for a fence that was posted there; else it will see
    /// it in time.
    #[must_use]
    pub fn is_urgent(self, vcpu: &Vcpu, fence: &GuestFence) -> bool {
        match self {
            TwoStage => true,
            Shadow(_) | Adaptive => shadow::is_urgent(vcpu, fence),
        }
    }

    /// Makes this hart forget its translations of the VM's tables, which other harts have changed.
    pub fn catch_up<E: Env>(self, vm: &Vm, env: &mut E) {
        match self {
            TwoStage => {
                env.fence_g_stage(vm.slot(), FenceScope::Everything);
                if vm.collapses() {
                    env.fence_shadows();
                }
            }
            Shadow(_) => env.fence_guest(None, None),
            Adaptive => {
                env.fence_g_stage(vm.slot(), FenceScope::Everything);
                env.fence_shadows();
            }
        }
    }

    /// Makes a page of the VM's memory ready for an access.
    ///
    /// # Errors
    /// As for [`Vm::reach`].
    pub fn reach<E: Env>(
        self,
        g: &Gnomon,
        vm: &Vm,
        what: (Addr<Gpa>, Access),
        ready: &mut Ready,
        env: &mut E,
    ) -> Result<Addr<Hpa>, Unreachable> {
        loop {
            let reached = match self {
                TwoStage if vm.collapses() => reach_in_both::<L2Gva, _>(g, vm, what, ready, env),
                TwoStage if vm.config.nested => reach_in_both::<L2Gpa, _>(g, vm, what, ready, env),
                TwoStage => two_stage::reach(g, vm, what, ready, env),
                // Its engine tells that of its guests.
                Shadow(_) => shadow::reach(g, vm, what, ready, env),
                Adaptive => reach_in_both::<Gva, _>(g, vm, what, ready, env),
            };
            match reached {
                Err(error) => g.pager.help(g, vm, error, env)?,
                reached => return reached,
            }
        }
    }

    /// Resolves a G-stage fault of the loaded vCPU.
    ///
    /// # Errors
    /// As for [`Vm::reach`].
    pub fn touch<E: Env>(
        self,
        g: &Gnomon,
        run: &mut VcpuRun,
        what: (Addr<Gpa>, Access),
        env: &mut E,
    ) -> Result<Addr<Hpa>, Unreachable> {
        if run.tables == Tables::TwoStage
            && let Some(touched) = two_stage::touch(g, run, what, env)
        {
            return touched;
        }
        let vm = Arc::clone(&run.vm);
        self.reach(g, &vm, what, &mut run.ready, env)
    }

    /// Notes that Gnomon itself has written to that frame of the VM.
    pub fn host_wrote<E: Env>(self, vm: &Vm, gfn: Pfn<Gpa>, env: &E) {
        match self {
            TwoStage => {}
            Shadow(_) | Adaptive => shadow::host_wrote(vm, gfn, env),
        }
    }
}
