//! Target for the lines of clients of `gnomon api`.

use gnomon::api::limits::MOST_LINE;
use gnomon::api::methods::Call;
use gnomon::api::wire::{Line, Lines, parse};

/// The lines of a stream that comes in pieces of this size. `None` stands for one that is too long.
fn lines(data: &[u8], size: usize) -> Vec<Option<Vec<u8>>> {
    let (mut lines, mut found) = (Lines::default(), Vec::new());
    let mut take = |line: Option<&[u8]>| found.push(line.map(<[u8]>::to_vec));
    data.chunks(size).for_each(|piece| lines.push(piece, &mut take));
    lines.finish(take);
    found
}

/// Checks that a line for the client is one line, without control characters.
fn check(line: &Line) {
    let bytes = line.bytes();
    let (end, content) = bytes.split_last().expect("an end");
    assert!(*end == b'\n' && content.iter().all(|byte| *byte >= b' '), "{line:?}");
    assert!(serde_json::from_slice::<serde_json::Value>(content).is_ok(), "{line:?}");
}

/// A stream of lines: the first byte is the size of its pieces. No request is carried out.
pub fn api(data: &[u8]) {
    let Some((size, data)) = data.split_first() else { return };
    let found = lines(data, usize::from(*size) + 1);
    assert_eq!(found, lines(data, usize::MAX), "pieces make no difference");
    for line in found.iter().flatten() {
        assert!(line.len() <= MOST_LINE && !line.contains(&b'\n'));
        match parse(line) {
            Err((id, why)) => check(&Line::Error { id, error: why.into() }),
            Ok(request) => {
                let id = request.id.clone();
                if let Err(why) = Call::read(request) {
                    check(&Line::Error { id: Some(id), error: why.into() });
                }
            }
        }
    }
}
