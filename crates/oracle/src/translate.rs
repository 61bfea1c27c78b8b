//! The effect of a hart's access to an address, step by step.
//!
//! The rules are those of the privileged specification's "Virtual Address Translation Process" and
//! "Two-Stage Address Translation"; each line that obeys one names it. Everything is a number here,
//! so that no type of ours can hide a mistake of ours.

use crate::machine::Machine;
use rv::Access;

/// Memory as the oracle needs it: aligned words, some of which exist.
pub trait Words {
    /// The word at `at`, if there is memory.
    fn load(&mut self, at: u64) -> Option<u64>;
    /// Writes a word that exists.
    fn store(&mut self, at: u64, value: u64);
}

impl Words for Machine {
    fn load(&mut self, at: u64) -> Option<u64> {
        self.peek(at)
    }
    fn store(&mut self, at: u64, value: u64) {
        self.poke(at, value);
    }
}

/// The setter of A and D bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ad {
    /// Svade: a page fault takes the place of the update.
    Fault,
    /// Svadu: the hardware.
    Hardware,
}

/// A stage that is not Bare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    /// LEVELS: 3, 4 or 5.
    pub levels: u32,
    /// The address of the root table.
    pub root: u64,
    /// The setter of A and D bits.
    pub ad: Ad,
    /// Svnapot is implemented.
    pub svnapot: bool,
    /// Svpbmt is enabled for this stage.
    pub svpbmt: bool,
}

/// All that an access depends on besides memory. The effective V is 1, or `g` is `None` and the VS
/// fields stand for `satp` and `sstatus` of one-stage translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// `vsatp`, unless Bare.
    pub vs: Option<Table>,
    /// `hgatp`, unless Bare.
    pub g: Option<Table>,
    /// The kind of access.
    pub access: Access,
    /// True for VU, false for VS.
    pub user: bool,
    /// `vsstatus.SUM`.
    pub sum: bool,
    /// `vsstatus.MXR`.
    pub vs_mxr: bool,
    /// `sstatus.MXR` of HS.
    pub hs_mxr: bool,
}

/// A trap, by the values of its registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Raised {
    /// `scause`.
    pub cause: u64,
    /// `stval`.
    pub tval: u64,
    /// `htval`.
    pub htval: u64,
    /// `htinst`, where the spec leaves no choice; 0 for explicit accesses.
    pub htinst: u64,
}

/// The physical address, or the trap.
pub type Outcome = Result<u64, Raised>;

/// The reason for which a translation stops.
enum Stop {
    /// A page fault of the VS-stage.
    Page,
    /// A guest-page fault at this guest physical address, with this `htinst`.
    Guest(u64, u64),
    /// An access fault.
    Access,
}

/// The rights that an access needs of a stage's leaf.
struct Need {
    access: Access,
    user: bool,
    sum: bool,
    mxr: bool,
}

/// Translates the guest's access to `gva`, and updates A and D where hardware does.
pub fn translate(mem: &mut impl Words, ctx: &Context, gva: u64) -> Outcome {
    both_stages(mem, ctx, gva).map_err(|stop| {
        // norm:H_vm_gpapriv: the exception is that of the original access type. HLVX is a load.
        let column = match ctx.access {
            Access::Fetch => 0,
            Access::Load | Access::LoadExec => 1,
            Access::Store => 2,
        };
        match stop {
            Stop::Access => Raised { cause: [1, 5, 7][column], tval: gva, htval: 0, htinst: 0 },
            Stop::Page => Raised { cause: [12, 13, 15][column], tval: gva, htval: 0, htinst: 0 },
            // norm:htval_trapval_param: the guest physical address shifted right by 2 bits.
            Stop::Guest(gpa, htinst) => Raised { cause: [20, 21, 23][column], tval: gva, htval: gpa >> 2, htinst },
        }
    })
}

fn both_stages(mem: &mut impl Words, ctx: &Context, gva: u64) -> Result<u64, Stop> {
    // norm:sstatus-mxr_vm: HS's MXR counts in both stages; norm:vsstatus-mxr_vm: VS's only in the first.
    let explicit = Need { access: ctx.access, user: true, sum: false, mxr: ctx.hs_mxr };
    let gpa = match &ctx.vs {
        None => gva,
        Some(table) => {
            let need = Need { access: ctx.access, user: ctx.user, sum: ctx.sum, mxr: ctx.vs_mxr || ctx.hs_mxr };
            vs_stage(mem, ctx, table, gva, &need)?
        }
    };
    g_stage(mem, ctx, gpa, &explicit, 0)
}

