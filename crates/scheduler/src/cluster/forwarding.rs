//! Any member takes any request: what only the owner of a shard may do is passed to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{Incarnation, Occurrence, Schedule, ScheduleId, Seen, ShardId, Status, Tenant, TenantId};
use futures_util::future::join_all;
use membership::MemberId;
use store::{Mark, StoreError};
use tokio::sync::oneshot;

use crate::changes::{Changes, Undone, home};
use crate::cluster::assignment::Cluster;
use crate::cluster::peers::{Ask, Named, Outcome, PeerError, Reply};
use crate::firing::messages::ToOwner;
use crate::requests::{CancelAnswer, Create, CreateRefusal, PutAnswer, RedriveAnswer, Timing};
use crate::shared::Shared;
use crate::tenants::Tenants;

/// How long a request waits for its shard to have an owner that answers. Shards that are handed over are without one
/// for some milliseconds; those of a dead member for the rest of its lease, which nobody waits for here.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_WAIT: Duration = Duration::from_millis(25);
/// How long it is tried to tell an outcome to the next owner; after that it makes the attempt again.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Forwarder {
    shared: Arc<Shared>,
    changes: Changes,
    cluster: Option<Arc<Cluster>>,
    /// Members that are being nudged.
    nudging: Arc<Mutex<BTreeSet<MemberId>>>,
}

type Created = Result<Arc<Schedule>, CreateRefusal>;

impl Forwarder {
    pub(crate) fn new(shared: Arc<Shared>, changes: Changes, cluster: Option<Arc<Cluster>>) -> Self {
        Forwarder { shared, changes, cluster, nudging: Arc::default() }
    }

    pub(crate) fn is_member(&self, id: MemberId) -> bool {
        let lease = self.cluster.as_ref().and_then(|cluster| cluster.membership.lease());
        lease.is_some_and(|lease| lease.member() == id)
    }

