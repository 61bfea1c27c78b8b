//! The machine under Gnomon, read from the boot loader's device tree.

use crate::machine::isa::Isa;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::standard::{NodeStandard, Status};
use dtoolkit::{Node, Property};

/// A range of host physical addresses, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// Length.
    pub bytes: u64,
}

impl Span {
    /// Returns the first address past the range.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// Returns whether the span contains `at`.
    #[must_use]
    pub const fn contains(&self, at: u64) -> bool {
        at.wrapping_sub(self.start) < self.bytes
    }
}

/// A hart that Gnomon may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostHart {
    /// `mhartid`.
    pub id: u64,
    /// The hart's instruction set.
    pub isa: Isa,
    /// The PLIC context that interrupts it in M mode.
    pub plic_machine: Option<u32>,
    /// The PLIC context that interrupts it in S mode.
    pub plic_supervisor: Option<u32>,
    /// Address of its `msip` register, in a CLINT or an ACLINT MSWI.
    pub msip: Option<u64>,
    /// Address of its `mtimecmp` register, in a CLINT or an ACLINT MTIMER.
    pub mtimecmp: Option<u64>,
}

/// A 16550-compatible UART.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uart {
    /// Its registers.
    pub span: Span,
    /// log2 of the distance between registers, in bytes.
    pub shift: u32,
    /// Its PLIC source.
    pub source: u32,
}

/// A place where a virtio device may be (virtio-mmio).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VirtioSlot {
    /// Its registers.
    pub span: Span,
    /// Its PLIC source.
    pub source: u32,
}

/// The description of the machine that the device tree gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Usable harts.
    pub harts: Vec<HostHart>,
    /// RAM.
    pub ram: Vec<Span>,
    /// RAM that is not Gnomon's: the firmware's, or reserved in the tree.
    pub reserved: Vec<Span>,
    /// The bundle, where the boot loader says it put an initrd.
    pub initrd: Option<Span>,
    /// Ticks of `time` in a second.
    pub timebase: u64,
    /// The console.
    pub uart: Option<Uart>,
    /// The PLIC's registers.
    pub plic: Option<Span>,
    /// A Goldfish RTC's registers.
    pub rtc: Option<Span>,
    /// Slots for virtio devices.
    pub virtio: Vec<VirtioSlot>,
    /// A SiFive test finisher, which powers the machine off.
    pub finisher: Option<Span>,
    /// The `mtime` registers of its CLINTs and ACLINT MTIMERs: what `time` shows.
    pub mtimes: Vec<u64>,
    /// `cpu` nodes' `mmu-type`, such as `riscv,sv57`.
    pub mmu_type: String,
}

/// The reason why a device tree cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeError(pub String);

impl core::fmt::Display for TreeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the machine's device tree: {}", self.0)
    }
}

fn bad(what: impl ToString) -> TreeError {
    TreeError(what.to_string())
}

fn cell(node: &FdtNode<'_>, name: &str) -> Option<u32> {
    node.property(name)?.value_as::<u32>().ok()
}

/// Returns a property of one or two cells, as `linux,initrd-start` may have.
fn number(node: &FdtNode<'_>, name: &str) -> Option<u64> {
    let property = node.property(name)?;
    property.value_as::<u64>().or_else(|_| property.value_as::<u32>().map(u64::from)).ok()
}

fn cells(node: &FdtNode<'_>, name: &str) -> Vec<u32> {
    let Some(property) = node.property(name) else { return Vec::new() };
    let bytes: &[u8] = property.value();
    bytes.chunks_exact(4).map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]])).collect()
}

fn span(what: impl core::fmt::Display, start: u64, bytes: u64) -> Result<Span, TreeError> {
    // Room to round the end up to a page, too.
    let fits = start.checked_add(bytes).is_some_and(|end| end <= u64::MAX - rv::PAGE_BYTES);
    fits.then_some(Span { start, bytes }).ok_or_else(|| bad(format!("{what}: a range wraps around")))
}

fn spans(node: FdtNode<'_>) -> Result<Vec<Span>, TreeError> {
    let regs = node.reg().map_err(|e| bad(format!("{}: reg: {e}", node.name())))?;
    let mut out = Vec::new();
    for reg in regs.into_iter().flatten() {
        let start = reg.address::<u64>().map_err(|e| bad(format!("{}: address: {e}", node.name())))?;
        let bytes = reg.size::<u64>().map_err(|e| bad(format!("{}: size: {e}", node.name())))?;
        out.push(span(node.name(), start, bytes)?);
    }
    Ok(out)
}

