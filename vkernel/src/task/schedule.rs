//! Policies and priorities of processes, as programs set and read them. Time slices do not depend on them.

use super::credentials::{Capability, Credentials};
use crate::errno::{Errno, Result};
use linux_raw_sys::general as linux;

/// `SCHED_DEADLINE`: there are no deadlines here.
const DEADLINE: u32 = 6;

/// The policy and the priorities of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Schedule {
    /// The nice value, from -20 to 19.
    pub nice: i32,
    /// The policy.
    pub policy: u32,
    /// The real-time priority; 0 for other policies.
    pub priority: u32,
    /// True if children begin with the default (`SCHED_RESET_ON_FORK`).
    pub resets: bool,
}

/// Returns the least and the greatest real-time priority of a policy.
///
/// # Errors
/// `EINVAL` for a policy that is none.
pub const fn priorities(policy: u32) -> Result<(u32, u32)> {
    match policy {
        linux::SCHED_FIFO | linux::SCHED_RR => Ok((1, 99)),
        linux::SCHED_NORMAL | linux::SCHED_BATCH | linux::SCHED_IDLE | DEADLINE => Ok((0, 0)),
        _ => Err(Errno::INVAL),
    }
}

impl Schedule {
    /// Returns the schedule that a child begins with.
    #[must_use]
    pub fn of_child(self) -> Self {
        if self.resets { Self { nice: self.nice.max(0), ..Self::default() } } else { self }
    }

    /// Sets policy and priority. `owner` has the schedule, `user` changes it.
    ///
    /// # Errors
    /// `EINVAL` for a policy or a priority that is none; `EPERM`.
    pub fn set(&mut self, policy: u32, priority: i32, owner: &Credentials, user: &Credentials) -> Result<()> {
        let (resets, policy) = (policy & linux::SCHED_RESET_ON_FORK != 0, policy & !linux::SCHED_RESET_ON_FORK);
        let (least, most) = priorities(policy)?;
        if policy == DEADLINE || !(least as i32..=most as i32).contains(&priority) {
            return Err(Errno::INVAL);
        }
        let may_raise = user.can(Capability::SysNice);
        let is_raised = most > 0 && (self.policy != policy || priority as u32 > self.priority);
        let leaves_idle = self.policy == linux::SCHED_IDLE && policy != linux::SCHED_IDLE && self.nice < 0;
        if !may_raise && (is_raised || leaves_idle || self.resets && !resets) || !user.may_schedule(owner) {
            return Err(Errno::PERM);
        }
        (self.policy, self.priority, self.resets) = (policy, priority as u32, resets);
        Ok(())
    }

    /// Sets the nice value, or the nearest that there is. `limit` is the owner's `RLIMIT_NICE`.
    ///
    /// # Errors
    /// `EACCES` if it would be less without the right; `EPERM` for a process of another user.
    pub fn set_nice(&mut self, nice: i32, limit: u64, owner: &Credentials, user: &Credentials) -> Result<()> {
        let nice = nice.clamp(-20, 19);
        let is_own = [owner.users.real, owner.users.effective].contains(&user.users.effective);
        if !is_own && !user.can(Capability::SysNice) {
            return Err(Errno::PERM);
        }
        if nice < self.nice && (20 - nice) as u64 > limit && !user.can(Capability::SysNice) {
            return Err(Errno::ACCES);
        }
        self.nice = nice;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::credentials::{Change, Which};

    #[test]
    fn users_lower_what_root_raises() {
        let root = Credentials::default();
        let mut user = root.clone();
        user.change(Which::Users, Change::One(5)).expect("root may");
        let mut schedule = Schedule::default();
        assert_eq!(schedule.set(linux::SCHED_FIFO, 5, &user, &user), Err(Errno::PERM));
        assert_eq!(schedule.set(linux::SCHED_FIFO, 0, &user, &root), Err(Errno::INVAL));
        assert_eq!(schedule.set(linux::SCHED_FIFO | linux::SCHED_RESET_ON_FORK, 5, &user, &root), Ok(()));
        assert_eq!(schedule.set(linux::SCHED_FIFO | linux::SCHED_RESET_ON_FORK, 4, &user, &user), Ok(()));
        assert_eq!(schedule.of_child(), Schedule::default());
        assert_eq!(schedule.set(99, 0, &user, &root), Err(Errno::INVAL));
        assert_eq!(schedule.set_nice(50, 0, &user, &user), Ok(()));
        assert_eq!((schedule.nice, schedule.set_nice(3, 0, &user, &user)), (19, Err(Errno::ACCES)));
        assert_eq!(
            (schedule.set_nice(3, 17, &user, &user), schedule.set_nice(9, 0, &root, &user)),
            (Ok(()), Err(Errno::PERM))
        );
    }
}
