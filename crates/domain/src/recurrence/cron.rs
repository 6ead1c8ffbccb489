//! Cron expressions in a time zone: the instants at which they fire, and the errors in them.
//!
//! docs/decisions/0051 explains the rules for clock changes. An expression that lists its hours follows the wall clock:
//! it fires once a day at each of its local times. If the clock skips local times, the expression fires once for all of
//! them, at the first instant after the skip. If the clock shows a local time twice, the expression fires only once, at
//! the first of the two instants. An expression with all 24 hours follows elapsed time: it fires whenever the wall
//! clock shows a matching time. It therefore fires twice at each matching time in a repeated hour, and does not fire
//! at a matching time in a skipped hour.
//!
//! A search covers at most [`SEARCH_SECS`] and takes at most one step per day. These two limits bound the duration of
//! a search for every expression.
//!
//! docs/decisions/0050-parse-cron-with-croner.md gives the reasons for the design.

mod changes;

use std::fmt;
use std::sync::{Arc, OnceLock};

use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;

use super::fields::Fields;
use crate::Timestamp;

pub use changes::{DropReason, Dropped, Drops, LocalTime, Shift};

/// Longest time that a search covers, in seconds: 41 years. The rarest day, a 29 February on a given weekday, recurs
/// within 40 years.
const SEARCH_SECS: i64 = 41 * 366 * 86_400;

/// Cron expression in an IANA time zone. It has five fields, or six fields of which the first contains the seconds. Two
/// expressions are equal if their texts and their time zones are equal.
#[derive(Clone)]
pub struct Cron {
    expression: Box<str>,
    zone: Box<str>,
    /// Parsed form of the expression. The first use of the expression parses the text and sets this field. The inner
    /// `None` means that this program version cannot parse the text.
    evaluator: OnceLock<Option<Arc<Evaluator>>>,
}

impl Cron {
    pub const EXPRESSION_BYTES_MAX: usize = 256;
    pub const ZONE_BYTES_MAX: usize = 64;

    /// Parses and checks an expression.
    ///
    /// # Errors
    /// Returns an error if `expression` is not a cron expression or never fires, or if `zone` is unknown.
    pub fn parse(expression: &str, zone: &str) -> Result<Self, CronError> {
        let evaluator = Evaluator::parse(expression, zone)?;
        let zone = evaluator.zone.iana_name().unwrap_or(zone).into();
        Ok(Cron { expression: expression.into(), zone, evaluator: OnceLock::from(Some(Arc::new(evaluator))) })
    }

    /// Creates an expression from text that [`Cron::parse`] accepted before. The first use of the expression parses the
    /// text.
    #[must_use]
    pub fn from_stored(expression: impl Into<Box<str>>, zone: impl Into<Box<str>>) -> Self {
        Cron { expression: expression.into(), zone: zone.into(), evaluator: OnceLock::new() }
    }

    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// Checks that this program version can parse the stored text. If it cannot, the expression has no instants.
    ///
    /// # Errors
    /// Returns the same errors as [`Cron::parse`].
    pub fn check(&self) -> Result<(), CronError> {
        match self.evaluator() {
            Some(_) => Ok(()),
            None => Evaluator::parse(&self.expression, &self.zone).map(drop),
        }
    }

    /// Returns the first instant after `after` and up to `until`. The search ends at `until`.
    pub(crate) fn next_until(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let (from, to) = (after.as_millis().div_euclid(1_000) + 1, until.as_millis().div_euclid(1_000) + 1);
        self.evaluator()?.first_within(from, to).and_then(timestamp)
    }

    /// Returns the first instant after `after`.
    #[must_use]
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.next_until(after, Timestamp::MAX)
    }

    /// Returns the last instant at or before `at`.
    #[must_use]
    pub fn latest_at(&self, at: Timestamp) -> Option<Timestamp> {
        self.evaluator()?.last_upto(at.as_millis().div_euclid(1_000)).and_then(timestamp)
    }

    /// Counts the instants after `after` and before `before`.
    #[must_use]
    pub fn count_between(&self, after: Timestamp, before: Timestamp) -> u64 {
        let from = after.as_millis().div_euclid(1_000) + 1;
        let to = before.as_millis().div_euclid(1_000) + i64::from(before.as_millis().rem_euclid(1_000) > 0);
        self.evaluator().map_or(0, |evaluator| evaluator.count(from, to))
    }

    /// Returns the shortest distance between two matching times on the wall clock, in seconds. The result is at most a
    /// day. If the clock changes between two instants, their distance may be shorter than the result.
    #[must_use]
    pub fn distance_min_secs(&self) -> u32 {
        self.evaluator().map_or(0, |evaluator| evaluator.fields.distance_min_secs())
    }

    /// Returns the effect of a clock change on the instant `at`, if the clock change moves or suppresses an occurrence.
    /// The result is `None` for an expression that matches every hour of the day, because clock changes never move its
    /// instants.
    #[must_use]
    pub fn clock_change_at(&self, at: Timestamp) -> Option<ClockChange> {
        let millis = at.as_millis();
        (millis.rem_euclid(1_000) == 0).then(|| self.evaluator()?.clock_change_at(millis / 1_000)).flatten()
    }

    fn evaluator(&self) -> Option<&Evaluator> {
        let parse = || Evaluator::parse(&self.expression, &self.zone).ok().map(Arc::new);
        self.evaluator.get_or_init(parse).as_deref()
    }
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.expression == other.expression && self.zone == other.zone
    }
}

