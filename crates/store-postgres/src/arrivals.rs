//! What creators have written since the last look, exactly, by PostgreSQL's own snapshots.
//!
//! A creator's due row carries its transaction's number. A reader remembers the snapshot that its last answer was read in:
//! told were the rows of the transactions that were over in it, and none else. So the next answer is what belongs to
//! transactions that were not over then, and are now. Numbers drawn from a sequence would not do: rows become visible in the
//! order of commits, and a reader that has passed a number never sees the row that commits late under a lower one. Nor
//! would waiting for the oldest transaction: one that somebody else holds open for hours would hold up all arrivals.
//! (The use of `pg_current_snapshot` for queues is from Skype's PgQ, and the functions' documentation.)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use domain::ShardId;
use postgres_client::tokio_postgres::Row;
use store::{Arrival, Cursor, StoreError};

use crate::engine::Inner;
use crate::error::store_error;
use crate::rows::{due_key_of, limit_number, poller_of};

/// How many cursors are remembered; a caller uses its newest.
const CURSORS_MAX: usize = 1_024;

/// The rows of transactions that were over, of the asked shards, a few more than asked for: those of one transaction are told
/// together. Nothing of a transaction that is not over can be seen, so that looking at numbers is enough.
const READ: &str = "
    select now.snapshot::text, d.poller, d.position, d.incarnation, d.nominal, d.version, d.try, d.written_by::text
    from (select pg_current_snapshot() as snapshot) now
    left join lateral (
        select * from (
            (select poller, position, incarnation, nominal, version, try, written_by from reveille.due_near
            where written_by is not null and written_by >= $1::text::xid8
            and written_by < pg_snapshot_xmax(pg_current_snapshot()) and shard = any($3::smallint[])
            order by written_by fetch first ($4::bigint) rows with ties)
            union all
            (select poller, position, incarnation, nominal, version, try, written_by from reveille.due_far
            where written_by is not null and written_by >= $1::text::xid8
            and written_by < pg_snapshot_xmax(pg_current_snapshot()) and shard = any($3::smallint[])
            order by written_by fetch first ($4::bigint) rows with ties)
            union all
            (select poller, position, incarnation, nominal, version, try, written_by from reveille.due_near
            where written_by is not null and written_by = any($2::text[]::xid8[]) and shard = any($3::smallint[])
            order by written_by fetch first ($4::bigint) rows with ties)
            union all
            (select poller, position, incarnation, nominal, version, try, written_by from reveille.due_far
            where written_by is not null and written_by = any($2::text[]::xid8[]) and shard = any($3::smallint[])
            order by written_by fetch first ($4::bigint) rows with ties)
        ) u
        order by written_by fetch first ($4::bigint) rows with ties
    ) d on true";

/// Which transactions were over: those below `end` that are not among `open`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Snapshot {
    end: u64,
    open: BTreeSet<u64>,
}

impl Snapshot {
    /// From `xmin:xmax:xip,xip`, as PostgreSQL writes it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':').skip(1);
        let end = parts.next()?.parse().ok()?;
        let open = parts.next()?.split_terminator(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        Some(Snapshot { end, open })
    }

    /// What is told after a reader that had been told `self` has been told, out of `seen`, what is below `cut`.
    fn up_to(&self, seen: &Snapshot, cut: u64) -> Snapshot {
        if cut <= self.end {
            let is_untold = |number: &&u64| **number >= cut || seen.open.contains(number);
            return Snapshot { end: self.end, open: self.open.iter().filter(is_untold).copied().collect() };
        }
        Snapshot { end: cut, open: seen.open.range(..cut).copied().collect() }
    }

    /// What both were told.
    fn both(&self, other: &Snapshot) -> Snapshot {
        let end = self.end.min(other.end);
        Snapshot { end, open: self.open.union(&other.open).filter(|number| **number < end).copied().collect() }
    }
}

/// What the cursors mean that were given out.
pub(crate) struct Cursors {
    inner: Mutex<Given>,
}

struct Given {
    last: u64,
    by_number: BTreeMap<u64, Entry>,
    /// What was presented for a shard: a reader that begins anew need not be told that again.
    presented: BTreeMap<ShardId, Arc<Snapshot>>,
    opened: Arc<Snapshot>,
    /// Of [`Cursor::default`].
    since: Option<Since>,
}

struct Entry {
    told: Arc<Snapshot>,
    since: Option<Since>,
}

