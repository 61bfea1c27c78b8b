//! `simplex NODES ARCS STEPS LABEL`: a network of NODES nodes, 64 bytes each, and ARCS arcs, 32 bytes each, makes
//! at most STEPS steps towards the flow of least cost, within the meter's region LABEL (and prepares within 100 more). Prints the steps made and
//! the cost.
#![no_std]
#![no_main]

use programs::linux::{self, Args, Failure};
use programs::simplex::{self, Arc, Network, Node};

programs::entry_point!(main);

fn main(args: Args) -> Result<(), Failure> {
    let numbers = [1, 2, 3, 4].map(|number| args.number(number));
    let usage = Failure::Usage("simplex NODES ARCS STEPS LABEL, with even NODES, and ARCS not fewer");
    let [Some(count), Some(arcs), Some(steps), Some(label)] = numbers else { return Err(usage) };
    if count < 2 || count % 2 != 0 || arcs < count || arcs > 1 << 30 {
        return Err(usage);
    }
    linux::begin(linux::PREPARING + label);
    let records = simplex::records(count as usize, arcs as usize);
    let (nodes, arcs) = (linux::memory(records.0, Node::EMPTY)?, linux::memory(records.1, Arc::EMPTY)?);
    let mut network = Network::random(count as usize, nodes, arcs, 429);
    linux::end(linux::PREPARING + label);
    linux::begin(label);
    let made = network.run(steps);
    linux::end(label);
    linux::figure("simplex_steps", made);
    linux::figure("simplex", network.cost());
    Ok(())
}
