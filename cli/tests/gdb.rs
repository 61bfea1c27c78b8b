//! `gnomon gdb`, with a real gdb. The guest is a few instructions, so that nothing is fetched.

#[expect(dead_code, reason = "not all of it has a use here")]
mod background;
mod says;

use background::{PATIENCE, Run, counter};
use says::says;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The first address of a guest.
const START: u64 = 0x8020_0000;

/// Prints a line, and makes SBI calls for ever; and the address of its call, of the loop and of the LR/SC sequence before that, of its own `ebreak`, and of its trap handler.
///
/// The trap handler adds 1 to s2 and goes on behind the `ebreak`, which is two bytes long.
fn guest() -> (Vec<u8>, Addresses) {
    let end = [
        0x0000_0297, // auipc t0, 0
        0x03c2_8293, // addi t0, t0, 60: the handler
        0x1052_9073, // csrw stvec, t0
        0x0010_0397, // auipc t2, 256
        0xff83_f393, // andi t2, t2, -8: a word
        0x0100_0893, // li a7, 0x10: "base"
        0x0000_0813, // li a6, 0: the version
        0x0100_0413, // loop: li s0, 16
        0xfff4_0413, // wait: addi s0, s0, -1
        0xfe04_1ee3, // bnez s0, wait
        0x1003_b32f, // lr.d t1, (t2)
        0x1863_b32f, // sc.d t1, t1, (t2)
        0x0000_0073, // ecall
        0x9002_9002, // two c.ebreak
        0xfe5f_f06f, // j loop
        0x0019_0913, // handler: addi s2, s2, 1
        0x1410_22f3, // csrr t0, sepc
        0x0022_8293, // addi t0, t0, 2
        0x1412_9073, // csrw sepc, t0
        0x1020_0073, // sret
    ];
    let code = says("hello\n", &end);
    let word = |index: u64| START + code.len() as u64 - 4 * (end.len() as u64 - index);
    let addresses = Addresses { wait: word(8), reserve: word(10), ecall: word(12), own: word(13), handler: word(15) };
    (code, addresses)
}

#[derive(Clone, Copy)]
struct Addresses {
    wait: u64,
    reserve: u64,
    ecall: u64,
    own: u64,
    handler: u64,
}

struct Guest {
    place: TempDir,
    _run: Run,
}

impl Guest {
    /// Starts the guest, and waits for what it says.
    fn start(args: &[&str], vcpus: u32) -> (Self, Addresses) {
        let place = tempfile::tempdir().expect("a directory");
        let (code, addresses) = guest();
        std::fs::write(place.path().join("guest"), code).expect("a file");
        let file = place.path().join("vm.toml");
        let text = format!("kernel = {:?}\nmemory = '16M'\nvcpus = {vcpus}\n", place.path().join("guest"));
        std::fs::write(&file, text).expect("a VM file");
        let args = [file.as_os_str()].into_iter().chain(args.iter().map(OsStr::new));
        let mut run = Run::start(place.path(), args, ("hello", 1));
        drop(run.output.take());
        (Self { place, _run: run }, addresses)
    }

    fn command(&self, args: &[&str]) -> assert_cmd::assert::Assert {
        background::command(self.place.path()).args(args).assert()
    }

    /// Returns gdb's output for a script.
    fn gdb(&self, script: &str) -> String {
        let path = self.place.path().join("script");
        std::fs::write(&path, script).expect("a file");
        // A place for scratch files whose name means something to gdb.
        let scratch = self.place.path().join("a:1 b");
        std::fs::create_dir_all(&scratch).expect("a directory");
        let mut command = background::command(self.place.path());
        command.env("TMPDIR", scratch).args(["gdb", "--", "-nx", "-batch", "-x"]).arg(path);
        let done = command.assert().success();
        String::from_utf8_lossy(&done.get_output().stdout).into_owned()
    }

    fn calls(&self) -> u64 {
        counter(self.place.path(), "vm", "exits.ecall")
    }

    /// Checks that the guest makes progress, so that no breakpoint is left in its way.
    fn gets_on(&self) {
        let (before, until) = (self.calls(), Instant::now() + PATIENCE);
        while self.calls() < before + 100 {
            assert!(Instant::now() < until, "the guest does not go on");
        }
    }
}

/// Each line is found behind the one before.
fn in_order(text: &str, lines: &[String]) {
    let mut rest = text;
    for line in lines {
        let at = rest.find(line.as_str()).unwrap_or_else(|| panic!("no `{line}` in its place in:\n{text}"));
        rest = &rest[at + line.len()..];
    }
}

