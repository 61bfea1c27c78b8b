//! The rules of entries: the policy of an engine, and the rights that it makes of the guest's flags.

use crate::gstage::Translation;
use crate::shadow::pages::{CAPS, Page, Role, permissions};
use crate::shadow::policy::Policy;
use crate::shadow::{Config, Sabotage};
use crate::table::{self};
use rv::{Entry, Gpa, Leaf, Level, Pte, PteFlags};

/// The rights of a guest's leaf that the G-stage may deny.
const RIGHTS: PteFlags = PteFlags::R.union(PteFlags::W).union(PteFlags::X);

/// The rules of an engine's entries.
pub struct Rules {
    pub config: Config,
    pub policy: Policy,
    /// The guest's flags that leaves keep, whatever the G-stage allows.
    pub kept: PteFlags,
    #[cfg(feature = "sabotage")]
    pub sabotage: Option<Sabotage>,
}

impl Rules {
    /// The rules of a configuration. `kept`: what leaves have of the guest's flags that the G-stage has no say in.
    pub const fn new(config: Config, kept: PteFlags) -> Self {
        let policy = Policy::of(config.upkeep);
        // The others see writes, or compare all.
        let quiet_after = if policy.quiets { config.quiet_after } else { 0 };
        Self {
            config: Config { quiet_after, ..config },
            policy,
            kept,
            #[cfg(feature = "sabotage")]
            sabotage: None,
        }
    }

    /// Returns whether it is broken so.
    #[cfg(feature = "sabotage")]
    pub fn is_sabotaged(&self, how: Sabotage) -> bool {
        self.sabotage == Some(how)
    }

    /// Returns whether it is broken so: it is not.
    #[cfg(not(feature = "sabotage"))]
    #[inline(always)]
    pub const fn is_sabotaged(&self, _: Sabotage) -> bool {
        false
    }

    /// Returns whether all entries have a mirror, live or not.
    pub fn has_all_mirrors(&self, page: &Page) -> bool {
        self.policy.fills_whole && page.key.level == Level::PAGE
    }

    /// Returns the rights of a guest's leaf with A.
    pub fn rights(&self, flags: PteFlags) -> PteFlags {
        permissions(if self.is_sabotaged(Sabotage::IgnoresDirty) { flags | PteFlags::D } else { flags })
    }

    /// Returns the entry that leads nowhere for now, and was made from `mirror`.
    #[inline(always)]
    pub fn unfilled(&self, page: &Page, mirror: Pte) -> Pte {
        if !self.policy.own_faults || self.is_sabotaged(Sabotage::SteersTaken) {
            return Pte::INVALID;
        }
        let flags = match page.key.role {
            // Its page faults come to Gnomon.
            Role::Bare | Role::Piece(_) => return Pte::INVALID,
            Role::Direct(flags) => flags,
            Role::Table => mirror.flags(),
        };
        self.poison(page.key.level, flags)
    }

    pub fn poison(&self, level: Level, flags: PteFlags) -> Pte {
        if level > Level::PAGE {
            return table::poison_pointer();
        }
        table::poison_leaf(flags.contains(PteFlags::U) && !self.is_sabotaged(Sabotage::PoisonsKernelOnly))
    }

    /// Returns whether the G-stage allows all that a guest's leaf with these flags does.
    #[inline(always)]
    pub fn allows_all(&self, flags: PteFlags, there: Translation) -> bool {
        self.allows(self.rights(flags), there)
    }

    #[inline(always)]
    pub fn allows(&self, allowed: PteFlags, there: Translation) -> bool {
        there.flags.contains(allowed & RIGHTS) || self.is_sabotaged(Sabotage::SteersNarrower)
    }

    /// The entry that makes the fault, made from the guest's: empty where that faults anyway.
    pub fn faulting(&self, level: Level, pte: Pte) -> Pte {
        match pte.decode::<Gpa>(level, CAPS) {
            _ if level > Level::PAGE => table::poison_pointer(),
            Entry::Leaf(Leaf { flags, .. }) if flags.contains(PteFlags::A) => self.poison(level, flags),
            Entry::Leaf(_) | Entry::Table(_) | Entry::Invalid | Entry::Reserved(_) => Pte::INVALID,
        }
    }
}
