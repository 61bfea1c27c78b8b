//! The network of a run: a switch that joins its VMs with each other and with the world.
//!
//! ```text
//!  guest's memory ── copied ──► a frame of its card's ──► queues of those that it is for ── copied ──► their guests' memory
//!                                        ▲                └──► the host's device ──► the world
//!  the world ──► the host's device ──► a frame of its
//! ```
//!
//! A *frame* is a buffer of Gnomon's own. Each sender has a few: a sender that has none left waits until one of them
//! has arrived, and takes nothing from others. Frames wait in the queue of the *member* that they are for until that
//! takes them, which is at once: the sender serves the members that it has sent to. If a member takes none for a while,
//! VMs' frames that wait for it are lost. So no member is held up by another one for long, and frames that a VM leaves
//! behind are free.
//!
//! The world is told how many of its frames have come for each member, and are done with ([`abi::credit`]).
//!
//! No host device is ever given a guest's memory.

pub mod frame;
pub mod switch;

use crate::slots::Handle;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use abi::bundle::MAX_VMS;
use abi::credit;
use abi::mac::Mac;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::fmt;
use frame::{Frame, HEADER, MOST};
use switch::{Route, Switch, WORLD};

/// Frames of one sender that wait for one member, at most: a VM has no more.
pub const SHARE: usize = 32;
const _: () = assert!(SHARE >= credit::WINDOW as usize, "what the world may send to a member at once is lost");
/// Frames of the world's that have come for a member, or that it is done with, after which the world is told.
const REPORT_AFTER: u32 = credit::WINDOW / 2;
/// Members whose frames may be lost at a time: of each some two thousand, where there are many VMs.
const AT_ONCE: usize = 2;
/// Frames that are lost for one that comes.
const LOST_AT_ONCE: usize = 8;
/// Frames that are taken from the world at a time.
const BATCH: usize = 8;
/// The time for which a member may take no frame until those that wait for it are lost, in parts of a second.
const PATIENCE: u64 = 20;
/// The interval at which a hart serves a card whose guest it does not run, in parts of a second.
const SELDOM: u64 = 1000;

/// There is no room for a frame at the host's device for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// The reason why a frame was not sent. Nothing has happened then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotSent {
    /// There is no room for now.
    Full,
    /// The frame claims the source address of another member.
    Forged,
}

/// A network device of the host's.
pub trait HostNetwork: Send {
    /// Takes the next frame that has come, if there is one.
    fn receive(&mut self) -> Option<Arc<Frame>>;
    /// Makes room for further frames, in those that are not in use any more. Returns whether there is room for some.
    fn make_room(&mut self) -> bool;
    /// Sends a frame. The device may wait for [`HostNetwork::notify`] until it looks for it.
    ///
    /// # Errors
    /// [`Full`].
    fn send(&mut self, frame: &Arc<Frame>) -> Result<(), Full>;
    /// Frees frames that were sent, and are done with.
    fn reclaim(&mut self);
    /// Tells the device of what was sent.
    fn notify(&mut self);
    /// Acknowledges the device's interrupt: frames after this interrupt anew.
    fn acknowledge(&mut self);
}

/// The counts of the world's frames. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Frames from the world.
    pub received: u64,
    /// Frames to the world.
    pub sent: u64,
    /// Of those from the world, the ones that say they come from a VM, or a group.
    pub forged: u64,
}

/// A member of the network.
#[derive(Debug, Default)]
struct Member {
    /// The member's VM. The world has none.
    user: Option<Handle>,
    /// Set if there is a driver that takes frames.
    is_up: bool,
    /// The frames for it: the sender, the frame, and the time since when it waits.
    queue: VecDeque<(usize, Arc<Frame>, u64)>,
    /// The number of them that are from the world.
    of_world: usize,
    /// The counts of frames for it, from the world.
    counts: credit::Counts,
    /// Those that the world was told last.
    reported: credit::Counts,
    /// Set if a frame has waited for too long, and none was taken in time since.
    is_stuck: bool,
    /// Frames for it that were lost.
    lost: u64,
}

impl Member {
    /// Queues a frame for the member. If it takes none, the oldest of VMs' frames that wait are lost, until this is the
    /// only one: VMs need their frames back. The world has enough for all members.
    fn push(&mut self, from: usize, frame: &Arc<Frame>, now: u64, patience: u64) {
        if from == WORLD {
            self.counts.come = self.counts.come.wrapping_add(1);
        } else if self.is_too_late(now, patience) {
            self.lose(LOST_AT_ONCE, |sender| sender != WORLD);
        }
        if from == WORLD && self.of_world == SHARE {
            self.lost += 1;
            self.finish(1);
        } else {
            self.of_world += usize::from(from == WORLD);
            self.queue.push_back((from, Arc::clone(frame), now));
        }
    }

