//! The messages of processes that serve guests, which are shown if such a process ends.

use std::io::Read;

/// Most bytes that are kept of a process: a guest may be able to make it say more without end.
const MOST: usize = 16 << 10;

/// Reads messages to their end; returns the last ones. If they cannot be read, those so far: the exit status still tells.
pub(super) fn last_messages(mut from: impl Read) -> String {
    let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..count]);
        kept.drain(..kept.len().saturating_sub(MOST));
    }
    String::from_utf8_lossy(&kept).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_messages_are_kept() {
        let long = format!("first{}last\n", "x".repeat(3 * MOST));
        let kept = last_messages(long.as_bytes());
        assert!(kept.len() == MOST - 1 && kept.ends_with("xlast"), "{}", kept.len());
        assert_eq!(last_messages(&b" short\n"[..]), "short");
    }
}