/// Visits every node below `node`, depth first.
fn visit<'a>(
    node: FdtNode<'a>,
    depth: u32,
    with: &mut dyn FnMut(FdtNode<'a>) -> Result<(), TreeError>,
) -> Result<(), TreeError> {
    with(node)?;
    // Real trees are four or five deep; a bound keeps a hostile one off the stack's end.
    if depth < 16 {
        for child in node.children() {
            visit(child, depth + 1, with)?;
        }
    }
    Ok(())
}

fn is(node: &FdtNode<'_>, names: &[&str]) -> bool {
    node.compatible().is_some_and(|mut all| all.any(|c| names.contains(&c)))
}

fn usable(node: &FdtNode<'_>) -> bool {
    matches!(node.status(), Ok(Status::Okay))
}

impl Machine {
    /// Reads a flattened device tree.
    ///
    /// # Errors
    /// A message that names the node, if the tree is malformed or lacks what no machine can do
    /// without: RAM, a hart, the timebase.
    pub fn parse(tree: &[u8]) -> Result<Self, TreeError> {
        let fdt = Fdt::new(tree).map_err(|e| bad(format!("malformed: {e}")))?;
        let root = fdt.root();
        let mut machine = Machine {
            harts: Vec::new(),
            ram: Vec::new(),
            reserved: Vec::new(),
            initrd: None,
            timebase: 0,
            uart: None,
            plic: None,
            rtc: None,
            mtimes: Vec::new(),
            virtio: Vec::new(),
            finisher: None,
            mmu_type: String::new(),
        };
        for reservation in fdt.memory_reservations() {
            machine.reserved.push(span("a memory reservation", reservation.address(), reservation.size())?);
        }
        for node in root.children() {
            let is_memory = node.property("device_type").is_some_and(|p| p.value_as::<&str>() == Ok("memory"));
            if is_memory && usable(&node) {
                machine.ram.extend(spans(node)?.into_iter().filter(|s| s.bytes > 0));
            }
        }
        if let Some(reserved) = root.child("reserved-memory") {
            for node in reserved.children() {
                machine.reserved.extend(spans(node)?);
            }
        }
        if let Some(chosen) = root.child("chosen")
            && let (Some(start), Some(end)) =
                (number(&chosen, "linux,initrd-start"), number(&chosen, "linux,initrd-end"))
        {
            machine.initrd = end.checked_sub(start).filter(|n| *n > 0).map(|bytes| Span { start, bytes });
        }
        let intcs = machine.read_harts(root)?;
        visit(root, 0, &mut |node| machine.read_device(node, &intcs))?;
        if machine.ram.is_empty() {
            return Err(bad("no usable memory node"));
        }
        Ok(machine)
    }

    /// Fills in the harts; returns the phandle of each one's interrupt controller.
    fn read_harts(&mut self, root: FdtNode<'_>) -> Result<Vec<u32>, TreeError> {
        let cpus = root.child("cpus").ok_or_else(|| bad("no /cpus"))?;
        let shared_timebase = cell(&cpus, "timebase-frequency");
        let mut intcs = Vec::new();
        for node in cpus.children() {
            let is_cpu = node.property("device_type").is_some_and(|p| p.value_as::<&str>() == Ok("cpu"));
            if !is_cpu || !usable(&node) {
                continue;
            }
            let id = cell(&node, "reg").or_else(|| cells(&node, "reg").last().copied());
            let id = id.ok_or_else(|| bad(format!("{}: no reg", node.name())))?;
            let mut isa = match node.property("riscv,isa-extensions") {
                Some(list) => {
                    let names = list.value_as::<dtoolkit::FdtStringListIterator<'_>>();
                    Isa::from_names(names.map_err(|e| bad(format!("{}: riscv,isa-extensions: {e}", node.name())))?)
                }
                None => {
                    let text = node.property("riscv,isa");
                    let text = text
                        .ok_or_else(|| bad(format!("{}: neither riscv,isa nor riscv,isa-extensions", node.name())))?;
                    Isa::from_isa_string(
                        text.value_as::<&str>().map_err(|e| bad(format!("{}: riscv,isa: {e}", node.name())))?,
                    )
                }
            };
            isa.cbom_block = cell(&node, "riscv,cbom-block-size").unwrap_or(0);
            isa.cboz_block = cell(&node, "riscv,cboz-block-size").unwrap_or(0);
            isa.cbop_block = cell(&node, "riscv,cbop-block-size").unwrap_or(0);
            if let Some(kind) = node.property("mmu-type").and_then(|p| p.value_as::<&str>().ok()) {
                self.mmu_type = kind.to_string();
            }
            if let Some(hz) = shared_timebase.or_else(|| cell(&node, "timebase-frequency")) {
                self.timebase = u64::from(hz);
            }
            let intc = node.children().find(|c| is(c, &["riscv,cpu-intc"])).and_then(|c| c.phandle().ok().flatten());
            intcs.push(intc.unwrap_or(0));
            self.harts.push(HostHart {
                id: id.into(),
                isa,
                plic_machine: None,
                plic_supervisor: None,
                msip: None,
                mtimecmp: None,
            });
        }
        if self.harts.is_empty() {
            return Err(bad("no usable hart under /cpus"));
        }
        if self.timebase == 0 {
            return Err(bad("/cpus has no timebase-frequency"));
        }
        Ok(intcs)
    }

