//! Ports' sockets, and guests that are none.

use super::{LONG, SHORT, echo};
use crate::control::ControlError;
use crate::control::bridge::Bridge;
use crate::control::client::Client;
use crate::control::runs::Runs;
use abi::control::frame::{Reader, decode, encode};
use abi::control::port::{Heard, MOST_KEPT, Wish};
use abi::control::{Answer, MOST_REQUEST_BYTES, Request};
use abi::snapshot::bytes::Bytes;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A run whose first VM has the port `p`, the second `q` and `r`.
struct Ported {
    dir: tempfile::TempDir,
    runs: Runs,
    bridge: Bridge,
    /// Connections that have ended, in their order.
    ended: Receiver<u32>,
}

impl Ported {
    /// `guest` says what a guest makes of an exchange: the bytes of it that were not heard before, at their place. It is to say all that it
    /// has said to that connection, and whether it has the port open; or `None` for no answer.
    fn start(patience: Duration, mut guest: impl FnMut(u64, &mut Vec<u8>) -> Option<Answer> + Send + 'static) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let runs = Runs::at(dir.path().join("g")).expect("a directory");
        let mut claim = runs.claim(None, "fake").expect("a name");
        let vms = [("a", &["p"][..]), ("b", &["q", "r"])];
        let vms = vms.map(|(vm, ports)| (vm.to_owned(), ports.iter().map(|port| (*port).to_owned()).collect()));
        runs.open_ports(&mut claim, &vms).expect("sockets");
        let path = claim.machine_path().to_owned();
        let bridge = Bridge::start_with(claim, Some(patience));
        let mut machine = UnixStream::connect(path).expect("it listens");
        let (end, ended) = channel();
        thread::spawn(move || {
            let (mut reader, mut buffer) = (Reader::new(MOST_REQUEST_BYTES), [0; 1000]);
            // By connection: all that was taken.
            let mut all = std::collections::BTreeMap::<u32, Vec<u8>>::new();
            while let Ok(count) = machine.read(&mut buffer)
                && count > 0
            {
                let mut bytes = &buffer[..count];
                while let Some(frame) = reader.next(&mut bytes) {
                    let (number, request) = decode(&frame.expect("short")).expect("only requests come");
                    let answer = match request {
                        Request::Port(vm, _, Wish::Exchange(said)) => {
                            let taken = all.entry(said.connection).or_default();
                            let again = (taken.len() as u64 - said.at) as usize;
                            taken.extend_from_slice(&said.bytes.0[again.min(said.bytes.0.len())..]);
                            let mut spoken = taken.clone();
                            guest(vm, &mut spoken).map(|answer| match answer {
                                Answer::Heard(heard) => {
                                    let rest = spoken[said.from as usize..].iter().take(said.most as usize);
                                    let bytes = Bytes(rest.take(MOST_KEPT).copied().collect());
                                    Answer::Heard(Heard { taken: taken.len() as u64, bytes, ..heard })
                                }
                                other => other,
                            })
                        }
                        Request::Port(_, _, Wish::Close(connection)) => {
                            let _ = end.send(connection);
                            Some(Answer::Done)
                        }
                        request => {
                            machine.write_all(&echo(number, request)).expect("it listens");
                            continue;
                        }
                    };
                    if let Some(answer) = answer {
                        machine.write_all(&encode(number, &answer)).expect("it listens");
                    }
                }
            }
        });
        Self { dir, runs, bridge, ended }
    }

    fn call(&self, vm: &str, port: &str) -> UnixStream {
        let stream = self.runs.connect_port(self.bridge.name(), vm, port).expect("it is there");
        stream.set_read_timeout(Some(LONG)).expect("a socket");
        stream
    }
}

#[test]
fn the_run_knows_who_waits_for_whom_at_a_port() {
    let is_open = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let opens = std::sync::Arc::clone(&is_open);
    let ported = Ported::start(LONG, move |_, _| {
        let is_open = opens.load(std::sync::atomic::Ordering::SeqCst);
        Some(Answer::Heard(Heard { is_open, ..Heard::default() }))
    });
    let until = |what: &dyn Fn(&[abi::control::PortUse]) -> bool| {
        let end = Instant::now() + LONG;
        while !what(&ported.bridge.ports()) {
            assert!(Instant::now() < end, "{:?}", ported.bridge.ports());
            thread::sleep(Duration::from_millis(5));
        }
    };
    until(&|all| all.is_empty());
    let stream = ported.call("b", "r");
    until(&|all| matches!(all, [one] if (one.vm, one.port.as_str(), one.is_open) == (1, "r", Some(false))));
    assert_eq!(ported.bridge.ports()[0].process, std::process::id());
    is_open.store(true, std::sync::atomic::Ordering::SeqCst);
    until(&|all| matches!(all, [one] if one.is_open == Some(true)));
    drop(stream);
    until(&|all| all.is_empty());
}

/// A guest that has its port open, and has taken what was said.
fn open() -> Answer {
    Answer::Heard(Heard { is_open: true, ..Heard::default() })
}

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect()
}

