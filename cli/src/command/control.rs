//! The commands for active runs: `gnomon ps`, `stats`, `get`, `set`, `pause`, `resume`.

use super::script::{STATUS_INPUT, complain, print};
use crate::control::client::Client;
use crate::control::runs::Runs;
use crate::control::sample::{Sample, Sampler};
use crate::control::{ControlError, prometheus};
use crate::host::place::IoError;
use crate::host::size::Size;
use crate::host::table;
use crate::host::words::shown;
use crate::host::written::did_you_mean;
use abi::control::{Request, VmInfo, Vms, Whose};
use abi::record::{Stats, VmStats};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::slice;
use std::time::Duration;

/// Prints lines, without control characters.
///
/// # Errors
/// If standard output cannot be written. A reader that has closed the pipe is not an error.
pub(super) fn say(lines: &[String]) -> Result<(), IoError> {
    print(&lines.iter().map(|line| shown(line) + "\n").collect::<String>())
}

/// Which run.
#[derive(Debug, Args)]
pub struct Which {
    /// The run, if several are active (gnomon ps lists them)
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
}

impl Which {
    /// The run of that name, or the only one.
    pub(super) const fn of(run: Option<String>) -> Self {
        Self { run }
    }

    pub(super) fn client(&self) -> Result<Client, ControlError> {
        Client::of(self.run.as_deref())
    }

    /// Finds a VM, and a client of its run.
    pub(super) fn find(&self, vm: Option<&str>) -> Result<(Client, VmInfo), ControlError> {
        Client::reach(self.run.as_deref(), vm)
    }
}

/// List the active runs and their VMs.
#[derive(Debug, Args)]
pub struct PsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Measure for a tenth of a second, and print the CPU time of each VM: 100 % is one hart
    #[arg(long)]
    cpu: bool,
}

/// A VM in the output of `ps --json`.
#[derive(Serialize)]
struct Listed<'a> {
    run: &'a str,
    vm: &'a str,
    state: &'static str,
    mode: Option<&'static str>,
    vcpus: u32,
    memory_bytes: u64,
    resident_bytes: u64,
    /// By name, the sockets of its ports.
    ports: BTreeMap<String, PathBuf>,
    /// Since the VM has begun its present life.
    seconds: Option<u64>,
    /// Devices whose host's side has ended.
    lost: Vec<&'a str>,
    /// The part of one hart's time that it takes, in percent, if that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_percent: Option<f64>,
}

