//! The commands that look at a run for a while: `gnomon top`, `gnomon trace`.

use super::control::{Which, say};
use crate::control::ControlError;
use crate::control::client::Client;
use crate::control::sample::{Sample, Sampler};
use crate::control::screen::{Order, help, screen};
use crate::control::trace::{self, Trace};
use crate::host::place::IoError;
use crate::host::tty::{self, RawMode, Screen, TerminalSize};
use abi::control::{self, MOST_EVENTS};
use clap::Args;
use miette::miette;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use std::io::{Read, Write, stdin, stdout};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The time for which harts note what they do for each screen, in milliseconds. Exits are dearer during it, so it is
/// short.
const NOTED_MS: u32 = 100;

/// Show the memory, the harts and the VMs of a run, and their exits by cause, updated each second. ? lists keys, q ends
/// it.
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    which: Which,
    /// Print the figures of one second, and end
    #[arg(long)]
    once: bool,
    /// Time between two screens, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3600))]
    interval: u16,
}

/// Events of `top`, besides the passing of time.
enum Event {
    Key(u8),
    /// The terminal has another size.
    Size,
    /// A signal, or the terminal is gone.
    End,
}

impl TopArgs {
    /// Shows it until it is ended, or the run has.
    pub fn run(self) -> miette::Result<u8> {
        if !self.once && !tty::is_interactive() {
            Err(miette!(help = "print it once: gnomon top --once", "top needs a terminal to be shown on"))?;
        }
        let mut sampler = Sampler::new(self.which.client()?);
        let interval = Duration::from_secs(self.interval.into());
        let before = sampler.take(NOTED_MS)?;
        if self.once {
            thread::sleep(interval);
            let sample = sampler.take(0)?;
            say(&screen(sampler.run(), [&sample, &before], Order::Number, None))?;
            return Ok(0);
        }
        let events =
            events().map_err(|why| miette!(help = "try another terminal", "cannot watch the terminal: {why}"))?;
        let full = RawMode::enter(Screen::OTHER)
            .map_err(|why| miette!(help = "try another terminal", "cannot use the terminal: {why}"))?;
        let end = show(&mut sampler, before, interval, &events);
        drop(full);
        match end {
            Err(ControlError::Gone(run)) => {
                tty::say(&format!("gnomon: run `{run}` has ended"));
                Ok(0)
            }
            end => Ok(end.map(|()| 0)?),
        }
    }
}

fn put(text: &str) {
    // A terminal that is gone shows nothing; its end comes by a signal.
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Keys and signals.
fn events() -> std::io::Result<Receiver<Event>> {
    let (sender, events): (Sender<Event>, _) = channel();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGWINCH])?;
    let keys = sender.clone();
    thread::spawn(move || {
        for signal in signals.forever() {
            let event = if signal == SIGWINCH { Event::Size } else { Event::End };
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        let mut key = [0];
        while matches!(stdin().read(&mut key), Ok(1)) {
            if keys.send(Event::Key(key[0])).is_err() {
                return;
            }
        }
        let _ = keys.send(Event::End);
    });
    Ok(events)
}

