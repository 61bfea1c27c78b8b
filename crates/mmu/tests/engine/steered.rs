//! A VM on steered tables: its guest writes its tables, and what hardware finds by ours is asked.

use super::{HOST, Hardware, RAM, REGION};
use crate::shadow_rig::lane;
use ::lane::FenceLog;
use mmu::shadow::{Answer, Beside, Config, Gathered, GuestFence, Host, MARK, Root, Sabotage, Shadow, Upkeep, Views};
use mmu::table::is_poison;
use mmu::{AdPolicy, AddressSpace, Frames, Object, Prot, Ready, Unresolved, with_ready};
use oracle::Machine;
use rv::{Access, Addr, Asid, Format, Gva, Hpa, Level, Mode, Pfn, PhysMem, Pte, PteFlags, Request};

/// One, with memory for the lane.
pub struct Steered {
    pub mem: Machine,
    pub shadow: Shadow,
    pub root: Option<Root>,
    frames: Frames,
    space: AddressSpace,
    views: Views,
    log: FenceLog,
}

/// An entry that leads to a table at a page of RAM.
pub const fn pointer(page: u64) -> u64 {
    (RAM.raw() + page) << 10 | 1
}

/// A leaf that leads to a page of RAM: readable, writable, with A and D.
pub const fn leaf(page: u64) -> u64 {
    (RAM.raw() + page) << 10 | 0xc7
}

/// An address by the indices of its entries.
pub fn gva<const LEVELS: usize>(indices: [u64; LEVELS]) -> Addr<Gva> {
    Addr::new(indices.into_iter().fold(0, |gva, index| gva << 9 | index) << 12)
}

impl Steered {
    /// One in which these pages of RAM are there. It has no root yet.
    pub fn new(pages: impl IntoIterator<Item = u64>, sabotage: Option<Sabotage>) -> Self {
        Self::sized(1, (2048, 128, 0), pages, sabotage)
    }

    /// One with so many regions of RAM, on a host with so many frames, with so many shadow pages; how many comparisons make a table quiet.
    pub fn sized(
        regions: usize,
        (host, pages, quiet_after): (u64, u32, u16),
        there: impl IntoIterator<Item = u64>,
        sabotage: Option<Sabotage>,
    ) -> Self {
        Self::of(Upkeep::Steered, regions, (host, pages, quiet_after), there, sabotage)
    }

    /// One whose tables follow the guest's in that way, and whose two vCPUs share the lock.
    pub fn of(
        upkeep: Upkeep,
        regions: usize,
        (host, pages, quiet_after): (u64, u32, u16),
        there: impl IntoIterator<Item = u64>,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let mut mem = Machine::with_ram(HOST, host);
        let mut frames = Frames::new();
        frames.add(HOST, host);
        let mut space = super::space(&vec![(Prot::RWX, Object::Anonymous); regions], &frames, &mut mem);
        let config = Config { upkeep, ad: AdPolicy::Svade, globals: true, pages, first_serial: 1, quiet_after };
        let ram = REGION * regions as u64;
        let mut shadow = super::shadow(config, ram, &frames, &mut mem);
        if let Some(sabotage) = sabotage {
            shadow.sabotage(sabotage);
        }
        shadow.begin_sharing(2);
        shadow.begin_lane(&mut space, RAM.add(ram), &frames, &mut mem);
        let mut vm = Self { mem, shadow, root: None, frames, space, views: Views::default(), log: FenceLog::new(0) };
        there.into_iter().for_each(|page| vm.bring(page));
        vm
    }

    /// A page of RAM is there from now on.
    pub fn bring(&mut self, page: u64) {
        let gpa = RAM.add(page).base();
        self.operate(|shadow, host| shadow.resolve(gpa, Access::Store, host)).expect("RAM");
    }

