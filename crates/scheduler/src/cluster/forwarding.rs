//! Forwarding of owner-only requests to the owner of the shard. Every member therefore accepts every request.
//!
//! If no other process uses the store, this process owns all shards and calls `changes` directly.
//!
//! docs/decisions/0008-forward-requests-in-the-scheduler.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{Author, Occurrence, Precondition, Schedule, ScheduleId, ShardId, Status, TenantId};
use futures_util::future::{join, join_all};
use membership::{Member, MemberId};
use store::{Cancellation, StoreError};

use crate::changes::{Changes, home_poller};
use crate::cluster::assignment::Cluster;
use crate::cluster::operations::{
    Cancel, CancelIf, CancelIfBy, CreateNamed, Named, Nudge, Operation, Put, PutBy, PutIf, PutIfBy, Redrive,
    encode_request,
};
use crate::cluster::ownership::receive_outcome;
use crate::cluster::peers::{PeerError, REQUEST_BYTES_MAX};
use crate::progress::progress;
use crate::requests::{
    AttemptOutcome, CancelResponse, Create, CreateRejection, OwnerError, Progress, PutResponse, RedriveResponse,
    Timing, Waiting,
};
use crate::shared::Shared;

/// Longest time for which a request waits until its shard has an owner that responds.
///
/// During a hand-over, a shard has no owner for some milliseconds. After a member dies, no other member can own its
/// shards until its lease ends. Requests do not wait that long.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_WAIT: Duration = Duration::from_millis(25);
/// Longest time for which this member tries to send the outcome of an attempt to the shard's next owner. If the next
/// owner does not receive the outcome, it repeats the attempt.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Forwarding {
    shared: Arc<Shared>,
    changes: Arc<Changes>,
    cluster: Option<Arc<Cluster>>,
    /// Members to which this member is sending a [`Nudge`].
    nudging: Arc<Mutex<BTreeSet<MemberId>>>,
}

type Created = Result<Arc<Schedule>, CreateRejection>;

impl Forwarding {
    pub(crate) fn new(shared: Arc<Shared>, changes: Arc<Changes>, cluster: Option<Arc<Cluster>>) -> Self {
        Forwarding { shared, changes, cluster, nudging: Arc::default() }
    }

    pub(crate) async fn create(&self, requests: Vec<Create>) -> Result<Vec<Created>, StoreError> {
        let Some(cluster) = &self.cluster else { return Ok(self.changes.create(requests).await?) };
        let mut unnamed = Vec::with_capacity(requests.len());
        let mut named: BTreeMap<ShardId, Vec<(usize, Create)>> = BTreeMap::new();
        for (at, request) in requests.into_iter().enumerate() {
            match request.id.as_ref().map(|id| home_poller(&request, id).shard()) {
                Some(shard) => named.entry(shard).or_default().push((at, request)),
                None => unnamed.push((at, request)),
            }
        }
        let (indexes, unnamed): (Vec<usize>, Vec<Create>) = unnamed.into_iter().unzip();
        let here = async { if unnamed.is_empty() { Ok(Vec::new()) } else { self.changes.create(unnamed).await } };
        let named = named.into_iter().map(|(shard, group)| self.create_at_owner(cluster, shard, group));
        let (created, named) = join(here, join_all(named)).await;
        let mut responses: Vec<(usize, Created)> = indexes.into_iter().zip(created?).collect();
        responses.extend(named.into_iter().flatten());
        responses.sort_by_key(|(at, _)| *at);
        Ok(responses.into_iter().map(|(_, response)| response).collect())
    }

    async fn create_at_owner(
        &self,
        cluster: &Cluster,
        shard: ShardId,
        group: Vec<(usize, Create)>,
    ) -> Vec<(usize, Created)> {
        let (indexes, requests): (Vec<usize>, Vec<Create>) = group.into_iter().unzip();
        let here = || self.changes.create(requests.clone());
        let there = |owner: Member| create_at(cluster, owner, CreateNamed(requests.iter().map(Named::of).collect()));
        match Box::pin(self.at_owner(cluster, shard, here, there)).await {
            Ok(responses) => indexes.into_iter().zip(responses).collect(),
            Err(error) => {
                tracing::debug!(
                    ?error,
                    shard = shard.0,
                    "cannot create schedules with client-chosen ids at the owner of the shard"
                );
                indexes.into_iter().map(|at| (at, Err(CreateRejection::Unreachable))).collect()
            }
        }
    }

