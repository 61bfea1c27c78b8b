//! Bytes of host RAM that devices reach, and the buffers of guests' ports.

use core::ptr;
use hypervisor::backend::port::{UNIT_BYTES, UNITS, Units};
use mmu::frames::{Frames, Owner, Piece, Use};
use rv::{Addr, Hpa, PAGE_BYTES};

/// Pages of a buffer, as a power of two.
const ORDER: u8 = (UNITS * UNIT_BYTES / PAGE_BYTES as usize).trailing_zeros() as u8;

/// Returns the bytes of host RAM.
///
/// # Safety
/// The piece is RAM without Rust objects, which is not otherwise accessed so long, or whose content does not matter.
pub unsafe fn bytes_of<'a>(piece: &Piece) -> &'a mut [u8] {
    let at = ptr::with_exposed_provenance_mut(piece.start.raw() as usize);
    // SAFETY: by the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(at, piece.bytes) }
}

/// The buffer of a guest's port, which it has for ever.
pub struct Buffer(Addr<Hpa>);

impl Buffer {
    /// Makes a new one; `None` if there is no memory for it.
    pub fn new(frames: &Frames) -> Option<Self> {
        let run = frames.alloc(Owner::Host, Use::Other, ORDER).ok()?;
        Some(Self(run.first().base()))
    }

    /// Returns `bytes` bytes, from byte `at` of the units on.
    ///
    /// # Panics
    /// If there are no such units.
    pub fn piece(&self, units: Units, at: usize, bytes: usize) -> Piece {
        assert!(units.first + units.count <= UNITS, "units that there are not");
        Piece { start: self.0.wrapping_add((units.first * UNIT_BYTES + at) as u64), bytes }
    }

    /// Returns the bytes of units.
    ///
    /// # Safety
    /// None of the units is in flight.
    pub unsafe fn bytes(&mut self, units: Units) -> &mut [u8] {
        // SAFETY: frames that are this buffer's for ever, and by the caller's promise no device reaches them.
        unsafe { bytes_of(&self.piece(units, 0, units.bytes())) }
    }
}
