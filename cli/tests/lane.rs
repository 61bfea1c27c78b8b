//! The lane's assembly, as it stands in the built hypervisor, executed on a hart of the test's own (`lane/hart.rs`) beside
//! what docs/lane.md says of it: every register, every word of memory, and what other harts and the TLB see, in its order.

#[path = "lane/hart.rs"]
mod hart;
#[path = "lane/image.rs"]
mod image;
#[path = "lane/insn.rs"]
mod insn;

use hart::{Event, Hart, Stuck};
use image::{CONTEXT, FENCE_MASK, Image, LANE, MARK, NEVER, SFENCE_VMA, VALID, WAYS, Way, X, lane_table};
use rv::context::token;
use rv::{Context, FenceLog, Lane};
use std::collections::BTreeMap;
use std::mem::size_of;

const TABLES: u64 = 0x9000_0000;
/// Tables of each level.
const TABLES_EACH: u64 = 3;
const INDICES: [u64; 4] = [0, 1, 5, 511];

/// Executes from a trap on until it returns, or arrives at the full path. Tells each instruction's address.
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

/// Random numbers, always the same (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    fn any<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A trap as the lane finds it, and what is known of it.
struct Scene {
    hart: Hart,
    levels: u64,
}

fn table(level: u64, number: u64) -> u64 {
    TABLES + (level * TABLES_EACH + number) * 4096
}

impl Scene {
    fn new(way: &Way, image: &Image, levels: u64, lane_table: u64, random: &mut Random) -> Self {
        let mut memory = BTreeMap::new();
        memory.extend((0..size_of::<Context>() as u64 / 8).map(|word| (CONTEXT + 8 * word, random.next())));
        for level in 0..levels {
            for number in 0..TABLES_EACH {
                let at = table(level, number);
                for index in INDICES {
                    let pointer = table(level.saturating_sub(1), random.below(TABLES_EACH)) >> 2 | VALID;
                    let leaf = (random.next() & 0xfff) << 10 | 0xdf;
                    let entry = match (level, random.below(16)) {
                        (0, 0..8) | (_, 0) => leaf,
                        (0, _) => random.next() & !1,
                        (_, 1) => pointer,
                        (_, 2) if random.below(2) == 0 => 0,
                        _ => pointer | MARK,
                    };
                    memory.insert(at + 8 * index, entry);
                }
            }
        }
        let asid = random.any(&[0, 1, 7, 0xffff]);
        let is_on = random.below(8) != 0;
        let vcpu = random.below(1 << 13) as u32;
        let token = token::start(vcpu) + token::STEP * (random.next() & 0xffff_ffff);
        let head = token::start_of_log(vcpu) + token::STEP * (random.next() & 0xffff_ffff);
        for (at, value) in [
            (Lane::MASK_AT, FENCE_MASK),
            (Lane::MATCHES_AT, if is_on { SFENCE_VMA } else { NEVER }),
            (Lane::ROOT_AT, table(levels - 1, random.below(TABLES_EACH)) + Lane::POINTER_FLAGS),
            (Lane::ASID_AT, if random.below(8) == 0 { NEVER } else { asid }),
            (Lane::TOKEN_AT, token),
            (Lane::TABLE_AT, lane_table),
            (Lane::LOG_HEAD_AT, head),
        ] {
            memory.insert(LANE + at as u64, value);
        }
        let mut x: [u64; 32] = std::array::from_fn(|_| match random.below(5) {
            0 | 1 => asid,
            2 => asid | 1 << (16 + random.below(48)),
            _ => {
                let indices: u64 = (0..levels).map(|level| random.any(&INDICES) << (12 + 9 * level)).sum();
                let upper = if random.below(4) == 0 { random.next() << (12 + 9 * levels) } else { 0 };
                indices | upper | random.below(4096)
            }
        });
        x[0] = 0;
        let registers = random.below(32) << 15 | if random.below(3) == 0 { 0 } else { random.below(32) << 20 };
        let insn = match random.below(16) {
            0 => 0,
            1 => random.any(&[0x1600_0073, 0x2200_0073, 0x1800_0073, 0x1200_1073, 0x1200_00f3]) | registers,
            _ => SFENCE_VMA | registers,
        };
        let cause = if random.below(16) == 0 { random.any(&[2, 8, 10, 13, 22, 1 << 63 | 2]) } else { way.fence };
        let status = random.next() & !way.supervisor | if random.below(16) == 0 { 0 } else { way.supervisor };
        let pc = random.next() & !1;
        let csrs =
            [(way.scratch, CONTEXT), (way.epc, pc), (way.cause, cause), (way.tval, insn), (way.status, status)].into();
        let zeroes = TABLES..table(levels, 0);
        Self { hart: Hart { x, pc: image.at(way.vector), csrs, memory, zeroes, events: Vec::new() }, levels }
    }

