//! The search for pages that may be coalesced, and the moves of frames that make it possible.
//!
//! If a guest's pages lie in another order than their addresses, no leaf of 2 MiB says what theirs do. Only Gnomon sees
//! the host's frames, so it takes 2 MiB of them, and puts the pages there in the order of their addresses, some in each
//! portion:
//!
//! ```text
//!   no leaf leads to some pages ──► fence ──► copy them ──► fence ──► their own leaves, and the G-stage, lead to the copies
//! ```
//!
//! Nothing waits for the rest: between two portions each page is in one frame or the other, and every table says which.

use crate::frames::{Ahead, Frames, Row};
use crate::gstage::{Leaving, Near};
use crate::shadow::cache::Cache;
use crate::shadow::entries::{Leaves, Tables, leaves_of};
use crate::shadow::pages::{At, Id, Index, List, Page, Stay, below, indices};
use crate::shadow::{Budget, Host, Paging, Root, Sabotage, Shadowed};
use crate::stale::Stale;
use crate::table::State;
use alloc::vec::Vec;
use core::mem::take;
use rv::format::ENTRIES;
use rv::{Addr, Fence, Gpa, Level, Pfn, PhysMem, Pte, PteFlags};

/// Pages that are moved in one portion at most.
const PORTION: usize = 32;

/// Pages of which it is seen in one portion whether they may be moved.
const SEEN_AT_ONCE: usize = 128;
/// Portions for 2 MiB, where 28 are enough if nothing is in the way.
const PORTIONS: u32 = 100;

/// The result of a portion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gathered {
    /// There is more to look at, or to move.
    More,
    /// All that the root leads to has been looked at since this was said last.
    Round {
        /// Set if the round had a result, or found changes.
        has_found: bool,
        /// The time at which the first of the leaves that changed lately will have been unchanged for long enough.
        settles: Option<u64>,
    },
}

impl Gathered {
    /// Nothing is there to be looked at.
    pub const NOTHING: Self = Self::Round { has_found: false, settles: None };
}

/// The position of the search, and the move that it has begun.
pub(super) struct Gathering<S: Shadowed> {
    /// The root that it goes through, by its serial, and the next address.
    pub root: u64,
    pub next: Addr<S>,
    /// Set if this round had a result, or found changes.
    pub has_found: bool,
    /// The time at which the first of the leaves that it has passed will have been unchanged for long enough.
    settles: Option<u64>,
    pub moving: Option<Moving>,
}

/// Pages on their way to 2 MiB.
pub(super) struct Moving {
    /// The shadow page that leads to them.
    pub id: Id,
    pub serial: u64,
    /// The frames that are left; none are taken before it has been seen that all pages may be moved.
    pub row: Option<Row>,
    /// Pages that may be moved, as far as has been seen.
    pub seen: usize,
    /// Pages that have moved.
    pub done: usize,
    /// Portions that it may still take: some only make room for others.
    pub left: u32,
}

impl Moving {
    /// Gives back what it has taken.
    pub fn end(self, frames: &Frames) {
        if let Some(row) = self.row {
            frames.put_back_row(row);
        }
    }
}

impl<S: Shadowed> Gathering<S> {
    pub const fn new() -> Self {
        Self { root: 0, next: Addr::new(0), has_found: false, settles: None, moving: None }
    }

    /// Begins a search of that root, by its serial, at the first address.
    pub fn begin(&mut self, root: u64) {
        (self.root, self.next, self.has_found, self.settles) = (root, Addr::new(0), false, None);
    }

    /// Leaves that it passes have been as they are for long enough at that time.
    pub fn settles_at(&mut self, time: u64) {
        self.settles = Some(self.settles.map_or(time, |first| first.min(time)));
    }

    /// The round ends, and another begins.
    pub fn end_round(&mut self) -> Gathered {
        self.next = Addr::new(0);
        Gathered::Round { has_found: take(&mut self.has_found), settles: self.settles.take() }
    }

