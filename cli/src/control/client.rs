//! Asks a run.

use super::ControlError;
use super::runs::Runs;
use abi::control::frame::{Bad, Reader, decode, encode};
use abi::control::{Answer, Events, HartTimes, MOST_ANSWER_BYTES, Output, Request, Trace, VmInfo, VmState, Vms, Whose};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A run that can be asked.
#[derive(Debug)]
pub struct Client {
    run: String,
    stream: UnixStream,
    reader: Reader,
    /// Received bytes that were not decoded yet.
    rest: Vec<u8>,
    number: u32,
    patience: Duration,
}

impl Client {
    /// Connects to the run of that name, or the only one.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn of(name: Option<&str>) -> Result<Self, ControlError> {
        let runs = Runs::open()?;
        let run = runs.choose(name)?;
        let stream = runs.connect(&run)?;
        Ok(Self::new(run, stream, PATIENCE))
    }

    /// Connects to the run with a VM, and returns that VM as well. A VM's name that only one of several runs has needs no name of a run.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn reach(run: Option<&str>, vm: Option<&str>) -> Result<(Self, VmInfo), ControlError> {
        let names = Runs::open()?.names()?;
        let (None, Some(name), true) = (run, vm, names.len() > 1) else {
            let mut client = Self::of(run)?;
            let vm = client.choose(vm)?;
            return Ok((client, vm));
        };
        let found = names.iter().filter_map(|run| {
            let mut client = Self::of(Some(run)).ok()?;
            let vm = client.choose(Some(name)).ok()?;
            Some((client, vm))
        });
        let mut found: Vec<_> = found.collect();
        if found.len() > 1 {
            let runs = found.into_iter().map(|(client, _)| client.run).collect();
            return Err(ControlError::WhichOfRuns { name: name.into(), runs });
        }
        found.pop().ok_or_else(|| ControlError::NowhereVm { name: name.into(), runs: names })
    }

    /// A run of that name behind a socket.
    #[must_use]
    pub fn new(run: String, stream: UnixStream, patience: Duration) -> Self {
        Self { run, stream, reader: Reader::new(MOST_ANSWER_BYTES), rest: Vec::new(), number: 0, patience }
    }

    /// The run's name.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`ControlError`]; a refusal is one, too.
    pub fn ask(&mut self, what: &str, request: &Request) -> Result<Answer, ControlError> {
        self.number = self.number.wrapping_add(1);
        let until = Instant::now() + self.patience;
        self.stream.set_write_timeout(Some(self.patience)).map_err(|why| self.broken(why))?;
        let frame = encode(self.number, request);
        // If the run hangs up it may have said why before.
        let written = self.stream.write_all(&frame);
        let answer = self.answer(until);
        match (written, answer) {
            (_, Ok(Answer::Refused(why))) => {
                Err(ControlError::Refused { run: self.run.clone(), what: what.into(), why })
            }
            (Err(why), Err(ControlError::Gone(_))) => Err(self.broken(why)),
            (_, answer) => answer,
        }
    }

    fn broken(&self, source: std::io::Error) -> ControlError {
        match source.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ControlError::Gone(self.run.clone()),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => ControlError::Silent(self.run.clone()),
            _ => ControlError::Socket { run: self.run.clone(), source },
        }
    }

    fn answer(&mut self, until: Instant) -> Result<Answer, ControlError> {
        let mut buffer = [0; 64 << 10];
        loop {
            let mut rest = self.rest.as_slice();
            while let Some(frame) = self.reader.next(&mut rest) {
                match frame.and_then(|frame| decode::<Answer>(&frame)) {
                    Ok((number, answer)) if number == self.number => {
                        self.rest = rest.to_vec();
                        return Ok(answer);
                    }
                    // To what was asked before, and not waited for.
                    Ok(_) => {}
                    Err(Bad::Version { version, .. }) => {
                        return Err(ControlError::Version { run: self.run.clone(), theirs: version });
                    }
                    Err(_) => return Err(ControlError::Nonsense(self.run.clone())),
                }
            }
            self.rest.clear();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ControlError::Silent(self.run.clone()));
            }
            self.stream.set_read_timeout(Some(left)).map_err(|why| self.broken(why))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ControlError::Gone(self.run.clone())),
                Ok(count) => self.rest.extend_from_slice(&buffer[..count]),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(self.broken(why)),
            }
        }
    }

    /// The error for an answer that does not fit the request.
    #[must_use]
    pub fn nonsense(&self) -> ControlError {
        ControlError::Nonsense(self.run.clone())
    }

    /// Sends a request whose answer is only that it was carried out.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn tell(&mut self, what: &str, request: &Request) -> Result<(), ControlError> {
        match self.ask(what, request)? {
            Answer::Done => Ok(()),
            _ => Err(self.nonsense()),
        }
    }

    /// All VMs.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn vms(&mut self) -> Result<Vms, ControlError> {
        match self.ask("its VMs", &Request::Vms)? {
            Answer::Vms(vms) => Ok(vms),
            _ => Err(self.nonsense()),
        }
    }

    /// The counters of the machine, a hart or a VM.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn counters(&mut self, whose: Whose) -> Result<Vec<(String, u64)>, ControlError> {
        match self.ask("counters", &Request::Counters(whose))? {
            Answer::Counters(counters) => Ok(counters),
            _ => Err(self.nonsense()),
        }
    }

    /// The values of the counters without names, in their order.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn values(&mut self, whose: Whose) -> Result<Vec<u64>, ControlError> {
        match self.ask("counters", &Request::Values(whose))? {
            Answer::Values(values) => Ok(values),
            _ => Err(self.nonsense()),
        }
    }

    /// All tunables.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn tunables(&mut self) -> Result<Vec<(String, String)>, ControlError> {
        match self.ask("tunables", &Request::Tunables)? {
            Answer::Tunables(tunables) => Ok(tunables),
            _ => Err(self.nonsense()),
        }
    }

    /// Returns the times that each hart has noted: in guests, in Gnomon and idle. Harts note them for `ms` milliseconds
    /// from now on.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn harts(&mut self, ms: u32) -> Result<Vec<HartTimes>, ControlError> {
        match self.ask("harts", &Request::Harts(ms))? {
            Answer::Harts(harts) => Ok(harts),
            _ => Err(self.nonsense()),
        }
    }

    /// Exits, see [`Trace`].
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn events(&mut self, trace: Trace) -> Result<Events, ControlError> {
        match self.ask("a trace", &Request::Trace(trace))? {
            Answer::Events(events) => Ok(events),
            _ => Err(self.nonsense()),
        }
    }

    /// The output of a VM from that byte on; by default the end of it.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn output(&mut self, vm: u64, from: Option<u64>) -> Result<Output, ControlError> {
        match self.ask("its console", &Request::Output { vm, from })? {
            Answer::Output(output) => Ok(output),
            _ => Err(self.nonsense()),
        }
    }

    /// Types bytes on a VM's console, up to [`abi::control::MOST_TYPED`]; returns how many it had room for.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn type_in(&mut self, vm: u64, bytes: Vec<u8>) -> Result<usize, ControlError> {
        match self.ask("its console", &Request::Type(vm, bytes))? {
            Answer::Taken(count) => Ok(count as usize),
            _ => Err(self.nonsense()),
        }
    }

    /// The VM that is meant: that of the name, or the only one.
    ///
    /// # Errors
    /// If there is none, or several.
    pub fn choose(&mut self, name: Option<&str>) -> Result<VmInfo, ControlError> {
        let mut vms = self.vms()?.vms;
        vms.retain(|vm| vm.state != VmState::Ended);
        let known: Vec<String> = vms.iter().map(|vm| vm.name.clone()).collect();
        let run = self.run.clone();
        match name {
            Some(name) => {
                let found = vms.into_iter().find(|vm| vm.name == name);
                found.ok_or_else(|| ControlError::UnknownVm { run, name: name.into(), known })
            }
            None if vms.len() > 1 => Err(ControlError::WhichVm { run, known }),
            None => vms.pop().ok_or(ControlError::NoVm(run)),
        }
    }
}
