//! Inbox of the store. Applications call `reveille.schedule` and `reveille.cancel` inside their own transactions to
//! request schedules and cancellations. The functions of migration 0007 check the requests and write the entries.
//!
//! This module reads and settles entries. It also writes the tables that the functions read: the settings of each
//! tenant (in the same statement as the tenant), and the published usage.
//!
//! docs/decisions/0095-accept-schedules-through-an-inbox.md gives the reasons for the design.
//! docs/decisions/0209-let-owners-move-the-entries-of-the-inbox.md gives the reasons for the checks.
//! docs/decisions/0210-reject-headers-in-sql.md gives the reasons why a request cannot contain headers.

use domain::{Incarnation, Quota, Tenant, TenantId, Timestamp};
use postgres_client::tokio_postgres::Row;
use postgres_client::{Failure, Session};
use store::{Answer, Inbox, InboxEntry, InboxRead, InboxState, StoreError};
use uuid::Uuid;

use crate::connections::query;
use crate::engine::{Inner, PostgresStore};
use crate::error::{OpenError, store_error};
use crate::rows::{limit_number, poller_of};

/// Reads the oldest entries, and lets the tenants take turns. The index `inbox_shard` finds the tenants and shards with
/// entries, and the oldest entries of each of them. A read therefore skips the entries of other members. The statement
/// reads the specs only of the chosen entries.
const READ: &str = "with recursive queue (tenant, shard) as (
        (select i.tenant, i.shard from reveille.inbox i order by i.tenant, i.shard limit 1)
        union all
        select n.tenant, n.shard from queue q cross join lateral (
            select i.tenant, i.shard from reveille.inbox i where (i.tenant, i.shard) > (q.tenant, q.shard)
            order by i.tenant, i.shard limit 1) n
    ),
    turns as (
        select e.number, row_number() over (partition by q.tenant order by e.number) as turn
        from queue q cross join lateral (
            select i.number from reveille.inbox i
            where i.tenant = q.tenant and i.shard = q.shard and not exists (
                select from reveille.inbox e
                where e.tenant = i.tenant and e.id = i.id and e.number < i.number and e.shard <> i.shard)
            order by i.number limit $3
        ) e
        where q.shard = any($1::smallint[]) and q.tenant <> all($2::bigint[])
    ),
    chosen as (select number from turns order by turn, number limit $3)
    select i.number, i.tenant, i.id, i.poller, i.incarnation, i.spec::text
    from chosen c join reveille.inbox i on i.number = c.number order by i.number";
/// Deletes the entries $1, and turns the entries $2 into dead letters with the reasons $3. Headers in an entry of an
/// earlier build do not become a part of its dead letter, because their values are secrets.
const SETTLE: &str = "with moved as (delete from reveille.inbox where number = any($1::bigint[])),
    rejected as (
        delete from reveille.inbox i using unnest($2::bigint[], $3::text[]) as r (number, reason)
        where i.number = r.number
        returning i.number, i.tenant, i.id, r.reason, i.spec #- '{target,http,headers}' as spec, i.written_at
    )
    insert into reveille.inbox_dead_letter (number, tenant, id, reason, spec, written_at)
    select r.number, coalesce(t.name, r.tenant::text), r.id, r.reason, r.spec, r.written_at
    from rejected r left join reveille.inbox_tenant t on t.tenant = r.tenant
    on conflict (number) do nothing";
const PUBLISH: &str = "select reveille.publish_usage()";
const STATE: &str = "select (select count(*) from reveille.inbox),
    (select (extract(epoch from written_at) * 1000)::bigint from reveille.inbox order by number limit 1),
    (select count(*) from reveille.inbox_dead_letter)";
const FORGET_DEAD_LETTERS: &str =
    "delete from reveille.inbox_dead_letter where rejected_at < to_timestamp($1::bigint / 1000.0) returning 1";

/// Returns a statement that writes the settings of a tenant, which the functions of the inbox read. `$select` selects the
/// values.
macro_rules! put_settings {
    ($select:literal) => {
        concat!(
            "insert into reveille.inbox_tenant as t (tenant, name, generation, pollers, pending_max, stored_mib_max,
                payload_bytes_max, horizon_days) ",
            $select,
            " on conflict (tenant) do update set name = excluded.name, generation = excluded.generation,
                pollers = excluded.pollers, pending_max = excluded.pending_max,
                stored_mib_max = excluded.stored_mib_max, payload_bytes_max = excluded.payload_bytes_max,
                horizon_days = excluded.horizon_days"
        )
    };
}
pub(crate) use put_settings;

const PUT_SETTINGS: &str = put_settings!("values ($1, $2, $3, $4, $5, $6, $7, $8)");
/// Moves the entries of the inbox of schema version 6 to the present inbox. Entries of unknown tenants become dead
/// letters.
const MOVE_OLD_ENTRIES: &str = "
    insert into reveille.inbox (tenant, id, poller, shard, incarnation, spec, bytes, written_schedules, written_bytes,
        written_at)
    select t.tenant, b.id, p.poller, reveille.shard_of(p.poller), b.incarnation, b.spec,
        coalesce(octet_length(b.spec::text), 0), 0, 0, b.written_at
    from reveille.inbox_before b
    join reveille.inbox_tenant t on t.name = b.tenant
    cross join lateral (select reveille.poller_of(t.tenant, t.generation, t.pollers, b.id) as poller) p
    order by b.number;
    insert into reveille.inbox_dead_letter (number, tenant, id, reason, spec, written_at)
    select -b.number, b.tenant, b.id, 'no tenant has the name ' || b.tenant, b.spec #- '{target,http,headers}',
        b.written_at
    from reveille.inbox_before b
    where not exists (select from reveille.inbox_tenant t where t.name = b.tenant);
    drop table reveille.inbox_before";

