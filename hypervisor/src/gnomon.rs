//! What all harts share.

use crate::console::Console;
use crate::env::Env;
use crate::harts::HartShared;
use crate::isa::Isa;
use crate::sched::Sched;
use crate::vcpu::{NOWHERE, Vcpu, VcpuRun};
use crate::vm::{Past, Vm};
use abi::bundle::{MmuMode, VmConfig};
use abi::record::{Record, Stats, VmStats};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use mmu::frames::{Frames, Owner};
use rv::{Format, Hpa, Pfn};
use spin::Mutex;

/// What a guest's timer rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestTimer {
    /// Sstc: the guest has a comparator of its own.
    Sstc,
    /// SBI calls, and Gnomon's timer.
    Sbi,
}

/// Where a guest's kernel runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestMode {
    /// VS mode, on harts with the H extension.
    Virtual,
    /// S mode itself, on harts without: in the firmware seat, with `mstatus.TVM` set.
    Supervisor,
}

/// What the machine offers to guests; the same on every hart.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Where guests' kernels run.
    pub guest: GuestMode,
    /// The G-stage format in use. Without the H extension no hart walks it: such tables are what
    /// shadow tables are made from.
    pub g_format: &'static Format,
    /// The formats that a guest's root register takes (`vsatp`; in S mode `satp`), the smallest first.
    pub formats: Vec<&'static Format>,
    /// Extensions that guests are told of, their own MMU's apart ([`crate::isa::Isa::with_mmu`]).
    pub isa: Isa,
    /// Whether hardware can set A and D for guests behind a G-stage.
    pub nested_svadu: bool,
    /// `mmu-type` of guests' cpu nodes.
    pub mmu_type: String,
    /// Guests' timers.
    pub timer: GuestTimer,
    /// Bytes in a vector register, 0 without V.
    pub vlenb: usize,
    /// Ticks of `time` in a second.
    pub timebase: u64,
}

/// All harts' common state. `docs/invariants.md` has the order of the locks.
pub struct Gnomon {
    /// What guests get.
    pub offer: Offer,
    /// The VMs, in console order.
    pub vms: Vec<Arc<Vm>>,
    /// vCPUs that are on no hart.
    pub sched: Mutex<Sched>,
    /// The harts in use.
    pub harts: Vec<HartShared>,
    /// The console.
    pub console: Console,
    /// Whether there are more started vCPUs than harts.
    pub overcommitted: AtomicBool,
    /// VMs that have ended.
    pub ended: AtomicUsize,
    /// The frame that holds the start of the bundle.
    pub bundle: Pfn<Hpa>,
    /// Length of the bundle in bytes.
    pub bundle_bytes: u64,
}

impl Gnomon {
    /// How a VM's memory is virtualized: as it asks for, or else as suits the harts best.
    #[must_use]
    pub fn mode(&self, config: &VmConfig) -> MmuMode {
        config.mmu.unwrap_or(match self.offer.guest {
            GuestMode::Virtual => MmuMode::Nested,
            GuestMode::Supervisor => MmuMode::Lazy,
        })
    }

    /// Host RAM, for questions; to take from it, ask a hart's [`HartShared::frames`].
    #[must_use]
    pub fn frames(&self) -> &Frames {
        &self.harts[0].frames
    }

    /// Posts requests to a vCPU and sees to it that it looks at them soon: a running one leaves its
    /// guest, a waiting one becomes ready.
    pub fn post<E: Env>(&self, vcpu: &Vcpu, requests: u32, env: &mut E) {
        vcpu.posted.fetch_or(requests, Ordering::SeqCst);
        if vcpu.waiting.load(Ordering::SeqCst) {
            let woken = {
                let mut sched = self.sched.lock();
                let woken = sched.wake(vcpu.vm, vcpu.id);
                if woken.is_some() {
                    vcpu.waiting.store(false, Ordering::SeqCst);
                }
                woken
            };
            if let Some(last_hart) = woken {
                self.rouse(last_hart, env);
                return;
            }
        }
        let hart = vcpu.hart.load(Ordering::SeqCst);
        if hart != NOWHERE && hart != env.hart() {
            self.kick(hart, env);
        }
    }

    /// Makes `hart` leave its guest or its wait.
    pub fn kick<E: Env>(&self, hart: usize, env: &mut E) {
        env.send_ipi(hart);
        self.harts[env.hart()].counters.ipis.bump();
    }

    /// Wakes an idle hart, `preferred` if it is one, because a vCPU is ready.
    pub fn rouse<E: Env>(&self, preferred: usize, env: &mut E) {
        let me = env.hart();
        // Whoever finds a hart idle claims it, so that two vCPUs made ready rouse two harts.
        let claim = |hart: &usize| *hart != me && self.harts[*hart].idle.swap(false, Ordering::SeqCst);
        let all = 0..self.harts.len();
        let found = Some(preferred).filter(|h| all.contains(h) && claim(h)).or_else(|| all.clone().find(claim));
        if let Some(hart) = found {
            self.kick(hart, env);
        }
    }

    /// Starts a vCPU: it becomes ready, and some hart will run it.
    pub fn start<E: Env>(&self, run: Box<VcpuRun>, env: &mut E) {
        let last_hart = run.last_hart;
        let became_overcommitted = {
            let mut sched = self.sched.lock();
            sched.start(run);
            !self.recount(&sched) && self.overcommitted.load(Ordering::SeqCst)
        };
        if became_overcommitted {
            // Until now every vCPU had a hart to itself and no slice ever ended: all harts look again.
            let me = env.hart();
            (0..self.harts.len()).filter(|hart| *hart != me).for_each(|hart| self.kick(hart, env));
        } else {
            self.rouse(last_hart, env);
        }
    }

    /// Says that a vCPU that was on a hart is no longer started.
    pub fn stopped(&self) {
        let mut sched = self.sched.lock();
        sched.stopped();
        self.recount(&sched);
    }

    /// Takes a VM's vCPUs out of the queues; they are no longer started.
    pub fn take_queued(&self, vm: usize) -> Vec<Box<VcpuRun>> {
        let mut sched = self.sched.lock();
        let queued = sched.remove_vm(vm);
        self.recount(&sched);
        queued
    }

    /// Updates `overcommitted`, under the lock of what it depends on; returns what it was.
    fn recount(&self, sched: &Sched) -> bool {
        self.overcommitted.swap(sched.started_count() > self.harts.len(), Ordering::SeqCst)
    }

    /// Whether all VMs have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst) == self.vms.len()
    }

    /// Prints a record.
    pub fn record(&self, record: &Record) {
        self.console.record(record);
    }

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
        host.insert("frames.waits".into(), frames.waits());
        Stats { vms, host }
    }

    fn vm_stats(&self, vm: &Vm) -> VmStats {
        let mut counters: BTreeMap<String, u64> = BTreeMap::new();
        for (name, count) in vm.vcpus.iter().flat_map(|vcpu| vcpu.counters.each()) {
            *counters.entry(name.to_string()).or_default() += count;
        }
        let Past { mut space, mut shadow, .. } = *vm.past.lock();
        if let Some(memory) = vm.memory.lock().as_ref() {
            space += *memory.space.counters();
            shadow += memory.shadow.as_ref().map_or_else(Default::default, |shadow| *shadow.counters());
        }
        add_g_stage(&mut counters, &space);
        if self.mode(&vm.config) != MmuMode::Nested {
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
