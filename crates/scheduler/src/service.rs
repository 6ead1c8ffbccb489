//! What the HTTP layer, and any other front, asks of the scheduler.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    DueKey, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule, ScheduleId, Spec, Status, TenantId,
    Timestamp, decide,
};
use prometheus_client::registry::Registry;
use runtime::{Runtime, TaskSet};
use store::{
    ApiKey, Arrival, Change, Health, Insert, Inserted, Mark, OwnerWrite, Store, StoreError, Tenant, WriteRefusal,
    Written,
};
use tokio::sync::{MutexGuard, Notify};
use tokio_util::sync::CancellationToken;

use crate::Options;
use crate::creator::{settle, unsettled};
use crate::deliver::Deliver;
use crate::in_flight::InFlight;
use crate::metrics::Metrics;
use crate::owner::Event;
use crate::supervisor::{Shared, supervise, take};

/// Two requests for one chosen id meet at one of these locks.
const NAME_LOCKS: usize = 1_024;

/// A request for a new schedule; its spec has been checked.
#[derive(Clone, Debug)]
pub struct Create {
    pub tenant: Arc<Tenant>,
    /// `None`: an id is made.
    pub id: Option<ScheduleId>,
    pub spec: Spec,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CreateRefusal {
    #[error("a schedule of this id exists")]
    Exists,
    #[error("the schedule has no occurrence after the present instant")]
    NeverFires,
}

#[derive(Clone, PartialEq, Debug)]
pub struct PutAnswer {
    pub schedule: Arc<Schedule>,
    /// There was no live schedule of this id.
    pub created: bool,
    /// An attempt of what was replaced is in flight; no other of it will start.
    pub too_late: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelAnswer {
    NotFound,
    /// It will never fire (again).
    Cancelled,
    /// An attempt is in flight; no other will start.
    TooLate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedriveAnswer {
    /// No such run of this tenant.
    NotFound,
    /// It is not a dead letter, or it was redriven before.
    NotDead,
    Redriven(Occurrence),
}

/// The service, as a cheap handle. Every answer says only what is durable.
#[derive(Clone)]
pub struct Scheduler {
    shared: Arc<Shared>,
    keys: Arc<BTreeMap<String, (Arc<Tenant>, ApiKey)>>,
    names: Arc<[tokio::sync::Mutex<()>]>,
    registry: Arc<Registry>,
    stop: CancellationToken,
    tasks: Arc<Mutex<Option<TaskSet>>>,
}

impl Scheduler {
    /// Takes the shards and begins to fire. The store's tenants are read once, here.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn start(
        runtime: &Runtime,
        store: Arc<dyn Store>,
        deliver: Arc<dyn Deliver>,
        options: Options,
    ) -> Result<Self, StoreError> {
        let tenants: Vec<Arc<Tenant>> = store.tenants().await?.into_iter().map(Arc::new).collect();
        let keys_of = |tenant: &Arc<Tenant>| {
            let tenant = tenant.clone();
            tenant.keys.clone().into_iter().map(move |key| (key.id.clone(), (tenant.clone(), key)))
        };
        let keys = tenants.iter().flat_map(keys_of).collect();
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry));
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            store,
            deliver,
            options,
            metrics,
            in_flight: Arc::new(InFlight::default()),
            tenants: tenants.into_iter().map(|tenant| (tenant.id, tenant)).collect(),
            nudge: Arc::new(Notify::new()),
            terms: RwLock::new(Vec::new()),
            events: Mutex::new(None),
        });
        let taken = take(&shared).await?;
        let stop = CancellationToken::new();
        let tasks = TaskSet::new(runtime);
        tasks.spawn("owner", supervise(shared.clone(), taken, stop.clone()));
        Ok(Scheduler {
            shared,
            keys: Arc::new(keys),
            names: (0..NAME_LOCKS).map(|_| tokio::sync::Mutex::new(())).collect(),
            registry: Arc::new(registry),
            stop,
            tasks: Arc::new(Mutex::new(Some(tasks))),
        })
    }

    /// Stops starting attempts, waits for those in flight up to [`Options::drain`], and ends.
    pub async fn stop(&self) {
        self.stop.cancel();
        let tasks = self.tasks.lock().expect("no holder of this lock panics").take();
        if let Some(tasks) = tasks {
            let _ends = tasks.join().await;
        }
    }

    /// The tenant and key that `key_id` names.
    #[must_use]
    pub fn key(&self, key_id: &str) -> Option<(Arc<Tenant>, ApiKey)> {
        self.keys.get(key_id).cloned()
    }

    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.store.health()
    }

    /// Prometheus text exposition.
    #[must_use]
    pub fn metrics_text(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("a string takes everything");
        text
    }

    /// One answer per request, in order; several requests of one call share its commits.
    ///
    /// # Errors
    /// If the store fails; then it is not known which of them exist.
    pub async fn create(&self, requests: Vec<Create>) -> Result<Vec<Result<Arc<Schedule>, CreateRefusal>>, StoreError> {
        let now = self.shared.runtime.now();
        let _names = self.lock_names(&requests).await;
        let mut answers = Vec::with_capacity(requests.len());
        let mut inserts = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(match self.plan(request, now) {
                Some(insert) => {
                    let schedule = insert.schedule.clone();
                    inserts.push(insert);
                    Ok(schedule)
                }
                None => Err(CreateRefusal::NeverFires),
            });
        }
        let rows: Vec<(PollerId, DueKey)> = inserts.iter().map(|insert| (insert.schedule.poller, insert.due)).collect();
        let mut inserted = self.shared.store.insert(inserts).await?.into_iter();
        let mut placed = Vec::with_capacity(rows.len());
        let mut placed_rows = Vec::with_capacity(rows.len());
        let mut existing = Vec::new();
        let mut rows = rows.into_iter();
        for answer in &mut answers {
            if answer.is_err() {
                continue;
            }
            let row = rows.next().expect("a row for each insert");
            match inserted.next().expect("the store answers every insert") {
                Inserted::Placed(place) => {
                    placed.push(place);
                    placed_rows.push(row);
                }
                Inserted::Exists(incarnation) => {
                    existing.push(incarnation);
                    *answer = Err(CreateRefusal::Exists);
                }
            }
        }
        self.shared.metrics.created.inc_by(placed.len() as u64);
        if placed.iter().any(|place| self.is_near(place.position, now)) {
            self.shared.nudge.notify_one();
        }
        settle(&*self.shared.store, unsettled(placed_rows, &placed)).await?;
        self.repair(existing).await?;
        Ok(answers)
    }

    /// Makes the schedule, or replaces the one of its id.
    ///
    /// # Errors
    /// If the store fails; then it is not known whether it took effect.
    ///
    /// # Panics
    /// If the request names no id.
    pub async fn put(&self, request: Create) -> Result<Result<PutAnswer, CreateRefusal>, StoreError> {
        let now = self.shared.runtime.now();
        let id = request.id.clone().expect("a schedule is put under a name");
        let tenant = request.tenant.id;
        let _names = self.lock_names(std::slice::from_ref(&request)).await;
        let Some(mut insert) = self.plan(request, now) else { return Ok(Err(CreateRefusal::NeverFires)) };
        let existing = self.shared.store.get(vec![(tenant, id)]).await?.pop().flatten();
        if let Some(existing) = existing.filter(|existing| existing.status != Status::Cancelled) {
            Arc::make_mut(&mut insert.schedule).poller = existing.poller;
        }
        let poller = insert.schedule.poller;
        insert.due.position = self.open_position(poller, insert.due.position).await?;
        let target = insert.due.target;
        match self.write(poller, Change::Put(insert)).await? {
            Ok(Written::Put { schedule, position, before }) => {
                let nominal = schedule.next.expect("a schedule that was put has an occurrence");
                let occurrence =
                    Occurrence { incarnation: schedule.incarnation, nominal, revision: schedule.revision, replay: 0 };
                let key = DueKey { position, occurrence, attempt: 1, target };
                self.placed(schedule.poller, key, now).await?;
                self.shared.metrics.created.inc();
                let created = before.is_none_or(|before| before == Status::Cancelled);
                let too_late = !created && self.shared.in_flight.contains(schedule.incarnation);
                Ok(Ok(PutAnswer { schedule, created, too_late }))
            }
            Ok(Written::Done) => panic!("a put is answered with what it made"),
            Err(refusal) => Err(refused(refusal)),
        }
    }

    /// # Errors
    /// If the store fails.
    pub async fn get(&self, tenant: TenantId, id: ScheduleId) -> Result<Option<Arc<Schedule>>, StoreError> {
        Ok(self.shared.store.get(vec![(tenant, id)]).await?.pop().flatten())
    }

    /// # Errors
    /// If the store fails; the schedule may then be cancelled or not, and if its mark is durable, will be.
    pub async fn cancel(&self, tenant: TenantId, id: ScheduleId) -> Result<CancelAnswer, StoreError> {
        let marked = self.shared.store.mark(vec![Mark { tenant, id }]).await?.pop();
        let marked = marked.expect("the store answers every mark");
        let Some(schedule) = marked.before else { return Ok(CancelAnswer::NotFound) };
        if !marked.applied {
            match self.write(schedule.poller, Change::Cancel(schedule.incarnation)).await? {
                Ok(_) | Err(WriteRefusal::NotFound) => {}
                Err(refusal) => return Err(refused(refusal)),
            }
        }
        self.shared.metrics.cancelled.inc();
        // The cancellation is durable: what is not in flight now will find it.
        Ok(match self.shared.in_flight.contains(schedule.incarnation) {
            true => CancelAnswer::TooLate,
            false => CancelAnswer::Cancelled,
        })
    }

    /// A schedule's runs in order, from the first after `after`; `None` if there is no such schedule.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn runs(
        &self,
        tenant: TenantId,
        id: ScheduleId,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Option<Vec<Run>>, StoreError> {
        match self.get(tenant, id).await? {
            None => Ok(None),
            Some(schedule) => self.shared.store.runs(schedule.incarnation, after, limit).await.map(Some),
        }
    }

    /// # Errors
    /// If the store fails.
    pub async fn dead_letters(
        &self,
        tenant: TenantId,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        self.shared.store.dead_letters(tenant, after, limit).await
    }

    /// The ids of the schedules that these incarnations are of; `None` for one that is not there.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn ids(&self, incarnations: Vec<Incarnation>) -> Result<Vec<Option<ScheduleId>>, StoreError> {
        let schedules = self.shared.store.load(incarnations).await?;
        Ok(schedules.into_iter().map(|schedule| schedule.map(|schedule| schedule.id.clone())).collect())
    }

    /// Runs a dead letter again, at once, as a new occurrence.
    ///
    /// # Errors
    /// If the store fails; then it is not known whether it took effect.
    pub async fn redrive(&self, tenant: TenantId, of: Occurrence) -> Result<RedriveAnswer, StoreError> {
        let now = self.shared.runtime.now();
        let schedule = self.shared.store.load(vec![of.incarnation]).await?.pop().flatten();
        let Some(schedule) = schedule.filter(|schedule| schedule.tenant == tenant) else {
            return Ok(RedriveAnswer::NotFound);
        };
        match self.shared.store.find_runs(vec![of]).await?.pop().flatten() {
            None => return Ok(RedriveAnswer::NotFound),
            Some(run) if run.state != RunState::Failed => return Ok(RedriveAnswer::NotDead),
            Some(_) => {}
        }
        let Some(mut due) = decide::redrive(of, schedule.spec.target.key(), now) else {
            return Ok(RedriveAnswer::NotDead);
        };
        due.position = self.open_position(schedule.poller, due.position).await?;
        match self.write(schedule.poller, Change::Redrive { of, due }).await? {
            Ok(_) => {
                self.placed(schedule.poller, due, now).await?;
                Ok(RedriveAnswer::Redriven(due.occurrence))
            }
            Err(WriteRefusal::NotFound) => Ok(RedriveAnswer::NotDead),
            Err(refusal) => Err(refused(refusal)),
        }
    }

    /// A schedule and its first row, or `None` if it has no occurrence.
    fn plan(&self, request: Create, now: Timestamp) -> Option<Insert> {
        let Create { tenant, id, spec } = request;
        let incarnation = Incarnation::new(now, self.shared.runtime.random_u128());
        let id = id.unwrap_or_else(|| ScheduleId::from_incarnation(incarnation));
        let generation = u16::try_from(tenant.generations.len() - 1).expect("a tenant has few generations");
        let pollers = *tenant.generations.last().expect("a tenant has a generation of pollers");
        let mut schedule = Schedule {
            tenant: tenant.id,
            incarnation,
            poller: PollerId::of(tenant.id, generation, pollers, &id),
            id,
            revision: Revision::default(),
            status: Status::Active,
            created_at: now,
            updated_at: now,
            next: None,
            spec,
        };
        let due = decide::first(&schedule, now)?;
        schedule.next = Some(due.occurrence.nominal);
        Some(Insert { schedule: Arc::new(schedule), due })
    }

    async fn write(&self, poller: PollerId, change: Change) -> Result<Result<Written, WriteRefusal>, StoreError> {
        let write = OwnerWrite { term: self.shared.term(poller), poller, change };
        let answer = self.shared.store.write(vec![write]).await?.pop();
        Ok(answer.expect("the store answers every write"))
    }

    /// `position`, or the first instant that the poller has not closed: an owner writes no row where it is done, and the
    /// clock may have gone back since.
    async fn open_position(&self, poller: PollerId, position: Timestamp) -> Result<Timestamp, StoreError> {
        let closed = self.shared.store.closed(vec![poller]).await?;
        Ok(closed.into_iter().fold(position, |position, closed| position.max(closed + Duration::from_millis(1))))
    }

    /// Tells the owner of a row that a user's change wrote, and sees that it lies where it will be read.
    async fn placed(&self, poller: PollerId, key: DueKey, now: Timestamp) -> Result<(), StoreError> {
        let events = self.shared.events.lock().expect("no holder of this lock panics").clone();
        if let Some(events) = events {
            // An owner that has just ended is followed by one that reads the row itself.
            let _owner_is_gone = events.send(Event::Arrived(Arrival { poller, key })).await;
        }
        settle(&*self.shared.store, vec![(poller, key)]).await?;
        if self.is_near(key.position, now) {
            self.shared.nudge.notify_one();
        }
        Ok(())
    }

    /// Before it is said that these schedules exist: a creator that died half-way may have left a row unread.
    async fn repair(&self, incarnations: Vec<Incarnation>) -> Result<(), StoreError> {
        if incarnations.is_empty() {
            return Ok(());
        }
        let schedules = self.shared.store.load(incarnations).await?;
        let rows: Vec<(PollerId, DueKey)> = schedules
            .into_iter()
            .flatten()
            .filter_map(|schedule| {
                let Schedule { incarnation, revision, next, .. } = *schedule;
                let occurrence = Occurrence { incarnation, nominal: next?, revision, replay: 0 };
                let key = DueKey { position: next?, occurrence, attempt: 1, target: schedule.spec.target.key() };
                Some((schedule.poller, key))
            })
            .collect();
        let placed = self.shared.store.place(rows.clone()).await?;
        settle(&*self.shared.store, unsettled(rows, &placed)).await
    }

    /// Whether the owner should look at its arrivals now rather than at its next period.
    fn is_near(&self, position: Timestamp, now: Timestamp) -> bool {
        position <= now + self.shared.options.window_ahead + 2 * self.shared.options.period
    }

    /// Holds the chosen ids of `requests` against others, in an order that cannot deadlock.
    async fn lock_names(&self, requests: &[Create]) -> Vec<MutexGuard<'_, ()>> {
        let lock_of = |request: &Create| {
            let id = request.id.as_ref()?;
            let hash = domain::id::fnv1a(id.as_str().as_bytes()) ^ request.tenant.id.0;
            Some(hash as usize % NAME_LOCKS)
        };
        let mut locks: Vec<usize> = requests.iter().filter_map(lock_of).collect();
        locks.sort_unstable();
        locks.dedup();
        let mut guards = Vec::with_capacity(locks.len());
        for lock in locks {
            guards.push(self.names[lock].lock().await);
        }
        guards
    }
}

fn refused(refusal: WriteRefusal) -> StoreError {
    // Another owner has the shard, or is about to: the same request goes through once that is settled.
    StoreError::Unavailable(refusal.to_string())
}
