//! Writes and reads of due rows. The parameters of a write are arrays, one for each column. A read returns the rows in
//! key order.

use std::collections::BTreeSet;

use domain::{DueKey, Incarnation, Occurrence, PollerId, Revision, TargetKey, Timestamp};
use postgres_client::tokio_postgres::types::ToSql;
use store::{DueBound, DuePage, DueRead, StoreError};

use crate::engine::Inner;
use crate::error::store_error;
use crate::partition::{Family, Partition};
use crate::rows::{DueColumns, due_key_of, limit_number};

/// Due rows to write, without duplicates and in key order, and the partitions of these rows.
#[derive(Default)]
pub(crate) struct Columns {
    pub(crate) near: DueColumns,
    pub(crate) far: DueColumns,
    pub(crate) partitions: BTreeSet<Partition>,
}

impl Columns {
    pub(crate) fn of(rows: impl Iterator<Item = (PollerId, DueKey)>, now: Timestamp) -> Self {
        let mut columns = Columns::default();
        // All transactions write rows in the same order. Two transactions that write the same rows therefore cannot
        // deadlock.
        let rows: BTreeSet<(PollerId, DueKey)> = rows.collect();
        for (poller, key) in rows {
            let family = Family::of(key.position, now);
            columns.partitions.insert(Partition::of(family, key.position));
            let rows = if family == Family::Near { &mut columns.near } else { &mut columns.far };
            rows.push(poller, &key);
        }
        columns
    }
}

impl DueColumns {
    pub(crate) fn is_empty(&self) -> bool {
        self.pollers.is_empty()
    }

    pub(crate) fn parameters(&self) -> [&(dyn ToSql + Sync); 7] {
        [&self.pollers, &self.positions, &self.incarnations, &self.nominals, &self.versions, &self.tries, &self.shards]
    }
}

const OWNERS_NEAR: &str = "insert into reveille.due_near (poller, position, incarnation, nominal, version, try, shard)
    select * from unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[])
    on conflict do nothing";
const OWNERS_FAR: &str = "insert into reveille.due_far (poller, position, incarnation, nominal, version, try, shard)
    select * from unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[])
    on conflict do nothing";
// If a row exists already, these statements add a new entry for the row to the insert log.
const CREATORS_NEAR: &str =
    "insert into reveille.due_near (poller, position, incarnation, nominal, version, try, shard, written_by)
    select *, pg_current_xact_id()
    from unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[])
    on conflict (poller, position, incarnation, nominal, version, try) do update set written_by = excluded.written_by";
const CREATORS_FAR: &str =
    "insert into reveille.due_far (poller, position, incarnation, nominal, version, try, shard, written_by)
    select *, pg_current_xact_id()
    from unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[])
    on conflict (poller, position, incarnation, nominal, version, try) do update set written_by = excluded.written_by";

/// Returns the insert statements for the near (daily) and for the far (wide) partitions.
pub(crate) fn statements(is_of_creators: bool) -> [&'static str; 2] {
    if is_of_creators { [CREATORS_NEAR, CREATORS_FAR] } else { [OWNERS_NEAR, OWNERS_FAR] }
}

/// Reads, for each request and each family of partitions, the rows of the page, one more row, and the first row after
/// `until`. The separate bounds on `position` let PostgreSQL skip partitions. From a comparison of whole keys alone,
/// PostgreSQL could not find the partitions to skip.
const READ: &str = "
    select r.at::int8, k.position, k.incarnation, k.nominal, k.version, k.try
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[],
        $8::bigint[], $9::bigint[]) as r (at, poller, position, incarnation, nominal, version, try, until, rows)
    cross join lateral (
        (select d.position, d.incarnation, d.nominal, d.version, d.try from reveille.due_near d
        where d.poller = r.poller and d.position >= r.position and d.position <= r.until
        and (d.position, d.incarnation, d.nominal, d.version, d.try)
            > (r.position, r.incarnation, r.nominal, r.version, r.try)
        order by d.position, d.incarnation, d.nominal, d.version, d.try limit r.rows)
        union all
        (select d.position, d.incarnation, d.nominal, d.version, d.try from reveille.due_far d
        where d.poller = r.poller and d.position >= r.position and d.position <= r.until
        and (d.position, d.incarnation, d.nominal, d.version, d.try)
            > (r.position, r.incarnation, r.nominal, r.version, r.try)
        order by d.position, d.incarnation, d.nominal, d.version, d.try limit r.rows)
        union all
        (select d.position, d.incarnation, d.nominal, d.version, d.try from reveille.due_near d
        where d.poller = r.poller and d.position > r.until and d.position >= r.position
        and (d.position, d.incarnation, d.nominal, d.version, d.try)
            > (r.position, r.incarnation, r.nominal, r.version, r.try)
        order by d.position, d.incarnation, d.nominal, d.version, d.try limit 1)
        union all
        (select d.position, d.incarnation, d.nominal, d.version, d.try from reveille.due_far d
        where d.poller = r.poller and d.position > r.until and d.position >= r.position
        and (d.position, d.incarnation, d.nominal, d.version, d.try)
            > (r.position, r.incarnation, r.nominal, r.version, r.try)
        order by d.position, d.incarnation, d.nominal, d.version, d.try limit 1)
    ) k";

impl Inner {
    pub(crate) async fn due(&self, reads: &[DueRead]) -> Result<Vec<DuePage>, StoreError> {
        if reads.is_empty() {
            return Ok(Vec::new());
        }
        let at: Vec<i64> = (0..).take(reads.len()).collect();
        let mut after = DueColumns::default();
        reads.iter().for_each(|read| after.push(read.poller, &last_key_of(read.after)));
        let until: Vec<i64> = reads.iter().map(|read| read.until.as_millis()).collect();
        let rows: Vec<i64> = reads.iter().map(|read| limit_number(read.limit) + 1).collect();
        let parameters: [&(dyn ToSql + Sync); 9] = [
            &at,
            &after.pollers,
            &after.positions,
            &after.incarnations,
            &after.nominals,
            &after.versions,
            &after.tries,
            &until,
            &rows,
        ];
        let rows = self.readers.query(READ, &parameters).await.map_err(store_error)?;
        // A row that a member wrote twice may exist in both families of partitions. The set contains this row once.
        let mut found = vec![BTreeSet::new(); reads.len()];
        for row in rows {
            let at = usize::try_from(row.get::<_, i64>(0))
                .expect("the first column of each row is the index of its read in this call");
            found[at].insert(due_key_of(&row, 1));
        }
        Ok(reads.iter().zip(found).map(|(read, found)| page_of(read, found)).collect())
    }
}

fn page_of(read: &DueRead, found: BTreeSet<DueKey>) -> DuePage {
    let mut found = found.into_iter().peekable();
    let mut keys = Vec::new();
    while keys.len() < read.limit {
        let Some(key) = found.next_if(|key| key.position <= read.until) else { break };
        keys.push(key);
    }
    DuePage { keys, next: found.peek().map(|key| key.position) }
}

/// Returns the key that is directly before the first key of the read.
fn last_key_of(after: DueBound) -> DueKey {
    match after {
        DueBound::Key(key) => key,
        DueBound::Instant(position) => {
            let occurrence = Occurrence {
                incarnation: Incarnation(u128::MAX),
                nominal: Timestamp::from_millis(i64::MAX),
                revision: Revision(u32::MAX),
                replay: u16::MAX,
            };
            DueKey { position, occurrence, attempt: u16::MAX, target: TargetKey(u32::MAX) }
        }
    }
}
