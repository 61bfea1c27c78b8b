//! The journal of a run: a file beside its sockets, to which the run's process appends a line of JSON for each event in the life of the run
//! and its VMs ([`Event`]). Any number of programs may read it ([`super::watch`]).
//!
//! ```text
//!  records of the machine (ends of VMs) ──┐
//!  lost devices, messages of the run ─────┼──► Journal ──► NAME.events ──► readers
//!  answers that pass through the bridge ──┘
//! ```
//!
//! - The machine reports ends of VMs by itself. Other states are known from answers to commands, so they are as recent as the last request.
//! - The process locks the file while it lives. If the lock is free and no [`Happening::RunEnded`] is there, the run was killed.
//! - The file is removed at the end of the run. Readers that have it open still read the rest of it.
//! - Each event has a number, so a reader sees if any are missing.

use abi::control::save::Save;
use abi::control::{Answer, Power, Request, VmState, Vms};
use abi::record::{EndReason, VmEnd};
use rustix::fs::{FlockOperation, flock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The size at which a journal continues in a new file, in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// The longest text of a message, in characters.
const MOST_TEXT: usize = 1000;
/// The line that says that the journal continues in a new file.
pub(super) const CONTINUED: &str = r#"{"continued":true}"#;

/// An event of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// The run.
    pub run: String,
    /// The event's number among those of the run, from 0.
    pub number: u64,
    /// The time at which the run learned of it, in milliseconds since 1970 (UTC).
    pub time_ms: u64,
    /// The event itself.
    #[serde(flatten)]
    pub what: Happening,
}

/// The kind of an event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Happening {
    /// The run can be reached by commands. Its machine starts.
    RunStarted {
        /// The names of its VMs, in the order of their numbers.
        vms: Vec<String>,
    },
    /// The machine of the run has booted.
    RunBooted,
    /// The VM exists: it waits for no other VM any more.
    VmCreated {
        /// The VM.
        vm: String,
    },
    /// The VM is being started.
    VmStarting {
        /// The VM.
        vm: String,
    },
    /// The VM arrives from another run.
    VmArriving {
        /// The VM.
        vm: String,
    },
    /// The VM has started, and runs.
    VmRunning {
        /// The VM.
        vm: String,
    },
    /// The VM is paused.
    VmPaused {
        /// The VM.
        vm: String,
    },
    /// The VM runs again after a pause.
    VmResumed {
        /// The VM.
        vm: String,
    },
    /// The VM was given to another run, and is paused here.
    VmGivenAway {
        /// The VM.
        vm: String,
    },
    /// The VM starts over.
    VmReset {
        /// The VM.
        vm: String,
    },
    /// The VM is being stopped.
    VmEnding {
        /// The VM.
        vm: String,
    },
    /// The VM has ended.
    VmEnded {
        /// The VM.
        vm: String,
        /// The exit status of a run with this VM alone.
        status: u8,
        /// The reason.
        cause: Cause,
        /// Further words about the reason.
        message: Option<String>,
    },
    /// A device of the VM has lost its process on the host.
    DeviceLost {
        /// The VM.
        vm: String,
        /// The device, such as `network` or `share src`.
        device: String,
    },
    /// The run prints a message.
    Message {
        /// The text.
        text: String,
    },
    /// The run has ended.
    RunEnded {
        /// The exit status; null if it was killed, or failed before it could say.
        status: Option<u8>,
    },
    /// Events of the run are missing here, because they are too old or could not be written.
    Lost {
        /// The number of missing events.
        count: u64,
    },
}

/// The reason for the end of a VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The guest powered off.
    PowerOff,
    /// A command ended it.
    Requested,
    /// The guest reported a system failure.
    SystemFailure,
    /// Gnomon stopped it.
    Killed,
    /// The VM could not be started.
    NotStarted,
}

