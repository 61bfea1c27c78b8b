//! The way to the UART, as a TLB would know it.

use crate::sync::atomic::{AtomicU64, Ordering::SeqCst};
use crate::vm::{Translation, Vm};
use alloc::boxed::Box;
use alloc::sync::Arc;
use lane::Context;
use mmu::Mapper;
use rv::{Addr, FenceScope, Gpa, Hpa, PAGE_BYTES, PhysMem};

/// The fact that a vCPU's supervisor mode reaches the register that takes bytes to send by the address that its
/// [`lane::BriefExits`] name, on shadow tables.
///
/// It is what a TLB may hold (TLB-LIKE): the guest's tables led there at some time since its last fence, in the address
/// space of that `satp`. Its user mode may have no such right, so it is for supervisor mode only.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    satp: u64,
    /// The guest virtual address that leads there.
    gva: u64,
    /// Fences that the lane had done.
    fences: u64,
    code: Option<Code>,
}

/// The location of the page that the code lies in, for harts that do not report the instruction that trapped.
#[derive(Clone, Copy, Debug)]
struct Code {
    page: u64,
    frame: Addr<Hpa>,
    /// The edits of the VM's memory until then: the frame is the VM's for as long as there are no more.
    edits: u64,
}

/// The mapper that ends what vCPUs know of where their code lies.
struct Places(Arc<AtomicU64>);

impl Mapper for Places {
    fn changed(&mut self, _: FenceScope<Gpa>, _: &mut dyn PhysMem) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Makes the mapper for a VM whose vCPUs may know such places.
pub(crate) fn mapper(vm: &Vm) -> Option<Box<dyn Mapper>> {
    (vm.translation != Translation::TwoStage).then(|| Box::new(Places(Arc::clone(&vm.tlb.edits))) as _)
}

impl Way {
    /// None.
    pub const NONE: Self = Self { satp: 0, gva: 0, fences: 0, code: None };

    /// Makes the way that the exit's access has taken, in the address space of `satp`.
    #[must_use]
    pub const fn of(context: &Context, satp: u64) -> Self {
        Self { satp, gva: context.exit.tval, fences: context.lane.fences(), code: None }
    }

    /// Adds the instruction at `pc`, which lies at `there` in RAM after `edits` edits of the VM's memory.
    #[must_use]
    pub const fn by(self, pc: u64, there: Addr<Hpa>, edits: u64) -> Self {
        let code = Code { page: pc & !(PAGE_BYTES - 1), frame: there.align_down(PAGE_BYTES), edits };
        Self { code: Some(code), ..self }
    }

    /// Returns whether this is the way of the exit's access, and valid in the address space of `satp`, for supervisor
    /// mode.
    #[inline(always)]
    #[must_use]
    pub const fn is_valid(&self, context: &Context, satp: u64) -> bool {
        self.fences == context.lane.fences() && self.satp == satp && self.gva == context.exit.tval
    }

    /// Returns the 4 bytes at `pc`, if it is known where they lie, all in that page. Until now there were so many edits
    /// of the VM's memory.
    #[inline(always)]
    #[must_use]
    pub fn insn<M: PhysMem>(&self, pc: u64, edits: u64, mem: &M) -> Option<u32> {
        let code = self.code.as_ref()?;
        let offset = pc.wrapping_sub(code.page);
        if offset > PAGE_BYTES - 4 || code.edits != edits {
            return None;
        }
        let at = code.frame.wrapping_add(offset);
        let word = at.align_down(8);
        let low = mem.read_u64(word).wrapping_shr((at.raw() << 3) as u32) as u32;
        // It may lie in two words.
        Some(if at.raw() & 6 == 6 { low | (mem.read_u64(word.wrapping_add(8)) as u32) << 16 } else { low })
    }
}
