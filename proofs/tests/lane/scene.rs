//! Traps as the lane finds them, made at random, and what docs/lane.md says that comes of them.

use super::hart::{Event, Hart, Stuck};
use super::image::{
    Block, CONTEXT, FENCE_MASK, Image, LANE, MARK, NEVER, READS_SATP, SFENCE_VMA, VALID, WRITES_SATP, X,
};
use super::memory::Memory;
use super::roots;
use super::steered::{self, Chunk, LINE};
use lane::context::token;
use lane::{Context, FenceLog, Lane};
use mmu::table::{State, Writer, poison_pointer};
use rv::{Level, Pte};
use std::mem::size_of;

const TABLES: u64 = 0x9000_0000;
/// Tables of each level.
const TABLES_EACH: u64 = 3;
/// Indices of the entries that tables have.
pub const INDICES: [u64; 4] = [0, 1, 5, 511];

/// Random numbers, always the same (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    pub fn any<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Returns true once in `n` times, at random.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A trap, and what is known of it.
#[derive(Clone)]
pub struct Scene {
    pub block: Block,
    pub hart: Hart,
    /// The chunks of guest memory, in blocks that synchronise entries.
    pub chunks: Vec<Chunk>,
}

/// The end of the marked pointers that an address selects.
pub enum Place {
    /// To this entry of level 0, of the table of that number.
    Entry(u64, u64),
    /// To an entry that is none of them, of that level.
    Other(u64, u64),
}

/// The result of a trap.
pub struct After {
    /// The result's name.
    pub what: &'static str,
    pub hart: Hart,
    /// True if the trap is passed on.
    pub is_left: bool,
}

/// The address of a table. There is a frame before each, for its header.
fn table(level: u64, number: u64) -> u64 {
    TABLES + (2 * (level * TABLES_EACH + number) + 1) * 4096
}

/// Executes from a trap on until it returns, or is passed on. Tells each instruction's address.
fn run(image: &Image, hart: &mut Hart, full: u64, mut tell: impl FnMut(u64)) -> Result<(), Stuck> {
    for _ in 0..200 {
        if hart.pc == full || matches!(hart.events.last(), Some(Event::Return(_))) {
            return Ok(());
        }
        tell(hart.pc);
        hart.step(|at| image.half(at))?;
    }
    Err(Stuck("it goes on for ever".into()))
}

