//! Snapshot of a tree for reads and writes of rows.
//!
//! The library writes and syncs its manifest while it holds the lock that its own reads take. With a busy disk, this
//! can take 100 ms. Rows are therefore read from a [`View`], which takes no lock of the library. A view stays complete
//! while the tree changes, because its handles keep the memtables and tables of its time.
//!
//! docs/decisions/0203-read-the-index-without-the-librarys-lock.md gives the reasons for the design.

use std::sync::Arc;

use lsm_tree::table::filter::standard_bloom::Builder;
use lsm_tree::{AbstractTree as _, InternalValue, Memtable, Slice, Table, Tree, UserKey, UserValue, ValueType};

type Found = lsm_tree::Result<Option<InternalValue>>;
type Rows = Box<dyn DoubleEndedIterator<Item = lsm_tree::Result<InternalValue>>>;
type Find = dyn Fn(&[u8], u64) -> Found + Send + Sync;
type Scan = dyn Fn(&[u8], &[u8], u64) -> Rows + Send + Sync;

/// Memtables and tables of a tree. Every row is in at least one of them.
pub(super) struct View {
    active: Arc<Memtable>,
    /// Memtables that the tree has not flushed yet, the newest first.
    sealed: Vec<Arc<Memtable>>,
    /// Number of flushed tables that wait for a merge.
    pub(super) unmerged: usize,
    // The library does not export the types of its snapshots, so these functions own the snapshots.
    find_in_tables: Box<Find>,
    scan: Box<Scan>,
    tables: Box<dyn Fn() -> Vec<Table> + Send + Sync>,
}

impl View {
    /// Takes a view of `tree`. `sealed` returns the memtables that the tree has not flushed yet, the newest first. The
    /// tree may change during this call.
    pub(super) fn of(tree: &Tree, sealed: impl FnOnce() -> Vec<Arc<Memtable>>) -> Self {
        // The order of these three steps matters. A memtable moves from the active place to the sealed memtables, and
        // then to the tables. If it moves during this function, the view contains it twice, but never misses it.
        let snapshot = tree.get_version_history_lock().latest_version();
        let sealed = sealed();
        let tables = tree.current_version();
        let all_tables = tables.clone();
        View {
            active: snapshot.active_memtable.clone(),
            sealed,
            unmerged: tables.l0().run_count(),
            find_in_tables: Box::new(move |key, before| {
                let hash = Builder::get_hash(key);
                let runs = tables.iter_levels().flat_map(|level| level.iter());
                for table in runs.filter_map(|run| run.get_for_key(key)) {
                    if let Some(found) = table.get(key, before, hash)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }),
            scan: Box::new(move |from, to, before| {
                Box::new(Tree::create_internal_range(snapshot.clone(), &(from..to), before, None))
            }),
            tables: Box::new(move || all_tables.iter_tables().cloned().collect()),
        }
    }

    pub(super) fn tables(&self) -> Vec<Table> {
        (self.tables)()
    }

    pub(super) fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        std::iter::once(&self.active).chain(&self.sealed).map(|memtable| &**memtable)
    }

    /// Returns the newest version of a row before the sequence number `before`, or `None` if this version is a removal
    /// by the library. Only early builds wrote such removals.
    pub(super) fn get(&self, key: &[u8], before: u64) -> lsm_tree::Result<Option<UserValue>> {
        let memtables = || std::iter::once(&self.active).chain(&self.sealed);
        let found = match memtables().find_map(|memtable| memtable.get(key, before)) {
            Some(found) => Some(found),
            None => (self.find_in_tables)(key, before)?,
        };
        Ok(found.filter(|found| !found.is_tombstone()).map(|found| found.value))
    }

    /// Returns the rows from `from` (inclusive) to `to` (exclusive), each in its newest version before the sequence
    /// number `before`.
    pub(super) fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        before: u64,
    ) -> impl DoubleEndedIterator<Item = lsm_tree::Result<(UserKey, UserValue)>> + use<> {
        (self.scan)(from, to, before).map(|row| row.map(|row| (row.key.user_key, row.value)))
    }

    /// Writes a row into the active memtable.
    pub(super) fn insert(&self, key: &[u8], value: impl Into<Slice>, at: u64) {
        self.active.insert(InternalValue::from_components(key, value, at, ValueType::Value));
    }

    /// Returns the number of bytes in the active memtable.
    pub(super) fn active_bytes(&self) -> u64 {
        self.active.size()
    }

    pub(super) fn sealed(&self) -> usize {
        self.sealed.len()
    }
}
