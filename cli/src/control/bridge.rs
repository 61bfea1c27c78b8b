//! Stands between the commands and a run's machine, as a part of `gnomon run`: passes requests on, one after the other, and each
//! answer back to its command. So any number of commands may send requests at once, and none can block the machine for others.

use super::journal::{Happening, Journal};
use super::ports::{self, CROWDED, SILENT};
use super::runs::{Claim, VmDisk};
use super::sessions;
use abi::agent;
use abi::control::debug::Debug;
use abi::control::frame::{Bad, Reader, decode, encode};
use abi::control::save::{Load, NOT_YET, Save, Saving};
use abi::control::{Answer, MOST_ANSWER_BYTES, MOST_REQUEST_BYTES, PortUse, Request};
use rustix::net::sockopt::socket_peercred;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The time limit for an answer of the machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;
/// The most commands that may be connected at a time.
const MOST_CLIENTS: usize = 32;

/// The way to the machine.
#[derive(Debug)]
struct Link {
    stream: UnixStream,
    /// The rest of a request that the machine did not read in time. It goes first: Gnomon waits for all of a long message.
    unsent: Vec<u8>,
    reader: Reader,
    number: u32,
}

/// The state that a command holds in VMs, which is released when it is gone.
#[derive(Debug, Default)]
struct Holds {
    /// The VM that it is attached to as a debugger.
    debugs: Option<u64>,
    /// The VM that stands still for its snapshot, and the number of that.
    saves: Option<(u64, u32)>,
    /// The VM whose dirty log is on for it.
    logs: Option<u64>,
}

#[derive(Debug)]
struct Shared {
    link: Mutex<Option<Link>>,
    /// There is a way to the machine.
    is_there: Condvar,
    clients: AtomicUsize,
    /// The number of connections to ports so far.
    connections: AtomicU32,
    /// By VM, devices whose host's side has ended.
    lost: Mutex<Vec<(String, String)>>,
    /// Ports that programs are connected to.
    ports: Mutex<Vec<PortUse>>,
    /// Events of the run.
    journal: Journal,
    /// The disks that VMs write to.
    disks: Vec<VmDisk>,
    /// Held by a request that takes or releases their locks.
    disks_turn: Mutex<()>,
    /// In place of [`PATIENCE`], for tests.
    patience: Option<Duration>,
}

/// The bridge of a run: as long as it lives the run can be asked.
#[derive(Debug)]
pub struct Bridge {
    claim: Arc<Claim>,
    shared: Arc<Shared>,
}

impl Bridge {
    /// Begins to serve the sockets of a run. Its machine is to connect soon.
    #[must_use]
    pub fn start(claim: Claim) -> Self {
        Self::start_with(claim, None)
    }