impl Scene {
    pub fn new(block: &Block, image: &Image, random: &mut Random) -> Self {
        let Block { way, levels, syncs, .. } = *block;
        let guests = if syncs { steered::GUESTS..steered::GUESTS + TABLES_EACH * 4096 } else { 0..0 };
        let mut memory = Memory::new([table(0, 0)..table(levels, 0), guests], steered::CONSTANTS);
        (0..size_of::<Context>() as u64 / 8).for_each(|word| memory.set(CONTEXT + 8 * word, random.next()));
        let asid = random.any(&[0, 1, 7, 0xffff]);
        let vcpu = random.below(1 << 13) as u32;
        let token = token::start(vcpu) + token::STEP * (random.next() & 0xffff_ffff);
        let head = token::start_of_log(vcpu) + token::STEP * (random.next() & 0xffff_ffff);
        for (at, value) in [
            (Lane::MASK_AT, FENCE_MASK),
            (Lane::MATCHES_AT, if random.once_in(8) { NEVER } else { SFENCE_VMA }),
            (Lane::ROOT_AT, table(levels - 1, random.below(TABLES_EACH)) + Lane::POINTER_FLAGS),
            (Lane::ASID_AT, if random.once_in(8) { NEVER } else { asid }),
            (Lane::TOKEN_AT, token),
            (Lane::TABLE_AT, image.at(&block.table())),
            (Lane::LOG_HEAD_AT, head),
        ] {
            memory.set(LANE + at as u64, value);
        }
        let mut x: [u64; 32] = std::array::from_fn(|_| match random.below(5) {
            0 | 1 => asid,
            2 => asid | 1 << (16 + random.below(48)),
            _ => {
                let indices: u64 = (0..levels).map(|level| random.any(&INDICES) << (12 + 9 * level)).sum();
                let upper = if random.once_in(4) { random.next() << (12 + 9 * levels) } else { 0 };
                indices | upper | random.below(4096)
            }
        });
        let epoch = syncs.then(|| {
            steered::furnish_rest(&mut memory, (0..TABLES_EACH).map(|number| table(levels - 1, number)), random)
        });
        let writes = roots::furnish(&mut memory, epoch, random);
        x = writes.unwrap_or(x);
        x[0] = 0;
        let registers = random.below(32) << 15 | if random.once_in(3) { 0 } else { random.below(32) << 20 };
        let insn = match random.below(16) {
            0 => 0,
            1 => random.any(&[0x1600_0073, 0x2200_0073, 0x1800_0073, 0x1200_1073, 0x1200_00f3]) | registers,
            // Of a few it is no write: others that read or write it, and other registers.
            2 => {
                random.any(&[0x1800_2073, 0x1800_10f3, 0x1800_5073, 0x1810_1073, 0x1400_1073]) | registers & !(31 << 20)
            }
            3 if random.once_in(2) => READS_SATP | random.below(32) << 7,
            4 if syncs => SFENCE_VMA | if random.once_in(4) { registers & !(31 << 15) } else { 0 },
            _ if writes.is_some() => WRITES_SATP | registers & !(31 << 20),
            _ => SFENCE_VMA | registers,
        };
        let cause = if random.once_in(16) { random.any(&[2, 8, 10, 13, 22, 1 << 63 | 2]) } else { way.fence };
        let status = random.next() & !way.supervisor | if random.once_in(16) { 0 } else { way.supervisor };
        let pc = random.next() & !1;
        let csrs = [
            (way.scratch, CONTEXT),
            (way.epc, pc),
            (way.cause, cause),
            (way.tval, insn),
            (way.status, status),
            (way.satp, random.next()),
        ]
        .into();
        for level in 0..levels {
            for number in 0..TABLES_EACH {
                for index in INDICES {
                    let pointer = table(level.saturating_sub(1), random.below(TABLES_EACH)) >> 2 | VALID;
                    let leaf = (random.next() & 0xfff) << 10 | 0xdf;
                    let entry = match (level, random.below(16)) {
                        (0, 0..8) | (_, 0) => leaf,
                        (0, _) => random.next() & !1,
                        (_, 1) => pointer,
                        (_, 2) if syncs => poison_pointer().0,
                        (_, 2) if random.once_in(2) => 0,
                        _ => pointer | MARK,
                    };
                    memory.set(table(level, number) + 8 * index, entry);
                }
            }
        }
        let tables = (0..TABLES_EACH).map(|number| table(0, number));
        let chunks = if syncs { steered::furnish(&mut memory, tables, random) } else { Vec::new() };
        let hart = Hart { x, pc: image.at(way.vector), csrs, memory, events: Vec::new() };
        Self { block: *block, hart, chunks }
    }

    pub fn lane(&self, at: usize) -> u64 {
        self.hart.memory.word(LANE + at as u64)
    }

    /// The instruction that has trapped, if it is of the cause that fences have, and from supervisor mode.
    pub fn insn(&self) -> Option<u64> {
        let way = self.block.way;
        let csr = |number| self.hart.csrs[&number];
        let may_be = csr(way.cause) == way.fence && csr(way.status) & way.supervisor != 0;
        may_be.then(|| csr(way.tval))
    }

    /// The fence's address, and whether it is of the running ASID alone, if the lane is to take the trap.
    pub fn fence(&self) -> Option<(u64, bool)> {
        let insn = self.insn()?;
        let (rs1, rs2) = ((insn >> 15 & 31) as usize, (insn >> 20 & 31) as usize);
        let is_fence = insn & FENCE_MASK == self.lane(Lane::MATCHES_AT) && rs1 != 0;
        let is_known = rs2 == 0 || self.hart.x[rs2] == self.lane(Lane::ASID_AT);
        (is_fence && is_known).then_some((self.hart.x[rs1], rs2 != 0))
    }

    /// Returns whether the lane is to take the trap for a fence of all addresses and all ASIDs.
    pub fn is_wide(&self) -> bool {
        let is_of_all = |insn| insn & (FENCE_MASK | 31 << 15 | 31 << 20) == self.lane(Lane::MATCHES_AT);
        self.block.syncs && self.insn().is_some_and(is_of_all)
    }

    /// Follows the marked pointers that an address selects.
    pub fn place(&self, address: u64) -> Place {
        let mut table = self.lane(Lane::ROOT_AT) - Lane::POINTER_FLAGS;
        for level in (0..self.block.levels).rev() {
            let at = table + 8 * (address >> (12 + 9 * level) & 511);
            if level == 0 {
                return Place::Entry(table, at);
            }
            let pte = self.hart.memory.get(at).unwrap_or(0);
            if pte & MARK == 0 {
                return Place::Other(pte, level);
            }
            table = pte >> 10 << 12;
        }
        unreachable!("there is a level 0")
    }

