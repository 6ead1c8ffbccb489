use std::collections::BTreeSet;
use std::time::Duration;

use expect_test::{Expect, expect};
use jiff::tz::Offset;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::When;
use crate::preview::{COUNT_MAX, Request, preview};
use crate::recurrence::steps;

fn cron(expression: &str, zone: &str) -> Cron {
    Cron::parse(expression, zone).unwrap_or_else(|error| panic!("{expression} in {zone}: {error}"))
}

fn at(rfc3339: &str) -> Timestamp {
    Timestamp::from_millis(rfc3339.parse::<jiff::Timestamp>().expect("RFC 3339").as_millisecond())
}

/// Finds the first `count` instants after `after` at which the cron expression fires. Compares them with `expected`, a
/// list of instants on one line.
fn check(expression: &str, zone: &str, after: &str, count: usize, expected: Expect) {
    let cron = cron(expression, zone);
    let instants = std::iter::successors(cron.next_after(at(after)), |at| cron.next_after(*at)).take(count);
    let lines: Vec<String> = instants.map(|at| at.to_string().replace(":00.000Z", "Z")).collect();
    expected.assert_eq(&lines.join(" "));
}

#[test]
fn cron_expression_has_five_fields_or_six_with_seconds() {
    check("7 * * * *", "UTC", "2026-03-01T10:07:00Z", 2, expect!["2026-03-01T11:07Z 2026-03-01T12:07Z"]);
    check("0 7 * * * *", "UTC", "2026-03-01T10:06:59.999Z", 2, expect!["2026-03-01T10:07Z 2026-03-01T11:07Z"]);
    check(
        "*/25 * * * * *",
        "UTC",
        "2026-03-01T10:06:30Z",
        3,
        expect!["2026-03-01T10:06:50.000Z 2026-03-01T10:07Z 2026-03-01T10:07:25.000Z"],
    );
}

#[test]
fn plus_sign_requires_that_both_day_fields_of_cron_match() {
    check(
        "0 9 13 * 5",
        "UTC",
        "2026-02-01T00:00:00Z",
        4,
        expect!["2026-02-06T09:00Z 2026-02-13T09:00Z 2026-02-20T09:00Z 2026-02-27T09:00Z"],
    );
    check(
        "0 9 13 * +5",
        "UTC",
        "2026-02-01T00:00:00Z",
        3,
        expect!["2026-02-13T09:00Z 2026-03-13T09:00Z 2026-11-13T09:00Z"],
    );
    check(
        "0 9 * * SUN-TUE",
        "UTC",
        "2026-02-01T00:00:00Z",
        4,
        expect!["2026-02-01T09:00Z 2026-02-02T09:00Z 2026-02-03T09:00Z 2026-02-08T09:00Z"],
    );
}

#[test]
fn cron_reads_zero_and_seven_as_sunday() {
    // 1 March 2026 is a Sunday.
    for day in ["0", "7", "SUN", "6-7"] {
        let first = cron(&format!("0 9 * * {day}"), "UTC").next_after(at("2026-02-28T12:00:00Z"));
        assert_eq!(first, Some(at("2026-03-01T09:00:00Z")), "{day}");
    }
    check("0 9 * * 1", "UTC", "2026-02-28T12:00:00Z", 2, expect!["2026-03-02T09:00Z 2026-03-09T09:00Z"]);
}

#[test]
fn cron_supports_last_days_nearest_working_days_and_nth_weekdays() {
    check(
        "0 0 L * *",
        "UTC",
        "2028-01-31T00:00:00Z",
        3,
        expect!["2028-02-29T00:00Z 2028-03-31T00:00Z 2028-04-30T00:00Z"],
    );
    check("0 0 15W * *", "UTC", "2026-02-01T00:00:00Z", 2, expect!["2026-02-16T00:00Z 2026-03-16T00:00Z"]);
    check("0 0 * * FRI#2", "UTC", "2026-02-01T00:00:00Z", 2, expect!["2026-02-13T00:00Z 2026-03-13T00:00Z"]);
    check("0 0 * * 5L", "UTC", "2026-02-01T00:00:00Z", 2, expect!["2026-02-27T00:00Z 2026-03-27T00:00Z"]);
}

