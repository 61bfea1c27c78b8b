//! Gnomon's identity map in the payload seat, read back by the oracle.

use hypervisor::host_map::{Builder, Kind, MapError};
use rv::format::SV39;
use rv::{Addr, Pfn, PteFlags};

const TABLES: u64 = 0x100;

fn spare(count: u64) -> Vec<Pfn<rv::Hpa>> {
    (0..count).map(|n| Pfn::new(TABLES + n)).collect()
}

#[test]
fn every_page_maps_to_itself_and_nothing_is_both_written_and_run() {
    let mut ram = oracle::Machine::with_ram(Pfn::new(TABLES), 64);
    let mut map = Builder::new(&SV39, spare(64), &mut ram).unwrap();
    let parts = [
        (0x8020_0000, 0x8023_1000, Kind::Code),
        (0x8023_1000, 0x8024_0000, Kind::ReadOnly),
        (0x8024_0000, 0x8040_0000, Kind::ReadWrite),
        (0x8040_0000, 0x1_4000_3000, Kind::ReadWrite),
        (0x1000_0000, 0x1000_0100, Kind::ReadWrite),
    ];
    for (start, end, kind) in parts {
        map.map(start, end, kind).unwrap();
    }
    let root = map.root();
    let entry = |at: u64| {
        let mut table = root;
        for level in SV39.levels_down() {
            let pte =
                rv::Pte(rv::PhysMem::read_u64(&ram, table.at(8 * SV39.index(Addr::<rv::Hpa>::new(at), level) as u64)));
            match pte.decode::<rv::Hpa>(level, rv::Caps::default()) {
                rv::Entry::Table(next) => table = next,
                rv::Entry::Leaf(leaf) => return Some((leaf, level)),
                _ => return None,
            }
        }
        None
    };
    for (start, end, kind) in parts {
        for at in [start, start + 0x8, (start + end) / 2, end - 1] {
            let (leaf, level) = entry(at).unwrap();
            assert_eq!(leaf.pfn.base().raw() + at % level.bytes(), at, "{at:#x}");
            assert_eq!(leaf.flags.contains(PteFlags::X), kind == Kind::Code);
            assert_eq!(leaf.flags.contains(PteFlags::W), kind == Kind::ReadWrite);
            assert!(!leaf.flags.contains(PteFlags::U));
        }
    }
    assert_eq!(entry(0x8000_0000), None);
    assert_eq!(entry(0x1_0000_0000).unwrap().1, rv::Level::GIGA, "large where it can be");
}

#[test]
fn what_cannot_be_mapped_is_said() {
    let mut ram = oracle::Machine::with_ram(Pfn::new(TABLES), 8);
    assert_eq!(Builder::new(&SV39, Vec::new(), &mut ram).err(), Some(MapError::OutOfFrames));
    let mut map = Builder::new(&SV39, spare(3), &mut ram).unwrap();
    assert!(matches!(map.map(0, 1 << 39, Kind::Code), Err(MapError::TooHigh(_))));
    map.map(0x1000, 0x2000, Kind::Code).unwrap();
    assert!(matches!(map.map(0x1000, 0x2000, Kind::ReadWrite), Err(MapError::Taken(_))));
    assert_eq!(map.map(1 << 33, (1 << 33) + 0x1000, Kind::Code), Err(MapError::OutOfFrames));
}
