use proptest::prelude::*;

use super::*;

const MADE_AT: Timestamp = Timestamp::from_millis(1_790_000_000_123);

fn every(millis: u64) -> When {
    When::Every(Duration::from_millis(millis))
}

#[test]
fn a_one_shot_has_one_instant() {
    let when = When::At(MADE_AT);
    assert_eq!(when.next_after(MADE_AT, MADE_AT - Duration::from_millis(1)), Some(MADE_AT));
    assert_eq!(when.next_after(MADE_AT, MADE_AT), None);
    assert_eq!(when.missed(MADE_AT, MADE_AT, Timestamp::MAX), None);
}

#[test]
fn an_interval_counts_from_its_anchor_and_does_not_drift() {
    let when = every(30_000);
    let late = MADE_AT + Duration::from_millis(60_007);
    assert_eq!(when.next_after(MADE_AT, MADE_AT), Some(MADE_AT + Duration::from_secs(30)));
    assert_eq!(when.next_after(MADE_AT, late), Some(MADE_AT + Duration::from_secs(90)));
    assert_eq!(when.next_after(MADE_AT, Timestamp::MIN), Some(MADE_AT + Duration::from_secs(30)));
    assert_eq!(when.next_after(MADE_AT, Timestamp::MAX), None);
}

#[test]
fn a_cron_of_every_second_that_was_down_for_a_month_counts_what_it_missed() {
    let when = When::Cron(Cron::parse("* * * * * *", "Europe/Berlin").expect("a cron"));
    let nominal = Timestamp::from_millis(1_790_000_000_000);
    let now = nominal + Duration::from_secs(30 * 86_400);
    let missed = when.missed(MADE_AT, nominal, now).expect("all of them");
    assert_eq!(missed, Missed { latest: now, last: now - Duration::from_secs(1), count: 30 * 86_400 });
}

#[test]
fn an_instant_that_a_later_time_zone_database_moved_still_counts_as_missed() {
    let when = When::Cron(Cron::parse("0 9 * * *", "UTC").expect("a cron"));
    let nine = Timestamp::from_millis(1_789_981_200_000);
    let nominal = nine - Duration::from_secs(1_800);
    let missed = when.missed(MADE_AT, nominal, nine).expect("nine o'clock came");
    assert_eq!(missed, Missed { latest: nine, last: nominal, count: 1 });
}

fn recurring() -> impl Strategy<Value = When> {
    let cron = |text| When::Cron(Cron::parse(text, "America/New_York").expect("a cron"));
    prop_oneof![
        (1_000_u64..10_000_000).prop_map(every),
        Just(cron("*/7 * * * *")),
        Just(cron("30 1,2 * * *")),
        Just(cron("15 30 2 * * 0")),
    ]
}

proptest! {
    #[test]
    fn what_was_missed_is_what_a_walk_over_the_instants_finds(
        when in recurring(),
        after_millis in 0_i64..40_000_000_000,
        late_millis in 0_u64..2_000_000_000,
    ) {
        let start = Timestamp::from_millis(MADE_AT.as_millis() + after_millis);
        let nominal = when.next_after(MADE_AT, start).expect("it goes on");
        let now = nominal + Duration::from_millis(late_millis % (86_400_000 * 20));
        let walked: Vec<Timestamp> = std::iter::successors(Some(nominal), |at| when.next_after(MADE_AT, *at))
            .take_while(|at| *at <= now)
            .take(20_000)
            .collect();
        prop_assume!(walked.len() < 20_000);
        let expected = match walked[..] {
            [.., last, latest] => Some(Missed { latest, last, count: u64::try_from(walked.len() - 1).unwrap() }),
            _ => None,
        };
        prop_assert_eq!(when.missed(MADE_AT, nominal, now), expected);
    }
}
