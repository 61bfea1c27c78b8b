//! A hypervisor, whose own guest (L2) makes exits of one kind: what the benchmarks `nested` and `memslots` measure between markers.
//!
//! Boot arguments: `KIND COUNT REGIONS`. L2 makes COUNT exits, or maps and unmaps that many pages, each of another of REGIONS regions. For the
//! last kinds, REGIONS is the size of L2's memory in MiB. KIND:
//!
//! | kind | between the markers |
//! |---|---|
//! | `call` | L2's SBI calls, answered as KVM's kernel does it: the same accesses to CSRs, in the same order |
//! | `vmm` | the same, answered as KVM does where its VMM is asked: state is saved before, and loaded after |
//! | `switch` | the same calls of eight L2s by turns, each with a table and a VMID of its own |
//! | `known` | L2's first accesses to pages which the G-stage table has |
//! | `missing` | L2's first accesses to pages which the G-stage table gets at the fault |
//! | `map` | pages of regions are mapped, each at L2's fault |
//! | `unmap` | pages of regions are unmapped, each with a fence of its address |
//! | `chunks` | the same with a fence for each 32 regions |
//! | `taken` | L1's balloon takes pages by one list, each of which three pages of L2's map |
//! | `spare` | the same of pages that L2 does not map |
//! | `taken-alone`, `spare-alone` | the same with a report of each page |
//!
//! A kind with `-nacl` does it by the SBI extension NACL.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "hypervisor CSRs")]

use core::sync::atomic::Ordering::Relaxed;
use guests::access::poke;
use guests::balloon::{Driver, INFLATE, REPORT};
use guests::hypervisor::nacl::{Shared, call, enter};
use guests::hypervisor::stage::{ALL, CODE, Stage};
use guests::paging::{Page, leaf, page, pointer};
use guests::user::User;
use guests::virtio::{WRITE, describe, get16};
use guests::{Check, board, code, console, ensure, ensure_eq, fail, ram, region, run};
use metal::{csr, fence};
use rv::csr::hstatus;
use rv::system::number;
use rv::{Addr, Mode, Vmid};
use sbi_spec::nacl::SYNC_HFENCE;

guests::entry_point!(main);

const ECALL: u64 = 10;
const STORE_GUEST_PAGE: u64 = 23;
/// L2's first page of data, and of regions: each region is one page, and the next one is that far away.
const PAGES: u64 = CODE + (1 << 30);
const STRIDE: u64 = 64 << 10;
/// Regions whose tables there are, and that share a table.
const MOST_REGIONS: u64 = 8192;
const REGIONS_OF_TABLE: u64 = (2 << 20) / STRIDE;
const TABLES: usize = (MOST_REGIONS / REGIONS_OF_TABLE) as usize;
/// Regions that one fence is for.
const CHUNK: u64 = 32;
const VMID: u64 = 9;
/// L2's memory, of a GiB at most, and its pages that map a page that is taken.
const MEMORY: u64 = CODE + (2 << 30);
const ALIASES: u64 = CODE + (3 << 30);
const MOST_MIB: u64 = 1024;
const MEGA: u64 = 2 << 20;
const HSTATUS: u64 = hstatus::SPV | hstatus::SPVP;

code! {
    // Calls, for good.
    calls: "1:", "ecall", "j 1b";
    // Stores to a3 pages from a1 on, each a2 bytes behind the last, then calls.
    stores: "1:", "sd zero, (a1)", "add a1, a1, a2", "addi a3, a3, -1", "bnez a3, 1b", "ecall", "j 1b";
}

