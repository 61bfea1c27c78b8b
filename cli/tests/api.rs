//! `gnomon api` and `gnomon events`: the session of docs/api.md with real runs, and clients that behave badly. The guests are a few
//! instructions each.

#[expect(dead_code, reason = "not all of it has a use here")]
mod background;
mod listens;
mod says;

use gnomon::api::limits::MOST_LINE;
use gnomon::api::methods::{Call, NAMES, schema};
use gnomon::api::wire::parse;
use listens::LISTEN;
use rustix::process::{Pid, Signal, kill_process};
use says::says;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The first run of all may build the hypervisor.
const PATIENCE: Duration = Duration::from_secs(240);
const PAGE: &str = include_str!("../../docs/api.md");

/// The code of a guest that waits for ever without work.
const WAIT: [u32; 2] = [
    0x1050_0073, // wfi
    0xffdf_f06f, // j .-4
];

/// A directory for sockets, logs and VM files.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        let scratch = Self(tempfile::tempdir().expect("a directory"));
        for (name, code) in [("a", &LISTEN[..]), ("b", &WAIT[..])] {
            fs::write(scratch.path(&format!("{name}.bin")), says("hello\n", code)).expect("a file");
            let text = format!("name = '{name}'\nkernel = '{name}.bin'\nmemory = '16M'\n");
            fs::write(scratch.path(&format!("{name}.toml")), text).expect("a file");
        }
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn plain(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env("XDG_RUNTIME_DIR", self.0.path()).env("XDG_STATE_HOME", self.path("state"));
        command.current_dir(self.0.path());
        command
    }

    fn command(&self, line: &str) -> assert_cmd::assert::Assert {
        let mut command = background::command(self.0.path());
        command.env("XDG_STATE_HOME", self.path("state")).args(line.split_whitespace()).assert()
    }

    fn api(&self) -> Client {
        let mut command = self.plain(env!("CARGO_BIN_EXE_gnomon"));
        command.arg("api").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("gnomon");
        let (input, output) = (child.stdin.take().expect("its input"), child.stdout.take().expect("its output"));
        Client::new(Box::new(input), output, Some(child))
    }

    /// Connects to a socket of `gnomon api`.
    fn connect(&self, name: &str) -> Client {
        let stream = UnixStream::connect(self.path(name)).expect("it listens");
        let clone = || stream.try_clone().expect("a socket");
        let mut client = Client::new(Box::new(clone()), clone(), None);
        client.stream = Some(stream);
        client
    }

    /// Starts `gnomon api` at a socket.
    fn listen(&self, name: &str) -> Child {
        let mut command = self.plain(env!("CARGO_BIN_EXE_gnomon"));
        let child = command.args(["api", "--listen", &format!("unix:{name}")]).spawn().expect("gnomon");
        until("the socket", || UnixStream::connect(self.path(name)).is_ok());
        child
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Runs in the background that a failed check has left.
        let place = format!("XDG_RUNTIME_DIR={}", self.0.path().display());
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            let is_ours = environ.split(|byte| *byte == 0).any(|word| word == place.as_bytes());
            let process = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            if let (true, Some(process)) = (is_ours, process) {
                let _ = kill_process(process, Signal::KILL);
            }
        }
    }
}

/// A client of the API.
struct Client {
    input: Option<Box<dyn Write>>,
    lines: Receiver<Value>,
    /// Lines that were not wanted yet.
    seen: Vec<Value>,
    child: Option<Child>,
    stream: Option<UnixStream>,
}

impl Client {
    fn new(input: Box<dyn Write>, output: impl Read + Send + 'static, child: Option<Child>) -> Self {
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                let value = serde_json::from_str(&line).unwrap_or_else(|why| panic!("{why}: {line}"));
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let mut client = Self { input: Some(input), lines, seen: Vec::new(), child, stream: None };
        let greeting = client.find("the greeting", |line| line.get("version").is_some());
        assert_eq!(greeting["version"], 1);
        client
    }

    fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it is open");
        input.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.flush()).expect("it reads");
    }

    fn ask(&mut self, id: u64, method: &str, params: &Value) {
        self.send(&json!({ "id": id, "method": method, "params": params }).to_string());
    }

    /// Returns the first line of that kind.
    fn find(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.seen.iter().position(&is_it) {
                return self.seen.remove(at);
            }
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            self.seen.push(line.unwrap_or_else(|why| panic!("{what}: {why}; there are {:#?}", self.seen)));
        }
    }

    /// Returns the reply to a request.
    fn reply(&mut self, id: u64) -> Value {
        self.find(&format!("the reply to {id}"), |line| line["id"] == id && line.get("notification").is_none())
    }

    fn result(&mut self, id: u64) -> Value {
        let reply = self.reply(id);
        assert!(reply.get("result").is_some(), "{reply}");
        reply["result"].clone()
    }

    fn code(&mut self, id: u64) -> String {
        let reply = self.reply(id);
        let remedy = reply["error"]["remedy"].as_str();
        assert!(remedy.is_some_and(|remedy| !remedy.is_empty()), "no remedy: {reply}");
        reply["error"]["code"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
    }

    fn event(&mut self, id: u64, name: &str) -> Value {
        let is_it = |line: &Value| line["id"] == id && line["notification"]["event"] == name;
        self.find(&format!("event {name}"), is_it)["notification"].clone()
    }

    /// Closes the input, and waits for the end.
    fn finish(mut self) -> Vec<Value> {
        self.input = None;
        let mut child = self.child.take().expect("a process");
        assert!(child.wait().expect("its end").success());
        self.seen.extend(self.lines.iter());
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            // The thread that reads has it, too.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(20));
    }
}

/// Returns whether a value has the form of an example: the same fields and kinds of values, and the same words where they are names of
/// things of the API. Of fields by users' names, the example may have some only.
fn fits(example: &Value, value: &Value, field: &str) -> bool {
    match (example, value) {
        (Value::Object(example), Value::Object(value)) if ["counters", "host", "ports"].contains(&field) => {
            example.iter().all(|(name, part)| value.get(name).is_some_and(|value| fits(part, value, "")))
        }
        (Value::Object(example), Value::Object(value)) => {
            let is_same =
                |(name, part): (&String, &Value)| value.get(name).is_some_and(|value| fits(part, value, name));
            example.len() == value.len() && example.iter().all(is_same)
        }
        (Value::Array(example), Value::Array(value)) => {
            example.len() == value.len()
                && example.iter().zip(value).all(|(example, value)| fits(example, value, field))
        }
        (Value::String(example), Value::String(value)) => {
            let is_free = ["message", "remedy", "gnomon", "value", "mode", "dir"].contains(&field)
                // A guest may have printed less, or more.
                || field == "text" && value.starts_with(example.lines().next().unwrap_or_default());
            is_free || example == value
        }
        (Value::Number(_), Value::Number(_)) => true,
        (example, value) => example == value,
    }
}

/// The lines of the page's sessions: those of the client, and those for it.
fn session() -> Vec<(bool, &'static str)> {
    let line = |line: &'static str| match line.split_at_checked(2)? {
        ("> ", line) => Some((true, line)),
        ("< ", line) => Some((false, line)),
        _ => None,
    };
    PAGE.lines().filter_map(line).collect()
}

#[test]
fn the_page_describes_each_method_and_has_an_example_of_it() {
    let row = |line: &'static str| line.strip_prefix("| `")?.split(" | ").next();
    let heading = PAGE.split("## Methods").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the methods");
    let described: BTreeSet<&str> = heading
        .lines()
        .filter_map(row)
        .flat_map(|cell| cell.split('`'))
        .filter(|part| !part.starts_with(','))
        .collect();
    let described: BTreeSet<&str> = described.into_iter().filter(|name| !name.trim().is_empty()).collect();
    assert_eq!(described, NAMES.iter().copied().collect(), "the table of docs/api.md, and the methods");
    let schema = schema();
    let in_schema: BTreeSet<&str> =
        schema["methods"].as_object().expect("methods").keys().map(String::as_str).collect();
    assert_eq!(described, in_schema);
    let requests: Vec<_> = session().into_iter().filter(|(is_client, _)| *is_client).collect();
    let calls: Vec<_> = requests.iter().filter_map(|(_, line)| parse(line.as_bytes()).ok()).collect();
    assert!(calls.len() + 1 == requests.len(), "one is not a request");
    let valid = calls.iter().filter(|request| Call::read((*request).clone()).is_ok()).count();
    assert_eq!(valid + 2, calls.len(), "two have an error");
    let shown: BTreeSet<&str> =
        calls.iter().map(|request| request.method.as_str()).filter(|name| *name != "puase").collect();
    assert_eq!(shown, described, "methods with an example");
    // Each event is described, too.
    let events = schema["$defs"]["Event"]["oneOf"].as_array().expect("events").iter();
    for event in events.map(|event| event["properties"]["event"]["const"].as_str().expect("its name")) {
        assert!(PAGE.contains(&format!("`{event}`")), "event {event}");
    }
}

