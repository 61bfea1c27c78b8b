//! Traps: which they are, and what the accesses behind them asked for.

use super::{Filter, Hart, Here, Machine, Register, access_of, privilege, space_of};
use crate::check::Event;
use crate::mode::Mode;
use crate::model::Use;
use crate::shared::{Shared, Trap};
use crate::walk::{Walker, permissive};
use rv::Request;
use rv::csr::{hstatus, status};

/// An access that has trapped.
#[derive(Clone, Copy)]
struct Refused {
    at: u64,
    /// The mode whose translation it used.
    mode: Mode,
    how: Use,
}

/// The bit of a cause that says that it is an interrupt's.
const INTERRUPT: u64 = 1 << 63;

impl Hart {
    fn vector_of(&self, mode: Mode) -> u64 {
        match mode {
            Mode::M => self.vectors[0],
            Mode::S => self.vectors[1],
            Mode::VS => self.vectors[2],
            Mode::U | Mode::VU => 0,
        }
    }

    /// Whether traps arrive here.
    pub(super) fn is_vector(&self, here: Here) -> bool {
        let vector = self.vector_of(here.mode);
        let (base, is_vectored) = (vector & !3, vector & 1 != 0);
        // 0 is no vector: it has not been set.
        vector != 0
            && (here.at == base
                || (is_vectored && here.at.is_multiple_of(4) && (base + 4..base + 128).contains(&here.at)))
    }

    fn cause(here: Here, machine: &impl Machine) -> u64 {
        machine.register(if here.mode == Mode::M { Register::Mcause } else { Register::Scause })
    }

    /// Whether the trap that has arrived here is an interrupt.
    pub(super) fn is_interrupt(&self, here: Here, machine: &impl Machine) -> bool {
        Self::cause(here, machine) & INTERRUPT != 0
    }

    /// A trap has arrived.
    pub(super) fn trap(&mut self, here: Here, shared: &Shared, machine: &impl Machine) {
        let read = |register| machine.register(register);
        let (cause, from) = (Self::cause(here, machine), Self::came_from(here, machine));
        // In vectored mode, an interrupt arrives where its cause says.
        let (vector, is_interrupt) = (self.vector_of(here.mode), cause & INTERRUPT != 0);
        let arrives = (vector & !3) + if is_interrupt && vector & 1 != 0 { 4 * (cause & 31) } else { 0 };
        if arrives != here.at {
            return;
        }
        self.counts.traps.count(from, here.mode, cause);
        if shared.logs_traps() {
            let (epc, tval) = match here.mode {
                Mode::M => (Register::Mepc, Register::Mtval),
                _ => (Register::Sepc, Register::Stval),
            };
            shared.log_trap(&Trap { from, to: here.mode, cause, epc: read(epc), tval: read(tval) });
        }
        if is_interrupt {
            return;
        }
        let how = match cause {
            1 | 12 | 20 => Some(Use::Fetch),
            5 | 13 | 21 => Some(Use::Load),
            7 | 15 | 23 => Some(Use::Store),
            _ => None,
        };
        // What could not even be fetched was not attempted.
        self.counts.not_retired[from.index()] += u64::from(how != Some(Use::Fetch));
        let Some(how) = how else { return };
        let at = read(if here.mode == Mode::M { Register::Mtval } else { Register::Stval });
        let refused = Refused { at, mode: Self::translated_for(cause, from, here, machine), how };
        match cause {
            1 | 5 | 7 => self.access_fault(refused, shared, machine),
            _ => self.page_fault(refused, here, shared, machine),
        }
    }

    fn came_from(here: Here, machine: &impl Machine) -> Mode {
        if here.mode == Mode::M {
            let mstatus = machine.register(Register::Mstatus);
            return Mode::new((mstatus & status::MPP) >> 11, mstatus & status::MPV != 0);
        }
        let was_virtual = here.mode == Mode::VS || machine.register(Register::Hstatus) & hstatus::SPV != 0;
        Mode::new(u64::from(machine.register(Register::Sstatus) & status::SPP != 0), was_virtual)
    }

