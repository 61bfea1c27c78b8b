//! Copies between the user memory of a space and the kernel's RAM.

use super::refusal::{error, refuse};
use crate::exit::sbi::encoding::{Answer, unreached};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::own_tables;
use crate::vm::outcome::Outcome;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::VcpuRun;
use abi::vmspace::MOST_BYTES;
use alloc::sync::Arc;
use rv::{Access, Addr, Caps, PAGE_BYTES, Request};

/// Bytes that are copied at a time.
const PART: u64 = 256;
/// The tables are as any machine of Gnomon's has them.
const CAPS: Caps = Caps { svnapot: true, svpbmt: false };
/// Handles READ (`access` is a load of the space's) or WRITE (a store): `length` bytes between `va` of the space and `gpa`.
pub(super) fn copy<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (handle, access): (u64, Access),
    (va, gpa, length): (u64, u64, u64),
    env: &mut E,
) -> Answer {
    if length > MOST_BYTES {
        return refuse(Error::InvalidParam);
    }
    if length != 0 && !run.vm.in_ram(gpa, length) {
        return refuse(Error::InvalidAddress);
    }
    let root = {
        let mut all = run.vm.tlb.spaces.lock();
        all.counts.copy += 1;
        match all.root(handle) {
            Ok((_, root)) => root,
            Err(why) => return refuse(error(why)),
        }
    };
    let (vm, mut done) = (Arc::clone(&run.vm), 0);
    while done < length {
        let (at, own) = (va.wrapping_add(done), Addr::new(gpa + done));
        let what = (root, Addr::new(at), Request::user(access));
        let there = match own_tables::place(g, run, what, CAPS, env) {
            Ok(there) => there.filter(|there| vm.in_ram(there.raw(), 1)),
            Err(why) => return unreached(g, run, why, Error::Failed),
        };
        let Some(there) = there else {
            (run.context.x[10], run.context.x[11]) = (Error::Denied as i64 as u64, done);
            return Answer::Outcome(Outcome::Resume);
        };
        let part = (length - done).min(PART).min(PAGE_BYTES - at % PAGE_BYTES);
        let (from, to) = if access == Access::Load { (there, own) } else { (own, there) };
        let mut bytes = [0; PART as usize];
        let bytes = &mut bytes[..part as usize];
        let copied = vm.read(g, from, bytes, &mut run.ready, env);
        if let Err(why) = copied.and_then(|()| vm.write(g, to, bytes, &mut run.ready, env)) {
            return unreached(g, run, why, Error::Failed);
        }
        done += part;
    }
    Answer::Reply(Ok(done))
}
