//! All counters, gathered for programs and for people.

use crate::gnomon::Gnomon;
use crate::vm::Vm;
use abi::record::{Record, Stats, VmStats};
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use core::sync::atomic::Ordering::Relaxed;
use mmu::frames::Owner;

impl Gnomon {
    /// Prints all counters, for programs and for people.
    pub fn print_stats(&self) {
        let stats = self.stats();
        let console = &self.console;
        for vm in &stats.vms {
            console.say(&alloc::format!("counters of {}:", vm.vm));
            for (name, count) in vm.counters.iter().filter(|(_, count)| **count != 0) {
                console.say(&alloc::format!("  {name:24} {count}"));
            }
        }
        console.say("counters of the host:");
        for (name, count) in &stats.host {
            console.say(&alloc::format!("  {name:24} {count}"));
        }
        console.record(&Record::Stats(stats));
    }

    /// All counters as they stand.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let vms = self.vms.iter().map(|vm| self.vm_stats(vm)).collect();
        let mut host = BTreeMap::new();
        for (name, count) in self.harts.iter().flat_map(|hart| hart.counters.each()) {
            *host.entry(name.to_string()).or_default() += count;
        }
        let frames = self.frames();
        host.insert("frames.total".into(), frames.total_count());
        host.insert("frames.free".into(), frames.free_count());
        host.insert("heap.waits".into(), self.heap_waits.load(Relaxed));
        Stats { vms, host }
    }

    fn vm_stats(&self, vm: &Vm) -> VmStats {
        let mut counters: BTreeMap<String, u64> = BTreeMap::new();
        for (name, count) in vm.vcpus.iter().flat_map(|vcpu| vcpu.counters.each()) {
            *counters.entry(name.to_string()).or_default() += count;
        }
        let mut space = vm.past.lock().space;
        if let Some(memory) = vm.memory.lock().as_ref() {
            space += *memory.space.counters();
        }
        add_g_stage(&mut counters, &space);
        if let Some(shadow) = vm.translation.counters(vm) {
            counters.extend(shadow.each().map(|(name, count)| (name.to_string(), count)));
        }
        let usage = self.frames().usage(Owner::Vm(vm.index as u16));
        counters.insert("frames.guest".into(), usage.guest);
        counters.insert("frames.table".into(), usage.table);
        VmStats { vm: vm.config.name.clone(), counters }
    }
}

/// Adds an address space's counters by name.
fn add_g_stage(to: &mut BTreeMap<String, u64>, c: &mmu::gstage::Counters) {
    for (name, count) in [
        ("gstage.anonymous_4k", c.anonymous_4k),
        ("gstage.anonymous_2m", c.anonymous_2m),
        ("gstage.mega_denied", c.mega_denied),
        ("gstage.image_4k", c.image_4k),
        ("gstage.image_2m", c.image_2m),
        ("gstage.copies", c.copies),
        ("gstage.copies_2m", c.copies_2m),
        ("gstage.splits", c.splits),
        ("gstage.spurious", c.spurious),
        ("gstage.denied", c.denied),
        ("gstage.tables", c.tables),
    ] {
        *to.entry(name.to_string()).or_default() += count;
    }
}
