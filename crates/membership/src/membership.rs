//! What every process runs over an engine: it joins, renews, watches the view, and knows by its own clock when it must
//! stop.
//!
//! - [`Lease`]: valid until a moment that this machine computes alone: *before* the last successful renewal began, plus
//!   the lease, less a margin. Nobody's claim is given away before; no message is needed to know it.
//! - Before each renewal `before_renewal` runs (an owner obeys its shards' cancel marks there), and without its "yes"
//!   there is none. The lease counts from before it ran: whatever was durable a whole lease ago has been obeyed, or
//!   the lease is over.
//! - A session that is lost is followed by another, under a new [`MemberId`] and a new [`Lease`]; the old lease is over
//!   for ever.
//! - While this machine's clock is off, the others see a member that takes no shards ([`Member::owns`]), and plan
//!   without it.
//! - The view is refreshed when the engine hints at a change, when the first session may end, on a period, and when
//!   asked to.
//!
//! What it does not do: decide what to claim ([`crate::assign`]), or stop what the owner has in flight.

mod clock;
mod keeper;
mod lease;
mod watcher;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use runtime::{Runtime, TaskSet};
use tokio::sync::{Notify, watch};

use self::clock::Clock;
use self::keeper::Keeper;
use crate::{ClaimName, Member, MemberId, Ownership, OwnershipError, View};

pub use clock::ClockOffset;
pub use lease::Lease;

/// Run before every renewal; there is none unless it says true, and soon.
pub type BeforeRenewal = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// How long a member that is dead keeps its claims. Default 6 s. Too small: a stall of the engine or of this
    /// process loses shards for nothing; too large: a dead member's shards wait. `Duration::MAX` with an engine whose
    /// sessions never end: no renewals.
    pub lease: Duration,
    /// By how much the lease is over sooner here than in the engine: for clocks that run at different rates. Default
    /// a tenth of the lease, which is thousands of times what real clocks need, and gives the last callback time to begin.
    pub margin: Duration,
    /// How old the view may grow. Default 1 s. Too small: load on the engine from every member; too large: where hints
    /// of changes get lost, hand-overs wait.
    pub view_period: Duration,
    /// How far the engine's wall clock may be from this machine's, beyond what the measurement leaves open. Default
    /// 500 ms. Above it, one of the two would fire early or late: own nothing.
    pub clock_offset_max: Duration,
}

impl Options {
    #[must_use]
    pub fn with_lease(lease: Duration) -> Self {
        Options { lease, margin: lease / 10, ..Options::default() }
    }

    /// How long one call to the engine may take.
    fn call_limit(&self) -> Duration {
        self.lease.min(Self::PACE_LEASE_MAX) / 4
    }

    /// From one failure to the next try.
    fn retry_pause(&self) -> Duration {
        self.lease.min(Self::PACE_LEASE_MAX) / 20
    }

    /// Longer leases do not make calls more patient.
    const PACE_LEASE_MAX: Duration = Duration::from_secs(10);
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lease: Duration::from_secs(6),
            margin: Duration::from_millis(600),
            view_period: Duration::from_secs(1),
            clock_offset_max: Duration::from_millis(500),
        }
    }
}

/// A [`Member`] without the id of its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    pub name: String,
    pub address: String,
    pub owns: bool,
    pub build: String,
}

impl Profile {
    fn member(&self, id: MemberId) -> Member {
        let Profile { name, address, owns, build } = self.clone();
        Member { id, name, address, owns, build }
    }
}

/// Where a membership is. The latest value only is kept: a watcher may see one `Joined` after another, with another
/// member, and never the `Lost` between them.
#[derive(Clone, Debug)]
pub enum Status {
    /// There was no session yet.
    Joining,
    /// While `clock_is_off`, own nothing, for it would fire at the wrong instants.
    Joined { member: MemberId, lease: Lease, clock_is_off: bool },
    /// The session is over; another is being opened.
    Lost,
    /// [`Membership::leave`] was called.
    Left,
}

/// What [`Membership::claim`] was answered.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// What was claimed is held under this lease, and no other.
    pub lease: Lease,
    /// For each name, whether it is this member's now.
    pub held: Vec<bool>,
}

/// A cheap handle. The tasks behind it end with [`Membership::leave`] or with their task set.
#[derive(Clone)]
pub struct Membership {
    shared: Arc<Shared>,
}

struct Shared {
    runtime: Runtime,
    ownership: Arc<dyn Ownership>,
    options: Options,
    status: watch::Sender<Status>,
    view: watch::Sender<Arc<View>>,
    /// Held while the engine is asked for the view, so that no view is published after a newer one.
    looking: tokio::sync::Mutex<()>,
    look_again: Notify,
    clock: Mutex<Clock>,
    /// The session was heard to be lost.
    lost: Notify,
    stop: watch::Sender<bool>,
}

