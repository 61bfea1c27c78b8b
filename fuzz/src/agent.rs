//! Targets for what a guest's agent sends to `gnomon shell`, and for the archives of its `tar` that `gnomon cp` unpacks.

use abi::agent::{End, Open, Stream, Tell, encode};
use abi::snapshot::bytes::Bytes;
use arbitrary::{Arbitrary, Result, Unstructured};
use gnomon::control::session::Session;
use gnomon::host::unpack::{Wanted, unpack};
use std::fs;
use std::io::{Write, empty};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tar::{EntryType, Header};

/// The time limit for the first message, which is there.
const LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of a stream in a message of an input.
const MOST: usize = 5000;
/// Most entries of an archive.
const MOST_ENTRIES: usize = 12;
/// The content of the file beside the target.
const SECRET: &[u8] = b"secret";

/// Keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn tell(u: &mut Unstructured<'_>) -> Result<Tell> {
    let stream = if u.arbitrary()? { Stream::Out } else { Stream::Error };
    Ok(match u.int_in_range(0..=9)? {
        0 => Tell::Hello(u.arbitrary()?),
        1 => Tell::Refused(String::arbitrary(u)?),
        2 => Tell::Room(u.arbitrary()?),
        3 => Tell::Ended(End::Exited(u.arbitrary()?)),
        4 => Tell::Ended(End::Killed(u.arbitrary()?)),
        5 => Tell::Ended(End::Lost),
        _ => Tell::Output(stream, Bytes(vec![u.arbitrary()?; u.int_in_range(0..=MOST)?])),
    })
}

/// Messages, some of them damaged: a session ends, and its output is what came before its end.
pub fn agent(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let mut sent = encode(0, &Tell::Hello(0));
    let mut outputs: [Vec<u8>; 2] = Default::default();
    let mut is_over = false;
    while !u.is_empty() {
        if u.ratio(1, 8).unwrap_or_default() {
            // Garbage, which may take a part of the next message with it.
            let Ok(bytes) = u.bytes(u.len().min(3)) else { break };
            sent.extend(bytes);
            is_over = true;
            continue;
        }
        let Ok(told) = tell(&mut u) else { break };
        sent.extend(encode(u.arbitrary().unwrap_or_default(), &told));
        match told {
            Tell::Output(stream, Bytes(bytes)) if bytes.len() <= abi::agent::PIECE && !is_over => {
                outputs[stream as usize].extend(bytes);
            }
            Tell::Hello(_) | Tell::Room(_) => {}
            Tell::Output(..) | Tell::Ended(_) | Tell::Refused(_) => is_over = true,
        }
    }
    let (client, mut run) = UnixStream::pair().expect("a pair");
    let writer = thread::spawn(move || {
        // The session may have ended before.
        let _ = run.write_all(&sent);
        let _ = run.shutdown(std::net::Shutdown::Write);
        // What it sends is read, or it would wait.
        let _ = std::io::copy(&mut run, &mut std::io::sink());
    });
    let session = Session::new(("run", "vm"), client, LIMIT).expect("the agent is there");
    let kept: [Kept; 2] = Default::default();
    let done = session.run(Open::default(), empty(), kept[0].clone(), kept[1].clone());
    for (kept, expected) in kept.iter().zip(&outputs) {
        let kept = kept.0.lock().expect("no panic");
        // Garbage may hide or end what follows. A session that fails leaves its writers behind.
        assert!(done.is_err() || kept.starts_with(expected), "output is lost, or changed");
    }
    drop(done);
    writer.join().expect("no panic");
}

/// Names that matter to a walk, and others.
fn name(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    const PARTS: [&[u8]; 9] = [b"a", b"b", b"..", b".", b"", b"out", b"secret", b"target", b"/"];
    let count = u.int_in_range(0..=4)?;
    let parts = (0..count).map(|_| Ok(PARTS[u.choose_index(PARTS.len())?])).collect::<Result<Vec<_>>>()?;
    Ok(parts.join(&b'/'))
}

fn entry(u: &mut Unstructured<'_>, archive: &mut Vec<u8>) -> Result<()> {
    const KINDS: &[u8] = b"0005557221LKgx36S";
    let mut header = Header::new_gnu();
    let (name, link) = (name(u)?, name(u)?);
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(&name);
    old.linkname[..link.len()].copy_from_slice(&link);
    header.set_entry_type(EntryType::new(KINDS[u.choose_index(KINDS.len())?]));
    header.set_mode(u.arbitrary()?);
    header.set_mtime(u.arbitrary::<u32>()?.into());
    let count = u.int_in_range(0..=u.len().min(40))?;
    let content = u.bytes(count.min(u.len()))?;
    // Now and then another size than the content's.
    header.set_size(if u.ratio(1, 10)? { u.arbitrary()? } else { content.len() as u64 });
    header.set_cksum();
    archive.extend(header.as_bytes());
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
    Ok(())
}

/// Archives: all that is beside the target stays as it is.
pub fn archive(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let wanted = if u.arbitrary().unwrap_or_default() { Wanted::File } else { Wanted::Tree };
    let mut archive = Vec::new();
    if u.ratio(7, 8).unwrap_or_default() && wanted == Wanted::Tree {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[0] = b'.';
        header.set_entry_type(EntryType::Directory);
        header.set_mode(0o700);
        header.set_mtime(0);
        header.set_size(0);
        header.set_cksum();
        archive.extend(header.as_bytes());
    }
    for _ in 0..MOST_ENTRIES {
        if u.is_empty() || entry(&mut u, &mut archive).is_err() {
            break;
        }
    }
    archive.extend(u.take_rest());
    let dir = tempfile::tempdir().expect("a directory");
    let (inner, out) = (dir.path().join("in"), dir.path().join("out"));
    fs::create_dir(&inner).and_then(|()| fs::create_dir(&out)).expect("directories");
    fs::write(out.join("secret"), SECRET).expect("a file");
    let _ = unpack(archive.as_slice(), &inner.join("target"), wanted);
    let names = |path| fs::read_dir(path).expect("a directory").flatten().map(|entry| entry.file_name());
    assert!(names(&inner).all(|name| name == "target"), "a file beside the target");
    assert!(names(&out).eq(["secret"]), "a file outside");
    assert!(names(&dir.path().to_owned()).count() == 2, "a file outside");
    assert_eq!(fs::read(out.join("secret")).expect("a file"), SECRET);
    let path = dir.keep();
    if fs::remove_dir_all(&path).is_err() {
        // The archive has made directories without rights.
        let _ = std::process::Command::new("chmod").args(["-R", "u+rwx"]).arg(&path).output();
        fs::remove_dir_all(&path).expect("removed");
    }
}
