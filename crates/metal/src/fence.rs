//! Fences. They order translations and code; a missing one is a bug, a needless one only costs.

use core::arch::asm;
use rv::{Addr, Asid, Gpa, Gva, Vmid};

/// `fence.i`: this hart fetches what it stored.
pub fn instruction() {
    // SAFETY: a fence.
    unsafe { asm!("fence.i", options(nostack)) };
}

/// `fence iorw, iorw`: accesses to memory and devices before it happen before those after it. Atomic
/// operations order memory only.
pub fn memory_and_devices() {
    // SAFETY: a fence.
    unsafe { asm!("fence iorw, iorw", options(nostack)) };
}

/// `sfence.vma x0, x0`: Gnomon's own translations (HS), or those of S and U mode (M).
pub fn sfence_all() {
    // SAFETY: a fence.
    unsafe { asm!("sfence.vma x0, x0", options(nostack)) };
}

/// `sfence.vma x0, asid`: all translations of one ASID but global ones.
pub fn sfence_asid(asid: Asid) {
    let asid = u64::from(asid.0);
    // SAFETY: a fence.
    unsafe { asm!("sfence.vma x0, {}", in(reg) asid, options(nostack)) };
}

/// `sfence.vma gva, x0`: leaf translations of one virtual page, of every ASID.
pub fn sfence_page(gva: Addr<Gva>) {
    // SAFETY: a fence.
    unsafe { asm!("sfence.vma {}, x0", in(reg) gva.raw(), options(nostack)) };
}

/// `sfence.vma gva, asid`: leaf translations of one virtual page of one ASID.
pub fn sfence_page_asid(gva: Addr<Gva>, asid: Asid) {
    let asid = u64::from(asid.0);
    // SAFETY: a fence.
    unsafe { asm!("sfence.vma {}, {}", in(reg) gva.raw(), in(reg) asid, options(nostack)) };
}

/// `hfence.gvma x0, x0`: all G-stage translations of all VMIDs, and what was derived from them.
pub fn gvma_all() {
    // SAFETY: a fence.
    unsafe { asm!(".option push", ".option arch, +h", "hfence.gvma x0, x0", ".option pop", options(nostack)) };
}

/// `hfence.gvma x0, vmid`: all G-stage translations of one VMID.
pub fn gvma_vmid(vmid: Vmid) {
    let vmid = u64::from(vmid.0);
    // SAFETY: a fence.
    unsafe {
        asm!(".option push", ".option arch, +h", "hfence.gvma x0, {}", ".option pop", in(reg) vmid, options(nostack));
    };
}

/// `hfence.gvma gpa, vmid`: leaf translations of one guest physical page of one VMID.
pub fn gvma_page(gpa: Addr<Gpa>, vmid: Vmid) {
    // norm:hfence-gvma_op: rs1 holds the guest physical address shifted right by 2.
    let (gpa, vmid) = (gpa.raw() >> 2, u64::from(vmid.0));
    // SAFETY: a fence.
    unsafe {
        asm!(".option push", ".option arch, +h", "hfence.gvma {}, {}", ".option pop",
             in(reg) gpa, in(reg) vmid, options(nostack));
    };
}

/// `hfence.vvma x0, x0`: all VS-stage translations of the VMID now in `hgatp`.
pub fn vvma_all() {
    // SAFETY: a fence.
    unsafe { asm!(".option push", ".option arch, +h", "hfence.vvma x0, x0", ".option pop", options(nostack)) };
}

/// `hfence.vvma x0, asid`: all VS-stage translations of one ASID but global ones.
pub fn vvma_asid(asid: Asid) {
    let asid = u64::from(asid.0);
    // SAFETY: a fence.
    unsafe {
        asm!(".option push", ".option arch, +h", "hfence.vvma x0, {}", ".option pop", in(reg) asid, options(nostack));
    };
}

/// `hfence.vvma gva, x0`: leaf translations of one guest virtual page, of every ASID.
pub fn vvma_page(gva: Addr<Gva>) {
    // SAFETY: a fence.
    unsafe {
        asm!(".option push", ".option arch, +h", "hfence.vvma {}, x0", ".option pop", in(reg) gva.raw(), options(nostack));
    };
}

/// `hfence.vvma gva, asid`: leaf translations of one guest virtual page of one ASID.
pub fn vvma_page_asid(gva: Addr<Gva>, asid: Asid) {
    let asid = u64::from(asid.0);
    // SAFETY: a fence.
    unsafe {
        asm!(".option push", ".option arch, +h", "hfence.vvma {}, {}", ".option pop",
             in(reg) gva.raw(), in(reg) asid, options(nostack));
    };
}
