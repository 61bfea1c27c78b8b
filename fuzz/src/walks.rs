//! The walker beside the oracle, over tables of any content; and the decoder of instructions that reach devices and tables.

use arbitrary::{Arbitrary, Result, Unstructured};
use mmu::{AdPolicy, ReadPte, Stage, Stages, UpdatePte, two_stage};
use oracle::{Ad, Context, Raised, Table, Words, translate};
use rv::format::{SV39, SV39X4, SV48, SV48X4, SV57, SV57X4};
use rv::insn::{MemInsn, MemOp, WordStore};
use rv::{Access, Addr, Caps, Format, Gva, Hpa, Mode, Pfn, Pte, Request};

/// Frames of memory, from 0.
const FRAMES: u64 = 24;
/// The G-stage's root has four.
const G_ROOT: u64 = 0;
const VS_ROOT: u64 = 4;

#[derive(Clone, PartialEq, Eq)]
struct Memory(Vec<u64>);

impl Words for Memory {
    fn load(&mut self, at: u64) -> Option<u64> {
        self.0.get((at / 8) as usize).copied()
    }
    fn store(&mut self, at: u64, value: u64) {
        self.0[(at / 8) as usize] = value;
    }
}

impl ReadPte<Hpa> for Memory {
    type Error = ();
    fn read(&mut self, at: Addr<Hpa>) -> std::result::Result<Pte, ()> {
        self.load(at.raw()).map(Pte).ok_or(())
    }
}

impl UpdatePte<Hpa> for Memory {
    fn update(&mut self, at: Addr<Hpa>, old: Pte, new: Pte) -> std::result::Result<bool, ()> {
        let same = self.load(at.raw()).ok_or(())? == old.0;
        if same {
            self.store(at.raw(), new.0);
        }
        Ok(same)
    }
}

/// An entry: mostly one that leads somewhere.
fn entry(u: &mut Unstructured<'_>) -> Result<u64> {
    let (frame, flags): (u8, u8) = (u.arbitrary()?, u.arbitrary()?);
    let high = if u.ratio(1, 8)? { u64::arbitrary(u)? } else { 0 };
    Ok((u64::from(frame) % (FRAMES + 2)) << 10 | u64::from(flags) ^ high << 8)
}

