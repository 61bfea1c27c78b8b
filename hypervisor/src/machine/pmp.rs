//! The layout of PMP entries in the firmware seat (privileged specification, "Physical Memory Protection"), for the
//! entries and the granularity that a hart has.
//!
//! Two walls are indispensable: guests reach nothing of Gnomon's memory, and nothing but RAM. The others protect Gnomon from itself. With
//! few entries, or coarse ones, they are left out, and [`Walls::lacks`] tells which.

use crate::machine::description::Span;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The number of entries that all walls need.
pub const ALL: usize = 7;
/// The number of entries that the indispensable walls need. If RAM is one naturally aligned power of two, one less will do.
pub const LEAST: usize = 4;

/// Reading is allowed.
pub const R: u8 = 1;
/// Writing is allowed.
pub const W: u8 = 2;
/// Execution is allowed.
pub const X: u8 = 4;
/// From the address of the entry before to that of this one.
pub const TOR: u8 = 1 << 3;
/// A naturally aligned power of two.
pub const NAPOT: u8 = 3 << 3;
/// For M mode, too, until the hart is reset.
pub const LOCK: u8 = 1 << 7;

/// The PMP of a hart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pmp {
    /// Entries that can be used, from entry 0 on.
    pub entries: usize,
    /// The granularity in bytes, a power of two from 4 on.
    pub grain: u64,
}

/// The memory that is protected, each address a multiple of a page's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The page below the hart's stack, within Gnomon's data.
    pub guard: Span,
    /// The start of Gnomon's code.
    pub code: u64,
    /// The end of the code, and start of the constants.
    pub constants: u64,
    /// The end of the constants, and start of the data.
    pub data: u64,
    /// The end of the data: of all that guests must not reach.
    pub end: u64,
    /// From the first byte of RAM to the last. What lies between pieces of RAM is open to guests as far as PMP decides.
    pub ram: Span,
}

/// An entry: its byte of `pmpcfg` and its `pmpaddr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Rights, address mode and lock.
    pub config: u8,
    /// The address in units of 4 bytes, as its mode wants it.
    pub address: u64,
}

/// A wall that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// A stack that grows too large is not noticed.
    Guard,
    /// The constants are executable, for Gnomon alone.
    Constants,
    /// Neither code nor constants are write-protected, from Gnomon alone.
    Image,
}

impl Lack {
    /// Returns the consequence, as a part of a message.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guard => "stacks have no guard pages",
            Self::Constants => "Gnomon's constants are executable for Gnomon itself",
            Self::Image => "Gnomon's code is not write-protected from Gnomon itself",
        }
    }
}

/// The entries for a hart, and what they leave out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Walls {
    /// From entry 0 on.
    pub entries: Vec<Entry>,
    /// The walls that are left out, at most two.
    pub lacks: Vec<Lack>,
}

/// The fineness of the walls within Gnomon's image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Image {
    /// Code is executable, constants are readable.
    Fine,
    /// Code and constants are readable and executable.
    Whole,
    /// Nothing is denied to M mode.
    Open,
}

/// The choices, the best first. The guard page is worth more than the walls within the image: it notices faults that can happen.
const CHOICES: [(bool, Image); 6] = [
    (true, Image::Fine),
    (true, Image::Whole),
    (true, Image::Open),
    (false, Image::Fine),
    (false, Image::Whole),
    (false, Image::Open),
];

/// Returns the best walls that a hart's PMP can build.
///
/// # Errors
/// A message that names the entries or the granularity which are missing, if the indispensable walls cannot be built.
pub fn fit(pmp: Pmp, layout: &Layout) -> Result<Walls, String> {
    let grain = pmp.grain;
    let is_even = |address: u64| address.is_multiple_of(grain);
    if pmp.entries == 0 {
        return Err(format!("the hart has no PMP, of which the firmware seat needs {LEAST} entries: {REMEDY}"));
    }
    let outer = [layout.code, layout.end, layout.ram.start, layout.ram.end()];
    if let Some(address) = outer.into_iter().find(|address| !is_even(*address)) {
        return Err(format!(
            "the granularity of the hart's PMP is {grain:#x} bytes, and {address:#x}, where a wall is needed, is not a \
             multiple: {REMEDY}"
        ));
    }
    let found = CHOICES.into_iter().find_map(|choice| {
        let fits = |walls: &Vec<Entry>| walls.len() <= pmp.entries;
        let entries =
            [Rest::Tor, Rest::Napot].into_iter().find_map(|rest| build(layout, choice, rest, grain).filter(fits))?;
        let (has_guard, image) = choice;
        let guard = (!has_guard).then_some(Lack::Guard);
        let image = match image {
            Image::Fine => None,
            Image::Whole => Some(Lack::Constants),
            Image::Open => Some(Lack::Image),
        };
        Some(Walls { entries, lacks: guard.into_iter().chain(image).collect() })
    });
    found.ok_or_else(|| {
        format!("the hart has {} PMP entries, and the firmware seat needs {LEAST}: {REMEDY}", pmp.entries)
    })
}

/// The remedy of a PMP that is too small.
const REMEDY: &str =
    "use the payload seat, whose walls are page tables (on harts with the H extension), or another machine";

/// The kind of the entry that opens RAM.
#[derive(Clone, Copy)]
enum Rest {
    /// Two entries, for any RAM.
    Tor,
    /// One, if RAM is a naturally aligned power of two.
    Napot,
}

/// Builds the walls of one choice. The lowest entry that matches an address decides. `None` if the granularity is too coarse.
fn build(layout: &Layout, (has_guard, image): (bool, Image), rest: Rest, grain: u64) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let even = |address: u64| address.is_multiple_of(grain).then_some(address >> 2);
    if has_guard {
        // For M mode, too.
        entries.push(Entry { config: NAPOT | LOCK, address: napot(layout.guard, grain)? });
    }
    entries.push(Entry { config: 0, address: even(layout.code)? });
    match image {
        Image::Fine => {
            entries.push(Entry { config: TOR | LOCK | R | X, address: even(layout.constants)? });
            entries.push(Entry { config: TOR | LOCK | R, address: even(layout.data)? });
        }
        Image::Whole => entries.push(Entry { config: TOR | LOCK | R | X, address: even(layout.data)? }),
        Image::Open => {}
    }
    // Nothing for guests, everything for M mode.
    entries.push(Entry { config: TOR, address: even(layout.end)? });
    match rest {
        Rest::Tor => {
            entries.push(Entry { config: 0, address: even(layout.ram.start)? });
            entries.push(Entry { config: TOR | R | W | X, address: even(layout.ram.end())? });
        }
        Rest::Napot => entries.push(Entry { config: NAPOT | R | W | X, address: napot(layout.ram, grain)? }),
    }
    Some(entries)
}

/// Returns the `pmpaddr` of a naturally aligned power of two, whose length is in the low bits. `None` if the span is none, or
/// smaller than the granularity.
const fn napot(span: Span, grain: u64) -> Option<u64> {
    let fits =
        span.bytes.is_power_of_two() && span.bytes >= 8 && span.bytes >= grain && span.start.is_multiple_of(span.bytes);
    if fits { Some(span.start >> 2 | ((span.bytes / 2 - 1) >> 2)) } else { None }
}