impl Membership {
    /// Begins to join, and goes on trying; [`Membership::status`] tells when it has.
    ///
    /// # Panics
    /// If the margin is not below the lease.
    pub fn join(
        runtime: &Runtime,
        tasks: &TaskSet,
        ownership: Arc<dyn Ownership>,
        profile: Profile,
        options: Options,
        before_renewal: BeforeRenewal,
    ) -> Self {
        assert!(options.margin < options.lease, "a lease is longer than its margin: {options:?}");
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            ownership,
            clock: Mutex::new(Clock::new(options.clock_offset_max)),
            options,
            status: watch::Sender::new(Status::Joining),
            view: watch::Sender::new(Arc::default()),
            looking: tokio::sync::Mutex::default(),
            look_again: Notify::new(),
            lost: Notify::new(),
            stop: watch::Sender::new(false),
        });
        tasks.spawn("membership", Keeper::new(shared.clone(), profile, before_renewal).run());
        tasks.spawn("membership view", watcher::run(shared.clone()));
        Membership { shared }
    }

    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Waits for a session.
    ///
    /// # Errors
    /// [`OwnershipError::Lost`] if the membership was left.
    pub async fn joined(&self) -> Result<Lease, OwnershipError> {
        let mut status = self.status();
        let is_settled = |status: &Status| matches!(status, Status::Joined { .. } | Status::Left);
        match &*status.wait_for(is_settled).await.expect("this handle keeps the sender") {
            Status::Joined { lease, .. } => Ok(lease.clone()),
            Status::Joining | Status::Lost | Status::Left => Err(OwnershipError::Lost),
        }
    }

    /// The lease of the present session; `None` if there is none, or its lease is over.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        match &*self.shared.status.borrow() {
            Status::Joined { lease, .. } => Some(lease.clone()),
            Status::Joining | Status::Lost | Status::Left => None,
        }
        .filter(|lease| lease.is_valid(self.shared.runtime.monotonic()))
    }

    /// Whether the last measurements say that this machine's clock and the engine's are too far apart.
    #[must_use]
    pub fn clock_is_off(&self) -> bool {
        self.shared.clock().is_off()
    }

    /// How far the engine's clock is ahead, as measured by the last call; `None` before the first.
    #[must_use]
    pub fn clock_offset(&self) -> Option<ClockOffset> {
        self.shared.clock().offset()
    }

    /// The latest view that was seen; empty at first. It changes only when members or claims do.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<Arc<View>> {
        self.shared.view.subscribe()
    }

    /// The view as it is now, read after this call began.
    ///
    /// # Errors
    /// As [`Ownership::view`]; [`OwnershipError::Unavailable`] if it takes too long.
    pub async fn refresh(&self) -> Result<Arc<View>, OwnershipError> {
        self.shared.refresh().await
    }

    /// Claims names for the present session. One whose answer never came may be held all the same, then or later:
    /// whoever looks for what to release looks at the view for it.
    ///
    /// # Errors
    /// [`OwnershipError::Lost`] if there is none, or it ended meanwhile: what was claimed is gone with it.
    /// [`OwnershipError::Unavailable`]: it is not known what was claimed; claim again, or release.
    pub async fn claim(&self, names: Vec<ClaimName>) -> Result<Claimed, OwnershipError> {
        let lease = self.lease().ok_or(OwnershipError::Lost)?;
        let answer = self.shared.limited(self.shared.ownership.claim(lease.member(), names)).await;
        if answer == Err(OwnershipError::Lost) {
            self.shared.lose(&lease);
        }
        let held = answer?;
        self.shared.look_again.notify_one();
        if !lease.is_valid(self.shared.runtime.monotonic()) {
            return Err(OwnershipError::Lost);
        }
        Ok(Claimed { lease, held })
    }

    /// Releases names of the present session; without one nothing is held. Stop what they stand for before.
    ///
    /// # Errors
    /// [`OwnershipError::Unavailable`]: it is not known whether they are free.
    pub async fn release(&self, names: Vec<ClaimName>) -> Result<(), OwnershipError> {
        let Some(lease) = self.lease() else { return Ok(()) };
        self.shared.limited(self.shared.ownership.release(lease.member(), names)).await?;
        self.shared.look_again.notify_one();
        Ok(())
    }

    /// Ends the lease at once, then the session and all its claims; the tasks end. If the engine cannot be reached,
    /// the claims are free at the end of the lease. Stop what the claims stand for before.
    pub async fn leave(&self) {
        self.shared.stop.send_replace(true);
        let mut status = self.status();
        let left = status.wait_for(|status| matches!(status, Status::Left));
        // The task may have been ended with its set, and would never say so.
        let _said = self.shared.runtime.timeout(self.shared.options.call_limit() * 2, left).await;
    }
}

impl Shared {
    /// A call that takes too long is given up: its effect is not known.
    async fn limited<T>(&self, call: impl Future<Output = Result<T, OwnershipError>>) -> Result<T, OwnershipError> {
        let limit = self.options.call_limit();
        let answer = self.runtime.timeout(limit, call).await;
        answer.unwrap_or_else(|| Err(OwnershipError::Unavailable(format!("no answer within {limit:?}"))))
    }

    async fn refresh(&self) -> Result<Arc<View>, OwnershipError> {
        let _one_at_a_time = self.looking.lock().await;
        let view = Arc::new(self.limited(self.ownership.view()).await?);
        self.view.send_if_modified(|known| {
            let is_new = !known.shows_the_same(&view);
            *known = view.clone();
            is_new
        });
        Ok(view)
    }

    fn lose(&self, lease: &Lease) {
        lease.end();
        self.lost.notify_one();
    }

    async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        let _stop = stop.wait_for(|stop| *stop).await.expect("this keeps the sender");
    }

    fn clock(&self) -> std::sync::MutexGuard<'_, Clock> {
        self.clock.lock().expect("no holder of this lock panics")
    }
}