    fn read_device(&mut self, node: FdtNode<'_>, intcs: &[u32]) -> Result<(), TreeError> {
        if !usable(&node) {
            return Ok(());
        }
        // Pairs of (interrupt controller's phandle, its interrupt) of `interrupts-extended`.
        let extended = || cells(&node, "interrupts-extended").chunks_exact(2).map(|p| (p[0], p[1])).collect::<Vec<_>>();
        if self.uart.is_none() && is(&node, &["ns16550a", "ns16550", "snps,dw-apb-uart"]) {
            if let (Some(span), Some(source)) = (spans(node)?.first(), cells(&node, "interrupts").first()) {
                let shift = cell(&node, "reg-shift").unwrap_or(0);
                self.uart = Some(Uart { span: *span, shift, source: *source });
            }
        } else if self.plic.is_none() && is(&node, &["sifive,plic-1.0.0", "riscv,plic0", "thead,c900-plic"]) {
            self.plic = spans(node)?.first().copied();
            for (context, (intc, irq)) in extended().into_iter().enumerate() {
                let Some(hart) = intcs.iter().position(|p| *p == intc) else { continue };
                match irq {
                    11 => self.harts[hart].plic_machine = Some(context as u32),
                    9 => self.harts[hart].plic_supervisor = Some(context as u32),
                    _ => {}
                }
            }
        } else if is(&node, &["sifive,clint0", "riscv,clint0"]) {
            if let Some(span) = spans(node)?.first() {
                self.number(&extended(), intcs, 3, |hart, index| hart.msip = Some(span.start + 4 * index));
                let compare = span.start + 0x4000;
                self.mtimes.push(span.start + 0xbff8);
                self.number(&extended(), intcs, 7, |hart, index| hart.mtimecmp = Some(compare + 8 * index));
            }
        } else if is(&node, &["riscv,aclint-mtimer"]) {
            // ACLINT 1.0: the first range is mtime's, the second mtimecmp's.
            let spans = spans(node)?;
            if let [time, _, ..] = spans.as_slice() {
                self.mtimes.push(time.start);
            }
            if let Some(span) = spans.last() {
                self.number(&extended(), intcs, 7, |hart, index| hart.mtimecmp = Some(span.start + 8 * index));
            }
        } else if is(&node, &["riscv,aclint-mswi"]) {
            if let Some(span) = spans(node)?.first() {
                self.number(&extended(), intcs, 3, |hart, index| hart.msip = Some(span.start + 4 * index));
            }
        } else if self.rtc.is_none() && is(&node, &["google,goldfish-rtc"]) {
            self.rtc = spans(node)?.first().copied();
        } else if is(&node, &["virtio,mmio"]) {
            if let (Some(span), Some(source)) = (spans(node)?.first(), cells(&node, "interrupts").first()) {
                self.virtio.push(VirtioSlot { span: *span, source: *source });
            }
        } else if self.finisher.is_none() && is(&node, &["sifive,test0", "sifive,test1"]) {
            self.finisher = spans(node)?.first().copied();
        }
        Ok(())
    }

