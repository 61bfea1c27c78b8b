//! Bad input to the command: each is answered with a message that names the thing and the remedy,
//! and a status that is not zero. None of these gets as far as the network or a machine.

use assert_cmd::Command;
use predicates::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Bad input.
const INPUT: i32 = 1;
/// Wrong usage.
const USAGE: i32 = 2;

struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).expect("a file");
        path
    }

    /// `gnomon run`, with a cache of its own.
    fn run(&self, args: &[&str]) -> assert_cmd::assert::Assert {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
        command.env("GNOMON_CACHE", self.0.path().join("cache")).arg("run").args(args).assert()
    }

    /// Expects status and message; every bad input has a remedy, and none makes us panic.
    fn refused(&self, args: &[&str], status: i32, says: &[&str]) {
        let mut assert = self.run(args).code(status).stderr(predicate::str::contains("panicked").not());
        if status == INPUT {
            assert = assert.stderr(predicate::str::contains("gnomon: error: "));
            assert = assert.stderr(predicate::str::contains("gnomon: remedy: "));
        }
        for text in says {
            assert = assert.stderr(predicate::str::contains(*text));
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A Linux Image with an EFI stub whose one section ends at `promised`.
fn linux_image(promised: u32, bytes: usize) -> Vec<u8> {
    let mut image = vec![0; bytes];
    image[..2].copy_from_slice(b"MZ");
    image[8..16].copy_from_slice(&0x20_0000u64.to_le_bytes());
    image[16..24].copy_from_slice(&u64::from(promised).to_le_bytes());
    image[0x38..0x3c].copy_from_slice(b"RSC\x05");
    image[0x3c] = 0x40;
    image[0x40..0x44].copy_from_slice(b"PE\0\0");
    image[0x44..0x46].copy_from_slice(&0x5064u16.to_le_bytes());
    image[0x46] = 1;
    image[0x58 + 16..0x58 + 20].copy_from_slice(&promised.to_le_bytes());
    image
}

#[test]
fn missing_kernel() {
    Scratch::new().refused(&["--kernel", "/nowhere/Image"], INPUT, &["/nowhere/Image", "No such file"]);
}

#[test]
fn truncated_kernel() {
    let scratch = Scratch::new();
    let kernel = scratch.file("Image", linux_image(1 << 20, 4096));
    scratch.refused(&["--kernel", text(&kernel)], INPUT, &[text(&kernel), "truncated", "4 KiB", "1 MiB"]);
}

#[test]
fn kernel_for_another_machine() {
    // This very program is one for the host.
    let kernel = env!("CARGO_BIN_EXE_gnomon");
    Scratch::new().refused(&["--kernel", kernel], INPUT, &[kernel, "is an ELF file for", "RISC-V"]);
}

#[test]
fn compressed_kernel() {
    let scratch = Scratch::new();
    let kernel = scratch.file("vmlinuz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03");
    scratch.refused(&["--kernel", text(&kernel)], INPUT, &[text(&kernel), "gzip", "cut off", "gunzip"]);
    let lz4 = scratch.file("Image.lz4", b"\x04\x22\x4d\x18....");
    scratch.refused(&["--kernel", text(&lz4)], INPUT, &[text(&lz4), "LZ4", "unlz4"]);
    let stub = scratch.file("vmlinuz.efi", b"MZ\0\0zimg\0\x01\0\0\0\x01\0\0");
    scratch.refused(&["--kernel", text(&stub)], INPUT, &[text(&stub), "EFI image", "cut off"]);
}

#[test]
fn empty_kernel() {
    let scratch = Scratch::new();
    let kernel = scratch.file("Image", b"");
    scratch.refused(&["--kernel", text(&kernel)], INPUT, &[text(&kernel), "empty"]);
}

#[test]
fn missing_initrd() {
    let scratch = Scratch::new();
    let kernel = scratch.file("raw", [0x13, 0, 0, 0]);
    let args = ["--kernel", text(&kernel), "--initrd", "/nowhere/initrd"];
    scratch.refused(&args, INPUT, &["initrd", "/nowhere/initrd"]);
}

#[test]
fn what_cannot_be_added() {
    let scratch = Scratch::new();
    let kernel = scratch.file("raw", [0x13, 0, 0, 0]);
    let args = ["--kernel", text(&kernel), "--add", text(&kernel)];
    scratch.refused(&args, INPUT, &["`raw`", "does not use Gnomon's initramfs", "initrd"]);
    scratch.refused(&["--gdb", "0"], USAGE, &["--gdb"]);
    scratch.refused(&["--gdb", "vm.toml"], USAGE, &["vm.toml", "--gdb"]);
}

#[test]
fn missing_vm_file() {
    Scratch::new().refused(&["nowhere.toml"], INPUT, &["nowhere.toml"]);
}

#[test]
fn malformed_vm_file() {
    let scratch = Scratch::new();
    let file = scratch.file("vm.toml", "memory = \n");
    scratch.refused(&[text(&file)], INPUT, &[text(&file), "line 1"]);
}

#[test]
fn unknown_key() {
    let scratch = Scratch::new();
    let file = scratch.file("vm.toml", "vcpus = 1\nmemroy = '1G'\n");
    scratch.refused(&[text(&file)], INPUT, &[text(&file), "line 2", "memroy", "docs/vm-file.md"]);
}

#[test]
fn wrong_value() {
    let scratch = Scratch::new();
    let file = scratch.file("vm.toml", "mmu = 'turbo'\n");
    scratch.refused(&[text(&file)], INPUT, &[text(&file), "turbo", "two-stage", "shadow", "unsync", "lazy"]);
}

#[test]
fn too_much_memory() {
    Scratch::new().refused(&["--memory", "4096T"], INPUT, &["4096 TiB", "available", "--memory"]);
}

#[test]
fn too_little_memory() {
    let scratch = Scratch::new();
    let kernel = scratch.file("Image", linux_image(64 << 20, 64 << 20));
    scratch.refused(&["--kernel", text(&kernel), "--memory", "32M", "--initrd", "none"], INPUT, &["32 MiB", "68 MiB"]);
    scratch.refused(&["--memory", "1M"], INPUT, &["1 MiB", "8 MiB"]);
}

#[test]
fn no_vcpus() {
    Scratch::new().refused(&["--vcpus", "0"], INPUT, &["0 vCPUs", "--vcpus"]);
    Scratch::new().refused(&["--vcpus", "1000"], INPUT, &["1000 vCPUs", "32"]);
}

#[test]
fn disks_that_are_none() {
    let scratch = Scratch::new();
    let (image, odd) = (scratch.file("a.img", [0; 1024]), scratch.file("odd", [0; 100]));
    let missing = scratch.0.path().join("missing");
    scratch.refused(&["--disk", text(&missing)], INPUT, &["missing does not exist", "missing:1G"]);
    scratch.refused(&["--disk", text(scratch.0.path())], INPUT, &["is not a regular file"]);
    scratch.refused(&["--disk", text(&odd)], INPUT, &["100 bytes", "multiple of 512"]);
    scratch.refused(&["--disk", text(&image), "--disk", text(&image)], INPUT, &["used twice", ":ro", "--snapshot"]);
    scratch.refused(&["--disk", text(&image), "--swap", text(&image)], INPUT, &["used twice"]);
    scratch.refused(&["--disk", &format!("{}:4K", text(&image))], INPUT, &["1 KiB", "4 KiB"]);
    scratch.refused(&["--disk", &format!("{}:qcow2", text(&image))], INPUT, &["not an image in format qcow2"]);
    let vm = scratch.file("vm.toml", "disks = [{ file = 'a.img', size = 5 }]\n");
    scratch.refused(&[text(&vm)], INPUT, &["line 1"]);
    scratch.refused(&["--disk", ":ro"], USAGE, &["name a file", "--disk data.img:2G"]);
}

#[test]
fn duplicate_names() {
    let scratch = Scratch::new();
    let (one, two) = (scratch.file("1.toml", "name = 'twin'\n"), scratch.file("2.toml", "name = 'twin'\n"));
    scratch.refused(&[text(&one), text(&two)], INPUT, &["twin", "name"]);
}

#[test]
fn bad_name() {
    Scratch::new().refused(&["--name", "a b"], INPUT, &["`a b`", "--name"]);
}

#[test]
fn commands_without_our_initramfs() {
    let scratch = Scratch::new();
    let file = scratch.file("x", [0x13, 0, 0, 0]);
    scratch.refused(&["--exec", "true", "--initrd", text(&file)], INPUT, &["--exec", "initrd of its own"]);
    scratch.refused(&["--exec", "true", "--kernel", text(&file)], INPUT, &["--exec", "is not Linux"]);
}

#[test]
fn wrong_usage() {
    let scratch = Scratch::new();
    scratch.refused(&["--colour", "blue"], USAGE, &["--colour"]);
    scratch.refused(&["--memory", "lots"], USAGE, &["lots", "512M"]);
    scratch.refused(&["--seat", "throne"], USAGE, &["throne", "firmware", "payload"]);
    scratch.refused(&["--harts", "0"], USAGE, &["harts"]);
}

#[test]
fn harts_without_h() {
    let scratch = Scratch::new();
    scratch.refused(&["--no-h", "--seat", "payload"], INPUT, &["HS mode", "--seat payload"]);
    scratch.refused(&["--no-h", "--mmu", "two-stage"], INPUT, &["`linux`", "two-stage", "shadow", "unsync", "lazy"]);
    let (one, two) = (scratch.file("1.toml", "mmu = 'lazy'\n"), scratch.file("2.toml", "mmu = 'two-stage'\n"));
    scratch.refused(&["--no-h", text(&one), text(&two)], INPUT, &["`2`", "two-stage", "lazy"]);
    let small = scratch.file("small.toml", "shadow = '64K'\nvcpus = 2\n");
    scratch.refused(&[text(&small)], INPUT, &["`small`", "64 KiB", "768 KiB", "`shadow`"]);
    scratch.refused(&["--mmu", "turbo"], USAGE, &["turbo", "two-stage", "shadow", "unsync", "lazy"]);
    scratch.refused(&["--lane", "maybe"], USAGE, &["maybe", "on", "off"]);
}

#[test]
fn unknown_tests() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gnomon"));
    command.args(["test", "no-such-test"]).assert().code(INPUT).stderr(predicate::str::contains("no-such-test"));
}

#[test]
fn cores_that_are_none() {
    let scratch = Scratch::new();
    let out = scratch.0.path().join("meter.json");
    let refused = |core: &str, says: &[&str]| {
        scratch.refused(&["--meter", text(&out), "--core", core, "--kernel", "none"], INPUT, says);
    };
    refused("z80", &["no core `z80`", "rocket", "docs/meter.md"]);
    refused("p555", &["no core `p555`: did you mean `p550`?"]);
    refused("./missing.toml", &["cannot read the core file ./missing.toml"]);
    let plain = include_str!("../../meter/cores/plain.toml");
    let broken = |from: &str, to: &str| scratch.file("core.toml", plain.replacen(from, to, 1));
    // The line and the key.
    let line = plain.lines().position(|line| line == "ways = 32").expect("a line") + 1;
    refused(
        text(&broken("ways = 32", "wys = 32")),
        &["core.toml is not valid", &format!("line {line}"), "key `wys`: did you mean `ways`?"],
    );
    refused(
        text(&broken("ways = 32", "ways = \"many\"")),
        &[&format!("line {line}"), "the text \"many\", and has to be a whole"],
    );
    refused(text(&broken("ways = 32", "ways = 0")), &["`l1i`: `ways` cannot be 0"]);
    refused(text(&broken("ways = 32", "")), &["the key `ways` is missing"]);
    refused(text(&scratch.file("core.toml", "name = ")), &["core.toml is not valid", "line 1"]);
}

#[test]
fn what_cannot_be_metered() {
    let scratch = Scratch::new();
    let out = scratch.0.path().join("meter.json");
    scratch.refused(
        &["--meter", "/nowhere/at/all.json", "--kernel", "none"],
        INPUT,
        &["cannot write the meter's report to /nowhere/at/all.json", "directory"],
    );
    scratch.refused(&["--meter", "/dev/null", "--kernel", "none"], INPUT, &["/dev/null", "not a regular file"]);
    let several = ["--meter", text(&out), "--icount", "--vcpus", "2", "--kernel", "none"];
    scratch.refused(&several, INPUT, &["one hart only, not 2", "--harts 1"]);
    scratch.refused(&["--core", "u74"], USAGE, &["--meter"]);
    scratch.refused(&["--meter", text(&out), "--meter-level", "all"], USAGE, &["counts", "tlb", "check"]);
}

#[test]
fn counters_that_cannot_be_written() {
    let scratch = Scratch::new();
    let kernel = scratch.file("raw", [0x6f, 0, 0, 0]);
    for place in ["/nowhere/at/all.json", "/tmp"] {
        scratch.refused(&["--kernel", text(&kernel), "--stats", place], INPUT, &["cannot write", place]);
    }
    // Nothing was prepared by then.
    assert!(!scratch.0.path().join("cache").exists());
}

#[test]
fn what_cannot_be_benchmarked() {
    let refused = |args: &[&str], status, says: &[&str]| {
        let mut assert = Command::new(env!("CARGO_BIN_EXE_gnomon")).arg("bench").args(args).assert().code(status);
        for words in says {
            assert = assert.stderr(predicate::str::contains(*words));
        }
    };
    refused(&["fig9"], USAGE, &["fig9", "fig7"]);
    refused(&["fig7", "--mmu", "fast"], USAGE, &["fast", "two-stage"]);
    refused(&["fig7", "--subject", "native,xen"], INPUT, &["`xen` is not a subject", "remedy", "firmware/lazy-noh"]);
    refused(&["fig7", "--subject", "kvm", "--no-h"], INPUT, &["nothing to measure", "remedy"]);
    refused(&["fig7", "--mmu", "two-stage", "--no-h"], INPUT, &["nothing to measure", "remedy"]);
    refused(&["fig7", "--mmu", "steered", "--svadu"], INPUT, &["nothing to measure", "leave out --svadu"]);
    refused(&["fig7", "--json", "/nowhere/at/all.json"], INPUT, &["/nowhere/at/all.json"]);
    refused(&["fig7", "--files", "/dev/null/x"], INPUT, &["/dev/null/x"]);
    refused(&["fig7", "--baseline", "Cargo.toml"], INPUT, &["Cargo.toml is not a baseline: it is not JSON", "--json"]);
    refused(&["fig7", "--baseline", "/nowhere"], INPUT, &["/nowhere is not a baseline"]);
    refused(&["fig7", "--core", "plain,plain"], INPUT, &["two cores are called `plain`"]);
    refused(&["fig7", "--core", "z80"], INPUT, &["no core `z80`", "docs/meter.md"]);
}

#[test]
fn experiments_are_listed() {
    let assert = Command::new(env!("CARGO_BIN_EXE_gnomon")).arg("bench").assert().success();
    ["lane", "faults", "fig5", "fig7", "gups", "build", "switching", "processes", "boot"]
        .into_iter()
        .fold(assert, |assert, name| assert.stdout(predicate::str::contains(format!("\n{name}"))));
}

#[test]
fn networks_that_cannot_be() {
    let scratch = Scratch::new();
    let kernel = scratch.file("raw", [0x13, 0, 0, 0]);
    let run = |args: &[&str], says: &[&str]| {
        let all = [&["--kernel", text(&kernel)], args].concat();
        scratch.refused(&all, INPUT, says);
    };
    for port in ["80", "0:80", "8080:0", "8080:65536", "8080:http", "localhost:8080:80", "a=b=1:2"] {
        scratch.refused(&["--net", "--forward", port], USAGE, &["--forward"]);
    }
    scratch.refused(&["--net", "yes"], USAGE, &["--net"]);
    run(&["--net", "off", "--forward", "8080:80"], &["8080:80", "`raw`", "has no network", "--net"]);
    run(&["--net", "--forward", "web=8080:80"], &["`web`", "does not exist", "`raw`"]);
    run(&["--net", "--forward", "8080:80", "--forward", "8080:81"], &["8080", "twice"]);
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("its address").port().to_string();
    run(&["--net", "--forward", &format!("{port}:80")], &[&port, "127.0.0.1", "in use"]);

    let file = |name: &str, content: &str| {
        scratch.file(name, format!("name = '{name}'\nkernel = '{}'\nnet = true\n{content}", text(&kernel)))
    };
    let (a, b) = (file("a", "mac = '52:54:00:67:6e:02'"), file("b", ""));
    scratch.refused(&[text(&a), text(&b)], INPUT, &["`a`", "`b`", "52:54:00:67:6e:02", "leave out `mac`"]);
    scratch.refused(&[text(&b), text(&a), "--forward", "8080:80"], INPUT, &["does not name a VM", "b=8080:80"]);
    scratch.refused(&[text(&a), "--net", "off"], INPUT, &["`a`", "no network", "`mac`"]);
    for (mac, says) in [
        ("01:00:5e:00:00:01", "multicast"),
        ("00:00:00:00:00:00", "zero"),
        ("52:55:0a:00:02:02", "gateway's"),
        ("52:54:00:67:6e", "six bytes"),
    ] {
        let vm = file("c", &format!("mac = '{mac}'"));
        scratch.refused(&[text(&vm)], INPUT, &[mac, says]);
    }
    let forward = file("d", "forward = ['8080']");
    scratch.refused(&[text(&forward)], INPUT, &["line 4", "8080:80"]);
}

#[test]
fn ports_that_cannot_be() {
    let scratch = Scratch::new();
    let kernel = scratch.file("raw", [0x13, 0, 0, 0]);
    let run = |args: &[&str], says: &[&str]| {
        let all = [&["--kernel", text(&kernel)], args].concat();
        scratch.refused(&all, INPUT, says);
    };
    run(&["--port", "a/b"], &["`raw`", "`a/b`", "letters, digits", "--port"]);
    run(&["--port", ".."], &["`..`", "in front"]);
    run(&["--port", &"x".repeat(33)], &["1 to 32"]);
    run(&["--port", "a", "--port", "a"], &["`raw` has two ports called `a`"]);
    run(&["--port", "a", "--port", "b", "--port", "c", "--port", "d", "--port", "e"], &["5 ports", "the limit is 4"]);
    run(&["--port", "a", "--control", "off"], &["no program can connect", "--control off"]);
    let file = scratch.file("a.toml", "ports = 'agent'\n");
    scratch.refused(&[text(&file)], INPUT, &["a.toml", "line 1"]);
}

#[test]
fn disks_that_cannot_be_booted() {
    let scratch = Scratch::new();
    let disk = scratch.file("disk.img", [0; 4096]);
    let run = |args: &[&str], says: &[&str]| {
        let all = [&["--kernel", "disk", "--disk", text(&disk)], args].concat();
        scratch.refused(&all, INPUT, says);
    };
    scratch.refused(&["--kernel", "disk"], INPUT, &["`vm` cannot boot from a disk", "it has no disk", "--disk FILE"]);
    for (args, says) in [
        (["--initrd", "busybox"], "it has an `initrd`"),
        (["--append", "quiet"], "it has an `append`"),
        (["--console", "hvc0"], "it has a `console`"),
    ] {
        run(&args, &["`disk` cannot boot from a disk", says, "boot loader's configuration"]);
    }
    run(&["--exec", "true"], &["--exec", "`disk`", "does not run them"]);
    run(&["--debian"], &["`disk` cannot have a Debian as its root", "a different kernel"]);
}

#[test]
fn roots_that_cannot_be() {
    let scratch = Scratch::new();
    for (args, says) in [
        (["--kernel", "u-boot"], ["a different kernel", "leave out `kernel`"]),
        (["--initrd", "none"], ["initrd of its own", "leave out `initrd`"]),
        (["--memory", "255M"], ["255 MiB of memory", "--memory"]),
        (["--forward", "22"], ["8080:80", "--forward"]),
    ] {
        let status = if args[0] == "--forward" { USAGE } else { INPUT };
        scratch.refused(&[&["--debian"], &args[..]].concat(), status, &says);
    }
    let file = scratch.file("a.toml", "root = 'arch'\n");
    scratch.refused(&[text(&file)], INPUT, &["a.toml", "`arch` is not a root", "line 1"]);
    let file = scratch.file("b.toml", "root = { system = 'debian', disk = 'x' }\n");
    scratch.refused(&[text(&file)], INPUT, &["b.toml", "unknown key `disk`", "system, file"]);
    // What is found out before an image is made, which takes minutes.
    scratch.refused(&["--debian=/nowhere/root.img"], INPUT, &["/nowhere/root.img", "No such file", "--debian=FILE"]);
    let empty = scratch.file("empty", [0; 4096]);
    scratch.refused(&[&format!("--debian={}", text(&empty))], INPUT, &["no Debian on", text(&empty), "ext4", "--disk"]);
    let superblock = [vec![0; 0x438], vec![0x53, 0xef], vec![0; 0xbc6]].concat();
    let disk = scratch.file("disk", superblock);
    let other = fs::File::open(&disk).expect("a file");
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let root = format!("--debian={}", text(&disk));
    scratch.refused(&[&root], INPUT, &[text(&disk), "in use", "--snapshot"]);
    scratch.refused(&[&root, "--snapshot"], INPUT, &[text(&disk), "in use"]);
}
