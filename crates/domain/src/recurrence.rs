//! Instants of one-shot and recurring schedules.

mod cron;
mod fields;

use std::time::Duration;

use crate::Timestamp;

pub use cron::{ClockChange, Cron, CronError, CronField, DropReason, Dropped, Drops, LocalTime, Shift};
#[cfg(test)]
pub(crate) use fields::steps;

#[derive(Clone, PartialEq, Debug)]
pub enum When {
    /// A single instant. The parser of requests rounds a fraction of a millisecond up, so that the schedule never fires
    /// early.
    At(Timestamp),
    Cron(Cron),
    /// All instants `since + n * interval`, for n from 1.
    Every {
        interval: Duration,
        /// Instant at which a user last set the timing. `None` if this instant is the schedule's `updated_at`, because
        /// the schedule has not changed since.
        since: Option<Timestamp>,
    },
}

impl When {
    /// Returns the timing of a schedule that repeats every `interval`. The first interval starts at the creation or the
    /// last change of the schedule.
    #[must_use]
    pub const fn every(interval: Duration) -> Self {
        When::Every { interval, since: None }
    }

    /// Sets `since` of `Every` to `anchor` when a user changes the schedule but not its timing. Does nothing if an
    /// earlier change of the schedule already set `since`.
    pub fn keep_since(&mut self, anchor: Timestamp) {
        if let When::Every { since, .. } = self {
            since.get_or_insert(anchor);
        }
    }

    /// Returns the first instant after `after`, or `None` if no instant follows. `anchor` is the instant at which a
    /// user created or last changed the schedule. If `Every` has no `since`, its first interval starts at `anchor`.
    #[must_use]
    pub fn next_after(&self, anchor: Timestamp, after: Timestamp) -> Option<Timestamp> {
        match self {
            When::At(at) => (*at > after).then_some(*at),
            When::Cron(cron) => cron.next_after(after),
            When::Every { interval, since } => {
                let series = Series::new(since.unwrap_or(anchor), *interval);
                series.instant(series.count_until(after) + 1)
            }
        }
    }

    /// Returns true if the timing has an occurrence at exactly `at`. `anchor` has the same meaning as in
    /// [`When::next_after`]. An unreadable cron expression has no occurrence.
    #[must_use]
    pub fn is_at(&self, anchor: Timestamp, at: Timestamp) -> bool {
        match self {
            When::At(instant) => *instant == at,
            // The count examines one second at most. A search for the next instant could examine years.
            When::Cron(cron) => {
                let [before, after] = [-1, 1].map(|millis| Timestamp::from_millis(at.as_millis() + millis));
                cron.count_between(before, after) > 0
            }
            When::Every { .. } => self.next_after(anchor, Timestamp::from_millis(at.as_millis() - 1)) == Some(at),
        }
    }

    /// Returns the overdue instants from `nominal`, an instant of a recurring schedule, up to `now`. Returns `None` if
    /// the schedule has no instant after `nominal` and up to `now`.
    ///
    /// The search for the instants of a cron expression takes at most one step per day between `nominal` and `now`.
    /// `Every` needs no search.
    #[must_use]
    pub fn missed(&self, anchor: Timestamp, nominal: Timestamp, now: Timestamp) -> Option<Missed> {
        match self {
            When::At(_) => None,
            When::Cron(cron) => {
                let latest = cron.latest_at(now).filter(|latest| *latest > nominal)?;
                let last = cron.latest_at(latest - Duration::from_millis(1)).map_or(nominal, |last| last.max(nominal));
                Some(Missed { latest, last, count: cron.count_between(nominal, latest) + 1 })
            }
            When::Every { interval, since } => {
                let series = Series::new(since.unwrap_or(anchor), *interval);
                let passed = series.count_until(now);
                let latest = series.instant(passed).filter(|latest| passed > 0 && *latest > nominal)?;
                let before = passed - 1;
                let last = series.instant(before).map_or(nominal, |last| last.max(nominal));
                Some(Missed { latest, last, count: before.saturating_sub(series.count_until(nominal)) + 1 })
            }
        }
    }
}

/// Overdue instants of a recurring schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missed {
    /// Latest due instant. Its occurrence fires.
    pub latest: Timestamp,
    /// Last instant before `latest`. Its occurrence is missed.
    pub last: Timestamp,
    /// Number of missed instants, at least 1.
    pub count: u64,
}

/// Series of the instants `anchor + n * interval`, for n from 1.
struct Series {
    anchor_millis: i64,
    /// Interval in milliseconds, at least 1.
    interval_millis: i64,
}

impl Series {
    fn new(anchor: Timestamp, interval: Duration) -> Self {
        let interval_millis = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX).max(1);
        Series { anchor_millis: anchor.as_millis(), interval_millis }
    }

    /// Counts the instants at or before `at`.
    fn count_until(&self, at: Timestamp) -> u64 {
        let passed = at.as_millis().saturating_sub(self.anchor_millis).max(0);
        u64::try_from(passed / self.interval_millis).unwrap_or(0)
    }

    /// Returns instant number `n`, or `None` if it lies after the last representable instant.
    fn instant(&self, n: u64) -> Option<Timestamp> {
        let millis = i64::try_from(n).ok()?.checked_mul(self.interval_millis)?.checked_add(self.anchor_millis)?;
        Some(Timestamp::from_millis(millis)).filter(|found| *found <= Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests;