    pub(crate) async fn put(&self, request: Create) -> Result<Result<PutResponse, CreateRejection>, StoreError> {
        let Some(cluster) = &self.cluster else { return Ok(self.changes.put(request).await?) };
        let shard = self.shard_of(&request).await?;
        let here = || self.changes.put(request.clone());
        let there = |owner| {
            let put = Put(Named::of(&request));
            let authored = request.by.clone().map(|by| PutBy { put: put.clone(), by });
            request_as(cluster, owner, authored, put)
        };
        match Box::pin(self.at_owner(cluster, shard, here, there)).await {
            Err(undone) => unreachable_owner(undone).map(Err),
            Ok(response) => Ok(response),
        }
    }

    pub(crate) async fn put_if(
        &self,
        request: Create,
        seen: Option<Precondition>,
        timing: Timing,
    ) -> Result<Option<Result<PutResponse, CreateRejection>>, StoreError> {
        let Some(cluster) = &self.cluster else { return Ok(self.changes.put_if(request, seen, timing).await?) };
        let shard = self.shard_of(&request).await?;
        let here = || self.changes.put_if(request.clone(), seen, timing);
        let there = |owner| {
            let put = PutIf { named: Named::of(&request), seen, timing };
            let authored = request.by.clone().map(|by| PutIfBy { put: put.clone(), by });
            request_as(cluster, owner, authored, put)
        };
        match Box::pin(self.at_owner(cluster, shard, here, there)).await {
            Err(undone) => unreachable_owner(undone).map(|rejection| Some(Err(rejection))),
            Ok(response) => Ok(response),
        }
    }

    /// Returns the shard whose owner must put the schedule of `request`.
    async fn shard_of(&self, request: &Create) -> Result<ShardId, StoreError> {
        let id = request.id.clone().expect("a put request contains the id of its schedule");
        let home = home_poller(request, &id);
        let existing = self.shared.store.get(vec![(request.tenant.id, id)]).await?.pop().flatten();
        let live = existing.filter(|existing| existing.status != Status::Cancelled);
        Ok(live.map_or(home, |live| live.poller).shard())
    }

    pub(crate) async fn cancel(
        &self,
        tenant: TenantId,
        id: ScheduleId,
        key: Option<String>,
    ) -> Result<CancelResponse, StoreError> {
        let author = Some(Author { at: self.shared.runtime.now(), key });
        let recorded = self.shared.store.append_cancellations(vec![Cancellation { tenant, id, author }]).await?.pop();
        let recorded = recorded.expect("the store returns one result per cancellation record");
        let Some(schedule) = recorded.before else { return Ok(CancelResponse::NotFound) };
        let (poller, incarnation, applied) = (schedule.poller, schedule.incarnation, recorded.applied);
        let Some(cluster) = &self.cluster else { return Ok(self.changes.cancel(poller, incarnation, applied).await?) };
        // The current owner applies the cancellation record before it renews its lease.
        let decided_by = self.shared.runtime.now() + cluster.options.lease + cluster.options.clock_offset_max;
        let response = Box::pin(self.cancel_at_owner(cluster, Cancel { poller, incarnation, applied })).await;
        Ok(response.unwrap_or(CancelResponse::Pending { decided_by }))
    }

    async fn cancel_at_owner(&self, cluster: &Cluster, cancel: Cancel) -> Result<CancelResponse, StoreError> {
        let Cancel { poller, incarnation, applied } = cancel;
        let here = || self.changes.cancel(poller, incarnation, applied);
        Ok(self.at_owner(cluster, poller.shard(), here, |owner| cluster.peers.request(&owner, &cancel)).await?)
    }

    pub(crate) async fn cancel_if(
        &self,
        found: &Schedule,
        key: Option<String>,
    ) -> Result<Option<CancelResponse>, StoreError> {
        let Schedule { poller, incarnation, status, .. } = *found;
        let edition = found.edition();
        match (status, &self.cluster) {
            // The store has already cancelled the schedule. The owner only reports whether an attempt of the schedule
            // is in flight.
            (Status::Cancelled, None) => Ok(Some(self.changes.cancel(poller, incarnation, true).await?)),
            (Status::Cancelled, Some(cluster)) => {
                let cancel = Cancel { poller, incarnation, applied: true };
                Box::pin(self.cancel_at_owner(cluster, cancel)).await.map(Some)
            }
            (Status::Active | Status::Ended, None) => Ok(self.changes.cancel_if(poller, edition, key).await?),
            (Status::Active | Status::Ended, Some(cluster)) => {
                let here = || self.changes.cancel_if(poller, edition, key.clone());
                let there = |owner| {
                    let cancel = CancelIf { poller, edition };
                    let authored = key.clone().map(|by| CancelIfBy { cancel: cancel.clone(), by });
                    request_as(cluster, owner, authored, cancel)
                };
                Ok(Box::pin(self.at_owner(cluster, poller.shard(), here, there)).await?)
            }
        }
    }

