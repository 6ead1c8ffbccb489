//! Log of a member, which the judge reads. `xtask/src/chaos/bus/log.rs` describes the format.
//!
//! Invariant: an entry is in the kernel's cache when its method returns, so the entry survives the death of the process.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use bus::{Commit, Committed, Offset, Partition};
use rustix::time::{ClockId, clock_gettime};

const HANDLED: u32 = 1;
const ASSIGNED: u32 = 2;
const COMMITTED: u32 = 3;

pub(crate) struct Log(Mutex<File>);

/// Key and number of a record.
pub(crate) type Parts = (u32, u32);

impl Log {
    pub(crate) fn create(path: &str) -> io::Result<Self> {
        Ok(Log(Mutex::new(File::create_new(path)?)))
    }

    /// Logs a call of the handler, which started at `start` and ends now.
    pub(crate) fn handled(&self, partition: &Partition, offset: Offset, parts: Parts, start: u64) -> io::Result<()> {
        self.write(&entry(HANDLED, partition.index, parts, offset.0, (start, now())))
    }

    /// Logs an assignment and the committed state of the group, as the consumer received it.
    pub(crate) fn assigned(&self, partition: &Partition, committed: &Committed) -> io::Result<()> {
        self.state(ASSIGNED, partition, committed, now())
    }

    /// Logs a successful commit, which the member sent after `start`.
    pub(crate) fn committed(&self, commits: &[Commit], start: u64) -> io::Result<()> {
        commits.iter().try_for_each(|one| self.state(COMMITTED, &one.partition, &one.committed, start))
    }

    fn state(&self, kind: u32, partition: &Partition, committed: &Committed, start: u64) -> io::Result<()> {
        let metadata = committed.metadata.as_bytes();
        let len = u32::try_from(metadata.len()).map_err(io::Error::other)?;
        let mut entry = entry(kind, partition.index, (0, len), committed.offset.0, (start, now()));
        entry.extend_from_slice(metadata);
        self.write(&entry)
    }

    fn write(&self, entry: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(entry)
    }
}

fn entry(kind: u32, partition: u32, (key, number): Parts, offset: u64, (start, end): (u64, u64)) -> Vec<u8> {
    let short = [kind, partition, key, number].into_iter().flat_map(u32::to_le_bytes);
    short.chain([offset, start, end].into_iter().flat_map(u64::to_le_bytes)).collect()
}

/// Returns the time of the machine's monotonic clock, which all processes share, in nanoseconds.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
