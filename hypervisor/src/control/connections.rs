//! Ports of VMs: data to and from the programs that are connected to one, by the control channel.

use crate::device::Board;
use crate::device::virtio::{Console, Mmio};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::outside::{Output, Reach};
use crate::vm::Vm;
use abi::control::Answer;
use abi::control::port::{MOST_SENT, Wish};
use core::sync::atomic::Ordering;

/// Carries out a request about a port; `None` if the VM has no port of that number.
pub fn ask<E: Env>(g: &Gnomon, vm: &Vm, port: u32, wish: &Wish, env: &mut E) -> Option<Answer> {
    let act = |console: &mut Mmio<Console>, board: &mut dyn Board| {
        // The memory of a frozen VM does not change: its devices have their moment when it is let go.
        let is_frozen = vm.is_frozen.load(Ordering::SeqCst);
        if is_frozen {
            board.soon();
        }
        let outside = (!is_frozen).then_some(board as _);
        match wish {
            Wish::Exchange(said) if said.bytes.0.len() > MOST_SENT => None,
            Wish::Exchange(said) => console.exchange(port as usize, said, outside).map(Answer::Heard),
            Wish::Close(connection) => console.close(port as usize, *connection, outside).map(|()| Answer::Done),
        }
    };
    vm.devices.with(&mut Reach::new(g, vm, env, Output::Leave), act)?
}
