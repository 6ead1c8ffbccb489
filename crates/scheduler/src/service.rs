//! Service of the scheduler for the HTTP layer and other front ends. It also handles the requests of other members.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use domain::explain::Explanation;
use domain::id::SHARDS;
use domain::occurrence::Run;
use domain::{Incarnation, Occurrence, Precondition, Schedule, ScheduleId, ShardId, TenantId, Timestamp};
use membership::{MemberId, Outage};
use prometheus_client::registry::Registry;
use runtime::{Runtime, TaskSet};
use store::listing::{self, Listing};
use store::report::{self, Report, ReportRead};
use store::runs::{self, RunListing, RunPage};
use store::{Answer, Health, Inbox, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::auditor::audit;
use crate::changes::Changes;
use crate::cluster::assignment::{Cluster, Peering};
use crate::cluster::client::PeerClient;
use crate::cluster::event_handler::handle_events;
use crate::cluster::forwarding::Forwarding;
use crate::cluster::lease::Lease;
use crate::cluster::ownership::{Before, take};
use crate::cluster::peers::InvalidRequest;
use crate::cluster::serving::Serving;
use crate::deliver::Deliver;
use crate::explain::explain_at;
use crate::firing::messages::Gained;
use crate::firing::supervisor::supervise;
use crate::inbox::{Mover, ReadSpec};
use crate::options::Options;
use crate::requests::{
    AuditReport, AuditRequest, CancelResponse, Create, CreateRejection, PutResponse, RedriveResponse, Timing,
};
use crate::shared::Shared;
use crate::tenants::Tenants;

/// Largest number of runs in one read of the store.
const RUNS_PER_READ: usize = 100;

/// Cheaply cloneable handle to the scheduler. The results of its methods describe only durable state.
#[derive(Clone)]
pub struct Scheduler {
    shared: Arc<Shared>,
    changes: Arc<Changes>,
    forwarding: Arc<Forwarding>,
    /// Cluster of this member. `None` if no other process uses the store.
    cluster: Option<Arc<Cluster>>,
    registry: Arc<Registry>,
    running: Arc<Running>,
}

/// Parts of the scheduler, in the order in which they stop.
struct Running {
    auditor: Stoppable,
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
    /// Takes all shards and starts to fire their due rows. No other process may use the store. The scheduler adds its
    /// metrics to `registry`.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn start(
        runtime: &Runtime,
        store: Arc<dyn Store>,
        deliver: Arc<dyn Deliver>,
        options: Options,
        registry: Registry,
    ) -> Result<Self, StoreError> {
        let (shared, registry) = Shared::new(runtime, store, deliver, options, Lease::forever(), registry).await?;
        let all: Vec<ShardId> = (0..SHARDS).map(ShardId).collect();
        let taken = take(&shared, &all, &Before::default()).await?;
        shared.count_shard_changes("gained", all.len());
        Ok(Scheduler::run(shared, registry, taken, None))
    }

    /// Joins a cluster, and starts to fire the due rows of this member's share of the shards.
    ///
    /// # Errors
    /// Returns an error if the store fails.
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
                tasks.spawn("assignment", async move { cluster.run(stop).await });
            }
        });
        let auditing = (shared.clone(), cluster.clone());
        let auditor = Stoppable::new(&runtime, |tasks, stop| {
            tasks.spawn_thread("auditor", async move {
                let (shared, cluster) = auditing;
                let leads = || cluster.as_ref().is_none_or(|cluster| cluster.is_leader());
                stop.run_until_cancelled(audit(shared, leads)).await;
            });
        });
        let changes = Arc::new(Changes::new(shared.clone()));
        let forwarding = Arc::new(Forwarding::new(shared.clone(), changes.clone(), cluster.clone()));
        let events = Stoppable::new(&runtime, |tasks, stop| {
            tasks.spawn("events", handle_events(shared.clone(), forwarding.clone(), stop));
        });
        let running = Arc::new(Running { auditor, assignment, owner, events });
        Scheduler { shared, changes, forwarding, cluster, registry: Arc::new(registry), running }
    }

    /// Stops the scheduler. It hands its shards over, starts no further attempts, and waits for the attempts in flight
    /// for at most [`Options::drain`].
    pub async fn stop(&self) {
        let Running { auditor, assignment, owner, events } = &*self.running;
        auditor.stop().await;
        assignment.stop().await;
        owner.stop().await;
        events.stop().await;
    }

    /// Returns true if this member is the leader of the cluster, or if it has no cluster. For some seconds, two members
    /// may both be leader. The work of a leader must therefore be harmless if two members do it.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.is_leader())
    }

    /// Handles a request that another member sent with [`Peers::request`](crate::Peers::request), and returns the
    /// response.
    ///
    /// # Errors
    /// Returns an error if this build does not know the operation or cannot decode the request. The request then has no
    /// effect.
    pub async fn handle(&self, operation: &str, request: &[u8]) -> Result<Bytes, InvalidRequest> {
        let Some(cluster) = &self.cluster else { return Err(InvalidRequest::UnknownOperation) };
        let (shared, changes) = (self.shared.clone(), self.changes.clone());
        Serving { shared, changes, cluster: cluster.clone() }.handle(operation, request).await
    }

    /// Returns true if `id` is the id of this member's current session.
    #[must_use]
    pub fn is_member(&self, id: MemberId) -> bool {
        let lease = self.cluster.as_ref().and_then(|cluster| cluster.membership.lease());
        lease.is_some_and(|lease| lease.member() == id)
    }

    /// Returns the service for tenants, their keys, their audit logs and their numbers of active schedules.
    #[must_use]
    pub fn tenants(&self) -> Tenants {
        Tenants::new(self.shared.clone())
    }

    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.store.health()
    }

    /// Returns the outage of the coordination engine, or `None` if the engine responds or this process has no cluster.
    #[must_use]
    pub fn coordination_outage(&self) -> Option<Outage> {
        self.cluster.as_ref()?.membership.outage()
    }

    /// Returns true if this process may own shards now, because its lease is valid or it has no cluster.
    #[must_use]
    pub fn may_own(&self) -> bool {
        self.shared.lease.is_valid(self.shared.runtime.monotonic())
    }

    /// Returns true if a shard of this member has processed due rows up to a time that is ahead of this member's clock.
    /// New schedules of this shard wait until the member has corrected this.
    #[must_use]
    pub fn clock_is_behind(&self) -> bool {
        self.shared.metrics.clock_behind_seconds.get() > 0.0
    }

    /// Returns the shards that this member owns now. Returns an empty list if its lease has ended.
    #[must_use]
    pub fn owned(&self) -> Vec<ShardId> {
        if self.may_own() { self.shared.shards.owned() } else { Vec::new() }
    }

    /// Returns the metrics in the OpenMetrics text format.
    #[must_use]
    pub fn metrics_text(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }

    /// Carries out the requests in the inbox of the store until the scheduler stops. This member processes only the
    /// entries of its own shards. It judges each spec with `read_spec`.
    pub async fn move_inbox(&self, inbox: Arc<dyn Inbox>, read_spec: ReadSpec) {
        let mover = Mover::new(self.shared.clone(), self.changes.clone(), inbox, read_spec);
        self.running.assignment.stop.run_until_cancelled(mover.run()).await;
    }

    /// Creates schedules and returns one result per request, in order. The store commits the rows of all requests
    /// together.
    ///
    /// # Errors
    /// Returns an error if the store fails. Each schedule may then exist or not.
    pub async fn create(
        &self,
        requests: Vec<Create>,
    ) -> Result<Vec<Result<Arc<Schedule>, CreateRejection>>, StoreError> {
        self.forwarding.create(requests).await
    }

    /// Creates the schedule, or replaces the schedule with the same id.
    ///
    /// # Errors
    /// Returns an error if the store fails, or if the owner is unreachable. The put may or may not have taken effect.
    ///
    /// # Panics
    /// Panics if the request names no id.
    pub async fn put(&self, request: Create) -> Result<Result<PutResponse, CreateRejection>, StoreError> {
        self.forwarding.put(request).await
    }

    /// Puts a schedule, as [`Scheduler::put`] does, if the existing schedule still matches `seen` when the store
    /// changes it. If `seen` is `None`, no schedule may have the id, not even a cancelled schedule. If the precondition
    /// does not hold, returns `None` and has no effect.
    ///
    /// # Errors
    /// Returns an error if the store fails, or if the owner is unreachable. The put may or may not have taken effect.
    ///
    /// # Panics
    /// Panics if the request names no id.
    pub async fn put_if(
        &self,
        request: Create,
        seen: Option<Precondition>,
        timing: Timing,
    ) -> Result<Option<Result<PutResponse, CreateRejection>>, StoreError> {
        self.forwarding.put_if(request, seen, timing).await
    }

    /// Returns the schedule that [`Scheduler::put_if`] would create, or write in place of `existing`. Returns `None` if
    /// that schedule would have no occurrence.
    #[must_use]
    pub fn would_put(&self, request: Create, existing: Option<&Schedule>, timing: Timing) -> Option<Schedule> {
        self.changes.would_put(request, existing, timing)
    }

    /// Confirms the placement of an existing schedule's due row, so that the schedule fires. The creator may have
    /// stopped before it confirmed the placement.
    ///
    /// If the store is full, this function does nothing, because a full store accepts no write. While the store is
    /// full, a schedule whose creator stopped before the confirmation possibly does not fire. The embedded store needs
    /// no confirmation, because it creates a schedule in one step.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn confirm(&self, found: Incarnation) -> Result<(), StoreError> {
        self.changes.confirm(found).await
    }

    /// Returns the schedule with this id.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn get(&self, tenant: TenantId, id: ScheduleId) -> Result<Option<Arc<Schedule>>, StoreError> {
        Ok(self.shared.store.get(vec![(tenant, id)]).await?.pop().flatten())
    }

    /// Returns a page of a tenant's schedules, as [`listing::page`] does.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn list(&self, listing: &Listing<'_>) -> Result<listing::Page, StoreError> {
        listing::page(&*self.shared.store, listing, || self.shared.turns.take(listing.tenant)).await
    }

    /// Cancels the schedule with this id. `key` is the id of the API key that requested the cancellation.
    ///
    /// # Errors
    /// Returns an error if the store fails. The schedule may or may not be cancelled. If its cancellation record is
    /// durable, the owner will cancel the schedule.
    pub async fn cancel(
        &self,
        tenant: TenantId,
        id: ScheduleId,
        key: Option<String>,
    ) -> Result<CancelResponse, StoreError> {
        self.forwarding.cancel(tenant, id, key).await
    }

    /// Cancels a schedule, as [`Scheduler::cancel`] does, if it still has the incarnation and revision of `found`. If
    /// the schedule has another version, returns `None` and has no effect. The owner compares the versions, so the
    /// result is never [`CancelResponse::Pending`].
    ///
    /// # Errors
    /// Returns an error if the store fails, or if the owner is unreachable. The cancellation may or may not have taken
    /// effect.
    pub async fn cancel_if(&self, found: &Schedule, key: Option<String>) -> Result<Option<CancelResponse>, StoreError> {
        self.forwarding.cancel_if(found, key).await
    }

    /// Returns at most `limit` runs of a schedule in the order of their occurrences, from the first run after `after`.
    /// Returns `None` if the schedule does not exist.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn runs(
        &self,
        tenant: TenantId,
        id: ScheduleId,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Option<Vec<Run>>, StoreError> {
        match self.get(tenant, id).await? {
            None => Ok(None),
            Some(schedule) => {
                let read = |after, limit| self.shared.store.runs(schedule.incarnation, after, limit);
                self.read_in_parts(tenant, after, limit, read).await.map(Some)
            }
        }
    }

    /// Reads up to `limit` runs in parts of [`RUNS_PER_READ`] runs, so that other tenants get turns between the parts.
    async fn read_in_parts<'a>(
        &'a self,
        tenant: TenantId,
        mut after: Option<Occurrence>,
        limit: usize,
        read: impl Fn(Option<Occurrence>, usize) -> Answer<'a, Vec<Run>>,
    ) -> Result<Vec<Run>, StoreError> {
        let mut runs = Vec::new();
        while runs.len() < limit {
            let part_len = RUNS_PER_READ.min(limit - runs.len());
            let turn = self.shared.turns.take(tenant).await;
            let part = read(after, part_len).await?;
            drop(turn);
            let is_last = part.len() < part_len;
            after = part.last().map(|run| run.occurrence);
            runs.extend(part);
            if is_last {
                break;
            }
        }
        Ok(runs)
    }

    /// Returns the recorded run of an occurrence, and the id of its schedule. Returns `None` if the schedule is not a
    /// schedule of the tenant, or if the occurrence has no record yet.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn find_run(&self, tenant: TenantId, of: Occurrence) -> Result<Option<(Run, ScheduleId)>, StoreError> {
        let schedule = self.shared.store.load(vec![of.incarnation]).await?.pop().flatten();
        let Some(schedule) = schedule.filter(|schedule| schedule.tenant == tenant) else { return Ok(None) };
        let run = self.shared.store.find_runs(vec![of]).await?.pop().flatten();
        Ok(run.map(|run| (run, schedule.id.clone())))
    }

    /// Returns at most `limit` dead letters of the tenant in the order of their occurrences, from the first dead letter
    /// after `after`.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn dead_letters(
        &self,
        tenant: TenantId,
        after: Option<Occurrence>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        let read = |after, limit| self.shared.store.dead_letters(tenant, after, limit);
        self.read_in_parts(tenant, after, limit, read).await
    }

    /// Returns a page of a tenant's runs by time, as [`runs::page`] does.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn list_runs(&self, listing: &RunListing<'_>) -> Result<RunPage, StoreError> {
        let clock = || self.shared.runtime.monotonic();
        runs::page(&*self.shared.store, listing, clock, || self.shared.turns.take(listing.tenant)).await
    }

    /// Returns a report about a tenant's final runs, as [`report::report`] does.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn report(&self, read: &ReportRead) -> Result<Report, StoreError> {
        report::report(&*self.shared.store, read, || self.shared.turns.take(read.tenant)).await
    }

    /// Explains why a schedule did, did not or will not fire at the instant `at`. Returns `None` if no schedule has the
    /// id.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn explain(
        &self,
        tenant: TenantId,
        id: ScheduleId,
        at: Timestamp,
    ) -> Result<Option<Explanation>, StoreError> {
        let has_owner = |shard: ShardId| {
            let has_claimant = |cluster: &Arc<Cluster>| cluster.other_claimant(shard).is_some();
            self.shared.owns(shard) || self.cluster.as_ref().is_some_and(has_claimant)
        };
        explain_at(&self.shared, &self.forwarding, has_owner, tenant, id, at).await
    }

    /// Returns the result of the leader's audits, for one tenant or for all tenants.
    ///
    /// # Errors
    /// Returns an error if no member is the leader, or if the leader is unreachable.
    pub async fn audit(&self, tenant: Option<TenantId>) -> Result<AuditReport, StoreError> {
        match &self.cluster {
            Some(cluster) if !cluster.is_leader() => cluster.audit_of_leader(AuditRequest { tenant }).await,
            _ => Ok(self.shared.audits.report(tenant)),
        }
    }

    /// Returns the ids of the schedules with these incarnations. The id is `None` if the schedule does not exist.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn ids(&self, incarnations: Vec<Incarnation>) -> Result<Vec<Option<ScheduleId>>, StoreError> {
        let schedules = self.shared.store.load(incarnations).await?;
        Ok(schedules.into_iter().map(|schedule| schedule.map(|schedule| schedule.id.clone())).collect())
    }

    /// Starts another run of a dead letter, as a new occurrence that is due at once.
    ///
    /// # Errors
    /// Returns an error if the store fails, or if the owner is unreachable. The redrive may or may not have taken
    /// effect.
    pub async fn redrive(&self, tenant: TenantId, of: Occurrence) -> Result<RedriveResponse, StoreError> {
        self.forwarding.redrive(tenant, of).await
    }
}
