//! Past timings: the timings of the revisions that transactions have ended.

use domain::{Incarnation, PastTiming, Revision, ScheduleVersion, TenantId, Timestamp, When};
use postgres_client::tokio_postgres::Row;
use store::StoreError;
use stored::{schedule, timing};
use uuid::Uuid;

use crate::engine::Inner;
use crate::error::store_error;
use crate::rows::{limit_number, uuid};

/// Writes past timings. A repeated write has no effect, because a revision ends once.
pub(crate) const INSERT: &str = "insert into reveille.past_timing (incarnation, revision, tenant, value, written_at)
    select *, $5::bigint from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bytea[])
    on conflict (incarnation, revision) do nothing";
const READ: &str = "select revision, value from reveille.past_timing where incarnation = $1 and revision >= $2
    order by revision limit $3";

/// Columns that [`timing_of`] reads. The start of the spec contains the timing. The parameter $2 states whether the
/// caller needs these columns.
pub(crate) const TIMING_COLUMNS: &str =
    "case when $2::boolean then updated_at end, case when $2::boolean then substring(spec for 512) end";
const _: () = assert!(schedule::WHEN_LEN_MAX <= 512, "the start of a spec contains the timing");

/// Returns the timing and the `updated_at` of a schedule from two adjacent columns, of which the first has the index
/// `first`. Returns `None` if the caller does not need them. Also returns `None` if the spec is damaged, because a user
/// may replace a damaged schedule.
pub(crate) fn timing_of(row: &Row, first: usize) -> Option<(When, Timestamp)> {
    let updated_at = row.get::<_, Option<i64>>(first)?;
    match schedule::when_of_spec(row.get(first + 1)) {
        Ok(when) => Some((when, Timestamp::from_millis(updated_at))),
        Err(error) => {
            tracing::warn!(%error, "a damaged schedule was changed; its past timing is lost");
            None
        }
    }
}

/// Past timings, in columns.
#[derive(Default)]
pub(crate) struct Columns {
    pub(crate) incarnations: Vec<Uuid>,
    pub(crate) revisions: Vec<i64>,
    pub(crate) tenants: Vec<i64>,
    pub(crate) values: Vec<Vec<u8>>,
}

impl FromIterator<(TenantId, PastTiming)> for Columns {
    fn from_iter<I: IntoIterator<Item = (TenantId, PastTiming)>>(timings: I) -> Self {
        let mut columns = Columns::default();
        for (tenant, past) in timings {
            columns.incarnations.push(uuid(past.edition.incarnation));
            columns.revisions.push(i64::from(past.edition.revision.0));
            columns.tenants.push(i64::from(tenant.0));
            columns.values.push(timing::encode(tenant, &past));
        }
        columns
    }
}

impl Inner {
    pub(crate) async fn past_timings(
        &self,
        incarnation: Incarnation,
        from: Revision,
        limit: usize,
    ) -> Result<Vec<PastTiming>, StoreError> {
        let parameters = &[&uuid(incarnation) as _, &i64::from(from.0) as _, &limit_number(limit) as _];
        let rows = self.readers.query(READ, parameters).await.map_err(store_error)?;
        let decode = |row: &Row| {
            let revision = u32::try_from(row.get::<_, i64>(0)).map_err(|_| {
                StoreError::Damaged("the revision of a past timing does not fit into 32 bits".to_owned())
            })?;
            let edition = ScheduleVersion { incarnation, revision: Revision(revision) };
            Ok(timing::decode(edition, row.get(1))?)
        };
        rows.iter().map(decode).collect()
    }
}