#[test]
fn the_session_of_the_page_is_answered_as_written() {
    let scratch = Scratch::new();
    let mut client = scratch.api();
    for (is_client, line) in session() {
        match (is_client, serde_json::from_str::<Value>(line)) {
            (true, _) => client.send(line),
            (false, example) => {
                let example = example.expect("JSON");
                if example.get("version").is_none() {
                    client.find(line, |value| fits(&example, value, ""));
                }
            }
        }
    }
    client.finish();
    scratch.command("wait --run there").success();
    scratch.command("ps").success();
    let left: Vec<_> = fs::read_dir(scratch.path("gnomon")).expect("it is there").flatten().collect();
    assert_eq!(left.len(), 1, "the lock only: {left:?}");
}

#[test]
fn bad_lines_get_errors_and_good_ones_go_on() {
    let scratch = Scratch::new();
    let mut client = scratch.api();
    let long = "x".repeat(MOST_LINE + 1);
    let lines = ["", "\0\0\0", "{\"id\": 1", "[[[[", "{\"id\": 1e400, \"method\": \"ps\"}", &long, "\u{1b}[2J", "null"];
    for line in lines {
        client.send(line);
    }
    for _ in 1..lines.len() {
        let line = client.find("an error", |line| line.get("error").is_some());
        assert!(line["id"].is_null(), "{line}");
    }
    client.input.as_mut().expect("it is open").write_all(b"\xff\xfe\n").expect("it reads");
    assert_eq!(client.find("an error", |line| line["id"].is_null())["error"]["code"], "bad-request");
    for (id, method, params, code) in [
        (1, "pause", json!({ "run": "../../etc", "vm": "\u{1b}[2J\n" }), "not-found"),
        (2, "remove", json!({ "run": "../.." }), "not-found"),
        (3, "logs", json!({ "run": "a\0b" }), "not-found"),
        (4, "shutdown", json!({ "timeout": u64::MAX }), "bad-params"),
        (5, "snapshot", json!({ "output": "/no/where" }), "io"),
        (6, "migrate", json!({ "vm": "a", "address": "nowhere" }), "bad-params"),
        (7, "run", json!({ "args": ["--no-such-option"] }), "not-started"),
        (8, "run", json!({ "args": ["no\0such"] }), "io"),
        (9, "run", json!({ "args": ["--as", "x; rm -rf /", "a.toml"] }), "not-started"),
        (10, "subscribe", json!({ "run": "none" }), "not-found"),
        (13, "create", json!({ "run": "../x", "args": [] }), "bad-name"),
        (14, "create", json!({ "args": [] }), "bad-params"),
        (15, "start", json!({ "run": "../x" }), "not-found"),
        (11, "cancel", json!({ "request": 11 }), "not-pending"),
        (12, "set", json!({ "settings": [] }), "not-found"),
    ] {
        client.ask(id, method, &params);
        assert_eq!(client.code(id), code, "{method} {params}");
    }
    // The last line needs no end.
    client.input.as_mut().expect("it is open").write_all(br#"{"id": 13, "method": "ps"}"#).expect("it reads");
    let left = client.finish();
    assert!(left.iter().any(|line| line["id"] == 13 && line["result"]["runs"] == json!([])), "{left:?}");
    assert!(!scratch.path("state/gnomon").exists(), "nothing was made");
}

/// The memory of a process, in KiB.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).expect("a figure").parse().expect("a number")
}

