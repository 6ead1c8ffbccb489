//! Fields of a cron expression. They match wall time without a time zone. Every day of wall time has 86,400 seconds.
//!
//! Wall time counts seconds from 1970-01-01T00:00:00 local time. Every search covers a range of wall time and examines
//! each day of the range at most once.

use croner::{CronComponent, CronPattern};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;

const DAY_SECS: i64 = 86_400;

/// Parsed expression in a form that is fast to search.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    /// Set of the matching seconds. Bit `n` stands for value `n`.
    seconds: u64,
    minutes: u64,
    hours: u64,
    months: u64,
    days: Days,
}

#[derive(Clone, Debug)]
enum Days {
    /// Set of the matching days of the month, and set of the matching days of the week with Sunday as 0. A day must
    /// match both sets if `both` is true, and at least one of the two sets otherwise.
    Plain { month_days: u64, week_days: u64, both: bool },
    /// Day fields that contain `L`, `W` or `#`. The days that match them depend on the month. The cron library decides
    /// which days match.
    Modified(Box<CronPattern>),
}

impl Fields {
    /// Creates the fields from a parsed pattern. Returns `None` if a field matches no value, for example the field `,`.
    pub(super) fn of(pattern: &CronPattern) -> Option<Self> {
        let (month_days, week_days) = (&pattern.days, &pattern.days_of_week);
        let modified = month_days.has_modifiers() || week_days.has_modifiers();
        let days = if modified {
            Days::Modified(Box::new(pattern.clone()))
        } else {
            // If one of the two day fields is a star, a day must match both fields. Every day matches the star, so the
            // other field decides. If both fields are lists, a `+` before the days of the week requires that a day
            // matches both lists. Without `+`, a day must match at least one list (POSIX crontab).
            let stars = pattern.is_dom_wildcard() || pattern.is_dow_wildcard();
            let both = stars || pattern.matches_dom_and_dow();
            Days::Plain { month_days: bits(month_days), week_days: bits(week_days), both }
        };
        let fields = Fields {
            seconds: bits(&pattern.seconds),
            minutes: bits(&pattern.minutes),
            hours: bits(&pattern.hours),
            months: bits(&pattern.months),
            days,
        };
        let empty = fields.seconds == 0 || fields.minutes == 0 || fields.hours == 0 || fields.months == 0;
        let no_day =
            matches!(fields.days, Days::Plain { month_days, week_days, .. } if month_days == 0 || week_days == 0);
        (!empty && !no_day).then_some(fields)
    }

    /// Returns true if the expression matches all 24 hours.
    pub(super) fn is_every_hour(&self) -> bool {
        self.hours.count_ones() == 24
    }

    /// Returns the first matching second in `from..to`.
    pub(super) fn first(&self, from: i64, to: i64) -> Option<i64> {
        if from >= to {
            return None;
        }
        let (day, last_day) = (from.div_euclid(DAY_SECS), (to - 1).div_euclid(DAY_SECS));
        let today = self.first_day(day, day).and_then(|_| self.first_time(second_of_day(from)));
        let found = match today {
            Some(time) => day * DAY_SECS + i64::from(time),
            None => self.first_day(day + 1, last_day)? * DAY_SECS + i64::from(self.first_time(0)?),
        };
        (found < to).then_some(found)
    }

    /// Returns the last matching second in `from..to`.
    pub(super) fn last(&self, from: i64, to: i64) -> Option<i64> {
        if from >= to {
            return None;
        }
        let (first_day, day) = (from.div_euclid(DAY_SECS), (to - 1).div_euclid(DAY_SECS));
        let today = self.first_day(day, day).and_then(|_| self.last_time(second_of_day(to - 1)));
        let found = match today {
            Some(time) => day * DAY_SECS + i64::from(time),
            None => self.last_day(first_day, day - 1)? * DAY_SECS + i64::from(self.last_time(DAY_LAST_SECOND)?),
        };
        (found >= from).then_some(found)
    }

    pub(super) fn is_at(&self, wall: i64) -> bool {
        self.first(wall, wall + 1).is_some()
    }

