//! What the HTTP layer, and any other front, asks of the scheduler; and what its peers do.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use domain::id::SHARDS;
use domain::occurrence::Run;
use domain::{Incarnation, Occurrence, Schedule, ScheduleId, Seen, ShardId, TenantId};
use membership::MemberId;
use prometheus_client::registry::Registry;
use runtime::{Runtime, TaskSet};
use store::listing::{self, Listing};
use store::{Health, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::changes::Changes;
use crate::cluster::assignment::{Cluster, Peering};
use crate::cluster::client::PeerClient;
use crate::cluster::event_handler::handle_events;
use crate::cluster::forwarding::Forwarding;
use crate::cluster::lease::Lease;
use crate::cluster::ownership::take;
use crate::cluster::peers::InvalidRequest;
use crate::cluster::serving::Serving;
use crate::deliver::Deliver;
use crate::firing::messages::Gained;
use crate::firing::supervisor::supervise;
use crate::options::Options;
use crate::requests::{CancelAnswer, Create, CreateRefusal, PutAnswer, RedriveAnswer, Timing};
use crate::shared::Shared;
use crate::tenants::Tenants;

/// The service, as a cheap handle. Every answer says only what is durable.
#[derive(Clone)]
pub struct Scheduler {
    shared: Arc<Shared>,
    changes: Arc<Changes>,
    forwarding: Arc<Forwarding>,
    /// `None` for a process that shares its store with no other.
    cluster: Option<Arc<Cluster>>,
    registry: Arc<Registry>,
    running: Arc<Running>,
}

/// What is stopped, in this order.
struct Running {
    assignment: Stoppable,
    owner: Stoppable,
    events: Stoppable,
}

struct Stoppable {
    stop: CancellationToken,
    tasks: Mutex<Option<TaskSet>>,
}

impl Stoppable {
    fn new(runtime: &Runtime, start: impl FnOnce(&TaskSet, CancellationToken)) -> Self {
        let stop = CancellationToken::new();
        let tasks = TaskSet::new(runtime);
        start(&tasks, stop.clone());
        Stoppable { stop, tasks: Mutex::new(Some(tasks)) }
    }

    async fn stop(&self) {
        self.stop.cancel();
        let tasks = self.tasks.lock().expect("no holder of this lock panics").take();
        if let Some(tasks) = tasks {
            let _ends = tasks.join().await;
        }
    }
}

impl Scheduler {
    /// Takes all shards and begins to fire: for a process that shares its store with no other. What is counted is told
    /// with what is in `registry` already.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn start(
        runtime: &Runtime,
        store: Arc<dyn Store>,
        deliver: Arc<dyn Deliver>,
        options: Options,
        registry: Registry,
    ) -> Result<Self, StoreError> {
        let (shared, registry) = Shared::new(runtime, store, deliver, options, Lease::forever(), registry).await?;
        let all: Vec<ShardId> = (0..SHARDS).map(ShardId).collect();
        let taken = take(&shared, &all).await?;
        shared.moved("gained", all.len());
        Ok(Scheduler::run(shared, registry, taken, None))
    }

    /// Joins the members of a cluster, and fires what is due in its share of the shards.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn join(
        runtime: &Runtime,
        store: Arc<dyn Store>,
        deliver: Arc<dyn Deliver>,
        options: Options,
        mut peering: Peering,
    ) -> Result<Self, StoreError> {
        let mut registry = std::mem::take(&mut peering.registry);
        let peers = PeerClient::new(peering.peers.clone(), &mut registry);
        let (shared, mut registry) = Shared::new(runtime, store, deliver, options, Lease::none(), registry).await?;
        shared.metrics.register_of_cluster(&mut registry);
        Ok(Scheduler::run(shared, registry, Gained::default(), Some((peers, peering))))
    }

    fn run(shared: Arc<Shared>, registry: Registry, taken: Gained, peering: Option<(PeerClient, Peering)>) -> Self {
        let runtime = shared.runtime.clone();
        let owner = Stoppable::new(&runtime, |tasks, stop| {
            tasks.spawn("owner", supervise(shared.clone(), taken, stop));
        });
        let mut cluster = None;
        let assignment = Stoppable::new(&runtime, |tasks, stop| {
            cluster = peering.map(|(peers, peering)| Arc::new(Cluster::join(&shared, tasks, peers, peering)));
            if let Some(cluster) = cluster.clone() {
                tasks.spawn("assignment", async move { cluster.keep(stop).await });
            }
        });
        let changes = Arc::new(Changes::new(shared.clone()));
        let forwarding = Arc::new(Forwarding::new(shared.clone(), changes.clone(), cluster.clone()));
        let events = Stoppable::new(&runtime, |tasks, stop| {
            tasks.spawn("events", handle_events(shared.clone(), forwarding.clone(), stop));
        });
        let running = Arc::new(Running { assignment, owner, events });
        Scheduler { shared, changes, forwarding, cluster, registry: Arc::new(registry), running }
    }

    /// Hands the shards over, stops starting attempts, waits for those in flight up to [`Options::drain`], and ends.
    pub async fn stop(&self) {
        let Running { assignment, owner, events } = &*self.running;
        assignment.stop().await;
        owner.stop().await;
        events.stop().await;
    }

    /// Whether this member does what one does for all; two may think so for some seconds, so it is to be harmless if
    /// two do.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.leads())
    }

    /// Handles a request of another member, as [`Peers::request`](crate::Peers::request) carries it, and returns the
    /// response.
    ///
    /// # Errors
    /// If this build does not know the operation or cannot read the request; then nothing was done.
    pub async fn handle(&self, operation: &str, request: &[u8]) -> Result<Bytes, InvalidRequest> {
        let Some(cluster) = &self.cluster else { return Err(InvalidRequest::UnknownOperation) };
        let (shared, changes) = (self.shared.clone(), self.changes.clone());
        Serving { shared, changes, cluster: cluster.clone() }.handle(operation, request).await
    }

    /// Whether this member's present session has this id.
    #[must_use]
    pub fn is_member(&self, id: MemberId) -> bool {
        let lease = self.cluster.as_ref().and_then(|cluster| cluster.membership.lease());
        lease.is_some_and(|lease| lease.member() == id)
    }

    /// The tenants of this service, with their keys, audit logs and counts.
    #[must_use]
    pub fn tenants(&self) -> Tenants {
        Tenants::new(self.shared.clone())
    }

    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.store.health()
    }

    /// The shards that are owned here now; none once the lease on them is over.
    #[must_use]
    pub fn owned(&self) -> Vec<ShardId> {
        match self.shared.lease.is_valid(self.shared.runtime.monotonic()) {
            true => self.shared.shards.owned(),
            false => Vec::new(),
        }
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
        self.forwarding.create(requests).await
    }

    /// Makes the schedule, or replaces the one of its id.
    ///
    /// # Errors
    /// If the store fails, or the owner cannot be reached; then it is not known whether it took effect.
    ///
    /// # Panics
    /// If the request names no id.
    pub async fn put(&self, request: Create) -> Result<Result<PutAnswer, CreateRefusal>, StoreError> {
        self.forwarding.put(request).await
    }

    /// As [`Scheduler::put`], but only if what has the id is, in the step that changes it, as it was `seen`; for `None`,
    /// only if no schedule has the id, not even a cancelled one. `None`, without effect, if it is not.
    ///
    /// # Errors
    /// If the store fails, or the owner cannot be reached; then it is not known whether it took effect.
    ///
    /// # Panics
    /// If the request names no id.
    pub async fn put_if(
        &self,
        request: Create,
        seen: Option<Seen>,
        timing: Timing,
    ) -> Result<Option<Result<PutAnswer, CreateRefusal>>, StoreError> {
        self.forwarding.put_if(request, seen, timing).await
    }

    /// What [`Scheduler::put_if`] would make, with `existing` under the id; `None` if it would have no occurrence.
    #[must_use]
    pub fn would_put(&self, request: Create, existing: Option<&Schedule>, timing: Timing) -> Option<Schedule> {
        self.changes.would_put(request, existing, timing)
    }

    /// Confirms the placement of a schedule that exists, so that it fires: its creator may have died before it did so.
    ///
    /// A full store accepts no write, so the schedule is then taken as it is. The embedded store creates a schedule in one
    /// step. With another engine, this does not repair a creator's death while the disk is full.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn confirm(&self, found: Incarnation) -> Result<(), StoreError> {
        self.changes.confirm(found).await
    }

    /// # Errors
    /// If the store fails.
    pub async fn get(&self, tenant: TenantId, id: ScheduleId) -> Result<Option<Arc<Schedule>>, StoreError> {
        Ok(self.shared.store.get(vec![(tenant, id)]).await?.pop().flatten())
    }

    /// A page of a tenant's schedules, as [`listing::page`].
    ///
    /// # Errors
    /// If the store fails.
    pub async fn list(&self, listing: &Listing<'_>) -> Result<listing::Page, StoreError> {
        listing::page(&*self.shared.store, listing).await
    }

    /// # Errors
    /// If the store fails; the schedule may then be cancelled or not, and if its mark is durable, will be.
    pub async fn cancel(&self, tenant: TenantId, id: ScheduleId) -> Result<CancelAnswer, StoreError> {
        self.forwarding.cancel(tenant, id).await
    }

    /// As [`Scheduler::cancel`], but only if it is still of the edition that was `found`; `None`, without effect, if not. Its
    /// owner decides that, so this one is never [`CancelAnswer::Pending`].
    ///
    /// # Errors
    /// If the store fails, or the owner cannot be reached; then it is not known whether it took effect.
    pub async fn cancel_if(&self, found: &Schedule) -> Result<Option<CancelAnswer>, StoreError> {
        self.forwarding.cancel_if(found).await
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
    /// If the store fails, or the owner cannot be reached; then it is not known whether it took effect.
    pub async fn redrive(&self, tenant: TenantId, of: Occurrence) -> Result<RedriveAnswer, StoreError> {
        self.forwarding.redrive(tenant, of).await
    }
}
