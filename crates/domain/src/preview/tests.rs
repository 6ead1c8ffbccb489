use expect_test::{Expect, expect};
use jiff::tz::{Offset, TimeZone};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::recurrence::steps;
use crate::{ClockChange, Cron};

fn instant(rfc3339: &str) -> Timestamp {
    Timestamp::from_millis(rfc3339.parse::<jiff::Timestamp>().expect("RFC 3339").as_millisecond())
}

fn cron(expression: &str, zone: &str) -> When {
    When::Cron(Cron::parse(expression, zone).expect("a cron expression"))
}

/// Returns one line per occurrence and per dropped local time, in the order of their instants.
fn text(preview: &Preview) -> String {
    let mut lines: Vec<(Timestamp, String)> = Vec::new();
    for occurrence in &preview.occurrences {
        let shift = match occurrence.shift {
            None => String::new(),
            Some(Shift::Moved { from }) => format!(" moved from {from}"),
            Some(Shift::Repeated { first }) => format!(" repeats {first}"),
        };
        let hours = f64::from(occurrence.offset_secs) / 3_600.0;
        lines.push((occurrence.at, format!("{} {hours:+}h{shift}", occurrence.at)));
    }
    for dropped in &preview.drops.first {
        let reason = match dropped.reason {
            DropReason::Skipped => "skipped".to_owned(),
            DropReason::Merged { fires_at } => format!("merged into {fires_at}"),
            DropReason::AlreadyFired { fires_at } => format!("fired at {fires_at}"),
        };
        let offset = dropped.offset_secs.map(|secs| format!(" {:+}h", f64::from(secs) / 3_600.0)).unwrap_or_default();
        lines.push((dropped.at, format!("{} dropped {}{offset}: {reason}", dropped.at, dropped.local)));
    }
    lines.sort();
    let lines: Vec<String> = lines.into_iter().map(|(_, line)| line.replace(":00.000Z", "Z")).collect();
    format!("{}\n", lines.join("\n"))
}

/// Compares the preview of a cron expression in Berlin, from the instant `from`, with the expected lines.
fn check(expression: &str, from: &str, count: usize, expected: Expect) {
    check_in("Europe/Berlin", expression, from, count, expected);
}

fn check_in(zone: &str, expression: &str, from: &str, count: usize, expected: Expect) {
    let when = cron(expression, zone);
    let request = Request { when: &when, now: instant("2026-01-01T00:00:00Z"), from: Some(instant(from)), count };
    let preview = preview(&request);
    assert_eq!(preview.drops.count, preview.drops.first.len() as u64, "the list contains all dropped local times");
    expected.assert_eq(&text(&preview));
}