    /// Counts the matching seconds in `from..to`.
    pub(super) fn count(&self, from: i64, to: i64) -> u64 {
        if from >= to {
            return 0;
        }
        let (first_day, last_day) = (from.div_euclid(DAY_SECS), to.div_euclid(DAY_SECS));
        let mut times = 0_u64;
        let mut day = first_day;
        // This loop counts the matches of whole days, and on the last day only the matches before `to`. On the first
        // day, it subtracts the matches before `from`.
        while let Some(found) = self.first_day(day, last_day) {
            let until = if found == last_day { second_of_day(to) } else { DAY_LAST_SECOND + 1 };
            times += self.times_before(until);
            if found == first_day {
                times -= self.times_before(second_of_day(from));
            }
            day = found + 1;
        }
        times
    }

    /// Returns the shortest distance between two matching times, in seconds. The result is at most a day, because the
    /// function assumes that adjacent days match.
    pub(super) fn distance_min_secs(&self) -> u32 {
        let hours = distance_min(self.hours, 24);
        let minutes = distance_min_within(self.minutes).min(hours * 60 - width(self.minutes));
        distance_min_within(self.seconds).min(minutes * 60 - width(self.seconds))
    }

    fn first_day(&self, from: i64, to: i64) -> Option<i64> {
        let mut day = from;
        while day <= to {
            #[cfg(test)]
            steps::take();
            let date = date_of(day)?;
            if !has(self.months, date.month()) {
                day += i64::from(date.days_in_month() - date.day()) + 1;
            } else if self.is_day(date) {
                return Some(day);
            } else {
                day += 1;
            }
        }
        None
    }

    fn last_day(&self, from: i64, to: i64) -> Option<i64> {
        let mut day = to;
        while day >= from {
            #[cfg(test)]
            steps::take();
            let date = date_of(day)?;
            if !has(self.months, date.month()) {
                day -= i64::from(date.day());
            } else if self.is_day(date) {
                return Some(day);
            } else {
                day -= 1;
            }
        }
        None
    }

    fn is_day(&self, date: Date) -> bool {
        let week_day = date.weekday().to_sunday_zero_offset();
        match &self.days {
            Days::Plain { month_days, week_days, both: true } => {
                has(*month_days, date.day()) && has(*week_days, week_day)
            }
            Days::Plain { month_days, week_days, both: false } => {
                has(*month_days, date.day()) || has(*week_days, week_day)
            }
            Days::Modified(pattern) => {
                let (month, day) = (date.month().unsigned_abs().into(), date.day().unsigned_abs().into());
                pattern.day_match(date.year().into(), month, day, week_day_of(week_day)).unwrap_or(false)
            }
        }
    }

    fn first_time(&self, from: u32) -> Option<u32> {
        let (hour, minute, second) = (from / 3_600, from / 60 % 60, from % 60);
        if has_u32(self.hours, hour) {
            if has_u32(self.minutes, minute)
                && let Some(second) = first_bit(self.seconds, second)
            {
                return Some(hour * 3_600 + minute * 60 + second);
            }
            if let Some(minute) = first_bit(self.minutes, minute + 1) {
                return Some(hour * 3_600 + minute * 60 + self.seconds.trailing_zeros());
            }
        }
        let hour = first_bit(self.hours, hour + 1)?;
        Some(hour * 3_600 + self.minutes.trailing_zeros() * 60 + self.seconds.trailing_zeros())
    }

    fn last_time(&self, upto: u32) -> Option<u32> {
        let (hour, minute, second) = (upto / 3_600, upto / 60 % 60, upto % 60);
        if has_u32(self.hours, hour) {
            if has_u32(self.minutes, minute)
                && let Some(second) = last_bit(self.seconds, second + 1)
            {
                return Some(hour * 3_600 + minute * 60 + second);
            }
            if let Some(minute) = last_bit(self.minutes, minute) {
                return Some(hour * 3_600 + minute * 60 + highest_bit(self.seconds));
            }
        }
        let hour = last_bit(self.hours, hour)?;
        Some(hour * 3_600 + highest_bit(self.minutes) * 60 + highest_bit(self.seconds))
    }