fn main() {
    run("l1/measured", || {
        let mut words = board().bootargs.split_whitespace();
        let (Some(kind), count, regions) = (words.next(), words.next(), words.next()) else {
            fail!("boot arguments: KIND COUNT REGIONS");
        };
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok());
        let (Some(count), Some(regions)) = (number(count), number(regions)) else {
            fail!("boot arguments: KIND COUNT REGIONS");
        };
        ensure!((1..=MOST_REGIONS).contains(&regions), "{regions} regions");
        let (kind, shared) = match kind.strip_suffix("-nacl") {
            Some(kind) => (kind, Some(Shared::new()?)),
            None => (kind, None),
        };
        let mut l1 = L1::new(shared);
        match kind {
            "call" => l1.calls(count, false)?,
            "vmm" => l1.calls(count, true)?,
            "switch" => l1.switches(count)?,
            "known" => l1.faults(count, true)?,
            "missing" => l1.faults(count, false)?,
            "map" | "unmap" | "chunks" => l1.regions(kind, count, regions)?,
            "taken" => l1.takes(count, regions, (3, false))?,
            "spare" => l1.takes(count, regions, (0, false))?,
            "taken-alone" => l1.takes(count, regions, (3, true))?,
            "spare-alone" => l1.takes(count, regions, (0, true))?,
            _ => fail!("{kind} is no kind"),
        }
        console::figure("count", count);
        Ok(())
    });
}

/// The hypervisor.
struct L1 {
    stage: Stage,
    /// The tables of the pages, each for 2 MiB.
    tables: &'static [Page],
    /// Memory for L2, by tables.
    memory: [&'static [Page]; TABLES],
    code: &'static Page,
    user: User,
    shared: Option<Shared>,
    /// `hstatus` while L2 runs.
    hstatus: u64,
}

impl L1 {
    fn new(shared: Option<Shared>) -> Self {
        let (stage, middle, code) = (Stage::new(VMID), page(), page());
        let tables = ram::pages(TABLES);
        let memory = [(); TABLES].map(|()| ram::pages(REGIONS_OF_TABLE as usize));
        // All of it is there: what is measured takes no memory from below.
        memory.iter().copied().flatten().for_each(|page| page.0[0].store(0, Relaxed));
        for (n, table) in tables.iter().enumerate() {
            middle.0[n].store(pointer(table.address()), Relaxed);
        }
        stage.link(PAGES, middle);
        stage.map(CODE, code.address(), ALL);
        stage.enter();
        Self { stage, tables, memory, code, user: User::at(CODE), shared, hstatus: HSTATUS }
    }

    /// The entry of a region's page in the tables.
    fn entry(&self, region: u64) -> &core::sync::atomic::AtomicU64 {
        let table = &self.tables[(region / REGIONS_OF_TABLE) as usize];
        &table.0[(region % REGIONS_OF_TABLE * (STRIDE >> 12)) as usize]
    }

    fn map(&self, region: u64) {
        let page = &self.memory[(region / REGIONS_OF_TABLE) as usize][(region % REGIONS_OF_TABLE) as usize];
        self.entry(region).store(leaf(page.address(), ALL), Relaxed);
    }

    /// Enters L2 with the accesses to CSRs that KVM makes. Returns the cause of its trap, and the page of its fault.
    fn enter(&mut self) -> (u64, u64) {
        match &self.shared {
            None => {
                // SAFETY: the next `sret` enters L2, which has memory of its own only.
                let own = unsafe {
                    csr::hvip::write(0);
                    csr::hstatus::swap(self.hstatus)
                };
                let trap = self.user.run_in(Mode::Supervisor);
                // SAFETY: L2 is left.
                self.hstatus = unsafe { csr::hstatus::swap(own) };
                let at = csr::htval::read();
                let _ = (csr::htinst::read(), csr::vsie::read(), csr::hvip::read());
                if board().has("sstc") {
                    let _ = csr::vstimecmp::read();
                }
                (trap.cause, at << 2)
            }
            Some(shared) => {
                shared.write(number::HVIP.into(), 0);
                shared.pages[0].0[0x208 / 8].store(self.hstatus, Relaxed);
                shared.pages[0].0[0x200 / 8].store(1, Relaxed);
                let registers = [10, 11, 12, 13].map(|n| (n, self.user.x[n]));
                let _ = enter(shared, &registers, self.user.pc);
                let read = |csr: u16| shared.csr(csr.into());
                let _ = (read(number::HTINST), read(number::VSIE), read(number::HVIP), read(number::VSTIMECMP));
                self.user.pc = csr::sepc::read();
                (csr::scause::read(), read(number::HTVAL) << 2)
            }
        }
    }

