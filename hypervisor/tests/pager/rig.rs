//! A machine with little memory, and guests that touch theirs: beside each a flat model of what it should find.

use super::disk::Hand;
use crate::fake::{self, Hart, Mem, machine_of, vm_config};
use abi::bundle::{GUEST_ENTRY, GUEST_RAM_BASE, MmuMode, Segment, VmConfig};
use hypervisor::device::offer::GuestTimer;
use hypervisor::exit;
use hypervisor::gnomon::Gnomon;
use hypervisor::life::lifecycle;
use hypervisor::pager::Pager;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::{VcpuRun, request};
use hypervisor::vm::{Departure, Phase, Translation, Vm};
use mmu::frames::{Owner, Run, Use};
use rv::{Addr, Exit, Gpa, Hpa, PAGE_BYTES, Pfn, PhysMem, Pte, PteFlags};
use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// RAM of a VM, in pages: the least that one may have.
pub const PAGES: u64 = 1024;
/// Its pages that tests may touch: those below its device tree.
pub const USED: u64 = PAGES - 16;
/// The first page of its kernel, which is an image.
pub const KERNEL: u64 = (GUEST_ENTRY - GUEST_RAM_BASE) / PAGE_BYTES;

/// The page of the bundle where the image begins that VMs share, and its length.
pub const IMAGE: u64 = 512;
pub const IMAGE_PAGES: u64 = 512;

/// Makes a VM of [`PAGES`] that has pages of the image from page `at` on: so many, from number `from` on.
pub fn vm_with_image(name: &str, mmu: MmuMode, (at, from, pages): (u64, u64, u64)) -> VmConfig {
    let mut config = vm(name, mmu);
    let (gpa, offset) = (GUEST_RAM_BASE + at * PAGE_BYTES, (IMAGE + from) * PAGE_BYTES);
    config.segments.insert(0, Segment { gpa, offset, bytes: pages * PAGE_BYTES, label: "image".into() });
    config
}

/// Makes a VM of [`PAGES`].
pub fn vm(name: &str, mmu: MmuMode) -> VmConfig {
    let shadow_bytes = Some(384 << 10);
    VmConfig { mmu: Some(mmu), memory_bytes: PAGES * PAGE_BYTES, shadow_bytes, ..vm_config(name, 1) }
}

/// The next access of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    pub page: u64,
    /// The value that it stores to the page's first word; `None` if it loads.
    pub store: Option<u64>,
}

/// The result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// The access came through.
    Yes,
    /// Not yet; but it got on with it.
    Soon,
    /// The vCPU waits.
    Waits,
    /// The VM has ended.
    Over,
}

/// A VM with its only vCPU.
pub struct Guest {
    pub vm: Arc<Vm>,
    /// The vCPU, unless it waits.
    run: Option<Box<VcpuRun>>,
    is_over: bool,
    pub wants: Option<Touch>,
    /// The first word of each page, if it differs from its initial value.
    pub model: BTreeMap<u64, u64>,
    /// The number of times that it was told to wait.
    pub waits: u64,
}

pub struct Rig {
    pub g: Gnomon,
    pub hart: Hart,
    pub guests: Vec<Guest>,
    pub disk: Option<Hand>,
    /// The console's output.
    pub said: String,
    /// Exits until harts look after memory while no vCPU waits.
    turns: std::ops::Range<u64>,
    /// The number of exits between two looks.
    pub exits_per_turn: u64,
    /// No hart is ever idle.
    pub is_busy: bool,
    /// Every other frame of those that come free, held so that no two are side by side.
    pub between: Option<Vec<Run>>,
    /// Most accesses to words of memory in one look.
    pub longest_look: u64,
}

/// Turns after which what happens should have happened.
const PATIENCE: u64 = 20_000;

