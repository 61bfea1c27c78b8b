//! Users of a system, by its files `/etc/passwd` and `/etc/group`.

use alloc::vec::Vec;

/// A user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The name.
    pub name: Vec<u8>,
    /// The number.
    pub uid: u32,
    /// The number of the user's group.
    pub gid: u32,
    /// The home directory.
    pub home: Vec<u8>,
    /// The login shell.
    pub shell: Vec<u8>,
}

impl User {
    /// The superuser of a system without users.
    #[must_use]
    pub fn root() -> Self {
        Self { name: b"root".into(), uid: 0, gid: 0, home: b"/root".into(), shell: b"/bin/sh".into() }
    }
}

fn number(field: &[u8]) -> Option<u32> {
    core::str::from_utf8(field).ok()?.parse().ok()
}

/// Finds a user in the text of `/etc/passwd`. Lines that are damaged are skipped.
#[must_use]
pub fn find(passwd: &[u8], name: &[u8]) -> Option<User> {
    passwd.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<_> = line.split(|byte| *byte == b':').collect();
        let [known, _, uid, gid, _, home, shell] = fields[..] else { return None };
        if known != name || name.is_empty() {
            return None;
        }
        let shell = if shell.is_empty() { b"/bin/sh" } else { shell };
        let (uid, gid) = (number(uid)?, number(gid)?);
        Some(User { name: known.into(), uid, gid, home: home.into(), shell: shell.into() })
    })
}

/// Returns the groups of a user by the text of `/etc/group`, the user's own first.
#[must_use]
pub fn groups(group: &[u8], user: &User) -> Vec<u32> {
    let mut all = alloc::vec![user.gid];
    for line in group.split(|byte| *byte == b'\n') {
        let fields: Vec<_> = line.split(|byte| *byte == b':').collect();
        let [_, _, gid, members] = fields[..] else { continue };
        let is_member = members.split(|byte| *byte == b',').any(|member| member == user.name);
        all.extend(number(gid).filter(|gid| is_member && !all.contains(gid)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] =
        b"broken\nroot:x:0:0:root:/root:/bin/bash\ngnomon:x:1000:1001:,,,:/home/gnomon:\nodd:x:a:0::/:/x\n";

    #[test]
    fn users_are_found() {
        let root = find(PASSWD, b"root").expect("a user");
        assert_eq!((root.uid, root.home.as_slice(), root.shell.as_slice()), (0, &b"/root"[..], &b"/bin/bash"[..]));
        let user = find(PASSWD, b"gnomon").expect("a user");
        assert_eq!((user.uid, user.gid, user.shell.as_slice()), (1000, 1001, &b"/bin/sh"[..]));
        for name in ["", "odd", "broken", "gno"] {
            assert_eq!(find(PASSWD, name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn groups_are_those_of_members() {
        let user = find(PASSWD, b"gnomon").expect("a user");
        let group = b"root:x:0:\nsudo:x:27:other,gnomon\nown:x:1001:gnomon\nx:x:y:gnomon\nbroken\ntty:x:5:gnomons\n";
        assert_eq!(groups(group, &user), [1001, 27]);
    }
}