    /// The number of levels that an address is followed down.
    pub fn levels_walked(&self, address: u64) -> u64 {
        match self.place(address) {
            Place::Entry(..) => self.block.levels,
            Place::Other(_, level) => self.block.levels - level,
        }
    }

    /// The result of the trap by docs/lane.md.
    fn after(&self) -> After {
        if let Some(written) = self.written() {
            return self.after_write(written);
        }
        if let Some(register) = self.read() {
            return self.after_read(register);
        }
        if self.is_wide() {
            return self.after_wide();
        }
        let Some((address, by_asid)) = self.fence() else { return self.left("no fence") };
        if self.block.syncs {
            return self.after_sync(address, by_asid);
        }
        let Place::Entry(_, at) = self.place(address) else { return self.left("no way down") };
        let mut hart = self.hart.clone();
        let counter = if by_asid { Lane::TOKEN_AT } else { Lane::LOG_HEAD_AT };
        let value = self.lane(counter) + token::STEP;
        hart.memory.set(LANE + counter as u64, value);
        assert!(State::of(Pte(value)).may_be_made_by(Writer::Lane, Level::PAGE));
        hart.memory.set(at, value);
        hart.events = vec![Event::Fence(0b11, 0b01), Event::Store { at, value }];
        self.taken("a token", hart, (address, by_asid))
    }

    /// The result of passing the trap on, with t4 to t6 in the context.
    pub fn left(&self, what: &'static str) -> After {
        let (way, mut hart) = (self.block.way, self.hart.clone());
        hart.csrs.insert(way.scratch, self.hart.x[10]);
        hart.x[10] = CONTEXT;
        (29..32).for_each(|n| hart.memory.set(X + 8 * n, self.hart.x[n as usize]));
        After { what, hart, is_left: true }
    }

    /// The guest goes on after its fence. What `hart` has done already is the entry's part.
    pub fn taken(&self, what: &'static str, mut hart: Hart, (address, by_asid): (u64, bool)) -> After {
        if !by_asid {
            let head = self.lane(Lane::LOG_HEAD_AT) + token::STEP;
            hart.memory.set(LANE + Lane::LOG_HEAD_AT as u64, head);
            let slot = head / token::STEP % <FenceLog>::LENGTH;
            hart.memory.set(LANE + Lane::LOG_RING_AT as u64 + 8 * slot, address);
        } else if self.block.syncs {
            hart.memory.set(LANE + Lane::TOKEN_AT as u64, self.lane(Lane::TOKEN_AT) + token::STEP);
        }
        hart.events.push(Event::Forget { address, is_virtual: self.block.way.is_virtual });
        self.goes_on(what, hart)
    }

    /// The guest goes on behind its instruction; t4 to t6 have been in the context.
    pub fn goes_on(&self, what: &'static str, mut hart: Hart) -> After {
        let way = self.block.way;
        (29..32).for_each(|n| hart.memory.set(X + 8 * n, self.hart.x[n as usize]));
        let epc = hart.csrs.get_mut(&way.epc).expect("it is there");
        *epc = epc.wrapping_add(4);
        hart.events.push(Event::Return(way.xret));
        After { what, hart, is_left: false }
    }

    /// Compares the code with the expected result. Returns the result's name, or what the code did instead.
    pub fn check(&self, image: &Image, tell: impl FnMut(u64)) -> Result<&'static str, String> {
        let full = image.at(self.block.way.full);
        let mut hart = self.hart.clone();
        run(image, &mut hart, full, tell).map_err(|Stuck(what)| what)?;
        let After { what, hart: mut expected, is_left } = self.after();
        if is_left {
            // They are in the context.
            expected.x[29..].copy_from_slice(&hart.x[29..]);
            expected.pc = full;
        } else {
            expected.pc = hart.pc;
        }
        // Other harts see what is stored elsewhere; the context is the hart's own. What is behind the log's end is not
        // read.
        let nobodys = if is_left { self.line().map_or(0..0, |line| line..line + LINE) } else { 0..0 };
        hart.events.retain(|event| !matches!(event, Event::Store { at, .. } if *at < TABLES || nobodys.contains(at)));
        for at in nobodys.step_by(8).filter(|at| hart.memory.get(*at).is_some()) {
            expected.memory.set(at, hart.memory.word(at));
        }
        if hart == expected { Ok(what) } else { Err(format!("{what}, but it did {:?}", hart.events)) }
    }
}