    /// Saves L2's state and loads it again, as KVM does when its thread goes to the VMM and comes back.
    fn leave_and_return(&self) {
        const PUT: [u16; 9] = [
            number::VSSTATUS,
            number::VSIE,
            number::VSTVEC,
            number::VSSCRATCH,
            number::VSEPC,
            number::VSCAUSE,
            number::VSTVAL,
            number::HVIP,
            number::VSATP,
        ];
        if let Some(shared) = &self.shared {
            let values = PUT.map(|csr| shared.csr(csr.into()));
            PUT.iter().zip(values).for_each(|(csr, value)| shared.write((*csr).into(), value));
            for (csr, value) in [
                (number::HEDELEG, 0),
                (number::HENVCFG, 0),
                (number::HTIMEDELTA, 0),
                (number::HGATP, self.stage.hgatp()),
            ] {
                shared.write(csr.into(), value);
            }
            if board().has("sstc") {
                // SAFETY: concerns L2 only.
                unsafe { csr::vstimecmp::write(u64::MAX) };
            }
            return;
        }
        // SAFETY: concerns L2 only.
        unsafe {
            let state = [
                csr::vsstatus::read(),
                csr::vsie::read(),
                csr::vstvec::read(),
                csr::vsscratch::read(),
                csr::vsepc::read(),
                csr::vscause::read(),
                csr::vstval::read(),
                csr::hvip::read(),
                csr::vsatp::read(),
            ];
            if board().has("sstc") {
                let _ = csr::vstimecmp::read();
            }
            csr::vsstatus::write(state[0]);
            csr::vsie::write(state[1]);
            csr::vstvec::write(state[2]);
            csr::vsscratch::write(state[3]);
            csr::vsepc::write(state[4]);
            csr::vscause::write(state[5]);
            csr::vstval::write(state[6]);
            csr::hedeleg::write(0);
            csr::hvip::write(state[7]);
            csr::vsatp::write(state[8]);
            csr::henvcfg::write(0);
            csr::hgatp::write(self.stage.hgatp());
            csr::htimedelta::write(0);
            if board().has("sstc") {
                csr::vstimecmp::write(u64::MAX);
            }
        }
    }

    fn calls(&mut self, count: u64, asks_vmm: bool) -> Check {
        const WARM: u64 = 16;
        self.code.fill(calls());
        for n in 0..count + WARM {
            if n == WARM {
                region::begin(0);
            }
            let (cause, _) = self.enter();
            ensure_eq!(cause, ECALL, "the cause of exit {n}");
            self.user.pc += 4;
            if asks_vmm {
                self.leave_and_return();
            }
        }
        region::end(0);
        Ok(())
    }

    /// Runs eight L2s by turns on this hart.
    fn switches(&mut self, count: u64) -> Check {
        const L2S: usize = 8;
        self.code.fill(calls());
        let stages: [Stage; L2S] = core::array::from_fn(|n| Stage::new(VMID + 1 + n as u64));
        for stage in &stages {
            stage.map(CODE, self.code.address(), ALL);
        }
        fence::gvma_all();
        region::begin(0);
        for (n, stage) in (0..count).zip(stages.iter().cycle()) {
            match &self.shared {
                Some(shared) => shared.write(number::HGATP.into(), stage.hgatp()),
                None => stage.switch(),
            }
            self.user.pc = CODE;
            let (cause, _) = self.enter();
            ensure_eq!(cause, ECALL, "the cause of exit {n}");
        }
        region::end(0);
        Ok(())
    }