    /// Tells each hart that a device's `interrupts-extended` names with `irq` its number there. A
    /// machine may have several such devices, each with its own harts.
    fn number(&mut self, extended: &[(u32, u32)], intcs: &[u32], irq: u32, tell: impl Fn(&mut HostHart, u64)) {
        let ours = extended.iter().filter(|(_, found)| *found == irq);
        for (index, (intc, _)) in ours.enumerate() {
            if let Some(hart) = intcs.iter().position(|p| p == intc) {
                tell(&mut self.harts[hart], index as u64);
            }
        }
    }

    /// Returns the features that every hart has: guests may run on any of them.
    #[must_use]
    pub fn common_isa(&self) -> Isa {
        let mut all = self.harts.iter().map(|h| &h.isa);
        let mut common = all.next().cloned().unwrap_or_default();
        all.for_each(|isa| common.intersect(isa));
        common
    }

    /// Leaves the parts of RAM out that lie in no whole multiple of `grain` bytes at its two ends: guests could not be given access to
    /// them by PMP of that granularity.
    pub fn round_ram(&mut self, grain: u64) {
        let lowest = self.ram.iter().map(|span| span.start).min().unwrap_or(0);
        let lowest = lowest.checked_next_multiple_of(grain).unwrap_or(u64::MAX);
        let highest = self.ram.iter().map(Span::end).max().unwrap_or(0) / grain * grain;
        for span in &mut self.ram {
            let (start, end) = (span.start.max(lowest), span.end().min(highest));
            *span = Span { start, bytes: end.saturating_sub(start) };
        }
        self.ram.retain(|span| span.bytes > 0);
    }

