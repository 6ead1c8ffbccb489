//! Reads of the insert log. A read returns exactly the due rows that creators have written since the last read. The
//! reads are based on PostgreSQL's snapshots.
//!
//! A creator's due row contains the number of the transaction that wrote it. A reader remembers the snapshot of its
//! last read, and has received the rows of exactly the transactions that had ended in this snapshot. The next read
//! returns the rows of the transactions that have ended since this snapshot.
//!
//! Row numbers from a database sequence could not replace the snapshots, because rows become visible in the order of
//! commits. Another transaction may commit a row with a lower number after a reader has passed this number. The reader
//! would never find this row. A reader could not wait for the oldest transaction either: a transaction that another
//! session keeps open for hours would delay all entries. The queues of Skype's PgQ also use snapshots of transactions.
//!
//! docs/decisions/0091-read-the-insert-log-by-snapshots.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use domain::ShardId;
use postgres_client::tokio_postgres::Row;
use store::{Cursor, InsertLogEntry, StoreError};

use crate::engine::Inner;
use crate::error::store_error;
use crate::rows::{due_key_of, limit_number, poller_of};

/// Maximum number of cursors that the store remembers. A caller uses only its newest cursor, so the store may forget
/// older cursors.
const CURSORS_MAX: usize = 1_024;

/// Reads the rows of ended transactions in the requested shards. The statement never splits the rows of one
/// transaction, so it may return slightly more rows than requested. The rows of open transactions are invisible to the
/// statement, so it need not check whether a transaction has ended.
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

/// Set of ended transactions: the transactions below `end` that are not in `open`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Snapshot {
    end: u64,
    open: BTreeSet<u64>,
}

impl Snapshot {
    /// Parses PostgreSQL's form `xmin:xmax:xip,xip`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':').skip(1);
        let end = parts.next()?.parse().ok()?;
        let open = parts.next()?.split_terminator(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        Some(Snapshot { end, open })
    }

    /// Parses a snapshot that PostgreSQL returned.
    pub(crate) fn of(text: &str) -> Self {
        Snapshot::parse(text).expect("PostgreSQL returns a snapshot in its documented text format")
    }

    /// Returns the set of those transactions that are below the end of `seen`.
    fn below(&self, seen: &Snapshot) -> Snapshot {
        let end = self.end.min(seen.end);
        Snapshot { end, open: self.open.range(..end).copied().collect() }
    }

    /// Returns the snapshot of a reader that had received the transactions of `self`, and has now also received the
    /// transactions of `seen` below `cut`.
    fn up_to(&self, seen: &Snapshot, cut: u64) -> Snapshot {
        if cut <= self.end {
            let is_missing = |number: &&u64| **number >= cut || seen.open.contains(number);
            return Snapshot { end: self.end, open: self.open.iter().filter(is_missing).copied().collect() };
        }
        Snapshot { end: cut, open: seen.open.range(..cut).copied().collect() }
    }

    /// Returns the set of transactions that have ended in both snapshots.
    fn both(&self, other: &Snapshot) -> Snapshot {
        let end = self.end.min(other.end);
        Snapshot { end, open: self.open.union(&other.open).filter(|number| **number < end).copied().collect() }
    }
}

/// Snapshots of the cursors that the store has returned to callers.
pub(crate) struct Cursors {
    inner: Mutex<Issued>,
}

struct Issued {
    last: u64,
    by_number: BTreeMap<u64, Entry>,
    /// Snapshot of the last cursor that a caller presented for each shard. A reader that starts from the beginning need
    /// not receive the rows of this snapshot again.
    presented: BTreeMap<ShardId, Arc<Snapshot>>,
    opened: Arc<Snapshot>,
    /// Result of the last read from [`Cursor::default`] that returned no rows.
    since: Option<Since>,
}

impl Issued {
    fn new(last: u64, opened: Snapshot) -> Self {
        Issued { last, by_number: BTreeMap::new(), presented: BTreeMap::new(), opened: Arc::new(opened), since: None }
    }
}

struct Entry {
    received: Arc<Snapshot>,
    since: Option<Since>,
}

/// Result of a read that returned no rows, and therefore returned the same cursor again. After this cursor, the log of
/// `shards` contains no rows up to the snapshot `received`.
#[derive(Clone)]
struct Since {
    shards: Arc<[ShardId]>,
    received: Arc<Snapshot>,
}

impl Cursors {
    /// Creates an empty set of cursors. `opened` is a snapshot that PostgreSQL took before the first call of this
    /// store.
    pub(crate) fn new(opened: Snapshot) -> Self {
        Cursors { inner: Mutex::new(Issued::new(0, opened)) }
    }

    /// Forgets all cursors. A read with such a cursor then starts from the snapshot `opened`.
    pub(crate) fn restart(&self, opened: Snapshot) {
        let issued = &mut *self.issued();
        *issued = Issued::new(issued.last, opened);
    }

