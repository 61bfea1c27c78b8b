//! The plan of boot tests: `tests.toml`. What it expands to is in [`super::cases`].

use super::counters::Assertion;
use super::dialog::Exchange;
use super::image::Loader;
use crate::host::size::Size;
use crate::machine::board::Seat;
use crate::subject::kvm::KvmKernel;
use crate::subject::variant::Selector;
use crate::subject::workload::Kind;
use crate::vm::file::{Balloon, Console, Kernel};
use crate::vm::root::Root;
use ::meter::args::Level;
use abi::bundle::{L2Tables, MmuMode};
use abi::vmspace::Way;
use regex::Regex;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroU8;

/// A boot test, as it stands in the file. Its name is the key.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootTest {
    /// Its subject, in a sentence.
    pub about: String,
    /// The test guest to boot: a binary of the package `guests`.
    pub guest: Option<String>,
    /// Or the kernel to boot.
    pub kernel: Option<Kernel>,
    /// The system that each VM has as its root, new and thrown away.
    pub root: Option<Root>,
    /// The machines it is run on.
    #[serde(default = "on_gnomon")]
    pub on: Vec<Platform>,
    /// The seats it is run in.
    #[serde(default = "both_seats")]
    pub seats: Vec<Seat>,
    /// The numbers of harts it is run with.
    #[serde(default = "one_hart")]
    pub harts: Vec<u32>,
    /// The modes it is run in; Gnomon's own choice if not given.
    #[serde(default)]
    pub mmu: Vec<MmuMode>,
    /// The values of the harts' H extension: present, absent, or both in turn.
    #[serde(default = "only_yes")]
    pub h: Vec<bool>,
    /// The values of the lane, in modes that have one: on, off, or both in turn.
    #[serde(default = "only_yes")]
    pub lane: Vec<bool>,
    /// The transparent huge pages of the host of a guest under KVM: on, off, or both in turn.
    #[serde(default = "only_yes")]
    pub thp: Vec<bool>,
    /// Which of all these combinations are run without `--full`.
    #[serde(default)]
    pub variants: Choice,
    /// A test that makes the same checks, and others: what is run of it by default is not run of this one.
    pub twin: Option<String>,
    /// Allows Svvptc to be advertised, as in a VM file.
    pub svvptc: Option<bool>,
    /// Promises hardware updates of A and D bits.
    pub svadu: Option<bool>,
    /// Set if each VM may be a hypervisor.
    #[serde(default)]
    pub nested: bool,
    /// The tables by which its own guests run.
    pub l2: Option<L2Tables>,
    /// The way in which the kernel runs programs, as in a VM file.
    pub vmspace: Option<Way>,
    /// The VM's hypervisor, which runs the guest or kernel.
    pub l1: Option<L1>,
    /// With KVM as `l1`, set if the kernel of KVM's guest is the one that KVM is in.
    #[serde(default)]
    pub newest: bool,
    /// Bound of the memory for shadow tables.
    pub shadow: Option<Size>,
    /// vCPUs of each VM; as many as harts if not given.
    pub vcpus: Option<u32>,
    /// The number of equal VMs.
    #[serde(default = "one")]
    pub vms: usize,
    /// The mode of each VM, where this is their only difference.
    #[serde(default)]
    pub vm_mmu: Vec<MmuMode>,
    /// Test guests that run beside it, each in a VM of its own, and have to pass.
    #[serde(default)]
    pub beside: Vec<Companion>,
    /// Test guests that run after it, each in a VM of its own that starts when the one before has ended, and have to pass.
    #[serde(default)]
    pub then: Vec<Companion>,
    /// RAM of each VM.
    #[serde(default = "memory")]
    pub memory: Size,
    /// RAM of the machine, if not enough for all VMs.
    #[serde(default)]
    pub host_memory: Option<Size>,
    /// Tunables that are set, `name=value`.
    #[serde(default)]
    pub set: Vec<String>,
    /// Size of the file that Gnomon pages to, if there is to be one.
    #[serde(default)]
    pub swap: Option<Size>,
    /// The most RAM that each VM has in memory at a time.
    #[serde(default)]
    pub limit: Option<Size>,
    /// The reserve of each.
    #[serde(default)]
    pub reserve: Option<Size>,
    /// Set if all RAM is given to each VM at its start, and stays.
    #[serde(default)]
    pub wired: bool,
    /// Added to the kernel's command line.
    #[serde(default)]
    pub append: String,
    /// Set if Debian's kernel leaves out its self-tests and probes.
    #[serde(default)]
    pub lean: bool,
    /// The console that Linux uses.
    pub console: Option<Console>,
    /// Set if 2 MiB mappings may be used.
    #[serde(default = "yes")]
    pub superpages: bool,
    /// Set if whole GiB are given to each VM before it starts.
    #[serde(default)]
    pub gigapages: bool,
    /// The memory balloon of each VM: a switch, or the size that goes into it at the start.
    pub balloon: Option<Balloon>,
    /// Size of a disk that each of its VMs has, if there is to be one: zeroes at first.
    pub disk: Option<Size>,
    /// The boot loader of its VM's disk, if that is a distribution's image.
    pub image: Option<Loader>,
    /// Set if each of its VMs reaches a folder of the host (`share`) with some MiB in it, and one that it may only read
    /// (`fixed`).
    #[serde(default)]
    pub share: bool,
    /// Set if its VMs have a source of random bytes.
    #[serde(default)]
    pub rng: bool,
    /// Set if its first VM has two ports, `there` and `back`, with a partner on the host.
    #[serde(default)]
    pub ports: bool,
    /// Set if its VMs have network cards.
    #[serde(default)]
    pub net: bool,
    /// Size of a file that a server on the host has for its VMs, if there is to be one.
    pub serve: Option<Size>,
    /// Set if time counts instructions.
    #[serde(default)]
    pub icount: bool,
    /// The amount of counting by the meter; there is no meter if it is not given.
    #[serde(default, deserialize_with = "level")]
    pub meter: Option<Level>,
    /// The cores that the meter models.
    #[serde(default)]
    pub cores: Vec<String>,
    /// Further arguments for QEMU, such as another `-cpu`.
    #[serde(default)]
    pub qemu: Vec<String>,
    /// Commands for the guest's shell.
    pub exec: Option<String>,
    /// Debian packages with programs of the same name that the commands use.
    #[serde(default)]
    pub programs: Vec<String>,
    /// Those of KVM's selftests that the commands use, each a program: Debian's newest kernel is the guest's, and its module `kvm` is loaded.
    #[serde(default)]
    pub selftests: Vec<String>,
    /// One of the bench's workloads, in place of `exec`: all of what it does, in its quick size.
    pub workload: Option<Kind>,
    /// The dialog: expected output and typed answers.
    #[serde(default)]
    pub dialog: Vec<Exchange>,
    /// Seconds until it has failed.
    #[serde(default = "timeout")]
    pub timeout: u64,
    /// The number of attempts until it passes: for figures of several harts, which a busy host spoils when it suspends
    /// a hart that others wait for.
    #[serde(default = "once")]
    pub attempts: NonZeroU8,
    /// The expected result.
    #[serde(default)]
    pub expect: Expect,
}

