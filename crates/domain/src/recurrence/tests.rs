use proptest::prelude::*;

use super::*;

const CREATED_AT: Timestamp = Timestamp::from_millis(1_790_000_000_123);

fn every(millis: u64) -> When {
    When::every(Duration::from_millis(millis))
}

#[test]
fn one_shot_schedule_has_exactly_one_instant() {
    let when = When::At(CREATED_AT);
    assert_eq!(when.next_after(CREATED_AT, CREATED_AT - Duration::from_millis(1)), Some(CREATED_AT));
    assert_eq!(when.next_after(CREATED_AT, CREATED_AT), None);
    assert_eq!(when.missed(CREATED_AT, CREATED_AT, Timestamp::MAX), None);
}

#[test]
fn late_occurrence_does_not_shift_the_later_instants() {
    let when = every(30_000);
    let late = CREATED_AT + Duration::from_millis(60_007);
    assert_eq!(when.next_after(CREATED_AT, CREATED_AT), Some(CREATED_AT + Duration::from_secs(30)));
    assert_eq!(when.next_after(CREATED_AT, late), Some(CREATED_AT + Duration::from_secs(90)));
    assert_eq!(when.next_after(CREATED_AT, Timestamp::MIN), Some(CREATED_AT + Duration::from_secs(30)));
    assert_eq!(when.next_after(CREATED_AT, Timestamp::MAX), None);
}

#[test]
fn cron_counts_every_missed_second_of_a_month() {
    let when = When::Cron(Cron::parse("* * * * * *", "Europe/Berlin").expect("a cron"));
    let nominal = Timestamp::from_millis(1_790_000_000_000);
    let now = nominal + Duration::from_secs(30 * 86_400);
    let missed = when.missed(CREATED_AT, nominal, now).expect("all instants of the month are overdue");
    assert_eq!(missed, Missed { latest: now, last: now - Duration::from_secs(1), count: 30 * 86_400 });
}

#[test]
fn schedule_misses_an_instant_that_a_new_time_zone_database_moves() {
    let when = When::Cron(Cron::parse("0 9 * * *", "UTC").expect("a cron"));
    let nine = Timestamp::from_millis(1_789_981_200_000);
    let nominal = nine - Duration::from_secs(1_800);
    let missed = when.missed(CREATED_AT, nominal, nine).expect("the new instant is due");
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
    fn missed_instants_equal_the_results_of_a_step_by_step_search(
        when in recurring(),
        after_millis in 0_i64..40_000_000_000,
        late_millis in 0_u64..2_000_000_000,
    ) {
        let start = Timestamp::from_millis(CREATED_AT.as_millis() + after_millis);
        let nominal = when.next_after(CREATED_AT, start).expect("a recurring schedule has a next instant");
        let now = nominal + Duration::from_millis(late_millis % (86_400_000 * 20));
        let walked: Vec<Timestamp> = std::iter::successors(Some(nominal), |at| when.next_after(CREATED_AT, *at))
            .take_while(|at| *at <= now)
            .take(20_000)
            .collect();
        prop_assume!(walked.len() < 20_000);
        let expected = match walked[..] {
            [.., last, latest] => Some(Missed { latest, last, count: u64::try_from(walked.len() - 1).unwrap() }),
            _ => None,
        };
        prop_assert_eq!(when.missed(CREATED_AT, nominal, now), expected);
    }
}
