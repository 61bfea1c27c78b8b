//! Shares: their servers as processes, by raw messages, and in a run of Linux guests.

#[path = "servers/mod.rs"]
mod servers;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, Signal, kill_process};
use servers::{has_gone, servers_of};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const GNOMON: &str = env!("CARGO_BIN_EXE_gnomon");

/// A server that this process has started, and the other end of its socket.
struct Server {
    child: Child,
    socket: Option<OwnedFd>,
    first_line: String,
}

impl Server {
    fn start(dir: &Path, user: Option<u32>) -> Self {
        let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut command = Command::new(GNOMON);
        command.arg("share-server").arg(format!("--parent={}", std::process::id())).arg("--").arg(dir);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = command.stdin(its).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first_line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first_line).unwrap();
        Self { child, socket: Some(ours), first_line }
    }

    /// Sends a message, and returns the fields of its answer, or the error.
    fn ask(&self, of: u8, fields: &[&[u8]]) -> Result<Vec<u8>, u32> {
        let fields = fields.concat();
        let message = [&(7 + fields.len() as u32).to_le_bytes()[..], &[of, 1, 0], &fields].concat();
        self.send(&message);
        let mut answer = vec![0; 1 << 17];
        let (length, _) = recv(self.socket.as_ref().unwrap(), &mut answer[..], RecvFlags::empty()).unwrap();
        assert!(length >= 7, "the server is gone");
        let fields = answer[7..length].to_vec();
        if answer[4] == 7 { Err(u32::from_le_bytes(fields.try_into().unwrap())) } else { Ok(fields) }
    }

    fn send(&self, packet: &[u8]) {
        send(self.socket.as_ref().unwrap(), packet, SendFlags::NOSIGNAL).unwrap();
    }

    fn attach(&self) {
        self.ask(100, &[&8192_u32.to_le_bytes(), &[8, 0], b"9P2000.L"]).unwrap();
        self.ask(104, &[&[0; 4], &[0xff; 4], &[0; 4], &[0xff; 4]]).unwrap();
    }

    fn walk(&self, from: u32, to: u32, name: &[u8]) -> Result<Vec<u8>, u32> {
        let length = (name.len() as u16).to_le_bytes();
        self.ask(110, &[&from.to_le_bytes(), &to.to_le_bytes(), &[1, 0], &length, name])
    }

    /// The value of a line of its `/proc/PID/status`.
    fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
    }

    fn end(mut self) -> (ExitStatus, String) {
        self.socket = None;
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }
}

#[test]
fn a_server_confines_itself_and_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let users = if rustix::process::geteuid().is_root() { vec![None, Some(65534)] } else { vec![None] };
    for user in users {
        let share = dir.path().join(format!("share{}", user.unwrap_or_default()));
        fs::create_dir(&share).unwrap();
        if let Some(user) = user {
            std::os::unix::fs::chown(&share, Some(user), Some(user)).unwrap();
            fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let server = Server::start(&share, user);
        if user.is_some() && server.first_line.is_empty() {
            // Another user does not reach this program's file.
            continue;
        }
        assert_eq!(server.first_line, "ready\n");
        assert_eq!((server.status("NoNewPrivs"), server.status("Seccomp"), server.status("Threads")), (1, 2, 1));
        server.attach();
        // 3,000 file numbers with the longest names.
        let name = [b'n'; 255];
        server.ask(72, &[&[0; 4], &[255, 0], &name, &0o755_u32.to_le_bytes(), &[0xff; 4]]).unwrap();
        let before = server.status("VmRSS");
        (1..=3000).for_each(|fid| _ = server.walk(0, fid, &name).unwrap());
        let grown = server.status("VmRSS") - before;
        assert!(grown < 4096, "{grown} KiB");
        // As many as there may be descriptors, and then no more.
        let limits = fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
        let limit = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let limit: u32 = limit.split_whitespace().nth(4).unwrap().parse().unwrap();
        assert!((1000..=65_552).contains(&limit));
        let most = (3001..=limit).find(|fid| server.walk(0, *fid, &name).is_err()).unwrap();
        assert_eq!((server.walk(0, most, &name), most), (Err(24), limit - 16));
        // It works on with those that it has.
        server.ask(120, &[&1_u32.to_le_bytes()]).unwrap();
        server.walk(0, 1, &name).unwrap();
        assert_eq!(server.walk(0, 2, b".."), Err(9));
        let (status, said) = server.end();
        assert!(status.success() && said.is_empty(), "{status}: {said}");
        assert_eq!(fs::read_dir(&share).unwrap().count(), 1);
    }
}

#[test]
fn a_server_ends_with_what_it_is_for() {
    let dir = tempfile::tempdir().unwrap();
    // Packets that are no messages: Gnomon sends none.
    let long = [&70_000_u32.to_le_bytes()[..], &vec![0; 65_532]].concat();
    for (packets, code) in
        [(vec![&b"x"[..]], 1), (vec![&[11, 0, 0, 0, 120, 0, 0]], 1), (vec![&long, &[0; 9]], 1), (vec![], 0)]
    {
        let server = Server::start(dir.path(), None);
        packets.iter().for_each(|packet| server.send(packet));
        let (status, said) = server.end();
        assert_eq!((status.code(), said.contains("no message")), (Some(code), code == 1), "{status}: {said}");
    }
    // Its parent.
    let script = format!("{GNOMON} share-server --parent=$$ -- {} & echo; sleep 100", dir.path().display());
    let (_ours, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // A shell gives what is in the background no standard input of its own.
    let script = script.replace(" &", " <&0 &");
    let mut shell = Command::new("sh").args(["-c", &script]).stdin(its).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.by_ref().any(|line| line == "ready"));
    let [server] = servers_of(shell.id())[..] else { panic!("the shell's server") };
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert!(has_gone(server));
    // There is no other parent for it.
    assert!(Command::new(GNOMON).args(["share-server", "--parent=1", "/"]).status().is_ok_and(|done| !done.success()));
}

