//! The meter as a plugin of QEMU's, without the rest of Gnomon: what it says where it cannot count, and that it
//! counts a machine that it knows nothing of.

use gnomon::host::parts;
use predicates::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// A machine that runs for ever is stopped then.
const PATIENCE: Duration = Duration::from_secs(60);
/// RAM where the plugin sees it.
const RAM: [&str; 4] = ["-machine", "memory-backend=ram", "-object", "memory-backend-memfd,id=ram,size=16M,share=on"];

fn plugin() -> &'static Path {
    static PLUGIN: OnceLock<PathBuf> = OnceLock::new();
    PLUGIN.get_or_init(|| parts::meter().expect("the meter can be built"))
}

/// QEMU with the plugin and no firmware but `code`, at the start of RAM.
fn qemu(dir: &TempDir, code: &[u32], plugin_args: &str, args: &[&str]) -> assert_cmd::assert::Assert {
    let firmware = dir.path().join("code.bin");
    std::fs::write(&firmware, code.iter().flat_map(|insn| insn.to_le_bytes()).collect::<Vec<_>>()).expect("a file");
    let mut command = assert_cmd::Command::new("qemu-system-riscv64");
    command.args(["-machine", "virt", "-m", "16M", "-nodefaults", "-display", "none", "-no-reboot", "-bios"]);
    command.arg(&firmware).arg("-plugin").arg(format!("{}{plugin_args}", plugin().display())).args(args);
    command.timeout(PATIENCE).assert()
}

/// Stores 0x5555 to the test device: the board powers off.
const POWER_OFF: [u32; 4] = [
    0x0010_02b7, // lui t0, 0x100
    0x0000_5337, // lui t1, 5
    0x5553_0313, // addi t1, t1, 0x555
    0x0062_a023, // sw t1, 0(t0)
];

#[test]
fn what_cannot_be_counted_is_said() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = format!(",out={}", dir.path().join("meter.json").display());
    let refused = |plugin_args: &str, args: &[&str], says: &[&str]| {
        let mut assert = qemu(&dir, &POWER_OFF, &format!("{out}{plugin_args}"), args).code(1);
        assert = assert.stderr(predicate::str::contains("panicked").not());
        for text in says {
            assert = assert.stderr(predicate::str::contains(*text));
        }
    };
    refused("", &[], &["meter: cannot see the guest's RAM", "-object memory-backend-memfd,id=ram", "level=counts"]);
    refused(",ram=elsewhere", &RAM, &["no mapping is named `elsewhere`"]);
    refused(",core=z80", &RAM, &["meter: there is no core `z80`", "rocket"]);
    refused(",level=most", &RAM, &["meter: level=most is not a level"]);
    refused(",cores=u74", &RAM, &["meter: `cores=u74`", "core=NAME"]);
    refused(",traps=/nowhere/traps", &RAM, &["meter: cannot write /nowhere/traps", "check traps="]);
    let icount = [&RAM[..], &["-smp", "2", "-icount", "shift=0"]].concat();
    refused("", &icount, &["meter: several harts in one thread cannot be told apart", "-smp 1"]);
    let nowhere = qemu(&dir, &POWER_OFF, ",out=/nowhere/meter.json", &RAM).code(1);
    nowhere.stderr(predicate::str::contains("meter: cannot write /nowhere/meter.json"));
}

/// The report of a run.
fn report(code: &[u32], level: &str, args: &[&str]) -> serde_json::Value {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("meter.json");
    qemu(&dir, code, &format!(",out={},{level}", out.display()), args).success();
    serde_json::from_slice(&std::fs::read(&out).expect("a report")).expect("JSON")
}

#[test]
fn a_machine_of_a_few_instructions() {
    // The board's own six come first, at reset: they jump to RAM.
    let code = [&[0x0010_2013, 0x13, 0x13, 0x13, 0x0020_2013, 0x0020_2013][..], &POWER_OFF].concat();
    for (level, args) in [("level=counts", &[][..]), ("level=tlb", &RAM)] {
        let report = report(&code, level, args);
        let total = &report["whole"]["total"];
        assert_eq!(report["whole"]["ended"], "power-off", "{level}");
        assert_eq!(total["instructions_attempted"], serde_json::json!({ "M": 6 + code.len() }), "{level}");
        assert_eq!(total["traps_total"], 0);
        let regions = report["regions"].as_array().expect("a list");
        assert_eq!((regions.len(), &regions[0]["labels"]), (1, &serde_json::json!([0, 0])));
        assert_eq!(regions[0]["total"]["instructions_retired"]["M"], 3);
        assert_eq!(report["markers"]["ends_unmatched"], 1);
    }
}
