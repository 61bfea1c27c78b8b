//! Commands, the bridge, and a machine that is none: each end of the channel with what it should not meet.

use super::bridge::Bridge;
use super::client::Client;
use super::runs::Runs;
use super::save::{Held, Saved, Unsaved};
use super::watch::Asking;
use super::{CROWDED, ControlError, SILENT};
use abi::control::frame::{Reader, decode, encode, encode_as};
use abi::control::save::{NOT_YET, Pages, Save, Saving};
use abi::control::{Answer, MOST_REQUEST_BYTES, Request, Vms, Whose};
use abi::snapshot::bytes::Bytes;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

mod ports;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(20);

struct Run {
    dir: tempfile::TempDir,
    runs: Runs,
    bridge: Bridge,
    /// The machine's end.
    machine: UnixStream,
}

impl Run {
    /// A run whose machine has `PATIENCE` to answer.
    fn start(patience: Duration) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let runs = Runs::at(dir.path().join("gnomon")).expect("a directory");
        let claim = runs.claim(None, "fake").expect("a name");
        let machine = claim.machine_path().to_owned();
        let bridge = Bridge::start_with(claim, Some(patience));
        let machine = UnixStream::connect(machine).expect("it listens");
        Self { dir, runs, bridge, machine }
    }

    /// Answers each request by `answer`, as Gnomon would.
    fn answering(self, answer: impl Fn(u32, Request) -> Vec<u8> + Send + 'static) -> Self {
        let mut machine = self.machine.try_clone().expect("a socket");
        thread::spawn(move || {
            let (mut reader, mut buffer) = (Reader::new(MOST_REQUEST_BYTES), [0; 100]);
            while let Ok(count) = machine.read(&mut buffer)
                && count > 0
            {
                let mut bytes = &buffer[..count];
                while let Some(frame) = reader.next(&mut bytes) {
                    let (number, request) = decode(&frame.expect("short")).expect("only requests come");
                    machine.write_all(&answer(number, request)).expect("it listens");
                }
            }
        });
        self
    }

    fn stream(&self) -> UnixStream {
        self.runs.connect(self.bridge.name()).expect("it goes on")
    }

    fn client(&self) -> Client {
        Client::new("fake".into(), self.stream(), LONG)
    }
}

/// Counters that tell who was asked for.
fn echo(number: u32, request: Request) -> Vec<u8> {
    let answer = match request {
        Request::Counters(Whose::Vm(vm)) => Answer::Counters(vec![("vm".into(), vm)]),
        _ => Answer::Done,
    };
    encode(number, &answer)
}

#[test]
fn many_commands_at_once_get_their_own_answers() {
    let run = Run::start(LONG).answering(echo);
    thread::scope(|scope| {
        for client in 0..8 {
            let mut asks = run.client();
            scope.spawn(move || {
                for round in 0..100 {
                    let vm = client * 1000 + round;
                    assert_eq!(asks.counters(Whose::Vm(vm)).expect("an answer"), [("vm".to_owned(), vm)]);
                }
            });
        }
    });
}

