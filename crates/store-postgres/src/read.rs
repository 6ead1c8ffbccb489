//! Reads of single rows and of pages of rows. Each read consists of one statement. Only a read of schedules by their
//! ids may need two statements.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use domain::occurrence::Run;
use domain::{Audit, Incarnation, Occurrence, PollerId, Schedule, ScheduleId, Tenant, TenantId, Timestamp};
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Failure, Session};
use store::{Closed, Outdated, Positions, StoreError, Usage};
use stored::{Take, tenant};
use uuid::Uuid;

use crate::connections::query;
use crate::engine::Inner;
use crate::error::{OpenError, store_error};
use crate::inbox::{Settings, put_settings};
use crate::rows::{OccurrenceColumns, limit_number, poller_number, poller_of, run_key_of, run_of, schedule_of, uuid};

const LOAD: &str =
    "select incarnation, tenant, poller, id, is_current, revision, status, created_at, next, updated_at, spec
    from reveille.schedule where incarnation = any($1::uuid[])";
const GET: &str = "select s.incarnation, s.tenant, s.poller, s.id, s.is_current, s.revision, s.status, s.created_at,
        s.next, s.updated_at, s.spec
    from unnest($1::bigint[], $2::text[]) as n (tenant, id)
    join reveille.schedule s on s.tenant = n.tenant and s.id = n.id and s.is_current and s.id is not null";
const GET_SERVER_MADE: &str = "select s.incarnation, s.tenant, s.poller, s.id, s.is_current, s.revision, s.status, s.created_at,
        s.next, s.updated_at, s.spec
    from unnest($1::bigint[], $2::uuid[]) as n (tenant, incarnation)
    join reveille.schedule s on s.incarnation = n.incarnation and s.tenant = n.tenant and s.is_current and s.id is null";
const POSITIONS: &str =
    "select poller, closed, done, reopened, reopened_from from reveille.position where poller = any($1::bigint[])";
const FIND_RUNS: &str = "select r.tenant, r.incarnation, r.nominal, r.version, r.state, r.value
    from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as o (incarnation, nominal, version)
    cross join lateral (
        select * from reveille.run r
        where r.incarnation = o.incarnation and r.nominal = o.nominal and r.version = o.version limit 1) r";
const RUNS: &str = "select tenant, incarnation, nominal, version, state, value from reveille.run
    where incarnation = $1 and (incarnation, nominal, version) > ($2, $3, $4)
    order by incarnation, nominal, version limit $5";
const DEAD_LETTERS: &str = "select tenant, incarnation, nominal, version, state, value from reveille.run
    where tenant = $1 and state = 2 and not is_redriven and (incarnation, nominal, version) > ($2, $3, $4)
    order by incarnation, nominal, version limit $5";
const USAGE: &str = "select tenant, sum(active)::bigint, sum(ended)::bigint, sum(cancelled)::bigint, sum(bytes)::bigint
    from (
        select tenant, active, ended, cancelled, bytes from reveille.usage where tenant = any($1::bigint[])
        union all select tenant, 0, 0, 0, bytes from reveille.run_usage where tenant = any($1::bigint[])
    ) u group by tenant";
const TENANTS: &str = "select tenant, value from reveille.tenant order by tenant";
const PUT_TENANT: &str = concat!(
    "with put as (
        insert into reveille.tenant as t (tenant, version, value) values ($1, $2, $3)
        on conflict (tenant) do update set version = excluded.version, value = excluded.value
            where t.version = excluded.version - 1
        returning t.tenant
    ),
    settings as (",
    put_settings!(
        "select tenant, $5::text, $6::integer, $7::integer, $8::bigint, $9::bigint, $10::bigint, $11::bigint
        from put where $6 is not null"
    ),
    ") insert into reveille.audit (tenant, version, value) select tenant, $2, $4 from put
    on conflict (tenant, version) do update set value = excluded.value returning 1"
);
const AUDIT: &str = "select value from reveille.audit where tenant = $1 and version > $2 order by version limit $3";

/// Lower bound that sorts before every occurrence.
const FIRST: (Uuid, i64, i64) = (Uuid::nil(), i64::MIN, i64::MIN);

/// Positions of a poller, the number of its changes [`store::Change::Reopen`], and the latest `closed` from which such a
/// change set the poller back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PollerState {
    pub(crate) positions: Positions,
    pub(crate) reopened: u32,
    pub(crate) reopened_from: Timestamp,
}

