//! Queue of events from the owner and from the module `changes`. The task `event_handler` takes the events.
//!
//! The queue merges repeated events, so its memory is bounded. The merged events are of four kinds: another member has
//! taken a shard, a shard has new rows, a poller is unknown, the positions of a shard are ahead of the present time.
//! The queue does not merge outcomes, but limits their number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use domain::{ShardId, Term, Timestamp};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::requests::AttemptOutcome;

pub(crate) struct Events {
    reported: Mutex<Reported>,
    notify: Notify,
    /// Semaphore with a permit for each outcome. An outcome holds its permit until this member has sent the outcome to
    /// the next owner or abandoned it.
    outcomes: Arc<Semaphore>,
}

#[derive(Default)]
pub(crate) struct Reported {
    /// Shards that another member has taken, with the term under which this member owned them.
    pub(crate) superseded: BTreeMap<ShardId, Term>,
    /// Shards that other members own and in which new rows are due soon.
    pub(crate) near: BTreeSet<ShardId>,
    /// True if the owner received a due row of a poller that it does not know. In this case, the tenant got more
    /// pollers after the owner gained the shard.
    pub(crate) unknown_poller: bool,
    /// Shards whose positions or rows may be ahead of the present time.
    pub(crate) ahead: BTreeSet<ShardId>,
    /// Latest time that this member's clock showed before it went back.
    pub(crate) clock_was_at: Timestamp,
    /// Outcomes of attempts whose shard now has another owner.
    pub(crate) outcomes: Vec<(AttemptOutcome, OwnedSemaphorePermit)>,
}

impl Events {
    pub(crate) fn new(outcomes_max: usize) -> Self {
        Events {
            reported: Mutex::default(),
            notify: Notify::new(),
            outcomes: Arc::new(Semaphore::new(outcomes_max.min(Semaphore::MAX_PERMITS))),
        }
    }

    pub(crate) fn report_superseded(&self, shard: ShardId, term: Term) {
        let mut reported = self.lock();
        let known = reported.superseded.entry(shard).or_insert(term);
        // Terms only increase, so an event with an earlier term has no effect.
        *known = term.max(*known);
        self.notify.notify_one();
    }

    pub(crate) fn report_near(&self, shards: BTreeSet<ShardId>) {
        self.lock().near.extend(shards);
        self.notify.notify_one();
    }

    pub(crate) fn report_unknown_poller(&self) {
        self.lock().unknown_poller = true;
        self.notify.notify_one();
    }

    pub(crate) fn report_ahead(&self, shards: impl IntoIterator<Item = ShardId>, clock_was_at: Timestamp) {
        let mut reported = self.lock();
        reported.ahead.extend(shards);
        reported.clock_was_at = reported.clock_was_at.max(clock_was_at);
        self.notify.notify_one();
    }

    /// Withdraws the reports about these shards that [`Events::report_ahead`] added since the last call of
    /// [`Events::take`]. Returns the latest time that this member's clock showed before it went back.
    pub(crate) fn withdraw_ahead(&self, shards: &BTreeSet<ShardId>) -> Timestamp {
        let mut reported = self.lock();
        reported.ahead.retain(|shard| !shards.contains(shard));
        let clock_was_at = reported.clock_was_at;
        if reported.ahead.is_empty() {
            reported.clock_was_at = Timestamp::default();
        }
        clock_was_at
    }

    pub(crate) fn report_outcome(&self, outcome: AttemptOutcome) {
        let Ok(permit) = self.outcomes.clone().try_acquire_owned() else {
            let shard = outcome.poller.shard().0;
            tracing::warn!(
                shard,
                "outcome dropped: the queue of outcomes for other owners is full; the shard's owner may repeat the \
                 attempt"
            );
            return;
        };
        self.lock().outcomes.push((outcome, permit));
        self.notify.notify_one();
    }

    /// Waits for at least one event and takes all events. This function is cancel-safe.
    pub(crate) async fn take(&self) -> Reported {
        loop {
            let reported = std::mem::take(&mut *self.lock());
            if !reported.is_empty() {
                return reported;
            }
            self.notify.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().expect("no holder of this lock panics")
    }
}

impl Reported {
    fn is_empty(&self) -> bool {
        let Reported { superseded, near, unknown_poller, ahead, clock_was_at: _, outcomes } = self;
        superseded.is_empty() && near.is_empty() && !unknown_poller && ahead.is_empty() && outcomes.is_empty()
    }
}