    /// Like [`Bridge::start`], with another time limit for answers.
    pub(super) fn start_with(mut claim: Claim, patience: Option<Duration>) -> Self {
        let disks = std::mem::take(&mut claim.disks);
        let claim = Arc::new(claim);
        let shared = Arc::new(Shared::new(claim.journal.clone(), disks, patience));
        let (machine, bridge, own) = (Arc::clone(&shared), Arc::clone(&shared), Arc::downgrade(&claim));
        // Clones, so that the files go when the run does, whatever threads are left.
        if let Ok(listener) = claim.machine.try_clone() {
            thread::spawn(move || {
                let Ok((stream, _)) = listener.accept() else { return };
                // No other connection is accepted there.
                own.upgrade().into_iter().for_each(|claim| drop(fs::remove_file(claim.machine_path())));
                let link = Link { stream, unsent: Vec::new(), reader: Reader::new(MOST_ANSWER_BYTES), number: 0 };
                *machine.lock() = Some(link);
                machine.is_there.notify_all();
            });
        }
        for socket in &claim.ports {
            let Ok(listener) = socket.listener.try_clone() else { continue };
            if socket.name == agent::PORT {
                let (shared, vm, port) = (Arc::clone(&shared), socket.vm, socket.port);
                let ask = move |wish| shared.pass_on(&Request::Port(vm, port, wish));
                let next = {
                    let shared = Arc::clone(&bridge);
                    move || shared.connections.fetch_add(1, Ordering::SeqCst)
                };
                sessions::serve(listener, ask, next);
                continue;
            }
            let (shared, vm, port, name) = (Arc::clone(&shared), socket.vm, socket.port, socket.name.clone());
            // One after the other.
            thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    let connection = shared.connections.fetch_add(1, Ordering::SeqCst);
                    let process =
                        socket_peercred(&client).map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
                    let of = |is_open| PortUse { vm, port: name.clone(), process, is_open };
                    shared.note_port(of(None));
                    ports::serve(client, connection, &|wish| {
                        let answer = shared.pass_on(&Request::Port(vm, port, wish));
                        if let Some(Answer::Heard(heard)) = &answer {
                            shared.note_port(of(Some(heard.is_open)));
                        }
                        answer
                    });
                    shared.port_uses().retain(|there| (there.vm, &there.port) != (vm, &name));
                }
            });
        }
        if let Ok(listener) = claim.commands.try_clone() {
            thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    let shared = Arc::clone(&shared);
                    if shared.clients.fetch_add(1, Ordering::SeqCst) >= MOST_CLIENTS {
                        let _ = (&client).write_all(&encode(1, &refuse(CROWDED)));
                        shared.clients.fetch_sub(1, Ordering::SeqCst);
                        continue;
                    }
                    thread::spawn(move || {
                        let mut held = Holds::default();
                        // A command that disconnects needs no answer.
                        let _ = shared.serve(client, &mut held);
                        shared.release(held);
                        shared.clients.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
        }
        Self { claim, shared: bridge }
    }

    /// Has commands told from now on that the host's side of a VM's device has ended.
    pub fn lost(&self, vm: &str, device: String) {
        let mut all = self.shared.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = (vm.to_owned(), device);
        if !all.contains(&lost) {
            let (vm, device) = lost.clone();
            self.shared.journal.note(Happening::DeviceLost { vm, device });
            all.push(lost);
        }
    }

    /// Returns the journal of the run.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    /// Returns the ports that programs are connected to.
    #[must_use]
    pub fn ports(&self) -> Vec<PortUse> {
        self.shared.port_uses().clone()
    }

    /// The run's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.claim.name
    }
}

fn refuse(why: &str) -> Answer {
    Answer::Refused(why.into())
}

impl Shared {
    fn new(journal: Journal, disks: Vec<VmDisk>, patience: Option<Duration>) -> Self {
        Self {
            link: Mutex::default(),
            is_there: Condvar::default(),
            clients: AtomicUsize::default(),
            connections: AtomicU32::default(),
            lost: Mutex::default(),
            ports: Mutex::default(),
            journal,
            disks,
            disks_turn: Mutex::default(),
            patience,
        }
    }

