//! The board that guests see: laid out like QEMU's `virt`, which every RISC-V kernel knows, and
//! described to them by a device tree of their own.

use crate::device::{plic, uart};
use crate::isa::Isa;
use crate::offer::Offer;
use abi::bundle::{GUEST_RAM_BASE, VmConfig};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use rv::{Addr, Gpa};

/// GPA of the UART's registers.
pub const UART: u64 = 0x1000_0000;
/// The UART's PLIC source.
pub const UART_SOURCE: u32 = 10;
/// GPA of the PLIC's registers.
pub const PLIC: u64 = 0x0c00_0000;
/// Room for the device tree at the end of RAM, in bytes.
pub const TREE_BYTES: u64 = 64 << 10;
/// RAM that no VM can do without, in bytes: firmware's place, a kernel, the device tree.
pub const LEAST_RAM: u64 = 4 << 20;

/// A device of the board, and the offset of an access within it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// The UART.
    Uart(u64),
    /// The PLIC.
    Plic(u64),
}

impl Device {
    /// The device at `gpa`, if there is one.
    #[must_use]
    pub fn at(gpa: Addr<Gpa>) -> Option<Self> {
        match gpa.raw() {
            a @ UART..UART_END => Some(Device::Uart(a - UART)),
            a @ PLIC..PLIC_END => Some(Device::Plic(a - PLIC)),
            _ => None,
        }
    }
}

const UART_END: u64 = UART + uart::REGISTERS;
const PLIC_END: u64 = PLIC + plic::BYTES;

/// Where the device tree of a VM with that much RAM stands: its last 64 KiB.
#[must_use]
pub fn tree_address(memory_bytes: u64) -> u64 {
    (GUEST_RAM_BASE + memory_bytes - TREE_BYTES) / TREE_BYTES * TREE_BYTES
}

fn node(name: impl Into<String>, properties: impl IntoIterator<Item = DeviceTreeProperty>) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked(name);
    properties.into_iter().for_each(|p| node.add_property(p));
    node
}

fn text(name: &str, value: &str) -> DeviceTreeProperty {
    DeviceTreeProperty::new_unchecked(name, value)
}

fn cells(name: &str, cells: &[u32]) -> DeviceTreeProperty {
    let bytes: Vec<u8> = cells.iter().flat_map(|c| c.to_be_bytes()).collect();
    DeviceTreeProperty::new_unchecked(name, bytes.as_slice())
}

fn flag(name: &str) -> DeviceTreeProperty {
    DeviceTreeProperty::new_unchecked(name, [0u8; 0].as_slice())
}

fn strings<'a>(name: &str, values: impl Iterator<Item = &'a str>) -> DeviceTreeProperty {
    let bytes: Vec<u8> = values.flat_map(|v| v.bytes().chain([0])).collect();
    DeviceTreeProperty::new_unchecked(name, bytes.as_slice())
}

fn wide(name: &str, values: &[u64]) -> DeviceTreeProperty {
    let words: Vec<u32> = values.iter().flat_map(|v| [(v >> 32) as u32, *v as u32]).collect();
    cells(name, &words)
}

const PLIC_PHANDLE: u32 = 1;

fn intc_phandle(hart: u32) -> u32 {
    2 + hart
}

/// The flattened device tree of a VM whose harts have that `isa`.
#[must_use]
pub fn device_tree(config: &VmConfig, offer: &Offer, isa: &Isa) -> Vec<u8> {
    let mut tree = DeviceTree::new();
    let root = &mut tree.root;
    for property in [
        cells("#address-cells", &[2]),
        cells("#size-cells", &[2]),
        text("compatible", "riscv-virtio"),
        text("model", "gnomon,virt"),
    ] {
        root.add_property(property);
    }
    let mut chosen =
        node("chosen", [text("stdout-path", &format!("/soc/serial@{UART:x}")), text("bootargs", &config.bootargs)]);
    if !config.rng_seed.is_empty() {
        chosen.add_property(DeviceTreeProperty::new_unchecked("rng-seed", config.rng_seed.as_slice()));
    }
    if let Some((gpa, bytes)) = config.initrd {
        chosen.add_property(wide("linux,initrd-start", &[gpa]));
        chosen.add_property(wide("linux,initrd-end", &[gpa + bytes]));
    }
    root.add_child(chosen);
    root.add_child(node("aliases", [text("serial0", &format!("/soc/serial@{UART:x}"))]));
    root.add_child(node(
        format!("memory@{GUEST_RAM_BASE:x}"),
        [text("device_type", "memory"), wide("reg", &[GUEST_RAM_BASE, config.memory_bytes])],
    ));
    root.add_child(cpus(config.vcpus, offer, isa));
    root.add_child(soc(config.vcpus));
    tree.to_dtb()
}

