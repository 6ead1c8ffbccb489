//! Membership of a process in a cluster. It joins the cluster through an engine, renews its session and watches the
//! view. From this machine's clock, it derives when the process must stop using its claims.
//!
//! - A [`Lease`] is valid until a deadline that this machine computes alone: a time *before* the start of the last
//!   successful renewal, plus the length of the lease, minus a margin. The engine grants no claim of the session to
//!   another member before that deadline, so the engine need not notify this process of the end of the session.
//! - Before each renewal, the membership runs `before_renewal`. In this check, an owner processes the cancellation
//!   records of its shards. The membership renews the session only if the check returns true. The renewed lease counts
//!   from a time before the check began. If a record has been durable for the length of a lease, the owner has
//!   therefore processed the record, or the owner's lease has ended.
//! - After the membership loses its session, it opens another session, under a new [`MemberId`] and with a new
//!   [`Lease`]. The old lease never becomes valid again.
//! - While this machine's clock is wrong, the membership announces that this member takes no shards ([`Member::owns`]),
//!   so the plans of other members assign no shards to this member.
//! - The membership reads the view again in four cases: the engine hints at a change, the first session of the view may
//!   have ended, the view has reached its largest age, or the caller requests the read.
//!
//! This module does not choose the names to claim; [`crate::assign`] plans them. The module does not stop work that the
//! owner has in progress.

mod clock;
mod contact;
mod keeper;
mod lease;
mod watcher;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use instants::Timestamp;
use runtime::{Runtime, TaskSet};
use tokio::sync::{Notify, watch};

use self::clock::Clock;
use self::contact::Contact;
use self::keeper::Keeper;
use crate::{ClaimName, Member, MemberId, Ownership, OwnershipError, View};

pub use clock::ClockOffset;
pub use contact::Outage;
pub use lease::Lease;

/// Check that runs before every renewal. The membership renews the session only if the check returns true in time.
pub type BeforeRenewal = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Length of the lease: the time for which a dead member keeps its claims. Default 6 s. If the value is too small,
    /// the member loses its shards during a short stall of the engine or of this process. If the value is too large, a
    /// dead member's shards have no owner for a long time. `Duration::MAX` disables renewals, for an engine whose
    /// sessions never end.
    pub lease: Duration,
    /// Time by which the lease ends earlier in this process than in the engine, because clocks run at different rates.
    /// Default a tenth of the lease. This margin is thousands of times larger than the error of real clocks. The margin
    /// also covers the time between the last check of the lease and the start of a callback.
    pub margin: Duration,
    /// Largest age of the view. Default 1 s. If the value is too small, the reads of all members load the engine. If
    /// the value is too large, hand-overs take longer when the engine loses hints of changes.
    pub view_period: Duration,
    /// Largest permitted difference between the engine's wall clock and this machine's wall clock, in addition to the
    /// uncertainty of the measurement. Default 500 ms. While the difference is larger, the member owns no shards,
    /// because its callbacks would be late. [`Membership::clock_limit`] prevents callbacks that are early by more.
    pub clock_offset_max: Duration,
    /// Address of the engine, without a password, for log lines and [`Outage`]. Default `unknown address`.
    pub engine: String,
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

    /// Wait between a failed call and the next attempt of the call.
    fn retry_backoff(&self) -> Duration {
        self.lease.min(Self::PACE_LEASE_MAX) / 20
    }

    /// Time without a response after which the engine counts as lost. A single slow call is no loss.
    fn contact_limit(&self) -> Duration {
        self.lease.min(Self::PACE_LEASE_MAX) / 2
    }

    /// Length of the lease up to which the time limit of a call and the wait before a retry increase with the lease.
    /// Both values are the same for all longer leases.
    const PACE_LEASE_MAX: Duration = Duration::from_secs(10);
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lease: Duration::from_secs(6),
            margin: Duration::from_millis(600),
            view_period: Duration::from_secs(1),
            clock_offset_max: Duration::from_millis(500),
            engine: "unknown address".to_owned(),
        }
    }
}

/// Data of a [`Member`] without its id.
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

