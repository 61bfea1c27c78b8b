//! Check mode: whether any access could have used a translation that is no longer there.
//!
//! An emulator forgets translations far more often than hardware does, so it hides missing fences. Here
//! is a TLB that forgets nothing but what a fence tells it to (norm:sfence-vma_ordering_semantics): each
//! access and each page fault is compared with what that TLB still knows.

use crate::array::{Ids, Invalidation, Regime};
use crate::counts::Stale;
use crate::mode::Mode;
use crate::model::Use;
use crate::walk::{Leaf, Mapping, Reference, Space, Stage, Trace, Words, walk_on};
use rustc_hash::FxHashMap;
use rv::{Access, PteFlags, Request};
use serde::Serialize;

/// Findings that are kept in full; all are counted.
const MOST_FINDINGS: usize = 100;

/// Something that a fence should have prevented.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// The name of a counter of [`Stale`].
    pub kind: &'static str,
    /// The privilege whose translation was used.
    pub mode: Mode,
    /// The virtual address (guest physical, for a pointer of the G-stage).
    pub address: String,
    /// The target of the translation that a TLB may still have.
    pub cached: String,
    /// The target by the tables, or the reason for having none.
    pub tables: String,
    /// The address of the last block that was entered: the code at fault is near it.
    pub block: String,
}

#[derive(Clone, Copy, Debug)]
struct Cached {
    ids: Ids,
    is_global: bool,
    /// By which tables it was found.
    space: Space,
    /// The first page that it translates.
    page: u64,
    mapping: Mapping,
    /// The time at which the entry last agreed with the tables.
    verified: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pointer {
    ids: Ids,
    is_global: bool,
    target: u64,
}

/// Regime, log2 of the pages, and the page's number without so many bits.
type Key = (Regime, u8, u64);

const SPANS: [u8; 6] = [0, 4, 9, 18, 27, 36];

/// The TLB of a hart that forgets nothing.
#[derive(Clone, Debug, Default)]
pub struct Check {
    leaves: FxHashMap<Key, Vec<Cached>>,
    /// The sizes that leaves of each regime ever had: a bit for each place in [`SPANS`]. Others need no search.
    spans: [u8; 3],
    /// The keys of the pieces of a first-stage leaf that is larger than what both stages translate at once.
    pieces: FxHashMap<Key, Vec<Key>>,
    pointers: FxHashMap<Key, Vec<Pointer>>,
    /// The findings, up to a bound.
    pub findings: Vec<Finding>,
}

/// An access, or a page fault.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The page.
    pub page: u64,
    /// The kind of access.
    pub how: Use,
    /// The privilege whose translation is used.
    pub mode: Mode,
    /// The translation of that mode.
    pub space: &'a Space,
    /// The time, as a value of [`crate::tables::Tables::generation`].
    pub generation: u64,
    /// The last block that was entered.
    pub block: u64,
}

fn allows(flags: PteFlags, request: &Request) -> bool {
    let is_user = flags.contains(PteFlags::U);
    let right_mode = match request.mode {
        rv::Mode::User => is_user,
        rv::Mode::Supervisor => !is_user || (request.sum && request.access != Access::Fetch),
    };
    right_mode
        && match request.access {
            Access::Load => {
                flags.contains(PteFlags::R) || ((request.mxr || request.hs_mxr) && flags.contains(PteFlags::X))
            }
            Access::Store => flags.contains(PteFlags::W),
            Access::Fetch | Access::LoadExec => flags.contains(PteFlags::X),
        }
}

fn all_allow(mapping: &Mapping, request: &Request) -> bool {
    mapping.first.is_none_or(|leaf| allows(leaf.flags, request))
        && mapping.g.is_none_or(|leaf| allows(leaf.flags, &request.at_g_stage()))
}

impl Cached {
    /// Returns whether the tables by which it was found say the same of `page` now.
    fn is_still<W: Words>(&self, page: u64, request: &Request, words: &W) -> bool {
        let mut now = Trace::default();
        now.walk(&self.space, page << rv::PAGE_SHIFT, request, words);
        now.outcome.is_ok_and(|now| now.page == self.mapping.page + (page - self.page))
    }
}

impl Check {
    /// Returns whether an access needs no look: it was seen since tables last changed.
    #[must_use]
    pub fn is_verified(&self, event: &Event<'_>) -> bool {
        self.find(event.page, event.space.ids).is_some_and(|(_, cached)| cached.verified == event.generation)
    }

    fn find(&self, page: u64, ids: Ids) -> Option<(Key, Cached)> {
        let used = self.spans[ids.regime as usize];
        SPANS.iter().enumerate().filter(|(place, _)| used >> place & 1 != 0).find_map(|(_, span)| {
            let key = (ids.regime, *span, page >> span);
            let found = self.leaves.get(&key)?.iter().find(|cached| cached.ids.serve(cached.is_global, ids))?;
            Some((key, *found))
        })
    }

