//! Options of an embedded store. The defaults suit two cores and 1 GB of memory.

use std::time::Duration;

/// Kind of index of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexKind {
    /// Log-structured merge trees on the local disk.
    Lsm,
    /// Ordered map in memory, for simulations and for stores of a few thousand rows. Each checkpoint writes the whole
    /// map to disk. The map accesses the disk only through [`runtime::Disk`].
    Map,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Kind of index. The first open of a store fixes the kind. A later open with another kind fails. The default is
    /// [`IndexKind::Lsm`].
    pub index: IndexKind,
    pub journal: journal::Options,
    /// Number of journal bytes after which the store flushes all entries to tables and releases their journal segments.
    /// The default is 96 MiB. With a small value, the store writes more and smaller tables, and merges tables more
    /// often. A large value makes the replay at a restart longer. The replay of 200 MiB takes about 1 s.
    pub checkpoint_bytes: u64,
    /// Number of bytes in memory after which the store flushes one of its three families of rows. The default is 12
    /// MiB. Each family may use about three times this number of bytes. A small value causes more merges. A large value
    /// uses more memory.
    pub memtable_bytes: u64,
    /// Maximum number of bytes of table blocks in the memory cache. The default is 32 MiB.
    pub cache_bytes: u64,
    /// Number of bytes that must stay free on the disk. If fewer bytes are free, the store rejects user writes with
    /// [`store::StoreError::Full`]. If less than a quarter of this number is free, the store also rejects cancellations
    /// and changes of tenants. Only owners' writes and merges may use this last quarter. The default is 512 MiB.
    pub free_bytes_floor: u64,
    /// Period between two checks of the free disk space. The default is 1 s.
    pub free_bytes_period: Duration,
    /// Maximum number of insert log entries in memory that the shards' owners have not read yet. If the number is
    /// higher, the store rejects user writes. The default is 262,144 entries of about 80 bytes each.
    pub arrivals_max: usize,
    /// Number of threads that look up rows. The default is 4. With few threads, look-ups wait for each other while the
    /// disk is busy.
    pub readers: usize,
    /// Shortest time for which the store keeps runs with a final outcome, and ended or cancelled schedules, of tenants
    /// without a class of retention; see [`domain::Tenant::retention`]. The default is 30 days. After this time a
    /// repeated put creates its schedule again, and callers can no longer redrive the dead letters. A longer time uses
    /// more disk space.
    pub history: Duration,
    /// Period between two history sweeps. A sweep reads all schedules that are older than the shortest retention of a
    /// tenant. The default is 1 h. The period must be much shorter than `history`.
    pub history_period: Duration,
    /// Number of bytes after which a large batch continues in another journal entry. The default is 1 MiB.
    pub entry_bytes: usize,
    /// Deliberate bug, which the checkers of a simulation must detect: the index [`IndexKind::Map`] skips damaged due
    /// rows and does not report them. The default is false.
    pub hides_damage: bool,
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
            readers: 4,
            history: Duration::from_secs(30 * 86_400),
            history_period: Duration::from_secs(3_600),
            entry_bytes: 1 << 20,
            hides_damage: false,
        }
    }
}