    /// Returns RAM less the reserved spans and less `taken`, in whole pages, ascending.
    #[must_use]
    pub fn free_ram(&self, taken: &[Span]) -> Vec<Span> {
        const PAGE: u64 = rv::PAGE_BYTES;
        let mut holes: Vec<Span> = self.reserved.iter().chain(taken).copied().collect();
        holes.sort_by_key(|h| h.start);
        let mut ram = self.ram.clone();
        ram.sort_by_key(|r| r.start);
        let mut free = Vec::new();
        for span in ram {
            let mut at = span.start.next_multiple_of(PAGE);
            let end = span.end() / PAGE * PAGE;
            for hole in &holes {
                let (low, high) = (hole.start / PAGE * PAGE, hole.end().next_multiple_of(PAGE));
                if high <= at || low >= end {
                    continue;
                }
                if low > at {
                    free.push(Span { start: at, bytes: low - at });
                }
                at = high;
            }
            if at < end {
                free.push(Span { start: at, bytes: end - at });
            }
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

    fn property(name: &str, cells: &[u32]) -> DeviceTreeProperty {
        let bytes: Vec<u8> = cells.iter().flat_map(|c| c.to_be_bytes()).collect();
        DeviceTreeProperty::new(name, bytes.as_slice()).unwrap()
    }

    fn text(name: &str, value: &str) -> DeviceTreeProperty {
        DeviceTreeProperty::new(name, value).unwrap()
    }

    fn tree() -> DeviceTree {
        let mut tree = DeviceTree::new();
        tree.root.add_property(property("#address-cells", &[2]));
        tree.root.add_property(property("#size-cells", &[2]));
        let memory = DeviceTreeNode::builder("memory@80000000").unwrap();
        tree.root.add_child(
            memory
                .property(text("device_type", "memory"))
                .property(property("reg", &[0, 0x8000_0000, 0, 0x1000_0000]))
                .build(),
        );
        let mut cpus = DeviceTreeNode::new("cpus").unwrap();
        cpus.add_property(property("#address-cells", &[1]));
        cpus.add_property(property("#size-cells", &[0]));
        cpus.add_property(property("timebase-frequency", &[10_000_000]));
        for hart in 0..2u32 {
            let intc = DeviceTreeNode::builder("interrupt-controller").unwrap();
            let intc = intc.property(text("compatible", "riscv,cpu-intc")).property(property("phandle", &[10 + hart]));
            let cpu = DeviceTreeNode::builder(format!("cpu@{hart}")).unwrap();
            let isa = if hart == 0 { "rv64imafdch_zicboz_sstc" } else { "rv64imafdch_sstc_zba" };
            cpus.add_child(
                cpu.property(text("device_type", "cpu"))
                    .property(property("reg", &[hart]))
                    .property(text("riscv,isa", isa))
                    .property(property("riscv,cboz-block-size", &[64]))
                    .child(intc.build())
                    .build(),
            );
        }
        tree.root.add_child(cpus);
        let plic = DeviceTreeNode::builder("plic@c000000").unwrap();
        tree.root.add_child(
            plic.property(text("compatible", "sifive,plic-1.0.0"))
                .property(property("reg", &[0, 0xc00_0000, 0, 0x60_0000]))
                .property(property("interrupts-extended", &[11, 11, 11, 9, 10, 11, 10, 9]))
                .build(),
        );
        tree
    }

    #[test]
    fn harts_and_their_contexts_are_found() {
        let machine = Machine::parse(&tree().to_dtb()).unwrap();
        assert_eq!(machine.timebase, 10_000_000);
        assert_eq!(machine.harts[0].plic_supervisor, Some(3));
        assert_eq!(machine.harts[1].plic_machine, Some(0));
        let isa = machine.common_isa();
        assert!(isa.has("sstc") && isa.has("h") && !isa.has("zicboz") && !isa.has("zba"));
    }

    #[test]
    fn each_clint_numbers_its_own_harts() {
        let mut tree = tree();
        for (base, intc) in [(0x200_0000u32, 11), (0x300_0000, 10)] {
            let clint = DeviceTreeNode::builder(format!("clint@{base:x}")).unwrap();
            tree.root.add_child(
                clint
                    .property(text("compatible", "riscv,clint0"))
                    .property(property("reg", &[0, base, 0, 0x1_0000]))
                    .property(property("interrupts-extended", &[intc, 3, intc, 7]))
                    .build(),
            );
        }
        let machine = Machine::parse(&tree.to_dtb()).unwrap();
        assert_eq!((machine.harts[1].msip, machine.harts[1].mtimecmp), (Some(0x200_0000), Some(0x200_4000)));
        assert_eq!((machine.harts[0].msip, machine.harts[0].mtimecmp), (Some(0x300_0000), Some(0x300_4000)));
    }

    #[test]
    fn free_ram_leaves_holes_out() {
        let mut machine = Machine::parse(&tree().to_dtb()).unwrap();
        machine.reserved = vec![Span { start: 0x8000_0000, bytes: 0x8_0000 }];
        let free = machine.free_ram(&[Span { start: 0x8020_0100, bytes: 0x100 }]);
        assert_eq!(
            free,
            [
                Span { start: 0x8008_0000, bytes: 0x18_0000 },
                Span { start: 0x8020_1000, bytes: 0x1000_0000 - 0x20_1000 }
            ]
        );
    }

    #[test]
    fn ram_is_rounded_to_what_pmp_can_open() {
        let mut machine = Machine::parse(&tree().to_dtb()).unwrap();
        let span = |start, end| Span { start, bytes: end - start };
        machine.ram =
            vec![span(0x8000_1000, 0x8001_0000), span(0x8001_0000, 0x8010_3000), span(0x8010_3000, 0x8010_4000)];
        let all = machine.ram.clone();
        machine.round_ram(4);
        assert_eq!(machine.ram, all);
        machine.round_ram(0x1_0000);
        assert_eq!(machine.ram, [span(0x8001_0000, 0x8010_0000)]);
        machine.round_ram(1 << 62);
        assert_eq!(machine.ram, []);
    }

    #[test]
    fn broken_trees_are_refused_with_a_name() {
        assert!(Machine::parse(b"not a tree").unwrap_err().0.contains("malformed"));
        let mut no_cpus = tree();
        no_cpus.root.remove_child("cpus");
        assert!(Machine::parse(&no_cpus.to_dtb()).unwrap_err().0.contains("/cpus"));
        let mut no_ram = tree();
        no_ram.root.remove_child("memory@80000000");
        assert!(Machine::parse(&no_ram.to_dtb()).unwrap_err().0.contains("memory"));
    }

    #[test]
    fn cut_trees_never_panic() {
        let dtb = tree().to_dtb();
        for cut in 0..dtb.len() {
            let _ = Machine::parse(&dtb[..cut]);
        }
        for at in 0..dtb.len() {
            let mut bent = dtb.clone();
            bent[at] ^= 0xff;
            let _ = Machine::parse(&bent);
        }
    }
}
