//! Progress of a group in one partition: the offsets of its finished records.
//!
//! Records finish in any order, because the lanes of different keys run in parallel. The committed offset is the offset
//! of the first record that is not finished, or of an earlier record that the handler still needs for its state. The
//! metadata of the commit contains the finished records after this offset, so that the next owner does not process them
//! again.
//!
//! The metadata is the text `f1:` followed by base64 of numbers in the LEB128 format. The numbers are in turn the
//! lengths of a range of offsets that are not finished, and of a range of finished offsets. The first range starts at
//! the committed offset. Only this range may be empty. The metadata is empty if no record after the committed offset is
//! finished.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;

use crate::consumer::{Assigned, Committed};
use crate::topic::Offset;

/// First characters of the metadata. They name the format.
const FORMAT: &str = "f1:";
/// Largest number of bytes of a number in the LEB128 format.
const NUMBER_BYTES_MAX: usize = 10;

/// Reason why a metadata text does not describe finished records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum MetadataError {
    /// The text starts with another format, because another program has committed the offset.
    #[error("another program wrote the metadata")]
    Foreign,
    /// The text starts with the right format, but its other part is invalid.
    #[error("the metadata is damaged")]
    Damaged,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) struct Progress {
    /// Offset of the first record that is not finished.
    base: u64,
    /// Finished ranges after `base`: the start and the end of each range. Two ranges do not touch.
    finished: BTreeMap<u64, u64>,
}

impl Progress {
    /// Returns the progress at the start of an assignment. If the metadata is invalid, the group processes all records
    /// after the committed offset again.
    pub(super) fn new(assigned: &Assigned) -> (Self, Option<MetadataError>) {
        let mut progress = Progress { base: assigned.position.0, finished: BTreeMap::new() };
        // After the creation of another topic with the same name, the metadata describes records of the deleted topic.
        let committed = assigned.committed.as_ref().filter(|committed| committed.offset <= assigned.position);
        let Some(committed) = committed else { return (progress, None) };
        match decode(committed.offset.0, &committed.metadata) {
            Ok(ranges) => ranges.iter().for_each(|(start, end)| progress.finish(Offset(*start), Offset(*end))),
            Err(error) => return (progress, Some(error)),
        }
        (progress, None)
    }

    /// Returns the first offset at or after `offset` that is not finished.
    pub(super) fn first_unfinished(&self, offset: Offset) -> Offset {
        let offset = offset.0.max(self.base);
        let before = self.finished.range(..=offset).next_back();
        Offset(before.filter(|(_, end)| **end > offset).map_or(offset, |(_, end)| *end))
    }

    pub(super) fn is_finished(&self, offset: Offset) -> bool {
        self.first_unfinished(offset) != offset
    }

    /// Returns the number of offsets before `end` that are not finished.
    pub(super) fn unfinished(&self, end: Offset) -> u64 {
        let finished: u64 = self.finished.iter().map(|(start, end)| end - start).sum();
        end.0.saturating_sub(self.base).saturating_sub(finished)
    }

    /// Records that all offsets from `start` to the offset before `end` are finished.
    pub(super) fn finish(&mut self, start: Offset, end: Offset) {
        let (mut start, mut end) = (start.0.max(self.base), end.0);
        if start >= end {
            return;
        }
        // The range absorbs the ranges that it overlaps or touches.
        while let Some((&other_start, &other_end)) = self.finished.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.finished.remove(&other_start);
            (start, end) = (start.min(other_start), end.max(other_end));
        }
        if start == self.base {
            self.base = end;
        } else {
            self.finished.insert(start, end);
        }
    }

    /// Returns the offset and the metadata to commit, and true if the metadata describes all finished records. The
    /// committed offset is at most `oldest`. The metadata has at most `bytes_max` bytes. Finished records that it cannot
    /// describe are processed again after a restart.
    pub(super) fn commit(&self, oldest: Option<Offset>, bytes_max: usize) -> (Committed, bool) {
        let from = oldest.map_or(self.base, |oldest| oldest.0.min(self.base));
        let needed = (from < self.base).then_some((from, self.base));
        let finished = needed.into_iter().chain(self.finished.iter().map(|(start, end)| (*start, *end)));
        let (metadata, is_complete) = encode(from, finished, bytes_max);
        (Committed { offset: Offset(from), metadata }, is_complete)
    }
}

fn encode(from: u64, finished: impl Iterator<Item = (u64, u64)>, bytes_max: usize) -> (String, bool) {
    // Three bytes of numbers need four characters.
    let room = bytes_max.saturating_sub(FORMAT.len()) / 4 * 3;
    let (mut numbers, mut position) = (Vec::new(), from);
    let mut is_complete = true;
    for (start, end) in finished {
        let before = numbers.len();
        write(&mut numbers, start - position);
        write(&mut numbers, end - start);
        if numbers.len() > room {
            numbers.truncate(before);
            is_complete = false;
            break;
        }
        position = end;
    }
    let metadata = if numbers.is_empty() { String::new() } else { format!("{FORMAT}{}", BASE64.encode(numbers)) };
    (metadata, is_complete)
}

