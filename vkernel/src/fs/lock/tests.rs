//! Locks against a model: an owner and a mode for each byte.

use super::{Held, Kind, Lock, Owner, Request, Table, Waiting};
use crate::errno::Errno;
use crate::fs::{Kind as NodeKind, Status};
use proptest::prelude::*;

const BYTES: u64 = 12;
const OWNERS: u32 = 3;

fn lock(owner: u32, first: u64, last: u64, is_exclusive: bool) -> Lock {
    Lock { owner: Owner::Process(owner), first, last, is_exclusive }
}

proptest! {
    #[test]
    fn ranges_are_as_in_a_model(edits in prop::collection::vec((0..OWNERS, 0..BYTES, 0..BYTES, 0..3u8), 1..40)) {
        let mut held = Held::default();
        let mut model = [[None; BYTES as usize]; OWNERS as usize];
        for (owner, a, b, mode) in edits {
            let wanted = lock(owner, a.min(b), a.max(b), mode == 1);
            let range = wanted.first as usize..=wanted.last as usize;
            if mode == 2 {
                held.clear(&wanted);
                model[owner as usize][range].fill(None);
                continue;
            }
            let is_free = model.iter().enumerate().filter(|(other, _)| *other != owner as usize).all(|(_, bytes)| {
                bytes[range.clone()].iter().flatten().all(|exclusive| !exclusive && !wanted.is_exclusive)
            });
            prop_assert_eq!(held.conflict(&wanted).is_none(), is_free);
            if is_free {
                held.set(wanted);
                model[owner as usize][range].fill(Some(wanted.is_exclusive));
            }
            for (owner, bytes) in model.iter().enumerate() {
                for (at, mode) in bytes.iter().enumerate() {
                    let at = at as u64;
                    let found = held.0.iter().filter(|lock| lock.owner == Owner::Process(owner as u32) && (lock.first..=lock.last).contains(&at));
                    let found: Vec<_> = found.map(|lock| lock.is_exclusive).collect();
                    prop_assert_eq!(found, mode.iter().copied().collect::<Vec<_>>());
                }
            }
            // Neighbours of one kind are one lock.
            for one in &held.0 {
                let next = held.0.iter().find(|next| next.owner == one.owner && next.first == one.last + 1);
                prop_assert!(next.is_none_or(|next| next.is_exclusive != one.is_exclusive));
            }
        }
    }
}

#[test]
fn circles_are_found() {
    let mut table = Table::default();
    let key = |file| ((1, file), Kind::Range);
    for owner in 1..=3u32 {
        table.change(key(owner.into()), |held| held.set(lock(owner, 0, 0, true)));
    }
    // 1 waits for 2, and 2 for 3.
    for owner in 1..3u32 {
        let wanted = lock(owner, 0, Lock::END, true);
        table.waiting.insert(owner, Waiting { key: key(u64::from(owner) + 1), lock: wanted });
    }
    assert!(table.is_circle(Owner::Process(3), Owner::Process(1)));
    assert!(!table.is_circle(Owner::Process(4), Owner::Process(1)));
    table.waiting.remove(&2);
    assert!(!table.is_circle(Owner::Process(3), Owner::Process(1)));
}

#[test]
fn a_lock_that_cannot_be_converted_is_lost() {
    let status = Status::plain((77, 1), NodeKind::File, 0);
    let request = |owner, exclusive| Request::new(&status, Kind::Whole, Lock::whole(Owner::File(owner), exclusive));
    assert_eq!((request(1, false).take(), request(2, false).take()), (Ok(()), Ok(())));
    assert_eq!(request(1, true).take(), Err(Errno::AGAIN));
    assert_eq!(request(2, true).take(), Ok(()));
    assert_eq!((request(2, true).release(), request(1, true).take()), (Ok(()), Ok(())));
    assert_eq!((request(1, true).release(), request(1, true).conflict()), (Ok(()), None));
}
