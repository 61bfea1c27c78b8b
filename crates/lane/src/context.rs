//! The part of a vCPU that the trap vector touches: the registers that an exit saves, and the lane's data.

use crate::brief::{BriefCauses, BriefExits};
use core::marker::PhantomData;
use core::mem::offset_of;
use rv::Asid;
use rv::Exit;
use rv::csr::atp;
use rv::{Addr, Gva, Hpa, Pfn, Space};

/// Tokens: what the lane leaves in entries that it invalidates. Each is there once: it has the number of the vCPU, and a
/// count; those of fences that go to the log have a bit of their own.
///
/// All have V clear: Gnomon gets the page faults that they make. Where it does not, the lane leaves none (`docs/lane.md`), but
/// counts fences by them.
pub mod token {
    /// From one token to the next; also the size of a slot of the log, so that a token is its slot's offset.
    pub const STEP: u64 = 8;
    const VCPU_SHIFT: u32 = 48;
    const OF_LOG: u64 = 1 << 62;

    /// Returns the number before the first token of vCPU number `vcpu`, below 2^13.
    #[must_use]
    pub const fn start(vcpu: u32) -> u64 {
        (vcpu as u64) << VCPU_SHIFT
    }

    /// Returns that number for the fences that go to the log.
    #[must_use]
    pub const fn start_of_log(vcpu: u32) -> u64 {
        OF_LOG | start(vcpu)
    }

    /// Tokens of the vCPU up to this one.
    #[must_use]
    pub const fn count(token: u64) -> u64 {
        (token & ((1 << VCPU_SHIFT) - 1)) / STEP
    }
}

/// The guest's fences by address of all address spaces, so that roots which are not loaded can catch up with
/// them later. A ring: what is overwritten counts as a fence of everything.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceLog<S: Space = Gva> {
    /// The last fence's token: the offset of its slot, modulo the ring's size.
    head: u64,
    ring: [u64; LOG_LENGTH],
    space: PhantomData<S>,
}

const LOG_LENGTH: usize = 64;

impl<S: Space> FenceLog<S> {
    /// Fences that it holds.
    pub const LENGTH: u64 = LOG_LENGTH as u64;

    /// An empty log for vCPU number `vcpu`, below 2^13.
    #[must_use]
    pub const fn new(vcpu: u32) -> Self {
        Self { head: token::start_of_log(vcpu), ring: [0; LOG_LENGTH], space: PhantomData }
    }

    /// Returns the number of fences that it has seen, plus some constant.
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.head / token::STEP
    }

    /// The head of which that is the token.
    #[must_use]
    pub const fn head_of(token: u64) -> u64 {
        token / token::STEP
    }

    /// The distance that [`FenceLog::push_everything`] adds to the head's token.
    pub const EVERYTHING: u64 = (Self::LENGTH + 1) * token::STEP;

    /// Adds as many fences as it holds and one more: whatever was up to date before knows now that it may not be.
    pub const fn push_everything(&mut self) {
        self.head += Self::EVERYTHING;
    }

    /// Adds a fence of the page at `gva`.
    pub const fn push(&mut self, gva: Addr<S>) {
        self.head += token::STEP;
        self.ring[(self.head() % Self::LENGTH) as usize] = gva.raw();
    }

    /// The token of the last fence.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.head
    }

    /// The fences added since the log was made.
    #[must_use]
    pub const fn count(&self) -> u64 {
        token::count(self.head)
    }

    /// The fences since the head was `head`, [`FenceLog::LENGTH`] at most.
    pub fn since(&self, head: u64) -> impl Iterator<Item = Addr<S>> + '_ {
        (head + 1..=self.head()).map(|at| Addr::new(self.ring[(at % Self::LENGTH) as usize]))
    }
}

/// The data of the lane: the fast path for fences by address, at the front of the trap vector
/// (`docs/lane.md`). All of it is the running vCPU's.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Which bits of an instruction tell that it is one of the lane's.
    mask: u64,
    /// The value of those bits for such a fence; more than 32 bits while the lane is off.
    matches: u64,
    /// The root's address plus [`Lane::POINTER_FLAGS`], as if a pointer had led to it.
    root: u64,
    /// The ASID that fences may name; more than 16 bits if none.
    asid: u64,
    /// The token of the last fence that names an ASID.
    token: u64,
    /// The jump table for the present root's format.
    table: u64,
    /// The inputs for tables whose entries the lane brings in step, and does not only invalidate.
    sync: LaneSync,
    /// The inputs for changes of roots.
    roots: LaneRoots,
    /// Fences of all addresses and all ASIDs that it has done.
    wide: u64,
    /// Fences that name no ASID.
    pub log: FenceLog,
}

