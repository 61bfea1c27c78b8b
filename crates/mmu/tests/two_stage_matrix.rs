//! Every permission of a VS-stage leaf, against every permission of a G-stage leaf, in every context
//! (style.md habit 9): the engine and the oracle must agree on the address or the whole trap, and on
//! every entry afterwards. Nothing is sampled.

use mmu::{AdPolicy, ReadPte, Stage, Stages, UpdatePte, two_stage};
use oracle::{Ad, Context, Raised, Table, Words, translate};
use rv::format::{SV39, SV39X4};
use rv::{Access, Addr, Caps, Gva, Hpa, Mode, Pfn, Pte, Request};

const PAGES: usize = 16;

/// 16 frames from 0: small and flat, because it is walked 2 x 12 million times.
#[derive(Clone, PartialEq, Eq)]
struct Flat([u64; PAGES * 512]);

impl Flat {
    fn at(at: u64) -> Option<usize> {
        (at < (PAGES as u64) << 12).then_some((at / 8) as usize)
    }
}

impl Words for Flat {
    fn load(&mut self, at: u64) -> Option<u64> {
        Self::at(at).map(|i| self.0[i])
    }
    fn store(&mut self, at: u64, value: u64) {
        self.0[Self::at(at).expect("only what was read is written")] = value;
    }
}

/// The engine's access to the frames.
struct Engine<'a>(&'a mut Flat);

impl ReadPte<Hpa> for Engine<'_> {
    type Error = ();
    fn read(&mut self, at: Addr<Hpa>) -> Result<Pte, ()> {
        self.0.load(at.raw()).map(Pte).ok_or(())
    }
}

impl UpdatePte<Hpa> for Engine<'_> {
    fn update(&mut self, at: Addr<Hpa>, old: Pte, new: Pte) -> Result<bool, ()> {
        let same = self.0.load(at.raw()).ok_or(())? == old.0;
        if same {
            self.0.store(at.raw(), new.0);
        }
        Ok(same)
    }
}

const ACCESSES: [Access; 4] = [Access::Load, Access::Store, Access::Fetch, Access::LoadExec];
const GVA: u64 = 0x123;
/// Host frames: the G-stage root (0..4), its lower tables, the guest's tables, the data.
const G1: u64 = 4;
const G0: u64 = 5;
const VS2: u64 = 6;
const VS1: u64 = 7;
const VS0: u64 = 8;
const DATA: u64 = 9;
/// The guest sees host frame n at its own page n + 32.
const SHIFT: u64 = 32;
const VS_LEAF: usize = (VS0 * 512) as usize;
const G_LEAF_OF_DATA: usize = (G0 * 512 + DATA + SHIFT) as usize;
const G_LEAF_OF_VS0: usize = (G0 * 512 + VS0 + SHIFT) as usize;

fn tables() -> Flat {
    let mut mem = Flat([0; PAGES * 512]);
    mem.0[0] = G1 << 10 | 1;
    mem.0[(G1 * 512) as usize] = G0 << 10 | 1;
    for frame in [VS2, VS1, VS0, DATA] {
        mem.0[(G0 * 512 + frame + SHIFT) as usize] = frame << 10 | 0xdf;
    }
    mem.0[(VS2 * 512) as usize] = (VS1 + SHIFT) << 10 | 1;
    mem.0[(VS1 * 512) as usize] = (VS0 + SHIFT) << 10 | 1;
    mem
}

/// Everything but the two leaves and the access.
#[derive(Clone, Copy, Debug)]
struct Case {
    mode: Mode,
    sum: bool,
    vs_mxr: bool,
    hs_mxr: bool,
    vs_ad: AdPolicy,
    g_ad: AdPolicy,
}

fn cases(ads: &[(AdPolicy, AdPolicy)]) -> Vec<Case> {
    let mut cases = vec![];
    for bits in 0..16 {
        for &(vs_ad, g_ad) in ads {
            let mode = if bits & 1 == 0 { Mode::User } else { Mode::Supervisor };
            let (sum, vs_mxr, hs_mxr) = (bits & 2 != 0, bits & 4 != 0, bits & 8 != 0);
            cases.push(Case { mode, sum, vs_mxr, hs_mxr, vs_ad, g_ad });
        }
    }
    cases
}

