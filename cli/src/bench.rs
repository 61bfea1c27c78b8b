//! Benchmarks: Gnomon beside the bare machine and beside the papers, in units that repeat.
//!
//! A benchmark measures [`Subject`]s, runs test guests or Linux on them under QEMU's `-icount`, and ends
//! in a [`Report`]. What figures 5 and 6 and the cost of a trap have in common is in [`series`].

pub mod boot;
pub mod fig5;
pub mod fig6;
pub mod lane;
mod series;
mod table;
pub mod workload;

use crate::machine::{Machine, Next, Outcome, Stopped};
use crate::qemu::{HExtension, MachineSpec, Seat};
use crate::stream::Piece;
use crate::variant::Variant;
use abi::bundle::MmuMode;
use miette::miette;
use serde::Serialize;
use std::fmt;
use std::time::{Duration, Instant};

/// Instructions in a tick of QEMU's 10 MHz timebase, at one nanosecond each.
const INSTRUCTIONS_PER_TICK: u64 = 100;
/// No run takes longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Subject {
    /// Where Gnomon sits.
    pub seat: Seat,
    /// How memory is virtualized.
    #[serde(flatten)]
    pub variant: Variant,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.seat.name(), self.variant.label()))
    }
}

/// Which subjects are measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The modes.
    pub modes: Vec<MmuMode>,
    /// The harts.
    pub h: Vec<HExtension>,
}

impl Choice {
    /// The subjects: those of a seat and a kind of harts together.
    #[must_use]
    pub fn subjects(&self) -> Vec<Subject> {
        let modes: Vec<_> = self.modes.iter().copied().map(Some).collect();
        let of = |seat, h| {
            let variants = Variant::combine(seat, &modes, &[h], &[true, false]);
            variants.into_iter().map(|variant| Subject { seat, variant }).collect::<Vec<_>>()
        };
        let h = self.h.iter().copied();
        h.flat_map(|h| [Seat::Firmware, Seat::Payload].into_iter().flat_map(move |seat| of(seat, h))).collect()
    }
}

/// What a benchmark comes to.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// For people.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
    /// Why some subjects could not be measured.
    pub failures: Vec<String>,
}

/// Does something with each item, two at a time: figures do not depend on how fast the host is. The
/// results are in the order of the items.
fn two_at_a_time<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> miette::Result<Vec<R>> {
    let half = |odd: usize| items.iter().skip(odd).step_by(2).map(&work).collect::<Vec<_>>();
    let (even, odd) = std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        (half(0), odd.join())
    });
    let mut odd = odd.map_err(|_| miette!("a benchmark panicked"))?.into_iter();
    Ok(even.into_iter().flat_map(|result| [Some(result), odd.next()]).flatten().collect())
}

/// Runs a machine to its end; returns what it printed, and how it ended.
fn watch(spec: &MachineSpec) -> miette::Result<(String, Outcome)> {
    let (machine, _) = Machine::start(spec)?;
    let mut console = Vec::new();
    let outcome = machine.run(Some(Instant::now() + PATIENCE), |piece| {
        if let Piece::Text(bytes) = piece {
            console.extend_from_slice(bytes);
        }
        Next::Continue
    })?;
    match (outcome.stopped, &outcome.failed) {
        (Some(Stopped::Timeout), _) => Err(miette!("the machine did not power off within {} s", PATIENCE.as_secs())),
        (_, Some(why)) => Err(miette!("Gnomon failed: {why}")),
        _ => Ok((String::from_utf8_lossy(&console).into_owned(), outcome)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_come_in_groups() {
        let all = Choice { modes: MmuMode::ALL.to_vec(), h: vec![HExtension::Present, HExtension::Absent] };
        let names: Vec<_> = all.subjects().iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 5 + 5 + 4);
        assert_eq!((names[4].as_str(), names[13].as_str()), ("firmware/lazy-nolane", "firmware/lazy-noh-nolane"));
        let few = Choice { modes: vec![MmuMode::Nested, MmuMode::Shadow], h: vec![HExtension::Absent] };
        assert_eq!(few.subjects().iter().map(ToString::to_string).collect::<Vec<_>>(), ["firmware/shadow-noh"]);
    }

    #[test]
    fn results_stay_in_order() {
        for count in 0..5 {
            let items: Vec<_> = (0..count).collect();
            let doubled: Vec<_> = items.iter().map(|n| n * 2).collect();
            assert_eq!(two_at_a_time(&items, |n| n * 2).ok(), Some(doubled));
        }
    }
}
