//! A VM: its memory, its devices, its vCPUs, and how others reach its memory.

use crate::board::UART_SOURCE;
use crate::device::{Plic, Uart};
use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::harts;
use crate::vcpu::{Vcpu, VcpuRun};
use abi::bundle::VmConfig;
use abi::record::EndReason;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use mmu::frames::{AllocError, Frames};
use mmu::gstage::{AddressSpace, How, Ready, ResolveError, Resolved, Unresolved, with_ready};
use mmu::shadow::{Host, Shadow};
use rv::{Access, Addr, Elide, Fence, FenceScope, Gpa, Hpa, PAGE_BYTES, PhysMem};
use spin::Mutex;

/// Where a VM is in its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Running.
    Running,
    /// Its vCPUs are being collected, or it is being built anew; then this happens. A restart may
    /// still become an end.
    Leaving(Departure),
    /// Over.
    Ended,
}

/// Why a VM's vCPUs are collected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Departure {
    /// It ends.
    End(EndReason),
    /// It starts over.
    Reboot,
}

/// The devices of the guest's board.
#[derive(Debug)]
pub struct Devices {
    /// The console.
    pub uart: Uart,
    /// The interrupt controller.
    pub plic: Plic,
    /// The level of the UART's line, as the PLIC was last told.
    uart_line: bool,
}

impl Devices {
    /// The devices as they are after reset.
    #[must_use]
    pub fn new(vcpus: u32) -> Self {
        Self { uart: Uart::default(), plic: Plic::new(vcpus), uart_line: false }
    }

    /// Reads a register of the PLIC; a claim that names the UART is told to it.
    pub fn read_plic(&mut self, offset: u64) -> u32 {
        let value = self.plic.read(offset);
        if value == UART_SOURCE && Plic::claims(offset) {
            self.uart.claimed();
        }
        value
    }

    /// Writes a register of the PLIC; a completion of the UART's interrupt is told to it first.
    pub fn write_plic(&mut self, offset: u64, value: u32) {
        if value == UART_SOURCE && Plic::claims(offset) {
            self.uart.completed();
            self.pass_line();
        }
        self.plic.write(offset, value);
    }

    /// Passes the UART's line on to the PLIC; says whether it has changed.
    pub fn pass_line(&mut self) -> bool {
        let high = self.uart.interrupt();
        let changed = high != self.uart_line;
        if changed {
            self.uart_line = high;
            self.plic.set_level(UART_SOURCE, high);
        }
        changed
    }
}

/// A VM's memory.
pub struct Memory {
    /// Guest physical memory.
    pub space: AddressSpace,
    /// The tables that take the guest from virtual to host addresses, in the modes that shadow.
    pub shadow: Option<Shadow>,
}

/// What a VM's memory did in earlier lives.
#[derive(Clone, Copy, Default, Debug)]
pub struct Past {
    /// The address spaces.
    pub space: mmu::gstage::Counters,
    /// The shadow tables.
    pub shadow: mmu::shadow::Counters,
    /// Shadow roots: the next life's are numbered on.
    pub serials: u64,
}

/// One VM.
pub struct Vm {
    /// Its number: index into [`Gnomon::vms`], and its owner number for frames.
    pub index: usize,
    /// What it was asked to be.
    pub config: VmConfig,
    /// Its memory; `None` before the start and after the end.
    pub memory: Mutex<Option<Memory>>,
    /// What its memory's engines did in the lives before the present one.
    pub past: Mutex<Past>,
    /// The devices.
    pub devices: Mutex<Devices>,
    /// Its vCPUs, by hart id.
    pub vcpus: Vec<Arc<Vcpu>>,
    /// vCPUs that are stopped.
    pub parked: Mutex<Vec<Box<VcpuRun>>>,
    /// Where it is in its life.
    pub phase: Mutex<Phase>,
    /// Counts changes of the G-stage table that harts must fence for; each hart remembers what it
    /// has fenced for (after bhyve's `pm_eptgen`, architecture.md chapter 5).
    pub tlb_generation: AtomicU64,
    /// Harts (by bit) whose TLBs may hold translations of this VM.
    pub live_on: AtomicU64,
    /// Host time at which guest time is 0.
    pub time_zero: AtomicU64,
}

