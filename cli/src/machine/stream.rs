//! Takes Gnomon's console output apart: records for programs, text for people.

use crate::machine::monitor::FileError;
use crate::machine::relay::UplinkEnd;
use crate::machine::servers::LostShare;
use abi::record::{MARK, Record};

/// A record longer than this is none.
const MOST_BYTES: usize = 1 << 20;

/// A piece of console output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Bytes as they came.
    Text(Vec<u8>),
    /// A decoded record.
    Record(Record),
    /// Not of the console: trouble on the host's side of a VM's devices.
    Trouble(Trouble),
}

/// Trouble on the host's side of VMs' devices. It is one VM's, and the machine goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// A file could not be read or written.
    File(FileError),
    /// The server of a share has ended.
    Share(LostShare),
    /// A VM's network to the world has ended.
    Uplink(UplinkEnd),
}

/// Separates records from text. Output may come in pieces of any size.
#[derive(Debug, Default)]
pub struct RecordFilter {
    /// The bytes since a mark, while its line is not complete.
    partial: Option<Vec<u8>>,
}

impl RecordFilter {
    /// Takes in what came, gives out what is complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let stop = if self.partial.is_some() { b'\n' } else { MARK };
            let (head, tail) = match rest.iter().position(|byte| *byte == stop) {
                Some(at) => (&rest[..at], Some(&rest[at + 1..])),
                None => (rest, None),
            };
            match &mut self.partial {
                Some(partial) => {
                    partial.extend_from_slice(head);
                    if tail.is_some() || partial.len() > MOST_BYTES {
                        pieces.extend(self.complete(tail.is_some()));
                    }
                }
                None => {
                    if !head.is_empty() {
                        pieces.push(Piece::Text(head.to_vec()));
                    }
                    if tail.is_some() {
                        self.partial = Some(Vec::new());
                    }
                }
            }
            rest = tail.unwrap_or_default();
        }
        pieces
    }

    /// Returns the rest at the end of the output: a truncated record, as text.
    pub fn finish(&mut self) -> Option<Piece> {
        self.complete(false)
    }

    /// Ends the record that a mark began. A record that does not parse is shown as text.
    fn complete(&mut self, with_newline: bool) -> Option<Piece> {
        let mut bytes = self.partial.take()?;
        let record = std::str::from_utf8(&bytes).ok().and_then(|text| Record::parse(text.trim_end()));
        if let Some(record) = record {
            return Some(Piece::Record(record));
        }
        if with_newline {
            bytes.push(b'\n');
        }
        Some(Piece::Text(bytes))
    }
}

/// Bytes of a line from which on it is given out in parts.
pub const MOST_LINE: usize = 64 << 10;
/// CRs before an LF that belong to the line's end.
const MOST_RETURNS: usize = 16;

/// A line without its end, or a part of one that is longer than [`MOST_LINE`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The text.
    pub bytes: Vec<u8>,
    /// Set if the line begins with it.
    pub begins: bool,
    /// Set if the line ends with it.
    pub ends: bool,
}

/// Cuts text into lines like [`Lines`], and long lines into parts: a guest can print without end and without line breaks, and little of it
/// is kept.
#[derive(Debug, Default)]
pub struct Parts {
    partial: Vec<u8>,
    /// Set if the beginning of the line was given out.
    is_inside: bool,
}

impl Parts {
    /// Takes in what came, gives out the lines that are complete, and parts of one that is long.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Part> {
        let mut parts = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            let begins = !self.is_inside;
            if self.partial.last() == Some(&b'\n') {
                self.partial.pop();
                while self.partial.last() == Some(&b'\r') {
                    self.partial.pop();
                }
                self.is_inside = false;
                parts.push(Part { bytes: std::mem::take(&mut self.partial), begins, ends: true });
            } else if self.partial.len() > MOST_LINE {
                let kept = self.partial.split_off(self.partial.len() - undecided(&self.partial));
                self.is_inside = true;
                parts.push(Part { bytes: std::mem::replace(&mut self.partial, kept), begins, ends: false });
            }
        }
        parts
    }

    /// Returns the rest at the end of the text, which has no line end.
    pub fn finish(&mut self) -> Option<Part> {
        let begins = !std::mem::take(&mut self.is_inside);
        let bytes = Some(std::mem::take(&mut self.partial)).filter(|bytes| !bytes.is_empty())?;
        Some(Part { bytes, begins, ends: true })
    }

    /// Returns the beginning of an incomplete line, as far as none of it was given out.
    #[must_use]
    pub fn beginning(&self) -> &[u8] {
        if self.is_inside { &[] } else { &self.partial }
    }
}