    /// Takes the oldest one out, if there is one.
    fn pop(&mut self) {
        if let Some((WORLD, ..)) = self.queue.pop_front() {
            self.of_world -= 1;
            self.finish(1);
        }
    }

    /// Loses the oldest of the frames of such senders, so many at most.
    fn lose(&mut self, most: usize, is_of: impl Fn(usize) -> bool) {
        let (mut lost, mut of_world) = (0, 0);
        self.queue.retain(|(from, ..)| {
            let is_lost = lost < most && is_of(*from);
            lost += usize::from(is_lost);
            of_world += usize::from(is_lost && *from == WORLD);
            !is_lost
        });
        self.lost += lost as u64;
        self.of_world -= of_world;
        self.finish(of_world);
    }

    /// Notes that frames from the world are done with.
    const fn finish(&mut self, frames: usize) {
        self.counts.done = self.counts.done.wrapping_add(frames as u32);
    }

    /// Refuses a frame from the world.
    const fn refuse(&mut self) {
        self.counts.come = self.counts.come.wrapping_add(1);
        self.finish(1);
    }

    /// Returns whether the world is to be told of its counts.
    const fn must_report(&self) -> bool {
        self.counts.come.wrapping_sub(self.reported.come) >= REPORT_AFTER
            || self.counts.done.wrapping_sub(self.reported.done) >= REPORT_AFTER
    }

    /// Returns whether the oldest frame has waited for too long.
    fn is_too_late(&mut self, now: u64, patience: u64) -> bool {
        self.is_stuck |= self.queue.front().is_some_and(|(.., since)| now.saturating_sub(*since) > patience);
        self.is_stuck && !self.queue.is_empty()
    }

    /// Loses the frames of that sender, if the member has taken none for too long.
    fn expire(&mut self, of: usize, now: u64, patience: u64) {
        if self.is_too_late(now, patience) {
            self.lose(usize::MAX, |sender| sender == of);
        }
    }

    fn start_over(&mut self) {
        self.queue.clear();
        self.finish(self.of_world);
        self.of_world = 0;
        (self.is_up, self.is_stuck) = (false, false);
    }
}

/// Returns a VM's bit. The world is never served like them.
const fn bit(member: usize) -> u64 {
    1 << (member - 1)
}

struct Inner {
    switch: Switch,
    members: Vec<Member>,
    world: Option<Box<dyn HostNetwork>>,
    /// Set if the world's device is to be notified of frames.
    has_sent: bool,
    /// The last report to the world.
    report: Arc<Frame>,
    counts: Counts,
    /// In ticks.
    patience: u64,
    /// The member whose frames were looked at last, in search of frames that are not taken.
    hand: usize,
}

impl Inner {
    /// Sends a frame of a member's where it goes. Returns the members that got it, by bit.
    fn send(&mut self, from: usize, frame: &Arc<Frame>, now: u64) -> Result<u64, NotSent> {
        let route = self.switch.route(from, frame.source(), frame.destination());
        let route = route.map_err(|_| NotSent::Forged)?;
        if from != WORLD
            && matches!(route, Route::All | Route::To(WORLD))
            && let Some(world) = &mut self.world
        {
            world.send(frame).map_err(|Full| NotSent::Full)?;
            self.has_sent = true;
            self.counts.sent += 1;
        }
        let mut due = 0;
        let patience = self.patience;
        for (to, member) in self.members.iter_mut().enumerate() {
            let is_for = match route {
                Route::To(this) => to == this,
                Route::All => to != from,
                Route::Nowhere => false,
            };
            if is_for && member.is_up {
                member.push(from, frame, now, patience);
                due |= bit(to);
            } else if is_for && from == WORLD {
                member.refuse();
            }
        }
        Ok(due)
    }

    /// Drops frames of a sender that are not taken, because it needs them. Each call serves some members, and the next
    /// call the others.
    fn expire(&mut self, of: usize, now: u64) {
        for _ in 0..AT_ONCE {
            self.hand = (self.hand + 1) % self.members.len();
            self.members[self.hand].expire(of, now, self.patience);
        }
        self.world.iter_mut().for_each(|world| world.reclaim());
        self.report();
    }

