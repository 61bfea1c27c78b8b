//! A hart without hardware, and a machine with one VM on it.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod disk;
pub mod driver;
pub mod entropy;
mod env;
mod memory;
pub mod share;

use abi::bundle::{Config, ConsoleMode, GUEST_ENTRY, MmuMode, Segment, VmConfig};
use abi::record::EndReason;
use disk::FakeDisk;
use entropy::FakeEntropy;
use hypervisor::backend::console::{Console, Listen, Port};
use hypervisor::backend::disks::Disks;
use hypervisor::backend::entropy::Source;
use hypervisor::backend::network::Network;
use hypervisor::backend::shares::Shares;
use hypervisor::device::offer::{Denial, GuestMode, GuestTimer, Offer};
use hypervisor::exit;
use hypervisor::gnomon::Gnomon;
use hypervisor::hart::harts::HartShared;
use hypervisor::hart::sched::Sched;
use hypervisor::life::lifecycle;
use hypervisor::machine::isa::Isa;
use hypervisor::measure::counters::HeapUse;
use hypervisor::pager::{Pager, homes_of_all};
use hypervisor::vm::chores::Chores;
use hypervisor::vm::outcome::{Brief, Kind, Outcome};
use hypervisor::vm::vcpu::{self, VcpuRun, VsTrapRegs};
use hypervisor::vm::vms::Vms;
use hypervisor::vm::{Departure, Vm};
use lane::Context;
pub use memory::{read, write};
use mmu::frames::{Frames, Owner};
use mmu::gstage::Ready;
use mmu::ids::Ids;
use rv::{Addr, Asid, Exception, Exit, FenceScope, Gpa, Gva, Hpa, L2Gpa, Mode, Pfn, PhysMem};
use share::FakeShare;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// First frame of the fake RAM.
const RAM: u64 = 0x8_0000;
/// Frames of the bundle, in front of those that are handed out, where no VM's images need more.
const BUNDLE_PAGES: u64 = 8;
const PAGES: u64 = 20_000;
pub const MEMORY: u64 = 8 << 20;

#[derive(Clone)]
pub struct Mem(pub Arc<Mutex<oracle::Machine>>);

impl Mem {
    fn words(&self) -> MutexGuard<'_, oracle::Machine> {
        ACCESSES.set(ACCESSES.get() + 1);
        self.0.lock().unwrap()
    }
}

impl PhysMem for Mem {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        self.words().read_u64(at)
    }
    fn write_u64(&mut self, at: Addr<Hpa>, value: u64) {
        self.words().write_u64(at, value);
    }
    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        self.words().exchange_u64(at, value)
    }
    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        self.words().compare_exchange_u64(at, old, new)
    }
    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        self.0.lock().unwrap().zero_frames(first, pages);
    }
    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64) {
        self.0.lock().unwrap().copy_frames(from, to, pages);
    }
    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]) {
        self.0.lock().unwrap().read_bytes(at, into);
    }
    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]) {
        self.0.lock().unwrap().write_bytes(at, from);
    }
}

/// An event on a hart that a test may ask about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Ipi(usize),
    Fence(FenceScope<Gpa>),
    FenceInstructions,
    Root(u64, bool),
    GuestFence(Option<Addr<Gva>>, Option<Asid>),
    TwoStage,
    /// L2 is loaded, by the root of that serial.
    Nested(u64),
    NestedFence(Option<Addr<L2Gpa>>),
    NestedForgotten,
    World(vcpu::World),
    /// A program begins, or ends.
    Program(bool),
    /// Execution in software has begun, or ended.
    Emulation(bool),
    Shadow,
    GuestRootFence,
    TimerInterrupt(bool),
    Deadline(u64),
    AttendSoon,
    AttendAt(u64),
    SoftwareInterrupt(bool),
    DeadlineChanged(u64),
    GoOnSoon,
    /// Samples are taken from now on, or no longer.
    Samples(bool),
}

