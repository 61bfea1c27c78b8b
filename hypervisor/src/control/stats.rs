//! All counters, gathered for programs and for people.

use crate::gnomon::Gnomon;
use crate::measure::counters::{NestedCounters, VcpuCounters};
use crate::vm::Vm;
use crate::vm::vms::Report;
use abi::record::{Record, Stats, VmStats};
use abi::tunable::Id;
use abi::vmspace::Way;
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::vec::Vec;
use mmu::frames::Owner;
use mmu::shadow::Counters;

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

    /// Prints all tunables, for people.
    pub fn print_tunables(&self) {
        for (name, value) in self.tunables.each() {
            self.console.say(&alloc::format!("  {name} = {value}"));
        }
    }

    /// Sets a tunable (`name=value`), and says so, or why not.
    pub fn change(&self, setting: &str) {
        match self.tunables.set(setting) {
            Ok(()) => self.console.say(&alloc::format!("set: {setting}")),
            Err(why) => self.console.say(&alloc::format!("{why}")),
        }
    }

    /// Returns all counters as they stand.
    #[must_use]
    pub fn stats(&self) -> Stats {
        // What is gathered below is in the heap as well.
        let host = self.host_counters();
        // None goes meanwhile: each is told of once.
        let gone = self.vms.reports();
        let mut all: Vec<Report> = gone.iter().cloned().chain(self.vms.all().map(|vm| self.report(&vm))).collect();
        let gone_count = gone.len() as u64;
        drop(gone);
        all.sort_by_key(|report| report.number);
        let named = |(name, count): (&str, u64)| (name.to_string(), count);
        let told = |report: Report| VmStats { counters: report.counters().map(named).collect(), vm: report.name };
        let vms = all.into_iter().map(told).collect();
        let mut host: BTreeMap<_, _> = host.into_iter().map(named).collect();
        host.insert("vms.gone".into(), gone_count);
        Stats { vms, host }
    }

    /// Returns the counters of Gnomon itself.
    #[must_use]
    pub fn host_counters(&self) -> BTreeMap<&'static str, u64> {
        let heap = (self.heap)();
        let mut host = BTreeMap::new();
        for (name, count) in self.harts.iter().flat_map(|hart| hart.counters.each()) {
            *host.entry(name).or_default() += count;
        }
        let frames = self.frames();
        host.insert("frames.total", frames.total_count());
        host.insert("frames.free", frames.free_count());
        host.extend(frames.each_zeroed());
        host.insert("frames.images", frames.usage(Owner::Host).image);
        host.extend(self.pager.each());
        let network = self.offer.network.counts();
        host.insert("net.world_received", network.received);
        host.insert("net.world_sent", network.sent);
        host.insert("net.world_forged", network.forged);
        host.insert("heap.waits", heap.waits);
        host.insert("heap.used", heap.used);
        host.insert("heap.at_start", self.heap_at_start);
        host.insert("vms.most", self.vms.most() as u64);
        host.insert("vms.gone", self.vms.reports().len() as u64);
        host
    }

    /// Returns a VM's report.
    #[must_use]
    pub fn report(&self, vm: &Vm) -> Report {
        // By their places first: there may be many vCPUs.
        let mut sums: Vec<(&str, u64)> = VcpuCounters::default().each().collect();
        for vcpu in &vm.vcpus {
            sums.iter_mut().zip(vcpu.counters.each()).for_each(|((_, sum), (_, count))| *sum += count);
        }
        let mut counters: BTreeMap<&str, u64> = sums.into_iter().collect();
        for (name, count) in vm.vcpus.iter().filter_map(|vcpu| vcpu.nested.as_deref()).flat_map(NestedCounters::each) {
            *counters.entry(name).or_default() += count;
        }
        let mut space = vm.past.lock().space;
        if let Some(memory) = vm.memory.lock().as_ref() {
            space += memory.space.counters();
            memory
                .space
                .mappers()
                .for_each(|mapper| mapper.counters(&mut |name, count| _ = counters.insert(name, count)));
        }
        counters.extend(g_stage(&space));
        counters.extend(address_spaces(vm, self.tunables.is_on(Id::Vmspace)));
        counters.extend(vm.translation.counters(vm).iter().flat_map(Counters::each));
        {
            let devices = vm.devices.all();
            let mut add = |name, count| *counters.entry(name).or_default() += count;
            devices.iter().for_each(|device| device.counters(&mut add));
        }
        let usage = self.frames().usage(vm.owner());
        counters.extend([("frames.guest", usage.guest), ("frames.table", usage.table)]);
        if vm.vcpus.len() > 1 {
            counters.insert("memory.waits", vm.memory.waits());
        }
        Report::new(vm.handle.number, vm.config.name.clone(), counters)
    }
}

/// Returns the counts of a VM's address spaces and calls by name; the calls are `on` or not.
fn address_spaces(vm: &Vm, on: bool) -> Vec<(&'static str, u64)> {
    let has = |way| u64::from(on && vm.translation.has_way(way, vm.config.nested)) << way as u8;
    let available = Way::ALL.into_iter().map(has).sum();
    let spaces = vm.tlb.spaces.lock();
    let now = [("vmspace.alive", spaces.alive() as u64), ("vmspace.available", available)];
    spaces.counts.each().chain(now).chain([("vmspace.way", vm.config.vmspace as u64)]).collect()
}

/// Returns an address space's counters by name.
fn g_stage(c: &mmu::gstage::Counters) -> [(&'static str, u64); 21] {
    [
        ("gstage.anonymous_4k", c.anonymous_4k),
        ("gstage.anonymous_2m", c.anonymous_2m),
        ("gstage.mega_denied", c.mega_denied),
        ("gstage.image_4k", c.image_4k),
        ("gstage.image_2m", c.image_2m),
        ("gstage.copies", c.copies),
        ("gstage.copies_2m", c.copies_2m),
        ("gstage.promoted", c.promoted),
        ("gstage.splits", c.splits),
        ("gstage.joined_1g", c.joined_1g),
        ("gstage.splits_1g", c.splits_1g),
        ("gstage.spurious", c.spurious),
        ("gstage.denied", c.denied),
        ("gstage.tables", c.tables),
        ("gstage.rested", c.rested),
        ("gstage.revived", c.revived),
        ("gstage.swapped_out", c.swapped_out),
        ("gstage.swapped_in", c.swapped_in),
        ("gstage.zero_pages", c.zero_pages),
        ("gstage.clean", c.clean),
        ("gstage.dirtied", c.dirtied),
    ]
}
