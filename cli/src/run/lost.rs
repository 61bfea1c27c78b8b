//! Processes that serve guests, in words: their end before the machine's, and their work without a sandbox.

use super::prepare::Prepared;
use crate::machine::qemu::MachineSpec;
use crate::machine::servers::LostShare;

/// The message about a share whose server has ended, and its remedy.
pub(super) fn lines(prepared: &Prepared, lost: &LostShare) -> [String; 2] {
    let (share, vm) = (&prepared.machine.shares[lost.number], &prepared.share_owners[lost.number]);
    [
        format!(
            "gnomon: warning: VM {vm}: the server of its share {} ({}) has ended: {}; the guest gets I/O errors there, and nothing \
             else is affected",
            share.name, share.dir, lost.reason
        ),
        format!(
            "gnomon: remedy: save the guest's work elsewhere, unmount /mnt/{}, and start the run again to have it back",
            share.name
        ),
    ]
}

/// The warning about a run whose servers do not confine themselves.
pub(super) fn unconfined(machine: &MachineSpec) -> Vec<String> {
    if machine.sandbox || machine.shares.is_empty() {
        return Vec::new();
    }
    let dirs: Vec<_> = machine.shares.iter().map(|share| share.dir.as_str()).collect();
    vec![format!(
        "gnomon: WARNING: --no-sandbox: the servers of the shares ({}) may open all that you may. A guest that finds a fault in them has \
         your rights",
        dirs.join(", ")
    )]
}