pub struct Hart {
    pub mem: Mem,
    pub time: u64,
    pub mode: Mode,
    pub regs: VsTrapRegs,
    pub vsatp: u64,
    pub sets_ad: bool,
    /// The loaded world's `vsie`, and its lines in `hvip`.
    pub vsie: u64,
    pub lines: u64,
    /// L1's lines while L2 runs.
    pub held: u64,
    /// The kernel's `sie` while its program runs, and its comparator.
    pub enabled: u64,
    pub comparator: u64,
    /// The bytes, or the faults, at the guest's addresses where it may access memory byte by byte. Elsewhere are page faults.
    pub bytes: BTreeMap<u64, Result<u8, Exit>>,
    /// The pages, by number, in which stores fault though they have bytes.
    pub read_only: Vec<u64>,
    /// The guest's `sscratch`.
    pub sscratch: u64,
    /// An interrupt is pending that the guest has enabled.
    pub is_interrupted: bool,
    /// The floating-point registers.
    pub float: [u64; 32],
    /// The guest's `scounteren`.
    pub user_counters: u64,
    /// The ASIDs of shadow roots: there are three.
    pub asids: Ids,
    /// Ticks that pass while tables are loaded.
    pub load_ticks: u64,
    /// The time from which on it may work for other VMs.
    pub others_from: u64,
    pub events: Vec<Event>,
}

impl Hart {
    /// Returns whether the hart was asked to go on with chores since the last call.
    pub fn asked_to_go_on(&mut self) -> bool {
        let before = self.events.len();
        self.events.retain(|event| *event != Event::GoOnSoon);
        self.events.len() < before
    }
}

thread_local! {
    static PRINTED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Words of memory that were read or written.
    pub static ACCESSES: Cell<u64> = const { Cell::new(0) };
    /// The bytes that the serial port has for Gnomon.
    pub static TYPED: RefCell<VecDeque<u8>> = const { RefCell::new(VecDeque::new()) };
    /// The number of bytes that the port has room for at a time.
    pub static ROOM: Cell<usize> = const { Cell::new(16) };
    /// The events that the port interrupts for.
    pub static LISTENS: Cell<Listen> = const { Cell::new(Listen { input: true, room: false }) };
}

/// Returns the console's output since the last call.
pub fn printed() -> String {
    String::from_utf8_lossy(&PRINTED.take()).into_owned()
}

pub fn vm_config(name: &str, vcpus: u32) -> VmConfig {
    VmConfig {
        name: name.into(),
        after: None,
        memory_bytes: MEMORY,
        limit_bytes: None,
        reserve_bytes: 0,
        wired: false,
        vcpus,
        mmu: None,
        lane: true,
        svvptc: true,
        svadu: None,
        nested: false,
        l2: abi::bundle::L2Tables::default(),
        vmspace: abi::vmspace::Way::default(),
        shadow_bytes: None,
        superpages: true,
        gigapages: false,
        balloon_bytes: None,
        disks: Vec::new(),
        shares: Vec::new(),
        mac: None,
        rng: false,
        virtio_console: false,
        power_key: false,
        ports: vec![],
        segments: vec![Segment { gpa: GUEST_ENTRY, offset: 4096, bytes: 5000, label: "kernel".into() }],
        entry_gpa: GUEST_ENTRY,
        initrd: None,
        bootargs: String::new(),
        boot_command: None,
        rng_seed: Vec::new(),
        restore: None,
        incoming: false,
    }
}

/// A serial port that takes everything, as long as it has room.
struct Printer;

impl Port for Printer {
    fn room(&self) -> usize {
        ROOM.get()
    }
    fn send(&self, bytes: &[u8]) {
        PRINTED.with_borrow_mut(|all| all.extend(bytes));
    }
    fn receive(&self) -> Option<u8> {
        TYPED.with_borrow_mut(VecDeque::pop_front)
    }
    fn listen(&self, wanted: Listen) {
        LISTENS.set(wanted);
    }
    fn interrupts(&self) -> bool {
        true
    }
}

/// Makes a machine of `harts` harts with these VMs, not yet started.
pub fn machine(vms: Vec<VmConfig>, harts: usize, timer: GuestTimer) -> (Gnomon, Hart) {
    machine_of((PAGES - BUNDLE_PAGES, Pager::default()), vms, harts, timer)
}

