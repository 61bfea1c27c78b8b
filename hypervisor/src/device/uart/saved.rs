//! The state of the UART, as a snapshot has it.

use super::{BACKLOG, FIFO, IER_MASK, LOT, MOST_SENDING, QUIET_READS, Uart};
use crate::device::interface::Wild;
use abi::snapshot::bytes::Bytes;
use abi::snapshot::device::UartState;
use arrayvec::ArrayVec;

const _: () = assert!(LOT < MOST_SENDING);

impl Uart {
    pub(super) fn state(&self) -> UartState {
        UartState {
            ier: self.ier,
            lcr: self.lcr,
            mcr: self.mcr,
            scratch: self.scratch,
            divisor: self.divisor,
            fifo: self.fifo,
            overrun: self.overrun,
            thre: self.thre,
            draining: self.draining,
            quiet: self.quiet,
            sending: Bytes(self.sending.to_vec()),
            received: Bytes(self.received.iter().copied().collect()),
            looped: Bytes(self.looped.iter().copied().collect()),
        }
    }

    pub(super) fn of_state(state: &UartState) -> Result<Self, Wild> {
        let mut sending = ArrayVec::new_const();
        sending
            .try_extend_from_slice(&state.sending.0)
            .map_err(|_| Wild("its UART sends more than it has room for"))?;
        if state.received.0.len() > BACKLOG || state.looped.0.len() > FIFO {
            return Err(Wild("its UART has received more than it has room for"));
        }
        Ok(Self {
            ier: state.ier & IER_MASK,
            lcr: state.lcr,
            mcr: state.mcr & 0x1f,
            scratch: state.scratch,
            divisor: state.divisor,
            fifo: state.fifo,
            overrun: state.overrun,
            thre: state.thre,
            draining: state.draining,
            sending,
            received: state.received.0.iter().copied().collect(),
            quiet: state.quiet.min(QUIET_READS),
            looped: state.looped.0.iter().copied().collect(),
            is_hung_up: false,
        })
    }
}
