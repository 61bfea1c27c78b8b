//! The screen of `gnomon top`: lines of text, as many and as long as there is room for.

use super::sample::Sample;
use crate::host::size::{PAGE, Size};
use crate::host::table::{age, lines};
use crate::host::tty::TerminalSize;
use abi::control::VmInfo;

/// Exits by cause, as the screen calls them.
const CAUSES: [(&str, &str); 21] = [
    ("SBI calls", "exits.ecall"),
    ("fetches from pages", "exits.fetch_guest_page"),
    ("loads from pages", "exits.load_guest_page"),
    ("stores to pages", "exits.store_guest_page"),
    ("page faults", "exits.page_fault"),
    ("steered faults", "exits.steered"),
    ("virtual instructions", "exits.virtual_instruction"),
    ("illegal instructions", "exits.illegal_instruction"),
    ("Gnomon's timer", "exits.timer"),
    ("other harts", "exits.kick"),
    ("the host's devices", "exits.external"),
    ("others", "exits.other"),
    ("entries to L2", "nested.entries"),
    ("L2: pages", "nested.exits_guest_page"),
    ("L2: SBI calls", "nested.exits_ecall"),
    ("L2: virtual instr.", "nested.exits_virtual_instruction"),
    ("L2: others", "nested.exits_other"),
    ("L1: hypervisor CSRs", "nested.csr_accesses"),
    ("L1: NACL calls", "sbi.nacl"),
    ("L1: fences for L2", "nested.fences"),
    ("L1: HLV and HSV", "nested.memory_accesses"),
];
/// The lane's counters: work without an exit.
const LANE: [&str; 5] = ["lane.page", "lane.page_global", "lane.all", "lane.satp", "lane.satp_read"];
const FAULTS: [&str; 3] = ["faults.memory", "faults.mmio", "exits.page_fault"];
/// Most VMs whose exits are shown by cause.
const MOST_VMS: usize = 4;
/// Most lines of harts, and how many stand in one.
const MOST_HART_LINES: usize = 3;
const HARTS_IN_LINE: usize = 3;

/// A rate, in up to six characters.
fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".into(),
        Some(rate) if rate < 9.95 && rate > 0.0 => format!("{rate:.1}"),
        Some(rate) if rate < 99_999.5 => format!("{rate:.0}"),
        Some(rate) if rate < 99_999_500.0 => format!("{:.0}k", rate / 1e3),
        Some(rate) => format!("{:.0}M", rate / 1e6),
    }
}

fn frames(count: u64) -> Size {
    Size(count * PAGE)
}

/// The order of VMs on the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// By their numbers, as they were started.
    #[default]
    Number,
    /// Those first that use most of the harts' time.
    Cpu,
    /// Those first that have most memory.
    Memory,
    /// Those first that make most exits.
    Exits,
}

impl Order {
    /// All of them: the key of each, and its meaning.
    pub const KEYS: [(char, Self, &str); 4] = [
        ('n', Self::Number, "VMs in the order of their numbers"),
        ('c', Self::Cpu, "VMs that use most of the harts' time first"),
        ('m', Self::Memory, "VMs with most memory first"),
        ('e', Self::Exits, "VMs with most exits first"),
    ];

    /// Returns the order that a key stands for.
    #[must_use]
    pub fn of_key(key: u8) -> Option<Self> {
        let key = char::from(key).to_ascii_lowercase();
        Self::KEYS.iter().find(|(of, ..)| *of == key).map(|(_, order, _)| *order)
    }

    fn sort(self, vms: &mut [&VmInfo], sample: &Sample, before: &Sample) {
        // What is not known yet comes last.
        let value = |vm: &VmInfo| match self {
            Self::Number => 0.0,
            Self::Cpu => sample.cpu(before, vm).unwrap_or(-1.0),
            Self::Memory => vm.resident_bytes as f64,
            Self::Exits => sample.rate(before, vm, &["exits.total"]).unwrap_or(-1.0),
        };
        vms.sort_by(|a, b| value(b).total_cmp(&value(a)).then(a.number.cmp(&b.number)));
    }
}

