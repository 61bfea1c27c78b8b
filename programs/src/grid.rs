//! A* on a grid: shortest paths through a landscape of cells that cost different times to enter, with
//! obstacles. Stands for 473.astar: a frontier that jumps over a map much larger than a TLB reaches.

use crate::random::Random;

/// Of a hundred cells so many are obstacles: the rest hangs together (site percolation: above 59).
const OBSTACLES: u32 = 25;
/// The dearest cell.
const MOST_COST: u32 = 4;
/// The steps to the four neighbours.
const STEPS: [(i32, i32); 4] = [(1, 0), (-1, 0), (0, 1), (0, -1)];

/// A cell in eight bytes: what entering it costs (0: an obstacle), the number of the last search that reached
/// it, the step it was reached by, and the length of the shortest path to it that the search has found.
#[derive(Clone, Copy)]
struct Cell(u64);

impl Cell {
    fn cost(self) -> u32 {
        (self.0 & 0xff) as u32
    }

    fn step(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    fn search(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn length(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn reached(self, search: u16, step: usize, length: u32) -> Self {
        Self(self.0 & 0xff | (step as u64) << 8 | u64::from(search) << 16 | u64::from(length) << 32)
    }
}

/// A landscape, and what searches in it need.
#[derive(Debug)]
pub struct Grid<'a> {
    width: u32,
    cells: &'a mut [u64],
    open: Heap<'a>,
    searches: u16,
}

impl<'a> Grid<'a> {
    /// A landscape of `width` x `width` cells that belongs to a seed. `cells` and `open` have an element for
    /// each; the width is at most 2^15.
    ///
    /// # Panics
    /// If that is not so.
    pub fn random(width: u32, cells: &'a mut [u64], open: &'a mut [u64], seed: u64) -> Self {
        assert!(width <= 1 << 15 && cells.len() == (width * width) as usize && open.len() == cells.len());
        let mut random = Random::new(seed);
        for cell in &mut *cells {
            let is_obstacle = random.below(100) < OBSTACLES;
            *cell = if is_obstacle { 0 } else { u64::from(1 + random.below(MOST_COST)) };
        }
        Self { width, cells, open: Heap { entries: open, count: 0 }, searches: 0 }
    }

    /// The length of the shortest path between two cells (column, row), which are made free if they are
    /// obstacles: the costs of the cells that it enters. `None` if there is no path.
    ///
    /// # Errors
    /// If there is no room for the cells to be looked at, or the path is not as long as the search took it
    /// to be.
    pub fn search(&mut self, from: (u32, u32), to: (u32, u32)) -> Result<Option<u32>, &'static str> {
        self.searches = self.searches.checked_add(1).ok_or("too many searches in one grid")?;
        let (start, goal) = (self.index(from), self.index(to));
        for end in [start, goal] {
            self.cells[end] = self.cells[end].max(1);
        }
        self.open.count = 0;
        self.reach(start, 0, 0, to)?;
        while let Some((estimate, index)) = self.open.pop() {
            if index == goal {
                return self.checked_path(start, goal).map(Some);
            }
            let (at, length) = (self.place(index), Cell(self.cells[index]).length());
            if estimate > length + distance(at, to) {
                // A shorter way was found after this entry was made.
                continue;
            }
            for (number, step) in STEPS.into_iter().enumerate() {
                let Some(next) = self.neighbour(at, step) else { continue };
                let index = self.index(next);
                let cell = Cell(self.cells[index]);
                let length = length + cell.cost();
                let is_better = cell.search() != self.searches || length < cell.length();
                if cell.cost() != 0 && is_better {
                    self.reach(index, number, length, to)?;
                }
            }
        }
        Ok(None)
    }

    fn reach(&mut self, index: usize, step: usize, length: u32, to: (u32, u32)) -> Result<(), &'static str> {
        self.cells[index] = Cell(self.cells[index]).reached(self.searches, step, length).0;
        self.open.push(length + distance(self.place(index), to), index)
    }

