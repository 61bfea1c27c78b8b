//! The rate of wide fences: whether they are so many that less work for them is worth a higher cost of other things
//! (`quiet`).

/// In each interval of time, the fences from which on they are many, and below which they are few again.
const MANY: u64 = 30;
const FEW: u64 = 15;

/// The rate of wide fences.
#[derive(Default)]
pub struct Rate {
    /// The beginning of the interval, and how many fences there had been.
    since: u64,
    before: u64,
    is_high: bool,
}

impl Rate {
    /// Updates the rate at the time `now`, after that many fences in all. An interval has so many units of time.
    #[inline(always)]
    pub const fn tell(&mut self, (now, interval): (u64, u64), fences: u64) {
        let passed = now.saturating_sub(self.since);
        if passed < interval {
            return;
        }
        let each = (fences - self.before).saturating_mul(interval) / passed;
        self.is_high = each >= if self.is_high { FEW } else { MANY };
        (self.since, self.before) = (now, fences);
    }

    /// Returns whether they are many.
    pub const fn is_high(&self) -> bool {
        self.is_high
    }
}

/// The frequency of an event beside wide fences.
#[derive(Default)]
pub struct KeptOut {
    times: u64,
    /// The number of wide fences at which the count began.
    since: u64,
}

impl KeptOut {
    /// The number of wide fences after which the count begins anew.
    const LONG: u64 = 64;
    /// The number of times that the event may happen, and how many more for each wide fence: it costs some 300
    /// instructions, and wide fences have some thousands less.
    const ALLOWED: u64 = 32;
    const EACH: u64 = 16;

    /// Notes the event, after that many wide fences. Returns whether it happens too often; then the count begins anew.
    pub const fn is_enough(&mut self, fences: u64) -> bool {
        if fences - self.since >= Self::LONG {
            (self.times, self.since) = (0, fences);
        }
        self.times += 1;
        let is_enough = self.times > Self::ALLOWED + Self::EACH * (fences - self.since);
        if is_enough {
            (self.times, self.since) = (0, fences);
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_and_few() {
        let mut rate = Rate::default();
        for (now, fences, is_high) in [
            (1000, 0, false),
            (2000, 29, false),
            (2999, 99, false),
            (3000, 99, true),
            (4000, 114, true),
            (6000, 143, false),
            (7000, 172, false),
            (1_000_000, 500, false),
            (1_001_000, 530, true),
            (2_000_000, 530, false),
        ] {
            rate.tell((now, 1000), fences);
            assert_eq!(rate.is_high(), is_high, "{now} {fences}");
        }
    }

    #[test]
    fn too_often_beside_fences() {
        let mut kept_out = KeptOut::default();
        assert!((0..32).all(|_| !kept_out.is_enough(0)) && kept_out.is_enough(0));
        // Eight for each fence.
        assert!((0..10_000).all(|n| !kept_out.is_enough(n / 8)));
        assert!((0..1_000).any(|_| kept_out.is_enough(1_250)));
    }
}
