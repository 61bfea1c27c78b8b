//! The side that has the VM.

use super::{Line, MigrateError, PATIENCE, Reply, Sent};
use crate::control::ControlError;
use crate::control::client::Client;
use crate::control::save::{Held, ask};
use abi::control::Answer;
use abi::control::save::{Changed, Pages, Save};
use abi::snapshot::bytes::Bytes;
use abi::snapshot::file::PAGE;
use fixedbitset::FixedBitSet;
use std::time::{Duration, Instant};

/// The time limit for the other machine to start.
const START: Duration = Duration::from_secs(300);
/// The most rounds while the VM runs.
const MOST_ROUNDS: u32 = 30;
/// So few pages are left for the time in which the VM stands still.
const FEW: usize = 48;

/// How far a migration is.
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
    held.end()?;
    line.put(&Sent::Hello(Bytes(early)))?;
    line.expect(&Reply::Ready, START)?;
    let pages = saving.pages as usize;
    let set = || FixedBitSet::with_capacity(pages);
    let progress = Progress { round: 0, sent: 0, left: 0 };
    let mut sender = Sender { client, vm, line, tell, progress, due: set(), hot: set(), there: set() };
    let is_live = saving.was_running && sender.begin_log()?;
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
            sender.flush(|from, end| Save::Look { from, end })?;
        }
        false => {
            sender.due.insert_range(..);
            sender.flush(|from, _| Save::Pages { id, from })?;
        }
    }
    sender.line.put(&Sent::State(Bytes(state)))?;
    sender.line.expect(&Reply::Checked, PATIENCE)?;
    // From here on it must not go on here by itself.
    ask(sender.client, vm, Save::Give(id))?;
    let told = sender.line.put(&Sent::Commit).and_then(|()| sender.line.expect(&Reply::Started, PATIENCE));
    told.map_err(|why| MigrateError::Unknown(why.to_string()))?;
    let still = stood.elapsed();
    let (sent, used) = (sender.progress.sent, sender.there.count_ones(..) as u64);
    Ok(Moved { sent, used, rounds, still })
}

impl<T: FnMut(Progress)> Sender<'_, T> {
    /// Begins the dirty log. Returns false if the VM has to stand still instead.
    fn begin_log(&mut self) -> Result<bool, MigrateError> {
        match ask(self.client, self.vm, Save::Log(true)) {
            Ok(_) => Ok(true),
            Err(ControlError::Refused { why, .. }) => {
                crate::host::tty::say(&format!("gnomon: {} stands still while it moves: {why}", self.vm.1));
                Ok(false)
            }
            Err(why) => Err(why.into()),
        }
    }

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
            self.flush(|from, end| Save::Look { from, end })?;
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
            if next <= from && changed.is_empty() && zero.is_empty() || next > all {
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

    /// Sends all that is due.
    fn flush(&mut self, look: impl Fn(u64, u64) -> Save) -> Result<(), MigrateError> {
        while let Some(first) = self.due.minimum() {
            let end = (first..self.due.len()).find(|page| !self.due.contains(*page)).unwrap_or(self.due.len());
            let answer = ask(self.client, self.vm, look(first as u64, end as u64))?;
            let Answer::Pages(Pages { next, first: found, bytes }) = answer else {
                return Err(self.client.nonsense().into());
            };
            let next = (next as usize).min(end);
            let is_sound = next > first && bytes.0.len() == found.len() * PAGE;
            if !is_sound || !found.iter().all(|page| (first..self.due.len()).contains(&(*page as usize))) {
                return Err(self.client.nonsense().into());
            }
            let mut zero = FixedBitSet::with_capacity(self.there.len());
            zero.insert_range(first..next);
            found.iter().for_each(|page| zero.set(*page as usize, false));
            zero.intersect_with(&self.there);
            for page in zero.ones().collect::<Vec<_>>() {
                self.there.set(page, false);
                self.line.put(&Sent::Zero(page as u64, page as u64 + 1))?;
            }
            found.iter().for_each(|page| self.there.insert(*page as usize));
            self.progress.sent += found.len() as u64;
            if !found.is_empty() {
                self.line.put(&Sent::Pages(Pages { next: 0, first: found, bytes }))?;
            }
            self.due.remove_range(first..next);
            self.progress.left = self.due.count_ones(next..);
            (self.tell)(self.progress);
        }
        Ok(())
    }
}
