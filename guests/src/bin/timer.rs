//! What a payload finds at its first instruction.
#![no_std]
#![no_main]
guests::entry_point!(main);
fn main() {}
