//! What an operator may set, with defaults that suit two cores and a gigabyte.

use std::time::Duration;

/// What stands behind the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexKind {
    /// Log-structured merge trees on the local disk.
    Lsm,
    /// An ordered map in memory, written out whole at each checkpoint: for simulations and stores of a few thousand
    /// rows. It reaches the disk through [`runtime::Disk`] alone.
    Map,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Fixed when a store is made; opening one with the other kind is refused. Default [`IndexKind::Lsm`].
    pub index: IndexKind,
    pub journal: journal::Options,
    /// Journal bytes after which everything in them is flushed and given back. Default 96 MiB. Too small: more and
    /// smaller tables, more merging. Too large: a restart replays longer, about a second for 200 MiB.
    pub checkpoint_bytes: u64,
    /// Rows of one kind in memory, above which they are flushed on their own. Default 12 MiB; up to about three times
    /// as much of each of three kinds is in memory at once. Too small: more merging. Too large: memory.
    pub memtable_bytes: u64,
    /// Blocks of tables kept in memory. Default 32 MiB.
    pub cache_bytes: u64,
    /// Bytes that must stay free on the disk: below, users' writes are refused with [`store::StoreError::Full`], and
    /// the rest is for the owners' writes and for merging. Default 512 MiB.
    pub free_bytes_floor: u64,
    /// How often free space is looked at. Default 1 s.
    pub free_bytes_period: Duration,
    /// Due rows kept in memory for owners that have not read their arrivals; above, users' writes are refused until
    /// they have. Default 262,144, of about 80 bytes each.
    pub arrivals_max: usize,
    /// Threads that look rows up. Default 2.
    pub readers: usize,
    /// How long runs, and schedules that are over, are kept at least. Default 30 days. Shorter: a put that is tried again later than that
    /// makes its schedule anew, and a dead letter of before cannot be redriven; longer: more disk.
    pub history: Duration,
    /// How often what is older is looked for, which reads all schedules that are older. Default 1 h; much shorter than `history`.
    pub history_period: Duration,
    /// The bytes after which a large batch goes on in another journal entry. Default 1 MiB.
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
