//! The host's serial port and the guests: their output, and their input.

use crate::backend::console::{Command, Left};
use crate::backend::disks::Port;
use crate::backend::{User, shares};
use crate::device::Outside;
use crate::device::devices::Seat;
use crate::device::virtio::wire::net::RECEIVE;
use crate::device::virtio::{Mmio, Net};
use crate::device::{Board, Plic, Uart};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::lines;
use crate::sync::{Mutex, MutexGuard};
use crate::vm::Vm;
use core::sync::atomic::Ordering;

/// Prints output of a guest; returns how many bytes were taken. The others are to be offered again.
pub fn print<E: Env>(g: &Gnomon, guest: usize, bytes: &[u8], env: &mut E) -> usize {
    let (taken, left) = g.console.write(guest, bytes);
    if left == Left::More {
        env.attend_soon(None);
    }
    taken
}

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
    deliver(g, env);
}

/// Serves the cards that frames wait for, and the frames that have come from the world: a portion, and the rest a
/// moment later. To be called when a device may have sent something, with no lock held.
#[inline]
pub fn deliver<E: Env>(g: &Gnomon, env: &mut E) {
    if g.offer.network.has_work() {
        deliver_some(g, env);
    }
}

#[cold]
#[inline(never)]
fn deliver_some<E: Env>(g: &Gnomon, env: &mut E) {
    /// Frames in a portion.
    const MOST: usize = 8;
    let network = &g.offer.network;
    network.take_in(env.now());
    let mut done = 0;
    while done < MOST
        && let Some((user, frames)) = network.next_due()
    {
        match g.vms.get(user) {
            Some(vm) => {
                let receive = |net: &mut Mmio<Net>, board: &mut dyn Board| {
                    // Of one that is frozen nobody changes memory: what comes waits, and is lost if that takes long.
                    if !vm.is_frozen.load(Ordering::SeqCst) {
                        // What it sends is its own hart's to do.
                        net.moment_of(RECEIVE, board);
                    }
                };
                vm.devices.with(&mut Reach::new(g, &vm, env, Output::Leave), receive);
            }
            None => network.forget(user),
        }
        done += frames;
    }
    if network.has_work() {
        // Any guest will do: whoever looks after one looks after these.
        env.attend_soon(Some(network.any_user()));
    }
}

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

/// Gives a moment to those devices of a guest that are to get one: what the UART has to send is left with the console.
fn give_moments<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) {
    // While a VM is frozen its devices stand still; when it is let go they have their moment.
    vm.devices.moments(|| !vm.is_frozen.load(Ordering::SeqCst), &mut Reach::new(g, vm, env, Output::Leave));
}

/// The access of a guest's devices to the outside, from this hart.
pub struct Reach<'a, E> {
    /// All.
    pub g: &'a Gnomon,
    /// The guest.
    pub vm: &'a Vm,
    /// The hart.
    pub env: &'a mut E,
    /// The handling of output.
    pub output: Output,
    /// The number of the device whose outside it is.
    pub device: usize,
    /// The vCPU whose access it is, if it is one's.
    pub vcpu: Option<u32>,
}

impl<'a, E> Reach<'a, E> {
    /// Makes the outside of the UART, for what is no vCPU's access.
    pub const fn new(g: &'a Gnomon, vm: &'a Vm, env: &'a mut E, output: Output) -> Self {
        Self { g, vm, env, output, device: 0, vcpu: None }
    }
}

impl<E: Env> Board for Reach<'_, E> {
    fn serve(&mut self, device: usize) {
        self.device = device;
    }

    fn update(&mut self, plic: MutexGuard<'_, Plic>) {
        lines::update(self.g, self.vm, plic, self.env);
    }

    fn hold(&mut self) {
        self.vcpu.into_iter().for_each(|vcpu| self.vm.hold(vcpu));
    }
}

/// The handling of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// The output is printed, together with output that was left.
    Print,
    /// The output is left for the next hart that prints.
    Leave,
}

impl<E: Env> Outside for Reach<'_, E> {
    fn now(&self) -> u64 {
        self.env.now()
    }

    fn print(&mut self, bytes: &[u8]) -> usize {
        match self.output {
            Output::Print => print(self.g, self.vm.slot(), bytes, self.env),
            Output::Leave => self.g.console.leave(self.vm.slot(), bytes),
        }
    }

    fn take_input(&mut self) {
        self.g.console.release_input();
    }

    fn soon(&mut self) {
        if self.vm.devices.ask(self.device) {
            self.env.attend_soon(Some(self.vm.slot()));
        }
    }

    fn is_own(&self) -> bool {
        let hart = self.env.hart();
        !self.g.harts[hart].has_guest.load(Ordering::Relaxed)
            || self.vm.vcpus.iter().any(|vcpu| vcpu.hart.load(Ordering::SeqCst) == hart)
    }

    fn at(&mut self, time: u64) {
        self.vm.devices.ask_later(self.device);
        self.env.attend_at(time, self.vm.slot());
    }

    fn wake(&mut self) {
        if self.vm.held.load(Ordering::SeqCst) == 0 {
            return;
        }
        if !self.g.console.has_room(self.vm.slot()) {
            self.soon();
        } else {
            self.g.release_held(self.vm, self.env);
        }
    }
}

/// Ends the guest's output in this life: the bytes that its UART still has to send join the rest.
pub fn last_words(g: &Gnomon, vm: &Vm) {
    let mut uart = vm.devices.uart.lock();
    g.console.append(vm.slot(), uart.sending());
    let count = uart.sending().len();
    uart.sent(count);
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
        // Whoever had the slot may be gone. To whoever has it now, it does no harm.
        if let Some(vm) = next().and_then(|slot| g.vms.at(slot)) {
            give_moments(g, &vm, env);
        }
    }
    while let Some(slot) = next() {
        env.attend_soon(Some(slot));
    }
    if guests != 0 {
        deliver(g, env);
    }
    print_left(g, env);
}

/// Prints output that is left.
fn print_left<E: Env>(g: &Gnomon, env: &mut E) {
    if g.console.is_dirty() && g.console.print() == Left::More {
        env.attend_soon(None);
    }
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
    // Asked anew each time: somebody else may listen by now.
    let listener = || g.console.listener().and_then(|guest| g.vms.get(guest));
    let has_room = || listener().is_none_or(|vm| vm.devices.uart.lock().has_room());
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

/// Passes the UART's line on after input was taken from it; there may be room for more.
pub fn input_taken<E: Env>(g: &Gnomon, vm: &Vm, mut uart: MutexGuard<'_, Seat<Uart>>, env: &mut E) {
    let has_room = uart.has_room();
    vm.devices.pass_line(&mut uart, &mut Reach::new(g, vm, env, Output::Leave));
    drop(uart);
    if has_room {
        g.console.release_input();
    }
}
