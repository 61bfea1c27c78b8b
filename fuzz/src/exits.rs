//! A vCPU's exits, one after another, with any registers: none panics, and user mode ends no VM.

use crate::fake::{World, printed, shadow_world, world};
use abi::bundle::{GUEST_RAM_BASE, MmuMode};
use abi::record::EndReason;
use arbitrary::{Arbitrary, Result, Unstructured};
use hypervisor::device::offer::GuestTimer;
use hypervisor::exit::vmspace;
use hypervisor::vm::Departure;
use hypervisor::vm::outcome::Outcome;
use rv::{Exit, Mode};

/// SBI extensions that Gnomon has, and legacy ones; see `hypervisor::exit::sbi`.
const EXTENSIONS: [u64; 19] = [
    0x10, 0x54494d45, 0x735049, 0x52464e43, 0x48534d, 0x53525354, 0x4442434e, 0x504d55, 0x53555350, 0, 1, 2, 3, 4, 5,
    8, 0x46574654, 0x535345, 0xa6e6f6d,
];
/// Exceptions that reach Gnomon from a guest, and interrupts.
const CAUSES: [u64; 21] = {
    const INTERRUPT: u64 = 1 << 63;
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 15, 18, 19, 20, 21, 22, 23, INTERRUPT | 1, INTERRUPT | 5, INTERRUPT | 9]
};
/// Addresses of interest: RAM, its ends, the UART, the PLIC; a root, and the handle of a space.
const PLACES: [u64; 8] = [
    GUEST_RAM_BASE,
    GUEST_RAM_BASE + crate::fake::MEMORY - 16,
    0x1000_0000,
    0x0c00_0000,
    0x0c20_0000,
    0,
    8 << 60 | GUEST_RAM_BASE >> 12,
    0x100,
];

fn address(u: &mut Unstructured<'_>) -> Result<u64> {
    match u.int_in_range(0..=3)? {
        0 => u64::arbitrary(u),
        1 => Ok(*u.choose(&PLACES)?),
        _ => Ok(u.choose(&PLACES)?.wrapping_add(u16::arbitrary(u)?.into())),
    }
}

/// Makes one exit. Returns whether the VM still runs.
fn step(w: &mut World, u: &mut Unstructured<'_>) -> Result<bool> {
    let registers = u.int_in_range(0..=8)?;
    for _ in 0..registers {
        let (at, value) = (u.int_in_range(1..=31)?, address(u)?);
        w.run.context.x[at as usize] = value;
    }
    w.hart.time += u64::from(u16::arbitrary(u)?);
    let is_call = u.arbitrary()? && !w.run.runs_program();
    if is_call {
        w.run.context.x[17] = if u.ratio(7, 8)? { *u.choose(&EXTENSIONS)? } else { u.arbitrary()? };
        w.run.context.x[16] = u.int_in_range(0..=25)?;
    }
    let is_kernels = is_call || !w.run.runs_program() && u.arbitrary()?;
    w.hart.mode = if is_kernels { Mode::Supervisor } else { Mode::User };
    let from = w.hart.mode;
    let exit = Exit {
        cause: if is_call { 10 } else { *u.choose(&CAUSES)? },
        tval: address(u)?,
        tval2: address(u)? >> 2,
        tinst: if u.arbitrary()? { u32::arbitrary(u)?.into() } else { 0 },
    };
    w.run.context.exit = exit;
    let outcome = if w.run.runs_program() {
        vmspace::handle(&w.g, &mut w.run, &mut w.hart)
    } else {
        hypervisor::exit::handle(&w.g, &mut w.run, &mut w.hart)
    };
    let outcome = vmspace::settle(&w.g, &mut w.run, &mut w.hart).unwrap_or(outcome);
    w.hart.events.clear();
    match outcome {
        Outcome::Depart(Departure::End(EndReason::Killed { message })) => {
            assert!(from != Mode::User, "user mode ended its VM: {message}; {exit:x?}");
            Ok(false)
        }
        Outcome::Depart(_) | Outcome::Stop => Ok(false),
        _ => Ok(true),
    }
}

/// Exits of a VM in one of the modes.
pub fn exits(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let mut w = match u.int_in_range(0..=3) {
        Ok(1) => shadow_world(MmuMode::Shadow, 2),
        Ok(2) => shadow_world(MmuMode::Unsync, 2),
        Ok(3) => shadow_world(MmuMode::Lazy, 2),
        _ => world(2, GuestTimer::Sstc),
    };
    while !u.is_empty() && step(&mut w, &mut u).unwrap_or(false) {}
    printed();
}