    /// Tells the world what has become of its frames, if that is due for a member. There may be no room for that: then a later call does.
    fn report(&mut self) {
        let Some(world) = &mut self.world else { return };
        if !self.members.iter().any(Member::must_report) {
            return;
        }
        world.reclaim();
        let Some(frame) = Arc::get_mut(&mut self.report) else { return };
        let due = (1..self.members.len()).filter(|at| self.members[*at].counts != self.members[*at].reported);
        let counts = due.filter_map(|at| Some((self.switch.own(at)?, self.members[at].counts)));
        let length = credit::write(counts, &mut frame.room()[HEADER..HEADER + MOST]);
        if frame.fill(HEADER + length) && world.send(&self.report).is_ok() {
            world.notify();
            self.members.iter_mut().for_each(|member| member.reported = member.counts);
        }
    }
}

struct Shared {
    inner: Mutex<Inner>,
    /// Members (by bit) that frames wait for, and that are still to be looked after.
    due: AtomicU64,
    /// The member that was looked after last.
    last: AtomicU64,
    /// More may have come from the world.
    has_more: AtomicBool,
    /// Ticks of a second.
    timebase: u64,
}

/// The network.
#[derive(Clone)]
pub struct Network(Arc<Shared>);

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("switch", &self.0.inner.lock().switch).finish_non_exhaustive()
    }
}

impl Network {
    /// Makes a network for cards of those addresses, 64 at most, and a device of the host's if there is one. `timebase`
    /// is in ticks a second.
    #[must_use]
    pub fn new(macs: impl IntoIterator<Item = Mac>, world: Option<Box<dyn HostNetwork>>, timebase: u64) -> Self {
        let macs: Vec<Mac> = macs.into_iter().take(u64::BITS as usize).collect();
        let mut members = Vec::new();
        members.resize_with(macs.len() + 1, Member::default);
        let inner = Inner {
            switch: Switch::new(macs),
            members,
            world,
            has_sent: false,
            report: Arc::default(),
            counts: Counts::default(),
            patience: timebase / PATIENCE,
            hand: 0,
        };
        let (due, last, has_more) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        Self(Arc::new(Shared { inner: Mutex::new(inner), due, last, has_more, timebase }))
    }

    /// Returns the plug of the card with that address.
    #[must_use]
    pub fn plug(&self, mac: Mac) -> Option<Plug> {
        let member = self.0.inner.lock().switch.owner(mac)?;
        Some(Plug { network: self.clone(), member, mac })
    }

    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.inner.lock().counts
    }

    /// Returns whether work is left, for members or for the world.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.0.due.load(SeqCst) != 0 || self.0.has_more.load(SeqCst)
    }

    /// Returns the slot of a VM that frames wait for, or of any.
    #[must_use]
    pub fn any_user(&self) -> usize {
        let (due, inner) = (self.0.due.load(SeqCst), self.0.inner.lock());
        let is_due = |at: usize| at != WORLD && due & bit(at) != 0;
        let first = (0..inner.members.len()).find(|at| is_due(*at)).and_then(|at| inner.members[at].user);
        first.or_else(|| inner.members.iter().find_map(|member| member.user)).map_or(0, |user| user.slot)
    }

    /// Returns the VMs whose cards have a driver.
    #[must_use]
    pub fn users(&self) -> ArrayVec<Handle, MAX_VMS> {
        let inner = self.0.inner.lock();
        inner.members.iter().filter(|member| member.is_up).filter_map(|member| member.user).collect()
    }

    /// Acknowledges the interrupt of the host's device.
    pub fn acknowledge(&self) {
        self.0.inner.lock().world.iter_mut().for_each(|world| world.acknowledge());
        self.0.has_more.store(true, SeqCst);
    }

    /// Takes some of the frames that have come from the world, if there may be any.
    pub fn take_in(&self, now: u64) {
        if !self.0.has_more.swap(false, SeqCst) {
            return;
        }
        let mut inner = self.0.inner.lock();
        let Some(mut world) = inner.world.take() else { return };
        let (mut due, mut taken) = (0, 0);
        while taken < BATCH
            && let Some(frame) = world.receive()
        {
            taken += 1;
            inner.counts.received += 1;
            match inner.send(WORLD, &frame, now) {
                Ok(members) => due |= members,
                Err(_) => {
                    inner.counts.forged += 1;
                    if let Some(to) = inner.switch.owner(frame.destination()) {
                        inner.members[to].refuse();
                    }
                }
            }
        }
        let has_room = world.make_room();
        inner.world = Some(world);
        if !has_room {
            // Nothing comes, and nothing interrupts, while others have all its frames.
            inner.expire(WORLD, now);
        }
        inner.report();
        drop(inner);
        self.0.due.fetch_or(due, SeqCst);
        if taken == BATCH || !has_room {
            self.0.has_more.store(true, SeqCst);
        }
    }

    /// Returns the next member that frames wait for: its VM, and the number of frames.
    #[must_use]
    pub fn next_due(&self) -> Option<(Handle, usize)> {
        loop {
            let due = self.0.due.load(SeqCst);
            if due == 0 {
                return None;
            }
            // Round robin: the first due member behind the one that was served last.
            let last = self.0.last.load(SeqCst);
            let behind = due & u64::MAX.checked_shl(last as u32).unwrap_or(0);
            let at = if behind == 0 { due } else { behind }.trailing_zeros() as usize + 1;
            self.0.last.store(at as u64, SeqCst);
            if self.0.due.fetch_and(!bit(at), SeqCst) & bit(at) != 0 {
                let mut inner = self.0.inner.lock();
                let member = &mut inner.members[at];
                match member.user {
                    Some(user) if !member.queue.is_empty() => return Some((user, member.queue.len())),
                    Some(_) => {}
                    None => member.start_over(),
                }
            }
        }
    }

    /// Notes that frames wait for that VM still.
    pub fn postpone(&self, user: Handle) {
        let inner = self.0.inner.lock();
        if let Some(at) = inner.members.iter().position(|member| member.user == Some(user)) {
            self.0.due.fetch_or(bit(at), SeqCst);
        }
    }

    /// Forgets a VM that frames waited for, which is gone.
    pub fn forget(&self, user: Handle) {
        let mut inner = self.0.inner.lock();
        if let Some(at) = inner.members.iter().position(|member| member.user == Some(user)) {
            inner.members[at].start_over();
            inner.switch.forget(at);
            inner.report();
        }
    }
}