/// Reads after a cursor that told nothing, so that the cursor stayed: up to here there is nothing for these shards.
#[derive(Clone)]
struct Since {
    shards: Arc<[ShardId]>,
    told: Arc<Snapshot>,
}

impl Cursors {
    /// `opened`: from before this store can have been asked for anything.
    pub(crate) fn new(opened: Snapshot) -> Self {
        let given = Given {
            last: 0,
            by_number: BTreeMap::new(),
            presented: BTreeMap::new(),
            opened: Arc::new(opened),
            since: None,
        };
        Cursors { inner: Mutex::new(given) }
    }

    fn given(&self) -> std::sync::MutexGuard<'_, Given> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What whoever presents `cursor` for `shards` has been told.
    fn told(&self, shards: &Arc<[ShardId]>, cursor: Cursor) -> Arc<Snapshot> {
        let given = &mut *self.given();
        let of_shards = |since: &Option<Since>| {
            since.as_ref().filter(|since| since.shards == *shards).map(|since| since.told.clone())
        };
        match given.by_number.get(&cursor.0) {
            Some(entry) => {
                let told = of_shards(&entry.since).unwrap_or_else(|| entry.told.clone());
                given.presented.extend(shards.iter().map(|shard| (*shard, told.clone())));
                told
            }
            // From the beginning; or a cursor so old that it is forgotten, for which that is right, too.
            None => of_shards(&given.since).unwrap_or_else(|| {
                let of_shard = |shard| given.presented.get(shard).unwrap_or(&given.opened);
                let both = |one: Snapshot, other: &Arc<Snapshot>| one.both(other);
                let mut all = shards.iter().map(of_shard);
                let first = all.next().map_or_else(|| Snapshot::clone(&given.opened), |first| Snapshot::clone(first));
                Arc::new(all.fold(first, both))
            }),
        }
    }

    /// After a read that told nothing: `cursor` stays what it is.
    fn stay(&self, shards: &Arc<[ShardId]>, cursor: Cursor, told: Snapshot) -> Cursor {
        let given = &mut *self.given();
        let since = Some(Since { shards: shards.clone(), told: Arc::new(told) });
        match given.by_number.get_mut(&cursor.0) {
            Some(entry) => entry.since = since,
            None => given.since = since,
        }
        cursor
    }

    fn give(&self, told: Snapshot) -> Cursor {
        let given = &mut *self.given();
        given.last += 1;
        given.by_number.insert(given.last, Entry { told: Arc::new(told), since: None });
        if given.by_number.len() > CURSORS_MAX {
            given.by_number.pop_first();
        }
        Cursor(given.last)
    }
}

impl Inner {
    pub(crate) async fn arrivals(
        &self,
        shards: &Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> Result<(Vec<Arrival>, Cursor), StoreError> {
        if shards.is_empty() {
            return Ok((Vec::new(), cursor));
        }
        let told = self.arrivals.told(shards, cursor);
        let open: Vec<String> = told.open.iter().map(u64::to_string).collect();
        let numbers: Vec<i16> = shards.iter().map(|shard| shard.0.cast_signed()).collect();
        let limit = limit.max(1);
        let parameters = &[&told.end.to_string() as _, &open as _, &numbers as _, &limit_number(limit) as _];
        let rows = self.readers.query(READ, parameters).await.map_err(store_error)?;
        let seen = rows.first().and_then(|row| Snapshot::parse(row.get(0)));
        let seen = seen.ok_or_else(|| StoreError::Damaged("a snapshot of PostgreSQL cannot be read".to_owned()))?;
        let of_row =
            |row: &Row| Some(Arrival { poller: poller_of(row.get::<_, Option<i64>>(1)?), key: due_key_of(row, 2) });
        let arrivals: Vec<Arrival> = rows.iter().filter_map(of_row).collect();
        if arrivals.is_empty() {
            return Ok((arrivals, self.arrivals.stay(shards, cursor, seen)));
        }
        if arrivals.len() < limit {
            return Ok((arrivals, self.arrivals.give(seen)));
        }
        // There may be more, of later transactions.
        let last = rows.last().and_then(|row| row.get::<_, &str>(7).parse::<u64>().ok());
        let last = last.ok_or_else(|| StoreError::Damaged("a row's transaction cannot be read".to_owned()))?;
        Ok((arrivals, self.arrivals.give(told.up_to(&seen, last + 1))))
    }
}

#[cfg(test)]
mod tests;
