//! Preview of a timing: the next occurrences, with the effects of clock changes.
//!
//! [`preview`] is a pure function of the timing. It needs no schedule, so a user can preview a timing before the
//! creation of a schedule. The preview assumes that the service runs without an outage, so no occurrence is missed.

use std::iter;
use std::time::Duration;

pub use crate::recurrence::{DropReason, Dropped, Drops, LocalTime, Shift};
use crate::{Timestamp, When};

/// Maximum number of occurrences in a preview, and of dropped local times.
pub const COUNT_MAX: usize = 100;

/// Time after the start of a preview at which the preview ends: 41 years. It bounds the duration of the search for an
/// expression with rare instants. The rarest day, a 29 February on a given weekday, recurs within 40 years.
pub const SPAN: Duration = Duration::from_secs(41 * 366 * 86_400);

/// Timing and the part of its occurrences that a preview lists.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub when: &'a When,
    /// Instant at which the schedule is created. The first interval of a timing with `every` starts at this instant.
    pub now: Timestamp,
    /// Earliest instant of the preview, inclusive. If it is `None`, the preview starts with the first occurrence of a
    /// schedule that is created at `now`.
    pub from: Option<Timestamp>,
    /// Number of occurrences, at most [`COUNT_MAX`].
    pub count: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Preview {
    /// Occurrences that become due, in the order of their instants.
    pub occurrences: Vec<Upcoming>,
    /// Local times that clock changes drop between the start of the preview and its last occurrence.
    pub drops: Drops,
}

/// Occurrence of a preview.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upcoming {
    pub at: Timestamp,
    /// Offset from UTC of the timing's zone at `at`, in seconds.
    pub offset_secs: i32,
    pub shift: Option<Shift>,
}

/// Returns the next occurrences of a timing.
///
/// # Panics
/// Panics if `request.count` is greater than [`COUNT_MAX`].
#[must_use]
pub fn preview(request: &Request<'_>) -> Preview {
    let Request { when, now, from, count } = *request;
    assert!(count <= COUNT_MAX, "a preview lists at most {COUNT_MAX} occurrences, and the caller asks for {count}");
    let after = from.map_or(now, |from| Timestamp::from_millis(from.as_millis() - 1));
    let end = after + SPAN;
    let next = |at| match when {
        When::Cron(cron) => cron.next_until(at, end),
        When::At(_) | When::Every { .. } => when.next_after(now, at).filter(|next| *next <= end),
    };
    let first = match when {
        // A schedule whose instant has passed fires at once.
        When::At(at) if from.is_none() => Some(*at).filter(|at| *at <= end),
        When::At(_) | When::Cron(_) | When::Every { .. } => next(after),
    };
    let instants = iter::successors(first, |at| next(*at)).take(count);
    let occurrences: Vec<Upcoming> = instants.map(|at| upcoming(when, at)).collect();
    let drops = match (when, occurrences.last()) {
        (When::Cron(cron), Some(last)) => cron.drops(after, last.at, count),
        _ => Drops::default(),
    };
    Preview { occurrences, drops }
}

fn upcoming(when: &When, at: Timestamp) -> Upcoming {
    match when {
        When::Cron(cron) => Upcoming { at, offset_secs: cron.offset_secs_at(at), shift: cron.shift_at(at) },
        When::At(_) | When::Every { .. } => Upcoming { at, offset_secs: 0, shift: None },
    }
}

#[cfg(test)]
mod tests;
