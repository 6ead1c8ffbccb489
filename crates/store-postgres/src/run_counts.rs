//! Counts of final runs by hour. A transaction that writes final runs reads the counts of its own server process, adds
//! the runs, and writes the counts.
//!
//! docs/decisions/0244-count-final-runs-by-hour.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::{Counts, Facet, Hour, RunOrigin, RunSample, TenantId, Timestamp};
use postgres_client::tokio_postgres::Row;
use postgres_client::{Failure, Session};
use store::{CountPage, CountRead, StoreError};
use stored::count;

use crate::connections::query;
use crate::engine::Inner;
use crate::error::store_error;

/// Begins a transaction. The parameter states that the transaction counts its final runs (migration 0014).
pub(crate) const BEGIN: &str = "begin; set local reveille.counts_runs = 'on'";
// The `limit` makes PostgreSQL look up each row by its key.
const READ_OWN: &str = "select k.tenant, k.facet, k.hour, c.value
    from unnest($1::bigint[], $2::smallint[], $3::bigint[]) as k (tenant, facet, hour)
    cross join lateral (
        select value from reveille.run_count c
        where c.tenant = k.tenant and c.facet = k.facet and c.hour = k.hour and c.slot = pg_backend_pid() limit 1) c";
pub(crate) const WRITE_OWN: &str = "insert into reveille.run_count (tenant, facet, hour, slot, value)
    select tenant, facet, hour, pg_backend_pid(), value
    from unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::bytea[]) as i (tenant, facet, hour, value)
    on conflict (tenant, facet, hour, slot) do update set value = excluded.value";
const READ: &str = "select hour, value from reveille.run_count
    where tenant = $1 and facet = $2 and hour >= $3 and hour < $4 order by hour, slot";
const UNCOUNTED_AT: &str = "select uncounted_at from reveille.run_counting";

/// Time after the recorded instant of an uncounted write at which the last such write may have happened. The trigger
/// records an instant once per minute. The rest is for the difference between the clocks.
const UNCOUNTED_MARGIN: Duration = Duration::from_secs(120);

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
    /// Returns the counts in the rows of [`READ_OWN`]. A damaged row is no error, because no outcome may be lost for it.
    /// The counts of the process for this hour then start again.
    fn of(rows: &[Row]) -> Self {
        let decode = |row: &Row| {
            let (tenant, facet, hour): (i64, i16, i64) = (row.get(0), row.get(1), row.get(2));
            let facet = Facet::ALL.into_iter().find(|known| number_of(*known) == facet)?;
            let counts = count::decode(row.get(3)).unwrap_or_else(|error| {
                tracing::error!(tenant, hour, %error, "counts of an hour start again, because their row is damaged");
                Counts::default()
            });
            Some(((TenantId(u32::try_from(tenant).ok()?), facet, Hour(hour)), counts))
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
    fn of(keys: impl IntoIterator<Item = Key>) -> Self {
        let mut columns = Columns::default();
        for (tenant, facet, hour) in keys {
            columns.tenants.push(i64::from(tenant.0));
            columns.facets.push(number_of(facet));
            columns.hours.push(hour.0);
        }
        columns
    }
}

fn number_of(facet: Facet) -> i16 {
    match facet {
        Facet::All => 0,
        Facet::Host => 1,
        Facet::Label => 2,
    }
}

impl Inner {
    pub(crate) async fn counts(&self, read: CountRead) -> Result<CountPage, StoreError> {
        let CountRead { tenant, facet, from, until } = read;
        let parameters = &[&i64::from(tenant.0) as _, &number_of(facet) as _, &from.0 as _, &until.0 as _];
        let rows = self.readers.query(READ, parameters).await.map_err(store_error)?;
        let mut hours: BTreeMap<Hour, Counts> = BTreeMap::new();
        for row in &rows {
            let counts = count::decode(row.get(1))?;
            hours.entry(Hour(row.get(0))).or_default().merge(facet, &counts);
        }
        let uncounted = self.readers.query(UNCOUNTED_AT, &[]).await.map_err(store_error)?;
        let uncounted_at = uncounted.first().map_or(0, |row| row.get(0));
        let counted_from = match uncounted_at {
            0 => Timestamp::MIN,
            at => Timestamp::from_millis(at) + UNCOUNTED_MARGIN,
        };
        Ok(CountPage { hours: hours.into_iter().collect(), counted_from: Hour::from_start(counted_from) })
    }
}
