//! A table of a guest's that is linked for the first time, in `steered`: the lane has not been told of what its leaves lead to, and yet
//! all are there at once.

use crate::engine::IS_MEGA;
use crate::engine::steered::{Steered, gva, leaf, pointer};
use mmu::table::{State, is_poison};
use rv::format::SV39;
use rv::{Asid, PhysMem, Pte, PteFlags};

/// Guest pages: a root, a table of level 1, one of level 0, and data from the second 2 MiB on.
const ROOT: u64 = 0;
const MIDDLE: u64 = 1;
const TABLE: u64 = 2;
const DATA: u64 = 512;
/// Pages of the data that are not there.
const MISSING: [u64; 2] = [DATA + 7, DATA + 511];

/// Returns how many of the 512 entries of a table are leaves when the guest's user has got to its first page. The table
/// leads to the data, as a user's, except for one entry; `is_mega`: by a leaf of 2 MiB of the G-stage.
fn leaves(is_mega: bool) -> usize {
    IS_MEGA.set(is_mega);
    let there = (DATA..DATA + 512).filter(|page| is_mega || !MISSING.contains(page));
    let mut vm = Steered::sized(2, (4096, 64, 0), (0..4).chain(there), None);
    vm.store(ROOT, 0, pointer(MIDDLE));
    vm.store(MIDDLE, 0, pointer(TABLE));
    let guests = |index| leaf(DATA + index) | PteFlags::U.bits();
    (0..512).for_each(|index| vm.store(TABLE, index, guests(index)));
    vm.store(TABLE, 9, 0);
    vm.load((&SV39, ROOT, Asid(0)));
    vm.access_as_user(gva([0, 0, 0]));
    let mut count = 0;
    for index in 0..512 {
        let entry = vm.entry(gva([0, 0, index])).expect("it is linked");
        let is_there = index != 9 && (is_mega || !MISSING.contains(&(DATA + index)));
        if State::of(entry) == State::Leaf {
            assert!(is_there, "{index}");
            assert_eq!(entry, Pte(guests(index)).leading_to(vm.there(DATA + index)), "{index}");
            count += 1;
        } else {
            assert_eq!(is_poison(entry), index != 9, "{index}: {entry:?}");
        }
    }
    assert!(vm.mem.read_u64(vm.there(TABLE).at(0)) == guests(0));
    vm.end();
    count
}

#[test]
fn all_leaves_of_a_table_are_there_when_it_is_linked() {
    assert_eq!(leaves(true), 511);
}

#[test]
fn and_where_the_g_stage_is_in_pieces_all_that_lead_somewhere() {
    assert_eq!(leaves(false), 509);
}
