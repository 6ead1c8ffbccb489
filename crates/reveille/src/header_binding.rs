//! Migration that binds the encrypted headers of a store to the origins of their targets.
//!
//! Earlier builds encrypted headers without the origin. The migration decrypts these headers and encrypts them again
//! with the present origin, so it trusts the targets that it finds. A second migration would be an attack: a writer to
//! the store could replace a header by an older, unbound ciphertext of the same header, choose another target, and wait
//! for the migration. The tenant of the operators therefore contains a record of the migration's progress, which is
//! encrypted with the store's key. A writer to the store can remove this record, but cannot create it.
//!
//! Invariants: the migration of a store starts only once. If the record is missing and the store has a bound header, the
//! store was changed without Reveille, and this module changes nothing. The server starts only after the migration is
//! complete, and never decrypts an unbound header.
//!
//! docs/decisions/0211-bind-encrypted-headers-to-the-targets-origin.md gives the reasons for the design.

use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use domain::id::SHARDS;
use domain::{Audit, Schedule, ShardId, Tenant};
use runtime::Runtime;
use store::encryption::{Place, has_bound_header, has_unbound_header};
use store::{Change, Keyring, ListBy, ListRead, Order, OwnerWrite, Store};

use crate::store_key::Unlocked;

/// Maximum number of schedules in one read or write.
const PAGE: usize = 200;
/// Maximum number of attempts to write the record while other processes change the tenant of the operators.
const ATTEMPTS: usize = 10;

/// Progress of the migration. A store without a record has not started it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Started,
    Complete,
}

impl Progress {
    fn text(self) -> &'static str {
        match self {
            Progress::Started => "started",
            Progress::Complete => "complete",
        }
    }
}

/// Numbers of schedules that a migration changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bound {
    /// Schedules whose headers are now bound.
    pub(crate) schedules: usize,
    /// Schedules with a header that no key could decrypt. Their callbacks fail until a user sends the headers again.
    pub(crate) failed: usize,
}

/// Binds every header of the store, unless an earlier call has done so. No other process may use the store.
///
/// # Errors
/// Returns an error if the store fails, or if the store was changed without Reveille.
pub(crate) async fn migrate(runtime: &Runtime, unlocked: &Unlocked) -> anyhow::Result<Bound> {
    let (store, keyring): (&dyn Store, _) = (&*unlocked.store, &*unlocked.keyring);
    let tenants = store.tenants().await.context("cannot read the tenants")?;
    let mut bound = Bound::default();
    match progress(&tenants, keyring)? {
        Some(Progress::Complete) => return Ok(bound),
        Some(Progress::Started) => {}
        None if has_unbound(store, &tenants).await? => record(runtime, store, keyring, Progress::Started).await?,
        None => {
            record(runtime, store, keyring, Progress::Complete).await?;
            return Ok(bound);
        }
    }
    let terms = store.take((0..SHARDS).map(ShardId).collect()).await.context("cannot take ownership of the shards")?;
    let mut pages = Pages::new(store, &tenants);
    while let Some(schedules) = pages.next().await? {
        let mut writes = Vec::new();
        for mut schedule in schedules.into_iter().filter(|schedule| has_unbound_header(schedule)) {
            match keyring.bind_schedule(runtime, &mut schedule) {
                Ok(()) => bound.schedules += 1,
                Err(error) => {
                    let (tenant, schedule) = (schedule.tenant.0, schedule.id.as_str());
                    tracing::warn!(tenant, schedule, %error, "header not bound to its target; send the headers again");
                    bound.failed += 1;
                }
            }
            let (poller, term) = (schedule.poller, terms[usize::from(schedule.poller.shard().0)]);
            writes.push(OwnerWrite { term, poller, change: Change::Reencrypt(schedule) });
        }
        let written = store.write(writes).await.context("cannot write the headers")?;
        if let Some(rejected) = written.into_iter().find_map(Result::err) {
            bail!("the store rejected a header: {rejected}; stop the other processes that use the store, and repeat");
        }
    }
    record(runtime, store, keyring, Progress::Complete).await?;
    if bound != Bound::default() {
        let Bound { schedules, failed } = bound;
        tracing::info!(schedules, failed, "bound the encrypted headers to the origins of their targets");
    }
    Ok(bound)
}

/// Returns whether every header of the store is bound.
///
/// # Errors
/// Returns an error if the store fails, or if the record of the migration was changed without Reveille.
pub(crate) async fn is_complete(store: &dyn Store, keyring: &Keyring) -> anyhow::Result<bool> {
    let tenants = store.tenants().await.context("cannot read the tenants")?;
    Ok(progress(&tenants, keyring)? == Some(Progress::Complete))
}