/// The expected result of a boot test, besides a test guest's own report.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// The end of every VM.
    pub end: End,
    /// Part of the message with which VMs are stopped.
    pub message: String,
    /// Status of the commands.
    pub status: i32,
    /// Patterns that must be in the output: that of the commands, or else the whole console.
    pub output: Vec<Pattern>,
    /// Patterns that must not be in it.
    pub absent: Vec<Pattern>,
    /// The number of times that the VM starts. A test guest makes its checks each time.
    pub boots: usize,
    /// The expected counters.
    pub counters: Vec<Assertion>,
    /// The expected counters of some variants.
    pub counters_for: BTreeMap<Selector, Vec<Assertion>>,
    /// The commands, or the test guest's arguments, of a run that is made before: its counters are
    /// subtracted.
    pub baseline: Option<String>,
    /// The expected counts of the meter.
    pub meter: Vec<Assertion>,
    /// Check mode must find that a stale translation was used; else it must not.
    pub stale: bool,
    /// The meter must see the same traps as QEMU's own log has.
    pub traps: bool,
    /// The meter's report must be the same, byte by byte, when the test is run again.
    pub repeats: bool,
    /// The machine is stopped, and all is well, when this has appeared as often on the console.
    pub until: Option<Until>,
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            end: End::default(),
            message: String::new(),
            status: 0,
            output: Vec::new(),
            absent: Vec::new(),
            boots: 1,
            counters: Vec::new(),
            counters_for: BTreeMap::new(),
            baseline: None,
            meter: Vec::new(),
            stale: false,
            traps: false,
            repeats: false,
            until: None,
        }
    }
}

