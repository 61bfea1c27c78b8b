//! Tunables: numbers and switches by which Gnomon is set, at its start and while it runs.

use core::fmt;

/// The kind of a tunable's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `on` or `off`, kept as 1 and 0.
    Switch,
    /// A number from 0 to this one.
    Number(u64),
}

/// One tunable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunable {
    /// Its name.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: Kind,
    /// The value that it has if it is not set.
    pub default: u64,
    /// The description, in one line.
    pub about: &'static str,
}

macro_rules! tunables {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $kind:expr, $default:expr, $about:literal;)*) => {
        /// Which one.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Id { $($(#[$doc])* $id),* }

        impl Id {
            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                ALL[self as usize].name
            }
        }

        /// All, in the order of [`Id`].
        pub const ALL: &[Tunable] = &[$(Tunable { name: $name, kind: $kind, default: $default, about: $about }),*];
    };
}

tunables! {
    /// 2 MiB leaves.
    Superpages = "superpages", Kind::Switch, 1, "2 MiB at once where a VM's memory allows it; of VMs that start from now on";
    /// Hardware's A and D of the G-stage.
    HardwareAd = "hardware-ad", Kind::Switch, 0, "A and D of the memory of guests behind a G-stage are the hardware's; of VMs that start from now on";
    /// D by faults for all pages.
    FaultD = "fault-d", Kind::Switch, 0, "D by faults for all memory, not only for pages that came back; of VMs that start from now on";
    /// Reclaim.
    Reclaim = "reclaim", Kind::Switch, 1, "take back what guests do not use when memory is short; if off, a VM that needs more ends";
    /// Promotion.
    Promote = "promote", Kind::Switch, 1, "pages of 4 KiB that fill 2 MiB become one of 2 MiB when harts are idle and memory is not short";
    /// Zeroes made ahead.
    ZeroPool = "zero-pool", Kind::Number(16), 8, "pieces of 2 MiB that idle harts keep filled with zeroes for guests' first touches";
    /// The lane's changes of roots.
    Roots = "roots", Kind::Switch, 1, "the lane changes between roots that it knows, in modes lazy and steered; if off, each write of satp is an exit";
    /// Global leaves in shadow tables.
    Globals = "globals", Kind::Switch, 1, "shadow tables keep the guest's G, if each vCPU on such tables can have a hart of its own; of VMs that start from now on";
    /// Quiet tables.
    Track = "track", Kind::Switch, 1, "tables of steered guests that stay as they are become quiet, and fences leave them out; of VMs that start from now on";
    /// Coalescing.
    Coalesce = "coalesce", Kind::Switch, 1, "512 pages of 4 KiB of a guest's on steered tables that agree get one leaf of 2 MiB, and are moved together for it";
    /// The cost that coalescing may have.
    CoalesceShare = "coalesce-share", Kind::Number(900), 300, "thousandths of its time that a vCPU may take for looking for such pages and moving them";
    /// Steering.
    Steer = "steer", Kind::Switch, 1, "guests in mode steered take their page faults themselves; if off, Gnomon delivers them";
    /// The cost that a steered root may have.
    AdaptShare = "adapt-share", Kind::Number(1000), 20, "thousandths of its time that a vCPU in mode adaptive may take for the traps of a steered root; beyond, the root goes behind the G-stage";
    /// The time between looks at the cost of roots.
    AdaptLook = "adapt-look", Kind::Number(1_000_000), 5000, "microseconds until a vCPU in mode adaptive is looked at; while nothing changes, up to 16 times as long; 0: at least 100";
    /// A choice without reason, for tests.
    AdaptAtRandom = "adapt-at-random", Kind::Switch, 0, "in mode adaptive roots are behind the G-stage or steered at random: a test of the changes between them";
    /// The bound of runs.
    NestedRun = "nested-run", Kind::Number(255), 32, "instructions of a guest hypervisor's that Gnomon executes in software to reach its next one that would trap; 0: none";
    /// NACL.
    Nacl = "nacl", Kind::Switch, 1, "SBI NACL for VMs with `nested`; if off, probes do not find it: of hypervisors that start from now on";
    /// Pages that are read with one that is needed.
    ReadAhead = "read-ahead", Kind::Number(15), 7, "pages that are brought in with one that is needed";
    /// A disturbance, for tests.
    UnmapAtRandom = "unmap-at-random", Kind::Number(4096), 0, "pages that are made idle each millisecond, at random: a test of everything that faults";
    /// Address-space calls.
    Vmspace = "vmspace", Kind::Switch, 1, "the address-space calls of guests' kernels (docs/vmspace.md); if off, there are none: of kernels that ask from now on";
    /// The number of id bits, for tests.
    IdBits = "id-bits", Kind::Number(16), 16, "bits that VMIDs and ASIDs have, where harts have more: a test of what runs out; from the start only";
    /// Idle harts that do not wait, for tests.
    IdlePoll = "idle-poll", Kind::Switch, 0, "idle harts look for interrupts all the time instead of waiting: with --icount, where harts share the clock, they slow the others as if they worked";
}

