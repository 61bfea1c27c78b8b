//! `gnomon port`.

use super::control::Which;
use crate::control::ControlError;
use crate::control::runs::Runs;
use clap::Args;
use std::io::{Read, Write, copy, stdin, stdout};
use std::net::Shutdown;
use std::thread;

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

impl PortArgs {
    /// Passes bytes on until one side has gone.
    pub fn run(self) -> miette::Result<u8> {
        let mut client = self.which.client()?;
        let vm = client.choose(Some(&self.vm))?;
        let run = client.run().to_owned();
        // A run serves so many commands at once; this one asks nothing more.
        drop(client);
        let mut stream = Runs::open()?.connect_port(&run, &vm.name, &self.port)?;
        let socket = |source| ControlError::Socket { run: run.clone(), source };
        if !self.listen {
            let mut other = stream.try_clone().map_err(socket)?;
            thread::spawn(move || {
                // A client that is gone needs no message.
                let _ = copy(&mut stdin().lock(), &mut other);
                let _ = other.shutdown(Shutdown::Write);
            });
        }
        let mut buffer = [0; 8 << 10];
        loop {
            let count = stream.read(&mut buffer).map_err(socket)?;
            if count == 0 {
                return Ok(0);
            }
            let mut out = stdout().lock();
            if out.write_all(&buffer[..count]).and_then(|()| out.flush()).is_err() {
                // The reader has closed it.
                return Ok(0);
            }
        }
    }
}
