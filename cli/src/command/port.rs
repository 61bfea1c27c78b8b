//! `gnomon port`.

use super::control::Which;
use crate::control::ControlError;
use crate::control::client::Client;
use crate::control::runs::Runs;
use crate::host::place::IoError;
use crate::host::tty;
use abi::control::{PortUse, VmInfo};
use clap::Args;
use std::io::{ErrorKind, Read, Write, copy, stdin, stdout};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Connect standard input and output to a port of a VM (`ports` in its VM file; see docs/control.md).
///
/// It ends when the input has ended and the guest has read it, or with the VM.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct PortArgs {
    #[command(flatten)]
    which: Which,
    /// The VM
    vm: String,
    /// The port
    port: String,
    /// Read no input, only print the guest's output
    #[arg(long)]
    listen: bool,
}

/// The time without a byte after which this command looks for the reason.
const SILENCE: Duration = Duration::from_secs(2);

/// Says what the connection waits for, whenever nothing has come for a while, until the run does not answer.
fn watch((run, vm, port): &(String, VmInfo, String), has_heard: &AtomicBool) {
    let mut last = None;
    loop {
        thread::sleep(SILENCE);
        if has_heard.swap(false, Ordering::Relaxed) {
            last = None;
            continue;
        }
        let Ok(vms) = Client::of(Some(run)).and_then(|mut client| client.vms()) else { return };
        let now = reason(&vms.ports, (vm, port), std::process::id());
        if now != last {
            now.iter().for_each(|line| tty::say(line));
            last = now;
        }
    }
}

/// Returns what a connection of process `own` to a port waits for, if that is not the guest's next word.
fn reason(uses: &[PortUse], (vm, port): (&VmInfo, &str), own: u32) -> Option<String> {
    let present = uses.iter().find(|used| used.vm == vm.number && used.port == port)?;
    let vm = &vm.name;
    if present.process != own {
        let process = present.process;
        return Some(format!(
            "gnomon: waiting until process {process} leaves port `{port}` of VM `{vm}`: one program at a time"
        ));
    }
    (present.is_open == Some(false)).then(|| {
        format!(
            "gnomon: waiting for a program in VM `{vm}` to open the port: /dev/virtio-ports/{port} (Ctrl-C ends this)"
        )
    })
}

impl PortArgs {
    /// Passes bytes on until one side has gone.
    pub fn run(self) -> miette::Result<u8> {
        let (client, vm) = self.which.find(Some(&self.vm))?;
        let run = client.run().to_owned();
        // A run serves so many commands at once; this one asks nothing more.
        drop(client);
        let known = Runs::open()?;
        let has_heard = Arc::new(AtomicBool::new(false));
        let mut stream = known.connect_port(&run, &vm.name, &self.port)?;
        let socket = |source| ControlError::Socket { run: run.clone(), source };
        if !self.listen {
            let mut other = stream.try_clone().map_err(socket)?;
            thread::spawn(move || {
                // A client that is gone needs no message.
                let _ = copy(&mut stdin().lock(), &mut other);
                let _ = other.shutdown(Shutdown::Write);
            });
        }
        let whose = (run.clone(), vm, self.port.clone());
        let heard = Arc::clone(&has_heard);
        thread::spawn(move || watch(&whose, &heard));
        let mut buffer = [0; 8 << 10];
        loop {
            let count = stream.read(&mut buffer).map_err(socket)?;
            if count == 0 {
                return Ok(0);
            }
            has_heard.store(true, Ordering::Relaxed);
            let mut out = stdout().lock();
            match out.write_all(&buffer[..count]).and_then(|()| out.flush()) {
                Ok(()) => {}
                // The reader has closed it.
                Err(why) if why.kind() == ErrorKind::BrokenPipe => return Ok(0),
                Err(why) => Err(IoError::at("write", "/dev/stdout")(why))?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::control::VmState;

    #[test]
    fn what_a_port_waits_for_is_said() {
        let vm = VmInfo {
            number: 4,
            name: "a".into(),
            state: VmState::Running,
            mode: None,
            vcpus: 1,
            memory_bytes: 0,
            resident_bytes: 0,
            since: None,
        };
        let used = |vm, port: &str, process, is_open| PortUse { vm, port: port.into(), process, is_open };
        let reason = |uses: &[PortUse]| reason(uses, (&vm, "p"), 7);
        assert_eq!(reason(&[]), None);
        assert_eq!(reason(&[used(4, "p", 7, None)]), None);
        assert_eq!(reason(&[used(4, "p", 7, Some(true))]), None);
        assert_eq!(reason(&[used(5, "p", 7, Some(false)), used(4, "q", 7, Some(false))]), None, "other ports");
        let unopened = reason(&[used(4, "p", 7, Some(false))]).expect("a reason");
        assert!(unopened.contains("VM `a` to open the port: /dev/virtio-ports/p"), "{unopened}");
        let taken = reason(&[used(4, "p", 8, Some(true))]).expect("a reason");
        assert!(taken.contains("process 8 leaves port `p`"), "{taken}");
    }
}
