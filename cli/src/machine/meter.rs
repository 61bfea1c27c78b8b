//! The meter: a plugin of QEMU's that counts what hardware would see. See docs/meter.md.

use crate::host::output::{Kind, OutputError};
use crate::host::size::Size;
use crate::host::words::option_value;
use crate::host::written::{did_you_mean, explain, explain_json};
use crate::machine::board::Clock;
use meter::args::Level;
use meter::core::{Core, CoreError};
use miette::Diagnostic;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The files of reports. Each begins with the cores, of which there may be none.
pub(super) const FILE: Kind = Kind { what: "a report of the meter's", mark: b"{\n  \"cores\": [" };

/// The events to count, and the report's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeterSpec {
    /// The report, in JSON.
    pub out: PathBuf,
    /// The amount of counting.
    pub level: Level,
    /// Names or files of the cores to be modelled; the default one if empty.
    pub cores: Vec<String>,
    /// A file for each trap in a line, if wanted.
    pub traps: Option<PathBuf>,
}

/// A machine that is counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metered {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// The events to count.
    pub spec: MeterSpec,
}

/// The reason why nothing can be counted.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum MeterError {
    /// There is no such core.
    #[error(transparent)]
    #[diagnostic(help("cores are described in docs/meter.md"))]
    Core(CoreError),
    /// The core file has not a core's keys.
    #[error("the core file {path} is not valid: {why}")]
    #[diagnostic(help("correct that line; docs/meter.md lists the keys and their values"))]
    CoreFile {
        /// The path.
        path: String,
        /// The error, with its line.
        why: String,
    },
    /// No core has that name.
    #[error("there is no core `{name}`: {}", cores(name))]
    #[diagnostic(help("cores are described in docs/meter.md; a path of a core file has a slash or ends in .toml"))]
    NoCore {
        /// The name.
        name: String,
    },
    /// QEMU runs all harts in one thread.
    #[error("with --icount the meter can count one hart only, not {0}")]
    #[diagnostic(help("leave out --icount, or use --harts 1 and one vCPU"))]
    SeveralHarts(u32),
    /// The file is of another kind.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Output(#[from] OutputError),
    /// The report cannot be written.
    #[error("cannot write the meter's report to {path}: {why}")]
    #[diagnostic(help("name a file in an existing directory that you may write to"))]
    Unwritable {
        /// The path that the report is to have.
        path: PathBuf,
        /// The operating system's error.
        why: std::io::Error,
    },
    /// There is no report, or it is not one.
    #[error("the meter left no report in {path}: {why}")]
    #[diagnostic(help(
        "the meter writes its report when the machine powers off or QEMU exits: see why that did not happen"
    ))]
    NoReport {
        /// The path that the report should have.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// Returns the built-in cores, as the end of a message about a wrong name.
fn cores(name: &str) -> String {
    let known: Vec<&str> = Core::names().collect();
    format!("{}the cores are {}", did_you_mean(name, &known), known.join(", "))
}

impl From<CoreError> for MeterError {
    fn from(why: CoreError) -> Self {
        match why {
            CoreError::Malformed { path, error } => Self::CoreFile { path, why: explain(&error) },
            CoreError::Unknown { name, .. } => Self::NoCore { name },
            why => Self::Core(why),
        }
    }
}

impl MeterSpec {
    /// Checks that it can be done. What the report's file had in it is gone then.
    ///
    /// # Errors
    /// [`MeterError`].
    pub fn check(&self, harts: u32, clock: Clock) -> Result<(), MeterError> {
        Core::find_all(self.cores.iter().map(String::as_str))?;
        let unwritable = |why| MeterError::Unwritable { path: self.out.clone(), why };
        FILE.check(&self.out).map_err(|why| match why {
            OutputError::Io(why) => unwritable(why.source),
            foreign => foreign.into(),
        })?;
        match std::fs::metadata(&self.out) {
            // A report of another run would be taken for this one's.
            Ok(there) if there.is_file() => std::fs::remove_file(&self.out).map_err(unwritable)?,
            Ok(_) => return Err(unwritable(std::io::Error::other("it is not a regular file"))),
            Err(_) => {}
        }
        if harts > 1 && clock != Clock::Real { Err(MeterError::SeveralHarts(harts)) } else { Ok(()) }
    }
}

impl Metered {
    /// QEMU's arguments for a machine with so much RAM, which is made visible to the plugin.
    #[must_use]
    pub fn args(&self, memory: Size) -> Vec<OsString> {
        // Without a key, QEMU takes what stands before a `=` in the path for one.
        let is_odd = self.plugin.as_os_str().as_bytes().contains(&b'=');
        let mut plugin = OsString::from(if is_odd { "file=" } else { "" });
        plugin.push(option_value(&self.plugin));
        plugin.push(",out=");
        plugin.push(option_value(&self.spec.out));
        plugin.push(format!(",level={}", self.spec.level.name()));
        if let Some(traps) = &self.spec.traps {
            plugin.push(",traps=");
            plugin.push(option_value(traps));
        }
        for core in &self.spec.cores {
            plugin.push(",core=");
            plugin.push(option_value(core));
        }
        let ram = format!("memory-backend-memfd,id=ram,size={}K,share=on", memory.0 >> 10);
        ["-machine", "memory-backend=ram", "-object", &ram, "-plugin"]
            .map(OsString::from)
            .into_iter()
            .chain([plugin])
            .collect()
    }
}

/// A report.
#[derive(Clone, PartialEq, Debug)]
pub struct Report(Value);

impl Report {
    /// Reads it.
    ///
    /// # Errors
    /// [`MeterError::NoReport`].
    pub fn read(path: &Path) -> Result<Self, MeterError> {
        let no_report = |why: String| MeterError::NoReport { path: path.to_owned(), why };
        let text = std::fs::read(path).map_err(|why| no_report(why.to_string()))?;
        if text.is_empty() {
            return Err(no_report("it is empty".into()));
        }
        serde_json::from_slice(&text).map(Self).map_err(|why| no_report(explain_json(&why)))
    }

    /// Remarks for the user, a line each.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let markers = |kind: &str| self.0["markers"][kind].as_u64().unwrap_or(0);
        let regions = self.0["regions"].as_array().map_or(&[][..], Vec::as_slice);
        if regions.is_empty() && markers("ends_unmatched") == 0 {
            remarks.push("no marker was seen: all counts are of the whole run (docs/meter.md, \"Regions\")".into());
        }
        for (kind, what) in [
            ("begins_unmatched", "`mark begin` came again before `mark end`: the region was restarted"),
            ("ends_unmatched", "`mark end` came without `mark begin`: it was ignored"),
            ("lost", "the meter keeps a limited number of markers: some were ignored"),
        ] {
            let count = markers(kind);
            if count > 0 {
                remarks.push(format!("{what} ({count} times)"));
            }
        }
        if regions.iter().any(|region| region["ended"] != "marker") {
            remarks.push("no marker ended the last region: it lasted to the end of the run".into());
        }
        if self.0["whole"]["ended"] == "exit" {
            remarks.push("the machine did not power off: what it did last differs from run to run".into());
        }
        if let Some(late) = self.0["late_vectors"].as_u64().filter(|late| *late > 0) {
            remarks
                .push(format!("{late} trap vectors were code before: traps there out of their own page may be missed"));
        }
        if let Some(findings) = self.0["findings"].as_array().filter(|findings| !findings.is_empty()) {
            remarks.push(format!("check mode found {} uses of stale translations", findings.len()));
        }
        remarks
    }

    /// Markers that were too many to be kept.
    #[must_use]
    pub fn lost_markers(&self) -> u64 {
        self.0["markers"]["lost"].as_u64().unwrap_or(0)
    }

    /// The numbers of the whole run by names such as `cores.plain.walks.VS`,
    /// `cores.plain.walks_by_leaf.VS.4K/4K.refs`, `traps.VS.M.21`
    /// (interrupts: `i5`) and `traps.VS.M.21.handling`, `traps.VS.M.21.longest`, and those of regions after `regions.0.`.
    #[must_use]
    pub fn numbers(&self) -> BTreeMap<String, u64> {
        let mut numbers = BTreeMap::new();
        flatten("", &self.0["whole"]["total"], &mut numbers);
        for key in ["late_vectors", "markers"] {
            flatten(key, &self.0[key], &mut numbers);
        }
        for (number, region) in self.0["regions"].as_array().into_iter().flatten().enumerate() {
            flatten(&format!("regions.{number}"), &region["total"], &mut numbers);
        }
        numbers
    }

    /// A number of [`Report::numbers`]. What the report leaves out is 0, where its like could be.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        let numbers = self.numbers();
        if let Some(number) = numbers.get(name) {
            return Some(*number);
        }
        let (part, within) = match name.strip_prefix("regions.").and_then(|rest| rest.split_once('.')) {
            Some((number, within)) => (self.0["regions"].get(number.parse::<usize>().ok()?)?, within),
            None => (&self.0["whole"], name),
        };
        let (parent, _) = within.rsplit_once('.')?;
        let mut value = &part["total"];
        for key in parent.split('.') {
            // Traps are a list, and every one of them has a name.
            value = if key == "traps" { return Some(0) } else { value.get(key)? };
        }
        value.is_object().then_some(0)
    }

    /// The counts of the whole run.
    #[must_use]
    pub fn whole(&self) -> &Value {
        &self.0["whole"]["total"]
    }

    /// The sums of the counts between markers, for each pair of labels: the first, the second unless the machine
    /// ended before that, and the counts.
    pub fn sums(&self) -> impl Iterator<Item = ((u64, Option<u64>), &Value)> {
        self.0["region_sums"].as_array().into_iter().flatten().filter_map(|sum| {
            let labels = &sum["labels"];
            Some(((labels[0].as_u64()?, labels[1].as_u64()), &sum["total"]))
        })
    }

    /// The findings of check mode, in words.
    pub fn findings(&self) -> impl Iterator<Item = String> {
        self.0["findings"].as_array().into_iter().flatten().map(|found| {
            let hart = &found["hart"];
            let text = |key: &str| found["finding"][key].as_str().unwrap_or_default().to_owned();
            format!(
                "hart {hart}, {}: {} of {} could lead to {}, where tables lead to {}; code near {}",
                text("kind"),
                text("address"),
                text("mode"),
                text("cached"),
                text("tables"),
                text("block"),
            )
        })
    }
}

