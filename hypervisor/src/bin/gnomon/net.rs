//! The host's virtio network device, by which guests reach the world.

use crate::virtio::{HeapHal, Opened, notify};
use abi::bundle::MAX_VMS;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::array;
use core::sync::atomic::{Ordering, fence};
use hypervisor::backend::network::frame::{Frame, HEADER};
use hypervisor::backend::network::{Full, HostNetwork, SHARE};
use hypervisor::device::virtio::wire::VERSION_1;
use hypervisor::device::virtio::wire::net::{MRG_RXBUF, RECEIVE, TRANSMIT};
use hypervisor::machine::description::VirtioSlot;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

/// Frames for what comes.
const INCOMING: usize = 64;
/// Frames for what comes at most: beside those that the device has, each VM may have some in its queue.
const MOST_INCOMING: usize = INCOMING + MAX_VMS * SHARE;
/// Descriptors for what goes: two for each frame.
const OUTGOING: usize = 256;

/// In front of a frame that goes: there is nothing to be done about it.
static PLAIN: [u8; HEADER] = [0; HEADER];

/// The device.
pub struct NetDevice {
    transport: MmioTransport<'static>,
    incoming: Box<VirtQueue<HeapHal, INCOMING>>,
    outgoing: Box<VirtQueue<HeapHal, OUTGOING>>,
    /// Frames for what comes, that the device has not.
    free: Vec<Arc<Frame>>,
    /// The number of frames that the device has.
    given: usize,
    /// The frames that the device has, by token.
    offered: Box<[Option<Arc<Frame>>; INCOMING]>,
    /// Frames that it sends, by token.
    sent: Box<[Option<Arc<Frame>>; OUTGOING]>,
}

impl NetDevice {
    /// Opens the network device at a place for one, if there is one.
    pub fn open(slot: &VirtioSlot) -> Option<Self> {
        let mut opened = Opened::open(slot, DeviceType::Network, MRG_RXBUF | VERSION_1)?;
        // Else its header is a shorter one.
        if opened.features == 0 {
            return None;
        }
        let incoming = opened.queue(RECEIVE as u16)?;
        let mut outgoing = opened.queue(TRANSMIT as u16)?;
        // What was sent is looked after when more is.
        outgoing.set_dev_notify(false);
        let (transport, _) = opened.start();
        let (free, given) = (Vec::new(), 0);
        let (offered, sent) = (Box::new(array::from_fn(|_| None)), Box::new(array::from_fn(|_| None)));
        let mut device = Self { transport, incoming, outgoing, free, given, offered, sent };
        device.make_room();
        Some(device)
    }
}

impl HostNetwork for NetDevice {
    fn receive(&mut self) -> Option<Arc<Frame>> {
        loop {
            // The interrupt was noticed before this looks.
            fence(Ordering::SeqCst);
            let token = self.incoming.peek_used()?;
            let offered = self.offered.get_mut(usize::from(token)).and_then(Option::take);
            let Some(mut frame) = offered else { panic!("a network device has filled what it was not given") };
            let Some(inside) = Arc::get_mut(&mut frame) else { unreachable!("a frame that the device has is shared") };
            // SAFETY: the buffer that it was given.
            let popped = unsafe { self.incoming.pop_used(token, &[], &mut [inside.room()]) };
            // What is longer is in several of them: one that is full is no frame. The last is taken for one, and is the world's own affair.
            let is_frame = popped.is_ok_and(|length| inside.fill(length as usize));
            self.free.push(Arc::clone(&frame));
            self.given -= 1;
            if is_frame {
                return Some(frame);
            }
        }
    }

    fn make_room(&mut self) -> bool {
        let mut at = 0;
        while self.given < INCOMING {
            if at == self.free.len() {
                // VMs have all others.
                if self.given + at == MOST_INCOMING {
                    break;
                }
                self.free.push(Arc::default());
            }
            let Some(inside) = Arc::get_mut(&mut self.free[at]) else {
                at += 1;
                continue;
            };
            // SAFETY: the frame stays where it is, and has no other user until the device has filled it.
            let added = unsafe { self.incoming.add(&[], &mut [inside.room()]) };
            let Ok(token) = added else { break };
            self.offered[usize::from(token)] = Some(self.free.swap_remove(at));
            self.given += 1;
        }
        notify(&mut self.transport, &self.incoming, RECEIVE as u16);
        self.given >= INCOMING / 2
    }

    fn send(&mut self, frame: &Arc<Frame>) -> Result<(), Full> {
        self.reclaim();
        // SAFETY: the frame is kept, and not written, until the device has done with it.
        let added = unsafe { self.outgoing.add(&[&PLAIN, frame.content()], &mut []) };
        let token = added.map_err(|_| Full)?;
        self.sent[usize::from(token)] = Some(Arc::clone(frame));
        Ok(())
    }

    fn reclaim(&mut self) {
        while let Some(token) = self.outgoing.peek_used() {
            let sent = self.sent.get_mut(usize::from(token)).and_then(Option::take);
            let Some(frame) = sent else { panic!("a network device has sent what it was not given") };
            // SAFETY: what it was given.
            let popped = unsafe { self.outgoing.pop_used(token, &[&PLAIN, frame.content()], &mut []) };
            assert!(popped.is_ok(), "a network device mixes up what it has sent");
        }
    }

    fn notify(&mut self) {
        notify(&mut self.transport, &self.outgoing, TRANSMIT as u16);
    }

    fn acknowledge(&mut self) {
        let _ = self.transport.ack_interrupt();
    }
}