    /// The guest writes `satp`.
    pub fn load(&mut self, what: (&'static Format, u64, Asid)) {
        let Self { mem, frames, space, shadow, views, log, root } = self;
        super::attach(shadow, root, what, (views, log), (space, frames), mem);
    }

    fn root(&self) -> Root {
        self.root.expect("one is loaded")
    }

    /// An operation of the engine's.
    fn operate<R>(
        &mut self,
        mut operation: impl FnMut(&mut Shadow, &mut Host<'_, Machine, Hardware>) -> Result<R, Unresolved>,
    ) -> R {
        let Self { mem, frames, space, shadow, .. } = self;
        let result = with_ready(frames, mem, |ready, mem| {
            shadow
                .alone(mem, |shadow, mem| operation(shadow, &mut Host::new(space, (frames, ready), mem, &mut Hardware)))
        });
        result.expect("frames")
    }

    /// Returns the frame of a page of the guest's.
    pub fn there(&self, page: u64) -> Pfn<Hpa> {
        self.space.translate(RAM.add(page).base(), &self.mem).expect("it is mapped").hpa.pfn()
    }

    /// The guest stores to a table.
    pub fn store(&mut self, page: u64, index: u64, value: u64) {
        let at = self.there(page).at(8 * index);
        self.mem.write_u64(at, value);
    }

    /// Returns an entry of a table of the guest's.
    pub fn guests(&self, page: u64, index: u64) -> Pte {
        Pte(self.mem.read_u64(self.there(page).at(8 * index)))
    }

    /// A fault of a vCPU that shares the lock. Without memory, none is mapped for it.
    pub fn beside(&mut self, vcpu: usize, gva: Addr<Gva>, access: Access, has_memory: bool) -> Beside {
        let (root, request) = (self.root(), Request::supervisor(access));
        let Self { mem, frames, space, shadow, .. } = self;
        let done = with_ready(frames, mem, |ready, mem| {
            let from = has_memory.then_some((&*frames, ready));
            shadow.fault_beside((&root, vcpu), gva, &request, space, from, mem)
        });
        done.expect("4 KiB")
    }

    /// The lock is held exclusively, and no more.
    pub fn lock(&mut self) {
        self.operate(|_, _| Ok(()));
    }

    /// The guest fences, which the lane passes on.
    pub fn fence(&mut self, fence: GuestFence) {
        let root = self.root();
        let Self { mem, frames, space, shadow, views, log, .. } = self;
        shadow.alone(mem, |shadow, mem| {
            let (mut ready, mut hw) = (Ready::Nothing, Hardware);
            let mut host = Host::new(space, (frames, &mut ready), mem, &mut hw);
            shadow.fence(&fence, root, views, log, &mut host);
        });
    }

    /// The guest fences one page in a table that is known, which is over soon.
    pub fn fence_in_known_table(&mut self, gva: Addr<Gva>) {
        let root = self.root();
        let Self { mem, space, shadow, .. } = self;
        assert!(shadow.alone(mem, |shadow, mem| shadow.fence_in_known_table(&root, gva, space, mem)), "{gva}");
    }

    /// The guest fences one page, which the lane does.
    pub fn fence_in_lane(&mut self, gva: Addr<Gva>) {
        let Root { table, format, .. } = self.root();
        let inputs = self.shadow.lane_inputs().expect("it has memory");
        assert!(lane::sync(&mut self.mem, &inputs, (table, format), gva), "{gva}");
    }

    /// Does what the engine has to do some time after fences.
    pub fn relax(&mut self, now: u64, interval: u64) {
        self.operate(|shadow, host| {
            shadow.relax(now, interval, host);
            Ok(())
        });
    }

    /// The guest gives pages back.
    pub fn give_back(&mut self, start: u64, pages: u64) {
        let span = mmu::gstage::Span { start: RAM.add(start), pages };
        self.operate(|shadow, host| {
            Ok(_ = mmu::Edits { shadow: Some(shadow), nested: None, collapsed: None, host }.give_back(&[span]))
        });
    }

    /// Accesses an address as the guest, again and again as long as the answer is to retry. Returns the last answer.
    pub fn access(&mut self, gva: Addr<Gva>) -> Answer {
        let (root, request) = (self.root(), Request::supervisor(Access::Load));
        let mut answers = (0..10).map(|_| self.operate(|shadow, host| shadow.fault(&root, gva, &request, host)));
        answers.find(|answer| *answer != Answer::Retry).unwrap_or_else(|| panic!("PROGRESS: {gva}"))
    }

    /// Loads from an address in user mode, which the guest allows.
    pub fn access_as_user(&mut self, gva: Addr<Gva>) {
        let (root, request) = (self.root(), Request { mode: Mode::User, ..Request::supervisor(Access::Load) });
        let mut answers = (0..10).map(|_| self.operate(|shadow, host| shadow.fault(&root, gva, &request, host)));
        assert!(answers.any(|answer| matches!(answer, Answer::Filled { .. })), "{gva}");
    }

    /// Searches one portion for pages that may be coalesced.
    pub fn gather(&mut self) -> Gathered {
        self.gather_at((0, 0))
    }

    /// Like [`Steered::gather`]. `when`: the time, and for how long leaves must have been unchanged.
    pub fn gather_at(&mut self, when: (u64, u64)) -> Gathered {
        let root = self.root();
        let Self { mem, frames, space, shadow, .. } = self;
        shadow.alone(mem, |shadow, mem| {
            let (mut ready, mut hw) = (Ready::Nothing, Hardware);
            let mut host = Host::new(space, (frames, &mut ready), mem, &mut hw);
            shadow.gather(&root, when, || frames.take_ahead(9), &mut host)
        })
    }

    /// Stops the move under way. Returns whether there was one.
    pub fn stop_moving(&mut self) -> bool {
        self.shadow.stop_moving(&self.frames)
    }

    /// The leaf that hardware finds for an address, and its level.
    pub fn walk(&self, gva: Addr<Gva>) -> (Pte, Level) {
        let Root { mut table, format, .. } = self.root();
        let mut level = format.root_level();
        loop {
            let pte = Pte(self.mem.read_u64(table.at(8 * format.index(gva, level) as u64)));
            assert!(pte.flags().contains(PteFlags::V) && !is_poison(pte), "{gva}: {pte:x?}");
            if !pte.is_pointer() {
                return (pte, level);
            }
            (table, level) = (pte.pfn(), level.down().expect("a pointer is above level 0"));
        }
    }

    /// Returns the place of the level-0 entry that hardware finds, if marked pointers lead to one.
    pub fn entry_at(&self, gva: Addr<Gva>) -> Option<Addr<Hpa>> {
        let Root { mut table, format, .. } = self.root();
        let mut level = format.root_level();
        while let Some(lower) = level.down() {
            let pte = Pte(self.mem.read_u64(table.at(8 * format.index(gva, level) as u64)));
            if is_poison(pte) || !pte.flags().contains(MARK) {
                return None;
            }
            (table, level) = (pte.pfn(), lower);
        }
        Some(table.at(8 * format.index(gva, Level::PAGE) as u64))
    }

    /// Returns the entry at [`Steered::entry_at`].
    pub fn entry(&self, gva: Addr<Gva>) -> Option<Pte> {
        self.entry_at(gva).map(|at| Pte(self.mem.read_u64(at)))
    }

    pub fn end(self) {
        self.shadow.destroy().for_each(|run| self.frames.free(run));
    }
}
