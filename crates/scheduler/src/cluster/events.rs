//! Events that the owner and `changes` report, until `event_handler` takes them.
//!
//! Events of one kind are one fact, however often it is reported, so the memory for them has a limit: a shard is
//! superseded, a shard has new rows, a poller is unknown. Outcomes are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use domain::{ShardId, Term};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::requests::AttemptOutcome;

pub(crate) struct Events {
    reported: Mutex<Reported>,
    notify: Notify,
    /// A permit for each outcome that waits here or is being sent.
    outcomes: Arc<Semaphore>,
}

#[derive(Default)]
pub(crate) struct Reported {
    /// Another member has taken the shard, which was owned under this term.
    pub(crate) superseded: BTreeMap<ShardId, Term>,
    /// Rows that are due soon have come to these shards, which others own.
    pub(crate) near: BTreeSet<ShardId>,
    /// A due row lies in a poller that was not gained with its shard: a tenant has more pollers now.
    pub(crate) unknown_poller: bool,
    /// Outcomes of attempts whose shard has another owner by now.
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
        // Terms rise: an event of an earlier one has no effect any more.
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

    pub(crate) fn report_outcome(&self, outcome: AttemptOutcome) {
        let Ok(permit) = self.outcomes.clone().try_acquire_owned() else {
            let shard = outcome.poller.shard().0;
            tracing::warn!(shard, "too many outcomes wait for other owners; the shard's owner may repeat the attempt");
            return;
        };
        self.lock().outcomes.push((outcome, permit));
        self.notify.notify_one();
    }

    /// Takes all events, once there is one. Cancel-safe.
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
        let Reported { superseded, near, unknown_poller, outcomes } = self;
        superseded.is_empty() && near.is_empty() && !unknown_poller && outcomes.is_empty()
    }
}