struct Case {
    memory: Memory,
    vs: Option<(&'static Format, Table)>,
    g: Option<(&'static Format, Table)>,
    request: Request,
    gva: u64,
}

fn case(u: &mut Unstructured<'_>) -> Result<Case> {
    let formats = [[&SV39, &SV39X4], [&SV48, &SV48X4], [&SV57, &SV57X4]];
    let stage = |u: &mut Unstructured<'_>, kind: usize, root: u64| -> Result<Option<(&'static Format, Table)>> {
        if u.ratio(1, 6)? {
            return Ok(None);
        }
        let [format, levels] = [u.choose_index(3)?; 2];
        let ad = if u.arbitrary()? { Ad::Hardware } else { Ad::Fault };
        let table = Table { levels: 3 + levels as u32, root, ad, svnapot: u.arbitrary()?, svpbmt: u.arbitrary()? };
        Ok(Some((formats[format][kind], table)))
    };
    let g = stage(u, 1, G_ROOT << 12)?;
    let vs = stage(u, 0, VS_ROOT << 12)?;
    let access = *u.choose(&[Access::Load, Access::Store, Access::Fetch, Access::LoadExec])?;
    let mode = if u.arbitrary()? { Mode::User } else { Mode::Supervisor };
    let request = Request { access, mode, sum: u.arbitrary()?, mxr: u.arbitrary()?, hs_mxr: u.arbitrary()? };
    // Few different indices at each level, so that entries are met.
    let mut gva = u.int_in_range(0..=0xfff)?;
    for level in 0..5 {
        gva |= u.int_in_range(0..=3_u64)? << (12 + 9 * level);
    }
    if u.ratio(1, 8)? {
        gva ^= u64::arbitrary(u)?;
    }
    let mut memory = Memory(vec![0; (FRAMES * 512) as usize]);
    // What frames hold by default leads on: the first entries of each name the next frames.
    let spread: u64 = u.int_in_range(1..=5)?;
    for frame in 0..FRAMES {
        for index in 0..4 {
            let entry = if u.is_empty() { ((frame + spread + index) % FRAMES) << 10 | 0xdf } else { entry(u)? };
            memory.0[(frame * 512 + index) as usize] = entry;
        }
    }
    Ok(Case { memory, vs, g, request, gva })
}

fn engine_stage<S: rv::Space>((format, table): (&'static Format, Table)) -> Stage<S> {
    let ad = if table.ad == Ad::Hardware { AdPolicy::Svadu } else { AdPolicy::Svade };
    let caps = Caps { svnapot: table.svnapot, svpbmt: table.svpbmt };
    Stage { format, root: Pfn::new(table.root >> 12), caps, ad }
}

/// The walker and the oracle agree on the address or the whole trap, and on every word afterwards.
pub fn walks(data: &[u8]) {
    let Ok(Case { memory, vs, g, request, gva }) = case(&mut Unstructured::new(data)) else { return };
    let (mut ours, mut theirs) = (memory.clone(), memory);
    let stages = Stages { vs: vs.map(engine_stage), g: g.map(engine_stage) };
    let got = two_stage(&stages, Addr::<Gva>::new(gva), &request, &mut ours);
    let got = got.map(|arrival| arrival.hpa.raw()).map_err(|trap| Raised {
        cause: trap.exception.code(),
        tval: trap.tval,
        htval: trap.tval2,
        htinst: trap.tinst,
    });
    let context = Context {
        vs: vs.map(|stage| stage.1),
        g: g.map(|stage| stage.1),
        access: request.access,
        user: request.mode == Mode::User,
        sum: request.sum,
        vs_mxr: request.mxr,
        hs_mxr: request.hs_mxr,
    };
    assert_eq!(got, translate(&mut theirs, &context, gva), "{context:x?}, {gva:#x}");
    assert!(ours == theirs, "what hardware writes: {context:x?}, {gva:#x}");
}

/// An instruction means the same as it stands in memory and as hardware transforms it, is taken only for what it accesses
/// from the start, and a store changes its bytes only.
pub fn instructions(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let (Ok(insn), Ok(base), Ok(word), Ok(operand)) =
        (u32::arbitrary(&mut u), u64::arbitrary(&mut u), u64::arbitrary(&mut u), u64::arbitrary(&mut u))
    else {
        return;
    };
    let mut x = [0; 32];
    (1..32).for_each(|register| x[register] = base.wrapping_add(register as u64 * 0x1_0010));
    let at = begin(insn, &x);
    let decoded = MemInsn::decode(insn, &x, at);
    if insn & 3 == 3 {
        assert_eq!(MemInsn::decode(insn, &x, at ^ 8), None, "{insn:#x} does not begin there");
    }
    if let (Some(decoded), 3) = (decoded, insn & 3) {
        // At the start of a page it may be the second half of an access across two.
        let transformed = MemInsn::from_tinst(transformed(insn, decoded.op).into(), at | 8);
        assert_eq!(transformed, Some(decoded), "{insn:#x}");
    }
    let _ = (MemInsn::from_tinst(word, at), WordStore::from_tinst(word, at));
    if let Some(store) = WordStore::decode(insn, &x, at) {
        let offset = at % 8 / u64::from(store.width) * u64::from(store.width);
        let mask = u64::MAX >> (64 - 8 * u32::from(store.width)) << (8 * offset);
        assert_eq!(store.apply(word, offset, operand) & !mask, word & !mask, "{store:?} at {offset}");
        if let Some(MemInsn { op: MemOp::Store { rs, width }, length }) = decoded {
            assert_eq!((rs, width, length, 0), (store.rs, store.width, store.length, store.rd));
            assert_eq!(store.apply(word, offset, operand) & mask, operand << (8 * offset) & mask);
        }
    }
}

/// The first address of a load, a store or an AMO of 32 bits; some address for other instructions.
fn begin(insn: u32, x: &[u64; 32]) -> u64 {
    let offset = match insn & 0x7f {
        0x03 => insn as i32 >> 20,
        0x23 => insn as i32 >> 25 << 5 | (insn >> 7 & 0x1f) as i32,
        _ => 0,
    };
    x[(insn >> 15 & 0x1f) as usize].wrapping_add_signed(offset.into())
}

/// The value of `htinst` for a load or a store (privileged specification, "Transformed Instruction or Pseudoinstruction
/// for mtinst or htinst"): no offset, and rs1 cleared.
fn transformed(insn: u32, op: MemOp) -> u32 {
    const RS1: u32 = 0x1f << 15;
    match op {
        MemOp::Load { .. } => insn & !(RS1 | 0xfff << 20),
        MemOp::Store { .. } => insn & !(RS1 | 0x7f << 25 | 0x1f << 7),
    }
}
