//! A private apt for each suite: Debian for riscv64 from the machine's own mirror, in a directory of
//! the cache. The machine's apt configuration is read (mirror, proxy) and never changed.

use crate::host::place::{IoError, cache};
use crate::host::progress::Step;
use miette::Diagnostic;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Package lists are not fetched again within this time.
const FRESH: Duration = Duration::from_secs(600);
/// Names a mirror where the machine's apt names none.
const MIRROR_VAR: &str = "GNOMON_DEBIAN_MIRROR";

/// The reason why apt has failed.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum AptError {
    /// An apt program cannot be started.
    #[error("cannot run {program}: {source}")]
    #[diagnostic(help(
        "Gnomon's default guest comes from Debian packages: run it on Debian, or give your own --kernel and --initrd"
    ))]
    NoApt {
        /// The program.
        program: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// No Debian mirror is configured.
    #[error("apt on this machine has no Debian mirror on the network")]
    #[diagnostic(help("set {MIRROR_VAR} to the address of a Debian mirror (as in `deb ADDRESS trixie main`)"))]
    NoMirror,
    /// Debian's keys are not there.
    #[error("Debian's archive keys are missing: {KEYRING}")]
    #[diagnostic(help("install them: apt-get install debian-archive-keyring"))]
    NoKeyring,
    /// apt failed.
    #[error("apt could not {action}: {message}")]
    #[diagnostic(help(
        "check the network, and that the mirror {mirror} has {suite} for {architecture}; then start again (a started download is continued)"
    ))]
    Failed {
        /// The action.
        action: String,
        /// Its error message.
        message: String,
        /// The mirror in use.
        mirror: String,
        /// The suite.
        suite: &'static str,
        /// The architecture.
        architecture: &'static str,
    },
    /// Debian has no packages for this host.
    #[error("Debian has no packages for {0}")]
    #[diagnostic(help("install the program by hand"))]
    NoArchitecture(&'static str),
    /// The disk is full.
    #[error("apt could not {action}: {message}")]
    #[diagnostic(help("make room on the disk of {}, or set GNOMON_CACHE to a directory on another one", dir.display()))]
    NoRoom {
        /// The action.
        action: String,
        /// Its error message.
        message: String,
        /// The directory that apt writes to.
        dir: PathBuf,
    },
    /// The cache could not be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
}

/// The architecture of guests.
const GUESTS: &str = "riscv64";

/// Returns Debian's name of this host's architecture; `None` if Debian has none that Gnomon runs on.
#[must_use]
pub const fn host_architecture() -> Option<&'static str> {
    if cfg!(target_arch = "x86_64") {
        Some("amd64")
    } else if cfg!(target_arch = "aarch64") {
        Some("arm64")
    } else if cfg!(target_arch = "riscv64") {
        Some("riscv64")
    } else {
        None
    }
}

/// Returns whether apt's error message is about the disk, not about the network.
fn is_of_the_disk(message: &str) -> bool {
    message.contains("No space left on device") || message.contains("enough free space")
}

/// A release of Debian that software is taken from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suite {
    /// The stable release, for what runs in guests.
    Trixie,
    /// The newest of everything.
    Sid,
}

impl Suite {
    /// The name, as in apt's sources.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    /// The other name of the suite on a mirror, as long as that names the same suite.
    const fn alias(self) -> &'static str {
        match self {
            Self::Trixie => "stable",
            Self::Sid => "unstable",
        }
    }

    /// The suffix of names in the cache; empty for trixie.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Trixie => "",
            Self::Sid => "-sid",
        }
    }
}

/// The private apt, its package lists up to date.
#[derive(Debug)]
pub struct Apt {
    dir: PathBuf,
    suite: Suite,
    /// Debian's name of the architecture.
    architecture: &'static str,
    mirror: String,
    /// The answers of apt by question: each takes apt a fifth of a second.
    answers: RefCell<BTreeMap<String, String>>,
}

impl Apt {
    /// Prepares the suite's directory and fetches its package lists, for guests.
    pub fn open(suite: Suite) -> Result<Self, AptError> {
        Self::open_in(&format!("apt{}", suite.suffix()), suite, GUESTS)
    }

