//! Histograms of durations in milliseconds, with a bounded relative error.

/// Number of buckets in each range from a power of two to the next: 2 to the power of this number.
const SUB_BITS: u32 = 4;
const SUB: u16 = 1 << SUB_BITS;
/// Number of buckets of a histogram: 16 for the values below 16, and 16 for each of the 60 ranges above. The last
/// bucket contains [`u64::MAX`].
pub const BUCKETS: u16 = 61 * SUB;

/// Counts of values in log-linear buckets. The values below 16 have a bucket each. Each range from a power of two to
/// the next has 16 buckets of the same width, so a bucket is narrower than 1/16 of its values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    /// Buckets that contain values, in ascending order, each with the number of its values.
    buckets: Vec<(u16, u64)>,
    /// Largest recorded value.
    max: u64,
}

impl Histogram {
    /// Returns the histogram with these buckets and this largest value. Returns `None` if the buckets are not in
    /// ascending order, if a bucket is empty, or if the last bucket does not contain `max`.
    #[must_use]
    pub fn of_buckets(buckets: Vec<(u16, u64)>, max: u64) -> Option<Self> {
        let is_sorted = buckets.windows(2).all(|two| two[0].0 < two[1].0);
        let is_filled = buckets.iter().all(|(_, count)| *count > 0);
        let has_max = match buckets.last() {
            Some((last, _)) => bucket_of(max) == *last,
            None => max == 0,
        };
        (is_sorted && is_filled && has_max).then_some(Histogram { buckets, max })
    }

    /// Returns the buckets that contain values, in ascending order, each with the number of its values.
    #[must_use]
    pub fn buckets(&self) -> &[(u16, u64)] {
        &self.buckets
    }

    /// Records a value. Returns true if the value is the first one of its bucket.
    pub fn record(&mut self, value: u64) -> bool {
        self.max = self.max.max(value);
        self.add(bucket_of(value), 1)
    }

    fn add(&mut self, bucket: u16, count: u64) -> bool {
        match self.buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
            Ok(at) => {
                self.buckets[at].1 = self.buckets[at].1.saturating_add(count);
                false
            }
            Err(at) => {
                self.buckets.insert(at, (bucket, count));
                true
            }
        }
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in &other.buckets {
            self.add(*bucket, *count);
        }
        self.max = self.max.max(other.max);
    }

    /// Returns the number of recorded values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Returns the largest recorded value, or `None` if there is no value.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (!self.buckets.is_empty()).then_some(self.max)
    }

    /// Returns an upper bound of the percentile `percent` by the nearest-rank definition, or `None` if there is no
    /// value. The bound is at least the percentile, and exceeds it by less than 1/16.
    #[must_use]
    pub fn percentile(&self, percent: u8) -> Option<u64> {
        let total = u128::from(self.count());
        let rank = (total * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut below = 0;
        for (bucket, count) in &self.buckets {
            below += u128::from(*count);
            if below >= rank {
                return Some(last_of(*bucket).min(self.max));
            }
        }
        self.max()
    }
}

/// Returns the bucket that contains `value`.
fn bucket_of(value: u64) -> u16 {
    if value < u64::from(SUB) {
        return u16::try_from(value).unwrap_or(SUB);
    }
    let exponent = value.ilog2();
    let shift = exponent - SUB_BITS;
    // The shifted value is from 16 to 31, and the exponent is at most 63.
    let sub = u16::try_from(value >> shift).unwrap_or(SUB);
    let octave = u16::try_from(exponent - SUB_BITS + 1).unwrap_or_default();
    octave * SUB + (sub - SUB)
}

/// Returns the largest value of a bucket.
fn last_of(bucket: u16) -> u64 {
    if bucket < SUB {
        return u64::from(bucket);
    }
    let shift = u32::from(bucket / SUB - 1).min(u64::BITS - SUB_BITS - 1);
    let sub = u64::from(bucket % SUB + SUB);
    (sub << shift) | ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn histogram(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for value in values {
            histogram.record(*value);
        }
        histogram
    }

    /// Returns values of all magnitudes.
    fn values() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec((any::<u64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift), 1..200)
    }

    #[test]
    fn buckets_cover_all_numbers_without_gaps() {
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(last_of(BUCKETS - 1), u64::MAX);
        for bucket in 0..BUCKETS - 1 {
            let last = last_of(bucket);
            assert_eq!((bucket_of(last), bucket_of(last + 1)), (bucket, bucket + 1), "{bucket}");
        }
    }

    #[test]
    fn empty_histogram_has_no_percentile() {
        assert_eq!((Histogram::default().percentile(50), Histogram::default().max()), (None, None));
    }

    #[test]
    fn malformed_buckets_are_rejected() {
        for (buckets, max) in
            [(vec![(5, 1), (5, 1)], 5), (vec![(6, 1), (5, 1)], 5), (vec![(5, 0)], 5), (vec![(5, 1)], 6), (vec![], 1)]
        {
            assert_eq!(Histogram::of_buckets(buckets.clone(), max), None, "{buckets:?}");
        }
    }

    proptest! {
        #[test]
        fn percentiles_exceed_the_exact_ones_by_less_than_a_16th(mut values in values(), percent in 0..=100_u8) {
            let bound = histogram(&values).percentile(percent).unwrap();
            values.sort_unstable();
            let rank = (values.len() * usize::from(percent)).div_ceil(100).max(1);
            let exact = values[rank - 1];
            prop_assert!(bound >= exact, "{bound} is below {exact}");
            prop_assert!(bound - exact <= exact / 16, "{bound} is too far above {exact}");
        }

        #[test]
        fn merged_histograms_equal_the_histogram_of_all_values(a in values(), b in values(), c in values()) {
            let [of_a, of_b, of_c] = [&a, &b, &c].map(|values| histogram(values));
            let merged = |first: &Histogram, second: &Histogram| {
                let mut merged = first.clone();
                merged.merge(second);
                merged
            };
            let all = histogram(&[a, b, c].concat());
            prop_assert_eq!(&merged(&merged(&of_a, &of_b), &of_c), &all);
            prop_assert_eq!(&merged(&of_a, &merged(&of_c, &of_b)), &all);
        }

        #[test]
        fn histogram_is_restored_from_its_buckets(values in values()) {
            let histogram = histogram(&values);
            let max = histogram.max().unwrap();
            prop_assert_eq!(Histogram::of_buckets(histogram.buckets().to_vec(), max), Some(histogram));
        }
    }
}
