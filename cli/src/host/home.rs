//! The home of this command: the checkout that it was built in, or the installation that it is a part of.
//!
//! ```text
//!  a checkout       an installation
//!  cli/             PREFIX/bin/gnomon -> ../lib/gnomon/BUILD/gnomon
//!  hypervisor/      PREFIX/lib/gnomon/BUILD/gnomon        the command
//!  target/, .cache/                        parts/         the programs that it runs
//! ```
//!
//! An installation may be moved: the command finds its parts beside itself. Each build has a directory of its own, so that no command
//! ever runs the parts of another one.

use miette::Diagnostic;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The directory of an installation's parts, beside its command.
pub const PARTS: &str = "parts";
/// Names the checkout: set by its script.
const CHECKOUT_VAR: &str = "GNOMON_ROOT";
/// The name of the directory for disks.
const DISKS: &str = "disks";
/// Names the directory for downloads.
const CACHE_VAR: &str = "GNOMON_CACHE";

/// The place that this command has its parts from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Home {
    /// A checkout, which builds them.
    Checkout(PathBuf),
    /// The directory of an installed build.
    Installation(PathBuf),
}

/// Something that only a checkout can do.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum NoCheckout {
    /// The command is an installed one.
    #[error("the installed command cannot {0}: that needs Gnomon's sources")]
    #[diagnostic(help("use the script ./gnomon of a checkout (git clone), which builds what it needs"))]
    Installed(&'static str),
    /// The command is neither in its checkout nor in an installation.
    #[error("this command finds no parts of Gnomon: neither {PARTS} beside it, nor the checkout {}", .0.display())]
    #[diagnostic(help(
        "start it where it was installed (by a link, not by a copy), or start the script ./gnomon of a checkout"
    ))]
    Lost(PathBuf),
}

/// Returns the home of this command, as it was when this was first called: an upgrade may replace the command while it runs.
#[must_use]
pub fn home() -> &'static Home {
    static HOME: OnceLock<Home> = OnceLock::new();
    HOME.get_or_init(|| {
        let program = std::env::current_exe().unwrap_or_default();
        Home::of(&program, std::env::var_os(CHECKOUT_VAR).map(PathBuf::from))
    })
}

/// Returns the checkout, for something that needs one: a verb with its object.
///
/// # Errors
/// [`NoCheckout`].
pub fn checkout(action: &'static str) -> Result<&'static Path, NoCheckout> {
    match home() {
        Home::Installation(_) => Err(NoCheckout::Installed(action)),
        Home::Checkout(root) if root.is_dir() => Ok(root),
        Home::Checkout(root) => Err(NoCheckout::Lost(root.clone())),
    }
}

impl Home {
    /// Returns the home of a program. Without an installation, that is the `named` checkout, or else the one that this was built in.
    fn of(program: &Path, named: Option<PathBuf>) -> Self {
        let own = program.parent().filter(|dir| dir.join(PARTS).is_dir());
        own.map(|dir| Self::Installation(dir.to_owned())).unwrap_or_else(|| {
            let built_in = || Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).into();
            Self::Checkout(named.unwrap_or_else(built_in))
        })
    }

    /// Returns the directory for downloads; `None` if an installed command's user has no home directory.
    #[must_use]
    pub fn cache(&self) -> Option<PathBuf> {
        // Empty is unset, as for the script.
        let named = std::env::var_os(CACHE_VAR).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        named.or_else(|| match self {
            Self::Checkout(root) => Some(root.join(".cache")),
            Self::Installation(_) => of_user("XDG_CACHE_HOME", ".cache"),
        })
    }

    /// Returns the directory for disks of VMs that name no file; `None` if an installed command's user has no home directory. It is not in
    /// the cache, which may be removed at any time.
    #[must_use]
    pub fn disks(&self) -> Option<PathBuf> {
        match self {
            Self::Checkout(root) => Some(root.join(DISKS)),
            Self::Installation(_) => of_user("XDG_DATA_HOME", ".local/share").map(|dir| dir.join(DISKS)),
        }
    }
}

/// Returns the directory for records of runs; `None` if the user has no home directory.
#[must_use]
pub fn state() -> Option<PathBuf> {
    of_user("XDG_STATE_HOME", ".local/state")
}

/// A directory of the user's for this program, below the one that a variable names, or else below the home directory. It may be missing.
fn of_user(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |dir: &PathBuf| dir.is_absolute();
    let given = std::env::var_os(variable).map(PathBuf::from).filter(absolute);
    let base = given.or_else(|| Some(std::env::home_dir().filter(absolute)?.join(below_home)))?;
    Some(base.join("gnomon"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_beside_the_command_make_an_installation() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("gnomon");
        let named = || Some(PathBuf::from("/named"));
        assert_eq!(Home::of(&program, named()), Home::Checkout("/named".into()));
        std::fs::write(dir.path().join(PARTS), "").expect("a file");
        assert_eq!(Home::of(&program, named()), Home::Checkout("/named".into()), "a file is no directory of parts");
        std::fs::remove_file(dir.path().join(PARTS)).expect("it is there");
        std::fs::create_dir(dir.path().join(PARTS)).expect("a directory");
        assert_eq!(Home::of(&program, named()), Home::Installation(dir.path().into()));
        // The system's name of a program that was replaced.
        let replaced = dir.path().join("gnomon (deleted)");
        assert_eq!(Home::of(&replaced, None), Home::Installation(dir.path().into()));
    }
}
