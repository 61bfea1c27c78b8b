//! The host's virtio block device that Gnomon pages to: the one whose serial says so.

use alloc::alloc::{alloc_zeroed, dealloc};
use alloc::boxed::Box;
use core::alloc::Layout;
use core::array;
use core::ptr::{self, NonNull};
use hypervisor::machine::{Machine, VirtioSlot};
use hypervisor::pager::{Disk, IoError, NotBegun, Token, Way};
use mmu::gstage::SwapSlot;
use rv::{Hpa, PAGE_BYTES, Pfn};
use virtio_drivers::device::blk::{BlkReq, BlkResp, SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport};
use virtio_drivers::{BufferDirection, Error, Hal, PhysAddr};

/// The serial of the device (`-device virtio-blk-device,serial=...`).
const SERIAL: &[u8] = abi::SWAP_SERIAL.as_bytes();
/// Sectors of a page.
const SECTORS: u64 = PAGE_BYTES / SECTOR_SIZE as u64;
/// The driver's tokens are below this: numbers of descriptors.
const TOKENS: usize = 16;

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

/// What the device reads and writes of a request, beside the page.
struct Pending {
    way: Way,
    frame: Pfn<Hpa>,
    request: BlkReq,
    response: BlkResp,
}

/// The device.
pub struct SwapDisk {
    device: VirtIOBlk<HeapHal, MmioTransport<'static>>,
    /// By token.
    pending: [Option<Box<Pending>>; TOKENS],
}

impl SwapDisk {
    /// Finds it among the machine's devices, and its PLIC source.
    pub fn find(machine: &Machine) -> Option<(Self, u32)> {
        machine.virtio.iter().find_map(|slot| Some((Self::open(slot)?, slot.source)))
    }

    fn open(slot: &VirtioSlot) -> Option<Self> {
        let header = NonNull::new(ptr::with_exposed_provenance_mut::<VirtIOHeader>(slot.span.start as usize))?;
        // SAFETY: a virtio-mmio slot that the device tree names, and that is nobody else's.
        let transport = unsafe { MmioTransport::new(header, slot.span.bytes as usize) }.ok()?;
        if transport.device_type() != DeviceType::Block {
            return None;
        }
        let mut device = VirtIOBlk::new(transport).ok()?;
        let mut serial = [0; 20];
        let length = device.device_id(&mut serial).ok()?;
        if serial[..length] != *SERIAL || device.readonly() {
            return None;
        }
        device.enable_interrupts();
        Some(Self { device, pending: array::from_fn(|_| None) })
    }
}

/// The bytes of a frame that is the device's for the time of a request.
///
/// # Safety
/// Nobody else reaches the frame, or nobody minds what it holds.
unsafe fn bytes<'a>(frame: Pfn<Hpa>) -> &'a mut [u8] {
    let at = ptr::with_exposed_provenance_mut(frame.base().raw() as usize);
    // SAFETY: RAM without Rust objects; by the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(at, PAGE_BYTES as usize) }
}

impl Disk for SwapDisk {
    fn pages(&self) -> u64 {
        self.device.capacity() / SECTORS
    }

    fn begin(&mut self, way: Way, slot: SwapSlot, frame: Pfn<Hpa>) -> Result<Token, NotBegun> {
        let pending = Pending { way, frame, request: BlkReq::default(), response: BlkResp::default() };
        let mut pending = Box::new(pending);
        let Pending { request, response, .. } = &mut *pending;
        let sector = (slot.0 * SECTORS) as usize;
        // SAFETY: all three stay where they are until the request is finished; the frame is the device's so long.
        let begun = unsafe {
            match way {
                Way::In => self.device.read_blocks_nb(sector, request, bytes(frame), response),
                Way::Out => self.device.write_blocks_nb(sector, request, bytes(frame), response),
            }
        };
        match begun {
            Ok(token) => {
                self.pending[usize::from(token)] = Some(pending);
                Ok(Token(token))
            }
            Err(Error::QueueFull) => Err(NotBegun::Busy),
            Err(_) => Err(NotBegun::Failed),
        }
    }

    fn finished(&mut self) -> Option<(Token, Result<(), IoError>)> {
        // Before it is looked at: what is finished after that interrupts anew.
        let _ = self.device.ack_interrupt();
        let token = self.device.peek_used()?;
        Some(self.complete(token))
    }
}

impl SwapDisk {
    fn complete(&mut self, token: u16) -> (Token, Result<(), IoError>) {
        let pending = self.pending.get_mut(usize::from(token)).and_then(Option::take);
        let Some(mut pending) = pending else { panic!("the swap device has finished what was not begun") };
        let Pending { way, frame, request, response } = &mut *pending;
        // SAFETY: what the request was begun with.
        let result = unsafe {
            match way {
                Way::In => self.device.complete_read_blocks(token, request, bytes(*frame), response),
                Way::Out => self.device.complete_write_blocks(token, request, bytes(*frame), response),
            }
        };
        (Token(token), result.map_err(|_| IoError))
    }
}
