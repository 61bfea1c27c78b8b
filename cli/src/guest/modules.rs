//! Drivers for what Gnomon emulates and Debian's kernel has as modules.

use crate::guest::debian::{DebianError, Modules};
use crate::host::place::IoError;
use miette::Diagnostic;
use std::io::Read;
use std::path::{Path, PathBuf};

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

/// The folder of drivers in the initramfs: [`crate::guest::initramfs`] loads all that it holds.
pub const FOLDER: &str = "lib/modules/";

/// More memory than unpacking takes, in KiB, and more bytes than a driver has.
const XZ_KIB: u32 = 1 << 18;
const MOST_BYTES: u64 = 64 << 20;

/// The reason why drivers could not be provided.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ModulesError {
    /// The drivers could not be fetched.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Debian(#[from] DebianError),
    /// One could not be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
    /// One is damaged.
    #[error("cannot unpack {path}: {source}")]
    #[diagnostic(help("remove that file, and start again to download it anew"))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reader's error.
        source: std::io::Error,
    },
}

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
    /// A virtio console, or ports, whose own driver is in the kernel itself.
    pub console: bool,
}

impl Needs {
    /// The possible needs of a VM with a Debian system as its root, which is on a disk.
    pub const ROOT: Self = Self { balloon: false, disks: true, net: true, shares: true, rng: true, console: false };

    /// The needs of a VM without any of these devices.
    pub const NONE: Self = Self { balloon: false, disks: false, net: false, shares: false, rng: false, console: false };

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
        wanted
    }
}

/// The drivers for that which belong to Debian's kernel, which may be another version of it from then on: paths in the initramfs, and the
/// modules, uncompressed.
///
/// # Errors
/// [`ModulesError`].
pub fn provide(needs: Needs) -> Result<Vec<(String, Vec<u8>)>, ModulesError> {
    let wanted = needs.drivers();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let Modules { files, .. } = Modules::provide(&wanted)?;
    let unpacked = wanted.iter().zip(&files).map(|((name, _), file)| Ok((format!("{FOLDER}{name}.ko"), unpack(file)?)));
    unpacked.collect()
}

fn unpack(path: &Path) -> Result<Vec<u8>, ModulesError> {
    let packed = std::fs::read(path).map_err(IoError::at("read", path))?;
    let mut unpacked = Vec::new();
    let mut reader = lzma_rust2::XzReader::new_mem_limit(packed.as_slice(), false, XZ_KIB).take(MOST_BYTES);
    let read = reader.read_to_end(&mut unpacked);
    read.map_err(|source| ModulesError::Damaged { path: path.to_owned(), source })?;
    Ok(unpacked)
}
