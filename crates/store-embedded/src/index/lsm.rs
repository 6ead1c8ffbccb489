//! An index of log-structured merge trees, one for each family, based on the `lsm-tree` crate.
//!
//! The project chose the library because it has no log of its own (docs/decisions/0040). The library verifies a block
//! when it reads the block. It does not verify its manifest when it opens a tree. This module verifies the manifest
//! with the checksums that the library writes. It also verifies each flushed table before it drops the memtable.
//!
//! The module reads files directly, without the crate `runtime`. Simulations therefore do not use it.

mod files;
mod retired;
mod trickle;
mod unreadable;
mod versions;
mod view;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};
use lsm_tree::compaction::{Factory, Leveled};
use lsm_tree::config::{BlockSizePolicy, FilterPolicy, PinningPolicy};
use lsm_tree::{AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, Memtable, SequenceNumberCounter};
use lsm_tree::{UserKey, UserValue};

pub(crate) use self::files::{copy_tree, files_below};
use self::retired::{Retired, RetiredFactory};
use self::trickle::{Trickle, Trickling};
use self::versions::{RemovedRowsFactory, VersionsFactory};
use self::view::View;
use super::{Family, Index, IndexError, Pressure, ScanRange, Sequence, Unreadable, Verified, Visit, VisitVersion};
use crate::options::Options;
use crate::read::{hex, just_after};

pub(crate) struct LsmIndex {
    trees: [Tree; 3],
    /// Bounds of the due rows that no caller reads any more.
    retired: Arc<Retired>,
    /// Lowest sequence that a caller may still pass to a read. Merges drop only versions that no read at or after this
    /// sequence observes.
    keep_from: Arc<AtomicU64>,
}

struct Tree {
    family: Family,
    dir: PathBuf,
    tree: lsm_tree::Tree,
    /// View for reads and writes of rows.
    view: ArcSwap<View>,
    /// Lock of [`Tree::refresh`].
    refreshing: Mutex<()>,
    strategy: Arc<Leveled>,
    /// Number of tables in one merge.
    merged: u8,
    /// True while the backlog of flushes or merges is large.
    hurry: Arc<AtomicBool>,
    /// Counter that numbers the tree's manifests.
    manifests: SequenceNumberCounter,
    /// Sealed memtables that the tree has not flushed yet, the oldest first.
    sealed: Mutex<VecDeque<Arc<Memtable>>>,
}

/// Upper bound of the manifests' numbers. The sequence of every row is higher than this bound. The library uses one
/// range of numbers for manifests and rows. It drops the manifests and the row versions below a bound that the caller
/// passes. With this bound the library drops no row version (see [`versions`]).
const MANIFESTS_END: u64 = Sequence::new(0, 0).as_u64();

/// Number of sealed memtables of one tree above which flushes and merges run without pauses.
const SEALED_HURRY: usize = 1;
/// Backlog of one tree above which flushes and merges run without pauses: the number of unmerged tables, divided by the
/// number of tables in one merge.
const UNMERGED_HURRY: usize = 2;

/// Number of schedule tables in one merge. The key ranges of schedule tables hardly overlap, so merges of fewer tables
/// would only cause more writes.
const ROWS_MERGED: u8 = 16;
/// Number of tables in one merge of due rows or of small rows.
const OTHERS_MERGED: u8 = 4;

/// Maximum number of open files. A tree of 10,000,000 rows has about 200 files.
const OPEN_FILES_MAX: usize = 512;

impl LsmIndex {
    pub(crate) fn exists(dir: &Path) -> bool {
        Family::ALL.iter().any(|family| files::exists(&dir.join(family.name())))
    }