    /// The mode whose translation a faulting access used: another one than that of the code, for HLV and
    /// HSV, and for loads and stores of M mode with MPRV.
    fn translated_for(cause: u64, code: Mode, here: Here, machine: &impl Machine) -> Mode {
        let hstatus = if matches!(code, Mode::M | Mode::S) { machine.register(Register::Hstatus) } else { 0 };
        // GVA says so in HS; that of `mstatus` is not to be trusted on QEMU 10.
        let is_guests = cause >= 20 || (here.mode == Mode::S && hstatus & hstatus::GVA != 0);
        match code {
            Mode::M | Mode::S if is_guests => Mode::new(u64::from(hstatus & hstatus::SPVP != 0), true),
            // The trap has overwritten MPP: S and U differ in nothing but who may use the page.
            Mode::M if cause >= 12 => Mode::S,
            _ => code,
        }
    }

    /// A load, store or fetch was refused by what is behind translation.
    fn access_fault(&mut self, refused: Refused, shared: &Shared, machine: &impl Machine) {
        if shared.tables().is_none() {
            return;
        }
        let Refused { at, mode, how } = refused;
        self.count_refused(refused);
        let physical = match space_of(&self.spaces, mode) {
            None => Some(at),
            Some(space) => {
                let request = permissive(access_of(how), privilege(mode));
                let mut walker = Walker::new(&mut self.trace, space, at, request, machine);
                let outcome = walker.trace().outcome;
                for (model, counts) in self.models.iter_mut().zip(&mut self.counts.cores) {
                    match outcome {
                        // It was translated: a TLB holds that, whatever protects the page.
                        Ok(_) => model.access(how, mode, &mut walker, counts),
                        Err(_) => model.fault(how, mode, &mut walker, counts),
                    }
                }
                outcome.ok().map(|mapping| mapping.page << rv::PAGE_SHIFT)
            }
        };
        // RAM answers: who is kept from it is kept by PMP.
        let is_ram = physical.is_some_and(|physical| machine.word(physical & !7).is_some());
        *(if is_ram { &mut self.counts.pmp_faults } else { &mut self.counts.other_access_faults }) += 1;
    }

    /// A load, store or fetch was refused by its translation.
    fn page_fault(&mut self, refused: Refused, here: Here, shared: &Shared, machine: &impl Machine) {
        let Refused { at, mode, how } = refused;
        let Some(tables) = shared.tables() else { return };
        self.count_refused(refused);
        let Some(space) = space_of(&self.spaces, mode).copied() else { return };
        let request = Self::request(refused, here, machine);
        let mut walker = Walker::new(&mut self.trace, &space, at, request, machine);
        for (model, counts) in self.models.iter_mut().zip(&mut self.counts.cores) {
            model.fault(how, mode, &mut walker, counts);
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

    /// It has looked into the TLB, although no access was made.
    fn count_refused(&mut self, refused: Refused) {
        if refused.how != Use::Fetch {
            self.counts.refused[refused.mode.index()] += 1;
            self.settle();
            // What was accessed last is no longer what a TLB was asked for last.
            self.filter = Filter::default();
        }
    }

    /// What the access of a trap asked for, by the status registers that governed it.
    fn request(refused: Refused, here: Here, machine: &impl Machine) -> Request {
        let read = |register| machine.register(register);
        let Refused { mode, how, .. } = refused;
        let first = match (mode.is_virtual(), here.mode) {
            (true, Mode::VS) => read(Register::Sstatus),
            (true, _) => read(Register::Vsstatus),
            (false, _) => read(Register::Mstatus),
        };
        // With V=1 HS's own MXR cannot be read; it is clear while guests run.
        let hs_mxr = here.mode != Mode::VS && read(Register::Mstatus) & status::MXR != 0;
        let (sum, mxr) = (first & status::SUM != 0, first & status::MXR != 0);
        Request { access: access_of(how), mode: privilege(mode), sum, mxr, hs_mxr }
    }
}
