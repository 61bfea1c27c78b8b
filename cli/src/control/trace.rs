//! Exits as a trace: JSON that Perfetto and Chrome's viewer open (the Trace Event Format).

use crate::host::output::Kind;
use abi::control::{Event, Events, FOR_CONTROL};
use rv::{Cause, Exception};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The files of traces. Each begins with the harts' name.
pub const FILE: Kind = Kind {
    what: "a trace of Gnomon's",
    mark: b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[{\"args\":{\"name\":\"harts\"}",
};

/// The process that the harts are the threads of.
const HARTS: u32 = 1;

/// Exits of harts, with what was lost.
#[derive(Debug, Default)]
pub struct Trace {
    /// By hart, oldest first. Where some were lost, `None` stands in their place.
    harts: BTreeMap<u32, Vec<Option<Event>>>,
    /// Ticks in a second.
    timebase: u64,
    /// The number of lost exits.
    pub lost: u64,
    count: usize,
}

/// The name of an exit.
#[must_use]
pub fn name(event: &Event) -> String {
    match Cause::from_register(event.cause) {
        Cause::Exception(Exception::EcallFromVs | Exception::EcallFromS) => format!("SBI {}", extension(event.detail)),
        Cause::Exception(exception) => format!("{exception:?}"),
        Cause::Interrupt(_) if event.detail == FOR_CONTROL => "control channel".into(),
        Cause::Interrupt(interrupt) => format!("interrupt {interrupt:?}"),
        Cause::Unknown(cause) => format!("cause {cause:#x}"),
    }
}

/// Returns the category of an exit, by which viewers filter.
fn category(event: &Event) -> &'static str {
    match Cause::from_register(event.cause) {
        Cause::Interrupt(_) if event.detail == FOR_CONTROL => "control",
        _ => "exit",
    }
}

/// An SBI extension's name: mostly its number is that in ASCII.
fn extension(id: u64) -> String {
    let text: String = id.to_be_bytes().iter().skip_while(|byte| **byte == 0).map(|byte| char::from(*byte)).collect();
    match id {
        0..=0xf => format!("legacy {id}"),
        0x10 => "base".into(),
        _ if text.len() <= 4 && text.chars().all(|letter| letter.is_ascii_alphanumeric()) => text,
        _ => format!("{id:#x}"),
    }
}

impl Trace {
    /// Returns the number of exits in it.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of those that the control channel made, such as the trace itself.
    #[must_use]
    pub fn own(&self) -> usize {
        self.harts.values().flatten().flatten().filter(|event| category(event) == "control").count()
    }

    /// Adds what a hart has noted.
    pub fn add(&mut self, hart: u32, found: Events) {
        self.timebase = found.timebase;
        self.lost += found.lost;
        self.count += found.events.len();
        let all = self.harts.entry(hart).or_default();
        all.extend((found.lost > 0).then_some(None));
        all.extend(found.events.into_iter().map(Some));
    }

    /// The file's content. `vm_names` are by number; a trace of one VM does not show the harts' work between its exits.
    #[must_use]
    pub fn to_json(&self, vm_names: &BTreeMap<u64, String>, is_whole: bool) -> Vec<u8> {
        let first = self.harts.values().flatten().flatten().map(|event| event.at).min().unwrap_or_default();
        let micros = |ticks: u64| ticks as f64 * 1e6 / self.timebase.max(1) as f64;
        let at = |ticks: u64| micros(ticks.saturating_sub(first));
        let vm_name = |vm: u64| vm_names.get(&vm).cloned().unwrap_or_else(|| format!("VM {vm}"));
        let mut all = vec![named("process_name", 0, "harts")];
        for (hart, events) in &self.harts {
            all.push(named("thread_name", *hart, &format!("hart {hart}")));
            let mut before: Option<&Event> = None;
            for event in events {
                let Some(event) = event else {
                    before = None;
                    continue;
                };
                let who = format!("{}/{}", vm_name(event.vm), event.vcpu);
                let entered =
                    before.map(|before| before.at + before.took).filter(|entered| is_whole && *entered < event.at);
                if let Some(entered) = entered {
                    all.push(json!({
                        "ph": "X", "cat": "guest", "name": &who, "pid": HARTS, "tid": hart,
                        "ts": at(entered), "dur": micros(event.at - entered),
                    }));
                }
                all.push(json!({
                    "ph": "X", "cat": category(event), "name": name(event), "pid": HARTS, "tid": hart,
                    "ts": at(event.at), "dur": micros(event.took),
                    "args": {
                        "vcpu": who, "pc": hex(event.pc), "tval": hex(event.tval), "gpa or extension": hex(event.detail),
                        "idle us": micros(event.idle),
                    },
                }));
                before = Some(event);
            }
        }
        serde_json::to_vec(&json!({ "displayTimeUnit": "ns", "traceEvents": all })).unwrap_or_default()
    }
}

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

fn named(what: &str, hart: u32, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": HARTS, "tid": hart, "args": { "name": name } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_have_names() {
        let named = |cause, detail| name(&Event { cause, detail, ..Event::default() });
        assert_eq!(named(10, 0x5449_4d45), "SBI TIME");
        assert_eq!(named(10, 0x10), "SBI base");
        assert_eq!(named(9, 1), "SBI legacy 1");
        assert_eq!(named(10, u64::MAX), "SBI 0xffffffffffffffff");
        assert_eq!(named(23, 0), "StoreGuestPage");
        assert_eq!(named(1 << 63 | 7, 0), "interrupt MTimer");
        assert_eq!(named(63, 0), "cause 0x3f");
        assert_eq!(named(1 << 63 | 11, 0), "interrupt MExternal");
        assert_eq!(named(1 << 63 | 11, FOR_CONTROL), "control channel");
        assert_eq!(named(10, FOR_CONTROL), "SBI legacy 1", "a detail of another kind");
    }

    #[test]
    fn a_traces_own_exits_are_marked() {
        let event = |cause, detail| Event { cause, detail, ..Event::default() };
        let events = vec![event(1 << 63 | 11, FOR_CONTROL), event(10, FOR_CONTROL), event(1 << 63 | 11, 0)];
        let mut trace = Trace::default();
        trace.add(0, Events { timebase: 1, events, lost: 0 });
        assert_eq!((trace.count(), trace.own()), (3, 1));
        let text = String::from_utf8(trace.to_json(&BTreeMap::new(), false)).expect("text");
        assert_eq!((text.matches("\"cat\":\"control\"").count(), text.matches("\"cat\":\"exit\"").count()), (1, 2));
    }

    #[test]
    fn slices_do_not_overlap_and_gaps_stay_gaps() {
        let event = |at, took| Event { at, took, vm: 4, vcpu: 1, cause: 10, detail: 0x10, ..Event::default() };
        let mut trace = Trace::default();
        let mut add = |hart, events, lost| trace.add(hart, Events { timebase: 10_000_000, events, lost });
        add(0, vec![event(100, 10), event(150, 10)], 0);
        add(0, vec![event(500, 5)], 7);
        add(3, vec![event(90, 1)], 0);
        assert_eq!((trace.count(), trace.lost), (4, 7));
        let read = |is_whole| -> Vec<Value> {
            let json: Value =
                serde_json::from_slice(&trace.to_json(&[(4, "vm".into())].into(), is_whole)).expect("JSON");
            json["traceEvents"].as_array().expect("a list").clone()
        };
        let slices = |all: &[Value], kind: &str| -> Vec<(u64, f64, f64)> {
            let of = all.iter().filter(|event| event["cat"] == kind);
            let number = |value: &Value| value.as_f64().expect("a number");
            of.map(|e| (e["tid"].as_u64().expect("a hart"), number(&e["ts"]), number(&e["dur"]))).collect()
        };
        let all = read(true);
        assert_eq!(slices(&all, "exit"), [(0, 1.0, 1.0), (0, 6.0, 1.0), (0, 41.0, 0.5), (3, 0.0, 0.1)]);
        assert_eq!(slices(&all, "guest"), [(0, 2.0, 4.0)]);
        assert!(all.iter().any(|event| event["name"] == "vm/1" && event["ph"] == "X"));
        assert!(all.iter().any(|event| event["name"] == "SBI base" && event["args"]["vcpu"] == "vm/1"));
        assert!(all.iter().any(|event| event["ph"] == "M" && event["args"]["name"] == "hart 3"));
        assert!(slices(&read(false), "guest").is_empty());
    }
}
