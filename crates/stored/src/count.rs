//! Encoding of the counts of final runs, and of the origin of a run.
//!
//! Numbers in counts have a variable length: seven bits per byte, the lowest first. Most numbers are small.

use std::collections::BTreeMap;

use domain::count::BUCKETS;
use domain::{Counts, Group, Histogram, RunOrigin, RunStateKind, Tallies, Tally};

use crate::run::kind_number;
use crate::schedule::{put_optional_text, take_optional_text};
use crate::{Malformed, Put, Take};

const VERSION: u8 = 1;
const VERSION_ORIGIN: u8 = 1;

/// Returns the encoded counts of a facet of an hour.
#[must_use]
pub fn encode(counts: &Counts) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.u8(VERSION);
    put_number(&mut out, counts.groups().len() as u64);
    for (group, tallies) in counts.groups() {
        put_group(&mut out, group);
        put_number(&mut out, tallies.len() as u64);
        for (state, tally) in tallies {
            out.u8(kind_number(*state));
            put_number(&mut out, tally.runs);
            put_histogram(&mut out, &tally.lateness);
            put_histogram(&mut out, &tally.duration);
        }
    }
    out
}

/// Decodes the counts of a facet of an hour.
///
/// # Errors
/// Returns an error if `bytes` are not counts.
pub fn decode(bytes: &[u8]) -> Result<Counts, Malformed> {
    let mut take = Take::new("counts of runs", bytes);
    take.version(VERSION)?;
    let mut groups = BTreeMap::new();
    for _ in 0..take_number(&mut take)? {
        let group = take_group(&mut take)?;
        let mut tallies = Tallies::new();
        for _ in 0..take_number(&mut take)? {
            let number = take.u8()?;
            let state = RunStateKind::ALL.into_iter().find(|kind| kind_number(*kind) == number);
            let state = state.ok_or_else(|| take.malformed())?;
            let runs = take_number(&mut take)?;
            let (lateness, duration) = (take_histogram(&mut take)?, take_histogram(&mut take)?);
            if tallies.insert(state, Tally { runs, lateness, duration }).is_some() {
                return Err(take.malformed());
            }
        }
        if groups.insert(group, tallies).is_some() {
            return Err(take.malformed());
        }
    }
    take.end()?;
    Ok(Counts::of_groups(groups))
}

fn put_group(out: &mut Vec<u8>, group: &Group) {
    match group {
        Group::None => out.u8(0),
        Group::Value { name, value } => {
            out.u8(1);
            put_text(out, name);
            put_text(out, value);
        }
        Group::OtherValue { name } => {
            out.u8(2);
            put_text(out, name);
        }
        Group::OtherName => out.u8(3),
    }
}

fn take_group(take: &mut Take<'_>) -> Result<Group, Malformed> {
    Ok(match take.u8()? {
        0 => Group::None,
        1 => Group::Value { name: take_text(take)?, value: take_text(take)? },
        2 => Group::OtherValue { name: take_text(take)? },
        3 => Group::OtherName,
        _ => return Err(take.malformed()),
    })
}

fn put_histogram(out: &mut Vec<u8>, histogram: &Histogram) {
    put_number(out, histogram.buckets().len() as u64);
    if let Some(max) = histogram.max() {
        put_number(out, max);
    }
    let mut before = 0;
    for (bucket, count) in histogram.buckets() {
        put_number(out, u64::from(bucket - before));
        put_number(out, *count);
        before = *bucket;
    }
}

fn take_histogram(take: &mut Take<'_>) -> Result<Histogram, Malformed> {
    let count = take_number(take)?;
    if count > u64::from(BUCKETS) {
        return Err(take.malformed());
    }
    let max = if count == 0 { 0 } else { take_number(take)? };
    let (mut buckets, mut bucket) = (Vec::new(), 0_u16);
    for _ in 0..count {
        let step = u16::try_from(take_number(take)?).ok();
        bucket = step.and_then(|step| bucket.checked_add(step)).ok_or_else(|| take.malformed())?;
        buckets.push((bucket, take_number(take)?));
    }
    Histogram::of_buckets(buckets, max).ok_or_else(|| take.malformed())
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.bytes(text.as_bytes());
}