    fn remember(&mut self, key: Key, cached: Cached) {
        let (regime, span, _) = key;
        self.spans[regime as usize] |= SPANS.iter().position(|known| *known == span).map_or(0, |place| 1 << place);
        self.leaves.entry(key).or_default().push(cached);
    }

    fn forget(&mut self, key: Key, ids: Ids) {
        if let Some(all) = self.leaves.get_mut(&key) {
            all.retain(|cached| !cached.ids.serve(cached.is_global, ids));
        }
    }

    /// An access that was allowed; `trace` is its walk, now.
    pub fn access<W: Words>(
        &mut self,
        event: &Event<'_>,
        request: &Request,
        trace: &Trace,
        stale: &mut Stale,
        words: &W,
    ) {
        if let Some((key, cached)) = self.find(event.page, event.space.ids) {
            self.compare(event, &cached, request, trace, stale);
            self.forget(key, event.space.ids);
        }
        self.learn(event, request, trace, stale, words);
    }

    fn compare(&mut self, event: &Event<'_>, cached: &Cached, request: &Request, trace: &Trace, stale: &mut Stale) {
        let offset = event.page - cached.page;
        let (guest_page, page) = (cached.mapping.guest_page + offset, cached.mapping.page + offset);
        let stage = match &trace.outcome {
            Err(refused) => refused.stage,
            Ok(now) if now.guest_page != guest_page => Stage::First,
            Ok(now) if now.page != page => Stage::G,
            Ok(_) => {
                stale.spurious += u64::from(!all_allow(&cached.mapping, request));
                return;
            }
        };
        let (counter, kind) = match (event.space.ids.regime, stage) {
            (Regime::One, _) => (&mut stale.one_stage, "one_stage"),
            (_, Stage::G) if event.space.has_g() => (&mut stale.g_stage, "g_stage"),
            _ => (&mut stale.first_stage, "first_stage"),
        };
        *counter += 1;
        self.report(event, kind, event.page, page, &trace.outcome.map(|now| now.page));
    }

    /// A page fault, for a request that the tables refuse by themselves, not for want of A or D.
    pub fn fault<W: Words>(
        &mut self,
        event: &Event<'_>,
        request: &Request,
        trace: &Trace,
        stale: &mut Stale,
        words: &W,
    ) {
        let Some((key, cached)) = self.find(event.page, event.space.ids) else { return };
        // What another address space has said to be for all need not be in the tables of all.
        let is_others = cached.is_global && cached.ids.asid != event.space.ids.asid;
        let is_stale = || !(is_others && cached.is_still(event.page, request, words));
        if trace.outcome.is_err() && all_allow(&cached.mapping, request) && is_stale() {
            stale.missed_faults += 1;
            let page = cached.mapping.page + event.page - cached.page;
            self.report(event, "missed_faults", event.page, page, &trace.outcome.map(|now| now.page));
            self.forget(key, event.space.ids);
        }
    }

    fn report<E>(&mut self, event: &Event<'_>, kind: &'static str, at: u64, cached: u64, tables: &Result<u64, E>) {
        if self.findings.len() == MOST_FINDINGS {
            return;
        }
        let address = |page: u64| format!("{:#x}", page << rv::PAGE_SHIFT);
        self.findings.push(Finding {
            kind,
            mode: event.mode,
            address: address(at),
            cached: address(cached),
            tables: tables.as_ref().map_or_else(|_| "nothing".into(), |page| address(*page)),
            block: format!("{:#x}", event.block),
        });
    }

