//! Reads of due rows from tables with damaged blocks, and replacement of such tables.
//!
//! The reader of a table continues with the next block after a damaged block. The last readable row before the block
//! and the first readable row after it are therefore the bounds of an unreadable range.
//!
//! The library cannot replace a table, and merges of a damaged table fail. [`Tree::drop_unreadable`] therefore writes
//! the readable rows to new tables and then drops the range of the damaged table. A new table also contains the row
//! [`ABOVE_ALL`], so it reaches beyond this range and the library keeps it.

use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use lsm_tree::merge::Merger;
use lsm_tree::{AbstractTree, InternalValue, Slice, Table, UserKey, ValueType};

use super::view::View;
use super::{Family, IndexError, MANIFESTS_END, Sequence, Tree, Unreadable, Visit, damage, damaged_range, files};
use crate::codec::key::DUE_LEN;
use crate::read::just_after;

/// Key of a row that is above every due row. No caller reads the row, and the next merge drops it.
pub(super) const ABOVE_ALL: [u8; DUE_LEN] = [0xff; DUE_LEN];

/// Number of bytes of rows in one new table. The library starts a second table at 64 MiB, and the second table would
/// not contain the row [`ABOVE_ALL`] of the first.
const TABLE_BYTES: usize = 32 << 20;
/// Approximate number of bytes that a table uses for one row.
const ROW_BYTES: usize = DUE_LEN + 16;

type Row = lsm_tree::Result<InternalValue>;
type Rows<'a> = Box<dyn Iterator<Item = Row> + 'a>;

/// Readable rows of one table. The iterator adds the unreadable ranges to `skipped`.
struct Readable<'a> {
    rows: Rows<'a>,
    /// Smallest key that the next row can have.
    from: Vec<u8>,
    /// Key that is above every row of the iterator.
    to: Vec<u8>,
    /// Upper bound for the number of errors. Without this bound, a damaged index of the table would cause errors for
    /// ever.
    errors_left: u64,
    skipped: &'a RefCell<Vec<Unreadable>>,
}

impl Readable<'_> {
    fn next_or_end(&mut self) -> Option<Row> {
        for row in self.rows.by_ref() {
            match &row {
                Err(error) if is_damage(error) => match self.errors_left.checked_sub(1) {
                    Some(left) => self.errors_left = left,
                    None => return None,
                },
                Ok(_) | Err(_) => return Some(row),
            }
        }
        None
    }
}

impl Iterator for Readable<'_> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let errors_left = self.errors_left;
        let row = self.next_or_end();
        if self.errors_left < errors_left {
            let to = match &row {
                Some(Ok(row)) => row.key.user_key.to_vec(),
                Some(Err(_)) | None => self.to.clone(),
            };
            let from = self.from.clone();
            self.skipped.borrow_mut().push(Unreadable { from, to });
        }
        match &row {
            Some(Ok(row)) => self.from = just_after(&row.key.user_key),
            Some(Err(_)) | None => self.rows = Box::new(std::iter::empty()),
        }
        row
    }
}

fn is_damage(error: &lsm_tree::Error) -> bool {
    matches!(damage(Family::Due, "", error), IndexError::Damaged { .. })
}

/// Returns the readable rows of a table from `from` (inclusive) to `to` (exclusive), if the table may contain such rows.
fn readable<'a>(
    table: &'a Table,
    from: &[u8],
    to: &[u8],
    skipped: &'a RefCell<Vec<Unreadable>>,
) -> Option<Readable<'a>> {
    let range = &table.metadata.key_range;
    let (first, end) = (from.max(range.min()).to_vec(), just_after(range.max()).min(to.to_vec()));
    if first >= end {
        return None;
    }
    let bounds = (Bound::Included(UserKey::from(&first[..])), Bound::Excluded(UserKey::from(&end[..])));
    let rows: Rows<'a> = Box::new(table.range::<(Bound<UserKey>, Bound<UserKey>)>(bounds));
    Some(Readable { rows, from: first, to: end, errors_left: table.metadata.data_block_count + 1, skipped })
}

