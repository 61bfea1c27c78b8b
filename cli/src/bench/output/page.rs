//! Reports as one page of HTML that needs nothing else.

use super::plot;
use super::report::{Block, Report};
use super::table::Table;
use crate::host::output::Kind;
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The files of pages.
pub const FILE: Kind = Kind {
    what: "a page of `gnomon bench`",
    mark: b"<title>Gnomon: ways of virtualizing memory, side by side</title>",
};

/// The style of the page: one column on a phone, plots side by side where there is room.
const STYLE: &str = include_str!("page.css");

/// The page.
///
/// # Errors
/// If something cannot be plotted.
pub fn page(reports: &[Report], command: &str, versions: &str) -> miette::Result<String> {
    let bodies = reports.iter().map(body).collect::<miette::Result<Vec<_>>>()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Gnomon: ways of virtualizing memory, side by side" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Ways of virtualizing memory, side by side" }
                    p { "Counts of instructions, traps and page walks, by a model of the hardware; no clock of the host takes part, and a run repeats exactly." }
                    p.small { code { (command) } " · " (versions) }
                    nav { @for report in reports { a href={ "#" (report.name) } { (report.name) } " " } }
                }
                @for (report, body) in reports.iter().zip(&bodies) {
                    section id=(report.name) {
                        h2 { (report.name) ": " (report.title) }
                        @for line in &report.lead { p { (line) } }
                        (body)
                        p.warning { strong { "What may mislead: " } (report.misleads) }
                        @for failure in &report.failures { p.failure { "Failed: " (failure) } }
                    }
                }
                footer.small {
                    "Native is the bare machine: the same kernel on OpenSBI. A subject such as firmware/lazy-noh-nolane is Gnomon in that "
                    "seat and mode, on harts without the H extension, with its fast lane off; -4k: guest memory is mapped by 4 KiB leaves."
                }
            }
        }
    };
    Ok(page.into_string())
}

/// Plots that follow each other stand in one grid.
fn body(report: &Report) -> miette::Result<Markup> {
    let parts = report.blocks.chunk_by(|a, b| matches!((a, b), (Block::Chart(_), Block::Chart(_))));
    let parts = parts
        .map(|part| match part {
            [Block::Heading(text)] => Ok(html! { h3 { (text) } }),
            [Block::Text(text)] => Ok(html! { p { (text) } }),
            [Block::Table(title, table)] => Ok(html! { h4 { (title) } (rows(table)) }),
            charts => {
                let figures = charts.iter().map(figure).collect::<miette::Result<Vec<_>>>()?;
                Ok(html! { div.plots { @for figure in figures { (figure) } } })
            }
        })
        .collect::<miette::Result<Vec<_>>>()?;
    Ok(html! { @for part in parts { (part) } })
}

fn figure(block: &Block) -> miette::Result<Markup> {
    match block {
        Block::Chart(chart) if !chart.is_empty() => {
            let svg = plot::svg(chart)?;
            Ok(html! { figure { figcaption { (chart.title) } (PreEscaped(svg)) } })
        }
        _ => Ok(html! {}),
    }
}

fn rows(table: &Table) -> Markup {
    let (head, rows) = table.parts();
    html! {
        div.scroll {
            table {
                thead { tr { @for cell in head { th { (cell) } } } }
                tbody {
                    @for row in rows {
                        tr { @for (at, cell) in row.iter().enumerate() { @if at == 0 { th { (cell) } } @else { td { (cell) } } } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::output::report::{Chart, ChartKind};

    #[test]
    fn a_page_needs_nothing_else() {
        let mut table = Table::new(["subject", "<exits>"]);
        table.row(["kvm", "1 & 2"]);
        let kind = ChartKind::Bars { bars: vec![("kvm".into(), Some(1.0))], reference: None };
        let chart = Block::Chart(Chart { title: "cycles".into(), kind });
        let empty = ChartKind::Bars { bars: vec![("kvm".into(), None)], reference: None };
        let empty = Block::Chart(Chart { title: "nothing".into(), kind: empty });
        let report = Report {
            name: "fig7",
            title: "t".into(),
            lead: vec![],
            blocks: vec![Block::Table("tt".into(), table), chart.clone(), chart, empty],
            misleads: "m".into(),
            json: serde_json::Value::Null,
            failures: vec!["x".into()],
        };
        let page = page(&[report], "gnomon bench fig7", "v").expect("a page");
        assert!(page.contains("&lt;exits&gt;") && page.contains("1 &amp; 2"), "{page}");
        assert_eq!((page.matches("<svg").count(), page.matches("class=\"plots\"").count()), (2, 1));
        assert!(!page.contains("<script") && !page.contains("href=\"http") && !page.contains("src="), "{page}");
    }
}
