//! The commands for active runs: `gnomon ps`, `stats`, `get`, `set`, `pause`, `resume`.

use super::script::{STATUS_INPUT, complain, print};
use crate::control::client::Client;
use crate::control::runs::Runs;
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
}

impl<'a> Listed<'a> {
    fn of(runs: &Runs, run: &'a str, vms: &'a Vms, vm: &'a VmInfo) -> Self {
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
        }
    }

    fn row(&self) -> [String; 9] {
        [
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
        ]
    }
}

impl PsArgs {
    /// Lists them; the status is 1 if one of them does not answer.
    pub fn run(self) -> miette::Result<u8> {
        let runs = Runs::open()?;
        let mut status = 0;
        let mut all = Vec::new();
        for name in runs.names()? {
            match Client::of(Some(&name)).and_then(|mut client| client.vms()) {
                Ok(vms) => all.push((name, vms)),
                // It has ended meanwhile.
                Err(ControlError::UnknownRun { .. } | ControlError::Gone(_)) => {}
                Err(why) => {
                    complain(&why.into());
                    status = STATUS_INPUT;
                }
            }
        }
        let listed: Vec<_> =
            all.iter().flat_map(|(run, vms)| vms.vms.iter().map(|vm| Listed::of(&runs, run, vms, vm))).collect();
        if self.json {
            say(&[serde_json::to_string_pretty(&listed).unwrap_or_default()])?;
            return Ok(status);
        }
        let head = ["RUN", "VM", "STATE", "MODE", "VCPUS", "MEMORY", "RESIDENT", "AGE", "PORTS"].map(String::from);
        let rows: Vec<_> = std::iter::once(head).chain(listed.iter().map(Listed::row)).collect();
        say(&table::lines(&rows, |column| (4..=7).contains(&column)))?;
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
