//! Previews of schedules: the wire form of [`domain::preview`], for `POST /v1/schedules/preview` and for callers
//! without a server.

use api::{ClockChange, ClockChangeKind as Kind, FieldError, PreviewOccurrence};
use domain::egress::Class;
use domain::limits::Limits;
use domain::preview::{COUNT_MAX, DropReason, Dropped, Request, Shift, Upcoming};
use domain::{Egress, Spec, Timestamp, TopicPattern, When};
use jiff::tz::{Offset, TimeZone};

use crate::body::read_schedule;
use crate::wire::time;

/// Number of occurrences in a preview whose request names no number.
pub const COUNT_DEFAULT: usize = 10;

/// Part of the occurrences that a preview lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PreviewRange {
    /// Earliest instant, inclusive. `None` means the first occurrence of a schedule that is created now.
    pub from: Option<Timestamp>,
    /// Number of occurrences, from 1 to [`COUNT_MAX`].
    pub count: usize,
}

/// Reason why a schedule has no preview.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{detail}")]
pub struct Invalid {
    pub detail: String,
    /// Invalid fields of the body, with their errors.
    pub errors: Vec<FieldError>,
}

/// Checks a schedule like a server with the default limits, and returns its preview. `body` has the form of the body of
/// `POST /v1/schedules`. The function accepts every target that the egress policy of some tenant allows.
///
/// # Errors
/// Returns an error if the body is not a schedule, or if a field is invalid.
pub fn preview(body: &[u8], range: PreviewRange, now: Timestamp) -> Result<api::Preview, Invalid> {
    let limits = Limits { has_bus: true, ..Limits::default() };
    let allow_topics = TopicPattern::from_stored("*").into_iter().collect();
    let egress = Egress { allow: Class::ALL.into(), allow_topics, ..Egress::default() };
    let parsed = read_schedule(body, None, &limits, &egress, now).map_err(|rejected| {
        let problem = rejected.into_problem(None);
        Invalid { detail: problem.detail, errors: problem.errors }
    })?;
    Ok(of(&parsed.spec, range, now))
}

/// Returns the preview of a checked schedule.
pub(crate) fn of(spec: &Spec, range: PreviewRange, now: Timestamp) -> api::Preview {
    let PreviewRange { from, count } = range;
    let preview = domain::preview::preview(&Request { when: &spec.when, now, from, count: count.min(COUNT_MAX) });
    let zone = match &spec.when {
        When::Cron(cron) => cron.zone(),
        When::At(_) | When::Every { .. } => "UTC",
    };
    api::Preview {
        zone: zone.to_owned(),
        occurrences: preview.occurrences.iter().map(occurrence).collect(),
        dropped: preview.drops.first.iter().map(dropped).collect(),
        dropped_count: preview.drops.count,
    }
}

fn occurrence(upcoming: &Upcoming) -> PreviewOccurrence {
    let change = |shift| match shift {
        Shift::Moved { from } => {
            let text = format!("the clock skips {from}, so the schedule fires at the first instant after the skip");
            ClockChange { kind: Kind::Moved, text }
        }
        Shift::Repeated { first } => {
            let text = format!(
                "the clock shows this local time for the second time after {}, and the schedule fires both times, \
                 because its expression names all 24 hours",
                time(first)
            );
            ClockChange { kind: Kind::Repeated, text }
        }
    };
    PreviewOccurrence {
        at: time(upcoming.at),
        local: local(upcoming.at, upcoming.offset_secs),
        clock_change: upcoming.shift.map(change),
    }
}

fn dropped(dropped: &Dropped) -> PreviewOccurrence {
    let text = match dropped.reason {
        DropReason::Skipped => "the clock skips this local time, and the schedule does not fire for it, because its \
                                expression names all 24 hours"
            .to_owned(),
        DropReason::Merged { fires_at } => {
            format!(
                "the clock skips this local time, and the schedule fires only once for the skip, at {}",
                time(fires_at)
            )
        }
        DropReason::AlreadyFired { fires_at } => format!(
            "the clock shows this local time for the second time, and the schedule fires only for the first one, at {}",
            time(fires_at)
        ),
    };
    let clock_change = Some(ClockChange { kind: Kind::Dropped, text });
    let local = match dropped.offset_secs {
        Some(offset_secs) => local(dropped.at, offset_secs),
        None => dropped.local.to_string(),
    };
    PreviewOccurrence { at: time(dropped.at), local, clock_change }
}

/// Returns the local time at an offset from UTC, in the format of RFC 3339.
fn local(at: Timestamp, offset_secs: i32) -> String {
    let offset = Offset::from_seconds(offset_secs).ok();
    let instant = jiff::Timestamp::from_millisecond(at.as_millis()).ok();
    let zoned = instant.zip(offset).map(|(instant, offset)| instant.to_zoned(TimeZone::fixed(offset)));
    zoned.map_or_else(|| at.to_string(), |zoned| zoned.strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string())
}