    /// Counts the matching seconds before `end` on a matching day. `end` is a number of seconds since midnight.
    fn times_before(&self, end: u32) -> u64 {
        let (hour, minute, second) = (end / 3_600, end / 60 % 60, end % 60);
        let in_minute = u64::from(self.seconds.count_ones());
        let in_hour = u64::from(self.minutes.count_ones()) * in_minute;
        let mut times = count_below(self.hours, hour) * in_hour;
        if has_u32(self.hours, hour) {
            times += count_below(self.minutes, minute) * in_minute;
            if has_u32(self.minutes, minute) {
                times += count_below(self.seconds, second);
            }
        }
        times
    }
}

const DAY_LAST_SECOND: u32 = 86_399;

fn bits(component: &CronComponent) -> u64 {
    component.values().into_iter().fold(0, |bits, value| bits | 1 << (value & 63))
}

fn second_of_day(wall: i64) -> u32 {
    u32::try_from(wall.rem_euclid(DAY_SECS)).unwrap_or(0)
}

/// Converts a number of days since 1970-01-01 to a date. Returns `None` if the date is outside the years -9999 to 9999,
/// which the time library supports.
fn date_of(day: i64) -> Option<Date> {
    let midnight = Timestamp::from_second(day.checked_mul(DAY_SECS)?).ok()?;
    Some(Offset::UTC.to_datetime(midnight).date())
}

fn week_day_of(from_sunday: i8) -> croner::Weekday {
    use croner::Weekday::{Friday, Monday, Saturday, Sunday, Thursday, Tuesday, Wednesday};
    match from_sunday {
        0 => Sunday,
        1 => Monday,
        2 => Tuesday,
        3 => Wednesday,
        4 => Thursday,
        5 => Friday,
        _ => Saturday,
    }
}

fn has(bits: u64, value: i8) -> bool {
    has_u32(bits, u32::from(value.unsigned_abs()))
}

fn has_u32(bits: u64, value: u32) -> bool {
    value < 64 && bits >> value & 1 == 1
}

/// Returns the lowest set bit at or above `from`.
fn first_bit(bits: u64, from: u32) -> Option<u32> {
    let rest = bits & u64::MAX.checked_shl(from).unwrap_or(0);
    (rest != 0).then(|| rest.trailing_zeros())
}

/// Returns the highest set bit below `end`.
fn last_bit(bits: u64, end: u32) -> Option<u32> {
    let rest = bits & !u64::MAX.checked_shl(end).unwrap_or(0);
    (rest != 0).then(|| highest_bit(rest))
}

fn highest_bit(bits: u64) -> u32 {
    63 - bits.leading_zeros().min(63)
}

fn count_below(bits: u64, end: u32) -> u64 {
    u64::from((bits & !u64::MAX.checked_shl(end).unwrap_or(0)).count_ones())
}

/// Returns the distance from the lowest set bit to the highest set bit.
fn width(bits: u64) -> u32 {
    highest_bit(bits) - bits.trailing_zeros()
}

/// Returns the shortest distance between two set bits on a circle of `size` positions. Returns `size` if only one bit
/// is set.
fn distance_min(bits: u64, size: u32) -> u32 {
    distance_min_within(bits).min(size - width(bits))
}

/// Returns the shortest distance between two set bits, or `u32::MAX` if only one bit is set.
fn distance_min_within(bits: u64) -> u32 {
    let mut distance = u32::MAX;
    let mut at = bits.trailing_zeros();
    while let Some(next) = first_bit(bits, at + 1) {
        distance = distance.min(next - at);
        at = next;
    }
    distance
}

/// Counter of the days that the searches of this thread examine.
#[cfg(test)]
pub(crate) mod steps {
    use std::cell::Cell;

    thread_local!(static TAKEN: Cell<u64> = const { Cell::new(0) });

    pub(super) fn take() {
        TAKEN.set(TAKEN.get() + 1);
    }

    pub(crate) fn taken() -> u64 {
        TAKEN.get()
    }

    pub(crate) fn reset() {
        TAKEN.set(0);
    }
}