    /// Does so for programs of this host, from the stable release.
    pub fn of_host() -> Result<Self, AptError> {
        let architecture = host_architecture().ok_or(AptError::NoArchitecture(std::env::consts::ARCH))?;
        Self::open_in("apt-host", Suite::Trixie, architecture)
    }

    fn open_in(dir: &str, suite: Suite, architecture: &'static str) -> Result<Self, AptError> {
        if !Path::new(KEYRING).exists() {
            return Err(AptError::NoKeyring);
        }
        let apt = Self { dir: cache(dir)?, suite, architecture, mirror: mirror()?, answers: RefCell::default() };
        for sub in ["etc", "lists/partial", "archives/partial"] {
            let dir = apt.dir.join(sub);
            std::fs::create_dir_all(&dir).map_err(IoError::at("create", &dir))?;
        }
        let write = |name: &str, text: &str| {
            let path = apt.dir.join(name);
            std::fs::write(&path, text).map_err(IoError::at("write", path))
        };
        // Written anew, it would be newer than what apt has made of it and of the lists, and apt would make that again.
        if !apt.dir.join("status").exists() {
            write("status", "")?;
        }
        let sources = |name| format!("deb [arch={architecture} signed-by={KEYRING}] {} {name} main\n", apt.mirror);
        let (first, second) = (sources(suite.name()), sources(suite.alias()));
        // The lists are as good as new if the same sources were read a moment ago.
        let stamp = apt.dir.join("updated");
        let age = std::fs::metadata(&stamp).and_then(|file| file.modified()).ok().and_then(|time| time.elapsed().ok());
        let is_fresh = age.is_some_and(|age| age < FRESH)
            && std::fs::read_to_string(&stamp).is_ok_and(|updated_from| [&first, &second].contains(&&updated_from));
        if !is_fresh {
            let update = |sources: &str| -> Result<(), AptError> {
                write("etc/sources.list", sources)?;
                apt.fetch("fetching Debian's package lists", &["update"], "fetch Debian's package lists")?;
                apt.check_codename()?;
                Ok(write("updated", sources)?)
            };
            // A mirror that is being brought up to date may have a list that its index does not name, for hours; it seldom has
            // two of those.
            update(&first).or_else(|error| update(&second).map_err(|_| error))?;
        }
        Ok(apt)
    }

    /// Looks whether the lists are of the release that is wanted: an alias moves on to the next one.
    fn check_codename(&self) -> Result<(), AptError> {
        let lists = self.dir.join("lists");
        let wanted = format!("Codename: {}", self.suite.name());
        for entry in std::fs::read_dir(&lists).map_err(IoError::at("read", &lists))? {
            let path = entry.map_err(IoError::at("read", &lists))?.path();
            if path.to_string_lossy().ends_with("_InRelease") {
                let index = std::fs::read_to_string(&path).map_err(IoError::at("read", &path))?;
                if index.lines().any(|line| line == wanted) {
                    return Ok(());
                }
            }
        }
        Err(self.failed("fetch Debian's package lists", format!("they are not of {}", self.suite.name())))
    }

