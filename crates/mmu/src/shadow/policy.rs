//! Upkeeps: how shadow tables are kept in step with the guest's. One table says in what the modes differ ([`Policy::of`]).

/// The way in which shadow tables follow the guest's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Upkeep {
    /// Guest tables are write-protected. Each store to one is an exit, which performs and mirrors it.
    Shadow,
    /// Like `Shadow`, but a table of leaves is let go at its first store, and brought up to date at fences: many stores follow until the
    /// guest fences.
    Unsync,
    /// No table is write-protected. A fence by address invalidates an entry, which the next access fills. A fence of all addresses
    /// compares all that the root leads to, at once.
    Lazy,
    /// Like `Lazy`, but the guest gets its page faults itself. So an entry is invalid only where the guest's faults; all others are filled
    /// at once, or poisoned. A fence by address brings its entry up to date at once: no later fault would.
    Steered,
}

/// Which of the protected tables a store lets go, although it could be emulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LetsGo {
    /// All of them.
    All,
    /// Tables that are tables of leaves wherever they are used.
    Leaves,
    /// None.
    None,
}

impl LetsGo {
    /// Returns whether it applies to a table. `are_leaves`: it is a table of leaves wherever it is used.
    pub fn applies(self, are_leaves: bool) -> bool {
        match self {
            LetsGo::All => true,
            LetsGo::Leaves => are_leaves,
            LetsGo::None => false,
        }
    }
}

/// The effect of a fence by address on a live entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByAddress {
    /// Compares it with the guest's, if its table is not protected now.
    CatchUp,
    /// Invalidates it: the next access fills it.
    Invalidate,
    /// Brings it in step at once.
    Resync,
}

/// The effect of a fence of all addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wide {
    /// Protects the tables again that were let go, and compares them.
    Reprotect,
    /// Compares all that the root leads to, whatever the fence is about.
    CompareAll,
    /// Like `CompareAll`, but compares global mappings only if the fence is about them.
    Compare,
}

/// In what an upkeep differs from the others.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// A guest table is write-protected from its first shadow on. If not, only quiet tables ever are.
    pub protects: bool,
    pub lets_go: LetsGo,
    pub by_address: ByAddress,
    pub wide: Wide,
    /// The lane may take fences.
    pub has_lane: bool,
    /// The lane writes leaves, in a memory of its own and under the gate.
    pub has_gate: bool,
    /// The guest gets its page faults itself: each entry says whose fault it makes.
    pub own_faults: bool,
    /// A shadow page of level 0 is filled as a whole before it is linked: all its entries have mirrors.
    pub fills_whole: bool,
    /// Pages note where they translate, and when they were compared: what no fence has passed over since is not compared again.
    pub tracks_places: bool,
    /// A wide fence unlinks tables that the guest seems to use no more.
    pub drops_unused: bool,
    /// Tables that fences find unchanged become quiet.
    pub quiets: bool,
    /// Leaves of 4 KiB are coalesced.
    pub coalesces: bool,
}

impl Policy {
    /// The policy of an upkeep.
    pub const fn of(upkeep: Upkeep) -> Self {
        const SHADOW: Policy = Policy {
            protects: true,
            lets_go: LetsGo::None,
            by_address: ByAddress::CatchUp,
            wide: Wide::Reprotect,
            has_lane: false,
            has_gate: false,
            own_faults: false,
            fills_whole: false,
            tracks_places: false,
            drops_unused: false,
            quiets: false,
            coalesces: false,
        };
        const LAZY: Policy = Policy {
            protects: false,
            lets_go: LetsGo::All,
            by_address: ByAddress::Invalidate,
            wide: Wide::CompareAll,
            has_lane: true,
            ..SHADOW
        };
        match upkeep {
            Upkeep::Shadow => SHADOW,
            Upkeep::Unsync => Policy { lets_go: LetsGo::Leaves, ..SHADOW },
            Upkeep::Lazy => LAZY,
            Upkeep::Steered => Policy {
                by_address: ByAddress::Resync,
                wide: Wide::Compare,
                has_gate: true,
                own_faults: true,
                fills_whole: true,
                tracks_places: true,
                drops_unused: true,
                quiets: true,
                coalesces: true,
                ..LAZY
            },
        }
    }
}
