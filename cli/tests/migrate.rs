//! A VM that moves to another run in the midst of work, and comes to the same results there.

#[expect(dead_code, reason = "not all of it has a use here")]
mod background;

use background::{Run, command};
use gnomon::guest::debian::LEAN;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufRead, Read};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const ROUNDS: usize = 60;

/// A guest's work: many short programs, and a file that grows in memory. Its size is that of several rounds of a migration.
const WORK: &str = "head -c 24M /dev/urandom > /tmp/big; was=$(sha256sum < /tmp/big)
head -c 8M /tmp/big > /dev/vda
x=0; n=0
while [ $n -lt 60 ]; do
    x=$(echo $x $n | sha256sum | cut -c1-64)
    echo $x >> /tmp/all
    echo $x | dd of=/dev/vda bs=512 seek=$((n * 99)) conv=notrunc,sync 2> /dev/null
    n=$((n+1))
    [ $((n % 10)) -ne 0 ] || echo part $n of it
    sleep 0.4
done
[ \"$was\" = \"$(sha256sum < /tmp/big)\" ] && echo big is whole
sync
echo disk $(sha256sum < /dev/vda | cut -c1-64)
echo result $(sha256sum < /tmp/all | cut -c1-64)";

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The result of the work.
fn result(disk: &[u8]) -> String {
    let (mut x, mut all) = ("0".to_owned(), String::new());
    for n in 0..ROUNDS {
        x = hex(format!("{x} {n}\n").as_bytes());
        all += &format!("{x}\n");
        assert_eq!(&disk[n * 99 * 512..][..64], x.as_bytes(), "round {n} on the disk");
    }
    format!("result {}", hex(all.as_bytes()))
}

/// Waits until a run has printed that.
fn wait_for(run: &mut Run, text: &str) {
    let output = run.output.as_mut().expect("its output");
    let mut all = Vec::new();
    while !String::from_utf8_lossy(&all).contains(text) {
        let some = output.fill_buf().expect("output");
        assert!(!some.is_empty(), "it ended without `{text}`: {}", String::from_utf8_lossy(&all));
        all.extend_from_slice(some);
        let count = some.len();
        output.consume(count);
    }
}

fn end(mut run: Run) -> String {
    let mut text = String::new();
    run.output.take().expect("its output").read_to_string(&mut text).expect("text");
    text
}

fn fails(command: &assert_cmd::assert::Assert, status: i32, message: &str) {
    let output = command.get_output();
    let said = String::from_utf8_lossy(&output.stderr);
    // Lines are broken anywhere.
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(output.status.code() == Some(status) && flat.contains(message), "{message}: {:?} {said}", output.status);
}

fn await_file(path: &Path) {
    let until = Instant::now() + PATIENCE;
    while !path.exists() {
        assert!(Instant::now() < until, "{} does not come", path.display());
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn work_that_is_begun_here_is_done_there_without_a_stop() {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path();
    let at = |name: &str| dir.join(name);
    let address = |name: &str| format!("unix:{}", at(name).display());
    let gnomon = |args: &[&str]| command(dir).timeout(PATIENCE).args(args).assert();
    let promised = ["--svvptc", "off"];
    let disk = ["--disk", "disk.img:8M"];
    let shape = ["--as", "here", "--memory", "128M", "--vcpus", "2", "--append", LEAN, "--timeout", "120"];
    let mut here = Run::start(dir, shape.iter().chain(&promised).chain(&disk).chain(&["--exec", WORK]), ("", 0));
    wait_for(&mut here, "part 10 of it");
    // Where nothing is, or what is no gnomon, it does not go; and it goes on here.
    fails(&gnomon(&["migrate", "linux", &address("nowhere")]), 1, "cannot reach unix:");
    let listener = UnixListener::bind(at("mute")).expect("a socket");
    let mute = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a sender");
        stream.read_exact(&mut [0; 100]).expect("a part of a message");
    });
    fails(&gnomon(&["migrate", "linux", &address("mute")]), 1, "the line to the other side is broken");
    mute.join().expect("no panic");
    fails(&gnomon(&["migrate", "linux", "ftp:x"]), 2, "it is unix:PATH or tcp:HOST:PORT");
    let far = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = format!("tcp:{}", far.local_addr().expect("its address"));
    fails(&gnomon(&["migrate", "linux", &place]), 1, "disk.img, which cannot go to another run");
    // Nor to a machine that cannot have it.
    let options = ["--as", "there", "--mmu", "lazy", "--no-h", "--timeout", "120", "--incoming"];
    let place = address("small");
    fs::copy(at("disk.img"), at("copy.img")).expect("a copy");
    let small = [place.as_str(), "--host-memory", "64M", "--disk", "disk.img"];
    for (options_here, message) in [
        (&small[..], "the other side refuses the VM: "),
        (&[place.as_str(), "--disk", "copy.img"][..], "copy.img is not a disk of the VM that arrives"),
    ] {
        let refuses = Run::start(dir, options.iter().chain(options_here), ("", 0));
        await_file(&at("small"));
        fails(&gnomon(&["migrate", "linux", &place]), 1, message);
        drop(refuses);
    }
    // Where it can go, it is told so before.
    let place = address("dry");
    let dry = Run::start(dir, options.iter().chain(&[place.as_str()]).chain(&disk), ("", 0));
    await_file(&at("dry"));
    let said = gnomon(&["migrate", "--dry-run", "linux", &place]).success();
    assert!(String::from_utf8_lossy(&said.get_output().stderr).contains("linux can go to unix:"));
    drop(dry);
    let place = address("there");
    let there = Run::start(dir, options.iter().chain(&[place.as_str()]).chain(&disk), ("", 0));
    await_file(&at("there"));
    let moved = gnomon(&["migrate", "linux", &place]).success();
    let said = String::from_utf8_lossy(&moved.get_output().stderr).into_owned();
    assert!(said.contains("it stood still for") && said.contains(" rounds"), "{said}");
    let (first, second) = (end(here), end(there));
    assert!(!first.contains("result"), "{first}");
    let disk = fs::read(at("disk.img")).expect("the disk");
    assert!(second.contains(&format!("disk {}", hex(&disk))), "{second}");
    assert!(second.contains("big is whole") && second.contains(&result(&disk)), "{second}");
}
