//! The page of `gnomon bench --html` in a real browser, at the width of a phone.

use gnomon::bench::output::page::page;
use gnomon::bench::output::report::{Block, Chart, ChartKind, Line, Report};
use gnomon::bench::output::table::Table;
use std::process::Command;

/// The browser. `./gnomon test` installs it.
const BROWSER: &str = "chromium";
const WIDTH: u32 = 390;

/// Notes errors from the first moment on.
const WATCH: &str = "<script>window.errors = []; window.onerror = text => { window.errors.push(text); };</script>";
/// Writes down what can be seen: errors; whether the page is wider than the window; of each plot its width and the
/// size of its smallest text, in pixels; and whether wide tables scroll by themselves.
const LOOK: &str = "<script>window.onload = () => {
    const size = text => parseFloat(text.getAttribute('font-size')) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b);
    const plots = [...document.querySelectorAll('svg')].map(svg => [Math.round(svg.getBoundingClientRect().width),
        Math.min(...[...svg.querySelectorAll('text')].map(size)).toFixed(1)].join(':'));
    const scrolls = [...document.querySelectorAll('.scroll')].some(it => it.scrollWidth > it.clientWidth);
    const seen = [window.errors.length, document.documentElement.scrollWidth, scrolls, plots.join(',')].join(';');
    parent.document.title = 'seen ' + seen + ' end';
};</script>";

fn reports() -> Vec<Report> {
    let mut table = Table::new(["", "instructions", "/ native", "exits", "host instr./exit", "walk refs / native"]);
    table.row(["firmware/lazy-noh-nolane", "123456789012", "1.234", "123456", "1234", "12.345"]);
    let names = ["native", "firmware/two-stage", "firmware/lazy-noh-nolane", "kvm-4k"];
    let bars = names.iter().zip([1.0, 1.1, 1.3, 2.0]).map(|(name, value)| ((*name).to_owned(), Some(value))).collect();
    let stacks = names.iter().map(|name| ((*name).to_owned(), vec![3e5, 2e4, 0.0])).collect();
    let line = |name: &str, most: f64| Line { name: name.into(), points: vec![(0.0, 0.0), (100.0, most)] };
    let lines = names.iter().zip([1.6e5, 1.5e5, 1.2e5, 1e5]).map(|(name, most)| line(name, most)).collect();
    let kinds = [
        ChartKind::Bars { bars, reference: Some(1.0) },
        ChartKind::Stacks {
            parts: ["load guest-page fault", "ecall", "others"].map(Into::into).to_vec(),
            bars: stacks,
        },
        ChartKind::Lines {
            axes: ["per cent".into(), "traps".into()],
            lines,
            paper: vec![line("paper, traditional", 2e5), line("paper, lazy", 1e5)],
        },
    ];
    let charts = kinds.map(|kind| Block::Chart(Chart { title: "a plot".into(), kind }));
    vec![Report {
        name: "fig7",
        title: "programs".into(),
        lead: vec!["a-word-without-any-break-".repeat(12)],
        blocks: [Block::Heading("cc1".into())]
            .into_iter()
            .chain(charts)
            .chain([Block::Table("t".into(), table)])
            .collect(),
        misleads: "nothing".into(),
        json: serde_json::Value::Null,
        failures: vec![],
    }]
}

#[test]
fn the_page_can_be_read_on_a_phone() {
    let page = page(&reports(), "gnomon bench fig7", "versions").expect("a page");
    let watched = page.replace("<head>", &format!("<head>{WATCH}")).replace("</body>", &format!("{LOOK}</body>"));
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("phone.html");
    // A window of the browser's own cannot be so narrow.
    let escaped = watched.replace('&', "&amp;").replace('"', "&quot;");
    let phone = format!("<!doctype html><iframe srcdoc=\"{escaped}\" width={WIDTH} height=844 frameborder=0></iframe>");
    std::fs::write(&file, phone).expect("a file");
    let output = Command::new(BROWSER)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=5000"])
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap_or_else(|why| {
            panic!("cannot run {BROWSER}: {why}; start the tests by ./gnomon test, which installs it")
        });
    let dom = String::from_utf8_lossy(&output.stdout);
    let seen = dom.split("<title>seen ").nth(1).and_then(|rest| rest.split(" end<").next());
    let seen =
        seen.unwrap_or_else(|| panic!("the browser showed nothing: {}", String::from_utf8_lossy(&output.stderr)));
    let parts: Vec<&str> = seen.split(';').collect();
    let [errors, width, scrolls, plots] = parts[..] else { panic!("{seen}") };
    assert_eq!(errors, "0", "script errors");
    assert!(width.parse::<u32>().expect(seen) <= WIDTH, "the page is {width} pixels wide: {seen}");
    assert_eq!(scrolls, "true", "the wide table does not scroll by itself: {seen}");
    let plots: Vec<(f64, f64)> = plots
        .split(',')
        .map(|plot| plot.split_once(':').expect(seen))
        .map(|(width, text)| (width.parse().expect(seen), text.parse().expect(seen)))
        .collect();
    assert_eq!(plots.len(), 3, "{seen}");
    for (width, text) in plots {
        assert!(width > 300.0 && text >= 9.0, "a plot {width} pixels wide, its text {text} pixels high: {seen}");
    }
}