    pub fn gather_some<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        cache: &mut Cache<S>,
        root: &Root<S>,
        (now, settled): (u64, u64),
        take: impl FnOnce() -> Option<Ahead>,
        host: &mut Host<'_, M, H>,
    ) -> Gathered {
        if !cache.tables.rules.policy.coalesces
            || root.paging == Paging::Bare
            || !S::HAS_LANE
            || !host.space.may_have_mega()
        {
            return Gathered::NOTHING;
        }
        if self.moving.is_some() {
            self.move_some(cache, take, host);
            return Gathered::More;
        }
        if self.root != root.serial {
            self.begin(root.serial);
        }
        while !host.budget.is_spent() {
            let from = self.next;
            // The lower half: the other is the kernel's, whose pages are no user's.
            let Some((id, there)) = table_from(&cache.tables, root.id, Addr::new(0), (from, root), host) else {
                return self.end_round();
            };
            self.next = there.wrapping_add(Level::MEGA.bytes());
            let page = cache.tables.index.page_mut(id);
            if matches!(page.stay, Stay::Changed) {
                page.stay = Stay::Since(now);
                self.has_found |= page.marks.is_full();
            }
            let Stay::Since(since) = page.stay else { continue };
            if page.is_coalesced {
                continue;
            }
            if now.saturating_sub(since) < settled {
                if page.marks.is_full() {
                    self.settles_at(since.saturating_add(settled));
                }
                continue;
            }
            // Whatever comes of it, it is not tried again before something is different.
            page.stay = Stay::Judged;
            match leaves_of(cache.tables.index.page(id), host) {
                Leaves::Various => {}
                Leaves::Run(first) => {
                    let is_coalesced = cache.tables.coalesce(id, first, host);
                    self.has_found |= is_coalesced;
                }
                Leaves::Scattered => {
                    let serial = cache.tables.index.page(id).serial;
                    self.moving = Some(Moving { id, serial, row: None, seen: 0, done: 0, left: PORTIONS });
                    return Gathered::More;
                }
            }
        }
        Gathered::More
    }

    /// Moves the next pages, and coalesces when that was all. Where something is not as it was, they stay where they are.
    fn move_some<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        cache: &mut Cache<S>,
        take: impl FnOnce() -> Option<Ahead>,
        host: &mut Host<'_, M, H>,
    ) {
        let Some(mut moving) = self.moving.take() else { return };
        let is_there = |page: &Page| page.serial == moving.serial && !page.is_coalesced && page.marks.is_full();
        if moving.left == 0 || !cache.tables.index.arena.get(moving.id).is_some_and(is_there) {
            return moving.end(host.frames);
        }
        moving.left -= 1;
        let Some(row) = &mut moving.row else {
            let some = moving.seen..moving.seen + SEEN_AT_ONCE;
            if !some.clone().all(|index| may_move(cache, (moving.id, index), host)) {
                return;
            }
            moving.seen = some.end;
            if moving.seen == ENTRIES {
                let Some(taken) = take() else {
                    // There may be some later.
                    cache.tables.index.page_mut(moving.id).stay = Stay::Changed;
                    return;
                };
                self.has_found = true;
                moving.row = Some(Row::of(taken));
            }
            self.moving = Some(moving);
            return;
        };
        let may_go_on = move_pages(cache, moving.id, (row, &mut moving.done), host);
        if !may_go_on {
            return moving.end(host.frames);
        }
        if moving.done < ENTRIES {
            self.moving = Some(moving);
            return;
        }
        if let Leaves::Run(first) = leaves_of(cache.tables.index.page(moving.id), host) {
            cache.tables.counters.gathered += u64::from(cache.tables.coalesce(moving.id, first, host));
        }
    }
}

/// Moves some pages, from number `done` on. Says whether it may go on.
fn move_pages<S: Shadowed, M: PhysMem, H: Fence<Gpa>>(
    cache: &mut Cache<S>,
    id: Id,
    (row, done): (&mut Row, &mut usize),
    host: &mut Host<'_, M, H>,
) -> bool {
    /// To copy a page, and what is around it.
    const MOVE: u32 = 150;
    /// To split 2 MiB.
    const SPLIT: u32 = 900;
    let (mut stale, mut near, mut may_go_on) = (Stale::none(), Near::NONE, true);
    let mut leaving: Vec<(At, Pte, Leaving)> = Vec::with_capacity(PORTION);
    for index in *done..ENTRIES.min(*done + PORTION) {
        if host.budget.is_spent() {
            break;
        }
        let page = cache.tables.index.page(id);
        let mirror = page.made_from(index, host.mem);
        let gfn = mirror.pfn();
        // Since it was looked at the guest may have done anything to it.
        let is_leaf = State::of(page.slot(index).read(host.mem)) == State::Leaf;
        if !is_leaf
            || cache.is_shadowed(gfn, host.mem)
            || !is_only_users(&cache.tables.index, (id, index), gfn, host.mem)
        {
            may_go_on = false;
            break;
        }
        if !forget_others(cache, (id, index), gfn, host) {
            break;
        }
        let splits = host.space.counters().splits;
        let Some(page) = host.space.leave(gfn, (&mut near, &mut stale), host.frames, host.mem) else {
            may_go_on = false;
            break;
        };
        host.budget.spend(MOVE + SPLIT * (host.space.counters().splits - splits) as u32);
        let leaf = cache.tables.withhold((id, index), mirror, host);
        leaving.push(((id, index), leaf, page));
    }
    if stale.is_none() {
        return may_go_on;
    }
    cache.tables.counters.flushes += 1;
    cache.tables.emptied += 1;
    let retired = host.space.settle(stale, None, host.hw, host.mem);
    cache.flushed(host);
    let mut frames = Vec::with_capacity(PORTION);
    for (.., page) in &leaving {
        let frame = row.take().expect("as many as there are pages");
        host.mem.copy_frames(page.from(), frame.first(), 1);
        frames.push(frame);
    }
    // Code may be in them, and a fence orders for instructions what was stored before it alone.
    cache.flush(host);
    for ((at, leaf, page), frame) in leaving.into_iter().zip(frames) {
        let to = frame.first();
        host.space.arrive(page, frame, host.frames, host.mem);
        cache.tables.arrive(at, leaf.leading_to(to), host.mem);
        cache.tables.counters.moved += 1;
        *done += 1;
    }
    retired.release(host.frames);
    may_go_on
}