/// Settings of a tenant, in the types of the columns.
pub(crate) struct Settings {
    pub(crate) generation: i32,
    pub(crate) pollers: i32,
    /// The quotas `pending_max`, `stored_mib_max`, `payload_bytes_max` and `horizon_days`.
    pub(crate) quotas: [Option<i64>; 4],
}

impl Settings {
    /// Returns the settings of a tenant. Returns `None` for the operators' tenant, which has no schedules.
    pub(crate) fn of(tenant: &Tenant) -> Option<Self> {
        let pollers = i32::from(*tenant.generations.last()?);
        let generation = i32::try_from(tenant.generations.len() - 1);
        let quota = |quota| tenant.quotas.get(quota).map(i64::from);
        Some(Settings {
            generation: generation.expect("a tenant has fewer than 2^16 poller generations"),
            pollers,
            quotas: [Quota::PendingMax, Quota::StoredMibMax, Quota::PayloadBytesMax, Quota::HorizonDays].map(quota),
        })
    }
}

/// Completes migration 0007: writes the settings of all tenants, and moves the entries of the earlier inbox.
pub(crate) async fn migrate_entries(session: &Session, tenants: &[Tenant]) -> Result<(), OpenError> {
    for tenant in tenants {
        let Some(Settings { generation, pollers, quotas }) = Settings::of(tenant) else { continue };
        let id = i64::from(tenant.id.0);
        let [pending, stored, payload, horizon] = &quotas;
        let written: Result<_, Failure> = query(
            session,
            PUT_SETTINGS,
            &[&id, &tenant.name, &generation, &pollers, pending, stored, payload, horizon],
        )
        .await;
        written?;
    }
    Ok(session.run(MOVE_OLD_ENTRIES).await?)
}

impl Inner {
    async fn read_inbox(&self, read: InboxRead) -> Result<Vec<InboxEntry>, StoreError> {
        let shards: Vec<i16> = read.shards.iter().map(|shard| shard.0.cast_signed()).collect();
        let except: Vec<i64> = read.except.iter().map(|tenant| i64::from(tenant.0)).collect();
        let rows = self.readers.query(READ, &[&shards, &except, &limit_number(read.limit)]).await;
        rows.map_err(store_error)?.iter().map(entry_of).collect()
    }

    async fn settle_inbox(&self, moved: Vec<u64>, rejected: Vec<(u64, String)>) -> Result<(), StoreError> {
        let moved: Vec<i64> = moved.into_iter().map(u64::cast_signed).collect();
        let (numbers, reasons): (Vec<i64>, Vec<String>) =
            rejected.into_iter().map(|(number, reason)| (number.cast_signed(), reason)).unzip();
        let settled = self.readers.query(SETTLE, &[&moved, &numbers, &reasons]).await;
        settled.map(drop).map_err(|failure| self.record_failure(failure))
    }

    async fn publish_usage(&self) -> Result<InboxState, StoreError> {
        self.readers.query(PUBLISH, &[]).await.map_err(|failure| self.record_failure(failure))?;
        let rows = self.readers.query(STATE, &[]).await.map_err(store_error)?;
        let number = |row: &Row, column: usize| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0);
        let state = |row: &Row| InboxState {
            waiting: number(row, 0),
            oldest: row.get::<_, Option<i64>>(1).map(Timestamp::from_millis),
            dead_letters: number(row, 2),
        };
        Ok(rows.first().map_or_else(InboxState::default, state))
    }

    /// Deletes the dead letters of the inbox that an owner rejected before `before`. Returns their number.
    pub(crate) async fn forget_inbox(&self, session: &Session, before: Timestamp) -> Result<u64, Failure> {
        Ok(query(session, FORGET_DEAD_LETTERS, &[&before.as_millis()]).await?.len() as u64)
    }
}

impl Inbox for PostgresStore {
    fn read_inbox(&self, read: InboxRead) -> Answer<'_, Vec<InboxEntry>> {
        Box::pin(self.inner().read_inbox(read))
    }

    fn settle_inbox(&self, moved: Vec<u64>, rejected: Vec<(u64, String)>) -> Answer<'_, ()> {
        Box::pin(self.inner().settle_inbox(moved, rejected))
    }

    fn publish_usage(&self) -> Answer<'_, InboxState> {
        Box::pin(self.inner().publish_usage())
    }
}

fn entry_of(row: &Row) -> Result<InboxEntry, StoreError> {
    let tenant = u32::try_from(row.get::<_, i64>(1));
    Ok(InboxEntry {
        number: row.get::<_, i64>(0).cast_unsigned(),
        tenant: TenantId(tenant.map_err(|_| StoreError::Damaged("the inbox has an invalid tenant".to_owned()))?),
        id: row.get(2),
        poller: poller_of(row.get(3)),
        incarnation: Incarnation(row.get::<_, Uuid>(4).as_u128()),
        spec: row.get(5),
    })
}