fn breaks_and_steps(args: &[&str]) {
    let (run, Addresses { wait, ecall, own, handler, .. }) = Guest::start(args, 1);
    let script = format!(
        "break *{ecall:#x}\ncontinue\np/x $pc\nx/wx {ecall:#x}\np/x $s0\np/x $a7\nstepi\np/x $pc\n\
         break *{handler:#x}\ncontinue\np/x $pc\np/x $sepc\np/x $scause\nset $before = $s2\nstepi\np/x $s2 - $before\n\
         delete\nbreak *{wait:#x}\ncontinue\np/x $pc\nset $s0 = 3\nstepi\np/x $s0\np/x $priv\n\
         set var *(int *)0x80300000 = 77\nx/wd 0x80300000\ndetach\n"
    );
    let said = run.gdb(&script);
    // Its own breakpoint is the guest's, by its handler.
    let values = [ecall, 0, 0x10, own, handler, own, 3, 1, wait, 2, 1];
    let mut expected: Vec<String> =
        values.iter().enumerate().map(|(at, value)| format!("${} = {value:#x}\n", at + 1)).collect();
    // No breakpoint is seen in memory.
    expected.insert(1, "0x00000073".into());
    expected.push("0x80300000:\t77".into());
    in_order(&said, &expected);
    run.gets_on();
    // An address where nothing is.
    run.command(&["gdb", "--", "-nx", "-batch", "-ex", "x/wx 0x123456789"]);
    run.gets_on();
}

#[test]
fn a_guest_is_stopped_and_stepped_behind_a_g_stage() {
    breaks_and_steps(&["--mmu", "two-stage"]);
}

#[test]
fn a_guest_is_stopped_and_stepped_on_shadow_tables_without_h() {
    breaks_and_steps(&["--mmu", "steered", "--no-h"]);
}

#[test]
fn a_guest_is_stopped_and_stepped_under_firmware() {
    breaks_and_steps(&["--seat", "payload", "--mmu", "lazy"]);
}

#[test]
fn one_debugger_at_a_time_and_nothing_stays_of_one_that_is_killed() {
    let (run, Addresses { ecall, .. }) = Guest::start(&[], 1);
    let mut first = std::process::Command::new(env!("CARGO_BIN_EXE_gnomon"));
    first.env("XDG_RUNTIME_DIR", run.place.path()).args(["gdb", "--listen", "127.0.0.1:0"]);
    let mut first = first.stderr(Stdio::piped()).spawn().expect("gnomon gdb");
    let mut said = String::new();
    let mut errors = BufReader::new(first.stderr.take().expect("its messages"));
    errors.read_line(&mut said).expect("text");
    let at =
        said.trim().strip_prefix("gnomon: waiting for gdb: target remote ").expect("what gdb is to be told").to_owned();
    let refused = run.command(&["gdb"]).code(1);
    assert!(String::from_utf8_lossy(&refused.get_output().stderr).contains("another debugger"));
    // It sets a breakpoint, which gdb leaves in the guest while that runs, and both are killed.
    let mut gdb = std::process::Command::new("gdb-multiarch");
    let commands = [format!("target remote {at}"), format!("break *{ecall:#x}"), "ignore 1 1000000".into()];
    gdb.args(["-nx", "-batch", "-ex", "set architecture riscv:rv64"]);
    for command in &commands {
        gdb.args(["-ex", command]);
    }
    let mut gdb = gdb.args(["-ex", "continue"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("gdb");
    std::thread::sleep(Duration::from_secs(1));
    first.kill().expect("killed");
    let _ = (first.wait(), gdb.kill(), gdb.wait());
    run.gets_on();
    assert!(run.gdb("p/x $pc\n").contains("= 0x802"), "another one can come");
}

/// An ELF file without contents, but with an ABI: what gdb gets of a program or kernel with symbols.
fn elf(abi: u8) -> Vec<u8> {
    /// Flags of `e_flags`: there are compressed instructions; the ABI for floating point is at bit 1.
    const RVC: u8 = 1;
    let mut file = vec![0; 64];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    // An executable for RISC-V.
    (file[16], file[18], file[20]) = (2, 243, 1);
    (file[48], file[52], file[58]) = (RVC | abi << 1, 64, 64);
    file
}

/// Users give gdb the files of ordinary programs, and Debian's takes GNU/Linux for the ABI of what it does not know.
#[test]
fn programs_of_every_abi_have_registers_and_steps() {
    let (run, Addresses { reserve, ecall, .. }) = Guest::start(&["--qemu-arg=-cpu", "--qemu-arg=rv64,v=on"], 1);
    for (abi, name) in ["lp64", "lp64f", "lp64d"].iter().enumerate() {
        let file = run.place.path().join(name);
        std::fs::write(&file, elf(abi as u8)).expect("a file");
        let script = format!(
            "file {}\nbreak *{reserve:#x}\ncontinue\nstepi\np/x $pc\n\
             set $fs0.double = {abi} + 1.5\np $fs0.double\nset $fflags = 3\np/x $fcsr\nset $fcsr = 0\np $vlenb\n\
             set $v31.l[1] = {abi} + 7\np $v31.l\ndelete\ndetach\n",
            file.display()
        );
        let said = run.gdb(&script);
        let values =
            [format!("{ecall:#x}"), format!("{}.5", abi + 1), "0x3".into(), "16".into(), format!("{{0, {}}}", abi + 7)];
        let values = values.iter().enumerate().map(|(at, value)| format!("${} = {value}\n", at + 1));
        in_order(&said, &values.collect::<Vec<_>>());
        run.gets_on();
    }
}
