//! Programs in a guest by `gnomon shell`, and files by `gnomon cp`: one boot of the default guest, and one of a small
//! system on a disk.

#[expect(dead_code, reason = "not all of it has a use here")]
mod background;
#[expect(dead_code, reason = "not all of it has a use here")]
mod pty;

use background::Run;
use gnomon::guest::debian::LEAN;
use gnomon::host::words::sha256;
use pty::Shell;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest that a guest may take for something.
const PATIENCE: Duration = Duration::from_secs(60);

struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn gnomon(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
        command.env("XDG_RUNTIME_DIR", self.dir()).current_dir(self.dir()).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a program in the guest; returns its status, output and errors.
    fn shell(&self, words: &[&str]) -> (Option<i32>, String, String) {
        told(self.gnomon(&[&["shell", "--"], words].concat()).output().expect("gnomon"))
    }

    /// Runs a script in the guest; returns its output.
    fn script(&self, script: &str) -> String {
        let (status, output, errors) = self.shell(&["sh", "-c", script]);
        assert_eq!(status, Some(0), "{script}: {output}{errors}");
        output
    }

    fn copy(&self, words: &[&str]) -> Result<(), String> {
        let (status, output, errors) = told(self.gnomon(&[&["cp"], words].concat()).output().expect("gnomon"));
        assert_eq!(output, "");
        if status == Some(0) { Ok(()) } else { Err(errors) }
    }

    fn copied(&self, words: &[&str]) {
        self.copy(words).unwrap_or_else(|why| panic!("{words:?}: {why}"));
    }

    fn not_copied(&self, words: &[&str], part: &str) {
        let why = self.copy(words).expect_err("refused");
        assert!(why.contains(part) && why.contains("gnomon: remedy: ") && !why.contains('\x1b'), "{words:?}: {why}");
    }

    /// Waits until so many processes of the guest are called so.
    fn wait_for(&self, name: &str, count: usize) {
        let since = Instant::now();
        while self.script("ps -o args").matches(name).count() != count {
            assert!(since.elapsed() < PATIENCE, "not {count} of {name}: {}", self.script("ps -o args"));
        }
    }
}

fn told(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Bytes of all values, without a pattern.
fn bytes(count: usize) -> Vec<u8> {
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Some((*state >> 56) as u8)
    };
    std::iter::repeat_n((), count).scan(1_u64, |state, ()| next(state)).collect()
}

fn kill(child: &Child, signal: &str) {
    let done = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill");
    assert!(done.success());
}

#[test]
fn programs_run_in_a_guest() {
    let scratch = Scratch::new();
    let options = ["--memory", "128M", "--append", LEAN, "--timeout", "300"];
    let _run = Run::start(scratch.dir(), options, ("powers off", 1));
    // The agent may still be starting.
    let (status, ..) =
        told(scratch.gnomon(&["shell", "--timeout", "60", "linux", "--", "true"]).output().expect("gnomon"));
    assert_eq!(status, Some(0));
    statuses(&scratch);
    streams(&scratch);
    ends(&scratch);
    terminals(&scratch);
    files(&scratch);
    trees(&scratch);
    hostile(&scratch);
    // The agent goes, and nothing hangs.
    let since = Instant::now();
    let (status, _, said) = scratch.shell(&["sh", "-c", "kill $(pidof gnomon-agent); sleep 1234"]);
    assert!(status == Some(255) && said.contains("the session in VM `linux` was cut off"), "{said}");
    let (status, _, said) = told(scratch.gnomon(&["shell", "--timeout", "2", "--", "true"]).output().expect("gnomon"));
    assert!(status == Some(255) && said.contains("has no agent that answers within 2 s"), "{said}");
    assert!(since.elapsed() < Duration::from_secs(20));
}

fn statuses(scratch: &Scratch) {
    for (words, status) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["no-such-program"], 127),
        (&["/etc/passwd"], 126),
    ] {
        assert_eq!(scratch.shell(words).0, Some(status), "{words:?}");
    }
    // Words are words, whatever they are.
    let odd = ["a b", "$HOME", "'", "", "\u{1b}[2J", "*", "--user"];
    let (_, output, _) =
        scratch.shell(&[&["sh", "-c", "for word; do echo \"<$word>\"; done", "sh"], &odd[..]].concat());
    assert_eq!(output, odd.map(|word| format!("<{word}>\n")).concat());
    let words = ["shell", "linux", "--cwd", "/proc", "--env", "A=b c", "--env", "HOME=/x", "--", "sh", "-c"];
    let (_, output, _) =
        told(scratch.gnomon(&[&words[..], &["pwd; echo $A $HOME $USER"]].concat()).output().expect("gnomon"));
    assert_eq!(output, "/proc\nb c /x root\n");
    for (words, status, part) in [
        (&["shell", "--user", "nobody", "--", "id"][..], 255, "there is no user `nobody`"),
        (&["shell", "--cwd", "/nowhere", "--", "id"], 126, "/nowhere: cannot enter this directory"),
        (&["shell", "windows", "--", "id"], 255, "has no VM `windows`"),
    ] {
        let (code, _, errors) = told(scratch.gnomon(words).output().expect("gnomon"));
        assert!(code == Some(status) && errors.contains(part), "{words:?}: {code:?} {errors}");
    }
}

