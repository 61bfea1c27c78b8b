//! The guests' consoles as a user or a program sees them.

use crate::machine::stream::{Part, Parts};
use std::collections::VecDeque;

/// Lines of the consoles that are kept for the case of trouble.
const KEPT_LINES: usize = 30;

const BEGIN: &[u8] = b"gnomon-exec: begin";
const END: &[u8] = b"gnomon-exec: end ";

/// The beginning of the message of a first process of Gnomon's own that gives up.
pub const CANNOT_START: &str = "cannot start: ";

/// The last lines that came.
#[derive(Debug, Default)]
pub struct Tail(VecDeque<String>);

impl Tail {
    /// Keeps a line.
    pub fn push(&mut self, line: &[u8]) {
        if self.0.len() == KEPT_LINES {
            self.0.pop_front();
        }
        self.0.push_back(String::from_utf8_lossy(line).into_owned());
    }

    /// The lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// The output of a console in which commands run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExecEvent {
    /// The commands' output: to be shown as it is.
    Output(Vec<u8>),
    /// A line of something else, or a part of one: the kernel, init, Gnomon.
    Other(Part),
}

/// Follows the commands of `--exec` in all VMs.
#[derive(Debug)]
pub struct ExecDemux {
    vms: Vec<ExecVm>,
    lines: Parts,
    /// The VM, by its place, of a line of which a part has come.
    current: Option<usize>,
}

#[derive(Debug)]
struct ExecVm {
    name: String,
    state: ExecState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExecState {
    Before,
    /// The end of the line before is held back: the last line break before the end marker is
    /// init's, not the commands'.
    Inside {
        holds_newline: bool,
    },
    Ended(i32),
}

impl ExecDemux {
    /// For VMs of these names, in console order.
    #[must_use]
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let vm = |name: &str| ExecVm { name: name.to_owned(), state: ExecState::Before };
        Self { vms: names.into_iter().map(vm).collect(), lines: Parts::default(), current: None }
    }

    /// Takes in console output.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<ExecEvent> {
        let parts = self.lines.push(bytes);
        parts.into_iter().map(|part| self.part(part)).collect()
    }

    /// The VMs whose commands have not begun.
    pub fn waiting(&self) -> impl Iterator<Item = &str> {
        self.vms.iter().filter(|vm| vm.state == ExecState::Before).map(|vm| vm.name.as_str())
    }

    /// Returns the rest at the end of the output.
    pub fn finish(&mut self) -> Option<ExecEvent> {
        self.lines.finish().map(|part| self.part(part))
    }

    /// The status of the commands in each VM; `None` where they were interrupted.
    pub fn statuses(&self) -> impl Iterator<Item = (&str, Option<i32>)> {
        self.vms.iter().map(|vm| {
            let status = if let ExecState::Ended(status) = vm.state { Some(status) } else { None };
            (vm.name.as_str(), status)
        })
    }

    fn part(&mut self, part: Part) -> ExecEvent {
        let is_one = self.vms.len() == 1;
        let line = part.bytes.as_slice();
        let whose = if part.begins {
            let whose = whose(line, self.vms.iter().map(|vm| vm.name.as_str()));
            whose.map(|(index, content)| (index, line.len() - content.len()))
        } else {
            self.current.map(|index| (index, 0))
        };
        self.current = whose.map(|(index, _)| index);
        let Some((index, prefix)) = whose else { return ExecEvent::Other(part) };
        let content = &line[prefix..];
        let state = &mut self.vms[index].state;
        let is_whole = part.begins && part.ends;
        match *state {
            ExecState::Before if is_whole && content == BEGIN => {
                *state = ExecState::Inside { holds_newline: false };
                ExecEvent::Other(part)
            }
            ExecState::Before | ExecState::Ended(_) => ExecEvent::Other(part),
            ExecState::Inside { holds_newline } => {
                let end = content.strip_prefix(END).filter(|_| is_whole);
                if let Some(status) = end.and_then(|rest| std::str::from_utf8(rest).ok()?.parse().ok()) {
                    *state = ExecState::Ended(status);
                    return ExecEvent::Other(part);
                }
                // Beside other VMs' lines each needs its end; what is held back then is an empty line.
                let is_held = part.ends && (is_one || part.begins && content.is_empty());
                *state = ExecState::Inside { holds_newline: is_held };
                let mut out = Vec::with_capacity(line.len() + 1);
                if holds_newline && !is_one {
                    out.extend(&line[..prefix]);
                }
                if holds_newline {
                    out.push(b'\n');
                }
                if is_one || !is_held {
                    out.extend(line);
                }
                if !is_held && part.ends {
                    out.push(b'\n');
                }
                ExecEvent::Output(out)
            }
        }
    }
}