    fn lane(&self, at: usize) -> u64 {
        self.hart.memory[&(LANE + at as u64)]
    }

    /// Whether the lane is to take the trap: then the fence's address, and whether it is of the running ASID alone.
    fn fence(&self, way: &Way) -> Option<(u64, bool)> {
        let csr = |number| self.hart.csrs[&number];
        let insn = csr(way.tval);
        let (rs1, rs2) = ((insn >> 15 & 31) as usize, (insn >> 20 & 31) as usize);
        let is_fence = csr(way.cause) == way.fence
            && csr(way.status) & way.supervisor != 0
            && insn & FENCE_MASK == self.lane(Lane::MATCHES_AT)
            && rs1 != 0;
        let is_known = rs2 == 0 || self.hart.x[rs2] == self.lane(Lane::ASID_AT);
        (is_fence && is_known).then_some((self.hart.x[rs1], rs2 != 0))
    }

    /// The level-0 entry of an address, if marked pointers lead there.
    fn entry(&self, address: u64) -> Option<u64> {
        let mut table = self.lane(Lane::ROOT_AT) - Lane::POINTER_FLAGS;
        for level in (0..self.levels).rev() {
            let at = table + 8 * (address >> (12 + 9 * level) & 511);
            if level == 0 {
                return Some(at);
            }
            let pte = self.hart.memory.get(&at).copied().unwrap_or(0);
            if pte & MARK == 0 {
                return None;
            }
            table = pte >> 10 << 12;
        }
        None
    }

    /// What docs/lane.md says that the hart looks like when the guest goes on. `None`: it is left to the full path.
    fn after(&self, way: &Way) -> Option<Hart> {
        let (address, by_asid) = self.fence(way)?;
        let entry = self.entry(address)?;
        let mut hart = self.hart.clone();
        (29..32).for_each(|n| _ = hart.memory.insert(X + 8 * n, self.hart.x[n as usize]));
        let counter = if by_asid { Lane::TOKEN_AT } else { Lane::LOG_HEAD_AT };
        let token = self.lane(counter) + token::STEP;
        hart.memory.insert(LANE + counter as u64, token);
        if !by_asid {
            let slot = token / token::STEP % <FenceLog>::LENGTH;
            hart.memory.insert(LANE + Lane::LOG_RING_AT as u64 + 8 * slot, address);
        }
        hart.memory.insert(entry, token);
        let epc = hart.csrs.get_mut(&way.epc).expect("it is there");
        *epc = epc.wrapping_add(4);
        hart.events = vec![
            Event::Fence(0b11, 0b01),
            Event::Store { at: entry, value: token },
            Event::Forget { address, is_virtual: way.is_virtual },
            Event::Return(way.xret),
        ];
        Some(hart)
    }

