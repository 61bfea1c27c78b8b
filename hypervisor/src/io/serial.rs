//! The host's serial port: the guests' output, and their input.

use crate::backend::console::Command;
use crate::device::Uart;
use crate::device::devices::Seat;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::host_events::{deliver, give_moments};
use crate::io::outside::{Output, Reach, print, print_left};
use crate::sync::MutexGuard;
use crate::vm::Vm;
use core::sync::atomic::Ordering;

/// Prints bytes after the rest of the output of the guest's UART; prints nothing if that is not taken.
pub fn print_in_order<E: Env>(g: &Gnomon, vm: &Vm, bytes: &[u8], env: &mut E) -> usize {
    // Only the UART: another device may always have more to do.
    if vm.devices.is_asked(0) {
        give_moments(g, vm, env);
        deliver(g, env);
        if vm.devices.is_asked(0) {
            let _ = g.console.print();
            return 0;
        }
    }
    print(g, vm.slot(), bytes, env)
}

/// Ends the guest's output in this life: the bytes that its UART still has to send join the rest.
pub fn last_words(g: &Gnomon, vm: &Vm) {
    let mut uart = vm.devices.uart.lock();
    g.console.append(vm.slot(), uart.sending());
    let count = uart.sending().len();
    uart.sent(count);
}

/// Handles the port's interrupt: prints as much as it has room for, and takes in what was typed, as far as the guests
/// have room for that. Returns the command of a key, if there is one.
pub fn attend<E: Env>(g: &Gnomon, env: &mut E) -> Option<Command> {
    print_left(g, env);
    while has_taker(g)
        && let Some(byte) = g.console.receive()
    {
        match g.console.key(byte) {
            Some(Command::Input(guest, byte)) => {
                let Some(vm) = g.vms.get(guest) else { continue };
                vm.devices.uart.lock().receive(byte);
                pass_input(g, &vm, env);
            }
            Some(command) => return Some(command),
            None => {}
        }
    }
    None
}

/// Types bytes on a guest's console, as many as it has room for; returns the number. Other input comes in between.
pub fn type_in<E: Env>(g: &Gnomon, vm: &Vm, bytes: &[u8], env: &mut E) -> usize {
    let mut taken = 0;
    {
        let mut uart = vm.devices.uart.lock();
        while taken < bytes.len() && uart.has_room() {
            uart.receive(bytes[taken]);
            taken += 1;
        }
    }
    pass_input(g, vm, env);
    taken
}

/// Passes input on: it is in the UART, and a virtio console has it as soon as there is a buffer for it.
fn pass_input<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) {
    let board = &mut Reach::new(g, vm, env, Output::Leave);
    if !vm.is_frozen.load(Ordering::SeqCst) {
        vm.devices.pass_input(board);
    } else {
        // The memory of a frozen VM does not change: its devices have their moment when it is let go.
        _ = vm.devices.ask(0);
        vm.devices.pass_line(&mut vm.devices.uart.lock(), board);
    }
}

/// Returns whether there is room for the next byte. If not, input stays in the port, which passes that on to the
/// sender.
fn has_taker(g: &Gnomon) -> bool {
    // Asked anew each time: another VM may listen by now.
    let listener = || g.console.listener().and_then(|guest| g.vms.get(guest));
    let has_room = || listener().is_none_or(|vm| vm.devices.uart.lock().has_room());
    if has_room() {
        return true;
    }
    // A driver that makes room, or a VM that ends, does so before its hart checks whether input is held.
    g.console.hold_input();
    let has_room = has_room();
    if has_room {
        g.console.release_input();
    }
    has_room
}

/// Passes the UART's line on after input was taken from it; there may be room for more.
pub fn input_taken<E: Env>(g: &Gnomon, vm: &Vm, mut uart: MutexGuard<'_, Seat<Uart>>, env: &mut E) {
    let has_room = uart.has_room();
    vm.devices.pass_line(&mut uart, &mut Reach::new(g, vm, env, Output::Leave));
    drop(uart);
    if has_room {
        g.console.release_input();
    }
}