impl<'a> Listed<'a> {
    fn of(runs: &Runs, run: &'a str, vms: &'a Vms, vm: &'a VmInfo, cpu: Option<f64>) -> Self {
        let seconds = vm.since.map(|since| vms.now.saturating_sub(since) / vms.timebase.max(1));
        Self {
            run,
            vm: &vm.name,
            state: vm.state.name(),
            mode: vm.mode.map(|mode| mode.name()),
            vcpus: vm.vcpus,
            memory_bytes: vm.memory_bytes,
            resident_bytes: vm.resident_bytes,
            ports: runs
                .ports(run, &vm.name)
                .into_iter()
                .map(|port| (port.clone(), runs.port_path(run, &vm.name, &port)))
                .collect(),
            seconds,
            lost: vms.lost.iter().filter(|(of, _)| *of == vm.name).map(|(_, device)| device.as_str()).collect(),
            cpu_percent: cpu.map(|part| (1000.0 * part).round() / 10.0),
        }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn row(&self, has_cpu: bool) -> Vec<String> {
        let mut row = vec![
            self.run.into(),
            self.vm.into(),
            if self.lost.is_empty() {
                self.state.into()
            } else {
                format!("{}, lost: {}", self.state, self.lost.join(", "))
            },
            self.mode.unwrap_or("-").into(),
            self.vcpus.to_string(),
            Size(self.memory_bytes).to_string(),
            Size(self.resident_bytes).to_string(),
            self.seconds.map_or("-".into(), table::age),
            if self.ports.is_empty() { "-".into() } else { self.ports.keys().cloned().collect::<Vec<_>>().join(",") },
        ];
        if has_cpu {
            row.insert(5, self.cpu_percent.map_or("-".into(), |percent| format!("{percent:.1}")));
        }
        row
    }
}

/// The time for which CPU time is measured, in milliseconds.
const CPU_MS: u32 = 100;

/// The state of a run.
struct Looked {
    vms: Vms,
    /// With CPU time: what takes samples, and the first one, then both.
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

impl PsArgs {
    /// Lists them; the status is 1 if one of them does not answer.
    pub fn run(self) -> miette::Result<u8> {
        let runs = Runs::open()?;
        let mut status = 0;
        let mut all = Vec::new();
        for name in runs.names()? {
            match Client::of(Some(&name)).and_then(|client| Looked::at(client, self.cpu)) {
                Ok(looked) => all.push((name, looked)),
                // It has ended meanwhile.
                Err(ControlError::UnknownRun { .. } | ControlError::Gone(_)) => {}
                Err(why) => {
                    complain(&why.into());
                    status = STATUS_INPUT;
                }
            }
        }
        if self.cpu {
            std::thread::sleep(Duration::from_millis(CPU_MS.into()));
            all.iter_mut().for_each(|(_, looked)| looked.again());
        }
        let list = |(run, looked): &'_ (String, Looked)| {
            let vms = looked.vms.vms.iter();
            vms.map(|vm| Listed::of(&runs, run, &looked.vms, vm, looked.cpu(vm)))
                .map(|vm| (vm.row(self.cpu), vm.json()))
                .collect::<Vec<_>>()
        };
        let (rows, json): (Vec<_>, Vec<_>) = all.iter().flat_map(list).unzip();
        if self.json {
            say(&[serde_json::to_string_pretty(&json).unwrap_or_default()])?;
            return Ok(status);
        }
        let mut head =
            ["RUN", "VM", "STATE", "MODE", "VCPUS", "MEMORY", "RESIDENT", "AGE", "PORTS"].map(String::from).to_vec();
        if self.cpu {
            head.insert(5, "CPU %".into());
        }
        let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
        let last = if self.cpu { 8 } else { 7 };
        say(&table::lines(&rows, |column| (4..=last).contains(&column)))?;
        Ok(status)
    }
}

/// Print the counters of a run (see docs/counters.md).
#[derive(Debug, Args)]
pub struct StatsArgs {
    #[command(flatten)]
    which: Which,
    /// Only the counters of this VM
    vm: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// All counters of a run, or those of one VM.
pub(super) fn stats(client: &mut Client, vm: Option<&str>) -> Result<Stats, ControlError> {
    let vms = match vm {
        Some(_) => vec![client.choose(vm)?],
        // Those that wait have none.
        None => client.vms()?.vms.into_iter().filter(|vm| vm.state != abi::control::VmState::Waiting).collect(),
    };
    let host = if vm.is_none() { client.counters(Whose::Host)? } else { Vec::new() };
    let counters = vms.into_iter().map(|vm| match client.counters(Whose::Vm(vm.number)) {
        Ok(counters) => Ok(VmStats { vm: vm.name, counters: counters.into_iter().collect() }),
        Err(why) => Err(why),
    });
    Ok(Stats { vms: counters.collect::<Result<_, _>>()?, host: host.into_iter().collect() })
}

impl StatsArgs {
    /// Prints them.
    pub fn run(self) -> miette::Result<u8> {
        let mut client = match self.vm.as_deref() {
            Some(vm) => self.which.find(Some(vm))?.0,
            None => self.which.client()?,
        };
        let stats = stats(&mut client, self.vm.as_deref())?;
        let lines = if self.json {
            vec![serde_json::to_string_pretty(&stats).unwrap_or_default()]
        } else if self.prometheus {
            prometheus::text(client.run(), &stats).lines().map(String::from).collect()
        } else {
            self.lines(&stats)
        };
        say(&lines)?;
        Ok(0)
    }

