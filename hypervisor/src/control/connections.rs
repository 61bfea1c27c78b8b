//! Ports of VMs: data to and from the programs that are connected to one, by the control channel.

use crate::device::virtio::{Console, Mmio};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::lines;
use crate::io::serial::{Output, Reach};
use crate::vm::Vm;
use abi::control::Answer;
use abi::control::port::{MOST_SENT, Wish};
use core::sync::atomic::Ordering;

/// Carries out a request about a port; `None` if the VM has no port of that number.
pub fn ask<E: Env>(g: &Gnomon, vm: &Vm, port: u32, wish: &Wish, env: &mut E) -> Option<Answer> {
    let mut devices = vm.devices.lock();
    let console = devices.find_mut::<Mmio<Console>>()?;
    let mut reach = Reach { g, vm, env, output: Output::Leave };
    // Of one that is frozen nobody changes memory: whoever lets it go looks after what has come.
    let outside = (!vm.is_frozen.load(Ordering::SeqCst)).then_some(&mut reach as _);
    let answer = match wish {
        Wish::Exchange(said) if said.bytes.0.len() > MOST_SENT => return None,
        Wish::Exchange(said) => console.exchange(port as usize, said, outside).map(Answer::Heard),
        Wish::Close(connection) => console.close(port as usize, *connection, outside).map(|()| Answer::Done),
    };
    lines::settle_all(g, vm, devices, env);
    answer
}
