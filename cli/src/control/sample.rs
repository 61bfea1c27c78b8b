//! Samples of a run's state, and the difference between two of them.

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
    /// The times that each hart spent in guests, in Gnomon and idle, while it was asked to note them.
    pub harts: Vec<HartTimes>,
}

/// Takes samples of a run. What counters are called it learns once: what is said again and again are numbers.
#[derive(Debug)]
pub struct Sampler {
    client: Client,
    /// Gnomon's own (`None`), and those of VMs by their numbers.
    names: BTreeMap<Option<u64>, Vec<String>>,
}

impl Sampler {
    /// One for that run.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self { client, names: BTreeMap::new() }
    }

    /// The run's name.
    #[must_use]
    pub fn run(&self) -> &str {
        self.client.run()
    }

    /// Takes one. Harts are to note what they do for so many milliseconds from now on.
    ///
    /// # Errors
    /// If the run does not answer.
    pub fn take(&mut self, ms: u32) -> Result<Sample, ControlError> {
        let vms = self.client.vms()?;
        let harts = self.client.harts(ms)?;
        let host = self.counts(None)?;
        self.names.retain(|vm, _| vm.is_none_or(|number| vms.vms.iter().any(|vm| vm.number == number)));
        let mut counters = BTreeMap::new();
        for vm in vms.vms.iter().filter(|vm| vm.state != VmState::Waiting) {
            match self.counts(Some(vm.number)) {
                Ok(all) => drop(counters.insert(vm.number, all)),
                // It has gone meanwhile.
                Err(ControlError::Refused { .. }) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(Sample { vms, host, counters, harts })
    }

    fn counts(&mut self, vm: Option<u64>) -> Result<Counts, ControlError> {
        let whose = vm.map_or(Whose::Host, Whose::Vm);
        if let Some(names) = self.names.get(&vm) {
            let values = self.client.values(whose)?;
            if values.len() == names.len() {
                return Ok(names.iter().cloned().zip(values).collect());
            }
        }
        let all = self.client.counters(whose)?;
        self.names.insert(vm, all.iter().map(|(name, _)| name.clone()).collect());
        Ok(all.into_iter().collect())
    }
}

impl Sample {
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

    /// Returns the increase per second of the sum of a VM's counters of these names; `None` if it is not known.
    #[must_use]
    pub fn rate(&self, before: &Self, vm: &VmInfo, names: &[&str]) -> Option<f64> {
        let seconds = self.seconds_since(before);
        let is_known = before.counters.contains_key(&vm.number) && seconds > 0.0;
        let sum = |sample: &Self| names.iter().map(|name| sample.count(vm, name)).sum::<u64>();
        is_known.then(|| sum(self).saturating_sub(sum(before)) as f64 / seconds)
    }

    /// Returns the time that a VM took since another sample, in its guest and in Gnomon for its exits, as a part of the time that a hart
    /// has recorded meanwhile: 1 is all of one hart. `None` if it is not known. Harts of an overloaded host begin to record at different
    /// times, so the result is bounded by the number of vCPUs.
    #[must_use]
    pub fn cpu(&self, before: &Self, vm: &VmInfo) -> Option<f64> {
        let all = |sample: &Self| sample.harts.iter().map(|hart| hart.guest + hart.host + hart.idle).sum::<u64>();
        let recorded = all(self).saturating_sub(all(before)) as f64 / self.harts.len().max(1) as f64;
        let of = |sample: &Self| ["time.guest", "time.gnomon"].map(|name| sample.count(vm, name)).iter().sum::<u64>();
        let is_known = before.counters.contains_key(&vm.number) && recorded > 0.0;
        is_known.then(|| (of(self).saturating_sub(of(before)) as f64 / recorded).min(vm.vcpus.into()))
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
