//! The commit that this command was built from. An installation has it as a text.

use super::home::{Home, home};
use std::path::Path;
use std::process::{Command, Stdio};

/// The file of an installed build with its [`commit`].
pub const COMMIT: &str = "commit";
/// A commit that cannot be found out.
const UNKNOWN: &str = "of no known commit";

/// Returns the commit, its date, and whether files of it were changed since. The date is not today's, so that the same sources write the
/// same bytes.
#[must_use]
pub fn commit() -> String {
    let found = match home() {
        Home::Checkout(root) => commit_in(root),
        Home::Installation(dir) => {
            std::fs::read_to_string(dir.join(COMMIT)).ok().map(|commit| commit.trim().to_owned())
        }
    };
    found.unwrap_or_else(|| UNKNOWN.into())
}

fn commit_in(root: &Path) -> Option<String> {
    let commit = git(root, &["log", "-1", "--format=%h of %cs"])?;
    let is_changed =
        git(root, &["status", "--porcelain", "--untracked-files=no"]).is_none_or(|files| !files.is_empty());
    Some(commit + if is_changed { ", changed" } else { "" })
}

/// Returns the time of the commit that is checked out, in seconds since 1970, and its abbreviated name. `None` if the directory is not a
/// repository of git's.
#[must_use]
pub fn time_in(root: &Path) -> Option<(u64, String)> {
    let line = git(root, &["log", "-1", "--format=%ct %h"])?;
    let (time, name) = line.split_once(' ')?;
    Some((time.parse().ok()?, name.to_owned()))
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(args).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