/// A test guest that runs beside the VM that the test is about, or after it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Companion {
    /// The test guest.
    pub guest: String,
    /// Its command line.
    #[serde(default)]
    pub append: String,
    /// The mode of its VM, if it is another than that of the VM that the test is about.
    pub mmu: Option<MmuMode>,
    /// RAM of its VM, likewise.
    pub memory: Option<Size>,
    /// The most RAM that its VM has in memory at a time, likewise.
    pub limit: Option<Size>,
    /// Its vCPUs, likewise.
    pub vcpus: Option<u32>,
}

/// A text and how often it must appear.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// The text.
    pub text: String,
    /// The number of appearances.
    pub count: usize,
}

/// The way in which a VM ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// By its own wish.
    #[default]
    Poweroff,
    /// By its own wish, with trouble.
    Failure,
    /// Gnomon stops it.
    Killed,
    /// Not at all: it is stopped when what runs beside it has ended.
    Never,
}

/// The platform of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// Gnomon.
    Gnomon,
    /// OpenSBI and nothing else, in QEMU: what the test itself is tested on.
    Bare,
    /// Linux and its KVM.
    Kvm,
}

/// A VM that is a hypervisor, and runs the test's guest or kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum L1 {
    /// Debian's newest kernel with KVM.
    Kvm,
    /// The kernel that guests boot, with KVM.
    KvmOfGuests,
    /// Gnomon, which runs the guest in the mode that the case has.
    Gnomon,
}

impl L1 {
    /// The kernel, if KVM is the hypervisor.
    pub fn kvm(self) -> Option<KvmKernel> {
        match self {
            Self::Kvm => Some(KvmKernel::Newest),
            Self::KvmOfGuests => Some(KvmKernel::OfGuests),
            Self::Gnomon => None,
        }
    }
}

/// Which combinations of seats, harts and variants are run by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// A selection in which each two values meet: [`super::pairs`].
    #[default]
    Pairs,
    /// A selection in which each value occurs. A cheaper test is run in pairs, and covers the same code.
    Values,
    /// All.
    Full,
    /// None: they take long. In the full run they are as with `Pairs`.
    Never,
}

/// A regular expression; `^` and `$` match at line ends.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern(pub Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl TryFrom<String> for Pattern {
    type Error = regex::Error;

    fn try_from(text: String) -> Result<Self, regex::Error> {
        regex::RegexBuilder::new(&text).multi_line(true).crlf(true).build().map(Self)
    }
}

