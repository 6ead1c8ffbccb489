//! Inbox of the database. Applications write requests to create and cancel schedules into the inbox inside their own
//! transactions, and the leader of the cluster applies these requests.
//!
//! The leader reads committed entries of the inbox (`reveille.schedule`, `reveille.cancel`) and passes them to the
//! ordinary operations that create and cancel schedules, the oldest entry first. The leader deletes an entry only after
//! the effect is durable. Members may apply an entry twice if two members consider themselves leaders, or if the leader
//! dies before it deletes the entry. If the entry requests a schedule, only the first create has an effect, because the
//! entry contains the incarnation of the schedule.

use std::sync::Arc;
use std::time::Duration;

use domain::limits::Limits;
use domain::{ScheduleId, Tenant};
use runtime::Runtime;
use scheduler::{Create, CreateRejection, Scheduler};
use store::{Store, StoreError};
use store_postgres::{InboxEntry, PostgresStore};
use tokio_util::sync::CancellationToken;

/// Time between two reads of the inbox. After the commit of the application's transaction, an entry may wait this long
/// until the leader reads it.
const PERIOD: Duration = Duration::from_millis(200);
/// Maximum number of entries in one read.
const ENTRIES_MAX: usize = 500;
/// Time that the leader waits after a failed step, before it repeats the step.
const RETRY_WAIT: Duration = Duration::from_secs(1);

pub(crate) async fn keep_empty(
    runtime: Runtime,
    store: Arc<PostgresStore>,
    scheduler: Scheduler,
    limits: Limits,
    stop: CancellationToken,
) {
    // A transaction may commit long after the due instant of the schedule that it requests. The schedule then fires
    // immediately.
    let mover =
        Mover { limits: Limits { past_max: Duration::MAX, ..limits }, runtime: runtime.clone(), store, scheduler };
    let moving = async {
        loop {
            let wait = if mover.scheduler.leads() { mover.step().await } else { PERIOD };
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

/// Request that a valid entry of the inbox contains.
enum Request {
    Create(Box<Create>),
    Cancel(Arc<Tenant>, ScheduleId),
}

impl Mover {
    /// Applies and deletes at most [`ENTRIES_MAX`] entries of the inbox. Returns the time that the leader waits before
    /// the next step.
    async fn step(&self) -> Duration {
        match self.move_some().await {
            Ok(moved) if moved == ENTRIES_MAX => Duration::ZERO,
            Ok(_) => PERIOD,
            Err(error) => {
                tracing::warn!(%error, "cannot process the inbox; retrying");
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
            match self.request(&entry, &tenants) {
                Err(reason) => {
                    let InboxEntry { number, tenant, id, .. } = entry;
                    tracing::error!(tenant, id, reason, "dropped an invalid inbox entry");
                    done.push(number);
                }
                Ok(Request::Create(create)) => {
                    // One call creates several schedules with different ids. Requests with the same id belong to
                    // separate calls, because the scheduler must apply them in order.
                    if creates.iter().any(|(_, other)| other.id == create.id) {
                        self.create(std::mem::take(&mut creates), &mut done).await?;
                    }
                    creates.push((entry.number, *create));
                }
                Ok(Request::Cancel(tenant, id)) => {
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

    fn request(&self, entry: &InboxEntry, tenants: &[Arc<Tenant>]) -> Result<Request, String> {
        let tenant = tenants.iter().find(|tenant| tenant.name == entry.tenant);
        let tenant = tenant.ok_or("unknown tenant")?.clone();
        let id = ScheduleId::new(&entry.id).map_err(|error| error.to_string())?;
        let Some(spec) = &entry.spec else { return Ok(Request::Cancel(tenant, id)) };
        let spec = server::read_spec(spec, &self.limits, &tenant.egress, self.runtime.now())?;
        Ok(Request::Create(Box::new(Create { tenant, id: Some(id), incarnation: Some(entry.incarnation), spec })))
    }

    async fn create(&self, creates: Vec<(i64, Create)>, done: &mut Vec<i64>) -> Result<(), StoreError> {
        if creates.is_empty() {
            return Ok(());
        }
        let (numbers, requests): (Vec<i64>, Vec<Create>) = creates.into_iter().unzip();
        let names: Vec<_> = requests
            .iter()
            .map(|request| {
                (
                    request.tenant.id,
                    request.id.clone().expect("every inbox entry has the id of its schedule"),
                    request.incarnation,
                )
            })
            .collect();
        let results = self.scheduler.create(requests).await?;
        for ((number, result), (tenant, id, incarnation)) in numbers.into_iter().zip(results).zip(names) {
            match result {
                Ok(_) => done.push(number),
                // An earlier step may already have applied this entry.
                Err(CreateRejection::Exists) => {
                    let holder = self.scheduler.get(tenant, id.clone()).await?;
                    if holder.is_none_or(|holder| Some(holder.incarnation) != incarnation) {
                        tracing::error!(
                            id = id.as_str(),
                            "dropped an inbox entry: a schedule with this id already exists"
                        );
                    }
                    done.push(number);
                }
                Err(CreateRejection::NeverFires) => {
                    tracing::error!(id = id.as_str(), "dropped an inbox entry: its schedule never fires");
                    done.push(number);
                }
                // This entry and all later entries remain in the inbox. The leader tries to apply them again in its
                // next step.
                Err(CreateRejection::Unreachable) => {
                    self.store.inbox_done(std::mem::take(done)).await?;
                    return Err(StoreError::Unavailable("cannot reach the owner of a schedule's shard".to_owned()));
                }
            }
        }
        Ok(())
    }
}
