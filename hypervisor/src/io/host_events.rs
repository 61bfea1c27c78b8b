//! Events of the host's devices: each goes to the device of the VM that it is for. And the devices that asked for a moment.

use crate::backend::disks::Port;
use crate::backend::{User, shares};
use crate::device::virtio::wire::net::RECEIVE;
use crate::device::virtio::{Mmio, Net};
use crate::device::{Board, Outside};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::outside::{Output, Reach, print_left};
use crate::sync::Mutex;
use crate::vm::Vm;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// Handles a disk's interrupt: its guest goes on with the finished requests.
pub fn attend_disk<E: Env>(g: &Gnomon, port: &Mutex<Port>, env: &mut E) {
    let (user, is_now) = {
        let mut port = port.lock();
        (port.user(), port.attend())
    };
    if is_now {
        resume(g, user, env);
    } else if let Some((user, vm)) = user.and_then(|user| Some((user, g.vms.get(user.vm)?))) {
        Reach { device: user.device, ..Reach::new(g, &vm, env, Output::Leave) }.soon();
    }
}

/// Handles the interrupt of a share's device: its guest goes on with the answers.
pub fn attend_share<E: Env>(g: &Gnomon, port: &Mutex<shares::Port>, env: &mut E) {
    let user = {
        let mut port = port.lock();
        port.attend();
        port.user()
    };
    resume(g, user, env);
}

/// Handles the interrupt of the host's entropy device: the guest whose bytes have come goes on.
pub fn attend_entropy<E: Env>(g: &Gnomon, env: &mut E) {
    let user = g.offer.entropy.as_ref().and_then(|source| source.lock().attend());
    resume(g, user, env);
}

/// Continues a VM's device with the finished work of a host's device, if the VM still exists.
fn resume<E: Env>(g: &Gnomon, user: Option<User>, env: &mut E) {
    if let Some((user, vm)) = user.and_then(|user| Some((user, g.vms.get(user.vm)?))) {
        vm.devices.ask(user.device);
        give_moments(g, &vm, env);
        deliver(g, env);
    }
}

/// Handles the interrupt of the host's network device.
pub fn attend_network<E: Env>(g: &Gnomon, env: &mut E) {
    g.offer.network.acknowledge();
    deliver_some(g, Reason::Waiting, env);
}

/// Serves the cards that frames wait for, and the frames that have come from the world: a portion, and the rest a
/// moment later. To be called when a device may have sent something, with no lock held.
#[inline]
pub fn deliver<E: Env>(g: &Gnomon, env: &mut E) {
    if g.offer.network.has_work() {
        deliver_some(g, Reason::Sent, env);
    }
}

/// The reason for a delivery.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// A VM's device may have sent something: the delivery is part of the work for that VM.
    Sent,
    /// Frames wait. While the hart has a guest, those for other VMs are within its budget.
    Waiting,
}

#[cold]
#[inline(never)]
fn deliver_some<E: Env>(g: &Gnomon, reason: Reason, env: &mut E) {
    /// Frames in a portion.
    const MOST: usize = 8;
    let (network, hart, begun) = (&g.offer.network, env.hart(), env.now());
    let may_do_others = |env: &E| env.others_from() <= env.now();
    // The world's frames do not say which VM they are for before they are taken in.
    let are_own = || network.users().into_iter().filter_map(|user| g.vms.get(user)).all(|vm| g.is_own(&vm, hart));
    let takes_in = may_do_others(env) || are_own();
    if takes_in {
        network.take_in(begun);
    }
    let (mut done, mut foreign, mut postponed) = (0, 0, Vec::new());
    while done < MOST
        && let Some((user, frames)) = network.next_due()
    {
        match g.vms.get(user) {
            Some(vm) => {
                if reason == Reason::Waiting && !g.is_own(&vm, hart) {
                    if !may_do_others(env) {
                        postponed.push(user);
                        continue;
                    }
                    foreign += frames;
                }
                let receive = |net: &mut Mmio<Net>, board: &mut dyn Board| {
                    // The memory of a frozen VM does not change: frames wait, and are lost if that takes long.
                    if !vm.is_frozen.load(Ordering::SeqCst) {
                        // The VM's own hart serves what it sends.
                        net.moment_of(RECEIVE, board);
                    }
                };
                vm.devices.with(&mut Reach::new(g, &vm, env, Output::Leave), receive);
            }
            None => network.forget(user),
        }
        done += frames;
    }
    if foreign != 0 {
        env.charge_others((env.now() - begun) * foreign as u64 / done as u64);
    }
    let is_done = !network.has_work();
    postponed.iter().for_each(|user| network.postpone(*user));
    // Any guest will do: the hart that serves one delivers these.
    if !is_done && takes_in {
        env.attend_soon(Some(network.any_user()));
    } else if !is_done || !postponed.is_empty() {
        env.attend_at(env.others_from(), network.any_user());
    }
}

/// Gives a moment to those devices of a guest that are to get one: what the UART has to send is left with the console.
pub(super) fn give_moments<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) {
    // While a VM is frozen its devices stand still; when it is let go they have their moment.
    vm.devices.moments(|| !vm.is_frozen.load(Ordering::SeqCst), &mut Reach::new(g, vm, env, Output::Leave));
}

/// Continues with output that is left, with frames that wait, and with the devices of `guests` (by bit), which this
/// hart was to serve.
pub fn go_on<E: Env>(g: &Gnomon, guests: u64, env: &mut E) {
    /// Guests that are looked after at once.
    const AT_ONCE: u32 = 2;
    // None of them is always the first.
    let first = (env.now() % u64::from(u64::BITS)) as u32;
    let mut left = guests.rotate_right(first);
    let mut next = || {
        let at = left.trailing_zeros();
        left &= left.wrapping_sub(1);
        (at < u64::BITS).then_some((at + first) as usize % u64::BITS as usize)
    };
    for _ in 0..AT_ONCE {
        // The slot's VM may be gone. A moment does no harm to the VM that has the slot now.
        if let Some(vm) = next().and_then(|slot| g.vms.at(slot)) {
            give_moments(g, &vm, env);
        }
    }
    while let Some(slot) = next() {
        env.attend_soon(Some(slot));
    }
    if guests != 0 && g.offer.network.has_work() {
        deliver_some(g, Reason::Waiting, env);
    }
    print_left(g, env);
}
