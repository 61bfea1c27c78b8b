//! Folders of the host that VMs reach.

use crate::host::words::is_name_char;
use crate::host::written::{self, Written};
use abi::bundle::{MAX_SHARE_TAG, MAX_SHARES};
use miette::Diagnostic;
use serde::Deserialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A folder that a VM reaches, as the user describes it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(from = "Written<Table>")]
pub struct ShareSpec {
    /// The folder.
    pub dir: PathBuf,
    /// Set if the guest only reads it.
    pub readonly: bool,
    /// Its name in the guest; `None`: the folder's name.
    pub name: Option<String>,
}

/// A share in a VM file, if more is said of it than its directory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    dir: PathBuf,
    #[serde(default)]
    readonly: bool,
    name: Option<String>,
}

impl written::Table for Table {
    const BOTH: &'static str = "the path of a directory, or a table such as { dir = \"src\", readonly = true }";
}

impl From<Written<Table>> for ShareSpec {
    fn from(written: Written<Table>) -> Self {
        match written {
            Written::Text(dir) => Self { dir: dir.into(), readonly: false, name: None },
            Written::Table(Table { dir, readonly, name }) => Self { dir, readonly, name },
        }
    }
}

impl FromStr for ShareSpec {
    type Err = String;

    /// `DIR`, with `:ro` or `:rw` behind it. Other colons are the directory's.
    fn from_str(text: &str) -> Result<Self, String> {
        let (dir, readonly) = match (text.strip_suffix(":ro"), text.strip_suffix(":rw")) {
            (Some(dir), _) => (dir, true),
            (_, Some(dir)) => (dir, false),
            _ => (text, false),
        };
        if dir.is_empty() {
            return Err("name a directory: --share DIR, or DIR:ro for one that is only read".into());
        }
        Ok(Self { dir: dir.into(), readonly, name: None })
    }
}

/// A share of the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// The directory, as the system knows it.
    pub dir: String,
    /// Set if the guest only reads it.
    pub readonly: bool,
    /// The tag by which the guest mounts it.
    pub name: String,
}

/// A directory that cannot be shared.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ShareError {
    /// The directory does not exist, or cannot be read.
    #[error("cannot share {dir}: {source}")]
    #[diagnostic(help("name an existing directory that you may read: --share DIR, or `shares` in the VM file"))]
    Unusable {
        /// The directory.
        dir: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The path does not name a directory.
    #[error("cannot share {0}: it is not a directory")]
    #[diagnostic(help("share the directory that it is in, or copy it into the guest by --add"))]
    NoDirectory(PathBuf),
    /// Reports and messages cannot have its name.
    #[error("cannot share {0}: its name is not UTF-8")]
    #[diagnostic(help("give it another name, or share it by one: a mount point, or its parent"))]
    NotText(PathBuf),
    /// A name that no share can have.
    #[error("VM `{vm}`: a share cannot be called `{name}`")]
    #[diagnostic(help(
        "use 1 to {MAX_SHARE_TAG} letters, digits, `-`, `_` and `.`, and a letter, a digit or `_` in front: `name` in `shares` of the VM file"
    ))]
    Name {
        /// The VM.
        vm: String,
        /// The name.
        name: String,
    },
    /// Two have the same.
    #[error("VM `{vm}` has two shares called `{name}`")]
    #[diagnostic(help(
        "give one another name: shares = [{{ dir = \"DIR\", name = \"NAME\" }}] in the VM file (by default a share has the name of its \
         directory is)"
    ))]
    Duplicate {
        /// The VM.
        vm: String,
        /// The name.
        name: String,
    },
    /// A VM has too many.
    #[error("VM `{vm}` has {count} shares: the limit is {MAX_SHARES}")]
    #[diagnostic(help(
        "give it fewer, such as one directory that contains the others: `shares` in the VM file, or --share"
    ))]
    TooMany {
        /// The VM.
        vm: String,
        /// The number of its shares.
        count: usize,
    },
}

/// A name like that of a directory, with `_` for what a name may not have.
fn name_of(dir: &Path) -> String {
    let name = dir.file_name().map_or("root".into(), |name| name.to_string_lossy());
    let plain = |c: char| if is_name_char(c) { c } else { '_' };
    let name: String = name.chars().map(plain).take(MAX_SHARE_TAG).collect();
    if name.starts_with(['-', '.']) { format!("_{}", &name[1..]) } else { name }
}

/// Returns whether a share can have that name, which is also the name of a directory and a word in scripts.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_SHARE_TAG).contains(&name.len()) && name.chars().all(is_name_char) && !name.starts_with(['-', '.'])
}

impl ShareSpec {
    /// Checks the directory.
    fn provide(&self, vm: &str) -> Result<Share, ShareError> {
        let unusable = |source| ShareError::Unusable { dir: self.dir.clone(), source };
        let dir = std::fs::canonicalize(&self.dir).map_err(unusable)?;
        if !std::fs::metadata(&dir).map_err(unusable)?.is_dir() {
            return Err(ShareError::NoDirectory(self.dir.clone()));
        }
        std::fs::read_dir(&dir).map_err(unusable)?;
        let name = self.name.clone().unwrap_or_else(|| name_of(&dir));
        if !is_name(&name) {
            return Err(ShareError::Name { vm: vm.into(), name });
        }
        let dir = dir.into_os_string().into_string().map_err(|_| ShareError::NotText(self.dir.clone()))?;
        Ok(Share { dir, readonly: self.readonly, name })
    }
}

