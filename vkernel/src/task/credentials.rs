//! Credentials: users, groups and capabilities of a process, and the rules by which they change and permit (`credentials(7)`,
//! `capabilities(7)`).

use crate::errno::{Errno, Result};
use crate::fs::{Kind, Status};
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

/// A file's bits by which its program runs as its group. Without the group's right to execute, the first is for locks.
const AS_GROUP: u32 = linux::S_ISGID | linux::S_IXGRP;

/// A permission on a file: bits as in the last digit of a mode.
pub type Access = u32;
/// To read, or to list a directory.
pub const READ: Access = linux::R_OK;
/// To write, or to change the names of a directory.
pub const WRITE: Access = linux::W_OK;
/// To execute, or to search a directory.
pub const EXECUTE: Access = linux::X_OK;

/// A capability, by its bit's number in a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "capabilities(7) has them")]
pub enum Capability {
    Chown = 0,
    DacOverride = 1,
    DacReadSearch = 2,
    Fowner = 3,
    Fsetid = 4,
    Kill = 5,
    Setgid = 6,
    Setuid = 7,
    Setpcap = 8,
    NetBindService = 10,
    IpcOwner = 15,
    SysChroot = 18,
    SysPtrace = 19,
    SysAdmin = 21,
    SysBoot = 22,
    SysNice = 23,
    SysResource = 24,
    SysTime = 25,
    Mknod = 27,
}

impl Capability {
    /// Returns the bit in a set.
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// All capabilities of Linux 6.12.
pub const ALL: u64 = (1 << 41) - 1;
/// Capabilities that only accesses to files need: a file-system user that is not root does not have them in effect.
const OF_FILES: u64 = Capability::Chown.bit()
    | Capability::DacOverride.bit()
    | Capability::DacReadSearch.bit()
    | Capability::Fowner.bit()
    | Capability::Fsetid.bit()
    | Capability::Mknod.bit()
    | 1 << 9
    | 1 << 32;

/// The users, or the groups, of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ids {
    /// The real one.
    pub real: u32,
    /// The effective one.
    pub effective: u32,
    /// The saved one.
    pub saved: u32,
    /// The one for accesses to files.
    pub fs: u32,
}

impl Ids {
    /// Returns whether an id is the real, the effective or the saved one.
    #[must_use]
    pub const fn has(&self, id: u32) -> bool {
        id == self.real || id == self.effective || id == self.saved
    }

    fn set_all(&mut self, id: u32) {
        *self = Self { real: id, effective: id, saved: id, fs: id };
    }

    fn set_effective(&mut self, id: u32) {
        (self.effective, self.fs) = (id, id);
    }

    /// `setuid`, `setgid`.
    fn set(&mut self, id: u32, is_privileged: bool) -> Result<()> {
        if is_privileged {
            self.set_all(id);
        } else if id == self.real || id == self.saved {
            self.set_effective(id);
        } else {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    /// `setreuid`, `setregid`; `None` keeps an id.
    fn set_two(&mut self, real: Option<u32>, effective: Option<u32>, is_privileged: bool) -> Result<()> {
        let may_be_real = |id| id == self.real || id == self.effective;
        if !is_privileged && (real.is_some_and(|id| !may_be_real(id)) || effective.is_some_and(|id| !self.has(id))) {
            return Err(Errno::PERM);
        }
        let changes_saved = real.is_some() || effective.is_some_and(|id| id != self.real);
        self.real = real.unwrap_or(self.real);
        self.set_effective(effective.unwrap_or(self.effective));
        if changes_saved {
            self.saved = self.effective;
        }
        Ok(())
    }

    /// `setresuid`, `setresgid`; `None` keeps an id.
    fn set_three(&mut self, ids: [Option<u32>; 3], is_privileged: bool) -> Result<()> {
        if !is_privileged && ids.iter().flatten().any(|id| !self.has(*id)) {
            return Err(Errno::PERM);
        }
        let [real, effective, saved] = ids;
        self.real = real.unwrap_or(self.real);
        self.set_effective(effective.unwrap_or(self.effective));
        self.saved = saved.unwrap_or(self.saved);
        Ok(())
    }
}

/// The ids that a call changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Users.
    Users,
    /// Groups.
    Groups,
}

/// A change of ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// `setuid`, `setgid`.
    One(u32),
    /// `setreuid`, `setregid`.
    Two(Option<u32>, Option<u32>),
    /// `setresuid`, `setresgid`.
    Three([Option<u32>; 3]),
    /// `setfsuid`, `setfsgid`.
    Files(u32),
}

/// The credentials of a process. They do not change: a process gets others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Users.
    pub users: Ids,
    /// Groups.
    pub groups: Ids,
    /// Further groups.
    pub further: Arc<[u32]>,
    /// Capabilities in effect.
    pub effective: u64,
    /// Capabilities that can be put in effect.
    pub permitted: u64,
    /// Capabilities that a program may keep.
    pub inheritable: u64,
    /// Capabilities that a program can get.
    pub bounding: u64,
    /// True if permitted capabilities stay when no user is root any more (`PR_SET_KEEPCAPS`).
    pub keeps_capabilities: bool,
    /// True if no program gets more than it has (`PR_SET_NO_NEW_PRIVS`).
    pub gets_no_more: bool,
}

