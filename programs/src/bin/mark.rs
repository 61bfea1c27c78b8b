//! `mark begin [LABEL]` and `mark end [LABEL]` tell the meter where a region begins and ends
//! (docs/meter.md). A label is a decimal number; 0 if none is given.
#![no_std]
#![no_main]

use programs::linux::{self, Args, Failure};

programs::entry_point!(main);

fn main(args: Args) -> Result<(), Failure> {
    let label = args.get(2).map_or(Some(0), |_| args.number(2));
    match (args.get(1), label, args.get(3)) {
        (Some("begin"), Some(label), None) => linux::begin(label),
        (Some("end"), Some(label), None) => linux::end(label),
        _ => return Err(Failure::Usage("mark begin|end [LABEL], where LABEL is a decimal number")),
    }
    Ok(())
}
