//! The board that guests see: laid out like QEMU's `virt`, which every RISC-V kernel knows, and
//! described to them by a device tree of their own.

use crate::device::offer::Offer;
use crate::device::{Device, Place, plic, uart};
use crate::machine::isa::Isa;
use abi::bundle::{GUEST_RAM_BASE, VmConfig};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

/// Room for the device tree at the end of RAM, in bytes.
pub const TREE_BYTES: u64 = 64 << 10;
/// Room within the tree for what a boot loader adds to it, in bytes: a command line, an initrd's place. U-Boot keeps its own data right
/// behind the tree, and overwrites them if that grows beyond its end.
const SPARE_BYTES: usize = 4 << 10;
/// RAM that no VM can do without, in bytes: firmware's place, a kernel, the device tree.
pub const LEAST_RAM: u64 = 4 << 20;

/// Returns the address of the device tree of a VM with that much RAM: its last 64 KiB.
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

/// Makes the flattened device tree of a VM with these devices, whose harts have that `isa`.
#[must_use]
pub fn device_tree<'a>(
    config: &VmConfig,
    offer: &Offer,
    isa: &Isa,
    devices: impl Iterator<Item = &'a dyn Device>,
) -> Vec<u8> {
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
    let console = format!("/soc/serial@{:x}", uart::START);
    let mut chosen = node("chosen", [text("stdout-path", &console), text("bootargs", &config.bootargs)]);
    if !config.rng_seed.is_empty() {
        chosen.add_property(DeviceTreeProperty::new_unchecked("rng-seed", config.rng_seed.as_slice()));
    }
    if let Some((gpa, bytes)) = config.initrd {
        chosen.add_property(wide("linux,initrd-start", &[gpa]));
        chosen.add_property(wide("linux,initrd-end", &[gpa + bytes]));
    }
    root.add_child(chosen);
    if let Some(command) = &config.boot_command {
        root.add_child(node("config", [cells("bootdelay", &[0]), text("bootcmd", command)]));
    }
    root.add_child(node("aliases", [text("serial0", &console)]));
    root.add_child(node(
        format!("memory@{GUEST_RAM_BASE:x}"),
        [text("device_type", "memory"), wide("reg", &[GUEST_RAM_BASE, config.memory_bytes])],
    ));
    root.add_child(cpus(config.vcpus, offer, isa));
    root.add_child(soc(config.vcpus, devices));
    with_room(tree.to_dtb(), SPARE_BYTES)
}