/// The number of last bytes whose meaning depends on what follows: CRs, and the first three bytes of an escape sequence.
fn undecided(bytes: &[u8]) -> usize {
    let returns = bytes.iter().rev().take(MOST_RETURNS).take_while(|byte| **byte == b'\r').count();
    let escape = bytes.iter().rev().take(3).position(|byte| *byte == b'\x1b').map_or(0, |at| at + 1);
    returns.max(escape)
}

/// Cuts text into lines. A line ends with LF; CRs before it belong to the line end.
#[derive(Debug, Default)]
pub struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    /// Takes in what came, gives out the lines that are complete, without their ends.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(part);
            if self.partial.last() == Some(&b'\n') {
                let mut line = std::mem::take(&mut self.partial);
                line.pop();
                while line.last() == Some(&b'\r') {
                    line.pop();
                }
                lines.push(line);
            }
        }
        lines
    }

    /// The last line, if it has no end.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.partial)).filter(|line| !line.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::record::Stats;

    fn all(pieces: &[&[u8]]) -> (String, Vec<Record>) {
        let mut filter = RecordFilter::default();
        let (mut text, mut records) = (Vec::new(), Vec::new());
        let found: Vec<Piece> = pieces.iter().flat_map(|piece| filter.push(piece)).collect();
        for piece in found.into_iter().chain(filter.finish()) {
            match piece {
                Piece::Text(bytes) => text.extend(bytes),
                Piece::Record(record) => records.push(record),
                Piece::Trouble(_) => unreachable!("it is not of the console"),
            }
        }
        (String::from_utf8(text).expect("text"), records)
    }

    #[test]
    fn records_leave_the_text() {
        let stream = b"hello\n\x1e\"halt\"\r\nworld\x1e{\"stats\":{\"vms\":[],\"host\":{}}}\n!";
        let expected = ("hello\nworld!".into(), vec![Record::Halt, Record::Stats(Stats::default())]);
        assert_eq!(all(&[stream]), expected);
        for cut in 0..stream.len() {
            assert_eq!(all(&[&stream[..cut], &stream[cut..]]), expected, "cut at {cut}");
        }
        let single: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(all(&single), expected);
    }

    #[test]
    fn what_is_no_record_is_shown() {
        assert_eq!(all(&[b"\x1enonsense\nx"]), ("nonsense\nx".into(), vec![]));
        assert_eq!(all(&[b"a\x1e{\"ha"]), ("a{\"ha".into(), vec![]));
    }

    #[test]
    fn long_lines_come_in_parts() {
        let part = |text: &[u8], begins, ends| Part { bytes: text.to_vec(), begins, ends };
        let mut parts = Parts::default();
        assert_eq!(parts.push(b"a\r\n\nb"), [part(b"a", true, true), part(b"", true, true)]);
        assert_eq!(parts.beginning(), b"b");
        assert_eq!(parts.finish(), Some(part(b"b", true, true)));
        assert_eq!(parts.finish(), None);
        // Neither the line's end nor a sequence for a terminal is cut.
        let long = vec![b'x'; MOST_LINE];
        for (last, next) in [("\r\r", "\n"), ("\x1b[6", "n\n"), ("y", "z\n")] {
            let decided = if last == "y" { 1 } else { 0 };
            let given = parts.push(&[&long, last.as_bytes()].concat());
            assert_eq!(given, [part(&[&long, &last.as_bytes()[..decided]].concat(), true, false)], "{last:?}");
            assert_eq!(parts.beginning(), b"");
            let rest = format!("{}{}", &last[decided..], next);
            assert_eq!(parts.push(next.as_bytes()), [part(rest.trim_end().as_bytes(), false, true)], "{last:?}");
        }
        // Of a text without end little is kept.
        for text in [[b'x'; 1000], [b'\r'; 1000], [b'\x1b'; 1000]] {
            let given: usize = (0..1000).flat_map(|_| parts.push(&text)).map(|part| part.bytes.len()).sum();
            assert!(parts.partial.len() <= MOST_LINE && given + parts.partial.len() == 1_000_000);
            parts.finish();
        }
    }

    #[test]
    fn lines_end_with_lf_or_crlf() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"a\r\nb\n\r\r\nc\r"), [b"a".to_vec(), b"b".to_vec(), vec![]]);
        assert_eq!(lines.push(b"\n"), [b"c".to_vec()]);
        assert_eq!(lines.push(b"d"), Vec::<Vec<u8>>::new());
        assert_eq!(lines.finish(), Some(b"d".to_vec()));
        assert_eq!(lines.finish(), None);
    }
}
