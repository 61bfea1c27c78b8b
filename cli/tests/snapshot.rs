//! A VM that is in the midst of work, and comes to the same results elsewhere.

#[expect(dead_code, reason = "not all of it has a use here")]
mod background;
mod says;

use background::{Run, command};
use gnomon::guest::debian::{Files, LEAN, Suite, Wanted};
use says::says;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);
const ROUNDS: usize = 80;

/// A guest's work: many short programs, a file that grows in memory, and a disk that is written to; then the results of
/// all of it. The share is mounted in the beginning and at the end. The console is a virtio one, and a program is
/// connected to a port, which it is not in the other run.
const WORK: &str = "x=0; n=0
listen() { until [ -s /tmp/said ]; do cat /dev/virtio-ports/agent >> /tmp/said; sleep 0.1; done; }
while [ $n -lt 80 ]; do
    x=$(echo $x $n | sha256sum | cut -c1-64)
    echo $x >> /tmp/all
    echo $x | dd of=/dev/vda bs=65 seek=$n conv=notrunc 2> /dev/null
    n=$((n+1))
    [ $n -ne 20 ] || { until [ -e /mnt/here/go ]; do sleep 0.1; done; umount /mnt/here; listen & }
    [ $((n % 10)) -ne 0 ] || echo part $n of it
done
sync
echo 3 > /proc/sys/vm/drop_caches
mount -t 9p -o trans=virtio,version=9p2000.L here /mnt/here && cat /mnt/here/file
[ $(head -c 40 /dev/hwrng | wc -c) = 40 ] && echo random
wait
cat /tmp/said
echo result $(sha256sum < /tmp/all | cut -c1-64) $(head -c 5200 /dev/vda | sha256sum | cut -c1-64)";

