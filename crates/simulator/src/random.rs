//! Random numbers from a seed. A seed gives the same numbers on every machine and in every version of this crate.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Generator of random numbers: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
/// 2014). It is not suitable for secrets.
///
/// This crate implements the generator instead of using a library, because a seed must give the same run after every
/// update of the dependencies.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Returns a new generator for one part of the world, so that the draws of one part do not change the draws of
    /// other parts.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Random(self.bits())
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a random number from 0 (inclusive) to `bound` (exclusive).
    ///
    /// # Panics
    /// Panics if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "the bound of a random number is positive");
        // The modulo bias is below 2^-32 for every bound that a simulation uses.
        self.bits() % bound
    }

    /// Returns a random index into a list with `len` items.
    ///
    /// # Panics
    /// Panics if `len` is zero.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("an index into a list fits into `usize`")
    }

    /// Returns true with this probability, from 0 (never) to 1 (always).
    pub fn chance(&mut self, probability: f64) -> bool {
        // With a probability of 0, the generator draws no number, so that a disabled fault does not change the rest of
        // the run.
        probability > 0.0 && ((self.bits() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    /// Returns true with probability 1/2.
    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// Returns a random duration from the range, which includes both ends.
    ///
    /// # Panics
    /// Panics if the range is empty.
    pub fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let (least, most) = (nanos(*range.start()), nanos(*range.end()));
        assert!(least <= most, "the range of durations is not empty");
        Duration::from_nanos(least + self.below((most - least).saturating_add(1)))
    }
}

/// Returns the duration in nanoseconds. A longer duration than 584 years becomes 584 years, because a `u64` cannot
/// represent it.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1)
}