impl Rig {
    /// Makes a machine with so many frames, and a swap device of so many pages, if one.
    pub fn new(frames: u64, pages: Option<u64>, vms: Vec<VmConfig>) -> Self {
        let disk = pages.map(Hand::new);
        let pager = Pager::new(disk.as_ref().map(Hand::disk));
        let (g, mut hart) = machine_of((frames, pager), vms, 1, GuestTimer::Sstc);
        if let Some(disk) = &disk {
            disk.plug_into(&hart.mem);
        }
        (0..g.bundle_bytes / PAGE_BYTES).for_each(|n| {
            hart.mem.write_u64(fake::bundle_page(n).base(), contents(n));
            hart.mem.write_u64(fake::bundle_page(n).at(PAGE_BYTES - 8), contents(n));
        });
        fake::start_due(&g, &mut hart);
        let guest = |vm| Guest { vm, run: None, is_over: false, wants: None, model: BTreeMap::new(), waits: 0 };
        let guests = g.vms.all().map(guest).collect();
        let mut rig = Self {
            g,
            hart,
            guests,
            disk,
            said: String::new(),
            turns: 0..0,
            exits_per_turn: 1,
            is_busy: false,
            between: None,
            longest_look: 0,
        };
        rig.collect();
        assert!(rig.guests.iter().all(|guest| guest.run.is_some()), "{}", rig.said);
        rig
    }

    pub fn disk(&self) -> &Hand {
        self.disk.as_ref().expect("it has one")
    }

    pub fn count(&self, name: &str) -> u64 {
        self.g.pager.each().into_iter().find(|(other, _)| *other == name).expect("a counter").1
    }

    pub fn usage(&self, guest: usize) -> mmu::frames::Usage {
        self.g.frames().usage(Owner::Vm(self.guests[guest].vm.slot() as u16))
    }

    /// Returns the number of frames that images have.
    pub fn images_in_memory(&self) -> u64 {
        self.g.frames().usage(Owner::Host).image
    }

    /// Returns whether a VM runs: its end has not been asked for.
    pub fn runs(&self, guest: usize) -> bool {
        *self.guests[guest].vm.phase.lock() == Phase::Running
    }

    pub fn is_over(&self, guest: usize) -> bool {
        self.guests[guest].is_over
    }

    /// Collects the vCPUs that are ready for their guests.
    fn collect(&mut self) {
        while let Some(run) = self.g.sched.take(0) {
            run.shared.hart.store(0, SeqCst);
            let mut guests = self.guests.iter_mut();
            let guest = guests.find(|guest| guest.vm.handle.number == run.shared.vm).expect("a VM of the test");
            guest.run = Some(run);
        }
        self.said += &fake::printed();
    }

    /// Does the occasional work of harts.
    pub fn turn(&mut self) {
        self.turns = 1..self.exits_per_turn;
        let before = fake::ACCESSES.get();
        hypervisor::life::idle::page(&self.g, &mut self.hart);
        self.longest_look = self.longest_look.max(fake::ACCESSES.get() - before);
        if let Some(mut between) = self.between.take() {
            self.break_up(&mut between);
            self.between = Some(between);
        }
        lifecycle::go_on(&self.g, &mut self.hart);
        // As if much time had passed.
        self.hart.time += 10_000_000;
        if !self.is_busy {
            self.g.promoter.go_on(&self.g, &mut self.hart);
        }
        self.collect();
        // Harts that run guests are kicked.
        for n in 0..self.guests.len() {
            let is_asked = |run: &VcpuRun| run.shared.posted.load(SeqCst) & request::PARK != 0;
            if self.guests[n].run.as_deref().is_some_and(is_asked) {
                _ = self.step(n);
            }
        }
        self.check();
    }

    /// Takes all frames that are free.
    pub fn take_all(&self) -> Vec<Run> {
        iter::from_fn(|| self.g.frames().alloc(Owner::Host, Use::Other, 0).ok()).collect()
    }

    /// Takes every other frame of what is free.
    pub fn break_up(&self, between: &mut Vec<Run>) {
        for run in self.take_all() {
            if run.first().is_aligned(2) { self.g.frames().free(run) } else { between.push(run) }
        }
    }