impl PollerState {
    pub(crate) fn closed(self) -> Closed {
        let PollerState { positions, reopened, reopened_from } = self;
        Closed { at: positions.closed, reopened, reopened_from }
    }
}

/// Returns the same values as [`Inner::pollers`], but reads them on the caller's connection.
pub(crate) async fn pollers_on(session: &Session, pollers: &[PollerId]) -> Result<Vec<PollerState>, Failure> {
    Ok(states_of(pollers, &query(session, POSITIONS, &[&numbers_of(pollers)]).await?))
}

fn numbers_of(pollers: &[PollerId]) -> Vec<i64> {
    pollers.iter().copied().map(poller_number).collect()
}

fn states_of(pollers: &[PollerId], rows: &[Row]) -> Vec<PollerState> {
    let state = |row: &Row| {
        let instant = |column| Timestamp::from_millis(row.get(column));
        let positions = Positions { closed: instant(1), done: instant(2) };
        let reopened = u32::try_from(row.get::<_, i64>(3)).unwrap_or(u32::MAX);
        PollerState { positions, reopened, reopened_from: instant(4) }
    };
    let found: HashMap<PollerId, PollerState> = rows.iter().map(|row| (poller_of(row.get(0)), state(row))).collect();
    pollers.iter().map(|poller| found.get(poller).copied().unwrap_or_default()).collect()
}

impl Inner {
    pub(crate) async fn load(&self, incarnations: Vec<Incarnation>) -> Result<Vec<Option<Arc<Schedule>>>, StoreError> {
        if incarnations.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Uuid> = incarnations.iter().copied().map(uuid).collect();
        let rows = self.readers.query(LOAD, &[&ids]).await.map_err(store_error)?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            let schedule = schedule_of(row)?;
            found.insert(schedule.incarnation, schedule);
        }
        Ok(incarnations.iter().map(|incarnation| found.get(incarnation).cloned()).collect())
    }

    pub(crate) async fn get(&self, names: &[(TenantId, ScheduleId)]) -> Result<Vec<Option<Arc<Schedule>>>, StoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let (tenants, ids): (Vec<i64>, Vec<&str>) =
            names.iter().map(|(tenant, id)| (i64::from(tenant.0), id.as_str())).unzip();
        let server_made =
            names.iter().filter_map(|(tenant, id)| Some((i64::from(tenant.0), uuid(id.to_incarnation()?))));
        let (server_made_tenants, server_made): (Vec<i64>, Vec<Uuid>) = server_made.unzip();
        let mut rows = Vec::new();
        if !server_made.is_empty() {
            rows = self
                .readers
                .query(GET_SERVER_MADE, &[&server_made_tenants, &server_made])
                .await
                .map_err(store_error)?;
        }
        if server_made.len() < names.len() || rows.len() < server_made.len() {
            rows.extend(self.readers.query(GET, &[&tenants, &ids]).await.map_err(store_error)?);
        }
        let mut found = BTreeMap::new();
        for row in &rows {
            let schedule = schedule_of(row)?;
            found.insert((schedule.tenant, schedule.id.clone()), schedule);
        }
        Ok(names.iter().map(|name| found.get(name).cloned()).collect())
    }

    pub(crate) async fn pollers(&self, pollers: &[PollerId]) -> Result<Vec<PollerState>, StoreError> {
        if pollers.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.readers.query(POSITIONS, &[&numbers_of(pollers)]).await.map_err(store_error)?;
        Ok(states_of(pollers, &rows))
    }

    pub(crate) async fn find_runs(&self, occurrences: &[Occurrence]) -> Result<Vec<Option<Run>>, StoreError> {
        if occurrences.is_empty() {
            return Ok(Vec::new());
        }
        let keys: OccurrenceColumns = occurrences.iter().collect();
        let parameters = &[&keys.incarnations as _, &keys.nominals as _, &keys.versions as _];
        let rows = self.readers.query(FIND_RUNS, parameters).await.map_err(store_error)?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            found.insert(run_key_of(row), run_of(row)?);
        }
        Ok(occurrences.iter().map(|occurrence| found.get(occurrence).cloned()).collect())
    }

    pub(crate) async fn runs(
        &self,
        incarnation: Incarnation,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        let (of, nominal, version) = bound_of(after);
        let parameters = &[&uuid(incarnation) as _, &of as _, &nominal as _, &version as _, &limit_number(limit) as _];
        let rows = self.readers.query(RUNS, parameters).await.map_err(store_error)?;
        rows.iter().map(run_of).collect()
    }

    pub(crate) async fn dead_letters(
        &self,
        tenant: TenantId,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        let (of, nominal, version) = bound_of(after);
        let tenant = i64::from(tenant.0);
        let parameters = &[&tenant as _, &of as _, &nominal as _, &version as _, &limit_number(limit) as _];
        let rows = self.readers.query(DEAD_LETTERS, parameters).await.map_err(store_error)?;
        rows.iter().map(run_of).collect()
    }

    pub(crate) async fn usage(&self, tenants: &[TenantId]) -> Result<Vec<Usage>, StoreError> {
        let numbers: Vec<i64> = tenants.iter().map(|tenant| i64::from(tenant.0)).collect();
        let rows = self.readers.query(USAGE, &[&numbers]).await.map_err(store_error)?;
        let usage_of = |row: &Row| {
            let number = |column: usize| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
            Usage { active: number(1), ended: number(2), cancelled: number(3), bytes: number(4) }
        };
        let usages: HashMap<i64, Usage> = rows.iter().map(|row| (row.get(0), usage_of(row))).collect();
        Ok(numbers.iter().map(|tenant| usages.get(tenant).copied().unwrap_or_default()).collect())
    }

    pub(crate) async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        let rows = self.readers.query(TENANTS, &[]).await.map_err(store_error)?;
        rows.iter().map(tenant_in).collect()
    }

    pub(crate) async fn put_tenant(&self, tenant: &Tenant, entry: &Audit) -> Result<Result<(), Outdated>, StoreError> {
        store::check_put_tenant(tenant, entry);
        let (id, version) = (i64::from(tenant.id.0), tenant.version.cast_signed());
        let settings = Settings::of(tenant);
        let (generation, pollers) = settings.as_ref().map(|it| (it.generation, it.pollers)).unzip();
        let [pending, stored, payload, horizon] = settings.map_or([None; 4], |settings| settings.quotas);
        let (value, audit) = (tenant::encode(tenant), tenant::encode_audit(entry));
        let parameters: &[&(dyn ToSql + Sync)] = &[
            &id,
            &version,
            &value,
            &audit,
            &tenant.name,
            &generation,
            &pollers,
            &pending,
            &stored,
            &payload,
            &horizon,
        ];
        let written =
            self.readers.query(PUT_TENANT, parameters).await.map_err(|failure| self.record_failure(failure))?;
        Ok(if written.is_empty() { Err(Outdated) } else { Ok(()) })
    }

    pub(crate) async fn audit(&self, tenant: TenantId, after: u64, limit: usize) -> Result<Vec<Audit>, StoreError> {
        let (id, after) = (i64::from(tenant.0), after.cast_signed());
        let rows = self.readers.query(AUDIT, &[&id, &after, &limit_number(limit)]).await.map_err(store_error)?;
        rows.iter().map(|row| tenant::decode_audit(row.get(0)).map_err(StoreError::Damaged)).collect()
    }
}

