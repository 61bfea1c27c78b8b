//! Requests for a disk of which many are on their way at once: Linux's asynchronous I/O (`io_submit`).

use super::{Failure, PAGE, call, number};
use core::ffi::CStr;

/// What is asked of the disk; the values are Linux's (`include/uapi/linux/aio_abi.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// To read.
    Read = 0,
    /// To write.
    Write = 1,
}

/// `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    /// What comes back with the answer: the number of the buffer.
    data: u64,
    key: u32,
    flags: u32,
    what: u16,
    priority: u16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: u64,
    reserved: [u64; 2],
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result_2: i64,
}

/// Most requests that are on their way at once.
pub const DEEPEST: usize = 64;

/// A disk, past Linux's cache.
#[derive(Debug)]
pub struct Disk {
    file: u32,
    context: usize,
}

impl Disk {
    /// Opens one, for so many requests at once.
    ///
    /// # Errors
    /// [`Failure::Call`].
    pub fn open(path: &CStr, depth: usize) -> Result<Self, Failure> {
        const HERE: usize = -100isize as usize;
        const READ_WRITE: usize = 2;
        const DIRECT: usize = 0x4000;
        let at = path.as_ptr().expose_provenance();
        let file = call("open", number::OPENAT, [HERE, at, READ_WRITE | DIRECT, 0, 0, 0])? as u32;
        let mut context = 0usize;
        call("io_setup", number::IO_SETUP, [depth, (&raw mut context).expose_provenance(), 0, 0, 0, 0])?;
        Ok(Self { file, context })
    }

    /// Makes requests until there are no more of them: as many at once as there are buffers, one in place of each that is done.
    /// `offset` says where request number so and so begins, `before` and `after` see its buffer; a request is as large as a buffer.
    ///
    /// # Errors
    /// [`Failure::Call`]; [`Failure::Wrong`] if a request fails, or `after` says so.
    pub fn run(
        &self,
        what: What,
        (count, buffers): (u64, &mut [&mut [[u8; PAGE]]]),
        mut offset: impl FnMut(u64) -> u64,
        mut before: impl FnMut(u64, &mut [[u8; PAGE]]),
        mut after: impl FnMut(u64, &[[u8; PAGE]]) -> bool,
    ) -> Result<(), Failure> {
        let mut offsets = [0; DEEPEST];
        let (mut asked, mut answered) = (0, 0);
        let mut ask = |slot: usize, buffers: &mut [&mut [[u8; PAGE]]], offsets: &mut [u64; DEEPEST]| {
            if asked == count {
                return Ok(());
            }
            let buffer = &mut *buffers[slot];
            offsets[slot] = offset(asked);
            asked += 1;
            before(offsets[slot], buffer);
            self.submit(what, (offsets[slot], slot), buffer)
        };
        for slot in 0..buffers.len() {
            ask(slot, buffers, &mut offsets)?;
        }
        while answered < count {
            let mut events = [Event::default(); DEEPEST];
            let into = events.as_mut_ptr().expose_provenance();
            let got = call("io_getevents", number::IO_GETEVENTS, [self.context, 1, DEEPEST, into, 0, 0])?;
            for event in &events[..got] {
                let slot = event.data as usize;
                let bytes = size_of_val(&*buffers[slot]);
                if event.result != bytes as i64 || !after(offsets[slot], buffers[slot]) {
                    return Err(Failure::Wrong("a request failed, or what was read is not what was written"));
                }
                answered += 1;
                ask(slot, buffers, &mut offsets)?;
            }
        }
        Ok(())
    }

    fn submit(&self, what: What, (offset, slot): (u64, usize), buffer: &mut [[u8; PAGE]]) -> Result<(), Failure> {
        let request = Request {
            data: slot as u64,
            what: what as u16,
            file: self.file,
            buffer: buffer.as_mut_ptr().expose_provenance() as u64,
            bytes: size_of_val(&*buffer) as u64,
            offset,
            ..Request::default()
        };
        let list = [(&raw const request).expose_provenance()];
        call("io_submit", number::IO_SUBMIT, [self.context, 1, list.as_ptr().expose_provenance(), 0, 0, 0]).map(drop)
    }
}
