//! The names of modes that users give. Mode `two-stage` was called `nested` before; that name is accepted, with a warning.

use crate::host::tty;
use abi::bundle::MmuMode;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use std::sync::Once;

/// The former name of [`MmuMode::TwoStage`].
pub const FORMER: &str = "nested";

/// The names of all modes.
const NAMES: [&str; 6] = {
    let mut names = [""; 6];
    let mut at = 0;
    while at < names.len() {
        names[at] = MmuMode::ALL[at].name();
        at += 1;
    }
    names
};

/// Warns that a mode was given by its former name: once, however often that is.
pub fn warn_of_former_name() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tty::say(&format!("gnomon: warning: mode `{FORMER}` is called `{}` now", MmuMode::TwoStage)));
}

/// Returns the present name of a subject of the bench, such as `firmware/two-stage-4k`, and warns if it was given by its former name.
pub fn present_subject(name: &str) -> String {
    let present = name.replace(&format!("/{FORMER}"), &format!("/{}", MmuMode::TwoStage));
    if present != name {
        warn_of_former_name();
    }
    present
}

/// Reads the mode of a VM file.
///
/// # Errors
/// If it is the name of no mode.
pub fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Option<MmuMode>, D::Error> {
    let name = String::deserialize(from)?;
    if name == FORMER {
        warn_of_former_name();
        return Ok(Some(MmuMode::TwoStage));
    }
    name.parse().map(Some).map_err(|_| D::Error::unknown_variant(&name, &NAMES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::file::VmFile;

    #[test]
    fn the_former_name_is_accepted() {
        for name in ["two-stage", FORMER] {
            let vm: VmFile = toml::from_str(&format!("mmu = '{name}'")).unwrap();
            assert_eq!(vm.mmu, Some(MmuMode::TwoStage));
        }
        let error = toml::from_str::<VmFile>("mmu = 'turbo'").unwrap_err().to_string();
        assert!(NAMES.iter().chain(&["turbo"]).all(|name| error.contains(name)), "{error}");
        assert_eq!(present_subject("firmware/nested-4k"), "firmware/two-stage-4k");
        assert_eq!(present_subject("payload/lazy"), "payload/lazy");
    }
}
