//! The walker: a transcription of the privileged spec's "Virtual Address Translation Process".
//!
//! There is one. Each use differs only in how an entry is read ([`ReadPte`]): from RAM for a G-stage
//! table, through the G-stage for a guest's own table ([`mod@crate::two_stage`]), from a map in a test.

use core::convert::Infallible;
use rv::{Access, Addr, Caps, Entry, Format, Hpa, Leaf, Level, Mode, Pfn, PhysMem, Pte, PteFlags, Request, Space, Why};

/// Reads the entries of tables that lie in space `S`.
pub trait ReadPte<S: Space> {
    /// The reason why an entry cannot be read.
    type Error;
    /// Reads the entry at `at`, 8-aligned, once and atomically.
    ///
    /// # Errors
    /// When there is no memory there, or no permission to read it.
    fn read(&mut self, at: Addr<S>) -> Result<Pte, Self::Error>;
}

/// Also changes entries, as hardware does to set A and D.
pub trait UpdatePte<S: Space>: ReadPte<S> {
    /// Replaces `old` by `new` at `at`, atomically. `Ok(false)`: the entry was no longer `old`.
    ///
    /// # Errors
    /// When there is no memory there, or no permission to write it.
    fn update(&mut self, at: Addr<S>, old: Pte, new: Pte) -> Result<bool, Self::Error>;
}

/// Tables in host RAM.
pub struct Ram<M>(pub M);

impl<M: core::ops::Deref<Target: PhysMem>> ReadPte<Hpa> for Ram<M> {
    type Error = Infallible;
    fn read(&mut self, at: Addr<Hpa>) -> Result<Pte, Infallible> {
        Ok(Pte(self.0.read_u64(at)))
    }
}

impl<M: core::ops::DerefMut<Target: PhysMem>> UpdatePte<Hpa> for Ram<M> {
    fn update(&mut self, at: Addr<Hpa>, old: Pte, new: Pte) -> Result<bool, Infallible> {
        Ok(self.0.compare_exchange_u64(at, old.0, new.0).is_ok())
    }
}

/// The level at which a walk was refused, and the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault<E> {
    /// The level of the entry that decided.
    pub level: Level,
    /// The reason for the refusal.
    pub reason: Reason<E>,
}

/// The reason why a walk was refused. All but `Memory` are page faults (guest-page faults in a G-stage).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason<E> {
    /// The address is not one the format translates (norm:H_vm_gpatrans; not canonical).
    OutOfRange,
    /// V=0.
    NotValid,
    /// V=1, but not a legal entry; a misaligned superpage among others.
    Reserved(Why),
    /// The leaf does not allow the access.
    Denied,
    /// A=0, and hardware does not set it (Svade).
    NotAccessed,
    /// A store, D=0, and hardware does not set it (Svade).
    NotDirty,
    /// The entry could not be read or updated.
    Memory(E),
}

/// A completed walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk<Out: Space> {
    /// The leaf that the last entry holds.
    pub leaf: Leaf<Out>,
    /// The level of that entry.
    pub level: Level,
    /// The address of that entry.
    pub pte_at: Addr<Out>,
    /// The entry as it was read.
    pub pte: Pte,
    /// The translated address, Svnapot included.
    pub out: Addr<Out>,
}

impl<Out: Space> Walk<Out> {
    /// The A and D flags that `access` needs set and the leaf has clear.
    #[must_use]
    pub fn unset(&self, access: Access) -> PteFlags {
        unset(&self.leaf, access)
    }
}

/// The agent that sets A and D.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AdPolicy {
    /// Software: an access that needs them set and finds them clear is a page fault.
    Svade,
    /// Hardware, by an atomic update of the entry.
    Svadu,
}

/// The entry that ends a descent: never a pointer.
#[derive(Clone, Copy)]
pub(crate) struct Slot<Out: Space> {
    pub level: Level,
    pub at: Addr<Out>,
    pub pte: Pte,
    pub entry: Entry<Out>,
}

/// Follows pointers from the root to the first entry that is not one.
pub(crate) fn descend<In: Space, Out: Space, M: ReadPte<Out>>(
    fmt: &Format,
    root: Pfn<Out>,
    addr: Addr<In>,
    caps: Caps,
    mem: &mut M,
) -> Result<Slot<Out>, Fault<M::Error>> {
    let (mut table, mut level) = (root, fmt.root_level());
    if !fmt.fits(addr) {
        return Err(Fault { level, reason: Reason::OutOfRange });
    }
    loop {
        // norm:H_vm_gpatrans: the root of a G-stage has two more index bits; `index` knows.
        let at = table.at(8 * fmt.index(addr, level) as u64);
        let pte = mem.read(at).map_err(|e| Fault { level, reason: Reason::Memory(e) })?;
        let entry = pte.decode(level, caps);
        match (entry, level.down()) {
            (Entry::Table(next), Some(below)) => (table, level) = (next, below),
            _ => return Ok(Slot { level, at, pte, entry }),
        }
    }
}

