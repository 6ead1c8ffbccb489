//! Generator of random numbers from a seed. The same seed yields the same numbers.

/// `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns another generator whose numbers are independent of this generator's numbers.
    pub(super) fn fork(&mut self) -> Random {
        Random(self.next())
    }

    /// Returns a number from `low` to `high`, both inclusive.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "the lower bound {low} must not be above the upper bound {high}");
        low + self.next() % (high - low + 1)
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    /// Returns a random element, or `None` if the slice is empty.
    pub(super) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let last = u64::try_from(items.len()).ok()?.checked_sub(1)?;
        items.get(usize::try_from(self.between(0, last)).ok()?)
    }

    pub(super) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            let other = usize::try_from(self.next() % (last as u64 + 1)).unwrap_or(last);
            all.swap(last, other);
        }
    }
}
