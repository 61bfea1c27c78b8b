//! A driver, and a model of the host's device that finishes requests when it is told to.

use super::super::*;
use crate::backend::disks::{Clears, HostDisk, IoError, MOST_LENT, Token, UNITS};
use crate::backend::port::HostDevice;
use crate::device::interface::Answer;
use crate::device::interface::tests::RAM;
use crate::device::virtio::Mmio;
pub(super) use crate::device::virtio::driver::{DEVICE, DRIVER, Driver, ENTRIES, TABLE, TABLES};
pub(super) use crate::random::Random;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use core::ops::{Deref, DerefMut};
use mmu::frames::{Loan, Piece};

/// Sectors of the disk.
pub(super) const SECTORS: u64 = 4096;
/// Headers, one for each, and behind them each one's status.
pub(super) const HEADERS: u64 = RAM + 0x1_1000;
pub(super) const STATUSES: u64 = RAM + 0x1_2000;
/// Data: 256 KiB for each.
pub(super) const DATA: u64 = RAM + 0x2_0000;
pub(super) const DATA_BYTES: u64 = 256 << 10;
/// The number of requests that are made at a time.
pub(super) const MOST_MADE: usize = 8;

pub(super) const NEW: u8 = 0xee;
/// The byte that is read from discarded sectors.
pub(super) const DISCARDED: u8 = 0xd5;

/// A request that the host's device has finished, what has come of it, and what it has read of what was lent for it.
type Done = (Token, Asked, Result<(), IoError>, Option<Vec<u8>>);

/// The state of the host's device, beside its buffer.
pub(super) struct Model {
    pub(super) sectors: Vec<u8>,
    pub(super) is_read_only: bool,
    pub(super) clears: Clears,
    /// The requests that it has begun.
    pub(super) begun: Vec<(Token, Asked)>,
    /// Most pieces that are lent to it for one request: none, and it is asked by way of its buffer.
    pub(super) most_pieces: usize,
    /// The memory that was lent for them.
    pub(super) lent: BTreeMap<u16, Loan>,
    /// The requests that it reports as finished next.
    pub(super) done: VecDeque<Done>,
    pub(super) tokens: u16,
    /// The number of requests that it takes at a time.
    pub(super) most: usize,
    /// Set if it takes none at all.
    pub(super) is_broken: bool,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            sectors: vec![0; (SECTORS * SECTOR) as usize],
            is_read_only: false,
            clears: Clears { most_discarded: 2048, alignment: 8, most_zeroed: 1024, may_unmap: true },
            begun: Vec::new(),
            most_pieces: 254,
            lent: BTreeMap::new(),
            done: VecDeque::new(),
            tokens: 0,
            most: 16,
            is_broken: false,
        }
    }

    pub(super) fn is_flying(&self, units: Units) -> bool {
        let end = |units: Units| units.first + units.count;
        let mut flying = self.begun.iter().map(|(_, asked)| asked).chain(self.done.iter().map(|(_, asked, ..)| asked));
        flying.any(|asked| units.first < end(asked.units) && asked.units.first < end(units))
    }

    /// Finishes one of the requests that it has begun. The memory that was lent for it is in that RAM, and lent no
    /// more.
    pub(super) fn finish(&mut self, at: usize, result: Result<(), IoError>, ram: &[u8]) {
        let (token, asked) = self.begun.remove(at);
        let read = |loan: Loan| {
            let bytes = |piece: &Piece| &ram[(piece.start.raw() - RAM) as usize..][..piece.bytes];
            loan.pieces().iter().flat_map(bytes).copied().collect()
        };
        let read = self.lent.remove(&token.0).map(read);
        self.done.push_back((token, asked, result, read));
    }

    /// Begins something.
    fn begin(&mut self, asked: Asked) -> Result<Token, NotBegun> {
        assert!(!(self.is_read_only && asked.operation.changes()), "{asked:?}");
        assert!(asked.sector + (asked.bytes as u64).div_ceil(SECTOR) <= SECTORS, "{asked:?} is behind the end");
        if self.is_broken {
            return Err(NotBegun::Failed);
        }
        if self.begun.len() + self.done.len() >= self.most {
            return Err(NotBegun::Busy);
        }
        self.tokens = self.tokens.wrapping_add(1);
        let token = Token(self.tokens);
        self.begun.push((token, asked));
        Ok(token)
    }
}

pub(super) struct ModelDisk {
    pub(super) model: Arc<Mutex<Model>>,
    pub(super) buffer: Vec<u8>,
}

impl HostDisk for ModelDisk {
    fn sectors(&self) -> u64 {
        SECTORS
    }
    fn is_read_only(&self) -> bool {
        self.model.lock().is_read_only
    }
    fn has_cache(&self) -> bool {
        true
    }
    fn clears(&self) -> Clears {
        self.model.lock().clears
    }
    fn most_pieces(&self) -> usize {
        self.model.lock().most_pieces
    }
    fn begin_lent(&mut self, sector: u64, loan: Loan) -> Result<Token, NotBegun> {
        let mut model = self.model.lock();
        let bytes = loan.bytes();
        assert!(bytes != 0 && bytes.is_multiple_of(SECTOR as usize) && bytes <= MOST_LENT, "{loan:?}");
        assert!(
            loan.pieces().len() <= model.most_pieces && loan.pieces().iter().all(|piece| piece.bytes != 0),
            "{loan:?}"
        );
        let token = model.begin(Asked { operation: Operation::Write, sector, units: Units::NONE, bytes })?;
        model.lent.insert(token.0, loan);
        Ok(token)
    }
}

