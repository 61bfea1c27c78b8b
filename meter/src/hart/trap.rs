//! Traps: which they are, and what the accesses behind them asked for.

use super::{Hart, Here, Machine, Register, access_of, privilege, space_of};
use crate::check::Event;
use crate::counts::TrapKind;
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

/// The kind of access that a trap is about, if it is about one.
const fn access_of_cause(cause: u64) -> Option<Use> {
    match cause {
        1 | 12 | 20 => Some(Use::Fetch),
        5 | 13 | 21 => Some(Use::Load),
        7 | 15 | 23 => Some(Use::Store),
        _ => None,
    }
}

impl Hart {
    /// The traps that have brought the hart here, in their order: mostly none; two where a trap's own vector
    /// could not be fetched. `returning` is where an xRET leads that was executed last.
    pub(super) fn arrived(&self, here: Here, returning: Option<u64>, machine: &impl Machine) -> [Option<Trap>; 2] {
        if returning == Some(here.at) || !self.is_vector(here) {
            return [None; 2];
        }
        let last = Self::read_trap(here.mode, here.mode, machine);
        if !self.arrives(&last, here.at) {
            return [None; 2];
        }
        let is_first = access_of_cause(last.cause) != Some(Use::Fetch) || returning == Some(last.epc);
        let first = (!is_first).then(|| Self::read_trap(last.from, here.mode, machine));
        [first.filter(|first| self.arrives(first, last.epc)), Some(last)]
    }

    fn vector_of(&self, mode: Mode) -> u64 {
        match mode {
            Mode::M => self.vectors[0],
            Mode::S => self.vectors[1],
            Mode::VS => self.vectors[2],
            Mode::U | Mode::VU => 0,
        }
    }

    /// Returns whether some trap would arrive here. Asked for all blocks that are looked at.
    fn is_vector(&self, here: Here) -> bool {
        let vector = self.vector_of(here.mode);
        let (base, is_vectored) = (vector & !3, vector & 1 != 0);
        // 0 is no vector: it has not been set.
        vector != 0 && (here.at == base || (is_vectored && (base..base + 128).contains(&here.at)))
    }

    /// Returns whether this is where the trap arrives: in vectored mode, interrupts do where their cause says.
    fn arrives(&self, trap: &Trap, at: u64) -> bool {
        let vector = self.vector_of(trap.to);
        let offset = if trap.is_interrupt() && vector & 1 != 0 { 4 * (trap.cause & 31) } else { 0 };
        vector != 0 && (vector & !3) + offset == at
    }

    /// The last trap to a mode, as its registers tell in mode `now`. To U and VU none goes.
    fn read_trap(to: Mode, now: Mode, machine: &impl Machine) -> Trap {
        let read = |register| machine.register(register);
        let registers = match (to, now.is_virtual()) {
            (Mode::M, _) => [Register::Mcause, Register::Mepc, Register::Mtval, Register::Mstatus],
            // With V=1 the guest's registers have the supervisor's names.
            (Mode::VS, false) => [Register::Vscause, Register::Vsepc, Register::Vstval, Register::Vsstatus],
            _ => [Register::Scause, Register::Sepc, Register::Stval, Register::Sstatus],
        };
        let [cause, epc, tval, status] = registers.map(read);
        let from = if to == Mode::M {
            Mode::new((status & status::MPP) >> 11, status & status::MPV != 0)
        } else {
            let was_virtual = to == Mode::VS || read(Register::Hstatus) & hstatus::SPV != 0;
            Mode::new(u64::from(status & status::SPP != 0), was_virtual)
        };
        Trap { from, to, cause, epc, tval }
    }

    /// A trap was taken; `now` is the mode in which registers are read.
    pub(super) fn take(&mut self, trap: &Trap, now: Mode, shared: &Shared, machine: &impl Machine) {
        let Trap { from, to, cause, tval, .. } = *trap;
        self.counts.traps.of(TrapKind::new(from, to, cause)).count += 1;
        shared.log_trap(trap);
        if trap.is_interrupt() {
            return;
        }
        let how = access_of_cause(cause);
        // What could not even be fetched was not attempted.
        self.counts.not_retired[from.index()] += u64::from(how != Some(Use::Fetch));
        let Some(how) = how else { return };
        let refused = Refused { at: tval, mode: Self::translated_for(trap, machine), how };
        match cause {
            1 | 5 | 7 => self.access_fault(refused, shared, machine),
            _ => self.page_fault(refused, now, shared, machine),
        }
    }

    /// The mode whose translation a faulting access used: another one than that of the code, for HLV and
    /// HSV, and for loads and stores of M mode with MPRV.
    fn translated_for(trap: &Trap, machine: &impl Machine) -> Mode {
        let Trap { from: code, to, cause, .. } = *trap;
        let hstatus = if matches!(code, Mode::M | Mode::S) { machine.register(Register::Hstatus) } else { 0 };
        // GVA says so in HS; that of `mstatus` is not to be trusted on QEMU 10.
        let is_guests = cause >= 20 || (to == Mode::S && hstatus & hstatus::GVA != 0);
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
        // If the address is RAM, PMP has refused the access.
        let is_ram = physical.is_some_and(|physical| machine.word(physical & !7).is_some());
        *(if is_ram { &mut self.counts.pmp_faults } else { &mut self.counts.other_access_faults }) += 1;
    }

    /// A load, store or fetch was refused by its translation.
    fn page_fault(&mut self, refused: Refused, now: Mode, shared: &Shared, machine: &impl Machine) {
        let Refused { at, mode, how } = refused;
        let Some(tables) = shared.tables() else { return };
        self.count_refused(refused);
        let Some(space) = space_of(&self.spaces, mode).copied() else { return };
        let request = Self::request(refused, now, machine);
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
            check.fault(&event, &request, trace, &mut self.counts.stale, machine);
        }
    }

    /// Counts a look-up of the TLB that was refused, without an access.
    fn count_refused(&mut self, refused: Refused) {
        if refused.how != Use::Fetch {
            self.counts.refused[refused.mode.index()] += 1;
            self.settle();
            self.forget_recent();
        }
    }

    /// The rights that the access of a trap needed, by the status registers that governed it.
    fn request(refused: Refused, now: Mode, machine: &impl Machine) -> Request {
        let read = |register| machine.register(register);
        let Refused { mode, how, .. } = refused;
        let first = match (mode.is_virtual(), now.is_virtual()) {
            (true, true) => read(Register::Sstatus),
            (true, false) => read(Register::Vsstatus),
            (false, _) => read(Register::Mstatus),
        };
        // With V=1 HS's own MXR cannot be read; it is clear while guests run.
        let hs_mxr = !now.is_virtual() && read(Register::Mstatus) & status::MXR != 0;
        let (sum, mxr) = (first & status::SUM != 0, first & status::MXR != 0);
        Request { access: access_of(how), mode: privilege(mode), sum, mxr, hs_mxr }
    }
}
