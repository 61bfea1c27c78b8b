//! Traps: which they are, and what the accesses behind them asked for.

use super::{Hart, Machine, Register, access_of, privilege, space_of};
use crate::block::Block;
use crate::check::Event;
use crate::mode::Mode;
use crate::model::Use;
use crate::shared::Shared;
use crate::walk::{Walker, permissive};
use rv::Request;
use rv::csr::{hstatus, status};

impl Hart {
    pub(super) fn is_vector(&self, block: Block) -> bool {
        let vector = match block.mode {
            Mode::M => self.vectors[0],
            Mode::S => self.vectors[1],
            Mode::VS => self.vectors[2],
            Mode::U | Mode::VU => return false,
        };
        let (base, is_vectored) = (vector & !3, vector & 1 != 0);
        // 0 is no vector: it has not been set.
        vector != 0
            && (block.at == base
                || (is_vectored && block.at.is_multiple_of(4) && (base + 4..base + 128).contains(&block.at)))
    }

    /// A trap has arrived.
    pub(super) fn trap(&mut self, block: Block, shared: &Shared, machine: &impl Machine) {
        let read = |register| machine.register(register);
        let (cause, tval, from) = if block.mode == Mode::M {
            let mstatus = read(Register::Mstatus);
            let from = Mode::new((mstatus & status::MPP) >> 11, mstatus & status::MPV != 0);
            (read(Register::Mcause), read(Register::Mtval), from)
        } else {
            let was_virtual = block.mode == Mode::VS || read(Register::Hstatus) & hstatus::SPV != 0;
            let from = Mode::new(u64::from(read(Register::Sstatus) & status::SPP != 0), was_virtual);
            (read(Register::Scause), read(Register::Stval), from)
        };
        let is_interrupt = cause >> 63 != 0;
        // In vectored mode, an interrupt arrives where its cause says.
        let base = self.vectors[match block.mode {
            Mode::M => 0,
            Mode::VS => 2,
            _ => 1,
        }];
        let arrives = (base & !3) + if is_interrupt && base & 1 != 0 { 4 * (cause & 31) } else { 0 };
        if arrives != block.at {
            return;
        }
        self.counts.traps.count(from, block.mode, cause);
        if is_interrupt {
            return;
        }
        // What could not even be fetched was not attempted.
        let is_fetch = matches!(cause, 0 | 1 | 12 | 20);
        self.counts.not_retired[from.index()] += u64::from(!is_fetch);
        let how = match cause {
            1 | 12 | 20 => Use::Fetch,
            5 | 13 | 21 => Use::Load,
            7 | 15 | 23 => Use::Store,
            _ => return,
        };
        // HLV and HSV fault on behalf of the guest.
        let mode = if cause >= 20 && from == Mode::S { Mode::VS } else { from };
        self.fault(tval, mode, how, cause < 8, block, shared, machine);
    }

    #[expect(clippy::too_many_arguments, reason = "a fault is no more than these, and is made in one place")]
    fn fault(
        &mut self,
        at: u64,
        mode: Mode,
        how: Use,
        is_access_fault: bool,
        block: Block,
        shared: &Shared,
        machine: &impl Machine,
    ) {
        let Some(tables) = shared.tables() else { return };
        let space = space_of(&self.spaces, mode).copied();
        if is_access_fault {
            let physical = match &space {
                None => Some(at),
                Some(space) => {
                    let request = permissive(access_of(how), privilege(mode));
                    let mut walker = Walker::new(&mut self.trace, space, at, request, machine);
                    for (model, counts) in self.models.iter_mut().zip(&mut self.counts.cores) {
                        model.fault(mode, &mut walker, counts);
                    }
                    walker.trace().outcome.ok().map(|mapping| mapping.page << rv::PAGE_SHIFT)
                }
            };
            // RAM answers: who is kept from it is kept by PMP.
            let is_ram = physical.is_some_and(|physical| machine.word(physical & !7).is_some());
            *(if is_ram { &mut self.counts.pmp_faults } else { &mut self.counts.other_access_faults }) += 1;
            return;
        }
        let Some(space) = space else { return };
        let request = self.request(mode, how, block, machine);
        let mut walker = Walker::new(&mut self.trace, &space, at, request, machine);
        for (model, counts) in self.models.iter_mut().zip(&mut self.counts.cores) {
            model.fault(mode, &mut walker, counts);
        }
        let trace = walker.trace();
        tables.learn_walk(&trace.refs, space.has_g(), machine);
        if let Some(check) = &mut self.check {
            let generation = tables.generation();
            let page = at >> rv::PAGE_SHIFT;
            let event = Event { page, how, mode, space: &space, generation, block: self.block };
            check.fault(&event, &request, trace, &mut self.counts.stale);
        }
    }

    /// What the access of a trap asked for, by the status registers that governed it.
    fn request(&self, mode: Mode, how: Use, block: Block, machine: &impl Machine) -> Request {
        let read = |register| machine.register(register);
        let first = match (mode.is_virtual(), block.mode) {
            (true, Mode::VS) => read(Register::Sstatus),
            (true, _) => read(Register::Vsstatus),
            (false, _) => read(Register::Mstatus),
        };
        // With V=1 HS's own MXR cannot be read; it is clear while guests run.
        let hs_mxr = block.mode != Mode::VS && read(Register::Mstatus) & status::MXR != 0;
        let (sum, mxr) = (first & status::SUM != 0, first & status::MXR != 0);
        Request { access: access_of(how), mode: privilege(mode), sum, mxr, hs_mxr }
    }
}
