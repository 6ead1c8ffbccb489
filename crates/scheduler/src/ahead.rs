//! Positions that lie ahead of the present time, because the clock of an owner was wrong.
//!
//! docs/decisions/0213-set-positions-back-after-a-fast-clock.md gives the reasons for the design.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use domain::{PollerId, Timestamp};

/// Longest time by which a poller's `closed` may be ahead of a member's clock. If `closed` is further ahead, the clock
/// of an owner was wrong. The owner then sets `closed` back ([`store::Change::Reopen`]), and creators wait for this.
pub(crate) const CLOSED_AHEAD_MAX: Duration = Duration::from_secs(2);
/// Returns true if `closed`, or the position of a row after it, shows that the clock of an owner was wrong.
pub(crate) fn is_ahead(closed: Timestamp, now: Timestamp) -> bool {
    closed > now + CLOSED_AHEAD_MAX
}

/// Numbers of changes [`store::Change::Reopen`] that this member knows, for the pollers with such a change.
///
/// A creator takes a snapshot of these numbers before it writes a row. If the number of the row's poller has changed
/// since then, the engine may have dropped the row before the change.
#[derive(Default)]
pub(crate) struct Reopened(Mutex<Arc<BTreeMap<PollerId, u32>>>);

impl Reopened {
    pub(crate) fn now(&self) -> Arc<BTreeMap<PollerId, u32>> {
        self.lock().clone()
    }

    pub(crate) fn record(&self, poller: PollerId, reopened: u32) {
        let mut known = self.lock();
        if known.get(&poller) != Some(&reopened) {
            Arc::make_mut(&mut known).insert(poller, reopened);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<BTreeMap<PollerId, u32>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}
