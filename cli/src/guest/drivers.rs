//! Drivers that Debian's kernel has as modules, by the devices that need them.

/// Drivers by their names and their paths in the kernel's sources, in the order in which they are loaded: what all need that is virtio.
const VIRTIO: [(&str, &str); 1] = [("virtio_mmio", "drivers/virtio")];
/// The memory balloon's.
const BALLOON: [(&str, &str); 1] = [("virtio_balloon", "drivers/virtio")];
/// The modules of disks, and of the most common file system.
const DISKS: [(&str, &str); 6] = [
    ("virtio_blk", "drivers/block"),
    ("crc16", "lib"),
    ("crc32c_generic", "crypto"),
    ("mbcache", "fs"),
    ("jbd2", "fs/jbd2"),
    ("ext4", "fs/ext4"),
];

/// The modules of network cards.
const NET: [(&str, &str); 3] =
    [("failover", "net/core"), ("net_failover", "drivers/net"), ("virtio_net", "drivers/net")];

/// The modules of shares: the protocol, its transport, and its file system.
const SHARES: [(&str, &str); 4] =
    [("netfs", "fs/netfs"), ("9pnet", "net/9p"), ("9pnet_virtio", "net/9p"), ("9p", "fs/9p")];

/// The module of a source of random bytes. Its user is built into the kernel.
const RNG: [(&str, &str); 1] = [("virtio-rng", "drivers/char/hw_random")];

/// The modules of a power key: the device's, and the one by which programs see its events.
const KEY: [(&str, &str); 2] = [("evdev", "drivers/input"), ("virtio_input", "drivers/virtio")];

/// The devices of a VM that need drivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// A memory balloon.
    pub balloon: bool,
    /// Disks.
    pub disks: bool,
    /// A network card.
    pub net: bool,
    /// Folders of the host.
    pub shares: bool,
    /// A source of random bytes.
    pub rng: bool,
    /// A power key.
    pub key: bool,
    /// A virtio console, or ports, whose own driver is in the kernel itself.
    pub console: bool,
}

impl Needs {
    /// The possible needs of a VM with a Debian system as its root, which is on a disk.
    pub const ROOT: Self =
        Self { balloon: false, disks: true, net: true, shares: true, rng: true, key: true, console: false };

    /// All devices.
    pub const ALL: Self =
        Self { balloon: true, disks: true, net: true, shares: true, rng: true, key: true, console: true };

    /// The needs of a VM without any of these devices.
    pub const NONE: Self =
        Self { balloon: false, disks: false, net: false, shares: false, rng: false, key: false, console: false };

    /// The drivers: names, and paths in the kernel's sources.
    pub(crate) fn drivers(self) -> Vec<(&'static str, &'static str)> {
        let mut wanted = Vec::new();
        if self != Self::NONE {
            wanted.extend(VIRTIO);
        }
        if self.balloon {
            wanted.extend(BALLOON);
        }
        if self.disks {
            wanted.extend(DISKS);
        }
        if self.net {
            wanted.extend(NET);
        }
        if self.shares {
            wanted.extend(SHARES);
        }
        if self.rng {
            wanted.extend(RNG);
        }
        if self.key {
            wanted.extend(KEY);
        }
        wanted
    }
}

/// Returns the paths of modules in the package of that name, and the names that they are kept under.
pub(crate) fn module_paths(package: &str, wanted: &[(&str, &str)]) -> Vec<(String, String)> {
    let release = package.trim_start_matches("linux-image-");
    let path = |(name, path): &(&str, &str)| {
        (format!("usr/lib/modules/{release}/kernel/{path}/{}", module_file(name)), module_file(name))
    };
    wanted.iter().map(path).collect()
}

/// Returns the name of a module's file.
pub(crate) fn module_file(name: &str) -> String {
    format!("{name}.ko.xz")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_drivers_are_those_of_any_device() {
        let all = Needs::ALL.drivers();
        let none = Needs::NONE;
        for needs in [
            Needs::ROOT,
            Needs { balloon: true, ..none },
            Needs { disks: true, ..none },
            Needs { net: true, ..none },
            Needs { shares: true, ..none },
            Needs { rng: true, ..none },
            Needs { key: true, ..none },
            Needs { console: true, ..none },
        ] {
            assert!(needs.drivers().iter().all(|driver| all.contains(driver)), "{needs:?}");
        }
        assert!(none.drivers().is_empty());
    }
}
