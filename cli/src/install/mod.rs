//! Installations: the command with everything prebuilt that it runs, its manual and its shells' completions, in a directory or in a Debian
//! package. [`crate::host::home`] shows the directories.

mod deb;
mod licences;
mod place;
mod record;
mod texts;
mod tree;

pub use deb::package;
pub use place::{Place, PlaceError};
use tree::BUILDS;
pub use tree::{Entry, Layout, Tree};

use crate::host::home::{PARTS, checkout};
use crate::host::parts::{self, Group};
use crate::host::place::IoError;
use crate::host::sources;
use crate::host::words::sha256;
use std::fs;
use std::path::{Path, PathBuf};

/// Digits of a build's digest in the name of its directory.
const DIGITS: usize = 12;
/// The verb and object of the need for a checkout.
const INSTALL: &str = "install";

/// The command to install.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Build {
    /// An optimised one, built for this.
    Release,
    /// The one that runs.
    Own,
}

/// Builds what is missing, and returns all files of an installation. `cli` describes the command line.
///
/// # Errors
/// If something cannot be built or read, or if there is no checkout.
pub fn tree(build: Build, cli: &clap::Command, layout: Layout) -> miette::Result<Tree> {
    let root = checkout(INSTALL)?;
    let mut own = Tree::new();
    own.insert("gnomon".into(), Entry::Program(read(&command(build)?)?));
    own.insert(sources::COMMIT.into(), Entry::Data(format!("{}\n", sources::commit()).into()));
    for group in Group::ALL {
        for (name, file) in group.files()? {
            let path = Path::new(PARTS).join(group.dir()).join(name);
            own.insert(path, Entry::Data(read(&file)?));
        }
    }
    let dir = PathBuf::from(BUILDS).join(name(&own));
    let mut tree = texts::tree(cli, layout);
    tree.extend(licences::tree(root, layout)?);
    tree.insert("bin/gnomon".into(), Entry::Link(Path::new("..").join(&dir).join("gnomon")));
    tree.extend(own.into_iter().map(|(path, entry)| (dir.join(path), entry)));
    Ok(tree)
}

/// The name of a build's directory, which differs for builds that differ.
fn name(own: &Tree) -> String {
    let digests: String =
        own.iter().map(|(path, entry)| format!("{} {}\n", path.display(), sha256(entry.bytes()))).collect();
    format!("{}-{}", env!("CARGO_PKG_VERSION"), &sha256(digests.as_bytes())[..DIGITS])
}

fn command(build: Build) -> miette::Result<PathBuf> {
    match build {
        // Also if its file was replaced meanwhile.
        Build::Own => Ok("/proc/self/exe".into()),
        Build::Release => Ok(parts::command()?),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, IoError> {
    fs::read(file).map_err(IoError::at("read", file))
}
