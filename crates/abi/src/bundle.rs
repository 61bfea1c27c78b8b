//! The bundle: one file with every VM's configuration and images, passed to Gnomon as the boot
//! loader's initrd.
//!
//! Layout, little endian, offsets from the start of the bundle:
//!
//! | offset | size | what |
//! |---|---|---|
//! | 0 | 8 | [`MAGIC`] |
//! | 8 | 4 | [`VERSION`] |
//! | 12 | 4 | length of the configuration in bytes |
//! | 16 | 8 | length of the whole bundle in bytes |
//! | 24 | – | the configuration: a [`Config`], postcard-encoded |
//! | page-aligned | – | images, each padded with zeros to a whole page |
//!
//! Equal images stand in it once, however many VMs use them: VMs share their frames.

use crate::mac::Mac;
use crate::snapshot::bytes::Bytes;
use crate::vmspace::Way;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The first eight bytes of a bundle.
pub const MAGIC: [u8; 8] = *b"GNOMONVM";
/// Version of this layout and of [`Config`]. Gnomon refuses every other.
pub const VERSION: u32 = 14;
/// Bytes before the configuration.
pub const HEADER_BYTES: usize = 24;
/// Alignment of images within the bundle, in bytes.
pub const IMAGE_ALIGN: u64 = 4096;
/// Guest physical address at which guest RAM starts.
pub const GUEST_RAM_BASE: u64 = 0x8000_0000;
/// Guest physical address at which a payload is placed and entered, if it names none.
pub const GUEST_ENTRY: u64 = 0x8020_0000;
/// Most vCPUs in one VM.
pub const MAX_VCPUS: u32 = 32;
/// Least bound of shadow memory for each vCPU of a VM, in bytes: 32 shadow pages. An instruction that crosses
/// pages and loads across pages needs four walks of five tables at once; recycling keeps six more at hand.
pub const LEAST_SHADOW_BYTES_PER_VCPU: u64 = 384 << 10;
/// Most disks of one VM: as many places as its board has for them.
pub const MAX_DISKS: usize = 7;
/// Most shares of one VM: as many places as its board has for them.
pub const MAX_SHARES: usize = 4;
/// Most bytes of a share's tag.
pub const MAX_SHARE_TAG: usize = 32;
/// Most named ports of one VM.
pub const MAX_PORTS: usize = 4;
/// Most bytes of a port's name.
pub const MAX_PORT_NAME: usize = 32;
/// Most VMs in one bundle, and most that there are at a time.
pub const MAX_VMS: usize = 64;

/// Everything that the hypervisor is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Config {
    /// The VMs, in console order. At least one, at most [`MAX_VMS`].
    pub vms: Vec<VmConfig>,
    /// The way in which guests' consoles share the one UART.
    pub console: ConsoleMode,
    /// Tunables that are set: `name=value` ([`crate::tunable`]).
    pub settings: Vec<String>,
}