    pub(crate) fn open(dir: &Path, options: &Options) -> Result<Self, IndexError> {
        let cache = Arc::new(Cache::with_capacity_bytes(options.cache_bytes));
        let open_files = Arc::new(DescriptorTable::new(OPEN_FILES_MAX));
        let retired = Arc::new(Retired::default());
        let keep_from = Arc::new(AtomicU64::new(0));
        let config = |family: Family| {
            let manifests = SequenceNumberCounter::default();
            let config = Config::new(dir.join(family.name()), manifests.clone(), SequenceNumberCounter::default())
                .use_cache(cache.clone())
                .use_descriptor_table(Some(open_files.clone()))
                // The cache loads the indexes and filters of large levels in parts, so that memory use does not grow
                // with the number of rows.
                .index_block_pinning_policy(PinningPolicy::new([true, true, false]))
                .filter_block_pinning_policy(PinningPolicy::new([true, true, false]));
            (family, config, manifests)
        };
        // The last level of the schedules' tree needs no filter, because most look-ups find a row. The other look-ups
        // search for an incarnation above all stored incarnations. The key ranges of the tables exclude such an
        // incarnation.
        let (family, rows, manifests) = config(Family::Rows);
        let rows = rows.data_block_size_policy(BlockSizePolicy::all(8 << 10)).expect_point_read_hits(true);
        let filter: Arc<dyn Factory> = Arc::new(RemovedRowsFactory(keep_from.clone()));
        let rows = Tree::open(dir, family, rows, manifests, Some(filter), 64 << 20, ROWS_MERGED)?;
        // The store reads due rows only by scans, so the tree of due rows needs no filter.
        let (family, due, manifests) = config(Family::Due);
        let due = due.filter_policy(FilterPolicy::disabled());
        let filter: Arc<dyn Factory> = Arc::new(RetiredFactory(retired.clone()));
        let due = Tree::open(dir, family, due, manifests, Some(filter), 16 << 20, OTHERS_MERGED)?;
        let (family, points, manifests) = config(Family::Points);
        let filter: Arc<dyn Factory> = Arc::new(VersionsFactory(keep_from.clone()));
        let points = Tree::open(dir, family, points, manifests, Some(filter), 16 << 20, OTHERS_MERGED)?;
        Ok(LsmIndex { trees: [rows, due, points], retired, keep_from })
    }

    fn tree(&self, family: Family) -> &Tree {
        &self.trees[family as usize]
    }

