//! A network card (chapter 5.1), which is plugged into the network of the run ([`crate::backend::network`]).
//!
//! A frame that the driver sends is copied, header and all, into a frame of the card's own, and is checked there.
//! Frames for the guest are copied from others' frames into buffers that the driver has offered. If it has offered
//! none, frames wait, but not for long. Guest memory that is not there, since it is paged out, is asked for again a
//! moment later: only the frames that come after wait for it.
//!
//! All is plain: no checksum is left to the card, and no frame is longer than an Ethernet's.

use super::backend::{Backend, Progress, read_bytes};
use super::gather::Gathering;
use super::queue::{Chain, Queue, Trouble};
use super::queues::Queues;
use super::transport::Mmio;
use super::wire::net::{LINK_UP, MAC, RECEIVE, STATUS, TRANSMIT};
use crate::backend::User;
use crate::backend::network::frame::{Frame, HEADER, MOST};
use crate::backend::network::{NotSent, Plug, SHARE};
use crate::device::interface::Device;
use crate::device::interface::{Outside, Unreached, Unsaved, Wild};
use crate::device::offer::Offer;
use abi::bundle::VmConfig;
use abi::snapshot::device::OwnState;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Bytes of the configuration, as far as it is read: address and status.
const CONFIG: usize = 8;
/// The most that a portion may cost, in bytes that are copied.
const PORTION: usize = 64 << 10;
/// The cost of a frame beside its bytes, and of each of its buffers.
const STEP: usize = 6 << 10;
const BUFFER: usize = 512;
/// The cost of each member that a frame goes to.
const MEMBER: usize = 512;
/// The number of frames in a portion from which on more may come in a moment.
const BUSY: usize = 4;

/// The GPA and the PLIC source of the card, behind all disks.
const AT: (u64, u32) = (0x1000_9000, 9);

/// Makes the network card of a VM, if it has one.
pub fn make(config: &VmConfig, offer: &Offer) -> Vec<Box<dyn Device>> {
    let plug = config.mac.and_then(|mac| offer.network.plug(mac));
    plug.into_iter().map(|plug| Box::new(Mmio::new(AT.0, AT.1, Net::new(plug))) as _).collect()
}

/// The device's counts. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Frames that the guest has sent.
    pub frames_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Frames that it was given.
    pub frames_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// The number of frames sent that are none: too short, too long, or nowhere.
    pub refused: u64,
    /// Frames that the guest has sent with the address of a group, or of another member, as their source.
    pub forged: u64,
    /// Frames for which it had offered a buffer that was too short, or nowhere.
    pub unfit: u64,
}

impl Counts {
    /// Returns every count with its name, as `docs/counters.md` lists them.
    pub(super) const fn each(&self) -> [(&'static str, u64); 7] {
        [
            ("net.frames_out", self.frames_out),
            ("net.bytes_out", self.bytes_out),
            ("net.frames_in", self.frames_in),
            ("net.bytes_in", self.bytes_in),
            ("net.refused", self.refused),
            ("net.forged", self.forged),
            ("net.unfit", self.unfit),
        ]
    }
}

/// The stage of the frame that the driver sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The frame is still to be copied into that frame of the card's.
    Copy(usize),
    /// The frame is copied, and is to be sent.
    Send(usize),
    /// The driver is to have its buffers back.
    Give,
}

/// The device.
#[derive(Debug)]
pub struct Net {
    plug: Plug,
    /// Its frames, made as they are needed. Those that others have still are not to be touched.
    frames: Vec<Arc<Frame>>,
    /// The index at which the search for a free frame begins.
    next: usize,
    /// The chain that the driver sends.
    sending: Option<(Chain, Stage)>,
    /// The chain for the next frame that comes.
    receiving: Option<Chain>,
    /// Chains to be used again: each has room for buffers.
    spare: Vec<Chain>,
    /// The choice whether several frames are sent at once, a moment later.
    gathering: Gathering,
    counts: Counts,
}

/// Returns the cost of copying so many bytes from or to a chain's buffers, with everything beside.
fn cost(chain: &Chain, bytes: usize) -> usize {
    STEP + BUFFER * chain.buffers.len() + bytes
}