    fn lines(&self, stats: &Stats) -> Vec<String> {
        let line = |(name, count): (&String, &u64)| format!("  {name:24} {count}");
        let mut lines = Vec::new();
        for vm in &stats.vms {
            lines.push(format!("{}:", vm.vm));
            lines.extend(vm.counters.iter().filter(|(_, count)| **count != 0).map(line));
        }
        if self.vm.is_none() {
            lines.push("the host:".into());
            lines.extend(stats.host.iter().map(line));
        }
        lines
    }
}

/// Print tunables of a run (see docs/tunables.md).
#[derive(Debug, Args)]
pub struct GetArgs {
    #[command(flatten)]
    which: Which,
    /// Print only the value of this tunable
    name: Option<String>,
}

impl GetArgs {
    /// Prints them.
    pub fn run(self) -> miette::Result<u8> {
        let mut client = self.which.client()?;
        let all = client.tunables()?;
        match self.name {
            None => say(&all.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>())?,
            Some(name) => match all.iter().find(|(known, _)| *known == name) {
                Some((_, value)) => say(slice::from_ref(value))?,
                None => {
                    let known: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
                    let why = no_tunable(&name, &known);
                    Err(ControlError::Refused { run: client.run().into(), what: "get".into(), why })?;
                }
            },
        }
        Ok(0)
    }
}

/// Returns the error for a name that no tunable has.
pub(super) fn no_tunable(name: &str, known: &[&str]) -> String {
    format!("there is no tunable `{name}`: {}choose one of {}", did_you_mean(name, known), known.join(" "))
}

/// Set tunables of an active run (see docs/tunables.md).
#[derive(Debug, Args)]
pub struct SetArgs {
    #[command(flatten)]
    which: Which,
    /// Tunables and their values
    #[arg(value_name = "NAME=VALUE", required = true)]
    settings: Vec<String>,
}

impl SetArgs {
    /// Sets them, one after the other.
    pub fn run(self) -> miette::Result<u8> {
        let mut client = self.which.client()?;
        let all = client.tunables()?;
        let known: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        let names = self.settings.iter().filter_map(|setting| setting.split_once('=')).map(|(name, _)| name.trim());
        // Nothing is set if a name is wrong.
        if let Some(wrong) = names.into_iter().find(|name| !known.contains(name)) {
            let (run, why) = (client.run().into(), no_tunable(wrong, &known));
            Err(ControlError::Refused { run, what: "set".into(), why })?;
        }
        for setting in self.settings {
            // A longer name belongs to no tunable, and does not fit into a request.
            let setting: String = setting.chars().take(60).collect();
            client.tell("set", &Request::Set(setting))?;
        }
        Ok(0)
    }
}

/// Which VM of which run.
#[derive(Debug, Args)]
pub struct Whom {
    #[command(flatten)]
    which: Which,
    /// The VM; optional if there is only one
    vm: Option<String>,
}

/// Pause a VM: it runs no instruction until it is resumed. Its clock keeps running.
#[derive(Debug, Args)]
pub struct PauseArgs {
    #[command(flatten)]
    whom: Whom,
}

/// Resume a VM that was paused.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    #[command(flatten)]
    whom: Whom,
}

impl Whom {
    /// Finds the VM, and a client of its run.
    pub(super) fn find(&self) -> Result<(Client, VmInfo), ControlError> {
        self.which.find(self.vm.as_deref())
    }

    pub(super) fn tell(&self, what: &str, request: impl FnOnce(u64) -> Request) -> miette::Result<u8> {
        let (mut client, vm) = self.find()?;
        client.tell(&format!("cannot {what} VM `{}`", vm.name), &request(vm.number))?;
        Ok(0)
    }
}

impl PauseArgs {
    /// Pauses it.
    pub fn run(self) -> miette::Result<u8> {
        self.whom.tell("pause", Request::Pause)
    }
}

impl ResumeArgs {
    /// Resumes it.
    pub fn run(self) -> miette::Result<u8> {
        self.whom.tell("resume", Request::Resume)
    }
}