/// Why guest memory cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// There is no memory at that address.
    Hole,
    /// The memory is there, but does not allow the access.
    Denied,
    /// The VM needs a frame and there is none.
    OutOfFrames(AllocError),
    /// The VM has no memory any more.
    Gone,
}

impl From<ResolveError> for Unreachable {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Denied => Unreachable::Denied,
            ResolveError::OutOfFrames(e) => Unreachable::OutOfFrames(e),
        }
    }
}

impl Vm {
    /// A VM with all its vCPUs still to be parked.
    #[must_use]
    pub fn new(index: usize, config: VmConfig) -> Self {
        let vcpus = (0..config.vcpus).map(|id| Arc::new(Vcpu::new(index, id))).collect();
        Self {
            index,
            memory: Mutex::new(None),
            past: Mutex::new(Past::default()),
            devices: Mutex::new(Devices::new(config.vcpus)),
            vcpus,
            parked: Mutex::new(Vec::new()),
            phase: Mutex::new(Phase::Leaving(Departure::Reboot)),
            tlb_generation: AtomicU64::new(0),
            live_on: AtomicU64::new(0),
            time_zero: AtomicU64::new(0),
            config,
        }
    }

    /// Makes `gpa` ready for `access`, faulting it in, with whatever fences that takes.
    ///
    /// # Errors
    /// [`Unreachable`]; nothing has changed then.
    pub fn reach<E: Env>(
        &self,
        g: &Gnomon,
        gpa: Addr<Gpa>,
        access: Access,
        env: &mut E,
    ) -> Result<Addr<Hpa>, Unreachable> {
        let frames = &g.harts[env.hart()].frames;
        with_ready(frames, &mut env.mem(), |ready, mem| self.try_reach(g, (gpa, access), (frames, ready), mem, env))
    }

    /// One attempt, under the VM's lock.
    fn try_reach<E: Env>(
        &self,
        g: &Gnomon,
        (gpa, access): (Addr<Gpa>, Access),
        (frames, ready): (&Frames, &mut Ready),
        mem: &mut E::Mem,
        env: &mut E,
    ) -> Result<Addr<Hpa>, Unresolved<Unreachable>> {
        let mut guard = self.memory.lock();
        let Memory { space, shadow } = guard.as_mut().ok_or(Unresolved::For(Unreachable::Gone))?;
        let because = |unresolved: Unresolved| unresolved.map(Unreachable::from);
        if let Some(shadow) = shadow {
            let mut hw = VmFence { g, vm: self, env };
            let mut host = Host::new(space, (frames, ready), mem, &mut hw);
            let resolved = shadow.resolve(gpa, access, &mut host).map_err(because)?;
            return resolved.ok_or(Unresolved::For(Unreachable::Hole));
        }
        let resolved = space.resolve_with(gpa, access, ready, frames, mem).map_err(because)?;
        let Resolved::Mapped { hpa, how, stale, publish } = resolved else {
            return Err(Unresolved::For(Unreachable::Hole));
        };
        let mut fence = VmFence { g, vm: self, env };
        if how == How::Spurious {
            // The entry is right and this hart faulted all the same: another hart was
            // faster, or this TLB remembers the older entry. Forget it, here only.
            let page = FenceScope::Range { start: gpa.align_down(PAGE_BYTES), bytes: PAGE_BYTES };
            fence.here(page);
        }
        if how == How::Copied || access == Access::Fetch {
            // Code may be behind it that Gnomon has copied, or an earlier owner's still cached.
            fence.env.fence_instructions();
        }
        // The VM's own lock stays held: no hart may resolve this page meanwhile and have its
        // translation overtaken by this fence, or see the copy before all others have left.
        let retired = stale.fence(&mut fence);
        if let Some(publish) = publish {
            publish.publish(mem);
        }
        retired.release(frames);
        Ok(hpa)
    }