#[test]
fn cron_fires_for_a_skipped_local_time_when_the_clock_changes() {
    // In Berlin on 29 March 2026, the clock moves from 02:00 to 03:00 at 01:00Z.
    check(
        "30 2 * * *",
        "Europe/Berlin",
        "2026-03-27T12:00:00Z",
        3,
        expect!["2026-03-28T01:30Z 2026-03-29T01:00Z 2026-03-30T00:30Z"],
    );
    check("*/20 2 * * *", "Europe/Berlin", "2026-03-28T01:40:00Z", 2, expect!["2026-03-29T01:00Z 2026-03-30T00:00Z"]);
    check("0 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 2, expect!["2026-03-29T01:00Z 2026-03-30T00:00Z"]);
}

#[test]
fn cron_fires_repeated_local_time_only_once() {
    // In Berlin on 25 October 2026, the clock shows the hour after 02:00 twice: from 00:00Z to 01:00Z, and again from
    // 01:00Z to 02:00Z.
    check("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2, expect!["2026-10-25T00:30Z 2026-10-26T01:30Z"]);
    check("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", 1, expect!["2026-10-26T01:30Z"]);
}

#[test]
fn hourly_cron_continues_through_clock_changes() {
    check(
        "30 * * * *",
        "Europe/Berlin",
        "2026-03-29T00:00:00Z",
        3,
        expect!["2026-03-29T00:30Z 2026-03-29T01:30Z 2026-03-29T02:30Z"],
    );
    check(
        "30 * * * *",
        "Europe/Berlin",
        "2026-10-24T23:00:00Z",
        4,
        expect!["2026-10-24T23:30Z 2026-10-25T00:30Z 2026-10-25T01:30Z 2026-10-25T02:30Z"],
    );
}

#[test]
fn cron_fires_for_a_skipped_day_when_the_next_day_begins() {
    // The clock of Apia skipped 30 December 2011.
    check("0 9 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", 2, expect!["2011-12-30T10:00Z 2012-12-29T19:00Z"]);
}

#[test]
fn cron_search_finds_rare_days_up_to_year_9999() {
    check("0 0 29 2 +1", "UTC", "2072-03-01T00:00:00Z", 2, expect!["2112-02-29T00:00Z 2140-02-29T00:00Z"]);
    check("0 0 1 1 *", "UTC", "9998-06-01T00:00:00Z", 3, expect!["9999-01-01T00:00Z"]);
    check("0 0 1 1 *", "America/New_York", "1969-06-01T00:00:00Z", 1, expect!["1970-01-01T05:00Z"]);
}

#[test]
fn cron_error_names_the_invalid_field_and_a_remedy() {
    let invalid = [
        "",
        "* * * *",
        "* * * * * * *",
        "@daily",
        "*/0 * * * *",
        "61 * * * *",
        "0 25 * * *",
        "0 9 * * 8",
        "0 9 32 * *",
        "0 9 0 * *",
        "5-1 * * * *",
        "1,,2 * * * *",
        ", * * * *",
        "MON * * * *",
        "0 9 * * 1MON",
        "0 9 * * MONTUE",
        "0 9 * * FUNDAY",
        "0 9 30 2 *",
        "0 9 31 FEB,APR *",
        "0/5 * * * *",
        "0 9 * * é",
        "0 9 * * 5#6",
        "? * * * *",
        "70000 * * * *",
        "*/99999999999 * * * *",
        "0\u{b}9 * * * *",
    ];
    let lines: Vec<String> =
        invalid.map(|text| format!("{text:?}: {}", Cron::parse(text, "UTC").expect_err(text))).to_vec();
    expect![[r#"
        "": cron expression has 0 fields, but must have 5 (minute hour day-of-month month day-of-week) or 6 (seconds before these 5)
        "* * * *": cron expression has 4 fields, but must have 5 (minute hour day-of-month month day-of-week) or 6 (seconds before these 5)
        "* * * * * * *": cron expression has 7 fields, but must have 5 (minute hour day-of-month month day-of-week) or 6 (seconds before these 5)
        "@daily": cron expression has 1 fields, but must have 5 (minute hour day-of-month month day-of-week) or 6 (seconds before these 5)
        "*/0 * * * *": invalid minute field "*/0" at byte 0: Step cannot be zero; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)
        "61 * * * *": invalid minute field "61" at byte 0: Number out of bounds; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0 25 * * *": invalid hour field "25" at byte 2: Number out of bounds; use 0-23, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0 9 * * 8": invalid day-of-week field "8" at byte 8: Number out of bounds; use 0-7 or SUN-SAT (0 and 7 are Sunday), 5L for the last Friday, 5#2 for the second Friday, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0 9 32 * *": invalid day-of-month field "32" at byte 4: Number out of bounds; use 1-31, L for the last day, 15W for the weekday nearest to the 15th, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0 9 0 * *": invalid day-of-month field "0" at byte 4: Number out of bounds; use 1-31, L for the last day, 15W for the weekday nearest to the 15th, *, lists (1,2), ranges (1-5) or steps (*/2)
        "5-1 * * * *": invalid minute field "5-1" at byte 0: Range out of bounds; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)
        "1,,2 * * * *": invalid minute field "1,,2" at byte 0: an item of the list is empty; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)
        ", * * * *": invalid minute field "," at byte 0: an item of the list is empty; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)
        "MON * * * *": invalid minute field "MON" at byte 0: "MON" has no meaning in this field; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0 9 * * 1MON": invalid day-of-week field "1MON" at byte 8: "MON" has no meaning in this field; use 0-7 or SUN-SAT (0 and 7 are Sunday), 5L for the last Friday, 5#2 for the second Friday, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0 9 * * MONTUE": invalid day-of-week field "MONTUE" at byte 8: "MONTUE" has no meaning in this field; use 0-7 or SUN-SAT (0 and 7 are Sunday), 5L for the last Friday, 5#2 for the second Friday, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0 9 * * FUNDAY": invalid day-of-week field "FUNDAY" at byte 8: "FUNDAY" has no meaning in this field; use 0-7 or SUN-SAT (0 and 7 are Sunday), 5L for the last Friday, 5#2 for the second Friday, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0 9 30 2 *": the expression never fires: no date matches its days and months
        "0 9 31 FEB,APR *": the expression never fires: no date matches its days and months
        "0/5 * * * *": invalid minute field "0/5" at byte 0: Invalid step syntax: single number steps like "0/5" are not allowed. Use "*/5" for wildcard steps or "X-Y/5" for range steps; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0 9 * * é": invalid day-of-week field "é" at byte 8: 'é' has no meaning in this field; use 0-7 or SUN-SAT (0 and 7 are Sunday), 5L for the last Friday, 5#2 for the second Friday, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0 9 * * 5#6": invalid day-of-week field "5#6" at byte 8: Nth specifier out of bounds; use 0-7 or SUN-SAT (0 and 7 are Sunday), 5L for the last Friday, 5#2 for the second Friday, *, lists (1,2), ranges (1-5) or steps (*/2)
        "? * * * *": invalid minute field "?" at byte 0: '?' has no meaning in this field; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)
        "70000 * * * *": invalid minute field "70000" at byte 0: Invalid number; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)
        "*/99999999999 * * * *": invalid minute field "*/99999999999" at byte 0: Invalid step; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)
        "0\u{b}9 * * * *": invalid minute field "0\u{b}9" at byte 0: '\u{b}' has no meaning in this field; use 0-59, *, lists (1,2), ranges (1-5) or steps (*/2)"#]].assert_eq(&lines.join("\n"));
}