#[test]
fn what_is_said_comes_once_and_in_order_though_answers_are_lost() {
    let mut count = 0;
    // It says back what it hears. The third answer is lost, and the twentieth.
    let run = Ported::start(SHORT, move |_, _| {
        count += 1;
        Some(open()).filter(|_| count != 3 && count != 20)
    });
    let (mut near, all) = (run.call("a", "p"), text(100_000));
    let (mut other, copy) = (near.try_clone().expect("a socket"), all.clone());
    let speaker = thread::spawn(move || other.write_all(&copy));
    let mut heard = vec![0; all.len()];
    near.read_exact(&mut heard).expect("all of it");
    assert!(heard == all);
    speaker.join().expect("no panic").expect("it was taken");
    near.shutdown(Shutdown::Write).expect("a socket");
    assert_eq!(near.read(&mut [0]).expect("the end"), 0, "a call ends when all was heard");
    assert_eq!(run.ended.recv_timeout(LONG), Ok(0));
}

#[test]
fn who_never_reads_holds_up_nobody_else() {
    let run = Ported::start(LONG, |vm, spoken| {
        if vm == 0 {
            spoken.resize(1 << 20, 7);
        }
        Some(open())
    });
    let deaf = run.call("a", "p");
    let mut near = run.call("b", "q");
    let mut client = Client::new("fake".into(), run.runs.connect("fake").expect("it goes on"), LONG);
    for _ in 0..20 {
        near.write_all(b"word").expect("it is taken");
        let mut heard = [0; 4];
        near.read_exact(&mut heard).expect("it is said back");
        assert_eq!(&heard, b"word");
        client.tell("a word", &Request::Hello).expect("an answer");
    }
    // And the next client that waits for the same port gets it when the first one is gone.
    let mut next = run.call("a", "p");
    drop(deaf);
    next.read_exact(&mut [0; 100]).expect("it is next");
}

#[test]
fn each_connection_has_its_own_end() {
    let run = Ported::start(LONG, |_, _| Some(open()));
    for connection in 0..3 {
        let mut near = run.call("b", "r");
        near.write_all(b"x").expect("it is taken");
        near.read_exact(&mut [0]).expect("it is said back");
        drop(near);
        assert_eq!(run.ended.recv_timeout(LONG), Ok(connection));
    }
}

#[test]
fn what_somebody_has_left_waits_for_the_guest_some_time() {
    let since = Instant::now();
    let run = Ported::start(LONG, move |_, spoken| {
        spoken.clear();
        let is_open = since.elapsed() > SHORT;
        let waiting = if is_open { 0 } else { 4 };
        Some(Answer::Heard(Heard { is_open, waiting, ..Heard::default() }))
    });
    run.call("a", "p").write_all(b"left").expect("there is room");
    assert_eq!(run.ended.recv_timeout(LONG), Ok(0));
    assert!(since.elapsed() > SHORT);
}

#[test]
fn a_call_waits_for_its_vm_and_ends_with_it() {
    let mut count = 0;
    let run = Ported::start(LONG, move |_, _| {
        count += 1;
        Some(match count {
            1..4 => Answer::Later,
            4..8 => open(),
            _ => Answer::Refused("it has ended".into()),
        })
    });
    let mut near = run.call("a", "p");
    near.write_all(b"hello").expect("there is room");
    let mut heard = Vec::new();
    near.read_to_end(&mut heard).expect("its end");
    assert_eq!(heard, b"hello");
    // A call after that is hung up at once.
    assert_eq!(run.call("a", "p").read(&mut [0]).expect("the end"), 0);
}

#[test]
fn commands_do_not_speak_by_ports() {
    let run = Ported::start(LONG, |_, _| Some(open()));
    let mut client = Client::new("fake".into(), run.runs.connect("fake").expect("it goes on"), LONG);
    let why = client.ask("a port", &Request::Port(0, 0, Wish::Close(0))).expect_err("it is refused");
    assert!(why.to_string().contains("a socket of its own"), "{why}");
    assert!(run.ended.try_recv().is_err());
}

#[test]
fn sockets_are_the_users_alone_and_leave_nothing() {
    let run = Ported::start(LONG, |_, _| Some(open()));
    let at = run.dir.path().join("g");
    let path = run.runs.port_path("fake", "b", "q");
    assert_eq!(path, at.join("fake.ports/b/q"));
    assert_eq!(run.runs.ports("fake", "b"), ["q", "r"]);
    let mode = |path: &std::path::Path| std::fs::metadata(path).expect("it").permissions().mode() & 0o777;
    assert_eq!(
        [&*path, path.parent().expect("its directory"), &at.join("fake.ports")].map(mode),
        [0o600, 0o700, 0o700]
    );
    for (vm, port) in [("a", "q"), ("c", "p"), ("a", ""), ("a", "../b/q")] {
        let why = run.runs.connect_port("fake", vm, port).expect_err("there is none");
        assert!(matches!(why, ControlError::UnknownPort { .. }), "{why}");
    }
    drop(run.bridge);
    assert!(!at.join("fake.ports").exists());
    // What a run has left that was killed.
    std::fs::create_dir_all(at.join("dead.ports/a")).expect("a directory");
    drop(std::os::unix::net::UnixListener::bind(at.join("dead.ports/a/p")).expect("a socket"));
    assert_eq!(run.runs.names().expect("names"), [""; 0]);
    assert!(!at.join("dead.ports").exists());
    let long = ["n".repeat(32), "p".repeat(32)];
    let mut claim = run.runs.claim(Some(&"r".repeat(40)), "x").expect("a name");
    let why = run.runs.open_ports(&mut claim, &[(long[0].clone(), vec![long[1].clone()])]).expect_err("it is too long");
    assert!(matches!(why, ControlError::LongPath { .. }), "{why}");
}