impl Cause {
    /// Returns the cause, and the words that belong to it.
    fn of(reason: &EndReason) -> (Self, Option<String>) {
        match reason {
            EndReason::Poweroff => (Self::PowerOff, None),
            EndReason::Requested => (Self::Requested, None),
            EndReason::SystemFailure => (Self::SystemFailure, None),
            EndReason::Killed { message } => (Self::Killed, Some(bounded(message))),
            EndReason::NotStarted { message } => (Self::NotStarted, Some(bounded(message))),
        }
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(MOST_TEXT).collect()
}

/// The last known state of a VM.
#[derive(Debug, Default)]
struct Known {
    state: Option<VmState>,
    /// The start of its present life, in ticks.
    since: Option<u64>,
    is_created: bool,
    /// A reset was noted, and its next life has not begun.
    is_reset: bool,
    has_ended: bool,
}

/// The states of a run's VMs, by their numbers.
#[derive(Debug, Default)]
struct States {
    names: Vec<String>,
    vms: BTreeMap<u64, Known>,
}

impl States {
    fn name(&self, vm: u64) -> Option<String> {
        self.names.get(usize::try_from(vm).ok()?).cloned()
    }

    /// Returns the events that lead to these states.
    fn observe(&mut self, now: &Vms) -> Vec<Happening> {
        let mut events = Vec::new();
        for info in &now.vms {
            let known = self.vms.entry(info.number).or_default();
            if known.has_ended || info.state == VmState::Ended {
                continue;
            }
            let vm = || info.name.clone();
            if !known.is_created && info.state != VmState::Waiting {
                known.is_created = true;
                events.push(Happening::VmCreated { vm: vm() });
            }
            let is_anew = known.since.is_some() && info.since.is_some() && known.since != info.since;
            let starts_over = info.state == VmState::Starting
                && matches!(known.state, Some(VmState::Running | VmState::Paused | VmState::GivenAway));
            if (is_anew || starts_over) && !known.is_reset {
                known.is_reset = true;
                known.state = None;
                events.push(Happening::VmReset { vm: vm() });
            }
            if known.state != Some(info.state) {
                let was_paused = matches!(known.state, Some(VmState::Paused | VmState::GivenAway));
                events.extend(match info.state {
                    VmState::Starting => Some(Happening::VmStarting { vm: vm() }),
                    VmState::Arriving => Some(Happening::VmArriving { vm: vm() }),
                    VmState::Running if was_paused => Some(Happening::VmResumed { vm: vm() }),
                    VmState::Running => Some(Happening::VmRunning { vm: vm() }),
                    VmState::Paused => Some(Happening::VmPaused { vm: vm() }),
                    VmState::GivenAway => Some(Happening::VmGivenAway { vm: vm() }),
                    VmState::Ending => Some(Happening::VmEnding { vm: vm() }),
                    VmState::Waiting | VmState::Ended => None,
                });
                known.state = Some(info.state);
            }
            if info.since.is_some() && info.state != VmState::Starting {
                known.is_reset &= known.since == info.since;
                known.since = info.since;
            }
        }
        events
    }

