//! Random steps of a guest that is a hypervisor (L1) and of its guest (L2): both edit their tables and fence, L2 accesses memory, and Gnomon takes pages
//! from L1. After each step, the table that the hart walks is compared with a model of what the specification lets L2 see: the entries that are in
//! the tables now, and those that were there since the last fence of their address.

use crate::fake::{self, World, vm_config, world_of};
use abi::bundle::{GUEST_RAM_BASE, L2Tables, MmuMode, VmConfig};
use hypervisor::device::offer::GuestTimer;
use hypervisor::exit;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::Nested;
use mmu::Edits;
use mmu::gstage::{Ready, Span};
use mmu::shadow::{Host, Shadow};
use mmu::walk::{Ram, walk};
use rv::csr::{atp, hstatus, status};
use rv::system::number;
use rv::{Access, Addr, Caps, Exception, Exit, Fence, FenceScope, Gpa, L2Gpa, L2Gva, Pfn, PhysMem, Request};

const VIRTUAL: u64 = Exception::VirtualInstruction as u64;
const SRET: u64 = 0x1020_0073;
const SFENCE: u64 = 0x9 << 25 | 0x73;
const HFENCE_VVMA: u64 = 0x11 << 25 | 0x73;
const HFENCE_GVMA: u64 = 0x31 << 25 | 0x73;
/// Both operands are registers: a0 and a1. Each can be left out.
const A0: u64 = 10 << 15;
const A1: u64 = 11 << 20;
const PAGE: u64 = 4096;
/// L1's tables of each of its VMIDs: the root, the next one, and the one with leaves.
const TABLES: u64 = GUEST_RAM_BASE + (4 << 20);
/// L2's own tables, in L1's memory: three of them, of which the last has leaves.
const OWN: u64 = GUEST_RAM_BASE + (5 << 20);
/// Pages that L1 gives to L2.
const DATA: u64 = GUEST_RAM_BASE + (6 << 20);
/// L2's physical addresses: of pages, and of its own tables.
const AT: u64 = 0x4000_0000;
const OWN_AT: u64 = AT + (256 << 12);
const VMIDS: [u64; 2] = [5, 6];
/// The number of pages of L1's, of L2's physical ones and of its virtual ones.
const PAGES: usize = 6;
const PLACES: usize = 6;
const ACCESSES: [Access; 3] = [Access::Load, Access::Store, Access::Fetch];

/// A leaf, as the model sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Leaf {
    /// The page that it leads to: of L1's, or of L2's physical ones.
    page: usize,
    /// R, W and X, as in an entry; 0 if it is not valid.
    rights: u64,
}

impl Leaf {
    const NONE: Self = Self { page: 0, rights: 0 };

    fn permits(self, access: Access) -> bool {
        let bit = match access {
            Access::Load => 1,
            Access::Store => 2,
            Access::Fetch | Access::LoadExec => 4,
        };
        self.rights & bit != 0
    }

    fn entry(self, base: u64, is_user: bool) -> u64 {
        if self.rights == 0 {
            return 0;
        }
        let user = if is_user { 0x10 } else { 0 };
        (base + self.page as u64 * PAGE) >> 12 << 10 | 0xc1 | user | self.rights << 1
    }
}

/// The entries that a place of a table has had since the last fence of it; the last one is there now.
type Seen = Vec<Leaf>;

/// The end of an access of L2's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// An access to the page in which this number is.
    Finds(u64),
    /// A page fault of L2's own.
    Own,
    /// A guest-page fault, which L1 gets, at this physical address of L2's.
    L1s(u64),
}

struct Rig {
    w: World,
    is_collapsed: bool,
    seed: u64,
    /// The VMID by which L2 runs, or will.
    vmid: usize,
    /// The number that is in each page of L1's.
    numbers: [u64; PAGES],
    /// By VMID and place.
    l1s: [[Seen; PLACES]; 2],
    own: [[Seen; PLACES]; 2],
    /// Accesses that have ended so: with a page, with a fault of L2's own, with one of L1's.
    ended: [usize; 3],
}

/// A fence that needs no answer: no hart has a TLB here.
struct Silent;

impl Fence<Gpa> for Silent {
    fn fence(&mut self, _: FenceScope<Gpa>) {}
}

