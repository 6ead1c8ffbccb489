//! Which shards this member should own, and how it comes to own them.
//!
//! Every member computes the same plan from the same view ([`membership::assign`]). What is free it claims; for what
//! another holds it asks that one to let go, and waits for the answer (seed 004's synchronous shutdown call) or for the
//! other's lease to end, whichever comes first. A claim says who may ask the store for a term; the term says who owns.
//!
//! One member at a time leads: it has claimed `leader`, and does the store's housekeeping. Nothing that fires waits for it.
//!
//! Always true here: what is owned was claimed in the session that is joined, and is lost with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::id::SHARDS;
use domain::{ShardId, Timestamp};
use futures_util::future::join_all;
use membership::{
    BeforeRenewal, ClaimName, Member, MemberId, Membership, Ownership, OwnershipError, Profile, Status, View, assign,
};
use prometheus_client::registry::Registry;
use runtime::TaskSet;
use tokio_util::sync::CancellationToken;

use crate::cluster::client::PeerClient;
use crate::cluster::operations::Release;
use crate::cluster::ownership::{apply_all_cancellations, gain, hand_over, lose};
use crate::cluster::peers::Peers;
use crate::metrics::count_store_error;
use crate::shared::Shared;

/// How often it is looked whether all is as it should be, if nothing says that it is not.
const PERIOD: Duration = Duration::from_secs(1);
/// How long the present owner may take to let go; after that its lease decides.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the leader does the store's housekeeping, and how soon again if there was something to do, or it failed.
const HOUSEKEEPING_PERIOD: Duration = Duration::from_secs(3_600);
const HOUSEKEEPING_RETRY: Duration = Duration::from_secs(60);

/// The other members, and how to be one of them.
pub struct Peering {
    pub ownership: Arc<dyn Ownership>,
    pub peers: Arc<dyn Peers>,
    pub profile: Profile,
    pub options: membership::Options,
    /// What the parts beside the scheduler count: told with what it counts itself.
    pub registry: Registry,
}

/// This member among the others.
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    pub(crate) membership: Membership,
    pub(crate) peers: PeerClient,
    pub(crate) options: membership::Options,
    /// Held from the look at what is owned until what follows from it is done: what is being let go of is not claimed
    /// again between its last write and its release, which would then free what is owned.
    changing: tokio::sync::Mutex<()>,
}

impl Cluster {
    /// Begins to join.
    pub(crate) fn join(shared: &Arc<Shared>, tasks: &TaskSet, peers: PeerClient, peering: Peering) -> Self {
        let Peering { ownership, profile, options, .. } = peering;
        let marked = shared.clone();
        let before_renewal: BeforeRenewal = Arc::new(move || {
            let shared = marked.clone();
            Box::pin(async move { apply_all_cancellations(&shared).await.is_ok() })
        });
        let membership = Membership::join(&shared.runtime, tasks, ownership, profile, options.clone(), before_renewal);
        Cluster { shared: shared.clone(), membership, peers, options, changing: tokio::sync::Mutex::default() }
    }

    /// Sees to it that what should be owned is, until `stop`; then hands everything over and leaves.
    pub(crate) async fn keep(&self, stop: CancellationToken) {
        let both = futures_util::future::join(self.balance_for_ever(), self.lead_for_ever());
        let _stopped = stop.run_until_cancelled(both).await;
        self.release_all().await;
        self.membership.leave().await;
    }

    /// As far as is known here.
    pub(crate) fn leads(&self) -> bool {
        let me = self.membership.lease().map(|lease| lease.member());
        me.is_some() && self.membership.view().borrow().leader() == me
    }

