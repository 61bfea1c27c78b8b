//! The licences of Gnomon and of the packages that are compiled into its programs.

use super::texts::compressed;
use super::tree::{Entry, Layout, Tree};
use crate::host::build;
use crate::host::place::IoError;
use miette::{Diagnostic, IntoDiagnostic};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory, below the prefix.
const DIR: &str = "share/doc/gnomon";

/// Beginnings of the names of files with licences and notices.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// cargo cannot list the packages.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("cargo cannot list the packages that Gnomon is built from: {0}")]
#[diagnostic(help("see cargo's message; it may need the network"))]
struct ListError(String);

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for the packages of the checkout.
    source: Option<String>,
    manifest_path: PathBuf,
}

/// The files with licences.
pub(super) fn tree(root: &Path, layout: Layout) -> miette::Result<Tree> {
    let read = |name: &str| fs::read_to_string(root.join(name)).map_err(IoError::at("read", root.join(name)));
    let mut tree = Tree::new();
    let mut add = |name: &str, bytes: Vec<u8>| _ = tree.insert(Path::new(DIR).join(name), Entry::Data(bytes));
    match layout {
        Layout::Plain => {
            for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
                add(name, read(name)?.into());
            }
        }
        Layout::Debian => add("copyright", copyright(&read("LICENSE-MIT")?).into()),
    }
    add("third-party.gz", compressed(third_party()?.as_bytes()));
    Ok(tree)
}

/// Debian's description of the licences.
fn copyright(mit: &str) -> String {
    let holders = mit.lines().find_map(|line| line.strip_prefix("Copyright ")).unwrap_or("the Gnomon developers");
    // An empty line within a field is a dot.
    let body = mit.lines().map(|line| if line.trim().is_empty() { " .\n".into() } else { format!(" {line}\n") });
    let body: String = body.collect();
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: gnomon\n\
         Comment: The programs contain code of other authors. Its licences are in third-party.gz, beside this file.\n\n\
         Files: *\nCopyright: {holders}\nLicense: Apache-2.0 or Expat\n\n\
         License: Apache-2.0\n On Debian systems, this licence is in /usr/share/common-licenses/Apache-2.0.\n\n\
         License: Expat\n{body}"
    )
}

/// The packages, and the texts of their licences, each once.
fn third_party() -> miette::Result<String> {
    let mut command = build::cargo("list its packages")?;
    let output =
        command.args(["metadata", "--format-version=1", "--locked"]).output().map_err(IoError::at("run", "cargo"))?;
    if !output.status.success() {
        Err(ListError(String::from_utf8_lossy(&output.stderr).trim().to_owned()))?;
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).into_diagnostic()?;
    let mut packages: Vec<_> = metadata.packages.into_iter().filter(|package| package.source.is_some()).collect();
    packages.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
    let mut text = String::from("Programs of Gnomon contain code of these packages:\n\n");
    let mut licences: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in &packages {
        let name = format!("{} {}", package.name, package.version);
        let _ = writeln!(text, "{name}: {}", package.license.as_deref().unwrap_or("see below"));
        for licence in texts(&package.manifest_path) {
            licences.entry(licence).or_default().push(name.clone());
        }
    }
    for (licence, names) in licences {
        let _ = write!(text, "\n{}\n{}:\n\n{}\n", "-".repeat(72), names.join(", "), licence.trim_end());
    }
    Ok(text)
}

/// The texts of licences beside a manifest, in the order of their files' names.
fn texts(manifest: &Path) -> Vec<String> {
    let entries = manifest.parent().and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten();
    let is_licence = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        NAMES.iter().any(|known| name.starts_with(known))
    };
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(is_licence).collect();
    files.sort();
    files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect()
}
