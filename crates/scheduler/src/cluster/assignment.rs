//! Assignment of shards to this member.
//!
//! Every member computes the same plan from the same view ([`membership::assign`]). A member claims the free shards
//! that the plan assigns to it. If another member holds the claim of a planned shard, this member requests the release
//! of the shard. It then waits for the response or for the end of the other member's lease. A claim gives a member the
//! right to take a term from the store. The term makes the member the owner.
//!
//! One member at a time is the leader: it holds the claim `leader` and runs the store's housekeeping. Firing does not
//! need a leader.
//!
//! Invariant: this member claimed its owned shards in its current session, and loses them when the session ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::id::SHARDS;
use domain::retention::start_of_day;
use domain::{ShardId, Timestamp};
use futures_util::future::join_all;
use membership::{
    BeforeRenewal, ClaimName, Member, MemberId, Membership, Ownership, OwnershipError, Profile, Status, View, assign,
};
use prometheus_client::registry::Registry;
use runtime::TaskSet;
use store::StoreError;
use tokio_util::sync::CancellationToken;

use crate::cluster::client::PeerClient;
use crate::cluster::operations::Release;
use crate::cluster::ownership::{apply_all_cancellations, gain, hand_over, lose_all};
use crate::cluster::peers::Peers;
use crate::metrics::count_store_error;
use crate::requests::{AuditReport, AuditRequest, OwnerError};
use crate::shared::Shared;

/// Longest time between two checks of the assignment.
const PERIOD: Duration = Duration::from_secs(1);
/// Longest time for which this member waits for the response of another member to a [`Release`] request.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two runs of the store's housekeeping, which the leader starts.
const HOUSEKEEPING_PERIOD: Duration = Duration::from_secs(3_600);
/// Time until the next run of the store's housekeeping, after a run that dropped rows or failed.
const HOUSEKEEPING_RETRY: Duration = Duration::from_secs(60);

/// Connections and settings of a member of a cluster.
pub struct Peering {
    pub ownership: Arc<dyn Ownership>,
    pub peers: Arc<dyn Peers>,
    pub profile: Profile,
    pub options: membership::Options,
    /// Metrics of other components. The scheduler adds its own metrics and exposes all metrics together.
    pub registry: Registry,
}

/// Membership of this process in a cluster.
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    pub(crate) membership: Membership,
    pub(crate) peers: PeerClient,
    pub(crate) options: membership::Options,
    /// Lock for changes of ownership. A task takes the lock before it reads the owned shards, and releases the lock
    /// after the change is complete. Without the lock, this member could claim a shard again between its last write to
    /// the shard and the release of the claim. The release would then free the claim of an owned shard.
    changing: tokio::sync::Mutex<()>,
}

impl Cluster {
    /// Starts the tasks that join the cluster.
    pub(crate) fn join(shared: &Arc<Shared>, tasks: &TaskSet, peers: PeerClient, peering: Peering) -> Self {
        let Peering { ownership, profile, options, .. } = peering;
        let cloned = shared.clone();
        let before_renewal: BeforeRenewal = Arc::new(move || {
            let shared = cloned.clone();
            Box::pin(async move { apply_all_cancellations(&shared).await.is_ok() })
        });
        let membership = Membership::join(&shared.runtime, tasks, ownership, profile, options.clone(), before_renewal);
        shared.clock.limit_by(membership.clone());
        Cluster { shared: shared.clone(), membership, peers, options, changing: tokio::sync::Mutex::default() }
    }

