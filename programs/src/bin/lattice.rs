//! `lattice SPACE TIME HOPS LABEL`: a field on a SPACE^3 x TIME lattice, 1 KiB for each site, hops HOPS times,
//! within the meter's region LABEL (and prepares within 100 more). Prints a checksum.
#![no_std]
#![no_main]

use programs::lattice::{Lattice, Site};
use programs::linux::{self, Args, Failure};

programs::entry_point!(main);

fn main(args: Args) -> Result<(), Failure> {
    let usage = Failure::Usage("lattice SPACE TIME HOPS LABEL, with even SPACE and TIME");
    let numbers = [1, 2, 3, 4].map(|number| args.number(number));
    let [Some(space), Some(time), Some(hops), Some(label)] = numbers else { return Err(usage) };
    let extents = [space, space, space, time].map(|extent| extent as usize);
    if extents.iter().any(|extent| *extent == 0 || extent % 2 != 0) {
        return Err(usage);
    }
    linux::begin(linux::PREPARING + label);
    let mut lattice = Lattice::random(extents, linux::memory(extents.iter().product(), Site::EMPTY)?, 433);
    linux::end(linux::PREPARING + label);
    linux::begin(label);
    for _ in 0..hops {
        lattice.hop();
    }
    linux::end(label);
    linux::figure("lattice", lattice.square());
    Ok(())
}
