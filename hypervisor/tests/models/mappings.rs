//! A page that a vCPU's kernel shares is used by a mapping, while another hart moves the page ([`hypervisor::vm::mappings`]).

use crate::{explore, finds, holds};
use hypervisor::vm::mappings::{Mappings, Notifier};
use mmu::Mapper;
use rv::{Addr, FenceScope, PAGE_BYTES, Pfn};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::thread;
use std::sync::Arc;

const PAGE: Pfn<rv::Gpa> = Pfn::new(0x8_0000);

/// A mistake of the hart that moves the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    /// The frame is freed before the mappings have ended.
    FreesFirst,
    /// Mappings end before the table has changed, without the lock.
    EndsFirst,
}

/// The VM's memory: the frame that the table has for the page, and whether each frame is the VM's.
struct World {
    table: Mutex<u64>,
    is_owned: [AtomicBool; 2],
    mappings: Arc<Mappings>,
}

impl World {
    fn use_frame(&self, at: Addr<rv::Hpa>) {
        let is_owned = &self.is_owned[(at.raw() / PAGE_BYTES) as usize];
        for _ in 0..2 {
            assert!(is_owned.load(SeqCst), "it uses a frame that is not the VM's");
        }
    }

    /// A vCPU uses the page, by its mapping if it has one.
    fn share(&self) {
        if self.mappings.with(0, PAGE, |at| self.use_frame(at)).is_err() {
            let table = self.table.lock().unwrap();
            let at = Addr::new(*table * PAGE_BYTES);
            self.mappings.keep(0, PAGE, at);
            self.use_frame(at);
        }
    }

    /// The page goes to the other frame.
    fn move_page(&self, notifier: &mut Notifier, mutant: Option<Mutant>) {
        let scope = FenceScope::Range { start: PAGE.base(), bytes: PAGE_BYTES };
        let mut mem = oracle::Machine::new();
        if mutant == Some(Mutant::EndsFirst) {
            notifier.changed(scope, &mut mem);
        }
        let mut table = self.table.lock().unwrap();
        let (old, new) = (*table as usize, 1 - *table as usize);
        self.is_owned[new].store(true, SeqCst);
        *table = new as u64;
        if mutant == Some(Mutant::FreesFirst) {
            self.is_owned[old].store(false, SeqCst);
        }
        if mutant != Some(Mutant::EndsFirst) {
            notifier.changed(scope, &mut mem);
        }
        self.is_owned[old].store(false, SeqCst);
    }
}

fn run(mutant: Option<Mutant>) {
    let mappings = Arc::new(Mappings::new(1));
    let is_owned = [true, false].map(AtomicBool::new);
    let world = Arc::new(World { table: Mutex::new(0), is_owned, mappings: Arc::clone(&mappings) });
    let vcpu = {
        let world = Arc::clone(&world);
        thread::spawn(move || (0..4).for_each(|_| world.share()))
    };
    let mut notifier = Notifier::new(mappings);
    (0..3).for_each(|_| world.move_page(&mut notifier, mutant));
    vcpu.join().unwrap();
}

#[test]
fn a_mapping_ends_before_its_frame_is_free() {
    holds(&|scheduler| explore(scheduler, || run(None)));
}

#[test]
fn a_frame_that_is_freed_too_early_is_found() {
    for mutant in [Mutant::FreesFirst, Mutant::EndsFirst] {
        finds(&format!("{mutant:?}"), &|scheduler| explore(scheduler, move || run(Some(mutant))));
    }
}