    /// Waits until nothing is on its way, and checks that each page of the device that is not free has a page of a
    /// VM's, or is bad.
    pub fn check_slots(&mut self) {
        let is_settled = |rig: &Self| {
            let left = (0..rig.guests.len()).filter(|n| !rig.is_over(*n)).count();
            rig.disk().in_flight() == 0 && rig.g.vms.all().count() == left
        };
        self.until("nothing is on its way, and no VM ends", is_settled);
        let rig = &*self;
        let out = |n: usize| (0..PAGES).filter_map(move |page| rig.is_out(n, page));
        let mut slots: Vec<u64> = (0..self.guests.len()).filter(|n| !self.is_over(*n)).flat_map(out).collect();
        let count = slots.len() as u64;
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len() as u64, count, "each has one of its own");
        let used = self.count("swap.pages") - self.count("swap.free") - self.count("swap.images");
        let refused = self.count("swap.refused");
        let state = self.disk().get();
        assert!(refused <= state.bad_writes.iter().filter(|slot| state.writes.contains_key(slot)).count() as u64);
        let copies = |vm: std::sync::Arc<hypervisor::vm::Vm>| {
            vm.memory.lock().as_ref().map_or(0, |memory| memory.space.copy_count())
        };
        let copies: u64 = rig.g.vms.all().map(copies).sum();
        assert_eq!(used, count + copies + refused, "pages of the device that are used");
    }

    /// Checks that every frame has an owner, and that no VM has more than it may have.
    pub fn check(&self) {
        let frames = self.g.frames();
        let owners = (0..self.guests.len() as u16).map(Owner::Vm);
        let used: u64 = owners.map(|owner| frames.usage(owner).total()).sum();
        let others = frames.usage(Owner::Host).total();
        assert_eq!(used + others + frames.free_count(), frames.total_count(), "no frame is lost");
        for (n, guest) in self.guests.iter().enumerate().filter(|(_, guest)| guest.vm.config.limit_bytes.is_some()) {
            let owner = Owner::Vm(guest.vm.slot() as u16);
            // Tables that split 2 MiB come on top for a while: two, in RAM of this size.
            let (total, most) = (self.usage(n).total(), frames.limit(owner) + PAGES / 512);
            // What its RAM may have is its own limit: it leaves shadow tables theirs.
            let (resident, limit) = (self.usage(n).guest, guest.vm.config.limit_bytes.unwrap_or(0) / PAGE_BYTES);
            assert!(resident <= limit, "VM {n} has {resident} frames of RAM, and may have {limit}");
            assert!(total <= most, "{} has {total} frames, and may have {most}", guest.vm.config.name);
        }
        if let Some(disk) = &self.disk {
            for frame in disk.frames() {
                let owner = frames.owner_of(frame);
                let is_known = matches!(owner, Some((Owner::Vm(_), Use::Guest) | (Owner::Host, Use::Image)));
                assert!(is_known, "the device fills {frame:?} of {owner:?}");
            }
        }
    }

    /// Continues with a guest's access.
    pub fn step(&mut self, n: usize) -> Done {
        let guest = &mut self.guests[n];
        if guest.is_over {
            return Done::Over;
        }
        let Some(mut run) = guest.run.take() else {
            // It may have ended while it waited.
            guest.is_over = *guest.vm.phase.lock() == Phase::Ended;
            return if guest.is_over { Done::Over } else { Done::Waits };
        };
        let posted = run.shared.posted.swap(0, SeqCst);
        if posted & request::PARK != 0 {
            guest.is_over = true;
            self.g.sched.stopped();
            lifecycle::park(&self.g, run, &mut self.hart);
            return Done::Over;
        }
        let translation = run.vm.translation;
        if !translation.may_enter(&run)
            && let Err(outcome) = translation.load(&self.g, &mut run, &mut self.hart)
        {
            return self.conclude(n, run, outcome);
        }
        if !translation.may_enter(&run) {
            // It takes longer, or memory that is not there yet.
            self.guests[n].run = Some(run);
            return Done::Soon;
        }
        let Some(touch) = self.guests[n].wants else {
            self.guests[n].run = Some(run);
            return Done::Yes;
        };
        let gpa = Addr::new(GUEST_RAM_BASE + touch.page * PAGE_BYTES);
        if let Some(hpa) = hardware(&run, gpa, touch.store.is_some(), &self.hart.mem) {
            self.arrive(n, touch, hpa);
            self.guests[n].run = Some(run);
            return Done::Yes;
        }
        let is_store = touch.store.is_some();
        run.context.exit = match translation {
            Translation::TwoStage | Translation::Adaptive => {
                Exit { cause: if is_store { 23 } else { 21 }, tval: 0, tval2: gpa.raw() >> 2, tinst: 0 }
            }
            Translation::Shadow(_) => {
                Exit { cause: if is_store { 15 } else { 13 }, tval: gpa.raw(), tval2: 0, tinst: 0 }
            }
        };
        let outcome = exit::handle(&self.g, &mut run, &mut self.hart);
        self.conclude(n, run, outcome)
    }

    /// Returns a guest's vCPU, if it can run now. If not, the hart does its other work.
    fn ready(&mut self, n: usize) -> Option<Box<VcpuRun>> {
        let run = self.guests[n].run.take();
        match &run {
            Some(run) => run.shared.posted.store(0, SeqCst),
            None => self.turn(),
        }
        run
    }

    /// Loads from a virtual address, to which the tables of a guest with paging lead.
    pub fn load_virtual(&mut self, n: usize, satp: u64, gva: u64) {
        let vm = self.guests[n].vm.clone();
        let filled = || vm.memory.lock().as_ref().unwrap().shadow.as_ref().unwrap().counters().filled_4k;
        let before = filled();
        for _ in 0..PATIENCE {
            let Some(mut run) = self.ready(n) else { continue };
            let translation = run.vm.translation;
            if run.bank.csrs.vsatp != satp {
                translation.forget(&mut run);
                run.bank.csrs.vsatp = satp;
            }
            let outcome = match translation.may_enter(&run) {
                false => match translation.load(&self.g, &mut run, &mut self.hart) {
                    Ok(()) => Outcome::Resume,
                    Err(outcome) => outcome,
                },
                true => {
                    run.context.exit = Exit { cause: 13, tval: gva, tval2: 0, tinst: 0 };
                    exit::handle(&self.g, &mut run, &mut self.hart)
                }
            };
            _ = self.conclude(n, run, outcome);
            if filled() > before {
                return;
            }
        }
        panic!("guest {n} loads from {gva:#x} for ever: {}", self.said);
    }

    /// Writes a word of a guest's memory.
    pub fn poke(&mut self, n: usize, gpa: u64, value: u64) {
        let vm = &self.guests[n].vm;
        fake::write(&self.g, vm, Addr::new(gpa), &value.to_le_bytes(), &mut self.hart).expect("there is memory");
    }

    /// Makes an SBI call of a guest, as long as it takes.
    pub fn call<const N: usize>(&mut self, n: usize, extension: usize, function: u64, args: [u64; N]) -> (i64, u64) {
        for _ in 0..PATIENCE {
            let Some(mut run) = self.ready(n) else { continue };
            let pc = run.context.pc;
            let x = &mut run.context.x;
            x[10..16].fill(0);
            x[10..10 + N].copy_from_slice(&args);
            (x[16], x[17]) = (function, extension as u64);
            run.context.exit = Exit { cause: 10, tval: 0, tval2: 0, tinst: 0 };
            let outcome = exit::handle(&self.g, &mut run, &mut self.hart);
            let (is_over, reply) = (run.context.pc != pc, (run.context.x[10] as i64, run.context.x[11]));
            _ = self.conclude(n, run, outcome);
            if is_over {
                return reply;
            }
        }
        panic!("guest {n} makes a call for ever: {:?} {}", self.g.pager.each(), self.said);
    }

    /// Returns bytes of a guest's memory, which is brought in for that.
    pub fn peek(&mut self, n: usize, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        for _ in 0..PATIENCE {
            let vm = &self.guests[n].vm;
            match fake::read(&self.g, vm, Addr::new(at), &mut bytes, &mut self.hart) {
                Ok(()) => return bytes,
                Err(why) => assert!(why.is_for_now(), "{why}"),
            }
            self.turn();
        }
        panic!("{at:#x} of guest {n} never comes");
    }

    /// Does the guest's access at `hpa`, and checks that it finds what it should.
    fn arrive(&mut self, n: usize, touch: Touch, hpa: Addr<Hpa>) {
        let owner = self.g.frames().owner_of(hpa.pfn());
        let slot = self.guests[n].vm.slot() as u16;
        let original = original(&self.guests[n].vm.config, touch.page);
        let is_own = owner == Some((Owner::Vm(slot), Use::Guest));
        // Without a swap device images are not handed out by the frame.
        let images = self.disk.as_ref().map(|_| (Owner::Host, Use::Image));
        assert!(
            is_own || original.is_some() && touch.store.is_none() && owner == images,
            "OWNERSHIP: guest {n} {touch:?} {owner:?}"
        );
        let expected = self.expected(n, touch.page);
        let mem = &mut self.hart.mem;
        // The last word is the first one's twin.
        let twin = hpa.pfn().at(PAGE_BYTES - 8);
        let found = (mem.read_u64(hpa), mem.read_u64(twin));
        assert_eq!(found, (expected, expected), "guest {n}, page {}", touch.page);
        if let Some(value) = touch.store {
            mem.write_u64(hpa, value);
            mem.write_u64(twin, value);
            self.guests[n].model.insert(touch.page, value);
        }
        self.guests[n].wants = None;
    }

    fn conclude(&mut self, n: usize, run: Box<VcpuRun>, outcome: Outcome) -> Done {
        let is_to_wait = outcome == Outcome::Later && run.shared.posted.load(SeqCst) == 0;
        self.guests[n].waits += u64::from(outcome == Outcome::Later);
        match outcome {
            Outcome::Later if is_to_wait => {
                self.g.sched.wait(run, u64::MAX, 0, self.hart.time);
                return Done::Waits;
            }
            Outcome::Resume | Outcome::Later => {}
            Outcome::Depart(departure) => {
                lifecycle::depart(&self.g, &self.guests[n].vm.clone(), departure, &mut self.hart)
            }
            other => panic!("{other:?}"),
        }
        self.guests[n].run = Some(run);
        Done::Soon
    }

    /// Does an access of a guest, as long as it takes.
    pub fn touch(&mut self, n: usize, page: u64, store: Option<u64>) -> Done {
        self.guests[n].wants = Some(Touch { page, store });
        for _ in 0..PATIENCE {
            match self.step(n) {
                done @ (Done::Yes | Done::Over) => return done,
                Done::Waits => self.turn(),
                // A hart serves it in the end, whichever hart goes on.
                Done::Soon if self.turns.next().is_none() => self.turn(),
                Done::Soon => {}
            }
        }
        let vm = &self.guests[n].vm;
        let waits = (vm.held.load(SeqCst), vm.vcpus[0].posted.load(SeqCst), self.guests[n].run.is_some());
        let state = (waits, self.g.pager.has_work(), self.g.frames().free_count(), self.is_out(n, page));
        panic!("guest {n} waits for page {page} for ever: {state:?} {:?} {}", self.g.pager.each(), self.said);
    }

    /// Stores to pages of a guest, to each a value made of its number.
    pub fn fill(&mut self, n: usize, pages: impl IntoIterator<Item = u64>) -> Done {
        self.each(n, pages, |page| Some(0x1000 * (n as u64 + 1) + page))
    }

    /// Loads from pages of a guest.
    pub fn load(&mut self, n: usize, pages: impl IntoIterator<Item = u64>) -> Done {
        self.each(n, pages, |_| None)
    }

    fn each(&mut self, n: usize, pages: impl IntoIterator<Item = u64>, store: impl Fn(u64) -> Option<u64>) -> Done {
        pages
            .into_iter()
            .map(|page| self.touch(n, page, store(page)))
            .find(|done| *done != Done::Yes)
            .unwrap_or(Done::Yes)
    }

    /// Makes a guest's vCPU leave its hart, as it was asked to for a pause.
    pub fn leave(&mut self, n: usize) {
        let run = self.guests[n].run.take().expect("its vCPU runs");
        assert_ne!(run.shared.posted.fetch_and(!request::PAUSE, SeqCst) & request::PAUSE, 0);
        self.g.sched.stopped();
        lifecycle::put_aside(&self.g, run, &mut self.hart);
    }

    /// Returns the expected first and last word of a guest's page.
    pub fn expected(&self, n: usize, page: u64) -> u64 {
        let Guest { vm, model, .. } = &self.guests[n];
        model.get(&page).copied().or_else(|| original(&vm.config, page)).unwrap_or(0)
    }

    /// Turns until something is so.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..PATIENCE {
            if is_so(self) {
                return;
            }
            self.turn();
        }
        panic!("not within {PATIENCE} turns: {what}: {:?} {}", self.g.pager.each(), self.said);
    }

    /// Returns the page of the device that a guest's page is on, if it is out.
    pub fn is_out(&self, n: usize, page: u64) -> Option<u64> {
        let memory = self.guests[n].vm.memory.lock();
        let space = &memory.as_ref()?.space;
        space.is_out(Pfn::new(GUEST_RAM_BASE / PAGE_BYTES + page), &self.hart.mem).map(|slot| slot.0)
    }

    /// Returns a page of a guest's that the device has not written yet.
    pub fn leaving(&self, n: usize) -> Option<u64> {
        let begun = self.disk().begun();
        let is_begun = |page: &u64| self.is_out(n, *page).is_some_and(|slot| begun.contains(&slot));
        (0..USED).find(|page| !begun.is_empty() && is_begun(page))
    }

    pub fn depart(&mut self, n: usize, departure: Departure) {
        lifecycle::depart(&self.g, &self.guests[n].vm.clone(), departure, &mut self.hart);
        if self.guests[n].run.is_none() {
            // It was taken from those that wait.
            self.guests[n].is_over = true;
        }
        _ = self.step(n);
    }

    /// Waits until the vCPU of a VM that starts over is ready. The guest finds its initial memory.
    pub fn restarted(&mut self, n: usize) {
        let guest = &mut self.guests[n];
        (guest.is_over, guest.wants) = (false, None);
        guest.model.clear();
        self.until("its vCPU is ready", |rig| rig.guests[n].run.is_some());
    }

    /// Ends all VMs: all comes back.
    pub fn end(mut self) -> String {
        let all = 0..self.guests.len();
        all.clone().for_each(|n| self.depart(n, Departure::End(abi::record::EndReason::Poweroff)));
        if let Some(disk) = &self.disk {
            disk.get().is_held = false;
        }
        self.until("all VMs are gone", |rig| rig.g.is_over());
        self.until("nothing is on its way", |rig| rig.disk.as_ref().is_none_or(|disk| disk.in_flight() == 0));
        let (frames, lost) = (self.g.frames(), self.disk.as_ref().map_or(0, |disk| disk.get().bad()));
        assert_eq!(frames.free_count() + self.images_in_memory(), frames.total_count(), "all frames are back");
        let (pages, free) = (self.count("swap.pages"), self.count("swap.free") + self.count("swap.images"));
        assert!(
            free <= pages && free >= pages - lost,
            "all pages of the device are back: {free} of {pages}, {lost} bad"
        );
        assert_eq!(self.disk.as_ref().map_or(0, Hand::in_flight), 0);
        self.said
    }
}

