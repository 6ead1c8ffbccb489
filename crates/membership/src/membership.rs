//! The membership that every process runs over an engine: it joins, renews its session, watches the view, and
//! derives from its own clock when the process must stop using its claims.
//!
//! - A [`Lease`] is valid until a deadline that this machine computes alone: the time *before* the last successful
//!   renewal began, plus the lease, minus a margin. The engine grants no claim of the session to another member
//!   before that deadline, so no message is needed.
//! - Before each renewal `before_renewal` runs, in which an owner processes its shards' cancellation records. The
//!   session is renewed only if it returns true. The lease counts from the time before it ran. Every record that
//!   has been durable for a whole lease is therefore processed, or the lease has ended.
//! - After a lost session the membership opens another one, under a new [`MemberId`] and with a new [`Lease`]. The
//!   old lease never becomes valid again.
//! - While this machine's clock is off, other members see a member that takes no shards ([`Member::owns`]), and
//!   plan without it.
//! - The view is refreshed when the engine hints at a change, when the first session may end, periodically, and on
//!   request.
//!
//! This module does not decide which names to claim ([`crate::assign`] does), and it does not stop the owner's
//! work in progress.

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

/// Check that runs before every renewal. The session is renewed only if the check returns true in time.
pub type BeforeRenewal = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Time for which a dead member keeps its claims. Default 6 s. With a value that is too small, a stall of the
    /// engine or of this process loses shards unnecessarily; with a value that is too large, a dead member's
    /// shards wait. `Duration::MAX` disables renewals, for an engine whose sessions never end.
    pub lease: Duration,
    /// Time by which the lease ends earlier here than in the engine, because clocks run at different rates.
    /// Default a tenth of the lease. That is thousands of times what real clocks need, and gives the last callback
    /// time to begin.
    pub margin: Duration,
    /// Largest age of the view. Default 1 s. A value that is too small lets every member load the engine; a value
    /// that is too large delays hand-overs when hints of changes get lost.
    pub view_period: Duration,
    /// Largest difference between the engine's wall clock and this machine's, beyond the uncertainty of the
    /// measurement. Default 500 ms. Beyond it, one of the two clocks would make callbacks early or late, so the
    /// member owns no shards.
    pub clock_offset_max: Duration,
}

impl Options {
    #[must_use]
    pub fn with_lease(lease: Duration) -> Self {
        Options { lease, margin: lease / 10, ..Options::default() }
    }

    /// Time limit of one call to the engine.
    fn call_limit(&self) -> Duration {
        self.lease.min(Self::PACE_LEASE_MAX) / 4
    }

    /// Wait between a failure and the next attempt.
    fn retry_backoff(&self) -> Duration {
        self.lease.min(Self::PACE_LEASE_MAX) / 20
    }

    /// Longest lease that lengthens these limits.
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

/// A [`Member`] without its id.
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

/// State of a membership. The channel keeps only the latest value: a receiver may see one `Joined` after another,
/// with a different member, and miss the `Lost` between them.
#[derive(Clone, Debug)]
pub enum Status {
    /// No session was opened yet.
    Joining,
    /// A session is open. While `clock_is_off`, the member must not own shards, because it would fire at the wrong
    /// instants.
    Joined { member: MemberId, lease: Lease, clock_is_off: bool },
    /// The session has ended; the membership is opening another.
    Lost,
    /// [`Membership::leave`] was called.
    Left,
}

/// Result of [`Membership::claim`].
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The lease under which the names are claimed.
    pub lease: Lease,
    /// Result per name: true if this member holds it now.
    pub held: Vec<bool>,
}

/// A cheap handle to a membership. Its tasks end with [`Membership::leave`] or with their task set.
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
    /// Held during a read of the view, so that an older view is never published after a newer one.
    looking: tokio::sync::Mutex<()>,
    look_again: Notify,
    clock: Mutex<Clock>,
    /// Notified when a call reports that the session is lost.
    lost: Notify,
    stop: watch::Sender<bool>,
}

