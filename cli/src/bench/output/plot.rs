//! Plots as SVG, narrow enough to be read on a phone.

use super::report::{Chart, ChartKind, Line};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width in the plot's own units; the page scales it.
const WIDTH: u32 = 400;
/// Height of a bar and of the gap after it.
const BAR: i32 = 15;
const GAP: i32 = 5;
/// The left edge of bars, and the width that is left for numbers behind them.
const LABELS: i32 = 164;
const NUMBERS: i32 = 56;
const LINES_HEIGHT: u32 = 260;
/// Height of a row of the names below lines.
const ROW: i32 = 16;
const FONT: &str = "sans-serif";
const FONT_SIZE: i32 = 13;
/// Average width of a character of [`FONT_SIZE`].
const CHARACTER: i32 = 7;
const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
const PALE: RGBColor = RGBColor(0xaa, 0xaa, 0xaa);
/// The colours of subjects in all plots. The colour-blind can tell them apart (Okabe and Ito).
const KINDS: [(&str, RGBColor); 6] = [
    ("two-stage", RGBColor(0x00, 0x72, 0xb2)),
    ("shadow", RGBColor(0xe6, 0x9f, 0x00)),
    ("unsync", RGBColor(0x00, 0x9e, 0x73)),
    ("lazy", RGBColor(0xcc, 0x79, 0xa7)),
    ("steered", RGBColor(0xd5, 0x5e, 0x00)),
    ("kvm", RGBColor(0x56, 0xb4, 0xe9)),
];
/// The colour of the bare machine.
const OTHER: RGBColor = RGBColor(0x80, 0x80, 0x80);
/// Parts of a bar have colours that mean no subject (Tol's muted ones).
const PARTS: [RGBColor; 9] = [
    RGBColor(0x33, 0x22, 0x88),
    RGBColor(0xdd, 0xcc, 0x77),
    RGBColor(0x88, 0x22, 0x55),
    RGBColor(0x11, 0x77, 0x33),
    RGBColor(0xcc, 0x66, 0x77),
    RGBColor(0x44, 0xaa, 0x99),
    RGBColor(0x99, 0x99, 0x33),
    RGBColor(0xaa, 0x44, 0x99),
    RGBColor(0x66, 0x66, 0x66),
];
/// Lines of one colour differ in their dashes: so much of each is drawn, and so much left out.
const DASHES: [(u32, u32); 3] = [(1, 0), (9, 5), (2, 4)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws a chart as an `<svg>` element.
///
/// # Errors
/// If the plotting library cannot.
pub fn svg(chart: &Chart) -> miette::Result<String> {
    let mut text = String::new();
    let height = match &chart.kind {
        ChartKind::Bars { bars, .. } => bars_height(bars.len(), 0),
        ChartKind::Stacks { parts, bars } => bars_height(bars.len(), legend_rows(parts)),
        ChartKind::Lines { lines, paper, .. } => LINES_HEIGHT + ROW as u32 * (lines.len() + paper.len()) as u32,
    };
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        let drawn = match &chart.kind {
            ChartKind::Bars { bars, reference } => draw_bars(&area, bars, *reference),
            ChartKind::Stacks { parts, bars } => draw_stacks(&area, parts, bars),
            ChartKind::Lines { axes, lines, paper } => draw_lines(&area, axes, lines, paper),
        };
        drawn
            .and_then(|()| Ok(area.present()?))
            .map_err(|why| miette::miette!("cannot plot `{}`: {why}", chart.title))?;
    }
    Ok(text)
}

fn bars_height(bars: usize, legend_rows: i32) -> u32 {
    (bars as i32 * (BAR + GAP) + GAP + legend_rows * (FONT_SIZE + GAP)) as u32
}

fn text_style(colour: &RGBColor, pos: Pos) -> TextStyle<'_> {
    TextStyle::from((FONT, FONT_SIZE).into_font()).color(colour).pos(pos)
}

fn write(area: &Area<'_>, text: &str, at: (i32, i32), colour: RGBColor, h: HPos) -> Drawn {
    area.draw(&Text::new(text.to_owned(), at, text_style(&colour, Pos::new(h, VPos::Center))))?;
    Ok(())
}

fn fill(area: &Area<'_>, from: (i32, i32), to: (i32, i32), colour: RGBColor) -> Drawn {
    area.draw(&Rectangle::new([from, to], colour.filled()))?;
    Ok(())
}