    /// Returns the event of a request that the machine has carried out.
    fn carried_out(&mut self, request: &Request) -> Option<Happening> {
        let (number, state) = match request {
            Request::Pause(vm) => (*vm, VmState::Paused),
            Request::Resume(vm) => (*vm, VmState::Running),
            Request::Save(vm, Save::Give(_)) => (*vm, VmState::GivenAway),
            Request::Power(vm, Power::Reset) => (*vm, VmState::Starting),
            _ => return None,
        };
        let vm = self.name(number)?;
        let known = self.vms.entry(number).or_default();
        if known.has_ended || known.state == Some(state) {
            return None;
        }
        let event = match state {
            VmState::Paused => Happening::VmPaused { vm },
            VmState::Running => Happening::VmResumed { vm },
            VmState::GivenAway => Happening::VmGivenAway { vm },
            // One that has not started is not reset.
            _ if !matches!(known.state, Some(VmState::Running | VmState::Paused)) => return None,
            _ => {
                known.is_reset = true;
                known.state = None;
                return Some(Happening::VmReset { vm });
            }
        };
        known.state = Some(state);
        Some(event)
    }
}

/// The file of a journal.
#[derive(Debug)]
struct Journalled {
    run: String,
    path: PathBuf,
    file: File,
    bytes: u64,
    most: u64,
    /// The number of the next event.
    number: u64,
    /// The last line is torn, because it could not be written as a whole.
    is_torn: bool,
    has_ended: bool,
    states: States,
}

/// The journal of a run, for the process of the run. Clones write to the same file.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Mutex<Journalled>>);

/// Makes a locked file, and gives it its name only when `before` has succeeded: no reader finds it without the lock.
fn create(path: &Path, before: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<File> {
    let new = path.with_extension("events-new");
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let named = flock(&file, FlockOperation::LockExclusive)
        .map_err(Into::into)
        .and_then(|()| before())
        .and_then(|()| fs::rename(&new, path));
    if named.is_err() {
        let _ = fs::remove_file(&new);
    }
    named.map(|()| file)
}

impl Journal {
    /// Begins the journal of a run in a new file, which replaces an older one.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub(super) fn begin(run: &str, path: PathBuf) -> std::io::Result<Self> {
        let (file, states) = (create(&path, || Ok(()))?, States::default());
        let (run, bytes, most, number) = (run.to_owned(), 0, MOST_BYTES, 0);
        let new = Journalled { run, path, file, bytes, most, number, is_torn: false, has_ended: false, states };
        Ok(Self(Arc::new(Mutex::new(new))))
    }

    fn lock(&self) -> MutexGuard<'_, Journalled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the run has started, with these VMs, in the order of their numbers.
    pub fn started(&self, vms: &[String]) {
        let mut all = self.lock();
        all.states.names = vms.to_vec();
        all.add(Happening::RunStarted { vms: vms.to_vec() });
    }

    /// Notes an event that changes no VM's state.
    pub fn note(&self, what: Happening) {
        self.lock().add(what);
    }

    /// Notes a message of the run.
    pub fn message(&self, text: &str) {
        self.note(Happening::Message { text: bounded(text) });
    }

    /// Notes the end of a VM, with its status.
    pub fn vm_ended(&self, end: &VmEnd, status: u8) {
        let mut all = self.lock();
        if let Some(number) = all.states.names.iter().position(|name| *name == end.vm) {
            all.states.vms.entry(number as u64).or_default().has_ended = true;
        }
        let (cause, message) = Cause::of(&end.reason);
        all.add(Happening::VmEnded { vm: end.vm.clone(), status, cause, message });
    }

    /// Notes the end of the run. Nothing is added after that.
    pub fn ended(&self, status: u8) {
        let mut all = self.lock();
        all.add(Happening::RunEnded { status: Some(status) });
        all.has_ended = true;
    }

    /// Notes what an answer of the machine says about VMs. The caller holds the lock of the line to the machine, so that answers come in
    /// their order.
    pub(super) fn answered(&self, request: &Request, answer: &Answer) {
        let mut all = self.lock();
        match answer {
            Answer::Vms(vms) => all.states.observe(vms).into_iter().for_each(|event| all.add(event)),
            Answer::Done => {
                if let Some(event) = all.states.carried_out(request) {
                    all.add(event);
                }
            }
            _ => {}
        }
    }
}

impl Journalled {
    /// Adds an event. If it cannot be written, readers see that its number is missing.
    fn add(&mut self, what: Happening) {
        if self.has_ended {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let event = Event { run: self.run.clone(), number: self.number, time_ms, what };
        self.number += 1;
        if self.bytes >= self.most {
            let path = self.path.clone();
            // Without that line, readers of the old file would take the end of its lock for the end of the run. So the old file stays if
            // there is no room for the line.
            if let Ok(file) = create(&path, || self.line(CONTINUED.as_bytes())) {
                (self.file, self.bytes, self.is_torn) = (file, 0, false);
            }
        }
        // An event that is missing is noted by its number.
        let _ = self.line(&serde_json::to_vec(&event).unwrap_or_default());
    }

    fn line(&mut self, content: &[u8]) -> std::io::Result<()> {
        let mut line = if self.is_torn { vec![b'\n'] } else { Vec::new() };
        line.extend(content);
        line.push(b'\n');
        let written = self.file.write_all(&line);
        self.is_torn = written.is_err();
        self.bytes += line.len() as u64;
        written
    }
}

#[cfg(test)]
impl Journal {
    /// Lets the journal continue in a new file after so many bytes.
    pub(super) fn with_most(self, most: u64) -> Self {
        self.lock().most = most;
        self
    }