/// A root that the vCPU knows, as the lane loads it when the guest writes `satp`. They are in a table of
/// pairs, by [`LaneRoot::place`].
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRoot {
    /// The guest's `satp`; while the lane is not to load it, a value that has another pair of places.
    key: u64,
    /// The head of the log when it was left; [`LaneRoot::NEVER`] if all of it may be out of date.
    head: u64,
    /// The value for the [`Lane`]'s field of this name.
    root: u64,
    /// The value for the [`Lane`]'s field of this name.
    asid: u64,
    /// The value for the hart's register.
    satp: u64,
}

impl LaneRoot {
    /// Most places that a table has.
    pub const MOST: usize = 256;
    /// Bytes of one.
    pub const BYTES: usize = size_of::<Self>();
    /// Offset of the guest's `satp`.
    pub const KEY_AT: usize = offset_of!(Self, key);
    /// Offset of the head.
    pub const HEAD_AT: usize = offset_of!(Self, head);
    /// Offset of the root.
    pub const ROOT_AT: usize = offset_of!(Self, root);
    /// Offset of the ASID that fences may name.
    pub const ASID_AT: usize = offset_of!(Self, asid);
    /// Offset of the hart's `satp`.
    pub const SATP_AT: usize = offset_of!(Self, satp);
    /// No head of a log, which are multiples of [`token::STEP`].
    pub const NEVER: u64 = 1;

    /// The number of places in a pair: so two roots that are wanted in the same one both have a place.
    pub const PAIR: usize = 2;

    /// The first place of a root's pair, of so many places, a power of two: by its ASID; by the table's frame where that is 0, as it is
    /// for all roots of a guest without ASIDs.
    #[must_use]
    #[inline(always)]
    pub const fn place(asid: Asid, frame: u64, places: usize) -> usize {
        ((if asid.0 == 0 { frame as usize } else { asid.0 as usize }) & (places / Self::PAIR - 1)) * Self::PAIR
    }

    /// The contents of a place that no root has.
    #[must_use]
    pub const fn none(place: usize) -> Self {
        Self { key: Self::no_key(place), head: Self::NEVER, root: 0, asid: Lane::NEVER, satp: 0 }
    }

    const fn no_key(place: usize) -> u64 {
        ((place / Self::PAIR) as u64 ^ 1) << atp::ID_SHIFT
    }

    /// Lets the lane load the root at `root` where the guest writes `key`. `asid`: the only one that fences may name then, if any.
    /// `satp`: what the hart's register gets. What is known of when it was left stays.
    pub const fn arm(&mut self, key: u64, root: Pfn<Hpa>, asid: Option<Asid>, satp: u64) {
        let named = match asid {
            Some(asid) => asid.0 as u64,
            None => Lane::NEVER,
        };
        *self = Self { key, root: root.base().raw() + Lane::POINTER_FLAGS, asid: named, satp, head: self.head };
    }

    /// Lets it do so no more. `place`: where this is.
    pub const fn disarm(&mut self, place: usize) {
        self.key = Self::no_key(place);
    }

    /// From now on it takes no fences by ASID while that root is loaded.
    pub const fn name_none(&mut self) {
        self.asid = Lane::NEVER;
    }

    /// The guest's `satp`, while the lane may load it.
    #[must_use]
    pub const fn key(&self) -> u64 {
        self.key
    }

    /// The root's address plus [`Lane::POINTER_FLAGS`].
    #[must_use]
    pub const fn root(&self) -> u64 {
        self.root
    }

    /// The log's last token when the root was left, or [`LaneRoot::NEVER`].
    #[must_use]
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// Sets it.
    pub const fn set_head(&mut self, head: u64) {
        self.head = head;
    }
}

