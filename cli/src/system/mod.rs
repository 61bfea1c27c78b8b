//! Debian systems that VMs have as their roots: an image that is made once, and a disk of each VM's that begins as its copy.

mod archives;
mod disks;
pub mod errand;
mod image;
mod make;

use crate::run::RunSpec;
use crate::vm::root::Roots;
use crate::vm::spec::{self, VmSpec};
use std::fs::File;
use std::time::{SystemTime, UNIX_EPOCH};

/// What has been provided for a run, and is to be kept until its end.
#[derive(Debug, Default)]
pub struct Provided {
    /// For [`RunSpec::roots`].
    pub roots: Roots,
    /// What the user is told, in a line each.
    pub notes: Vec<String>,
    /// Keep other runs from the disks.
    locks: Vec<File>,
}

/// Provides the roots of all VMs that have one. Without such a VM it does nothing.
///
/// # Errors
/// Whatever stands in the way, with a remedy. What is wrong with the VMs comes first: making an image takes minutes.
pub fn provide(spec: &RunSpec) -> miette::Result<Provided> {
    if spec.files.iter().chain([&spec.options]).all(|file| file.root.is_none()) {
        return Ok(Provided::default());
    }
    let mut vms = VmSpec::settle(spec.files.clone(), &spec.options, spec.exec.is_some())?;
    crate::machine::net::forward(&mut vms, &spec.forwards)?;
    spec::check_machine(&vms, spec.seat, spec.h)?;
    let keys = disks::keys()?;
    let mut provided = Provided::default();
    for vm in &vms {
        let disk = vm.root.as_ref().map(|root| disks::provide(vm, root, spec.snapshot)).transpose()?;
        if let Some(disk) = &disk {
            provided.notes.push(disk.note.clone());
            provided.notes.extend(keys.login(vm));
        }
        let (disk, lock) = disk.map(|disk| (disk.spec, disk.lock)).unzip();
        provided.roots.disks.push(disk);
        provided.locks.extend(lock);
    }
    provided.roots.keys = keys.lines;
    provided.roots.now = now();
    Ok(provided)
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// An address, or several, as a guest has to say them: this host has another one there.
fn seen_by_guest(text: &str) -> String {
    let host = crate::machine::net::gateway().to_string();
    ["localhost", "127.0.0.1", "[::1]"].iter().fold(text.to_owned(), |text, own| {
        text.replace(&format!("://{own}:"), &format!("://{host}:"))
            .replace(&format!("://{own}/"), &format!("://{host}/"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_the_gateway() {
        assert_eq!(seen_by_guest("http://localhost:3142/debian"), "http://10.0.2.2:3142/debian");
        assert_eq!(seen_by_guest("http://127.0.0.1/a, http://[::1]:8/"), "http://10.0.2.2/a, http://10.0.2.2:8/");
        assert_eq!(seen_by_guest("http://localhost.example/debian"), "http://localhost.example/debian");
    }
}
