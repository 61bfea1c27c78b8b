//! Faults of vCPUs that share the lock. `shadow_random.rs` has them among all else.

use crate::engine::RAM;
use crate::engine::steered::{Steered, gva, leaf, pointer};
use mmu::shadow::{Answer, Beside, Forget, Upkeep};
use rv::format::SV39;
use rv::{Access, Addr, Asid};

const UPKEEPS: [Upkeep; 4] = [Upkeep::Shadow, Upkeep::Unsync, Upkeep::Lazy, Upkeep::Steered];
/// The answer of a fill: where access faults are Gnomon's, a hart may remember poison.
const fn filled(upkeep: Upkeep) -> Beside {
    let forget = if matches!(upkeep, Upkeep::Steered) { Forget::Page } else { Forget::Nothing };
    Beside::Answered(Answer::Filled { forget, known: false })
}

/// The guest's tables, and its first page of data.
const TABLES: [u64; 3] = [0, 1, 2];
const DATA: u64 = 16;

/// A guest with a table of 64 leaves, of which the first is filled.
fn vm(upkeep: Upkeep) -> Steered {
    let mut vm = Steered::of(upkeep, 1, (2048, 128, 0), TABLES.into_iter().chain([DATA]), None);
    vm.store(0, 1, pointer(1));
    vm.store(1, 0, pointer(2));
    (0..64).for_each(|n| vm.store(2, n, leaf(DATA + n)));
    vm.load((&SV39, 0, Asid(1)));
    assert!(matches!(vm.access(gva([1, 0, 0])), Answer::Filled { .. }));
    vm
}

#[test]
fn first_touches_in_known_tables_share_the_lock() {
    for upkeep in UPKEEPS {
        let mut vm = vm(upkeep);
        for n in 1..40 {
            let at = gva([1, 0, n]);
            if !(upkeep == Upkeep::Steered && n > 20) {
                assert_eq!(vm.beside(0, at, Access::Load, false), Beside::WantsMemory, "{upkeep:?}, page {n}");
            }
            let access = if n % 2 == 0 { Access::Load } else { Access::Store };
            assert_eq!(vm.beside(n as usize % 2, at, access, true), filled(upkeep), "{upkeep:?}, page {n}");
        }
        // The lock's next holder has them in its lists.
        vm.lock();
        vm.shadow.audit(&vm.mem);
        assert_eq!(vm.shadow.counters().filled_4k, 40, "{upkeep:?}");
    }
}

#[test]
fn so_do_those_in_parts_of_a_superpage() {
    for upkeep in UPKEEPS {
        let mut vm = Steered::of(upkeep, 1, (2048, 128, 0), TABLES.into_iter().chain([DATA]), None);
        // 1 GiB that begins below RAM, where it is the same address.
        vm.store(0, 2, 0x8000_0000 >> 12 << 10 | 0xc7);
        vm.load((&SV39, 0, Asid(1)));
        let at = |page: u64| Addr::new(0x8000_0000 + ((RAM.raw() - 0x8_0000 + page) << 12));
        assert!(matches!(vm.access(at(DATA)), Answer::Filled { .. }), "{upkeep:?}");
        (DATA + 1..DATA + 20).for_each(|page| assert_eq!(vm.beside(0, at(page), Access::Store, true), filled(upkeep)));
        vm.lock();
        vm.shadow.audit(&vm.mem);
    }
}
