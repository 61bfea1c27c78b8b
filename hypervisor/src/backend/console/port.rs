//! The port that the console prints to.

/// The host's serial port. The console calls it under its own lock, so never from two harts at once.
pub trait Port: Sync {
    /// Returns the number of bytes that can be sent now without waiting.
    fn room(&self) -> usize;
    /// Sends bytes: no more than [`Port::room`] allowed.
    fn send(&self, bytes: &[u8]);
    /// Returns a byte that has come in.
    fn receive(&self) -> Option<u8>;
    /// Sets which of its interrupts reach Gnomon: one for input, and one for room. Does nothing if there are no
    /// interrupts.
    fn listen(&self, wanted: Listen);
    /// Returns whether there are interrupts.
    fn interrupts(&self) -> bool;
}

/// The events that a port is to interrupt for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// Something has come in.
    pub input: bool,
    /// Something can be sent again.
    pub room: bool,
}