impl Default for Credentials {
    fn default() -> Self {
        Self {
            users: Ids::default(),
            groups: Ids::default(),
            further: Arc::new([]),
            effective: ALL,
            permitted: ALL,
            inheritable: 0,
            bounding: ALL,
            keeps_capabilities: false,
            gets_no_more: false,
        }
    }
}

impl Credentials {
    /// Returns whether a capability is in effect.
    #[must_use]
    pub const fn can(&self, capability: Capability) -> bool {
        self.effective & capability.bit() != 0
    }

    /// Checks that a capability is in effect.
    ///
    /// # Errors
    /// `EPERM`.
    pub const fn need(&self, capability: Capability) -> Result<()> {
        if self.can(capability) { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Returns whether a group is one of those for accesses to files.
    #[must_use]
    pub fn is_member(&self, group: u32) -> bool {
        self.groups.fs == group || self.further.contains(&group)
    }

    /// Changes users or groups.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn change(&mut self, which: Which, change: Change) -> Result<()> {
        let (capability, ids) = match which {
            Which::Users => (Capability::Setuid, &mut self.users),
            Which::Groups => (Capability::Setgid, &mut self.groups),
        };
        let is_privileged = self.effective & capability.bit() != 0;
        let before = *ids;
        match change {
            Change::One(id) => ids.set(id, is_privileged)?,
            Change::Two(real, effective) => ids.set_two(real, effective, is_privileged)?,
            Change::Three(three) => ids.set_three(three, is_privileged)?,
            Change::Files(id) => {
                if !is_privileged && !ids.has(id) && id != ids.fs {
                    return Err(Errno::PERM);
                }
                ids.fs = id;
            }
        }
        if which == Which::Users {
            self.follow(before, matches!(change, Change::Files(_)));
        }
        Ok(())
    }

    /// Changes capabilities after users have changed.
    fn follow(&mut self, before: Ids, is_for_files: bool) {
        let now = self.users;
        if is_for_files {
            match (before.fs, now.fs) {
                (0, 1..) => self.effective &= !OF_FILES,
                (1.., 0) => self.effective |= self.permitted & OF_FILES,
                _ => {}
            }
            return;
        }
        if before.has(0) && !now.has(0) && !self.keeps_capabilities {
            (self.permitted, self.effective) = (0, 0);
        }
        match (before.effective, now.effective) {
            (0, 1..) => self.effective = 0,
            (1.., 0) => self.effective = self.permitted,
            _ => {}
        }
    }

    /// Sets capabilities (`capset`).
    ///
    /// # Errors
    /// `EPERM`.
    pub fn set_capabilities(&mut self, effective: u64, permitted: u64, inheritable: u64) -> Result<()> {
        let may_inherit = self.inheritable | if self.can(Capability::Setpcap) { self.bounding } else { self.permitted };
        if permitted & !self.permitted != 0 || effective & !permitted != 0 || inheritable & !may_inherit != 0 {
            return Err(Errno::PERM);
        }
        (self.effective, self.permitted, self.inheritable) = (effective & ALL, permitted & ALL, inheritable & ALL);
        Ok(())
    }

    /// Returns whether the real, effective and saved ids of other credentials, of the user and of the group, are all the real ones of these.
    #[must_use]
    pub fn owns_all_ids_of(&self, other: &Self) -> bool {
        let are = |ids: Ids, id: u32| [ids.real, ids.effective, ids.saved] == [id; 3];
        are(other.users, self.users.real) && are(other.groups, self.groups.real)
    }

    /// Returns the credentials of a program that begins, by its file. The second value is true if they are more than the caller's.
    #[must_use]
    pub fn for_program(&self, file: &Status) -> (Self, bool) {
        let mut new = self.clone();
        if !self.gets_no_more {
            if file.mode & linux::S_ISUID != 0 {
                new.users.set_effective(file.uid);
            }
            if file.mode & AS_GROUP == AS_GROUP {
                new.groups.set_effective(file.gid);
            }
        }
        new.users.saved = new.users.effective;
        new.groups.saved = new.groups.effective;
        (new.users.fs, new.groups.fs) = (new.users.effective, new.groups.effective);
        new.keeps_capabilities = false;
        let is_root = new.users.effective == 0 || new.users.real == 0;
        new.permitted = if is_root { new.inheritable | new.bounding } else { 0 };
        if self.gets_no_more {
            new.permitted &= self.permitted;
        }
        new.effective = if new.users.effective == 0 { new.permitted } else { 0 };
        let is_more = new.users.effective != self.users.real || new.groups.effective != self.groups.real;
        (new, is_more)
    }

    /// Returns the credentials by which `access` checks: those of the real ids.
    #[must_use]
    pub fn of_real_ids(&self) -> Self {
        let mut new = self.clone();
        (new.users.fs, new.groups.fs) = (self.users.real, self.groups.real);
        new.effective = if self.users.real == 0 { self.permitted } else { 0 };
        new
    }

    /// Checks a permission on a file.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn check(&self, file: &Status, wanted: Access) -> Result<()> {
        let digit = if self.users.fs == file.uid {
            file.mode >> 6
        } else if self.is_member(file.gid) {
            file.mode >> 3
        } else {
            file.mode
        };
        let is_directory = file.kind == Kind::Directory;
        let overrides = || {
            let is_executable = wanted & EXECUTE == 0 || is_directory || file.mode & 0o111 != 0;
            let only_looks = wanted == READ || is_directory && wanted & WRITE == 0;
            is_executable && self.can(Capability::DacOverride) || only_looks && self.can(Capability::DacReadSearch)
        };
        if wanted & !digit & 7 == 0 || overrides() { Ok(()) } else { Err(Errno::ACCES) }
    }

