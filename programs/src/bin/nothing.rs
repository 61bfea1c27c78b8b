//! Does nothing, so that what it takes to start and end a program can be seen.
#![no_std]
#![no_main]

use programs::linux::{Args, Failure};

programs::entry_point!(main);

fn main(_: Args) -> Result<(), Failure> {
    Ok(())
}
