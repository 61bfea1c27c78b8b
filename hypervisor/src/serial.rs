//! The host's serial port and the guests: what they print, and what is typed for them.

use crate::console::{Command, Left};
use crate::device::Uart;
use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::lines;
use crate::vm::{Devices, Vm};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use spin::MutexGuard;

/// Prints output of a guest; returns how many bytes were taken. The others are to be offered again.
pub fn print<E: Env>(g: &Gnomon, guest: usize, bytes: &[u8], env: &mut E) -> usize {
    let (taken, left) = g.console.write(guest, bytes);
    if left == Left::More {
        env.attend_soon(None);
    }
    taken
}

/// The same, after what the guest's UART still has to send: nothing, if that is not taken.
pub fn print_in_order<E: Env>(g: &Gnomon, vm: &Vm, bytes: &[u8], env: &mut E) -> usize {
    if vm.is_sending.load(Ordering::SeqCst) && !send_all(g, vm, env) {
        let _ = g.console.print();
        return 0;
    }
    print(g, vm.index, bytes, env)
}

/// Prints what a guest's UART has to send, when that is worth it; else soon.
pub fn send<E: Env>(g: &Gnomon, vm: &Vm, uart: &mut Uart, env: &mut E) {
    if !uart.lot().is_empty() {
        let taken = print(g, vm.index, uart.lot(), env);
        uart.sent(taken);
    }
    if uart.wants_moment() {
        vm.is_sending.store(true, Ordering::SeqCst);
        env.attend_soon(Some(vm.index));
    }
}

/// Leaves all that a guest's UART has to send with the console; false if that has no room for it.
fn send_all<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> bool {
    let mut devices = vm.devices.lock();
    let taken = g.console.leave(vm.index, devices.uart.sending());
    devices.uart.sent(taken);
    devices.uart.moment();
    let is_left = devices.uart.wants_moment();
    vm.is_sending.store(is_left, Ordering::SeqCst);
    if is_left {
        env.attend_soon(Some(vm.index));
    }
    lines::update_uart(g, vm, devices, env);
    !is_left
}

/// The guest makes no more output in this life: what its UART still has to send joins the rest.
pub fn last_words(g: &Gnomon, vm: &Vm) {
    vm.is_sending.store(false, Ordering::SeqCst);
    let mut devices = vm.devices.lock();
    g.console.append(vm.index, devices.uart.sending());
    let count = devices.uart.sending().len();
    devices.uart.sent(count);
}

/// Goes on with output that is left, and with what the UARTs of `guests` (by bit) have to send: those that this hart was to
/// look after.
pub fn go_on<E: Env>(g: &Gnomon, guests: u64, env: &mut E) {
    for vm in g.vms.iter().filter(|vm| guests >> vm.index & 1 == 1) {
        send_all(g, vm, env);
    }
    if g.console.is_dirty() && g.console.print() == Left::More {
        env.attend_soon(None);
    }
}

/// The port wants attention: prints what it has room for, and takes in what was typed, as far as the guests have room for
/// that. Returns what a key asks for beyond that.
pub fn attend<E: Env>(g: &Gnomon, env: &mut E) -> Option<Command> {
    go_on(g, 0, env);
    while has_taker(g)
        && let Some(byte) = g.console.receive()
    {
        match g.console.key(byte) {
            Some(Command::Input(guest, byte)) => {
                let vm = Arc::clone(&g.vms[guest]);
                let mut devices = vm.devices.lock();
                devices.uart.receive(byte);
                lines::update_uart(g, &vm, devices, env);
            }
            Some(command) => return Some(command),
            None => {}
        }
    }
    None
}

/// Whether somebody has room for the next byte. If not, input stays in the port, which passes that on to whoever
/// sends.
fn has_taker(g: &Gnomon) -> bool {
    // Asked anew each time: somebody else may listen by now.
    let has_room = || g.console.listener().is_none_or(|guest| g.vms[guest].devices.lock().uart.has_room());
    if has_room() {
        return true;
    }
    // Whoever makes room, or ends, does so and then looks whether input is held.
    g.console.hold_input();
    let has_room = has_room();
    if has_room {
        g.console.release_input();
    }
    has_room
}

/// To be called after a guest's access to its UART: passes its line on, and there may be room for more input.
pub fn accessed<E: Env>(g: &Gnomon, vm: &Vm, devices: MutexGuard<'_, Devices>, env: &mut E) {
    let has_room = devices.uart.has_room();
    lines::update_uart(g, vm, devices, env);
    if has_room {
        g.console.release_input();
    }
}
