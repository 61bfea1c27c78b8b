//! Counters. Each vCPU has its own set, written only by the hart that runs it; readers add up.
//!
//! Names are the same in `--stats`, on the console key and in the docs (`docs/counters.md`).

use core::sync::atomic::{AtomicU64, Ordering};

/// A count that one hart at a time writes and any may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one. Not a read-modify-write: there is one writer, and exits are hot.
    #[inline]
    pub fn bump(&self) {
        self.add(1);
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// Returns the count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($(#[$doc:meta])* $set:ident { $($(#[$field_doc:meta])* $field:ident = $name:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $set { $($(#[$field_doc])* pub $field: Counter),* }

        impl $set {
            /// Returns every counter with its name, in the order of the documentation.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field.get())),*].into_iter()
            }
        }
    };
}

counters! {
    /// The counters of one vCPU.
    VcpuCounters {
        /// Traps out of the guest into Gnomon.
        exits = "exits.total",
        /// Exits by Gnomon's timer: slices, and deadlines of vCPUs without Sstc.
        exits_timer = "exits.timer",
        /// Exits by an IPI of another hart.
        exits_kick = "exits.kick",
        /// Exits by a device of the host.
        exits_external = "exits.external",
        /// SBI calls.
        exits_ecall = "exits.ecall",
        /// Instruction guest-page faults.
        exits_fetch = "exits.fetch_guest_page",
        /// Load guest-page faults.
        exits_load = "exits.load_guest_page",
        /// Store guest-page faults.
        exits_store = "exits.store_guest_page",
        /// Virtual-instruction exceptions: WFI, and what only a hypervisor may do.
        exits_virtual = "exits.virtual_instruction",
        /// Illegal instructions that came to Gnomon. Of guests in S mode all do, WFI among them where it traps.
        exits_illegal = "exits.illegal_instruction",
        /// Page faults of guests on shadow tables.
        exits_page_fault = "exits.page_fault",
        /// Access faults by which steered guests reach what is not theirs alone to decide.
        exits_steered = "exits.steered",
        /// All others.
        exits_other = "exits.other",
        /// SBI base calls.
        sbi_base = "sbi.base",
        /// SBI timer calls.
        sbi_time = "sbi.time",
        /// SBI IPI calls.
        sbi_ipi = "sbi.ipi",
        /// SBI remote fence calls.
        sbi_rfence = "sbi.rfence",
        /// SBI hart state calls.
        sbi_hsm = "sbi.hsm",
        /// SBI system reset calls.
        sbi_srst = "sbi.srst",
        /// SBI debug console calls.
        sbi_dbcn = "sbi.dbcn",
        /// SBI firmware feature calls.
        sbi_fwft = "sbi.fwft",
        /// SBI software event calls.
        sbi_sse = "sbi.sse",
        /// SBI root cache calls.
        sbi_root_cache = "sbi.root_cache",
        /// SBI calls of hypervisors, for nested acceleration.
        sbi_nacl = "sbi.nacl",
        /// SBI calls about counters.
        sbi_pmu = "sbi.pmu",
        /// SBI legacy calls.
        sbi_legacy = "sbi.legacy",
        /// SBI calls of extensions or functions that do not exist.
        sbi_unknown = "sbi.unknown",
        /// Guest-page faults resolved by the address space.
        faults_memory = "faults.memory",
        /// Guest-page faults that a device answered.
        faults_mmio = "faults.mmio",
        /// Guest-page faults that the guest got back as access faults.
        faults_denied = "faults.denied",
        /// Accesses to the UART.
        mmio_uart = "mmio.uart",
        /// Accesses to the PLIC.
        mmio_plic = "mmio.plic",
        /// Accesses to other devices.
        mmio_other = "mmio.other",
        /// Instructions read from guest memory because the trap did not give them.
        mmio_decoded = "mmio.decoded",
        /// Exceptions delivered to the guest.
        inject_exception = "inject.exception",
        /// Software interrupts raised.
        inject_software = "inject.software",
        /// Timer interrupts raised (none with Sstc).
        inject_timer = "inject.timer",
        /// Changes of the external interrupt line.
        inject_external = "inject.external",
        /// Software events that came to a handler.
        inject_event = "inject.event",
        /// Fences by address and ASID that the lane did, without a full exit.
        lane_page = "lane.page",
        /// Fences by address alone that the lane did.
        lane_page_global = "lane.page_global",
        /// Writes of `satp` that the lane carried out.
        lane_satp = "lane.satp",
        /// Fences of all addresses and all ASIDs that the lane did.
        lane_all = "lane.all",
        /// Reads of `satp` that the lane did.
        lane_satp_read = "lane.satp_read",
        /// Exits by fences by address and ASID, on shadow tables.
        fences_page = "fences.page",
        /// Exits by fences by address alone.
        fences_page_global = "fences.page_global",
        /// Exits by fences of one ASID.
        fences_asid = "fences.asid",
        /// Exits by fences of everything.
        fences_all = "fences.all",
        /// Exits by accesses to `satp`.
        satp_accesses = "satp.accesses",
        /// Changes from shadow tables to the G-stage, in mode `adaptive`.
        adapt_two_stage = "adapt.to_two_stage",
        /// Changes from the G-stage to shadow tables.
        adapt_steered = "adapt.to_steered",
        /// Looks that found it behind the G-stage.
        adapt_looks_two_stage = "adapt.looks_two_stage",
        /// Looks that found it steered.
        adapt_looks_steered = "adapt.looks_steered",
        /// Fences done on behalf of other vCPUs' SBI calls.
        fences_remote = "fences.remote",
        /// Times the vCPU was put on a hart.
        switches = "vcpu.switches",
        /// Times the vCPU was put on another hart than the last one.
        migrations = "vcpu.migrations",
        /// WFIs that came to Gnomon.
        wfis = "vcpu.wfis",
        /// Reads of `time` that Gnomon emulated.
        time_reads = "vcpu.time_reads",
        /// Reads of counters of SBI PMU that Gnomon emulated.
        pmu_reads = "vcpu.pmu_reads",
        /// Misaligned accesses that Gnomon emulated.
        misaligned = "vcpu.misaligned",
        /// WRS.NTOs that came to Gnomon.
        wrs_ntos = "vcpu.wrs_ntos",
        /// WFIs that gave the hart away.
        waits = "vcpu.waits",
        /// Times that it gave the hart away because it waited for another hart's store.
        yields = "vcpu.yields",
        /// Times that it lost the hart because its slice ended.
        preemptions = "vcpu.preemptions",
        /// Ticks in the guest, while times were noted.
        time_guest = "time.guest",
        /// Ticks in which Gnomon handled its exits, while times were noted.
        time_gnomon = "time.gnomon",
    }
}

