//! Wall clock by which this member fires.
//!
//! docs/decisions/0207-bound-the-effects-of-a-half-dead-member.md gives the reasons for the design.

use std::sync::OnceLock;

use domain::Timestamp;
use membership::Membership;
use runtime::Runtime;

/// Wall clock of this machine. In a cluster, the clock of the coordination engine limits it: if the wall clock leaps
/// ahead, the member does not fire early in the time until it detects the leap and releases its shards.
pub(crate) struct Clock {
    runtime: Runtime,
    /// Membership that knows the limit. It is empty if this member has no cluster.
    membership: OnceLock<Membership>,
}

impl Clock {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Clock { runtime, membership: OnceLock::new() }
    }

    /// Limits the clock by the engine's clock. The caller calls this function at most once.
    pub(crate) fn limit_by(&self, membership: Membership) {
        let is_first = self.membership.set(membership).is_ok();
        assert!(is_first, "a member joins a cluster only once");
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now_and_limit().0
    }

    /// Returns the time, and the limit of the coordination engine's clock, if the engine limits this clock now.
    pub(crate) fn now_and_limit(&self) -> (Timestamp, Option<Timestamp>) {
        let wall = self.runtime.now();
        let limit = self.membership.get().and_then(Membership::clock_limit);
        (limit.map_or(wall, |limit| wall.min(limit)), limit)
    }

    /// Converts a future instant of this clock to the clock of the coordination engine. The result is at most the largest
    /// permitted clock offset too late, even if this clock is far behind. Returns the instant unchanged if the engine's
    /// clock does not limit this clock.
    pub(crate) fn to_engine(&self, at: Timestamp) -> Timestamp {
        let (now, limit) = self.now_and_limit();
        limit.map_or(at, |limit| limit + at.since(now))
    }

    /// Waits until this member has compared its clock with the coordination engine's clock. Returns at once if this member
    /// has no cluster.
    pub(crate) async fn measured(&self) {
        if let Some(membership) = self.membership.get()
            && membership.clock_offset().is_none()
        {
            // A member that leaves the cluster never measures its clock again.
            let _session_or_left = membership.joined().await;
        }
    }
}