/// Checks what one test says; the error says what is wrong.
pub fn check(test: &BootTest) -> Result<(), &'static str> {
    let is_elsewhere = test.on.iter().any(|platform| *platform != Platform::Gnomon);
    let is_kvm = test.on.contains(&Platform::Kvm);
    let has_counters = !test.expect.counters.is_empty() || !test.expect.counters_for.is_empty();
    match () {
        () if test.guest.is_some() == test.kernel.is_some() => Err("give either `guest` or `kernel`"),
        () if test.lean && test.kernel != Some(Kernel::Debian) => Err("`lean` is for Debian's kernel"),
        () if test.guest.is_some() && test.exec.is_some() => Err("a test guest has no shell for `exec`"),
        () if test.workload.is_some() && (test.exec.is_some() || test.guest.is_some()) => {
            Err("a `workload` has its own commands, for Linux")
        }
        () if test.image.is_some() && test.kernel != Some(Kernel::Disk) => Err("an `image` is for the kernel `disk`"),
        () if test.image.is_some() && (is_elsewhere || test.disk.is_some() || test.vms > 1) => {
            Err("an `image` is the disk of one VM, on Gnomon")
        }
        () if test.root.as_ref().is_some_and(|root| root.file.is_some()) => {
            Err("each run has a new `root`, which has no file")
        }
        () if test.root.is_some() && (is_elsewhere || test.kernel != Some(Kernel::Debian) || test.swap.is_some()) => {
            Err("a `root` is for Debian's kernel on Gnomon")
        }
        () if test.root.is_some() && (!test.programs.is_empty() || test.workload.is_some()) => {
            Err("a `root` has its own programs")
        }
        () if test.exec.is_none() && !test.programs.is_empty() => Err("`programs` are for `exec` only"),
        () if !test.selftests.is_empty()
            && (test.exec.is_none() || test.root.is_some() || test.l1.is_some() || !test.nested) =>
        {
            Err("`selftests` are for `exec` in a guest that is `nested`")
        }
        () if test.vms > 1 && test.exec.is_none() => Err("several VMs are for `exec` only"),
        () if !test.vm_mmu.is_empty() && (test.vm_mmu.len() != test.vms || !test.mmu.is_empty()) => {
            Err("`vm_mmu` names one mode for each of `vms`, in place of `mmu`")
        }
        () if test.workload.is_some() && !test.beside.is_empty() => Err("a `workload` has the machine alone"),
        () if !test.then.is_empty() && (test.vms > 1 || test.guest.is_none() || test.expect.end == End::Never) => {
            Err("`then` is for one test guest that ends")
        }
        () if test.expect.end == End::Never && test.beside.is_empty() => Err("it would never end"),
        () if is_elsewhere && (!test.beside.is_empty() || !test.then.is_empty() || test.vms > 1) => {
            Err("the bare machine has no VMs, and KVM one only")
        }
        () if is_elsewhere && has_counters => Err("counters are Gnomon's alone"),
        () if is_elsewhere && test.expect.end == End::Killed => Err("Gnomon alone stops a guest"),
        () if test.l1.is_some()
            && (is_elsewhere || test.vms > 1 || !test.beside.is_empty() || !test.then.is_empty()) =>
        {
            Err("`l1` is for one VM, on Gnomon")
        }
        () if test.newest && !(test.l1 == Some(L1::Kvm) && test.kernel == Some(Kernel::Debian)) => {
            Err("`newest` is for `kernel = \"debian\"` with `l1 = \"kvm\"`")
        }
        () if is_kvm && (test.harts != [1] || test.vcpus.is_some_and(|vcpus| vcpus != 1)) => {
            Err("under KVM there are one hart and one vCPU")
        }
        () if test.meter.is_none()
            && (test.expect.stale
                || test.expect.traps
                || test.expect.repeats
                || !test.expect.meter.is_empty()
                || !test.cores.is_empty()) =>
        {
            Err("without `meter` there are no cores and no report")
        }
        () if test.meter.is_some() && test.icount && test.harts.iter().any(|harts| *harts > 1) => {
            Err("with `icount` the meter counts one hart only")
        }
        () if test.expect.repeats && !test.icount => Err("only with `icount` a run repeats exactly"),
        () if test.expect.stale && test.meter != Some(Level::Check) => Err("`stale` is for `meter = \"check\"`"),
        () if test.expect.baseline.is_some() && !has_counters => {
            Err("`baseline` is for counters, and none is expected")
        }
        () => Ok(()),
    }
}

fn level<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Level>, D::Error> {
    let name = String::deserialize(from)?;
    let found = Level::NAMES.iter().find(|(known, _)| *known == name);
    let error = || serde::de::Error::custom(format!("`{name}` is not a level of the meter: use counts, tlb or check"));
    found.map(|(_, level)| Some(*level)).ok_or_else(error)
}

fn on_gnomon() -> Vec<Platform> {
    vec![Platform::Gnomon]
}

fn both_seats() -> Vec<Seat> {
    vec![Seat::Firmware, Seat::Payload]
}

fn only_yes() -> Vec<bool> {
    vec![true]
}

fn one_hart() -> Vec<u32> {
    vec![1]
}

const fn one() -> usize {
    1
}

const fn memory() -> Size {
    Size(64 << 20)
}

const fn yes() -> bool {
    true
}

const fn timeout() -> u64 {
    60
}

fn once() -> NonZeroU8 {
    NonZeroU8::MIN
}

#[cfg(test)]
pub mod tests {
    use super::super::cases::{self, Case, PlanError};