/// State of a membership. The channel that reports the state retains only the latest value. A receiver may therefore
/// see two values `Joined` with different members, and miss the value `Lost` between them.
#[derive(Clone, Debug)]
pub enum Status {
    /// The membership has not opened a session yet.
    Joining,
    /// A session is open. While `clock_is_off` is true, the member must not own shards, because it would fire schedules
    /// at the wrong instants.
    Joined { member: MemberId, lease: Lease, clock_is_off: bool },
    /// The session has ended. The membership is opening another session.
    Lost,
    /// [`Membership::leave`] was called.
    Left,
}

/// Result of [`Membership::claim`].
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Lease of the session that claims the names.
    pub lease: Lease,
    /// Result for each name: true if this member now holds the name's claim.
    pub held: Vec<bool>,
}

/// Handle to a membership. A clone of the handle is cheap. The tasks of the membership end after [`Membership::leave`],
/// or when their task set ends.
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
    /// Lock that a read of the view holds, so that no task publishes an older view after a newer view.
    looking: tokio::sync::Mutex<()>,
    look_again: Notify,
    clock: Mutex<Clock>,
    contact: Mutex<Contact>,
    /// Signal that a call has reported the session as lost. It wakes the task that renews the session.
    lost: Notify,
    stop: watch::Sender<bool>,
}

impl Membership {
    /// Starts a task that joins the cluster, and that repeats the join until it succeeds. [`Membership::status`]
    /// reports the result.
    ///
    /// # Panics
    /// Panics if the lease does not exceed its margin.
    pub fn join(
        runtime: &Runtime,
        tasks: &TaskSet,
        ownership: Arc<dyn Ownership>,
        profile: Profile,
        options: Options,
        before_renewal: BeforeRenewal,
    ) -> Self {
        assert!(options.margin < options.lease, "the lease must be longer than its margin: {options:?}");
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            ownership,
            clock: Mutex::new(Clock::new(options.clock_offset_max)),
            contact: Mutex::new(Contact::new(runtime.monotonic())),
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

    /// Waits until a session is open, and returns the session's lease.
    ///
    /// # Errors
    /// Returns [`OwnershipError::Lost`] if the caller has ended the membership with [`Membership::leave`].
    pub async fn joined(&self) -> Result<Lease, OwnershipError> {
        let mut status = self.status();
        let is_decided = |status: &Status| matches!(status, Status::Joined { .. } | Status::Left);
        match &*status.wait_for(is_decided).await.expect("this handle owns the channel's sender") {
            Status::Joined { lease, .. } => Ok(lease.clone()),
            Status::Joining | Status::Lost | Status::Left => Err(OwnershipError::Lost),
        }
    }

    /// Returns the lease of the current session. Returns `None` if no session is open or the lease has ended.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        match &*self.shared.status.borrow() {
            Status::Joined { lease, .. } => Some(lease.clone()),
            Status::Joining | Status::Lost | Status::Left => None,
        }
        .filter(|lease| lease.is_valid(self.shared.runtime.monotonic()))
    }

    /// Returns the outage of the engine, or `None` if the engine responds. The membership continues to call the engine
    /// during an outage.
    #[must_use]
    pub fn outage(&self) -> Option<Outage> {
        let lasted = self.shared.contact().lost_for(self.shared.runtime.monotonic())?;
        Some(Outage { engine: self.shared.options.engine.clone(), lasted })
    }

    /// Returns whether this machine's clock and the engine's clock differ too much, according to the last measurements.
    #[must_use]
    pub fn clock_is_off(&self) -> bool {
        self.shared.clock().is_off()
    }

    /// Returns the last measured difference between the engine's clock and this machine's clock. Returns `None` before
    /// the first measurement.
    #[must_use]
    pub fn clock_offset(&self) -> Option<ClockOffset> {
        self.shared.clock().offset()
    }

    /// Returns the latest time that this machine's wall clock may show now. The limit is the engine's clock at the last
    /// measurement, plus the monotonic time since then, plus [`Options::clock_offset_max`]. A member that uses the
    /// earlier of its wall clock and this limit does nothing early, even if its wall clock leaps between two
    /// measurements. Returns `None` before the first measurement, and for an engine whose sessions never end.
    #[must_use]
    pub fn clock_limit(&self) -> Option<Timestamp> {
        let is_measured_again = self.shared.options.lease != Duration::MAX;
        self.shared.clock().limit(self.shared.runtime.monotonic()).filter(|_| is_measured_again)
    }

    /// Returns a channel with the latest view, which is empty at first. The channel notifies its receivers only when
    /// members or claims change.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<Arc<View>> {
        self.shared.view.subscribe()
    }

    /// Reads the view from the engine. The result is at least as new as the start of this call.
    ///
    /// # Errors
    /// Returns the errors of [`Ownership::view`], and [`OwnershipError::Unavailable`] if the read takes too long.
    pub async fn refresh(&self) -> Result<Arc<View>, OwnershipError> {
        self.shared.refresh().await
    }

    /// Claims names for the current session. If the engine's response gets lost, the claim may still take effect, now
    /// or later. A caller that releases its names must therefore read from the view which names it holds.
    ///
    /// # Errors
    /// Returns [`OwnershipError::Lost`] if no session is open, or if the session ended during the call, together with
    /// its claims. After [`OwnershipError::Unavailable`] the engine may or may not have granted the claims: claim the
    /// names again, or release them.
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

    /// Releases names of the current session. Does nothing if no session is open. The caller must first stop all work
    /// that relies on the names.
    ///
    /// # Errors
    /// Returns the errors of [`Ownership::release`]. After [`OwnershipError::Unavailable`], the engine may or may not
    /// have released the names.
    pub async fn release(&self, names: Vec<ClaimName>) -> Result<(), OwnershipError> {
        let Some(lease) = self.lease() else { return Ok(()) };
        self.shared.limited(self.shared.ownership.release(lease.member(), names)).await?;
        self.shared.look_again.notify_one();
        Ok(())
    }

    /// Ends the lease immediately, then ends the session and all its claims, and finally stops the membership's tasks.
    /// If the engine is unreachable, the claims become free when the lease expires. The caller must first stop all work
    /// that relies on the claims.
    pub async fn leave(&self) {
        self.shared.stop.send_replace(true);
        let mut status = self.status();
        let left = status.wait_for(|status| matches!(status, Status::Left));
        // If the caller has ended the task set of the membership, no task reports `Status::Left`. This wait therefore
        // has a time limit.
        let _reported = self.shared.runtime.timeout(self.shared.options.call_limit() * 2, left).await;
    }
}

