//! The active runs, their VMs, and their counters.

use crate::api::call::{Caller, Method, Never};
use crate::api::failure::Failure;
use crate::control::ControlError;
use crate::control::client::Client;
use crate::control::runs;
use crate::control::sample::{Sample, Sampler};
use abi::control::{VmInfo, VmState, Vms, Whose};
use abi::record::VmStats;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The time for which CPU time is measured, in milliseconds.
const CPU_MS: u32 = 100;

/// Lists the active runs and their VMs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ps {
    /// Measures the CPU time of each VM for a tenth of a second.
    #[serde(default)]
    pub cpu: bool,
}

/// The active runs.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Runs {
    /// The names of the runs that answered.
    pub runs: Vec<String>,
    /// Their VMs.
    pub vms: Vec<ListedVm>,
    /// The runs that did not answer.
    pub silent: Vec<SilentRun>,
}

/// A run that does not answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct SilentRun {
    /// The run.
    pub run: String,
    /// The reason.
    pub error: Failure,
}

/// A VM in the list.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct ListedVm {
    /// Its run.
    pub run: String,
    /// Its name.
    pub vm: String,
    /// Its state: `waiting`, `starting`, `arriving`, `running`, `paused`, `given away`, `ending` or `ended`.
    pub state: String,
    /// The mode of memory virtualization; null if it is not chosen yet.
    pub mode: Option<String>,
    /// The number of vCPUs.
    pub vcpus: u32,
    /// Its RAM, in bytes.
    pub memory_bytes: u64,
    /// The memory that it has frames for, in bytes.
    pub resident_bytes: u64,
    /// The sockets of its ports, by their names.
    pub ports: BTreeMap<String, PathBuf>,
    /// The time since it was started last, in seconds; null if it was not.
    pub seconds: Option<u64>,
    /// Devices whose process on the host has ended.
    pub lost: Vec<String>,
    /// Its part of one hart's time, in percent, if that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
}

impl ListedVm {
    fn of(places: &runs::Runs, run: &str, vms: &Vms, vm: &VmInfo, cpu: Option<f64>) -> Self {
        let seconds = vm.since.map(|since| vms.now.saturating_sub(since) / vms.timebase.max(1));
        let ports = places.ports(run, &vm.name).into_iter();
        Self {
            run: run.into(),
            vm: vm.name.clone(),
            state: vm.state.name().into(),
            mode: vm.mode.map(|mode| mode.name().into()),
            vcpus: vm.vcpus,
            memory_bytes: vm.memory_bytes,
            resident_bytes: vm.resident_bytes,
            ports: ports.map(|port| (port.clone(), places.port_path(run, &vm.name, &port))).collect(),
            seconds,
            lost: vms.lost.iter().filter(|(of, _)| *of == vm.name).map(|(_, device)| device.clone()).collect(),
            cpu_percent: cpu.map(|part| (1000.0 * part).round() / 10.0),
        }
    }
}

/// The state of a run.
struct Looked {
    vms: Vms,
    /// With CPU time: the source of samples, and the first one, then both.
    samples: Option<(Sampler, Sample, Option<Sample>)>,
}

impl Looked {
    fn at(mut client: Client, has_cpu: bool) -> Result<Self, ControlError> {
        let vms = client.vms()?;
        if !has_cpu {
            return Ok(Self { vms, samples: None });
        }
        let mut sampler = Sampler::new(client);
        let before = sampler.take(CPU_MS)?;
        Ok(Self { vms, samples: Some((sampler, before, None)) })
    }

    /// Takes the second sample. A run that has ended meanwhile has none.
    fn again(&mut self) {
        if let Some((sampler, _, after)) = &mut self.samples {
            *after = sampler.take(0).ok();
        }
    }

    fn cpu(&self, vm: &VmInfo) -> Option<f64> {
        let (_, before, after) = self.samples.as_ref()?;
        after.as_ref()?.cpu(before, vm)
    }
}

impl Method for Ps {
    const NAME: &'static str = "ps";
    type Reply = Runs;
    type Notice = Never;

    fn carry_out(self, _: &dyn Caller<Never>) -> miette::Result<Runs> {
        let places = runs::Runs::open()?;
        let (mut all, mut silent) = (Vec::new(), Vec::new());
        for name in places.names()? {
            match Client::of(Some(&name)).and_then(|client| Looked::at(client, self.cpu)) {
                Ok(looked) => all.push((name, looked)),
                // It has ended meanwhile.
                Err(ControlError::UnknownRun { .. } | ControlError::Gone(_)) => {}
                Err(why) => silent.push(SilentRun { run: name, error: (&miette::Report::from(why)).into() }),
            }
        }
        if self.cpu {
            std::thread::sleep(Duration::from_millis(CPU_MS.into()));
            all.iter_mut().for_each(|(_, looked)| looked.again());
        }
        let list = |(run, looked): &(String, Looked)| {
            let vms = looked.vms.vms.iter();
            vms.map(|vm| ListedVm::of(&places, run, &looked.vms, vm, looked.cpu(vm))).collect::<Vec<_>>()
        };
        let vms = all.iter().flat_map(list).collect();
        Ok(Runs { runs: all.into_iter().map(|(name, _)| name).collect(), vms, silent })
    }
}

/// Returns the counters of a run, or of one VM.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stats {
    /// The run; optional if there is only one, or only one has that VM.
    pub run: Option<String>,
    /// Only the counters of this VM.
    pub vm: Option<String>,
}

/// The counters of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct StatsReply {
    /// The run.
    pub run: String,
    /// The counters of its VMs, or of the one that was asked for.
    #[serde(flatten)]
    #[schemars(with = "CountersShape")]
    pub stats: abi::record::Stats,
}

/// The form of [`abi::record::Stats`], which has no schema itself.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "a description")]
struct CountersShape {
    /// The counters of each VM, by name.
    vms: Vec<VmCountersShape>,
    /// The counters of Gnomon itself, by name; none if one VM was asked for.
    host: BTreeMap<String, u64>,
}

/// The counters of a VM.
#[derive(JsonSchema)]
#[schemars(rename = "VmCounters")]
#[expect(dead_code, reason = "a description")]
struct VmCountersShape {
    /// The VM.
    vm: String,
    /// Its counters, by name.
    counters: BTreeMap<String, u64>,
}

impl Method for Stats {
    const NAME: &'static str = "stats";
    type Reply = StatsReply;
    type Notice = Never;

    fn carry_out(self, _: &dyn Caller<Never>) -> miette::Result<StatsReply> {
        let mut client = match self.vm.as_deref() {
            Some(vm) => Client::reach(self.run.as_deref(), Some(vm))?.0,
            None => Client::of(self.run.as_deref())?,
        };
        let vms = match self.vm.as_deref() {
            Some(vm) => vec![client.choose(Some(vm))?],
            // Those that wait have none.
            None => client.vms()?.vms.into_iter().filter(|vm| vm.state != VmState::Waiting).collect(),
        };
        let host = if self.vm.is_none() { client.counters(Whose::Host)? } else { Vec::new() };
        let counters = vms.into_iter().map(|vm| {
            let counters = client.counters(Whose::Vm(vm.number))?;
            Ok(VmStats { vm: vm.name, counters: counters.into_iter().collect() })
        });
        let vms = counters.collect::<Result<_, ControlError>>()?;
        let stats = abi::record::Stats { vms, host: host.into_iter().collect() };
        Ok(StatsReply { run: client.run().into(), stats })
    }
}