fn flatten(prefix: &str, value: &Value, numbers: &mut BTreeMap<String, u64>) {
    let join = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| flatten(&join(&key.replace(' ', "_")), value, numbers))
        }
        Value::Array(traps) => {
            for trap in traps {
                let text = |key: &str| trap[key].as_str().unwrap_or_default();
                let kind = if trap["interrupt"] == true { "i" } else { "" };
                let name = format!("{}.{}.{kind}{}", text("from"), text("to"), trap["code"]);
                numbers
                    .extend(trap["handling_instructions"].as_u64().map(|one| (join(&format!("{name}.handling")), one)));
                numbers.extend(trap["longest_handling"].as_u64().map(|one| (join(&format!("{name}.longest")), one)));
                numbers.insert(join(&name), trap["count"].as_u64().unwrap_or(0));
            }
        }
        value => numbers.extend(value.as_u64().map(|number| (prefix.to_owned(), number))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::size::MIB;

    fn spec(core: &str) -> MeterSpec {
        MeterSpec { out: "a,b.json".into(), level: Level::Check, cores: vec![core.into()], traps: None }
    }

    #[test]
    fn the_arguments_make_ram_visible() {
        let args = Metered { plugin: "p.so".into(), spec: spec("u74") }.args(Size(64 * MIB));
        let args: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
        assert_eq!(args[..2], ["-machine", "memory-backend=ram"]);
        assert_eq!(args[3], "memory-backend-memfd,id=ram,size=65536K,share=on");
        assert_eq!(args[5], "p.so,out=a,,b.json,level=check,core=u74");
        let odd = Metered { plugin: "/a=b/p.so".into(), spec: spec("u74") }.args(Size(64 * MIB));
        assert!(odd[5].to_string_lossy().starts_with("file=/a=b/p.so,out="));
    }

    #[test]
    fn what_cannot_be_counted_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let spec = |core: &str| MeterSpec { out: dir.path().join("a.json"), ..spec(core) };
        assert!(spec("u74").check(1, Clock::Instructions).is_ok() && spec("u74").check(4, Clock::Real).is_ok());
        assert!(spec("z80").check(1, Clock::Real).unwrap_err().to_string().contains("z80"));
        assert!(spec("u74").check(2, Clock::Instructions).unwrap_err().to_string().contains("one hart only"));
        let nowhere = MeterSpec { out: "/nowhere/a.json".into(), ..spec("u74") };
        assert!(nowhere.check(1, Clock::Real).unwrap_err().to_string().contains("/nowhere/a.json"));
        let missing = Report::read(Path::new("/nowhere.json")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere.json"), "{missing}");
    }

    #[test]
    fn numbers_have_names() {
        let total = serde_json::json!({
            "walks": { "VS": 3 },
            "fences": { "sfence.vma address": { "S": 2 } },
            "traps": [{ "from": "U", "to": "S", "code": 8, "interrupt": false, "count": 5 },
                      { "from": "U", "to": "S", "code": 5, "interrupt": true, "count": 6 }],
        });
        let report = Report(serde_json::json!({
            "whole": { "total": total, "ended": "power-off" },
            "regions": [{ "total": { "walks": { "S": 7 } }, "ended": "marker" }],
        }));
        let number = |name| report.number(name);
        assert_eq!((number("walks.VS"), number("walks.M"), number("waks.M")), (Some(3), Some(0), None));
        assert_eq!((number("traps.U.S.8"), number("traps.U.S.i5"), number("traps.U.M.8")), (Some(5), Some(6), Some(0)));
        assert_eq!(number("fences.sfence.vma_address.S"), Some(2));
        assert_eq!((number("regions.0.walks.S"), number("regions.1.walks.S")), (Some(7), None));
        assert!(report.remarks().is_empty());
    }

    #[test]
    fn odd_markers_are_remarked_upon() {
        let remarks = |begins: u64, ends: u64, lost: u64, regions: &[&str]| {
            let regions: Vec<_> = regions.iter().map(|ended| serde_json::json!({ "ended": ended })).collect();
            let markers = serde_json::json!({ "begins_unmatched": begins, "ends_unmatched": ends, "lost": lost });
            let whole = serde_json::json!({ "ended": "power-off" });
            Report(serde_json::json!({ "markers": markers, "regions": regions, "whole": whole })).remarks()
        };
        assert!(remarks(0, 0, 0, &["marker"]).is_empty());
        for (found, says) in [
            (remarks(0, 0, 0, &[]), "no marker was seen"),
            (remarks(0, 2, 0, &[]), "`mark end` came without `mark begin`: it was ignored (2 times)"),
            (remarks(1, 0, 0, &["marker"]), "was restarted"),
            (remarks(0, 0, 7, &["marker"]), "a limited number of markers: some were ignored (7 times)"),
            (remarks(0, 0, 0, &["marker", "power-off"]), "no marker ended the last region"),
        ] {
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
    }
}