/// Returns whether a copy of the store must bind the headers.
///
/// # Errors
/// Returns an error if the store fails, or if it was changed without Reveille.
pub(crate) async fn copy_binds(store: &dyn Store, tenants: &[Tenant], keyring: &Keyring) -> anyhow::Result<bool> {
    match progress(tenants, keyring)? {
        Some(Progress::Complete) => Ok(false),
        Some(Progress::Started) => Ok(true),
        None => has_unbound(store, tenants).await.map(|_| true),
    }
}

/// Returns the record that states that every header of a store is bound.
pub(crate) fn complete_record(runtime: &Runtime, keyring: &Keyring) -> domain::Secret {
    keyring.encrypt(runtime, Place::HeaderBinding, &Progress::Complete.text().into())
}

fn progress(tenants: &[Tenant], keyring: &Keyring) -> anyhow::Result<Option<Progress>> {
    let operators = tenants.iter().find(|tenant| tenant.id == Tenant::OPERATOR);
    let Some(record) = operators.and_then(|operators| operators.header_binding.as_ref()) else { return Ok(None) };
    let text = keyring.open(Place::HeaderBinding, record).context(
        "cannot read the record of the header migration; if the store was changed without Reveille, restore a backup",
    )?;
    let known = [Progress::Started, Progress::Complete].into_iter().find(|known| known.text().as_bytes() == text);
    Ok(Some(known.context("the record of the header migration is from a later build; use that build")?))
}

/// Returns whether a store without a record of the migration has an unbound header.
///
/// # Errors
/// Returns an error if the store fails. Also returns an error if the store has a bound header, because a build that binds
/// headers has then written a record.
async fn has_unbound(store: &dyn Store, tenants: &[Tenant]) -> anyhow::Result<bool> {
    let mut pages = Pages::new(store, tenants);
    let mut found = false;
    while let Some(schedules) = pages.next().await? {
        let bound = schedules.iter().find(|schedule| has_bound_header(schedule));
        ensure!(
            bound.is_none(),
            "the store has bound headers, for example of the schedule {}, but no record of the header migration: the \
             store was changed without Reveille; restore a backup",
            bound.map_or("", |schedule| schedule.id.as_str())
        );
        found |= schedules.iter().any(|schedule| has_unbound_header(schedule));
    }
    Ok(found)
}

async fn record(runtime: &Runtime, store: &dyn Store, keyring: &Keyring, progress: Progress) -> anyhow::Result<()> {
    for _ in 0..ATTEMPTS {
        let tenants = store.tenants().await.context("cannot read the tenants")?;
        let operators = tenants.into_iter().find(|tenant| tenant.id == Tenant::OPERATOR);
        let operators = operators.context("the store has no operator")?;
        let record = keyring.encrypt(runtime, Place::HeaderBinding, &progress.text().into());
        let changed = Tenant { header_binding: Some(record), version: operators.version + 1, ..operators };
        let entry = Audit::of(&changed, runtime.now(), "reveille", "header_binding.change", progress.text());
        if store.put_tenant(changed, entry).await.context("cannot record the header migration")?.is_ok() {
            return Ok(());
        }
    }
    bail!("cannot record the header migration, because other processes change the operator's tenant; start again")
}

/// Pages of all schedules that still have their ids. Other schedules are cancelled, so they never fire again.
struct Pages<'a> {
    store: &'a dyn Store,
    /// Reads of the tenants' next pages.
    reads: Vec<ListRead>,
}

impl<'a> Pages<'a> {
    fn new(store: &'a dyn Store, tenants: &[Tenant]) -> Self {
        let (by, order) = (ListBy::All, Order::Oldest);
        let first = |tenant: &Tenant| ListRead { tenant: tenant.id, by, order, after: None, limit: PAGE };
        Pages { store, reads: tenants.iter().map(first).collect() }
    }

    async fn next(&mut self) -> anyhow::Result<Option<Vec<Arc<Schedule>>>> {
        let Some(read) = self.reads.pop() else { return Ok(None) };
        let page = self.store.list(read).await.context("cannot list the schedules")?;
        self.reads.extend(page.next.map(|next| ListRead { after: Some(next), ..read }));
        let loaded = self.store.load(page.incarnations).await.context("cannot read the schedules")?;
        Ok(Some(loaded.into_iter().flatten().collect()))
    }
}

#[cfg(test)]
mod tests;
