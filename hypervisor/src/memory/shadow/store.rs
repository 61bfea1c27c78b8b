//! Stores of guests to their tables, where these are write-protected.

use crate::vm::fetch;
use lane::Context;
use mmu::shadow::{Host, Shadow, Wrote};
use rv::insn::WordStore;
use rv::{Addr, Fence, Gpa, Gva, Hpa, Mode, PhysMem};

/// A guest's instruction that may be a store to one of its tables.
pub(super) struct Store<'a> {
    pub gva: Addr<Gva>,
    /// The guest's `satp`, and the mode that it is executed in.
    pub satp: u64,
    pub mode: Mode,
    pub context: &'a mut Context,
}

impl Store<'_> {
    /// Performs the store, and goes on behind it, if it is of a kind that is emulated. Else the guest will do it itself.
    pub fn carry_out<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        (gpa, hpa): (Addr<Gpa>, Addr<Hpa>),
        shadow: &mut Shadow,
        host: &mut Host<'_, M, H>,
    ) {
        let Store { gva, satp, mode, context } = self;
        let insn = WordStore::from_tinst(context.exit.tinst, gva.raw()).or_else(|| {
            let insn = fetch::instruction(host.space, *satp, *mode, context.pc, &*host.mem)?;
            WordStore::decode(insn, &context.x, gva.raw())
        });
        let insn = insn.filter(|insn| insn.is_aligned(gpa.raw() % 8));
        let Some(insn) = insn else {
            let _ = shadow.table_write((gpa, hpa), None, host);
            return;
        };
        let operand = context.x[usize::from(insn.rs)];
        let store = |old| insn.apply(old, gpa.raw() % 8, operand);
        if let Wrote::Done { old } = shadow.table_write((gpa, hpa), Some(&store), host) {
            context.set(insn.rd, insn.result(old, gpa.raw() % 8));
            context.skip(insn.length.into());
        }
    }
}
