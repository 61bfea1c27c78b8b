//! Shuts a VM down, or lets it start over, by asking its guest.

use super::ControlError;
use super::client::Client;
use abi::control::{Answer, Power, Request, VmInfo, VmState};
use std::time::{Duration, Instant};

/// The time after which the guest is asked again: at first it may not have listened yet.
const AGAIN: Duration = Duration::from_secs(3);
/// The time after which a guest that did not listen is asked again.
const SOON: Duration = Duration::from_millis(500);
/// The time between two looks at the VM.
const LOOK: Duration = Duration::from_millis(100);

/// Asks the guest of a VM to shut down, or to reboot, and waits for that. Without a limit it is asked once, and not waited for. The wait
/// ends early if `is_cancelled` returns true.
///
/// # Errors
/// [`ControlError::Stays`] if nothing has happened when the time is over, [`ControlError::Cancelled`], or others.
pub fn ask(
    client: &mut Client,
    vm: &VmInfo,
    (wish, limit): (Power, Duration),
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), ControlError> {
    let start = Instant::now();
    let what = match wish {
        Power::Restart => format!("cannot reboot VM `{}`", vm.name),
        _ => format!("cannot shut down VM `{}`", vm.name),
    };
    // A reboot is compared with the life in which the guest was asked: an earlier reset is none.
    let mut life = vm.clone();
    let mut is_over = |client: &mut Client, has_asked| has_happened(client, &mut life, wish, has_asked);
    let verb = if wish == Power::Restart { "reboot" } else { "shutdown" };
    let mut has_asked = false;
    loop {
        if !has_asked && wish == Power::Restart {
            is_over(client, false)?;
        }
        let listens = match client.ask(&what, &Request::Power(vm.number, wish)) {
            Ok(Answer::Done) => true,
            Ok(Answer::Later) => false,
            Ok(_) => return Err(client.nonsense()),
            // Its end may come between two requests, and before the first one as well.
            Err(ControlError::Gone(_)) if has_asked => return Ok(()),
            Err(why) => return if has_asked && is_over(client, has_asked)? { Ok(()) } else { Err(why) },
        };
        has_asked |= listens;
        if listens && limit.is_zero() {
            return Ok(());
        }
        let again = Instant::now() + if listens { AGAIN } else { SOON };
        loop {
            if is_over(client, has_asked)? {
                return Ok(());
            }
            let is_given_up = is_cancelled();
            if is_given_up || start.elapsed() >= limit {
                if wish == Power::Restart {
                    client.tell(&what, &Request::Power(vm.number, Power::Stay))?;
                }
                if is_given_up {
                    return Err(ControlError::Cancelled(format!("{verb} of VM `{}`", vm.name)));
                }
                return Err(ControlError::Stays { vm: vm.name.clone(), wish, limit, has_asked });
            }
            if Instant::now() >= again {
                break;
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Returns whether the VM has ended, or the life after `life` has begun. Before a guest was asked to reboot, `life` becomes the present one.
/// If the run has ended, all its VMs have.
fn has_happened(client: &mut Client, life: &mut VmInfo, wish: Power, has_asked: bool) -> Result<bool, ControlError> {
    let vms = match client.vms() {
        Ok(vms) => vms.vms,
        Err(ControlError::Gone(_)) => return Ok(true),
        Err(why) => return Err(why),
    };
    Ok(match vms.into_iter().find(|other| other.number == life.number) {
        None => true,
        Some(now) if wish == Power::Restart && has_asked => {
            now.since != life.since || now.state == VmState::Starting && life.state != VmState::Starting
        }
        Some(now) if wish == Power::Restart => {
            *life = now;
            false
        }
        Some(now) => now.state == VmState::Ended,
    })
}
