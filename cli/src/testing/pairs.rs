//! Chooses few of many combinations so that every pair of values still comes together somewhere (pairwise testing):
//! most faults need one or two circumstances, and few need three (Kuhn, Kacker and Lei, NIST SP 800-142).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The combinations that the chosen rows must contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cover {
    /// Every two values that some row has together, and every value alone.
    Pairs,
    /// Every value.
    Values,
}

/// Chooses among `rows`, each the set of values that one combination has; returns the places of those chosen, ascending.
///
/// What `cover` says is in a chosen row. What no row has, because it cannot be, is not asked for. The same rows give the same
/// choice:
///
/// 1. Each time the row with the most that no chosen one has yet is chosen. Of equals it is the first; where values are asked for,
///    the first of those whose values the chosen ones have least often.
/// 2. A row which has nothing that the others have not among them is let go again.
///
/// A value alone is a pair with itself.
pub fn covering<T: Ord>(rows: &[Vec<T>], cover: Cover) -> Vec<usize> {
    let is_asked = |pair: &(&T, &T)| cover == Cover::Pairs || pair.0 == pair.1;
    let mut missing: BTreeSet<_> = rows.iter().flat_map(|row| pairs(row)).filter(is_asked).collect();
    let mut chosen: Vec<usize> = Vec::new();
    while !missing.is_empty() {
        let uses = |value: &T| chosen.iter().filter(|place| rows[**place].contains(value)).count();
        let used = |row: &[T]| if cover == Cover::Values { row.iter().map(uses).sum() } else { 0 };
        let gain = |row: &[T]| (pairs(row).filter(|pair| missing.contains(pair)).count(), Reverse(used(row)));
        // `max_by_key` takes the last of equals.
        let Some((place, best)) = rows.iter().enumerate().rev().max_by_key(|(_, row)| gain(row)) else { break };
        pairs(best).for_each(|pair| _ = missing.remove(&pair));
        chosen.push(place);
    }
    let asked_of = |place: usize| pairs(&rows[place]).filter(is_asked);
    let mut rows_with = BTreeMap::new();
    for pair in chosen.iter().flat_map(|place| asked_of(*place)) {
        *rows_with.entry(pair).or_insert(0) += 1;
    }
    chosen.retain(|place| {
        let is_needed = asked_of(*place).any(|pair| rows_with[&pair] == 1);
        if !is_needed {
            asked_of(*place).for_each(|pair| *rows_with.entry(pair).or_default() -= 1);
        }
        is_needed
    });
    chosen.sort_unstable();
    chosen
}

/// All pairs of a row's values, each value with itself included.
fn pairs<T: Ord>(row: &[T]) -> impl Iterator<Item = (&T, &T)> {
    row.iter().enumerate().flat_map(|(at, first)| {
        row[at..].iter().map(move |second| if first <= second { (first, second) } else { (second, first) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All combinations of one value of each factor: values are numbered through, so that they differ by factor.
    fn product(factors: &[usize]) -> Vec<Vec<usize>> {
        let mut rows = vec![vec![]];
        let mut first = 0;
        for count in factors {
            let values = first..first + count;
            rows = rows.iter().flat_map(|row| values.clone().map(move |value| [&row[..], &[value]].concat())).collect();
            first += count;
        }
        rows
    }

    fn covered(rows: &[Vec<usize>], chosen: &[usize]) -> BTreeSet<(usize, usize)> {
        let own = |(first, second): (&usize, &usize)| (*first, *second);
        chosen.iter().flat_map(|place| pairs(&rows[*place]).map(own)).collect()
    }

    #[test]
    fn every_pair_is_covered_by_few() {
        for (factors, most) in [(&[2, 2, 2][..], 4), (&[2, 2, 4, 2, 2], 10), (&[4, 4, 3], 16), (&[3], 3), (&[2, 5], 10)]
        {
            let rows = product(factors);
            let all: Vec<_> = (0..rows.len()).collect();
            let chosen = covering(&rows, Cover::Pairs);
            assert_eq!(covered(&rows, &chosen), covered(&rows, &all), "{factors:?}");
            assert!(chosen.len() <= most, "{factors:?}: {}", chosen.len());
            assert!(chosen.is_sorted_by(|a, b| a < b));
        }
    }

    #[test]
    fn every_value_is_covered_by_fewer() {
        for factors in [&[2, 2, 2][..], &[2, 2, 4, 2, 2], &[4, 4, 3], &[3], &[2, 5]] {
            let chosen = covering(&product(factors), Cover::Values);
            let values: BTreeSet<_> = chosen.iter().flat_map(|place| product(factors)[*place].clone()).collect();
            assert_eq!(values.len(), factors.iter().sum::<usize>(), "{factors:?}");
            assert_eq!(Some(&chosen.len()), factors.iter().max(), "{factors:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_not_asked_for() {
        let rows: Vec<_> =
            product(&[2, 2, 4, 2]).into_iter().filter(|row| row[0] == 0 || row[1] != row[2] - 2).collect();
        let all: Vec<_> = (0..rows.len()).collect();
        let chosen = covering(&rows, Cover::Pairs);
        assert_eq!(covered(&rows, &chosen), covered(&rows, &all));
        assert!(chosen.len() < rows.len() / 2, "{}", chosen.len());
    }

    #[test]
    fn rows_may_have_values_of_their_own() {
        // `lane` is a matter of mode `lazy` only; a row that nothing else resembles is always chosen.
        let rows = [vec!["two-stage", "h"], vec!["lazy", "h", "lane"], vec!["lazy", "noh", "nolane"], vec!["bare"]];
        let rows: Vec<Vec<&str>> = rows.into_iter().collect();
        assert_eq!(covering(&rows, Cover::Pairs), [0, 1, 2, 3]);
        assert_eq!(covering(&[vec![1], vec![1], vec![2]], Cover::Pairs), [0, 2], "the first of equals");
        assert_eq!(covering::<u8>(&[], Cover::Pairs), [0; 0]);
    }
}