impl Eq for Cron {}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({:?} in {})", self.expression, self.zone)
    }
}

/// Effect of a clock change of a time zone on an occurrence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockChange {
    /// The clock skips a matching local time. The expression fires at `fires_at`, the first instant after the skip.
    Skipped { fires_at: Timestamp },
    /// The clock shows the matching local time for the second time. The expression fires only at `fires_at`, when the
    /// clock shows this time for the first time.
    Repeated { fires_at: Timestamp },
}

/// Converts unix seconds to an instant. Returns `None` for a time after the last representable instant.
fn timestamp(unix_secs: i64) -> Option<Timestamp> {
    Some(Timestamp::from_millis(unix_secs.checked_mul(1_000)?)).filter(|found| *found <= Timestamp::MAX)
}

struct Evaluator {
    fields: Fields,
    zone: TimeZone,
}

/// Period of time in which the offset of the time zone is constant. Wall time is unix time plus `offset`.
#[derive(Clone, Copy)]
struct Stretch {
    /// First second of the period, or `i64::MIN / 2` if the period has no start.
    start: i64,
    /// First second after the period, or `i64::MAX / 2` if the period has no end.
    end: i64,
    offset: i64,
    /// Offset just before `start`.
    offset_before: i64,
}

impl Evaluator {
    fn parse(expression: &str, zone_name: &str) -> Result<Self, CronError> {
        let fields = parse_fields(expression)?;
        let zone = parse_zone(zone_name)?;
        let year_2000 = 946_684_800;
        match fields.first(year_2000, year_2000 + SEARCH_SECS) {
            Some(_) => Ok(Evaluator { fields, zone }),
            None => Err(CronError::NeverFires),
        }
    }

    /// Returns the first second in `from..to` at which the expression fires.
    fn first_within(&self, from: i64, to: i64) -> Option<i64> {
        let limit = from.saturating_add(SEARCH_SECS).min(to);
        let mut at = from;
        while at < limit {
            let stretch = self.stretch(at)?;
            if at == stretch.start && self.fires_for_leap(stretch) {
                return Some(at);
            }
            let wall = self.wall_from(stretch, at);
            if let Some(found) = self.fields.first(wall, stretch.end.min(limit) + stretch.offset) {
                return Some(found - stretch.offset);
            }
            at = stretch.end;
        }
        None
    }

    /// Returns the last second at or before `upto` at which the expression fires.
    fn last_upto(&self, upto: i64) -> Option<i64> {
        let limit = upto.saturating_sub(SEARCH_SECS);
        let mut at = upto;
        while at > limit {
            let stretch = self.stretch(at)?;
            let wall = self.wall_from(stretch, stretch.start.max(limit));
            if let Some(found) = self.fields.last(wall, at + 1 + stretch.offset) {
                return Some(found - stretch.offset);
            }
            if self.fires_for_leap(stretch) {
                return Some(stretch.start);
            }
            at = stretch.start.checked_sub(1)?;
        }
        None
    }

    /// Counts the seconds in `from..to` at which the expression fires.
    fn count(&self, from: i64, to: i64) -> u64 {
        let mut times = 0_u64;
        let mut at = from;
        while at < to {
            let Some(stretch) = self.stretch(at) else { break };
            let end = stretch.end.min(to);
            times += self.fields.count(self.wall_from(stretch, at), end + stretch.offset);
            let wall_start = stretch.start.saturating_add(stretch.offset);
            if at == stretch.start && self.fires_for_leap(stretch) && !self.fields.is_at(wall_start) {
                times += 1;
            }
            at = end;
        }
        times
    }

