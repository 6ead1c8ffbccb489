//! Cancel marks, which members of earlier builds left (of this one, a mark cancels by itself: `cancel`): kept until whoever
//! was told of them presents the cursor of that answer.
//!
//! A cursor stands for the very marks that its answer told, not for a place in an order: marks become visible in the order of
//! commits, and their numbers are drawn before.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use domain::{Incarnation, ShardId};
use store::{Cursor, StoreError};
use uuid::Uuid;

use crate::engine::Inner;
use crate::error::store_error;

/// How many answers are remembered. What a forgotten one told is told again, which is harmless.
const CURSORS_MAX: usize = 256;

const READ: &str = "select number, shard, incarnation from reveille.mark
    where shard = any($1::smallint[]) order by number";
const FORGET_AND_READ: &str = "with obeyed as (
        delete from reveille.mark where number = any($2::bigint[]) and shard = any($1::smallint[])
    )
    select number, shard, incarnation from reveille.mark
    where shard = any($1::smallint[]) and number <> all($2::bigint[]) order by number";

#[derive(Default)]
pub(crate) struct Told {
    inner: Mutex<(u64, BTreeMap<u64, Vec<i64>>)>,
}

impl Told {
    fn of(&self, cursor: Cursor) -> Vec<i64> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1.get(&cursor.0).cloned().unwrap_or_default()
    }

    fn give(&self, numbers: Vec<i64>) -> Cursor {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, told) = &mut *inner;
        *last += 1;
        told.insert(*last, numbers);
        if told.len() > CURSORS_MAX {
            told.pop_first();
        }
        Cursor(*last)
    }
}

impl Inner {
    pub(crate) async fn marks(
        &self,
        shards: &[ShardId],
        cursor: Cursor,
    ) -> Result<(Vec<(ShardId, Incarnation)>, Cursor), StoreError> {
        let asked: Vec<i16> = shards.iter().map(|shard| shard.0.cast_signed()).collect();
        let obeyed = self.marks.of(cursor);
        let rows = if obeyed.is_empty() {
            self.readers.query(READ, &[&asked]).await
        } else {
            self.readers.query(FORGET_AND_READ, &[&asked, &obeyed]).await
        };
        let rows = rows.map_err(store_error)?;
        if rows.is_empty() {
            return Ok((Vec::new(), cursor));
        }
        let of_row = |row: &postgres_client::tokio_postgres::Row| {
            let incarnation = Incarnation(row.get::<_, Uuid>(2).as_u128());
            (ShardId(row.get::<_, i16>(1).cast_unsigned()), incarnation)
        };
        // Those of the cursor, too: other shards' may still be there.
        let numbers = rows.iter().map(|row| row.get(0)).chain(obeyed).collect();
        Ok((rows.iter().map(of_row).collect(), self.marks.give(numbers)))
    }
}