#[test]
fn a_client_that_does_not_read_is_not_read_either() {
    let scratch = Scratch::new();
    let mut server = scratch.listen("sock");
    let mut stream = UnixStream::connect(scratch.path("sock")).expect("it listens");
    stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a socket");
    let lines: String = (0..1000).map(|id| format!("{{\"id\": {id}, \"method\": \"puase\"}}\n")).collect();
    let written = (0..1000).take_while(|_| stream.write_all(lines.as_bytes()).is_ok()).count();
    assert!(written < 1000, "it reads on");
    assert!(resident(server.id()) < 40 << 10, "{} KiB", resident(server.id()));
    // Others are served meanwhile, and long requests leave room for short ones.
    let mut other = scratch.connect("sock");
    for id in 0..60 {
        other.ask(id, "subscribe", &json!({}));
    }
    other.find("a refusal", |line| line["error"]["code"] == "busy");
    other.ask(0, "ps", &json!({}));
    assert_eq!(other.code(0), "id-in-use");
    other.ask(100, "ps", &json!({}));
    other.result(100);
    other.ask(101, "cancel", &json!({ "request": 0 }));
    other.result(101);
    assert_eq!(other.code(0), "cancelled");
    drop((stream, other));
    until("threads of clients that are gone", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).expect("it lives");
        tasks.count() <= 2
    });
    // One more than there may be.
    let clients: Vec<_> = (0..32).map(|_| scratch.connect("sock")).collect();
    let mut said = String::new();
    let stream = UnixStream::connect(scratch.path("sock")).expect("it listens");
    BufReader::new(stream).read_line(&mut said).expect("text");
    assert!(said.contains("\"busy\""), "{said}");
    drop(clients);
    // The socket is this user's alone, and no other takes its place.
    let mode = fs::metadata(scratch.path("sock")).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::write(scratch.path("file"), "kept").expect("a file");
    for name in ["sock", "file", "no/where"] {
        let line = format!("api --listen unix:{name}");
        background::refused(scratch.command(&line), &line, &["cannot listen at"]);
    }
    assert_eq!(fs::read_to_string(scratch.path("file")).expect("a file"), "kept");
    kill_process(Pid::from_child(&server), Signal::TERM).expect("it lives");
    assert_eq!(server.wait().expect("its end").code(), Some(128 + 15));
    assert!(!scratch.path("sock").exists());
}

