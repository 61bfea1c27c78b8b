//! A virtio block device of the host's: the one that Gnomon pages to, or one that is a guest's disk.
//!
//! The queue is that of the crate `virtio-drivers`; its driver of block devices would wait for a flush.

use crate::buffer::bytes_of;
use crate::virtio::{HeapHal, Opened, notify};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::hint::spin_loop;
use core::sync::atomic::{Ordering, fence};
use hypervisor::backend::disks::{Clears, IoError, NotBegun, Operation, SECTOR, Token};
use hypervisor::device::virtio::wire::block::{
    DISCARD, FLUSH, HEADER, MAX_DISCARD_SECTORS, MAX_WRITE_ZEROES_SECTORS, NAME, READ_ONLY, S_OK, SEG_MAX, SEGMENT,
    SEGMENT_UNMAP, T_DISCARD, T_FLUSH, T_GET_ID, T_IN, T_OUT, T_WRITE_ZEROES, WRITE_ZEROES, WRITE_ZEROES_MAY_UNMAP,
};
use hypervisor::device::virtio::wire::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use hypervisor::machine::description::VirtioSlot;
use mmu::frames::{Loan, Piece};
use rv::Addr;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

const QUEUE: u16 = 0;
/// Entries of the queue, and so most buffers of a request.
const ENTRIES: usize = 256;
/// Most pieces of RAM for a request: there are its header and its status, too.
const MOST_PIECES: usize = ENTRIES - 2;

/// The part of a request between its header and its status.
enum Data {
    Nothing,
    /// Data that the device writes.
    In(Piece),
    /// Data that the device reads.
    Out(Piece),
    /// A guest's memory that the device reads.
    Lent(Loan),
    /// The segment that names the sectors.
    Segment([u8; SEGMENT]),
}

impl Data {
    fn segment(sector: u64, bytes: usize, flags: u32) -> Self {
        let sectors = u32::try_from(bytes as u64 / SECTOR);
        let sectors = sectors.unwrap_or_else(|_| panic!("{bytes} bytes are more than a segment can say"));
        let mut segment = [0; SEGMENT];
        segment[..8].copy_from_slice(&sector.to_le_bytes());
        segment[8..12].copy_from_slice(&sectors.to_le_bytes());
        segment[12..].copy_from_slice(&flags.to_le_bytes());
        Self::Segment(segment)
    }
}

/// The memory of a request that the device reads and writes.
struct Pending {
    /// Type, a reserved word, sector.
    header: [u8; HEADER],
    status: [u8; 1],
    data: Data,
}

impl Pending {
    fn new(kind: u32, sector: u64, data: Data) -> Box<Self> {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        // What the device does not write is no success.
        Box::new(Self { header, status: [u8::MAX], data })
    }

