//! The logs of runs in the background, as they are read.

use super::ControlError;
use super::kept::Kept;
use crate::host::place::IoError;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// The time between two looks at something that changes.
pub const LOOK: Duration = Duration::from_millis(100);

/// The end of a copy of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// The end of the present content.
    Now,
    /// The end of the VM, or of the run.
    Ended,
}

/// Copies the log of a VM to `out`, or the messages of the run itself if `vm` is `None`. Ends early if `is_cancelled` returns true, or if
/// the reader of `out` has closed it.
///
/// # Errors
/// [`ControlError`] if there is no such VM, or [`IoError`].
pub fn copy(
    kept: &Kept,
    vm: Option<&str>,
    (until, is_cancelled): (Until, &dyn Fn() -> bool),
    out: &mut dyn Write,
) -> miette::Result<()> {
    let vm = vm.map(|vm| kept.vm(Some(vm))).transpose()?;
    let [path, aside] = kept.log_paths(vm.as_deref());
    let is_over = || {
        let has_ended = |vm| kept.vm_status(vm).is_some();
        until == Until::Now || !kept.lives() || vm.as_deref().is_some_and(has_ended) || is_cancelled()
    };
    match follow([&path, &aside], is_over, out) {
        // A reader that has closed the pipe is not an error.
        Err(why) if why.kind() == ErrorKind::BrokenPipe => Ok(()),
        followed => followed.map_err(|why| IoError::at("print", &path)(why).into()),
    }
}

/// Copies a log: first the part that was put aside, then the rest, and further output until `is_over` returns true.
fn follow([path, aside]: [&Path; 2], is_over: impl Fn() -> bool, out: &mut dyn Write) -> std::io::Result<()> {
    let open = |path: &Path| match File::open(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    };
    // The log first, so that nothing is missed if it is put aside in between.
    let (mut log, before) = (open(path)?, open(aside)?);
    if let Some(mut before) = before.filter(|before| !is_same(Some(before), log.as_ref())) {
        std::io::copy(&mut before, out)?;
    }
    loop {
        let was_over = is_over();
        if let Some(file) = &mut log {
            std::io::copy(file, out)?;
        }
        let now = open(path)?;
        if !is_same(now.as_ref(), log.as_ref()) && now.is_some() {
            // Output from just before it was put aside.
            if let Some(file) = &mut log {
                std::io::copy(file, out)?;
            }
            log = now;
            continue;
        }
        out.flush()?;
        if was_over {
            return Ok(());
        }
        sleep(LOOK);
    }
}

/// Returns whether two open files are one.
pub(super) fn is_same(one: Option<&File>, other: Option<&File>) -> bool {
    let id = |file: Option<&File>| file.and_then(|file| file.metadata().ok()).map(|data| (data.dev(), data.ino()));
    id(one) == id(other)
}

/// Waits until a VM, or the whole run if `vm` is `None`, has ended. Returns its exit status; `None` if the run was killed before it could
/// say.
///
/// # Errors
/// [`ControlError`] if there is no such VM, [`ControlError::Cancelled`] if `is_cancelled` returns true before.
pub fn wait(kept: &Kept, vm: Option<&str>, is_cancelled: &dyn Fn() -> bool) -> Result<Option<u8>, ControlError> {
    let vm = vm.map(|vm| kept.vm(Some(vm))).transpose()?;
    loop {
        // In this order: a run writes statuses while it lives.
        let lives = kept.lives();
        match vm.as_deref().and_then(|vm| kept.vm_status(vm)) {
            Some(status) => return Ok(Some(status)),
            None if !lives && vm.is_none() => return Ok(kept.status()),
            // It ended without a word of this VM.
            None if !lives => return Ok(kept.status().filter(|status| *status != 0)),
            None if is_cancelled() => return Err(ControlError::Cancelled(format!("the wait for run `{}`", kept.name))),
            None => sleep(LOOK),
        }
    }
}
