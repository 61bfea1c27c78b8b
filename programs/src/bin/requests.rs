//! `requests PAGES COUNT LABEL`: what a disk of PAGES pages, `/dev/vda`, is asked for within the meter's regions. First it is written whole,
//! by requests of 1 MiB (region LABEL); then it is read so (LABEL + 1); then come COUNT pages at random, 32 at once (LABEL + 2), and as
//! many one by one (LABEL + 3). Each page says where it is, and is looked at when it was read. Prints how many pages that were.
#![no_std]
#![no_main]

use programs::linux::requests::{Disk, What};
use programs::linux::{self, Args, Failure, PAGE, Pages};
use programs::random::Random;

programs::entry_point!(main);

/// Pages of a large request, and how many of those there are at once.
const LARGE: usize = 256;
const LARGE_AT_ONCE: usize = 4;
/// How many small ones there are at once.
const DEPTH: usize = 32;

fn main(args: Args) -> Result<(), Failure> {
    let (Some(pages), Some(count), Some(label)) = (args.number(1), args.number(2), args.number(3)) else {
        return Err(Failure::Usage("requests PAGES COUNT LABEL"));
    };
    let disk = Disk::open(c"/dev/vda", 64)?;
    let memory = linux::pages(LARGE * LARGE_AT_ONCE, Pages::Private)?;
    memory.iter_mut().for_each(|page| page[0] = 1);
    let mut large = memory.chunks_mut(LARGE);
    let [Some(a), Some(b), Some(c), Some(d)] = [(); LARGE_AT_ONCE].map(|()| large.next()) else { unreachable!() };
    let mut large = [a, b, c, d];
    let mut seen = 0;
    let in_order = |number| number * (LARGE * PAGE) as u64;
    let whole = pages / LARGE as u64;
    linux::begin(label);
    disk.run(What::Write, (whole, &mut large), in_order, mark, |_, _| true)?;
    linux::end(label);
    let mut look = |offset: u64, pages: &[[u8; PAGE]]| {
        seen += pages.len() as u64;
        is_marked(offset, pages)
    };
    linux::begin(label + 1);
    disk.run(What::Read, (whole, &mut large), in_order, |_, _| (), &mut look)?;
    linux::end(label + 1);
    let mut random = Random::new(1);
    for (label, depth) in [(label + 2, DEPTH), (label + 3, 1)] {
        let mut small = large[0].chunks_mut(1);
        let mut small = [(); DEPTH].map(|()| small.next().unwrap_or_default());
        linux::begin(label);
        let anywhere = |_| u64::from(random.below(pages as u32)) * PAGE as u64;
        disk.run(What::Read, (count, &mut small[..depth]), anywhere, |_, _| (), &mut look)?;
        linux::end(label);
    }
    linux::figure("pages", seen);
    Ok(())
}

/// The first word of a page is to say where it is.
fn mark(offset: u64, pages: &mut [[u8; PAGE]]) {
    for (number, page) in (1u64..).zip(pages) {
        page[..8].copy_from_slice(&(offset / PAGE as u64 + number).to_le_bytes());
    }
}

fn is_marked(offset: u64, pages: &[[u8; PAGE]]) -> bool {
    (1u64..).zip(pages).all(|(number, page)| page[..8] == (offset / PAGE as u64 + number).to_le_bytes())
}