    /// Removes the transactions at and after the end of `seen`, a snapshot of a new connection, from all snapshots. After
    /// a crash, PostgreSQL assigns the numbers of transactions that left no trace again.
    pub(crate) fn limit(&self, seen: &Snapshot) {
        let issued = &mut *self.issued();
        let since = issued.by_number.values_mut().filter_map(|entry| entry.since.as_mut()).chain(&mut issued.since);
        since.for_each(|since| since.received = Arc::new(since.received.below(seen)));
        for entry in issued.by_number.values_mut() {
            entry.received = Arc::new(entry.received.below(seen));
        }
        for received in issued.presented.values_mut().chain([&mut issued.opened]) {
            *received = Arc::new(received.below(seen));
        }
    }

    fn issued(&self) -> std::sync::MutexGuard<'_, Issued> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the snapshot of the rows that a caller has received if it presents `cursor` for `shards`.
    fn received(&self, shards: &Arc<[ShardId]>, cursor: Cursor) -> Arc<Snapshot> {
        let issued = &mut *self.issued();
        let of_shards = |since: &Option<Since>| {
            since.as_ref().filter(|since| since.shards == *shards).map(|since| since.received.clone())
        };
        match issued.by_number.get(&cursor.0) {
            Some(entry) => {
                let received = of_shards(&entry.since).unwrap_or_else(|| entry.received.clone());
                issued.presented.extend(shards.iter().map(|shard| (*shard, received.clone())));
                received
            }
            // The cursor is `Cursor::default`, or so old that the store has forgotten it. In both cases the read starts
            // from the snapshots of the cursors that callers last presented for the shards.
            None => of_shards(&issued.since).unwrap_or_else(|| {
                let of_shard = |shard| issued.presented.get(shard).unwrap_or(&issued.opened);
                let both = |one: Snapshot, other: &Arc<Snapshot>| one.both(other);
                let mut all = shards.iter().map(of_shard);
                let first = all.next().map_or_else(|| Snapshot::clone(&issued.opened), |first| Snapshot::clone(first));
                Arc::new(all.fold(first, both))
            }),
        }
    }

    /// Records that a read after `cursor` returned no rows, and returns `cursor` again.
    fn stay(&self, shards: &Arc<[ShardId]>, cursor: Cursor, received: Snapshot) -> Cursor {
        let issued = &mut *self.issued();
        let since = Some(Since { shards: shards.clone(), received: Arc::new(received) });
        match issued.by_number.get_mut(&cursor.0) {
            Some(entry) => entry.since = since,
            None => issued.since = since,
        }
        cursor
    }

    fn issue(&self, received: Snapshot) -> Cursor {
        let issued = &mut *self.issued();
        issued.last += 1;
        issued.by_number.insert(issued.last, Entry { received: Arc::new(received), since: None });
        if issued.by_number.len() > CURSORS_MAX {
            issued.by_number.pop_first();
        }
        Cursor(issued.last)
    }
}

impl Inner {
    pub(crate) async fn read_insert_log(
        &self,
        shards: &Arc<[ShardId]>,
        cursor: Cursor,
        limit: usize,
    ) -> Result<(Vec<InsertLogEntry>, Cursor), StoreError> {
        if shards.is_empty() {
            return Ok((Vec::new(), cursor));
        }
        let received = self.epochs.insert_log.received(shards, cursor);
        let open: Vec<String> = received.open.iter().map(u64::to_string).collect();
        let numbers: Vec<i16> = shards.iter().map(|shard| shard.0.cast_signed()).collect();
        let limit = limit.max(1);
        let parameters = &[&received.end.to_string() as _, &open as _, &numbers as _, &limit_number(limit) as _];
        let rows = self.readers.query(READ, parameters).await.map_err(store_error)?;
        let seen = rows.first().and_then(|row| Snapshot::parse(row.get(0)));
        let seen = seen.ok_or_else(|| {
            StoreError::Damaged("the snapshot from PostgreSQL does not have the documented text format".to_owned())
        })?;
        let of_row = |row: &Row| {
            Some(InsertLogEntry { poller: poller_of(row.get::<_, Option<i64>>(1)?), key: due_key_of(row, 2) })
        };
        let arrivals: Vec<InsertLogEntry> = rows.iter().filter_map(of_row).collect();
        if arrivals.is_empty() {
            return Ok((arrivals, self.epochs.insert_log.stay(shards, cursor, seen)));
        }
        if arrivals.len() < limit {
            return Ok((arrivals, self.epochs.insert_log.issue(seen)));
        }
        // The read reached its limit, so later transactions may have more rows.
        let last = rows.last().and_then(|row| row.get::<_, &str>(7).parse::<u64>().ok());
        let last = last.ok_or_else(|| {
            StoreError::Damaged("a row of the insert log has a malformed transaction number".to_owned())
        })?;
        Ok((arrivals, self.epochs.insert_log.issue(received.up_to(&seen, last + 1))))
    }
}

#[cfg(test)]
mod tests;