    /// Returns the wall time from which a search at `at` starts. If the instant `at` lies in an hour that the local
    /// clock repeats, the search starts after this hour, unless the expression matches every hour of the day.
    fn wall_from(&self, stretch: Stretch, at: i64) -> i64 {
        let wall = at + stretch.offset;
        if self.fields.is_every_hour() { wall } else { wall.max(stretch.start.saturating_add(stretch.offset_before)) }
    }

    /// Returns true if the expression fires at the start of the period `stretch`, because the clock skips a matching
    /// time at this start.
    fn fires_for_leap(&self, stretch: Stretch) -> bool {
        !self.fields.is_every_hour() && self.skipped(stretch).is_some()
    }

    /// Returns the effect of the clock change at the start of the period that contains the second `at`. The second `at`
    /// is one of these: the instant to which the clock change moves a skipped time, the instant at which the skipped
    /// time would have been without the clock change, or the second of two instants with the same local time.
    fn clock_change_at(&self, at: i64) -> Option<ClockChange> {
        let stretch = self.stretch(at)?;
        let ahead = stretch.offset - stretch.offset_before;
        let since_change = at.checked_sub(stretch.start)?;
        if self.fields.is_every_hour() || since_change >= ahead.abs() {
            return None;
        }
        let is_match = self.fields.is_at(at + stretch.offset);
        if ahead < 0 {
            let fires_at = timestamp(at + ahead)?;
            return is_match.then_some(ClockChange::Repeated { fires_at });
        }
        let is_moved_here = since_change == 0 && self.fires_for_leap(stretch);
        let is_moved_away = self.fields.is_at(at + stretch.offset_before);
        let fires_at = timestamp(stretch.start)?;
        (!is_match && (is_moved_here || is_moved_away)).then_some(ClockChange::Skipped { fires_at })
    }

    /// Returns the period with a constant offset that contains `at`. Returns `None` outside the years that the time
    /// library supports.
    fn stretch(&self, at: i64) -> Option<Stretch> {
        let second = |unix| jiff::Timestamp::from_second(unix).ok();
        let offset_at = |at| i64::from(self.zone.to_offset(at).seconds());
        let instant = second(at)?;
        let end = self.zone.following(instant).next().map_or(i64::MAX >> 1, |next| next.timestamp().as_second());
        let previous = second(at + 1).and_then(|after| self.zone.preceding(after).next());
        let offset = offset_at(instant);
        let (start, offset_before) = match previous.map(|previous| previous.timestamp().as_second()) {
            Some(start) => (start, second(start - 1).map_or(offset, offset_at)),
            None => (i64::MIN >> 1, offset),
        };
        Some(Stretch { start, end, offset, offset_before })
    }
}

fn parse_zone(name: &str) -> Result<TimeZone, CronError> {
    let unknown = || CronError::Zone(name.chars().take(Cron::ZONE_BYTES_MAX).collect());
    if name.is_empty() || name.len() > Cron::ZONE_BYTES_MAX {
        return Err(unknown());
    }
    TimeZone::get(name).ok().filter(|zone| !zone.is_unknown()).ok_or_else(unknown)
}

fn parse_fields(expression: &str) -> Result<Fields, CronError> {
    if expression.len() > Cron::EXPRESSION_BYTES_MAX {
        return Err(CronError::TooLong { bytes: expression.len() });
    }
    let texts: Vec<&str> = expression.split_ascii_whitespace().collect();
    let kinds = match texts.len() {
        5 => &FIELDS[1..],
        6 => &FIELDS[..],
        count => return Err(CronError::FieldCount(count)),
    };
    let field_error = |kind: CronField, text: &str, problem: String| CronError::Field {
        field: kind,
        // `text` is a slice of `expression`, so the difference of their addresses is the byte offset of `text`.
        at: text.as_ptr().addr() - expression.as_ptr().addr(),
        text: text.to_owned(),
        problem,
    };
    for (kind, text) in kinds.iter().zip(&texts) {
        check_characters(*kind, text).map_err(|problem| field_error(*kind, text, problem))?;
    }
    match parser().parse(expression) {
        Ok(parsed) => Fields::of(&parsed.pattern).ok_or(CronError::NeverFires),
        // The parser does not report the field that has the error, so this code parses each field separately.
        Err(error) => Err(kinds
            .iter()
            .zip(&texts)
            .find_map(|(kind, text)| Some(field_error(*kind, text, problem_of_field(*kind, text)?)))
            .unwrap_or_else(|| CronError::Expression(error.to_string()))),
    }
}

fn parser() -> CronParser {
    CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build()
}

