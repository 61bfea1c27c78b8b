//! The debug console (SBI 2.0, chapter 12).

use super::encoding::{Answer, Args, unreached};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::io::serial;
use crate::memory::reach::by_page;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::VcpuRun;
use crate::vm::{Unreachable, Vm};
use mmu::gstage::Ready;
use rv::{Access, Addr, Gpa};
use sbi_spec::dbcn;

/// Bytes moved at a time, so that no guest can make Gnomon keep much of its memory, or of its time.
const CHUNK: usize = 256;

#[inline(never)]
pub(super) fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Answer {
    match function {
        dbcn::CONSOLE_WRITE => write(g, run, args, env),
        dbcn::CONSOLE_READ => read(g, run, args, env),
        dbcn::CONSOLE_WRITE_BYTE => match serial::print_in_order(g, &run.vm, &[args[0] as u8], env) {
            0 => Answer::Again,
            _ => Answer::Reply(Ok(0)),
        },
        _ => Answer::Reply(Err(Error::NotSupported)),
    }
}

/// Returns the range that a call names, in bytes: length, then the address in two halves.
fn range(run: &VcpuRun, args: Args) -> Result<(u64, u64), Error> {
    let [bytes, low, high, ..] = args;
    if bytes == 0 {
        return Ok((0, 0)); // wherever it is
    }
    if high != 0 || !run.vm.in_ram(low, bytes) {
        return Err(Error::InvalidParam);
    }
    Ok((low, bytes))
}

/// Writes to the console. A call may write less than it was asked to: the guest calls again (SBI 2.0, chapter 12.1).
/// But never nothing: there are guests that take this for the end (Linux's console for the SBI drops the rest).
fn write<E: Env>(g: &Gnomon, run: &mut VcpuRun, args: Args, env: &mut E) -> Answer {
    let (at, bytes) = match range(run, args) {
        Ok((_, 0)) => return Answer::Reply(Ok(0)),
        Ok(range) => range,
        Err(error) => return Answer::Reply(Err(error)),
    };
    let mut buffer = [0; CHUNK];
    let buffer = &mut buffer[..bytes.min(CHUNK as u64) as usize];
    if let Err(why) = run.vm.read(g, Addr::new(at), buffer, &mut run.ready, env) {
        return unreached(g, run, why, Error::InvalidParam);
    }
    match serial::print_in_order(g, &run.vm, buffer, env) {
        0 => Answer::Again,
        taken => Answer::Reply(Ok(taken as u64)),
    }
}

fn read<E: Env>(g: &Gnomon, run: &mut VcpuRun, args: Args, env: &mut E) -> Answer {
    let (at, bytes) = match range(run, args) {
        Ok((at, bytes)) => (Addr::new(at), bytes.min(CHUNK as u64) as usize),
        Err(error) => return Answer::Reply(Err(error)),
    };
    // What takes long, before a lock is held.
    if let Err(why) = run.vm.reach_all(g, (at, bytes, Access::Store), &mut run.ready, env) {
        return unreached(g, run, why, Error::InvalidParam);
    }
    match take_input(g, &run.vm, (at, bytes), env) {
        Ok(count) => Answer::Reply(Ok(count as u64)),
        Err(why) => unreached(g, run, why, Error::Failed),
    }
}

/// Copies received bytes to guest memory, and takes from the UART only those that arrived there (LOSSLESS): another
/// hart may have taken a page away meanwhile. Returns the number of those bytes.
fn take_input<E: Env>(g: &Gnomon, vm: &Vm, (at, bytes): (Addr<Gpa>, usize), env: &mut E) -> Result<usize, Unreachable> {
    let mut buffer = [0; CHUNK];
    let mut uart = vm.devices.uart.lock();
    let received = buffer[..bytes].iter_mut().zip(uart.received());
    let count = received.map(|(slot, byte)| *slot = byte).count();
    let (mut taken, mut result) = (0, Ok(()));
    for (at, part) in by_page(at, count) {
        let end = part.end;
        result = vm.write(g, at, &buffer[part], &mut Ready::Never, env);
        if result.is_err() {
            break;
        }
        taken = end;
    }
    uart.drop_received(taken);
    serial::input_taken(g, vm, uart, env);
    // What did not get there comes with the next call.
    if taken == 0 { result.map(|()| 0) } else { Ok(taken) }
}
