//! Ports of VMs that have names: programs of this host and of a guest speak with each other by them.

use crate::host::words::is_name_char;
use abi::bundle::{MAX_PORT_NAME, MAX_PORTS};
use miette::Diagnostic;

/// Ports that cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Diagnostic)]
pub enum PortError {
    /// A name that no port can have.
    #[error("VM `{vm}`: a port cannot be called `{}`", name.escape_default())]
    #[diagnostic(help(
        "use 1 to {MAX_PORT_NAME} letters, digits, `-`, `_` and `.`, and a letter, a digit or `_` in front: `ports` in the VM file, or \
         --port"
    ))]
    Name {
        /// The VM.
        vm: String,
        /// The name.
        name: String,
    },
    /// Two have the same.
    #[error("VM `{vm}` has two ports called `{name}`")]
    #[diagnostic(help("give one another name, or leave it out: `ports` in the VM file, or --port"))]
    Duplicate {
        /// The VM.
        vm: String,
        /// The name.
        name: String,
    },
    /// The VM has too many ports.
    #[error("VM `{vm}` has {count} ports: the limit is {MAX_PORTS}")]
    #[diagnostic(help("give it fewer: `ports` in the VM file, or --port"))]
    TooMany {
        /// The VM.
        vm: String,
        /// The number of its ports.
        count: usize,
    },
}

/// Returns whether a port can have that name, which is also the name of a file and a word in scripts.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=MAX_PORT_NAME).contains(&name.len()) && name.chars().all(is_name_char) && !name.starts_with(['-', '.'])
}

/// Checks a VM's ports.
///
/// # Errors
/// [`PortError`].
pub fn check(vm: &str, names: &[String]) -> Result<(), PortError> {
    if names.len() > MAX_PORTS {
        return Err(PortError::TooMany { vm: vm.into(), count: names.len() });
    }
    for (at, name) in names.iter().enumerate() {
        if !is_name(name) {
            return Err(PortError::Name { vm: vm.into(), name: name.clone() });
        }
        if names[..at].contains(name) {
            return Err(PortError::Duplicate { vm: vm.into(), name: name.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_ports_cannot_have() {
        let check = |names: &[&str]| check("vm", &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(check(&["org.qemu.guest_agent.0", "b", "_c", "4"]), Ok(()));
        for name in ["", ".", "..", ".a", "-a", "a/b", "a b", "ä", "\u{1b}[2J", &"x".repeat(33)] {
            assert!(matches!(check(&["a", name]), Err(PortError::Name { .. })), "{name:?}");
        }
        assert!(matches!(check(&["a", "b", "a"]), Err(PortError::Duplicate { .. })));
        assert!(matches!(check(&["a", "b", "c", "d", "e"]), Err(PortError::TooMany { count: 5, .. })));
        let said = check(&["\u{1b}"]).expect_err("no name").to_string();
        assert!(!said.contains('\u{1b}'), "it means nothing to a terminal: {said}");
    }
}