    /// Does something with its buffers: what the device reads, and what it writes.
    ///
    /// # Safety
    /// As for [`bytes_of`].
    unsafe fn with_buffers<R>(&mut self, act: impl for<'a> FnOnce(&'a [&'a [u8]], &'a mut [&'a mut [u8]]) -> R) -> R {
        let Self { header, status, data } = self;
        match data {
            Data::Nothing => act(&[header], &mut [status]),
            Data::Segment(segment) => act(&[header, segment], &mut [status]),
            // SAFETY: by the caller's promise.
            Data::In(piece) => act(&[header], &mut [unsafe { bytes_of(piece) }, status]),
            // SAFETY: the same.
            Data::Out(piece) => act(&[header, unsafe { bytes_of(piece) }], &mut [status]),
            Data::Lent(loan) => {
                let mut inputs = Vec::with_capacity(1 + loan.pieces().len());
                inputs.push(&header[..]);
                // SAFETY: the same; a guest may change what it has lent, and no code here reads it.
                inputs.extend(loan.pieces().iter().map(|piece| &*unsafe { bytes_of(piece) }));
                act(&inputs, &mut [status])
            }
        }
    }
}

/// The device.
pub struct BlockDevice {
    transport: MmioTransport<'static>,
    queue: Box<VirtQueue<HeapHal, ENTRIES>>,
    sectors: u64,
    features: u64,
    clears: Clears,
    most_pieces: usize,
    /// By token.
    pending: Box<[Option<Box<Pending>>; ENTRIES]>,
}

impl BlockDevice {
    /// Opens the block device at a place for one, if there is one. Returns its serial as well.
    pub fn open(slot: &VirtioSlot) -> Option<(Self, String)> {
        let wanted = SEG_MAX | READ_ONLY | FLUSH | DISCARD | WRITE_ZEROES | INDIRECT_DESC | EVENT_IDX | VERSION_1;
        let mut opened = Opened::open(slot, DeviceType::Block, wanted)?;
        let queue = opened.queue(QUEUE)?;
        let (transport, features) = opened.start();
        let word = |offset| transport.read_config_space::<u32>(offset);
        let sectors = u64::from(word(0).ok()?) | u64::from(word(4).ok()?) << 32;
        // A device that does not say takes one.
        let most_pieces = if features & SEG_MAX != 0 { word(12).ok()? as usize } else { 1 };
        let mut clears = Clears::default();
        if features & DISCARD != 0 {
            clears.most_discarded = word(MAX_DISCARD_SECTORS).ok()?;
            clears.alignment = word(MAX_DISCARD_SECTORS + 8).ok()?;
        }
        if features & WRITE_ZEROES != 0 {
            clears.most_zeroed = word(MAX_WRITE_ZEROES_SECTORS).ok()?;
            clears.may_unmap = transport.read_config_space::<u8>(WRITE_ZEROES_MAY_UNMAP).ok()? != 0;
        }
        let most_pieces = most_pieces.clamp(1, MOST_PIECES);
        let pending = Box::new([const { None }; ENTRIES]);
        let mut device = Self { transport, queue, sectors, features, clears, most_pieces, pending };
        let serial = device.serial()?;
        Some((device, serial))
    }

    /// Asks for the serial, and waits.
    fn serial(&mut self) -> Option<String> {
        let mut serial = Box::new([0; NAME]);
        let start = Addr::new(serial.as_mut_ptr().expose_provenance() as u64);
        self.add(Pending::new(T_GET_ID, 0, Data::In(Piece { start, bytes: NAME }))).ok()?;
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

    /// Returns the number of sectors.
    pub const fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns whether the disk cannot be written.
    pub const fn is_read_only(&self) -> bool {
        self.features & READ_ONLY != 0
    }

    /// Returns whether the disk may hold back written data until it is flushed.
    pub const fn has_cache(&self) -> bool {
        self.features & FLUSH != 0
    }

    /// Returns the ways in which it can clear sectors.
    pub const fn clears(&self) -> Clears {
        self.clears
    }

    /// Returns the most pieces of RAM that it reads for one request.
    pub const fn most_pieces(&self) -> usize {
        self.most_pieces
    }

    /// Begins to write what is lent, from that sector on. It is lent until that is finished.
    ///
    /// # Errors
    /// Why not. Nothing has happened then.
    pub fn begin_lent(&mut self, sector: u64, loan: Loan) -> Result<Token, NotBegun> {
        self.add(Pending::new(T_OUT, sector, Data::Lent(loan)))
    }

    /// Begins an operation. The piece is as long as the operation's range. If there is [data](Operation::has_data), the
    /// piece is the device's until that is finished: RAM without Rust objects, which is not otherwise accessed so long,
    /// or whose content does not matter.
    ///
    /// # Errors
    /// Why not. Nothing has happened then.
    pub fn begin(&mut self, operation: Operation, sector: u64, data: Piece) -> Result<Token, NotBegun> {
        self.add(match operation {
            Operation::Read => Pending::new(T_IN, sector, Data::In(data)),
            Operation::Write => Pending::new(T_OUT, sector, Data::Out(data)),
            Operation::Flush => Pending::new(T_FLUSH, 0, Data::Nothing),
            Operation::Discard => Pending::new(T_DISCARD, 0, Data::segment(sector, data.bytes, 0)),
            Operation::Zero => Pending::new(T_WRITE_ZEROES, 0, Data::segment(sector, data.bytes, 0)),
            Operation::ZeroUnmap => Pending::new(T_WRITE_ZEROES, 0, Data::segment(sector, data.bytes, SEGMENT_UNMAP)),
        })
    }

    fn add(&mut self, mut pending: Box<Pending>) -> Result<Token, NotBegun> {
        // SAFETY: all that it has stays where it is until the request is finished; the data is the device's so long.
        let added = unsafe { pending.with_buffers(|inputs, outputs| self.queue.add(inputs, outputs)) };
        let token = added.map_err(|error| match error {
            virtio_drivers::Error::QueueFull => NotBegun::Busy,
            _ => NotBegun::Failed,
        })?;
        self.pending[usize::from(token)] = Some(pending);
        notify(&mut self.transport, &self.queue, QUEUE);
        Ok(Token(token))
    }

    /// Returns a request that was finished since the last time, and its result.
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

    /// Acknowledges the device's interrupt: a request that is finished after this interrupts anew.
    pub fn acknowledge(&mut self) {
        let _ = self.transport.ack_interrupt();
    }
}
