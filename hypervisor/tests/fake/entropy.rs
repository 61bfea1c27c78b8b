//! A source of random bytes of the host's, which has some when it is told to: pieces of one byte each, the next one each time.

use hypervisor::backend::entropy::{HostEntropy, PIECE};
use std::cell::Cell;

thread_local! {
    /// The state of the source of the machine that was made last: whether it was asked, whether it has bytes, and the
    /// number of pieces so far.
    static STATE: Cell<(bool, bool, u8)> = const { Cell::new((false, false, 0)) };
}

/// Gives the source bytes, if it was asked for some. Returns whether it was.
pub fn come() -> bool {
    let (is_asked, _, pieces) = STATE.get();
    STATE.set((is_asked, is_asked, pieces));
    is_asked
}

pub struct FakeEntropy;

impl FakeEntropy {
    pub fn new() -> Self {
        STATE.set((false, false, 0));
        Self
    }
}

impl HostEntropy for FakeEntropy {
    fn ask(&mut self) {
        let (_, has_come, pieces) = STATE.get();
        STATE.set((true, has_come, pieces));
    }
    fn take(&mut self, into: &mut [u8; PIECE]) -> Option<usize> {
        let (_, has_come, pieces) = STATE.get();
        has_come.then(|| {
            let piece = pieces.wrapping_add(1);
            STATE.set((false, false, piece));
            into.fill(piece);
            PIECE
        })
    }
    fn acknowledge(&mut self) {}
}