/// Returns a page of the bundle.
pub fn bundle_page(n: u64) -> Pfn<Hpa> {
    Pfn::new(RAM + n)
}

/// Like [`machine`], with so many frames, and with that pager.
pub fn machine_of((pages, pager): (u64, Pager), vms: Vec<VmConfig>, harts: usize, timer: GuestTimer) -> (Gnomon, Hart) {
    PRINTED.take();
    let ram = oracle::Machine::with_ram(Pfn::new(RAM), PAGES);
    let mem = Mem(Arc::new(Mutex::new(ram)));
    let mut frames = Frames::new();
    let ends = vms
        .iter()
        .flat_map(|vm| &vm.segments)
        .map(|segment| segment.offset.saturating_add(segment.bytes).div_ceil(4096));
    // Some tests name what is in no bundle: just behind its end, or nowhere.
    let ends = ends.filter(|end| (512..PAGES).contains(end));
    // What is behind it is aligned the same.
    let longer = ends.max().unwrap_or(0).saturating_sub(BUNDLE_PAGES).next_multiple_of(512);
    let bundle_pages = BUNDLE_PAGES + longer;
    frames.add(Pfn::new(RAM + bundle_pages), pages);
    if pager.has_disk() {
        frames.add_images(&homes_of_all(vms.iter().flat_map(|vm| &vm.segments), Pfn::new(RAM), bundle_pages << 12));
    }
    let disks =
        vms.iter().flat_map(|vm| &vm.disks).map(|number| (*number, Box::new(FakeDisk::new(*number, mem.clone())) as _));
    let disks: Vec<_> = disks.collect();
    let shares = vms.iter().flat_map(|vm| &vm.shares).map(|share| share.number);
    let shares = shares.map(|number| (number, Box::new(FakeShare::new(number)) as _));
    let shares: Vec<_> = shares.collect();
    let entropy = vms.iter().any(|vm| vm.rng).then(|| Source::new(Box::new(FakeEntropy::new())));
    let network = Network::new(vms.iter().filter_map(|vm| vm.mac), None, 10_000_000);
    let config = Config { vms, console: ConsoleMode::Lines, settings: Vec::new() };
    let has_names = config.vms.len() > 1;
    let offer = Offer {
        firmware_emulates_time: false,
        guest: GuestMode::Virtual,
        g_format: &rv::format::SV39X4,
        formats: vec![&rv::format::SV39],
        kinds: &hypervisor::device::KINDS,
        two_stage_svadu: false,
        has_swap: false,
        denial: Denial::Pmp,
        isa: Isa::from_isa_string("rv64imafdc_sstc"),
        mmu_type: "riscv,sv39".into(),
        timer,
        emulates_misaligned: false,
        has_pmu: true,
        vlenb: 0,
        timebase: 10_000_000,
        clock: None,
        disks: Disks::new(disks),
        shares: Shares::new(shares),
        entropy: entropy.map(|source| Arc::new(hypervisor::sync::Mutex::new(source))),
        network,
    };
    let g = Gnomon {
        mappers: &hypervisor::vm::mapper::KINDS,
        vms: Vms::new(),
        offer,
        sched: Sched::new(harts),
        harts: frames.share(harts).into_iter().map(HartShared::new).collect(),
        chores: Chores::default(),
        promoter: hypervisor::pager::promoter::Promoter::default(),
        pager,
        tunables: hypervisor::machine::tunables::Tunables::default(),
        console: Console::new(&Printer, config.console, has_names),
        channel: hypervisor::backend::channel::Channel::default(),
        asked: hypervisor::measure::probe::Asked::default(),
        heap: HeapUse::default,
        heap_at_start: 0,
        bundle: Pfn::new(RAM),
        bundle_bytes: bundle_pages << 12,
    };
    // A hart without a guest would serve any VM.
    g.harts.iter().for_each(|hart| hart.has_guest.store(true, std::sync::atomic::Ordering::Relaxed));
    config.vms.into_iter().for_each(|config| g.vms.wish(config, &g.offer));
    let hart = Hart {
        mem,
        time: 1000,
        mode: Mode::Supervisor,
        sets_ad: false,
        regs: VsTrapRegs { vstvec: GUEST_ENTRY + 0x100, ..VsTrapRegs::default() },
        vsatp: 0,
        vsie: 0,
        lines: 0,
        held: 0,
        enabled: 0,
        comparator: u64::MAX,
        bytes: BTreeMap::new(),
        read_only: Vec::new(),
        sscratch: 0,
        is_interrupted: false,
        float: [0; 32],
        user_counters: 0,
        asids: Ids::new(1, 2),
        load_ticks: 0,
        others_from: 0,
        events: Vec::new(),
    };
    (g, hart)
}