/// A number in few characters.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v < 10.0 => format!("{value:.3}"),
        v if v < 1000.0 => format!("{value:.1}"),
        v if v < 1e6 => format!("{:.1} k", value / 1e3),
        v if v < 1e9 => format!("{:.1} M", value / 1e6),
        _ => format!("{:.1} G", value / 1e9),
    }
}

/// A bar's length in pixels.
fn length(value: f64, most: f64) -> i32 {
    let room = f64::from(WIDTH as i32 - LABELS - NUMBERS);
    if most > 0.0 { (value / most * room).round() as i32 } else { 0 }
}

fn draw_bars(area: &Area<'_>, bars: &[(String, Option<f64>)], reference: Option<f64>) -> Drawn {
    let most = bars.iter().filter_map(|(_, value)| *value).chain(reference).fold(0.0, f64::max);
    for (row, (name, value)) in bars.iter().enumerate() {
        let top = GAP + row as i32 * (BAR + GAP);
        let middle = top + BAR / 2;
        write(area, name, (LABELS - 6, middle), INK, HPos::Right)?;
        match value {
            Some(value) => {
                let end = LABELS + length(*value, most);
                fill(area, (LABELS, top), (end.max(LABELS + 1), top + BAR), colour_of(name))?;
                write(area, &short(*value), (end + 5, middle), INK, HPos::Left)?;
            }
            None => write(area, "-", (LABELS + 5, middle), PALE, HPos::Left)?,
        }
    }
    if let Some(at) = reference.map(|value| LABELS + length(value, most)) {
        let bottom = bars_height(bars.len(), 0) as i32;
        area.draw(&PathElement::new([(at, 0), (at, bottom)], INK.mix(0.6)))?;
    }
    Ok(())
}

/// Bars of one kind of subject have one colour in all plots.
fn colour_of(name: &str) -> RGBColor {
    KINDS.iter().find(|(kind, _)| name.contains(kind)).map_or(OTHER, |(_, colour)| *colour)
}

/// Returns the position of each part's name in the legend: row and left edge.
fn legend(parts: &[String]) -> Vec<(i32, i32)> {
    let (mut row, mut left) = (0, 0);
    parts
        .iter()
        .map(|part| {
            let width = part.chars().count() as i32 * CHARACTER + 24;
            if left > 0 && left + width > WIDTH as i32 {
                (row, left) = (row + 1, 0);
            }
            let at = (row, left);
            left += width;
            at
        })
        .collect()
}

fn legend_rows(parts: &[String]) -> i32 {
    legend(parts).last().map_or(0, |(row, _)| row + 1)
}

fn draw_stacks(area: &Area<'_>, parts: &[String], bars: &[(String, Vec<f64>)]) -> Drawn {
    let most = bars.iter().map(|(_, parts)| parts.iter().sum()).fold(0.0, f64::max);
    for (row, (name, values)) in bars.iter().enumerate() {
        let top = GAP + row as i32 * (BAR + GAP);
        write(area, name, (LABELS - 6, top + BAR / 2), INK, HPos::Right)?;
        let (mut sum, mut left) = (0.0, LABELS);
        for (value, colour) in values.iter().zip(PARTS.iter().cycle()) {
            sum += value;
            let right = LABELS + length(sum, most);
            if right > left {
                fill(area, (left, top), (right, top + BAR), *colour)?;
            }
            left = right;
        }
        write(area, &short(sum), (left + 5, top + BAR / 2), INK, HPos::Left)?;
    }
    let top = bars_height(bars.len(), 0) as i32;
    for ((part, (row, left)), colour) in parts.iter().zip(legend(parts)).zip(PARTS.iter().cycle()) {
        let middle = top + row * (FONT_SIZE + GAP) + FONT_SIZE / 2;
        fill(area, (left + 2, middle - 5), (left + 12, middle + 5), *colour)?;
        write(area, part, (left + 16, middle), INK, HPos::Left)?;
    }
    Ok(())
}

/// The colour and the dashes of each line.
fn styles(lines: &[Line]) -> Vec<(RGBColor, (u32, u32))> {
    let colours: Vec<_> = lines.iter().map(|line| colour_of(&line.name)).collect();
    let before = |at: usize| colours[..at].iter().filter(|other| **other == colours[at]).count();
    (0..lines.len()).map(|at| (colours[at], DASHES[before(at) % DASHES.len()])).collect()
}

/// Marks of what a paper gives: hollow circles, crosses.
fn mark(area: &Area<'_>, paper: usize, at: (i32, i32)) -> Drawn {
    if paper == 0 {
        area.draw(&Circle::new(at, 4, INK))?;
    } else {
        area.draw(&Cross::new(at, 4, INK))?;
    }
    Ok(())
}