    /// Takes and releases shards when the plan changes, until `stop` is cancelled. Then hands all shards over and
    /// leaves the cluster.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        self.follow_plan(stop).await;
        self.release_all().await;
        self.membership.leave().await;
    }

    /// Takes and releases shards when the plan changes, until `stop` is cancelled. Then completes a change of ownership
    /// that is in progress. An interrupted change would lose the list of attempts in flight, and the next owner would
    /// repeat these attempts.
    async fn follow_plan(&self, stop: CancellationToken) {
        let work = futures_util::future::join(self.keep_balanced(), self.keep_leading());
        // No change of ownership is in progress while this task holds the locks `changing` and `moving`.
        let stop_between_changes = async {
            stop.cancelled().await;
            (self.changing.lock().await, self.shared.moving.lock().await)
        };
        let _until_the_work_is_dropped = tokio::select! {
            biased;
            _ = work => unreachable!("the loops in `keep_balanced` and `keep_leading` never end"),
            guards = stop_between_changes => guards,
        };
    }

    /// Returns true if this member is the leader in its latest view.
    pub(crate) fn is_leader(&self) -> bool {
        let me = self.membership.lease().map(|lease| lease.member());
        me.is_some() && self.membership.view().borrow().leader() == me
    }

    /// Returns the result of the leader's audits, for one tenant or for all tenants.
    ///
    /// # Errors
    /// Returns an error if no other member is the leader, or if the leader does not respond.
    pub(crate) async fn audit_of_leader(&self, request: AuditRequest) -> Result<AuditReport, StoreError> {
        let leader = {
            let view = self.membership.view().borrow().clone();
            view.leader().and_then(|leader| view.member(leader).cloned())
        };
        let unavailable = |reason: String| StoreError::Unavailable(reason);
        let leader = leader.ok_or_else(|| {
            unavailable("no member is the leader, which audits the store; retry the request".to_owned())
        })?;
        match self.peers.request(&leader, &request).await {
            Ok(Ok(report)) => Ok(report),
            Ok(Err(OwnerError::NotOwned)) => {
                Err(unavailable(format!("{} is no longer the leader; retry the request", leader.name)))
            }
            Ok(Err(OwnerError::Failed(error))) => Err(error),
            Err(error) => Err(unavailable(format!("cannot read the audit of the leader: {error}; retry the request"))),
        }
    }

    /// Claims the leadership whenever no member holds it, unless this member's clock differs too much from the engine's
    /// clock.
    async fn keep_leading(&self) {
        let runtime = &self.shared.runtime;
        let mut next = runtime.monotonic();
        loop {
            runtime.sleep(PERIOD).await;
            if self.membership.clock_is_off() {
                if self.is_leader() {
                    let _may_fail = self.membership.release(vec![ClaimName::leader()]).await;
                }
                continue;
            }
            let is_vacant = self.membership.view().borrow().leader().is_none();
            if is_vacant && self.membership.lease().is_some() {
                let _may_fail = self.membership.claim(vec![ClaimName::leader()]).await;
            }
            if self.is_leader() && runtime.monotonic() >= next {
                let now = runtime.now();
                let after = match self.shared.store.maintain(now, self.history_from(now)).await {
                    Ok(0) => HOUSEKEEPING_PERIOD,
                    Ok(dropped) => {
                        tracing::info!(dropped, "housekeeping dropped expired rows");
                        HOUSEKEEPING_RETRY
                    }
                    Err(error) => {
                        count_store_error(&self.shared.metrics, "maintain", &error);
                        HOUSEKEEPING_RETRY
                    }
                };
                next = runtime.monotonic() + after;
            }
        }
    }

    /// Returns the start of the history that the store must retain. The start is rounded down to a whole day, because
    /// the store drops whole days.
    fn history_from(&self, now: Timestamp) -> Timestamp {
        start_of_day(now - self.shared.options.history)
    }

    async fn keep_balanced(&self) {
        let mut status = self.membership.status();
        let mut view = self.membership.view();
        let mut session = None;
        let mut known = BTreeMap::new();
        loop {
            let now = status.borrow_and_update().clone();
            log_membership_changes(&mut known, &view.borrow_and_update());
            self.update(now, &mut session).await;
            tokio::select! {
                biased;
                _ = status.changed() => {}
                _ = view.changed() => {}
                () = self.shared.runtime.sleep(PERIOD) => {}
            }
        }
    }

    async fn update(&self, status: Status, session: &mut Option<MemberId>) {
        if let Some(offset) = self.membership.clock_offset() {
            self.shared.metrics.clock_skew_seconds.set(offset.ahead_millis as f64 / 1_000.0);
        }
        let Status::Joined { member, lease, clock_is_off } = status else {
            lose_all(&self.shared).await;
            *session = None;
            return;
        };
        if *session != Some(member) {
            lose_all(&self.shared).await;
            self.shared.lease.set_session(lease);
            *session = Some(member);
        }
        if clock_is_off {
            self.release_all().await;
        } else if let Err(error) = self.balance(member).await {
            // The membership logs an outage of the engine.
            if error.is_retryable() {
                tracing::debug!(%error, "cannot assign shards; retrying");
            } else {
                tracing::warn!(%error, "cannot assign shards; retrying");
            }
        }
    }

    fn owned(&self) -> BTreeSet<ShardId> {
        self.shared.shards.owned().into_iter().collect()
    }

    /// Takes the shards that the plan assigns to this member.
    async fn balance(&self, me: MemberId) -> Result<(), OwnershipError> {
        let changing = self.changing.lock().await;
        let view = self.membership.refresh().await?;
        let claims = view.shards();
        let owned = self.owned();
        let mut free = Vec::new();
        let mut of_others: BTreeMap<MemberId, Vec<ShardId>> = BTreeMap::new();
        for (shard, owner) in plan(&view) {
            if owner != me || owned.contains(&shard) {
                continue;
            }
            match claims.get(&shard) {
                Some(other) if *other != me => of_others.entry(*other).or_default().push(shard),
                _ => free.push(shard),
            }
        }
        self.take(free).await;
        drop(changing);
        let requests = of_others.into_iter().filter_map(|(other, shards)| Some((view.member(other)?, shards)));
        join_all(requests.map(|(other, shards)| self.request_shards(me, other, shards))).await;
        Ok(())
    }

    async fn request_shards(&self, me: MemberId, other: &Member, shards: Vec<ShardId>) {
        let request = self.peers.request(other, &Release { member: me, shards });
        match self.shared.runtime.timeout(RELEASE_TIMEOUT, request).await {
            Some(Ok(Ok(free))) => {
                let _one_change_at_a_time = self.changing.lock().await;
                self.take(free).await;
            }
            Some(Ok(Err(undone))) => {
                tracing::debug!(
                    member = other.name,
                    ?undone,
                    "the other member rejected this member's request to release shards; retrying"
                );
            }
            Some(Err(error)) => tracing::warn!(%error, "cannot get shards from the other member; retrying"),
            None => tracing::warn!(member = other.name, "the other member did not release shards in time; retrying"),
        }
    }

    /// Claims and takes these shards. The caller must hold the lock `changing`.
    async fn take(&self, shards: Vec<ShardId>) {
        if shards.is_empty() {
            return;
        }
        let names = shards.iter().copied().map(ClaimName::shard).collect();
        let claimed = match self.membership.claim(names).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::warn!(%error, "cannot claim shards; retrying");
                return;
            }
        };
        let ours: Vec<ShardId> =
            shards.into_iter().zip(claimed.held).filter_map(|(shard, is_ours)| is_ours.then_some(shard)).collect();
        if ours.is_empty() {
            return;
        }
        match gain(&self.shared, &ours).await {
            Ok(true) => tracing::info!(shards = ours.len(), "shards taken"),
            Ok(false) => {
                tracing::info!(shards = ours.len(), "session ended before this member took the claimed shards")
            }
            // This member still holds the claims of the shards. The next call of `balance` tries to take the shards
            // again.
            Err(error) => count_store_error(&self.shared.metrics, "take", &error),
        }
    }

    async fn release_all(&self) {
        let _one_change_at_a_time = self.changing.lock().await;
        self.release(self.owned()).await;
    }

    /// Hands over these shards and releases their claims. Skips the hand-over of a shard that this member has claimed
    /// but does not own. Returns the shards that are free now. The caller must hold the lock `changing`.
    async fn release(&self, shards: BTreeSet<ShardId>) -> Vec<ShardId> {
        if shards.is_empty() {
            return Vec::new();
        }
        if let Err(error) = hand_over(&self.shared, &shards).await {
            count_store_error(&self.shared.metrics, "hand_over", &error);
        }
        let names = shards.iter().copied().map(ClaimName::shard).collect();
        match self.membership.release(names).await {
            Ok(()) => {
                tracing::info!(shards = shards.len(), "shards released");
                shards.into_iter().collect()
            }
            Err(error) => {
                tracing::warn!(%error, "cannot release the claims on the handed-over shards; retrying");
                Vec::new()
            }
        }
    }

    /// Handles another member's request for shards: releases the shards that the plan assigns to the requester. The
    /// function also releases shards that this member has claimed but does not own. Such claims can remain if the
    /// engine's response to an earlier release did not arrive.
    pub(crate) async fn release_for(
        &self,
        requester: MemberId,
        shards: &[ShardId],
    ) -> Result<Vec<ShardId>, OwnershipError> {
        let _one_change_at_a_time = self.changing.lock().await;
        let view = self.membership.refresh().await?;
        let (plan, claims) = (plan(&view), view.shards());
        let Some(me) = self.membership.lease().map(|lease| lease.member()) else { return Ok(Vec::new()) };
        let is_theirs = |shard: &ShardId| plan.get(shard) == Some(&requester) && claims.get(shard) == Some(&me);
        Ok(self.release(shards.iter().copied().filter(is_theirs).collect()).await)
    }

    /// Returns the other member that holds the claim of this shard in the latest view. Returns `None` if the shard is
    /// free or this member holds its claim.
    pub(crate) fn other_claimant(&self, shard: ShardId) -> Option<Member> {
        let view = self.membership.view().borrow().clone();
        let claimant = *view.claims.get(&ClaimName::shard(shard))?;
        let is_other = self.membership.lease().is_none_or(|lease| lease.member() != claimant);
        view.member(claimant).filter(|_| is_other).cloned()
    }
}

/// Logs the members that joined or left. The keys of `known` are ids, because a new member may have the name of a
/// member that left.
fn log_membership_changes(known: &mut BTreeMap<MemberId, String>, view: &View) {
    let present: BTreeMap<MemberId, String> =
        view.members.iter().map(|member| (member.id, member.name.clone())).collect();
    for (_, name) in present.iter().filter(|(id, _)| !known.contains_key(*id)) {
        tracing::info!(member = name, "member joined");
    }
    for (_, name) in known.iter().filter(|(id, _)| !present.contains_key(*id)) {
        tracing::info!(member = name, "member left, or its lease ended");
    }
    *known = present;
}

fn plan(view: &View) -> BTreeMap<ShardId, MemberId> {
    assign::plan(&view.shards(), &view.owners(), SHARDS)
}
