//! The side that has the VM.

use super::line::{Line, MigrateError, PATIENCE, Reply, Sent};
use crate::control::client::Client;
use crate::control::save::{Held, ask};
use crate::host::words::shown;
use abi::control::save::{Changed, MOST_PAGES, Pages, Save};
use abi::control::{Answer, Request};
use abi::snapshot::State;
use abi::snapshot::bytes::Bytes;
use abi::snapshot::file::PAGE;
use fixedbitset::FixedBitSet;
use std::time::{Duration, Instant};

/// The time limit for the other machine to start.
const START: Duration = Duration::from_secs(300);
/// The most rounds while the VM runs.
const MOST_ROUNDS: u32 = 30;
/// The number of changed pages with which a round is the last one while the VM runs.
const FEW: usize = 48;

/// The progress of a migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The round, from 1.
    pub round: u32,
    /// Pages that were sent in all rounds.
    pub sent: u64,
    /// Pages that are left in this one.
    pub left: usize,
}

/// A migration that is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Pages that were sent in all rounds.
    pub sent: u64,
    /// Pages that are not zero.
    pub used: u64,
    /// Rounds while the VM ran.
    pub rounds: u32,
    /// The time in which the VM stood still.
    pub still: Duration,
}

struct Sender<'a, T> {
    client: &'a mut Client,
    vm: (u64, &'a str),
    line: &'a mut Line,
    tell: T,
    progress: Progress,
    /// Pages that are to be sent.
    due: FixedBitSet,
    /// Pages that were sent in the round before, and have changed since: they wait until the VM stands still, if they are few.
    hot: FixedBitSet,
    /// Pages that the receiver has, and that are not zero there.
    there: FixedBitSet,
}

/// Moves the VM of that number and name to the receiver at the other end of `line`. `tell` is told how far it is.
///
/// # Errors
/// [`MigrateError`]. The VM goes on where it was when `client` hangs up, except after [`MigrateError::Unknown`].
pub fn send(
    client: &mut Client,
    vm: (u64, &str),
    line: &mut Line,
    tell: impl FnMut(Progress),
) -> Result<Moved, MigrateError> {
    let mut held = Held::begin(client, vm)?;
    let (saving, early) = (held.saving(), held.state()?);
    // From before it runs again: what hardware does unseen is left to Gnomon from then on.
    let is_live = saving.was_running && held.begin_log()?;
    held.end()?;
    introduce(client, vm, line, early)?;
    let pages = saving.pages as usize;
    let set = || FixedBitSet::with_capacity(pages);
    let progress = Progress { round: 0, sent: 0, left: 0 };
    let mut sender = Sender { client, vm, line, tell, progress, due: set(), hot: set(), there: set() };
    if is_live {
        sender.rounds()?;
    }
    let rounds = sender.progress.round;
    let stood = Instant::now();
    let mut held = Held::begin(sender.client, vm)?;
    let (id, state) = (held.saving().id, held.state()?);
    match is_live {
        true => {
            sender.collect(false)?;
            let hot = std::mem::take(&mut sender.hot);
            sender.due.union_with(&hot);
            sender.flush()?;
        }
        false => sender.flush_still(id)?,
    }
    sender.line.put(&Sent::State(Bytes(state)))?;
    sender.line.expect(&Reply::Checked, PATIENCE)?;
    // From here on it must not go on here by itself.
    ask(sender.client, vm, Save::Give(id))?;
    let told = sender.line.put(&Sent::Commit).and_then(|()| sender.line.expect(&Reply::Started, PATIENCE));
    match told {
        Ok(()) => {}
        Err(MigrateError::Refused(why)) => {
            // It does not run there, for certain.
            sender.client.tell(&format!("cannot resume VM `{}`", vm.1), &Request::Resume(vm.0))?;
            return Err(MigrateError::Refused(why));
        }
        Err(why) => return Err(MigrateError::Unknown(why.to_string())),
    }
    let still = stood.elapsed();
    let (sent, used) = (sender.progress.sent, sender.there.count_ones(..) as u64);
    Ok(Moved { sent, used, rounds, still })
}

/// Checks whether the receiver at the other end of `line` can have the VM, which stands still only while its state is taken.
///
/// # Errors
/// [`MigrateError`]: the reason why it cannot.
pub fn check(client: &mut Client, vm: (u64, &str), line: &mut Line) -> Result<(), MigrateError> {
    let mut held = Held::begin(client, vm)?;
    let early = held.state()?;
    held.end()?;
    introduce(client, vm, line, early.clone())?;
    line.put(&Sent::State(Bytes(early)))?;
    line.expect(&Reply::Checked, PATIENCE)
}

/// Sends an early state of the VM, and waits until the receiver has made a VM of it.
fn introduce(client: &mut Client, vm: (u64, &str), line: &mut Line, early: Vec<u8>) -> Result<(), MigrateError> {
    let disks = disks(client, vm, line.is_local)?;
    let has = |state: State| state.told.disks.iter().filter(|disk| !disk.is_read_only).count();
    if State::decode(&early).map(has) != Some(disks.len()) {
        return Err(client.nonsense().into());
    }
    line.put(&Sent::Hello(Bytes(early), disks))?;
    line.expect(&Reply::Ready, START)
}

