//! The debug console (SBI 2.0, chapter 12).

use super::encoding::{Answer, Args, Reply};
use super::error::Error;
use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::serial;
use crate::vcpu::VcpuRun;
use rv::Addr;
use sbi_spec::dbcn;

/// Bytes moved at a time, so that no guest can make Gnomon keep much of its memory, or of its time.
const CHUNK: usize = 256;

pub(super) fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Answer {
    match function {
        dbcn::CONSOLE_WRITE => write(g, run, args, env),
        dbcn::CONSOLE_READ => Answer::Reply(read(g, run, args, env)),
        dbcn::CONSOLE_WRITE_BYTE => match serial::print_in_order(g, &run.vm, &[args[0] as u8], env) {
            0 => Answer::Again,
            _ => Answer::Reply(Ok(0)),
        },
        _ => Answer::Reply(Err(Error::NotSupported)),
    }
}

/// The range that a call names, in bytes: length, then the address in two halves.
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

/// A call may write less than it was asked to: the guest calls again (SBI 2.0, chapter 12.1). But never nothing: there are
/// guests that take this for the end (Linux's console for the SBI drops the rest).
fn write<E: Env>(g: &Gnomon, run: &VcpuRun, args: Args, env: &mut E) -> Answer {
    let mut buffer = [0; CHUNK];
    let read = range(run, args).and_then(|(at, bytes)| {
        let buffer = &mut buffer[..bytes.min(CHUNK as u64) as usize];
        run.vm.read(g, Addr::new(at), buffer, env).map_err(|_| Error::InvalidParam)?;
        Ok(buffer.len())
    });
    match read {
        Err(error) => Answer::Reply(Err(error)),
        Ok(0) => Answer::Reply(Ok(0)),
        Ok(count) => match serial::print_in_order(g, &run.vm, &buffer[..count], env) {
            0 => Answer::Again,
            taken => Answer::Reply(Ok(taken as u64)),
        },
    }
}

fn read<E: Env>(g: &Gnomon, run: &VcpuRun, args: Args, env: &mut E) -> Reply {
    let (at, bytes) = range(run, args)?;
    let mut buffer = [0; CHUNK];
    let mut count = 0;
    {
        let mut devices = run.vm.devices.lock();
        while count < bytes.min(CHUNK as u64) as usize {
            let Some(byte) = devices.uart.take_received() else { break };
            buffer[count] = byte;
            count += 1;
        }
        serial::input_taken(g, &run.vm, devices, env);
    }
    run.vm.write(g, Addr::new(at), &buffer[..count], env).map_err(|_| Error::InvalidParam)?;
    Ok(count as u64)
}