/// Returns the starts and the ends of the finished ranges.
fn decode(from: u64, metadata: &str) -> Result<Vec<(u64, u64)>, MetadataError> {
    let mut finished = Vec::new();
    if metadata.is_empty() {
        return Ok(finished);
    }
    let text = metadata.strip_prefix(FORMAT).ok_or(MetadataError::Foreign)?;
    let numbers = BASE64.decode(text).map_err(|_| MetadataError::Damaged)?;
    let (mut rest, mut position) = (&numbers[..], from);
    while !rest.is_empty() {
        let (gap, length);
        (gap, rest) = read(rest).filter(|(gap, _)| *gap > 0 || finished.is_empty()).ok_or(MetadataError::Damaged)?;
        (length, rest) = read(rest).filter(|(length, _)| *length > 0).ok_or(MetadataError::Damaged)?;
        let start = position.checked_add(gap).ok_or(MetadataError::Damaged)?;
        position = start.checked_add(length).ok_or(MetadataError::Damaged)?;
        finished.push((start, position));
    }
    Ok(finished)
}

/// Appends a number in the LEB128 format: seven bits in each byte, the lowest bits first. The highest bit of a byte
/// marks that another byte follows.
fn write(bytes: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}

/// Returns the first number of the bytes, and the bytes after it.
fn read(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().take(NUMBER_BYTES_MAX).position(|byte| byte & 0x80 == 0)?;
    let mut number = 0_u64;
    for byte in bytes[..=end].iter().rev() {
        number = number.checked_mul(0x80)? | u64::from(byte & 0x7f);
    }
    Some((number, &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::{Partition, TopicName};

    const LIMIT: usize = 4_096;

    fn assigned(committed: Committed) -> Assigned {
        let partition = Partition { topic: TopicName::new("orders").unwrap(), index: 0 };
        Assigned { partition, position: committed.offset, committed: Some(committed) }
    }

    fn unfinished(progress: &Progress, to: u64) -> BTreeSet<u64> {
        (0..to).filter(|offset| !progress.is_finished(Offset(*offset))).collect()
    }

    proptest! {
        /// The expected result is a set of single offsets.
        #[test]
        fn commit_describes_the_finished_records_as_far_as_its_limit_allows(
            base in 0_u64..300,
            ranges in prop::collection::vec((0_u64..600, 0_u64..12), 0..80),
            limit in 0_usize..200,
        ) {
            let (mut progress, _) =
                Progress::new(&assigned(Committed { offset: Offset(base), metadata: String::new() }));
            let mut expected: BTreeSet<u64> = (base..700).collect();
            for (start, length) in ranges {
                progress.finish(Offset(start), Offset(start + length));
                expected.retain(|offset| !(start..start + length).contains(offset));
            }
            prop_assert_eq!(&unfinished(&progress, 700), &expected);

            let (committed, is_complete) = progress.commit(None, LIMIT);
            prop_assert!(is_complete);
            prop_assert_eq!(committed.offset, Offset(*expected.first().unwrap()));
            let (restored, error) = Progress::new(&assigned(committed));
            prop_assert_eq!((&restored, error), (&progress, None));

            let (committed, is_complete) = progress.commit(None, limit);
            prop_assert!(committed.metadata.len() <= limit);
            let (restored, error) = Progress::new(&assigned(committed));
            prop_assert_eq!(error, None);
            prop_assert!(unfinished(&restored, 700).is_superset(&expected));
            prop_assert_eq!(is_complete, restored == progress);

            // The commit starts at an earlier record, for example because a state depends on it.
            let oldest = Offset(base / 2);
            let (committed, is_complete) = progress.commit(Some(oldest), LIMIT);
            prop_assert!(is_complete);
            prop_assert_eq!(committed.offset, oldest);
            let (restored, error) = Progress::new(&assigned(committed.clone()));
            prop_assert_eq!((&restored, error), (&progress, None));

            // The bus has deleted some of the earlier records.
            let position = Offset((oldest.0 + base) / 2);
            let (restored, error) = Progress::new(&Assigned { position, ..assigned(committed) });
            prop_assert_eq!((&restored, error), (&progress, None));
        }

        #[test]
        fn any_text_is_decoded_or_rejected(text in "\\PC{0,40}", bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            for metadata in [text, format!("{FORMAT}{}", BASE64.encode(bytes))] {
                let (progress, error) =
                    Progress::new(&assigned(Committed { offset: Offset(9), metadata: metadata.clone() }));
                prop_assert!(progress.commit(None, usize::MAX).0.offset >= Offset(9));
                prop_assert_eq!(error == Some(MetadataError::Foreign),
                    !metadata.is_empty() && !metadata.starts_with(FORMAT));
            }
        }
    }

    #[test]
    fn thousand_gaps_need_less_than_the_limit_of_kafka() {
        let (mut progress, _) =
            Progress::new(&assigned(Committed { offset: Offset(1 << 40), metadata: String::new() }));
        for gap in 0..1_000 {
            let start = (1 << 40) + gap * 50 + 1;
            progress.finish(Offset(start), Offset(start + 49));
        }
        let (committed, is_complete) = progress.commit(None, LIMIT);
        assert!(is_complete, "{}", committed.metadata.len());
    }

    #[test]
    fn metadata_of_a_deleted_topic_is_ignored() {
        let (mut progress, _) = Progress::new(&assigned(Committed { offset: Offset(5), metadata: String::new() }));
        progress.finish(Offset(7), Offset(9));
        let committed = progress.commit(None, LIMIT).0;
        let at = |position| Progress::new(&Assigned { position: Offset(position), ..assigned(committed.clone()) });
        let expected = |offset| (Committed { offset: Offset(offset), metadata: String::new() }, None);
        // The new topic has fewer records.
        let (restored, error) = at(0);
        assert_eq!((restored.commit(None, LIMIT).0, error), expected(0));
        // The same topic no longer has its first records.
        let (restored, error) = at(8);
        assert_eq!((restored.commit(None, LIMIT).0, error), expected(9));
        let (restored, error) = at(100);
        assert_eq!((restored.commit(None, LIMIT).0, error), expected(100));
    }
}