fn problem_of_field(kind: CronField, text: &str) -> Option<String> {
    let fields = FIELDS.map(|other| if other == kind { text } else { "*" });
    match parser().parse(&fields.join(" ")).err()? {
        croner::errors::CronError::ComponentError(problem)
        | croner::errors::CronError::InvalidPattern(problem)
        | croner::errors::CronError::IllegalCharacters(problem) => Some(problem.trim_end_matches('.').to_owned()),
        other => Some(other.to_string()),
    }
}

/// Rejects text that the parser accepts but reads in a way that users do not expect. The parser reads `1MON` as 11,
/// accepts `MON` in the minute field, and reads `,` as a field that matches nothing.
fn check_characters(kind: CronField, text: &str) -> Result<(), String> {
    let is_day = matches!(kind, CronField::DayOfMonth | CronField::DayOfWeek);
    let is_known = |(at, c): &(usize, char)| match c {
        '?' => is_day,
        '#' => kind == CronField::DayOfWeek,
        '+' => kind == CronField::DayOfWeek && *at == 0,
        _ => c.is_ascii_alphanumeric() || "*,-/".contains(*c),
    };
    if let Some((_, unknown)) = text.char_indices().find(|found| !is_known(found)) {
        return Err(format!("{unknown:?} has no meaning in this field"));
    }
    if text.split(',').any(str::is_empty) {
        return Err("an item of the list is empty".to_owned());
    }
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        let (before, word_on) = rest.split_at(start);
        let end = word_on.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(word_on.len());
        let (word, after) = word_on.split_at(end);
        let touches_digit =
            before.ends_with(|c: char| c.is_ascii_digit()) || after.starts_with(|c: char| c.is_ascii_digit());
        if !kind.accepts_word(&word.to_ascii_uppercase(), touches_digit) {
            return Err(format!("{word:?} has no meaning in this field"));
        }
        rest = after;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CronField {
    Second,
    Minute,
    Hour,
    DayOfMonth,
    Month,
    DayOfWeek,
}

const FIELDS: [CronField; 6] = [
    CronField::Second,
    CronField::Minute,
    CronField::Hour,
    CronField::DayOfMonth,
    CronField::Month,
    CronField::DayOfWeek,
];

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEK_DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl CronField {
    fn accepts_word(self, word: &str, touches_digit: bool) -> bool {
        match self {
            CronField::Second | CronField::Minute | CronField::Hour => false,
            CronField::DayOfMonth => matches!(word, "L" | "W" | "LW"),
            CronField::Month => MONTHS.contains(&word) && !touches_digit,
            CronField::DayOfWeek => {
                word == "L" || WEEK_DAYS.contains(&word.strip_suffix('L').unwrap_or(word)) && !touches_digit
            }
        }
    }

    /// Returns a description of the values that the field allows, for error messages.
    fn values(self) -> &'static str {
        match self {
            CronField::Second | CronField::Minute => "0-59",
            CronField::Hour => "0-23",
            CronField::DayOfMonth => "1-31, L for the last day, 15W for the weekday nearest to the 15th",
            CronField::Month => "1-12 or JAN-DEC",
            CronField::DayOfWeek => {
                "0-7 or SUN-SAT (0 and 7 are Sunday), 5L for the last Friday, 5#2 for the second Friday"
            }
        }
    }
}

impl fmt::Display for CronField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CronField::Second => "second",
            CronField::Minute => "minute",
            CronField::Hour => "hour",
            CronField::DayOfMonth => "day-of-month",
            CronField::Month => "month",
            CronField::DayOfWeek => "day-of-week",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CronError {
    #[error("cron expression has {bytes} bytes, more than the limit of {max}", max = Cron::EXPRESSION_BYTES_MAX)]
    TooLong { bytes: usize },
    #[error(
        "cron expression has {0} fields, but must have 5 (minute hour day-of-month month day-of-week) or 6 (seconds before these 5)"
    )]
    FieldCount(usize),
    /// Invalid field of the expression. `at` is the byte offset of the field in the expression, from 0.
    #[error("invalid {field} field {text:?} at byte {at}: {problem}; use {values}, *, lists (1,2), ranges (1-5) or steps (*/2)", values = field.values())]
    Field { field: CronField, at: usize, text: String, problem: String },
    #[error("{0}")]
    Expression(String),
    #[error("the expression never fires: no date matches its days and months")]
    NeverFires,
    #[error("{0:?} is not in the IANA time zone database; use a zone such as \"Europe/Berlin\" or \"UTC\"")]
    Zone(String),
}

#[cfg(test)]
mod tests;
