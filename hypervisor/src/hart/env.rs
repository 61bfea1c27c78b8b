//! The services that the exit path needs from the hart it runs on. The binary implements it with instructions, tests
//! with plain data.

use crate::hart::emulation::Emulation;
use crate::hart::programs::Programs;
use crate::hart::worlds::Worlds;
use crate::vm::vcpu::{VcpuRun, VsTrapRegs};
use mmu::ids::IdSlot;
use mmu::shadow::Root;
use rv::{Addr, Asid, Exit, FenceScope, Gpa, Gva, Hpa, Mode, Pfn, PhysMem};

/// The hart that handles an exit, with the vCPU that made it still loaded.
pub trait Env: Worlds + Programs + Emulation {
    /// The access to host RAM.
    type Mem: PhysMem;

    /// Returns host RAM.
    fn mem(&self) -> Self::Mem;
    /// Returns the number of this hart, an index into [`crate::gnomon::Gnomon::harts`].
    fn hart(&self) -> usize;
    /// Returns the host's `time`.
    fn now(&self) -> u64;
    /// Returns whether page faults of the loaded guest come to Gnomon so that it sets A and D in place of hardware
    /// ([`crate::vm::Tlb::sets_ad`], as it was when the vCPU was loaded).
    fn sets_ad(&self) -> bool;
    /// Returns the guest's privilege when it trapped.
    fn privilege(&self) -> Mode;
    /// Sets the privilege that the guest continues with.
    fn set_privilege(&mut self, mode: Mode);
    /// Returns the loaded vCPU's trap registers.
    fn trap_regs(&self) -> VsTrapRegs;
    /// Returns `vsstatus` alone.
    fn status(&self) -> u64;
    /// Writes them back (`vstvec` is not changed).
    fn set_trap_regs(&mut self, regs: &VsTrapRegs);
    /// Returns the guest's `senvcfg`; 0 if the hart has none.
    fn user_environment(&self) -> u64;
    /// Returns the counters that the guest's kernel lets user mode read: `scounteren`, and bits that it cannot set.
    fn user_counters(&self) -> u64;
    /// Returns the `vsatp` (in S mode the `satp`) that the hart runs the loaded vCPU with.
    fn vsatp(&self) -> u64;
    /// Loads a byte as the guest that trapped would, at its address. Only where [`crate::device::offer::Offer::emulates_misaligned`]
    /// is set.
    ///
    /// # Errors
    /// The fault, as if the guest had made it. Its `tinst` tells of implicit accesses only.
    fn load_byte(&mut self, at: u64) -> Result<u8, Exit>;
    /// Stores a byte likewise.
    ///
    /// # Errors
    /// The fault, likewise.
    fn store_byte(&mut self, at: u64, byte: u8) -> Result<(), Exit>;
    /// Returns a floating-point register of the loaded vCPU. Only with D.
    fn float_register(&mut self, number: u8) -> u64;
    /// Writes a floating-point register of the loaded vCPU, whose floating-point state is dirty then. Only with D.
    fn set_float_register(&mut self, number: u8, value: u64);
    /// Returns whether an interrupt is pending for the loaded vCPU that its `sie` enables, whatever SIE is: WFI ends
    /// then.
    fn interrupt_pending(&self) -> bool;
    /// Raises or lowers the loaded vCPU's timer interrupt (`hvip.VSTIP`, in S mode `mip.STIP`), for guests without Sstc.
    fn set_timer_interrupt(&mut self, high: bool);
    /// Raises or lowers the loaded vCPU's software interrupt (`hvip.VSSIP`, in S mode `mip.SSIP`).
    fn set_software_interrupt(&mut self, high: bool);
    /// Sets Gnomon's timer to the earliest deadline, after a brief exit has changed the deadline of the loaded vCPU.
    /// After other exits the timer is set anyway.
    fn deadline_changed(&mut self, run: &VcpuRun);
    /// Takes samples of the hart's counters at exits and entries of the loaded vCPU from now on, or no longer, as its counters of SBI PMU
    /// want ([`VcpuRun::samples`]).
    fn follow_counters(&mut self, run: &VcpuRun);
    /// Sets the loaded vCPU's own comparator, in guest time, for guests with Sstc.
    fn set_guest_deadline(&mut self, deadline: u64);
    /// Makes `hart` leave its guest, or its wait.
    fn send_ipi(&mut self, hart: usize);
    /// Prepares for a vCPU whose guest's own tables translate, behind its VM's G-stage table at `table`; and loads its
    /// `vsatp`. Nothing that is not this vCPU's stays in the TLB under its tags.
    fn load_two_stage(&mut self, run: &mut VcpuRun, table: Pfn<Hpa>);
    /// Prepares for a vCPU that shadow tables alone translate: what its guest does with `satp`, fences and page faults comes
    /// to Gnomon. Nothing that is not this vCPU's stays in the TLB under its tags. A root is still to be loaded. `steered`: the VM is,
    /// so it is denied the frame that poison leads to.
    fn load_shadow(&mut self, run: &VcpuRun, steered: bool);
    /// Prepares for the loaded vCPU's change from one of the two kinds of tables to the other: until that is prepared,
    /// no table translates, and its `vsatp` is gone.
    fn leave_tables(&mut self);
    /// Returns the number of ASID bits of this hart's own registers.
    fn asid_bits(&self) -> u32;
    /// Gives the loaded vCPU this shadow root. `id` is the ASID that this vCPU has for it here, if it has one still. `forget`: what
    /// this hart remembers of the root is out of date. Returns what its `satp` (`vsatp`) holds from now on.
    fn load_root(&mut self, root: &Root, id: &mut IdSlot, forget: bool) -> u64;
    /// Removes G-stage translations of the VM in slot `vm` from this hart's TLB.
    fn fence_g_stage(&mut self, vm: usize, scope: FenceScope<Gpa>);
    /// Removes translations of the loaded vCPU's guest from this hart's TLB: those of one page or all, of one ASID of the
    /// hart's own or all.
    fn fence_guest(&mut self, page: Option<Addr<Gva>>, asid: Option<Asid>);
    /// Removes translations by shadow tables, of all guests that there are on this hart, whichever is loaded, before one of them is entered.
    fn fence_shadows(&mut self);
    /// Removes those of its present shadow root.
    fn fence_guest_root(&mut self);
    /// Returns the address of the lane's jump table for a root.
    fn lane_table(&self, root: &Root) -> u64;
    /// Makes this hart fetch what was stored before (`fence.i`).
    fn fence_instructions(&mut self);
    /// Notes that this hart caused the TLB generation of the VM in slot `vm` to become `generation` and has fenced for
    /// it: unless an earlier one is still owed, nothing is owed for this one.
    fn fenced_for(&mut self, vm: usize, generation: u64);
    /// Makes this hart call [`crate::io::host_events::go_on`] soon, whatever its guest does; if a guest's slot is named, it
    /// then serves that guest's devices.
    fn attend_soon(&mut self, guest: Option<usize>);
    /// Like [`Env::attend_soon`], but at `time` of the host or a little later, for the devices of that guest.
    fn attend_at(&mut self, time: u64, guest: usize);
    /// Returns the host time from which on this hart may do a piece of work for VMs that it does not run, while it has a guest
    /// ([`crate::hart::budget::Budget`]).
    fn others_from(&self) -> u64;
    /// Charges work of that many ticks for VMs that this hart does not run.
    fn charge_others(&mut self, ticks: u64);
    /// Makes this hart call [`crate::life::lifecycle::go_on`] within a millisecond or so, whatever its guest does.
    fn go_on_soon(&mut self);
    /// Lets hardware know that this is a busy-waiting loop.
    fn relax(&self) {
        core::hint::spin_loop();
    }
}
