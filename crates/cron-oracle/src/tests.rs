use super::*;

fn zone(name: &str) -> &'static Zone {
    Zone::named(name).expect("the zone is in one of the lists")
}

/// Checks the instants within `around` seconds before and after the change number `change` of the zone. `expected`
/// contains the differences of the instants from the change, in minutes.
fn check(expression: Expression, name: &str, change: usize, around: i64, expected: &[i64]) {
    let zone = zone(name);
    let at = zone.changes[change].0;
    let found = expression.instants(zone, at - around - 1, at + around);
    let minutes: Vec<i64> = found.iter().map(|unix| (unix - at) / MINUTE).collect();
    assert_eq!(minutes, expected, "{expression} in {name}");
    assert!(found.iter().all(|unix| unix % MINUTE == 0), "{found:?}");
}

#[test]
fn skipped_time_fires_at_the_first_instant_after_the_gap() {
    let around = 2 * HOUR;
    check(Expression::new(&[0], &[30], &[2]), "Europe/Berlin", 0, around, &[0]);
    check(Expression::new(&[0], &[0, 20, 40], &[2]), "Europe/Berlin", 0, around, &[0]);
    check(Expression::new(&[0], &[0], &[2, 3]), "Europe/Berlin", 0, around, &[0]);
    check(Expression::new(&[0], &[15], &[1, 2, 3]), "Europe/Berlin", 0, around, &[-45, 0, 15]);
    check(Expression::new(&[0], &[30], &[0]), "Atlantic/Azores", 0, around, &[0]);
    check(Expression::new(&[0], &[10, 40], &[2]), "Australia/Lord_Howe", 1, around, &[0, 10]);
    check(Expression::new(&[0], &[59], &[0]), "America/Santiago", 1, around, &[0]);
}

#[test]
fn repeated_time_fires_only_the_first_time() {
    let around = 2 * HOUR;
    check(Expression::new(&[0], &[30], &[2]), "Europe/Berlin", 1, around, &[-30]);
    check(Expression::new(&[0], &[30], &[1, 2, 3]), "Europe/Berlin", 1, around, &[-90, -30, 90]);
    check(Expression::new(&[0], &[30], &[1]), "America/New_York", 1, around, &[-30]);
    check(Expression::new(&[0], &[45], &[1]), "Australia/Lord_Howe", 0, around, &[-15]);
    check(Expression::new(&[0], &[30], &[23]), "America/Santiago", 0, around, &[-30]);
}

#[test]
fn expression_with_all_hours_follows_elapsed_time() {
    let all: Vec<u8> = (0..24).collect();
    for change in [0, 1] {
        check(Expression::new(&[0], &[30], &all), "Europe/Berlin", change, 2 * HOUR, &[-90, -30, 30, 90]);
    }
    check(Expression::new(&[0], &[15], &all), "Australia/Lord_Howe", 0, HOUR, &[-45, 45]);
    check(Expression::new(&[0], &[15], &all), "Australia/Lord_Howe", 1, HOUR, &[-45, 45]);
}

#[test]
fn week_day_is_that_of_the_local_time() {
    // 2026-01-01T00:00:00Z is a Thursday. In Kiritimati, Friday begins 14 hours before Friday in UTC.
    let thursday = 1_767_225_600;
    let fridays = Expression { week_days: set([5]), ..Expression::new(&[0], &[0], &[0, 1]) };
    assert_eq!(fridays.instants(zone("UTC"), thursday, thursday + 2 * DAY), [thursday + DAY, thursday + DAY + HOUR]);
    let begin = thursday + 10 * HOUR;
    assert_eq!(fridays.instants(zone("Pacific/Kiritimati"), thursday, thursday + 2 * DAY), [begin, begin + HOUR]);
}

#[test]
fn text_of_an_expression_has_five_fields_or_six_with_seconds() {
    let all: Vec<u8> = (0..60).collect();
    assert_eq!(Expression::new(&[0], &[0, 30], &all[..24]).to_string(), "0,30 * * * *");
    let fridays = Expression { week_days: set([5]), ..Expression::new(&[7], &all, &[2, 3]) };
    assert_eq!(fridays.to_string(), "7 * 2,3 * * 5");
}

#[test]
fn oracle_parses_only_its_own_texts() {
    assert_eq!(Expression::parse("0 2 * * *"), Some(Expression::new(&[0], &[0], &[2])));
    for text in ["", "0 2 * *", "*/5 2 * * *", "0 24 * * *", "0 2 1 * *", "0 2 * * MON", "0 0 0 2 * * *"] {
        assert_eq!(Expression::parse(text), None, "{text}");
    }
}

#[test]
fn drawn_expressions_fire_near_a_clock_change() {
    let mut random = 1_u64;
    let mut below = |count: u64| {
        random = random * 48_271 % 0x7fff_ffff;
        random % count
    };
    let berlin = zone("Europe/Berlin");
    for change in berlin.changes() {
        let fires = (0..300).filter(|_| {
            let drawn = Expression::draw(berlin, change - 5, 30, &mut below);
            assert_eq!(Expression::parse(&drawn.to_string()), Some(drawn));
            !drawn.instants(berlin, change - 5, change + 25).is_empty()
        });
        assert!(fires.count() > 100, "enough of the drawn expressions fire");
    }
}
