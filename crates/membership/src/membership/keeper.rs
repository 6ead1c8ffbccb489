//! The task that opens sessions and renews them.

use std::sync::Arc;
use std::time::Duration;

use runtime::{Monotonic, Runtime};

use super::clock::Asked;
use super::{BeforeRenewal, Lease, Profile, Shared, Status};
use crate::{Member, MemberId, Ownership, OwnershipError, Renewed};

pub(super) struct Keeper {
    shared: Arc<Shared>,
    profile: Profile,
    before_renewal: BeforeRenewal,
    /// The session that is open, or may be.
    member: MemberId,
    /// Whether others see it as one that takes shards; `None` if that is not known.
    seen_to_own: Option<bool>,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, profile: Profile, before_renewal: BeforeRenewal) -> Self {
        let member = MemberId::random(&shared.runtime);
        Keeper { shared, profile, before_renewal, member, seen_to_own: None }
    }

    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        tokio::select! {
            biased;
            () = shared.stopped() => {}
            () = self.live() => {}
        }
        self.end_lease();
        if let Err(error) = self.leave().await {
            tracing::warn!(%error, member = %self.member, "could not leave; the claims are free when the lease has ended");
        }
        self.shared.status.send_replace(Status::Left);
    }

    /// One session after the other.
    async fn live(&mut self) {
        loop {
            let (lease, renewed) = self.join().await;
            tracing::info!(member = %self.member, name = self.profile.name, "joined");
            self.tell(&lease);
            self.keep(&lease, renewed).await;
            self.end_lease();
            self.shared.status.send_replace(Status::Lost);
            tracing::warn!(member = %self.member, "lost the session: what it claimed is no longer ours");
            // Its claims need not wait for the engine to end it. An engine that is away ends it alone.
            let _gone = self.leave().await;
            self.member = MemberId::random(&self.shared.runtime);
        }
    }

    /// Tries until there is a session; its lease, and when that was asked for.
    async fn join(&mut self) -> (Lease, Monotonic) {
        let mut told = None;
        loop {
            let began = self.runtime().monotonic();
            match self.open().await {
                Ok(()) => {
                    let lease = Lease::new(self.member, self.deadline(began));
                    if lease.is_valid(self.runtime().monotonic()) {
                        return (lease, began);
                    }
                    // Answered too late, by a process that was paused, say.
                    let _gone = self.leave().await;
                    self.member = MemberId::random(self.runtime());
                }
                Err(OwnershipError::Lost) => self.member = MemberId::random(self.runtime()),
                Err(error) => {
                    // Once for each reason, however long it lasts.
                    if told.as_ref() != Some(&error) {
                        tracing::warn!(%error, "cannot join; trying again until it can");
                        told = Some(error);
                    }
                    self.pause().await;
                }
            }
        }
    }

    /// Opens the session, or tells of it again: while the clock is off, as of one that takes no shards, so that the
    /// others' plans leave it none.
    async fn open(&mut self) -> Result<(), OwnershipError> {
        let owns = self.owns();
        self.seen_to_own = None;
        let member = Member { owns, ..self.profile.member(self.member) };
        self.measured(self.ownership().join(member, self.shared.options.lease)).await?;
        self.seen_to_own = Some(owns);
        Ok(())
    }

    fn owns(&self) -> bool {
        self.profile.owns && !self.shared.clock().is_off()
    }

    /// Until the lease is over.
    async fn keep(&mut self, lease: &Lease, renewed: Monotonic) {
        let shared = self.shared.clone();
        tokio::select! {
            biased;
            () = over(&shared, lease) => {}
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
            if self.seen_to_own == Some(self.owns()) {
                self.runtime().sleep_until(next).await;
            }
            // Before the marks are read, not only before the call: see the module's documentation.
            let began = self.runtime().monotonic();
            match self.try_renew().await {
                Ok(()) if lease.extend(self.runtime().monotonic(), self.deadline(began)) => {
                    self.tell(lease);
                    next = began + period;
                }
                Ok(()) | Err(OwnershipError::Lost) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot renew; trying again while the lease lasts");
                    self.pause().await;
                }
            }
        }
    }

    async fn try_renew(&mut self) -> Result<(), OwnershipError> {
        let agreed = self.runtime().timeout(self.shared.options.call_limit(), (self.before_renewal)()).await;
        if agreed != Some(true) {
            let why = if agreed.is_none() { "took too long" } else { "failed" };
            return Err(OwnershipError::Unavailable(format!("what comes before a renewal {why}")));
        }
        if self.seen_to_own != Some(self.owns()) {
            return self.open().await;
        }
        self.measured(self.ownership().renew(self.member, self.shared.options.lease)).await
    }

    /// A call that says what the engine's clock shows.
    async fn measured(&self, call: crate::Answer<'_, Renewed>) -> Result<(), OwnershipError> {
        let asked = Asked::now(self.runtime());
        let seen = self.shared.limited(call).await?;
        let offset = asked.answered(self.runtime(), seen);
        let mut clock = self.shared.clock();
        if clock.measured(offset) {
            let ahead_millis = offset.ahead_millis;
            if clock.is_off() {
                tracing::warn!(
                    ahead_millis,
                    "the engine's clock and this machine's are too far apart: set the clocks (NTP)"
                );
            } else {
                tracing::info!(ahead_millis, "the engine's clock and this machine's agree again");
            }
        }
        Ok(())
    }

    /// Publishes the session, if it is new or the clock's state is.
    fn tell(&self, lease: &Lease) {
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

    /// Before anything else is said or done: whoever holds the lease must stop.
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

    /// Longer by chance, so that members that failed together do not try together.
    async fn pause(&self) {
        let pause = self.shared.options.retry_pause();
        let tenths = u32::try_from(self.runtime().random() % 10).unwrap_or(0);
        self.runtime().sleep(pause + pause * tenths / 10).await;
    }

    fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    fn ownership(&self) -> &dyn Ownership {
        &*self.shared.ownership
    }
}

async fn over(shared: &Shared, lease: &Lease) {
    while lease.is_valid(shared.runtime.monotonic()) {
        tokio::select! {
            biased;
            () = shared.lost.notified() => {}
            () = shared.runtime.sleep_until(lease.deadline()) => {}
        }
    }
}
