//! Debian systems that VMs have as their roots: an image that is made once, and a disk of each VM's that begins as its copy.

mod archives;
mod disks;
pub mod errand;
mod image;
mod make;

use crate::run::RunSpec;
use crate::vm::root::Roots;
use crate::vm::spec::{self, VmSpec};

/// The disks of a run.
#[derive(Debug, Default)]
pub struct Provided {
    /// For [`RunSpec::roots`].
    pub roots: Roots,
    /// Notes for the user, a line each.
    pub notes: Vec<String>,
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
    spec::forward(&mut vms, &spec.forwards)?;
    spec::check_machine(&vms, spec.seat, spec.h)?;
    let keys = disks::keys()?;
    let mut provided = Provided::default();
    for vm in &vms {
        let disk = vm.root.as_ref().map(|root| disks::provide(vm, root, spec.snapshot)).transpose()?;
        if let Some(disk) = &disk {
            provided.notes.push(disk.note.clone());
            provided.notes.extend(keys.login(vm));
        }
        provided.roots.disks.push(disk.map(|disk| disk.spec));
    }
    provided.roots.keys = keys.lines;
    provided.roots.now = make::now();
    Ok(provided)
}
