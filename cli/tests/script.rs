//! The `gnomon` script: what it installs and when, and what it says. Programs of the system that could change something are
//! stand-ins here that write down how they were called.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// The programs that the script calls and that change nothing.
const REAL: [&str; 21] = [
    "bash", "sh", "readlink", "dirname", "sed", "sort", "head", "mkdir", "env", "cat", "rm", "true", "cp", "dpkg-deb",
    "find", "touch", "comm", "cut", "mv", "tail", "sleep",
];

/// Held while a program is written, and while one is started: a child has the files that its parent had open, for a moment,
/// and what is open for writing cannot be started (`ETXTBSY`). The tests are threads of one process.
static WRITING_OR_STARTING: Mutex<()> = Mutex::new(());

/// Starts a program, and waits for its end.
fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = {
        let _alone = WRITING_OR_STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        command.spawn().expect("a program")
    };
    child.wait_with_output().expect("its output")
}

/// A clone of its own, on a system with a Rust toolchain, and neither QEMU nor a browser.
struct Clone(TempDir);

impl Clone {
    fn new() -> Self {
        let clone = Self(tempfile::tempdir().expect("a directory"));
        for dir in ["bin", "sysroot/bin", "sysroot/lib/rustlib/riscv64imac-unknown-none-elf", "home"] {
            fs::create_dir_all(clone.path(dir)).expect("a directory");
        }
        for name in REAL {
            let found = ["/usr/bin", "/bin"].map(|dir| PathBuf::from(dir).join(name));
            let real = found.into_iter().find(|path| path.exists()).expect(name);
            symlink(real, clone.path("bin").join(name)).expect("a link");
        }
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        fs::write(clone.path("rust-toolchain.toml"), "[toolchain]\nchannel = \"1.2.3\"\n").expect("a toolchain");
        clone.program("gnomon", &fs::read_to_string(format!("{root}/gnomon")).expect("the script"));
        fs::copy(format!("{root}/tests.toml"), clone.path("tests.toml")).expect("the tests");
        clone.program("sysroot/bin/cargo-clippy", "");
        clone.program("bin/rustc", &clone.rustc("1.90.0"));
        // What it builds is this build's command.
        let built = format!("cp {} $CARGO_TARGET_DIR/debug/gnomon", env!("CARGO_BIN_EXE_gnomon"));
        let says = "echo '   Compiling gnomon v0.1.0' >&2; echo '    Finished `dev` profile' >&2";
        // It says of what, as cargo does.
        let list = "for file in $PWD/cli/src/*.rs; do list=\"$list $file\"; done; echo \"gnomon:$list\" >$CARGO_TARGET_DIR/debug/gnomon.d";
        let called = format!("echo >>{}", clone.path("builds").display());
        clone.program("bin/cargo", &format!("{called}; mkdir -p $CARGO_TARGET_DIR/debug; {built}; {list}; {says}"));
        clone.program("bin/cc", "");
        for name in ["apt-get", "apt-cache", "sudo"] {
            let log = clone.path("log");
            clone.program(&format!("bin/{name}"), &format!("echo {name} $* >>{}; exit 1", log.display()));
        }
        clone
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A script; one that does not name its shell is for `sh`.
    fn program(&self, name: &str, script: &str) {
        let path = self.path(name);
        let shell = if script.starts_with("#!") { "" } else { "#!/bin/sh\n" };
        let _alone = WRITING_OR_STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        fs::write(&path, format!("{shell}{script}\n")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("gnomon"));
        command.args(args).env_clear().env("PATH", self.path("bin")).env("HOME", self.path("home"));
        command
    }

    /// A compiler of that version.
    fn rustc(&self, version: &str) -> String {
        format!("[ $1 = --version ] && echo 'rustc {version}' || echo {}", self.path("sysroot").display())
    }

    /// Starts the script; also returns the calls of programs that install.
    fn start(&self, args: &[&str]) -> (Output, String) {
        let output = output(&mut self.command(args));
        (output, fs::read_to_string(self.path("log")).unwrap_or_default())
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn questions_install_nothing() {
    let clone = Clone::new();
    for args in [&["test", "--help"][..], &["test", "--list"], &["--version"], &["run", "--help"], &["bench"]] {
        let (output, calls) = clone.start(args);
        assert!(output.status.success() && calls.is_empty(), "{args:?}: {calls}{}", errors(&output));
    }
}

#[test]
fn what_a_run_needs_is_installed() {
    let clone = Clone::new();
    let (output, calls) = clone.start(&["run"]);
    assert!(!output.status.success() && calls.contains("qemu-system-riscv"), "{calls}{}", errors(&output));
}

#[test]
fn the_first_qemu_that_is_new_enough_is_used() {
    let clone = Clone::new();
    fs::create_dir_all(clone.path("other")).expect("a directory");
    let version = |major: u32| format!("echo QEMU emulator version {major}.2.0");
    clone.program("bin/qemu-system-riscv64", &version(7));
    clone.program("bin/passt", "");
    let start = || {
        let mut command = clone.command(&["run", "--kernel", "missing"]);
        let path = format!("{}:{}", clone.path("bin").display(), clone.path("other").display());
        errors(&output(command.env("PATH", path)))
    };
    // None will do.
    let said = start();
    let old = format!("{} is version 7", clone.path("bin/qemu-system-riscv64").display());
    assert!(said.contains(&format!("Gnomon needs QEMU 10 or newer, and {old}")), "{said}");
    clone.program("other/qemu-system-riscv64", &version(10));
    let said = start();
    let new = clone.path("other/qemu-system-riscv64").display().to_string();
    assert!(said.contains(&format!("using {new}, since {old}")) && !said.contains("apt-get"), "{said}");
    clone.program("bin/qemu-system-riscv64", &version(11));
    assert!(!start().contains("using"));
}

#[test]
fn the_toolchain_is_pinned_and_another_one_said() {
    let clone = Clone::new();
    // It is not there, and cannot be installed: the stable one is.
    let sysroot = clone.path("sysroot").display().to_string();
    let rustc = format!(
        "[ \"$RUSTUP_TOOLCHAIN\" = stable ] || exit 1\n[ $1 = --version ] && echo 'rustc 1.90.0' || echo {sysroot}"
    );
    clone.program("bin/rustc", &rustc);
    let log = clone.path("log");
    clone.program("bin/rustup", &format!("echo rustup $* >>{}; exit 1", log.display()));
    let (output, calls) = clone.start(&["--version"]);
    let errors = errors(&output);
    assert!(output.status.success() && calls.contains("rustup toolchain install 1.2.3 "), "{calls}{errors}");
    assert!(errors.contains("going on with rustc 1.90.0"), "{errors}");
}

#[test]
fn building_the_command_is_no_silence() {
    let clone = Clone::new();
    // One without a list of its sources is built again.
    for _ in 0..2 {
        let (output, _) = clone.start(&["--version"]);
        let errors = errors(&output);
        assert!(errors.contains("Compiling gnomon") && !errors.contains("Finished"), "{errors}");
    }
    clone.program("bin/cargo", "echo '    Blocking waiting for file lock on build directory' >&2; sleep 11");
    let (output, _) = clone.start(&["--version"]);
    let errors = errors(&output);
    for part in ["waiting for another build in ", "building the gnomon command: 10 s so far"] {
        assert!(errors.contains(part), "no `{part}` in {errors}");
    }
}

#[test]
fn a_current_command_is_started_without_a_build() {
    let clone = Clone::new();
    fs::create_dir_all(clone.path("cli/src")).expect("a directory");
    fs::write(clone.path("cli/Cargo.toml"), "").expect("a manifest");
    let main = clone.path("cli/src/main.rs");
    fs::write(&main, "1").expect("a source");
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let builds = |what: &str, variable: &str| {
        let before = fs::read(clone.path("builds")).map_or(0, |calls| calls.len());
        // Files' clocks have ticks of some milliseconds: what was written in the tick in which a build starts may not be in it.
        std::thread::sleep(Duration::from_millis(30));
        let mut command = clone.command(&["--version"]);
        let output = output(command.env("RUSTFLAGS", variable));
        assert!(output.status.success() && output.stdout.starts_with(b"gnomon "), "{what}: {}", errors(&output));
        fs::read(clone.path("builds")).map_or(0, |calls| calls.len()) - before
    };
    let changes: [(&str, &dyn Fn()); 7] = [
        ("the first start", &|| {}),
        ("an edit", &|| fs::write(&main, "2").expect("a source")),
        ("a new file", &|| fs::write(clone.path("cli/build.rs"), "").expect("a source")),
        ("a file that goes", &|| fs::remove_file(clone.path("cli/build.rs")).expect("it is there")),
        ("the command itself", &|| fs::remove_file(clone.path("target/debug/gnomon")).expect("it is there")),
        ("another toolchain", &|| clone.program("bin/rustc", &clone.rustc("1.91.0"))),
        ("an older source", &|| {
            fs::write(&main, "3").expect("a source");
            File::options().append(true).open(&main).and_then(|file| file.set_modified(old)).expect("it can be set");
        }),
    ];
    for (what, change) in changes {
        change();
        assert_eq!([builds(what, ""), builds(what, ""), builds(what, "")], [1, 0, 0], "{what}");
    }
    // cargo compares times.
    assert!(fs::metadata(&main).and_then(|file| file.modified()).expect("a time") > old + Duration::from_secs(1));
    assert_eq!([builds("flags", "-g"), builds("flags", "-g"), builds("flags", "")], [1, 0, 1]);
    // Files that are no sources.
    for name in ["cli/src/.main.rs.swp", "cli/src/main.rs~", "notes"] {
        fs::write(clone.path(name), "").expect("a file");
    }
    assert_eq!(builds("other files", ""), 0);
}

#[test]
fn a_clone_that_cannot_be_written_is_named() {
    // No directory can be made where a file is: also root cannot.
    for (place, variable) in [("target", "CARGO_TARGET_DIR"), (".cache", "GNOMON_CACHE")] {
        let clone = Clone::new();
        fs::write(clone.path(place), "").expect("a file");
        let (output, _) = clone.start(&["--version"]);
        let errors = errors(&output);
        assert!(!output.status.success() && errors.contains(&format!("Set {variable} to")), "{errors}");
    }
}

#[test]
fn builds_of_what_runs_are_no_silence() {
    let clone = Clone::new();
    clone.program("bin/cargo", "echo '   Compiling slow v1.0.0' >&2; exit 1");
    fs::write(clone.path("kernel"), [0x6f, 0, 0, 0]).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    command.args(["run", "--kernel"]).arg(clone.path("kernel")).env("GNOMON_CACHE", clone.path(".cache"));
    let output = output(command.env("CARGO", clone.path("bin/cargo")));
    let errors = errors(&output);
    assert!(errors.contains("gnomon: building the hypervisor\ngnomon: Compiling slow v1.0.0\n"), "{errors}");
}