/// The VS-stage: its references go through the G-stage (norm:H_vm_gstagetrans).
fn vs_stage(mem: &mut impl Words, ctx: &Context, table: &Table, gva: u64, need: &Need) -> Result<u64, Stop> {
    // "Instruction fetch addresses and load and store effective addresses must have bits 63–39 all
    // equal to bit 38, or else a page-fault exception will occur" (Sv39; likewise the others).
    let bits = 12 + 9 * table.levels;
    let upper = gva as i64 >> (bits - 1);
    if upper != 0 && upper != -1 {
        return Err(Stop::Page);
    }
    let mut a = table.root;
    for i in (0..table.levels).rev() {
        let pte_gpa = a + ((gva >> (12 + 9 * i)) & 511) * 8;
        // norm:H_vm_gpapriv: checked as an implicit user load, and MXR is about explicit loads.
        let read = Need { access: Access::Load, user: true, sum: false, mxr: false };
        let pte_hpa = g_stage(mem, ctx, pte_gpa, &read, 0x3000)?;
        let pte = mem.load(pte_hpa).ok_or(Stop::Access)?;
        match step(pte, i, gva, table, need) {
            Step::Fault => return Err(Stop::Page),
            Step::Next(next) => a = next,
            Step::Leaf { out, set: 0 } => return Ok(out),
            Step::Leaf { out, set } => {
                if table.ad == Ad::Fault {
                    return Err(Stop::Page);
                }
                let write = Need { access: Access::Store, user: true, sum: false, mxr: false };
                let pte_hpa = g_stage(mem, ctx, pte_gpa, &write, 0x3020)?;
                mem.store(pte_hpa, pte | set);
                return Ok(out);
            }
        }
    }
    Err(Stop::Page)
}

/// The G-stage, for an explicit access (`htinst` 0) or an implicit one.
fn g_stage(mem: &mut impl Words, ctx: &Context, gpa: u64, need: &Need, htinst: u64) -> Result<u64, Stop> {
    let Some(table) = &ctx.g else { return Ok(gpa) };
    // norm:H_vm_gpatrans: two more bits than the VS-stage format, zero above them.
    let bits = 14 + 9 * table.levels;
    if gpa >> bits != 0 {
        return Err(Stop::Guest(gpa, htinst));
    }
    let mut a = table.root;
    for i in (0..table.levels).rev() {
        let mask = if i == table.levels - 1 { 2047 } else { 511 };
        let at = a + ((gpa >> (12 + 9 * i)) & mask) * 8;
        let pte = mem.load(at).ok_or(Stop::Access)?;
        match step(pte, i, gpa, table, need) {
            Step::Fault => break,
            Step::Next(next) => a = next,
            Step::Leaf { out, set: 0 } => return Ok(out),
            Step::Leaf { out, set } => {
                if table.ad == Ad::Fault {
                    break;
                }
                mem.store(at, pte | set);
                return Ok(out);
            }
        }
    }
    Err(Stop::Guest(gpa, htinst))
}

enum Step {
    Fault,
    /// The address of the next table.
    Next(u64),
    /// The translated address, and the bits of A and D that must be set first.
    Leaf {
        out: u64,
        set: u64,
    },
}

/// The meaning of one entry of level `i` for the access.
fn step(pte: u64, i: u32, va: u64, table: &Table, need: &Need) -> Step {
    let bit = |n: u32| pte >> n & 1 == 1;
    let (v, r, w, x, u, a, d) = (bit(0), bit(1), bit(2), bit(3), bit(4), bit(6), bit(7));
    let (pbmt, n) = (pte >> 61 & 3, bit(63));
    let ppn = pte >> 10 & ((1 << 44) - 1);
    // Invalid, reserved (W without R), or bits 60–54 set.
    if !v || (!r && w) || pte >> 54 & 0x7f != 0 {
        return Step::Fault;
    }
    // Bits 62–61 without Svpbmt, 63 without Svnapot; PBMT=3.
    if (pbmt != 0 && !table.svpbmt) || (n && !table.svnapot) || pbmt == 3 {
        return Step::Fault;
    }
    if !r && !x {
        // "For non-leaf PTEs, the D, A, and U bits are reserved"; N and PBMT, too. None at level 0.
        if i == 0 || a || d || u || n || pbmt != 0 {
            return Step::Fault;
        }
        return Step::Next(ppn << 12);
    }
    // norm:Sv39_superpage_align_fault.
    let low_ppn = ppn & ((1 << (9 * i)) - 1);
    if low_ppn != 0 {
        return Step::Fault;
    }
    // Svnapot: only 64 KiB, ppn[3:0] = 1000, only at level 0.
    let mut span = 12 + 9 * i;
    let mut base = ppn;
    if n {
        if i != 0 || ppn & 15 != 8 {
            return Step::Fault;
        }
        span = 16;
        base = ppn & !15;
    }
    let permitted = match need.access {
        Access::Load => r || (need.mxr && x),
        Access::Store => w,
        Access::Fetch => x,
        Access::LoadExec => x,
    };
    let privileged = if need.user {
        u
    } else if u {
        // SUM permits loads and stores of S mode to user pages; S mode never executes them.
        need.sum && need.access != Access::Fetch
    } else {
        true
    };
    if !permitted || !privileged {
        return Step::Fault;
    }
    let store = need.access == Access::Store;
    let set = u64::from(!a) << 6 | u64::from(store && !d) << 7;
    Step::Leaf { out: base << 12 | va & ((1 << span) - 1), set }
}
