//! Oracle for cron expressions: the instants at which an expression must fire, for tests of other crates.
//!
//! The oracle visits every second, and compares the local time with the expression. It contains the clock changes of
//! some zones as constants. It shares no code with the product, and uses no time zone database. A test creates an
//! [`Expression`], sends its text to the product, and compares the product's instants with [`Expression::instants`].
//!
//! docs/cron.md states the rules. An expression that allows all 24 hours fires whenever the local time matches. Every
//! other expression fires once for each local time that it names. If the clock skips matching times, it fires at the
//! first instant after the gap. If the clock repeats a matching time, it fires only the first time.
//!
//! docs/decisions/0218-compare-cron-with-an-oracle-of-our-own.md gives the reasons for the design.
//!
//! Non-goal: days of the month, months and the special forms of days, for which the unit tests of `domain` suffice.

#[cfg(test)]
mod tests;

use std::fmt;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// Time before the first instant at which the oracle begins to follow the local time. It is longer than the longest
/// repeated time.
const LEAD: i64 = 3 * HOUR;

/// Time zone. All instants are seconds since 1970-01-01T00:00:00Z.
#[derive(Debug)]
pub struct Zone {
    pub name: &'static str,
    /// Offset from UTC in seconds, before the first change.
    offset: i64,
    /// Instants of the clock changes in 2026, and the offsets after these changes, in seconds.
    changes: &'static [(i64, i64)],
}

/// Zones without clock changes. Their offsets are valid in every year since 1995.
pub static FIXED: [Zone; 4] = [
    Zone { name: "UTC", offset: 0, changes: &[] },
    Zone { name: "Asia/Kathmandu", offset: 5 * HOUR + 45 * MINUTE, changes: &[] },
    Zone { name: "America/Phoenix", offset: -7 * HOUR, changes: &[] },
    Zone { name: "Pacific/Kiritimati", offset: 14 * HOUR, changes: &[] },
];

/// Zones with clock changes. Their offsets are valid only in 2026.
pub static CHANGING: [Zone; 5] = [
    // 2026-03-29T01:00:00Z and 2026-10-25T01:00:00Z.
    Zone { name: "Europe/Berlin", offset: HOUR, changes: &[(1_774_746_000, 2 * HOUR), (1_792_890_000, HOUR)] },
    // The clock changes at midnight of the local time, at the same instants as in Berlin.
    Zone { name: "Atlantic/Azores", offset: -HOUR, changes: &[(1_774_746_000, 0), (1_792_890_000, -HOUR)] },
    // 2026-03-08T07:00:00Z and 2026-11-01T06:00:00Z.
    Zone {
        name: "America/New_York",
        offset: -5 * HOUR,
        changes: &[(1_772_953_200, -4 * HOUR), (1_793_512_800, -5 * HOUR)],
    },
    // The clock changes by half an hour, at 2026-04-04T15:00:00Z and 2026-10-03T15:30:00Z.
    Zone {
        name: "Australia/Lord_Howe",
        offset: 11 * HOUR,
        changes: &[(1_775_314_800, 10 * HOUR + 30 * MINUTE), (1_791_041_400, 11 * HOUR)],
    },
    // The clock changes between two days, at 2026-04-05T03:00:00Z and 2026-09-06T04:00:00Z.
    Zone {
        name: "America/Santiago",
        offset: -3 * HOUR,
        changes: &[(1_775_358_000, -4 * HOUR), (1_788_667_200, -3 * HOUR)],
    },
];

impl Zone {
    /// Returns the zone of [`FIXED`] or [`CHANGING`] with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Zone> {
        static ALL: [&[Zone]; 2] = [&FIXED, &CHANGING];
        ALL.iter().copied().flatten().find(|zone| zone.name == name)
    }

    /// Returns the instants of the clock changes.
    pub fn changes(&self) -> impl Iterator<Item = i64> {
        self.changes.iter().map(|(at, _)| *at)
    }

    /// Returns the number of seconds from 1970-01-01T00:00:00 local time to the local time at `unix`.
    fn local(&self, unix: i64) -> i64 {
        let change = self.changes.iter().rev().find(|(at, _)| *at <= unix);
        unix + change.map_or(self.offset, |(_, offset)| *offset)
    }
}

/// Cron expression. Bit `n` of a set stands for the value `n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expression {
    seconds: u64,
    minutes: u64,
    hours: u64,
    /// Days of the week, with Sunday as 0.
    week_days: u64,
}

fn set(values: impl IntoIterator<Item = i64>) -> u64 {
    values.into_iter().fold(0, |set, value| set | 1 << value)
}

fn has(set: u64, value: i64) -> bool {
    set >> value & 1 == 1
}

fn second_of(local: i64) -> i64 {
    local.rem_euclid(MINUTE)
}

fn minute_of(local: i64) -> i64 {
    local.rem_euclid(HOUR) / MINUTE
}

fn hour_of(local: i64) -> i64 {
    local.rem_euclid(DAY) / HOUR
}