impl HostDevice for ModelDisk {
    type Asked = Asked;
    type Outcome = Result<(), IoError>;

    fn buffer(&mut self, units: Units) -> &mut [u8] {
        assert!(!self.model.lock().is_flying(units), "{units:?} are the device's");
        &mut self.buffer[units.first * UNIT_BYTES..][..units.bytes()]
    }
    fn begin(&mut self, asked: &Asked) -> Result<Token, NotBegun> {
        let mut model = self.model.lock();
        match asked.operation {
            Operation::Read | Operation::Write => {
                assert!(asked.bytes <= asked.units.bytes() && !model.is_flying(asked.units), "{asked:?}");
            }
            Operation::Flush => assert_eq!((asked.bytes, asked.units), (0, Units::NONE)),
            other => {
                let most = model.clears.most(other).expect("what it does not know, it is not asked");
                assert!(asked.bytes as u64 <= u64::from(most) * SECTOR && asked.units == Units::NONE, "{asked:?}");
            }
        }
        model.begin(*asked)
    }
    fn finished(&mut self) -> Option<(Token, Result<(), IoError>)> {
        let mut model = self.model.lock();
        let (token, asked, result, lent) = model.done.pop_front()?;
        let sector = (asked.sector * SECTOR) as usize;
        let in_units = if asked.operation.has_data() && lent.is_none() { asked.bytes } else { 0 };
        let buffer = &mut self.buffer[asked.units.first * UNIT_BYTES..][..in_units];
        match (asked.operation, result) {
            (Operation::Zero | Operation::ZeroUnmap, Ok(())) => model.sectors[sector..sector + asked.bytes].fill(0),
            // Whatever is left there: not what was.
            (Operation::Discard, Ok(())) => model.sectors[sector..sector + asked.bytes].fill(DISCARDED),
            (Operation::Read, Ok(())) => buffer.copy_from_slice(&model.sectors[sector..sector + asked.bytes]),
            (Operation::Write, Ok(())) => {
                model.sectors[sector..sector + asked.bytes].copy_from_slice(lent.as_deref().unwrap_or(buffer));
            }
            _ => {}
        }
        Some((token, result))
    }
    fn acknowledge(&mut self) {}
}

/// Returns the segment of a request to clear sectors.
pub(super) fn segment(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

/// A request that was made, and has not come back.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) kind: u32,
    pub(super) sector: u64,
    pub(super) bytes: u64,
    pub(super) content: Vec<u8>,
    /// The queue by which it was made, once it was.
    pub(super) queue: usize,
}

impl Made {
    /// Returns a request that is still to be made.
    pub(super) const fn new(kind: u32, sector: u64, bytes: u64, content: Vec<u8>) -> Self {
        Self { kind, sector, bytes, content, queue: 0 }
    }
}

/// A driver that has set up its device.
pub(super) struct Rig {
    driver: Driver<Block>,
    pub(super) port: Arc<Mutex<Port>>,
    pub(super) model: Arc<Mutex<Model>>,
    /// By place.
    pub(super) made: [Option<Made>; MOST_MADE],
    /// Set if each side says from where on it wants to hear from the other.
    pub(super) has_events: bool,
    /// By queue: how much was available when it last thought of notifying.
    pub(super) told: Vec<u16>,
}

impl Deref for Rig {
    type Target = Driver<Block>;

    fn deref(&self) -> &Driver<Block> {
        &self.driver
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Driver<Block> {
        &mut self.driver
    }
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with_queues(1)
    }

    pub(super) fn with_queues(queues: usize) -> Self {
        let model = Arc::new(Mutex::new(Model::new()));
        let device = ModelDisk { model: Arc::clone(&model), buffer: vec![0; UNITS * UNIT_BYTES] };
        let port = Arc::new(Mutex::new(Port::new(Box::new(device))));
        let ram = (DATA - RAM + DATA_BYTES * MOST_MADE as u64) as usize;
        let block = Block::new(Arc::clone(&port), "a disk with a name that is too long", queues as u32, 10_000_000);
        let driver = Driver::with_queues(Mmio::new(0x1000_2000, 2, block), ram, queues);
        let told = vec![0; queues];
        let mut rig = Self { driver, port, model, made: [const { None }; 8], has_events: false, told };
        rig.start();
        rig
    }

    /// Resets the device and sets it up. By then the host's device has finished with lent memory.
    pub(super) fn start(&mut self) {
        while self.set(0x070, 0) == Answer::Again {
            self.finish_one_lent();
        }
        self.made.fill(None);
        self.told.fill(0);
        let events = u32::from(self.has_events) << 29;
        let several = u32::from(self.told.len() > 1) << 12;
        self.driver.start(1 << 9 | several | 1 << 28 | events, ENTRIES);
    }

