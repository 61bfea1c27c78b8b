//! The relay between the machine and the world.
//!
//! ```text
//!  Gnomon's switch ◄─► QEMU's network card ◄─ one socket ─► relay ◄─► passt of VM a ◄─► sockets of this host
//!                                                                ◄─► passt of VM b
//! ```
//!
//! The relay divides the machine's frames by their source address, which Gnomon's switch enforces: no VM can send with the address of
//! another one's card. Each VM has a bounded queue to its passt. Frames that find it full are dropped, so a passt that reads nothing holds
//! up no other VM. Frames from the passts are merged in turns, one of each; a passt whose frames wait is not read from. A VM that takes no
//! frames has few on their way to it ([`abi::credit`]), behind which those of other VMs would wait.
//!
//! A passt is not trusted either: it reaches its own VM only, from the gateway's address only.

mod card;
pub mod frames;
mod lane;
pub mod udp;
mod window;

use crate::machine::net::{Network, Uplink};
use crate::machine::passt::{Passt, UplinkError};
use crate::machine::priority;
use abi::credit;
use abi::mac::Mac;
use card::{Card, Closed};
use frames::Verdict;
use lane::{Lane, size};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Instant;
use udp::Ports;
use window::{PATIENCE, Window};

/// Most bytes of a VM's frames that wait for its passt.
const MOST_OUT: usize = 256 << 10;
/// Most bytes of frames for a VM that wait in the relay: if there are more, its passt is not read from.
const MOST_IN: usize = 256 << 10;
/// Frames that are taken from the machine at a time.
const BATCH: usize = 64;

/// The end of a VM's network while the VM runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UplinkEnd {
    /// The VM.
    pub vm: String,
    /// The reason.
    pub why: String,
}

/// The descriptor by which QEMU has its end of the socket.
pub(super) const DESCRIPTOR: i32 = 9;
/// QEMU's arguments for the other end of its network card.
pub(super) const ARGS: [&str; 2] = ["-netdev", "dgram,id=net,local.type=fd,local.str=9"];

/// A relay. Dropping it waits until QEMU has ended, and ends the passts.
#[derive(Debug)]
pub struct Relay(Option<JoinHandle<()>>);

/// A VM's way through the relay.
struct Way {
    uplink: Uplink,
    /// The process and the socket to it. `None` if it has ended.
    passt: Option<(Passt, Lane)>,
    ports: Ports,
    /// Frames for the VM that wait for the machine.
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    /// Its frames on their way. A guest on the bare machine has no Gnomon that reports them.
    window: Option<Window>,
}

impl Relay {
    /// Starts a passt for each VM, and the relay. `report` is told of VMs whose network ends before the machine. Returns QEMU's end of the
    /// socket as well, which must be closed here before this is dropped.
    ///
    /// # Errors
    /// [`UplinkError`].
    pub fn start(
        network: &Network,
        report: impl Fn(UplinkEnd) + Send + 'static,
    ) -> Result<(OwnedFd, Self), UplinkError> {
        let ways = ways(network)?;
        let first = network.uplinks.first().map(|uplink| uplink.vm.clone()).unwrap_or_default();
        let (card, qemu) = Card::pair().map_err(|why| UplinkError::Io { vm: first, why: why.into() })?;
        let thread = std::thread::spawn(move || {
            priority::lower_own();
            // Without a machine there is nothing to relay.
            let _ = relay(card, ways, report);
        });
        Ok((qemu, Self(Some(thread))))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // A panic of it has been reported.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

impl Way {
    /// Returns whether frames with that source address are the VM's.
    fn has(&self, source: Mac) -> bool {
        self.uplink.mac.is_none_or(|mac| mac == source)
    }

    /// Takes a frame of the VM's.
    fn take(&mut self, frame: &[u8]) {
        match frames::outgoing(frame) {
            Verdict::Pass => {
                if let Some((_, lane)) = &mut self.passt
                    && lane.waiting() + size(frame) <= MOST_OUT
                {
                    let mut frame = frame.to_vec();
                    if self.ports.translate_outgoing(&mut frame) {
                        lane.push(&frame);
                    }
                }
            }
            Verdict::Answer(answer) if self.passt.is_some() && self.queued_bytes < MOST_IN => self.enqueue(answer),
            Verdict::Answer(_) | Verdict::Drop => {}
        }
    }

    fn enqueue(&mut self, frame: Vec<u8>) {
        self.queued_bytes += size(&frame);
        self.queue.push_back(frame);
    }

    fn dequeue(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.window.as_mut().is_some_and(|window| !window.is_open(now)) {
            return None;
        }
        let frame = self.queue.pop_front()?;
        self.window.iter_mut().for_each(|window| window.note_sent(now));
        self.queued_bytes -= size(&frame);
        Some(frame)
    }

    /// Returns the events to wait for, if there are any.
    fn wanted(&self) -> PollFlags {
        let is_writing = self.passt.as_ref().is_some_and(|(_, lane)| lane.waiting() > 0);
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.queued_bytes < MOST_IN);
        wanted.set(PollFlags::OUT, is_writing);
        wanted
    }

    /// Serves its passt. `events` are those that poll has reported.
    fn serve(&mut self, events: PollFlags) -> Result<(), String> {
        let Some((_, lane)) = &mut self.passt else { return Ok(()) };
        let mut served = lane.write();
        if served.is_ok() && events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            served = lane.read();
        }
        let mut taken = Vec::new();
        let all = loop {
            match lane.next() {
                Ok(Some(frame)) if frames::is_incoming(frame, self.uplink.mac) => taken.push(frame.to_vec()),
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(why) => break Err(why),
            }
        };
        taken.retain_mut(|frame| self.ports.translate_incoming(frame));
        taken.into_iter().for_each(|frame| self.enqueue(frame));
        if all.is_err() {
            return self.end(|_| "passt has sent what is no frame".into());
        }
        served.or_else(|Closed| self.end(Passt::reason))
    }

