//! The machine: QEMU's `virt` board, with the H extension or without it, and its command line.

use crate::host::home::{Home, home};
use crate::host::place::find_program;
use crate::host::sandbox::Reach;
use crate::host::size::Size;
use crate::host::words::quoted_for_bash;
use crate::machine::board::{Clock, HExtension, Seat};
use crate::machine::disk::{self, Disk};
use crate::machine::meter::Metered;
use crate::machine::net::{self, Network};
use crate::machine::share::{self, Share};
use crate::machine::swap;
use miette::Diagnostic;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The program.
pub const QEMU: &str = "qemu-system-riscv64";
/// The variable by which the script names another program: one that is newer than the first in the path.
const CHOSEN: &str = "GNOMON_QEMU";
/// The oldest major version that will do.
const LEAST_MAJOR: u32 = 10;
/// The firmware that QEMU takes by itself, in its own directories.
const FIRMWARE: &str = "opensbi-riscv64-generic-fw_dynamic.bin";
/// The software that the machine starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Boot {
    /// Gnomon with a bundle.
    Gnomon {
        /// The privilege mode of Gnomon.
        seat: Seat,
        /// The hypervisor's ELF file.
        hypervisor: PathBuf,
        /// The bundle.
        bundle: PathBuf,
    },
    /// A kernel on OpenSBI, without Gnomon: the reference.
    Bare {
        /// The kernel, as QEMU's `-kernel`.
        kernel: PathBuf,
        /// The initrd.
        initrd: Option<PathBuf>,
        /// The kernel's command line.
        append: String,
    },
}

/// Returns the program to start.
#[must_use]
pub fn program() -> OsString {
    std::env::var_os(CHOSEN).filter(|chosen| !chosen.is_empty()).unwrap_or_else(|| QEMU.into())
}

/// A machine to be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineSpec {
    /// The software that it starts.
    pub boot: Boot,
    /// Number of harts.
    pub harts: u32,
    /// Their H extension.
    pub h: HExtension,
    /// RAM.
    pub memory: Size,
    /// Its time.
    pub clock: Clock,
    /// The meter and its settings, if events are counted.
    pub meter: Option<Metered>,
    /// The file that Gnomon pages to.
    pub swap: Option<PathBuf>,
    /// The VMs' disks, by number.
    pub disks: Vec<Disk>,
    /// The VMs' shares, by number.
    pub shares: Vec<Share>,
    /// Set if QEMU and the servers of shares confine themselves.
    pub sandbox: bool,
    /// Set if there is a source of random bytes for VMs.
    pub rng: bool,
    /// The network that VMs are on, if any is.
    pub net: Option<Network>,
    /// The path of the socket of the control channel, if there is one. It must be listening when the machine starts.
    pub control: Option<PathBuf>,
    /// Further arguments for QEMU. Files that they name, and that exist, may be read and written.
    pub extra: Vec<String>,
    /// Further files and directories of the machine.
    pub files: Vec<(PathBuf, Reach)>,
}

/// The reason why there is no machine.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum QemuError {
    /// QEMU is not installed.
    #[error("cannot run {name}: {0}", name = program().to_string_lossy())]
    #[diagnostic(help("{}", how_to_install()))]
    Missing(std::io::Error),
    /// QEMU is too old, or is not QEMU.
    #[error("{QEMU} is `{version}`; Gnomon needs QEMU {LEAST_MAJOR} or newer")]
    #[diagnostic(help("{}", how_to_install()))]
    TooOld {
        /// Its version.
        version: String,
    },
    /// QEMU has no firmware.
    #[error("{QEMU} finds no {FIRMWARE}, which the bare machine starts with")]
    #[diagnostic(help("install QEMU's firmware for riscv64 (Debian's package `opensbi`)"))]
    NoFirmware,
}

/// The way to a QEMU that is new enough.
fn how_to_install() -> String {
    match home() {
        Home::Checkout(_) => {
            format!("start Gnomon by its ./gnomon script, or install QEMU {LEAST_MAJOR} or newer for riscv64")
        }
        Home::Installation(_) => format!(
            "run as root: apt-get install qemu-system-riscv opensbi; on Debian 12, add bookworm-backports to apt's sources before, and run: \
             apt-get install -t bookworm-backports qemu-system-riscv opensbi. A QEMU elsewhere is named by {CHOSEN}=FILE"
        ),
    }
}

