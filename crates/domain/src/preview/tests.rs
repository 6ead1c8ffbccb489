use expect_test::{Expect, expect};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::Cron;

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
            DropReason::Repeated { fires_at } => format!("fired at {fires_at}"),
        };
        lines.push((dropped.at, format!("{} dropped {}: {reason}", dropped.at, dropped.local)));
    }
    lines.sort();
    let lines: Vec<String> = lines.into_iter().map(|(_, line)| line.replace(":00.000Z", "Z")).collect();
    format!("{}\n", lines.join("\n"))
}

/// Compares the preview of a cron expression in Berlin, from the instant `from`, with the expected lines.
fn check(expression: &str, from: &str, count: usize, expected: Expect) {
    let when = cron(expression, "Europe/Berlin");
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
            2026-10-25T01:30Z dropped 2026-10-25T02:30:00: fired at 2026-10-25T00:30Z
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
            2026-10-25T01:40Z dropped 2026-10-25T02:40:00: fired at 2026-10-25T00:40Z
            2026-10-26T01:00Z +1h
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
fn preview_of_a_rare_day_ends_after_a_hundred_years() {
    let when = cron("0 0 29 2 +MON", "UTC");
    let now = instant("2026-01-01T00:00:00Z");
    let found = preview(&Request { when: &when, now, from: None, count: COUNT_MAX }).occurrences;
    let last = found.last().expect("the day occurs in this century").at;
    assert!((3..=4).contains(&found.len()) && last <= now + SPAN, "{found:?}");
}

proptest! {
    /// Compares the preview with the function that explains single instants.
    #[test]
    fn preview_agrees_with_the_explanation_of_each_instant(
        expression in select(&["30 2 * * *", "*/20 2 * * *", "0 2,3 * * *", "15,45 1-3 * * *", "30 * * * *"][..]),
        zone in select(&["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"][..]),
        hours in 0_u32..366 * 24,
    ) {
        let when = cron(expression, zone);
        let When::Cron(cron) = &when else { unreachable!("the timing is a cron expression") };
        let from = instant("2026-01-01T00:00:00Z") + Duration::from_secs(3_600) * hours;
        let preview = preview(&Request { when: &when, now: Timestamp::MIN, from: Some(from), count: 10 });
        for occurrence in &preview.occurrences {
            let is_moved = matches!(occurrence.shift, Some(Shift::Moved { .. }));
            prop_assert_eq!(cron.clock_change_at(occurrence.at).is_some(), is_moved);
        }
        for dropped in preview.drops.first {
            prop_assert!(!matches!(dropped.reason, DropReason::Skipped) || expression == "30 * * * *");
            let fires_at = match dropped.reason {
                DropReason::Skipped => continue,
                DropReason::Merged { fires_at } | DropReason::Repeated { fires_at } => fires_at,
            };
            prop_assert!(when.is_at(Timestamp::MIN, fires_at), "{:?}", dropped);
            let is_fired = preview.occurrences.iter().any(|occurrence| occurrence.at == fires_at) || fires_at < from;
            prop_assert!(is_fired, "{:?}", dropped);
        }
    }
}