impl Rig {
    fn new(seed: u64, l2: L2Tables) -> Self {
        let is_collapsed = l2 == L2Tables::Collapsed;
        let mmu = Some(MmuMode::TwoStage);
        let config = VmConfig { nested: true, l2, mmu, memory_bytes: 64 << 20, ..vm_config("l1", 1) };
        let none = || std::array::from_fn(|_| vec![Leaf::NONE]);
        let (l1s, own) = ([none(), none()], [none(), none()]);
        let w = world_of(config, GuestTimer::Sstc);
        let mut rig = Self { w, is_collapsed, seed, vmid: 0, numbers: [0; PAGES], l1s, own, ended: [0; 3] };
        let pointer = |to: u64| to >> 12 << 10 | 1;
        for vmid in 0..2 {
            let root = root_of(vmid);
            rig.store(root + 8, pointer(root + 4 * PAGE));
            rig.store(root + 4 * PAGE, pointer(root + 5 * PAGE));
            for table in 0..3 {
                rig.store(root + 5 * PAGE + (256 + table) * 8, (OWN + table * PAGE) >> 12 << 10 | 0xd7);
            }
        }
        rig.store(OWN + 8, pointer(OWN_AT + PAGE));
        rig.store(OWN + PAGE, pointer(OWN_AT + 2 * PAGE));
        for page in 0..PAGES {
            rig.number(page);
        }
        rig.csrw(number::HEDELEG, 1 << 12 | 1 << 13 | 1 << 15);
        if is_collapsed {
            rig.csrw(number::VSATP, 8 << atp::MODE_SHIFT | OWN_AT >> 12);
        }
        rig
    }

