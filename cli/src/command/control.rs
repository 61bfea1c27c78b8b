//! The commands for active runs: `gnomon ps`, `stats`, `get`, `set`, `pause`, `resume`.

use super::script::{STATUS_INPUT, complain_of, print};
use crate::api::call::call;
use crate::api::verbs::{self as api, ListedVm, Ps, StatsReply, Tunable};
use crate::control::client::Client;
use crate::control::{ControlError, prometheus};
use crate::host::place::IoError;
use crate::host::size::Size;
use crate::host::table;
use crate::host::words::shown;
use abi::control::VmInfo;
use abi::record::Stats;
use clap::Args;

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

    /// The run's name, as it was given.
    pub(super) fn name(self) -> Option<String> {
        self.run
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

/// The cells of a VM's line.
fn row(vm: &ListedVm, has_cpu: bool) -> Vec<String> {
    let ports: Vec<&str> = vm.ports.keys().map(String::as_str).collect();
    let mut row = vec![
        vm.run.clone(),
        vm.vm.clone(),
        if vm.lost.is_empty() { vm.state.clone() } else { format!("{}, lost: {}", vm.state, vm.lost.join(", ")) },
        vm.mode.clone().unwrap_or("-".into()),
        vm.vcpus.to_string(),
        Size(vm.memory_bytes).to_string(),
        Size(vm.resident_bytes).to_string(),
        vm.seconds.map_or("-".into(), table::age),
        if ports.is_empty() { "-".into() } else { ports.join(",") },
    ];
    if has_cpu {
        row.insert(5, vm.cpu_percent.map_or("-".into(), |percent| format!("{percent:.1}")));
    }
    row
}

impl PsArgs {
    /// Lists them; the status is 1 if one of them does not answer.
    pub fn run(self) -> miette::Result<u8> {
        let found = call(Ps { cpu: self.cpu })?;
        found.silent.iter().for_each(|silent| complain_of(&silent.error));
        let status = if found.silent.is_empty() { 0 } else { STATUS_INPUT };
        if self.json {
            say(&[serde_json::to_string_pretty(&found.vms).unwrap_or_default()])?;
            return Ok(status);
        }
        let mut head =
            ["RUN", "VM", "STATE", "MODE", "VCPUS", "MEMORY", "RESIDENT", "AGE", "PORTS"].map(String::from).to_vec();
        if self.cpu {
            head.insert(5, "CPU %".into());
        }
        let rows: Vec<_> = std::iter::once(head).chain(found.vms.iter().map(|vm| row(vm, self.cpu))).collect();
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

impl StatsArgs {
    /// Prints them.
    pub fn run(self) -> miette::Result<u8> {
        let StatsReply { run, stats } = call(api::Stats { run: self.which.run.clone(), vm: self.vm.clone() })?;
        let lines = if self.json {
            vec![serde_json::to_string_pretty(&stats).unwrap_or_default()]
        } else if self.prometheus {
            prometheus::text(&run, &stats).lines().map(String::from).collect()
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
        let is_one = self.name.is_some();
        let found = call(api::Get { run: self.which.run, name: self.name })?.tunables.into_iter();
        let line = |Tunable { name, value }| if is_one { value } else { format!("{name}={value}") };
        say(&found.map(line).collect::<Vec<_>>())?;
        Ok(0)
    }
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
        call(api::Set { run: self.which.run, settings: self.settings })?;
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

    /// The names of the run and of the VM, as they were given.
    pub(super) fn names(self) -> (Option<String>, Option<String>) {
        (self.which.run, self.vm)
    }
}

impl PauseArgs {
    /// Pauses it.
    pub fn run(self) -> miette::Result<u8> {
        let (run, vm) = self.whom.names();
        call(api::Pause { run, vm })?;
        Ok(0)
    }
}

impl ResumeArgs {
    /// Resumes it.
    pub fn run(self) -> miette::Result<u8> {
        let (run, vm) = self.whom.names();
        call(api::Resume { run, vm })?;
        Ok(0)
    }
}
