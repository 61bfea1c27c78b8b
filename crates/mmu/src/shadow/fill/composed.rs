//! Faults and roots of an engine that has a stage below its tables ([`crate::shadow::lower`]).

use super::fault::{Answer, Found};
use crate::gstage::Unresolved;
use crate::shadow::cache::{Cache, Missing};
use crate::shadow::fill::Filler;
use crate::shadow::lower::{self, Below, Mapped};
use crate::shadow::pages::{CAPS, NO_PTE, Role};
use crate::shadow::{Host, Lower, Paging, Root, Shadowed};
use crate::two_stage::{TINST_PTE_READ, TINST_PTE_WRITE, guest_page_fault};
use crate::walk::{self, AdPolicy, Fault, ReadPte, Reason, UpdatePte};
use rv::{Access, Addr, Fence, Format, Gpa, L2Gpa, Leaf, Level, Mode, Pfn, PhysMem, Pte, PteFlags, Request, Trap};

/// The VM's memory, made ready as it is read.
struct Memory<'a, 'h, S: Shadowed, M, H> {
    cache: &'a mut Cache<S>,
    host: &'a mut Host<'h, M, H>,
}

impl<S: Shadowed, M: PhysMem, H: Fence<Gpa>> ReadPte<Gpa> for Memory<'_, '_, S, M, H> {
    type Error = Missing;
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, Missing> {
        let there = self.cache.reach(at, Access::Load, self.host)?;
        Ok(Pte(self.host.mem.read_u64(there.hpa)))
    }
}

impl<S: Shadowed, M: PhysMem, H: Fence<Gpa>> UpdatePte<Gpa> for Memory<'_, '_, S, M, H> {
    fn update(&mut self, at: Addr<Gpa>, old: Pte, new: Pte) -> Result<bool, Missing> {
        let there = self.cache.reach_within_budget(at, Access::Store, self.host)?;
        Ok(self.host.mem.compare_exchange_u64(there.hpa, old.0, new.0).is_ok())
    }
}

/// The reason why an access does not get through the stage below.
enum Astray {
    /// The stage refuses it: the address, and the `htinst` of an access to a table.
    Refused(Addr<L2Gpa>, u64),
    /// Memory is missing.
    Missing(Missing),
}

/// The end of a translation by the stage below.
struct Arrived {
    /// The address in the VM's memory.
    gpa: Addr<Gpa>,
    /// The stage's leaf with its level, if it has a table.
    leaf: Option<(Leaf<Gpa>, Level)>,
}

/// L2's memory: the VM's through the stage below.
struct Through<'m, 'a, 'h, S: Shadowed, M, H> {
    memory: &'m mut Memory<'a, 'h, S, M, H>,
    below: Below,
    ad: AdPolicy,
}

impl<S: Shadowed, M: PhysMem, H: Fence<Gpa>> Through<'_, '_, '_, S, M, H> {
    /// Translates an access, and sets A and D as promised. Returns where it arrives, and the stage's leaf with its level.
    fn translate(&mut self, at: Addr<L2Gpa>, request: &Request, tinst: u64) -> Result<Arrived, Astray> {
        let Some((format, root)) = self.below.table else {
            return Ok(Arrived { gpa: Addr::new(at.raw()), leaf: None });
        };
        match walk::translate(format, root, at, request, (CAPS, self.ad), self.memory) {
            Ok(walk) => Ok(Arrived { gpa: walk.out, leaf: Some((walk.leaf, walk.level)) }),
            Err(Fault { reason: Reason::Memory(missing), .. }) => Err(Astray::Missing(missing)),
            Err(_) => Err(Astray::Refused(at, tinst)),
        }
    }
}

impl<S: Shadowed, M: PhysMem, H: Fence<Gpa>> ReadPte<L2Gpa> for Through<'_, '_, '_, S, M, H> {
    type Error = Astray;
    fn read(&mut self, at: Addr<L2Gpa>) -> Result<Pte, Astray> {
        let Arrived { gpa, .. } = self.translate(at, &Request::user(Access::Load), TINST_PTE_READ)?;
        self.memory.read(gpa).map_err(Astray::Missing)
    }
}

impl<S: Shadowed, M: PhysMem, H: Fence<Gpa>> UpdatePte<L2Gpa> for Through<'_, '_, '_, S, M, H> {
    fn update(&mut self, at: Addr<L2Gpa>, old: Pte, new: Pte) -> Result<bool, Astray> {
        let Arrived { gpa, .. } = self.translate(at, &Request::user(Access::Store), TINST_PTE_WRITE)?;
        self.memory.update(gpa, old, new).map_err(Astray::Missing)
    }
}

/// The permissions of all of an address space without paging, whose leaves have U by the mode that uses them: G tells its pieces from those of
/// superpages.
const ALL: PteFlags = PteFlags::R.union(PteFlags::W).union(PteFlags::X).union(PteFlags::G);

