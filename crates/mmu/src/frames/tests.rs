use super::*;
use core::sync::atomic::AtomicU64;
use rv::{Addr, PAGE_BYTES};

const VM: Owner = Owner::Vm(3);

fn frames(first: u64, pages: u64) -> Frames {
    let mut frames = Frames::new();
    frames.add(Pfn::new(first), pages);
    frames
}

#[test]
fn guest_memory_leaves_the_frames_of_tables_alone() {
    let mut frames = Frames::new();
    frames.add(Pfn::new(0x1000), 64);
    frames.set_limit(VM, 10);
    frames.set_guest_limit(VM, 6);
    let alloc = |for_, order| frames.alloc(VM, for_, order);
    let mut taken =
        alloc::vec![alloc(Use::Guest, 2).unwrap(), alloc(Use::Guest, 0).unwrap(), alloc(Use::Guest, 0).unwrap()];
    assert_eq!(alloc(Use::Guest, 0), Err(AllocError::OverLimit { owner: VM, limit: 6 }));
    assert!(!frames.has_room(VM, 1));
    taken.extend([alloc(Use::Table, 1).unwrap(), alloc(Use::Table, 1).unwrap()]);
    assert_eq!(alloc(Use::Table, 0), Err(AllocError::OverLimit { owner: VM, limit: 10 }));
    // A refusal by either limit leaves both sums as they were.
    frames.free(taken.remove(0));
    assert_eq!((frames.usage(VM).guest, frames.usage(VM).total()), (2, 6));
    assert!(frames.has_room(VM, 4) && !frames.has_room(VM, 5));
    frames.set_limit(VM, 7);
    assert_eq!(alloc(Use::Guest, 1), Err(AllocError::OverLimit { owner: VM, limit: 7 }));
    assert_eq!((frames.usage(VM).guest, frames.usage(VM).total()), (2, 6));
    taken.into_iter().for_each(|run| frames.free(run));
    assert_eq!(frames.free_count(), 64);
}

#[test]
fn a_run_is_aligned_charged_and_given_back() {
    let frames = frames(0x8_0001, 2000);
    let run = frames.alloc(VM, Use::Guest, 9).unwrap();
    assert!(run.first().is_aligned(512));
    assert_eq!((frames.usage(VM).guest, frames.usage(VM).total(), frames.free_count()), (512, 512, 1488));
    assert_eq!(frames.owner_of(run.first().add(511)), Some((VM, Use::Guest)));
    assert_eq!(frames.owner_of(run.first().add(512)), None);
    frames.free(run);
    assert_eq!((frames.usage(VM).total(), frames.free_count()), (0, 2000));
}

#[test]
fn the_blame_is_the_owners_or_the_hosts() {
    let frames = frames(0, 4);
    frames.set_limit(VM, 2);
    let run = frames.alloc(VM, Use::Table, 1).unwrap();
    assert_eq!(frames.alloc(VM, Use::Guest, 0), Err(AllocError::OverLimit { owner: VM, limit: 2 }));
    assert_eq!(frames.alloc(Owner::Host, Use::Other, 2), Err(AllocError::OutOfMemory));
    assert_eq!(frames.alloc(Owner::Host, Use::Other, 60), Err(AllocError::OutOfMemory));
    assert_eq!((frames.usage(VM).table, frames.usage(Owner::Host).total(), frames.free_count()), (2, 0, 2));
    frames.free(run);
}