/// Checks that QEMU is there and new enough; returns its version.
///
/// # Errors
/// [`QemuError`].
pub fn version() -> Result<String, QemuError> {
    let output = Command::new(program()).arg("--version").stdin(Stdio::null()).output().map_err(QemuError::Missing)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.lines().next().unwrap_or_default();
    let version = first.split("version ").nth(1).unwrap_or(first).trim();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match major {
        Some(major) if major >= LEAST_MAJOR => Ok(version.to_owned()),
        _ => Err(QemuError::TooOld { version: version.to_owned() }),
    }
}

/// The directories of QEMU's own data, such as firmware.
fn data() -> Result<Vec<PathBuf>, QemuError> {
    let output =
        Command::new(program()).args(["-L", "help"]).stdin(Stdio::null()).output().map_err(QemuError::Missing)?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(|dir| PathBuf::from(dir.trim())).collect())
}

/// The directories of QEMU's own data if its program is none of the system's, such as one that its user has built.
pub(super) fn own_data() -> &'static [PathBuf] {
    static DATA: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let is_of_system = || {
        let program = find_program(&program()).and_then(|file| file.canonicalize().ok());
        program.is_none_or(|file| file.starts_with("/usr"))
    };
    // Without QEMU, its start fails with a message of its own.
    DATA.get_or_init(|| if is_of_system() { Vec::new() } else { data().unwrap_or_default() })
}

/// The firmware that QEMU loads for `-bios default`: OpenSBI. It has a package and versions of its own.
///
/// # Errors
/// [`QemuError::Missing`], [`QemuError::NoFirmware`].
pub fn firmware() -> Result<PathBuf, QemuError> {
    let files = data()?.into_iter().map(|dir| dir.join(FIRMWARE));
    files.into_iter().find(|file| file.is_file()).ok_or(QemuError::NoFirmware)
}

impl MachineSpec {
    /// QEMU's arguments, without the network card's other end ([`crate::machine::relay`]).
    #[must_use]
    pub fn args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut text = |words: &[&str]| args.extend(words.iter().map(OsString::from));
        text(&["-machine", "virt", "-cpu", "rv64"]);
        if self.h == HExtension::Absent {
            // Not `-cpu rv64,h=false`: a further `-cpu` among `extra` would bring H back.
            text(&["-global", "riscv-cpu.h=false"]);
        }
        text(&["-smp", &self.harts.to_string(), "-m", &format!("{}K", self.memory.0 >> 10)]);
        text(&["-nodefaults", "-display", "none", "-no-reboot"]);
        text(&["-chardev", "stdio,id=con,signal=off", "-serial", "chardev:con"]);
        if let Some(icount) = self.clock.icount() {
            text(&["-icount", icount, "-seed", "1", "-rtc", "base=2020-01-01,clock=vm"]);
            if self.harts > 1 {
                // Harts take turns then, and each keeps its turn until some timer of the machine is due. If all are late, that
                // is long. This one never is: a buffer for a network that is not there, emptied every 20 us.
                text(&["-netdev", "hubport,id=beat,hubid=0"]);
                text(&["-object", "filter-buffer,id=beats,netdev=beat,interval=20"]);
            }
        }
        let mut file = |option: &str, path: &Path| args.extend([option.into(), path.as_os_str().to_owned()]);
        match &self.boot {
            Boot::Gnomon { seat: Seat::Firmware, hypervisor, bundle } => {
                file("-bios", hypervisor);
                file("-kernel", bundle);
            }
            Boot::Gnomon { seat: Seat::Payload, hypervisor, bundle } => {
                file("-bios", Path::new("default"));
                file("-kernel", hypervisor);
                file("-initrd", bundle);
            }
            Boot::Bare { kernel, initrd, append } => {
                file("-bios", Path::new("default"));
                file("-kernel", kernel);
                if let Some(initrd) = initrd {
                    file("-initrd", initrd);
                }
                if !append.is_empty() {
                    file("-append", Path::new(append));
                }
            }
        }
        args.extend(self.meter.iter().flat_map(|meter| meter.args(self.memory)));
        args.extend(self.swap.iter().flat_map(|path| swap::args(path)));
        args.extend(self.disks.iter().enumerate().flat_map(|(number, disk)| disk::args(number, disk)));
        args.extend((0..self.shares.len()).flat_map(share::args));
        if self.rng {
            args.extend(ENTROPY_ARGS.map(OsString::from));
        }
        args.extend(self.net.iter().flat_map(|_| net::CARD_ARGS).map(OsString::from));
        args.extend(self.control.iter().flat_map(|_| CONTROL_ARGS).map(OsString::from));
        args.extend(self.extra.iter().map(OsString::from));
        args
    }

    /// Returns whether the board has a place for one more virtio device.
    #[must_use]
    pub fn has_place(&self) -> bool {
        let ours = usize::from(self.swap.is_some()) + self.disks.len() + self.shares.len();
        let single = [self.net.is_some(), self.rng, self.control.is_some()].map(usize::from);
        ours + single.iter().sum::<usize>() < disk::PLACES
    }

    /// The whole command line, for a shell. A network card in it leads nowhere.
    #[must_use]
    pub fn command_line(&self) -> String {
        let unplugged = self.net.iter().flat_map(|_| net::UNPLUGGED).map(OsString::from);
        let words = self.args().into_iter().chain(unplugged).map(|word| quoted_for_bash(&word.to_string_lossy()));
        std::iter::once(quoted_for_bash(&program().to_string_lossy())).chain(words).collect::<Vec<_>>().join(" ")
    }
}