    pub(super) fn bytes(&self, gpa: u64, bytes: u64) -> &[u8] {
        self.driver.bytes(gpa, bytes as usize)
    }

    /// Makes the buffers of a request, cut where the driver likes.
    pub(super) fn request(&mut self, place: usize, made: Made, cuts: &[u32]) {
        let at = place as u64;
        let (header, status, data) = (HEADERS + 64 * at, STATUSES + at, DATA + DATA_BYTES * at);
        let words = [made.kind.into(), made.sector];
        self.poke(header, words.map(u64::to_le_bytes).as_flattened());
        self.poke(status, &[NEW]);
        let is_out = matches!(made.kind, T_OUT | T_DISCARD | T_WRITE_ZEROES);
        if is_out {
            self.poke(data, &made.content);
        }
        // What is cleared has no data but its segment, which is the content.
        let there = if is_out { made.content.len() as u64 } else { made.bytes };
        let mut buffers = vec![(header, 16, false)];
        let (mut done, mut cuts) = (0, cuts.iter());
        while done < there {
            let bytes = cuts.next().map_or(there - done, |cut| u64::from(*cut).min(there - done));
            buffers.push((data + done, bytes as u32, !is_out));
            done += bytes;
        }
        buffers.push((status, 1, true));
        self.chain(place, &buffers);
        self.made[place] = Some(Made { queue: self.chosen(), ..made });
    }

    /// Notifies of the queue that is meant until the device goes on no more by that.
    pub(super) fn notify_once(&mut self) {
        let queue = self.chosen() as u32;
        let done = (0..10_000).any(|_| self.set(0x050, queue) == Answer::Done(()));
        assert!(done, "a notification comes to an end");
    }

    /// Notifies the device, and gives it the moments that it asks for.
    pub(super) fn notify(&mut self) {
        self.notify_once();
        self.settle();
    }

    /// Notifies if the device wants to hear of what was made available.
    pub(super) fn notify_if_wanted(&mut self) {
        let event = self.bytes(self.ring(DEVICE + 4 + 8 * 64), 2).try_into().map(u16::from_le_bytes).unwrap();
        let (queue, available) = (self.chosen(), self.available);
        let new = available.wrapping_sub(core::mem::replace(&mut self.told[queue], available));
        if available.wrapping_sub(event).wrapping_sub(1) < new {
            self.notify_once();
        }
    }

    /// Gives it moments as long as it asks for them.
    pub(super) fn settle(&mut self) {
        for _ in 0..100_000 {
            if !core::mem::take(&mut self.world.is_soon) {
                return;
            }
            self.driver.moment();
        }
        panic!("it asks for moments for ever");
    }

    /// Finishes the first request with lent memory, as the host's device.
    pub(super) fn finish_one_lent(&mut self) {
        let model = self.model.lock();
        let at = model.begun.iter().position(|(token, _)| model.lent.contains_key(&token.0));
        drop(model);
        self.finish_unsaid(at.expect("something is lent"), Ok(()));
    }

    /// Finishes a request, as the host's device, and does not interrupt yet.
    pub(super) fn finish_unsaid(&mut self, at: usize, result: Result<(), IoError>) {
        let model = Arc::clone(&self.model);
        model.lock().finish(at, result, &self.world.ram);
    }

    /// Finishes a request, as the host's device, and interrupts.
    pub(super) fn finish(&mut self, at: usize, result: Result<(), IoError>) {
        self.finish_unsaid(at, result);
        self.port.lock().attend();
        self.driver.moment();
        self.settle();
    }

    pub(super) fn finish_all(&mut self) {
        while !self.model.lock().begun.is_empty() {
            self.finish(0, Ok(()));
        }
    }

    /// Returns the requests that have come back, by whichever queue: places, the request that was made there, the
    /// status, and the number of bytes written.
    pub(super) fn come_back(&mut self) -> Vec<(usize, Made, u8, u32)> {
        let (mut all, chosen) = (Vec::new(), self.chosen());
        for queue in 0..self.told.len() {
            self.choose(queue);
            for (place, written) in self.used() {
                let made = self.made[place].take().expect("it was made and has not come back");
                assert_eq!(made.queue, queue, "it comes back as it came");
                all.push((place, made, self.bytes(STATUSES + place as u64, 1)[0], written));
            }
        }
        self.choose(chosen);
        all
    }

    /// Makes one request and has it done; returns its status, and how much was written.
    pub(super) fn do_one(&mut self, kind: u32, sector: u64, bytes: u64, content: Vec<u8>) -> (u8, u32) {
        self.request(0, Made::new(kind, sector, bytes, content), &[]);
        self.notify();
        self.finish_all();
        let [(_, _, status, written)] = self.come_back().try_into().expect("it comes back");
        (status, written)
    }

    pub(super) fn free_units(&self) -> usize {
        let mut port = self.port.lock();
        let taken: Vec<Units> = core::iter::from_fn(|| port.take(1)).collect();
        taken.iter().for_each(|units| port.give(*units));
        taken.len()
    }
}