/// Shows a screen after the other. The first comes soon: it is of a fifth of a second.
fn show(
    sampler: &mut Sampler,
    mut before: Sample,
    interval: Duration,
    events: &Receiver<Event>,
) -> Result<(), ControlError> {
    const CTRL_C: u8 = 3;
    let mut due = Instant::now() + interval.min(Duration::from_millis(200));
    let mut shown: Option<(Sample, Sample)> = None;
    let (mut order, mut helps) = (Order::default(), false);
    loop {
        match events.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(Event::Key(b'q' | b'Q' | CTRL_C) | Event::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(Event::Key(key)) => {
                helps = !helps && key == b'?';
                order = Order::of_key(key).unwrap_or(order);
            }
            Ok(Event::Size) => {}
            Err(RecvTimeoutError::Timeout) => {
                due = Instant::now() + interval;
                let sample = sampler.take(NOTED_MS)?;
                shown = Some((sample.clone(), std::mem::replace(&mut before, sample)));
            }
        }
        if let Some((sample, before)) = &shown {
            let size = TerminalSize::of_output().unwrap_or(TerminalSize { lines: 24, columns: 80 });
            let lines = match helps {
                true => help(size),
                false => screen(sampler.run(), [sample, before], order, Some(size)),
            };
            // Each line to its end, and all below; none is followed by a line feed that would scroll.
            put(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")));
        }
    }
}

/// Write the exits of one VM or of all to a file for Perfetto (https://ui.perfetto.dev).
#[derive(Debug, Args)]
pub struct TraceArgs {
    #[command(flatten)]
    which: Which,
    /// Only the exits of this VM
    vm: Option<String>,
    /// For how long, in seconds; Ctrl-C ends it sooner
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// The file
    #[arg(long, short, value_name = "FILE", default_value = "trace.json")]
    out: PathBuf,
    /// The most exits that are written: the trace ends there
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    most: usize,
}

impl TraceArgs {
    /// Traces, and writes the file.
    pub fn run(self) -> miette::Result<u8> {
        trace::FILE.check(&self.out)?;
        let (mut client, vm) = match self.vm.as_deref() {
            Some(name) => self.which.find(Some(name)).map(|(client, vm)| (client, Some(vm)))?,
            None => (self.which.client()?, None),
        };
        let there = client.vms()?;
        let names = there.vms.into_iter().map(|vm| (vm.number, vm.name)).collect();
        let harts = client.harts(0)?.len() as u32;
        let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]);
        let mut signals =
            signals.map_err(|source| IoError { action: "watch signals for", path: self.out.clone(), source })?;
        let end = Instant::now() + Duration::from_secs(self.seconds.into());
        let wanted = Wanted { vm: vm.as_ref().map(|vm| vm.number), began: there.now, harts, most: self.most };
        let mut trace = Trace::default();
        let mut is_over = false;
        while !is_over {
            // What is there when the time is up is taken as well.
            is_over = Instant::now() >= end || signals.pending().next().is_some() || trace.count() >= self.most;
            match take(&mut client, &wanted, &mut trace) {
                Ok(()) => {}
                // What there was until then is written.
                Err(ControlError::Gone(_)) if trace.count() > 0 => break,
                Err(why) => return Err(why.into()),
            }
            thread::sleep(Duration::from_millis(if is_over { 0 } else { 5 }));
        }
        trace::FILE.write(&self.out, &trace.to_json(&names, vm.is_none()))?;
        let lost = if trace.lost == 0 { String::new() } else { format!("; {} more were lost", trace.lost) };
        let own = match trace.own() {
            0 => String::new(),
            own => format!(", {own} of them by commands such as this one (category `control`)"),
        };
        tty::say(&format!("gnomon: {} exits in {}{own}{lost}", trace.count(), self.out.display()));
        Ok(0)
    }
}

/// The time for which exits are noted without another request, in milliseconds.
const TRACED_MS: u32 = 500;

/// The selection of a trace.
struct Wanted {
    vm: Option<u64>,
    /// The time when the trace began, in ticks.
    began: u64,
    harts: u32,
    most: usize,
}

/// Takes what harts have noted, until each has been asked for all that it had.
fn take(client: &mut Client, wanted: &Wanted, trace: &mut Trace) -> Result<(), ControlError> {
    // A hart that is faster than this does not keep it from the others.
    let share = wanted.most.div_ceil(wanted.harts.max(1) as usize);
    for hart in 0..wanted.harts {
        let before = trace.count();
        for _ in 0..64 {
            let mut found = client.events(control::Trace { ms: TRACED_MS, vm: wanted.vm, hart })?;
            let is_last = found.events.len() < MOST_EVENTS;
            // What an earlier trace has left is there, too.
            if found.events.first().is_none_or(|event| event.at < wanted.began) {
                found.lost = 0;
            }
            found.events.retain(|event| event.at >= wanted.began && wanted.vm.is_none_or(|vm| vm == event.vm));
            trace.add(hart, found);
            if is_last || trace.count() - before >= share || trace.count() >= wanted.most {
                break;
            }
        }
    }
    Ok(())
}
