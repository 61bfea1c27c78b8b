//! The debug console (SBI 2.0, chapter 12).

use super::{Args, Error, Reply};
use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::vcpu::VcpuRun;
use rv::Addr;
use sbi_spec::dbcn;

/// Bytes moved at a time, so that no guest can make Gnomon keep much of its memory, or of its time.
const CHUNK: usize = 256;

pub(super) fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Reply {
    match function {
        dbcn::CONSOLE_WRITE => write(g, run, args, env),
        dbcn::CONSOLE_READ => read(g, run, args, env),
        dbcn::CONSOLE_WRITE_BYTE => {
            g.console.lock().guest_output(run.vm.index, args[0] as u8);
            Ok(0)
        }
        _ => Err(Error::NotSupported),
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

fn write<E: Env>(g: &Gnomon, run: &VcpuRun, args: Args, env: &mut E) -> Reply {
    let (at, bytes) = range(run, args)?;
    // A call may write less than it was asked to; the guest calls again (non-blocking by the spec).
    let count = bytes.min(CHUNK as u64) as usize;
    let mut buffer = [0; CHUNK];
    let buffer = &mut buffer[..count];
    run.vm.read(g, Addr::new(at), buffer, env).map_err(|_| Error::InvalidParam)?;
    let mut console = g.console.lock();
    buffer.iter().for_each(|byte| console.guest_output(run.vm.index, *byte));
    Ok(count as u64)
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
        crate::exit::update_uart_line(g, &run.vm, devices, env);
    }
    run.vm.write(g, Addr::new(at), &buffer[..count], env).map_err(|_| Error::InvalidParam)?;
    Ok(count as u64)
}
