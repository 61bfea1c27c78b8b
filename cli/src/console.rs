//! What a person or a program sees of the guests' consoles.

use crate::stream::Lines;
use std::collections::VecDeque;

/// Lines of the consoles that are kept for the case of trouble.
const KEPT_LINES: usize = 30;

const BEGIN: &[u8] = b"gnomon-exec: begin";
const END: &[u8] = b"gnomon-exec: end ";

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

/// What comes out of a console when commands are run in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExecEvent {
    /// The commands' output: to be shown as it is.
    Output(Vec<u8>),
    /// A line of something else: the kernel, init, Gnomon.
    Other(Vec<u8>),
    /// This VM's kernel has panicked: it will not come to an end by itself.
    Panic {
        /// The VM, by its place in the list.
        vm: usize,
        /// What the kernel said.
        message: String,
    },
}

/// Follows the commands of `--exec` in all VMs.
#[derive(Debug)]
pub struct ExecDemux {
    vms: Vec<ExecVm>,
    lines: Lines,
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
        Self { vms: names.into_iter().map(vm).collect(), lines: Lines::default() }
    }

    /// Takes in console output.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<ExecEvent> {
        let lines = self.lines.push(bytes);
        lines.into_iter().map(|line| self.line(line)).collect()
    }

    /// What is left at the end of the output.
    pub fn finish(&mut self) -> Option<ExecEvent> {
        self.lines.finish().map(|line| self.line(line))
    }

    /// The status of the commands in each VM; `None` where they did not come to their end.
    pub fn statuses(&self) -> impl Iterator<Item = (&str, Option<i32>)> {
        self.vms.iter().map(|vm| {
            let status = if let ExecState::Ended(status) = vm.state { Some(status) } else { None };
            (vm.name.as_str(), status)
        })
    }

    fn line(&mut self, line: Vec<u8>) -> ExecEvent {
        let is_one = self.vms.len() == 1;
        let whose = self.vms.iter().enumerate().find_map(|(index, vm)| {
            let rest =
                if is_one { Some(&line[..]) } else { line.strip_prefix(vm.name.as_bytes())?.strip_prefix(b"| ") };
            rest.map(|rest| (index, rest.to_vec()))
        });
        let Some((index, content)) = whose else { return ExecEvent::Other(line) };
        let state = &mut self.vms[index].state;
        if let Some(message) = panic_message(&content) {
            return ExecEvent::Panic { vm: index, message };
        }
        match *state {
            ExecState::Before if content == BEGIN => {
                *state = ExecState::Inside { holds_newline: false };
                ExecEvent::Other(line)
            }
            ExecState::Before | ExecState::Ended(_) => ExecEvent::Other(line),
            ExecState::Inside { holds_newline } => {
                let status = content.strip_prefix(END).and_then(|rest| std::str::from_utf8(rest).ok()?.parse().ok());
                if let Some(status) = status {
                    *state = ExecState::Ended(status);
                    // Beside other VMs' lines, a line needs its end.
                    return if is_one || !holds_newline { ExecEvent::Other(line) } else { ExecEvent::Output(vec![]) };
                }
                *state = ExecState::Inside { holds_newline: true };
                let mut out = Vec::with_capacity(line.len() + 1);
                if is_one {
                    if holds_newline {
                        out.push(b'\n');
                    }
                    out.extend(content);
                } else {
                    out.extend(line);
                    out.push(b'\n');
                }
                ExecEvent::Output(out)
            }
        }
    }
}

/// The message of a line `[    0.123456] Kernel panic - not syncing: message`.
fn panic_message(line: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(line).ok()?;
    let (time, rest) = text.strip_prefix('[')?.split_once(']')?;
    time.trim().parse::<f64>().ok()?;
    rest.trim_start().strip_prefix("Kernel panic - not syncing: ").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(output(&mut demux, stream), "a| one\nb| uno\na| \nb| two\n");
        assert_eq!(demux.statuses().collect::<Vec<_>>(), [("a", Some(0)), ("b", None)]);
    }

    #[test]
    fn a_panic_is_noticed() {
        let mut demux = ExecDemux::new(["linux"]);
        let events = demux.push(b"[    0.5] Kernel panic - not syncing: no init\r\nKernel panic - not syncing: echo\n");
        assert_eq!(events[0], ExecEvent::Panic { vm: 0, message: "no init".into() });
        assert!(matches!(events[1], ExecEvent::Other(_)));
    }

    #[test]
    fn the_tail_is_bounded() {
        let mut tail = Tail::default();
        (0..40).for_each(|i| tail.push(i.to_string().as_bytes()));
        assert_eq!((tail.lines().next(), tail.lines().count()), (Some("10"), 30));
    }
}