#[test]
fn cron_parser_rejects_unknown_time_zones() {
    let long = "x".repeat(10_000);
    for zone in ["", "Mars/Olympus", "Etc/Unknown", "../../etc/passwd", "Europe/Berlin\0", &long] {
        assert!(matches!(Cron::parse("0 9 * * *", zone), Err(CronError::Zone(_))), "{zone}");
    }
    assert_eq!(cron("0 9 * * *", "europe/berlin").zone(), "Europe/Berlin");
    assert_eq!(cron("0 9 * * *", "utc").zone(), "UTC");
}

#[test]
fn cron_expression_from_storage_equals_the_parsed_expression() {
    let parsed = cron("0 9 * * MON", "Europe/Berlin");
    let stored = Cron::from_stored(parsed.expression(), parsed.zone());
    assert_eq!(stored, parsed);
    assert_eq!(stored.check(), Ok(()));
    assert_eq!(stored.next_after(Timestamp::MIN), parsed.next_after(Timestamp::MIN));
    assert!(Cron::from_stored("0 9 * * FUNDAY", "UTC").check().is_err());
}

#[test]
fn cron_computes_the_shortest_distance_between_its_instants() {
    for (expression, secs) in [
        ("* * * * * *", 1),
        ("0,59 * * * * *", 1),
        ("*/15 * * * * *", 15),
        ("5 */20 * * * *", 1_200),
        ("*/7 * * * *", 240),
        ("58 * * * *", 3_600),
        ("0 0,23 * * *", 3_600),
        ("0,30 9 * * *", 1_800),
        ("0 9 * * MON", 86_400),
    ] {
        assert_eq!(cron(expression, "UTC").distance_min_secs(), secs, "{expression}");
    }
}

