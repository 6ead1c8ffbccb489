//! Any member takes any request: it forwards owner-only requests to the owner of the shard.
//!
//! A process that shares its store with no other owns all shards, and calls `changes` directly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{Occurrence, Schedule, ScheduleId, Seen, ShardId, Status, TenantId};
use futures_util::future::{join, join_all};
use membership::{Member, MemberId};
use store::{Mark, StoreError};

use crate::changes::{Changes, home};
use crate::cluster::assignment::Cluster;
use crate::cluster::operations::{Cancel, CancelIf, CreateNamed, Named, Nudge, Put, PutIf, Redrive, encode_request};
use crate::cluster::ownership::receive_outcome;
use crate::cluster::peers::{PeerError, REQUEST_BYTES_MAX};
use crate::requests::{AttemptOutcome, CancelAnswer, Create, CreateRefusal, PutAnswer, RedriveAnswer, Timing, Undone};
use crate::shared::Shared;

/// How long a request waits for its shard to have an owner that answers. Shards that are handed over are without one
/// for some milliseconds; those of a dead member for the rest of its lease, which no request waits for.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_WAIT: Duration = Duration::from_millis(25);
/// How long an outcome is sent to the next owner again and again; after that the next owner repeats the attempt.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Forwarding {
    shared: Arc<Shared>,
    changes: Arc<Changes>,
    cluster: Option<Arc<Cluster>>,
    /// Members that are being nudged.
    nudging: Arc<Mutex<BTreeSet<MemberId>>>,
}

type Created = Result<Arc<Schedule>, CreateRefusal>;

impl Forwarding {
    pub(crate) fn new(shared: Arc<Shared>, changes: Arc<Changes>, cluster: Option<Arc<Cluster>>) -> Self {
        Forwarding { shared, changes, cluster, nudging: Arc::default() }
    }

