//! The network simplex algorithm for minimum-cost flows, with a spanning tree of linked nodes and a search for
//! the entering arc block by block. Stands for 429.mcf: links followed through records all over memory.
//!
//! Leaving arcs are chosen such that the tree stays strongly feasible (Cunningham, 1976), so it ends.

use crate::random::Random;

/// Bounds of what is drawn for a problem.
const MOST_SUPPLY: u32 = 100;
const MOST_CAPACITY: u32 = 1000;
const MOST_COST: u32 = 1000;
/// The cost of the chain's arcs, which can carry everything.
const CHAIN_COST: i64 = 10_000;

/// No node, no arc.
const NONE: u32 = u32::MAX;

/// A node and its place in the tree, in a cache line of its own.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Node {
    potential: i64,
    parent: u32,
    /// The arc to the parent.
    arc: u32,
    /// True if that arc leads from here to the parent.
    is_upward: bool,
    depth: u32,
    first_child: u32,
    previous_sibling: u32,
    next_sibling: u32,
}

impl Node {
    /// A node that is nowhere.
    pub const EMPTY: Self = Self {
        potential: 0,
        parent: NONE,
        arc: NONE,
        is_upward: false,
        depth: 0,
        first_child: NONE,
        previous_sibling: NONE,
        next_sibling: NONE,
    };
}

/// The position of an arc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// In the tree.
    Tree,
    /// Outside it, and empty.
    Empty,
    /// Outside it, and full.
    Full,
}

/// An arc and its flow.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct Arc {
    from: u32,
    to: u32,
    cost: i64,
    capacity: i32,
    flow: i32,
    state: State,
}

impl Arc {
    /// An arc that nothing can go through.
    pub const EMPTY: Self = Self { from: 0, to: 0, cost: 0, capacity: 0, flow: 0, state: State::Empty };
}

/// A problem on its way to a solution. The root of the tree is a node more, and each node has an arc more, to
/// or from there.
#[derive(Debug)]
pub struct Network<'a> {
    nodes: &'a mut [Node],
    arcs: &'a mut [Arc],
    /// The arc with which the search for an entering arc continues.
    next: usize,
    block: usize,
}

/// The records that a problem of `nodes` nodes and `arcs` arcs needs: nodes and arcs.
#[must_use]
pub const fn records(nodes: usize, arcs: usize) -> (usize, usize) {
    (nodes + 1, arcs + nodes)
}

impl<'a> Network<'a> {
    /// A problem that belongs to a seed: half of the nodes supply something, and the other half want as much. A
    /// chain through all nodes could carry everything, at a price, so there is a solution. `nodes` and `arcs`
    /// are [`records`] for the problem, all empty.
    ///
    /// # Panics
    /// If `count` is odd or less than 2, there are fewer arcs than the chain has, or the records are too few.
    pub fn random(count: usize, nodes: &'a mut [Node], arcs: &'a mut [Arc], seed: u64) -> Self {
        let number = arcs.len() - count;
        assert!(count >= 2 && count.is_multiple_of(2) && nodes.len() == count + 1 && number >= count);
        let mut random = Random::new(seed);
        let mut total = 0;
        let root = count as u32;
        // Dearer than any path.
        let dear = count as i64 * CHAIN_COST;
        for pair in 0..count / 2 {
            let supply = 1 + random.below(MOST_SUPPLY) as i32;
            total += supply;
            let (source, sink) = (pair as u32, (pair + count / 2) as u32);
            let arc = |from, to, cost| Arc { from, to, cost, capacity: i32::MAX, flow: supply, state: State::Tree };
            arcs[number + source as usize] = arc(source, root, 0);
            arcs[number + sink as usize] = arc(root, sink, dear);
        }
        for (index, arc) in arcs[..number].iter_mut().enumerate() {
            *arc = if index + 1 < count {
                let (from, to) = (index as u32, index as u32 + 1);
                Arc { from, to, cost: CHAIN_COST, capacity: total, ..Arc::EMPTY }
            } else {
                let mut below = |bound| random.below(bound);
                let (from, to) = (below(root), below(root));
                let (cost, capacity) = (1 + i64::from(below(MOST_COST)), 1 + below(MOST_CAPACITY) as i32);
                Arc { from, to, cost, capacity, ..Arc::EMPTY }
            };
        }
        let block = number.isqrt().max(10);
        let mut network = Self { nodes, arcs, next: 0, block };
        for node in 0..root {
            let arc = (number + node as usize) as u32;
            let Arc { from, cost, .. } = network.arcs[arc as usize];
            let is_upward = from == node;
            let at = &mut network.nodes[node as usize];
            (at.arc, at.is_upward, at.depth) = (arc, is_upward, 1);
            at.potential = if is_upward { -cost } else { cost };
            network.hang(node, root);
        }
        network
    }

    /// Makes so many steps towards the solution, or as many as there are; returns how many.
    pub fn run(&mut self, most: u64) -> u64 {
        (0..most).take_while(|_| self.step()).count() as u64
    }

