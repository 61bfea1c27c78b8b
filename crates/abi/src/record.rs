//! Records: lines on Gnomon's console that are meant for programs.
//!
//! A record is the byte [`MARK`], one JSON object, and a newline. Gnomon never passes [`MARK`] on
//! from a guest (it prints `?` in its place), so a record is always Gnomon's own word. A record
//! starts at the beginning of a line. A person at a plain terminal sees a readable line.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// ASCII "record separator", the first byte of a record.
pub const MARK: u8 = 0x1e;

/// One record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// Gnomon is up, about to start the VMs.
    Boot(Boot),
    /// A VM has ended; it makes no further output.
    VmEnd(VmEnd),
    /// All counters. Printed on the console key, and once before [`Record::Halt`].
    Stats(Stats),
    /// All VMs have ended: the last record before the machine is powered off.
    Halt,
    /// Gnomon itself failed: a bug, or a machine it cannot run on. The last record.
    Failed {
        /// The message.
        message: String,
    },
}

/// The machine and the seat that Gnomon runs in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Boot {
    /// Gnomon's version.
    pub version: String,
    /// `firmware` (M mode) or `payload` (HS mode).
    pub seat: String,
    /// Harts in use.
    pub harts: u32,
    /// The G-stage format, such as `Sv48x4`.
    pub g_stage: String,
}

/// The end of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmEnd {
    /// The VM's name.
    pub vm: String,
    /// The reason.
    pub reason: EndReason,
}

/// The reason for a VM's end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The guest asked for a shutdown, with no sign of trouble.
    Poweroff,
    /// The user ended it: `gnomon destroy`, or the console's Ctrl-A x.
    Requested,
    /// The guest asked for a shutdown because of a system failure (SRST reason 1).
    SystemFailure,
    /// Gnomon stopped it; the message says what the guest did.
    Killed {
        /// The guest's deed, and its place.
        message: String,
    },
    /// The VM could not be started; the message has the reason.
    NotStarted {
        /// The reason.
        message: String,
    },
}

impl EndReason {
    /// Returns whether the guest or the user wanted this end, so that nothing is wrong.
    #[must_use]
    pub const fn is_wanted(&self) -> bool {
        matches!(self, Self::Poweroff | Self::Requested)
    }
}

/// Counters, by name. The names are the same everywhere: see `docs/counters.md`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Counters of each VM: the sum over its vCPUs.
    pub vms: Vec<VmStats>,
    /// Counters of Gnomon itself.
    pub host: BTreeMap<String, u64>,
}

/// The counters of one VM.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VmStats {
    /// The VM's name.
    pub vm: String,
    /// Counter values by name.
    pub counters: BTreeMap<String, u64>,
}

impl Record {
    /// The JSON text, without mark and newline.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Plain data with string keys: serializing it cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what stands between mark and newline. `None` if it is not a record.
    #[must_use]
    pub fn parse(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        let end = Record::VmEnd(VmEnd { vm: "a".into(), reason: EndReason::Killed { message: "x\ny".into() } });
        let json = end.to_json();
        assert!(!json.contains('\n'));
        assert_eq!(Record::parse(&json), Some(end));
        assert_eq!(Record::parse(r#""halt""#), Some(Record::Halt));
        assert_eq!(Record::parse("{"), None);
    }
}
