//! A VM's memory, in as many portions as it takes.

use super::Hart;
use hypervisor::gnomon::Gnomon;
use hypervisor::vm::{Unreachable, Vm};
use mmu::gstage::Ready;
use rv::{Addr, Gpa};

/// Writes to a VM's memory, in as many portions as it takes.
pub fn write(g: &Gnomon, vm: &Vm, gpa: Addr<Gpa>, from: &[u8], hart: &mut Hart) -> Result<(), Unreachable> {
    whole(|ready| vm.write(g, gpa, from, ready, hart))
}

/// Reads a VM's memory, likewise.
pub fn read(g: &Gnomon, vm: &Vm, gpa: Addr<Gpa>, into: &mut [u8], hart: &mut Hart) -> Result<(), Unreachable> {
    whole(|ready| vm.read(g, gpa, into, ready, hart))
}

fn whole(mut portion: impl FnMut(&mut Ready) -> Result<(), Unreachable>) -> Result<(), Unreachable> {
    let mut ready = Ready::Nothing;
    loop {
        match portion(&mut ready) {
            Err(Unreachable::Later) => {}
            done => break done,
        }
    }
}