counters! {
    /// The counters of one vCPU of a VM with `nested`, which is a hypervisor (L1), and of its guests (L2).
    NestedCounters {
        /// Entries to L2.
        entries = "nested.entries",
        /// Traps out of L2 into Gnomon.
        exits = "nested.exits",
        /// Such exits by Gnomon's timer, which may stand in for a comparator of L1's or L2's.
        exits_timer = "nested.exits_timer",
        /// Such exits by an IPI of another hart.
        exits_kick = "nested.exits_kick",
        /// Such exits by a device of the host.
        exits_external = "nested.exits_external",
        /// Guest-page faults of L2.
        exits_guest_page = "nested.exits_guest_page",
        /// Page faults of L2 on collapsed tables.
        exits_page_fault = "nested.exits_page_fault",
        /// SBI calls of L2, which are L1's to answer.
        exits_ecall = "nested.exits_ecall",
        /// Virtual-instruction exceptions of L2: WFI, and what only a hypervisor may do.
        exits_virtual = "nested.exits_virtual_instruction",
        /// All others.
        exits_other = "nested.exits_other",
        /// Traps of L2, and interrupts, that L1 got.
        reflected = "nested.reflected",
        /// Guest-page faults of L2 that Gnomon answered by L1's tables.
        faults = "nested.faults",
        /// Of these, those that L1 had been told of: it has answered them.
        second_faults = "nested.second_faults",
        /// Such faults that were answered before they were made, since L1 had been told of the same.
        filled = "nested.filled",
        /// Traps of L1's for its hypervisor extension: CSRs, fences, `sret`, loads and stores, NACL calls.
        traps = "nested.traps",
        /// Instructions of L1's that runs executed in software, those that would have trapped apart.
        run_instructions = "nested.run_instructions",
        /// Traps that runs avoided: instructions for the extension that they reached.
        run_hits = "nested.run_hits",
        /// L1's accesses to its hypervisor CSRs.
        csrs = "nested.csr_accesses",
        /// L1's `sret` instructions that trapped, since they enter L2.
        srets = "nested.srets",
        /// L1's fences for L2.
        fences = "nested.fences",
        /// L1's loads and stores in L2's memory.
        accesses = "nested.memory_accesses",
        /// Fences of L2 that trapped, on collapsed tables.
        own_fences = "nested.own_fences",
        /// Accesses of L2 to `satp` that trapped, on collapsed tables.
        satp_accesses = "nested.satp_accesses",
        /// Uses of shared pages by mappings.
        mappings_used = "mappings.used",
        /// Mappings that were made.
        mappings_made = "mappings.made",
    }
}

counters! {
    /// The counters of one hart of the host, whichever guest it ran.
    HartCounters {
        /// IPIs sent to other harts.
        ipis = "ipis.sent",
        /// TLB shootdowns of G-stage changes that had to reach another hart.
        shootdowns = "fences.shootdowns",
        /// G-stage fences on this hart.
        fences = "fences.g_stage",
        /// Times the hart ran out of vCPUs and waited.
        idles = "harts.idles",
    }
}

/// The statistics of Gnomon's heap.
#[derive(Clone, Copy, Default, Debug)]
pub struct HeapUse {
    /// Bytes in use.
    pub used: u64,
    /// The number of times that a hart has waited for the heap's lock.
    pub waits: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_counts_show() {
        let counters = VcpuCounters::default();
        counters.exits.bump();
        counters.exits.add(2);
        let names: alloc::collections::BTreeMap<_, _> = counters.each().collect();
        assert_eq!(names.len(), counters.each().count());
        assert_eq!(names["exits.total"], 3);
    }
}