/// The VM that printed a line, by its place, and what it printed: of several, each line has its VM's name before it.
pub(super) fn whose<'a>(line: &'a [u8], names: impl ExactSizeIterator<Item = &'a str>) -> Option<(usize, &'a [u8])> {
    if names.len() == 1 {
        return Some((0, line));
    }
    names.enumerate().find_map(|(index, name)| Some((index, line.strip_prefix(name.as_bytes())?.strip_prefix(b"| ")?)))
}

/// Watches for kernels that have panicked: their VMs do not end by themselves. A VM that prints such a line and then goes
/// on with something else than the kernel's last words has not panicked.
#[derive(Debug)]
pub struct PanicWatch {
    vms: Vec<Watched>,
    lines: Parts,
}

#[derive(Debug)]
struct Watched {
    name: String,
    /// The VM that has to end before this one starts.
    after: Option<usize>,
    has_ended: bool,
    panic: Option<String>,
}

impl PanicWatch {
    /// For VMs in console order: their names, and the place of the one that each waits for. Do not use it if
    /// one of several consoles is attached: the VM of a line is unknown then.
    #[must_use]
    pub fn new<'a>(vms: impl IntoIterator<Item = (&'a str, Option<u32>)>) -> Self {
        let vm = |(name, after): (&str, Option<u32>)| Watched {
            name: name.to_owned(),
            after: after.map(|place| place as usize),
            has_ended: false,
            panic: None,
        };
        Self { vms: vms.into_iter().map(vm).collect(), lines: Parts::default() }
    }

    /// Takes in console output.
    pub fn push(&mut self, bytes: &[u8]) {
        // The kernel's lines are short: more of a long one says nothing.
        for line in self.lines.push(bytes).into_iter().filter(|part| part.begins) {
            let names = self.vms.iter().map(|vm| vm.name.as_str());
            let Some((index, content)) = whose(&line.bytes, names) else { continue };
            let (message, may_be_last_words) = (panic_message(content), may_be_last_words(content));
            let panic = &mut self.vms[index].panic;
            match message {
                Some(_) => *panic = panic.take().or(message),
                None if !may_be_last_words => *panic = None,
                None => {}
            }
        }
        // A prompt has no end of line.
        if let [vm] = &mut self.vms[..]
            && !may_be_last_words(self.lines.beginning())
        {
            vm.panic = None;
        }
    }

    /// A VM has ended.
    pub fn ended(&mut self, name: &str) {
        self.vms.iter_mut().filter(|vm| vm.name == name).for_each(|vm| vm.has_ended = true);
    }

    /// The VMs that have panicked and not ended, and what each said.
    pub fn panicked(&self) -> impl Iterator<Item = (&str, &str)> {
        let running = self.vms.iter().filter(|vm| !vm.has_ended);
        running.filter_map(|vm| Some((vm.name.as_str(), vm.panic.as_deref()?)))
    }

    /// Returns whether there are VMs that have not ended, and none of them can still end by itself.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let mut hangs = Vec::new();
        for vm in &self.vms {
            let waits_in_vain = vm.after.is_some_and(|before| hangs.get(before) == Some(&true));
            hangs.push(!vm.has_ended && (vm.panic.is_some() || waits_in_vain));
        }
        hangs.contains(&true) && self.vms.iter().zip(hangs).all(|(vm, hangs)| vm.has_ended || hangs)
    }
}