/// Copies what the driver has put into a chain's buffers; `None` if it is too much, or nowhere.
fn gather(chain: &Chain, room: &mut [u8], outside: &mut dyn Outside) -> Result<Option<usize>, Trouble> {
    let mut done = 0;
    for buffer in chain.buffers.iter().filter(|buffer| !buffer.is_written) {
        let end = done + buffer.bytes as usize;
        let Some(part) = room.get_mut(done..end) else { return Ok(None) };
        match outside.read(buffer.gpa, part) {
            Ok(()) => done = end,
            Err(Unreached::Nowhere) => return Ok(None),
            Err(Unreached::Later) => return Err(Trouble::Later),
        }
    }
    Ok(Some(done))
}

/// Copies bytes into a chain's buffers; `None` if they do not fit, or those are nowhere.
fn scatter(chain: &Chain, bytes: &[u8], outside: &mut dyn Outside) -> Result<Option<()>, Trouble> {
    let mut left = bytes;
    for buffer in chain.buffers.iter().filter(|buffer| buffer.is_written) {
        let (part, rest) = left.split_at(left.len().min(buffer.bytes as usize));
        match outside.write(buffer.gpa, part) {
            Ok(()) => left = rest,
            Err(Unreached::Nowhere) => return Ok(None),
            Err(Unreached::Later) => return Err(Trouble::Later),
        }
        if left.is_empty() {
            return Ok(Some(()));
        }
    }
    Ok(None)
}

impl Net {
    /// Makes a card with that plug.
    #[must_use]
    pub fn new(plug: Plug) -> Self {
        let (gathering, counts) = (Gathering::default(), Counts::default());
        Self { plug, frames: Vec::new(), next: 0, sending: None, receiving: None, spare: Vec::new(), gathering, counts }
    }

    /// Returns the device's counts.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the card's plug.
    #[must_use]
    pub const fn plug(&self) -> &Plug {
        &self.plug
    }

    /// Takes the next chain of a queue.
    fn take(&mut self, queue: &mut Queue, outside: &mut dyn Outside) -> Result<Option<Chain>, Trouble> {
        let mut chain = self.spare.pop().unwrap_or_default();
        if queue.take_into(&mut chain, outside)? {
            return Ok(Some(chain));
        }
        self.spare.push(chain);
        Ok(None)
    }

    /// Returns a frame of the card's own that is not in use any more.
    fn free_frame(&mut self, now: u64) -> Option<usize> {
        let found = self.find_frame();
        if found.is_some() {
            return found;
        }
        if self.frames.len() < SHARE {
            self.frames.push(Arc::default());
            return Some(self.frames.len() - 1);
        }
        self.plug.expire(now);
        self.find_frame()
    }

    fn find_frame(&mut self) -> Option<usize> {
        let count = self.frames.len();
        let at =
            (0..count).map(|n| (self.next + n) % count).find(|at| Arc::get_mut(&mut self.frames[*at]).is_some())?;
        self.next = at + 1;
        Some(at)
    }

    /// Asks for a moment to send more: soon, if this hart runs the guest. Another hart, whose own guest pays for it,
    /// does it seldom: so a card that sends all the time delays no other guest for long.
    fn again(&self, outside: &mut dyn Outside) -> Progress {
        if outside.is_own() {
            outside.soon();
        } else {
            outside.at(outside.now() + self.plug.seldom());
        }
        Progress::Idle
    }

    /// Takes frames from the driver, and sends them.
    fn transmit(&mut self, queue: &mut Queue, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let (mut left, mut taken) = (PORTION, 0);
        loop {
            let Some((chain, stage)) = &mut self.sending else {
                if left == 0 {
                    return Ok(if outside.is_own() { Progress::More } else { self.again(outside) });
                }
                let Some(frame) = self.free_frame(outside.now()) else { return Ok(self.again(outside)) };
                match self.take(queue, outside)? {
                    Some(chain) => self.sending = Some((chain, Stage::Copy(frame))),
                    // As long as many come, the queue is looked at a moment later, whether the driver notifies or not: so it need not.
                    None if taken >= BUSY || taken > 0 && self.gathering.is_on() => return Ok(self.again(outside)),
                    None if queue.await_more(outside)? => left = left.saturating_sub(STEP),
                    None => return Ok(Progress::Idle),
                }
                continue;
            };
            match *stage {
                Stage::Copy(at) => {
                    let Some(frame) = Arc::get_mut(&mut self.frames[at]) else { unreachable!("a frame is its card's") };
                    // What is longer than the longest frame does not fit.
                    let length = gather(chain, &mut frame.room()[..HEADER + MOST], outside)?;
                    let is_frame = length.is_some_and(|length| frame.fill(length));
                    self.counts.refused += u64::from(!is_frame);
                    left = left.saturating_sub(cost(chain, length.unwrap_or(0)));
                    taken += 1;
                    self.gathering.took(outside.now());
                    *stage = if is_frame { Stage::Send(at) } else { Stage::Give };
                }
                Stage::Send(at) => {
                    let frame = &self.frames[at];
                    match self.plug.send(frame, outside.now()) {
                        Ok(members) => {
                            left = left.saturating_sub(MEMBER * members as usize);
                            self.counts.frames_out += 1;
                            self.counts.bytes_out += frame.content().len() as u64;
                        }
                        Err(NotSent::Forged) => self.counts.forged += 1,
                        Err(NotSent::Full) => return Ok(self.again(outside)),
                    }
                    *stage = Stage::Give;
                }
                Stage::Give => {
                    queue.give(chain, 0, outside)?;
                    self.spare.extend(self.sending.take().map(|(chain, _)| chain));
                }
            }
        }
    }

