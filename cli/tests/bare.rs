//! The bare machine that boots are measured against.

use dtoolkit::Node;
use dtoolkit::fdt::Fdt;
use gnomon::host::size::Size;
use gnomon::machine::board::{Clock, HExtension};
use gnomon::machine::confine;
use gnomon::subject::bare::{BareSpec, few_devices};
use std::fs;

#[test]
fn few_devices_are_those_that_guests_have() {
    confine::GNOMON.set(env!("CARGO_BIN_EXE_gnomon").into()).expect("set once");
    let kernel = tempfile::NamedTempFile::new().expect("a file");
    // A jump to itself.
    fs::write(kernel.path(), [0x6f, 0, 0, 0]).expect("a kernel");
    let spec = BareSpec {
        kernel: kernel.path().to_owned(),
        initrd: None,
        append: String::new(),
        harts: 1,
        memory: Size(64 << 20),
        clock: Clock::Instructions,
        h: HExtension::Absent,
    };
    let (machine, tree) = few_devices(spec.machine()).expect("a tree");
    assert!(machine.extra.contains(&tree.path().display().to_string()), "{:?}", machine.extra);
    let blob = fs::read(tree.path()).expect("a tree");
    let fdt = Fdt::new(&blob).expect("a tree");
    let soc = fdt.find_node("/soc").expect("devices");
    let names: Vec<String> = soc.children().map(|node| node.name().to_owned()).collect();
    let has = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
    assert!(["serial@", "plic@", "rtc@"].iter().all(|prefix| has(prefix)), "{names:?}");
    assert!(!has("pci@") && !has("virtio_mmio@"), "{names:?}");
    assert!(fdt.find_node("/chosen").is_some());
}