impl Shared {
    /// Runs a call with a time limit. After a timeout, the caller does not know whether the call took effect.
    async fn limited<T>(&self, call: impl Future<Output = Result<T, OwnershipError>>) -> Result<T, OwnershipError> {
        let limit = self.options.call_limit();
        let response = self.runtime.timeout(limit, call).await;
        let no_response = || Err(OwnershipError::Unavailable(format!("no response within {limit:?}")));
        let response = response.unwrap_or_else(no_response);
        if let Err(error @ (OwnershipError::Unavailable(_) | OwnershipError::Rejected(_))) = &response {
            let now = self.runtime.monotonic();
            self.contact().failed(now, self.options.contact_limit(), &self.options.engine, error);
        }
        response
    }

    /// Records that the engine has responded. An engine may handle some calls without contact to its server, so only the
    /// callers that need the server's response call this function.
    fn responded(&self) {
        self.contact().responded(self.runtime.monotonic(), &self.options.engine);
    }

    /// Records the end of a session. The engine counts as lost if it has not responded for some time, even if no call has
    /// failed since then.
    fn session_ended(&self) {
        let error = OwnershipError::Unavailable("no response until the end of the lease".to_owned());
        let now = self.runtime.monotonic();
        self.contact().failed(now, self.options.contact_limit(), &self.options.engine, &error);
    }

    fn is_engine_lost(&self) -> bool {
        self.contact().lost_for(self.runtime.monotonic()).is_some()
    }

    fn contact(&self) -> std::sync::MutexGuard<'_, Contact> {
        self.contact.lock().expect("no holder of this lock panics")
    }

    async fn refresh(&self) -> Result<Arc<View>, OwnershipError> {
        let _one_at_a_time = self.looking.lock().await;
        let view = Arc::new(self.limited(self.ownership.view()).await?);
        self.responded();
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
