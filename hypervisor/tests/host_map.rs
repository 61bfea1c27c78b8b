//! Gnomon's identity map in the payload seat, read back by the oracle.

use hypervisor::machine::description::Span;
use hypervisor::machine::host_map::{Builder, Kind, MapError, map_onto_itself};
use mmu::two_stage::{Stage, through_g};
use mmu::walk::{AdPolicy, Ram};
use rv::format::{SV39, SV39X4, SV48X4, SV57X4};
use rv::{Access, Addr, Pfn, PteFlags};

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

/// Steered guests' poison, where a table of Gnomon's leads: the hole in a G-stage that maps RAM onto itself.
#[test]
fn a_g_stage_maps_ram_onto_itself_and_leaves_a_hole() {
    let root = Pfn::new(TABLES);
    let spans = [(0x8000_0000, 0x1_4000_0000), (0x24_0010_0000, 0x1000)].map(|(start, bytes)| Span { start, bytes });
    let hole = mmu::table::poison_leaf(true).pfn::<rv::Gpa>().base();
    assert_eq!(hole, mmu::table::poison_pointer().pfn().base());
    for format in [&SV39X4, &SV48X4, &SV57X4] {
        let mut ram = oracle::Machine::with_ram(root, 4);
        assert!(map_onto_itself(format, root, &spans, &mut ram));
        let caps = rv::Caps::default();
        let g = Stage { format, root, caps, ad: AdPolicy::Svade };
        let mut arrives = |gpa, access| {
            let request = rv::Request { access, mode: rv::Mode::User, sum: false, mxr: false, hs_mxr: false };
            through_g(&Some(g), gpa, &request, &mut Ram(&mut ram)).ok()
        };
        for access in [Access::Load, Access::Store, Access::Fetch] {
            for at in [0x8000_0000, 0x8123_4568, 0x1_bfff_fff8, 0x24_0010_0000] {
                assert_eq!(arrives(Addr::new(at), access), Some(Addr::new(at)), "{}", format.name);
            }
            for at in [hole, hole.wrapping_add(0xff8), Addr::new(1 << 50)] {
                assert_eq!(arrives(at, access), None, "{} at {at}", format.name);
            }
        }
    }
    let mut ram = oracle::Machine::with_ram(root, 4);
    let mut fits = |format, start| map_onto_itself(format, root, &[Span { start, bytes: 0x1000 }], &mut ram);
    assert!(fits(&SV39X4, (1 << 41) - 0x1000));
    assert!(!fits(&SV39X4, 1 << 41), "behind what it maps");
    assert!(fits(&SV48X4, 1 << 41));
    assert!(fits(&SV57X4, (1 << 55) - 0x1000));
    assert!(!fits(&SV57X4, 1 << 55), "in the hole");
}
