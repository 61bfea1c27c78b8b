//! Target for the messages of 9P that a guest sends to the server of its share.

use abi::share::{HEAD, MOST_MESSAGE};
use rustix::fs::{Mode, OFlags};
use share::files::Descriptors;
use share::server::Server;
use share::wire::{RLERROR, kind};
use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

/// The content of the file beside the share.
const SECRET: &[u8] = b"secret";
/// Most entries that inputs leave in the share.
const MOST_LEFT: usize = 50;
/// Most file numbers of a session.
const MOST_FIDS: usize = 20;

/// The share, and what is beside it.
struct Place {
    outside: tempfile::TempDir,
    share: PathBuf,
}

impl Place {
    fn new() -> Self {
        let outside = tempfile::tempdir().expect("a directory");
        let share = outside.path().join("share");
        fs::create_dir(&share).expect("made");
        fs::write(outside.path().join("secret"), SECRET).expect("written");
        Self { outside, share }
    }
}

thread_local! {
    static PLACE: RefCell<Place> = RefCell::new(Place::new());
}

/// Messages, each a type, the length of its fields (1 byte), and its fields: each has an answer of its type and tag or an
/// error, of no more than the longest length, and what is outside of the share stays as it is.
pub fn share(data: &[u8]) {
    PLACE.with_borrow_mut(|place| {
        let root = rustix::fs::open(&place.share, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("the share");
        let descriptors = Descriptors::open().expect("/proc");
        let mut server = Server::new(root, descriptors, false, MOST_FIDS).expect("a server");
        let mut answer = Vec::new();
        let mut ask = |of: u8, tag: u8, fields: &[u8]| {
            let length = (HEAD + fields.len()) as u32;
            server.answer(&[&length.to_le_bytes()[..], &[of, tag, 0], fields].concat(), &mut answer);
            assert_eq!(answer[..4], (answer.len() as u32).to_le_bytes());
            assert!((HEAD..=MOST_MESSAGE).contains(&answer.len()));
            let is_error = answer[4] == RLERROR && answer.len() == HEAD + 4;
            assert!((is_error || answer[4] == of.wrapping_add(1)) && answer[5..HEAD] == [tag, 0]);
        };
        ask(kind::VERSION, 1, &[&8192_u32.to_le_bytes()[..], &[8, 0], b"9P2000.L"].concat());
        ask(kind::ATTACH, 2, &[&[0; 4][..], &[0xff; 4], &[0; 4], &[0xff; 4]].concat());
        let mut rest = data;
        while let [of, length, behind @ ..] = rest {
            let (fields, behind) = behind.split_at(behind.len().min((*length).into()));
            ask(*of, 3, fields);
            rest = behind;
        }
        drop(server);
        let secret = fs::read(place.outside.path().join("secret"));
        assert!(secret.is_ok_and(|secret| secret == SECRET), "the file beside the share has changed");
        assert_eq!(fs::read_dir(place.outside.path()).expect("it is there").count(), 2, "outside of the share");
        if fs::read_dir(&place.share).map_or(0, Iterator::count) > MOST_LEFT {
            *place = Place::new();
        }
    });
}
