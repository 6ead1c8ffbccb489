//! Counts of final runs by hour. A transaction that writes final runs reads the counts of its own server process, adds
//! the runs, and writes the counts.
//!
//! docs/decisions/0244-count-final-runs-by-hour.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::{Counts, Facet, Hour, RunOrigin, RunSample, TenantId, Timestamp};
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Failure, Session};
use store::{Change, CountPage, CountRead, OwnerWrite, StoreError};
use stored::count;

use crate::connections::query;
use crate::engine::Inner;
use crate::error::store_error;
use crate::rows::limit_number;

/// Begins a transaction. The parameter states that the transaction counts its final runs (migration 0014).
pub(crate) const BEGIN: &str = "begin; set local reveille.counts_runs = 'on'";
/// Reads and locks the rows of the server process. The lock makes a concurrent merge skip the rows (module
/// `history::counts`). The `limit` makes PostgreSQL look up each row by its key.
const READ_OWN: &str = "select k.tenant, k.facet, k.hour, c.value
    from unnest($1::bigint[], $2::smallint[], $3::bigint[]) as k (tenant, facet, hour)
    cross join lateral (
        select value from reveille.run_count c
        where c.tenant = k.tenant and c.facet = k.facet and c.hour = k.hour and c.slot = pg_backend_pid()
        limit 1 for update) c";
pub(crate) const WRITE_OWN: &str = "insert into reveille.run_count (tenant, facet, hour, slot, value)
    select tenant, facet, hour, pg_backend_pid(), value
    from unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::bytea[]) as i (tenant, facet, hour, value)
    on conflict (tenant, facet, hour, slot) do update set value = excluded.value";
/// Returns up to $6 rows of counts after the hour $3 and the slot $5, before the hour $4, with the state of the
/// counting. If there are no such rows, the statement returns one row in which the columns of the counts are null.
const READ: &str = "select g.uncounted_at, g.merges, c.hour, c.slot, c.value
    from (
        select (select coalesce(max(uncounted_at), 0) from reveille.run_counting) as uncounted_at,
            (select coalesce(max(merges), 0) from reveille.run_merging) as merges) g
    left join lateral (
        select hour, slot, value from reveille.run_count
        where tenant = $1 and facet = $2 and hour < $4 and (hour, slot) > ($3, $5)
        order by hour, slot limit $6) c on true
    order by c.hour, c.slot";
/// Maximum number of rows that one statement reads. A row has up to 300 KB.
const ROWS_AT_ONCE: usize = 128;

/// Time after the recorded instant of an uncounted write at which the last such write may have happened. The trigger
/// records an instant once per minute. The rest is for the difference between the clocks.
const UNCOUNTED_MARGIN: Duration = Duration::from_secs(120);

/// Approximate number of bytes of the counts that a transaction reads and writes for each tenant and hour with final
/// runs. Tenants with many labels have up to 400 times as many.
pub(crate) const BYTES: usize = 1_024;

/// Returns the tenant and the hour whose counts the write changes.
pub(crate) fn counted_in(write: &OwnerWrite) -> Option<(TenantId, Hour)> {
    match &write.change {
        Change::Run { run, .. } if run.state.is_final() => Some((run.tenant, Hour::of(run.occurrence.nominal))),
        _ => None,
    }
}

/// Tenant, facet and hour of a row.
pub(crate) type Key = (TenantId, Facet, Hour);

/// Counts of the server process of a transaction.
#[derive(Default, Debug)]
pub(crate) struct OwnCounts {
    read: BTreeMap<Key, Counts>,
    changed: BTreeSet<Key>,
}

/// Reads the counts of the server process of the caller's transaction for these hours.
pub(crate) async fn read_own(session: &Session, hours: &BTreeSet<(TenantId, Hour)>) -> Result<OwnCounts, Failure> {
    if hours.is_empty() {
        return Ok(OwnCounts::default());
    }
    let keys = hours.iter().flat_map(|(tenant, hour)| Facet::ALL.map(|facet| (*tenant, facet, *hour)));
    let Columns { tenants, facets, hours, .. } = Columns::of(keys);
    Ok(OwnCounts::of(&query(session, READ_OWN, &[&tenants, &facets, &hours]).await?))
}