fn oracle_ad(ad: AdPolicy) -> Ad {
    match ad {
        AdPolicy::Svade => Ad::Fault,
        AdPolicy::Svadu => Ad::Hardware,
    }
}

/// Runs all 256 x 256 leaves, `g_leaf` being the index of the G-stage entry that varies.
fn agree(case: Case, g_leaf: usize, g_frame: u64) -> u64 {
    let pristine = tables();
    let (mut ours, mut theirs) = (pristine.clone(), pristine);
    let caps = Caps::default();
    let stages = Stages {
        vs: Some(Stage { format: &SV39, root: Pfn::new(VS2 + SHIFT), caps, ad: case.vs_ad }),
        g: Some(Stage { format: &SV39X4, root: Pfn::new(0), caps, ad: case.g_ad }),
    };
    let table = |levels, root, ad| Some(Table { levels, root, ad: oracle_ad(ad), svnapot: false, svpbmt: false });
    let mut count = 0;
    for vs in 0..256 {
        for g in 0..256 {
            for access in ACCESSES {
                for mem in [&mut ours, &mut theirs] {
                    mem.0[VS_LEAF] = (DATA + SHIFT) << 10 | vs;
                    mem.0[g_leaf] = g_frame << 10 | g;
                }
                let Case { mode, sum, vs_mxr, hs_mxr, .. } = case;
                let req = Request { access, mode, sum, mxr: vs_mxr, hs_mxr };
                let ctx = Context {
                    vs: table(3, (VS2 + SHIFT) << 12, case.vs_ad),
                    g: table(3, 0, case.g_ad),
                    access,
                    user: mode == Mode::User,
                    sum,
                    vs_mxr,
                    hs_mxr,
                };
                let got = two_stage(&stages, Addr::<Gva>::new(GVA), &req, &mut Engine(&mut ours));
                let got = got.map(|arrival| arrival.hpa.raw()).map_err(|trap| Raised {
                    cause: trap.exception.code(),
                    tval: trap.tval,
                    htval: trap.tval2,
                    htinst: trap.tinst,
                });
                let expected = translate(&mut theirs, &ctx, GVA);
                assert_eq!(got, expected, "VS leaf {vs:#x}, G leaf {g:#x}, {access:?}, {case:?}");
                // Every entry that hardware may write, each time...
                for i in [VS_LEAF, g_leaf, G_LEAF_OF_DATA, G_LEAF_OF_VS0] {
                    assert_eq!(ours.0[i], theirs.0[i], "write-back: VS {vs:#x}, G {g:#x}, {access:?}, {case:?}");
                }
                count += 1;
            }
        }
    }
    // ... and that nothing else was written, at the end: nothing puts other entries back.
    assert!(ours == theirs, "a stray write: {case:?}");
    count
}

/// Shares the cases among the processors.
fn on_all_processors(cases: Vec<Case>, g_leaf: usize, g_frame: u64) -> u64 {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let shares: Vec<_> = (0..workers)
            .map(|w| {
                let share: Vec<Case> = cases.iter().copied().skip(w).step_by(workers).collect();
                scope.spawn(move || share.into_iter().map(|case| agree(case, g_leaf, g_frame)).sum::<u64>())
            })
            .collect();
        shares.into_iter().map(|share| share.join().expect("the engine and the oracle agree")).sum()
    })
}

use AdPolicy::{Svade, Svadu};

#[test]
fn leaves_of_the_data_page() {
    let count = on_all_processors(cases(&[(Svade, Svade), (Svadu, Svadu)]), G_LEAF_OF_DATA, DATA);
    assert_eq!(count, 256 * 256 * 16 * 4 * 2);
}

/// The G-stage leaf of the page that holds the guest's level-0 table: implicit accesses.
#[test]
fn leaves_of_the_page_table_page() {
    // Mixed policies, where it matters whose they are.
    let ads = [(Svade, Svade), (Svade, Svadu), (Svadu, Svade), (Svadu, Svadu)];
    let cases: Vec<Case> = cases(&ads).into_iter().filter(|c| c.sum && !c.vs_mxr).collect();
    let count = on_all_processors(cases, G_LEAF_OF_VS0, VS0);
    assert_eq!(count, 256 * 256 * 4 * 4 * 4);
}
