//! How calm a guest's table is: whether comparisons go on to find it as it was.

/// How calm a table is.
#[derive(Clone, Copy, Debug)]
pub struct Calm {
    /// Comparisons in a row that found it as it was.
    found: u16,
    /// How often it was quiet, and not for good.
    woken: u8,
}

impl Calm {
    /// The most comparisons that are asked for.
    const MOST: u16 = 2048;

    pub const NEW: Self = Self { found: 0, woken: 0 };

    /// It has been compared. Says whether it has been found as it was often enough: `after` times, if it never was quiet; it begins anew then.
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

    /// It was quiet, and is so no more.
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
