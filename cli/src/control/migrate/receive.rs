//! The side to which a VM comes.

use super::line::{Address, Line, MigrateError, Place, Reply, Sent};
use crate::control::ControlError;
use crate::control::client::Client;
use crate::control::ports::SILENT;
use crate::control::save::patiently;
use crate::host::place::IoError;
use abi::control::save::{Load, MOST_STATE};
use abi::control::{Answer, Request, VmState};
use abi::snapshot::bytes::Bytes;
use abi::snapshot::file::Writer;
use std::io::Write;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// The time limit for the first message.
const HELLO: Duration = Duration::from_secs(10);
/// The time limit for each one after it.
const QUIET: Duration = Duration::from_secs(120);
/// The time limit for the machine to make the VM.
const MADE: Duration = Duration::from_secs(120);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// A VM that comes.
#[derive(Debug)]
pub struct Incoming {
    line: Line,
    /// A snapshot without pages: the VM's description.
    file: NamedTempFile,
    /// The files' devices and inodes of the disks that the VM writes to, in the disks' order.
    disks: Vec<(u64, u64)>,
}

impl Incoming {
    /// Waits at that place until a VM comes, and takes its description. Calls `listening` when the other side can connect.
    ///
    /// # Errors
    /// [`MigrateError`].
    pub fn wait(address: &Address, listening: impl FnOnce()) -> Result<Self, MigrateError> {
        let place = Place::open(address)?;
        listening();
        let broken = |source| MigrateError::NoPlace { address: address.clone(), source };
        // Whatever else connects is no sender.
        let (line, state, disks) = loop {
            let mut line = place.accept().map_err(broken)?;
            if let Ok(Sent::Hello(state, disks)) = line.get(HELLO) {
                break (line, state, disks);
            }
        };
        drop(place);
        let at = |source| IoError::at("write a file in", std::env::temp_dir())(source);
        let mut file = NamedTempFile::with_prefix("gnomon-incoming-").map_err(at)?;
        let (writer, front) = Writer::begin(&state.0);
        file.write_all(&front).and_then(|()| file.write_all(&writer.end())).map_err(at)?;
        Ok(Self { line, file, disks })
    }

    /// Returns the path of a snapshot that describes the VM.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns the device and inode of each file of a disk that the VM writes to, in the disks' order.
    #[must_use]
    pub fn disks(&self) -> &[(u64, u64)] {
        &self.disks
    }

    /// Tells the sender that the VM cannot come.
    pub fn refuse(mut self, why: &str) {
        // It may be gone.
        let _ = self.line.put(&Reply::Refused(why.into()));
    }

    /// Takes the VM, whose number is 0, in a run that has been started for it.
    ///
    /// # Errors
    /// [`MigrateError`]. The VM has not started then, and the sender has been told; except after [`MigrateError::Unknown`].
    pub fn take(mut self, client: &mut Client) -> Result<(), MigrateError> {
        match self.take_all(client) {
            // The sender learns that when the line ends.
            Err(MigrateError::Unknown(why)) => Err(MigrateError::Unknown(why)),
            Err(why) => {
                let _ = self.line.put(&Reply::Refused(why.to_string()));
                Err(why)
            }
            Ok(()) => Ok(()),
        }
    }

    fn take_all(&mut self, client: &mut Client) -> Result<(), MigrateError> {
        await_vm(client)?;
        self.line.put(&Reply::Ready)?;
        loop {
            match self.line.get(QUIET)? {
                Sent::Hello(..) => return Err(MigrateError::Nonsense("a second state comes first")),
                Sent::Pages(pages) => load(client, Load::Pages(pages)).map(drop)?,
                Sent::Zero(mut from, end) => {
                    while from < end {
                        match load(client, Load::Zero { from, end })? {
                            Answer::Pages(pages) if pages.next > from => from = pages.next,
                            _ => return Err(client.nonsense().into()),
                        }
                    }
                }
                Sent::Sync => self.line.put(&Reply::Synced)?,
                Sent::State(state) => {
                    for (n, piece) in state.0.chunks(MOST_STATE).enumerate() {
                        let from = (n * MOST_STATE) as u32;
                        load(client, Load::State { from, bytes: Bytes(piece.into()) })?;
                    }
                    load(client, Load::Check)?;
                    self.line.put(&Reply::Checked)?;
                }
                Sent::Commit => {
                    load(client, Load::Start).map_err(|why| match why {
                        ControlError::Refused { why: ref reason, .. } if reason != SILENT => why.into(),
                        // The request may still be carried out.
                        why => MigrateError::Unknown(why.to_string()),
                    })?;
                    // It runs here, whether or not the sender hears of it.
                    let _ = self.line.put(&Reply::Started);
                    return Ok(());
                }
            }
        }
    }
}

fn load(client: &mut Client, load: Load) -> Result<Answer, ControlError> {
    patiently(client, "cannot take the VM", &Request::Load(0, load))
}

/// Waits until the machine has made the VM.
fn await_vm(client: &mut Client) -> Result<(), MigrateError> {
    let until = Instant::now() + MADE;
    loop {
        match client.vms() {
            Ok(vms) => match vms.vms.first().map(|vm| vm.state) {
                Some(VmState::Arriving) => return Ok(()),
                Some(VmState::Ended | VmState::Ending | VmState::Running) => {
                    return Err(MigrateError::Refused("it could not be made here".into()));
                }
                _ => {}
            },
            Err(why @ (ControlError::Gone(_) | ControlError::Nonsense(_))) => return Err(why.into()),
            // The machine boots.
            Err(_) => {}
        }
        if Instant::now() >= until {
            return Err(MigrateError::Refused("its machine did not start".into()));
        }
        sleep(PAUSE);
    }
}
