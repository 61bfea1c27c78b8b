//! An installed command: without the checkout and without Rust, under a prefix with an odd name, from a directory that was moved, and from a
//! Debian package.

mod says;

use says::says;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const GNOMON: &str = env!("CARGO_BIN_EXE_gnomon");
/// Programs of the system alone.
const PATH: &str = "/usr/bin:/bin";

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        let scratch = Self(tempfile::tempdir().expect("a directory"));
        fs::create_dir(scratch.path("home")).expect("a directory");
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Installs by this build's command, as a user whose files are private.
    fn install(&self, args: &[&str]) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", "umask 077; exec \"$0\" install --debug \"$@\"", GNOMON]).args(args);
        command.current_dir(self.0.path()).stdin(Stdio::null()).output().expect("gnomon")
    }

    /// Starts a command as a user without the checkout, which is hidden if this user can mount something, and without Rust.
    fn start(&self, program: &Path, args: &[&str]) -> Output {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("one");
        let hides = |program: &Path| {
            let mut command = Command::new("unshare");
            let script = "mount -t tmpfs tmpfs \"$0\" && exec \"$@\"";
            command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(root).arg(program);
            command
        };
        let can_hide = hides(Path::new("true")).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        let mut command = if can_hide { hides(program) } else { Command::new(program) };
        command.env_clear().env("PATH", PATH).env("HOME", self.path("home")).current_dir(self.0.path());
        if let Some(qemu) = std::env::var_os("GNOMON_QEMU") {
            command.env("GNOMON_QEMU", qemu);
        }
        command.args(args).stdin(Stdio::null()).output().expect("a command")
    }

    /// Checks that an installed command works.
    fn check(&self, program: &Path) {
        fs::write(self.path("guest"), says("beat\n", &[0x0000_006f])).expect("a file");
        let run = self.start(program, &["run", "--memory", "16M", "--kernel", "guest", "--timeout", "20", "--as", "r"]);
        assert!(text(&run).contains("beat"), "{}: {}", program.display(), text(&run));
        let cache = self.path("home/.cache/gnomon");
        assert!(cache.is_dir(), "downloads are the user's");
        let listed = self.start(program, &["ps"]);
        assert!(listed.status.success(), "{}", text(&listed));
        for args in [&["test", "--list"][..], &["install", "--prefix", "other"]] {
            let refused = self.start(program, args);
            assert!(text(&refused).contains("the installed command cannot"), "{args:?}: {}", text(&refused));
        }
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), output.stderr.as_slice()].concat()).into_owned()
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    let found = entries.flat_map(|path| {
        let inner = if path.is_dir() && !path.is_symlink() { files(&path) } else { Vec::new() };
        std::iter::once(path).chain(inner)
    });
    let mut found: Vec<_> = found.collect();
    found.sort();
    found
}

#[test]
fn an_installation_needs_no_checkout_and_can_be_moved() {
    let scratch = Scratch::new();
    let installed = scratch.install(&["--prefix", "a prefix,=\"$x'"]);
    assert!(installed.status.success(), "{}", text(&installed));
    let prefix = scratch.path("a prefix,=\"$x'");
    for file in files(&prefix).iter().filter(|file| !file.is_symlink() && !file.ends_with("installed.json")) {
        let mode = fs::metadata(file).expect("a file").permissions().mode() & 0o777;
        let is_program = file.is_dir() || file.ends_with("gnomon") && !file.starts_with(prefix.join("share"));
        assert_eq!(mode, if is_program { 0o755 } else { 0o644 }, "{}", file.display());
    }
    for shown in ["share/bash-completion/completions/gnomon", "share/zsh/site-functions/_gnomon"] {
        let text = fs::read_to_string(prefix.join(shown)).expect(shown);
        assert!(text.contains("snapshot") && !text.contains("end-group"), "{shown} has what users type");
    }
    assert!(prefix.join("share/man/man1/gnomon-run.1.gz").is_file());
    assert!(!prefix.join("share/man/man1/gnomon-confine.1.gz").exists());
    let moved = scratch.path("moved");
    fs::rename(&prefix, &moved).expect("it can be moved");
    scratch.check(&moved.join("bin/gnomon"));
    // By a link elsewhere, as users have them.
    std::os::unix::fs::symlink(moved.join("bin/gnomon"), scratch.path("link")).expect("a link");
    assert!(scratch.start(&scratch.path("link"), &["--version"]).status.success());
    let removed = scratch.start(&moved.join("bin/gnomon"), &["uninstall"]);
    assert!(removed.status.success(), "{}", text(&removed));
    assert_eq!(files(&moved), [] as [PathBuf; 0]);
}

#[test]
fn a_package_runs_where_it_is_unpacked() {
    let scratch = Scratch::new();
    let made = scratch.install(&["--deb", "a.deb"]);
    assert!(made.status.success(), "{}", text(&made));
    let dpkg = |args: &[&str]| {
        let output = Command::new("dpkg-deb").args(args).current_dir(scratch.0.path()).output().expect("dpkg-deb");
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let depends = dpkg(&["--field", "a.deb", "Depends"]);
    assert!(depends.contains("libc6 (>= 2.") && depends.contains("qemu-system-riscv (>= 1:10)"), "{depends}");
    for line in dpkg(&["--contents", "a.deb"]).lines() {
        assert!(line.split_whitespace().nth(1) == Some("root/root") && !line.contains("/usr/local"), "{line}");
    }
    dpkg(&["--extract", "a.deb", "unpacked"]);
    scratch.check(&scratch.path("unpacked/usr/bin/gnomon"));
    // It has no record: its files are dpkg's.
    let refused = scratch.start(&scratch.path("unpacked/usr/bin/gnomon"), &["uninstall"]);
    assert!(!refused.status.success() && text(&refused).contains("apt-get remove gnomon"), "{}", text(&refused));
    fs::write(scratch.path("mine.deb"), "mine").expect("a file");
    let refused = scratch.install(&["--deb", "mine.deb"]);
    assert!(!refused.status.success() && text(&refused).contains("is not a Debian package"), "{}", text(&refused));
}

#[test]
fn a_full_disk_leaves_nothing() {
    let scratch = Scratch::new();
    let small = scratch.path("small");
    fs::create_dir(&small).expect("a directory");
    let script = "mount -t tmpfs -o size=8M tmpfs \"$0\" || exit 99; \"$1\" install --debug --prefix \"$0\"; echo $?; find \"$0\" -mindepth 1";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(&small).arg(GNOMON).stdin(Stdio::null());
    let output = command.output().expect("unshare");
    if output.status.code() == Some(99) || text(&output).starts_with("unshare: ") {
        // This user can mount nothing; the unit tests have a file that cannot be written.
        return;
    }
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n", "{}", text(&output));
    let said = text(&output);
    assert!(said.contains("nothing was changed") && said.contains("No space left on device"), "{said}");
}
