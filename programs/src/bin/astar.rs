//! `astar WIDTH SEARCHES LABEL`: paths through a random landscape of WIDTH x WIDTH cells, 8 bytes each, are
//! searched within the meter's region LABEL (and prepares within 100 more). Prints the sum of their lengths.
#![no_std]
#![no_main]

use programs::grid::Grid;
use programs::linux::{self, Args, Failure};
use programs::random::Random;

programs::entry_point!(main);

fn main(args: Args) -> Result<(), Failure> {
    let numbers = [1, 2, 3].map(|number| args.number(number));
    let usage = Failure::Usage("astar WIDTH SEARCHES LABEL, with WIDTH of 8 to 8192");
    let [Some(width @ 8..=8192), Some(searches), Some(label)] = numbers else { return Err(usage) };
    let cells = (width * width) as usize;
    linux::begin(linux::PREPARING + label);
    let mut grid = Grid::random(width as u32, linux::memory(cells, 0)?, linux::memory(cells, 0)?, 473);
    let mut random = Random::new(473);
    let mut sum = 0;
    linux::end(linux::PREPARING + label);
    linux::begin(label);
    for number in 0..searches {
        // From one side to the other, so that no search is short.
        let row = |random: &mut Random| random.below(width as u32);
        let (from, to) = ((0, row(&mut random)), (width as u32 - 1, row(&mut random)));
        let ends = if number % 2 == 0 { (from, to) } else { (to, from) };
        let length = grid.search(ends.0, ends.1).map_err(Failure::Wrong)?;
        sum += u64::from(length.unwrap_or(0));
    }
    linux::end(label);
    linux::figure("astar", sum);
    Ok(())
}
