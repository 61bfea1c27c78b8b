//! Routes the machine's output to the terminal.

use crate::host::tty;
use crate::machine::process::{Next, Stopped};
use crate::machine::stream::{Part, Parts, Piece};
use crate::run::console::{ExecDemux, ExecEvent, PanicWatch, Tail};
use abi::bundle::ConsoleMode;
use abi::record::Record;
use std::io::{Error, ErrorKind, IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

/// The time for which the output of a panicked kernel is shown.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Shows a run on standard output and standard error.
#[derive(Debug)]
pub struct Show {
    mode: ConsoleMode,
    demux: Option<ExecDemux>,
    is_verbose: bool,
    lines: Parts,
    tail: Tail,
    watch: Option<PanicWatch>,
    /// The time when the run is to be stopped, since only panicked kernels are left.
    stop_at: Option<Instant>,
    /// Set if standard output is a terminal.
    has_terminal: bool,
    /// Set if the printed output ends with a whole line.
    is_fresh: bool,
    /// The error of standard output, which ends the run.
    output_error: Option<Error>,
}

impl Show {
    pub fn new(mode: ConsoleMode, demux: Option<ExecDemux>, watch: Option<PanicWatch>, is_verbose: bool) -> Self {
        Self {
            mode,
            demux,
            is_verbose,
            lines: Parts::default(),
            tail: Tail::default(),
            watch,
            stop_at: None,
            has_terminal: stdout().is_terminal(),
            is_fresh: true,
            output_error: None,
        }
    }

    pub fn demux(&self) -> Option<&ExecDemux> {
        self.demux.as_ref()
    }

    /// Returns whether the whole output of the consoles is shown.
    pub fn shows_consoles(&self) -> bool {
        self.demux.is_none() || self.is_verbose
    }

    /// The last lines of the consoles, unless they were shown.
    pub fn unshown_tail(&self) -> impl Iterator<Item = &str> {
        let is_unshown = !self.shows_consoles();
        self.tail.lines().filter(move |_| is_unshown)
    }

    /// The reason why the output could not be passed on.
    pub fn output_end(&self) -> String {
        match self.output_error.as_ref().filter(|why| why.kind() != ErrorKind::BrokenPipe) {
            Some(why) => format!("standard output could not be written: {why}"),
            None => "standard output was closed".into(),
        }
    }

    /// The VMs whose kernels have panicked, and what they said.
    pub fn panicked(&self) -> impl Iterator<Item = (&str, &str)> {
        self.watch.iter().flat_map(PanicWatch::panicked)
    }

    /// Shows a piece of output.
    pub fn piece(&mut self, piece: &Piece) -> Next {
        if let Some(watch) = &mut self.watch {
            match piece {
                Piece::Text(bytes) => watch.push(bytes),
                Piece::Record(Record::VmEnd(end)) => watch.ended(&end.vm),
                Piece::Record(_) | Piece::Trouble(_) => {}
            }
        }
        if let Piece::Text(bytes) = piece
            && let Err(why) = self.text(bytes)
        {
            self.output_error = Some(why);
            return Next::Stop(Stopped::OutputClosed);
        }
        if !self.watch.as_ref().is_some_and(PanicWatch::is_over) {
            return self.stop_at.take().map_or(Next::Continue, |_| Next::Revoke);
        }
        Next::StopAt(*self.stop_at.get_or_insert_with(|| Instant::now() + LAST_WORDS), Stopped::Enough)
    }

    fn text(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match (&mut self.demux, self.mode) {
            (Some(demux), _) => {
                let events = demux.push(bytes);
                self.exec_events(events)
            }
            (None, ConsoleMode::Attached) => self.print(bytes),
            (None, ConsoleMode::Lines) => {
                let mut text = Vec::new();
                for line in self.lines.push(bytes) {
                    text.extend(if self.has_terminal { line.bytes } else { without_queries(&line.bytes) });
                    text.extend(line.ends.then_some(b'\n'));
                }
                self.print(&text)
            }
        }
    }

    /// Shows a line that is not the guests', on standard error.
    pub fn say(&mut self, line: &str) {
        if !self.is_fresh && stdout().is_terminal() {
            tty::say("");
        }
        self.is_fresh = true;
        tty::say(line);
    }

    /// Shows what is left at the end of the output.
    pub fn finish(&mut self) {
        let last = self.demux.as_mut().and_then(ExecDemux::finish);
        let rest = self.lines.finish().map(|part| part.bytes).unwrap_or_default();
        let rest = if self.has_terminal { rest } else { without_queries(&rest) };
        // The run is over; output that is closed by now is no news.
        let _ = self.exec_events(last.into_iter().collect());
        let _ = self.print(&rest);
        // What is said next, and the user's prompt, start a line. A file gets what the guests printed, no more.
        if !self.is_fresh && stdout().is_terminal() {
            tty::say("");
        }
    }

    fn exec_events(&mut self, events: Vec<ExecEvent>) -> std::io::Result<()> {
        for event in events {
            match event {
                ExecEvent::Output(bytes) => {
                    self.print(&bytes)?;
                    let line = bytes.strip_prefix(b"\n").unwrap_or(&bytes);
                    self.tail.push(line.strip_suffix(b"\n").unwrap_or(line));
                }
                ExecEvent::Other(part) => self.other(&part),
            }
        }
        Ok(())
    }

    fn other(&mut self, part: &Part) {
        if self.is_verbose {
            let end: &[u8] = if part.ends { b"\n" } else { b"" };
            // As the guest printed it. A reader that has closed it is not an error.
            let _ = stderr().lock().write_all(&[&part.bytes, end].concat());
        }
        self.tail.push(&part.bytes);
    }

    fn print(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let Some(last) = bytes.last() else { return Ok(()) };
        self.is_fresh = *last == b'\n';
        let mut out = stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }
}

/// Returns a line without questions to a terminal for the place of its cursor, which shells ask: no other reader can answer.
fn without_queries(line: &[u8]) -> Vec<u8> {
    const QUERY: &[u8] = b"\x1b[6n";
    let mut rest = line;
    let mut kept = Vec::with_capacity(line.len());
    while let Some(at) = memchr::memmem::find(rest, QUERY) {
        kept.extend(&rest[..at]);
        rest = &rest[at + QUERY.len()..];
    }
    kept.extend(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_not_asked_for_its_cursor() {
        for (line, kept) in [
            ("linux:~# \x1b[6nuname", "linux:~# uname"),
            ("\x1b[6n\x1b[6n", ""),
            ("\x1b[31mred\x1b[6", "\x1b[31mred\x1b[6"),
            ("", ""),
        ] {
            assert_eq!(without_queries(line.as_bytes()), kept.as_bytes());
        }
    }
}
