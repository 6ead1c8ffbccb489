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

const READ: &str = "select number, shard, incarnation from reveille.mark
    where shard = any($1::smallint[]) order by number";
const FORGET_AND_READ: &str = "with obeyed as (
        delete from reveille.mark where number = any($2::bigint[]) and shard = any($1::smallint[])
    )
    select number, shard, incarnation from reveille.mark
    where shard = any($1::smallint[]) and number <> all($2::bigint[]) order by number";

#[derive(Default)]
pub(crate) struct RecordCursors {
    inner: Mutex<(u64, BTreeMap<u64, Vec<i64>>)>,
}

impl RecordCursors {
    fn of(&self, cursor: Cursor) -> Vec<i64> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.get(&cursor.0).cloned().unwrap_or_default()
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
        let processed = self.cancellations.of(cursor);
        let rows = if processed.is_empty() {
            self.readers.query(READ, &[&requested]).await
        } else {
            self.readers.query(FORGET_AND_READ, &[&requested, &processed]).await
        };
        let rows = rows.map_err(store_error)?;
        if rows.is_empty() {
            return Ok((Vec::new(), cursor));
        }
        let of_row = |row: &postgres_client::tokio_postgres::Row| {
            let incarnation = Incarnation(row.get::<_, Uuid>(2).as_u128());
            (ShardId(row.get::<_, i16>(1).cast_unsigned()), incarnation)
        };
        // The new cursor also identifies the records of the presented cursor. Otherwise the next read of other shards
        // would return these records again.
        let numbers = rows.iter().map(|row| row.get(0)).chain(processed).collect();
        Ok((rows.iter().map(of_row).collect(), self.cancellations.issue(numbers)))
    }
}
