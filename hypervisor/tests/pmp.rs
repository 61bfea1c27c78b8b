//! The firmware seat's walls, judged by a model of PMP.

use hypervisor::machine::description::Span;
use hypervisor::machine::pmp::{ALL, LEAST, Lack, Layout, Pmp, Walls, fit};
use oracle::pmp::Need;

const MIB: u64 = 1 << 20;
/// Granularities, as the specification's G: 4 bytes to 4 MiB.
const GRAINS: [u32; 9] = [0, 1, 4, 10, 11, 14, 16, 19, 20];

fn span(start: u64, end: u64) -> Span {
    Span { start, bytes: end - start }
}

/// An image of the sizes that Gnomon's has, whose data ends at a multiple of `even`, in RAM of so many bytes.
fn layout(even: u64, ram: u64) -> Layout {
    let code: u64 = 0x8020_0000;
    let data = code + 0x8_7000;
    let end = (data + 0x53_1000).next_multiple_of(even);
    Layout {
        guard: span(data + 0x1_3000, data + 0x1_4000),
        code,
        constants: code + 0x6_2000,
        data,
        end,
        ram: span(0x8000_0000, 0x8000_0000 + ram),
    }
}

/// Writes the walls to a hart's registers, and reads them back.
fn write(walls: &Walls, entries: usize, g: u32) -> oracle::pmp::Pmp {
    let mut pmp = oracle::pmp::Pmp::new(entries, g);
    for (n, entry) in walls.entries.iter().enumerate() {
        pmp.write_address(n, entry.address);
    }
    for (n, entry) in walls.entries.iter().enumerate() {
        pmp.write_config(n, entry.config);
    }
    for (n, entry) in walls.entries.iter().enumerate() {
        assert_eq!(pmp.read_config(n), entry.config, "entry {n} of {walls:?}");
        assert_eq!(pmp.read_address(n), entry.address, "entry {n} of {walls:?}, G = {g}");
    }
    pmp
}

/// Checks each right at each edge.
fn check(layout: &Layout, walls: &Walls, pmp: &oracle::pmp::Pmp) {
    let has = |lack| !walls.lacks.contains(&lack);
    let edges = [
        0x1000_0000,
        layout.ram.start,
        layout.code,
        layout.constants,
        layout.data,
        layout.guard.start,
        layout.guard.end(),
        layout.end,
        layout.ram.end(),
    ];
    for address in edges.into_iter().flat_map(|edge| [edge - 1, edge, edge + 3, edge + 4096]) {
        let is_ram = layout.ram.contains(address);
        let is_own = (layout.code..layout.end).contains(&address);
        let is_locked = has(Lack::Image) && (layout.code..layout.data).contains(&address);
        let is_guard = has(Lack::Guard) && layout.guard.contains(address);
        for need in [Need::Read, Need::Write, Need::Execute] {
            let guest = pmp.allows(false, need, address);
            // What is locked may be open to guests as it is to M mode.
            let may_show = is_locked && need != Need::Write;
            assert!(guest == (is_ram && !is_own) || may_show, "guest, {need:?} at {address:#x}: {guest}; {walls:?}");
            let is_constant = address >= layout.constants && has(Lack::Constants);
            let expected = match need {
                _ if is_guard => false,
                Need::Write => !is_locked,
                Need::Execute => !(is_locked && is_constant),
                Need::Read => true,
            };
            assert_eq!(pmp.allows(true, need, address), expected, "M mode, {need:?} at {address:#x}; {walls:?}");
        }
    }
}

#[test]
fn walls_hold_with_any_number_of_entries_and_any_granularity() {
    for (g, entries) in GRAINS.into_iter().flat_map(|g| (0..=16).map(move |entries| (g, entries))) {
        let grain = 4 << g;
        for ram in [256 * MIB, 768 * MIB] {
            let layout = layout(grain.max(4096), ram);
            let pmp = Pmp { entries, grain };
            let least = if ram == 256 * MIB { LEAST - 1 } else { LEAST };
            let is_enough = entries >= least && grain <= 2 * MIB;
            let walls = match fit(pmp, &layout) {
                Ok(walls) => walls,
                Err(message) => {
                    assert!(!is_enough, "{pmp:?}: {message}");
                    let names = if entries == 0 {
                        "no PMP".into()
                    } else if grain > 2 * MIB {
                        format!("{grain:#x} bytes")
                    } else {
                        format!("{entries} PMP entries")
                    };
                    assert!(message.contains(&names), "{message}");
                    continue;
                }
            };
            assert!(is_enough && walls.entries.len() <= entries, "{pmp:?}: {walls:?}");
            check(&layout, &walls, &write(&walls, entries, g));
            // All that there are entries for.
            if grain <= 4096 && entries >= ALL {
                assert_eq!(walls.lacks, []);
            }
        }
    }
}

#[test]
fn what_is_left_out_is_what_costs_least() {
    let lacks = |entries, grain| {
        let walls = fit(Pmp { entries, grain }, &layout(64 << 10, 768 * MIB)).unwrap();
        (walls.entries.len(), walls.lacks)
    };
    assert_eq!(lacks(8, 4), (7, vec![]));
    assert_eq!(lacks(7, 4096), (7, vec![]));
    assert_eq!(lacks(6, 4096), (6, vec![Lack::Constants]));
    assert_eq!(lacks(5, 4096), (5, vec![Lack::Image]));
    assert_eq!(lacks(4, 4096), (4, vec![Lack::Guard, Lack::Image]));
    // A page is less than a grain, and no wall stands within Gnomon's image.
    assert_eq!(lacks(16, 64 << 10), (4, vec![Lack::Guard, Lack::Image]));
    // If RAM is a power of two, one entry less will do.
    let walls = fit(Pmp { entries: 3, grain: 4 }, &layout(4096, 256 * MIB)).unwrap();
    assert_eq!(walls.lacks, [Lack::Guard, Lack::Image]);
    let walls = fit(Pmp { entries: 6, grain: 4 }, &layout(4096, 256 * MIB)).unwrap();
    assert_eq!(walls.lacks, []);
}
