//! A field on a four-dimensional periodic lattice: each site has a vector of three complex numbers, and each
//! link to a neighbour a 3 x 3 matrix that turns the one's vectors into the other's. Hopping adds to each vector
//! those of its eight neighbours. Stands for 433.milc, which does that most of the time: small products of
//! what comes from all over a large array of sites.
//!
//! The numbers are integers modulo 2^32, for which matrix products, conjugates and sums obey the same laws as
//! for real ones; so all results are exact, and gauge invariance can be tested exactly.

use crate::random::Random;
use core::array::from_fn;

/// Dimensions, and so links of a site.
const DIMENSIONS: usize = 4;
/// Colours: components of a vector.
const COLOURS: usize = 3;

/// A complex number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Complex {
    re: i32,
    im: i32,
}

impl Complex {
    const ZERO: Self = Self { re: 0, im: 0 };

    fn plus(self, other: Self) -> Self {
        Self { re: self.re.wrapping_add(other.re), im: self.im.wrapping_add(other.im) }
    }

    fn times(self, other: Self) -> Self {
        Self {
            re: self.re.wrapping_mul(other.re).wrapping_sub(self.im.wrapping_mul(other.im)),
            im: self.re.wrapping_mul(other.im).wrapping_add(self.im.wrapping_mul(other.re)),
        }
    }

    fn negated(self) -> Self {
        Self { re: self.re.wrapping_neg(), im: self.im.wrapping_neg() }
    }

    fn conjugate(self) -> Self {
        Self { re: self.re, im: self.im.wrapping_neg() }
    }

    fn random(random: &mut Random) -> Self {
        let bits = random.bits();
        Self { re: bits as i32, im: (bits >> 32) as i32 }
    }
}

/// A vector.
type Vector = [Complex; COLOURS];

/// A matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Matrix([[Complex; COLOURS]; COLOURS]);

impl Matrix {
    fn times(&self, vector: &Vector) -> Vector {
        from_fn(|row| (0..COLOURS).fold(Complex::ZERO, |sum, k| sum.plus(self.0[row][k].times(vector[k]))))
    }

    /// The product of the conjugate transpose with a vector.
    fn adjoint_times(&self, vector: &Vector) -> Vector {
        from_fn(|row| (0..COLOURS).fold(Complex::ZERO, |sum, k| sum.plus(self.0[k][row].conjugate().times(vector[k]))))
    }
}

/// A site of the lattice, in 1 KiB: the program that this stands for keeps momenta and temporary fields of a site
/// beside its links and its vector, too, so that neighbours lie in different pages.
#[derive(Clone, Copy, Debug)]
#[repr(align(1024))]
pub struct Site {
    links: [Matrix; DIMENSIONS],
    vector: Vector,
}

impl Site {
    /// Zeros.
    pub const EMPTY: Self =
        Self { links: [Matrix([[Complex::ZERO; COLOURS]; COLOURS]); DIMENSIONS], vector: [Complex::ZERO; COLOURS] };
}

/// A place's coordinates.
type Place = [usize; DIMENSIONS];

/// The field.
#[derive(Debug)]
pub struct Lattice<'a> {
    extents: Place,
    sites: &'a mut [Site],
}

impl<'a> Lattice<'a> {
    /// A field that belongs to a seed.
    ///
    /// # Panics
    /// If an extent is odd, or `sites` are not as many as there are places.
    pub fn random(extents: [usize; 4], sites: &'a mut [Site], seed: u64) -> Self {
        assert!(sites.len() == extents.iter().product::<usize>() && extents.iter().all(|extent| extent % 2 == 0));
        let mut random = Random::new(seed);
        for site in &mut *sites {
            let mut number = || Complex::random(&mut random);
            site.links = from_fn(|_| Matrix(from_fn(|_| from_fn(|_| number()))));
            site.vector = from_fn(|_| number());
        }
        Self { extents, sites }
    }

    /// Adds to each vector those of its neighbours: first where the coordinates' sum is even, then where it is
    /// odd. So all neighbours of a place are of the other kind, and the order among one kind is of no meaning.
    pub fn hop(&mut self) {
        for parity in [0, 1] {
            for index in 0..self.sites.len() {
                let at = self.place(index);
                if at.iter().sum::<usize>() % 2 == parity {
                    let come = self.neighbours(index, at);
                    let here = &mut self.sites[index].vector;
                    *here = plus(here, &come);
                }
            }
        }
    }

    /// The vectors of all neighbours, as they look from here: those ahead less those behind.
    fn neighbours(&self, index: usize, at: Place) -> Vector {
        let mut sum = [Complex::ZERO; COLOURS];
        for direction in 0..DIMENSIONS {
            let ahead = &self.sites[self.index(self.ahead(at, direction))];
            let behind = &self.sites[self.index(self.behind(at, direction))];
            sum = plus(&sum, &self.sites[index].links[direction].times(&ahead.vector));
            let back = behind.links[direction].adjoint_times(&behind.vector);
            sum = plus(&sum, &back.map(Complex::negated));
        }
        sum
    }

