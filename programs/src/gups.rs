//! Random updates of a large table, in the manner of HPCC's RandomAccess: each is a load and a store in
//! another page.

use crate::random::Random;

/// Gives each element its first value.
pub fn fill(table: &mut [u64]) {
    for (element, value) in table.iter_mut().zip(0..) {
        *element = value;
    }
}

/// Makes so many updates, at places and with values that belong to a seed. Made once more, they undo
/// themselves. The table's size is a power of two.
///
/// # Panics
/// If it is none.
pub fn update(table: &mut [u64], updates: u64, seed: u64) {
    assert!(table.len().is_power_of_two());
    let mask = table.len() - 1;
    let mut random = Random::new(seed);
    for _ in 0..updates {
        let value = random.bits();
        table[value as usize & mask] ^= value;
    }
}

/// A number that depends on each element and its place.
#[must_use]
pub fn checksum(table: &[u64]) -> u64 {
    table.iter().fold(0, |sum, element| sum.rotate_left(1).wrapping_add(*element))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_go_everywhere_and_undo_themselves() {
        let mut table = vec![0; 1024];
        fill(&mut table);
        let before = table.clone();
        update(&mut table, 10_000, 1);
        let changed = table.iter().zip(&before).filter(|(one, other)| one != other).count();
        assert!(changed > 1000, "{changed}");
        assert_ne!(checksum(&table), checksum(&before));
        update(&mut table, 10_000, 1);
        assert_eq!(table, before);
    }

    #[test]
    fn places_count() {
        assert_ne!(checksum(&[1, 2, 3]), checksum(&[3, 2, 1]));
        assert_ne!(checksum(&[1, 0]), checksum(&[0, 1]));
    }
}
