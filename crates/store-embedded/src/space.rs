//! Free space of the disk, and the limits at which the store rejects writes.
//!
//! A user's write takes space in the journal at once, and in the tables later. The store therefore counts the bytes
//! that user writes have taken since it last read the free space. It reads the free space once in each period, and also
//! before user writes could reduce the free space below the configured floor
//! (docs/decisions/0200-keep-a-reserve-of-disk-space-for-operators.md).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use prometheus_client::metrics::gauge::Gauge;
use store::StoreError;

/// Number of bytes on the disk for each byte of a user write: one in the journal, one in a table, and one in the table
/// that a merge writes.
const COPIES: u64 = 3;
/// Divisor of the configured floor of free bytes. The quotient is the number of bytes that the store reserves for
/// owners' outcomes. Operators' changes and cancellations may use the rest of the floor.
const OWNER_PART: u64 = 4;

pub(crate) struct Space {
    /// Number of bytes that user writes must leave free on the disk.
    floor: u64,
    pub free_bytes: Gauge,
    /// Number of bytes that user writes may take before the store must read the free space again.
    allowance: AtomicU64,
    /// Number of bytes that user writes have taken since the store last read the free space.
    taken: AtomicU64,
    /// Number of bytes of the user writes that are not in the journal yet.
    pending: AtomicU64,
    /// Number of bytes that writes in progress still need, as of the store's last read of the free space.
    needed: AtomicU64,
    is_full: AtomicBool,
    is_reserve_used: AtomicBool,
}

/// Guard that counts the bytes of a user write until the write is in the journal.
pub(crate) struct Pending<'a> {
    space: &'a Space,
    bytes: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.space.pending.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Space {
    pub(crate) fn new(floor: u64) -> Self {
        let free_bytes = Gauge::default();
        free_bytes.set(i64::MAX);
        Space {
            floor,
            free_bytes,
            allowance: AtomicU64::new(u64::MAX),
            taken: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            needed: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            is_reserve_used: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Counts a user write of `bytes` bytes. Returns a guard, and true if the store must read the free space before the
    /// write.
    pub(crate) fn take(&self, bytes: u64) -> (Pending<'_>, bool) {
        let bytes = bytes.saturating_mul(COPIES);
        self.pending.fetch_add(bytes, Ordering::Relaxed);
        let taken = self.taken.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        (Pending { space: self, bytes }, taken > self.allowance.load(Ordering::Relaxed))
    }

    /// Records the free space of the disk. `unflushed` is the number of bytes in memory that a flush will write to the
    /// tables. Returns true if the store began or ceased to reject user writes.
    pub(crate) fn update(&self, free: u64, unflushed: u64) -> bool {
        let needed = unflushed.saturating_add(self.pending.load(Ordering::Relaxed));
        self.free_bytes.set(i64::try_from(free).unwrap_or(i64::MAX));
        self.needed.store(needed, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        let kept = self.floor.saturating_add(needed);
        self.allowance.store(free.saturating_sub(kept), Ordering::Relaxed);
        self.is_reserve_used.store(free < self.floor / OWNER_PART, Ordering::Relaxed);
        let is_full = free < kept;
        self.is_full.swap(is_full, Ordering::Relaxed) != is_full
    }

    /// Checks that the reserve for operators' changes and cancellations has space.
    pub(crate) fn check_reserve(&self) -> Result<(), StoreError> {
        if self.is_reserve_used.load(Ordering::Relaxed) { Err(self.error(self.floor / OWNER_PART)) } else { Ok(()) }
    }

    /// Returns the error of a rejected user write.
    pub(crate) fn full_error(&self) -> StoreError {
        self.error(self.floor)
    }

    fn error(&self, floor: u64) -> StoreError {
        let (free, needed) = (self.free_bytes.get(), self.needed.load(Ordering::Relaxed));
        StoreError::Full(format!(
            "the disk has {free} free bytes and current writes need {needed} of them, but {floor} bytes must stay \
             free; free disk space"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_checks_free_space_before_it_falls_below_the_minimum() {
        let space = Space::new(1_000);
        assert!(!space.update(1_500, 100), "the store accepts user writes");
        // User writes may take 400 bytes of the disk, and each byte of a write takes three bytes of the disk.
        assert!(!space.take(100).1);
        assert!(space.take(34).1, "the next write could cross the floor");
    }

    #[test]
    fn free_space_check_subtracts_pending_and_unflushed_writes() {
        let space = Space::new(1_000);
        let (pending, _) = space.take(100);
        assert!(space.update(1_350, 100), "300 pending and 100 unflushed bytes exceed the 350 bytes above the floor");
        assert!(space.is_full());
        drop(pending);
        assert!(space.update(1_350, 100));
        assert!(!space.is_full());
    }

    #[test]
    fn full_store_reserves_disk_space_for_operator_changes() {
        let space = Space::new(1_000);
        space.update(999, 0);
        assert!(space.is_full() && space.check_reserve().is_ok());
        space.update(249, 0);
        assert!(space.check_reserve().is_err());
    }
}