/// A setting that cannot be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SettingError<'a> {
    /// The text is not `name=value`.
    NoValue(&'a str),
    /// There is no such tunable.
    Unknown(&'a str),
    /// The tunable cannot have that value.
    Value(&'static Tunable, &'a str),
}

impl fmt::Display for SettingError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoValue(text) => write!(f, "`{text}` is not a setting: write name=value"),
            Self::Unknown(name) => {
                write!(f, "there is no tunable `{name}`: choose one of")?;
                ALL.iter().try_for_each(|tunable| write!(f, " {}", tunable.name))
            }
            Self::Value(tunable, value) => match tunable.kind {
                Kind::Switch => write!(f, "`{}` cannot be `{value}`: it is on or off", tunable.name),
                Kind::Number(most) => write!(f, "`{}` cannot be `{value}`: it is 0 to {most}", tunable.name),
            },
        }
    }
}

impl Tunable {
    /// Its value as people write it.
    #[must_use]
    pub fn show(&self, value: u64) -> Shown {
        Shown(self.kind, value)
    }
}

/// A value, to be shown.
#[derive(Clone, Copy, Debug)]
pub struct Shown(Kind, u64);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown(Kind::Switch, 0) => f.write_str("off"),
            Shown(Kind::Switch, _) => f.write_str("on"),
            Shown(Kind::Number(_), value) => write!(f, "{value}"),
        }
    }
}

/// Reads `name=value`: the place in [`ALL`], and the value.
///
/// # Errors
/// [`SettingError`].
pub fn parse(text: &str) -> Result<(usize, u64), SettingError<'_>> {
    let (name, value) = text.split_once('=').ok_or(SettingError::NoValue(text))?;
    let (name, value) = (name.trim(), value.trim());
    let at = ALL.iter().position(|tunable| tunable.name == name).ok_or(SettingError::Unknown(name))?;
    let number = match (ALL[at].kind, value) {
        (Kind::Switch, "on") => Some(1),
        (Kind::Switch, "off") => Some(0),
        (Kind::Switch, _) => None,
        (Kind::Number(most), _) => value.parse().ok().filter(|number| *number <= most),
    };
    number.map(|number| (at, number)).ok_or(SettingError::Value(&ALL[at], value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_shown() {
        assert_eq!(parse("superpages=off"), Ok((Id::Superpages as usize, 0)));
        assert_eq!(parse(" read-ahead = 15 "), Ok((Id::ReadAhead as usize, 15)));
        assert!(matches!(parse("read-ahead=16"), Err(SettingError::Value(..))));
        assert!(matches!(parse("superpages=1"), Err(SettingError::Value(..))));
        assert_eq!(parse("x=1"), Err(SettingError::Unknown("x")));
        assert_eq!(parse("reclaim"), Err(SettingError::NoValue("reclaim")));
        for tunable in ALL {
            let text = alloc::format!("{}={}", tunable.name, tunable.show(tunable.default));
            assert_eq!(parse(&text).map(|(at, value)| (ALL[at].name, value)), Ok((tunable.name, tunable.default)));
        }
    }
}
