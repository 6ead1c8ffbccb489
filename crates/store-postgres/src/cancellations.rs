//! Cancellation records that members of earlier builds wrote. In this build a cancellation takes effect at once (see
//! `cancel`). A read returns records and a cursor. The store deletes these records when a reader presents the cursor.
//!
//! A cursor identifies exactly the records that its read returned. It is not a position in an order, because a
//! transaction gets the number of its record before its commit, and records become visible in the order of commits.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use domain::{Incarnation, ShardId};
use store::{Cursor, StoreError};
use uuid::Uuid;

use crate::engine::Inner;
use crate::error::store_error;

/// Number of cursors that the store remembers. If a caller presents a forgotten cursor, the store returns the records
/// of this cursor again, which is harmless.
const CURSORS_MAX: usize = 256;

/// Reads the records, and the columns of [`crate::epoch::NEWEST`]. Without a record, the other columns of the only row are
/// null.
const READ: &str = "select e.epoch, pg_current_snapshot()::text, r.number, r.shard, r.incarnation
    from reveille.meta e
    left join lateral (select * from reveille.mark m where m.shard = any($1::smallint[])) r on true
    order by r.number";
const FORGET_AND_READ: &str = "with obeyed as (
        delete from reveille.mark where number = any($2::bigint[]) and shard = any($1::smallint[])
    )
    select e.epoch, pg_current_snapshot()::text, r.number, r.shard, r.incarnation
    from reveille.meta e
    left join lateral (
        select * from reveille.mark m where m.shard = any($1::smallint[]) and m.number <> all($2::bigint[])) r on true
    order by r.number";

#[derive(Default)]
pub(crate) struct RecordCursors {
    inner: Mutex<(u64, BTreeMap<u64, Vec<i64>>)>,
}

impl RecordCursors {
    fn of(&self, cursor: Cursor) -> Vec<i64> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.get(&cursor.0).cloned().unwrap_or_default()
    }

    /// Forgets all cursors.
    pub(crate) fn forget(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).1.clear();
    }

    fn issue(&self, numbers: Vec<i64>) -> Cursor {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, by_cursor) = &mut *inner;
        *last += 1;
        by_cursor.insert(*last, numbers);
        if by_cursor.len() > CURSORS_MAX {
            by_cursor.pop_first();
        }
        Cursor(*last)
    }
}

impl Inner {
    pub(crate) async fn read_cancellations(
        &self,
        shards: &[ShardId],
        cursor: Cursor,
    ) -> Result<(Vec<(ShardId, Incarnation)>, Cursor), StoreError> {
        let requested: Vec<i16> = shards.iter().map(|shard| shard.0.cast_signed()).collect();
        let processed = self.epochs.cancellations.of(cursor);
        let rows = if processed.is_empty() {
            self.readers.query(READ, &[&requested]).await
        } else {
            self.readers.query(FORGET_AND_READ, &[&requested, &processed]).await
        };
        let mut rows = rows.map_err(store_error)?;
        if let Some(row) = rows.first() {
            self.epochs.learn_from(row);
        }
        rows.retain(|row| row.get::<_, Option<i64>>(2).is_some());
        if rows.is_empty() {
            return Ok((Vec::new(), cursor));
        }
        let of_row = |row: &postgres_client::tokio_postgres::Row| {
            let incarnation = Incarnation(row.get::<_, Uuid>(4).as_u128());
            (ShardId(row.get::<_, i16>(3).cast_unsigned()), incarnation)
        };
        // The new cursor also identifies the records of the presented cursor. Otherwise the next read of other shards
        // would return these records again.
        let numbers = rows.iter().map(|row| row.get(2)).chain(processed).collect();
        Ok((rows.iter().map(of_row).collect(), self.epochs.cancellations.issue(numbers)))
    }
}