/// Returns the first word of a page of the bundle, which is also its last.
fn contents(page: u64) -> u64 {
    0xb000_0000 + page
}

/// Returns the initial first word of a guest's page, if it is an image's.
fn original(config: &VmConfig, page: u64) -> Option<u64> {
    let gpa = GUEST_RAM_BASE + page * PAGE_BYTES;
    let is_in = |segment: &&Segment| (segment.gpa..segment.gpa + segment.bytes).contains(&gpa);
    let segment = config.segments.iter().find(is_in)?;
    Some(contents((segment.offset + gpa - segment.gpa) / PAGE_BYTES))
}

/// Returns the address at which the hardware's access arrives, if it is allowed.
fn hardware(run: &VcpuRun, gpa: Addr<Gpa>, is_store: bool, mem: &Mem) -> Option<Addr<Hpa>> {
    let allows = |flags: PteFlags| flags.contains(if is_store { PteFlags::W } else { PteFlags::R });
    if matches!(run.vm.translation, Translation::TwoStage | Translation::Adaptive) {
        let memory = run.vm.memory.lock();
        let there = memory.as_ref()?.space.translate(gpa, mem)?;
        return allows(there.flags).then_some(there.hpa);
    }
    let root = run.shadow.root.as_ref()?;
    let (mut table, mut level) = (root.table, root.format.root_level());
    loop {
        let pte = Pte(mem.read_u64(table.at(8 * root.format.index(Addr::<rv::Gva>::new(gpa.raw()), level) as u64)));
        let flags = pte.flags();
        if !flags.contains(PteFlags::V) {
            return None;
        }
        if flags.intersects(PteFlags::R | PteFlags::X) {
            let hpa = pte.pfn().at(gpa.raw() & (level.bytes() - 1));
            return allows(flags).then_some(hpa);
        }
        (table, level) = (pte.pfn(), level.down()?);
    }
}