fn draw_lines(area: &Area<'_>, axes: &[String; 2], lines: &[Line], paper: &[Line]) -> Drawn {
    let points = || lines.iter().chain(paper).flat_map(|line| line.points.iter());
    let least_x = points().map(|point| point.0).fold(f64::INFINITY, f64::min).min(0.0);
    let most = points().fold((1.0, 1.0), |most: (f64, f64), point| (most.0.max(point.0), most.1.max(point.1)));
    let (plot, names) = area.split_vertically(LINES_HEIGHT);
    let mut chart = ChartBuilder::on(&plot)
        .margin(10)
        .x_label_area_size(44)
        .y_label_area_size(68)
        .build_cartesian_2d(least_x..most.0, 0.0..most.1 * 1.05)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(axes[0].as_str())
        .y_desc(axes[1].as_str())
        .x_labels(6)
        .y_labels(6)
        .x_label_formatter(&|value| format!("{value}"))
        .y_label_formatter(&|value| short(*value))
        .label_style(text_style(&INK, Pos::default()))
        .draw()?;
    let row = |row: usize| 8 + ROW * row as i32;
    for (at, (line, (colour, (size, gap)))) in lines.iter().zip(styles(lines)).enumerate() {
        let points = line.points.iter().copied();
        let style = colour.stroke_width(2);
        if gap == 0 {
            chart.draw_series(LineSeries::new(points, style))?;
        } else {
            chart.draw_series(DashedLineSeries::new(points, size, gap, style))?;
        }
        let period = (size + gap) as usize;
        for left in (76..104).step_by(if gap == 0 { 28 } else { period }) {
            let end = if gap == 0 { 104 } else { left + size as i32 };
            fill(&names, (left, row(at) - 1), (end, row(at) + 1), colour)?;
        }
        write(&names, &line.name, (112, row(at)), INK, HPos::Left)?;
    }
    for (at, line) in paper.iter().enumerate() {
        for point in &line.points {
            mark(&plot, at, chart.backend_coord(point))?;
        }
        mark(&names, at, (90, row(lines.len() + at)))?;
        write(&names, &line.name, (112, row(lines.len() + at)), INK, HPos::Left)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(kind: ChartKind) -> String {
        svg(&Chart { title: "t".into(), kind }).expect("a plot")
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bars = vec![("native".into(), Some(1.0)), ("firmware/lazy".into(), Some(2.0)), ("kvm".into(), None)];
        let text = drawn(ChartKind::Bars { bars, reference: Some(1.0) });
        let widths: Vec<&str> =
            text.lines().filter_map(|l| l.split("<rect").nth(1)?.split("width=\"").nth(1)?.split('"').next()).collect();
        let room = WIDTH as i32 - LABELS - NUMBERS;
        assert_eq!(widths, [(room / 2).to_string(), room.to_string()], "{text}");
        assert!(text.contains("firmware/lazy") && text.contains("2.000"), "{text}");
    }

    #[test]
    fn stacks_have_a_legend() {
        let parts = vec!["load guest-page fault".to_owned(), "ecall".into(), "a name that needs the next row".into()];
        assert_eq!(legend_rows(&parts), 2);
        let text = drawn(ChartKind::Stacks { parts, bars: vec![("kvm".into(), vec![5.0, 3.0, 0.0])] });
        assert_eq!(text.matches("<rect").count(), 2 + 3, "{text}");
    }

    #[test]
    fn lines_of_one_mode_have_one_colour() {
        let line = |name: &str, points: &[(f64, f64)]| Line { name: name.into(), points: points.to_vec() };
        let names = ["lazy", "shadow", "lazy-nolane", "native"];
        let lines = names.map(|name| line(name, &[(0.0, 0.0), (100.0, 5.0)])).to_vec();
        let styles = styles(&lines);
        assert_eq!((styles[0].0, styles[0].1 != styles[2].1), (styles[2].0, true));
        assert!(styles[0].0 != styles[1].0 && styles[3].0 == OTHER);
        let paper = vec![line("paper, lazy", &[(100.0, 9.0)])];
        let text = drawn(ChartKind::Lines { axes: ["x".into(), "y".into()], lines, paper });
        assert!(text.matches("<polyline").count() >= 4, "{text}");
        // In the plot and in the legend.
        assert_eq!((text.matches("<circle").count(), text.contains("paper, lazy")), (2, true), "{text}");
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 1.5, 14.96, 1234.0, 2.5e6, 3e9].map(short);
        assert_eq!(all, ["0", "1.500", "15.0", "1.2 k", "2.5 M", "3.0 G"]);
    }
}