    /// Drops whole tables of due rows that no caller reads any more. No merge would process such tables. Returns false
    /// if there are no such tables.
    fn drop_retired(&self) -> Result<bool, IndexError> {
        let due = self.tree(Family::Due);
        let _no_lower_bounds = self.retired.dropping();
        let tables = due.tables();
        for (poller, to) in &*self.retired.now() {
            let is_retired = |table: &lsm_tree::Table| {
                let range = &table.metadata.key_range;
                poller.as_slice() <= &**range.min() && &**range.max() < to.as_slice()
            };
            if tables.iter().any(is_retired) {
                let dropped = due.tree.drop_range(poller.as_slice()..to.as_slice());
                dropped.map_err(|error| damage(Family::Due, &hex(poller), &error))?;
                due.refresh();
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Tree {
    fn open(
        dir: &Path,
        family: Family,
        config: Config,
        manifests: SequenceNumberCounter,
        filter: Option<Arc<dyn Factory>>,
        table_bytes: u64,
        merged: u8,
    ) -> Result<Self, IndexError> {
        let dir = dir.join(family.name());
        files::check_manifest(family, &dir)?;
        let hurry = Arc::new(AtomicBool::new(false));
        let factory = Trickling { tables: files::tables(&dir), factory: filter, hurry: hurry.clone() };
        let config = config.with_compaction_filter_factory(Some(Arc::new(factory)));
        let opened = config.open().map_err(|error| damage(family, "the manifest or a table of the index", &error))?;
        let AnyTree::Standard(tree) = opened else { unreachable!("the configuration requests no tree of blobs") };
        let view = ArcSwap::from_pointee(View::of(&tree, Vec::new));
        let strategy = Arc::new(Leveled::default().with_table_target_size(table_bytes).with_l0_threshold(merged));
        Ok(Tree {
            family,
            dir,
            tree,
            view,
            refreshing: Mutex::new(()),
            strategy,
            merged,
            hurry,
            manifests,
            sealed: Mutex::new(VecDeque::new()),
        })
    }

    /// Takes a new view of the tree. Callers call this method after each change of the tree's parts.
    fn refresh(&self) {
        // Without this lock, a thread could replace a view with an older view.
        let _alone = self.refreshing.lock().expect("no holder of this lock panics");
        let sealed = || self.sealed().iter().rev().cloned().collect();
        self.view.store(Arc::new(View::of(&self.tree, sealed)));
    }

    fn sealed(&self) -> MutexGuard<'_, VecDeque<Arc<Memtable>>> {
        self.sealed.lock().expect("no holder of this lock panics")
    }

    fn flush(&self) -> Result<(), IndexError> {
        // Memtables that the writer seals after this point wait for the next flush.
        let count = self.sealed().len();
        for _ in 0..count {
            let Some(memtable) = self.sealed().front().cloned() else { break };
            self.flush_one(&memtable)?;
            self.sealed().pop_front();
            self.refresh();
        }
        Ok(())
    }

    fn flush_one(&self, memtable: &Memtable) -> Result<(), IndexError> {
        let failed = |error| damage(self.family, "rows being flushed", &error);
        let _alone = self.tree.get_flush_lock();
        let mut trickle = Trickle::new(&files::tables(&self.dir), self.hurry.clone());
        let rows = memtable.iter().inspect(|_| trickle.count_row()).map(Ok);
        let Some((tables, _)) = self.tree.flush_to_tables(rows).map_err(failed)? else {
            return Ok(());
        };
        for table in &tables {
            files::check(self.family, &table.path, table.checksum().into_u128())?;
        }
        let ids = [memtable.id()];
        self.manifests.set(0);
        self.tree.register_tables(&tables, None, None, &ids, MANIFESTS_END).map_err(failed)
    }

    /// Performs one merge step on the tree's tables. Returns false if no table needs a merge.
    fn merge_step(&self) -> Result<bool, IndexError> {
        self.manifests.set(0);
        // This handle of the tree's version delays the deletion of merged tables until this function returns. Otherwise
        // the library would delete the tables while it holds a lock that reads take.
        let before = self.tree.current_version();
        let merged = self.tree.compact(self.strategy.clone(), MANIFESTS_END);
        merged.map_err(|error| damage(self.family, "rows being merged", &error))?;
        let has_merged = self.tree.current_version().id() != before.id();
        if has_merged {
            self.refresh();
        }
        Ok(has_merged)
    }

    fn verify(&self, verified: &mut Verified) -> Result<(), IndexError> {
        let mut note = |result: Result<u64, IndexError>| match result {
            Ok(bytes) => {
                verified.files += 1;
                verified.bytes += bytes;
                Ok(())
            }
            Err(damage @ IndexError::Damaged { .. }) => {
                verified.damages.push(damage.to_string());
                Ok(())
            }
            Err(error @ IndexError::Io(_)) => Err(error),
        };
        note(files::check_manifest(self.family, &self.dir))?;
        let tables = self.tables();
        for table in &tables {
            note(files::check(self.family, &table.path, table.checksum().into_u128()))?;
        }
        for row in self.tree.iter(Sequence::LATEST.as_u64(), None) {
            let is_live = row.into_inner().and_then(|(key, value)| match self.family {
                Family::Rows => Ok(!versions::is_removal(&value)),
                Family::Due => Ok(*key != unreadable::ABOVE_ALL),
                Family::Points => versions::unwrap(&value.into()).map(|value| value.is_some()),
            });
            match is_live {
                Ok(is_live) => verified.rows[self.family as usize] += u64::from(is_live),
                Err(error) => {
                    verified.damages.push(damage(self.family, "row found by a scan of all rows", &error).to_string());
                    break;
                }
            }
        }
        Ok(())
    }

    fn tables(&self) -> Vec<lsm_tree::Table> {
        self.tree.current_version().iter_tables().cloned().collect()
    }
}

/// Visits the rows in their order until `visit` returns `Break`. The value of a removed row is `None`.
fn visit_rows(
    family: Family,
    rows: impl Iterator<Item = lsm_tree::Result<(UserKey, UserValue)>>,
    visit: VisitVersion<'_>,
) -> Result<(), lsm_tree::Error> {
    for row in rows {
        let (key, value) = row?;
        let value = Bytes::from(value);
        let value = match family {
            Family::Rows => (!versions::is_removal(&value)).then_some(value),
            Family::Points => versions::unwrap(&value)?,
            Family::Due => Some(value),
        };
        if visit(&key, value.as_ref()) == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}

fn damaged_range(family: Family, from: &[u8], to: &[u8], error: &lsm_tree::Error) -> IndexError {
    damage(family, &format!("{} to {}", hex(from), hex(to)), error)
}

/// I/O errors that a read returns if a damaged table or manifest contains a wrong offset or name.
const MEANS_DAMAGE: [ErrorKind; 4] =
    [ErrorKind::UnexpectedEof, ErrorKind::NotFound, ErrorKind::InvalidInput, ErrorKind::InvalidData];

/// Converts an error of the library into an index error.
fn damage(family: Family, range: &str, error: &lsm_tree::Error) -> IndexError {
    if let lsm_tree::Error::Io(io) = error
        && !MEANS_DAMAGE.contains(&io.kind())
    {
        let io = io.raw_os_error().map_or_else(|| io.kind().into(), std::io::Error::from_raw_os_error);
        return IndexError::Io(io);
    }
    IndexError::Damaged { family: family.name(), range: range.to_owned(), reason: error.to_string() }
}

impl Index for LsmIndex {
    fn get(&self, family: Family, key: &[u8], before: Sequence) -> Result<Option<Bytes>, IndexError> {
        let found = self.tree(family).view.load().get(key, before.as_u64());
        let value = found.map(|value| value.map(Bytes::from));
        let value = match family {
            Family::Rows => value.map(|value| value.filter(|value| !versions::is_removal(value))),
            Family::Due => value,
            Family::Points => value.and_then(|value| value.map_or(Ok(None), |value| versions::unwrap(&value))),
        };
        value.map_err(|error| damage(family, &hex(key), &error))
    }

    fn scan_versions(&self, family: Family, range: ScanRange<'_>, visit: VisitVersion<'_>) -> Result<(), IndexError> {
        let ScanRange { from, to, before, is_back } = range;
        if from >= to {
            return Ok(());
        }
        let rows = self.tree(family).view.load().scan(from, to, before.as_u64());
        let visited = if is_back { visit_rows(family, rows.rev(), visit) } else { visit_rows(family, rows, visit) };
        visited.map_err(|error| damaged_range(family, from, to, &error))
    }

    fn scan_readable_due(
        &self,
        from: &[u8],
        to: &[u8],
        skipped: &mut Vec<Unreadable>,
        visit: Visit<'_>,
    ) -> Result<(), IndexError> {
        let mut next = from.to_vec();
        let scanned = self.scan(Family::Due, from, to, Sequence::LATEST, &mut |key, value| {
            next = just_after(key);
            visit(key, value)
        });
        match scanned {
            Err(IndexError::Damaged { .. }) => {
                let view = self.tree(Family::Due).view.load();
                unreadable::scan(&view, &next, to, skipped, visit)
                    .map_err(|error| damaged_range(Family::Due, &next, to, &error))
            }
            Ok(()) | Err(IndexError::Io(_)) => scanned,
        }
    }

    fn unreadable_due(&self) -> Result<Vec<Unreadable>, IndexError> {
        let mut found = Vec::new();
        for table in self.tree(Family::Due).tables() {
            found.extend(unreadable::of_table(&table).map_err(|error| damage(Family::Due, "a table", &error))?);
        }
        Ok(found)
    }

    fn drop_unreadable_due(&self, is_rebuilt: &dyn Fn(&Unreadable) -> bool) -> Result<(), IndexError> {
        self.tree(Family::Due).drop_unreadable(is_rebuilt)
    }

    fn put(&self, family: Family, key: &[u8], value: &[u8], at: Sequence) {
        let view = self.tree(family).view.load();
        assert!(
            family != Family::Rows || !versions::is_removal(value),
            "the value of a schedule row is longer than a removal marker"
        );
        match family {
            Family::Rows | Family::Due => view.insert(key, value, at.as_u64()),
            Family::Points => view.insert(key, versions::wrap(Some(value), at), at.as_u64()),
        }
    }

    fn written(&self, key: &[u8], before: Sequence) -> Result<Option<Sequence>, IndexError> {
        let found = self.tree(Family::Points).view.load().get(key, before.as_u64());
        let at = found.and_then(|value| value.map_or(Ok(None), |value| versions::written(&value)));
        at.map_err(|error| damage(Family::Points, &hex(key), &error))
    }

    fn remove(&self, family: Family, key: &[u8], at: Sequence) {
        assert!(family != Family::Due, "callers remove due rows only with `retire`");
        // In `Family::Rows`, the length of a value identifies a removal, because the value of every row is longer than
        // a removal.
        self.tree(family).view.load().insert(key, versions::wrap(None, at), at.as_u64());
    }

    fn retire(&self, poller: [u8; 8], to: &[u8]) {
        self.retired.set(poller, to);
    }

    fn seal(&self, family: Family) {
        let tree = self.tree(family);
        let mut sealed = tree.sealed();
        sealed.extend(tree.tree.rotate_memtable());
        drop(sealed);
        tree.refresh();
    }

    fn unsealed_bytes(&self, family: Family) -> u64 {
        self.tree(family).view.load().active_bytes()
    }

    fn flush(&self, _keep_from: Sequence) -> BoxFuture<'_, Result<(), IndexError>> {
        // A flush keeps all versions of a row. Only merges drop versions.
        Box::pin(ready(self.trees.iter().try_for_each(Tree::flush)))
    }

    fn merge_step(&self, keep_from: Sequence) -> Result<bool, IndexError> {
        self.keep_from.store(keep_from.as_u64(), Ordering::Release);
        let mut merged = false;
        for tree in &self.trees {
            merged |= tree.merge_step()?;
        }
        if !merged {
            merged = self.drop_retired()?;
        }
        Ok(merged)
    }

    fn pressure(&self) -> Pressure {
        let mut pressure = Pressure::default();
        for tree in &self.trees {
            let view = tree.view.load();
            let (sealed, unmerged) = (view.sealed(), view.unmerged);
            let hurry = sealed > SEALED_HURRY || unmerged > UNMERGED_HURRY * usize::from(tree.merged);
            tree.hurry.store(hurry, Ordering::Relaxed);
            pressure.sealed = pressure.sealed.max(sealed);
            pressure.unmerged = pressure.unmerged.max(unmerged);
        }
        pressure
    }

    fn verify(&self) -> BoxFuture<'_, Result<Verified, IndexError>> {
        let mut verified = Verified::default();
        let walked = self.trees.iter().try_for_each(|tree| tree.verify(&mut verified));
        Box::pin(ready(walked.map(|()| verified)))
    }

    fn flushed_to(&self) -> Option<Sequence> {
        self.trees.iter().filter_map(|tree| tree.tree.get_highest_persisted_seqno()).max().map(Sequence::from_u64)
    }

    fn copy_to<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, Result<(), IndexError>> {
        let copied = self
            .trees
            .iter()
            .try_for_each(|tree| files::copy(&tree.dir, &dir.join(tree.family.name()), &tree.tables()));
        Box::pin(ready(copied))
    }
}

#[cfg(test)]
mod tests;