/// Translates `va` by the table at `root`: the spec's process up to, and including, the check of
/// the permissions. Reads only. A and D are left to the caller: see [`Walk::unset`], [`touch`] and
/// [`translate`].
///
/// `req` carries the kind of access, the effective privilege, SUM and MXR; for a G-stage walk it
/// must be `req.at_g_stage()` (norm:H_vm_gpapriv).
///
/// # Errors
/// The level and the reason; the caller knows which exception that is.
pub fn walk<In: Space, Out: Space, M: ReadPte<Out>>(
    fmt: &Format,
    root: Pfn<Out>,
    va: Addr<In>,
    req: &Request,
    caps: Caps,
    mem: &mut M,
) -> Result<Walk<Out>, Fault<M::Error>> {
    let Slot { level, at, pte, entry } = descend(fmt, root, va, caps, mem)?;
    let leaf = judge(entry, req).map_err(|reason| Fault { level, reason })?;
    // A 64 KiB Svnapot range translates like a page of 64 KiB.
    let bytes = if leaf.napot { 16 * level.bytes() } else { level.bytes() };
    let out = leaf.pfn.at(va.raw() & (bytes - 1));
    Ok(Walk { leaf, level, pte_at: at, pte, out })
}

/// Checks the entry that ends a walk. Returns the leaf if it allows `req` (A and D aside), otherwise the reason for the
/// refusal.
#[inline(always)]
pub(crate) fn judge<Out: Space, E>(entry: Entry<Out>, req: &Request) -> Result<Leaf<Out>, Reason<E>> {
    match entry {
        Entry::Leaf(leaf) if allows(leaf.flags, req) => Ok(leaf),
        Entry::Leaf(_) => Err(Reason::Denied),
        Entry::Reserved(why) => Err(Reason::Reserved(why)),
        // `decode` calls a pointer at level 0 reserved, so no pointer ends a walk.
        Entry::Invalid | Entry::Table(_) => Err(Reason::NotValid),
    }
}

/// The A and D flags that `access` needs set and `leaf` has clear.
pub(crate) fn unset<Out: Space>(leaf: &Leaf<Out>, access: Access) -> PteFlags {
    let needed = if access == Access::Store { PteFlags::A | PteFlags::D } else { PteFlags::A };
    needed.difference(leaf.flags)
}

/// Sets the A (and for stores D) flag of a walk's leaf by one compare-exchange, as Svadu hardware
/// does. `Ok(false)`: the entry changed meanwhile; walk again (the spec: "return to step 2").
///
/// # Errors
/// Those of [`UpdatePte::update`].
pub fn touch<Out: Space, M: UpdatePte<Out>>(walk: &Walk<Out>, access: Access, mem: &mut M) -> Result<bool, M::Error> {
    mem.update(walk.pte_at, walk.pte, Pte(walk.pte.0 | walk.unset(access).bits()))
}

/// [`walk`], then A and D by `ad`.
///
/// # Errors
/// Those of [`walk`], and under Svade [`Reason::NotAccessed`] or [`Reason::NotDirty`].
pub fn translate<In: Space, Out: Space, M: UpdatePte<Out>>(
    fmt: &Format,
    root: Pfn<Out>,
    va: Addr<In>,
    req: &Request,
    (caps, ad): (Caps, AdPolicy),
    mem: &mut M,
) -> Result<Walk<Out>, Fault<M::Error>> {
    loop {
        let walk = walk(fmt, root, va, req, caps, mem)?;
        let level = walk.level;
        let unset = walk.unset(req.access);
        if unset.is_empty() {
            return Ok(walk);
        }
        if ad == AdPolicy::Svade {
            let reason = if unset.contains(PteFlags::A) { Reason::NotAccessed } else { Reason::NotDirty };
            return Err(Fault { level, reason });
        }
        if touch(&walk, req.access, mem).map_err(|e| Fault { level, reason: Reason::Memory(e) })? {
            return Ok(walk);
        }
    }
}

