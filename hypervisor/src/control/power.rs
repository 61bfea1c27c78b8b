//! A user's wish that a guest shuts down or reboots, or that its VM is reset.
//!
//! The guest is asked by a device to which it listens: its power key, if a driver has set that up, or else the UART, whose carrier goes
//! for a moment if the driver has enabled the interrupt for that. A reboot is a shutdown after which the VM starts over: so a guest needs
//! one way to listen.

use crate::device::virtio::{Mmio, PowerKey};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::outside::{Output, Reach};
use crate::life::lifecycle;
use crate::vm::{Departure, Phase, Vm};
use abi::control::{Answer, Power};
use alloc::string::String;
use alloc::sync::Arc;

/// Carries out the wish, or refuses it with the reason. A refusal for which it is too early says so by [`Answer::Later`].
pub(super) fn ask<E: Env>(g: &Gnomon, vm: &Arc<Vm>, wish: Power, env: &mut E) -> Answer {
    let refuse = |why: &str| Answer::Refused(String::from(why));
    if matches!(wish, Power::Restart | Power::Reset) && vm.config.restore.is_some() {
        return refuse("it was restored from a snapshot, so it has no kernel to start over with");
    }
    let starts_over = wish == Power::Restart;
    match wish {
        Power::Stay => {
            g.vms.tenant(vm, |tenant| tenant.starts_over = false);
            return Answer::Done;
        }
        Power::Reset => {
            lifecycle::depart(g, vm, Departure::Reboot, env);
            return Answer::Done;
        }
        Power::Off | Power::Restart => {}
    }
    match *vm.phase.lock() {
        Phase::Running => {}
        // It is ending, or will be asked once it has started.
        Phase::Leaving(Departure::End(_)) | Phase::Ended => return Answer::Done,
        Phase::Created | Phase::Leaving(Departure::Reboot) => return Answer::Later,
    }
    let is_paused = g.vms.tenant(vm, |tenant| {
        tenant.starts_over = starts_over && tenant.paused.is_none();
        tenant.paused.is_some()
    });
    if is_paused == Some(true) {
        return refuse("it is paused; gnomon resume lets it run, gnomon destroy ends it");
    }
    let board = &mut Reach::new(g, vm, env, Output::Leave);
    let has_key = vm.devices.with(board, |key: &mut Mmio<PowerKey>, board| key.press(board));
    let is_asked = has_key == Some(true) || {
        let mut uart = vm.devices.uart.lock();
        let listens = uart.hang_up();
        vm.devices.pass_line(&mut uart, board);
        listens
    };
    if is_asked { Answer::Done } else { Answer::Later }
}