/// Drops all other leaves that lead to the frame of that one. Says whether that was all, within the budget.
fn forget_others<S: Shadowed, M: PhysMem, H>(
    cache: &mut Cache<S>,
    at: At,
    gfn: Pfn<Gpa>,
    host: &mut Host<'_, M, H>,
) -> bool {
    for list in [List::Frame(gfn), List::Mega(gfn)] {
        let mut next = cache.tables.index.first(list, host.mem);
        while let Some(other) = next {
            next = cache.tables.index.next(other, host.mem);
            if host.budget.is_spent() {
                return false;
            }
            host.budget.spend(1);
            // Parked ones lead nowhere.
            if other == at || !cache.tables.index.page(other.0).marks.is_live(other.1) {
                continue;
            }
            cache.tables.drop_entry(other, host);
            if cache.tables.rules.is_sabotaged(Sabotage::MovesUnderOthers) {
                break;
            }
        }
    }
    true
}

/// The first shadow page of level 0 below a page, in the lower half of addresses, that translates `from` or what is behind it, and
/// where that is. `gva`: an address that the page translates.
fn table_from<S: Shadowed, M: PhysMem, H>(
    tables: &Tables<S>,
    id: Id,
    gva: Addr<S>,
    (from, root): (Addr<S>, &Root<S>),
    host: &mut Host<'_, M, H>,
) -> Option<(Id, Addr<S>)> {
    /// To find the page that an entry leads to.
    const FOLLOW: u32 = 10;
    let page = tables.index.page(id);
    let level = page.key.level;
    let end = if level == root.format.root_level() { ENTRIES / 2 } else { ENTRIES };
    let behind = from.raw().saturating_sub(below(level, gva, 0).raw()) >> level.shift();
    let start = (behind as usize).min(end);
    host.budget.spend(Budget::VISIT);
    for part in start / 64..end / 64 {
        let before = if part == start / 64 { (1 << (start % 64)) - 1 } else { 0 };
        for index in indices(part, page.marks.leading_in(part) & !before) {
            let there = below(level, gva, index);
            host.budget.spend(FOLLOW);
            let Some(child) = tables.table_below((id, index), host.mem) else { continue };
            if level == Level::MEGA {
                return Some((child, there));
            }
            let found = table_from(tables, child, there, (from, root), host);
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// Returns whether a page that a shadow page leads to may be moved.
fn may_move<S: Shadowed, M: PhysMem, H>(cache: &Cache<S>, at: At, host: &Host<'_, M, H>) -> bool {
    let gfn = cache.tables.index.page(at.0).made_from(at.1, host.mem).pfn();
    cache.tables.index.heads.contains(gfn)
        && !cache.is_shadowed(gfn, host.mem)
        && is_only_users(&cache.tables.index, at, gfn, host.mem)
        && host.space.may_move(gfn, host.mem)
}

/// Returns whether no other leaf for user mode leads to the frame, nor any of the same page. Two that want it in different places would take it
/// from each other for ever.
fn is_only_users<S: Shadowed>(all: &Index<S>, at: At, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
    /// The number of leaves at which the search gives up; most frames have two, the other being the kernel's.
    const MOST: u32 = 4;
    let mut left = MOST;
    for list in [List::Frame(gfn), List::Mega(gfn)] {
        let mut next = all.first(list, mem);
        while let Some((id, index)) = next {
            let page = all.page(id);
            let is_users = || page.slot(index).read(mem).flags().contains(PteFlags::U);
            left -= 1;
            if left == 0 || (id, index) != at && page.marks.is_live(index) && (id == at.0 || is_users()) {
                return false;
            }
            next = all.next((id, index), mem);
        }
    }
    true
}