/// The inputs of the lane for changes of roots (`docs/lane.md`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRoots {
    /// Which bits of an instruction tell that it writes `satp` and does nothing else.
    mask: u64,
    /// The value of those bits for such a write; more than 32 bits while the lane passes these on.
    matches: u64,
    /// The value of those bits for a read of `satp` that does nothing else.
    read_mask: u64,
    read_matches: u64,
    /// The address of the table of [`LaneRoot`]s.
    table: u64,
    /// The number of pairs less one: the mask of a pair's number.
    last: u64,
    /// The address of the present root's.
    present: u64,
    /// The address of two words: the `satp` that the vCPU says that it runs by, and what is posted to it.
    posting: u64,
    /// The number of times that it has changed roots.
    changes: u64,
    /// The number of times that it has told the guest its root.
    reads: u64,
}

impl LaneRoots {
    /// The place of the requests that are posted to the vCPU, in bytes from the word that it publishes.
    pub const POSTED_AT: usize = 8;
}

/// The inputs of the lane for bringing an entry in step with the guest's (`docs/lane.md`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSync {
    /// The address of the gate, of the VM's.
    pub gate: u64,
    /// The address of the words that make a leaf of a guest's entry, by its low 10 bits.
    pub leaves: u64,
    /// The address of the words that make an HPA of a GPA, by units of 2 MiB.
    pub chunks: u64,
    /// The number of those.
    pub count: u64,
}

impl LaneSync {
    /// The place where a root says whether a wide fence has anything to do, in bytes from its table: it has not if the word there is the one
    /// at [`LaneSync::EPOCH_AT`].
    pub const REST_AT: i64 = -24;
    /// The word of a root that is not at rest.
    pub const RESTLESS: u64 = 0;
    /// The place of the word of roots at rest, in bytes from the gate.
    pub const EPOCH_AT: u64 = 8;
    /// The place of the address of the guest's table that a shadow page of level 0 stands for, in bytes from the page's table.
    pub const GUEST_AT: i64 = -16;
    /// Bytes of a line of the log: an entry's address plus [`Lane::POINTER_FLAGS`], and the guest's that it was made from. Or, where
    /// there is no table of level 0, the fenced address with bit 0 set; or [`LaneSync::WIDE`].
    pub const LINE_BYTES: u64 = 16;
    /// The first word of a line for a fence of all addresses and all ASIDs.
    pub const WIDE: u64 = 0;
}