    pub(crate) async fn redrive(&self, tenant: TenantId, of: Occurrence) -> Result<RedriveResponse, StoreError> {
        let Some(cluster) = &self.cluster else { return Ok(self.changes.redrive(tenant, of).await?) };
        let schedule = self.shared.store.load(vec![of.incarnation]).await?.pop().flatten();
        let Some(schedule) = schedule.filter(|schedule| schedule.tenant == tenant) else {
            return Ok(RedriveResponse::NotFound);
        };
        let here = || self.changes.redrive(tenant, of);
        let there = |owner| cluster.peers.request(&owner, &Redrive { tenant, of });
        Ok(Box::pin(self.at_owner(cluster, schedule.poller.shard(), here, there)).await?)
    }

    /// Returns the progress of an occurrence, according to its owner.
    ///
    /// # Errors
    /// Returns an error if the owner is unreachable.
    pub(crate) async fn progress(&self, waiting: Waiting) -> Result<Progress, OwnerError> {
        let Some(cluster) = &self.cluster else { return progress(&self.shared, waiting).await };
        let here = || progress(&self.shared, waiting);
        let there = |owner: Member| async move {
            match cluster.peers.request(&owner, &waiting).await {
                // A member of an earlier build does not report the progress.
                Err(PeerError::UnknownOperation { .. }) => Ok(Ok(Progress::default())),
                response => response,
            }
        };
        Box::pin(self.at_owner(cluster, waiting.poller.shard(), here, there)).await
    }

    /// Runs an operation at the owner of `shard`. Calls `here` if this member is the owner, and `there` if another
    /// member is the owner. Retries the operation for [`FORWARD_TIMEOUT`] while no owner is known or the contacted
    /// member is not the owner. Then returns [`OwnerError::NotOwned`].
    async fn at_owner<T, Here, There>(
        &self,
        cluster: &Cluster,
        shard: ShardId,
        here: impl Fn() -> Here,
        there: impl Fn(Member) -> There,
    ) -> Result<T, OwnerError>
    where
        Here: Future<Output = Result<T, OwnerError>>,
        There: Future<Output = Result<Result<T, OwnerError>, PeerError>>,
    {
        let runtime = &self.shared.runtime;
        let deadline = runtime.monotonic() + FORWARD_TIMEOUT;
        loop {
            let response = if self.shared.owns(shard) {
                here().await
            } else if let Some(owner) = cluster.other_claimant(shard) {
                let name = owner.name.clone();
                match runtime.timeout(FORWARD_TIMEOUT, there(owner)).await {
                    Some(Ok(response)) => response,
                    Some(Err(error)) => {
                        return Err(StoreError::Unavailable(error.to_string()).into());
                    }
                    None => {
                        let text = format!("member {name} did not respond in time; retry the request");
                        return Err(StoreError::Unavailable(text).into());
                    }
                }
            } else {
                Err(OwnerError::NotOwned)
            };
            match response {
                Ok(response) => return Ok(response),
                Err(OwnerError::NotOwned) if runtime.monotonic() < deadline => {}
                Err(undone) => return Err(undone),
            }
            runtime.sleep(RETRY_WAIT).await;
            refresh_view(cluster).await;
        }
    }

    /// Sends the outcome of an attempt to the shard's next owner. That owner waits for the outcome.
    pub(crate) async fn forward_outcome(&self, outcome: AttemptOutcome) {
        let shard = outcome.poller.shard();
        let Some(cluster) = &self.cluster else {
            // This member has taken its own shard again.
            if self.shared.owns(shard) && receive_outcome(&self.shared, outcome).await.is_ok() {
                return;
            }
            tracing::error!(
                shard = shard.0,
                "another process took a shard of this store; stop one of the two processes"
            );
            return;
        };
        // The owner may run an earlier build.
        let sent = outcome.for_any_build();
        let sending = self.shared.runtime.timeout(OUTCOME_TIMEOUT, async {
            let here = || receive_outcome(&self.shared, outcome.clone());
            let there = |owner| cluster.peers.request(&owner, &sent);
            while self.at_owner(cluster, shard, here, there).await.is_err() {
                self.shared.runtime.sleep(RETRY_WAIT).await;
                // If this member read its view before it released the shard or left the cluster, the view still names
                // this member as the owner. This member therefore reads the view again.
                refresh_view(cluster).await;
            }
        });
        if sending.await.is_none() {
            tracing::warn!(
                shard = shard.0,
                "cannot send an attempt's outcome to the shard's owner, which may repeat the attempt"
            );
        }
    }

