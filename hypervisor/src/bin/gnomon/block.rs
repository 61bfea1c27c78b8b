//! A virtio block device of the host's: the one that Gnomon pages to, or one that is a guest's disk.
//!
//! The queue is that of the crate `virtio-drivers`; its driver of block devices would wait for a flush.

use alloc::alloc::{alloc_zeroed, dealloc};
use alloc::boxed::Box;
use alloc::string::String;
use core::alloc::Layout;
use core::array;
use core::hint::spin_loop;
use core::ptr::{self, NonNull};
use core::sync::atomic::{Ordering, fence};
use hypervisor::device::virtio::wire::block::{FLUSH, HEADER, NAME, READ_ONLY, S_OK, T_FLUSH, T_GET_ID, T_IN, T_OUT};
use hypervisor::device::virtio::wire::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use hypervisor::disks::{IoError, MOST_FLYING, NotBegun, Operation, Token};
use hypervisor::machine::VirtioSlot;
use rv::{Addr, Hpa, PAGE_BYTES};
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

const QUEUE: u16 = 0;

/// Memory for the driver, whose addresses are physical ones in both seats.
struct HeapHal;

fn layout(pages: usize) -> Layout {
    let bytes = pages * PAGE_BYTES as usize;
    Layout::from_size_align(bytes, PAGE_BYTES as usize).unwrap_or_else(|_| panic!("{pages} pages for a queue"))
}

