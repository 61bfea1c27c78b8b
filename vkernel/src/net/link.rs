//! Frames between smoltcp and a card.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// Bytes of a frame at most: 1500 of content, and its head.
pub(super) const MOST_FRAME: usize = 1514;

/// A card.
pub trait Link: Send {
    /// Takes a frame that has come.
    fn receive(&mut self) -> Option<Vec<u8>>;
    /// Returns whether a frame can be sent.
    fn has_room(&mut self) -> bool;
    /// Sends a frame, if there is room.
    fn send(&mut self, frame: Vec<u8>);
}

/// The device that smoltcp uses.
pub(super) struct Frames(pub(super) Box<dyn Link>);

/// A frame that has come.
pub(super) struct Received(Vec<u8>);

/// The room for a frame.
pub(super) struct Sending<'a>(&'a mut dyn Link);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.send(frame);
        result
    }
}

impl Device for Frames {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Sending<'_>)> {
        // An answer may have to be sent.
        if !self.0.has_room() {
            return None;
        }
        let frame = self.0.receive()?;
        Some((Received(frame), Sending(&mut *self.0)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        if self.0.has_room() { Some(Sending(&mut *self.0)) } else { None }
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = MOST_FRAME;
        capabilities
    }
}
