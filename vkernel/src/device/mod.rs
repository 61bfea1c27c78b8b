//! Devices of the VM's.
//!
//! The boot hart gets their interrupts. Each device may be serviced by any hart, under its lock.

#[cfg(feature = "machine")]
mod net;
#[cfg(feature = "machine")]
mod plic;
#[cfg(feature = "machine")]
mod port;
#[cfg(feature = "machine")]
mod share;
#[cfg(feature = "machine")]
mod uart;
#[cfg(feature = "machine")]
mod virtio;

use crate::{link, machine, terminal};

/// The registers of the interrupt controller and the devices: physical addresses, and sources.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Board {
    /// The PLIC.
    pub plic: Option<u64>,
    /// The console's UART.
    pub uart: Option<(u64, u32)>,
    /// Places of virtio devices.
    pub virtio: alloc::vec::Vec<(u64, u32)>,
}

/// Looks for the devices that the kernel uses, and lets them work.
#[cfg(feature = "machine")]
pub fn start(board: &Board, boot_hart: u64) {
    plic::start(board.plic, boot_hart);
    if let Some((at, source)) = board.uart {
        uart::start(at);
        plic::enable(source);
    }
    let settings = crate::net::Settings::parse(crate::boot::command_line());
    for (at, source) in &board.virtio {
        if port::start(*at) || share::start(*at) || net::start(*at, settings) {
            plic::enable(*source);
        }
    }
}

/// Handles interrupts of devices, and looks for input that comes without one.
pub fn poll() {
    interrupts();
    if link::is_used() || interrupts_for_input() {
        return;
    }
    let mut bytes = [0; 64];
    while terminal::has_room() {
        let count = machine::read_input(&mut bytes);
        if count == 0 {
            return;
        }
        terminal::input(&bytes[..count]);
    }
}

#[cfg(feature = "machine")]
fn interrupts() {
    // The boot hart alone has them enabled.
    while machine::is_external_pending() {
        plic::claim_all();
    }
}

/// Returns whether a device interrupts when there is input.
#[cfg(feature = "machine")]
fn interrupts_for_input() -> bool {
    uart::is_used()
}

/// Lets input come that was held up, if the terminal has room again.
#[cfg(feature = "machine")]
pub fn go_on() {
    uart::go_on();
}

/// There is no input.
#[cfg(not(feature = "machine"))]
pub fn go_on() {}

/// Moves what the host has sent, and what is to be sent to it.
#[cfg(feature = "machine")]
pub fn service() {
    port::service();
}

/// Moves messages to the servers of shares, and their answers.
#[cfg(feature = "machine")]
pub fn service_shares() {
    share::service();
}

/// There are no devices.
#[cfg(not(feature = "machine"))]
pub fn service_shares() {}

#[cfg(not(feature = "machine"))]
fn interrupts() {}

#[cfg(not(feature = "machine"))]
fn interrupts_for_input() -> bool {
    false
}

/// There are no devices.
#[cfg(not(feature = "machine"))]
pub fn service() {}

/// Tells the host how the first program has ended, and waits until it has heard.
#[cfg(feature = "machine")]
pub fn finish(status: u8) {
    use crate::task::timers;
    const PATIENCE: u64 = 10 * timers::SECOND;
    if !link::is_used() {
        return;
    }
    link::exited(status);
    let until = timers::now() + PATIENCE;
    while !link::is_over() && timers::now() < until {
        port::service();
    }
}
