//! Choice of the partition of a key.

use std::num::NonZeroU32;

/// Seed of Kafka's Java client.
const SEED: u32 = 0x9747_b28c;
const MULTIPLIER: u32 = 0x5bd1_e995;

/// Returns the number of the partition of a key, in a topic with `partitions` partitions. The result is equal to the
/// result of Kafka's Java client, so that producers in both languages send a key to the same partition.
///
/// ```
/// use std::num::NonZeroU32;
/// let partitions = NonZeroU32::new(12).unwrap();
/// assert!(bus::partition_of(b"order-17", partitions) < 12);
/// ```
#[must_use]
pub fn partition_of(key: &[u8], partitions: NonZeroU32) -> u32 {
    // Java's numbers have a sign. The Java client clears the sign before the division.
    (murmur2(key) & 0x7fff_ffff) % partitions
}

/// Returns the 32-bit hash MurmurHash2 of `key` with the seed of Kafka's Java client.
fn murmur2(key: &[u8]) -> u32 {
    // The hash of a key of more than 4 GiB is undefined. The lower 32 bits of the length are equal to Java's `int`.
    #[expect(clippy::cast_possible_truncation, reason = "the hash uses the lower 32 bits of the length")]
    let mut hash = SEED ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        let word = (word ^ (word >> 24)).wrapping_mul(MULTIPLIER);
        hash = hash.wrapping_mul(MULTIPLIER) ^ word;
    }
    if !rest.is_empty() {
        let bytes = rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        hash = (hash ^ bytes).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are from the test `UtilsTest.testMurmur2` of Kafka's Java client.
    #[test]
    fn hash_is_equal_to_the_hash_of_the_java_client() {
        let cases: [(&str, i32); 7] = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
            ("", 275_646_681),
        ];
        for (key, expected) in cases {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), expected, "{key}");
        }
    }
}
