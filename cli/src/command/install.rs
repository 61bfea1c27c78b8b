//! `gnomon install` and `gnomon uninstall`.

use super::script;
use crate::host::home::{Home, home};
use crate::host::place::IoError;
use crate::host::tty;
use crate::install::{self, Build, Layout, Place};
use clap::Args;
use std::path::{Path, PathBuf};

/// The prefix of an installation that is not given another one.
const PREFIX: &str = "/usr/local";

/// Install the command with everything that it runs, from a checkout.
///
/// The installed command needs neither the checkout nor Rust. An earlier installation is replaced, and no other file. To remove it: gnomon
/// uninstall.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Install below this directory
    #[arg(long, value_name = "DIR", default_value = PREFIX)]
    prefix: PathBuf,
    /// Put the files below this directory, as if it were the root of the file system
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// Write a Debian package instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prefix", "destdir"])]
    deb: Option<PathBuf>,
    /// Take this command as it is, which builds faster, and not an optimised one
    #[arg(long)]
    debug: bool,
}

/// Remove what `gnomon install` has installed.
///
/// Downloads, disks and logs of users stay: ~/.cache/gnomon, ~/.local/share/gnomon and ~/.local/state/gnomon.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// The prefix. Default: that of the installed command, else /usr/local
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

impl InstallArgs {
    /// Runs it; returns the exit status.
    ///
    /// # Errors
    /// If it cannot be installed. Nothing is changed then.
    pub fn run(self, cli: &clap::Command) -> miette::Result<u8> {
        let build = if self.debug { Build::Own } else { Build::Release };
        if let Some(file) = &self.deb {
            install::package(file, |layout| install::tree(build, cli, layout))?;
            script::print(&format!("{}\n", file.display()))?;
            return Ok(0);
        }
        let place = Place::new(below(self.destdir.as_deref(), &self.prefix)?);
        let tree = install::tree(build, cli, Layout::Plain)?;
        report_left(&place.put(&tree)?);
        script::print(&format!("{}\n", place.base().join("bin/gnomon").display()))?;
        Ok(0)
    }
}

impl UninstallArgs {
    /// Runs it; returns the exit status.
    ///
    /// # Errors
    /// If nothing is installed, or something cannot be removed.
    pub fn run(self) -> miette::Result<u8> {
        let place = match (self.prefix, home()) {
            (None, Home::Installation(dir)) => Place::of_build(dir),
            (prefix, _) => Some(Place::new(below(None, prefix.as_deref().unwrap_or(Path::new(PREFIX)))?)),
        };
        let place = place.unwrap_or_else(|| Place::new(PREFIX.into()));
        report_left(&place.remove()?);
        Ok(0)
    }
}

/// The directory on this computer that a prefix is below another one.
fn below(destdir: Option<&Path>, prefix: &Path) -> Result<PathBuf, IoError> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(IoError::at("find", path));
    let prefix = absolute(prefix)?;
    match destdir {
        None => Ok(prefix),
        Some(dir) => Ok(absolute(dir)?.join(prefix.strip_prefix("/").unwrap_or(&prefix))),
    }
}

fn report_left(left: &[PathBuf]) {
    for path in left {
        tty::say(&format!("gnomon: {} was changed since it was installed, and stays", path.display()));
    }
}