/// The lines about keys and figures, cut to a terminal's size.
#[must_use]
pub fn help(size: TerminalSize) -> Vec<String> {
    let mut all = vec!["Keys of gnomon top:".to_owned(), String::new()];
    all.extend(Order::KEYS.map(|(key, _, meaning)| format!("  {key}  {meaning}")));
    all.extend(["  ?  this page; any key leaves it", "  q  end"].map(String::from));
    all.push(String::new());
    all.extend(
        [
            "CPU %     of one hart's time: in the guest without its waiting (WFI), and in Gnomon for its exits",
            "guest     the part of all harts' time in guests; idle: no guest has work",
            "LANE/s    fences and changes of roots without an exit",
            "-         not known yet",
        ]
        .map(String::from),
    );
    cut(&mut all, size);
    all
}

fn cut(all: &mut Vec<String>, size: TerminalSize) {
    all.truncate(size.lines.into());
    all.iter_mut().for_each(|line| *line = line.chars().take(size.columns.into()).collect());
}

/// The lines, cut to a terminal's size; all of them, where that is not known.
#[must_use]
pub fn screen(run: &str, samples: [&Sample; 2], order: Order, size: Option<TerminalSize>) -> Vec<String> {
    let [sample, before] = samples;
    let mut all = head(run, sample);
    all.extend(harts(sample, before));
    let mut vms: Vec<&VmInfo> = sample.vms.vms.iter().collect();
    order.sort(&mut vms, sample, before);
    let left = size.map(|size| usize::from(size.lines).saturating_sub(all.len()));
    // The causes have a third of what is left, and all that they need if there are few VMs.
    let most_vms = left.map_or(usize::MAX, |left| (left * 2 / 3).max(left.saturating_sub(CAUSES.len() + 4)));
    all.push(String::new());
    all.extend(table(sample, before, &vms).into_iter().take(most_vms.saturating_sub(1)));
    all.push(String::new());
    all.extend(causes(sample, before, &vms));
    if let Some(size) = size {
        cut(&mut all, size);
    }
    all
}

fn head(run: &str, sample: &Sample) -> Vec<String> {
    let up = age(sample.vms.now / sample.vms.timebase.max(1));
    let vms = sample.vms.vms.len();
    let of_vms = |name: &str| sample.counters.values().filter_map(|all| all.get(name)).sum::<u64>();
    vec![
        format!("gnomon top: run {run}, up {up}; VMs {vms}, harts {}; ? lists keys, q ends", sample.harts.len()),
        format!(
            "memory {}: guests {}, tables {}, images {}, free {}; heap {}",
            frames(sample.own("frames.total")),
            frames(of_vms("frames.guest")),
            frames(of_vms("frames.table")),
            frames(sample.own("frames.images")),
            frames(sample.own("frames.free")),
            Size(sample.own("heap.used")),
        ),
    ]
}

/// The lines about harts: the parts of their time in guests, in Gnomon and idle, in percent.
fn harts(sample: &Sample, before: &Sample) -> Vec<String> {
    let shares = |hart| sample.shares(before, hart);
    let count = sample.harts.len();
    let cell = |hart: usize| match shares(hart) {
        None => format!("{hart:3}     -     -     -"),
        Some([guest, host, idle]) => {
            format!("{hart:3} {:5.1} {:5.1} {:5.1}", 100.0 * guest, 100.0 * host, 100.0 * idle)
        }
    };
    let known: Vec<_> = (0..count).filter_map(shares).collect();
    let mean = |part: usize| 100.0 * known.iter().map(|shares| shares[part]).sum::<f64>() / known.len() as f64;
    let mut all = vec![match known.is_empty() {
        true => "harts: guest, Gnomon, idle in %".into(),
        false => format!("harts: guest {:.1} %, Gnomon {:.1} %, idle {:.1} %; each:", mean(0), mean(1), mean(2)),
    }];
    let each: Vec<usize> = (0..count).collect();
    let rows = each.chunks(HARTS_IN_LINE).map(|row| row.iter().map(|hart| cell(*hart)).collect::<Vec<_>>().join("   "));
    all.extend(rows.take(MOST_HART_LINES));
    all
}

