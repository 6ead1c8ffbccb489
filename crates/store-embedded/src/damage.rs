//! Ranges of due rows that the index cannot read, because a block of a table is damaged. Reads report the ranges here, and
//! [`crate::rebuild`] repairs them.
//!
//! Invariant: `done` of a poller does not pass a range until the derived rows of the range are durable.

use std::sync::{Mutex, MutexGuard};

use domain::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use store::{Change, OwnerWrite};
use tokio::sync::Notify;

use crate::codec::key;
use crate::index::Unreadable;
use crate::read::hex;

/// Ranges of due rows that the index cannot read.
#[derive(Default)]
pub(crate) struct Damage {
    ranges: Mutex<Ranges>,
    wanted: Notify,
    found: Counter,
    open: Gauge,
    rebuilt: Counter,
    unreadable_schedules: Counter,
}

#[derive(Default)]
struct Ranges {
    /// Ranges whose derived rows are not durable yet.
    open: Vec<Unreadable>,
    /// Ranges in `open` that a search of the tables found.
    confirmed: Vec<Unreadable>,
    rebuilt: Vec<Unreadable>,
}

impl Damage {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Ranges of due rows that the store could not read because of damage";
        registry.register("reveille_store_unreadable_ranges", help, self.found.clone());
        let help = "Unreadable ranges of due rows that the store has not repaired yet";
        registry.register("reveille_store_unrepaired_ranges", help, self.open.clone());
        let help = "Due rows that the store derived from schedules and runs because of damage";
        registry.register("reveille_store_rebuilt_due_rows", help, self.rebuilt.clone());
        let help = "Schedules whose damaged due rows the store could not derive because of further damage";
        registry.register("reveille_store_unreadable_schedules", help, self.unreadable_schedules.clone());
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().expect("no holder of this lock panics")
    }

    /// Requests a search for unreadable ranges in all tables of due rows.
    pub(crate) fn search(&self) {
        self.wanted.notify_one();
    }

    /// Reports ranges that a read skipped. They limit `done` at once, and [`Damage::confirm`] logs them.
    pub(crate) fn report(&self, skipped: Vec<Unreadable>) {
        if skipped.is_empty() {
            return;
        }
        let mut ranges = self.ranges();
        for range in skipped {
            if !ranges.open.iter().any(|known| known.contains(&range)) {
                ranges.open.push(range);
            }
        }
        drop(ranges);
        self.search();
    }

    /// Replaces the reported ranges `before` by the ranges `found` of a search that began after these reports. A read
    /// reports only a part of a damaged block, or damage that the store has repaired during the read. Logs each range
    /// once.
    pub(crate) fn confirm(&self, before: &[Unreadable], found: Vec<Unreadable>) {
        let mut ranges = self.ranges();
        ranges.open.retain(|known| !before.contains(known));
        for range in found {
            if ranges.rebuilt.iter().any(|known| known.contains(&range)) {
                continue;
            }
            if !ranges.confirmed.contains(&range) {
                tracing::error!(
                    from = hex(&range.from),
                    to = hex(&range.to),
                    "due rows are damaged; the store derives them from schedules and runs; check the disk"
                );
                self.found.inc();
                ranges.confirmed.push(range.clone());
            }
            ranges.open.push(range);
        }
        self.count_open(&ranges);
    }

    fn count_open(&self, ranges: &Ranges) {
        self.open.set(i64::try_from(ranges.confirmed.len()).unwrap_or(i64::MAX));
    }

    /// Lowers each `done` in `writes` that would pass an open range.
    pub(crate) fn limit_done(&self, writes: &mut [OwnerWrite]) {
        let ranges = self.ranges();
        for write in writes {
            let (Change::Positions(to) | Change::Reopen(to)) = &mut write.change else { continue };
            for range in &ranges.open {
                if let Some((first, _)) = key::due_positions(write.poller, &range.from, &range.to) {
                    to.done = to.done.min(just_before(first));
                }
            }
        }
    }

    /// Waits for a request to search for unreadable ranges.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    pub(crate) fn open(&self) -> Vec<Unreadable> {
        self.ranges().open.clone()
    }

    pub(crate) fn confirmed(&self) -> Vec<Unreadable> {
        self.ranges().confirmed.clone()
    }

    /// Records that the derived rows of a confirmed range are durable. `written` is the number of these rows, and
    /// `unreadable` is the number of schedules that could not be read.
    pub(crate) fn close(&self, range: &Unreadable, written: u64, unreadable: u64) {
        self.rebuilt.inc_by(written);
        self.unreadable_schedules.inc_by(unreadable);
        let mut ranges = self.ranges();
        ranges.open.retain(|known| known != range);
        ranges.confirmed.retain(|known| known != range);
        ranges.rebuilt.push(range.clone());
        self.count_open(&ranges);
    }

    pub(crate) fn is_rebuilt(&self, range: &Unreadable) -> bool {
        self.ranges().rebuilt.iter().any(|known| known.contains(range))
    }

    /// Forgets the repaired ranges after the index has dropped the damaged tables. New damage in the same range then
    /// leads to another repair.
    pub(crate) fn forget_rebuilt(&self) {
        self.ranges().rebuilt.clear();
    }
}

fn just_before(at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millis().saturating_sub(1)).max(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use domain::{PollerId, TenantId, Term};
    use store::Positions;

    use super::*;

    #[test]
    fn done_does_not_pass_an_unreadable_range_before_its_repair() {
        let at = Timestamp::from_millis;
        let poller = |number| PollerId { tenant: TenantId(7), generation: 0, number };
        let damage = Damage::default();
        let range = Unreadable { from: key::due_after(poller(1), at(499)), to: key::due_after(poller(3), at(700)) };
        damage.report(vec![range.clone()]);
        let written = |number, done| {
            let change = Change::Positions(Positions { closed: at(900), done: at(done) });
            let mut writes = [OwnerWrite { term: Term(1), poller: poller(number), change }];
            damage.limit_done(&mut writes);
            let [OwnerWrite { change: Change::Positions(to), .. }] = writes else {
                unreachable!("the kind is the same")
            };
            assert_eq!(to.closed, at(900));
            to.done
        };
        for (number, done, limited) in [(0, 800, 800), (1, 400, 400), (1, 800, 499), (2, 800, 0), (3, 800, 0)] {
            assert_eq!(written(number, done), at(limited), "poller {number}");
        }
        assert_eq!(written(4, 800), at(800));
        let part = Unreadable { from: key::due_after(poller(2), at(10)), to: key::due_end(poller(2)) };
        damage.report(vec![part]);
        for _ in 0..2 {
            damage.confirm(&damage.open(), vec![range.clone()]);
        }
        assert_eq!((damage.found.get(), damage.open.get()), (1, 1), "the store logs the range once");
        assert_eq!(written(1, 800), at(499));
        assert!(!damage.is_rebuilt(&range));
        damage.close(&range, 5, 0);
        assert_eq!(written(1, 800), at(800));
        assert!(damage.is_rebuilt(&range));
        // A read that began before the repair reports the range again.
        damage.report(vec![range]);
        damage.confirm(&damage.open(), Vec::new());
        assert_eq!((written(1, 800), damage.found.get(), damage.open.get()), (at(800), 1, 0));
    }
}