impl OwnCounts {
    /// Returns the counts in the rows of [`READ_OWN`]. A damaged row is no error, because no outcome may be lost for
    /// it. The counts of the process for this hour then start again.
    fn of(rows: &[Row]) -> Self {
        let decode = |row: &Row| {
            let (tenant, facet, hour): (i64, i16, i64) = (row.get(0), row.get(1), row.get(2));
            let key = key_in(tenant, facet, hour)?;
            let counts = count::decode(row.get(3)).unwrap_or_else(|error| {
                tracing::error!(tenant, hour, %error, "counts of an hour start again, because their row is damaged");
                Counts::default()
            });
            Some((key, counts))
        };
        OwnCounts { read: rows.iter().filter_map(decode).collect(), changed: BTreeSet::new() }
    }

    /// Adds a final run.
    pub(crate) fn record(&mut self, tenant: TenantId, hour: Hour, origin: Option<&RunOrigin>, sample: &RunSample) {
        for facet in Facet::ALL {
            let key = (tenant, facet, hour);
            self.read.entry(key).or_default().record(facet, origin, sample);
            self.changed.insert(key);
        }
    }

    /// Returns the columns of the changed rows, for [`WRITE_OWN`].
    pub(crate) fn changed(&self) -> Columns {
        let mut columns = Columns::of(self.changed.iter().copied());
        let value = |key| self.read.get(key).map(count::encode).unwrap_or_default();
        columns.values = self.changed.iter().map(value).collect();
        columns
    }
}

/// Columns of rows of counts.
#[derive(Default)]
pub(crate) struct Columns {
    pub(crate) tenants: Vec<i64>,
    pub(crate) facets: Vec<i16>,
    pub(crate) hours: Vec<i64>,
    pub(crate) values: Vec<Vec<u8>>,
}

impl Columns {
    pub(crate) fn of(keys: impl IntoIterator<Item = Key>) -> Self {
        let mut columns = Columns::default();
        for (tenant, facet, hour) in keys {
            columns.tenants.push(i64::from(tenant.0));
            columns.facets.push(number_of(facet));
            columns.hours.push(hour.0);
        }
        columns
    }
}

pub(crate) fn number_of(facet: Facet) -> i16 {
    match facet {
        Facet::All => 0,
        Facet::Host => 1,
        Facet::Label => 2,
    }
}

/// Returns the key in the columns of a row. `None` if the tenant or the facet is unknown.
pub(crate) fn key_in(tenant: i64, facet: i16, hour: i64) -> Option<Key> {
    let facet = Facet::ALL.into_iter().find(|known| number_of(*known) == facet)?;
    Some((TenantId(u32::try_from(tenant).ok()?), facet, Hour(hour)))
}

impl Inner {
    pub(crate) async fn counts(&self, read: CountRead) -> Result<CountPage, StoreError> {
        let CountRead { tenant, facet, from, until } = read;
        let mut hours: BTreeMap<Hour, Counts> = BTreeMap::new();
        // Slots are not negative, so the first statement starts with the first row of the first hour.
        let (mut after, mut merges_before) = ((from.0, -1_i32), None);
        let uncounted_at = loop {
            let (tenant, facet) = (i64::from(tenant.0), number_of(facet));
            let limit = limit_number(ROWS_AT_ONCE);
            let parameters: [&(dyn ToSql + Sync); 6] = [&tenant, &facet, &after.0, &until.0, &after.1, &limit];
            let rows = self.readers.query(READ, &parameters).await.map_err(store_error)?;
            let Some(first) = rows.first() else { break 0 };
            let (uncounted_at, merges): (i64, i64) = (first.get(0), first.get(1));
            if merges_before.is_some_and(|before| before != merges) {
                // A merge may have moved rows of the last hour to a row that the earlier statements did not read.
                hours.remove(&Hour(after.0));
                (after, merges_before) = ((after.0, -1), None);
                continue;
            }
            merges_before = Some(merges);
            for row in &rows {
                let Some(hour) = row.get::<_, Option<i64>>(2) else { break };
                after = (hour, row.get(3));
                match count::decode(row.get(4)) {
                    Ok(counts) => hours.entry(Hour(hour)).or_default().merge(read.facet, &counts),
                    Err(error) => tracing::error!(
                        tenant, hour, slot = after.1, %error,
                        "report lacks counts, because a row of reveille.run_count is damaged; delete the row"
                    ),
                }
            }
            if rows.len() < ROWS_AT_ONCE {
                break uncounted_at;
            }
        };
        let counted_from = match uncounted_at {
            0 => Timestamp::MIN,
            at => Timestamp::from_millis(at) + UNCOUNTED_MARGIN,
        };
        Ok(CountPage { hours: hours.into_iter().collect(), counted_from: Hour::from_start(counted_from) })
    }
}
