//! A disk of the host's, which finishes requests when it is told to.

use super::Mem;
use hypervisor::backend::disks::{
    Asked, Clears, HostDisk, IoError, NotBegun, Operation, SECTOR, Token, UNIT_BYTES, UNITS, Units,
};
use hypervisor::backend::port::HostDevice;
use mmu::frames::Loan;
use rv::PhysMem;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Sectors that it has.
pub const SECTORS: u64 = 2048;

/// The state of the disk.
#[derive(Debug)]
pub struct Platters {
    pub sectors: Vec<u8>,
    /// The requests that were begun and are not finished, each with the memory that was lent for it.
    pub begun: Vec<(Token, Asked, Option<Loan>)>,
    done: Vec<(Token, Asked, Option<Loan>)>,
    tokens: u16,
}

impl Platters {
    /// Finishes all that was begun.
    pub fn finish(&mut self) {
        self.done.append(&mut self.begun);
    }

    fn begin(&mut self, asked: Asked, loan: Option<Loan>) -> Token {
        self.tokens = self.tokens.wrapping_add(1);
        let token = Token(self.tokens);
        self.begun.push((token, asked, loan));
        token
    }
}

thread_local! {
    /// The disks of the machine that was made last, by number.
    static DISKS: RefCell<BTreeMap<u32, Arc<Mutex<Platters>>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Returns the platters of a disk of the machine that was made last.
pub fn platters(number: u32) -> Arc<Mutex<Platters>> {
    DISKS.with_borrow(|all| all[&number].clone())
}

pub struct FakeDisk {
    platters: Arc<Mutex<Platters>>,
    buffer: Vec<u8>,
    mem: Mem,
}

impl FakeDisk {
    pub fn new(number: u32, mem: Mem) -> Self {
        let sectors = vec![0; (SECTORS * SECTOR) as usize];
        let platters = Platters { sectors, begun: Vec::new(), done: Vec::new(), tokens: 0 };
        let platters = Arc::new(Mutex::new(platters));
        DISKS.with_borrow_mut(|all| all.insert(number, platters.clone()));
        Self { platters, buffer: vec![0; UNITS * UNIT_BYTES], mem }
    }

    fn platters(&self) -> MutexGuard<'_, Platters> {
        self.platters.lock().unwrap()
    }
}

impl HostDisk for FakeDisk {
    fn sectors(&self) -> u64 {
        SECTORS
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn has_cache(&self) -> bool {
        true
    }
    fn most_pieces(&self) -> usize {
        254
    }
    fn begin_lent(&mut self, sector: u64, loan: Loan) -> Result<Token, NotBegun> {
        let asked = Asked { operation: Operation::Write, sector, units: Units::NONE, bytes: loan.bytes() };
        Ok(self.platters().begin(asked, Some(loan)))
    }
    fn clears(&self) -> Clears {
        Clears { most_discarded: 64, alignment: 8, most_zeroed: 64, may_unmap: true }
    }
}

impl HostDevice for FakeDisk {
    type Asked = Asked;
    type Outcome = Result<(), IoError>;

    fn buffer(&mut self, units: Units) -> &mut [u8] {
        &mut self.buffer[units.first * UNIT_BYTES..][..units.bytes()]
    }
    fn begin(&mut self, asked: &Asked) -> Result<Token, NotBegun> {
        Ok(self.platters().begin(*asked, None))
    }
    fn finished(&mut self) -> Option<(Token, Result<(), IoError>)> {
        let mut platters = self.platters.lock().unwrap();
        let (token, asked, loan) = platters.done.pop()?;
        let at = (asked.sector * SECTOR) as usize;
        let in_units = if asked.operation.has_data() && loan.is_none() { asked.bytes } else { 0 };
        let buffer = &mut self.buffer[asked.units.first * UNIT_BYTES..][..in_units];
        let sectors = &mut platters.sectors[at..at + asked.bytes];
        match asked.operation {
            Operation::Read => buffer.copy_from_slice(sectors),
            Operation::Write => match loan {
                // Read at the last moment.
                Some(loan) => {
                    let mut at = 0;
                    for piece in loan.pieces() {
                        self.mem.read_bytes(piece.start, &mut sectors[at..at + piece.bytes]);
                        at += piece.bytes;
                    }
                }
                None => sectors.copy_from_slice(buffer),
            },
            Operation::Flush | Operation::Discard => {}
            Operation::Zero | Operation::ZeroUnmap => sectors.fill(0),
        }
        Some((token, Ok(())))
    }
    fn acknowledge(&mut self) {}
}