/// Reads all tenants on the caller's connection, for a migration.
pub(crate) async fn all_tenants(session: &Session) -> Result<Vec<Tenant>, OpenError> {
    let rows = query(session, TENANTS, &[]).await?;
    Ok(rows.iter().map(tenant_in).collect::<Result<_, StoreError>>()?)
}

pub(crate) fn tenant_in(row: &Row) -> Result<Tenant, StoreError> {
    let id = u32::try_from(row.get::<_, i64>(0));
    let id = id.map_err(|_| StoreError::Damaged("the id of a tenant does not fit into 32 bits".to_owned()))?;
    tenant_of(TenantId(id), row.get(1))
}

/// Decodes the tenant in a row that this build or an earlier build wrote.
fn tenant_of(id: TenantId, stored: &[u8]) -> Result<Tenant, StoreError> {
    let mut take = Take::new("a tenant", stored);
    match take.version(tenant::FIRST_VERSION) {
        Ok(()) => Ok(tenant::take_first(id, take)?),
        Err(_) => tenant::decode(id, stored).map_err(StoreError::Damaged),
    }
}

fn bound_of(after: Option<Occurrence>) -> (Uuid, i64, i64) {
    let Some(after) = after else { return FIRST };
    let bound: OccurrenceColumns = [after].iter().collect();
    (bound.incarnations[0], bound.nominals[0], bound.versions[0])
}