    /// The packages that `package` depends on directly; of alternatives, the first. Virtual ones are
    /// left out.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>, AptError> {
        let text = self.ask("apt-cache", &["depends", "--important", package])?;
        let names = text.lines().filter_map(|line| {
            let line = line.trim();
            line.strip_prefix("Depends: ").or_else(|| line.strip_prefix("PreDepends: "))
        });
        Ok(names.filter(|name| !name.starts_with('<')).map(str::to_owned).collect())
    }

    /// The first dependency of `package` whose name starts with `prefix`.
    pub fn dependency(&self, package: &str, prefix: &str) -> Result<String, AptError> {
        let mut names = self.dependencies(package)?.into_iter();
        names
            .find(|name| name.starts_with(prefix))
            .ok_or_else(|| self.failed("find the kernel package", format!("{package} depends on no {prefix}*")))
    }

    /// The version of a package that would be downloaded.
    pub fn version(&self, package: &str) -> Result<String, AptError> {
        let text = self.ask("apt-cache", &["show", "--no-all-versions", package])?;
        text.lines()
            .find_map(|line| line.strip_prefix("Version: "))
            .map(|version| version.trim().to_owned())
            .ok_or_else(|| self.failed("find a package", format!("{package} has no version")))
    }

    /// Downloads a package, of the version that apt would take unless one is given; returns the file. apt verifies it against the
    /// signed lists.
    pub fn download(&self, package: &str, version: Option<&str>) -> Result<PathBuf, AptError> {
        let archives = self.dir.join("archives");
        let find = || -> Result<Vec<PathBuf>, AptError> {
            let entries = std::fs::read_dir(&archives).map_err(IoError::at("read", &archives))?;
            let is_it = |path: &PathBuf| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
            };
            Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_it).collect())
        };
        for stale in find()? {
            std::fs::remove_file(&stale).map_err(IoError::at("remove", stale))?;
        }
        let of_version = |sign| version.map_or_else(String::new, |version| format!("{sign}{version}"));
        let what = format!("{package}{}", of_version('='));
        let title = format!("downloading {package}{}", of_version(' '));
        self.fetch(&title, &["download", &what], &format!("download {what}"))?;
        find()?.pop().ok_or_else(|| self.failed("download a package", format!("{what} did not arrive")))
    }

    /// The packages that would be installed for `wanted` on an empty system: names and versions, in the order of installation, without what is
    /// only recommended. A member of `wanted` is a package, or a pattern of apt's such as `?essential`.
    pub fn plan(&self, wanted: &[&str]) -> Result<Vec<(String, String)>, AptError> {
        let text = self.ask("apt-get", &[&["--simulate", "--no-install-recommends", "install"], wanted].concat())?;
        Ok(text.lines().filter_map(planned).collect())
    }

    /// Downloads what [`Apt::plan`] says into a directory; returns the files. apt verifies them against the signed lists.
    pub fn download_all(&self, wanted: &[&str], dir: &Path) -> Result<Vec<PathBuf>, AptError> {
        let partial = dir.join("partial");
        std::fs::create_dir_all(&partial).map_err(IoError::at("create", &partial))?;
        let archives = format!("Dir::Cache::archives={}", dir.display());
        let args = ["-o", &archives, "--download-only", "--no-install-recommends", "install"];
        self.fetch("downloading Debian's packages", &[&args, wanted].concat(), "download Debian's packages")?;
        let entries = std::fs::read_dir(dir).map_err(IoError::at("read", dir))?;
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Ok(files.filter(|path| path.extension().is_some_and(|end| end == "deb")).collect())
    }

    /// The lists that all this follows from: signed indexes, and what they vouch for.
    pub fn lists(&self) -> Result<Vec<PathBuf>, AptError> {
        let dir = self.dir.join("lists");
        let entries = std::fs::read_dir(&dir).map_err(IoError::at("read", dir))?;
        let is_list = |path: &PathBuf| path.is_file() && path.to_string_lossy().contains("_dists_");
        Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_list).collect())
    }

    /// The mirror's address, and what the suite is called there.
    pub fn source(&self) -> (&str, &'static str) {
        let sources = std::fs::read_to_string(self.dir.join("etc/sources.list")).unwrap_or_default();
        let is_alias = sources.contains(&format!(" {} main", self.suite.alias()));
        (&self.mirror, if is_alias { self.suite.alias() } else { self.suite.name() })
    }

    /// A package was downloaded, and is not there.
    pub fn absent(&self, package: &str) -> AptError {
        self.failed("download a package", format!("{package} did not arrive"))
    }

    fn failed(&self, action: impl Into<String>, message: impl Into<String>) -> AptError {
        let (action, message) = (action.into(), message.into());
        if is_of_the_disk(&message) {
            return AptError::NoRoom { action, message, dir: self.dir.clone() };
        }
        AptError::Failed {
            action,
            message,
            mirror: self.mirror.clone(),
            suite: self.suite.name(),
            architecture: self.architecture,
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let dir = |sub: &str| self.dir.join(sub).display().to_string();
        let options = [
            format!("Dir::State={}", dir("")),
            format!("Dir::State::lists={}", dir("lists")),
            format!("Dir::State::status={}", dir("status")),
            format!("Dir::Cache={}", dir("")),
            format!("Dir::Cache::archives={}", dir("archives")),
            // What apt makes of the lists: containers' Debian turns these off, and each call takes 1.5 s in place of 0.2 s.
            "Dir::Cache::pkgcache=pkgcache.bin".into(),
            "Dir::Cache::srcpkgcache=srcpkgcache.bin".into(),
            format!("Dir::Etc::sourcelist={}", dir("etc/sources.list")),
            "Dir::Etc::sourceparts=-".into(),
            "Dir::Etc::preferences=-".into(),
            "Dir::Etc::preferencesparts=-".into(),
            format!("APT::Architecture={}", self.architecture),
            format!("APT::Architectures={}", self.architecture),
            // Everything lies in a directory of the user's; apt's own user could not write there.
            "APT::Sandbox::User=root".into(),
            "APT::Default-Release=".into(),
            "APT::Get::AllowUnauthenticated=false".into(),
            "Acquire::AllowInsecureRepositories=false".into(),
            "Acquire::Languages=none".into(),
            "Acquire::Retries=3".into(),
        ];
        for option in options {
            command.arg("-o").arg(option);
        }
        for target in other_index_targets() {
            command.arg("-o").arg(format!("Acquire::IndexTargets::deb::{target}::DefaultEnabled=false"));
        }
        command.current_dir(self.dir.join("archives")).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// The output of a program that reads the lists, which stay unchanged.
    fn ask(&self, program: &'static str, args: &[&str]) -> Result<String, AptError> {
        let question = args.join(" ");
        if let Some(answer) = self.answers.borrow().get(&question) {
            return Ok(answer.clone());
        }
        let output = output(program, self.command(program).args(args))?;
        if !output.status.success() {
            return Err(self.failed(question, String::from_utf8_lossy(&output.stderr).trim()));
        }
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        self.answers.borrow_mut().insert(question, answer.clone());
        Ok(answer)
    }

    /// Runs apt-get with a progress bar.
    fn fetch(&self, title: &str, args: &[&str], action: &str) -> Result<(), AptError> {
        let mut child = self
            .command("apt-get")
            .args(["-q", "-y", "-o", "APT::Status-Fd=1"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| AptError::NoApt { program: "apt-get", source })?;
        let stderr = child.stderr.take();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            // An unreadable pipe leaves the message shorter, nothing worse.
            let _ = stderr.map(|mut pipe| pipe.read_to_string(&mut text));
            text
        });
        let step = Step::percent(title);
        let progress = child.stdout.take().map(BufReader::new);
        for line in progress.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
            // dlstatus:ITEM:PERCENT:TEXT
            let mut parts = line.splitn(4, ':');
            if parts.next() == Some("dlstatus") {
                let percent = parts.nth(1).and_then(|number| number.split('.').next()?.parse().ok());
                step.set(percent.unwrap_or(0));
                step.note(parts.next().unwrap_or_default());
            }
        }
        let status = child.wait().map_err(IoError::at("wait for", "apt-get"))?;
        let errors = errors.join().unwrap_or_default();
        // `update` warns of lists it could not get, and succeeds.
        let broken = errors.lines().any(|line| line.starts_with("E:") || line.contains("Failed to fetch"));
        if status.success() && !broken { Ok(()) } else { Err(self.failed(action, errors.trim())) }
    }
}