    /// Starts the stores to so many regions.
    fn start_stores(&mut self, regions: u64) {
        self.user.pc = CODE;
        (self.user.x[11], self.user.x[12], self.user.x[13]) = (PAGES, STRIDE, regions);
    }

    /// Lets L2 store to the first regions, and maps each at its fault. Returns the number of faults.
    fn store_all(&mut self, regions: u64) -> Result<u64, guests::Text> {
        self.start_stores(regions);
        let mut faults = 0;
        loop {
            match self.enter() {
                (STORE_GUEST_PAGE, at) => {
                    self.map((at - PAGES) / STRIDE);
                    faults += 1;
                    // What L2 has in registers is in the shared memory no more.
                    if self.shared.is_some() {
                        let stored = (at - PAGES) / STRIDE;
                        (self.user.x[11], self.user.x[13]) = (at, regions - stored);
                    }
                }
                (ECALL, _) => return Ok(faults),
                (cause, at) => fail!("L2 traps with {cause} at {at:#x}"),
            }
        }
    }

    /// Faults of L2 at so many regions.
    fn faults(&mut self, count: u64, is_known: bool) -> Check {
        self.code.fill(stores());
        ensure!((1..=MOST_REGIONS).contains(&count), "{count} faults");
        // All tables are there then.
        self.store_all(count)?;
        (0..count).for_each(|region| self.entry(region).store(0, Relaxed));
        fence::gvma_all();
        if is_known {
            (0..count).for_each(|region| self.map(region));
        }
        region::begin(0);
        let faults = self.store_all(count)?;
        region::end(0);
        ensure_eq!(faults, if is_known { 0 } else { count }, "faults that came here");
        Ok(())
    }

    /// Unmaps regions, with a fence for each chunk of so many.
    fn unmap(&self, regions: u64, chunk: u64) {
        for region in 0..regions {
            self.entry(region).store(0, Relaxed);
            if region % chunk == chunk - 1 || region == regions - 1 {
                let first = PAGES + region / chunk * chunk * STRIDE;
                self.fence(first, PAGES + region * STRIDE + 4096 - first);
            }
        }
    }

    /// Fences a range.
    fn fence(&self, from: u64, bytes: u64) {
        match &self.shared {
            Some(shared) => {
                shared.fence(0, [from >> 12, bytes >> 12], 2, VMID);
                let _ = call(SYNC_HFENCE, [0, 0, 0]);
            }
            // As KVM does for more than a table's entries.
            None if bytes > 4096 => fence::gvma_vmid(Vmid(VMID as u16)),
            None => fence::gvma_page(Addr::new(from), Vmid(VMID as u16)),
        }
    }

    fn regions(&mut self, kind: &str, count: u64, regions: u64) -> Check {
        self.code.fill(stores());
        let rounds = count / regions;
        ensure!(rounds > 0 && count.is_multiple_of(regions), "{count} is no multiple of {regions} regions");
        for round in 0..=rounds {
            // Once for all tables to be there.
            let is_measured = |wanted| round > 0 && kind == wanted;
            if is_measured("map") {
                region::begin(0);
            }
            let faults = self.store_all(regions)?;
            if is_measured("map") {
                region::end(0);
            }
            ensure_eq!(faults, regions, "faults in round {round}");
            let is_unmap = is_measured("unmap") || is_measured("chunks");
            if is_unmap {
                region::begin(0);
            }
            self.unmap(regions, if kind == "chunks" { CHUNK } else { 1 });
            if is_unmap {
                region::end(0);
            }
        }
        Ok(())
    }

    /// Lets L2 store to each page of a range that the G-stage table maps.
    fn store_to(&mut self, from: u64, pages: u64) -> Check {
        self.user.pc = CODE;
        (self.user.x[11], self.user.x[12], self.user.x[13]) = (from, 4096, pages);
        let trap = self.enter();
        ensure_eq!(trap.0, ECALL, "the cause of L2's exit, at {:#x}", trap.1);
        Ok(())
    }