/// Makes a flattened tree with so many bytes of room at its end.
fn with_room(mut tree: Vec<u8>, bytes: usize) -> Vec<u8> {
    /// The place of the total size in the header.
    const TOTAL_SIZE: core::ops::Range<usize> = 4..8;
    tree.resize(tree.len() + bytes, 0);
    let total = tree.len() as u32;
    tree[TOTAL_SIZE].copy_from_slice(&total.to_be_bytes());
    tree
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

fn soc<'a>(vcpus: u32, devices: impl Iterator<Item = &'a dyn Device>) -> DeviceTreeNode {
    /// "No interrupt": the M-mode contexts exist, as on QEMU's board, but belong to no one.
    const NOBODY: u32 = u32::MAX;
    const S_EXTERNAL: u32 = 9;
    /// Bytes that a device is said to have at least, of which its registers are the first.
    const WINDOW: u64 = 0x100;
    let mut soc = node(
        "soc",
        [cells("#address-cells", &[2]), cells("#size-cells", &[2]), text("compatible", "simple-bus"), flag("ranges")],
    );
    for device in devices {
        let Place { start, bytes } = device.place();
        let mut node = node(format!("{}@{start:x}", device.name()), device.properties());
        node.add_property(wide("reg", &[start, bytes.max(WINDOW)]));
        node.add_property(cells("interrupts", &[device.source()]));
        node.add_property(cells("interrupt-parent", &[PLIC_PHANDLE]));
        soc.add_child(node);
    }
    let contexts: Vec<u32> = (0..vcpus).flat_map(|h| [intc_phandle(h), NOBODY, intc_phandle(h), S_EXTERNAL]).collect();
    soc.add_child(node(
        format!("plic@{:x}", plic::START),
        [
            strings("compatible", ["sifive,plic-1.0.0", "riscv,plic0"].into_iter()),
            wide("reg", &[plic::PLACE.start, plic::PLACE.bytes]),
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
    use crate::device::offer::GuestTimer;
    use crate::device::{Devices, KINDS};
    use crate::machine::description::Machine;
    use dtoolkit::fdt::Fdt;
    use dtoolkit::{Node, Property};

    fn config(vcpus: u32) -> VmConfig {
        VmConfig {
            name: "t".into(),
            after: None,
            memory_bytes: 64 << 20,
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
            ports: Vec::new(),
            segments: Vec::new(),
            entry_gpa: 0x8020_0000,
            initrd: Some((0x8100_0000, 5)),
            bootargs: "quiet".into(),
            boot_command: None,
            rng_seed: Vec::new(),
            restore: None,
            incoming: false,
        }
    }

    fn offer() -> Offer {
        Offer {
            firmware_emulates_time: false,
            guest: crate::device::offer::GuestMode::Virtual,
            kinds: &KINDS,
            g_format: &rv::format::SV39X4,
            formats: alloc::vec![&rv::format::SV39],
            two_stage_svadu: false,
            has_swap: false,
            denial: crate::device::offer::Denial::Pmp,
            isa: Isa::from_isa_string("rv64imafdc_sstc"),
            mmu_type: "riscv,sv57".into(),
            timer: GuestTimer::Sstc,
            emulates_misaligned: false,
            has_pmu: false,
            vlenb: 0,
            timebase: 10_000_000,
            clock: Some(crate::machine::clock::Clock::new(10_000_000, 0, 0)),
            disks: crate::backend::disks::Disks::default(),
            shares: crate::backend::shares::Shares::default(),
            entropy: None,
            network: crate::backend::network::Network::new([], None, 1),
        }
    }

    fn tree(config: &VmConfig) -> Vec<u8> {
        let devices = Devices::new(config, &offer());
        device_tree(config, &offer(), &offer().isa, devices.all().iter())
    }

    #[test]
    fn our_own_reader_understands_the_tree() {
        let tree = tree(&config(3));
        assert!(tree.len() < TREE_BYTES as usize);
        let machine = Machine::parse(&tree).unwrap();
        assert_eq!(machine.harts.len(), 3);
        assert_eq!(machine.harts[2].plic_supervisor, Some(5));
        assert_eq!(machine.harts[2].plic_machine, None);
        assert_eq!(machine.uart.map(|u| (u.span.start, u.source)), Some((uart::START, uart::SOURCE)));
        assert_eq!(machine.initrd.map(|s| (s.start, s.bytes)), Some((0x8100_0000, 5)));
        assert!(machine.common_isa().has("sstc"));
    }

    #[test]
    fn a_boot_loader_may_add_to_the_tree() {
        let tree = tree(&config(1));
        let word = |at: usize| u32::from_be_bytes(tree[at..at + 4].try_into().unwrap()) as usize;
        let (total, strings, strings_bytes) = (word(4), word(12), word(32));
        assert_eq!(total, tree.len());
        // What grows, grows into the end: the strings are the last that is there.
        assert!(strings > word(8) && total - (strings + strings_bytes) >= SPARE_BYTES);
    }

    #[test]
    fn the_largest_tree_fits() {
        let mut config = config(abi::bundle::MAX_VCPUS);
        config.bootargs = "x".repeat(2048);
        assert!(tree(&config).len() < TREE_BYTES as usize);
    }

    #[test]
    fn u_boot_is_told_what_to_run_if_anything() {
        let told = |boot_command: Option<&str>| {
            let tree = tree(&VmConfig { boot_command: boot_command.map(Into::into), ..config(1) });
            let tree = Fdt::new(&tree).unwrap();
            let node = tree.find_node("/config")?;
            let delay = node.property("bootdelay").and_then(|delay| delay.value_as::<u32>().ok());
            Some((delay, node.property("bootcmd").and_then(|told| told.value_as::<&str>().ok().map(String::from))))
        };
        assert_eq!(told(None), None);
        assert_eq!(told(Some("run bootcmd")), Some((Some(0), Some("run bootcmd".into()))));
    }

    #[test]
    fn the_tree_has_a_clock_if_the_host_has_one() {
        let rtc = Machine::parse(&tree(&config(1))).unwrap().rtc;
        assert_eq!(rtc.map(|span| span.start), Some(0x10_1000));
        let offer = Offer { clock: None, ..offer() };
        let config = config(1);
        let devices = Devices::new(&config, &offer);
        let tree = device_tree(&config, &offer, &offer.isa, devices.all().iter());
        assert_eq!(Machine::parse(&tree).unwrap().rtc, None);
    }
}