    /// Whether the code does what it should with this trap; if not, what it did.
    fn check(&self, way: &Way, image: &Image, tell: impl FnMut(u64)) -> Result<bool, String> {
        let full = image.at(way.full);
        let mut hart = self.hart.clone();
        run(image, &mut hart, full, tell).map_err(|Stuck(what)| what)?;
        // Others see what is stored to tables; the context is the hart's own.
        hart.events.retain(|event| !matches!(event, Event::Store { at, .. } if *at < TABLES));
        let mut expected = self.after(way).unwrap_or_else(|| {
            let mut expected = self.hart.clone();
            (29..32).for_each(|n| _ = expected.memory.insert(X + 8 * n, self.hart.x[n as usize]));
            expected.csrs.insert(way.scratch, self.hart.x[10]);
            expected.x[10] = CONTEXT;
            // They are in the context.
            expected.x[29..].copy_from_slice(&hart.x[29..]);
            expected.pc = full;
            expected
        });
        let is_taken = !expected.events.is_empty();
        if is_taken {
            expected.pc = hart.pc;
        }
        if hart == expected { Ok(is_taken) } else { Err(format!("{:?}", hart.events)) }
    }
}

#[test]
fn the_lane_does_what_is_said_of_it() {
    let image = Image::read();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for way in WAYS {
        for (levels, zba) in [(3, 0), (3, 1), (4, 0), (4, 1), (5, 0), (5, 1)] {
            let name = lane_table(&way, levels, zba);
            let mut taken = 0;
            for number in 0..1000 {
                let scene = Scene::new(&way, &image, levels, image.at(&name), &mut random);
                let result = scene.check(&way, &image, |_| ());
                taken += u64::from(result.unwrap_or_else(|what| panic!("{name}, trap {number}: {what}")));
            }
            assert!((100..800).contains(&taken), "{name}: of 1000 traps the lane took {taken}");
        }
    }
}

/// Traps that are tried for each turned bit.
const MOST_TRIED: usize = 200;

/// Each instruction that the lane executes is left out, and each of its bits is turned: the check above has to see it. All that
/// are left out are found, but for jumps: behind some is code that comes to the same. Of the turned bits some change
/// nothing: those that mask what is zero anyway, and those that make a branch to the full path another one to it.
#[test]
fn a_changed_instruction_is_found() {
    const NOTHING: [(u32, usize); 2] = [(0x13, 4), (1, 2)];
    let mut image = Image::read();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for (way, levels, zba) in [(WAYS[0], 3, 1), (WAYS[1], 4, 0), (WAYS[2], 5, 1)] {
        let lane_table = image.at(&lane_table(&way, levels, zba));
        let scenes: Vec<_> = (0..10_000).map(|_| Scene::new(&way, &image, levels, lane_table, &mut random)).collect();
        let mut executed = BTreeMap::<u64, Vec<usize>>::new();
        for (number, scene) in scenes.iter().enumerate() {
            scene.check(&way, &image, |pc| executed.entry(pc).or_default().push(number)).expect("the lane is right");
        }
        let (mut turned, mut found) = (0, 0);
        for (pc, by) in executed {
            let (insn, bytes) = image.insn(pc);
            let mut is_found = |mutant, most| {
                image.set_insn(pc, mutant);
                let mut tried = by.iter().take(most);
                let is_found = tried.any(|number| scenes[*number].check(&way, &image, |_| ()).is_err());
                image.set_insn(pc, (insn, bytes));
                is_found
            };
            let is_jump = bytes == 4 && insn & 0xfff == 0x6f;
            let nothing = NOTHING.into_iter().find(|(_, its)| *its == bytes).expect("both lengths");
            assert!(
                is_jump || is_found(nothing, usize::MAX),
                "{}: the lane does not need {insn:#x} at {pc:#x}",
                way.tag
            );
            turned += 8 * bytes;
            found += (0..8 * bytes).filter(|bit| is_found((insn ^ 1 << bit, bytes), MOST_TRIED)).count();
        }
        println!("{}: of {turned} turned bits {found} are found", way.tag);
        assert!(found * 20 >= turned * 19, "{}: of {turned} turned bits only {found} are found", way.tag);
    }
}