/// QEMU's arguments for the source of random bytes: the host kernel's generator, and not QEMU's own.
const ENTROPY_ARGS: [&str; 4] =
    ["-object", "rng-random,id=entropy,filename=/dev/urandom", "-device", "virtio-rng-device,rng=entropy"];

/// The descriptor by which QEMU has its end of the control channel's socket.
pub(super) const CONTROL: i32 = 7;
/// QEMU's arguments for the control channel. A console drops output that is not read in time, and never blocks.
const CONTROL_ARGS: [&str; 6] =
    ["-device", "virtio-serial-device", "-chardev", "socket,id=control,fd=7", "-device", "virtconsole,chardev=control"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::size::MIB;

    fn spec(boot: Boot) -> MachineSpec {
        MachineSpec {
            boot,
            harts: 2,
            h: HExtension::Present,
            memory: Size(256 * MIB),
            clock: Clock::Real,
            meter: None,
            swap: None,
            disks: vec![],
            shares: vec![],
            sandbox: true,
            rng: false,
            net: None,
            control: None,
            extra: vec![],
            files: vec![],
        }
    }

    #[test]
    fn the_control_channel_is_a_descriptor() {
        assert!(CONTROL_ARGS[3].ends_with(&format!("fd={CONTROL}")));
    }

    #[test]
    fn seats() {
        let boot = |seat| Boot::Gnomon { seat, hypervisor: "hv".into(), bundle: "b".into() };
        let firmware = spec(boot(Seat::Firmware)).command_line();
        assert!(firmware.ends_with("-bios hv -kernel b") && firmware.contains("-smp 2 -m 262144K"), "{firmware}");
        let payload = spec(boot(Seat::Payload)).command_line();
        assert!(payload.ends_with("-bios default -kernel hv -initrd b"), "{payload}");
        assert!(!payload.contains("riscv-cpu.h"), "{payload}");
        let without_h = MachineSpec { h: HExtension::Absent, ..spec(boot(Seat::Firmware)) }.command_line();
        assert!(without_h.contains(" -cpu rv64 -global riscv-cpu.h=false "), "{without_h}");
    }

    #[test]
    fn bare_machines_and_quoting() {
        let boot = Boot::Bare { kernel: "k".into(), initrd: None, append: "a 'b'".into() };
        let mut machine = spec(boot);
        machine.clock = Clock::Instructions;
        let line = machine.command_line();
        assert!(line.contains("-icount shift=0,sleep=off") && line.ends_with(r"-append 'a '\''b'\'''"), "{line}");
    }
}