/// Returns the device and inode of each file of a disk that the VM writes to, if the other side can have all of them.
fn disks(client: &mut Client, (number, vm): (u64, &str), is_local: bool) -> Result<Vec<(u64, u64)>, MigrateError> {
    let all = client.vms()?.disks;
    let own = all.into_iter().filter(|disk| disk.vm == number).map(|disk| {
        let away = || "the other side is on another computer, for all that is known (tcp:)".to_owned();
        match disk.obstacle.or_else(|| (!is_local).then(away)) {
            None => Ok(disk.identity),
            Some(why) => Err(MigrateError::Disk { vm: vm.into(), file: shown(&disk.file).into(), why: shown(&why) }),
        }
    });
    own.collect()
}

impl<T: FnMut(Progress)> Sender<'_, T> {
    /// Sends pages while the VM runs, until few are left.
    fn rounds(&mut self) -> Result<(), MigrateError> {
        let mut before = usize::MAX;
        loop {
            self.progress.round += 1;
            let none = FixedBitSet::with_capacity(self.due.len());
            let sent = std::mem::replace(&mut self.due, none);
            self.collect(self.progress.round == 1)?;
            let count = self.due.count_ones(..);
            if self.progress.round > 2 {
                // What changes again and again is sent once more, at the end.
                let mut again = self.due.clone();
                again.intersect_with(&sent);
                self.hot.union_with(&again);
                self.due.difference_with(&self.hot.clone());
            }
            let sent_now = self.due.clone();
            self.flush()?;
            self.due = sent_now;
            self.line.put(&Sent::Sync)?;
            self.line.expect(&Reply::Synced, PATIENCE)?;
            let is_enough =
                count <= FEW || self.progress.round > 2 && count >= before || self.progress.round >= MOST_ROUNDS;
            if is_enough {
                self.due.clear();
                return Ok(());
            }
            before = count;
        }
    }

    /// Learns which pages have changed.
    fn collect(&mut self, is_first: bool) -> Result<(), MigrateError> {
        let mut from = 0;
        let all = self.there.len() as u64;
        while from < all {
            let answer = ask(self.client, self.vm, Save::Changed { from, is_first })?;
            let Answer::Changed(Changed { next, changed, zero }) = answer else {
                return Err(self.client.nonsense().into());
            };
            if next <= from || next > all {
                return Err(self.client.nonsense().into());
            }
            for (first, count) in &changed {
                self.due.insert_range(*first as usize..(first + count).min(all) as usize);
            }
            for (first, count) in zero {
                self.forget(first, (first + count).min(all))?;
            }
            from = next;
        }
        Ok(())
    }

    /// Pages are zero here.
    fn forget(&mut self, from: u64, end: u64) -> Result<(), MigrateError> {
        let range = from as usize..end as usize;
        self.due.remove_range(range.clone());
        self.hot.remove_range(range.clone());
        if self.there.contains_any_in_range(range.clone()) {
            self.there.remove_range(range);
            self.line.put(&Sent::Zero(from, end))?;
        }
        Ok(())
    }

    /// Sends all that is due, of a VM that runs or ran until now: what follows one another by runs, else by numbers.
    fn flush(&mut self) -> Result<(), MigrateError> {
        /// The least length of a run, and the most that is looked at.
        const RUN: usize = 32;
        const MOST_RUN: usize = 256;
        self.progress.left = self.due.count_ones(..);
        while let Some(first) = self.due.minimum() {
            let most = self.due.len().min(first + MOST_RUN);
            let end = (first..most).find(|page| !self.due.contains(*page)).unwrap_or(most);
            if end - first >= RUN {
                self.send(Save::Look { from: first as u64, end: end as u64 }, |next| (first..next.min(end)).collect())?;
                continue;
            }
            let mut numbers = [u64::MAX; MOST_PAGES];
            let some: Vec<usize> = self.due.ones().take(MOST_PAGES).collect();
            numbers.iter_mut().zip(&some).for_each(|(place, page)| *place = *page as u64);
            self.send(Save::Fetch(numbers), |_| some)?;
        }
        Ok(())
    }

    /// Sends all pages of a VM that stands still for that snapshot.
    fn flush_still(&mut self, id: u32) -> Result<(), MigrateError> {
        self.due.insert_range(..);
        self.progress.left = self.due.len();
        while let Some(first) = self.due.minimum() {
            self.send(Save::Pages { id, from: first as u64 }, |next| (first..next).collect())?;
        }
        Ok(())
    }

    /// Asks for pages and sends them. `asked` says which they are, by the page to continue from; those that are not found are zero.
    fn send(&mut self, wish: Save, asked: impl FnOnce(usize) -> Vec<usize>) -> Result<(), MigrateError> {
        let Answer::Pages(Pages { next, first: found, bytes }) = ask(self.client, self.vm, wish)? else {
            return Err(self.client.nonsense().into());
        };
        let asked = asked((next as usize).min(self.due.len()));
        let is_known = |page: &u64| asked.binary_search(&(*page as usize)).is_ok();
        if asked.is_empty() || bytes.0.len() != found.len() * PAGE || !found.iter().all(is_known) {
            return Err(self.client.nonsense().into());
        }
        self.progress.left = self.progress.left.saturating_sub(asked.len());
        for page in asked {
            self.due.set(page, false);
            let is_there = found.binary_search(&(page as u64)).is_ok();
            if self.there.put(page) && !is_there {
                self.line.put(&Sent::Zero(page as u64, page as u64 + 1))?;
            }
            self.there.set(page, is_there);
        }
        self.progress.sent += found.len() as u64;
        if !found.is_empty() {
            self.line.put(&Sent::Pages(Pages { next: 0, first: found, bytes }))?;
        }
        (self.tell)(self.progress);
        Ok(())
    }
}