#[test]
fn preview_marks_occurrence_that_a_clock_change_moves() {
    // In Berlin on 29 March 2026, the clock moves from 02:00 to 03:00 at 01:00Z.
    check(
        "30 2 * * *",
        "2026-03-28T00:00:00Z",
        3,
        expect![[r#"
            2026-03-28T01:30Z +1h
            2026-03-29T01:00Z +2h moved from 2026-03-29T02:30:00
            2026-03-30T00:30Z +2h
        "#]],
    );
}

#[test]
fn preview_lists_local_times_that_a_clock_change_drops() {
    check(
        "*/20 2 * * *",
        "2026-03-29T00:30:00Z",
        2,
        expect![[r#"
            2026-03-29T01:00Z +2h moved from 2026-03-29T02:00:00
            2026-03-29T01:20Z dropped 2026-03-29T02:20:00: merged into 2026-03-29T01:00Z
            2026-03-29T01:40Z dropped 2026-03-29T02:40:00: merged into 2026-03-29T01:00Z
            2026-03-30T00:00Z +2h
        "#]],
    );
    check(
        "0 2,3 * * *",
        "2026-03-29T00:00:00Z",
        2,
        expect![[r#"
            2026-03-29T01:00Z +2h
            2026-03-29T01:00Z dropped 2026-03-29T02:00:00: merged into 2026-03-29T01:00Z
            2026-03-30T00:00Z +2h
        "#]],
    );
    check(
        "30 * * * *",
        "2026-03-29T00:00:00Z",
        2,
        expect![[r#"
            2026-03-29T00:30Z +1h
            2026-03-29T01:30Z +2h
            2026-03-29T01:30Z dropped 2026-03-29T02:30:00: skipped
        "#]],
    );
}

#[test]
fn preview_marks_local_time_that_the_clock_repeats() {
    // On 25 October 2026, the clock shows the hour after 02:00 twice: from 00:00Z, and again from 01:00Z.
    check(
        "30 2 * * *",
        "2026-10-25T00:00:00Z",
        2,
        expect![[r#"
            2026-10-25T00:30Z +2h
            2026-10-25T01:30Z dropped 2026-10-25T02:30:00 +1h: fired at 2026-10-25T00:30Z
            2026-10-26T01:30Z +1h
        "#]],
    );
    check(
        "30 * * * *",
        "2026-10-25T00:00:00Z",
        3,
        expect![[r#"
            2026-10-25T00:30Z +2h
            2026-10-25T01:30Z +1h repeats 2026-10-25T00:30Z
            2026-10-25T02:30Z +1h
        "#]],
    );
}

#[test]
fn preview_starts_within_a_repeated_hour() {
    check(
        "0,40 2 * * *",
        "2026-10-25T01:10:00Z",
        1,
        expect![[r#"
            2026-10-25T01:40Z dropped 2026-10-25T02:40:00 +1h: fired at 2026-10-25T00:40Z
            2026-10-26T01:00Z +1h
        "#]],
    );
}

#[test]
fn preview_explains_a_skipped_day() {
    // In Samoa, the clock moved from 2011-12-30T00:00 to 2011-12-31T00:00 at 10:00Z.
    check_in(
        "Pacific/Apia",
        "30 2 * * *",
        "2011-12-29T00:00:00Z",
        3,
        expect![[r#"
            2011-12-29T12:30Z -10h
            2011-12-30T10:00Z +14h moved from 2011-12-30T02:30:00
            2011-12-30T12:30Z +14h
        "#]],
    );
    let when = cron("30 * * * *", "Pacific/Apia");
    let from = Some(instant("2011-12-30T00:00:00Z"));
    let preview = preview(&Request { when: &when, now: Timestamp::MIN, from, count: 24 });
    let occurrences = (0..24).map(|hour| instant(&format!("2011-12-30T{hour:02}:30:00Z")));
    assert!(preview.occurrences.iter().map(|one| one.at).eq(occurrences), "{preview:?}");
    assert!(preview.occurrences.iter().all(|one| one.shift.is_none()), "{preview:?}");
    assert_eq!(preview.drops.count, 24);
    let locals: Vec<String> = preview.drops.first.iter().map(|dropped| dropped.local.to_string()).collect();
    assert_eq!(locals, (0..24).map(|hour| format!("2011-12-30T{hour:02}:30:00")).collect::<Vec<_>>());
    for dropped in preview.drops.first {
        assert_eq!((dropped.offset_secs, dropped.reason), (None, DropReason::Skipped));
    }
}

#[test]
fn preview_explains_clock_changes_of_half_an_hour() {
    // On Lord Howe Island on 4 October 2026, the clock moves from 02:00 to 02:30 at 15:30Z on the day before.
    check_in(
        "Australia/Lord_Howe",
        "15 * * * *",
        "2026-10-03T14:00:00Z",
        2,
        expect![[r#"
            2026-10-03T14:45Z +10.5h
            2026-10-03T15:45Z dropped 2026-10-04T02:15:00: skipped
            2026-10-03T16:15Z +11h
        "#]],
    );
    check_in(
        "Australia/Lord_Howe",
        "15 2 * * *",
        "2026-10-03T00:00:00Z",
        2,
        expect![[r#"
            2026-10-03T15:30Z +11h moved from 2026-10-04T02:15:00
            2026-10-04T15:15Z +11h
        "#]],
    );
    // On 5 April 2026, the clock shows the half hour after 01:30 twice: from 14:30Z, and again from 15:00Z. It shows
    // 01:15 and 02:15 only once.
    check_in(
        "Australia/Lord_Howe",
        "15 * * * *",
        "2026-04-04T14:00:00Z",
        2,
        expect![[r#"
            2026-04-04T14:15Z +11h
            2026-04-04T15:45Z +10.5h
        "#]],
    );
    check_in(
        "Australia/Lord_Howe",
        "15 2 * * *",
        "2026-04-04T14:00:00Z",
        2,
        expect![[r#"
            2026-04-04T15:45Z +10.5h
            2026-04-05T15:45Z +10.5h
        "#]],
    );
    check_in(
        "Australia/Lord_Howe",
        "45 1 * * *",
        "2026-04-04T14:00:00Z",
        2,
        expect![[r#"
            2026-04-04T14:45Z +11h
            2026-04-04T15:15Z dropped 2026-04-05T01:45:00 +10.5h: fired at 2026-04-04T14:45Z
            2026-04-05T15:15Z +10.5h
        "#]],
    );
}

#[test]
fn list_of_dropped_local_times_is_bounded() {
    let when = cron("* * 2 * * *", "Europe/Berlin");
    let from = Some(instant("2026-10-25T00:59:59Z"));
    let preview = preview(&Request { when: &when, now: Timestamp::MIN, from, count: 2 });
    assert_eq!((preview.drops.first.len(), preview.drops.count), (2, 3_600));
}

#[test]
fn preview_of_an_interval_counts_from_the_creation() {
    let now = instant("2026-01-01T00:00:00Z");
    let when = When::every(Duration::from_secs(3_600));
    let at = |from: Option<&str>| {
        let preview = preview(&Request { when: &when, now, from: from.map(instant), count: 2 });
        preview.occurrences.iter().map(|one| one.at.to_string().replace(":00.000Z", "Z")).collect::<Vec<_>>()
    };
    assert_eq!(at(None), ["2026-01-01T01:00Z", "2026-01-01T02:00Z"]);
    assert_eq!(at(Some("2026-01-01T02:00:00Z")), ["2026-01-01T02:00Z", "2026-01-01T03:00Z"]);
    assert_eq!(at(Some("2025-01-01T00:00:00Z")), ["2026-01-01T01:00Z", "2026-01-01T02:00Z"]);
}

#[test]
fn preview_of_a_single_instant_has_one_occurrence() {
    let (past, now) = (instant("2026-01-01T00:00:00Z"), instant("2026-01-01T00:00:30Z"));
    let when = When::At(past);
    let count = |from| preview(&Request { when: &when, now, from, count: 5 }).occurrences.len();
    assert_eq!(count(None), 1, "a schedule whose instant has passed fires at once");
    assert_eq!(count(Some(past)), 1);
    assert_eq!(count(Some(now)), 0);
}

#[test]
fn preview_of_a_rare_day_ends_after_its_span() {
    // A 29 February is a Monday in 2044, 2072, 2112 and 2140.
    let when = cron("0 0 29 2 +MON", "UTC");
    for (from, expected) in
        [("2026-01-01T00:00:00Z", "2044-02-29T00:00:00Z"), ("2072-03-01T00:00:00Z", "2112-02-29T00:00:00Z")]
    {
        steps::reset();
        let from = Some(instant(from));
        let found = preview(&Request { when: &when, now: Timestamp::MIN, from, count: COUNT_MAX }).occurrences;
        assert_eq!(found.iter().map(|one| one.at).collect::<Vec<_>>(), [instant(expected)]);
        // A year has at most 29 days in February and 11 other months. The search for the second occurrence ends with
        // the span, and would otherwise take more than 1,000 further steps.
        assert!(steps::taken() < 42 * 40 + 100, "{} steps", steps::taken());
    }
}

/// Instants near clock changes, each in its time zone.
const CHANGES: [(&str, &str); 8] = [
    ("UTC", "2026-03-29T01:00:00Z"),
    ("Europe/Berlin", "2026-03-29T01:00:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00:00Z"),
    ("America/New_York", "2026-03-08T07:00:00Z"),
    ("America/New_York", "2026-11-01T06:00:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00:00Z"),
];

/// Expressions, each with its minutes and its first and last hour.
const EXPRESSIONS: [(&str, &[i64], [i64; 2]); 7] = [
    ("30 2 * * *", &[30], [2, 2]),
    ("*/20 2 * * *", &[0, 20, 40], [2, 2]),
    ("0 2,3 * * *", &[0], [2, 3]),
    ("15,45 1-3 * * *", &[15, 45], [1, 3]),
    ("15 * * * *", &[15], [0, 23]),
    ("45 * * * *", &[45], [0, 23]),
    ("30 * * * *", &[30], [0, 23]),
];

fn wall_text(wall_secs: i64) -> String {
    let wall = jiff::Timestamp::from_second(wall_secs).expect("the year is representable");
    Offset::UTC.to_datetime(wall).to_string()
}

/// Walks over the instants from `from` to `last`, in steps of five minutes, and returns the local times that the
/// minutes and the hours name: those that the clock shows, and those that it skips.
fn named_locals(zone: &str, from: Timestamp, last: Timestamp, minutes: &[i64], hours: [i64; 2]) -> Vec<String> {
    const STEP: i64 = 300;
    let zone = TimeZone::get(zone).expect("a zone");
    let wall_at = |at: i64| {
        let instant = jiff::Timestamp::from_second(at).expect("the year is representable");
        at + i64::from(zone.to_offset(instant).seconds())
    };
    let [from, last] = [from, last].map(|at| at.as_millis() / 1_000);
    let mut named = Vec::new();
    let mut at = from;
    while at <= last {
        // If the clock skips local times at `at`, the walk visits them too.
        let until = wall_at(at);
        let mut wall = until.min(wall_at(at - STEP) + STEP);
        while wall <= until {
            let (hour, minute) = (wall.rem_euclid(86_400) / 3_600, wall.rem_euclid(3_600) / 60);
            if minutes.contains(&minute) && (hours[0]..=hours[1]).contains(&hour) {
                named.push(wall_text(wall));
            }
            wall += STEP;
        }
        at += STEP;
    }
    named.sort();
    named
}

proptest! {
    /// Compares the preview with a walk over the local times, and with the function that explains single instants.
    #[test]
    fn preview_accounts_for_each_named_local_time(
        (expression, minutes, hours) in select(&EXPRESSIONS[..]),
        (zone, change) in select(&CHANGES[..]),
        quarters_before in -8_i64..160,
    ) {
        let when = cron(expression, zone);
        let When::Cron(cron) = &when else { unreachable!("the timing is a cron expression") };
        let from = Timestamp::from_millis(instant(change).as_millis() - quarters_before * 900_000);
        let preview = preview(&Request { when: &when, now: Timestamp::MIN, from: Some(from), count: 30 });
        prop_assert_eq!(preview.occurrences.len(), 30);
        prop_assert_eq!(preview.drops.count, preview.drops.first.len() as u64);
        let mut accounted = Vec::new();
        for occurrence in &preview.occurrences {
            let is_moved = matches!(occurrence.shift, Some(Shift::Moved { .. }));
            prop_assert_eq!(cron.clock_change_at(occurrence.at).is_some(), is_moved);
            let shown = wall_text(occurrence.at.as_millis() / 1_000 + i64::from(occurrence.offset_secs));
            accounted.push(match occurrence.shift {
                Some(Shift::Moved { from }) => from.to_string(),
                None | Some(Shift::Repeated { .. }) => shown,
            });
        }
        for dropped in &preview.drops.first {
            accounted.push(dropped.local.to_string());
            prop_assert!(!matches!(dropped.reason, DropReason::Skipped) || hours == [0, 23]);
            let is_second = matches!(dropped.reason, DropReason::AlreadyFired { .. });
            let shown = dropped.offset_secs.map(|secs| wall_text(dropped.at.as_millis() / 1_000 + i64::from(secs)));
            prop_assert_eq!(shown, is_second.then(|| dropped.local.to_string()));
            let (fires_at, change) = match dropped.reason {
                DropReason::Skipped => {
                    prop_assert_eq!(cron.clock_change_at(dropped.at), None);
                    continue;
                }
                DropReason::Merged { fires_at } => (fires_at, ClockChange::Skipped { fires_at }),
                DropReason::AlreadyFired { fires_at } => (fires_at, ClockChange::Repeated { fires_at }),
            };
            // The expression can also name the local time that the clock shows at this instant.
            if !when.is_at(Timestamp::MIN, dropped.at) {
                prop_assert_eq!(cron.clock_change_at(dropped.at), Some(change), "{:?}", dropped);
            }
            prop_assert!(when.is_at(Timestamp::MIN, fires_at), "{:?}", dropped);
            let is_fired = preview.occurrences.iter().any(|occurrence| occurrence.at == fires_at) || fires_at < from;
            prop_assert!(is_fired, "{:?}", dropped);
        }
        accounted.sort();
        let last = preview.occurrences[29].at;
        prop_assert_eq!(accounted, named_locals(zone, from, last, minutes, hours));
    }
}