fn streams(scratch: &Scratch) {
    assert_eq!(scratch.shell(&["sh", "-c", "echo out; echo error >&2"]), (Some(0), "out\n".into(), "error\n".into()));
    // Each way is longer than all windows, and binary; the input's end is passed on.
    let content = bytes(3 << 20);
    let mut child = scratch.gnomon(&["shell", "--", "cat"]).stdin(Stdio::piped()).spawn().expect("gnomon");
    let mut input = child.stdin.take().expect("a pipe");
    let sent = content.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent));
    let mut back = Vec::new();
    child.stdout.take().expect("a pipe").read_to_end(&mut back).expect("bytes");
    writer.join().expect("no panic").expect("written");
    assert!(child.wait().expect("its end").success());
    assert_eq!((back.len(), sha256(&back)), (content.len(), sha256(&content)));
    // A reader that goes ends the writer, and one that does not read holds it up.
    let mut child = scratch.gnomon(&["shell", "--", "sh", "-c", "yes; echo $? >&2; exit 3"]).spawn().expect("gnomon");
    let mut first = [0; 4];
    child.stdout.take().expect("a pipe").read_exact(&mut first).expect("a line");
    let (status, _, errors) = told(child.wait_with_output().expect("its end"));
    assert_eq!((&first, status, errors.trim()), (b"y\ny\n", Some(3), "141"));
    // A program that reads no input, and a command that has none.
    let mut child = scratch.gnomon(&["shell", "--", "true"]).stdin(Stdio::piped()).spawn().expect("gnomon");
    let mut input = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || while input.write_all(&[0; 4096]).is_ok() {});
    assert!(child.wait().expect("its end").success());
    writer.join().expect("no panic");
    let closed = format!("exec {} shell -- cat <&-", env!("CARGO_BIN_EXE_gnomon"));
    let mut command = Command::new("sh");
    command.env("XDG_RUNTIME_DIR", scratch.dir()).args(["-c", &closed]);
    assert!(command.status().expect("sh").success());
    // Several at once, of which none waits for another.
    let mut held = scratch.gnomon(&["shell", "--", "yes"]).spawn().expect("gnomon");
    let mut talks = scratch.gnomon(&["shell", "--", "cat"]).stdin(Stdio::piped()).spawn().expect("gnomon");
    let (mut to, mut from) = (talks.stdin.take().expect("a pipe"), talks.stdout.take().expect("a pipe"));
    for word in ["one\n", "two\n"] {
        to.write_all(word.as_bytes()).expect("written");
        let mut answer = [0; 4];
        from.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, word.as_bytes());
    }
    drop(to);
    assert!(talks.wait().expect("its end").success());
    held.kill().and_then(|()| held.wait()).expect("killed");
    scratch.wait_for("yes", 0);
}

fn ends(scratch: &Scratch) {
    let start = |words: &[&str]| {
        let child = scratch.gnomon(&[&["shell", "--"], words].concat()).spawn().expect("gnomon");
        scratch.wait_for("sleep 1234", 1);
        child
    };
    let mut child = start(&["sleep", "1234"]);
    kill(&child, "-INT");
    assert_eq!(child.wait().expect("its end").code(), Some(130));
    for signal in ["-TERM", "-KILL"] {
        let mut child = start(&["sleep", "1234"]);
        kill(&child, signal);
        child.wait().expect("its end");
        scratch.wait_for("sleep 1234", 0);
    }
    // A program that does not mind.
    let mut child = start(&["sh", "-c", "trap '' HUP; sleep 1234"]);
    kill(&child, "-KILL");
    child.wait().expect("its end");
    scratch.wait_for("sleep 1234", 0);
}

