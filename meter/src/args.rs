//! The plugin's arguments.

use crate::core::{Core, CoreError, DEFAULT};
use std::path::PathBuf;

/// The amount of counting. Each level counts all that those before it do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Level {
    /// Instructions, traps, fences, root switches.
    Counts,
    /// TLBs and page walks.
    #[default]
    Tlb,
    /// Also whether any access could have used a stale translation.
    Check,
}

impl Level {
    /// All, with the names that arguments use.
    pub const NAMES: [(&'static str, Self); 3] = [("counts", Self::Counts), ("tlb", Self::Tlb), ("check", Self::Check)];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// The plugin's arguments.
#[derive(Clone, PartialEq, Debug)]
pub struct Args {
    /// The report's file.
    pub out: PathBuf,
    /// The amount of counting.
    pub level: Level,
    /// The cores that are modelled, all at once.
    pub cores: Vec<Core>,
    /// The id of QEMU's memory object, or a part of the path of its file.
    pub ram: String,
    /// The first address of RAM.
    pub ram_base: u64,
    /// The file that each trap is written to, if any.
    pub traps: Option<PathBuf>,
}

/// The version of QEMU's plugin interface that is used.
pub const API: i32 = 4;

/// The emulator that loads the plugin, as it describes itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host<'a> {
    /// The oldest version of the interface that it can do.
    pub least_api: i32,
    /// Its own version of the interface.
    pub api: i32,
    /// True if it emulates a whole machine.
    pub is_system: bool,
    /// The architecture of the guest.
    pub target: &'a str,
}

/// The reason for which this emulator's guests cannot be counted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostError {
    /// The emulator has another plugin interface.
    #[error(
        "this QEMU has versions {least} to {own} of the plugin interface, and not {API}: use QEMU 10 (./gnomon installs one)"
    )]
    Api {
        /// The oldest version that it can do.
        least: i32,
        /// Its own.
        own: i32,
    },
    /// The emulator runs single programs.
    #[error("the meter counts whole machines, not single programs: use qemu-system-riscv64")]
    NoSystem,
    /// The emulator is of another architecture.
    #[error("the meter knows harts of riscv64, not {0}: use qemu-system-riscv64")]
    Target(String),
}

impl Host<'_> {
    /// Returns whether it can be counted what it does.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn check(&self) -> Result<(), HostError> {
        let Self { least_api, api, is_system, target } = *self;
        match () {
            () if least_api > API || api < API => Err(HostError::Api { least: least_api, own: api }),
            () if !is_system => Err(HostError::NoSystem),
            () if target != "riscv64" => Err(HostError::Target(target.into())),
            () => Ok(()),
        }
    }
}

impl Default for Args {
    fn default() -> Self {
        Self {
            out: "meter.json".into(),
            level: Level::default(),
            cores: Vec::new(),
            ram: "memory-backend-memfd".into(),
            ram_base: 0x8000_0000,
            traps: None,
        }
    }
}

/// An argument that is not understood.
#[derive(Debug, thiserror::Error)]
pub enum ArgError {
    /// The argument has no such form.
    #[error(
        "`{0}` is not an argument of the meter; the arguments are out=FILE, level=counts|tlb|check, core=NAME, ram=NAME, ram-base=ADDRESS, traps=FILE"
    )]
    Unknown(String),
    /// Its value is not one.
    #[error("{0} is not {1}")]
    Value(String, &'static str),
    /// A core.
    #[error(transparent)]
    Core(#[from] CoreError),
}

impl Args {
    /// Reads arguments of the form `key=value`. `core` can be given more than once.
    ///
    /// # Errors
    /// [`ArgError`].
    pub fn parse<'a>(args: impl IntoIterator<Item = &'a str>) -> Result<Self, ArgError> {
        let mut parsed = Self::default();
        let mut cores = Vec::new();
        for arg in args {
            let unknown = || ArgError::Unknown(arg.into());
            let (key, value) = arg.split_once('=').ok_or_else(unknown)?;
            match key {
                "out" => parsed.out = value.into(),
                "level" => {
                    let found = Level::NAMES.iter().find(|(name, _)| *name == value);
                    parsed.level = found.ok_or_else(|| ArgError::Value(arg.into(), "a level: counts, tlb or check"))?.1;
                }
                "core" => cores.push(value),
                "traps" => parsed.traps = Some(value.into()),
                "ram" => parsed.ram = value.into(),
                "ram-base" => {
                    let hex = value.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
                    parsed.ram_base =
                        hex.ok_or_else(|| ArgError::Value(arg.into(), "an address, such as 0x80000000"))?;
                }
                _ => return Err(unknown()),
            }
        }
        let cores = Core::find_all(if cores.is_empty() { vec![DEFAULT] } else { cores })?;
        if parsed.level != Level::Counts {
            parsed.cores = cores;
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let args =
            Args::parse(["out=/tmp/a.json", "level=check", "core=u74", "core=rocket", "ram-base=0x1000", "traps=t"])
                .unwrap();
        assert_eq!(args.traps, Some("t".into()));
        assert_eq!((args.out, args.level, args.ram_base), ("/tmp/a.json".into(), Level::Check, 0x1000));
        assert_eq!(args.cores.iter().map(|core| core.name.as_str()).collect::<Vec<_>>(), ["u74", "rocket"]);
        assert_eq!(Args::parse([]).unwrap().cores[0].name, DEFAULT);
        assert!(Args::parse(["level=counts", "core=u74"]).unwrap().cores.is_empty());
        for (name, level) in Level::NAMES {
            assert_eq!(level.name(), name);
        }
    }

    #[test]
    fn other_hosts_are_refused() {
        let good = Host { least_api: 2, api: 5, is_system: true, target: "riscv64" };
        assert_eq!((good.check(), Host { api: 4, least_api: 4, ..good }.check()), (Ok(()), Ok(())));
        for (host, says) in [
            (Host { api: 3, least_api: 0, ..good }, "versions 0 to 3 of the plugin interface, and not 4"),
            (Host { api: 6, least_api: 5, ..good }, "versions 5 to 6"),
            (Host { is_system: false, ..good }, "qemu-system-riscv64"),
            (Host { target: "riscv32", ..good }, "not riscv32"),
        ] {
            let message = host.check().expect_err(says).to_string();
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn bad_arguments_are_named() {
        for (arg, says) in [
            ("cores=u74", "`cores=u74`"),
            ("check", "`check`"),
            ("level=all", "level=all is not a level"),
            ("core=z80", "no core `z80`"),
            ("ram-base=12", "an address"),
        ] {
            let message = Args::parse([arg]).expect_err(arg).to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