#[test]
fn commands_that_are_killed_or_mad_harm_no_other() {
    let run = Run::start(LONG).answering(echo);
    let mut client = run.client();
    let request = encode(1, &Request::Pause(7));
    // In the middle of a request, and before the answer.
    for end in 0..=request.len() {
        drop(run.stream().write_all(&request[..end]));
    }
    let mut state = 1_u32;
    for _ in 0..50 {
        let mut mad = run.stream();
        let bytes = std::array::from_fn::<u8, 3000, _>(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let _ = mad.write_all(&bytes);
        // It is hung up on.
        mad.set_read_timeout(Some(LONG)).expect("a socket");
        assert!(matches!(mad.read(&mut [0; 16]), Ok(0) | Err(_)));
        client.tell("a word", &Request::Hello).expect("an answer");
    }
    // One that asks and never reads.
    let mut deaf = run.stream();
    deaf.set_write_timeout(Some(SHORT)).expect("a socket");
    while deaf.write_all(&encode(1, &Request::Hello)).is_ok() {}
    client.tell("a word", &Request::Hello).expect("an answer");
    drop(deaf);
    // More than there may be: some are told so, and when they have gone there is room again.
    let crowd: Vec<_> = (0..80).map(|_| run.client()).collect();
    let told: Vec<_> = crowd.into_iter().map(|mut one| one.tell("a word", &Request::Hello)).collect();
    let count = told.iter().filter(|told| told.is_ok()).count();
    assert!((1..80).contains(&count), "{count}");
    let is_crowded =
        |told: &Result<(), ControlError>| matches!(told, Err(ControlError::Refused { why, .. }) if why == CROWDED);
    assert!(told.iter().any(is_crowded), "{told:?}");
    let started = Instant::now();
    while run.client().tell("a word", &Request::Hello).is_err() {
        assert!(started.elapsed() < LONG, "no client can ask any more");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn readers_of_a_run_take_no_place_of_a_command() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let run = Run::start(LONG).answering(move |number, request| match request {
        Request::Vms => {
            count.fetch_add(1, Ordering::SeqCst);
            let (lost, ports, disks) = Default::default();
            encode(number, &Answer::Vms(Vms { now: 0, timebase: 1, vms: Vec::new(), lost, ports, disks }))
        }
        request => echo(number, request),
    });
    let started = Instant::now();
    let asking: Vec<_> = (0..100).map(|_| Asking::of(&run.runs, "fake")).collect();
    // As many commands as there may be, but for one that asks for states.
    let mut commands: Vec<_> = (0..31).map(|_| run.client()).collect();
    for command in &mut commands {
        command.tell("a word", &Request::Hello).expect("there is room");
    }
    while asked.load(Ordering::SeqCst) < 3 {
        assert!(started.elapsed() < LONG, "nobody asks");
        thread::sleep(Duration::from_millis(10));
    }
    let most = started.elapsed().as_millis() / super::watch::ASK.as_millis() + 1;
    assert!(asked.load(Ordering::SeqCst) as u128 <= most, "one of them asks for all");
    let used = Arc::downgrade(&asking[0]);
    drop(asking);
    assert_eq!(used.strong_count(), 0, "they share it");
}

#[test]
fn a_machine_that_says_nothing_holds_nobody_for_long() {
    let run = Run::start(SHORT);
    let started = Instant::now();
    let why = run.client().vms().expect_err("the machine does not answer");
    assert!(matches!(&why, ControlError::Refused { why, .. } if why == SILENT), "{why}");
    assert!(started.elapsed() < LONG);
    // A late answer is not taken for that of the next request.
    let run = run.answering(|number, request| match request {
        Request::Vms => Vec::new(),
        request => [encode(number - 1, &Answer::Tunables(Vec::new())), echo(number, request)].concat(),
    });
    assert_eq!(run.client().counters(Whose::Vm(5)).expect("an answer"), [("vm".to_owned(), 5)]);
}

#[test]
fn a_machine_that_is_mad_or_gone_is_told_of() {
    let run = Run::start(SHORT).answering(|number, request| {
        let mut answer = vec![0xaa; 40_000];
        answer.extend(echo(number, request));
        answer.extend([7; 100]);
        answer
    });
    for vm in 0..20 {
        assert_eq!(run.client().counters(Whose::Vm(vm)).expect("the answer is in there"), [("vm".to_owned(), vm)]);
    }
    let silent = Run::start(LONG);
    silent.machine.shutdown(std::net::Shutdown::Both).expect("a socket");
    let why = silent.client().vms().expect_err("it is gone");
    assert!(matches!(why, ControlError::Gone(_)), "{why}");
}

/// A run that answers a connection with these bytes, and hangs up.
fn says(bytes: Vec<u8>) -> ControlError {
    let (ours, mut theirs) = UnixStream::pair().expect("sockets");
    let said = thread::spawn(move || {
        let _ = theirs.read(&mut [0; 100]);
        let _ = theirs.write_all(&bytes);
    });
    let why = Client::new("odd".into(), ours, LONG).vms().expect_err("no answer");
    said.join().expect("it has said all");
    why
}

#[test]
fn a_run_of_another_version_or_none_is_told_of() {
    let other = says(encode_as(77, 1, &Answer::Refused("another version".into())));
    assert!(matches!(other, ControlError::Version { theirs: 77, .. }), "{other}");
    assert!(matches!(says(b"HTTP/1.1 400 Bad Request\r\n\r\n\0".to_vec()), ControlError::Nonsense(_)));
    assert!(matches!(says(vec![5; 100_000]), ControlError::Gone(_)));
    assert!(matches!(says(encode(1, &Answer::Done)), ControlError::Nonsense(_)));
    assert!(matches!(says(Vec::new()), ControlError::Gone(_)));
    // And ours tells a command of another version its own.
    let run = Run::start(LONG).answering(echo);
    let mut stream = run.stream();
    stream.write_all(&encode_as(77, 3, &Request::Hello)).expect("it listens");
    let (mut reader, mut bytes) = (Reader::new(1000), [0; 1000]);
    let count = stream.read(&mut bytes).expect("an answer");
    let frame = reader.next(&mut &bytes[..count]).expect("whole").expect("short");
    assert!(matches!(decode(&frame), Ok((3, Answer::Refused(_)))));
}

#[test]
fn a_client_waits_for_so_long() {
    let (ours, _theirs) = UnixStream::pair().expect("sockets");
    let why = Client::new("stopped".into(), ours, SHORT).vms().expect_err("no answer");
    assert!(matches!(why, ControlError::Silent(_)), "{why}");
}

#[test]
fn the_sockets_are_gone_when_the_run_is() {
    let run = Run::start(LONG).answering(echo);
    run.client().tell("a word", &Request::Hello).expect("an answer");
    let (runs, dir) = (run.runs.clone(), Arc::new(run.dir));
    assert_eq!(runs.names().expect("names"), ["fake"]);
    drop(run.bridge);
    assert_eq!(runs.names().expect("names"), [""; 0]);
    let left: Vec<_> =
        std::fs::read_dir(dir.path().join("gnomon")).expect("it").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["lock"]);
}

/// A VM of two pages of RAM as far as a snapshot is concerned, the second of which is not zero; and what was asked of it.
fn saved(number: u32, request: &Request) -> Vec<u8> {
    let answer = match request {
        Request::Save(_, Save::Begin) => Answer::Saving(Saving { id: 7, state_bytes: 5, pages: 2, was_running: true }),
        Request::Save(_, Save::State { from, .. }) => {
            Answer::State(Bytes(vec![1, 2, 3, 4, 5][*from as usize..].to_vec()))
        }
        Request::Save(_, Save::Pages { from: 0, .. }) => Answer::Pages(Pages { next: 1, ..Pages::default() }),
        Request::Save(_, Save::Pages { .. }) => {
            Answer::Pages(Pages { next: 2, first: vec![1], bytes: Bytes(vec![9; 4096]) })
        }
        _ => Answer::Done,
    };
    encode(number, &answer)
}

#[test]
fn a_vm_goes_on_when_whoever_takes_its_snapshot_is_gone() {
    let (asked, told) = std::sync::mpsc::channel();
    let run = Run::start(LONG).answering(move |number, request| {
        let answer = match request {
            // The first time it does not stand still yet.
            Request::Save(3, Save::Begin) => encode(number, &Answer::Later),
            _ => saved(number, &request),
        };
        let _ = asked.send(request);
        answer
    });
    let mut client = run.client();
    let mut held = Held::begin(&mut client, (4, "a")).expect("it stands still");
    let mut file = Vec::new();
    let written = held.write(&mut file, |_| {}).expect("it is written");
    assert_eq!(written, Saved { pages: 1, bytes: file.len() as u64 });
    drop(client);
    let last = |told: &std::sync::mpsc::Receiver<Request>| {
        let next = || told.recv_timeout(LONG).expect("it is ended");
        std::iter::repeat_with(next).find(|request| matches!(request, Request::Save(_, Save::End(_)))).expect("one")
    };
    assert_eq!(last(&told), Request::Save(4, Save::End(7)));
    // One that is begun, and no more.
    let mut client = run.client();
    client.ask("begin", &Request::Save(3, Save::Begin)).expect("an answer");
    drop(client);
    assert_eq!(last(&told), Request::Save(3, Save::End(NOT_YET)));
    // And one that was ended in time is not ended again.
    let mut client = run.client();
    Held::begin(&mut client, (5, "b")).expect("it stands still").end().expect("it goes on");
    drop(client);
    assert_eq!(last(&told), Request::Save(5, Save::End(7)));
    run.client().tell("a word", &Request::Hello).expect("an answer");
    std::thread::sleep(SHORT);
    assert!(told.try_iter().all(|request| !matches!(request, Request::Save(..))));
}

#[test]
fn a_snapshot_whose_begin_was_not_answered_is_ended_as_well() {
    let (asked, told) = std::sync::mpsc::channel();
    let run = Run::start(SHORT).answering(move |number, request| {
        let answer = match request {
            Request::Save(3, Save::Begin) => Vec::new(),
            Request::Save(4, Save::Begin) => encode(number, &Answer::Refused("a debugger is attached to it".into())),
            _ => saved(number, &request),
        };
        let _ = asked.send(request);
        answer
    });
    let begin = |vm| {
        let why = Held::begin(&mut run.client(), (vm, "a")).err().expect("it is refused");
        assert!(matches!(why, ControlError::Refused { .. }), "{why}");
        told.recv_timeout(LONG).expect("it was asked")
    };
    assert_eq!(begin(3), Request::Save(3, Save::Begin));
    assert_eq!(told.recv_timeout(LONG), Ok(Request::Save(3, Save::End(NOT_YET))));
    // What is refused is not begun.
    assert_eq!(begin(4), Request::Save(4, Save::Begin));
    std::thread::sleep(SHORT);
    assert!(told.try_iter().next().is_none());
}

#[test]
fn answers_that_no_snapshot_has_are_not_believed() {
    for bad in [
        Pages { next: 0, ..Pages::default() },
        Pages { next: 3, ..Pages::default() },
        Pages { next: 1, first: vec![0], bytes: Bytes(vec![]) },
        Pages { next: 1, first: vec![1], bytes: Bytes(vec![1; 4096]) },
        Pages { next: 1, first: vec![0], bytes: Bytes(vec![1; 4095]) },
    ] {
        let run = Run::start(LONG).answering(move |number, request| match request {
            Request::Save(_, Save::Pages { .. }) => encode(number, &Answer::Pages(bad.clone())),
            request => saved(number, &request),
        });
        let mut client = run.client();
        let mut held = Held::begin(&mut client, (4, "a")).expect("it stands still");
        let why = held.write(Vec::new(), |_| {});
        assert!(matches!(why, Err(Unsaved::Control(ControlError::Nonsense(_)))), "{why:?}");
    }
}