/// The plug of a VM's card.
#[derive(Clone, Debug)]
pub struct Plug {
    network: Network,
    member: usize,
    mac: Mac,
}

impl Plug {
    /// Returns the card's address.
    #[must_use]
    pub const fn mac(&self) -> Mac {
        self.mac
    }

    fn with<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> R {
        act(&mut self.network.0.inner.lock())
    }

    /// Sets the VM that has the card.
    pub fn set_user(&self, user: Handle) {
        self.with(|inner| inner.members[self.member].user = Some(user));
    }

    /// Notes that there is a driver that takes frames.
    pub fn come_up(&self) {
        self.with(|inner| inner.members[self.member].is_up = true);
    }

    /// Sends a frame. Returns how many members got it.
    ///
    /// # Errors
    /// [`NotSent`].
    pub fn send(&self, frame: &Arc<Frame>, now: u64) -> Result<u32, NotSent> {
        let due = self.with(|inner| inner.send(self.member, frame, now))?;
        if due != 0 {
            self.network.0.due.fetch_or(due, SeqCst);
        }
        Ok(due.count_ones())
    }

    /// Returns the interval at which a hart serves a card whose guest it does not run, in ticks.
    #[must_use]
    pub fn seldom(&self) -> u64 {
        self.network.0.timebase / SELDOM
    }

    /// Notifies the host's device of frames that were sent to it, if any were.
    pub fn flush(&self) {
        self.with(|inner| {
            if core::mem::take(&mut inner.has_sent) {
                inner.world.iter_mut().for_each(|world| world.notify());
            }
            inner.report();
        });
    }

    /// Frees its frames that are not taken, because it has none left.
    pub fn expire(&self, now: u64) {
        self.with(|inner| inner.expire(self.member, now));
    }

    /// Returns the first frame that waits for it, which stays there.
    #[must_use]
    pub fn next(&self) -> Option<Arc<Frame>> {
        self.with(|inner| inner.members[self.member].queue.front().map(|(_, frame, _)| Arc::clone(frame)))
    }

    /// Takes a frame out of the queue, unless it has been lost meanwhile.
    pub fn taken(&self, frame: &Arc<Frame>, now: u64) {
        self.with(|inner| {
            let patience = inner.patience;
            let member = &mut inner.members[self.member];
            let Some((_, first, since)) = member.queue.front() else { return };
            if Arc::ptr_eq(first, frame) {
                member.is_stuck &= now.saturating_sub(*since) > patience;
                member.pop();
                if member.must_report() {
                    inner.report();
                }
            }
        });
    }

    /// Returns the number of frames for it that were lost because it took none.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.with(|inner| inner.members[self.member].lost)
    }

    /// Starts the card over: the frames that wait for it are dropped.
    pub fn start_over(&self) {
        self.with(|inner| {
            inner.members[self.member].start_over();
            inner.switch.forget(self.member);
            inner.report();
        });
    }
}