impl Lane {
    /// Offset of the gate's address.
    pub const GATE_AT: usize = offset_of!(Self, sync) + offset_of!(LaneSync, gate);
    /// Offset of the address of the words for leaves.
    pub const LEAVES_AT: usize = offset_of!(Self, sync) + offset_of!(LaneSync, leaves);
    /// Offset of the address of the words for 2 MiB each.
    pub const CHUNKS_AT: usize = offset_of!(Self, sync) + offset_of!(LaneSync, chunks);
    /// Offset of their count.
    pub const COUNT_AT: usize = offset_of!(Self, sync) + offset_of!(LaneSync, count);
    /// Offset of the mask for writes of `satp`.
    pub const WRITE_MASK_AT: usize = offset_of!(Self, roots) + offset_of!(LaneRoots, mask);
    /// Offset of what the instruction is compared with then.
    pub const WRITE_MATCHES_AT: usize = offset_of!(Self, roots) + offset_of!(LaneRoots, matches);
    /// Offset of the address of the roots' table.
    pub const ROOTS_AT: usize = offset_of!(Self, roots) + offset_of!(LaneRoots, table);
    /// Offset of the mask of a pair's number.
    pub const LAST_PAIR_AT: usize = offset_of!(Self, roots) + offset_of!(LaneRoots, last);
    /// Offset of the address of the present one there.
    pub const PRESENT_AT: usize = offset_of!(Self, roots) + offset_of!(LaneRoots, present);
    /// Offset of the address of what is posted, and published.
    pub const POSTING_AT: usize = offset_of!(Self, roots) + offset_of!(LaneRoots, posting);
    /// Offset of the count of changes.
    pub const CHANGES_AT: usize = offset_of!(Self, roots) + offset_of!(LaneRoots, changes);
    /// Offset of the mask for reads of `satp`.
    pub const READ_MASK_AT: usize = offset_of!(Self, roots) + offset_of!(LaneRoots, read_mask);
    /// Offset of what the instruction is compared with then.
    pub const READ_MATCHES_AT: usize = offset_of!(Self, roots) + offset_of!(LaneRoots, read_matches);
    /// Offset of the count of reads.
    pub const READS_AT: usize = offset_of!(Self, roots) + offset_of!(LaneRoots, reads);
    /// Offset of the count of wide fences.
    pub const WIDE_AT: usize = offset_of!(Self, wide);
    /// Offset of the mask, in bytes.
    pub const MASK_AT: usize = offset_of!(Self, mask);
    /// Offset of what the masked instruction is compared with.
    pub const MATCHES_AT: usize = offset_of!(Self, matches);
    /// Offset of the jump table's address.
    pub const TABLE_AT: usize = offset_of!(Self, table);
    /// Offset of the root.
    pub const ROOT_AT: usize = offset_of!(Self, root);
    /// Offset of the ASID.
    pub const ASID_AT: usize = offset_of!(Self, asid);
    /// Offset of the token.
    pub const TOKEN_AT: usize = offset_of!(Self, token);
    /// Offset of the log's head.
    pub const LOG_HEAD_AT: usize = offset_of!(Self, log) + offset_of!(FenceLog, head);
    /// Offset of the log's ring.
    pub const LOG_RING_AT: usize = offset_of!(Self, log) + offset_of!(FenceLog, ring);
    /// The mask that makes the head the offset of a slot in the ring.
    pub const LOG_RING_MASK: u64 = token::STEP * (<FenceLog>::LENGTH - 1);
    /// V and the mark of a pointer between shadows of tables, as they come to stand when the entry is shifted left by 2
    /// to make its frame number an address.
    pub const POINTER_FLAGS: u64 = 0x101 << 2;
    /// `sfence.vma` and `hfence.vvma` and `sinval.vma`: all bits but those of rs1 and rs2 ...
    const FENCE_MASK: u64 = 0xfe00_7fff;
    /// ... are those of `sfence.vma`.
    const SFENCE_VMA: u64 = 0x1200_0073;
    const NEVER: u64 = 1 << 32;
    /// `csrrw x0, satp, rs1`: all bits but those of rs1 ...
    const WRITE_MASK: u64 = 0xfff0_7fff;
    /// ... are these.
    const WRITES_SATP: u64 = 0x1800_1073;
    /// `csrrs rd, satp, x0`: all bits but those of rd ...
    const READ_MASK: u64 = 0xffff_f07f;
    /// ... are these.
    const READS_SATP: u64 = 0x1800_2073;

    /// A lane that is off, for vCPU number `vcpu`.
    #[must_use]
    pub const fn new(vcpu: u32) -> Self {
        Self {
            mask: Self::FENCE_MASK,
            matches: Self::NEVER,
            root: 0,
            asid: Self::NEVER,
            token: token::start(vcpu),
            table: 0,
            sync: LaneSync { gate: 0, leaves: 0, chunks: 0, count: 0 },
            wide: 0,
            roots: LaneRoots {
                mask: Self::WRITE_MASK,
                matches: Self::NEVER,
                read_mask: Self::READ_MASK,
                read_matches: Self::NEVER,
                table: 0,
                last: 0,
                present: 0,
                posting: 0,
                changes: 0,
                reads: 0,
            },
            log: FenceLog::new(vcpu),
        }
    }

    /// Makes the lane pass on all fences and accesses to `satp`.
    pub const fn turn_off(&mut self) {
        self.matches = Self::NEVER;
        self.roots.matches = Self::NEVER;
        self.roots.read_matches = Self::NEVER;
    }

    /// Lets it change roots, by the table of [`LaneRoot`]s at that address, with so many places, in which the present one is at that place.
    /// `posting`: the address of what the vCPU publishes, and behind that of what is posted to it.
    pub const fn change_roots(&mut self, (table, places): (u64, usize), present: usize, posting: u64) {
        let (present, last) = (table + (present * LaneRoot::BYTES) as u64, (places / LaneRoot::PAIR) as u64 - 1);
        let (matches, read_matches) = (Self::WRITES_SATP, Self::READS_SATP);
        self.roots = LaneRoots { matches, read_matches, table, last, present, posting, ..self.roots };
    }

    /// Returns whether the lane changes roots where it can.
    #[must_use]
    pub const fn changes_roots(&self) -> bool {
        self.roots.matches != Self::NEVER
    }

    /// Returns the number of times that the lane has changed roots.
    #[must_use]
    #[inline(always)]
    pub const fn changes(&self) -> u64 {
        self.roots.changes
    }

