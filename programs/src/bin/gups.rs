//! `gups WORDS UPDATES LABEL`: a table of WORDS 64-bit words is updated at random places, within the meter's
//! region LABEL. Prints a checksum.
#![no_std]
#![no_main]

use programs::gups;
use programs::linux::{self, Args, Failure};

programs::entry_point!(main);

fn main(args: Args) -> Result<(), Failure> {
    let usage = Failure::Usage("gups WORDS UPDATES LABEL, with WORDS a power of two");
    let numbers = [1, 2, 3].map(|number| args.number(number));
    let [Some(words), Some(updates), Some(label)] = numbers else { return Err(usage) };
    if !words.is_power_of_two() || words > 1 << 40 {
        return Err(usage);
    }
    linux::begin(linux::PREPARING + label);
    let table = linux::memory(words as usize, 0)?;
    gups::fill(table);
    linux::end(linux::PREPARING + label);
    linux::begin(label);
    gups::update(table, updates, 1);
    linux::end(label);
    linux::figure("gups", gups::checksum(table));
    Ok(())
}