    /// The present cost.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.arcs.iter().map(|arc| u64::from(arc.flow as u32) * arc.cost as u64).sum()
    }

    /// Takes one arc into the tree, and one out of it. Returns whether there was one to take.
    fn step(&mut self) -> bool {
        let Some(entering) = self.entering() else { return false };
        let Arc { from, to, capacity, state, .. } = self.arcs[entering];
        // The way in which more goes through the arc: from `first` to `second`.
        let (first, second) = if state == State::Empty { (from, to) } else { (to, from) };
        let join = self.join(first, second);
        // How much more, and below which node and on which side that ends.
        let (mut change, mut leaving) = (capacity, None);
        let mut node = first;
        while node != join {
            let at = &self.nodes[node as usize];
            let arc = &self.arcs[at.arc as usize];
            let room = if at.is_upward { arc.flow } else { arc.capacity - arc.flow };
            if room < change {
                (change, leaving) = (room, Some((node, first, second)));
            }
            node = at.parent;
        }
        let mut node = second;
        while node != join {
            let at = &self.nodes[node as usize];
            let arc = &self.arcs[at.arc as usize];
            let room = if at.is_upward { arc.capacity - arc.flow } else { arc.flow };
            if room <= change {
                (change, leaving) = (room, Some((node, second, first)));
            }
            node = at.parent;
        }
        self.push(entering, first, second, join, change);
        match leaving {
            Some((below, inside, outside)) => self.exchange(entering, below, inside, outside),
            // The arc itself is full, or empty, before any other.
            None => {
                let arc = &mut self.arcs[entering];
                arc.state = if state == State::Empty { State::Full } else { State::Empty };
            }
        }
        true
    }

    /// The arc of the next block that would save most for each piece that goes through it.
    fn entering(&mut self) -> Option<usize> {
        let (mut best, mut found) = (0, None);
        let mut left = self.block;
        for _ in 0..self.arcs.len() {
            let index = self.next;
            self.next = if index + 1 == self.arcs.len() { 0 } else { index + 1 };
            let arc = &self.arcs[index];
            if arc.state != State::Tree {
                let potential = |node: u32| self.nodes[node as usize].potential;
                let cost = arc.cost + potential(arc.from) - potential(arc.to);
                let saved = if arc.state == State::Empty { -cost } else { cost };
                if saved > best {
                    (best, found) = (saved, Some(index));
                }
            }
            left -= 1;
            if left == 0 {
                if found.is_some() {
                    break;
                }
                left = self.block;
            }
        }
        found
    }

    /// The lowest node that is above both.
    fn join(&self, mut one: u32, mut other: u32) -> u32 {
        while one != other {
            let (at, other_at) = (&self.nodes[one as usize], &self.nodes[other as usize]);
            let (depth, other_depth) = (at.depth, other_at.depth);
            if depth >= other_depth {
                one = at.parent;
            }
            if other_depth >= depth {
                other = other_at.parent;
            }
        }
        one
    }

    /// Lets more go around the cycle that an arc closes.
    fn push(&mut self, entering: usize, first: u32, second: u32, join: u32, change: i32) {
        let arc = &mut self.arcs[entering];
        arc.flow += if arc.state == State::Empty { change } else { -change };
        for (mut node, upwards) in [(first, -change), (second, change)] {
            while node != join {
                let at = &self.nodes[node as usize];
                self.arcs[at.arc as usize].flow += if at.is_upward { upwards } else { -upwards };
                node = at.parent;
            }
        }
    }

    /// Cuts the tree above `below`, and hangs what is cut off under `outside`, by the arc that leads from there
    /// to `inside`.
    fn exchange(&mut self, entering: usize, below: u32, inside: u32, outside: u32) {
        let leaving = &mut self.arcs[self.nodes[below as usize].arc as usize];
        leaving.state = if leaving.flow == 0 { State::Empty } else { State::Full };
        self.arcs[entering].state = State::Tree;
        // From `inside` up to `below`, each node becomes the parent of its parent.
        let (mut node, mut parent) = (inside, outside);
        let (mut arc, mut is_upward) = (entering as u32, self.arcs[entering].from == inside);
        loop {
            let at = self.nodes[node as usize];
            self.unhang(node);
            self.hang(node, parent);
            let here = &mut self.nodes[node as usize];
            (here.arc, here.is_upward) = (arc, is_upward);
            if node == below {
                break;
            }
            (arc, is_upward) = (at.arc, !at.is_upward);
            (parent, node) = (node, at.parent);
        }
        self.settle(inside);
    }

    /// Gives a node and all below it the depth and the potential that follow from its parent's.
    fn settle(&mut self, top: u32) {
        let mut node = top;
        loop {
            let at = self.nodes[node as usize];
            let above = &self.nodes[at.parent as usize];
            let cost = self.arcs[at.arc as usize].cost;
            let depth = above.depth + 1;
            let potential = above.potential + if at.is_upward { -cost } else { cost };
            let here = &mut self.nodes[node as usize];
            (here.depth, here.potential) = (depth, potential);
            // The next one in preorder.
            let mut next = at.first_child;
            let mut up = node;
            while next == NONE && up != top {
                next = self.nodes[up as usize].next_sibling;
                up = self.nodes[up as usize].parent;
            }
            if next == NONE {
                return;
            }
            node = next;
        }
    }

    fn hang(&mut self, node: u32, parent: u32) {
        let sibling = core::mem::replace(&mut self.nodes[parent as usize].first_child, node);
        let at = &mut self.nodes[node as usize];
        (at.parent, at.previous_sibling, at.next_sibling) = (parent, NONE, sibling);
        if sibling != NONE {
            self.nodes[sibling as usize].previous_sibling = node;
        }
    }

    fn unhang(&mut self, node: u32) {
        let Node { parent, previous_sibling: previous, next_sibling: next, .. } = self.nodes[node as usize];
        match previous {
            NONE => self.nodes[parent as usize].first_child = next,
            previous => self.nodes[previous as usize].next_sibling = next,
        }
        if next != NONE {
            self.nodes[next as usize].previous_sibling = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(nodes: usize, arcs: usize) -> (Vec<Node>, Vec<Arc>) {
        let (nodes, arcs) = records(nodes, arcs);
        (vec![Node::EMPTY; nodes], vec![Arc::EMPTY; arcs])
    }

    /// The surplus of each node over its first value, which must always be 0.
    fn balances(network: &Network<'_>, at_first: &[Arc]) -> Vec<i64> {
        let mut balances = vec![0; network.nodes.len()];
        for (arc, before) in network.arcs.iter().zip(at_first) {
            assert!((0..=arc.capacity).contains(&arc.flow));
            balances[arc.from as usize] -= i64::from(arc.flow - before.flow);
            balances[arc.to as usize] += i64::from(arc.flow - before.flow);
        }
        balances
    }

    /// The least cost, by another algorithm: cycles of negative cost are cancelled until there are none.
    fn least_cost(nodes: usize, arcs: &[Arc]) -> i64 {
        let mut flows: Vec<i32> = arcs.iter().map(|arc| arc.flow).collect();
        loop {
            let mut distance = vec![0i64; nodes];
            let mut by = vec![None; nodes];
            let mut last = None;
            for _ in 0..nodes {
                last = None;
                for (index, arc) in arcs.iter().enumerate() {
                    let (from, to, cost) = (arc.from as usize, arc.to as usize, arc.cost);
                    if flows[index] < arc.capacity && distance[from] + cost < distance[to] {
                        (distance[to], by[to], last) = (distance[from] + cost, Some((index, from, 1)), Some(to));
                    }
                    if flows[index] > 0 && distance[to] - cost < distance[from] {
                        (distance[from], by[from], last) = (distance[to] - cost, Some((index, to, -1)), Some(from));
                    }
                }
            }
            let Some(mut node) = last else {
                return arcs.iter().zip(&flows).map(|(arc, flow)| arc.cost * i64::from(*flow)).sum();
            };
            for _ in 0..nodes {
                node = by[node].expect("on the way to a cycle").1;
            }
            let mut cycle = Vec::new();
            let mut at = node;
            while at != node || cycle.is_empty() {
                let (index, before, sign) = by[at].expect("on a cycle");
                cycle.push((index, sign));
                at = before;
            }
            let room = |(index, sign): &(usize, i32)| {
                if *sign > 0 { arcs[*index].capacity - flows[*index] } else { flows[*index] }
            };
            let room = cycle.iter().map(room).min().expect("arcs");
            cycle.iter().for_each(|(index, sign)| flows[*index] += sign * room);
        }
    }

    #[test]
    fn solutions_cost_least() {
        for (nodes, arcs) in [(2, 4), (6, 10), (20, 60), (40, 400)] {
            for seed in 0..20 {
                let (mut node_records, mut arc_records) = empty(nodes, arcs);
                let mut network = Network::random(nodes, &mut node_records, &mut arc_records, seed);
                let at_first = network.arcs.to_vec();
                let expected = least_cost(nodes + 1, &at_first);
                let before = network.cost();
                let steps = network.run(1_000_000);
                assert!(steps > 0 && steps < 1_000_000 && network.run(10) == 0, "{steps} steps");
                assert!(balances(&network, &at_first).iter().all(|balance| *balance == 0));
                assert!(network.cost() < before);
                assert_eq!(network.cost() as i64, expected, "{nodes} nodes, {arcs} arcs, seed {seed}");
                let made_up = &network.arcs[arcs..];
                assert!(made_up.iter().all(|arc| arc.cost == 0 || arc.flow == 0), "not feasible");
            }
        }
    }

    #[test]
    fn no_step_costs_more_or_loses_anything() {
        let (mut nodes, mut arcs) = empty(100, 500);
        let mut network = Network::random(100, &mut nodes, &mut arcs, 7);
        let at_first = network.arcs.to_vec();
        let mut cost = network.cost();
        while network.run(1) == 1 {
            assert!(network.cost() <= cost);
            cost = network.cost();
            assert!(balances(&network, &at_first).iter().all(|balance| *balance == 0));
        }
    }
}