/// In each VM: directories to a depth of 67,000 bytes, links, files that are replaced and removed while they are open; then
/// two shares of the first one are lost, one while it reads, one while nothing is asked of it, and the other VM's go on.
const COMMANDS: &str = r#"
n=$(printf %250s | tr " " n)
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do q=$q/$n; done
p=/mnt/kept
for i in $(seq 18); do
    mkdir -p $p$q /tmp/$i && mount --bind $p$q /tmp/$i || exit 1
    p=/tmp/$i
done
echo deep > $p/f && [ "$(cat $p/f)" = deep ] && [ "$(stat -c %s $p/f)" = 5 ] && mkdir $p/d && mv $p/f $p/d || exit 2
[ "$(ls $p)" = d ] && [ "$(cat $p/d/f)" = deep ] || exit 3
cd /mnt/kept && ln -s /outside l && ln -s ../../secret m && cat l m 2> /dev/null && exit 4
exec 3<> g 4> h && echo one >&3 && mv h g && : > g && [ "$(cat /proc/self/fd/3)" = one ] && rm g && echo two >&3 || exit 5
exec 5< /mnt/lost/long && echo "$(hostname)" > up
until [ -e go ]; do sleep 0.3; done
if [ "$(hostname)" = vm1 ]; then
    : > reading
    dd bs=100k count=1 <&5 2> err > /dev/null && exit 6
    for share in lost idle; do
        grep -q "Input/output error\|I/O error" err || { cat err; exit 7; }
        cat /mnt/$share/file 2> err && exit 6
    done
    grep -q "Input/output error\|I/O error" err || { cat err; exit 7; }
    echo x 2> /dev/null > /mnt/lost/new && exit 8
    cat <&5 > /dev/null 2>&1 && exit 9
    umount -l /mnt/lost && umount -l /mnt/idle || exit 10
else
    [ "$(cat /mnt/lost/file)" = text ] && echo x > /mnt/lost/new || exit 11
fi
[ "$(cat go)" = on ] && echo z > z && echo "$(hostname) goes on"
"#;

#[test]
fn a_share_that_is_lost_is_one_vms_and_no_path_leads_out() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path();
    fs::write(root.join("secret"), "secret").unwrap();
    let mut files = Vec::new();
    for vm in ["vm1", "vm2"] {
        for share in ["kept", "lost", "idle"] {
            fs::create_dir_all(root.join(vm).join(share)).unwrap();
        }
        fs::write(root.join(vm).join("lost/file"), "text").unwrap();
        fs::write(root.join(vm).join("lost/long"), [b'x'; 200 << 10]).unwrap();
        let shares = format!("shares = ['{vm}/kept', '{vm}/lost', '{vm}/idle']");
        let file = root.join(format!("{vm}.toml"));
        fs::write(&file, format!("name = '{vm}'\nmemory = '96M'\n{shares}")).unwrap();
        files.push(file);
    }
    let mut command = Command::new(GNOMON);
    command.args(["run", "--timeout", "300", "--exec", COMMANDS]).args(files);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(250);
    let is_up = |vm: &str| fs::read_to_string(root.join(vm).join("kept/up")).is_ok_and(|up| up.starts_with(vm));
    while !(is_up("vm1") && is_up("vm2")) && child.try_wait().unwrap().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(100));
    }
    let servers = servers_of(child.id());
    let signal = |share: &str, signal: Signal| {
        let is_its = |pid: &&Pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(share)
        };
        kill_process(*servers.iter().find(is_its).expect("the share's server"), signal).unwrap();
    };
    if servers.len() == 6 {
        signal("vm1/idle", Signal::KILL);
        signal("vm1/lost", Signal::STOP);
        for vm in ["vm1", "vm2"] {
            fs::write(root.join(vm).join("kept/go"), "on").unwrap();
        }
        while !root.join("vm1/kept/reading").exists() && child.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
        }
        // The message is under way soon after.
        std::thread::sleep(Duration::from_millis(500));
        signal("vm1/lost", Signal::KILL);
    }
    let output = child.wait_with_output().unwrap();
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(servers.len(), 6, "a server for each share\n{out}{said}");
    assert!(output.status.success(), "{}\n{out}{said}", output.status);
    assert!(out.contains("vm1 goes on") && out.contains("vm2 goes on"), "{out}{said}");
    for share in ["lost", "idle"] {
        let message = format!("warning: VM vm1: the server of its share {share} (");
        assert_eq!(said.matches(&message).count(), 1, "{said}");
    }
    assert!(said.contains("killed by signal 9") && said.contains("remedy: "), "{said}");
    assert!(servers.into_iter().all(has_gone), "nothing is left");
    assert_eq!(fs::read_to_string(root.join("secret")).unwrap(), "secret");
    assert_eq!(fs::read_to_string(root.join("vm2/lost/new")).unwrap(), "x\n");
    assert!(output.status.signal().is_none() && !root.join("vm1/lost/new").exists());
}