    /// Remembers all that a walk found, and looks whether any of it contradicts what is remembered.
    fn learn<W: Words>(&mut self, event: &Event<'_>, request: &Request, trace: &Trace, stale: &mut Stale, words: &W) {
        let space = event.space;
        for (place, entry) in trace.refs.iter().enumerate() {
            let (ids, is_global) = match entry.stage {
                Stage::First => (space.ids, entry.pte & PteFlags::G.bits() != 0),
                Stage::G => (space.g_ids(), false),
            };
            if entry.is_pointer() {
                if let Some(older) = self.replace_pointer(entry, ids, is_global) {
                    let request = if entry.stage == Stage::G { request.at_g_stage() } else { *request };
                    let leads = |table| {
                        let at = entry.input << rv::PAGE_SHIFT;
                        walk_on(space, entry.stage, at, (entry.level, table), &request, words)
                    };
                    // Two tables may say the same, and a walk that leads nowhere is a fault out of date.
                    let (then, now) = (leads(older), leads(entry.target()));
                    stale.spurious += u64::from(then.is_none());
                    if then.is_some() && then != now {
                        stale.pointers += 1;
                        let page = then.unwrap_or_default();
                        self.report(event, "pointers", entry.input, page, &now.ok_or(()));
                    }
                }
            } else if entry.stage == Stage::G && entry.is_leaf() && place + 1 < trace.refs.len() {
                // The leaf of a guest's table: the walk could have used an older one.
                self.learn_table_leaf(event, entry, ids, stale);
            }
        }
        if let Ok(mapping) = trace.outcome {
            let span = mapping.span();
            let offset = event.page & ((1 << span) - 1);
            let cached = Cached {
                ids: space.ids,
                is_global: mapping.is_global,
                space: *space,
                page: event.page - offset,
                mapping: Mapping { guest_page: mapping.guest_page - offset, page: mapping.page - offset, ..mapping },
                verified: event.generation,
            };
            let key = (space.ids.regime, span, event.page >> span);
            self.remember(key, cached);
            let whole = mapping.first_span();
            if whole > span {
                self.pieces.entry((space.ids.regime, whole, event.page >> whole)).or_default().push(key);
            }
        }
    }

    /// Remembers a pointer; returns where it led before, if elsewhere.
    fn replace_pointer(&mut self, entry: &Reference, ids: Ids, is_global: bool) -> Option<u64> {
        let all = self.pointers.entry((ids.regime, entry.span(), entry.input >> entry.span())).or_default();
        let known = all.iter().position(|pointer| pointer.ids.serve(pointer.is_global, ids));
        let older = known.map(|place| all.swap_remove(place).target);
        all.push(Pointer { ids, is_global, target: entry.target() });
        older.filter(|older| *older != entry.target())
    }

    fn learn_table_leaf(&mut self, event: &Event<'_>, entry: &Reference, ids: Ids, stale: &mut Stale) {
        let is_napot = entry.pte & PteFlags::N.bits() != 0;
        let span = if is_napot { 4 } else { entry.span() };
        let base = entry.target() & !((1 << span) - 1);
        let input = entry.input & !((1 << span) - 1);
        let known = self.find(entry.input, ids);
        if let Some((key, cached)) = known {
            let older = cached.mapping.page + (entry.input - cached.page);
            let newer = base + (entry.input - input);
            if older != newer {
                stale.g_stage += 1;
                self.report::<()>(event, "g_stage", entry.input, older, &Ok(newer));
            }
            self.forget(key, ids);
        }
        let g = Some(Leaf { span, flags: PteFlags::from_bits_truncate(entry.pte) });
        let mapping = Mapping { guest_page: input, page: base, first: None, g, is_global: false };
        let space = *event.space;
        let cached = Cached { ids, is_global: false, space, page: input, mapping, verified: event.generation };
        self.remember((Regime::G, span, input >> span), cached);
    }

    /// A fence.
    pub fn invalidate(&mut self, what: &Invalidation) {
        match what.page {
            None => {
                self.leaves.values_mut().for_each(|all| all.retain(|one| !what.means(one.ids, one.is_global)));
                self.leaves.retain(|_, all| !all.is_empty());
                self.pointers.values_mut().for_each(|all| all.retain(|one| !what.means(one.ids, one.is_global)));
                self.pointers.retain(|_, all| !all.is_empty());
            }
            // Leaves only: pointers need a fence of everything.
            Some(page) => {
                for span in SPANS {
                    let key = (what.regime, span, page >> span);
                    let pieces = self.pieces.remove(&key).unwrap_or_default();
                    let mut left = Vec::new();
                    for key in pieces.into_iter().chain([key]) {
                        let Some(all) = self.leaves.get_mut(&key) else { continue };
                        all.retain(|one| !what.means(one.ids, one.is_global));
                        if all.is_empty() {
                            self.leaves.remove(&key);
                        } else {
                            left.push(key);
                        }
                    }
                    left.retain(|piece| *piece != key);
                    if !left.is_empty() {
                        self.pieces.insert(key, left);
                    }
                }
            }
        }
        if what.regime == Regime::G {
            // What came of both stages goes with the G-stage's leaf, of which it may be a piece.
            let derived = |one: &Cached| {
                let span = one.mapping.g.map_or(one.mapping.span(), |leaf| leaf.span);
                one.ids.regime == Regime::Two
                    && what.vmid.is_none_or(|vmid| one.ids.vmid == vmid)
                    && what.page.is_none_or(|page| page >> span == one.mapping.guest_page >> span)
            };
            self.leaves.values_mut().for_each(|all| all.retain(|one| !derived(one)));
        }
    }
}