/// Simple model of a cron expression: for each field, the set of the numbers that match.
#[derive(Clone, Debug)]
struct Model {
    seconds: Vec<u8>,
    minutes: Vec<u8>,
    hours: Vec<u8>,
    /// Days of the month that match. `None` stands for a star, which matches every day.
    month_days: Option<Vec<u8>>,
    week_days: Option<Vec<u8>>,
}

impl Model {
    fn expression(&self) -> String {
        let list = |values: &Vec<u8>| values.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
        let or_star = |values: &Option<Vec<u8>>| values.as_ref().map_or("*".to_owned(), list);
        let [seconds, minutes, hours] = [&self.seconds, &self.minutes, &self.hours].map(list);
        format!("{seconds} {minutes} {hours} {} * {}", or_star(&self.month_days), or_star(&self.week_days))
    }

    fn names(&self, wall: i64) -> bool {
        let time = Offset::UTC.to_datetime(jiff::Timestamp::from_second(wall).expect("the year is representable"));
        let has = |values: &[u8], value: i8| values.contains(&value.unsigned_abs());
        let month_day = self.month_days.as_deref().map(|days| has(days, time.day()));
        let week_day = self.week_days.as_deref().map(|days| has(days, time.weekday().to_sunday_zero_offset()));
        let day = match (month_day, week_day) {
            (Some(month_day), Some(week_day)) => month_day || week_day,
            (month_day, week_day) => month_day.or(week_day).unwrap_or(true),
        };
        day && has(&self.seconds, time.second()) && has(&self.minutes, time.minute()) && has(&self.hours, time.hour())
    }

    /// Finds the instants in `from..to` at which the expression fires. Examines the local time of one instant every
    /// `step` seconds.
    fn walk(&self, zone: &TimeZone, from: i64, to: i64, step: i64) -> BTreeSet<i64> {
        let clock = |at: i64| {
            let instant = jiff::Timestamp::from_second(at).expect("the year is representable");
            at + i64::from(zone.to_offset(instant).seconds())
        };
        let begin = from - 6 * 3_600 - from.rem_euclid(step);
        let mut latest = clock(begin);
        let mut found = BTreeSet::new();
        for at in (begin + step..to).step_by(usize::try_from(step).expect("positive")) {
            let wall = clock(at);
            let is_new = wall > latest;
            let skipped_match = (latest + step..wall)
                .step_by(usize::try_from(step).expect("positive"))
                .any(|skipped| self.names(skipped));
            let fires = match self.hours.len() {
                24 => self.names(wall),
                _ => is_new && (self.names(wall) || skipped_match),
            };
            if fires && at >= from {
                found.insert(at);
            }
            latest = latest.max(wall);
        }
        found
    }
}

