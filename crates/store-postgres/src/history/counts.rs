//! Deletion of old counts of runs, and the merge of the counts of past hours.
//!
//! Each server process that writes runs has rows of counts of its own. A merge replaces the rows of an hour by one row
//! with the slot 0, which no process has. The number of rows of an hour is then small again.
//!
//! Invariant: a merge changes the rows of an hour only if none of them has changed since the merge read them. It waits
//! for no lock of a transaction that writes runs. Such a transaction may wait for the single statement of a merge.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use domain::{Counts, Hour, Timestamp};
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Failure, Session};
use stored::count;

use super::limits::Limits;
use super::{PAGE, count as count_of};
use crate::connections::query;
use crate::engine::Inner;
use crate::rows::limit_number;
use crate::run_counts::{Columns, Key, key_in};

/// Number of the latest hours that a merge leaves alone, because processes still write their counts.
const OPEN_HOURS: i64 = 2;
/// Maximum numbers of hours and of rows that one merge reads.
const HOURS_MERGED: usize = 64;
const ROWS_MERGED: usize = 64;
/// Number of tenants whose counts one statement examines.
const TENANTS_SWEPT: usize = 200;
/// Number before the number of each tenant, at which a sweep starts.
pub(crate) const NO_TENANT: i64 = -1;

/// Returns the first $2 tenants after the tenant $1 that have counts. The statement reads one row per tenant.
const TENANTS_WITH_COUNTS: &str = "
    with recursive found (tenant) as (
        select min(tenant) from reveille.run_count where tenant > $1
        union all
        select (select min(c.tenant) from reveille.run_count c where c.tenant > f.tenant)
        from found f where f.tenant is not null)
    select tenant from found where tenant is not null limit $2";
/// Deletes counts of the tenants in $1 for the hours before those in $2: at most $3 rows. The statement skips rows that
/// another transaction has locked. The next sweep deletes them.
const FORGET_COUNTS: &str = "
    delete from reveille.run_count where (tenant, facet, hour, slot) in (
        select o.tenant, o.facet, o.hour, o.slot
        from unnest($1::bigint[], $2::bigint[]) l (tenant, before)
        cross join unnest('{0,1,2}'::smallint[]) f (facet)
        cross join lateral (
            select c.tenant, c.facet, c.hour, c.slot from reveille.run_count c
            where c.tenant = l.tenant and c.facet = f.facet and c.hour < l.before
            order by c.hour, c.slot limit $3 for update skip locked) o
        limit $3)
    returning hour";
/// Returns the counts of up to $5 keys with several rows, or with the row of a process, for the hours before $1 and
/// after the key ($2, $3, $4): at most $6 rows. The first column is the number of merges.
const UNMERGED: &str = "
    select m.merges, c.hour, c.tenant, c.facet, c.slot, c.value, md5(c.value)
    from (select merges from reveille.run_merging limit 1) m cross join lateral (
        select c.hour, c.tenant, c.facet, c.slot, c.value from (
            select distinct hour, tenant, facet from reveille.run_count
            where slot <> 0 and hour < $1 and (hour, tenant, facet) > ($2, $3, $4)
            order by hour, tenant, facet limit $5) k
        join reveille.run_count c using (hour, tenant, facet)
        order by c.hour, c.tenant, c.facet, c.slot limit $6) c
    order by c.hour, c.tenant, c.facet, c.slot";
/// Replaces the rows in $1 to $4 by the rows with the slot 0 in $7 to $11. The column $5 has the MD5 sums of the values
/// that the merge has read, and the column $10 is the number of rows that such a row replaces. The statement leaves a key alone if one of its rows has changed or is locked. It has no effect
/// if the number of merges is not $6.
const MERGE: &str = "
    with gate as (
        update reveille.run_merging set merges = merges + 1 where merges = $6 returning merges),
    part as (
        select c.tenant, c.facet, c.hour, c.slot from reveille.run_count c
        join unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::integer[], $5::text[])
            k (tenant, facet, hour, slot, value) using (tenant, facet, hour, slot)
        where md5(c.value) = k.value for update of c skip locked),
    whole as (
        select m.tenant, m.facet, m.hour, m.value
        from unnest($7::bigint[], $8::smallint[], $9::bigint[], $10::bigint[], $11::bytea[])
            m (tenant, facet, hour, parts, value)
        where exists (select from gate) and m.parts = (
            select count(*) from part p where p.tenant = m.tenant and p.facet = m.facet and p.hour = m.hour)),
    gone as (
        delete from reveille.run_count c using part p, whole w
        where c.tenant = p.tenant and c.facet = p.facet and c.hour = p.hour and c.slot = p.slot and p.slot <> 0
        and w.tenant = p.tenant and w.facet = p.facet and w.hour = p.hour)
    insert into reveille.run_count (tenant, facet, hour, slot, value)
    select tenant, facet, hour, 0, value from whole
    on conflict (tenant, facet, hour, slot) do update set value = excluded.value
    returning hour";