fn table(sample: &Sample, before: &Sample, vms: &[&VmInfo]) -> Vec<String> {
    let heads = ["VM", "STATE", "VCPUS", "CPU %", "RESIDENT", "TABLES", "EXITS/s", "LANE/s", "FAULTS/s", "MMIO/s"];
    let row = |vm: &&VmInfo| {
        let of = |names: &[&str]| rate(sample.rate(before, vm, names));
        [
            vm.name.chars().take(16).collect(),
            vm.state.name().into(),
            vm.vcpus.to_string(),
            sample.cpu(before, vm).map_or("-".into(), |cpu| format!("{:.1}", 100.0 * cpu)),
            Size(vm.resident_bytes).to_string(),
            frames(sample.count(vm, "frames.table")).to_string(),
            of(&["exits.total"]),
            of(&LANE),
            of(&FAULTS),
            of(&["mmio.uart", "mmio.plic", "mmio.other"]),
        ]
    };
    let rows: Vec<_> = std::iter::once(heads.map(String::from)).chain(vms.iter().map(row)).collect();
    lines(&rows, |column| column > 1)
}

/// Exits by cause of those VMs that make most; causes that there were none of are left out.
fn causes(sample: &Sample, before: &Sample, vms: &[&VmInfo]) -> Vec<String> {
    let of = |vm: &VmInfo, name| sample.rate(before, vm, &[name]);
    let mut busiest = vms.to_vec();
    busiest.sort_by(|a, b| of(b, "exits.total").unwrap_or(-1.0).total_cmp(&of(a, "exits.total").unwrap_or(-1.0)));
    busiest.truncate(MOST_VMS);
    let cells = |first: &str, of: &dyn Fn(&VmInfo) -> String| {
        let mut row: [String; MOST_VMS + 1] = Default::default();
        row[0] = first.into();
        row[1..].iter_mut().zip(&busiest).for_each(|(cell, vm)| *cell = of(vm));
        row
    };
    let mut rows = vec![cells("EXITS/s BY CAUSE", &|vm| vm.name.chars().take(14).collect())];
    let there = CAUSES.iter().filter(|(_, name)| busiest.iter().any(|vm| sample.count(vm, name) > 0));
    rows.extend(there.map(|(said, name)| cells(said, &|vm| rate(of(vm, name)))));
    lines(&rows, |column| column > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::bundle::MmuMode;
    use abi::control::{HartTimes, VmState, Vms};

    fn sample(vms: u64, harts: usize, second: u64) -> Sample {
        let vm = |number| VmInfo {
            number,
            name: format!("machine-{number}"),
            state: VmState::Running,
            mode: Some(MmuMode::TwoStage),
            vcpus: 2,
            memory_bytes: 1 << 30,
            resident_bytes: 300 << 20,
            since: Some(1),
        };
        let counts = |number: u64| {
            let times = [("time.guest", 60), ("time.gnomon", 1)];
            let all = [("exits.total", 1000), ("exits.ecall", 900), ("exits.timer", 100), ("lane.page", 20_000_000)];
            let all = times.into_iter().chain(all);
            let counted = all.map(|(name, count)| (name.to_owned(), count * second * (number + 1)));
            (number, counted.chain([("frames.guest".into(), 512), ("frames.table".into(), 3)]).collect())
        };
        Sample {
            vms: Vms {
                now: second * 10_000_000,
                timebase: 10_000_000,
                vms: (0..vms).map(vm).collect(),
                lost: Vec::new(),
                ports: Vec::new(),
                disks: Vec::new(),
            },
            host: [("frames.total".to_owned(), 65_536), ("heap.used".to_owned(), 1 << 20)].into(),
            counters: (0..vms).map(counts).collect(),
            harts: vec![HartTimes { guest: 90 * second, host: 2 * second, idle: 8 * second }; harts],
        }
    }

    #[test]
    fn rates_are_of_the_time_between() {
        let all = screen("r", [&sample(2, 2, 63), &sample(2, 2, 61)], Order::Number, None).join("\n");
        for part in [
            "run r, up 1m3s; VMs 2, harts 2",
            "memory 256 MiB: guests 4 MiB, tables 24 KiB",
            "harts: guest 90.0 %, Gnomon 2.0 %, idle 8.0 %",
            "  0  90.0   2.0   8.0     1  90.0   2.0   8.0",
            "machine-1  running      2  122.0   300 MiB  12 KiB     2000  40000k",
        ] {
            assert!(all.contains(part), "no `{part}` in\n{all}");
        }
        let row = all.lines().find(|line| line.starts_with("SBI calls")).expect("the cause");
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["SBI", "calls", "1800", "900"], "the busiest is first");
        assert!(!all.contains("steered"), "what there is none of is left out");
        // A VM that has just come, a clock that stands.
        let fresh = screen("r", [&sample(2, 2, 63), &sample(1, 2, 61)], Order::Number, None).join("\n");
        assert!(fresh.contains("machine-1  running      2      -   300 MiB  12 KiB        -"), "{fresh}");
        assert!(screen("r", [&sample(1, 1, 5), &sample(1, 1, 5)], Order::Number, None).join("\n").contains(" - "));
    }

    #[test]
    fn it_fits_whatever_there_is() {
        for (lines, columns) in [(24, 80), (50, 200), (5, 20), (1, 1)] {
            for (vms, harts) in [(0, 1), (1, 1), (3, 8), (64, 64)] {
                let size = TerminalSize { lines, columns };
                let all =
                    screen(&"n".repeat(40), [&sample(vms, harts, 9), &sample(vms, harts, 8)], Order::Cpu, Some(size));
                assert!(all.len() <= lines.into() && all.iter().all(|line| line.chars().count() <= columns.into()));
                if (lines, vms) == (24, 64) {
                    assert!(all.iter().any(|line| line.starts_with("EXITS/s BY CAUSE")), "{all:#?}");
                }
                if lines >= 24 {
                    // Nothing of what is seen most is cut off.
                    let uncut = screen("n", [&sample(vms, harts, 9), &sample(vms, harts, 8)], Order::Exits, None);
                    assert!(columns < 80 || uncut.iter().all(|line| line.chars().count() <= 90), "{uncut:#?}");
                }
            }
        }
    }

    #[test]
    fn vms_are_in_the_order_of_a_key() {
        let (mut now, before) = (sample(3, 2, 63), sample(3, 2, 61));
        now.vms.vms[1].resident_bytes = 900 << 20;
        let order = |order| -> Vec<char> {
            let all = screen("r", [&now, &before], order, None);
            all.iter().filter_map(|line| line.strip_prefix("machine-")?.chars().next()).collect()
        };
        assert_eq!(order(Order::Number), ['0', '1', '2']);
        assert_eq!((order(Order::Cpu), order(Order::Exits)), (vec!['2', '1', '0'], vec!['2', '1', '0']));
        assert_eq!(order(Order::Memory), ['1', '0', '2']);
        assert_eq!((Order::of_key(b'C'), Order::of_key(b'x')), (Some(Order::Cpu), None));
        let small = help(TerminalSize { lines: 5, columns: 10 });
        assert!(small.len() == 5 && small.iter().all(|line| line.len() <= 10), "{small:?}");
        assert!(help(TerminalSize { lines: 50, columns: 200 }).join("\n").contains("  c  VMs that use most"));
    }

    #[test]
    fn rates_are_short() {
        let said = [0.0, 0.04, 9.9, 10.2, 99_999.0, 123_456.0, 1e9, 1e12].map(|n| rate(Some(n)));
        assert_eq!(said, ["0", "0.0", "9.9", "10", "99999", "123k", "1000M", "1000000M"]);
    }
}
