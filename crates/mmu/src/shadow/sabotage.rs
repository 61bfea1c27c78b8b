//! Engines that are broken on purpose: a check that none of them can trip checks nothing. Without the feature
//! `sabotage`, which only tests set, nothing of this remains.

/// The rule that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// Fences by address do nothing.
    ForgetsFence,
    /// Fences of everything do nothing.
    ForgetsWideFence,
    /// Fences by address are not remembered for other roots.
    ForgetsLog,
    /// A root that the vCPU comes back to does not catch up.
    ForgetsToCatchUp,
    /// An engine beside another does not hear of pages that move.
    ForgetsCompanion,
    /// Fences of the stage below do nothing.
    ForgetsBelow,
    /// A root whose table the stage below maps elsewhere stays.
    KeepsMovedRoots,
    /// Shadows that were made by another stage below are found.
    MistakesContexts,
    /// The stage below does not note which of its entries were used.
    ForgetsUses,
    /// Entries of the stage below are looked for where an earlier operation found them.
    KeepsNear,
    /// A fence of the stage below is taken for one of the tables above: what their entries were made of has not changed.
    ForgetsChanges,
    /// A fence of the stage below by address leaves leaves to the frame where the page was.
    LeavesFrames,
    /// Another stage below is taken for the one of before.
    ForgetsNewStages,
    /// A page is linked without being brought up to date.
    LinksStale,
    /// A page that goes stays linked below all its parents but one.
    ForgetsSharer,
    /// Of the leaves that lead to a frame only the first is found.
    ForgetsLeaf,
    /// Leaves allow stores without D.
    IgnoresDirty,
    /// Leaves are never for user mode.
    ForgetsUser,
    /// Leaves allow stores that the G-stage does not.
    IgnoresHost,
    /// Leaves allow stores to protected tables.
    AllowsTableWrites,
    /// Leaves of 2 MiB cover protected tables.
    CoversTables,
    /// A table is protected, but TLBs do not hear of it.
    ProtectsWithoutFlush,
    /// Emulated writes are not mirrored.
    ForgetsWrite,
    /// A leaf is stored whatever happened meanwhile.
    StoresBlindly,
    /// Harts may go on to walk by pointers that are gone.
    KeepsPointers,
    /// Shadow pages are used again while TLBs may walk them.
    ReusesEarly,
    /// No write of an entry owes anything.
    ForgetsDebt,
    /// Pointers that are gone are still gone down.
    RemembersWalks,
    /// The part of an operation that exceeds its budget is believed to be done.
    ForgetsRest,
    /// Of a root of several frames all is looked for in the first.
    AliasesRoots,
    /// Of a root of several frames only the first is brought up to date.
    ForgetsFrames,
    /// An access that the known tables refuse is a fault of the guest's, whatever its tables say now.
    BlamesEarly,
    /// A page becomes idle, and leaves lead there still.
    RestsWithLeaves,
    /// Tables that are shadowed may be taken away.
    LetsTablesGo,
    /// Pages move, or lose W, and leaves lead where they were still.
    MovesWithLeaves,
    /// A steered entry for a page that has no frame is invalid.
    SteersMissing,
    /// An entry of a steered table whose page the host has taken is invalid.
    SteersTaken,
    /// Poison is never for user mode.
    PoisonsKernelOnly,
    /// A steered leaf may allow less than the guest's.
    SteersNarrower,
    /// A fence of all address spaces leaves global leaves alone, too.
    ForgetsGlobals,
    /// Leaves that were global once are left alone by fences of one address space.
    SettlesForEver,
    /// A digest is gone by whatever became of the tables.
    KeepsDigests,
    /// A table becomes quiet, and leaves lead there still.
    QuietsWithLeaves,
    /// A table that is quiet no more is not found by fences.
    ForgetsToStir,
    /// A table that is quiet no more is not found by fences if too many entries lead there.
    ForgetsMostParents,
    /// Steered pages are up to date that were compared before a fence of all addresses.
    ForgetsPassed,
    /// Steered pages are up to date that were compared before a fence by address.
    ForgetsPassedPages,
    /// A table that is at several places is taken to be at one.
    ForgetsPlaces,
    /// A leaf is said to have been there all along when only the pointer to it is new.
    MistakesLinks,
    /// A root that is restless again is said to be at rest.
    RestsForEver,
    /// The lane is not told that all pages are restless at once.
    KeepsEpoch,
    /// The lane's wide fences are not learnt.
    ForgetsWideLines,
    /// A parked entry is put into another list while it is in one.
    ListsBlindly,
    /// The parked entries of a page that ends stay in their lists.
    ForgetsParked,
    /// The entries that the lane has made are not learnt.
    ForgetsLaneLog,
    /// A root that is let go for another stays held.
    HoldsForEver,
    /// The roots that a vCPU knew before it went on behind a G-stage are believed to be up to date when it comes back.
    ForgetsSpells,
    /// The pages that were compared before that are believed to be up to date then.
    ForgetsPassedSpells,
    /// The lane goes by a G-stage that was.
    KeepsChunks,
    /// A fault that shares the lock does not read the guest's entry again behind the gate.
    FillsUnseen,
    /// A fault that shares the lock writes no line.
    FillsUnlogged,
    /// A leaf of 2 MiB goes on to stand for leaves that have changed.
    KeepsCoalesced,
    /// Of the entries that lead to a page, the first alone is a pointer again when it is split.
    SplitsOneParent,
    /// Of the other leaves that lead to a frame that a page leaves, only the first is found.
    MovesUnderOthers,
}
