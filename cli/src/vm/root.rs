//! A whole system as a VM's root: what the user says of it, and what the VM is given.

use crate::host::written::{self, Written};
use crate::machine::disk::DiskSpec;
use serde::Deserialize;
use std::path::PathBuf;

/// A Debian system that a VM has as its root.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "Written<Table>")]
pub struct Root {
    /// The file of the disk that it is on; `None`: one that is called like the VM.
    pub file: Option<PathBuf>,
}

/// A root in a VM file, if more is said of it than its system.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    system: String,
    file: Option<PathBuf>,
}

impl written::Table for Table {
    const BOTH: &'static str = "\"debian\", or a table such as { system = \"debian\", file = \"work.img\" }";
}

impl TryFrom<Written<Table>> for Root {
    type Error = String;

    fn try_from(written: Written<Table>) -> Result<Self, String> {
        let (system, file) = match written {
            Written::Text(system) => (system, None),
            Written::Table(Table { system, file }) => (system, file),
        };
        if system == "debian" { Ok(Self { file }) } else { Err(format!("`{system}` is not a root: use \"debian\"")) }
    }
}

/// The resources for the VMs of a run that have such a root.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Roots {
    /// The disk of each VM, by its place in the run; `None` for those without a root.
    pub disks: Vec<Option<DiskSpec>>,
    /// The ssh keys for logging in, a line each.
    pub keys: String,
    /// The time when the VMs start: seconds since 1970.
    pub now: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_a_word_or_a_table() {
        #[derive(Deserialize)]
        struct File {
            root: Root,
        }
        let root = |text: &str| toml::from_str::<File>(text).map(|file| file.root).map_err(|error| error.to_string());
        assert_eq!(root("root = 'debian'"), Ok(Root { file: None }));
        let table = root("root = { system = 'debian', file = 'a' }");
        assert_eq!(table, Ok(Root { file: Some("a".into()) }));
        assert!(root("root = 'arch'").expect_err("none").contains("`arch` is not a root"));
        assert!(root("root = { file = 'a' }").is_err() && root("root = { system = 'debian', x = 1 }").is_err());
    }
}