/// Provides the shares of all VMs, each given by its name and its shares. They are numbered through.
///
/// # Errors
/// [`ShareError`].
pub fn provide<'a>(vms: impl Iterator<Item = (&'a str, &'a [ShareSpec])>) -> Result<Vec<Share>, ShareError> {
    let mut all = Vec::new();
    for (vm, specs) in vms {
        if specs.len() > MAX_SHARES {
            return Err(ShareError::TooMany { vm: vm.into(), count: specs.len() });
        }
        let first = all.len();
        for spec in specs {
            let share = spec.provide(vm)?;
            if all[first..].iter().any(|other: &Share| other.name == share.name) {
                return Err(ShareError::Duplicate { vm: vm.into(), name: share.name });
            }
            all.push(share);
        }
    }
    Ok(all)
}

/// The descriptor of QEMU's end of the socket of share 0; those of others follow.
const FIRST_DESCRIPTOR: i32 = 10;

/// The descriptor by which QEMU has its end of the socket of share number `number`.
pub(crate) fn descriptor(number: usize) -> i32 {
    FIRST_DESCRIPTOR + number as i32
}

/// QEMU's arguments for share number `number`: a network device whose packets go to the share's server, and that Gnomon
/// finds by its address ([`abi::share`]).
pub(crate) fn args(number: usize) -> [OsString; 4] {
    let (descriptor, address) = (descriptor(number), abi::share::address(number as u16));
    let netdev = format!("dgram,id=share{number},local.type=fd,local.str={descriptor}");
    let device = format!("virtio-net-device,netdev=share{number},mac={address}");
    ["-netdev".into(), netdev.into(), "-device".into(), device.into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    fn spec(text: &str) -> ShareSpec {
        text.parse().expect("a share")
    }

    #[test]
    fn a_directory_and_whether_it_is_only_read() {
        let share = |dir: &str, readonly| ShareSpec { dir: dir.into(), readonly, name: None };
        assert_eq!((spec("a"), spec("a:ro"), spec("a:rw")), (share("a", false), share("a", true), share("a", false)));
        assert_eq!(
            (spec("a:b"), spec("a:b:ro"), spec("a,b")),
            (share("a:b", false), share("a:b", true), share("a,b", false))
        );
        assert_eq!(spec("a:ro:rw"), share("a:ro", false));
        assert!("".parse::<ShareSpec>().is_err() && ":ro".parse::<ShareSpec>().is_err());
    }

    #[test]
    fn shares_in_a_file() {
        #[derive(Deserialize)]
        struct File {
            shares: Vec<ShareSpec>,
        }
        let read = |text: &str| toml::from_str::<File>(text).map(|file| file.shares).map_err(|error| error.to_string());
        let all = read("shares = ['a:ro', { dir = 'b', readonly = true, name = 'c' }]").expect("valid");
        // A string is the path and nothing else.
        assert_eq!(all[0], ShareSpec { dir: "a:ro".into(), readonly: false, name: None });
        assert_eq!(all[1], ShareSpec { dir: "b".into(), readonly: true, name: Some("c".into()) });
        assert!(
            read("shares = [{ dir = 'b', readonyl = true }]").is_err()
                && read("shares = [{ readonly = true }]").is_err()
        );
    }

    #[test]
    fn names_are_those_of_directories_and_can_be_words() {
        for (dir, name) in [
            ("/a/src", "src"),
            ("/", "root"),
            ("/a/x, y:z", "x__y_z"),
            ("/a/.git", "_git"),
            ("/a/-f", "_f"),
            ("/ä", "_"),
        ] {
            assert_eq!(name_of(Path::new(dir)), name, "{dir}");
            assert!(is_name(&name_of(Path::new(dir))), "{dir}");
        }
        assert_eq!(name_of(Path::new(&"x".repeat(100))).len(), MAX_SHARE_TAG);
        for bad in ["", ".", "..", "-x", "a/b", "a b", "a\n"] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn what_cannot_be_shared_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let odd = dir.path().join("a, b:c");
        fs::create_dir(&odd).expect("made");
        fs::write(dir.path().join("file"), "x").expect("written");
        let share = |dir: PathBuf| ShareSpec { dir, readonly: false, name: None };
        let provide = |specs: &[ShareSpec]| super::provide([("vm", specs)].into_iter());
        let found = provide(&[share(odd.clone())]).expect("usable");
        assert_eq!((found[0].name.as_str(), found[0].dir.as_str()), ("a__b_c", odd.to_str().expect("text")));
        let missing = provide(&[share(dir.path().join("missing"))]).expect_err("missing").to_string();
        assert!(missing.contains("missing: No such file"), "{missing}");
        assert!(matches!(provide(&[share(dir.path().join("file"))]), Err(ShareError::NoDirectory(_))));
        assert!(matches!(provide(&[share(odd.clone()), share(odd.clone())]), Err(ShareError::Duplicate { .. })));
        assert!(matches!(provide(&vec![share(odd.clone()); MAX_SHARES + 1]), Err(ShareError::TooMany { .. })));
        let named = ShareSpec { name: Some("../x".into()), ..share(odd.clone()) };
        assert!(matches!(provide(&[named]), Err(ShareError::Name { .. })));
        let bytes = dir.path().join(std::ffi::OsStr::from_bytes(b"\xff"));
        fs::create_dir(&bytes).expect("made");
        assert!(matches!(provide(&[share(bytes)]), Err(ShareError::NotText(_))));
        // Two VMs may have the same one.
        let one = [share(odd)];
        assert_eq!(super::provide([("a", &one[..]), ("b", &one[..])].into_iter()).expect("usable").len(), 2);
    }

    #[test]
    fn qemu_is_told_of_it() {
        let whole = "-netdev dgram,id=share2,local.type=fd,local.str=12 -device virtio-net-device,netdev=share2,mac=02:67:73:68:00:02";
        assert_eq!(args(2).join(OsStr::new(" ")), whole);
    }
}
