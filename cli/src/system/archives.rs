//! The parts of a root, as archives that are disks of the machine that builds it.

use crate::guest::deb::{self, DebError};
use crate::guest::debian::System;
use crate::host::place::{IoError, Unnamed};
use crate::host::progress::Step;
use crate::machine::net::seen_by_guest;
use std::io::{self, Write};
use std::path::Path;

/// The folder of apt's package lists.
const LISTS: &str = "var/lib/apt/lists";
/// Modules that a root has are in these directories of Linux's sources. The rest are drivers of hardware that no VM has.
const MODULES: [&str; 13] = [
    "arch/",
    "block/",
    "crypto/",
    "drivers/block/",
    "drivers/char/hw_random/virtio",
    "drivers/crypto/virtio/",
    "drivers/input/evdev",
    "drivers/md/",
    "drivers/vhost/",
    "drivers/virtio/",
    "fs/",
    "lib/",
    "net/",
];

/// Writes an archive with what is there before any package is installed: the files of those that are needed to install one, the
/// kernel's modules, and the package lists.
pub(super) fn base(system: &System, dir: &Path) -> miette::Result<Unnamed> {
    let step = Step::spinner("unpacking Debian's packages");
    let mut file = Unnamed::new_in(dir)?;
    let writer = io::BufWriter::with_capacity(1 << 20, file.as_file_mut());
    let mut archive = tar::Builder::new(writer);
    for package in system.packages.iter().filter(|package| package.is_essential) {
        step.note(&package.name);
        deb::append_to(&mut archive, &package.deb, |_| true)?;
    }
    let release = system.kernel.name.trim_start_matches("linux-image-");
    let folder = format!("usr/lib/modules/{release}/");
    step.note(&system.kernel.name);
    deb::append_to(&mut archive, &system.kernel_deb, |path| path.strip_prefix(&folder).is_some_and(is_wanted))?;
    let written = lists(&mut archive, system).and_then(|()| archive.into_inner()?.flush());
    written.map_err(IoError::at("write an archive in", dir))?;
    Ok(file)
}

/// Returns whether a root gets the file at this path of the modules' directory: an index, or a module of those
/// directories. Of network drivers, only those of software are included.
fn is_wanted(path: &str) -> bool {
    let Some(module) = path.strip_prefix("kernel/") else { return !path.contains('/') };
    let is_software = module.strip_prefix("drivers/net/").is_some_and(|driver| !driver.contains('/'));
    is_software || MODULES.iter().any(|folder| module.starts_with(folder))
}

fn lists(archive: &mut tar::Builder<impl Write>, system: &System) -> io::Result<()> {
    let (from, to) = (listed_as(&system.mirror), listed_as(&seen_by_guest(&system.mirror)));
    for list in &system.lists {
        let name = list.file_name().unwrap_or_default().to_string_lossy();
        let Some(rest) = name.strip_prefix(&from) else { continue };
        let mut header = tar::Header::new_gnu();
        let mut content = std::fs::File::open(list)?;
        header.set_size(content.metadata()?.len());
        header.set_mode(0o644);
        // As old as they are: apt takes the age of a list for that of what it has read of it.
        let modified = content.metadata()?.modified()?.duration_since(std::time::UNIX_EPOCH);
        header.set_mtime(modified.unwrap_or_default().as_secs());
        archive.append_data(&mut header, format!("{LISTS}/{to}{rest}"), &mut content)?;
    }
    Ok(())
}

/// Returns the start of the names of an archive's lists in apt's directory.
fn listed_as(mirror: &str) -> String {
    let place = mirror.split_once("://").map_or(mirror, |(_, place)| place);
    place.trim_end_matches('/').replace('_', "%5f").replace(':', "%3a").replace('/', "_")
}

/// Writes an archive of the packages, each called by its name, uncompressed.
pub(super) fn packages(system: &System, dir: &Path) -> miette::Result<Unnamed> {
    let step = Step::percent("writing Debian's packages");
    let mut file = Unnamed::new_in(dir)?;
    let mut archive = tar::Builder::new(io::BufWriter::with_capacity(1 << 20, file.as_file_mut()));
    let scratch = tempfile::tempdir_in(dir).map_err(IoError::at("make a directory in", dir))?;
    let plain = scratch.path().join("plain");
    for (number, package) in system.packages.iter().enumerate() {
        step.set((number * 100 / system.packages.len()) as u64);
        step.note(&package.name);
        deb::write_plain(&package.deb, &plain)?;
        let appended = archive.append_path_with_name(&plain, file_of(&package.name));
        appended.map_err(|error| DebError::Damaged { path: package.deb.clone(), message: error.to_string() })?;
    }
    let written = archive.into_inner().and_then(|mut writer| writer.flush());
    written.map_err(IoError::at("write an archive in", dir))?;
    Ok(file)
}

fn file_of(package: &str) -> String {
    format!("{package}.deb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_software_are_wanted() {
        for path in ["modules.order", "kernel/fs/ext4/ext4.ko.xz", "kernel/drivers/net/tun.ko.xz", "kernel/net/x.ko.xz"]
        {
            assert!(is_wanted(path), "{path}");
        }
        for path in
            ["kernel/drivers/net/ethernet/intel/e1000.ko.xz", "kernel/sound/core/snd.ko.xz", "build/x", "kernel/mm.ko"]
        {
            assert!(!is_wanted(path), "{path}");
        }
    }

    #[test]
    fn lists_are_called_as_apt_does() {
        assert_eq!(listed_as("http://a.example/debian"), "a.example_debian");
        assert_eq!(listed_as("http://10.0.2.2:3142/a_b/debian/"), "10.0.2.2%3a3142_a%5fb_debian");
    }
}