    /// Leads whenever nobody does, unless this member's clock is off.
    async fn lead_for_ever(&self) {
        let runtime = &self.shared.runtime;
        let mut next = runtime.monotonic();
        loop {
            runtime.sleep(PERIOD).await;
            if self.membership.clock_is_off() {
                if self.leads() {
                    let _may_fail = self.membership.release(vec![ClaimName::leader()]).await;
                }
                continue;
            }
            let is_vacant = self.membership.view().borrow().leader().is_none();
            if is_vacant && self.membership.lease().is_some() {
                let _may_fail = self.membership.claim(vec![ClaimName::leader()]).await;
            }
            if self.leads() && runtime.monotonic() >= next {
                let now = runtime.now();
                let after = match self.shared.store.maintain(now, self.history_from(now)).await {
                    Ok(0) => HOUSEKEEPING_PERIOD,
                    Ok(dropped) => {
                        tracing::info!(dropped, "the store's housekeeping dropped what nobody needs any more");
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

    /// A day of history goes as a whole.
    fn history_from(&self, now: Timestamp) -> Timestamp {
        const DAY: i64 = 86_400_000;
        let from = (now - self.shared.options.history).as_millis();
        Timestamp::from_millis(from - from.rem_euclid(DAY))
    }

    async fn balance_for_ever(&self) {
        let mut status = self.membership.status();
        let mut view = self.membership.view();
        let mut session = None;
        let mut known = BTreeMap::new();
        loop {
            let now = status.borrow_and_update().clone();
            tell_who_came_and_went(&mut known, &view.borrow_and_update());
            self.turn(now, &mut session).await;
            tokio::select! {
                biased;
                _ = status.changed() => {}
                _ = view.changed() => {}
                () = self.shared.runtime.sleep(PERIOD) => {}
            }
        }
    }

    async fn turn(&self, status: Status, session: &mut Option<MemberId>) {
        if let Some(offset) = self.membership.clock_offset() {
            self.shared.metrics.clock_skew_seconds.set(offset.ahead_millis as f64 / 1_000.0);
        }
        let Status::Joined { member, lease, clock_is_off } = status else {
            lose(&self.shared, &self.owned()).await;
            *session = None;
            return;
        };
        if *session != Some(member) {
            lose(&self.shared, &self.owned()).await;
            self.shared.lease.hold_under(lease);
            *session = Some(member);
        }
        if clock_is_off {
            self.release_all().await;
        } else if let Err(error) = self.balance(member).await {
            tracing::warn!(%error, "the shards cannot be shared out now; trying again");
        }
    }

    fn owned(&self) -> BTreeSet<ShardId> {
        self.shared.shards.owned().into_iter().collect()
    }

    /// Takes what should be this member's.
    async fn balance(&self, me: MemberId) -> Result<(), OwnershipError> {
        let changing = self.changing.lock().await;
        let view = self.membership.refresh().await?;
        let held = view.shards();
        let owned = self.owned();
        let mut free = Vec::new();
        let mut of_others: BTreeMap<MemberId, Vec<ShardId>> = BTreeMap::new();
        for (shard, owner) in plan(&view) {
            if owner != me || owned.contains(&shard) {
                continue;
            }
            match held.get(&shard) {
                Some(other) if *other != me => of_others.entry(*other).or_default().push(shard),
                _ => free.push(shard),
            }
        }
        self.take(free).await;
        drop(changing);
        let asked = of_others.into_iter().filter_map(|(other, shards)| Some((view.member(other)?, shards)));
        join_all(asked.map(|(other, shards)| self.take_from(me, other, shards))).await;
        Ok(())
    }

    async fn take_from(&self, me: MemberId, other: &Member, shards: Vec<ShardId>) {
        let asking = self.peers.request(other, &Release { member: me, shards });
        match self.shared.runtime.timeout(RELEASE_TIMEOUT, asking).await {
            Some(Ok(Ok(free))) => {
                let _one_change_at_a_time = self.changing.lock().await;
                self.take(free).await;
            }
            Some(Ok(Err(undone))) => tracing::debug!(member = other.name, ?undone, "a member does not let go yet"),
            Some(Err(error)) => tracing::warn!(%error, "a member that should let go of shards does not answer"),
            None => tracing::warn!(member = other.name, "a member takes too long to let go of shards"),
        }
    }

    /// Under the lock on changes.
    async fn take(&self, shards: Vec<ShardId>) {
        if shards.is_empty() {
            return;
        }
        let names = shards.iter().copied().map(ClaimName::shard).collect();
        let claimed = match self.membership.claim(names).await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::warn!(%error, "cannot claim shards; trying again");
                return;
            }
        };
        let ours: Vec<ShardId> =
            shards.into_iter().zip(claimed.held).filter_map(|(shard, held)| held.then_some(shard)).collect();
        if ours.is_empty() {
            return;
        }
        match gain(&self.shared, &ours).await {
            Ok(true) => tracing::info!(shards = ours.len(), "took shards"),
            Ok(false) => tracing::info!(shards = ours.len(), "the session ended before its shards were taken"),
            // They stay claimed, and are taken in the next turn.
            Err(error) => count_store_error(&self.shared.metrics, "take", &error),
        }
    }

    async fn release_all(&self) {
        let _one_change_at_a_time = self.changing.lock().await;
        self.release(self.owned()).await;
    }

    /// Lets go of these shards, of which some may be claimed only, and says so to all; those that are free now. Under
    /// the lock on changes.
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
                tracing::info!(shards = shards.len(), "let go of shards");
                shards.into_iter().collect()
            }
            Err(error) => {
                tracing::warn!(%error, "shards that were let go of are not released yet");
                Vec::new()
            }
        }
    }

    /// Another member asks for shards: it is given those that the plan does not give to this one. What is claimed and not
    /// owned goes, too: the answer to an earlier release may have been lost.
    pub(crate) async fn release_for(
        &self,
        asker: MemberId,
        shards: &[ShardId],
    ) -> Result<Vec<ShardId>, OwnershipError> {
        let _one_change_at_a_time = self.changing.lock().await;
        let view = self.membership.refresh().await?;
        let (plan, held) = (plan(&view), view.shards());
        let Some(me) = self.membership.lease().map(|lease| lease.member()) else { return Ok(Vec::new()) };
        let is_theirs = |shard: &ShardId| plan.get(shard) == Some(&asker) && held.get(shard) == Some(&me);
        Ok(self.release(shards.iter().copied().filter(is_theirs).collect()).await)
    }

    /// Who has claimed this shard, as far as is known; `None` if nobody has, or this member.
    pub(crate) fn holder(&self, shard: ShardId) -> Option<Member> {
        let view = self.membership.view().borrow().clone();
        let holder = *view.claims.get(&ClaimName::shard(shard))?;
        let is_other = self.membership.lease().is_none_or(|lease| lease.member() != holder);
        view.member(holder).filter(|_| is_other).cloned()
    }
}

/// To the log; `known` is by id, as a name may come again.
fn tell_who_came_and_went(known: &mut BTreeMap<MemberId, String>, view: &View) {
    let present: BTreeMap<MemberId, String> =
        view.members.iter().map(|member| (member.id, member.name.clone())).collect();
    for (_, name) in present.iter().filter(|(id, _)| !known.contains_key(*id)) {
        tracing::info!(member = name, "a member is there");
    }
    for (_, name) in known.iter().filter(|(id, _)| !present.contains_key(*id)) {
        tracing::info!(member = name, "a member is gone: it has left, or its lease has ended");
    }
    *known = present;
}

fn plan(view: &View) -> BTreeMap<ShardId, MemberId> {
    assign::plan(&view.shards(), &view.owners(), SHARDS)
}