/// Does all chores, as a hart does that has nothing else to do.
fn settle(g: &Gnomon, hart: &mut Hart) {
    while lifecycle::go_on(g, hart) {}
}

/// Calls [`lifecycle::start_due`], and does the work that it leaves.
pub fn start_due(g: &Gnomon, hart: &mut Hart) {
    lifecycle::start_due(g, hart);
    settle(g, hart);
}

/// Calls [`lifecycle::start`], and does the work that it leaves.
pub fn start(g: &Gnomon, vm: &Arc<Vm>, hart: &mut Hart) {
    lifecycle::start(g, vm, hart);
    settle(g, hart);
}

/// Calls [`lifecycle::depart`], and does the work that it leaves.
pub fn depart(g: &Gnomon, vm: &Arc<Vm>, departure: Departure, hart: &mut Hart) {
    lifecycle::depart(g, vm, departure, hart);
    settle(g, hart);
}

/// Calls [`lifecycle::end_all`], and does the work that it leaves.
pub fn end_all(g: &Gnomon, reason: &EndReason, hart: &mut Hart) {
    lifecycle::end_all(g, reason, hart);
    settle(g, hart);
}

/// Calls [`lifecycle::park`], and does the work that it leaves.
pub fn park(g: &Gnomon, run: Box<VcpuRun>, hart: &mut Hart) {
    lifecycle::park(g, run, hart);
    settle(g, hart);
}

/// One VM on one hart, its first vCPU loaded.
pub struct World {
    pub g: Gnomon,
    pub hart: Hart,
    pub run: Box<VcpuRun>,
}

pub fn world(vcpus: u32, timer: GuestTimer) -> World {
    world_of(vm_config("vm", vcpus), timer)
}

/// Like [`world`], with the guest on shadow tables.
pub fn shadow_world(mmu: MmuMode, vcpus: u32) -> World {
    let config = VmConfig { mmu: Some(mmu), ..vm_config("vm", vcpus) };
    let mut w = world_of(config, GuestTimer::Sstc);
    let translation = w.run.vm.translation;
    assert_eq!(translation.load(&w.g, &mut w.run, &mut w.hart), Ok(()));
    w
}

pub fn world_of(config: VmConfig, timer: GuestTimer) -> World {
    let (g, mut hart) = machine(vec![config], 2, timer);
    start_due(&g, &mut hart);
    let run = g.sched.take(0).expect("the first vCPU is ready");
    run.shared.hart.store(0, std::sync::atomic::Ordering::SeqCst);
    run.shared.posted.store(0, std::sync::atomic::Ordering::SeqCst);
    hart.events.clear();
    World { g, hart, run }
}

impl World {
    /// Handles an exit, as a hart does: some are brief.
    pub fn exit(&mut self, cause: u64, tval: u64, gpa: u64, tinst: u64) -> Outcome {
        let brief = self.brief(Exit { cause, tval, tval2: gpa >> 2, tinst });
        match brief.known() {
            _ if brief == Brief::OVER => Outcome::Resume,
            Some(known) => exit::go_on(&self.g, &mut self.run, known, &mut self.hart),
            None => exit::handle(&self.g, &mut self.run, &mut self.hart),
        }
    }

