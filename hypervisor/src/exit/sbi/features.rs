//! FWFT (SBI 3.0, chapter 18): the features that a kernel may change, of the hart that it calls from.
//!
//! Of the features that are defined a guest has one: the delegation of exceptions of misaligned accesses. In the firmware seat,
//! on harts that trap them, Gnomon emulates loads and stores until the guest asks for their exceptions. On harts that access
//! misaligned memory themselves (Zicclsm) what is trapped cannot be emulated (AMOs, LR, SC), so it comes to the guest in both
//! settings, as with OpenSBI; the setting is kept and told. In the payload seat on harts without Zicclsm the firmware emulates, which a
//! guest's setting would not change, so there it is not offered. The others need extensions that guests have not. Whether hardware sets A and D is said by the VM's configuration, for all its harts.

use super::encoding::{Args, Reply};
use crate::gnomon::Gnomon;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::VcpuRun;
use sbi_spec::fwft::{self, feature_type};

/// SET's flag: the value stays until the hart starts anew.
const LOCK: u64 = fwft::flags::SetFlags::LOCK.bits() as u64;

/// Handles a call; `None` if there is no such function.
pub(super) fn call(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args) -> Option<Reply> {
    let [feature, value, flags, ..] = args;
    match function {
        fwft::SET => Some(offered(g, feature).and_then(|()| set(run, value, flags))),
        fwft::GET => Some(offered(g, feature).map(|()| run.features.delegates_misaligned.into())),
        _ => None,
    }
}

/// Checks that a feature is offered. Only misaligned exceptions are.
fn offered(g: &Gnomon, feature: u64) -> Result<(), Error> {
    // Features are 32 bits wide.
    match feature as u32 as usize {
        feature_type::MISALIGNED_EXC_DELEG if g.offer.isa.has("zicclsm") || g.offer.emulates_misaligned => Ok(()),
        feature_type::MISALIGNED_EXC_DELEG..=feature_type::POINTER_MASKING_PMLEN => Err(Error::NotSupported),
        _ => Err(Error::Denied),
    }
}

fn set(run: &mut VcpuRun, value: u64, flags: u64) -> Reply {
    if flags & !LOCK != 0 {
        return Err(Error::InvalidParam);
    }
    if run.features.is_locked {
        return Err(Error::DeniedLocked);
    }
    run.features.delegates_misaligned = match value {
        0 => false,
        1 => true,
        _ => return Err(Error::InvalidParam),
    };
    run.features.is_locked = flags & LOCK != 0;
    Ok(0)
}
