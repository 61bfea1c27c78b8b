//! The tunables' values ([`abi::tunable`]).

use abi::tunable::{ALL, Id, SettingError, parse};
use core::array;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The values of the tunables. No hart waits for another to see a change.
#[derive(Debug)]
pub struct Tunables([AtomicU64; ALL.len()]);

impl Default for Tunables {
    fn default() -> Self {
        Self(array::from_fn(|at| AtomicU64::new(ALL[at].default)))
    }
}

impl Tunables {
    /// Returns the value of one.
    #[inline]
    #[must_use]
    pub fn get(&self, id: Id) -> u64 {
        self.0[id as usize].load(Relaxed)
    }

    /// Returns whether a switch is on.
    #[inline]
    #[must_use]
    pub fn is_on(&self, id: Id) -> bool {
        self.get(id) != 0
    }

    /// Does what `name=value` says.
    ///
    /// # Errors
    /// [`SettingError`]; nothing has changed then.
    pub fn set<'a>(&self, setting: &'a str) -> Result<(), SettingError<'a>> {
        let (at, value) = parse(setting)?;
        self.0[at].store(value, Relaxed);
        Ok(())
    }

    /// Returns all names with their values.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, abi::tunable::Shown)> {
        ALL.iter().zip(&self.0).map(|(tunable, value)| (tunable.name, tunable.show(value.load(Relaxed))))
    }
}