    /// Gives the driver frames that have come for it.
    fn receive(&mut self, queue: &mut Queue, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let mut left = PORTION;
        while let Some(frame) = self.plug.next() {
            if left == 0 {
                return Ok(Progress::More);
            }
            let chain = match self.receiving.take() {
                Some(chain) => chain,
                None => match self.take(queue, outside)? {
                    Some(chain) => chain,
                    None if queue.await_more(outside)? => {
                        left = left.saturating_sub(STEP);
                        continue;
                    }
                    None => return Ok(Progress::Idle),
                },
            };
            let chain = self.receiving.insert(chain);
            let bytes = frame.bytes();
            left = left.saturating_sub(cost(chain, bytes.len()));
            let is_given = scatter(chain, bytes, outside)?.is_some();
            queue.give(chain, if is_given { bytes.len() as u32 } else { 0 }, outside)?;
            self.spare.extend(self.receiving.take());
            self.plug.taken(&frame, outside.now());
            if is_given {
                self.counts.frames_in += 1;
                self.counts.bytes_in += frame.content().len() as u64;
            } else {
                self.counts.unfit += 1;
            }
        }
        Ok(Progress::Idle)
    }
}

impl Backend for Net {
    const ID: u32 = 1;
    const GOES_ON: bool = true;
    const COUNTERS: [&'static str; 2] = ["net.notifications", "net.malformed"];

    fn queues(&self) -> usize {
        2
    }

    fn features(&self) -> u64 {
        MAC | STATUS
    }

    fn read_config(&self, offset: u64, width: u8) -> u32 {
        let mut config = [0; CONFIG];
        config[..6].copy_from_slice(&self.plug.mac().0);
        config[6..].copy_from_slice(&LINK_UP.to_le_bytes());
        read_bytes(&config, offset, width)
    }

    fn notified(&mut self, at: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let Some(queue) = queues.ready(at) else { return Ok(Progress::Idle) };
        match at {
            RECEIVE => {
                self.plug.come_up();
                self.receive(queue, outside)
            }
            TRANSMIT => {
                let progress = self.transmit(queue, outside);
                self.plug.flush();
                progress
            }
            _ => Ok(Progress::Idle),
        }
    }

    /// Stops a queue. A frame that was sent stays on its way.
    fn stop(&mut self, at: usize) {
        if at == TRANSMIT { self.sending = None } else { self.receiving = None }
    }

    fn reset(&mut self) {
        self.plug.start_over();
        (self.sending, self.receiving) = (None, None);
        self.gathering = Gathering::default();
    }

    fn attach(&mut self, user: User) {
        self.plug.set_user(user.vm);
    }

    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.counts.each().into_iter().for_each(|(name, count)| report(name, count));
        report("net.lost", self.plug.lost());
    }

    fn save(&self) -> Result<OwnState, Unsaved> {
        Ok(OwnState::Nothing)
    }

    /// Returns the number of chains to begin anew. A frame that has left already leaves twice, as may happen in any
    /// network.
    fn begun(&self, at: usize) -> u16 {
        let is_begun = if at == TRANSMIT { self.sending.is_some() } else { self.receiving.is_some() };
        is_begun.into()
    }

    /// Restores the card: frames come for it from now on, if it has a driver.
    fn restore(&mut self, own: &OwnState, is_live: bool) -> Result<(), Wild> {
        if *own != OwnState::Nothing {
            return Err(Wild::OTHER);
        }
        if is_live {
            self.plug.come_up();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