fn week_day_of(local: i64) -> i64 {
    // 1970-01-01 was a Thursday.
    (local.div_euclid(DAY) + 4).rem_euclid(7)
}

impl Expression {
    /// Creates an expression that matches every day.
    ///
    /// # Panics
    /// Panics if a list is empty, or if a value is too large.
    #[must_use]
    pub fn new(seconds: &[u8], minutes: &[u8], hours: &[u8]) -> Self {
        let of = |values: &[u8], count: u8| {
            assert!(!values.is_empty() && values.iter().all(|value| *value < count), "{values:?}");
            set(values.iter().map(|value| i64::from(*value)))
        };
        Expression { seconds: of(seconds, 60), minutes: of(minutes, 60), hours: of(hours, 24), week_days: set(0..7) }
    }

    /// Draws an expression that probably fires in `zone` a few times from `from` on for `span` seconds. If the clock
    /// changes in this time, the expression often names a skipped or a repeated local time. `below(n)` returns a random
    /// number below `n`.
    pub fn draw(zone: &Zone, from: i64, span: i64, mut below: impl FnMut(u64) -> u64) -> Self {
        let mut number = |count: i64| i64::try_from(below(count.unsigned_abs())).unwrap_or(0);
        let step = 2 + number(4);
        let steps = set((0..60).filter(|second| second % step == 0));
        let every = Expression { seconds: steps, minutes: set(0..60), hours: set(0..24), week_days: set(0..7) };
        // The local times just before and just after a clock change are as probable as the local time at `from`.
        let local = match number(3) {
            0 => zone.local(from) + number(span),
            1 => zone.local(from + span) - number(span),
            _ => zone.local(from) + number(HOUR),
        };
        let hour = hour_of(local);
        let drawn = match number(6) {
            0 => every,
            1 => Expression { hours: every.hours & !set([(hour + 12) % 24]), ..every },
            2 => Expression { hours: set([hour, (hour + 1) % 24]), ..every },
            3 => Expression { minutes: set([minute_of(local)]), ..every },
            4 => Expression { minutes: set([minute_of(local)]), hours: set([hour, (hour + 23) % 24]), ..every },
            _ => Expression {
                seconds: set([second_of(local)]),
                minutes: set([minute_of(local)]),
                hours: set([hour]),
                week_days: every.week_days,
            },
        };
        match number(3) {
            0 => Expression { week_days: set([week_day_of(local), number(7)]), ..drawn },
            _ => drawn,
        }
    }

    /// Parses the text of an expression that [`Expression::new`] or [`Expression::draw`] returned. Returns `None` for
    /// any other text, even if it is a cron expression.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(' ').collect();
        let (seconds, rest) = if fields.len() == 6 { fields.split_first()? } else { (&"0", fields.as_slice()) };
        let [minutes, hours, "*", "*", week_days] = rest else { return None };
        let values = |text: &str, count: i64| {
            if text == "*" {
                return Some(set(0..count));
            }
            let values: Vec<i64> = text.split(',').map(|value| value.parse().ok()).collect::<Option<_>>()?;
            values.iter().all(|value| (0..count).contains(value)).then(|| set(values))
        };
        Some(Expression {
            seconds: values(seconds, 60)?,
            minutes: values(minutes, 60)?,
            hours: values(hours, 24)?,
            week_days: values(week_days, 7)?,
        })
    }

    fn matches(&self, local: i64) -> bool {
        has(self.seconds, second_of(local))
            && has(self.minutes, minute_of(local))
            && has(self.hours, hour_of(local))
            && has(self.week_days, week_day_of(local))
    }

    /// Returns the instants after `after` and up to `until` at which the expression must fire in `zone`, in seconds.
    #[must_use]
    pub fn instants(&self, zone: &Zone, after: i64, until: i64) -> Vec<i64> {
        let follows_elapsed_time = self.hours == set(0..24);
        let start = if zone.changes.is_empty() { after } else { after - LEAD };
        // Latest local time that the clock has shown.
        let mut shown = zone.local(start);
        let mut instants = Vec::new();
        for unix in start + 1..=until {
            let local = zone.local(unix);
            let fires = if follows_elapsed_time {
                self.matches(local)
            } else {
                (shown + 1..=local).any(|named| self.matches(named))
            };
            shown = shown.max(local);
            if fires && unix > after {
                instants.push(unix);
            }
        }
        instants
    }
}

/// Formats the expression as cron text: with five fields if it fires at second 0 only, and with six fields otherwise.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: u64, count: i64| {
            if values == set(0..count) {
                return "*".to_owned();
            }
            let values: Vec<String> =
                (0..count).filter(|value| has(values, *value)).map(|value| value.to_string()).collect();
            values.join(",")
        };
        if self.seconds != set([0]) {
            write!(f, "{} ", list(self.seconds, 60))?;
        }
        let (minutes, hours, week_days) = (list(self.minutes, 60), list(self.hours, 24), list(self.week_days, 7));
        write!(f, "{minutes} {hours} * * {week_days}")
    }
}
