//! A Debian package: an archive (`ar`) of the format's version, the description, and the files.

use super::texts::compressed;
use super::tree::{BUILDS, Entry, Layout, Tree, directories};
use crate::guest::debian::host_architecture;
use crate::host::home::checkout;
use crate::host::output::{Kind, OutputError};
use crate::host::place::IoError;
use crate::host::sources;
use flate2::{Compression, GzBuilder};
use miette::Diagnostic;
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// A package's file.
const FILE: Kind = Kind { what: "a Debian package", mark: b"!<arch>\ndebian-binary" };
/// The package's name.
const NAME: &str = "gnomon";
/// Programs that each run needs: QEMU, and what guests' software is fetched and checked with. The first dependency is the C library.
const DEPENDS: &str = "qemu-system-riscv (>= 1:10), apt, debian-archive-keyring";
/// Programs that some runs need: VMs with a network, the payload seat, and ssh to a whole Debian.
const RECOMMENDS: &str = "passt (>= 0.0~git20250503), opensbi, openssh-client";
/// Checks of lintian's that do not fit.
const OVERRIDES: &str = "# Programs for virtual machines, which are of another architecture than the package.\n\
    gnomon: binary-from-other-architecture\n\
    gnomon: statically-linked-binary\n\
    gnomon: unstripped-binary-or-object\n\
    # The plugin is opened by its path.\n\
    gnomon: hardening-no-fortify-functions\n";
/// Sets the time of all files in a package, in seconds since 1970 (reproducible-builds.org).
const TIME_VAR: &str = "SOURCE_DATE_EPOCH";