fn terminals(scratch: &Scratch) {
    let (status, output, _) = told(
        scratch
            .gnomon(&["shell", "-t", "--", "sh", "-c", "test -t 0 && test -t 1 && stty size"])
            .output()
            .expect("gnomon"),
    );
    assert_eq!((status, output.as_str()), (Some(0), "24 80\r\n"));
    let mut command = Command::new("/bin/sh");
    command.env("XDG_RUNTIME_DIR", scratch.dir()).env("TERM", "vt52");
    let mut shell = Shell::start_by(command, "stty rows 33 cols 99; sh -c 'echo pid $$.; exec $GNOMON shell'");
    shell.exp_string("~# ").expect("a prompt");
    shell.type_in("stty size; echo $TERM; tty\r");
    shell.exp_string("33 99\r\nvt52\r\n/dev/pts/").expect("its size, kind and name");
    // A key for a signal is for the guest's program.
    shell.type_in("sleep 1234\r");
    scratch.wait_for("sleep 1234", 1);
    shell.type_in("\x03");
    shell.exp_string("~# ").expect("a prompt");
    shell.type_in("exit 5\r");
    shell.expect_restored("5");
    // A terminal that goes.
    let mut command = Command::new("/bin/sh");
    command.env("XDG_RUNTIME_DIR", scratch.dir());
    let mut shell = Shell::start(command, "shell");
    shell.exp_string("~# ").expect("a prompt");
    shell.type_in("sleep 1234\r");
    scratch.wait_for("sleep 1234", 1);
    shell.kill();
    shell.expect_restored("143");
    scratch.wait_for("sleep 1234", 0);
}

fn files(scratch: &Scratch) {
    let content = bytes(300_000);
    let file = scratch.path("file");
    fs::write(&file, &content).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("its rights");
    let touched = Command::new("touch").args(["-d", "@1000000000"]).arg(&file).status();
    assert!(touched.expect("touch").success());
    scratch.copied(&["file", "linux:/tmp"]);
    assert_eq!(scratch.script("stat -c '%a %Y %s' /tmp/file"), "640 1000000000 300000\n");
    scratch.copied(&["file", ":other name"]);
    scratch.copied(&[":other name", "back"]);
    let about = fs::metadata(scratch.path("back")).expect("a file");
    assert_eq!((about.mode() & 0o777, about.mtime()), (0o640, 1_000_000_000));
    assert_eq!(fs::read(scratch.path("back")).expect("a file"), content);
    // Links of the user's stay.
    symlink("back", scratch.path("to-back")).expect("a link");
    scratch.copied(&[":/etc/passwd", "to-back"]);
    assert!(
        scratch.path("to-back").is_symlink() && fs::read(scratch.path("back")).expect("a file").starts_with(b"root:")
    );
    // Streams.
    let output = scratch.gnomon(&["cp", ":/root/other name", "-"]).output().expect("gnomon");
    assert!(output.status.success() && output.stdout == content);
    let input = Stdio::from(fs::File::open(&file).expect("a file"));
    assert!(scratch.gnomon(&["cp", "-", ":/tmp/stream"]).stdin(input).status().expect("gnomon").success());
    assert_eq!(scratch.script("cmp /tmp/stream /tmp/file; ls -A /tmp"), "file\nstream\n", "and no scratch files");
    for (words, part) in [
        (&["file", ":/nowhere/x"][..], "/nowhere/: there is no such directory"),
        (&[":/nowhere", "x"], "/nowhere: there is no such file"),
        (&[":/etc/passwd", "nowhere/x"], "there is no directory for nowhere/x"),
        (&[":/etc", "x"], "/etc: it is a directory (copy it with -r)"),
        (&[":/etc/passwd", "/dev/null"], "/dev/null is neither a file nor a directory"),
        (&["nowhere", ":"], "nowhere"),
        (&["file", "back"], "neither of the two names is in a VM"),
        (&[":a", ":b"], "between this host and one VM"),
    ] {
        scratch.not_copied(words, part);
    }
    assert!(!scratch.path("x").exists());
}

fn trees(scratch: &Scratch) {
    let tree = scratch.path("tree");
    fs::create_dir_all(tree.join("sub/.hidden")).expect("a directory");
    fs::write(tree.join("sub/a b"), "a").expect("a file");
    fs::write(tree.join("top\nline"), "b").expect("a file");
    symlink("/nowhere", tree.join("link")).expect("a link");
    scratch.not_copied(&["tree", ":/tmp"], "tree is a directory");
    scratch.copied(&["-r", "tree", ":/tmp"]);
    scratch.copied(&["-r", ":/tmp/tree", "copy"]);
    let same =
        || Command::new("diff").args(["-r", "--no-dereference", "tree", "copy"]).current_dir(scratch.dir()).output();
    let told = same().expect("diff");
    assert!(told.status.success(), "{told:?}");
    // Into what is there.
    fs::write(tree.join("sub/new"), "n").expect("a file");
    fs::remove_file(tree.join("top\nline")).expect("removed");
    scratch.copied(&["-r", "tree", ":/tmp"]);
    assert_eq!(scratch.script("cd /tmp/tree && find . -type f | sort"), "./sub/a b\n./sub/new\n./top\nline\n");
    scratch.script("cd /tmp/tree && ln -s x 'l 2' && mkfifo pipe");
    scratch.not_copied(&["-r", ":/tmp/tree", "third"], "1 that are neither files, directories nor links were left out");
    assert!(scratch.path("third/sub/new").exists() && scratch.path("third/l 2").is_symlink());
    scratch.copied(&["-r", "tree", ":/tmp/file-not"]);
    scratch.not_copied(&["-r", "tree", ":/tmp/file"], "/tmp/file: it is not a directory");
}