/// The result of the work.
fn result() -> String {
    let (mut x, mut all) = ("0".to_owned(), String::new());
    for n in 0..ROUNDS {
        x = hex(format!("{x} {n}\n").as_bytes());
        all += &format!("{x}\n");
    }
    let digest = hex(all.as_bytes());
    format!("result {digest} {digest}")
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Scratch(TempDir);

impl Scratch {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn run(&self, args: &[&str]) -> Run {
        Run::start(self.0.path(), args.iter().chain(&["--timeout", "120"]), ("", 0))
    }

    fn command(&self, args: &[&str]) -> assert_cmd::assert::Assert {
        command(self.0.path()).timeout(PATIENCE).args(args).assert()
    }
}

/// Waits until a run has printed that, and returns its output until then. The end of its line may come later.
fn wait_for(run: &mut Run, text: &str) -> String {
    let output = run.output.as_mut().expect("its output");
    let mut all = Vec::new();
    while !String::from_utf8_lossy(&all).contains(text) {
        let some = output.fill_buf().expect("output");
        if some.is_empty() {
            let mut said = String::new();
            run.child.stderr.take().expect("its errors").read_to_string(&mut said).expect("text");
            panic!("it ended without `{text}`: {said}{}", String::from_utf8_lossy(&all));
        }
        all.extend_from_slice(some);
        let count = some.len();
        output.consume(count);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Returns a run's output until its end.
fn end(mut run: Run) -> String {
    let mut text = String::new();
    run.output.take().expect("its output").read_to_string(&mut text).expect("text");
    text
}

#[test]
fn work_that_is_begun_here_is_done_there() {
    let scratch = Scratch(tempfile::tempdir().expect("a directory"));
    let (disk, file) = (scratch.text("disk.img"), scratch.text("a.snap"));
    let made = format!("{disk}:1M");
    let (here, there) = (scratch.path("here"), scratch.text("there"));
    for (dir, text) in [(&*here, "first\n"), (Path::new(&there), "second\n")] {
        fs::create_dir(dir).expect("a directory");
        fs::write(dir.join("file"), text).expect("a file");
    }
    let mut run = scratch.run(&[
        "--as",
        "first",
        "--memory",
        "192M",
        "--vcpus",
        "2",
        "--svvptc",
        "off",
        "--svadu",
        "off",
        "--balloon",
        "on",
        "--net",
        "--rng",
        "--console",
        "virtio",
        "--append",
        LEAN,
        "--port",
        "agent",
        "--share",
        &scratch.text("here"),
        "--disk",
        &made,
        "--exec",
        WORK,
    ]);
    wait_for(&mut run, "part 10 of it");
    let refused = scratch.command(&["snapshot", "--run", "first", "-o", &file, "--stop"]).code(1);
    let refused = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(refused.contains("a shared folder is mounted") && refused.contains("unmount it"), "{refused}");
    assert!(!Path::new(&file).exists());
    let socket = scratch.path("gnomon/first.ports/linux/agent");
    let mut speaker = UnixStream::connect(socket).expect("it has the port");
    speaker.write_all(b"spoken there\n").expect("it is taken");
    // The VM goes on after the refusal.
    fs::write(here.join("go"), "").expect("a file");
    // What is on its way is lost, and this is not any more.
    wait_for(&mut run, "part 50 of it");
    scratch.command(&["snapshot", "--run", "first", "-o", &file, "--stop"]).success();
    let said = end(run);
    assert!(!said.contains("result"), "it was stopped in the midst of its work: {said}");
    assert!(!Path::new(&format!("{file}.part")).exists());
    // Two-stage tables and two harts there; here one without the H extension, and shadow tables that steer.
    let said = end(scratch.run(&["--restore", &file, "--disk", &disk, "--share", &there, "--no-h", "--harts", "1"]));
    assert!(said.contains("mmu = steered") && said.contains(&result()), "no `{}` in {said}", result());
    assert!(said.contains("second\n") && said.contains("random\n"), "{said}");
    assert!(said.contains("spoken there\n"), "what came by the port, until its end: {said}");
    refuses(&scratch, &file, &disk, &there);
}

/// A C file is compiled, and once more: what the compiler has written is the same, though its first run ends in another mode.
///
/// gdb has the kernel's symbols meanwhile, and the guest prints where it has them itself.
const COMPILE: &str = "
grep -E ' [tT] (do_irq|do_sys_openat2)$| [bBdDrR] linux_banner$| virtrng_(probe|remove).\\[' /proc/kallsyms
n=0; while [ $n -lt 12 ]; do
    echo \"int f$n(int *a, int n) { int s = $n; for (int i = 0; i < n; i++) for (int j = 0; j < i; j++) s += a[i] * a[j] % (s + $n); return s; }\"
    n=$((n+1))
done > x.c
compile() { ./ld-linux-riscv64-lp64d.so.1 --library-path . ./cc1 -quiet -isystem . -O2 -march=rv64gc -mabi=lp64d x.c -o $1 || exit; }
: > stdc-predef.h
echo begun; compile a.s; echo done; compile b.s
cmp a.s b.s && echo lines $(wc -l < a.s)";

#[test]
fn a_compilation_that_is_begun_here_ends_there_with_the_same_file() {
    let cc1 = Wanted::Program("usr/libexec/gcc/riscv64-linux-gnu/14/cc1");
    let compiler = Files::provide(Suite::Trixie, "cpp-14-riscv64-linux-gnu", cc1).expect("Debian's compiler");
    let scratch = Scratch(tempfile::tempdir().expect("a directory"));
    let file = scratch.text("a.snap");
    let mut args = vec![
        "--as",
        "first",
        "--mmu",
        "two-stage",
        "--memory",
        "256M",
        "--svvptc",
        "off",
        "--svadu",
        "off",
        "--rng",
        "--append",
        LEAN,
        "--exec",
        COMPILE,
    ];
    let files: Vec<_> = compiler.files.iter().map(|(_, file)| file.display().to_string()).collect();
    args.extend(files.iter().flat_map(|file| ["--add", file]));
    let mut run = scratch.run(&args);
    let said = wait_for(&mut run, "begun");
    // It takes some seconds.
    sleep(Duration::from_secs(1));
    names_are_the_kernels_own(&scratch, &said);
    another_gdb_does_as_it_is_told(&scratch, &said);
    scratch.command(&["snapshot", "--run", "first", "-o", &file, "--stop"]).success();
    the_file_has_them(&scratch, &said);
    let said = end(run);
    assert!(!said.contains("done"), "it was stopped in the midst of it: {said}");
    let said = end(scratch.run(&["--restore", &file, "--no-h"]));
    let lines = said.lines().find_map(|line| line.trim().strip_prefix("lines ")?.parse::<u32>().ok());
    assert!(said.contains("mmu = steered") && lines.is_some_and(|lines| lines > 200), "{said}");
}

/// Returns the address of a symbol by the guest's own list.
fn address_of(name: &str, said: &str) -> u64 {
    // A module's name may follow.
    let line = said.lines().find(|line| line.split_whitespace().nth(2) == Some(name));
    let line = line.unwrap_or_else(|| panic!("no `{name}` in {said}"));
    u64::from_str_radix(line.trim().split(' ').next().expect("an address"), 16).expect("an address")
}

/// A gdb that is started otherwise has the names by the two lines that are printed for it. Their file goes with the command.
fn another_gdb_does_as_it_is_told(scratch: &Scratch, said: &str) {
    let waiting = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gnomon"));
        command.env("XDG_RUNTIME_DIR", scratch.0.path()).args(["gdb", "--listen", "127.0.0.1:0"]);
        let mut waiting = command.stderr(Stdio::piped()).spawn().expect("gnomon gdb");
        let (mut errors, mut noted) = (BufReader::new(waiting.stderr.take().expect("its messages")), String::new());
        while !noted.contains("waiting for gdb") {
            assert_ne!(errors.read_line(&mut noted).expect("text"), 0, "it ended: {noted}");
        }
        let words = ["gnomon: in gdb: ", "gnomon: waiting for gdb: "].map(|mark| {
            let line = noted.lines().find_map(|line| line.strip_prefix(mark));
            line.unwrap_or_else(|| panic!("no `{mark}` in {noted}")).to_owned()
        });
        let file = PathBuf::from(words[0].strip_prefix("symbol-file ").expect("a file"));
        assert!(file.exists(), "{noted}");
        (waiting, words, file)
    };
    let (mut first, words, file) = waiting();
    let mut gdb = std::process::Command::new("gdb-multiarch");
    gdb.args(["-nx", "-batch", "-ex", "set architecture riscv:rv64"]);
    gdb.args(words.iter().flat_map(|word| ["-ex", word])).args(["-ex", "p/x (long)&linux_banner"]);
    let done = gdb.args(["-ex", "detach"]).output().expect("gdb");
    let told = String::from_utf8_lossy(&done.stdout).into_owned();
    let expected = format!("$1 = {:#x}\n", address_of("linux_banner", said));
    assert!(told.contains(&expected), "no `{expected}` in {told}{}", String::from_utf8_lossy(&done.stderr));
    assert!(first.wait().expect("its end").success() && !file.exists());
    // It is ended while it waits.
    let (mut second, _, file) = waiting();
    assert!(std::process::Command::new("kill").arg(second.id().to_string()).status().expect("kill").success());
    assert_eq!((second.wait().expect("its end").code(), file.exists()), (Some(128 + 15), false));
}

/// The file with symbols stays, for a gdb that was started otherwise.
fn the_file_has_them(scratch: &Scratch, said: &str) {
    let words = ["-nx", "-batch", "-ex", "p/x (long)&virtrng_remove", &scratch.text("symbols")];
    let alone = std::process::Command::new("gdb-multiarch").args(words).output().expect("gdb");
    let expected = format!("$1 = {:#x}\n", address_of("virtrng_remove", said));
    assert_eq!(String::from_utf8_lossy(&alone.stdout), expected, "{}", String::from_utf8_lossy(&alone.stderr));
}

/// The guest is in a program, most likely, and no file with symbols is given.
fn names_are_the_kernels_own(scratch: &Scratch, said: &str) {
    let own = |name: &str| address_of(name, said);
    let script = "p/x (long)&linux_banner\np/x (long)&do_sys_openat2\nx/s &linux_banner\nbreak do_irq\ncontinue\n\
                  info symbol $pc\np/x (long)&do_irq\nbt 1\ndelete\np/x (long)&virtrng_probe\n\
                  info symbol (long)&virtrng_remove + 2\ndetach\n";
    fs::write(scratch.path("script"), script).expect("a file");
    let kept = scratch.text("symbols");
    let gdb = ["gdb", "--symbols", &kept, "--", "-nx", "-batch", "-x", &scratch.text("script")];
    let done = scratch.command(&gdb).success();
    let output = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (told, noted) = (output(&done.get_output().stdout), output(&done.get_output().stderr));
    let is = |number: u32, name: &str| format!("${number} = {:#x}\n", own(name));
    let expected = [
        is(1, "linux_banner"),
        is(2, "do_sys_openat2"),
        "<linux_banner>:\t\"Linux version 6".into(),
        "in do_irq ()".into(),
        "do_irq".into(),
        " in section .text\n".into(),
        is(3, "do_irq"),
        "in do_irq ()".into(),
        is(4, "virtrng_probe"),
        "virtrng_remove + 2 in section .text\n".into(),
    ];
    let mut rest = told.as_str();
    for line in expected {
        let at = rest.find(&line).unwrap_or_else(|| panic!("no `{line}` in its place in:\n{told}{noted}"));
        rest = &rest[at + line.len()..];
    }
    assert!(noted.contains("symbols of itself"), "{noted}");
    // A file of the user's is read in place of them.
    let own = env!("CARGO_BIN_EXE_gnomon");
    let done = scratch.command(&["gdb", "--", "-nx", "-batch", own, "-ex", "info symbol do_sys_openat2"]);
    let noted = output(&done.get_output().stderr);
    assert!(!noted.contains("symbols of itself") && noted.contains("No symbol "), "{noted}");
}

/// Prints the alphabet, a letter in a line, with time between, by so many times 4096 rounds of a loop; then it powers off.
fn alphabet(time: u32) -> Vec<u8> {
    const ECALL: u32 = 0x73;
    let [a0, a1, s0, s1, t0] = [10, 11, 8, 9, 5];
    let addi = |to: u32, from: u32, value: i32| (value as u32) << 20 | from << 15 | to << 7 | 0x13;
    let lui = |to: u32, value: u32| value << 12 | to << 7 | 0x37;
    let bne = |one: u32, other: u32, by: i32| {
        let by = by as u32;
        (by >> 12 & 1) << 31
            | (by >> 5 & 63) << 25
            | other << 20
            | one << 15
            | 1 << 12
            | (by >> 1 & 15) << 8
            | (by >> 11 & 1) << 7
            | 0x63
    };
    let code = [
        addi(s1, 0, 'a' as i32),
        addi(t0, 0, 'z' as i32 + 1),
        addi(a0, s1, 0), // next:
        ECALL,
        addi(a0, 0, 10),
        ECALL,
        addi(s1, s1, 1),
        lui(s0, time),
        addi(s0, s0, -1), // wait:
        bne(s0, 0, -4),
        bne(s1, t0, -32),
        0x5352_58b7, // lui a7, 0x53525
        0x3548_8893, // addi a7, a7, 0x354: "SRST"
        addi(16, 0, 0),
        addi(a0, 0, 0),
        addi(a1, 0, 0),
        ECALL,
    ];
    says("hello\n", &code)
}

#[test]
fn a_vm_goes_on_in_its_own_run_and_in_another() {
    let scratch = Scratch(tempfile::tempdir().expect("a directory"));
    let (kernel, file) = (scratch.text("alphabet"), scratch.text("a.snap"));
    fs::write(&kernel, alphabet(0x2000)).expect("a file");
    let mut run = scratch
        .run(&["--kernel", &kernel, "--memory", "16M", "--mmu", "lazy", "--no-h", "--vcpus", "3", "--svvptc", "off"]);
    wait_for(&mut run, "hello");
    scratch.command(&["snapshot", "-o", &file]).success();
    let mode = fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a guest's memory is its user's alone");
    let first = end(run);
    let letters = |said: &str| said.lines().filter(|line| line.len() == 1).collect::<String>();
    assert!(letters(&first).ends_with("xyz"), "it goes on: {first}");
    // As often as one likes, each time from there.
    for how in [["--seat", "payload", "--mmu", "adaptive"], ["--harts", "2", "--mmu", "two-stage"]] {
        let said = end(scratch.run(&[&["--restore", &file][..], &how].concat()));
        let all = letters(&said);
        assert!(('a'..='z').collect::<String>().ends_with(&all) && all.ends_with("xyz"), "{how:?}: {said}");
    }
}

/// Returns the words of a Gnomon in the payload seat whose VM has that kernel, as the kernel of another VM.
fn as_a_guest(scratch: &Scratch, kernel: &str) -> [String; 6] {
    let words = ["run", "--seat", "payload", "--mmu", "two-stage", "--memory", "16M", "--kernel", kernel, "--dry-run"];
    let said = scratch.command(&words).success();
    let said = String::from_utf8_lossy(&said.get_output().stdout).into_owned();
    let after = |option: &str| {
        let mut words = said.split_whitespace().skip_while(|word| *word != option);
        words.nth(1).unwrap_or_else(|| panic!("no {option} in {said}")).to_owned()
    };
    let kib: u64 = after("-m").trim_end_matches('K').parse().expect("KiB");
    let memory = format!("{}K", kib.next_multiple_of(2048));
    ["--kernel".into(), after("-kernel"), "--initrd".into(), after("-initrd"), "--memory".into(), memory]
}

#[test]
fn a_guest_of_a_guest_is_stopped_and_goes_on_elsewhere() {
    /// Its call that prints a letter.
    const CALL: u64 = 0x8020_0000 + 4 * 18;
    let scratch = Scratch(tempfile::tempdir().expect("a directory"));
    let (kernel, file) = (scratch.text("alphabet"), scratch.text("a.snap"));
    fs::write(&kernel, alphabet(0x8000)).expect("a file");
    let inner = as_a_guest(&scratch, &kernel);
    let args = ["--name", "outer", "--nested", "--svvptc", "off"].into_iter().chain(inner.iter().map(String::as_str));
    let mut run = scratch.run(&args.collect::<Vec<_>>());
    let begun = wait_for(&mut run, "hello");
    let gdb = |script: &str| {
        fs::write(scratch.path("script"), script).expect("a file");
        let words = ["gdb", "--", "-nx", "-batch", "-x", &scratch.text("script")];
        String::from_utf8_lossy(&scratch.command(&words).success().get_output().stdout).into_owned()
    };
    // The hypervisor between the two runs now and then, and has other code there.
    let call = format!("{CALL:#x}");
    let script = format!(
        "if *(unsigned *){call} == 0x73\nbreak *{call}\ncontinue\np/x $pc\nx/wx {call}\nstepi\n\
         p $pc != {call} && $pc != {call} + 4\np/x $scause\ndelete\nend\ndetach\n"
    );
    let said = (0..20).map(|_| gdb(&script)).find(|said| said.contains("$1 = "));
    let said = said.expect("the guest's guest does not run");
    let expected = [format!("$1 = {call}\n"), "0x00000073".into(), "$2 = 1\n".into(), "$3 = 0xa\n".into()];
    let mut rest = said.as_str();
    for line in &expected {
        let at = rest.find(line).unwrap_or_else(|| panic!("no `{line}` in its place in:\n{said}"));
        rest = &rest[at + line.len()..];
    }
    scratch.command(&["snapshot", "-o", &file, "--stop"]).success();
    let first = begun + &end(run);
    let letters = first.lines().filter(|line| line.len() == 1).count() as u8;
    // The next one comes, on other tables.
    let mut run = scratch.run(&["--restore", &file, "--no-h"]);
    wait_for(&mut run, &format!("\n{}\n", char::from(b'a' + letters)));
}

/// Checks that snapshots which cannot be restored are refused, before a machine is started or by it.
fn refuses(scratch: &Scratch, file: &str, disk: &str, share: &str) {
    let refused = |code: i32, args: &[&str], part: &str| {
        let said = scratch.command(&[&["run", "--timeout", "60"], args].concat()).code(code);
        let output = said.get_output();
        let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
        assert!(said.contains(part), "no `{part}` in {said}");
    };
    let good = fs::read(file).expect("the snapshot");
    let bad = scratch.text("bad.snap");
    let damaged = |change: &dyn Fn(&mut Vec<u8>), part: &str| {
        let mut bytes = good.clone();
        change(&mut bytes);
        fs::write(&bad, bytes).expect("a file");
        refused(1, &["--restore", &bad, "--disk", disk, "--share", share], part);
    };
    damaged(&|bytes| bytes.truncate(bytes.len() - 1), "it is truncated");
    damaged(&|bytes| bytes[1 << 20] ^= 1, "a check sum is wrong");
    refused(1, &["--restore", file, "--disk", disk], "has the shared folders [here], but [] were given");
    refused(1, &["--restore", file], "has 1 disks, but 0 were given");
    refused(1, &["--restore", file, "--disk", disk, "--share", share, "--memory", "1G"], "`memory` was given");
    refused(
        1,
        &["--restore", file, "--disk", disk, "--share", share, "--exec", "true"],
        "it is restored from a snapshot",
    );
    let larger = format!("{}:2M", scratch.text("larger.img"));
    refused(3, &["--restore", file, "--disk", &larger, "--share", share], "its disk 0 had 2048 sectors, and has 4096");
}