    /// Checks that a node, if it is a directory, can be searched. For root, its description is not read.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn check_search(&self, status: impl FnOnce() -> Status) -> Result<()> {
        if self.can(Capability::DacOverride) {
            return Ok(());
        }
        let status = status();
        if status.kind == Kind::Directory { self.check(&status, EXECUTE) } else { Ok(()) }
    }

    /// Checks that the file is the user's own.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn check_owner(&self, file: &Status) -> Result<()> {
        if self.users.fs == file.uid || self.can(Capability::Fowner) { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Checks that a name of a directory may be removed: in one with the sticky bit by the owner of the node or of the directory.
    ///
    /// # Errors
    /// `EACCES`, `EPERM`.
    pub fn check_removal(&self, directory: &Status, node: &Status) -> Result<()> {
        self.check(directory, WRITE | EXECUTE)?;
        let is_free = directory.mode & linux::S_ISVTX == 0 || self.users.fs == directory.uid;
        if is_free { Ok(()) } else { self.check_owner(node) }
    }

    /// Returns whether a signal may be sent to a process with other credentials.
    #[must_use]
    pub fn may_signal(&self, other: &Self) -> bool {
        let own = [self.users.real, self.users.effective];
        own.contains(&other.users.real) || own.contains(&other.users.saved) || self.can(Capability::Kill)
    }

    /// Returns whether the scheduling of a process with other credentials may change.
    #[must_use]
    pub fn may_schedule(&self, other: &Self) -> bool {
        let own = self.users.effective;
        own == other.users.real || own == other.users.effective || self.can(Capability::SysNice)
    }

    /// Returns the mode and the owner of a new node in a directory.
    #[must_use]
    pub fn birth(&self, directory: &Status, is_directory: bool, mode: u32) -> Birth {
        let mut birth = Birth { mode, uid: self.users.fs, gid: self.groups.fs };
        if directory.mode & linux::S_ISGID == 0 {
            return birth;
        }
        birth.gid = directory.gid;
        if is_directory {
            birth.mode |= linux::S_ISGID;
        } else if mode & AS_GROUP == AS_GROUP && !self.is_member(birth.gid) && !self.can(Capability::Fsetid) {
            birth.mode &= !linux::S_ISGID;
        }
        birth
    }

    /// Returns the mode that a file gets by `chmod`.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn mode(&self, file: &Status, mode: u32) -> Result<u32> {
        self.check_owner(file)?;
        let keeps_group = self.is_member(file.gid) || self.can(Capability::Fsetid);
        Ok(if keeps_group { mode } else { mode & !linux::S_ISGID })
    }

    /// Checks a change of a file's owner. Returns the mode that the file then has.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn owner(&self, file: &Status, uid: Option<u32>, gid: Option<u32>) -> Result<u32> {
        let is_own = self.users.fs == file.uid;
        let may_user = uid.is_none_or(|uid| is_own && uid == file.uid);
        let may_group = gid.is_none_or(|gid| is_own && (gid == file.gid || self.is_member(gid)));
        if !(may_user && may_group) {
            self.need(Capability::Chown)?;
        }
        if file.kind == Kind::Directory || uid.is_none() && gid.is_none() {
            return Ok(file.mode);
        }
        let is_for_group = file.mode & linux::S_IXGRP != 0;
        Ok(file.mode & !linux::S_ISUID & !if is_for_group { linux::S_ISGID } else { 0 })
    }

    /// Sets further groups (`setgroups`).
    ///
    /// # Errors
    /// `EPERM`.
    pub fn set_further(&mut self, mut groups: Vec<u32>) -> Result<()> {
        self.need(Capability::Setgid)?;
        groups.sort_unstable();
        self.further = groups.into();
        Ok(())
    }
}

/// The mode and the owner of a new node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Birth {
    /// Permissions, with set-user-id and the like.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Birth {
    /// Returns that of a node of root's.
    #[must_use]
    pub const fn root(mode: u32) -> Self {
        Self { mode, uid: 0, gid: 0 }
    }
}

#[cfg(test)]
mod tests;
