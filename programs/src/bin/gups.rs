//! `gups WORDS UPDATES LABEL MORE LATER`: a table of WORDS 64-bit words is updated at random places, within the meter's
//! region LABEL; then MORE times in no region, and UPDATES times again in the region LATER. Prints a checksum.
#![no_std]
#![no_main]

use programs::gups;
use programs::linux::{self, Args, Failure};

programs::entry_point!(main);

fn main(args: Args) -> Result<(), Failure> {
    let usage = Failure::Usage("gups WORDS UPDATES LABEL MORE LATER, with WORDS a power of two");
    let numbers = [1, 2, 3, 4, 5].map(|number| args.number(number));
    let [Some(words), Some(updates), Some(label), Some(more), Some(later)] = numbers else { return Err(usage) };
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
    gups::update(table, more, 2);
    linux::begin(later);
    gups::update(table, updates, 3);
    linux::end(later);
    linux::figure("gups", gups::checksum(table));
    Ok(())
}
