//! Chance from a seed: the same seed draws the same plan.

/// `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Chance(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Another, whose draws have nothing to do with this one's.
    pub(super) fn fork(&mut self) -> Chance {
        Chance(self.next())
    }

    /// From `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "nothing lies between {low} and {high}");
        low + self.next() % (high - low + 1)
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    /// `None` of nothing.
    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let last = u64::try_from(of.len()).ok()?.checked_sub(1)?;
        of.get(usize::try_from(self.between(0, last)).ok()?)
    }

    pub(super) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            let other = usize::try_from(self.next() % (last as u64 + 1)).unwrap_or(last);
            all.swap(last, other);
        }
    }
}
