//! Schedules that applications asked for inside their own transactions, moved to where all others are.
//!
//! The member that leads reads what has been committed to the inbox (`reveille.schedule`, `reveille.cancel`) and passes it
//! through the ordinary create and cancel, oldest first; only what is durable there is forgotten here. If two members
//! think that they lead, or one dies half-way, an entry is moved twice, which its incarnation makes harmless.

use std::sync::Arc;
use std::time::Duration;

use domain::limits::Limits;
use domain::{ScheduleId, Tenant};
use runtime::Runtime;
use scheduler::{Create, CreateRefusal, Scheduler};
use store::{Store, StoreError};
use store_postgres::{InboxEntry, PostgresStore};
use tokio_util::sync::CancellationToken;

/// How often the inbox is looked at: so much later than its commit may a schedule fire.
const PERIOD: Duration = Duration::from_millis(200);
/// Entries of one look.
const ENTRIES_MAX: usize = 500;
/// After a failure.
const RETRY_WAIT: Duration = Duration::from_secs(1);

pub(crate) async fn keep_empty(
    runtime: Runtime,
    store: Arc<PostgresStore>,
    scheduler: Scheduler,
    limits: Limits,
    stop: CancellationToken,
) {
    // A transaction may commit long after the instant that it asked for: then that fires at once.
    let mover =
        Mover { limits: Limits { past_max: Duration::MAX, ..limits }, runtime: runtime.clone(), store, scheduler };
    let moving = async {
        loop {
            let wait = if mover.scheduler.leads() { mover.turn().await } else { PERIOD };
            runtime.sleep(wait).await;
        }
    };
    stop.run_until_cancelled(moving).await;
}

struct Mover {
    runtime: Runtime,
    store: Arc<PostgresStore>,
    scheduler: Scheduler,
    limits: Limits,
}

/// What an entry asks for, once it was read.
enum Wish {
    Make(Box<Create>),
    Cancel(Arc<Tenant>, ScheduleId),
}

impl Mover {
    /// Moves what is there; how long to wait before the next look.
    async fn turn(&self) -> Duration {
        match self.move_some().await {
            Ok(moved) if moved == ENTRIES_MAX => Duration::ZERO,
            Ok(_) => PERIOD,
            Err(error) => {
                tracing::warn!(%error, "the inbox cannot be moved now; trying again");
                RETRY_WAIT
            }
        }
    }

    async fn move_some(&self) -> Result<usize, StoreError> {
        let entries = self.store.inbox(ENTRIES_MAX).await?;
        let count = entries.len();
        if count == 0 {
            return Ok(0);
        }
        let tenants = self.store.tenants().await?.into_iter();
        let tenants: Vec<Arc<Tenant>> = tenants.filter(|tenant| tenant.id != Tenant::OPERATOR).map(Arc::new).collect();
        let mut done = Vec::with_capacity(count);
        let mut creates: Vec<(i64, Create)> = Vec::new();
        for entry in entries {
            match self.wish(&entry, &tenants) {
                Err(reason) => {
                    let InboxEntry { number, tenant, id, .. } = entry;
                    tracing::error!(tenant, id, reason, "what a transaction asked for cannot be done, and is left out");
                    done.push(number);
                }
                Ok(Wish::Make(create)) => {
                    // One call makes several, but not two of one id, whose order counts.
                    if creates.iter().any(|(_, other)| other.id == create.id) {
                        self.create(std::mem::take(&mut creates), &mut done).await?;
                    }
                    creates.push((entry.number, *create));
                }
                Ok(Wish::Cancel(tenant, id)) => {
                    self.create(std::mem::take(&mut creates), &mut done).await?;
                    self.scheduler.cancel(tenant.id, id).await?;
                    done.push(entry.number);
                }
            }
        }
        self.create(creates, &mut done).await?;
        self.store.inbox_done(done).await?;
        Ok(count)
    }

    fn wish(&self, entry: &InboxEntry, tenants: &[Arc<Tenant>]) -> Result<Wish, String> {
        let tenant = tenants.iter().find(|tenant| tenant.name == entry.tenant);
        let tenant = tenant.ok_or("there is no such tenant")?.clone();
        let id = ScheduleId::new(&entry.id).map_err(|error| error.to_string())?;
        let Some(spec) = &entry.spec else { return Ok(Wish::Cancel(tenant, id)) };
        let spec = server::read_spec(spec, &self.limits, &tenant.egress, self.runtime.now())?;
        Ok(Wish::Make(Box::new(Create { tenant, id: Some(id), incarnation: Some(entry.incarnation), spec })))
    }

    async fn create(&self, creates: Vec<(i64, Create)>, done: &mut Vec<i64>) -> Result<(), StoreError> {
        if creates.is_empty() {
            return Ok(());
        }
        let (numbers, requests): (Vec<i64>, Vec<Create>) = creates.into_iter().unzip();
        let names: Vec<_> = requests
            .iter()
            .map(|request| (request.tenant.id, request.id.clone().expect("an entry has an id"), request.incarnation))
            .collect();
        let answers = self.scheduler.create(requests).await?;
        for ((number, answer), (tenant, id, incarnation)) in numbers.into_iter().zip(answers).zip(names) {
            match answer {
                Ok(_) => done.push(number),
                // Perhaps because this entry was moved before.
                Err(CreateRefusal::Exists) => {
                    let holder = self.scheduler.get(tenant, id.clone()).await?;
                    if holder.is_none_or(|holder| Some(holder.incarnation) != incarnation) {
                        tracing::error!(id = id.as_str(), "the id is taken: what a transaction asked for is left out");
                    }
                    done.push(number);
                }
                Err(CreateRefusal::NeverFires) => {
                    tracing::error!(id = id.as_str(), "what a transaction asked for never fires, and is left out");
                    done.push(number);
                }
                // It stays, and is moved again with all that comes after it.
                Err(CreateRefusal::Unreachable) => {
                    self.store.inbox_done(std::mem::take(done)).await?;
                    return Err(StoreError::Unavailable("the owner of an id cannot be reached".to_owned()));
                }
            }
        }
        Ok(())
    }
}
