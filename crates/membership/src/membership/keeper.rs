//! Task that opens sessions and renews them.

use std::sync::Arc;
use std::time::Duration;

use runtime::{Monotonic, Runtime};

use super::clock::CallStart;
use super::{BeforeRenewal, Lease, Profile, Shared, Status};
use crate::{Member, MemberId, Ownership, OwnershipError, Renewed};

pub(super) struct Keeper {
    shared: Arc<Shared>,
    profile: Profile,
    before_renewal: BeforeRenewal,
    /// Id of the member whose session this task opens and renews. The session may be open although the join got no
    /// response.
    member: MemberId,
    /// Value of [`Member::owns`] that the engine shows for this member. `None` if this value is unknown.
    announced_owns: Option<bool>,
    /// Cause of the last failed check before a renewal, which the task has logged.
    logged_check: Option<&'static str>,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, profile: Profile, before_renewal: BeforeRenewal) -> Self {
        let member = MemberId::random(&shared.runtime);
        Keeper { shared, profile, before_renewal, member, announced_owns: None, logged_check: None }
    }

    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        tokio::select! {
            biased;
            () = shared.stopped() => {}
            () = self.run_sessions() => {}
        }
        self.end_lease();
        if let Err(error) = self.leave().await {
            let member = self.member;
            tracing::warn!(
                %error,
                %member,
                "cannot leave the cluster; the member's claims become free when its lease ends"
            );
        }
        self.shared.status.send_replace(Status::Left);
    }

    /// Opens the next session whenever a session has ended.
    async fn run_sessions(&mut self) {
        loop {
            let (lease, renewed) = self.join().await;
            tracing::info!(member = %self.member, name = self.profile.name, "member joined");
            self.publish(&lease);
            self.keep(&lease, renewed).await;
            self.end_lease();
            self.shared.status.send_replace(Status::Lost);
            // This call of `leave` ends the session and its claims before the lease ends in the engine. If the engine
            // is unreachable, the session ends with its lease.
            let _gone = self.leave().await;
            // The contact with the engine logs the start and the end of an outage.
            self.shared.session_ended();
            if self.shared.is_engine_lost() {
                tracing::debug!(member = %self.member, "session lost because of an outage of the engine");
            } else {
                tracing::warn!(member = %self.member, "session lost; the member no longer owns its claims, and joins \
                                                       again");
            }
            self.member = MemberId::random(&self.shared.runtime);
        }
    }

    /// Repeats the join until a session is open. Returns the lease of the session, and the time at which the successful
    /// join began.
    async fn join(&mut self) -> (Lease, Monotonic) {
        let mut logged = None;
        loop {
            let began = self.runtime().monotonic();
            match self.open().await {
                Ok(()) => {
                    let lease = Lease::new(self.member, self.deadline(began));
                    if lease.is_valid(self.runtime().monotonic()) {
                        return (lease, began);
                    }
                    // The response arrived after the end of the lease, for example because the machine paused the
                    // process.
                    let _gone = self.leave().await;
                    self.member = MemberId::random(self.runtime());
                }
                Err(OwnershipError::Lost) => self.member = MemberId::random(self.runtime()),
                Err(error) => {
                    // The task logs an error only once while the error persists. The contact with the engine logs an
                    // outage.
                    if !error.is_retryable() && logged.as_ref() != Some(&error) {
                        tracing::warn!(%error, "cannot join; retrying");
                        logged = Some(error);
                    }
                    self.back_off().await;
                }
            }
        }
    }

    /// Opens the session, or updates the member's data in an open session. While this machine's clock is wrong, the
    /// data state that the member takes no shards, so the plans of other members assign no shards to it.
    async fn open(&mut self) -> Result<(), OwnershipError> {
        let owns = self.owns();
        self.announced_owns = None;
        let member = Member { owns, ..self.profile.member(self.member) };
        self.measured(self.ownership().join(member, self.shared.options.lease)).await?;
        self.announced_owns = Some(owns);
        Ok(())
    }

    fn owns(&self) -> bool {
        self.profile.owns && !self.shared.clock().is_off()
    }

    /// Renews the session until the lease ends.
    async fn keep(&mut self, lease: &Lease, renewed: Monotonic) {
        let shared = self.shared.clone();
        tokio::select! {
            biased;
            () = lease_end(&shared, lease) => {}
            () = self.renew(lease, renewed) => {}
        }
    }

    async fn renew(&mut self, lease: &Lease, renewed: Monotonic) {
        if self.shared.options.lease == Duration::MAX {
            return std::future::pending().await;
        }
        let period = self.shared.options.lease / 3;
        let mut next = renewed + period;
        loop {
            if self.announced_owns == Some(self.owns()) {
                self.runtime().sleep_until(next).await;
            }
            // The task reads the clock before it runs the check that precedes each renewal, because the lease counts
            // from the start of this check.
            let began = self.runtime().monotonic();
            match self.try_renew().await {
                Ok(()) if lease.extend(self.runtime().monotonic(), self.deadline(began)) => {
                    self.publish(lease);
                    next = began + period;
                }
                Ok(()) | Err(OwnershipError::Lost) => return,
                Err(error) => {
                    // The contact with the engine logs an outage.
                    tracing::debug!(%error, "cannot renew the session; retrying until the lease ends");
                    self.back_off().await;
                }
            }
        }
    }

    async fn try_renew(&mut self) -> Result<(), OwnershipError> {
        let approved = self.runtime().timeout(self.shared.options.call_limit(), (self.before_renewal)()).await;
        if approved != Some(true) {
            let why = match approved {
                None => "the check before the session renewal timed out",
                Some(_) => "the check before the session renewal failed",
            };
            // The task logs the cause only once while it persists.
            if self.logged_check != Some(why) {
                self.logged_check = Some(why);
                tracing::warn!(why, "cannot renew the session; retrying until the lease ends");
            }
            return Err(OwnershipError::Unavailable(why.to_owned()));
        }
        self.logged_check = None;
        if self.announced_owns != Some(self.owns()) {
            return self.open().await;
        }
        self.measured(self.ownership().renew(self.member, self.shared.options.lease)).await
    }

    /// Awaits a call that returns the engine's time, and records the offset of the clocks.
    async fn measured(&self, call: crate::Answer<'_, Renewed>) -> Result<(), OwnershipError> {
        let start = CallStart::now(self.runtime());
        let renewed = self.shared.limited(call).await?;
        self.shared.responded();
        let measurement = start.measurement(self.runtime(), renewed);
        let mut clock = self.shared.clock();
        if clock.measured(measurement) {
            let ahead_millis = measurement.offset.ahead_millis;
            if clock.is_off() {
                tracing::warn!(
                    ahead_millis,
                    "the engine's clock and this machine's clock differ too much; synchronize the clocks (NTP)"
                );
            } else {
                tracing::info!(ahead_millis, "the engine's clock and this machine's clock agree again");
            }
        }
        Ok(())
    }

    /// Publishes the session's state if the session is new, or if this machine's clock has become wrong or correct.
    fn publish(&self, lease: &Lease) {
        let is_off = self.shared.clock().is_off();
        let now = Status::Joined { member: lease.member(), lease: lease.clone(), clock_is_off: is_off };
        self.shared.status.send_if_modified(|status| {
            let is_known = matches!(status, Status::Joined { member, clock_is_off, .. }
                if *member == lease.member() && *clock_is_off == is_off);
            if !is_known {
                *status = now;
            }
            !is_known
        });
    }

    /// Ends the lease. The task calls this function before it leaves the cluster, because the users of the lease must
    /// stop their work at once.
    fn end_lease(&self) {
        if let Status::Joined { lease, .. } = &*self.shared.status.borrow() {
            lease.end();
        }
    }

    async fn leave(&self) -> Result<(), OwnershipError> {
        self.shared.limited(self.ownership().leave(self.member)).await
    }

    fn deadline(&self, began: Monotonic) -> Monotonic {
        began + (self.shared.options.lease - self.shared.options.margin)
    }

    /// Waits before the task repeats a failed call. The wait has a random part, so that members whose calls failed at
    /// the same time do not all repeat them at the same time.
    async fn back_off(&self) {
        let backoff = self.shared.options.retry_backoff();
        let tenths = u32::try_from(self.runtime().random() % 10).unwrap_or(0);
        self.runtime().sleep(backoff + backoff * tenths / 10).await;
    }

    fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    fn ownership(&self) -> &dyn Ownership {
        &*self.shared.ownership
    }
}

async fn lease_end(shared: &Shared, lease: &Lease) {
    while lease.is_valid(shared.runtime.monotonic()) {
        tokio::select! {
            biased;
            () = shared.lost.notified() => {}
            () = shared.runtime.sleep_until(lease.deadline()) => {}
        }
    }
}
