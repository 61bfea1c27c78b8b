//! The time from a trap until the software that it left runs again.

use super::{Hart, Machine, Register, Scoreboard};
use crate::counts::TrapKind;
use crate::mode::Mode;
use crate::shared::Trap;
use rv::csr::{hstatus, status};

/// A trap that is being handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Exit {
    kind: TrapKind,
    /// Instructions that had retired when it was taken.
    since: u64,
}

/// A trap that is being handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Exits {
    /// A guest was left.
    guest: Option<Exit>,
    /// Software with V=0 was left for M.
    supervisor: Option<Exit>,
}

impl Hart {
    /// A trap was taken, and counted.
    pub(super) fn left(&mut self, trap: &Trap, board: &Scoreboard) {
        let kind = TrapKind::new(trap.from, trap.to, trap.cause);
        if kind.is_exit() {
            let exit = Some(Exit { kind, since: self.retired(board) });
            *(if kind.from.is_virtual() { &mut self.exits.guest } else { &mut self.exits.supervisor }) = exit;
        }
    }

    /// A return from a trap (`mret`, or else `sret`) is about to be executed in a mode; it is among what has retired.
    pub(super) fn returns(&mut self, is_mret: bool, mode: Mode, board: &Scoreboard, machine: &impl Machine) {
        if self.exits == Exits::default() || mode.is_virtual() {
            return;
        }
        let to = if is_mret {
            let status = machine.register(Register::Mstatus);
            Mode::new((status & status::MPP) >> 11, status & status::MPV != 0)
        } else {
            let is_virtual = machine.register(Register::Hstatus) & hstatus::SPV != 0;
            Mode::new(u64::from(machine.register(Register::Sstatus) & status::SPP != 0), is_virtual)
        };
        let over = match (to.is_virtual(), mode, to) {
            (true, ..) => self.exits.guest.take(),
            (false, Mode::M, Mode::S | Mode::U) => self.exits.supervisor.take(),
            _ => None,
        };
        if let Some(Exit { kind, since }) = over {
            let instructions = self.retired(board) - since;
            let trapped = self.counts.traps.of(kind);
            trapped.handling += instructions;
            trapped.longest.add(instructions);
        }
    }

    fn retired(&self, board: &Scoreboard) -> u64 {
        board.insns.iter().sum::<u64>().saturating_sub(self.counts.not_retired.iter().sum())
    }
}