    /// Handles an exit, if it is a brief one.
    pub fn brief(&mut self, exit: Exit) -> Brief {
        self.run.context.exit = exit;
        if self.run.context.brief.has(&exit) {
            let (mode, mem) = (self.hart.mode, self.hart.mem.clone());
            return self.preserving(true, |w| exit::send_byte(&mut w.run, || mode, &mem));
        }
        if !self.run.context.brief_causes.has(exit.cause) {
            return Brief::NO;
        }
        let kind = match Exception::from_code(exit.cause) {
            Some(Exception::VirtualInstruction | Exception::IllegalInstruction) => exit::kind_of_instruction(&self.run),
            _ => exit::kind_of(&self.run, exit.cause),
        };
        let Some(kind) = kind else { return Brief::NO };
        let are_saved = matches!(kind, Kind::Fence | Kind::Satp);
        self.preserving(are_saved, |w| exit::handle_brief(kind, &w.g, &mut w.run, &mut w.hart))
    }

    /// Does that as the trap vector calls for it: registers that a call preserves have been saved or not, and are not loaded if the exit is
    /// over.
    fn preserving(&mut self, are_saved: bool, handle: impl FnOnce(&mut Self) -> Brief) -> Brief {
        let before = self.run.context.x;
        let preserved = || (0..32).filter(|n| Context::is_preserved(*n as u8));
        if !are_saved {
            preserved().for_each(|n| self.run.context.x[n] = 0x5a1e_5a1e_5a1e_0000 | n as u64);
        }
        let brief = handle(self);
        if are_saved && brief == Brief::OVER {
            preserved().for_each(|n| assert_eq!(self.run.context.x[n], before[n], "x{n} is lost"));
        }
        preserved().for_each(|n| self.run.context.x[n] = before[n]);
        brief
    }

    /// Handles an exit as one that is not brief.
    pub fn long_exit(&mut self, exit: Exit) -> Outcome {
        self.run.context.exit = exit;
        exit::handle(&self.g, &mut self.run, &mut self.hart)
    }

    /// Handles an exit, and those that the guest makes until its memory is ready.
    pub fn exit_until_ready(&mut self, cause: u64, tval: u64, gpa: u64, tinst: u64) -> Outcome {
        loop {
            let outcome = self.exit(cause, tval, gpa, tinst);
            if !matches!(self.run.ready, Ready::Mega { .. }) {
                return outcome;
            }
        }
    }

    /// Makes an SBI call, as often as it takes; returns (error, value).
    pub fn sbi(&mut self, extension: usize, function: u64, args: &[u64]) -> (i64, u64) {
        let x = &mut self.run.context.x;
        x[10..16].fill(0);
        x[10..10 + args.len()].copy_from_slice(args);
        (x[16], x[17]) = (function, extension as u64);
        let pc = self.run.context.pc;
        let mut outcome = self.exit(10, 0, 0, 0);
        while self.run.context.pc == pc && matches!(self.run.ready, Ready::Mega { .. }) {
            outcome = self.exit(10, 0, 0, 0);
        }
        assert_eq!(outcome, hypervisor::vm::outcome::Outcome::Resume);
        assert_eq!(self.run.context.pc, pc + 4);
        (self.run.context.x[10] as i64, self.run.context.x[11])
    }

    /// Puts a vCPU that is on no hart aside, as stopped.
    pub fn set_aside(&self, run: Box<VcpuRun>) {
        let vm = run.vm.clone();
        self.g.vms.tenant(&vm, |tenant| tenant.parked.insert(run.shared.id, run)).expect("the VM is there");
    }

    pub fn frames_used(&self) -> u64 {
        self.g.frames().usage(Owner::Vm(0)).total()
    }
}

/// Writes a word of the guest's memory.
pub fn write_word(w: &mut World, gpa: u64, value: u64) {
    let vm = w.run.vm.clone();
    write(&w.g, &vm, Addr::new(gpa), &value.to_le_bytes(), &mut w.hart).expect("there is RAM");
}

/// Reads a word of the guest's memory.
pub fn read_word(w: &mut World, gpa: u64) -> u64 {
    let (vm, mut bytes) = (w.run.vm.clone(), [0; 8]);
    read(&w.g, &vm, Addr::new(gpa), &mut bytes, &mut w.hart).expect("there is RAM");
    u64::from_le_bytes(bytes)
}
