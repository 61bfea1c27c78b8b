//! x
#![no_std]
#![no_main]
guests::entry_point!(main);
fn main() {}