#[test]
fn halves_of_a_run_are_freed_on_their_own_and_join_again() {
    let frames = frames(0, 8);
    let run = frames.alloc(VM, Use::Guest, 3).unwrap();
    let (low, high) = run.split().unwrap();
    assert_eq!((low.first().raw(), high.first().raw(), low.pages()), (0, 4, 4));
    frames.free(low);
    assert_eq!(frames.usage(VM).guest, 4);
    frames.free(high);
    let whole = frames.alloc(VM, Use::Guest, 3).unwrap();
    let single = Run::from_entry(whole.into_entry(), 0);
    assert!(single.split().is_err());
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_second_free_is_a_bug() {
    let frames = frames(0, 8);
    let run = frames.alloc(VM, Use::Guest, 0).unwrap();
    let again = Run::from_entry(run.first(), 0);
    frames.free(run);
    frames.free(again);
}

#[test]
#[should_panic(expected = "not of one owner")]
fn freeing_beyond_the_run_is_a_bug() {
    let frames = frames(0, 8);
    let run = frames.alloc(VM, Use::Guest, 0).unwrap();
    frames.free(Run::from_entry(run.first(), 1));
}

#[test]
#[should_panic(expected = "added twice")]
fn ram_is_added_once() {
    frames(10, 10).add(Pfn::new(19), 1);
}

#[test]
fn a_run_may_lie_in_ram_added_piecewise() {
    let mut frames = frames(4, 4);
    frames.add(Pfn::new(0), 4);
    frames.add(Pfn::new(16), 2);
    frames.add(Pfn::new(8), 8);
    assert_eq!(frames.total_count(), 18);
    // Freed one by one, the frames join across what were borders.
    let all: Vec<Run> = (0..18).map(|_| frames.alloc(VM, Use::Other, 0).unwrap()).collect();
    all.into_iter().for_each(|run| frames.free(run));
    let run = frames.alloc(VM, Use::Other, 4).unwrap();
    assert_eq!(frames.owner_of(run.first().add(15)), Some((VM, Use::Other)));
    frames.free(run);
}

#[test]
fn what_is_taken_ahead_is_charged_when_it_is_claimed() {
    let frames = frames(0, 64);
    frames.set_limit(VM, 20);
    let ahead = frames.take_ahead(4).unwrap();
    assert_eq!((frames.usage(VM).total(), frames.owner_of(ahead.first())), (0, None));
    let run = frames.claim(ahead, VM, Use::Guest).unwrap();
    assert_eq!((frames.usage(VM).guest, frames.owner_of(run.first())), (16, Some((VM, Use::Guest))));
    let more = frames.take_ahead(4).unwrap();
    assert_eq!(frames.claim(more, VM, Use::Guest), Err(AllocError::OverLimit { owner: VM, limit: 20 }));
    // A run for the one hart that there is, and as much again for small allocations.
    assert_eq!(frames.take_ahead(5), None);
    frames.free(run);
    let half = frames.take_ahead(5).unwrap();
    frames.put_back(half);
}

#[test]
fn what_another_hart_has_given_back_is_had_before_memory_is_out() {
    let mut harts = frames(0, 64).share(3);
    let (third, second) = (harts.pop().unwrap(), harts.pop().unwrap());
    let all: Vec<Run> = (0..64).map(|_| second.alloc(VM, Use::Guest, 0).unwrap()).collect();
    assert_eq!(third.alloc(VM, Use::Guest, 0), Err(AllocError::OutOfMemory));
    all.into_iter().for_each(|run| second.free(run));
    assert_eq!(third.free_count(), 64);
    let whole = third.alloc(VM, Use::Guest, 6).unwrap();
    assert_eq!((harts[0].usage(VM).guest, second.free_count()), (64, 0));
    third.free(whole);
}

#[test]
fn memory_is_out_only_when_nothing_is_left_anywhere() {
    extern crate std;
    // As much as all harts together hold at most: no allocation may fail, whichever harts freed the last frames.
    for (order, held) in [(0, 3), (3, 2), (7, 2), (8, 1), (MEGA_ORDER, 1)] {
        let harts = frames(0, (4 * held) << order).share(4);
        std::thread::scope(|scope| {
            for hart in &harts {
                scope.spawn(move || {
                    let mut mine = alloc::collections::VecDeque::new();
                    for _ in 0..30_000_u32 {
                        mine.push_back(hart.alloc(VM, Use::Guest, order).unwrap());
                        if mine.len() as u64 == held {
                            hart.free(mine.pop_front().unwrap());
                        }
                    }
                    mine.into_iter().for_each(|run| hart.free(run));
                });
            }
        });
        assert_eq!(harts[0].free_count(), harts[0].total_count());
    }
}

#[test]
fn singles_leave_blocks_whole() {
    let harts = frames(0, 8 * 512).share(2);
    let mut singles: Vec<Run> = (0..600).map(|n| harts[n % 2].alloc(VM, Use::Guest, 0).unwrap()).collect();
    let all: Vec<Run> = core::iter::from_fn(|| harts[0].alloc(VM, Use::Guest, MEGA_ORDER).ok()).collect();
    assert_eq!(all.len(), 6, "each hart has begun one block");
    all.into_iter().for_each(|run| harts[0].free(run));
    // The other hart goes on in a block that has room again, rather than in a whole one.
    let kept = singles.split_off(200);
    singles.into_iter().for_each(|run| harts[0].free(run));
    let more: Vec<Run> = (0..600).map(|_| harts[1].alloc(VM, Use::Guest, 0).unwrap()).collect();
    let all: Vec<Run> = core::iter::from_fn(|| harts[0].alloc(VM, Use::Guest, MEGA_ORDER).ok()).collect();
    assert_eq!(all.len(), 6);
    kept.into_iter().chain(more).chain(all).for_each(|run| harts[0].free(run));
    assert_eq!(harts[1].free_count(), 8 * 512);
}

#[test]
fn runs_do_not_span_gaps_of_ram() {
    let mut frames = frames(1024, 1024);
    frames.add(Pfn::new(4096), 1024);
    assert_eq!(frames.alloc(VM, Use::Guest, 11), Err(AllocError::OutOfMemory));
    let (low, high) = (frames.alloc(VM, Use::Guest, 10).unwrap(), frames.alloc(VM, Use::Guest, 10).unwrap());
    assert_eq!((low.first().raw(), high.first().raw(), frames.free_count()), (1024, 4096, 0));
    frames.free(high);
    frames.free(low);
    assert_eq!(frames.free_count(), 2048);
}

#[test]
fn a_run_that_is_free_in_part_is_no_run() {
    let frames = frames(0, 512);
    let singles: Vec<Run> = (0..512).map(|_| frames.alloc(VM, Use::Guest, 0).unwrap()).collect();
    // Of each run of 128 or 256 frames the beginning is free, and nothing else.
    let (kept, freed): (Vec<Run>, Vec<Run>) = singles.into_iter().partition(|run| run.first().raw() % 128 >= 100);
    freed.into_iter().for_each(|run| frames.free(run));
    for order in 7..10 {
        assert_eq!(frames.alloc(VM, Use::Guest, order), Err(AllocError::OutOfMemory), "{order}");
    }
    kept.into_iter().for_each(|run| frames.free(run));
    let whole = frames.alloc(VM, Use::Guest, 9).unwrap();
    frames.free(whole);
}

#[test]
fn harts_take_and_give_at_once_and_nothing_is_lost() {
    extern crate std;
    const FRAMES: u64 = 4096;
    let harts = frames(0, FRAMES).share(4);
    harts[0].set_limit(VM, 3000);
    std::thread::scope(|scope| {
        for hart in &harts {
            scope.spawn(move || {
                let mut mine = Vec::new();
                for round in 0..20_000_u64 {
                    let order = if round % 7 == 0 { 4 } else { 0 };
                    match hart.alloc(VM, Use::Guest, order) {
                        Ok(run) => mine.push(run),
                        Err(_) => mine.drain(..).for_each(|run| hart.free(run)),
                    }
                    if round % 3 == 0 && mine.len() > 100 {
                        hart.free(mine.swap_remove((round % 100) as usize));
                    }
                    assert!(hart.usage(VM).guest <= 3000 + 4 * 16);
                }
                mine.into_iter().for_each(|run| hart.free(run));
            });
        }
    });
    assert_eq!((harts[1].usage(VM), harts[2].free_count()), (Usage::default(), FRAMES));
    let whole = harts[3].alloc(VM, Use::Guest, 11).unwrap();
    harts[3].free(whole);
}

fn lend(frames: &Frames, run: &Run) -> Loan {
    let mut loan = frames.lend(8);
    assert!(loan.add(run.first().base(), (run.pages() * PAGE_BYTES) as usize));
    loan
}

#[test]
fn what_is_lent_is_nobody_elses_until_the_last_loan_ends() {
    let frames = frames(0, 4);
    let [first, second] = [0, 0].map(|order| frames.alloc(VM, Use::Guest, order).unwrap());
    let rest = frames.alloc(VM, Use::Guest, 1).unwrap();
    let (one, two, third) = (lend(&frames, &first), lend(&frames, &first), lend(&frames, &second));
    let (frame, other) = (first.first(), second.first());
    assert_eq!(frames.owner_of(frame), Some((VM, Use::Guest)));
    frames.free(first);
    assert_eq!((frames.usage(VM).guest, frames.usage(Owner::Host).other, frames.owner_of(frame)), (3, 1, None));
    assert_eq!(frames.alloc(VM, Use::Guest, 0), Err(AllocError::OutOfMemory));
    drop(one);
    assert_eq!(frames.alloc(VM, Use::Guest, 0), Err(AllocError::OutOfMemory));
    drop(two);
    let again = frames.alloc(VM, Use::Guest, 0).unwrap();
    assert_eq!(
        (again.first(), frames.usage(Owner::Host).total(), frames.owner_of(other)),
        (frame, 0, Some((VM, Use::Guest)))
    );
    drop(third);
    [again, second, rest].into_iter().for_each(|run| frames.free(run));
    assert_eq!(frames.free_count(), 4);
    let whole = frames.alloc(VM, Use::Guest, 2).unwrap();
    frames.free(whole);
}

#[test]
#[should_panic(expected = "freed twice")]
fn what_is_late_is_not_freed_again() {
    let frames = frames(0, 8);
    let run = frames.alloc(VM, Use::Guest, 0).unwrap();
    let again = Run::from_entry(run.first(), 0);
    let _loan = lend(&frames, &run);
    frames.free(run);
    frames.free(again);
}

#[test]
fn of_a_run_only_what_is_lent_is_late() {
    let frames = frames(0, 2048);
    let run = frames.alloc(VM, Use::Guest, 11).unwrap();
    let mut loan = frames.lend(2);
    // Over the border of the second and third 2 MiB, and frames that the allocator does not have.
    assert!(loan.add(Addr::new((1024 << 12) - 100), 200) && loan.add(Addr::new(1 << 40), 5));
    frames.free(run);
    assert_eq!((frames.free_count(), frames.usage(Owner::Host).other), (2046, 2));
    let taken: Vec<Run> = core::iter::from_fn(|| frames.alloc(VM, Use::Guest, 0).ok()).collect();
    assert!(taken.len() == 2046 && taken.iter().all(|run| !(1023..1025).contains(&run.first().raw())));
    drop(loan);
    taken.into_iter().for_each(|run| frames.free(run));
    let run = frames.alloc(VM, Use::Guest, 11).unwrap();
    frames.free(run);
}

#[test]
fn a_frame_counts_each_piece_once_whatever_is_cut_off() {
    let frames = frames(0, 8);
    let run = frames.alloc(VM, Use::Guest, 3).unwrap();
    let mut loan = frames.lend(8);
    // Twice in frame 0, by pieces that do not follow each other; then one that grows over the border of 1 and 2, up to the end of 3.
    for (start, bytes) in [(0, 100), (1000, 100), (8000, 100), (8100, 192), (8292, 8092)] {
        assert!(loan.add(Addr::new(start), bytes));
    }
    assert_eq!((loan.pieces().len(), loan.bytes()), (3, 8584));
    frames.free(run);
    let late = || 8 - frames.free_count();
    assert_eq!(late(), 4);
    for (bytes, left) in [(8392, 4), (396, 3), (392, 2), (300, 2), (200, 1), (100, 1), (0, 0)] {
        loan.cut(bytes);
        assert_eq!((late(), loan.bytes()), (left, bytes));
    }
    drop(loan);
    assert_eq!((frames.free_count(), frames.usage(Owner::Host).total()), (8, 0));
}

#[test]
fn pieces_that_follow_each_other_are_one() {
    let mut loan = frames(0, 4).lend(3);
    let at = |n: u64| Addr::new(n);
    assert!(loan.add(at(0x1000), 0x800) && loan.add(at(0x1800), 0x1000) && loan.add(at(0x100), 1));
    assert!(loan.add(at(0x3000), 0x200) && loan.add(at(0x3200), 0x200) && !loan.add(at(0x9000), 1));
    let piece = |n, bytes| Piece { start: at(n), bytes };
    assert_eq!(loan.pieces(), [piece(0x1000, 0x1800), piece(0x100, 1), piece(0x3000, 0x400)]);
    assert_eq!(loan.bytes(), 0x1c01);
    loan.cut(0x1c01);
    loan.cut(0x1a00);
    assert_eq!((loan.pieces().last().copied(), loan.bytes()), (Some(piece(0x3000, 0x1ff)), 0x1a00));
    loan.cut(0x1800);
    assert_eq!((loan.pieces(), loan.bytes()), (&[piece(0x1000, 0x1800)][..], 0x1800));
    loan.cut(0);
    assert_eq!((loan.pieces().len(), loan.bytes()), (0, 0));
}

#[test]
fn harts_lend_and_free_at_once_and_nothing_is_lost() {
    extern crate std;
    let harts = frames(0, 2048).share(4);
    let lent: [AtomicU64; 2048] = core::array::from_fn(|_| AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (n, hart) in harts.iter().enumerate() {
            let lent = &lent;
            scope.spawn(move || {
                let (mut mine, mut loans) = (Vec::new(), Vec::new());
                for round in 0..20_000_usize {
                    match hart.alloc(VM, Use::Guest, 0) {
                        Ok(run) => {
                            assert_eq!(lent[run.first().raw() as usize].load(Relaxed), 0, "it is on loan");
                            mine.push(run);
                        }
                        Err(_) => loans.clear(),
                    }
                    if let Some(run) = mine.get(round * 7 % 100) {
                        let at = &lent[run.first().raw() as usize];
                        let mut loan = hart.lend(1);
                        if loan.add(run.first().base(), 4096) {
                            at.fetch_add(1, Relaxed);
                            loans.push(Lent { loan, at });
                        }
                    }
                    if mine.len() > 100 + 50 * n {
                        hart.free(mine.swap_remove(round % 100));
                    }
                    if loans.len() > 5 {
                        loans.remove(0);
                    }
                }
                mine.into_iter().for_each(|run| hart.free(run));
            });
        }
    });
    assert_eq!((harts[1].free_count(), harts[2].usage(Owner::Host).total()), (2048, 0));
}

#[test]
fn what_is_late_is_the_hosts_before_its_loan_can_end() {
    extern crate std;
    let harts = frames(0, 64).share(2);
    let [lender, device] = &harts[..] else { unreachable!() };
    let (loans, lent) = std::sync::mpsc::sync_channel::<Loan>(64);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for loan in lent {
                drop(loan);
                let (late, of_host) = (device.late_count(), device.usage(Owner::Host));
                assert!(late <= 64 && of_host.other <= 64 && of_host.total() <= 64, "{late} late, {of_host:?}");
            }
        });
        for _ in 0..300_000 {
            let Ok(run) = lender.alloc(VM, Use::Guest, 0) else { continue };
            loans.send(lend(lender, &run)).unwrap();
            lender.free(run);
        }
        drop(loans);
    });
    assert_eq!((lender.free_count(), lender.late_count(), lender.usage(Owner::Host).total()), (64, 0, 0));
}

/// A loan, and the count of those of its frame.
struct Lent<'a> {
    #[expect(dead_code, reason = "it ends when it is dropped")]
    loan: Loan,
    at: &'a AtomicU64,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // Before the loan's own end, which comes next.
        self.at.fetch_sub(1, Relaxed);
    }
}