    /// Requests that the owners of these shards read their insert logs at once. An owner that does not receive the
    /// request reads its insert log in its next period.
    pub(crate) fn nudge(&self, shards: &BTreeSet<ShardId>) {
        let Some(cluster) = &self.cluster else { return };
        let owners: BTreeMap<MemberId, _> =
            shards.iter().filter_map(|shard| cluster.other_claimant(*shard)).map(|owner| (owner.id, owner)).collect();
        for (id, owner) in owners {
            if !lock(&self.nudging).insert(id) {
                continue;
            }
            let requesting = cluster.peers.request(&owner, &Nudge);
            let (nudging, runtime) = (self.nudging.clone(), self.shared.runtime.clone());
            drop(self.shared.runtime.spawn("nudge", async move {
                let _may_be_gone = runtime.timeout(FORWARD_TIMEOUT, requesting).await;
                lock(&nudging).remove(&id);
            }));
        }
    }
}

/// Requests the operation `authored`, which contains an API key. Requests `plain`, the same operation without the key,
/// if there is no key or if the owner runs an earlier build.
async fn request_as<A: Operation, P: Operation<Answer = A::Answer>>(
    cluster: &Cluster,
    owner: Member,
    authored: Option<A>,
    plain: P,
) -> Result<Result<A::Answer, OwnerError>, PeerError> {
    if let Some(authored) = authored {
        match cluster.peers.request(&owner, &authored).await {
            Err(PeerError::UnknownOperation { .. }) => {}
            response => return response,
        }
    }
    cluster.peers.request(&owner, &plain).await
}

/// Returns the rejection of a put that no owner has answered.
///
/// # Errors
/// Returns the other errors of the store.
fn unreachable_owner(undone: OwnerError) -> Result<CreateRejection, StoreError> {
    match undone {
        OwnerError::NotOwned | OwnerError::Failed(StoreError::Unavailable(_)) => Ok(CreateRejection::Unreachable),
        OwnerError::Failed(error) => Err(error),
    }
}

/// Reads the view of the members again. If the engine is unreachable, this member continues to use the old view.
async fn refresh_view(cluster: &Cluster) {
    let _may_fail = cluster.membership.refresh().await;
}

fn lock(nudging: &Mutex<BTreeSet<MemberId>>) -> MutexGuard<'_, BTreeSet<MemberId>> {
    nudging.lock().expect("no holder of this lock panics")
}

/// Sends a create to `owner`. If the create is too long for one request, sends its parts one after the other.
///
/// If a part after the first one fails, the schedules of this part may or may not exist. The function then returns the
/// results of the earlier parts, and [`CreateRejection::Unreachable`] for all other schedules.
async fn create_at(
    cluster: &Cluster,
    owner: Member,
    create: CreateNamed,
) -> Result<Result<Vec<Created>, OwnerError>, PeerError> {
    let count = create.0.len();
    let mut responses = Vec::with_capacity(count);
    // Parts that this loop has not sent yet, in reverse order.
    let mut left = vec![create];
    while let Some(mut part) = left.pop() {
        let (len, request) = (part.0.len(), encode_request(&part));
        if len > 1 && request.len() > REQUEST_BYTES_MAX {
            let rest = CreateNamed(part.0.split_off(len / 2));
            left.extend([rest, part]);
            continue;
        }
        match cluster.peers.send::<CreateNamed>(&owner, request).await {
            Ok(Ok(some)) if some.len() == len => responses.extend(some),
            Ok(Ok(_)) => return Err(PeerError::Unreachable { member: owner.name, reason: UNFIT.to_owned() }),
            first if responses.is_empty() => return first,
            other => {
                tracing::debug!(member = owner.name, ?other, "one part of a split create request failed");
                responses.resize(count, Err(CreateRejection::Unreachable));
                break;
            }
        }
    }
    Ok(Ok(responses))
}

const UNFIT: &str = "the number of results in the response differs from the number of requested schedules";