    /// Returns the number of times that the lane has told the guest its `satp`.
    #[must_use]
    pub const fn reads(&self) -> u64 {
        self.roots.reads
    }

    /// Fences of all addresses and all ASIDs that it has done. Each has added [`FenceLog::EVERYTHING`] to the log.
    #[must_use]
    pub const fn wide_fences(&self) -> u64 {
        self.wide
    }

    /// The place of the present root, where it changes roots.
    #[must_use]
    pub const fn place(&self) -> usize {
        (self.roots.present - self.roots.table) as usize / LaneRoot::BYTES
    }

    /// Lets the lane work on the tables at `root`. `asid`: the only one that fences may name, if any. `table`: the
    /// address of the jump table for the root's format.
    pub fn turn_on(&mut self, root: Pfn<Hpa>, asid: Option<Asid>, table: u64) {
        self.root = root.base().raw() + Self::POINTER_FLAGS;
        self.asid = asid.map_or(Self::NEVER, |asid| asid.0.into());
        self.table = table;
        self.matches = Self::SFENCE_VMA;
    }

    /// Sets the inputs for bringing entries in step. To be called before it is turned on with a table that does.
    pub const fn syncs_by(&mut self, sync: LaneSync) {
        self.sync = sync;
    }

    /// Another one after each fence that the lane has done, or that is in the log.
    #[must_use]
    #[inline(always)]
    pub const fn fences(&self) -> u64 {
        self.token.wrapping_add(self.log.token())
    }

    /// Fences with an ASID that the lane has done.
    #[must_use]
    pub const fn count_by_asid(&self) -> u64 {
        token::count(self.token)
    }
}

/// The registers that an exit saves and an entry loads. The layout is the trap vector's; it takes
/// the offsets from here.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Context {
    /// x0 to x31; x0 is kept 0.
    pub x: [u64; 32],
    /// The address at which the guest goes on: `mepc` or `sepc`.
    pub pc: u64,
    /// The exit.
    pub exit: Exit,
    /// The stack that the exit handler starts on: the end of the hart's stack.
    pub host_sp: u64,
    /// The value of `tp` in the exit handler: the hart's own block.
    pub host_tp: u64,
    /// By which causes exits may be brief.
    pub brief_causes: BriefCauses,
    /// Of these, which may send a byte by the UART.
    pub brief: BriefExits,
    /// The lane's data.
    pub lane: Lane,
}

impl Context {
    /// All zero, and no exit is brief, for vCPU number `vcpu`.
    #[must_use]
    pub const fn new(vcpu: u32) -> Self {
        let exit = Exit { cause: 0, tval: 0, tval2: 0, tinst: 0 };
        let (brief_causes, brief) = (BriefCauses::NONE, BriefExits::NONE);
        Self { x: [0; 32], pc: 0, exit, host_sp: 0, host_tp: 0, brief_causes, brief, lane: Lane::new(vcpu) }
    }

    /// Returns whether a call preserves that register: the guest has it still at the end of a brief exit.
    #[must_use]
    pub const fn is_preserved(register: u8) -> bool {
        matches!(register, 8 | 9 | 18..=27)
    }

    /// Goes past an instruction of that many bytes, wrapping as the hart's own adder does.
    pub fn skip(&mut self, bytes: u64) {
        self.pc = self.pc.wrapping_add(bytes);
    }

    /// Writes a register; writes to x0 are lost, as they should be.
    ///
    /// # Panics
    /// If `register` is not below 32.
    pub fn set(&mut self, register: u8, value: u64) {
        if register != 0 {
            self.x[usize::from(register)] = value;
        }
    }
}

/// The F and D registers and `fcsr`.
#[repr(C, align(8))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloatState {
    /// f0 to f31.
    pub f: [u64; 32],
    /// `fcsr`.
    pub fcsr: u64,
}

impl FloatState {
    /// The state that a new vCPU starts with.
    pub const ZERO: FloatState = FloatState { f: [0; 32], fcsr: 0 };
}

/// `vstart`, `vl`, `vtype` and `vcsr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorCsrs {
    /// `vstart`.
    pub vstart: u64,
    /// `vl`.
    pub vl: u64,
    /// `vtype`.
    pub vtype: u64,
    /// `vcsr`.
    pub vcsr: u64,
}