fn take_text(take: &mut Take<'_>) -> Result<String, Malformed> {
    let len = usize::try_from(take_number(take)?).map_err(|_| take.malformed())?;
    let bytes = take.bytes(len)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| take.malformed())
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.u8((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.u8((number & 0x7f) as u8);
}

fn take_number(take: &mut Take<'_>) -> Result<u64, Malformed> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = take.u8()?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return Err(take.malformed());
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(take.malformed())
}

/// Appends the origin of a run.
pub fn put_origin(out: &mut Vec<u8>, origin: &RunOrigin) {
    out.u8(VERSION_ORIGIN);
    put_optional_text(out, origin.host.as_deref());
    put_number(out, origin.labels.len() as u64);
    for (name, value) in &origin.labels {
        put_text(out, name);
        put_text(out, value);
    }
}

/// Takes the origin of a run that [`put_origin`] appended.
///
/// # Errors
/// Returns an error if the bytes do not start with an origin.
pub fn take_origin(take: &mut Take<'_>) -> Result<RunOrigin, Malformed> {
    take.version(VERSION_ORIGIN)?;
    let host = take_optional_text(take)?;
    let mut labels = Vec::new();
    for _ in 0..take_number(take)? {
        labels.push((take_text(take)?, take_text(take)?));
    }
    Ok(RunOrigin { host, labels })
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::{Facet, RunSample};
    use proptest::prelude::*;

    fn counts() -> impl Strategy<Value = Counts> {
        let run = (any::<u64>(), 0..64_u32, 1..5_usize, prop::option::of("[a-d]{0,3}"), any::<bool>());
        prop::collection::vec(run, 0..60).prop_map(|runs| {
            let mut counts = Counts::default();
            for (value, shift, state, host, has_lateness) in runs {
                let value = value >> shift;
                let state = RunStateKind::ALL[state];
                let sample = RunSample { state, lateness: has_lateness.then_some(value), duration: Some(value / 2) };
                let labels = host.iter().map(|host| (host.clone(), value.to_string())).collect();
                counts.record(Facet::Label, Some(&RunOrigin { host, labels }), &sample);
            }
            counts
        })
    }

    proptest! {
        #[test]
        fn counts_are_restored_from_their_bytes(counts in counts()) {
            prop_assert_eq!(decode(&encode(&counts)), Ok(counts));
        }

        #[test]
        fn changed_bytes_never_panic(counts in counts(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = encode(&counts);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _decoded = decode(&bytes);
            prop_assert!(decode(&bytes[..at]).is_err());
        }

        #[test]
        fn origin_is_restored_from_its_bytes(
            host in prop::option::of(".{0,20}"),
            labels in prop::collection::vec((".{0,9}", ".{0,9}"), 0..5),
        ) {
            let origin = RunOrigin { host, labels };
            let mut bytes = Vec::new();
            put_origin(&mut bytes, &origin);
            let mut take = Take::new("an origin", &bytes);
            prop_assert_eq!(take_origin(&mut take), Ok(origin));
            prop_assert!(take.end().is_ok());
        }
    }

    /// Later builds must read the bytes of this form.
    #[test]
    fn counts_have_the_form_of_version_1() {
        let origin = RunOrigin { host: None, labels: vec![("team".to_owned(), "blue".to_owned())] };
        let sample = RunSample { state: RunStateKind::Failed, lateness: Some(300), duration: None };
        let mut counts = Counts::default();
        counts.record(Facet::Label, Some(&origin), &sample);
        counts.record(Facet::Label, None, &RunSample { lateness: Some(3), ..sample });
        let none = [0, 1, 2, 1, 1, 3, 3, 1, 0];
        // The bucket of 300 ms has the number 82, and the largest value is 300 = 0x2c + (2 << 7).
        let blue = [1, 2, 1, 1, 0xac, 2, 82, 1, 0];
        let expected = [&[VERSION, 2][..], &none, &[1, 4], b"team", &[4], b"blue", &blue].concat();
        assert_eq!(encode(&counts), expected);
        assert_eq!(decode(&expected), Ok(counts));
    }

    #[test]
    fn counts_of_later_versions_are_malformed() {
        assert!(decode(&[2, 0]).is_err());
        assert!(decode(&[VERSION, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).is_err());
    }
}
