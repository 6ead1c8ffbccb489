//! The instants of schedules, one-shot and recurring.

mod cron;
mod fields;

use std::time::Duration;

use crate::Timestamp;

pub use cron::{Cron, CronError, CronField};

#[derive(Clone, PartialEq, Debug)]
pub enum When {
    /// Once. A request with a fraction of a millisecond is rounded up, so that it is never early.
    At(Timestamp),
    Cron(Cron),
    /// At `updated_at + n * interval`, n from 1.
    Every(Duration),
}

impl When {
    /// The first instant after `after`, if there is one. `anchor` is when the schedule was made or last changed:
    /// `Every` counts from it and so never drifts.
    #[must_use]
    pub fn next_after(&self, anchor: Timestamp, after: Timestamp) -> Option<Timestamp> {
        match self {
            When::At(at) => (*at > after).then_some(*at),
            When::Cron(cron) => cron.next_after(after),
            When::Every(interval) => {
                let passed = Beat::new(anchor, *interval).beats_until(after);
                Beat::new(anchor, *interval).instant(passed + 1)
            }
        }
    }

    /// For a recurring schedule's occurrence of the instant `nominal`: what has become due after it, up to `now`.
    /// `None` if nothing has, so that `nominal` itself is the latest.
    ///
    /// Takes a step for each day between the two at most; none for `Every`.
    #[must_use]
    pub fn missed(&self, anchor: Timestamp, nominal: Timestamp, now: Timestamp) -> Option<Missed> {
        match self {
            When::At(_) => None,
            When::Cron(cron) => {
                let latest = cron.latest_at(now).filter(|latest| *latest > nominal)?;
                let last = cron.latest_at(latest - Duration::from_millis(1)).map_or(nominal, |last| last.max(nominal));
                Some(Missed { latest, last, count: cron.count_between(nominal, latest) + 1 })
            }
            When::Every(interval) => {
                let beat = Beat::new(anchor, *interval);
                let passed = beat.beats_until(now);
                let latest = beat.instant(passed).filter(|latest| passed > 0 && *latest > nominal)?;
                let before = passed - 1;
                let last = beat.instant(before).map_or(nominal, |last| last.max(nominal));
                Some(Missed { latest, last, count: before.saturating_sub(beat.beats_until(nominal)) + 1 })
            }
        }
    }
}

/// The overdue instants of a recurring schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missed {
    /// The last that is due: it is to fire.
    pub latest: Timestamp,
    /// The one before it, the last of those that will not fire.
    pub last: Timestamp,
    /// How many will not fire, at least 1.
    pub count: u64,
}

/// The instants `anchor + n * interval`, n from 1.
struct Beat {
    anchor_millis: i64,
    /// At least 1.
    interval_millis: i64,
}

impl Beat {
    fn new(anchor: Timestamp, interval: Duration) -> Self {
        let interval_millis = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX).max(1);
        Beat { anchor_millis: anchor.as_millis(), interval_millis }
    }

    /// How many of them are at or before `at`.
    fn beats_until(&self, at: Timestamp) -> u64 {
        let passed = at.as_millis().saturating_sub(self.anchor_millis).max(0);
        u64::try_from(passed / self.interval_millis).unwrap_or(0)
    }

    /// `None` after the last instant that can be named.
    fn instant(&self, n: u64) -> Option<Timestamp> {
        let millis = i64::try_from(n).ok()?.checked_mul(self.interval_millis)?.checked_add(self.anchor_millis)?;
        Some(Timestamp::from_millis(millis)).filter(|found| *found <= Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests;