/// An archive with a directory, a link to what is above it, and a file in that link.
fn ill() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let entries = [
        (tar::EntryType::Directory, ".", "", &b""[..]),
        (tar::EntryType::Symlink, "l", "../..", b""),
        (tar::EntryType::Regular, "l/pwned", "", b"x"),
    ];
    for (kind, name, link, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_size(content.len() as u64);
        if !link.is_empty() {
            header.set_link_name(link).expect("a name");
        }
        archive.append_data(&mut header, name, content).expect("in memory");
    }
    archive.into_inner().expect("in memory")
}

/// A guest that means ill: its shell writes what it likes.
fn hostile(scratch: &Scratch) {
    fs::create_dir(scratch.path("safe")).expect("a directory");
    for (archive, part) in
        [(ill(), "cannot write safe/target/l/pwned"), (bytes(100_000), "the guest's archive is damaged")]
    {
        fs::write(scratch.path("ill"), &archive).expect("a file");
        scratch.copied(&["ill", ":/ill"]);
        scratch.script("rm /bin/sh; printf '#!/bin/busybox sh\ncat /ill\n' > /bin/sh; chmod 755 /bin/sh");
        scratch.not_copied(&["-r", ":/tmp", "safe/target"], part);
        assert_eq!(scratch.shell(&["ln", "-sf", "busybox", "/bin/sh"]).0, Some(0));
        assert!(!scratch.path("pwned").exists());
        let left: Vec<_> = fs::read_dir(scratch.path("safe")).expect("a directory").flatten().collect();
        assert!(left.iter().all(|entry| entry.file_name() == "target"), "{left:?}");
    }
}

/// Makes a system on a disk, whose first process starts what systemd would.
const MAKE: &str = r#"
mke2fs -q /dev/vda > /dev/null && mount /dev/vda /mnt && cd /mnt || exit 1
mkdir -p usr/bin usr/lib/systemd etc root run dev proc sys tmp mnt home/user sbin
ln -s usr/bin bin
cp /bin/busybox usr/bin/
for name in sh env cat echo id sed mount pwd sleep poweroff; do ln -s busybox usr/bin/$name; done
cp /bin/busybox usr/lib/systemd/systemd
cat > sbin/init <<'END'
#!/bin/sh
mount -t devpts devpts /dev/pts
$(sed -n s/^ExecStart=//p /run/systemd/system/multi-user.target.wants/gnomon-agent.service) &
echo the system is up
while :; do sleep 1000; done
END
chmod 755 sbin/init
printf 'root:x:0:0::/root:/bin/sh\nuser:x:1000:1001::/home/user:/bin/sh\n' > etc/passwd
printf 'root:x:0:\nuser:x:1001:\nmore:x:27:root,user\n' > etc/group
cd / && umount /mnt"#;

#[test]
fn a_system_on_a_disk_has_an_agent() {
    let scratch = Scratch::new();
    let mut made =
        scratch.gnomon(&["run", "--memory", "128M", "--append", LEAN, "--disk", "root.img:32M", "--exec", MAKE]);
    let (status, output, errors) = told(made.output().expect("gnomon"));
    assert_eq!(status, Some(0), "{output}{errors}");
    let options = ["--debian=root.img", "--memory", "256M", "--append", LEAN, "--timeout", "200", "--net", "off"];
    let _run = Run::start(scratch.dir(), options, ("the system is up", 1));
    let shell = |words: &[&str]| {
        told(scratch.gnomon(&[&["shell", "--timeout", "60"], words].concat()).output().expect("gnomon"))
    };
    let (status, output, errors) = shell(&["--user", "user", "--", "sh", "-c", "id; pwd"]);
    assert_eq!(status, Some(0), "{errors}");
    assert!(output.starts_with("uid=1000(user) gid=1001(user) groups=27(more),1001(user)"), "{output}");
    assert!(output.ends_with("/home/user\n"), "{output}");
    assert_eq!(shell(&["-t", "--", "id", "-u"]).1, "0\r\n");
    // A terminal is its user's to open.
    assert_eq!(shell(&["-t", "--user", "user", "--", "sh", "-c", "echo x > /dev/tty"]).1, "x\r\n");
}