// SAFETY: memory of the heap's, nobody else's until it is given back; and what the device is to see is where it says.
unsafe impl Hal for HeapHal {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // SAFETY: not of size 0.
        let at = NonNull::new(unsafe { alloc_zeroed(layout(pages)) });
        at.map_or((0, NonNull::dangling()), |at| (at.as_ptr().expose_provenance() as u64, at))
    }

    unsafe fn dma_dealloc(_: PhysAddr, at: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: by the caller's promise.
        unsafe { dealloc(at.as_ptr(), layout(pages)) };
        0
    }

    unsafe fn mmio_phys_to_virt(at: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(ptr::with_exposed_provenance_mut(at as usize)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.as_ptr().cast::<u8>().expose_provenance() as u64
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// Bytes of host RAM.
#[derive(Clone, Copy)]
pub struct Piece {
    /// Where they are.
    pub start: Addr<Hpa>,
    /// How many.
    pub bytes: usize,
}

impl Piece {
    /// The bytes.
    ///
    /// # Safety
    /// RAM without Rust objects, that nobody else reaches so long, or nobody minds what it holds.
    pub unsafe fn bytes<'a>(self) -> &'a mut [u8] {
        let at = ptr::with_exposed_provenance_mut(self.start.raw() as usize);
        // SAFETY: by the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(at, self.bytes) }
    }
}

/// What the device reads and writes of a request, beside the data.
struct Pending {
    /// Type, a reserved word, sector.
    header: [u8; HEADER],
    status: [u8; 1],
    /// Whether the device writes the data.
    is_read: bool,
    data: Option<Piece>,
}

impl Pending {
    fn new(kind: u32, sector: u64, data: Option<Piece>) -> Box<Self> {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        // What the device does not write is no success.
        Box::new(Self { header, status: [u8::MAX], is_read: matches!(kind, T_IN | T_GET_ID), data })
    }

    /// Does something with its buffers: what the device reads, and what it writes.
    ///
    /// # Safety
    /// As for [`Piece::bytes`].
    unsafe fn with_buffers<R>(&mut self, act: impl for<'a> FnOnce(&'a [&'a [u8]], &'a mut [&'a mut [u8]]) -> R) -> R {
        let Self { header, status, is_read, data } = self;
        // SAFETY: by the caller's promise.
        match data.map(|data| unsafe { data.bytes() }) {
            None => act(&[header], &mut [status]),
            Some(data) if *is_read => act(&[header], &mut [data, status]),
            Some(data) => act(&[header, data], &mut [status]),
        }
    }
}

/// The device.
pub struct BlockDevice {
    transport: MmioTransport<'static>,
    queue: VirtQueue<HeapHal, MOST_FLYING>,
    sectors: u64,
    features: u64,
    /// By token.
    pending: [Option<Box<Pending>>; MOST_FLYING],
}

impl BlockDevice {
    /// Opens the block device at a place for one, if there is one. Returns its serial as well.
    pub fn open(slot: &VirtioSlot) -> Option<(Self, String)> {
        let header = NonNull::new(ptr::with_exposed_provenance_mut::<VirtIOHeader>(slot.span.start as usize))?;
        // SAFETY: a virtio-mmio slot that the device tree names, and that is nobody else's.
        let mut transport = unsafe { MmioTransport::new(header, slot.span.bytes as usize) }.ok()?;
        if transport.device_type() != DeviceType::Block {
            return None;
        }
        transport.set_status(DeviceStatus::empty());
        let mut status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
        transport.set_status(status);
        let wanted = READ_ONLY | FLUSH | INDIRECT_DESC | EVENT_IDX | VERSION_1;
        let features = transport.read_device_features() & wanted;
        transport.write_driver_features(features);
        status |= DeviceStatus::FEATURES_OK;
        transport.set_status(status);
        transport.set_guest_page_size(PAGE_BYTES as u32);
        let has = |feature| features & feature != 0;
        let queue = VirtQueue::new(&mut transport, QUEUE, has(INDIRECT_DESC), has(EVENT_IDX)).ok()?;
        transport.set_status(status | DeviceStatus::DRIVER_OK);
        let word = |offset| transport.read_config_space::<u32>(offset);
        let sectors = u64::from(word(0).ok()?) | u64::from(word(4).ok()?) << 32;
        let mut device = Self { transport, queue, sectors, features, pending: array::from_fn(|_| None) };
        let serial = device.serial()?;
        Some((device, serial))
    }

    /// Asks for the serial, and waits.
    fn serial(&mut self) -> Option<String> {
        let mut serial = Box::new([0; NAME]);
        let start = Addr::new(serial.as_mut_ptr().expose_provenance() as u64);
        self.add(Pending::new(T_GET_ID, 0, Some(Piece { start, bytes: NAME }))).ok()?;
        let result = loop {
            match self.finished() {
                Some((_, result)) => break result,
                None => spin_loop(),
            }
        };
        self.acknowledge();
        let length = serial.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        String::from_utf8(serial[..length].to_vec()).ok().filter(|_| result.is_ok())
    }

    /// How many sectors it has.
    pub const fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Whether nothing can be written.
    pub const fn is_read_only(&self) -> bool {
        self.features & READ_ONLY != 0
    }

    /// Whether it may hold back what was written until it is flushed.
    pub const fn has_cache(&self) -> bool {
        self.features & FLUSH != 0
    }

    /// Begins to do something. The data is the device's until that is finished: RAM without Rust objects, that nobody else reaches so
    /// long, or nobody minds what it holds.
    ///
    /// # Errors
    /// Why not. Nothing has happened then.
    pub fn begin(&mut self, operation: Operation, sector: u64, data: Piece) -> Result<Token, NotBegun> {
        let kind = match operation {
            Operation::Read => T_IN,
            Operation::Write => T_OUT,
            Operation::Flush => T_FLUSH,
        };
        self.add(Pending::new(kind, sector, Some(data).filter(|_| operation != Operation::Flush)))
    }

    fn add(&mut self, mut pending: Box<Pending>) -> Result<Token, NotBegun> {
        // SAFETY: all that it has stays where it is until the request is finished; the data is the device's so long.
        let added = unsafe { pending.with_buffers(|inputs, outputs| self.queue.add(inputs, outputs)) };
        let token = added.map_err(|error| match error {
            virtio_drivers::Error::QueueFull => NotBegun::Busy,
            _ => NotBegun::Failed,
        })?;
        self.pending[usize::from(token)] = Some(pending);
        if self.queue.should_notify() {
            self.transport.notify(QUEUE);
        }
        Ok(Token(token))
    }

    /// A request that was finished since the last time, and what has come of it.
    pub fn finished(&mut self) -> Option<(Token, Result<(), IoError>)> {
        // What was taken before is told to the device first: either it interrupts for what comes next, or that is seen here.
        fence(Ordering::SeqCst);
        let token = self.queue.peek_used()?;
        let pending = self.pending.get_mut(usize::from(token)).and_then(Option::take);
        let Some(mut pending) = pending else { panic!("a block device has finished what was not begun") };
        // SAFETY: what the request was begun with.
        let popped = unsafe { pending.with_buffers(|inputs, outputs| self.queue.pop_used(token, inputs, outputs)) };
        // Written by the device.
        // SAFETY: a byte of the box.
        let status = unsafe { (&raw const pending.status[0]).read_volatile() };
        Some((Token(token), if popped.is_ok() && status == S_OK { Ok(()) } else { Err(IoError) }))
    }

    /// Its interrupt is noticed: what is finished after this interrupts anew.
    pub fn acknowledge(&mut self) {
        let _ = self.transport.ack_interrupt();
    }
}
