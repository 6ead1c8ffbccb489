//! Effects of clock changes on the occurrences of a cron expression, in a range of time.

use std::fmt;

use jiff::tz::Offset;

use super::{Cron, Evaluator, Stretch, timestamp};
use crate::Timestamp;

/// Local time in seconds, without an offset from UTC. The clock of a time zone may skip or repeat it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalTime {
    /// Seconds from 1970-01-01T00:00:00 local time.
    wall_secs: i64,
}

impl fmt::Display for LocalTime {
    /// Writes the local time as in `2026-03-29T02:30:00`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_second(self.wall_secs) {
            Ok(wall) => write!(f, "{}", Offset::UTC.to_datetime(wall)),
            Err(_) => write!(f, "{} s after 1970", self.wall_secs),
        }
    }
}

/// Effect of a clock change on an occurrence that fires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// The clock skips the local time `from`, which the expression names. The expression fires at the first instant
    /// after the skip.
    Moved { from: LocalTime },
    /// The clock shows the local time for the second time, and the expression fires both times. It fired for the first
    /// time at `first`.
    Repeated { first: Timestamp },
}

/// Local time that an expression names and for which it does not fire, because of a clock change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// Instant at which the clock would show the local time without the skip, or shows it for the second time.
    pub at: Timestamp,
    pub local: LocalTime,
    /// Offset of the local time from UTC, in seconds. `None` if the clock skips the local time.
    pub offset_secs: Option<i32>,
    pub reason: DropReason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// The clock skips the local time, and the expression names all 24 hours.
    Skipped,
    /// The clock skips the local time. The expression fires at `fires_at`, only once for all skipped times and for the
    /// first time after the skip.
    Merged { fires_at: Timestamp },
    /// The clock shows the local time for the second time. The expression fires only for the first time, at `fires_at`.
    AlreadyFired { fires_at: Timestamp },
}

/// Dropped local times of a range.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Drops {
    /// First dropped local times, in the order of `Dropped::at`.
    pub first: Vec<Dropped>,
    /// Number of all dropped local times.
    pub count: u64,
}

impl Cron {
    /// Returns the offset from UTC of the time zone at `at`, in seconds. Returns 0 outside the years that the time
    /// library supports.
    #[must_use]
    pub fn offset_secs_at(&self, at: Timestamp) -> i32 {
        let instant = jiff::Timestamp::from_millisecond(at.as_millis()).ok();
        let offset = |evaluator: &Evaluator| Some(evaluator.zone.to_offset(instant?).seconds());
        self.evaluator().and_then(offset).unwrap_or(0)
    }

    /// Returns the effect of a clock change on the occurrence at `at`, which must be an instant of the expression.
    #[must_use]
    pub fn shift_at(&self, at: Timestamp) -> Option<Shift> {
        self.evaluator()?.shift_at(at.as_millis().div_euclid(1_000))
    }

    /// Returns the local times that clock changes drop after `after` and up to `until`. Lists at most `list_max` of
    /// them. The search takes one step per clock change in the range.
    #[must_use]
    pub fn drops(&self, after: Timestamp, until: Timestamp, list_max: usize) -> Drops {
        let range = (after.as_millis().div_euclid(1_000), until.as_millis().div_euclid(1_000));
        self.evaluator().map_or_else(Drops::default, |evaluator| evaluator.drops(range, list_max))
    }
}

impl Evaluator {
    fn shift_at(&self, at: i64) -> Option<Shift> {
        let stretch = self.stretch(at)?;
        let ahead = stretch.offset - stretch.offset_before;
        let since_change = at.checked_sub(stretch.start)?;
        if self.fields.is_every_hour() {
            let is_second = ahead < 0 && since_change < -ahead;
            return is_second.then(|| timestamp(at + ahead).map(|first| Shift::Repeated { first })).flatten();
        }
        let is_moved = since_change == 0 && !self.fields.is_at(at + stretch.offset);
        let skipped = is_moved.then(|| self.skipped(stretch)).flatten()?;
        Some(Shift::Moved { from: LocalTime { wall_secs: skipped } })
    }

    /// Returns the first matching wall time that the clock skips at the start of `stretch`.
    pub(super) fn skipped(&self, stretch: Stretch) -> Option<i64> {
        let (before, after) = walls_at(stretch)?;
        self.fields.first(before, after)
    }

    /// Returns the dropped local times in the range, which contains its end but not its start. A skip is in the range
    /// if its instant is.
    fn drops(&self, (after, until): (i64, i64), list_max: usize) -> Drops {
        let mut drops = Drops::default();
        let mut at = after.saturating_add(1);
        while at <= until {
            let Some(stretch) = self.stretch(at) else { break };
            if let Some((before, behind)) = walls_at(stretch) {
                if behind > before && stretch.start > after {
                    self.add_skip(stretch, (before, behind), list_max, &mut drops);
                } else if behind < before && !self.fields.is_every_hour() {
                    // The clock shows these wall times for the second time.
                    let from = behind.max(after + 1 + stretch.offset);
                    let to = before.min(until + 1 + stretch.offset);
                    let ahead = stretch.offset - stretch.offset_before;
                    let reason = |at: i64| Some(DropReason::AlreadyFired { fires_at: timestamp(at + ahead)? });
                    self.add(from, to, stretch.offset, list_max, &mut drops, reason);
                }
            }
            at = stretch.end;
        }
        drops
    }

    /// Adds the wall times from `before` up to `behind`, which the clock skips at the start of `stretch`.
    fn add_skip(&self, stretch: Stretch, (before, behind): (i64, i64), list_max: usize, drops: &mut Drops) {
        if self.fields.is_every_hour() {
            return self.add(before, behind, stretch.offset_before, list_max, drops, |_| Some(DropReason::Skipped));
        }
        let Some(first) = self.fields.first(before, behind) else { return };
        // The expression fires for the wall time after the skip, or else for the first skipped wall time.
        let from = if self.fields.is_at(behind) { first } else { first + 1 };
        let reason = |_| Some(DropReason::Merged { fires_at: timestamp(stretch.start)? });
        self.add(from, behind, stretch.offset_before, list_max, drops, reason);
    }

    /// Adds the matching wall times in `from..to`. `offset` converts them to instants.
    fn add(
        &self,
        from: i64,
        to: i64,
        offset: i64,
        list_max: usize,
        drops: &mut Drops,
        reason: impl Fn(i64) -> Option<DropReason>,
    ) {
        drops.count += self.fields.count(from, to);
        let mut wall = from;
        while drops.first.len() < list_max
            && let Some(found) = self.fields.first(wall, to)
        {
            let at = found - offset;
            let (Some(instant), Some(reason)) = (timestamp(at), reason(at)) else { return };
            let is_shown = matches!(reason, DropReason::AlreadyFired { .. });
            let offset_secs = is_shown.then(|| i32::try_from(offset).ok()).flatten();
            drops.first.push(Dropped { at: instant, local: LocalTime { wall_secs: found }, offset_secs, reason });
            wall = found + 1;
        }
    }
}

/// Returns the wall times that the clock shows before and after its change at the start of `stretch`. Returns `None` if
/// the period has no start.
fn walls_at(stretch: Stretch) -> Option<(i64, i64)> {
    let has_start = stretch.start > i64::MIN >> 1;
    has_start.then_some((stretch.start + stretch.offset_before, stretch.start + stretch.offset))
}