#[test]
fn clients_that_meet_at_a_vm_or_are_killed_leave_it_sound() {
    let scratch = Scratch::new();
    let mut server = scratch.listen("sock");
    let (mut one, mut two) = (scratch.connect("sock"), scratch.connect("sock"));
    let mut events = scratch.plain(env!("CARGO_BIN_EXE_gnomon"));
    let mut events = events.arg("events").stdout(Stdio::piped()).spawn().expect("gnomon");
    one.ask(1, "run", &json!({ "args": ["--as", "work", "a.toml", "b.toml"] }));
    assert_eq!(one.result(1)["run"], "work");
    one.ask(2, "subscribe", &json!({}));
    two.ask(2, "subscribe", &json!({ "run": "work" }));
    one.event(2, "vm-running");
    // Its guest does not listen. The process that asks it is killed meanwhile.
    let mut killed = scratch.api();
    killed.ask(1, "shutdown", &json!({ "vm": "b", "timeout": 60 }));
    killed.ask(2, "reboot", &json!({ "vm": "b", "timeout": 60 }));
    sleep(Duration::from_millis(500));
    drop(killed);
    // A client that hangs up does not hold its request either.
    let mut gone = scratch.connect("sock");
    gone.ask(1, "shutdown", &json!({ "vm": "b", "timeout": 1_000_000 }));
    gone.ask(2, "logs", &json!({ "vm": "b", "follow": true }));
    gone.find("the log", |line| line["notification"]["text"].as_str().is_some_and(|text| text.contains("hello")));
    drop(gone);
    one.ask(3, "shutdown", &json!({ "vm": "b", "timeout": 1 }));
    assert_eq!(one.code(3), "timed-out");
    one.ask(4, "pause", &json!({}));
    assert_eq!(one.code(4), "ambiguous");
    // Pauses that are shorter than any look at the VM are events all the same.
    for id in 10..13 {
        one.ask(id, "pause", &json!({ "vm": "b" }));
        one.result(id);
        one.ask(id + 100, "resume", &json!({ "vm": "b" }));
        one.result(id + 100);
    }
    for client in [&mut one, &mut two] {
        for _ in 0..3 {
            let paused = client.event(2, "vm-paused")["number"].as_u64();
            assert!(paused < client.event(2, "vm-resumed")["number"].as_u64(), "in their order");
        }
    }
    // Both destroy the same VM: one of them may come too late.
    one.ask(20, "destroy", &json!({ "vm": "b" }));
    two.ask(20, "destroy", &json!({ "vm": "b" }));
    let replies = [one.reply(20), two.reply(20)];
    assert!(replies.iter().any(|reply| reply.get("result").is_some()), "{replies:?}");
    assert_eq!(one.event(2, "vm-ended")["cause"], "requested");
    assert_eq!(two.event(2, "vm-ended")["vm"], "b");
    // The run is killed while requests are pending.
    two.ask(30, "wait", &json!({ "run": "work" }));
    two.ask(31, "logs", &json!({ "vm": "a", "follow": true }));
    let run = UnixStream::connect(scratch.path("gnomon/work.sock")).expect("the run");
    let run = rustix::net::sockopt::socket_peercred(&run).expect("its process").pid;
    kill_process(run, Signal::KILL).expect("it lives");
    assert_eq!(two.result(30)["status"], Value::Null);
    two.result(31);
    for client in [&mut one, &mut two] {
        assert_eq!(client.event(2, "run-ended")["status"], Value::Null);
        let ended = |line: &Value| line["notification"]["event"] == "vm-ended" && line["notification"]["vm"] == "a";
        assert!(!client.seen.iter().any(ended), "an invented end");
    }
    two.result(2);
    one.ask(40, "remove", &json!({ "run": "work" }));
    one.result(40);
    drop((one, two));
    // `gnomon events` has seen the same, and ends with its reader.
    let mut lines = BufReader::new(events.stdout.take().expect("its output")).lines().map(|line| line.expect("text"));
    let told: Vec<String> = lines.by_ref().take_while(|line| !line.contains("the run was killed")).collect();
    for part in
        ["work: the run has started, with a, b", "VM b is paused", "VM b has ended, status 0: stopped by request"]
    {
        assert!(told.iter().any(|line| line.contains(part)), "no `{part}` in {told:#?}");
    }
    drop(lines);
    assert!(events.wait().expect("its end").success());
    server.kill().and_then(|()| server.wait()).expect("its end");
}

#[test]
fn the_python_client_follows_a_vm() {
    let python = Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|output| output.status.success()) {
        println!("left out: there is no python3");
        return;
    }
    let scratch = Scratch::new();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/api/gnomon.py");
    let mut command = scratch.plain("python3");
    let output = command.arg(program).args([env!("CARGO_BIN_EXE_gnomon"), "--as", "py", "a.toml"]).output();
    let output = output.expect("python3");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let expected = [
        "run py has started",
        "vm-paused",
        "refused: a paused VM cannot be asked",
        "vm-resumed",
        "run py has ended with status 0",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{errors}");
    assert!(output.status.success());
}

#[test]
fn a_run_that_waits_for_a_vm_ends_when_its_request_is_cancelled() {
    let scratch = Scratch::new();
    let mut client = scratch.api();
    for (id, name) in [(1, "first"), (2, "second")] {
        let args = ["--as".into(), name.into(), "--incoming".into(), format!("unix:{name}.move")];
        client.ask(id, "run", &json!({ "args": args }));
        let is_it = |line: &Value| line["id"] == id && line["notification"]["text"].as_str().is_some();
        client.find("that it waits", is_it);
        client.ask(10 + id, "cancel", &json!({ "request": id }));
        client.result(10 + id);
        assert_eq!(client.code(id), "cancelled");
    }
    client.ask(20, "ps", &json!({}));
    assert_eq!(client.result(20)["runs"], json!([]));
    client.finish();
}
