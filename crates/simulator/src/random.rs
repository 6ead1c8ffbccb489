//! Chance that follows from a seed, the same on every machine and in every version.

use std::ops::RangeInclusive;
use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). Not for secrets.
///
/// Kept here instead of taken from a library, because a seed that once failed must replay after every update.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// A source of its own for one part of the world, so that one part's draws do not shift another's.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Random(self.bits())
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// From 0 up to and without `bound`.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        // The bias of a remainder is below 2^-32 for every bound that a simulation uses.
        self.bits() % bound
    }

    /// As [`Random::below`], for places in a list.
    ///
    /// # Panics
    /// If `len` is zero.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("a number below a usize is one")
    }

    /// True with this probability, from 0 (never) to 1 (always).
    pub fn chance(&mut self, probability: f64) -> bool {
        // No draw for what cannot happen: a fault that is switched off leaves the rest of the run as it was.
        probability > 0.0 && ((self.bits() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    pub fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }

    /// Both ends may be drawn.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let (least, most) = (nanos(*range.start()), nanos(*range.end()));
        assert!(least <= most, "a duration is drawn from a range that is not empty");
        Duration::from_nanos(least + self.below((most - least).saturating_add(1)))
    }
}

/// Nanoseconds that a simulation can count: 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1)
}