fn values(max: u8, count_max: usize) -> impl Strategy<Value = Vec<u8>> {
    subsequence((0..=max).collect::<Vec<u8>>(), 1..=count_max)
}

fn model(seconds: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Model> {
    let hours = prop_oneof![
        2 => values(23, 24),
        2 => values(4, 3),
        1 => Just((0..24).collect::<Vec<u8>>()),
    ];
    let month_days = prop_oneof![2 => Just(None), 1 => values(30, 20).prop_map(|days| {
        Some(days.into_iter().map(|day| day + 1).collect::<Vec<_>>())
    })];
    let week_days = prop_oneof![2 => Just(None), 1 => values(6, 6).prop_map(Some)];
    // Half of the cases use minutes at which the clocks of the tested zones change.
    let minutes = prop_oneof![values(59, 6), subsequence(vec![0_u8, 15, 30, 45], 1..=4)];
    (seconds, minutes, hours, month_days, week_days).prop_map(|(seconds, minutes, hours, month_days, week_days)| {
        Model { seconds, minutes, hours, month_days, week_days }
    })
}

/// Time zones, each with an instant. In most of these zones, the clock changes at or near the instant.
const CHANGES: [(&str, &str); 14] = [
    ("UTC", "2026-03-29T00:00:00Z"),
    ("Europe/Berlin", "2026-03-29T01:00:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00:00Z"),
    ("America/New_York", "2026-03-08T07:00:00Z"),
    ("America/New_York", "2026-11-01T06:00:00Z"),
    // On Lord Howe Island, the clock changes by half an hour.
    ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
    // At Troll station in Antarctica, the clock changes by two hours.
    ("Antarctica/Troll", "2026-03-29T01:00:00Z"),
    ("Antarctica/Troll", "2026-10-25T01:00:00Z"),
    // In Brazil, the clock changed at midnight.
    ("America/Sao_Paulo", "2018-11-04T03:00:00Z"),
    ("America/Sao_Paulo", "2018-02-18T02:00:00Z"),
    // In Morocco, the clock changes before and after Ramadan.
    ("Africa/Casablanca", "2026-02-15T02:00:00Z"),
    // In Samoa, the clock skipped a whole day.
    ("Pacific/Apia", "2011-12-30T10:00:00Z"),
    ("Asia/Kathmandu", "2026-01-01T00:00:00Z"),
];

/// Collects instants with [`Cron::next_after`], and compares them with the results of [`Cron::latest_at`] and
/// [`Cron::count_between`].
fn searched(cron: &Cron, from: i64, to: i64) -> Result<BTreeSet<i64>, TestCaseError> {
    let millis = |secs: i64| Timestamp::from_millis(secs * 1_000);
    let mut found = BTreeSet::new();
    let mut at = millis(from) - Duration::from_millis(1);
    while let Some(next) = cron.next_after(at).filter(|next| *next < millis(to)) {
        prop_assert!(next > at, "{next} comes after {at}");
        prop_assert_eq!(cron.latest_at(next), Some(next));
        if !found.is_empty() {
            prop_assert_eq!(cron.latest_at(next - Duration::from_millis(1)), Some(at));
        }
        found.insert(next.as_millis() / 1_000);
        at = next;
    }
    let count = cron.count_between(millis(from) - Duration::from_millis(1), millis(to));
    prop_assert_eq!(usize::try_from(count), Ok(found.len()));
    Ok(found)
}

/// Returns the number of steps of the searches for the longest preview that starts after `now`.
fn preview_steps(cron: &Cron, now: Timestamp) -> u64 {
    steps::reset();
    let found = preview(&Request { when: &When::Cron(cron.clone()), now, from: None, count: COUNT_MAX });
    assert!(found.occurrences.len() <= COUNT_MAX && found.drops.first.len() <= COUNT_MAX);
    steps::taken()
}

/// Maximum number of the steps of a preview: the days of its span, and some steps per occurrence and per clock change.
const PREVIEW_STEPS_MAX: u64 = 41 * 366 + 5_000;

#[test]
fn preview_of_a_rare_day_needs_few_steps() {
    // About one day in a year is both the 31st and the fifth Monday of a month, and the search examines all days.
    for zone in ["UTC", "Europe/Berlin", "Africa/Casablanca"] {
        let taken = preview_steps(&cron("0 0 31 * +MON#5", zone), at("2026-01-01T00:00:00Z"));
        assert!((41 * 365..=PREVIEW_STEPS_MAX).contains(&taken), "{taken} steps in {zone}");
    }
}

/// Texts of which many are cron expressions.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,40}",
        "([-*/,?#LW0-9]{1,6} ){4,6}[-*/,?#LWA-Z0-9+]{1,6}",
        "([*0-9]|[*]/[0-9]{1,5}|[0-9]{1,2}-[0-9]{1,2}|[0-9]{1,2},[0-9]{1,2}|L|[0-9]{1,2}W)( ([*1-9]|[1-7]#[1-5]|[1-7]L|[+][1-7]|[*]/[0-9]{1,2}|[A-Za-z]{3})){4,5}",
    ]
}

