//! The calmness of a guest's table: whether comparisons go on to find it unchanged.

/// The calmness of a guest's table.
#[derive(Clone, Copy, Debug)]
pub struct Calm {
    /// Comparisons in a row that found it unchanged.
    found: u16,
    /// The number of times that it stopped being quiet, up to a limit.
    woken: u8,
}

impl Calm {
    /// The number of comparisons from which on it does not grow.
    const MOST: u16 = 2048;

    pub const NEW: Self = Self { found: 0, woken: 0 };

    /// Notes a comparison. Returns whether the table has been found unchanged often enough: `after` times if it was
    /// never quiet. Then the count begins anew.
    #[inline(always)]
    pub const fn is_enough(&mut self, is_same: bool, after: u16) -> bool {
        if !is_same || after == 0 {
            self.found = 0;
            return false;
        }
        self.found += 1;
        let is_enough = self.found >= after << self.woken;
        if is_enough {
            self.found = 0;
        }
        is_enough
    }

    /// Notes that the table is no longer quiet.
    pub const fn wakes(&mut self, after: u16) {
        self.found = 0;
        if after << self.woken < Self::MOST {
            self.woken += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_woken_must_be_calm_for_longer() {
        let mut calm = Calm::NEW;
        for wanted in [3, 6, 12, 24, 48, 96, 192, 384, 768, 1536, 3072, 3072, 3072] {
            assert!((1..wanted).all(|_| !calm.is_enough(true, 3)));
            assert!(calm.is_enough(true, 3));
            assert!((1..wanted).all(|_| !calm.is_enough(true, 3)));
            assert!(!calm.is_enough(false, 3));
            calm.wakes(3);
        }
        assert!((0..100_000).all(|_| !calm.is_enough(true, 0)));
    }
}
