//! Chains: cases that share a boot. Their VMs run one after another, each alone on the machine, so that QEMU, the firmware
//! and Gnomon start once for them all; and each VM has the frames, the heap and the TLB tags of those before.

mod run;
mod split;

use super::cases::{Case, Site};
use super::plan::{BootTest, Expect};
use crate::machine::board::{HExtension, Seat};
use abi::bundle::MAX_VMS;
pub use run::run;
use std::collections::BTreeMap;

/// Most cases in a chain: few enough that the processors end together, and that little is run again where one hangs.
const MOST: usize = 8;
const _: () = assert!(MOST <= MAX_VMS);

/// The common machine of chained cases.
type Machine = (Seat, u32, HExtension);

/// The machine of a case that may share it; `None` if the case looks at more than one VM and its end.
fn machine(case: &Case) -> Option<Machine> {
    let Site::Gnomon(seat) = case.site else { return None };
    let BootTest { guest, console, vms, beside, then, icount, meter, qemu, dialog, attempts, expect, .. } = &case.test;
    let BootTest { host_memory, swap, disk, net, set, .. } = &case.test;
    let is_plain = host_memory.is_none() && swap.is_none() && disk.is_none() && !net && set.is_empty();
    // Counters come when the machine ends: there are none of a VM if a later one hangs.
    let Expect { output, absent, boots, .. } = expect;
    let sees_its_vm_only = guest.is_some()
        && case.has_report()
        && (*vms, *boots, attempts.get()) == (1, 1, 1)
        && console.is_none()
        && !icount
        && meter.is_none()
        && beside.is_empty()
        && then.is_empty()
        && qemu.is_empty()
        && is_plain
        && dialog.is_empty()
        && output.is_empty()
        && absent.is_empty()
        && case.counters().next().is_none();
    sees_its_vm_only.then_some((seat, case.harts, case.variant.h))
}

/// Puts cases into chains; those that share with none are chains of one. Each keeps the order of the cases, and those next to
/// each other are dealt to different chains, since they are of one test: so a chain has various ones, and takes about as long
/// as the next. It is always the same for the same cases, and a chain's cases alone are that chain again.
#[must_use]
pub fn chains(cases: &[Case]) -> Vec<Vec<&Case>> {
    let mut shared: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut alone = Vec::new();
    for case in cases {
        match machine(case) {
            Some((seat, harts, h)) => shared.entry((seat.name(), harts, h)).or_default().push(case),
            None => alone.push(vec![case]),
        }
    }
    let deal = |cases: Vec<_>| {
        let chains = cases.len().div_ceil(MOST);
        (0..chains).map(move |first| cases.iter().copied().skip(first).step_by(chains).collect()).collect::<Vec<_>>()
    };
    shared.into_values().flat_map(deal).chain(alone).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    fn names(chains: &[Vec<&Case>]) -> Vec<Vec<String>> {
        chains.iter().map(|chain| chain.iter().map(|case| case.name()).collect()).collect()
    }

    #[test]
    fn those_with_a_machine_in_common_are_chained() {
        let text = "[a]\nabout = ''\nguest = 'x'\nmmu = ['two-stage', 'lazy']\nh = [true, false]\nvariants = 'full'\n\
                    on = ['gnomon', 'bare']\n[b]\nabout = ''\nguest = 'y'\nharts = [1, 2]\nmemory = '128M'\n\
                    seats = ['firmware']\nvcpus = 3\n";
        let cases = plan(text).expect("a plan");
        let expected = [
            vec!["a/firmware/1/two-stage", "a/firmware/1/lazy", "b/firmware/1"],
            vec!["a/firmware/1/lazy-noh"],
            vec!["b/firmware/2"],
            vec!["a/payload/1/two-stage", "a/payload/1/lazy"],
            vec!["a/bare/1"],
        ];
        assert_eq!(names(&chains(&cases)), expected);
    }

    #[test]
    fn chains_are_short_mixed_and_come_again() {
        let tests = (0..5).map(|test| {
            let modes = "mmu = ['two-stage', 'shadow', 'unsync', 'lazy']\nvariants = 'full'";
            format!("[t{test}]\nabout = ''\nguest = 'x'\nseats = ['firmware']\n{modes}\n")
        });
        let cases = plan(&tests.collect::<String>()).expect("a plan");
        let chains = chains(&cases);
        assert_eq!(chains.iter().map(Vec::len).collect::<Vec<_>>(), [7, 7, 6]);
        let mut all: Vec<_> = names(&chains).concat();
        all.sort();
        let mut expected: Vec<_> = cases.iter().map(Case::name).collect();
        expected.sort();
        assert_eq!(all, expected);
        for chain in names(&chains) {
            let again: Vec<Case> = cases.iter().filter(|case| chain.contains(&case.name())).cloned().collect();
            assert_eq!(names(&super::chains(&again)), [chain]);
        }
    }

    #[test]
    fn what_looks_at_the_whole_machine_is_alone() {
        let base = "[a]\nabout = ''\nguest = 'x'\n";
        let of = |text: &str| machine(&plan(&format!("{base}{text}")).expect("a plan")[0]).is_some();
        assert!(
            of("") && of("svadu = true\nsuperpages = false\nshadow = '1M'\nvcpus = 4\nappend = 'x'\ntimeout = 9\n")
        );
        for more in [
            "beside = [{ guest = 'y' }]",
            "then = [{ guest = 'y' }]",
            "icount = true",
            "meter = 'check'",
            "qemu = ['-cpu', 'rv64']",
            "dialog = [{ wait = 'a', type = 'b' }]",
            "attempts = 2",
            "on = ['bare']",
            "net = true",
            "expect.end = 'failure'",
            "expect.boots = 2",
            "expect.output = ['x']",
            "expect.absent = ['x']",
            "expect.counters = ['a == 1']",
            "expect.until = { text = 'x', count = 1 }",
        ] {
            assert!(!of(&format!("{more}\n")), "{more}");
        }
        assert!(machine(&plan("[a]\nabout = ''\nkernel = 'u-boot'\n").expect("a plan")[0]).is_none());
    }
}