/// Visits the readable due rows of a view from `from` (inclusive) to `to` (exclusive). Adds the unreadable ranges to
/// `skipped`.
pub(super) fn scan(
    view: &View,
    from: &[u8],
    to: &[u8],
    skipped: &mut Vec<Unreadable>,
    visit: Visit<'_>,
) -> lsm_tree::Result<()> {
    let found = RefCell::default();
    let tables = view.tables();
    let mut parts: Vec<Rows<'_>> = Vec::new();
    for memtable in view.memtables() {
        let rows = memtable.iter().skip_while(|row| *row.key.user_key < *from);
        parts.push(Box::new(rows.take_while(|row| *row.key.user_key < *to).map(Ok)));
    }
    for table in &tables {
        if let Some(rows) = readable(table, from, to, &found) {
            parts.push(Box::new(rows));
        }
    }
    let mut last: Option<UserKey> = None;
    let mut scanned = Ok(());
    for row in Merger::new(parts) {
        let row = match row {
            Ok(row) => row,
            Err(error) => {
                scanned = Err(error);
                break;
            }
        };
        // Several parts may contain the same row.
        if last.as_ref() == Some(&row.key.user_key) {
            continue;
        }
        last = Some(row.key.user_key.clone());
        if !row.is_tombstone() && visit(&row.key.user_key, &Bytes::from(row.value)) == ControlFlow::Break(()) {
            break;
        }
    }
    skipped.extend(found.into_inner());
    scanned
}

/// Reads all rows of a table, and returns the ranges that cannot be read.
pub(super) fn of_table(table: &Table) -> lsm_tree::Result<Vec<Unreadable>> {
    let found = RefCell::default();
    let end = just_after(table.metadata.key_range.max());
    for row in readable(table, &[], &end, &found).into_iter().flatten() {
        row?;
    }
    Ok(found.into_inner())
}

impl Tree {
    pub(super) fn drop_unreadable(&self, is_rebuilt: &dyn Fn(&Unreadable) -> bool) -> Result<(), IndexError> {
        for table in self.tables() {
            let range = &table.metadata.key_range;
            let failed = |error| damaged_range(self.family, range.min(), range.max(), &error);
            let unreadable = of_table(&table).map_err(failed)?;
            let is_current = self.tables().iter().any(|current| current.id() == table.id());
            if is_current && !unreadable.is_empty() && unreadable.iter().all(is_rebuilt) {
                self.replace(range.min(), range.max(), is_rebuilt)?;
            }
        }
        Ok(())
    }

    /// Replaces all tables whose rows lie from `min` to `max` (both inclusive) by tables of their readable rows.
    fn replace(
        &self,
        min: &UserKey,
        max: &UserKey,
        is_rebuilt: &dyn Fn(&Unreadable) -> bool,
    ) -> Result<(), IndexError> {
        let failed = |error| damaged_range(self.family, min, max, &error);
        let _alone = self.tree.get_flush_lock();
        let mut tables = self.tables();
        tables.retain(|table| min <= table.metadata.key_range.min() && table.metadata.key_range.max() <= max);
        let found = RefCell::default();
        let end = just_after(max);
        let parts: Vec<_> = tables.iter().filter_map(|table| readable(table, min, &end, &found)).collect();
        let mut rows = Merger::new(parts).peekable();
        while rows.peek().is_some() {
            self.write_table(rows.by_ref().take(TABLE_BYTES / ROW_BYTES))?;
        }
        drop(rows);
        if !found.into_inner().iter().all(is_rebuilt) {
            return Ok(());
        }
        self.manifests.set(0);
        // This handle delays the deletion of the tables, as in a merge.
        let _before = self.tree.current_version();
        self.tree.drop_range(min.clone()..=max.clone()).map_err(failed)?;
        self.refresh();
        Ok(())
    }

    /// Writes rows and the row [`ABOVE_ALL`] to a new table.
    fn write_table(&self, rows: impl Iterator<Item = Row>) -> Result<(), IndexError> {
        let failed = |error| damage(self.family, "readable rows of a damaged table", &error);
        let sequence = Sequence::new(0, 1).as_u64();
        let above_all = InternalValue::from_components(ABOVE_ALL, Slice::default(), sequence, ValueType::Value);
        let written = self.tree.flush_to_tables(rows.chain([Ok(above_all)])).map_err(failed)?;
        let tables = written.map(|(tables, _)| tables).unwrap_or_default();
        assert_eq!(tables.len(), 1, "the rows and the row `ABOVE_ALL` fit into one table");
        for table in &tables {
            files::check(self.family, &table.path, table.checksum().into_u128())?;
        }
        self.manifests.set(0);
        self.tree.register_tables(&tables, None, None, &[], MANIFESTS_END).map_err(failed)
    }
}
