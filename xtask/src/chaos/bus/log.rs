//! Logs of the members. Each process has a log of its own, which the example `bus_chaos` of the crate `bus-kafka` writes.
//!
//! An entry consists of four 32-bit numbers (kind, partition, key, number of the record) and three 64-bit numbers (offset,
//! start, end), all little-endian. The times are nanoseconds of the monotonic clock, which all processes share. The kinds
//! are:
//! - 1, a call of the handler that succeeded. It has an effect at its end.
//! - 2, an assignment. The offset and the metadata are the committed state of the group, as the member received it.
//! - 3, a successful commit. The member sent it after its start.
//!
//! In entries of the kinds 2 and 3, the number is the length of the metadata, which follows the entry.

use std::path::Path;

use anyhow::{Context, bail};

const HANDLED: u32 = 1;
const ASSIGNED: u32 = 2;
const COMMITTED: u32 = 3;

/// Log of one process.
#[derive(Default, Debug)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) handled: Vec<Handled>,
    pub(super) assigned: Vec<State>,
    pub(super) committed: Vec<State>,
    /// Start and end of each pause.
    pub(super) pauses: Vec<(u64, u64)>,
}

/// Call of the handler.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Handled {
    pub(super) partition: u32,
    pub(super) key: u32,
    pub(super) number: u32,
    pub(super) offset: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Committed state of a partition, at an assignment or at a commit.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct State {
    pub(super) partition: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Offset of the first record that is not finished.
    pub(super) offset: u64,
    /// Finished ranges after `offset`: the start and the end of each range, in ascending order. Two ranges do not touch.
    pub(super) finished: Vec<(u64, u64)>,
    pub(super) metadata_bytes: usize,
}

impl State {
    /// Returns true if all records from `start` to the record before `end` are finished.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        end <= self.offset || self.finished.iter().any(|range| range.0 <= start.max(self.offset) && end <= range.1)
    }

    /// Returns true if all records that are finished in `earlier` are finished here.
    pub(super) fn contains(&self, earlier: &State) -> bool {
        self.covers(0, earlier.offset) && earlier.finished.iter().all(|range| self.covers(range.0, range.1))
    }
}

impl Process {
    /// # Errors
    /// Returns an error if the file is missing or malformed. An incomplete last entry is not an error, because a process
    /// may have died while it wrote the entry.
    pub(super) fn read(path: &Path) -> anyhow::Result<Process> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut process = Process::default();
        process.parse(&bytes).with_context(|| format!("{} is not a log of a member", path.display()))?;
        Ok(process)
    }

    fn parse(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut rest = bytes;
        while let Some((entry, after)) = rest.split_first_chunk::<40>() {
            let short = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
            let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
            let (kind, partition, key, number) = (short(0), short(4), short(8), short(12));
            let (offset, start, end) = (long(16), long(24), long(32));
            rest = after;
            if kind == HANDLED {
                self.handled.push(Handled { partition, key, number, offset, start, end });
                continue;
            }
            let Some((metadata, after)) = rest.split_at_checked(number as usize) else { break };
            rest = after;
            let finished = ranges(offset, metadata).context("the metadata of a commit has another format")?;
            let state = State { partition, start, end, offset, finished, metadata_bytes: metadata.len() };
            match kind {
                ASSIGNED => self.assigned.push(state),
                COMMITTED => self.committed.push(state),
                _ => bail!("unknown kind of entry: {kind}"),
            }
        }
        Ok(())
    }
}

/// Decodes the metadata of a commit, as `crates/bus/src/processor/progress.rs` describes it: `f1:`, and then numbers in
/// base64. The numbers are in turn the lengths of unfinished and of finished ranges.
fn ranges(offset: u64, metadata: &[u8]) -> Option<Vec<(u64, u64)>> {
    if metadata.is_empty() {
        return Some(Vec::new());
    }
    let (mut numbers, mut number, mut shift) = (Vec::new(), 0, 0);
    for byte in base64(metadata.strip_prefix(b"f1:")?)? {
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            numbers.push(number);
            (number, shift) = (0, 0);
        }
    }
    let mut at = offset;
    let mut range = |pair: &[u64]| {
        let start = at + pair[0];
        at = start + pair[1];
        (start, at)
    };
    (numbers.len() % 2 == 0).then(|| numbers.chunks(2).map(&mut range).collect())
}

/// Decodes base64 without padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for character in text {
        let six = ALPHABET.iter().position(|one| one == character)?;
        bits = bits << 6 | u32::try_from(six).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u32, number: u32, metadata: &str) -> Vec<u8> {
        let short = [kind, 3, 4, number].into_iter().flat_map(u32::to_le_bytes);
        let long = [1_000, 1 << 40, (1 << 40) + 7].into_iter().flat_map(u64::to_le_bytes);
        short.chain(long).chain(metadata.bytes()).collect()
    }

    #[test]
    fn log_of_a_killed_process_ends_at_its_last_complete_entry() {
        let (start, end) = (1 << 40, (1 << 40) + 7);
        // The numbers are 2, 300, 1 and 1.
        let whole = [entry(1, 5, ""), entry(2, 0, ""), entry(3, 10, "f1:AqwCAQE")].concat();
        let handled = Handled { partition: 3, key: 4, number: 5, offset: 1_000, start, end };
        let assigned = State { partition: 3, start, end, offset: 1_000, finished: vec![], metadata_bytes: 0 };
        let finished = vec![(1_002, 1_302), (1_303, 1_304)];
        let committed = State { finished, metadata_bytes: 10, ..assigned.clone() };
        for torn in [0, 20, 45] {
            let mut process = Process::default();
            process.parse(&[whole.as_slice(), &entry(3, 10, "f1:AqwCAQE")[..torn]].concat()).unwrap();
            assert_eq!(process.handled, [handled]);
            assert_eq!(process.assigned, std::slice::from_ref(&assigned));
            assert_eq!(process.committed, std::slice::from_ref(&committed));
        }
        assert!(Process::default().parse(&entry(4, 0, "")).is_err());
        assert!(Process::default().parse(&entry(3, 10, "f2:AqwCAQE")).is_err());
    }

    #[test]
    fn state_contains_an_earlier_state_if_all_its_ranges_are_finished() {
        let state = |offset, finished: &[(u64, u64)]| State {
            partition: 0,
            start: 0,
            end: 0,
            offset,
            finished: finished.to_vec(),
            metadata_bytes: 0,
        };
        let earlier = state(10, &[(12, 14), (20, 30)]);
        assert!(earlier.contains(&earlier));
        assert!(state(14, &[(19, 31)]).contains(&earlier));
        assert!(!state(25, &[(26, 30)]).contains(&earlier));
        assert!(!state(9, &[(10, 40)]).contains(&state(10, &[])));
        assert!(!state(14, &[(21, 30)]).contains(&earlier));
    }
}
