//! Rules of credentials, as `credentials(7)` and `capabilities(7)` have them.

use super::{ALL, Birth, Capability, Change, Credentials, EXECUTE, READ, WRITE, Which};
use crate::errno::Errno;
use crate::fs::{Kind, Status};

fn user(id: u32) -> Credentials {
    let mut user = Credentials::default();
    user.change(Which::Groups, Change::One(id)).expect("root may");
    user.change(Which::Users, Change::One(id)).expect("root may");
    user
}

fn file(uid: u32, gid: u32, mode: u32) -> Status {
    Status { uid, gid, ..Status::plain((1, 1), Kind::File, mode) }
}

fn directory(uid: u32, gid: u32, mode: u32) -> Status {
    Status { uid, gid, ..Status::plain((1, 1), Kind::Directory, mode) }
}

#[test]
fn users_change_by_the_rules() {
    let root = Credentials::default();
    let mut one = user(5);
    assert_eq!((one.effective, one.permitted, one.users.saved), (0, 0, 5));
    assert_eq!(one.change(Which::Users, Change::One(0)), Err(Errno::PERM));
    assert_eq!(one.change(Which::Users, Change::Two(None, Some(6))), Err(Errno::PERM));
    // The saved user is the way back.
    let mut changed = root.clone();
    changed.change(Which::Users, Change::Three([None, Some(7), None])).expect("root may");
    assert_eq!((changed.effective, changed.permitted, changed.users.fs), (0, ALL, 7));
    changed.change(Which::Users, Change::One(0)).expect("the real one");
    assert_eq!((changed.effective, changed.users.fs), (ALL, 0));
    changed.change(Which::Users, Change::Two(Some(8), Some(9))).expect("root may");
    assert_eq!((changed.users.saved, changed.permitted), (9, 0));
    assert_eq!(changed.change(Which::Users, Change::Two(Some(9), Some(8))), Ok(()));
    assert_eq!(changed.users.saved, 8);
    // Users of files alone take what files need.
    let mut files = root;
    files.change(Which::Users, Change::Files(5)).expect("root may");
    assert!(!files.can(Capability::DacOverride) && files.can(Capability::Setuid));
    files.change(Which::Users, Change::Files(0)).expect("the real one");
    assert_eq!(files.effective, ALL);
    assert_eq!(one.change(Which::Users, Change::Files(6)), Err(Errno::PERM));
}

#[test]
fn files_are_reached_by_the_first_digit_that_fits() {
    let (root, one) = (Credentials::default(), user(5));
    let own = file(5, 9, 0o077);
    assert_eq!(one.check(&own, READ), Err(Errno::ACCES));
    assert_eq!(one.check(&file(6, 5, 0o706), READ), Err(Errno::ACCES));
    assert_eq!(one.check(&file(6, 6, 0o006), READ | WRITE), Ok(()));
    let mut member = user(5);
    member.further = [6, 7].into();
    assert_eq!(member.check(&file(6, 7, 0o040), READ), Ok(()));
    // Root reads and writes all, and executes what is a program for one of them.
    assert_eq!(root.check(&own, READ | WRITE), Ok(()));
    assert_eq!(
        (root.check(&file(5, 5, 0o600), EXECUTE), root.check(&file(5, 5, 0o001), EXECUTE)),
        (Err(Errno::ACCES), Ok(()))
    );
    assert_eq!(
        (root.check(&directory(5, 5, 0), EXECUTE), one.check_search(|| directory(6, 6, 0o776))),
        (Ok(()), Err(Errno::ACCES))
    );
}

#[test]
fn names_in_sticky_directories_are_their_owners() {
    let one = user(5);
    let sticky = directory(0, 0, 0o1777);
    assert_eq!(one.check_removal(&sticky, &file(6, 6, 0o666)), Err(Errno::PERM));
    assert_eq!(one.check_removal(&sticky, &file(5, 6, 0)), Ok(()));
    assert_eq!(one.check_removal(&directory(5, 0, 0o1777), &file(6, 6, 0)), Ok(()));
    assert_eq!(one.check_removal(&directory(0, 0, 0o755), &file(5, 5, 0)), Err(Errno::ACCES));
}

#[test]
fn modes_and_owners_change_by_the_rules() {
    let one = user(5);
    assert_eq!(one.mode(&file(6, 5, 0), 0o644), Err(Errno::PERM));
    assert_eq!(one.mode(&file(5, 9, 0), 0o2755), Ok(0o755));
    assert_eq!(one.owner(&file(5, 5, 0o6755), None, Some(5)), Ok(0o755));
    assert_eq!(one.owner(&file(5, 5, 0), Some(6), None), Err(Errno::PERM));
    assert_eq!(one.owner(&file(5, 5, 0), None, Some(9)), Err(Errno::PERM));
    assert_eq!(Credentials::default().owner(&file(5, 5, 0o6644), Some(1), None), Ok(0o2644));
    // A directory with set-group-id gives its group on.
    assert_eq!(one.birth(&directory(0, 9, 0o2777), true, 0o755), Birth { mode: 0o2755, uid: 5, gid: 9 });
    assert_eq!(one.birth(&directory(0, 9, 0o2777), false, 0o2755), Birth { mode: 0o755, uid: 5, gid: 9 });
    assert_eq!(one.birth(&directory(0, 9, 0o777), false, 0o644), Birth { mode: 0o644, uid: 5, gid: 5 });
}

#[test]
fn programs_get_what_their_file_says() {
    let one = user(5);
    let (same, is_more) = one.for_program(&file(0, 0, 0o755));
    assert!(same == one && !is_more);
    let (root, is_more) = one.for_program(&file(0, 0, 0o4755));
    assert!(is_more && root.effective == ALL && root.users.real == 5 && root.users.saved == 0);
    let (group, _) = one.for_program(&file(0, 7, 0o2755));
    assert_eq!((group.groups.effective, group.users.effective, group.effective), (7, 5, 0));
    let mut bound = one;
    bound.gets_no_more = true;
    assert!(!bound.for_program(&file(0, 0, 0o6755)).1);
    assert!(bound.may_signal(&user(5)) && !bound.may_signal(&user(6)) && root.may_signal(&user(6)));
}