    /// Goes the path back and adds up what it costs.
    fn checked_path(&self, start: usize, goal: usize) -> Result<u32, &'static str> {
        const WRONG: &str = "a path is not what the search took it to be";
        let (mut index, mut length) = (goal, 0);
        while index != start {
            let cell = Cell(self.cells[index]);
            if cell.cost() == 0 || cell.search() != self.searches {
                return Err(WRONG);
            }
            length += cell.cost();
            let (dx, dy) = STEPS[cell.step()];
            index = self.index(self.neighbour(self.place(index), (-dx, -dy)).ok_or(WRONG)?);
        }
        if length == Cell(self.cells[goal]).length() { Ok(length) } else { Err(WRONG) }
    }

    fn index(&self, (x, y): (u32, u32)) -> usize {
        (y * self.width + x) as usize
    }

    fn place(&self, index: usize) -> (u32, u32) {
        (index as u32 % self.width, index as u32 / self.width)
    }

    fn neighbour(&self, (x, y): (u32, u32), (dx, dy): (i32, i32)) -> Option<(u32, u32)> {
        let within = |at: u32, by| at.checked_add_signed(by).filter(|at| *at < self.width);
        Some((within(x, dx)?, within(y, dy)?))
    }
}

/// No path is shorter: each cell costs at least 1.
fn distance(from: (u32, u32), to: (u32, u32)) -> u32 {
    from.0.abs_diff(to.0) + from.1.abs_diff(to.1)
}

/// Cells to be looked at, the least estimate first: a binary heap of estimates above indexes.
#[derive(Debug)]
struct Heap<'a> {
    entries: &'a mut [u64],
    count: usize,
}

impl Heap<'_> {
    fn push(&mut self, estimate: u32, index: usize) -> Result<(), &'static str> {
        let mut at = self.count;
        if at == self.entries.len() {
            return Err("there is no room for more cells to be looked at");
        }
        self.count += 1;
        let entry = u64::from(estimate) << 32 | index as u64;
        while at > 0 && self.entries[(at - 1) / 2] > entry {
            self.entries[at] = self.entries[(at - 1) / 2];
            at = (at - 1) / 2;
        }
        self.entries[at] = entry;
        Ok(())
    }

    fn pop(&mut self) -> Option<(u32, usize)> {
        let last = self.count.checked_sub(1)?;
        self.count = last;
        let (first, moved) = (self.entries[0], self.entries[last]);
        let mut at = 0;
        loop {
            let mut child = 2 * at + 1;
            if child >= last {
                break;
            }
            if child + 1 < last && self.entries[child + 1] < self.entries[child] {
                child += 1;
            }
            if self.entries[child] >= moved {
                break;
            }
            self.entries[at] = self.entries[child];
            at = child;
        }
        self.entries[at] = moved;
        Some(((first >> 32) as u32, (first & 0xffff_ffff) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths of the shortest paths from a cell to all others, by going over all edges until nothing changes.
    fn relaxed(costs: &[u32], width: usize, start: usize) -> Vec<Option<u32>> {
        let mut lengths = vec![None; costs.len()];
        lengths[start] = Some(0);
        loop {
            let before = lengths.clone();
            for from in 0..costs.len() {
                let Some(length): Option<u32> = lengths[from] else { continue };
                let (x, y) = (from % width, from / width);
                let next = [
                    (x > 0).then(|| from - 1),
                    (x + 1 < width).then(|| from + 1),
                    (y > 0).then(|| from - width),
                    (y + 1 < width).then(|| from + width),
                ];
                for to in next.into_iter().flatten().filter(|to| costs[*to] != 0) {
                    let new = length + costs[to];
                    lengths[to] = Some(lengths[to].map_or(new, |old: u32| old.min(new)));
                }
            }
            if lengths == before {
                return lengths;
            }
        }
    }

    #[test]
    fn paths_are_shortest() {
        const WIDTH: u32 = 24;
        let (mut cells, mut open) = (vec![0; 576], vec![0; 576]);
        let (mut found, mut none) = (0, 0);
        for seed in 0..30 {
            let mut grid = Grid::random(WIDTH, &mut cells, &mut open, seed);
            let mut random = Random::new(seed);
            for _ in 0..5 {
                let mut place = || (random.below(WIDTH), random.below(WIDTH));
                let (from, to) = (place(), place());
                let length = grid.search(from, to).expect("room");
                let costs: Vec<_> = grid.cells.iter().map(|cell| Cell(*cell).cost()).collect();
                let expected = relaxed(&costs, WIDTH as usize, grid.index(from))[grid.index(to)];
                assert_eq!(length, expected, "seed {seed}, {from:?} to {to:?}");
                *(if length.is_some() { &mut found } else { &mut none }) += 1;
            }
        }
        assert!(found > 50 && none > 0, "{found} paths, {none} times none");
    }
}
