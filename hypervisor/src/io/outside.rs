//! The outside of a VM's devices: guest memory ([`super::dma`]), interrupt lines, the console, and the hart's timer.

use crate::backend::console::Left;
use crate::device::{Board, Outside, Plic};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::lines;
use crate::sync::MutexGuard;
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

/// Prints output that is left.
pub(super) fn print_left<E: Env>(g: &Gnomon, env: &mut E) {
    if g.console.is_dirty() && g.console.print() == Left::More {
        env.attend_soon(None);
    }
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
        self.g.is_own(self.vm, self.env.hart())
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
