//! What a run was at a time, and what it did between two of those.

use super::ControlError;
use super::client::Client;
use abi::control::{HartTimes, VmInfo, VmState, Vms, Whose};
use std::collections::BTreeMap;

/// Counters by name.
pub type Counts = BTreeMap<String, u64>;

/// A run at a time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The VMs, and when that was.
    pub vms: Vms,
    /// Gnomon's own counters.
    pub host: Counts,
    /// Each VM's, by its number.
    pub counters: BTreeMap<u64, Counts>,
    /// How long harts did what, while they were asked to note it.
    pub harts: Vec<HartTimes>,
}

impl Sample {
    /// Takes one. Harts are to note what they do for so many milliseconds from now on.
    ///
    /// # Errors
    /// If the run does not answer.
    pub fn take(client: &mut Client, ms: u32) -> Result<Self, ControlError> {
        let vms = client.vms()?;
        let harts = client.harts(ms)?;
        let host = client.counters(Whose::Host)?.into_iter().collect();
        let mut counters = BTreeMap::new();
        for vm in vms.vms.iter().filter(|vm| vm.state != VmState::Waiting) {
            match client.counters(Whose::Vm(vm.number)) {
                Ok(all) => drop(counters.insert(vm.number, all.into_iter().collect())),
                // It has gone meanwhile.
                Err(ControlError::Refused { .. }) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(Self { vms, host, counters, harts })
    }

    /// Seconds of the machine's since another one.
    #[must_use]
    pub fn seconds_since(&self, before: &Self) -> f64 {
        self.vms.now.saturating_sub(before.vms.now) as f64 / self.vms.timebase.max(1) as f64
    }

    /// A counter of a VM's; 0 if it has none.
    #[must_use]
    pub fn count(&self, vm: &VmInfo, name: &str) -> u64 {
        self.counters.get(&vm.number).and_then(|all| all.get(name)).copied().unwrap_or_default()
    }

    /// One of Gnomon's own.
    #[must_use]
    pub fn own(&self, name: &str) -> u64 {
        self.host.get(name).copied().unwrap_or_default()
    }

    /// How many times a second a VM's counters of these names went up; `None` if that is not known.
    #[must_use]
    pub fn rate(&self, before: &Self, vm: &VmInfo, names: &[&str]) -> Option<f64> {
        let seconds = self.seconds_since(before);
        let is_known = before.counters.contains_key(&vm.number) && seconds > 0.0;
        let sum = |sample: &Self| names.iter().map(|name| sample.count(vm, name)).sum::<u64>();
        is_known.then(|| sum(self).saturating_sub(sum(before)) as f64 / seconds)
    }

    /// Of the time that a hart has noted since another sample, the parts that it was in guests, in Gnomon, and idle.
    #[must_use]
    pub fn shares(&self, before: &Self, hart: usize) -> Option<[f64; 3]> {
        let (now, then) = (self.harts.get(hart)?, before.harts.get(hart)?);
        let parts = [(now.guest, then.guest), (now.host, then.host), (now.idle, then.idle)]
            .map(|(now, then)| now.saturating_sub(then) as f64);
        let sum: f64 = parts.iter().sum();
        (sum > 0.0).then(|| parts.map(|part| part / sum))
    }
}
