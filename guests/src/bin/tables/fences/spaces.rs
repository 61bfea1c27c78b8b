//! Several address spaces on one hart.

use super::{PAGE, ensure_gone, ensure_shows, marked};
use core::sync::atomic::Ordering::Relaxed;
use guests::fences;
use guests::paging::{self, Page, RW, Space, TEST_VA, leaf};
use guests::{Check, access, ensure_eq, ram};
use metal::fence;
use rv::{Format, Level};

/// From space A to B and back, A's tables edited in between: in A before leaving, or in B; the fence in
/// A before leaving, in B, or back in A.
pub fn there_and_back(format: &'static Format) -> Check {
    let pages = [marked(60), marked(61), marked(62)];
    let (a, b) = (Space::new(format, 11), Space::new(format, 12));
    let slot = a.slot(TEST_VA, Level::PAGE);
    b.map(TEST_VA, pages[2].address(), RW);
    a.enter();
    let mut number = 0;
    for fence in fences::all() {
        // When the edit is made, and when the fence: 0 in A, 1 in B, 2 back in A.
        for (edited, fenced) in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)] {
            number = 1 - number;
            let step = |now: u32| {
                if edited == now {
                    slot.store(leaf(pages[number as usize].address(), RW), Relaxed);
                }
                if fenced == now {
                    fence.make(TEST_VA, 11);
                }
            };
            step(0);
            b.switch();
            ensure_shows(TEST_VA, 62, &fence, "in the other space")?;
            step(1);
            ensure_shows(TEST_VA, 62, &fence, "in the other space after the fence")?;
            a.switch();
            step(2);
            ensure_shows(TEST_VA, 60 + number, &fence, "back")?;
        }
        // Unmapped from afar, and mapped again.
        b.switch();
        slot.store(0, Relaxed);
        fence.make(TEST_VA, 11);
        a.switch();
        ensure_gone(TEST_VA, &fence, "unmapped from the other space")?;
        b.switch();
        slot.store(leaf(pages[number as usize].address(), RW), Relaxed);
        fence.make(TEST_VA, 11);
        a.switch();
        ensure_shows(TEST_VA, 60 + number, &fence, "mapped again from the other space")?;
    }
    Ok(())
}

/// An ASID is given to one root after the other, fenced at the change: just before `satp` is written, just
/// after, or from another space.
///
/// Between a fence and the write of `satp` behind it a hart walks for its code, and may remember the pointers on that way for the
/// ASID. So the address shares none with the code.
pub fn asid_reused(format: &'static Format) -> Check {
    const ASID: u64 = 13;
    let at = TEST_VA.max(1 << format.root_level().shift());
    let spaces: [Space; 4] = core::array::from_fn(|number| {
        let space = Space::new(format, ASID);
        space.map(at, marked(70 + number as u64).address(), RW);
        // At this address only every other root has something.
        if number % 2 == 0 {
            space.map(at + PAGE, marked(80 + number as u64).address(), RW);
        }
        space
    });
    let between = Space::new(format, 14);
    between.enter();
    for fence in fences::wide() {
        for round in 0..12 {
            let (number, space) = (round % 4, spaces[round % 4]);
            match round % 3 {
                0 => {
                    fence.make(0, ASID);
                    space.switch();
                }
                1 => {
                    space.switch();
                    fence.make(0, ASID);
                }
                _ => {
                    between.switch();
                    fence.make(0, ASID);
                    space.switch();
                }
            }
            ensure_shows(at, 70 + number as u64, &fence, "of the root that has the ASID now")?;
            if number % 2 == 0 {
                ensure_shows(at + PAGE, 80 + number as u64, &fence, "of the root that has the ASID now")?;
            } else {
                ensure_gone(at + PAGE, &fence, "of the root that has the ASID now")?;
            }
        }
    }
    // ASID 0 throughout, as kernels without ASIDs do: a full fence at every switch.
    let zero = spaces.map(|space| space.with_asid(0));
    for round in 0..20 {
        zero[round % 4].switch();
        fence::sfence_all();
        ensure_eq!(access::ld(at), Ok(70 + round as u64 % 4), "with ASID 0");
    }
    Ok(())
}

/// Two ASIDs of one root, and tables that two roots share: an edit is seen in all that were fenced.
pub fn same_asid(format: &'static Format) -> Check {
    let pages = [marked(90), marked(91)];
    let first = Space::new(format, 15);
    let slot = first.slot(TEST_VA, Level::PAGE);
    let second = Space::new(format, 16);
    // The second root leads to the first one's tables below the root.
    let root = format.root_level();
    if root == Level::GIGA {
        second.slot(TEST_VA, root).store(first.slot(TEST_VA, root).load(Relaxed), Relaxed);
    } else {
        second.root().0.iter().zip(&first.root().0).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
    }
    let views = [first, first.with_asid(17), second];
    first.enter();
    for fence in fences::all() {
        for round in 0..6 {
            slot.store(leaf(pages[round % 2].address(), RW), Relaxed);
            for asid in [15, 16, 17] {
                fence.make(TEST_VA, asid);
            }
            for view in views {
                view.switch();
                ensure_shows(TEST_VA, 90 + round as u64 % 2, &fence, "in one of three views")?;
            }
        }
    }
    Ok(())
}

/// The number of live roots: more than fit into small caches of roots.
const ROOTS: usize = 80;

/// Many spaces in turn, without fences but after edits.
pub fn many_roots(format: &'static Format) -> Check {
    // Where there are fewer ASIDs than spaces, a fence at each switch stands in.
    let has_asids = paging::asid_bits() >= 8;
    let marks: [&Page; 8] = core::array::from_fn(|number| marked(100 + number as u64));
    // Where `shift` is, each space shows the page with its own number plus that.
    let show = |space: &Space, number: usize, shift: usize| {
        space.map(TEST_VA, marks[(number + shift) % 8].address(), RW);
    };
    let spaces: [Space; ROOTS] = core::array::from_fn(|number| {
        let space = Space::rooted(&ram::pages(1)[0], format, 100 + number as u64);
        show(&space, number, 0);
        space
    });
    fence::sfence_all();
    let ensure_all_show = |shift: usize, what: &str| {
        for step in 0..ROOTS {
            let number = step * 37 % ROOTS; // in no order
            spaces[number].switch();
            if !has_asids {
                fence::sfence_all();
            }
            let wanted = 100 + (number as u64 + shift as u64) % 8;
            ensure_eq!(access::ld(TEST_VA), Ok(wanted), "space {number}, {what}");
        }
        Ok(())
    };
    for what in ["at first", "again", "and again"] {
        ensure_all_show(0, what)?;
    }
    let shifted = |shift: usize| spaces.iter().enumerate().for_each(|(number, space)| show(space, number, shift));
    shifted(1);
    fence::sfence_all();
    ensure_all_show(1, "after one fence for all")?;
    shifted(2);
    (0..ROOTS as u64).for_each(|number| paging::fence_asid(100 + number));
    ensure_all_show(2, "after a fence for each")?;
    shifted(3);
    paging::fence_page(TEST_VA);
    ensure_all_show(3, "after a fence of the page in all")?;
    for (number, space) in spaces.iter().enumerate() {
        show(space, number, 4);
        paging::fence_page_asid(TEST_VA, 100 + number as u64);
    }
    ensure_all_show(4, "after a fence of the page in each")?;
    // One space's change disturbs no other's.
    show(&spaces[5], 5, 6);
    paging::fence_page_asid(TEST_VA, 105);
    show(&spaces[5], 5, 4);
    paging::fence_page_asid(TEST_VA, 105);
    ensure_all_show(4, "after a change and back in one")
}