    /// Copies bytes out of guest memory, faulting it in.
    ///
    /// # Errors
    /// As for [`Vm::reach`]; `into` may be partly filled.
    pub fn read<E: Env>(&self, g: &Gnomon, gpa: Addr<Gpa>, into: &mut [u8], env: &mut E) -> Result<(), Unreachable> {
        for (at, part) in by_page(gpa, into.len()) {
            let hpa = self.reach(g, at, Access::Load, env)?;
            env.mem().read_bytes(hpa, &mut into[part]);
        }
        Ok(())
    }

    /// Copies bytes into guest memory, faulting it in.
    ///
    /// # Errors
    /// As for [`Vm::reach`]; a part may have been written.
    pub fn write<E: Env>(&self, g: &Gnomon, gpa: Addr<Gpa>, from: &[u8], env: &mut E) -> Result<(), Unreachable> {
        for (at, part) in by_page(gpa, from.len()) {
            let hpa = self.reach(g, at, Access::Store, env)?;
            env.mem().write_bytes(hpa, &from[part]);
            if let Some(shadow) = self.memory.lock().as_mut().and_then(|memory| memory.shadow.as_mut()) {
                // A guest table would not notice: its shadow looks at the next fence.
                shadow.host_wrote(at.pfn(), &env.mem());
            }
        }
        Ok(())
    }

    /// Whether `[gpa, gpa + bytes)` lies within the VM's RAM.
    #[must_use]
    pub fn in_ram(&self, gpa: u64, bytes: u64) -> bool {
        let Some(offset) = gpa.checked_sub(abi::bundle::GUEST_RAM_BASE) else { return false };
        offset.checked_add(bytes).is_some_and(|end| end <= self.config.memory_bytes)
    }
}

/// The pieces of `bytes` from `gpa` on that lie in one page each: where, and which of the bytes.
fn by_page(gpa: Addr<Gpa>, bytes: usize) -> impl Iterator<Item = (Addr<Gpa>, Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let at = gpa.wrapping_add(done as u64);
        let part = done..bytes.min(done + (PAGE_BYTES - at.page_offset()) as usize);
        done = part.end;
        (!part.is_empty()).then_some((at, part))
    })
}

/// Fences of one VM's G-stage table, as the harts of the machine need them.
pub struct VmFence<'a, E> {
    /// All that is shared.
    pub g: &'a Gnomon,
    /// The VM.
    pub vm: &'a Vm,
    /// The hart that edits.
    pub env: &'a mut E,
}

impl<E: Env> VmFence<'_, E> {
    fn here(&mut self, scope: FenceScope<Gpa>) {
        self.g.harts[self.env.hart()].counters.fences.bump();
        self.env.fence_here(self.vm.index, scope);
    }
}

impl<E: Env> Fence<Gpa> for VmFence<'_, E> {
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        let me = self.env.hart();
        let others = self.vm.live_on.load(Ordering::SeqCst) & !(1 << me);
        if others != 0 {
            let generation = self.vm.tlb_generation.fetch_add(1, Ordering::SeqCst) + 1;
            self.env.fenced_for(self.vm.index, generation);
            self.g.harts[me].counters.shootdowns.bump();
            // Whoever is in this VM's guest leaves it; whoever enters it fences first.
            harts::drive_out(&self.g.harts, self.vm.index, self.env, |hart| others >> hart & 1 == 1);
        }
        self.here(scope);
        // Pages may have been copied, as data; code may be among them. The others do the same when they enter.
        self.env.fence_instructions();
    }

    fn note_elided(&mut self, _: FenceScope<Gpa>, _: Elide) {}
}