    /// The sum of the vectors' squares, modulo 2^32 each.
    #[must_use]
    pub fn square(&self) -> u64 {
        let square = |number: &Complex| number.conjugate().times(*number).re;
        let squares = self.sites.iter().map(|site| site.vector.iter().map(square).fold(0, i32::wrapping_add));
        squares.map(|square| u64::from(square as u32)).sum()
    }

    fn place(&self, mut index: usize) -> Place {
        self.extents.map(|extent| {
            let at = index % extent;
            index /= extent;
            at
        })
    }

    fn index(&self, at: Place) -> usize {
        (0..DIMENSIONS).rev().fold(0, |index, d| index * self.extents[d] + at[d])
    }

    fn ahead(&self, mut at: Place, direction: usize) -> Place {
        let next = at[direction] + 1;
        at[direction] = if next == self.extents[direction] { 0 } else { next };
        at
    }

    fn behind(&self, mut at: Place, direction: usize) -> Place {
        let from = if at[direction] == 0 { self.extents[direction] } else { at[direction] };
        at[direction] = from - 1;
        at
    }
}

fn plus(one: &Vector, other: &Vector) -> Vector {
    from_fn(|colour| one[colour].plus(other[colour]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENTS: Place = [4, 2, 2, 6];

    fn sites() -> Vec<Site> {
        vec![Site::EMPTY; 96]
    }

    /// A unitary matrix of integers: a permutation of the colours, with phases.
    fn gauge(random: &mut Random) -> Matrix {
        let (shift, turned) = (random.below(3) as usize, random.below(2) == 1);
        Matrix(from_fn(|row| {
            let at = (if turned { COLOURS - 1 - row } else { row } + shift) % COLOURS;
            let (re, im) = [(1, 0), (0, 1), (-1, 0), (0, -1)][random.below(4) as usize];
            from_fn(|column| if column == at { Complex { re, im } } else { Complex::ZERO })
        }))
    }

    fn adjoint(matrix: &Matrix) -> Matrix {
        Matrix(from_fn(|row| from_fn(|column| matrix.0[column][row].conjugate())))
    }

    fn product(one: &Matrix, other: &Matrix) -> Matrix {
        let columns: [Vector; COLOURS] = from_fn(|column| one.times(&from_fn(|row| other.0[row][column])));
        Matrix(from_fn(|row| from_fn(|column| columns[column][row])))
    }

    /// Other colours at each place.
    fn transform(lattice: &mut Lattice<'_>, gauges: &[Matrix]) {
        for (index, gauge) in gauges.iter().enumerate() {
            let at = lattice.place(index);
            for direction in 0..DIMENSIONS {
                let ahead = lattice.index(lattice.ahead(at, direction));
                let link = &mut lattice.sites[index].links[direction];
                *link = product(&product(gauge, link), &adjoint(&gauges[ahead]));
            }
            lattice.sites[index].vector = gauge.times(&lattice.sites[index].vector);
        }
    }

    #[test]
    fn matrices_obey_their_laws() {
        let mut random = Random::new(1);
        let mut matrix = || Matrix(from_fn(|_| from_fn(|_| Complex::random(&mut random))));
        let (a, b, v) = (matrix(), matrix(), matrix().0[0]);
        assert_eq!(product(&a, &b).times(&v), a.times(&b.times(&v)));
        assert_eq!(a.adjoint_times(&v), adjoint(&a).times(&v));
        let g = gauge(&mut Random::new(5));
        assert_eq!(g.adjoint_times(&g.times(&v)), v);
        assert_ne!(product(&a, &b), product(&b, &a));
    }

    #[test]
    fn neighbours_lead_back() {
        let mut sites = sites();
        let lattice = Lattice::random(EXTENTS, &mut sites, 1);
        for index in 0..lattice.sites.len() {
            let at = lattice.place(index);
            assert_eq!(lattice.index(at), index);
            for (direction, extent) in EXTENTS.into_iter().enumerate() {
                assert_eq!(lattice.behind(lattice.ahead(at, direction), direction), at);
                let around = (0..extent).fold(at, |at, _| lattice.ahead(at, direction));
                assert_eq!(around, at);
            }
        }
    }

    #[test]
    fn colours_make_no_difference() {
        for seed in 0..4 {
            let (mut sites, mut others) = (sites(), sites());
            let mut random = Random::new(seed + 100);
            let gauges: Vec<_> = sites.iter().map(|_| gauge(&mut random)).collect();
            let mut lattice = Lattice::random(EXTENTS, &mut sites, seed);
            let mut other = Lattice::random(EXTENTS, &mut others, seed);
            transform(&mut other, &gauges);
            let before = lattice.square();
            assert_eq!(other.square(), before);
            assert_ne!(other.sites[5].vector, lattice.sites[5].vector);
            for _ in 0..3 {
                lattice.hop();
                other.hop();
            }
            assert_ne!(lattice.square(), before);
            assert_eq!(other.square(), lattice.square());
            transform(&mut lattice, &gauges);
            assert!(lattice.sites.iter().zip(&*other.sites).all(|(one, other)| one.vector == other.vector));
        }
    }
}