    /// Opens the file anew, and lets writes fail or succeed from now on.
    pub(super) fn let_write(&self, may: bool) {
        let mut all = self.lock();
        let file = OpenOptions::new().read(true).append(may).open(&all.path).expect("the file");
        // The former lock ends with the former file.
        all.file = file;
        flock(&all.file, FlockOperation::LockExclusive).expect("no other has it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::control::VmInfo;

    fn states() -> States {
        States { names: vec!["a".into()], ..States::default() }
    }

    fn vms(state: VmState, since: Option<u64>) -> Vms {
        let vm = VmInfo {
            number: 0,
            name: "a".into(),
            state,
            mode: None,
            vcpus: 1,
            memory_bytes: 0,
            resident_bytes: 0,
            since,
        };
        Vms { now: 0, timebase: 1, vms: vec![vm], lost: Vec::new(), ports: Vec::new(), disks: Vec::new() }
    }

    fn names(events: Vec<Happening>) -> Vec<String> {
        let name = |event| serde_json::to_value(event).expect("JSON")["event"].as_str().expect("text").to_owned();
        events.into_iter().map(name).collect()
    }

    #[test]
    fn states_give_one_event_for_each_transition() {
        use VmState::{Ending, GivenAway, Paused, Running, Starting, Waiting};
        let mut states = states();
        for (state, since, expected) in [
            (Waiting, None, &[][..]),
            (Starting, None, &["vm-created", "vm-starting"]),
            (Running, Some(5), &["vm-running"]),
            (Running, Some(5), &[]),
            (Paused, Some(5), &["vm-paused"]),
            (Running, Some(5), &["vm-resumed"]),
            (Starting, Some(5), &["vm-reset", "vm-starting"]),
            (Running, Some(9), &["vm-running"]),
            // A reset of which no state was seen.
            (Running, Some(12), &["vm-reset", "vm-running"]),
            (Running, Some(12), &[]),
            (Starting, Some(12), &["vm-reset", "vm-starting"]),
            (Running, Some(15), &["vm-running"]),
            (GivenAway, Some(15), &["vm-given-away"]),
            (Ending, Some(15), &["vm-ending"]),
        ] {
            assert_eq!(names(states.observe(&vms(state, since))), expected, "{state:?} {since:?}");
        }
        states.vms.get_mut(&0).expect("it is known").has_ended = true;
        assert_eq!(states.observe(&vms(Running, Some(15))), [], "an answer from before its end");
    }

    #[test]
    fn what_a_command_did_is_told_once() {
        let mut states = states();
        states.observe(&vms(VmState::Running, Some(1)));
        let pause = states.carried_out(&Request::Pause(0));
        assert_eq!(pause, Some(Happening::VmPaused { vm: "a".into() }));
        assert_eq!(states.observe(&vms(VmState::Paused, Some(1))), []);
        assert_eq!(states.carried_out(&Request::Resume(0)), Some(Happening::VmResumed { vm: "a".into() }));
        assert_eq!(states.carried_out(&Request::Resume(0)), None);
        let reset = states.carried_out(&Request::Power(0, Power::Reset));
        assert_eq!(reset, Some(Happening::VmReset { vm: "a".into() }));
        assert_eq!(names(states.observe(&vms(VmState::Running, Some(3)))), ["vm-running"]);
        assert_eq!(names(states.observe(&vms(VmState::Running, Some(4)))), ["vm-reset", "vm-running"]);
        assert_eq!(states.carried_out(&Request::Pause(7)), None, "a VM that the run does not have");
    }
}
