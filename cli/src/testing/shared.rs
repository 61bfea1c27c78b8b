//! Folders that a boot test's VMs reach: one that they write to, and one that they may only read.

use crate::host::place::{IoError, cache};
use crate::host::words::sha256;
use crate::machine::share::ShareSpec;
use miette::{ensure, miette};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// A directory for files of one run.
pub(super) fn run_dir() -> miette::Result<TempDir> {
    let dir = cache("run")?;
    Ok(tempfile::tempdir_in(&dir).map_err(IoError::at("make a directory in", &dir))?)
}

/// Bytes of the file that is there at the start, and of the one that each VM is to make: no whole number of pages.
const BYTES: usize = (2 << 20) + 77;

/// The folders of all VMs. In both of a VM's are the file `out`, which differs from VM to VM, and `out.sum` as `sha256sum` has it. Each
/// VM is to leave the same of `in` in the one that it may write to, with a link `link` to it, of mode 640.
pub(super) struct Folders(Vec<[TempDir; 2]>);

impl Folders {
    /// Makes them.
    pub(super) fn make(vms: usize) -> miette::Result<Self> {
        let fill = |vm: usize| {
            let dirs = [run_dir()?, run_dir()?];
            for dir in &dirs {
                let seed = vm as u64 + 3;
                let bytes: Vec<u8> = (0..BYTES as u64).map(|n| (n.wrapping_mul(n | seed) >> 7) as u8).collect();
                let sum = format!("{}  out\n", sha256(&bytes));
                let write =
                    |name, bytes: &[u8]| fs::write(dir.path().join(name), bytes).map_err(|why| miette!("{why}"));
                write("out", &bytes)?;
                write("out.sum", sum.as_bytes())?;
            }
            Ok(dirs)
        };
        Ok(Self((0..vms).map(fill).collect::<miette::Result<_>>()?))
    }

    /// The folders of a VM.
    pub(super) fn of(&self, vm: usize) -> Vec<ShareSpec> {
        let named = [("share", false), ("fixed", true)].into_iter().zip(&self.0[vm]);
        let spec = |((name, readonly), dir): ((&str, bool), &TempDir)| ShareSpec {
            dir: dir.path().into(),
            readonly,
            name: Some(name.into()),
        };
        named.map(spec).collect()
    }

    /// Checks what the VMs have left there.
    pub(super) fn check(self) -> miette::Result<()> {
        for (vm, [share, fixed]) in self.0.iter().enumerate() {
            let whose = format!("the shares of VM {}", vm + 1);
            let read = |dir: &TempDir, name: &str| {
                fs::read(dir.path().join(name)).map_err(|why| miette!("{whose}: {name}: {why}"))
            };
            let (bytes, sum) = (read(share, "in")?, read(share, "in.sum")?);
            ensure!(bytes.len() == BYTES, "{whose}: `in` has {} bytes, not {BYTES}", bytes.len());
            let said = String::from_utf8_lossy(&sum);
            ensure!(said.starts_with(&sha256(&bytes)), "{whose}: `in` is not what the guest has written");
            let path = share.path().join("in");
            let mode = fs::metadata(&path).map_err(|why| miette!("{whose}: {why}"))?.permissions().mode();
            ensure!(mode & 0o777 == 0o640, "{whose}: `in` has the mode {mode:o}");
            let link = fs::read_link(share.path().join("link")).map_err(|why| miette!("{whose}: link: {why}"))?;
            ensure!(link == Path::new("in"), "{whose}: `link` leads to {}", link.display());
            let mut names = fs::read_dir(fixed.path()).map_err(|why| miette!("{whose}: {why}"))?.flatten();
            ensure!(
                names.all(|entry| entry.file_name().to_string_lossy().starts_with("out")),
                "{whose}: `fixed` was written to"
            );
        }
        Ok(())
    }
}
