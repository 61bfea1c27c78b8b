//! The amount of memory that a VM is to do without: a request from the console, carried out by its balloon.

use crate::backend::console::Step;
use crate::device::virtio::{Balloon, Mmio};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::outside::{Output, Reach};
use crate::vm::Vm;
use alloc::format;
use rv::PAGE_BYTES;

/// Moves the target of a VM's balloon by an eighth of its memory, and says so.
pub fn step<E: Env>(g: &Gnomon, vm: &Vm, step: Step, env: &mut E) {
    let name = &vm.config.name;
    let eighth = vm.config.memory_bytes / PAGE_BYTES / 8;
    let moved = vm.devices.with(&mut Reach::new(g, vm, env, Output::Leave), |balloon: &mut Mmio<Balloon>, _| {
        balloon.reconfigure(|balloon| {
            let (target, _) = balloon.target_and_actual();
            balloon.set_target(match step {
                Step::Less => target + eighth,
                Step::More => target.saturating_sub(eighth),
            });
        });
        balloon.backend().target_and_actual()
    });
    let Some((target, actual)) = moved else {
        let remedy = "set `balloon = true` in its VM file, or give --balloon on";
        return g.console.say(&format!("{name} has no balloon; {remedy}"));
    };
    let [target, actual, all] =
        [target * PAGE_BYTES, actual * PAGE_BYTES, vm.config.memory_bytes].map(|bytes| bytes >> 20);
    g.console.say(&format!("{name} is to do without {target} of its {all} MiB; {actual} MiB are in its balloon now"));
}