impl<S: Shadowed> Filler<S> {
    /// The walk of both stages, which sets A and D as promised in both. Returns the leaf that it found, composed, and the highest level at which
    /// the shadow may have a leaf for that address.
    ///
    /// # Errors
    /// The answer to the fault.
    pub fn find_composed<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        root: &Root<S>,
        gva: Addr<S>,
        request: &Request,
        host: &mut Host<'_, M, H>,
    ) -> Result<(Found, Level), Result<Answer, Unresolved>> {
        let access = request.access;
        let ad = self.rules().config.ad;
        let Some(stage) = self.tables().lower.stage() else { unreachable!("there is no stage below") };
        let (below, vs_ad) = (stage.below, stage.vs_ad);
        let mut memory = Memory { cache: &mut self.syncer.cache, host };
        let mut through = Through { memory: &mut memory, below, ad };
        let found = match root.paging {
            Paging::Bare => Ok((Addr::new(gva.raw()), None)),
            Paging::Tables { format, root: table } => {
                let table = Pfn::<L2Gpa>::new(table.raw());
                walk::translate(format, table, gva, request, (CAPS, vs_ad), &mut through)
                    .map(|walk| (walk.out, Some(walk)))
                    .map_err(|fault| fault.reason)
            }
        };
        let arrived = found.and_then(|(at, walk)| {
            let arrived = through.translate(at, &request.at_g_stage(), 0);
            let Arrived { gpa, leaf } = arrived.map_err(Reason::Memory)?;
            if !root.format.fits(gva) {
                // Without paging, L2 has more addresses than the identity's format.
                return Err(Reason::Memory(Astray::Missing(Missing::Nothing)));
            }
            Ok((at, walk, gpa, leaf))
        });
        let (at, walk, gpa, leaf) = match arrived {
            Ok(arrived) => arrived,
            Err(Reason::Memory(Astray::Missing(Missing::Not(why)))) => return Err(Err(why)),
            Err(Reason::Memory(Astray::Missing(Missing::Later))) => return Err(Ok(self.retry())),
            Err(reason) => {
                self.tables().counters.guest_faults += 1;
                let trap = match reason {
                    Reason::Memory(Astray::Refused(at, tinst)) => {
                        let exception = guest_page_fault(access);
                        Trap { exception, tval: gva.raw(), tval2: at.raw() >> 2, tinst }
                    }
                    Reason::Memory(_) => S::access_fault(gva, access),
                    _ => S::page_fault(gva, access),
                };
                return Err(Ok(Answer::Inject(trap)));
            }
        };
        let mapped = match leaf {
            Some((leaf, level)) => Mapped::of(leaf_with(leaf, access), level, at.pfn()),
            None => below.mapped(at.pfn(), &mut memory).unwrap_or(None),
        };
        let Some(mapped) = mapped else { return Err(Ok(self.retry())) };
        let (allowed, level, pte) = match walk {
            None => {
                let mut allowed = mapped.rights;
                allowed.set(PteFlags::U, request.mode == Mode::User);
                (allowed, Level::PAGE, NO_PTE)
            }
            Some(walk) => {
                let entry = Pte(walk.pte.0 | walk.unset(access).bits());
                let context = self.tables().index.context;
                let Some(stage) = self.tables().lower.stage() else { unreachable!("there is no stage below") };
                let composed = stage.compose((context, walk.level), entry, (&*host.space, &*host.mem));
                let Some(pte) = composed else { return Err(Ok(self.retry())) };
                let own = self.rules().rights(entry.flags());
                (own & (mapped.rights | PteFlags::U), walk.level, pte)
            }
        };
        // One leaf cannot say that a page is L2's to execute and L1's to read.
        let mxr = request.mxr || request.hs_mxr;
        if access == Access::Load && !allowed.contains(PteFlags::R) && !(mxr && allowed.contains(PteFlags::X)) {
            self.tables().counters.guest_faults += 1;
            return Err(Ok(Answer::Inject(S::page_fault(gva, access))));
        }
        Ok((Found { gpa, allowed, level, pte }, mapped.level))
    }

    /// The format and the key of the first shadow page of a root, whose table is where the stage below maps it now.
    pub fn composed_key<M: PhysMem, H>(
        &self,
        paging: Paging,
        host: &Host<'_, M, H>,
    ) -> (&'static Format, Pfn<Gpa>, Role) {
        let tables = &self.syncer.cache.tables;
        match paging {
            Paging::Bare => (S::IDENTITY, Pfn::new(0), lower::piece(tables.index.context, ALL)),
            Paging::Tables { format, root } => {
                let root = Pfn::<L2Gpa>::new(root.raw());
                let mapped = tables.lower.peek(root, (&*host.space, &*host.mem));
                let table = mapped.filter(|mapped| mapped.rights.contains(PteFlags::R)).map(|mapped| mapped.gfn);
                (format, table.unwrap_or(lower::nowhere(root)), Role::Table)
            }
        }
    }

    /// Notes that a root was made by what the stage below says of its table.
    #[inline(always)]
    pub fn note_root(&mut self, paging: Paging, table: Pfn<Gpa>) {
        let tables = self.tables();
        let context = tables.index.context;
        if let (Some(stage), Paging::Tables { root, .. }) = (tables.lower.stage(), paging) {
            stage.note(Pfn::new(root.raw()), context, table);
        }
    }

    /// Returns whether the root is the one that its paging leads to by the stage below, as that is now.
    #[inline(always)]
    pub fn is_current<M: PhysMem, H>(&self, root: &Root<S>, host: &Host<'_, M, H>) -> bool {
        !S::COMPOSES || self.find_root(root.paging, host) == Some(root.id)
    }

    /// Makes a root lead nowhere: it is the shadow of a table that is elsewhere.
    pub fn empty_root<M: PhysMem, H: Fence<Gpa>>(&mut self, root: &Root<S>, host: &mut Host<'_, M, H>) {
        let parts = self.tables().index.arena.parts::<S>(root.id);
        parts.for_each(|part| self.cache().empty(part, 0, host));
    }
}

/// The leaf as the access has left it, with A, and D after a store.
fn leaf_with(leaf: Leaf<Gpa>, access: Access) -> Leaf<Gpa> {
    Leaf { flags: leaf.flags | walk::unset(&leaf, access), ..leaf }
}