    /// Ends it.
    fn end(&mut self, reason: impl FnOnce(Passt) -> String) -> Result<(), String> {
        match self.passt.take() {
            Some((passt, lane)) => {
                drop(lane);
                Err(reason(passt))
            }
            None => Ok(()),
        }
    }
}

/// Starts the passts, all at once, and waits until each of them answers.
fn ways(network: &Network) -> Result<Vec<Way>, UplinkError> {
    let passts: Vec<_> = network.uplinks.iter().map(Passt::start).collect::<Result<_, _>>()?;
    let mut ways = Vec::new();
    for (uplink, (mut passt, socket)) in network.uplinks.iter().zip(passts) {
        passt.await_answer(uplink, &socket)?;
        let lane = Lane::new(socket).map_err(|why| UplinkError::Io { vm: uplink.vm.clone(), why })?;
        let (uplink, passt, ports) = (uplink.clone(), Some((passt, lane)), Ports::default());
        let window = uplink.mac.map(|_| Window::new(Instant::now()));
        ways.push(Way { uplink, passt, ports, queue: VecDeque::new(), queued_bytes: 0, window });
    }
    Ok(ways)
}

/// Relays until the machine has ended.
fn relay(mut card: Card, mut ways: Vec<Way>, report: impl Fn(UplinkEnd)) -> Result<(), Closed> {
    let mut turn = 0;
    // The next frame for the machine, which had no room for it.
    let mut next: Option<Vec<u8>> = None;
    loop {
        let events = wait(&card, next.is_some(), &ways)?;
        for _ in 0..BATCH {
            let Some(frame) = card.recv()? else { break };
            if let Some(counts) = credit::read(frame) {
                apply_report(&mut ways, counts);
                continue;
            }
            let Some(source) = frames::source(frame) else { continue };
            if let Some(way) = ways.iter_mut().find(|way| way.has(source)) {
                way.take(frame);
            }
        }
        for (way, events) in ways.iter_mut().zip(&events) {
            if let Err(why) = way.serve(*events) {
                report(UplinkEnd { vm: way.uplink.vm.clone(), why });
            }
        }
        // One frame of each VM in turn.
        let now = Instant::now();
        while let Some(frame) = next.take().or_else(|| dequeue(&mut ways, &mut turn, now)) {
            if !card.send(&frame)? {
                next = Some(frame);
                break;
            }
        }
    }
}

/// Takes a frame for the machine: of the first VM with one, behind the VM whose turn was last.
fn dequeue(ways: &mut [Way], turn: &mut usize, now: Instant) -> Option<Vec<u8>> {
    (0..ways.len()).find_map(|_| {
        *turn = (*turn + 1) % ways.len();
        ways[*turn].dequeue(now)
    })
}

fn apply_report(ways: &mut [Way], counts: impl Iterator<Item = (Mac, credit::Counts)>) {
    let now = Instant::now();
    for (mac, counts) in counts {
        let of_card = ways.iter_mut().filter(|way| way.uplink.mac == Some(mac));
        of_card.filter_map(|way| way.window.as_mut()).for_each(|window| window.apply(counts, now));
    }
}

/// Waits until something can be done. Returns the events of each VM's socket.
fn wait(card: &Card, is_sending: bool, ways: &[Way]) -> Result<Vec<PollFlags>, Closed> {
    let mut wanted = PollFlags::IN;
    wanted.set(PollFlags::OUT, is_sending);
    let mut sockets = vec![PollFd::new(&card.socket, wanted)];
    let mut order = Vec::new();
    for (at, way) in ways.iter().enumerate() {
        if let Some((_, lane)) = &way.passt {
            sockets.push(PollFd::new(&lane.socket, way.wanted()));
            order.push(at);
        }
    }
    // Those that wait now wait for reports.
    let waits = !is_sending && ways.iter().any(|way| !way.queue.is_empty());
    let limit = Timespec::try_from(PATIENCE).ok().filter(|_| waits);
    match poll(&mut sockets, limit.as_ref()) {
        Ok(_) => {}
        Err(why) if std::io::Error::from(why).kind() == ErrorKind::Interrupted => {}
        Err(_) => return Err(Closed),
    }
    let mut events = vec![PollFlags::empty(); ways.len()];
    for (socket, at) in sockets[1..].iter().zip(order) {
        events[at] = socket.revents();
    }
    Ok(events)
}

#[cfg(test)]
mod tests;
