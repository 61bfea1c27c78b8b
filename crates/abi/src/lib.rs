//! Formats that cross a boundary: the bundle of VM images, from the command to the hypervisor; the hypervisor's records
//! for programs; the messages of the control channel; snapshots of VMs; the page of the root cache, between a guest's
//! kernel and the hypervisor; the address-space calls; the packets of shares; the credits of the network; the messages of a
//! guest's agent; and the reports of test guests.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod agent;
pub mod bundle;
pub mod control;
pub mod credit;
pub mod exec;
pub mod mac;
pub mod record;
pub mod report;
pub mod root_cache;
pub mod share;
pub mod snapshot;
pub mod tunable;
pub mod vmspace;

use alloc::format;
use alloc::string::String;

/// The serial of the block device that Gnomon pages to.
pub const SWAP_SERIAL: &str = "gnomon-swap";

/// The serials of those that guests have begin with this.
const DISK_SERIAL: &str = "gnomon-disk-";

/// The serial of the block device that guests' disk of that number is: [`bundle::VmConfig::disks`].
#[must_use]
pub fn disk_serial(number: u32) -> String {
    format!("{DISK_SERIAL}{number}")
}

/// The number of the guests' disk that has this serial, if it is one.
#[must_use]
pub fn disk_of_serial(serial: &str) -> Option<u32> {
    number_in(serial, DISK_SERIAL, disk_serial)
}

/// The number in a name that `name_of` gives it, by `prefix`; `None` if it is no such name.
fn number_in(name: &str, prefix: &str, name_of: fn(u32) -> String) -> Option<u32> {
    let number = name.strip_prefix(prefix)?.parse().ok()?;
    (name_of(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_name_disks() {
        assert_eq!(disk_of_serial(&disk_serial(12)), Some(12));
        for other in [SWAP_SERIAL, "gnomon-disk-", "gnomon-disk-x", "gnomon-disk-+1", "gnomon-disk-01", "1"] {
            assert_eq!(disk_of_serial(other), None, "{other}");
        }
    }
}
