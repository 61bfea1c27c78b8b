//! Pages that Gnomon takes from L1: instructions for each, by the pages of L2's that map it and by the size of L2's memory.
//!
//! L1's balloon takes the pages by one list, as Linux's driver has them, of 256 pages; or L1 reports each page as free, which is an exit and
//! a chain of the device's queue for each. The entries that map a page are removed from all tables, and its frame is freed.

use crate::bench::experiments::linux::number;
use crate::bench::experiments::series::{self, Plan, Point, Series};
use crate::bench::lab::Lab;
use crate::bench::lab::subject::{Choice, Subject};
use crate::bench::output::report::Block;
use crate::bench::output::table::Table;
use crate::host::size::{MIB, Size};
use abi::bundle::L2Tables;
use serde_json::{Value, json};

/// Pages that are taken.
const COUNT: u64 = 256;
/// MiB that L2 maps besides, and the suffix of the guest's kinds: by one list, or each alone.
const CASES: [(u64, &str); 3] = [(16, ""), (1024, ""), (16, "-alone")];
/// Kinds of the guest: pages that L2 does not map, and pages that three of L2's pages map.
const KINDS: [&str; 2] = ["spare", "taken"];
/// The most instructions for a page of a list that three of L2's pages map.
const AT_MOST: f64 = 4000.0;
/// Gnomon's tables for L2.
const TABLES: [(L2Tables, &str); 2] = [(L2Tables::Nested, "nested"), (L2Tables::Collapsed, "collapsed")];
/// RAM of L1.
const MEMORY: Size = Size(1280 * MIB);

/// The results, for each of [`TABLES`].
pub(super) struct Taking([Vec<Series>; TABLES.len()]);

/// The figures of one size of L2's memory, on one kind of tables.
struct Row {
    tables: &'static str,
    mib: u64,
    is_alone: bool,
    /// Instructions for a page, by [`KINDS`].
    each: [Option<f64>; KINDS.len()],
}

impl Taking {
    pub(super) fn measure(lab: &Lab, choice: &Choice) -> miette::Result<Self> {
        let points_of = |(mib, suffix): (u64, &str)| KINDS.map(|kind| format!("{kind}{suffix} {COUNT} {mib}"));
        let points: Vec<_> = CASES.into_iter().flat_map(points_of).collect();
        let measure = |tables| series::measure(&Plan::of_l1("nested", points.clone(), tables, MEMORY), lab, choice);
        let [nested, collapsed] = TABLES.map(|(tables, _)| measure(tables));
        Ok(Self([nested?, collapsed?]))
    }

    /// The subjects, with the figures of each.
    fn rows(&self) -> impl Iterator<Item = (Subject, Vec<Row>)> {
        let subjects = self.0[0].iter().map(|series| series.subject);
        subjects.enumerate().map(|(at, subject)| {
            let of_tables = |(tables, (_, name)): (usize, (L2Tables, &'static str))| {
                let series = self.0[tables].get(at);
                let each = move |point| each(subject, series?.point(point)?);
                let row = move |(n, (mib, suffix)): (usize, (u64, &str))| Row {
                    tables: name,
                    mib,
                    is_alone: !suffix.is_empty(),
                    each: [0, 1].map(|kind| each(n * KINDS.len() + kind)),
                };
                CASES.into_iter().enumerate().map(row)
            };
            (subject, TABLES.into_iter().enumerate().flat_map(of_tables).collect())
        })
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = Block> {
        self.rows().map(|(subject, rows)| {
            let headings = ["L2's tables", "L2's memory", "pages go", "no page", "three pages", "at most"];
            let mut table = Table::new(headings);
            for row in rows {
                let [spare, taken] = row.each;
                table.row([
                    row.tables.to_owned(),
                    format!("{} MiB", row.mib),
                    if row.is_alone { "one by one" } else { "by one list" }.to_owned(),
                    number(spare, 1),
                    number(taken, 1),
                    row.at_most().map_or_else(String::new, |most| number(Some(most), 0)),
                ]);
            }
            let title = "instructions to take a page from L1 that no or three pages of L2's map";
            Block::Table(format!("{subject}: {title}"), table)
        })
    }

    pub(super) fn json(&self) -> Value {
        let row = |row: Row| {
            let [spare, taken] = row.each;
            json!({
                "tables": row.tables, "mib": row.mib, "is_alone": row.is_alone,
                "no_page": spare, "three_pages": taken, "at_most": row.at_most(),
            })
        };
        let of = |(subject, rows): (Subject, Vec<Row>)| json!({ "subject": subject, "pages": rows.into_iter().map(row).collect::<Vec<_>>() });
        self.rows().map(of).collect()
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|all| series::failures(all))
    }
}

impl Row {
    /// The most instructions for a page that three of L2's pages map.
    fn at_most(&self) -> Option<f64> {
        (!self.is_alone).then_some(AT_MOST)
    }
}

/// Gnomon's instructions for each page.
fn each(subject: Subject, point: &Point) -> Option<f64> {
    let (counts, count) = (point.counts()?, point.figure("count"));
    (count > 0).then(|| counts.host_instructions(subject) as f64 / count as f64)
}