    fn port_uses(&self) -> MutexGuard<'_, Vec<PortUse>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the use of a port, which has one at a time.
    fn note_port(&self, now: PortUse) {
        let mut all = self.port_uses();
        match all.iter_mut().find(|there| (there.vm, &there.port) == (now.vm, &now.port)) {
            Some(there) => *there = now,
            None => all.push(now),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Link>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a command until it hangs up, or says what is no request.
    ///
    /// `held` is what it holds then.
    fn serve(&self, mut client: UnixStream, held: &mut Holds) -> std::io::Result<()> {
        // A command that does not read its answer loses it.
        client.set_write_timeout(Some(PATIENCE))?;
        let mut reader = Reader::new(MOST_REQUEST_BYTES);
        let mut buffer = [0; PIECE];
        loop {
            let count = match client.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(why) if why.kind() == ErrorKind::Interrupted => continue,
                Err(why) => return Err(why),
            };
            let mut bytes = &buffer[..count];
            while let Some(frame) = reader.next(&mut bytes) {
                let (number, answer) = match frame.and_then(|frame| decode::<Request>(&frame)) {
                    // Else two would speak at once.
                    Ok((number, Request::Port(..))) => {
                        (number, refuse("a port has a socket of its own: connect to that"))
                    }
                    Ok((number, request)) => match self.pass_with_disks(&request) {
                        Some(mut answer) => {
                            self.note(held, &request, &answer);
                            if let Answer::Vms(vms) = &mut answer {
                                vms.lost.clone_from(&self.lost.lock().unwrap_or_else(PoisonError::into_inner));
                                vms.ports.clone_from(&self.port_uses());
                                vms.disks = self.disks.iter().map(|disk| disk.described.clone()).collect();
                            }
                            (number, answer)
                        }
                        // The run is about to end: a command takes the closed connection for that.
                        None => return Ok(()),
                    },
                    // Its own version is in the answer's frame.
                    Err(Bad::Version { number, .. }) => {
                        (number, refuse("this run uses another version of the protocol"))
                    }
                    Err(Bad::Malformed { number }) => (number, refuse("this run does not know that request")),
                    // A socket loses nothing: that is no command.
                    Err(Bad::TooLong | Bad::Garbled) => return Ok(()),
                };
                client.write_all(&encode(number, &answer))?;
            }
        }
    }

    /// Asks the machine. Files of a VM's disks are this run's before the VM can run, and no longer when it is given away.
    fn pass_with_disks(&self, request: &Request) -> Option<Answer> {
        let (Request::Resume(vm)
        | Request::Power(vm, _)
        | Request::Load(vm, Load::Start)
        | Request::Save(vm, Save::Give(_))) = request
        else {
            return self.pass_on(request);
        };
        // From the check of the locks to their release no other such request comes between.
        let _one = self.disks_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let files = || self.disks.iter().filter(|disk| disk.described.vm == *vm).flat_map(VmDisk::locks);
        let is_given = matches!(request, Request::Save(..));
        let (mut taken, mut busy) = (Vec::new(), None);
        for lock in files().filter(|_| !is_given) {
            match lock.retake() {
                Ok(true) => taken.push(lock),
                Ok(false) => {}
                Err(why) => busy = busy.or(Some(why)),
            }
        }
        let answer = match busy {
            Some(why) => Answer::Refused(format!("{why}: the VM may run there")),
            None => self.pass_on(request)?,
        };
        match &answer {
            Answer::Done if is_given => files().for_each(|lock| lock.release()),
            // The VM stays paused here, or goes on where it was.
            Answer::Refused(why) if why != SILENT => taken.iter().for_each(|lock| lock.release()),
            _ => {}
        }
        Some(answer)
    }

    /// Notes what a command holds. It has one VM of each kind.
    fn note(&self, held: &mut Holds, request: &Request, answer: &Answer) {
        let id = match answer {
            Answer::Saving(Saving { id, .. }) => *id,
            _ => NOT_YET,
        };
        match (request, answer) {
            (Request::Debug(vm, Debug::Attach), Answer::Done) => {
                held.debugs.replace(*vm).into_iter().for_each(|vm| self.detach(vm));
            }
            (Request::Debug(vm, Debug::Detach), Answer::Done) => {
                held.debugs.take_if(|own| own == vm);
            }
            // One that was not answered may have been begun.
            (Request::Save(vm, Save::Begin), Answer::Refused(why)) if why != SILENT => {
                held.saves.take_if(|save| *save == (*vm, NOT_YET));
            }
            (Request::Save(vm, Save::Begin), _) => {
                let before = held.saves.replace((*vm, id)).filter(|before| *before != (*vm, NOT_YET));
                before.into_iter().for_each(|save| self.end_save(save));
            }
            (Request::Save(vm, Save::Log(false)), Answer::Done) => {
                held.logs.take_if(|own| own == vm);
            }
            // One that was not answered may have been begun.
            (Request::Save(vm, Save::Log(true)), answer) if *answer == Answer::Done || *answer == refuse(SILENT) => {
                held.logs = Some(*vm);
            }
            // One that was given away is not to run here again because the command is gone.
            (Request::Save(vm, Save::End(_) | Save::Give(_)), Answer::Done) => {
                held.saves.take_if(|(own, _)| own == vm);
            }
            _ => {}
        }
    }

    /// A command is gone.
    fn release(&self, held: Holds) {
        held.debugs.into_iter().for_each(|vm| self.detach(vm));
        held.saves.into_iter().for_each(|save| self.end_save(save));
        if let Some(vm) = held.logs {
            let until = Instant::now() + PATIENCE;
            let ends = || self.pass_on(&Request::Save(vm, Save::Log(false)));
            while ends() == Some(refuse(SILENT)) && Instant::now() < until {}
        }
    }

    /// Discards a snapshot that is no longer wanted. It may have ended by itself.
    fn end_save(&self, (vm, id): (u64, u32)) {
        let _ = self.pass_on(&Request::Save(vm, Save::End(id)));
    }

    /// A debugger is gone: nothing of it is to stay in the VM.
    fn detach(&self, vm: u64) {
        let until = Instant::now() + PATIENCE;
        while self.pass_on(&Request::Debug(vm, Debug::Detach)) == Some(Answer::Later) && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks the machine; `None` if it is gone.
    fn pass_on(&self, request: &Request) -> Option<Answer> {
        let until = Instant::now() + self.patience.unwrap_or(PATIENCE);
        let silent = || Some(refuse(SILENT));
        let left = || until.saturating_duration_since(Instant::now());
        let link = self.is_there.wait_timeout_while(self.lock(), left(), |link| link.is_none());
        let (mut link, _) = link.unwrap_or_else(PoisonError::into_inner);
        let Some(link) = link.as_mut() else { return silent() };
        match link.ask(request, left) {
            Ok(Some(answer)) => {
                self.journal.answered(request, &answer);
                Some(answer)
            }
            Ok(None) => silent(),
            Err(_) => None,
        }
    }
}

impl Link {
    /// Asks, and waits for so long as is left. What comes of an answer that was given up is passed over later.
    fn ask(&mut self, request: &Request, left: impl Fn() -> Duration) -> std::io::Result<Option<Answer>> {
        self.number = self.number.wrapping_add(1);
        // None is no time at all to wait, and not for ever.
        let timeout = || Some(left().max(Duration::from_millis(1)));
        let begun = std::mem::take(&mut self.unsent);
        for (frame, is_begun) in [(begun, true), (encode(self.number, request), false)] {
            let mut rest = frame.as_slice();
            while !rest.is_empty() {
                self.stream.set_write_timeout(timeout())?;
                match self.stream.write(rest) {
                    Ok(count) => rest = &rest[count..],
                    Err(why) if is_timeout(&why) => {
                        // A frame of which nothing was sent is not sent any more.
                        if is_begun || rest.len() < frame.len() {
                            self.unsent = rest.to_vec();
                        }
                        return Ok(None);
                    }
                    Err(why) if why.kind() == ErrorKind::Interrupted => {}
                    Err(why) => return Err(why),
                }
            }
        }
        let mut buffer = [0; PIECE];
        while !left().is_zero() {
            self.stream.set_read_timeout(timeout())?;
            let count = match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(why) if is_timeout(&why) || why.kind() == ErrorKind::Interrupted => continue,
                Err(why) => return Err(why),
            };
            let (mut bytes, mut found) = (&buffer[..count], None);
            while let Some(frame) = self.reader.next(&mut bytes) {
                // What is damaged is as good as lost.
                match frame.and_then(|frame| decode::<Answer>(&frame)) {
                    Ok((number, answer)) if number == self.number => found = Some(answer),
                    _ => {}
                }
            }
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

fn is_timeout(why: &std::io::Error) -> bool {
    matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