    pub(crate) async fn create(&self, requests: Vec<Create>) -> Result<Vec<Created>, StoreError> {
        let Some(cluster) = &self.cluster else { return Ok(self.changes.create(requests).await?) };
        let mut unnamed = Vec::with_capacity(requests.len());
        let mut named: BTreeMap<ShardId, Vec<(usize, Create)>> = BTreeMap::new();
        for (at, request) in requests.into_iter().enumerate() {
            match request.id.as_ref().map(|id| home(&request, id).shard()) {
                Some(shard) => named.entry(shard).or_default().push((at, request)),
                None => unnamed.push((at, request)),
            }
        }
        let (places, unnamed): (Vec<usize>, Vec<Create>) = unnamed.into_iter().unzip();
        let here = async { if unnamed.is_empty() { Ok(Vec::new()) } else { self.changes.create(unnamed).await } };
        let named = named.into_iter().map(|(shard, group)| self.create_at_owner(cluster, shard, group));
        let (created, named) = join(here, join_all(named)).await;
        let mut answers: Vec<(usize, Created)> = places.into_iter().zip(created?).collect();
        answers.extend(named.into_iter().flatten());
        answers.sort_by_key(|(at, _)| *at);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    async fn create_at_owner(
        &self,
        cluster: &Cluster,
        shard: ShardId,
        group: Vec<(usize, Create)>,
    ) -> Vec<(usize, Created)> {
        let (places, requests): (Vec<usize>, Vec<Create>) = group.into_iter().unzip();
        let here = || self.changes.create(requests.clone());
        let there = |owner: Member| create_at(cluster, owner, CreateNamed(requests.iter().map(Named::of).collect()));
        match Box::pin(self.at_owner(cluster, shard, here, there)).await {
            Ok(answers) => places.into_iter().zip(answers).collect(),
            Err(error) => {
                tracing::debug!(%error, shard = shard.0, "the owner of chosen ids cannot be reached");
                places.into_iter().map(|at| (at, Err(CreateRefusal::Unreachable))).collect()
            }
        }
    }

    pub(crate) async fn put(&self, request: Create) -> Result<Result<PutAnswer, CreateRefusal>, StoreError> {
        let Some(cluster) = &self.cluster else { return Ok(self.changes.put(request).await?) };
        let shard = self.shard_of(&request).await?;
        let here = || self.changes.put(request.clone());
        let there = |owner| cluster.peers.request(&owner, &Put(Named::of(&request)));
        Box::pin(self.at_owner(cluster, shard, here, there)).await
    }

    pub(crate) async fn put_if(
        &self,
        request: Create,
        seen: Option<Seen>,
        timing: Timing,
    ) -> Result<Option<Result<PutAnswer, CreateRefusal>>, StoreError> {
        let Some(cluster) = &self.cluster else { return Ok(self.changes.put_if(request, seen, timing).await?) };
        let shard = self.shard_of(&request).await?;
        let here = || self.changes.put_if(request.clone(), seen, timing);
        let there = |owner| cluster.peers.request(&owner, &PutIf { named: Named::of(&request), seen, timing });
        Box::pin(self.at_owner(cluster, shard, here, there)).await
    }

    /// The shard whose owner puts the schedule of `request`.
    async fn shard_of(&self, request: &Create) -> Result<ShardId, StoreError> {
        let id = request.id.clone().expect("a schedule is put under a name");
        let home = home(request, &id);
        let existing = self.shared.store.get(vec![(request.tenant.id, id)]).await?.pop().flatten();
        let live = existing.filter(|existing| existing.status != Status::Cancelled);
        Ok(live.map_or(home, |live| live.poller).shard())
    }

    pub(crate) async fn cancel(&self, tenant: TenantId, id: ScheduleId) -> Result<CancelAnswer, StoreError> {
        let marked = self.shared.store.mark(vec![Mark { tenant, id }]).await?.pop();
        let marked = marked.expect("the store answers every mark");
        let Some(schedule) = marked.before else { return Ok(CancelAnswer::NotFound) };
        let (poller, incarnation, applied) = (schedule.poller, schedule.incarnation, marked.applied);
        let Some(cluster) = &self.cluster else { return Ok(self.changes.cancel(poller, incarnation, applied).await?) };
        // The present owner applies the cancellation record before it renews its lease.
        let decided_by = self.shared.runtime.now() + cluster.options.lease + cluster.options.clock_offset_max;
        let answer = Box::pin(self.cancel_at_owner(cluster, Cancel { poller, incarnation, applied })).await;
        Ok(answer.unwrap_or(CancelAnswer::Pending { decided_by }))
    }

    async fn cancel_at_owner(&self, cluster: &Cluster, cancel: Cancel) -> Result<CancelAnswer, StoreError> {
        let Cancel { poller, incarnation, applied } = cancel;
        let here = || self.changes.cancel(poller, incarnation, applied);
        self.at_owner(cluster, poller.shard(), here, |owner| cluster.peers.request(&owner, &cancel)).await
    }

    pub(crate) async fn cancel_if(&self, found: &Schedule) -> Result<Option<CancelAnswer>, StoreError> {
        let Schedule { poller, incarnation, status, .. } = *found;
        let edition = found.edition();
        match (status, &self.cluster) {
            // The only question is whether an attempt is in flight.
            (Status::Cancelled, None) => Ok(Some(self.changes.cancel(poller, incarnation, true).await?)),
            (Status::Cancelled, Some(cluster)) => {
                let cancel = Cancel { poller, incarnation, applied: true };
                Box::pin(self.cancel_at_owner(cluster, cancel)).await.map(Some)
            }
            (Status::Active | Status::Ended, None) => Ok(self.changes.cancel_if(poller, edition).await?),
            (Status::Active | Status::Ended, Some(cluster)) => {
                let here = || self.changes.cancel_if(poller, edition);
                let there = |owner| cluster.peers.request(&owner, &CancelIf { poller, edition });
                Box::pin(self.at_owner(cluster, poller.shard(), here, there)).await
            }
        }
    }

    pub(crate) async fn redrive(&self, tenant: TenantId, of: Occurrence) -> Result<RedriveAnswer, StoreError> {
        let Some(cluster) = &self.cluster else { return Ok(self.changes.redrive(tenant, of).await?) };
        let schedule = self.shared.store.load(vec![of.incarnation]).await?.pop().flatten();
        let Some(schedule) = schedule.filter(|schedule| schedule.tenant == tenant) else {
            return Ok(RedriveAnswer::NotFound);
        };
        let here = || self.changes.redrive(tenant, of);
        let there = |owner| cluster.peers.request(&owner, &Redrive { tenant, of });
        Box::pin(self.at_owner(cluster, schedule.poller.shard(), here, there)).await
    }

    /// Has the owner of `shard` do an operation: by `here` if that is this member, by `there` if it is another. Tries
    /// again as long as nothing was done.
    async fn at_owner<T, Here, There>(
        &self,
        cluster: &Cluster,
        shard: ShardId,
        here: impl Fn() -> Here,
        there: impl Fn(Member) -> There,
    ) -> Result<T, StoreError>
    where
        Here: Future<Output = Result<T, Undone>>,
        There: Future<Output = Result<Result<T, Undone>, PeerError>>,
    {
        let runtime = &self.shared.runtime;
        let deadline = runtime.monotonic() + FORWARD_TIMEOUT;
        loop {
            let answer = if self.shared.owns(shard) {
                here().await
            } else if let Some(owner) = cluster.holder(shard) {
                let name = owner.name.clone();
                match runtime.timeout(FORWARD_TIMEOUT, there(owner)).await {
                    Some(Ok(answer)) => answer,
                    Some(Err(error @ PeerError::Unreachable { .. })) => {
                        return Err(StoreError::Unavailable(error.to_string()));
                    }
                    None => return Err(StoreError::Unavailable(format!("member {name} does not answer"))),
                }
            } else {
                Err(Undone::NotOwned)
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(Undone::NotOwned) if runtime.monotonic() < deadline => {}
                Err(undone) => return Err(undone.into()),
            }
            runtime.sleep(RETRY_WAIT).await;
            refresh_view(cluster).await;
        }
    }

    /// Sends the outcome of an attempt to the next owner, which waits for it.
    pub(crate) async fn forward_outcome(&self, outcome: AttemptOutcome) {
        let shard = outcome.poller.shard();
        let Some(cluster) = &self.cluster else {
            tracing::error!(
                shard = shard.0,
                "another process has taken a shard of this store, which was thought to be ours alone"
            );
            return;
        };
        let sending = self.shared.runtime.timeout(OUTCOME_TIMEOUT, async {
            let here = || receive_outcome(&self.shared, outcome.clone());
            let there = |owner| cluster.peers.request(&owner, &outcome);
            while self.at_owner(cluster, shard, here, there).await.is_err() {
                self.shared.runtime.sleep(RETRY_WAIT).await;
                // The view from before this member released the shard, or left, still names the owner before.
                refresh_view(cluster).await;
            }
        });
        if sending.await.is_none() {
            tracing::warn!(
                shard = shard.0,
                "an outcome could not be told to the shard's owner, who may make the attempt again"
            );
        }
    }

    /// Has the owners of these shards read their insert logs. Those that cannot be reached do so soon by themselves.
    pub(crate) fn nudge(&self, shards: &BTreeSet<ShardId>) {
        let Some(cluster) = &self.cluster else { return };
        let owners: BTreeMap<MemberId, _> =
            shards.iter().filter_map(|shard| cluster.holder(*shard)).map(|owner| (owner.id, owner)).collect();
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

/// The view of the owners may be old; if the engine cannot be reached, there is no other.
async fn refresh_view(cluster: &Cluster) {
    let _may_fail = cluster.membership.refresh().await;
}

fn lock(nudging: &Mutex<BTreeSet<MemberId>>) -> MutexGuard<'_, BTreeSet<MemberId>> {
    nudging.lock().expect("no holder of this lock panics")
}

/// Requests a create of `owner`, in several parts, one after the other, if it is too long for one request.
///
/// If a later part gets no answer, it is not known what became of its schedules; of the earlier ones it is.
async fn create_at(
    cluster: &Cluster,
    owner: Member,
    create: CreateNamed,
) -> Result<Result<Vec<Created>, Undone>, PeerError> {
    let count = create.0.len();
    let mut answers = Vec::with_capacity(count);
    // The next part is the last.
    let mut left = vec![create];
    while let Some(mut part) = left.pop() {
        let (len, request) = (part.0.len(), encode_request(&part));
        if len > 1 && request.len() > REQUEST_BYTES_MAX {
            let rest = CreateNamed(part.0.split_off(len / 2));
            left.extend([rest, part]);
            continue;
        }
        match cluster.peers.send::<CreateNamed>(&owner, request).await {
            Ok(Ok(some)) if some.len() == len => answers.extend(some),
            Ok(Ok(_)) => return Err(PeerError::Unreachable { member: owner.name, reason: UNFIT.to_owned() }),
            first if answers.is_empty() => return first,
            other => {
                tracing::debug!(member = owner.name, ?other, "part of a create was not answered");
                answers.resize(count, Err(CreateRefusal::Unreachable));
                break;
            }
        }
    }
    Ok(Ok(answers))
}

const UNFIT: &str = "it answers something else than was asked";
