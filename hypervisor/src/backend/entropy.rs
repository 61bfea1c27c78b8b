//! Random bytes of the host's for guests, by a device of the host's.
//!
//! The device is asked for a *piece* at a time, each for one guest, which alone ever sees it. Guests that want one wait
//! in the order in which they came, each for one at most: so a guest waits for at most one piece of each other guest.

use crate::backend::User;
use crate::sync::Mutex;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// Bytes of a piece, at most.
pub const PIECE: usize = 64;

/// A device of the host's that has random bytes.
pub trait HostEntropy: Send {
    /// Asks for a piece, if none was asked for that has not come.
    fn ask(&mut self);
    /// Takes the piece that has come since the last time, if any: returns the number of bytes of `into` that it has
    /// filled.
    fn take(&mut self, into: &mut [u8; PIECE]) -> Option<usize>;
    /// Acknowledges the device's interrupt: a piece after this interrupts anew.
    fn acknowledge(&mut self);
}

/// Random bytes for one guest.
#[derive(Clone, PartialEq, Eq)]
pub struct Piece {
    bytes: [u8; PIECE],
    count: usize,
}

impl Piece {
    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

impl fmt::Debug for Piece {
    /// Shows the count only: the bytes are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("count", &self.count).finish_non_exhaustive()
    }
}

/// A member, which may ask for bytes.
#[derive(Debug)]
struct Member {
    id: u64,
    user: Option<User>,
    piece: Option<Piece>,
}

/// The source of all guests' random bytes.
pub struct Source {
    device: Box<dyn HostEntropy>,
    members: Vec<Member>,
    /// The number of members that there ever were.
    joined: u64,
    /// The members that wait for a piece. The device was asked for the first one's.
    waiting: VecDeque<u64>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("members", &self.members).field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Source {
    /// Makes a source from a device.
    #[must_use]
    pub fn new(device: Box<dyn HostEntropy>) -> Self {
        Self { device, members: Vec::new(), joined: 0, waiting: VecDeque::new() }
    }

    fn member(&mut self, id: u64) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.id == id)
    }

    /// Returns the VM that the device works for, if it has been asked for something.
    #[must_use]
    pub fn user(&self) -> Option<User> {
        let first = self.waiting.front()?;
        self.members.iter().find(|member| member.id == *first)?.user
    }

    /// Handles the device's interrupt. Returns the VM whose piece has come.
    pub fn attend(&mut self) -> Option<User> {
        self.device.acknowledge();
        let mut bytes = [0; PIECE];
        let count = self.device.take(&mut bytes)?.min(PIECE);
        // If the member that it was asked for is gone, the next waiting member gets it.
        let first = self.waiting.pop_front();
        if !self.waiting.is_empty() {
            self.device.ask();
        }
        let member = self.member(first?)?;
        member.piece = Some(Piece { bytes, count });
        member.user
    }
}

/// A guest's place at the source.
#[derive(Debug)]
pub struct Place {
    source: Arc<Mutex<Source>>,
    id: u64,
}

impl Place {
    /// Makes a new place at a source.
    #[must_use]
    pub fn at(source: &Arc<Mutex<Source>>) -> Self {
        let mut locked = source.lock();
        locked.joined += 1;
        let id = locked.joined;
        locked.members.push(Member { id, user: None, piece: None });
        drop(locked);
        Self { source: Arc::clone(source), id }
    }

    /// Sets the user.
    pub fn set_user(&self, user: User) {
        self.source.lock().member(self.id).into_iter().for_each(|member| member.user = Some(user));
    }

    /// Asks for a piece, unless it was asked for before.
    pub fn ask(&self) {
        let mut source = self.source.lock();
        if !source.waiting.contains(&self.id) {
            source.waiting.push_back(self.id);
            source.device.ask();
        }
    }

    /// Takes the piece that was asked for, if it has come.
    #[must_use]
    pub fn take(&self) -> Option<Piece> {
        self.source.lock().member(self.id)?.piece.take()
    }

    /// Withdraws the request for a piece.
    pub fn forget(&self) {
        let mut source = self.source.lock();
        source.waiting.retain(|id| *id != self.id);
        source.member(self.id).into_iter().for_each(|member| member.piece = None);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.forget();
        self.source.lock().members.retain(|member| member.id != self.id);
    }
}