    /// One process alone leads itself.
    pub(crate) fn leads(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.leads())
    }

    pub(crate) async fn create(&self, requests: Vec<Create>) -> Result<Vec<Created>, StoreError> {
        if self.cluster.is_none() {
            return self.create_here(requests).await;
        }
        let mut made = Vec::with_capacity(requests.len());
        let mut chosen: BTreeMap<ShardId, Vec<(usize, Create)>> = BTreeMap::new();
        for (at, request) in requests.into_iter().enumerate() {
            match request.id.as_ref().map(|id| home(&request, id).shard()) {
                Some(shard) => chosen.entry(shard).or_default().push((at, request)),
                None => made.push((at, request)),
            }
        }
        let (places, made): (Vec<usize>, Vec<Create>) = made.into_iter().unzip();
        let chosen = join_all(chosen.into_iter().map(|(shard, group)| self.create_at_owner(shard, group)));
        let (made, chosen) = futures_util::future::join(self.create_here(made), chosen).await;
        let mut answers: Vec<(usize, Created)> = places.into_iter().zip(made?).collect();
        answers.extend(chosen.into_iter().flatten());
        answers.sort_by_key(|(at, _)| *at);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    async fn create_here(&self, requests: Vec<Create>) -> Result<Vec<Created>, StoreError> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        match self.changes.create(requests).await {
            Ok(answers) => Ok(answers),
            Err(Undone::Failed(error)) => Err(error),
            Err(Undone::NotOwned) => replied(Reply::NotOwned).map(|_| Vec::new()),
            Err(Undone::Changed) => unreachable!("a create wants to find nothing"),
        }
    }

    async fn create_at_owner(&self, shard: ShardId, group: Vec<(usize, Create)>) -> Vec<(usize, Created)> {
        let (places, named): (Vec<usize>, Vec<Named>) =
            group.into_iter().map(|(at, request)| (at, named(request))).unzip();
        match self.at_owner(shard, Ask::Create(named)).await {
            Ok(Reply::Created(answers)) => places.into_iter().zip(answers).collect(),
            Ok(other) => unreachable!("a create is answered as one, not with {other:?}"),
            Err(error) => {
                tracing::debug!(%error, shard = shard.0, "the owner of chosen ids cannot be reached");
                places.into_iter().map(|at| (at, Err(CreateRefusal::Unreachable))).collect()
            }
        }
    }

    pub(crate) async fn put(&self, request: Create) -> Result<Result<PutAnswer, CreateRefusal>, StoreError> {
        let shard = self.shard_of(&request).await?;
        match self.at_owner(shard, Ask::Put(named(request))).await? {
            Reply::Put(answer) => Ok(answer),
            other => unreachable!("a put is answered as one, not with {other:?}"),
        }
    }

    pub(crate) async fn put_if(
        &self,
        request: Create,
        seen: Option<Seen>,
        timing: Timing,
    ) -> Result<Option<Result<PutAnswer, CreateRefusal>>, StoreError> {
        let shard = self.shard_of(&request).await?;
        match self.at_owner(shard, Ask::PutIf { named: named(request), seen, timing }).await? {
            Reply::Put(answer) => Ok(Some(answer)),
            Reply::Changed => Ok(None),
            other => unreachable!("a put is answered as one, not with {other:?}"),
        }
    }

    pub(crate) fn would_put(&self, request: Create, existing: Option<&Schedule>, timing: Timing) -> Option<Schedule> {
        let insert = self.changes.plan_over(request, existing, timing, self.shared.runtime.now())?;
        let mut schedule = Arc::unwrap_or_clone(insert.schedule);
        if let Some(live) = existing.filter(|existing| existing.status != Status::Cancelled) {
            schedule.incarnation = live.incarnation;
            schedule.revision.0 = live.revision.0 + 1;
            schedule.created_at = live.created_at;
        }
        Some(schedule)
    }

    pub(crate) async fn confirm(&self, found: Incarnation) -> Result<(), StoreError> {
        self.changes.confirm(found).await
    }

    /// Whose owner puts what `request` asks for.
    async fn shard_of(&self, request: &Create) -> Result<ShardId, StoreError> {
        let id = request.id.clone().expect("a schedule is put under a name");
        let home = home(request, &id);
        if self.cluster.is_none() {
            return Ok(home.shard());
        }
        let existing = self.shared.store.get(vec![(request.tenant.id, id)]).await?.pop().flatten();
        let live = existing.filter(|existing| existing.status != Status::Cancelled);
        Ok(live.map_or(home, |live| live.poller).shard())
    }

    pub(crate) async fn cancel(&self, tenant: TenantId, id: ScheduleId) -> Result<CancelAnswer, StoreError> {
        let marked = self.shared.store.mark(vec![Mark { tenant, id }]).await?.pop();
        let marked = marked.expect("the store answers every mark");
        let Some(schedule) = marked.before else { return Ok(CancelAnswer::NotFound) };
        // Whoever owns it now obeys the mark before it renews its lease.
        let decided_by = self.cluster.as_ref().map(|cluster| {
            let lease = cluster.options.lease + cluster.options.clock_offset_max;
            self.shared.runtime.now() + lease
        });
        let ask = Ask::Cancel { poller: schedule.poller, incarnation: schedule.incarnation, applied: marked.applied };
        match (self.at_owner(schedule.poller.shard(), ask).await, decided_by) {
            (Ok(Reply::Cancelled(answer)), _) => Ok(answer),
            (Ok(other), _) => unreachable!("a cancellation is answered as one, not with {other:?}"),
            (Err(_), Some(decided_by)) => Ok(CancelAnswer::Pending { decided_by }),
            (Err(error), None) => Err(error),
        }
    }

    pub(crate) async fn cancel_if(&self, found: &Schedule) -> Result<Option<CancelAnswer>, StoreError> {
        let Schedule { poller, incarnation, status, .. } = *found;
        let ask = match status {
            // There is nothing to do but to see whether an attempt is in flight.
            Status::Cancelled => Ask::Cancel { poller, incarnation, applied: true },
            Status::Active | Status::Ended => Ask::CancelIf { poller, edition: found.edition() },
        };
        match self.at_owner(poller.shard(), ask).await? {
            Reply::Cancelled(answer) => Ok(Some(answer)),
            Reply::Changed => Ok(None),
            other => unreachable!("a cancellation is answered as one, not with {other:?}"),
        }
    }

    pub(crate) async fn redrive(&self, tenant: TenantId, of: Occurrence) -> Result<RedriveAnswer, StoreError> {
        let schedule = self.shared.store.load(vec![of.incarnation]).await?.pop().flatten();
        let Some(schedule) = schedule.filter(|schedule| schedule.tenant == tenant) else {
            return Ok(RedriveAnswer::NotFound);
        };
        match self.at_owner(schedule.poller.shard(), Ask::Redrive { tenant, of }).await? {
            Reply::Redriven(answer) => Ok(answer),
            other => unreachable!("a redrive is answered as one, not with {other:?}"),
        }
    }

    /// Has the owner of `shard` do what only it may. Tried again as long as nothing was done.
    async fn at_owner(&self, shard: ShardId, ask: Ask) -> Result<Reply, StoreError> {
        match &self.cluster {
            None => replied(self.answer(ask).await),
            // Boxed: it is much larger than what a single process needs.
            Some(cluster) => Box::pin(self.at_member(cluster, shard, ask)).await,
        }
    }

    async fn at_member(&self, cluster: &Cluster, shard: ShardId, ask: Ask) -> Result<Reply, StoreError> {
        let runtime = &self.shared.runtime;
        let patience = runtime.monotonic() + FORWARD_TIMEOUT;
        loop {
            let reply = if self.shared.owns(shard) {
                self.answer(ask.clone()).await
            } else if let Some(owner) = cluster.holder(shard) {
                let asked = runtime.timeout(FORWARD_TIMEOUT, cluster.peers.ask(&owner, ask.clone())).await;
                match asked {
                    Some(Ok(reply)) => reply,
                    Some(Err(error @ PeerError::Unreachable { .. })) => {
                        return Err(StoreError::Unavailable(error.to_string()));
                    }
                    None => return Err(StoreError::Unavailable(format!("member {} does not answer", owner.name))),
                }
            } else {
                Reply::NotOwned
            };
            if reply != Reply::NotOwned || runtime.monotonic() >= patience {
                return replied(reply);
            }
            runtime.sleep(RETRY_WAIT).await;
            self.refresh_view().await;
        }
    }

    /// What is known of the owners may be old; if the engine cannot be reached, that is all there is.
    async fn refresh_view(&self) {
        if let Some(cluster) = &self.cluster {
            let _may_fail = cluster.membership.refresh().await;
        }
    }

    /// Does what a peer, or this member itself, asks of the owner of a shard.
    pub(crate) async fn answer(&self, ask: Ask) -> Reply {
        match self.try_answer(ask).await {
            Ok(reply) => reply,
            Err(Undone::NotOwned) => Reply::NotOwned,
            Err(Undone::Changed) => Reply::Changed,
            Err(Undone::Failed(error)) => Reply::Failed(error),
        }
    }

    async fn try_answer(&self, ask: Ask) -> Result<Reply, Undone> {
        Ok(match ask {
            Ask::Create(requests) => {
                let mut known = Vec::with_capacity(requests.len());
                for request in requests {
                    known.push(self.request(request).await?);
                }
                let requests = known;
                Reply::Created(self.changes.create(requests).await?)
            }
            Ask::Put(request) => Reply::Put(self.changes.put(self.request(request).await?).await?),
            Ask::PutIf { named, seen, timing } => {
                Reply::Put(self.changes.put_if(self.request(named).await?, seen, timing).await?)
            }
            Ask::CancelIf { poller, edition } => Reply::Cancelled(self.changes.cancel_if(poller, edition).await?),
            Ask::Cancel { poller, incarnation, applied } => {
                Reply::Cancelled(self.changes.cancel(poller, incarnation, applied).await?)
            }
            Ask::Redrive { tenant, of } => Reply::Redriven(self.changes.redrive(tenant, of).await?),
            Ask::LetGo { member, shards } => match &self.cluster {
                Some(cluster) => match cluster.release_for(member, &shards).await {
                    Ok(free) => Reply::LetGo(free),
                    Err(error) => return Err(StoreError::Unavailable(error.to_string()).into()),
                },
                None => Reply::NotOwned,
            },
            Ask::Outcome(outcome) => self.hear_outcome(outcome).await,
            Ask::Nudge => {
                self.shared.nudge.notify_one();
                Reply::Heard
            }
        })
    }

    async fn hear_outcome(&self, outcome: Outcome) -> Reply {
        // A shard that is on its way here is given to the owner first, with what it has to wait for.
        let _moved = self.shared.moving.lock().await;
        if self.shared.shards.shard_term(outcome.poller.shard()).is_none() {
            return Reply::NotOwned;
        }
        let (tell, told) = oneshot::channel();
        self.shared.send(ToOwner::Outcome(outcome, tell)).await;
        let _nobody_waited = told.await;
        Reply::Heard
    }

    /// Tells the next owner what became of an attempt that it waits for.
    pub(crate) async fn tell_outcome(&self, outcome: Outcome) {
        let shard = outcome.poller.shard();
        if self.cluster.is_none() {
            tracing::error!(
                shard = shard.0,
                "another process has taken a shard of this store, which was thought to be ours alone"
            );
            return;
        }
        let told = self.shared.runtime.timeout(OUTCOME_TIMEOUT, async {
            while self.at_owner(shard, Ask::Outcome(outcome.clone())).await.is_err() {
                self.shared.runtime.sleep(RETRY_WAIT).await;
                // What was known when this member let go, or left, tells of the owner before.
                self.refresh_view().await;
            }
        });
        if told.await.is_none() {
            tracing::warn!(
                shard = shard.0,
                "an outcome could not be told to the shard's owner, who may make the attempt again"
            );
        }
    }

    /// Has the owners of these shards look at their arrivals. Those that cannot be reached do so soon by themselves.
    pub(crate) fn nudge(&self, shards: &BTreeSet<ShardId>) {
        let Some(cluster) = &self.cluster else { return };
        let owners: BTreeMap<MemberId, _> =
            shards.iter().filter_map(|shard| cluster.holder(*shard)).map(|owner| (owner.id, owner)).collect();
        for (id, owner) in owners {
            if !self.lock_nudging().insert(id) {
                continue;
            }
            let asking = cluster.peers.ask(&owner, Ask::Nudge);
            let (nudging, runtime) = (self.nudging.clone(), self.shared.runtime.clone());
            drop(self.shared.runtime.spawn("nudge", async move {
                let _may_be_gone = runtime.timeout(FORWARD_TIMEOUT, asking).await;
                nudging.lock().expect("no holder of this lock panics").remove(&id);
            }));
        }
    }

    fn lock_nudging(&self) -> std::sync::MutexGuard<'_, BTreeSet<MemberId>> {
        self.nudging.lock().expect("no holder of this lock panics")
    }

    async fn request(&self, named: Named) -> Result<Create, Undone> {
        let Named { tenant, id, incarnation, spec } = named;
        if self.shared.tenants.get(tenant).is_none() {
            // Whoever asks has heard of it already.
            Tenants::new(self.shared.clone()).refresh().await?;
        }
        let tenant: Arc<Tenant> = self.shared.tenants.get(tenant).ok_or(Undone::NotOwned)?;
        Ok(Create { tenant, id: Some(id), incarnation, spec })
    }
}

fn named(request: Create) -> Named {
    let Create { tenant, id, incarnation, spec } = request;
    Named { tenant: tenant.id, id: id.expect("its caller has looked"), incarnation, spec }
}

fn replied(reply: Reply) -> Result<Reply, StoreError> {
    match reply {
        Reply::NotOwned => Err(StoreError::Unavailable("no member owns the shard now".to_owned())),
        Reply::Failed(error) => Err(error),
        other => Ok(other),
    }
}