fn cpus(count: u32, offer: &Offer, isa: &Isa) -> DeviceTreeNode {
    let mut cpus = node(
        "cpus",
        [
            cells("#address-cells", &[1]),
            cells("#size-cells", &[0]),
            cells("timebase-frequency", &[offer.timebase as u32]),
        ],
    );
    for hart in 0..count {
        let mut cpu = node(
            format!("cpu@{hart:x}"),
            [
                text("device_type", "cpu"),
                text("compatible", "riscv"),
                text("status", "okay"),
                cells("reg", &[hart]),
                text("riscv,isa", &isa.isa_string()),
                text("riscv,isa-base", "rv64i"),
                strings("riscv,isa-extensions", isa.ordered()),
                text("mmu-type", &offer.mmu_type),
            ],
        );
        for (name, extension, bytes) in [
            ("riscv,cbom-block-size", "zicbom", isa.cbom_block),
            ("riscv,cboz-block-size", "zicboz", isa.cboz_block),
            ("riscv,cbop-block-size", "zicbop", isa.cbop_block),
        ] {
            if isa.has(extension) && bytes != 0 {
                cpu.add_property(cells(name, &[bytes]));
            }
        }
        cpu.add_child(node(
            "interrupt-controller",
            [
                cells("#interrupt-cells", &[1]),
                flag("interrupt-controller"),
                text("compatible", "riscv,cpu-intc"),
                cells("phandle", &[intc_phandle(hart)]),
            ],
        ));
        cpus.add_child(cpu);
    }
    cpus
}

fn soc(vcpus: u32) -> DeviceTreeNode {
    /// "No interrupt": the M-mode contexts exist, as on QEMU's board, but belong to no one.
    const NOBODY: u32 = u32::MAX;
    const S_EXTERNAL: u32 = 9;
    let mut soc = node(
        "soc",
        [cells("#address-cells", &[2]), cells("#size-cells", &[2]), text("compatible", "simple-bus"), flag("ranges")],
    );
    soc.add_child(node(
        format!("serial@{UART:x}"),
        [
            text("compatible", "ns16550a"),
            wide("reg", &[UART, 0x100]),
            cells("clock-frequency", &[3_686_400]),
            cells("interrupts", &[UART_SOURCE]),
            cells("interrupt-parent", &[PLIC_PHANDLE]),
        ],
    ));
    let contexts: Vec<u32> = (0..vcpus).flat_map(|h| [intc_phandle(h), NOBODY, intc_phandle(h), S_EXTERNAL]).collect();
    soc.add_child(node(
        format!("plic@{PLIC:x}"),
        [
            strings("compatible", ["sifive,plic-1.0.0", "riscv,plic0"].into_iter()),
            wide("reg", &[PLIC, plic::BYTES]),
            cells("#interrupt-cells", &[1]),
            cells("#address-cells", &[0]),
            flag("interrupt-controller"),
            cells("interrupts-extended", &contexts),
            cells("riscv,ndev", &[plic::SOURCES]),
            cells("phandle", &[PLIC_PHANDLE]),
        ],
    ));
    soc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::offer::GuestTimer;

    fn config(vcpus: u32) -> VmConfig {
        VmConfig {
            name: "t".into(),
            after: None,
            memory_bytes: 64 << 20,
            vcpus,
            mmu: None,
            lane: true,
            svvptc: true,
            svadu: false,
            shadow_bytes: None,
            superpages: true,
            segments: Vec::new(),
            entry_gpa: 0x8020_0000,
            initrd: Some((0x8100_0000, 5)),
            bootargs: "quiet".into(),
            rng_seed: Vec::new(),
        }
    }

    fn offer() -> Offer {
        Offer {
            guest: crate::offer::GuestMode::Virtual,
            g_format: &rv::format::SV39X4,
            formats: alloc::vec![&rv::format::SV39],
            nested_svadu: false,
            isa: Isa::from_isa_string("rv64imafdc_sstc"),
            mmu_type: "riscv,sv57".into(),
            timer: GuestTimer::Sstc,
            vlenb: 0,
            timebase: 10_000_000,
        }
    }

    #[test]
    fn our_own_reader_understands_the_tree() {
        let tree = device_tree(&config(3), &offer(), &offer().isa);
        assert!(tree.len() < TREE_BYTES as usize);
        let machine = Machine::parse(&tree).unwrap();
        assert_eq!(machine.harts.len(), 3);
        assert_eq!(machine.harts[2].plic_supervisor, Some(5));
        assert_eq!(machine.harts[2].plic_machine, None);
        assert_eq!(machine.uart.map(|u| (u.span.start, u.source)), Some((UART, UART_SOURCE)));
        assert_eq!(machine.initrd.map(|s| (s.start, s.bytes)), Some((0x8100_0000, 5)));
        assert!(machine.common_isa().has("sstc"));
    }

    #[test]
    fn the_largest_tree_fits() {
        let mut config = config(abi::bundle::MAX_VCPUS);
        config.bootargs = "x".repeat(2048);
        assert!(device_tree(&config, &offer(), &offer().isa).len() < TREE_BYTES as usize);
    }

    #[test]
    fn devices_end_where_their_registers_end() {
        assert_eq!(Device::at(Addr::new(UART + 7)), Some(Device::Uart(7)));
        assert_eq!(Device::at(Addr::new(UART + 8)), None);
        assert_eq!(Device::at(Addr::new(PLIC - 1)), None);
    }
}