    pub fn plan(text: &str) -> Result<Vec<Case>, PlanError> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tests.toml");
        std::fs::write(&path, text).expect("a file");
        cases::read(&path)
    }

    #[test]
    fn broken_plans_are_refused() {
        for (text, why) in [
            ("[a]\nabout = ''\n", "either"),
            ("[a]\nabout = ''\nguest = 'x'\nkernel = 'debian'\n", "either"),
            ("[a]\nabout = ''\nguest = 'x'\nexec = 'x'\n", "shell"),
            ("[a]\nabout = ''\nguest = 'x'\nvms = 2\n", "exec"),
            ("[a]\nabout = ''\nguest = 'x'\nthen = [{ guest = 'y' }]\nexpect.end = 'never'\n", "`then`"),
            ("[a]\nabout = ''\nguest = 'x'\nthen = [{ guest = 'y' }]\non = ['bare']\n", "no VMs"),
            ("[a]\nabout = ''\nguest = 'x'\nworkload = 'gups'\n", "commands"),
            ("[a]\nabout = ''\nkernel = 'debian'\nworkload = 'gap'\n", "gap"),
            ("[a]\nabout = ''\nkernel = 'debian'\nexec = 'x'\nvms = 2\nvm_mmu = ['lazy']\n", "vm_mmu"),
            ("[a]\nabout = ''\nkernel = 'debian'\nprograms = ['x']\n", "programs"),
            ("[a]\nabout = ''\nkernel = 'debian'\nexec = 'x'\nselftests = ['x']\n", "selftests"),
            ("[a]\nabout = ''\nkernel = 'debian'\nroot = 'arch'\n", "not a root"),
            ("[a]\nabout = ''\nkernel = 'u-boot'\nroot = 'debian'\n", "root"),
            ("[a]\nabout = ''\nkernel = 'debian'\nroot = { system = 'debian', file = 'x' }\n", "file"),
            ("[a]\nabout = ''\nkernel = 'debian'\nroot = 'debian'\nexec = 'x'\nprograms = ['x']\n", "own programs"),
            ("[a]\nabout = ''\nguest = 'x'\nexpect.output = ['(']\n", "regex"),
            ("[a]\nabout = ''\nguest = 'x'\ncolour = 1\n", "colour"),
            ("[a]\nabout = ''\nguest = 'x'\nmmu = ['turbo']\n", "turbo"),
            ("[a]\nabout = ''\nguest = 'x'\nmmu = ['two-stage']\nh = [false]\n", "never run"),
            ("[a]\nabout = ''\nguest = 'x'\nh = []\n", "never run"),
            ("[a]\nabout = ''\nguest = 'x'\non = ['kvm']\nharts = [2]\n", "one hart"),
            ("[a]\nabout = ''\nkernel = 'debian'\nnewest = true\n", "`newest`"),
            ("[a]\nabout = ''\nguest = 'x'\non = ['kvm']\nexpect.counters = ['a == 1']\n", "Gnomon's alone"),
            ("[a]\nabout = ''\nguest = 'x'\nexpect.baseline = 'x'\n", "counters"),
            ("[a]\nabout = ''\nguest = 'x'\nexpect.counters_for = { fast = ['a == 1'] }\n", "fast"),
            ("[a]\nabout = ''\nguest = 'x'\ntwin = 'b'\n", "no test called b"),
            ("[a]\nabout = ''\nguest = 'x'\ntwin = 'b'\n[b]\nabout = ''\nguest = 'y'\n", "not a twin"),
            ("[a]\nabout = ''\nguest = 'x'\ntwin = 'a'\n", "not a twin"),
            (
                "[a]\nabout = ''\nguest = 'x'\ntwin = 'b'\n[b]\nabout = ''\nguest = 'x'\nharts = [1]\n",
                "left to its twin",
            ),
            ("[a]\nabout = ''\nguest = 'x'\nexpect.counters_for = { lazy = ['a == 1'] }\n", "no run is of that kind"),
        ] {
            let message = plan(text).expect_err(why).to_string();
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn the_plan_of_this_repository_is_valid() {
        let cases = cases::read(&crate::host::home::checkout("test").expect("one").join("tests.toml")).expect("a plan");
        assert!(cases.len() > 20);
    }
}