/// One VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmConfig {
    /// Its name in messages, unique, non-empty, of letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The VM that has to end before this one starts: its place in [`Config::vms`], before this one's. `None`: it starts
    /// at once. Only those that run at the same time need memory at the same time.
    pub after: Option<u32>,
    /// RAM in bytes, from [`GUEST_RAM_BASE`]; a multiple of 4096.
    pub memory_bytes: u64,
    /// Most of its RAM that is in memory at a time, in bytes; a multiple of 4096. `None`: all of it.
    pub limit_bytes: Option<u64>,
    /// RAM that is not taken from it once it has it, in bytes; a multiple of 4096, at most its RAM and its limit.
    pub reserve_bytes: u64,
    /// True if all of its RAM is given to it at its start, and stays.
    pub wired: bool,
    /// Number of vCPUs, 1..=[`MAX_VCPUS`].
    pub vcpus: u32,
    /// The mode of memory virtualization; `None`: the hypervisor chooses what the hart can do, and prints its choice.
    pub mmu: Option<MmuMode>,
    /// True if the fast lane may serve it, in the modes that have one ([`MmuMode::has_lane`]; no meaning else).
    pub lane: bool,
    /// True if its device tree may advertise Svvptc.
    pub svvptc: bool,
    /// True if it is promised that A and D bits are updated for it (Svadu), false if it gets page faults (Svade). `None`: the
    /// hypervisor chooses by the mode and the harts.
    pub svadu: Option<bool>,
    /// True if it may be a hypervisor: its harts have the H extension.
    pub nested: bool,
    /// The tables by which its own guests run, if it may be a hypervisor.
    pub l2: L2Tables,
    /// The way in which its kernel is to run programs, if it uses the address-space calls.
    pub vmspace: Way,
    /// Bound of the memory for its shadow tables, in bytes; a multiple of 4096. `None`:
    /// [`default_shadow_bytes`]. No meaning under [`MmuMode::TwoStage`].
    pub shadow_bytes: Option<u64>,
    /// True if 2 MiB G-stage leaves may be used.
    pub superpages: bool,
    /// True if it is given whole GiB, by one leaf each, before it starts.
    pub gigapages: bool,
    /// The memory balloon, if there is one: the bytes that go into it from the start, a multiple of 4096.
    pub balloon_bytes: Option<u64>,
    /// Its disks, at most [`MAX_DISKS`]: numbers of block devices of the machine ([`crate::disk_serial`]). No other VM has any of them.
    pub disks: Vec<u32>,
    /// Folders of the host that it reaches, at most [`MAX_SHARES`].
    pub shares: Vec<ShareConfig>,
    /// The address of its network card, if it has one. No other VM has the same.
    pub mac: Option<Mac>,
    /// True if it has a source of random bytes, which are the host's.
    pub rng: bool,
    /// True if it has a virtio console beside the UART. Both are its console.
    pub virtio_console: bool,
    /// True if it has a power key. One that is restored from a snapshot has one if it had one there.
    pub power_key: bool,
    /// Names of its ports, at most [`MAX_PORTS`], each of 1 to [`MAX_PORT_NAME`] bytes and unlike the others.
    pub ports: Vec<String>,
    /// Initial contents of RAM; everything else reads as zero. Sorted, not overlapping.
    pub segments: Vec<Segment>,
    /// The entry of the first vCPU, with a0 = 0 (its hart id) and a1 = the device tree's address.
    pub entry_gpa: u64,
    /// The initrd that the device tree announces: GPA and length in bytes.
    pub initrd: Option<(u64, u64)>,
    /// The kernel's command line (`/chosen/bootargs`).
    pub bootargs: String,
    /// The command that U-Boot runs at once (`/config/bootcmd`), in place of waiting for a key and running what it was
    /// built with. `None`: U-Boot does that. Other payloads ignore it.
    pub boot_command: Option<String>,
    /// `/chosen/rng-seed`; empty for none.
    pub rng_seed: Vec<u8>,
    /// The snapshot that the VM continues from: an encoded [`crate::snapshot::State`]. Its RAM are the segments then,
    /// and it has no kernel to start from.
    pub restore: Option<Bytes>,
    /// True if its memory and its last state come by the control channel ([`crate::control::save::Load`]); `restore` is an earlier state of it then.
    pub incoming: bool,
}

impl VmConfig {
    /// Returns whether all of so many bytes from that GPA on are RAM.
    #[must_use]
    pub fn has_ram(&self, gpa: u64, bytes: u64) -> bool {
        let Some(offset) = gpa.checked_sub(GUEST_RAM_BASE) else { return false };
        offset.checked_add(bytes).is_some_and(|end| end <= self.memory_bytes)
    }
}

/// A folder of the host that a VM reaches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShareConfig {
    /// Which of the machine's devices it is ([`crate::share::address`]). No other share is the same.
    pub number: u32,
    /// The tag by which the guest mounts it: 1 to [`MAX_SHARE_TAG`] bytes.
    pub tag: String,
}

/// Bound of shadow memory for a VM that names none, in bytes: a sixteenth of its RAM, at least 8 MiB.
#[must_use]
pub const fn default_shadow_bytes(memory_bytes: u64) -> u64 {
    const LEAST: u64 = 8 << 20;
    let part = (memory_bytes / 16).next_multiple_of(IMAGE_ALIGN);
    if part > LEAST { part } else { LEAST }
}

/// A piece of an image in a VM's RAM: mapped read-only and shared, copied when written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Segment {
    /// The GPA; page-aligned.
    pub gpa: u64,
    /// The offset in the bundle; page-aligned.
    pub offset: u64,
    /// Length in bytes, more than 0. The bundle holds zeros up to the next page boundary.
    pub bytes: u64,
    /// The name for messages: `kernel`, `initrd`.
    pub label: String,
}

