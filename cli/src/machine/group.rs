//! The processes of a program in place of QEMU (`GNOMON_QEMU`), such as a script that starts QEMU as its child.
//!
//! The program's own process ends with this one by a signal of the kernel ([`crate::host::sandbox::end_with`]), its children do
//! not. So the program has a process group, and a helper, `gnomon end-group`, that waits for the end of a pipe from this
//! process and then ends the group. It also works if this process is killed.

use super::confine::gnomon;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

/// The command line of the helper.
#[derive(Debug, clap::Args)]
pub struct EndGroupArgs {
    /// The group's number.
    group: i32,
}

impl EndGroupArgs {
    /// Waits until the standard input ends, and ends the group. Returns the exit status.
    #[must_use]
    pub fn run(self) -> u8 {
        // An input that cannot be read has ended.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        // It may have ended by itself.
        let _ = Pid::from_raw(self.group).map(|group| kill_process_group(group, Signal::KILL));
        0
    }
}

/// Returns whether a program may start QEMU as a child: if it is not machine code, it is a script.
pub(super) fn is_script(program: &OsStr) -> bool {
    let mut magic = [0; 4];
    let file = crate::host::place::find_program(program).and_then(|path| File::open(path).ok());
    file.is_some_and(|mut file| file.read_exact(&mut magic).is_err() || magic != *b"\x7fELF")
}

/// The process group of a program, which ends with this process. Dropping this ends the helper alone.
#[derive(Debug)]
pub(super) struct Group {
    leader: Pid,
    /// Its standard input is a pipe that this process has the only other end of.
    helper: Child,
}

impl Group {
    /// Starts the helper for a program that is the leader of a process group.
    ///
    /// # Errors
    /// If the helper cannot be started.
    pub(super) fn of(leader: &Child) -> std::io::Result<Self> {
        let mut command = gnomon("end-group");
        command.arg(leader.id().to_string()).env_clear().current_dir("/");
        // A key that interrupts this program must not end the helper.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { leader: Pid::from_child(leader), helper: command.spawn()? })
    }

    /// Ends the processes of the group. Its leader must not have been waited for: its number could be another one's.
    pub(super) fn end(self) {
        // All may have ended by themselves.
        let _ = kill_process_group(self.leader, Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.helper.kill();
        let _ = self.helper.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_told_from_programs() {
        let dir = tempfile::tempdir().expect("a directory");
        let script = dir.path().join("qemu");
        std::fs::write(&script, "#!/bin/sh\n").expect("a file");
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its rights");
        assert!(is_script(script.as_os_str()));
        assert!(!is_script(std::env::current_exe().expect("this program").as_os_str()));
        assert!(!is_script(OsStr::new("no-such-program")));
    }
}