/// Returns whether a leaf with `flags` allows `req` (A and D aside).
#[inline(always)]
fn allows(flags: PteFlags, req: &Request) -> bool {
    let has = |flag| flags.contains(flag);
    let privileged_enough = match req.mode {
        Mode::User => has(PteFlags::U),
        // norm:sstatus-sum: SUM lets loads and stores reach user pages, never fetches. HLVX is a load.
        Mode::Supervisor => !has(PteFlags::U) || (req.sum && req.access != Access::Fetch),
    };
    privileged_enough
        && match req.access {
            // norm:vsstatus-mxr_vm, norm:sstatus-mxr_vm: HS's MXR counts in both stages.
            Access::Load => has(PteFlags::R) || ((req.mxr || req.hs_mxr) && has(PteFlags::X)),
            Access::Store => has(PteFlags::W),
            // HLVX: "execute permission takes the place of read permission"; MXR plays no part.
            Access::Fetch | Access::LoadExec => has(PteFlags::X),
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use rv::Gva;
    use rv::format::SV39;

    /// Tables in a map; counts the reads. Absent entries cannot be read.
    struct Map(BTreeMap<u64, u64>, usize);

    impl ReadPte<Hpa> for Map {
        type Error = ();
        fn read(&mut self, at: Addr<Hpa>) -> Result<Pte, ()> {
            self.1 += 1;
            self.0.get(&at.raw()).map(|raw| Pte(*raw)).ok_or(())
        }
    }

    impl UpdatePte<Hpa> for Map {
        fn update(&mut self, at: Addr<Hpa>, old: Pte, new: Pte) -> Result<bool, ()> {
            let entry = self.0.get_mut(&at.raw()).ok_or(())?;
            let same = *entry == old.0;
            if same {
                *entry = new.0;
            }
            Ok(same)
        }
    }

    fn three_levels(leaf: u64) -> Map {
        Map([(0x1000, 0x2 << 10 | 1), (0x2008, 0x3 << 10 | 1), (0x3010, leaf)].into(), 0)
    }

    const VA: Addr<Gva> = Addr::new(0x20_2123);
    const ROOT: Pfn<Hpa> = Pfn::new(1);

    fn load(mem: &mut Map) -> Result<Walk<Hpa>, Fault<()>> {
        walk(&SV39, ROOT, VA, &Request::supervisor(Access::Load), Caps { svnapot: true, svpbmt: true }, mem)
    }

    #[test]
    fn a_page_is_found_in_three_reads() {
        let mut mem = three_levels(0x77 << 10 | 0xcf);
        let found = load(&mut mem).unwrap();
        assert_eq!((found.out.raw(), found.level, found.pte_at.raw(), mem.1), (0x7_7123, Level::PAGE, 0x3010, 3));
    }

    #[test]
    fn a_napot_leaf_takes_more_of_the_address() {
        let mut mem = three_levels(1 << 63 | 0x78 << 10 | 0xcf);
        assert_eq!(load(&mut mem).unwrap().out.raw(), 0x7_2123);
    }

    #[test]
    fn a_fault_says_where_and_why() {
        for (leaf, reason) in [
            (0, Reason::NotValid),
            (0x77 << 10 | 0x5, Reason::Reserved(Why::WriteOnly)),
            (0x77 << 10 | 1, Reason::Reserved(Why::BadPointer)),
            (0x77 << 10 | 0x49, Reason::Denied),
        ] {
            assert_eq!(load(&mut three_levels(leaf)), Err(Fault { level: Level::PAGE, reason }));
        }
        let unreadable = Err(Fault { level: Level::GIGA, reason: Reason::Memory(()) });
        assert_eq!(load(&mut Map(BTreeMap::new(), 0)), unreadable);
    }

    #[test]
    fn svadu_sets_what_svade_faults_on() {
        let store = Request::supervisor(Access::Store);
        let run =
            |ad, mem: &mut Map| translate(&SV39, ROOT, VA, &store, (Caps::default(), ad), mem).map(|w| w.out.raw());
        let mut mem = three_levels(0x77 << 10 | 0x7);
        assert_eq!(run(AdPolicy::Svade, &mut mem).unwrap_err().reason, Reason::NotAccessed);
        mem.0.insert(0x3010, 0x77 << 10 | 0x47);
        assert_eq!(run(AdPolicy::Svade, &mut mem).unwrap_err().reason, Reason::NotDirty);
        assert_eq!(run(AdPolicy::Svadu, &mut mem), Ok(0x7_7123));
        assert_eq!(mem.0[&0x3010], 0x77 << 10 | 0xc7);
    }

    #[test]
    fn a_lost_race_is_seen() {
        let mut mem = three_levels(0x77 << 10 | 0x7);
        let found = load(&mut mem).unwrap();
        mem.0.insert(0x3010, 0);
        assert_eq!(touch(&found, Access::Load, &mut mem), Ok(false));
        assert_eq!(mem.0[&0x3010], 0);
    }
}