/// Rows of one key, and their merged counts.
#[derive(Default)]
struct Merging {
    /// Slot and MD5 sum of each row.
    slots: Vec<(i32, String)>,
    counts: Counts,
    /// True if the row with the slot 0 is damaged. The merge would lose its remains.
    is_damaged: bool,
}

impl Inner {
    /// Deletes the counts of the hours before the limits of their tenants. If the turn ends before the last tenant, the
    /// next call continues after the last complete tenant.
    pub(super) async fn forget_counts(&self, session: &Session, limits: &Limits) -> Result<u64, Failure> {
        let until = self.turn_end();
        let mut deleted = 0;
        loop {
            let after = self.counts_swept.load(Ordering::Relaxed);
            let rows = query(session, TENANTS_WITH_COUNTS, &[&after, &limit_number(TENANTS_SWEPT)]).await?;
            let tenants: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            let before: Vec<i64> = tenants.iter().map(|tenant| Hour::of(limits.of(*tenant)).0).collect();
            let mut rows = usize::from(!tenants.is_empty());
            while rows > 0 {
                if self.runtime.monotonic() >= until {
                    return Ok(count_of(deleted));
                }
                rows = query(session, FORGET_COUNTS, &[&tenants, &before, &limit_number(PAGE)]).await?.len();
                deleted += rows;
            }
            self.counts_swept.store(tenants.last().copied().unwrap_or(NO_TENANT), Ordering::Relaxed);
            if tenants.is_empty() {
                return Ok(count_of(deleted));
            }
        }
    }

    /// Merges the counts of past hours. Returns true if the turn ended before the last hour.
    pub(crate) async fn merge_counts(&self, now: Timestamp) -> Result<bool, Failure> {
        let session = self.history_link.session().await?;
        let until = self.turn_end();
        let before = Hour::of(now).0 - OPEN_HOURS + 1;
        let mut after = (i64::MIN, i64::MIN, i16::MIN);
        while self.runtime.monotonic() < until {
            let (hours, rows) = (limit_number(HOURS_MERGED), limit_number(ROWS_MERGED));
            let parameters: [&(dyn ToSql + Sync); 6] = [&before, &after.0, &after.1, &after.2, &hours, &rows];
            let page = query(&session, UNMERGED, &parameters).await?;
            let place = |row: &Row| (row.get::<_, i64>(1), row.get::<_, i64>(2), row.get::<_, i16>(3));
            let Some(last) = page.last().map(place) else { return Ok(false) };
            let merged = merge(&session, &page).await?;
            // A full page may lack rows of its last key, so the next page starts with this key.
            let is_full = page.len() >= ROWS_MERGED && merged > 0;
            let earlier = page.iter().rev().map(place).find(|place| *place != last);
            after = if is_full { earlier.unwrap_or(after) } else { last };
        }
        Ok(true)
    }
}

/// Merges the rows of a page of [`UNMERGED`]. Returns the number of keys that the database has merged.
async fn merge(session: &Session, page: &[Row]) -> Result<usize, Failure> {
    let merges: i64 = page.first().map_or(0, |row| row.get(0));
    let mut keys: BTreeMap<Key, Merging> = BTreeMap::new();
    for row in page {
        let (hour, slot): (i64, i32) = (row.get(1), row.get(4));
        let Some(key) = key_in(row.get(2), row.get(3), hour) else { continue };
        let merging = keys.entry(key).or_default();
        match count::decode(row.get(5)) {
            Ok(counts) => {
                merging.counts.merge(key.1, &counts);
                merging.slots.push((slot, row.get(6)));
            }
            Err(error) => {
                tracing::error!(
                    tenant = key.0.0, hour, slot, %error,
                    "counts of an hour not merged, because a row of reveille.run_count is damaged; delete the row"
                );
                merging.is_damaged |= slot == 0;
            }
        }
    }
    let is_mergeable = |merging: &Merging| !merging.is_damaged && merging.slots.iter().any(|(slot, _)| *slot != 0);
    keys.retain(|_, merging| is_mergeable(merging));
    if keys.is_empty() {
        return Ok(0);
    }
    let parts = Columns::of(keys.iter().flat_map(|(key, merging)| merging.slots.iter().map(|_| *key)));
    let whole = Columns::of(keys.keys().copied());
    let numbers: Vec<i64> = keys.values().map(|merging| limit_number(merging.slots.len())).collect();
    let merged: Vec<Vec<u8>> = keys.values().map(|merging| count::encode(&merging.counts)).collect();
    let (slots, sums): (Vec<i32>, Vec<String>) = keys.into_values().flat_map(|merging| merging.slots).unzip();
    let parameters: [&(dyn ToSql + Sync); 11] = [
        &parts.tenants,
        &parts.facets,
        &parts.hours,
        &slots,
        &sums,
        &merges,
        &whole.tenants,
        &whole.facets,
        &whole.hours,
        &numbers,
        &merged,
    ];
    Ok(query(session, MERGE, &parameters).await?.len())
}
