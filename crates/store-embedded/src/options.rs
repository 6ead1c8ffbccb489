//! Options of a store. The defaults suit two cores and 1 GB of memory.

use std::time::Duration;

/// Kind of index behind the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexKind {
    /// Log-structured merge trees on the local disk.
    Lsm,
    /// Ordered map in memory, written to disk as a whole at each checkpoint: for simulations and stores of a few
    /// thousand rows. It accesses the disk only through [`runtime::Disk`].
    Map,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Kind of index. It is fixed when the store is created; opening a store with another kind is an error. Default
    /// [`IndexKind::Lsm`].
    pub index: IndexKind,
    pub journal: journal::Options,
    /// Journal bytes after which all entries are flushed and their segments released. Default 96 MiB. Too small: more
    /// and smaller tables, more merging. Too large: a restart replays longer, about 1 s for 200 MiB.
    pub checkpoint_bytes: u64,
    /// Bytes of rows of one family in memory above which the family is flushed. Default 12 MiB. Each of the three
    /// families may use about three times as much at once. Too small: more merging. Too large: memory.
    pub memtable_bytes: u64,
    /// Bytes of table blocks cached in memory. Default 32 MiB.
    pub cache_bytes: u64,
    /// Bytes that must stay free on the disk. Below this floor the store rejects user writes with
    /// [`store::StoreError::Full`], and the rest is reserved for owner writes and merging. Default 512 MiB.
    pub free_bytes_floor: u64,
    /// Period of the free-space check. Default 1 s.
    pub free_bytes_period: Duration,
    /// Maximum number of insert log entries in memory that their owners have not read yet. Above it the store rejects
    /// user writes. Default 262,144, of about 80 bytes each.
    pub arrivals_max: usize,
    /// Number of threads that look up rows. Default 2.
    pub readers: usize,
    /// Shortest time that runs, and schedules that are over, are kept. Default 30 days. Shorter: a put that is repeated
    /// later than this creates its schedule again, and an older dead letter cannot be redriven. Longer: more disk.
    pub history: Duration,
    /// Period of the search for older history, which reads all older schedules. Default 1 h. It must be much shorter
    /// than `history`.
    pub history_period: Duration,
    /// Bytes after which a large batch continues in another journal entry. Default 1 MiB.
    pub entry_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            index: IndexKind::Lsm,
            journal: journal::Options::default(),
            checkpoint_bytes: 96 << 20,
            memtable_bytes: 12 << 20,
            cache_bytes: 32 << 20,
            free_bytes_floor: 512 << 20,
            free_bytes_period: Duration::from_secs(1),
            arrivals_max: 1 << 18,
            readers: 2,
            history: Duration::from_secs(30 * 86_400),
            history_period: Duration::from_secs(3_600),
            entry_bytes: 1 << 20,
        }
    }
}