impl Membership {
    /// Starts to join, and retries until it succeeds. [`Membership::status`] reports the result.
    ///
    /// # Panics
    /// Panics if the margin is not below the lease.
    pub fn join(
        runtime: &Runtime,
        tasks: &TaskSet,
        ownership: Arc<dyn Ownership>,
        profile: Profile,
        options: Options,
        before_renewal: BeforeRenewal,
    ) -> Self {
        assert!(options.margin < options.lease, "the lease must exceed its margin: {options:?}");
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
    /// Returns [`OwnershipError::Lost`] if the membership was left.
    pub async fn joined(&self) -> Result<Lease, OwnershipError> {
        let mut status = self.status();
        let is_decided = |status: &Status| matches!(status, Status::Joined { .. } | Status::Left);
        match &*status.wait_for(is_decided).await.expect("this handle keeps the sender") {
            Status::Joined { lease, .. } => Ok(lease.clone()),
            Status::Joining | Status::Lost | Status::Left => Err(OwnershipError::Lost),
        }
    }

    /// Lease of the current session; `None` if no session is open or its lease has ended.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        match &*self.shared.status.borrow() {
            Status::Joined { lease, .. } => Some(lease.clone()),
            Status::Joining | Status::Lost | Status::Left => None,
        }
        .filter(|lease| lease.is_valid(self.shared.runtime.monotonic()))
    }

    /// Returns whether, by the last measurements, this machine's clock and the engine's differ too much.
    #[must_use]
    pub fn clock_is_off(&self) -> bool {
        self.shared.clock().is_off()
    }

    /// Difference between the engine's clock and this machine's, measured by the last call; `None` before the
    /// first.
    #[must_use]
    pub fn clock_offset(&self) -> Option<ClockOffset> {
        self.shared.clock().offset()
    }

    /// Latest view, empty at first. It changes only when members or claims change.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<Arc<View>> {
        self.shared.view.subscribe()
    }

    /// Reads the view; the read starts after this call began.
    ///
    /// # Errors
    /// The errors of [`Ownership::view`]; [`OwnershipError::Unavailable`] if the read takes too long.
    pub async fn refresh(&self) -> Result<Arc<View>, OwnershipError> {
        self.shared.refresh().await
    }

    /// Claims names for the current session. A claim whose response was lost may still take effect, now or later,
    /// so callers that release names must take them from the view.
    ///
    /// # Errors
    /// Returns [`OwnershipError::Lost`] if there is no session, or it ended during the call; its claims ended as well.
    /// After [`OwnershipError::Unavailable`] the claims are uncertain: claim again, or release.
    pub async fn claim(&self, names: Vec<ClaimName>) -> Result<Claimed, OwnershipError> {
        let lease = self.lease().ok_or(OwnershipError::Lost)?;
        let response = self.shared.limited(self.shared.ownership.claim(lease.member(), names)).await;
        if response == Err(OwnershipError::Lost) {
            self.shared.lose(&lease);
        }
        let held = response?;
        self.shared.look_again.notify_one();
        if !lease.is_valid(self.shared.runtime.monotonic()) {
            return Err(OwnershipError::Lost);
        }
        Ok(Claimed { lease, held })
    }

    /// Releases names of the current session; does nothing without a session. Stop all work that relies on the
    /// names first.
    ///
    /// # Errors
    /// [`OwnershipError::Unavailable`]: the names may or may not be free.
    pub async fn release(&self, names: Vec<ClaimName>) -> Result<(), OwnershipError> {
        let Some(lease) = self.lease() else { return Ok(()) };
        self.shared.limited(self.shared.ownership.release(lease.member(), names)).await?;
        self.shared.look_again.notify_one();
        Ok(())
    }

    /// Ends the lease at once, then the session and all its claims, then the tasks. If the engine cannot be
    /// reached, the claims become free at the end of the lease. Stop all work that relies on the claims first.
    pub async fn leave(&self) {
        self.shared.stop.send_replace(true);
        let mut status = self.status();
        let left = status.wait_for(|status| matches!(status, Status::Left));
        // If the task ended together with its task set, it never reports this status.
        let _reported = self.shared.runtime.timeout(self.shared.options.call_limit() * 2, left).await;
    }
}

impl Shared {
    /// Limits the time of a call. After a timeout, the effect of the call is unknown.
    async fn limited<T>(&self, call: impl Future<Output = Result<T, OwnershipError>>) -> Result<T, OwnershipError> {
        let limit = self.options.call_limit();
        let response = self.runtime.timeout(limit, call).await;
        response.unwrap_or_else(|| Err(OwnershipError::Unavailable(format!("no response within {limit:?}"))))
    }

    async fn refresh(&self) -> Result<Arc<View>, OwnershipError> {
        let _one_at_a_time = self.looking.lock().await;
        let view = Arc::new(self.limited(self.ownership.view()).await?);
        self.view.send_if_modified(|known| {
            let is_new = !known.has_same_content(&view);
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
        let _stop = stop.wait_for(|stop| *stop).await.expect("`self` keeps the sender");
    }

    fn clock(&self) -> std::sync::MutexGuard<'_, Clock> {
        self.clock.lock().expect("no holder of this lock panics")
    }
}