/// A package that cannot be made.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum DebError {
    /// Debian has no name for this processor.
    #[error("there are no Debian packages for {0}")]
    #[diagnostic(help("install without a package: gnomon install"))]
    Architecture(&'static str),
    /// The time is not a number.
    #[error("{TIME_VAR} is `{0}`, which is not a number of seconds")]
    #[diagnostic(help("unset it, or set it to a number of seconds since 1970"))]
    Time(String),
    /// `date` has failed.
    #[error("the program date could not write the time {0}")]
    #[diagnostic(help("set {TIME_VAR} to a number of seconds since 1970"))]
    Date(u64),
    /// A program is not an ELF file.
    #[error("{path} is not a program for this host: {why}")]
    #[diagnostic(help("this is a bug of Gnomon's; please report it"))]
    Program {
        /// Its path in the package.
        path: PathBuf,
        /// The reason.
        why: object::Error,
    },
    /// The archive cannot be made.
    #[error("the package cannot be made: {0}")]
    #[diagnostic(help("see that there is enough memory"))]
    Archive(std::io::Error),
    /// The file cannot be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Output(#[from] OutputError),
    /// A program cannot be started.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
    /// There is no checkout.
    #[error(transparent)]
    #[diagnostic(transparent)]
    NoCheckout(#[from] crate::host::home::NoCheckout),
}

/// The version of a package, and the time of its files.
struct Release {
    version: String,
    /// In seconds since 1970.
    time: u64,
}

/// Writes a package with a tree, which is made with [`Layout::Debian`]. Checks before `make` makes it that the file can be written.
///
/// # Errors
/// [`DebError`], and those of `make`.
pub fn package(file: &Path, make: impl FnOnce(Layout) -> miette::Result<Tree>) -> miette::Result<()> {
    FILE.check(file).map_err(DebError::from)?;
    let release = Release::now()?;
    let tree = make(Layout::Debian)?;
    let bytes = archive(tree, &release)?;
    Ok(FILE.write(file, &bytes).map_err(DebError::from)?)
}

impl Release {
    fn now() -> Result<Self, DebError> {
        let root = checkout("make a package")?;
        let commit = sources::time_in(root);
        let given = std::env::var(TIME_VAR).ok();
        let given = given.map(|text| text.parse().map_err(|_| DebError::Time(text))).transpose()?;
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let time = given.or(commit.as_ref().map(|commit| commit.0)).unwrap_or_else(now);
        // A later commit is a later version.
        let of = match &commit {
            Some((time, name)) => format!("~git{}.{name}", date(*time, "+%Y%m%d%H%M%S")?),
            None => String::new(),
        };
        Ok(Self { version: format!("{}{of}", env!("CARGO_PKG_VERSION")), time })
    }
}

fn date(time: u64, format: &str) -> Result<String, DebError> {
    let mut command = Command::new("date");
    command.args(["-u", "-d", &format!("@{time}"), format]).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().map_err(IoError::at("run", "date"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() { Ok(text) } else { Err(DebError::Date(time)) }
}

fn archive(mut tree: Tree, release: &Release) -> Result<Vec<u8>, DebError> {
    let library = library(&tree)?;
    let maintainer = maintainer();
    let changes = format!(
        "{NAME} ({}) unstable; urgency=medium\n\n  * Built from {}.\n\n -- {maintainer}  {}\n",
        release.version,
        sources::commit(),
        date(release.time, "-R")?
    );
    tree.insert("share/doc/gnomon/changelog.gz".into(), Entry::Data(compressed(changes.as_bytes())));
    tree.insert("share/lintian/overrides/gnomon".into(), Entry::Data(OVERRIDES.into()));
    let kilobytes: usize = tree.values().map(|entry| entry.bytes().len().div_ceil(1024)).sum();
    let architecture = host_architecture().ok_or(DebError::Architecture(std::env::consts::ARCH))?;
    let control = format!(
        "Package: {NAME}\nVersion: {}\nArchitecture: {architecture}\nMaintainer: {maintainer}\nInstalled-Size: {kilobytes}\n\
         Depends: libc6 (>= {library}), libgcc-s1, {DEPENDS}\nRecommends: {RECOMMENDS}\nSection: otherosfs\nPriority: optional\n\
         Description: type-1 hypervisor for RISC-V, with its virtual machines in QEMU\n \
         Gnomon runs unmodified guests, such as Debian, on RISC-V harts with the\n \
         hypervisor extension and without. The command gnomon starts it in QEMU,\n \
         fetches guests' software from the Debian mirror of this machine, and\n \
         measures what virtual memory costs.\n",
        release.version
    );
    let tree = tree.into_iter().map(|(path, entry)| (Path::new("usr").join(path), entry)).collect();
    let description = [("control".into(), Entry::Data(control.into()))].into();
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", tarball(&description, release)?),
        ("data.tar.gz", tarball(&tree, release)?),
    ];
    let mut builder = ar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = ar::Header::new(name.into(), bytes.len() as u64);
        header.set_mtime(release.time);
        header.set_mode(0o100_644);
        builder.append(&header, bytes.as_slice()).map_err(DebError::Archive)?;
    }
    builder.into_inner().map_err(DebError::Archive)
}

/// A tree as a compressed archive, of files that belong to root.
fn tarball(tree: &Tree, release: &Release) -> Result<Vec<u8>, DebError> {
    let writer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    let mut archive = tar::Builder::new(writer);
    let header = |mode: u32, kind: tar::EntryType| {
        let mut header = tar::Header::new_gnu();
        header.set_mode(mode);
        header.set_entry_type(kind);
        header.set_mtime(release.time);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        // Both fields hold such a short name.
        let _ = header.set_username("root").and_then(|()| header.set_groupname("root"));
        header
    };
    for dir in std::iter::once(Path::new("./")).chain(directories(tree)) {
        let mut header = header(0o755, tar::EntryType::Directory);
        archive.append_data(&mut header, dir, &[][..]).map_err(DebError::Archive)?;
    }
    for (path, entry) in tree {
        let appended = match entry {
            Entry::Link(to) => archive.append_link(&mut header(entry.mode(), tar::EntryType::Symlink), path, to),
            Entry::Data(bytes) | Entry::Program(bytes) => {
                let mut header = header(entry.mode(), tar::EntryType::Regular);
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, path, bytes.as_slice())
            }
        };
        appended.map_err(DebError::Archive)?;
    }
    let writer = archive.into_inner().map_err(DebError::Archive)?;
    writer.finish().map_err(DebError::Archive)
}