/// The package and its version in a line such as `Inst libc6 (2.41-12 Debian:13.2/stable [riscv64])`.
fn planned(line: &str) -> Option<(String, String)> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
    let (_, rest) = rest.split_once('(')?;
    Some((name.to_owned(), rest.split([' ', ')']).next()?.to_owned()))
}

/// The proxies that the machine's own apt goes through, as lines of its configuration.
pub(super) fn proxies() -> String {
    let mut command = Command::new("apt-config");
    command.args(["dump"]).env("LC_ALL", "C").stdin(Stdio::null());
    // Without an answer, there are none.
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&output);
    let wanted = ["Acquire::http::Proxy ", "Acquire::https::Proxy "];
    let lines: Vec<_> = text.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name))).collect();
    lines.join("\n")
}

fn output(program: &'static str, command: &mut Command) -> Result<Output, AptError> {
    command.output().map_err(|source| AptError::NoApt { program, source })
}

/// The mirror that the machine's own apt uses for Debian.
fn mirror() -> Result<String, AptError> {
    if let Ok(mirror) = std::env::var(MIRROR_VAR) {
        return Ok(mirror);
    }
    let mut command = Command::new("apt-get");
    command.args(["update", "--print-uris"]).env("LC_ALL", "C").stdin(Stdio::null());
    let output = output("apt-get", &mut command)?;
    mirror_in(&String::from_utf8_lossy(&output.stdout)).ok_or(AptError::NoMirror)
}