/// All time zones of the database, and more often some zones with unusual clock changes.
fn zones() -> impl Strategy<Value = String> {
    let all: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
    assert!(all.len() > 300, "the database has {} zones", all.len());
    let unusual = ["UTC", "Europe/Berlin", "Africa/Casablanca", "Pacific/Apia"].map(str::to_owned).to_vec();
    prop_oneof![select(unusual), select(all)]
}

proptest! {
    #[test]
    fn cron_finds_all_matching_minutes_of_the_wall_clock(
        model in model(Just(vec![0])),
        (zone, change) in select(&CHANGES[..]),
        days_before in 0_i64..5,
    ) {
        let from = at(change).as_millis() / 1_000 - days_before * 86_400 - 7_200;
        let to = from + 6 * 86_400;
        let cron = cron(&model.expression(), zone);
        let walked = model.walk(&TimeZone::get(zone).expect("a zone"), from, to, 60);
        prop_assert_eq!(searched(&cron, from, to)?, walked, "{}", model.expression());
    }

    #[test]
    fn cron_finds_all_matching_seconds_of_the_wall_clock(
        model in model(values(59, 3)),
        (zone, change) in select(&CHANGES[..]),
        before_secs in 0_i64..6_000,
    ) {
        let from = at(change).as_millis() / 1_000 - before_secs;
        let to = from + 9_000;
        let cron = cron(&model.expression(), zone);
        let walked = model.walk(&TimeZone::get(zone).expect("a zone"), from, to, 1);
        prop_assert_eq!(searched(&cron, from, to)?, walked, "{}", model.expression());
    }

    #[test]
    fn cron_search_needs_few_steps_for_every_accepted_expression(
        expression in texts(),
        zone in zones(),
        after_millis in 0_i64..250_000_000_000_000,
    ) {
        const DAYS_MAX: u64 = 41 * 366 + 1_000;
        if let Ok(cron) = Cron::parse(&expression, &zone) {
            let after = Timestamp::from_millis(after_millis);
            steps::reset();
            let next = cron.next_after(after);
            prop_assert!(steps::taken() <= DAYS_MAX);
            prop_assert!(next.is_some_and(|next| next > after));
            steps::reset();
            prop_assert!(cron.latest_at(after).is_none_or(|latest| latest <= after));
            prop_assert!(steps::taken() <= DAYS_MAX);
            prop_assert!(preview_steps(&cron, after) <= PREVIEW_STEPS_MAX);
        }
    }
}