    /// Takes pages of L1's, of each of which so many of L2's pages are a mapping: by one list for the balloon, or by a report of each page.
    /// L2 has mapped and stored to `mib` MiB besides.
    fn takes(&mut self, count: u64, mib: u64, (aliases, is_alone): (u64, bool)) -> Check {
        /// Pages of 2 MiB.
        const PAGES: u64 = 512;
        const NOT_WANTED: u64 = 1;
        ensure!(count <= PAGES / 2 && mib <= MOST_MIB, "{count} pages, {mib} MiB");
        self.code.fill(stores());
        // Adjacent, so that no piece of 2 MiB is left out between them. Each maps 2 MiB of L2's.
        let mut tables = ram::pages((mib / 2 + aliases) as usize + 2).iter();
        let mut map = |at: u64, middle: &Page, to: u64| {
            let table = tables.next().expect("a table for each");
            middle.0[(at >> 21 & 511) as usize].store(pointer(table.address()), Relaxed);
            (0..PAGES).for_each(|n| table.0[n as usize].store(leaf(to + 4096 * n, ALL), Relaxed));
        };
        let middles = [MEMORY, ALIASES].map(|at| {
            let middle = page();
            self.stage.link(at, middle);
            middle
        });
        let (mut balloon, list) = (Driver::start()?, page());
        let block = ram::pages(PAGES as usize);
        // From the end of free RAM, where nothing else is.
        let memory = (board().largest_free().1 & !(MEGA - 1)) - (mib << 20);
        ensure!(block[0].address() + MEGA <= memory, "too little RAM");
        (0..mib / 2).for_each(|n| map(MEMORY + n * MEGA, middles[0], memory + n * MEGA));
        (0..aliases).for_each(|n| map(ALIASES + n * MEGA, middles[1], block[0].address()));
        fence::gvma_all();
        self.store_to(MEMORY, mib << 8)?;
        for n in 0..aliases {
            self.store_to(ALIASES + n * MEGA, PAGES)?;
        }
        balloon.rings.iter().for_each(|rings| poke(rings.driver, NOT_WANTED));
        // No two of them are adjacent, so no two go as one run of frames.
        let taken = || block.iter().step_by(2).take(count as usize);
        // The 2 MiB around the pages are split before.
        let report = |balloon: &mut Driver, page: &Page| {
            describe(balloon.rings[REPORT as usize].table, 0, (page.address(), 4096), WRITE, 0);
            balloon.publish(REPORT, 0);
        };
        block.iter().skip(1).step_by(2).take(16).for_each(|page| report(&mut balloon, page));
        for (n, page) in taken().enumerate() {
            page.0[1].store(1, Relaxed);
            let (word, number) = (&list.0[n / 2], page.address() >> 12);
            word.fetch_or(number << (32 * (n % 2)), Relaxed);
        }
        region::begin(0);
        if is_alone {
            taken().for_each(|page| report(&mut balloon, page));
        } else {
            describe(balloon.rings[INFLATE as usize].table, 0, (list.address(), 4 * count), 0, 0);
            balloon.publish(INFLATE, 0);
        }
        region::end(0);
        for queue in [INFLATE, REPORT] {
            let (rings, made) = (balloon.rings[queue as usize], balloon.made[queue as usize]);
            ensure_eq!(get16(rings.device + 2), made, "chains of queue {queue} that are back");
        }
        ensure!(taken().all(|page| page.0[1].load(Relaxed) == 0), "a page that is not taken");
        // L2 finds L1's new pages.
        for n in 0..aliases {
            block.iter().for_each(|page| page.0[0].store(1, Relaxed));
            self.store_to(ALIASES + n * MEGA, PAGES)?;
            ensure!(block.iter().all(|page| page.0[0].load(Relaxed) == 0), "L2's page is not L1's");
        }
        Ok(())
    }
}