/// The package's maintainer, from the variables of Debian's own tools.
fn maintainer() -> String {
    let named = |name: &str| {
        std::env::var(name).ok().filter(|value| !value.trim().is_empty() && !value.contains(['\n', '<', '>']))
    };
    let name = named("DEBFULLNAME").unwrap_or_else(|| "Gnomon".into());
    let address = named("DEBEMAIL").or_else(|| named("EMAIL")).unwrap_or_else(|| "gnomon@localhost".into());
    format!("{name} <{address}>")
}

/// The oldest version of the C library that has all that the programs for this host want of it.
fn library(tree: &Tree) -> Result<String, DebError> {
    let is_of_host = |path: &Path, entry: &Entry| {
        matches!(entry, Entry::Program(_))
            || path.starts_with(BUILDS) && path.extension().is_some_and(|kind| kind == "so")
    };
    let mut wanted = BTreeSet::new();
    for (path, entry) in tree.iter().filter(|(path, entry)| is_of_host(path, entry)) {
        wanted.append(&mut versions(entry.bytes()).map_err(|why| DebError::Program { path: path.clone(), why })?);
    }
    let newest = wanted.into_iter().next_back().unwrap_or_default();
    Ok(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

/// The versions of the C library whose functions an ELF file wants, as lists of their numbers.
fn versions(bytes: &[u8]) -> Result<BTreeSet<Vec<u32>>, object::Error> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut versions = BTreeSet::new();
    let Some((mut needs, strings)) = sections.gnu_verneed(endian, bytes)? else { return Ok(versions) };
    let strings = sections.strings(endian, bytes, strings)?;
    while let Some((_, mut libraries)) = needs.next()? {
        while let Some(version) = libraries.next()? {
            let name = version.name(endian, strings).unwrap_or_default();
            let name = String::from_utf8_lossy(name);
            let numbers =
                name.strip_prefix("GLIBC_").map(|list| list.split('.').map(str::parse).collect::<Result<Vec<_>, _>>());
            versions.extend(numbers.and_then(Result::ok));
        }
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_the_library_is_found() {
        let own = std::fs::read("/proc/self/exe").expect("a program");
        let versions = versions(&own).expect("an ELF file");
        assert!(versions.iter().all(|version| version[0] == 2 && version.len() >= 2), "{versions:?}");
        assert!(versions.contains(&vec![2, 34]), "{versions:?}");
        assert!([2, 4] < [2, 34], "numbers, not digits");
    }

    #[test]
    fn the_same_tree_makes_the_same_archive() {
        let tree: Tree = [
            ("bin/a".into(), Entry::Link("../b".into())),
            ("b".into(), Entry::Data(vec![1; 100])),
            (format!("lib/{}/c", "x".repeat(150)).into(), Entry::Data(Vec::new())),
        ]
        .into();
        let release = Release { version: "1".into(), time: 1_000_000_000 };
        let [one, other] = [(); 2].map(|()| tarball(&tree, &release).expect("an archive"));
        assert_eq!(one, other);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(one.as_slice()));
        let names = archive.entries().expect("entries").map(|entry| {
            let entry = entry.expect("an entry");
            assert_eq!((entry.header().uid().ok(), entry.header().mtime().ok()), (Some(0), Some(release.time)));
            entry.path().expect("a path").display().to_string()
        });
        let names: Vec<_> = names.collect();
        assert_eq!(names[..2], ["./", "bin"].map(String::from), "{names:?}");
        assert!(names.iter().any(|name| name.ends_with("x/c")), "{names:?}");
    }
}