/// The tables by which the guests (L2) of a guest that is a hypervisor (L1) run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum L2Tables {
    /// Two stages: L2's own tables, behind the shadow of L1's G-stage.
    #[default]
    Nested,
    /// One: shadow tables from L2's virtual addresses to the host's.
    Collapsed,
}

impl L2Tables {
    /// Its name in options, files and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nested => "nested",
            Self::Collapsed => "collapsed",
        }
    }
}

/// The way a VM's memory is virtualized.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MmuMode {
    /// Two-stage hardware tables. Needs the H extension.
    #[serde(alias = "nested")]
    TwoStage,
    /// Shadow tables, kept in step by write-protecting the guest's tables.
    Shadow,
    /// Shadow tables; the guest's leaf tables are write-protected until the first store, and brought
    /// in step at the next fence.
    Unsync,
    /// Shadow tables that trail the guest's: fences invalidate, accesses bring in step.
    Lazy,
    /// Shadow tables that say whose each fault is: the guest takes its page faults itself, and fences bring in step.
    Steered,
    /// `TwoStage` or `Steered`, whichever costs less: chosen for each root by counters. Needs the H extension.
    Adaptive,
}

impl MmuMode {
    /// All modes.
    pub const ALL: [Self; 6] = [Self::TwoStage, Self::Shadow, Self::Unsync, Self::Lazy, Self::Steered, Self::Adaptive];

    /// Its name in options, files and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TwoStage => "two-stage",
            Self::Shadow => "shadow",
            Self::Unsync => "unsync",
            Self::Lazy => "lazy",
            Self::Steered => "steered",
            Self::Adaptive => "adaptive",
        }
    }

    /// Returns whether it works on harts without the H extension.
    #[must_use]
    pub const fn works_without_h(self) -> bool {
        !matches!(self, Self::TwoStage | Self::Adaptive)
    }

    /// Returns whether the fast lane may serve its guests: their fences by address, and changes of the address space.
    #[must_use]
    pub const fn has_lane(self) -> bool {
        matches!(self, Self::Lazy | Self::Steered | Self::Adaptive)
    }
}

impl core::fmt::Display for MmuMode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

impl core::str::FromStr for MmuMode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or(UnknownMode)
    }
}

/// A name that no [`MmuMode`] has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownMode;

impl core::fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("no such mode: choose two-stage, shadow, unsync, lazy, steered or adaptive")
    }
}

impl core::error::Error for UnknownMode {}

/// The way in which the guests' consoles share the UART.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ConsoleMode {
    /// One console is attached at a time; an escape key switches. See `docs/console.md`.
    Attached,
    /// All consoles at once, for programs to read: each line is printed whole, and when there is
    /// more than one VM it is preceded by `name| `. Input goes to the first running VM.
    Lines,
}

/// The reason for which a bundle cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BundleError {
    /// Shorter than its header, or than the header says.
    Truncated {
        /// Bytes that are there.
        have: u64,
        /// Bytes that are needed.
        need: u64,
    },
    /// The bundle does not start with [`MAGIC`].
    NotABundle,
    /// Made by another version.
    Version(u32),
    /// The configuration does not decode.
    Malformed,
}

impl core::fmt::Display for BundleError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated { have, need } => write!(f, "the VM bundle is truncated: {have} bytes, {need} needed"),
            Self::NotABundle => write!(f, "the initrd is not a VM bundle (make one with the gnomon command)"),
            Self::Version(v) => write!(f, "the VM bundle has version {v}, this hypervisor reads {VERSION}"),
            Self::Malformed => write!(f, "the VM bundle's configuration is malformed"),
        }
    }
}

impl core::error::Error for BundleError {}

impl Config {
    /// Reads the configuration at the front of a bundle.
    ///
    /// # Errors
    /// [`BundleError`] for anything that is not a whole bundle of this version. The configuration's
    /// own promises (ranges, alignment) are *not* checked here: the user of a value checks it.
    pub fn parse(bundle: &[u8]) -> Result<Self, BundleError> {
        let have = bundle.len() as u64;
        let word = |at: usize| -> Option<u32> { Some(u32::from_le_bytes(bundle.get(at..at + 4)?.try_into().ok()?)) };
        let truncated = |need| BundleError::Truncated { have, need };
        let magic = bundle.get(..8).ok_or(truncated(HEADER_BYTES as u64))?;
        if magic != MAGIC {
            return Err(BundleError::NotABundle);
        }
        let (Some(version), Some(config_len), Some(low), Some(high)) = (word(8), word(12), word(16), word(20)) else {
            return Err(truncated(HEADER_BYTES as u64));
        };
        if version != VERSION {
            return Err(BundleError::Version(version));
        }
        let total = u64::from(low) | u64::from(high) << 32;
        if have < total {
            return Err(truncated(total));
        }
        let end = HEADER_BYTES + config_len as usize;
        let config = bundle.get(HEADER_BYTES..end).ok_or(truncated(end as u64))?;
        postcard::from_bytes(config).map_err(|_| BundleError::Malformed)
    }