/// Picks the mirror out of `'http://host/debian/dists/bookworm/InRelease' ...` lines: the first
/// that has a plain release of Debian.
fn mirror_in(uris: &str) -> Option<String> {
    const RELEASES: &[&str] =
        &["bookworm", "trixie", "forky", "duke", "sid", "oldstable", "stable", "testing", "unstable"];
    uris.lines().find_map(|line| {
        let uri = line.strip_prefix('\'')?.split('\'').next()?;
        let (site, release) = uri.strip_suffix("/InRelease")?.split_once("/dists/")?;
        let is_remote =
            ["http://", "https://", "tor+", "ftp://", "mirror"].iter().any(|scheme| site.starts_with(scheme));
        (is_remote && RELEASES.contains(&release)).then(|| site.to_owned())
    })
}

/// Index files that other packages have taught the machine's apt to fetch, such as AppStream data.
fn other_index_targets() -> Vec<String> {
    let mut command = Command::new("apt-config");
    command.args(["dump", "Acquire::IndexTargets::deb"]).env("LC_ALL", "C").stdin(Stdio::null());
    // Without the answer, a few lists too many are fetched.
    let Ok(output) = command.output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter_map(|line| {
        let name = line.strip_prefix("Acquire::IndexTargets::deb::")?.split_once("::MetaKey ")?.0;
        (name != "Packages" && name != "Translations").then(|| name.to_owned())
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_not_the_networks_fault() {
        let (mirror, answers) = ("http://a.example".into(), RefCell::default());
        let apt = Apt { dir: "/cache/apt".into(), suite: Suite::Trixie, architecture: GUESTS, mirror, answers };
        let help = |message: &str| apt.failed("download x", message).help().expect("a remedy").to_string();
        for message in [
            "E: You don't have enough free space in /cache/apt/archives/.",
            "E: Failed to fetch http://a.example/x.deb  Error writing to file - write (28: No space left on device)",
        ] {
            assert!(help(message).contains("room on the disk of /cache/apt"), "{}", help(message));
        }
        assert!(help("E: Failed to fetch http://a.example/x.deb  404").contains("the network"));
    }

    #[test]
    fn what_is_planned_is_read() {
        let line = "Inst libc6 (2.41-12+deb13u5 Debian:13.2/stable [riscv64]) [a:riscv64 ]";
        assert_eq!(planned(line), Some(("libc6".into(), "2.41-12+deb13u5".into())));
        let older = "Inst dash [0.5.11-1] (0.5.12-12 Debian:13.2/stable [riscv64])";
        assert_eq!(planned(older), Some(("dash".into(), "0.5.12-12".into())));
        assert_eq!((planned("Conf libc6 (2.41-12)"), planned("Inst libc6")), (None, None));
    }

    #[test]
    fn the_mirror_is_derived() {
        let uris = "'http://a.example/debian-security/dists/bookworm-security/InRelease' a 0 \n\
                    'https://b.example/tools/dists/any/InRelease' b 0 \n\
                    'http://c.example/debian/dists/bookworm/InRelease' c 0 \n";
        assert_eq!(mirror_in(uris).as_deref(), Some("http://c.example/debian"));
        assert_eq!(mirror_in("'file:/media/cd/dists/bookworm/InRelease' x 0"), None);
        assert_eq!(mirror_in(""), None);
    }
}
