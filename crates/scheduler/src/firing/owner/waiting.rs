//! Reasons for which keys start late or wait.

use domain::{Delay, LATE_MIN, Timestamp};

use crate::cluster::shards::ShardTerm;
use crate::firing::dispatch::{Lane, Now, Wait};
use crate::firing::owner::Owner;
use crate::requests::Waiting;

impl Owner {
    /// Returns the reason for which a key of `lane` starts late, if the key was due at `due`. Returns `None` if the key is
    /// not late, or if this owner knows no reason.
    pub(super) fn wait_of(&self, lane: Lane, due: Timestamp, shard_term: ShardTerm, now: Now) -> Option<Wait> {
        if now.wall.since(due) < LATE_MIN {
            return None;
        }
        let here = self.dispatch.wait_since(lane, due.max(shard_term.since), now);
        let before = (due < shard_term.since).then_some(shard_term.since);
        let before = before.map(|until| Wait { delay: Delay::MemberDown { until }, until });
        // The longer of the two waits delayed the key more.
        match (before, here) {
            (Some(before), Some(here)) if here.until.since(before.until) > before.until.since(due) => Some(here),
            (before, here) => before.or(here),
        }
    }

    /// Returns the reason for which a key waits now.
    pub(super) fn delay_now(&mut self, waiting: Waiting) -> Option<Delay> {
        let Waiting { poller, target, due, incarnation: _, nominal: _ } = waiting;
        let now = self.read_clocks();
        let shard_term = self.window.shard_term(poller)?;
        let due = due.max(shard_term.since);
        self.dispatch.wait_since((poller.tenant, target), due, now).map(|wait| wait.delay)
    }
}