    /// Encodes the front of a bundle: header and configuration, padded to a whole page. `total` is
    /// the length of the bundle with its images, in bytes.
    ///
    /// Offsets in `self` count from the start of the bundle; since their encoding has a variable
    /// length, lay images out from [`Config::front_bytes`].
    #[must_use]
    pub fn encode(&self, total: u64) -> Vec<u8> {
        // Serializing plain data into memory cannot fail.
        let config = postcard::to_allocvec(self).unwrap_or_default();
        let mut out = Vec::with_capacity(HEADER_BYTES + config.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(config.len() as u32).to_le_bytes());
        out.extend_from_slice(&total.to_le_bytes());
        out.extend_from_slice(&config);
        out.resize(out.len().next_multiple_of(IMAGE_ALIGN as usize), 0);
        out
    }

    /// An upper bound, page-aligned, of the length of [`Config::encode`] whatever the offsets are.
    #[must_use]
    pub fn front_bytes(&self) -> u64 {
        let config = postcard::to_allocvec(self).unwrap_or_default().len();
        let slack = 10 * self.vms.iter().map(|vm| vm.segments.len()).sum::<usize>();
        ((HEADER_BYTES + config + slack) as u64).next_multiple_of(IMAGE_ALIGN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn config() -> Config {
        Config {
            console: ConsoleMode::Lines,
            settings: vec!["reclaim=off".into()],
            vms: vec![VmConfig {
                name: "linux".into(),
                after: Some(3),
                memory_bytes: 1 << 28,
                limit_bytes: Some(1 << 27),
                reserve_bytes: 1 << 26,
                wired: false,
                vcpus: 4,
                mmu: Some(MmuMode::Lazy),
                lane: true,
                svvptc: true,
                svadu: None,
                nested: true,
                l2: L2Tables::Collapsed,
                vmspace: Way::Soft,
                shadow_bytes: Some(8 << 20),
                superpages: true,
                gigapages: false,
                balloon_bytes: Some(1 << 20),
                disks: vec![3, 5],
                shares: vec![ShareConfig { number: 1, tag: "src".into() }],
                mac: Some(Mac([0x52, 0x54, 0, 0x67, 0x6e, 1])),
                rng: true,
                virtio_console: true,
                power_key: true,
                ports: vec!["agent".into()],
                segments: vec![Segment { gpa: GUEST_ENTRY, offset: 1 << 40, bytes: 5, label: "kernel".into() }],
                entry_gpa: GUEST_ENTRY,
                initrd: Some((0x8400_0000, 77)),
                bootargs: "quiet".into(),
                boot_command: Some("run bootcmd".into()),
                rng_seed: vec![7; 32],
                restore: Some(Bytes(vec![1, 2])),
                incoming: true,
            }],
        }
    }

    #[test]
    fn a_bundle_comes_back() {
        let bytes = config().encode(4096);
        assert_eq!(Config::parse(&bytes), Ok(config()));
        assert!(bytes.len() as u64 <= config().front_bytes());
    }

    #[test]
    fn modes_have_names() {
        for mode in MmuMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert_eq!("TwoStage".parse::<MmuMode>(), Err(UnknownMode));
    }

    #[test]
    fn broken_bundles_are_named() {
        let good = config().encode(4096);
        for cut in 0..good.len() {
            assert!(matches!(Config::parse(&good[..cut]), Err(BundleError::Truncated { .. })), "{cut}");
        }
        let mut bad = good.clone();
        bad[0] = b'X';
        assert_eq!(Config::parse(&bad), Err(BundleError::NotABundle));
        let mut bad = good.clone();
        bad[8] += 1;
        assert_eq!(Config::parse(&bad), Err(BundleError::Version(VERSION + 1)));
        let mut bad = good;
        bad[24] = 0xff; // claims a VM count that cannot be there
        assert_eq!(Config::parse(&bad), Err(BundleError::Malformed));
    }
}