    fn random(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 20) as usize % below
    }

    fn state(&mut self) -> &mut Nested {
        self.w.run.nested.as_deref_mut().expect("it has the H extension")
    }

    fn store(&mut self, at: u64, value: u64) {
        let w = &mut self.w;
        let done = fake::write(&w.g, &w.run.vm, Addr::new(at), &value.to_le_bytes(), &mut w.hart);
        assert!(done.is_ok(), "{at:#x}: {done:?}");
    }

    /// Writes a page's number to it.
    fn number(&mut self, page: usize) {
        self.numbers[page] = 4711 + page as u64;
        self.store(DATA + page as u64 * PAGE, self.numbers[page]);
    }

    /// An instruction of L1's that traps, with operands.
    fn l1_executes(&mut self, insn: u64, [a0, a1]: [u64; 2]) {
        (self.w.run.context.x[10], self.w.run.context.x[11]) = (a0, a1);
        assert_eq!(self.w.exit(VIRTUAL, insn, 0, 0), Outcome::Resume);
    }

    /// `csrw CSR, a0`.
    fn csrw(&mut self, csr: u16, value: u64) {
        self.l1_executes(u64::from(csr) << 20 | 0x5_1073, [value, 0]);
    }

    fn enter(&mut self) {
        self.csrw(number::HGATP, 8 << atp::MODE_SHIFT | VMIDS[self.vmid] << atp::ID_SHIFT | root_of(self.vmid) >> 12);
        self.csrw(number::HSTATUS, hstatus::SPV | hstatus::SPVP);
        self.w.hart.regs.vsstatus |= status::SPP;
        for _ in 0..100 {
            self.l1_executes(SRET, [0; 2]);
            if self.w.run.runs_l2() {
                return;
            }
        }
        panic!("L2 is not entered");
    }

    /// Makes an exit of L2's.
    fn exits(&mut self, exit: Exit) {
        let w = &mut self.w;
        w.run.context.exit = exit;
        assert_eq!(exit::nested::handle(&w.g, &mut w.run, &mut w.hart), Outcome::Resume);
    }

    /// Lets L1 run.
    fn leave(&mut self) {
        if self.w.run.runs_l2() {
            self.exits(Exit { cause: Exception::EcallFromVs as u64, ..Exit::default() });
            assert!(!self.w.run.runs_l2());
        }
    }

    /// Returns the number in the page that the hart's table has for L2's address.
    fn walked(&mut self, at: u64, access: Access) -> Option<u64> {
        let mem = self.w.hart.mem.clone();
        let found = if self.is_collapsed {
            let root = self.state().collapsed.as_ref()?.root?;
            let (at, request) = (Addr::<L2Gva>::new(at), Request::supervisor(access));
            walk(root.format, root.table, at, &request, Caps::default(), &mut Ram(&mem)).ok()?.out.raw()
        } else {
            let root = self.state().root?;
            let (at, request) = (Addr::<L2Gpa>::new(at), Request::user(access));
            walk(root.format, root.table, at, &request, Caps::default(), &mut Ram(&mem)).ok()?.out.raw()
        };
        let mut bytes = [0; 8];
        mem.read_bytes(Addr::new(found), &mut bytes);
        Some(u64::from_le_bytes(bytes))
    }

    /// Lets L2 access its page.
    fn access(&mut self, place: usize, access: Access) -> End {
        let at = AT + place as u64 * PAGE;
        let (own, l1s) = match access {
            Access::Load => (Exception::LoadPage, Exception::LoadGuestPage),
            Access::Store => (Exception::StorePage, Exception::StoreGuestPage),
            Access::Fetch | Access::LoadExec => (Exception::FetchPage, Exception::FetchGuestPage),
        };
        for _ in 0..300 {
            if let Some(number) = self.walked(at, access) {
                return End::Finds(number);
            }
            self.w.hart.regs.vscause = 0;
            if self.is_collapsed {
                self.exits(Exit { cause: own as u64, tval: at, ..Exit::default() });
            } else {
                self.exits(Exit { cause: l1s as u64, tval: at, tval2: at >> 2, ..Exit::default() });
            }
            let cause = self.w.hart.regs.vscause;
            if !self.w.run.runs_l2() {
                assert_eq!(cause, l1s as u64);
                return End::L1s(self.state().csrs.htval << 2);
            }
            if cause == own as u64 {
                return End::Own;
            }
            let w = &mut self.w;
            assert!(exit::nested::settle(&w.g, &mut w.run, &mut w.hart).is_none(), "it has a root");
        }
        panic!("an access of place {place} is not answered");
    }

    /// Returns all that an access may end in, as far as the model knows: at least one.
    fn ends(&self, place: usize, access: Access) -> Vec<End> {
        let identity = [Leaf { page: place, rights: 7 }];
        let own = if self.is_collapsed { self.own[self.vmid][place].as_slice() } else { &identity };
        let (now, _) = own.split_last().expect("one is there now");
        let mut ends = Vec::new();
        for leaf in own {
            if !leaf.permits(access) {
                // Gnomon answers page faults by the entries that are there now.
                ends.extend((leaf == now).then_some(End::Own));
                continue;
            }
            let seen = &self.l1s[self.vmid][leaf.page];
            for below in seen {
                match below.permits(access) {
                    true => ends.push(End::Finds(self.numbers[below.page])),
                    false if leaf == now && Some(below) == seen.last() => {
                        ends.push(End::L1s(AT + leaf.page as u64 * PAGE));
                    }
                    false => {}
                }
            }
        }
        ends
    }

    /// Lets L2 access one of its pages, and L1 have the fault if it gets one.
    fn check_access(&mut self, step: usize) {
        let (place, access) = (self.random(PLACES), ACCESSES[self.random(3)]);
        if !self.w.run.runs_l2() {
            self.enter();
        }
        let may = self.ends(place, access);
        let end = self.access(place, access);
        let kind = match end {
            End::Finds(_) => 0,
            End::Own => 1,
            End::L1s(_) => 2,
        };
        self.ended[kind] += 1;
        assert!(may.contains(&end), "step {step}: {access:?} of place {place}: {end:x?}, not one of {may:x?}");
    }

    /// Looks at all that the hart could reach now.
    fn check_tables(&mut self, step: usize) {
        if !self.w.run.runs_l2() {
            return;
        }
        for place in 0..PLACES {
            for access in ACCESSES {
                if let Some(number) = self.walked(AT + place as u64 * PAGE, access) {
                    let may = self.ends(place, access);
                    let is_there = may.contains(&End::Finds(number));
                    assert!(is_there, "step {step}: {access:?} of place {place} finds {number}, not one of {may:x?}");
                }
            }
        }
    }

    fn leaf(&mut self, pages: usize) -> Leaf {
        // W without R is reserved.
        let rights = [0, 1, 3, 4, 5, 7, 7][self.random(7)];
        if rights == 0 { Leaf::NONE } else { Leaf { page: self.random(pages), rights } }
    }

    fn step(&mut self, step: usize) {
        match self.random(12) {
            0..5 => self.check_access(step),
            // L1 changes an entry of one of its tables, or L2 one of its own.
            5 | 6 => {
                let (vmid, place, leaf) = (self.random(2), self.random(PLACES), self.leaf(PAGES));
                self.store(root_of(vmid) + 5 * PAGE + place as u64 * 8, leaf.entry(DATA, true));
                self.l1s[vmid][place].push(leaf);
            }
            7 => {
                let (place, leaf) = (self.random(PLACES), self.leaf(PLACES));
                self.store(OWN + 2 * PAGE + place as u64 * 8, leaf.entry(AT, false));
                self.own.iter_mut().for_each(|own| own[place].push(leaf));
            }
            // A fence of L1's, of an address or all, of a VMID or all.
            8 => {
                self.leave();
                let (place, vmid) = (self.random(PLACES + 1), self.random(3));
                let (a0, a1) = (if place < PLACES { A0 } else { 0 }, if vmid < 2 { A1 } else { 0 });
                let named = VMIDS.get(vmid).copied().unwrap_or(0);
                self.l1_executes(HFENCE_GVMA | a0 | a1, [(AT + place as u64 * PAGE) >> 2, named]);
                for (_, seen) in (0..).zip(&mut self.l1s).filter(|(n, _)| vmid == 2 || *n == vmid) {
                    forget(seen, place);
                }
            }
            // A fence of L2's addresses: L2's own, or L1's in its place.
            9 => {
                let (place, is_l1s) = (self.random(PLACES + 1), self.random(2) == 0);
                let a0 = if place < PLACES { A0 } else { 0 };
                let at = AT + place as u64 * PAGE;
                if is_l1s {
                    self.leave();
                    self.csrw(
                        number::HGATP,
                        8 << atp::MODE_SHIFT | VMIDS[self.vmid] << atp::ID_SHIFT | root_of(self.vmid) >> 12,
                    );
                    self.l1_executes(HFENCE_VVMA | a0, [at, 0]);
                } else if self.w.run.runs_l2() && self.is_collapsed {
                    self.w.run.context.x[10] = at;
                    self.exits(Exit { cause: VIRTUAL, tval: SFENCE | a0, ..Exit::default() });
                } else {
                    return;
                }
                forget(&mut self.own[self.vmid], place);
            }
            10 => {
                self.leave();
                self.vmid = self.random(2);
                self.enter();
            }
            // Gnomon takes a page from L1, as for a balloon, or L1 writes to one again.
            _ => {
                let page = self.random(PAGES);
                if self.numbers[page] == 0 {
                    self.number(page);
                } else {
                    self.take(page);
                    self.numbers[page] = 0;
                }
            }
        }
        self.check_tables(step);
    }

    fn take(&mut self, page: usize) {
        let w = &mut self.w;
        let mut mem = w.hart.mem.clone();
        let mut guard = w.run.vm.memory.lock();
        let memory = guard.as_mut().expect("it has memory");
        let (mut ready, frames, mut hw) = (Ready::Nothing, w.g.frames(), Silent);
        let host = &mut Host::new(&mut memory.space, (frames, &mut ready), &mut mem, &mut hw);
        let page = Span { start: Pfn::new((DATA >> 12) + page as u64), pages: 1 };
        let (nested, collapsed) = (memory.nested.as_mut(), memory.collapsed.as_mut());
        Edits { shadow: None::<&mut Shadow>, nested, collapsed, host }.give_back(&[page]);
    }
}

/// The root of L1's table for a VMID.
const fn root_of(vmid: usize) -> u64 {
    TABLES + vmid as u64 * 8 * PAGE
}

/// A fence of a place, or of all of them: only what is in the table now can be seen there.
fn forget(seen: &mut [Seen; PLACES], place: usize) {
    for (_, seen) in seen.iter_mut().enumerate().filter(|(n, _)| place == PLACES || *n == place) {
        seen.drain(..seen.len() - 1);
    }
}

#[test]
fn l2_sees_what_the_tables_of_all_stages_let_it() {
    for l2 in [L2Tables::Nested, L2Tables::Collapsed] {
        for seed in 1..=8_u64 {
            let mut rig = Rig::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), l2);
            (0..1500).for_each(|step| rig.step(step));
            let (own, least) = if rig.is_collapsed { (200, 100) } else { (0, 200) };
            let is_much = rig.ended[0] >= 150 && rig.ended[1] >= own && rig.ended[2] >= least;
            assert!(is_much, "{l2:?}, seed {seed}: {:?}", rig.ended);
        }
    }
}