/// Returns whether a line, or the start of one, can come from a kernel that has panicked and stands still. The
/// announcement of a reboot cannot.
fn may_be_last_words(line: &[u8]) -> bool {
    const GNOMON: &[u8] = b"gnomon: ";
    let is_gnomons = line.starts_with(GNOMON) || GNOMON.starts_with(line);
    is_gnomons
        || kernel_line(line).is_some_and(|said| !said.starts_with("Rebooting in "))
        || (line.first() == Some(&b'[') && !line.contains(&b']'))
}

/// The text after the time in a line of Linux's log: `[    0.123456] text`, or with the caller too, `[    0.123456][    T1] text`.
fn kernel_line(line: &[u8]) -> Option<&str> {
    let (time, mut rest) = std::str::from_utf8(line).ok()?.strip_prefix('[')?.split_once(']')?;
    time.trim().parse::<f64>().ok()?;
    if let Some((_caller, text)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        rest = text;
    }
    Some(rest.trim_start())
}

/// The message of a line `[    0.123456] Kernel panic - not syncing: message`, or of `gnomon: cannot start: message`, by which Gnomon's own
/// first process gives up ([`CANNOT_START`] is a part of it then).
fn panic_message(line: &[u8]) -> Option<String> {
    let own = line.strip_prefix(b"gnomon: ").filter(|own| own.starts_with(CANNOT_START.as_bytes()));
    if let Some(own) = own {
        return Some(String::from_utf8_lossy(own).into_owned());
    }
    kernel_line(line)?.strip_prefix("Kernel panic - not syncing: ").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::stream::MOST_LINE;

    fn output(demux: &mut ExecDemux, stream: &[u8]) -> String {
        let mut out = Vec::new();
        let events = demux.push(stream);
        for event in events.into_iter().chain(demux.finish()) {
            if let ExecEvent::Output(bytes) = event {
                out.extend(bytes);
            }
        }
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_commands_output_is_verbatim() {
        for (said, shown) in [("a\r\nb\r\n\r\n", "a\nb\n"), ("a\r\n", "a"), ("\r\n", ""), ("\r\n\r\n", "\n"), ("", "")]
        {
            let mut demux = ExecDemux::new(["linux"]);
            let stream = format!("boot\r\ngnomon-exec: begin\r\n{said}gnomon-exec: end 3\r\nafter\r\n");
            assert_eq!(output(&mut demux, stream.as_bytes()), shown);
            assert_eq!(demux.statuses().collect::<Vec<_>>(), [("linux", Some(3))]);
        }
    }

    #[test]
    fn two_vms_do_not_mix() {
        let mut demux = ExecDemux::new(["a", "b"]);
        let stream = b"a| gnomon-exec: begin\nb| noise\nb| gnomon-exec: begin\na| one\nb| uno\nstray\n\
                       a| \na| gnomon-exec: end 0\nb| two\n";
        // The empty line before the end is init's.
        assert_eq!(output(&mut demux, stream), "a| one\nb| uno\nb| two\n");
        assert_eq!(demux.statuses().collect::<Vec<_>>(), [("a", Some(0)), ("b", None)]);
    }

    #[test]
    fn empty_lines_of_several_vms_are_their_own() {
        for (said, shown) in [
            ("a| x\na| \n", "a| x\n"),
            ("a| x\n", "a| x\n"),
            ("a| \na| x\n", "a| \na| x\n"),
            ("a| \na| \n", "a| \n"),
            ("a| \n", ""),
        ] {
            let mut demux = ExecDemux::new(["a", "b"]);
            let stream = format!("a| gnomon-exec: begin\n{said}a| gnomon-exec: end 0\n");
            assert_eq!(output(&mut demux, stream.as_bytes()), shown, "{said:?}");
        }
    }

    #[test]
    fn lines_without_end_pass_through() {
        let long = "x".repeat(3 * MOST_LINE);
        for prefix in ["", "a| "] {
            let names = ["a", "b"].into_iter().take(if prefix.is_empty() { 1 } else { 2 });
            let mut demux = ExecDemux::new(names);
            let begin = format!("{prefix}gnomon-exec: begin\n{prefix}one\n{prefix}");
            let end = format!("\n{prefix}\n{prefix}two\n{prefix}gnomon-exec: end 0\n");
            let stream = [begin.as_str(), &long, &end].concat();
            let events: Vec<_> = stream.as_bytes().chunks(1000).flat_map(|piece| demux.push(piece)).collect();
            let said = events.iter().filter_map(|event| match event {
                ExecEvent::Output(bytes) => Some(bytes.as_slice()),
                ExecEvent::Other(_) => None,
            });
            assert!(said.clone().all(|bytes| bytes.len() < 2 * MOST_LINE));
            let said = String::from_utf8(said.collect::<Vec<_>>().concat()).expect("text");
            let last = if prefix.is_empty() { "two" } else { "a| two\n" };
            let wanted = format!("{prefix}one\n{prefix}{long}\n{prefix}\n{last}");
            assert!(said == wanted, "{} of {}", said.len(), wanted.len());
            assert_eq!(demux.statuses().next(), Some(("a", Some(0))));
        }
    }

    const PANIC: &str = "[    0.5] Kernel panic - not syncing: no init\r\n";

    fn watch(vms: &[(&str, Option<u32>)], stream: &str) -> PanicWatch {
        let mut watch = PanicWatch::new(vms.iter().copied());
        stream.as_bytes().chunks(7).for_each(|piece| watch.push(piece));
        watch
    }

    #[test]
    fn a_panic_is_noticed() {
        let one = [("linux", None)];
        for (said, is_over) in [
            (PANIC.to_owned(), true),
            (format!("{PANIC}[    0.6] ---[ end Kernel panic - not syncing: no init ]---\r\n"), true),
            (format!("[    0.5][    T1] {}", &PANIC[10..]), true),
            ("Kernel panic - not syncing: echo\n".into(), false),
            // A VM that only prints the line keeps running.
            (format!("{PANIC}# "), false),
            (format!("{PANIC}gnomon-exec: end 0\n"), false),
            (format!("{PANIC}[    0.6] Rebooting in 5 seconds..\n"), false),
            (format!("{PANIC}# \n{PANIC}"), true),
        ] {
            let watch = watch(&one, &said);
            assert_eq!(watch.is_over(), is_over, "{said}");
            assert_eq!(watch.panicked().collect::<Vec<_>>(), [("linux", "no init")][..usize::from(is_over)], "{said}");
        }
    }

    #[test]
    fn a_guest_that_cannot_start_is_noticed() {
        let one = [("linux", None)];
        let watch = watch(&one, "[    1.5] EXT4-fs: no\r\ngnomon: cannot start: no root\r\n[    1.6] random: done\r\n");
        assert_eq!(watch.panicked().collect::<Vec<_>>(), [("linux", "cannot start: no root")]);
        assert!(watch.is_over());
    }

    #[test]
    fn a_panic_marks_its_vm_only() {
        let three = [("a", None), ("b", None), ("c", Some(0))];
        let mut watch = watch(&three, &format!("a| {PANIC}b| one\na| [ 0.6] two\n"));
        assert_eq!(watch.panicked().collect::<Vec<_>>(), [("a", "no init")]);
        assert!(!watch.is_over());
        // `c` waits for `a` in vain.
        watch.ended("b");
        assert!(watch.is_over());
        watch.ended("a");
        assert!(!watch.is_over() && watch.panicked().next().is_none());
    }

    #[test]
    fn commands_may_print_such_a_line() {
        let mut demux = ExecDemux::new(["linux"]);
        let stream = format!("gnomon-exec: begin\n{PANIC}\ngnomon-exec: end 0\n");
        assert_eq!(output(&mut demux, stream.as_bytes()), PANIC.replace('\r', ""));
    }

    #[test]
    fn the_tail_is_bounded() {
        let mut tail = Tail::default();
        (0..40).for_each(|i| tail.push(i.to_string().as_bytes()));
        assert_eq!((tail.lines().next(), tail.lines().count()), (Some("10"), 30));
    }
}
