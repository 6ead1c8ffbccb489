//! A right history for every kind of promise, and a wrong one for every [`Violation`].

use std::time::Duration;

use domain::{Incarnation, Occurrence, Revision, RunState, Timestamp};

use super::{Expected, Ledger, Verdict, Violation};
use crate::{EPOCH, Simulation};

const SECOND: Duration = Duration::from_secs(1);

/// A schedule of one instant, ten seconds after the beginning, and a member to call from.
struct Stage {
    sim: Simulation,
    ledger: Ledger,
}

const SCHEDULE: Incarnation = Incarnation(1);

fn nominal(seconds: u64) -> Timestamp {
    EPOCH + SECOND * u32::try_from(seconds).unwrap()
}

fn occurrence(seconds: u64) -> Occurrence {
    Occurrence { incarnation: SCHEDULE, nominal: nominal(seconds), revision: Revision(0), replay: 0 }
}

const fn once() -> u64 {
    10
}

impl Stage {
    fn empty() -> Self {
        let sim = Simulation::new(0);
        let _a = sim.member("a");
        let ledger = Ledger::new(&sim, SECOND);
        Stage { sim, ledger }
    }

    fn new() -> Self {
        let stage = Stage::empty();
        stage.ledger.created(SCHEDULE, Expected::once(nominal(once())));
        stage
    }

    /// Every second from the first to the fifth.
    fn series() -> Self {
        let stage = Stage::empty();
        stage.ledger.created(SCHEDULE, Expected::series((1..100).map(nominal), nominal(5)));
        stage
    }

    fn until(&self, seconds: u64) {
        self.sim.run_for(Duration::from_secs(seconds) - self.sim.elapsed());
    }

    /// One that takes 100 ms.
    fn call(&self, occurrence: Occurrence, attempt: u16, accepted: bool) {
        let callback = self.ledger.callback_began("a", occurrence, attempt);
        self.sim.run_for(SECOND / 10);
        self.ledger.callback_ended(callback, accepted);
    }

    fn succeed(&self, occurrence: Occurrence) {
        self.call(occurrence, 1, true);
        self.ledger.outcome(occurrence, RunState::Succeeded);
    }

    fn crash(&self) {
        self.sim.crash("a");
        let _up = self.sim.restart("a");
        self.sim.run_for(SECOND / 100);
    }

    #[track_caller]
    fn holds(&self) -> Verdict {
        self.ledger.check()
    }

    #[track_caller]
    fn breaks(&self, with: impl Fn(&Violation) -> bool) {
        let violations = self.ledger.verdict().violations;
        assert!(matches!(violations.as_slice(), [only] if with(only)), "{violations:?}");
    }
}

#[test]
fn a_callback_on_time_with_its_outcome_is_right() {
    let stage = Stage::new();
    assert_eq!(stage.ledger.unresolved(), [occurrence(once())]);
    stage.until(10);
    stage.succeed(occurrence(once()));
    assert_eq!(stage.ledger.unresolved(), []);
    assert_eq!(stage.holds(), Verdict { expected: 1, callbacks: 1, ..Verdict::default() });
}

#[test]
fn an_acknowledged_occurrence_without_an_outcome_is_lost() {
    let stage = Stage::new();
    stage.until(10);
    stage.breaks(|found| *found == Violation::Lost { occurrence: occurrence(once()), callbacks: 0 });
    stage.call(occurrence(once()), 1, false);
    stage.ledger.outcome(occurrence(once()), RunState::Retrying);
    stage.breaks(|found| *found == Violation::Lost { occurrence: occurrence(once()), callbacks: 1 });
}

#[test]
fn a_retry_after_a_failure_is_right_and_not_a_double() {
    let stage = Stage::new();
    stage.until(10);
    stage.call(occurrence(once()), 1, false);
    stage.ledger.outcome(occurrence(once()), RunState::Retrying);
    stage.call(occurrence(once()), 2, false);
    stage.ledger.outcome(occurrence(once()), RunState::Failed);
    assert_eq!(stage.holds().doubles, 0);
}

#[test]
fn a_callback_before_its_instant_by_its_members_clock_is_early() {
    let stage = Stage::new();
    stage.until(9);
    stage.succeed(occurrence(once()));
    stage.breaks(|found| matches!(found, Violation::Early { .. }));
}

#[test]
fn a_fast_clock_excuses_what_true_time_would_call_early_and_a_slow_one_does_not() {
    let stage = Stage::new();
    stage.sim.jump_clock("a", 1_000);
    stage.until(9);
    stage.succeed(occurrence(once()));
    stage.holds();

    let stage = Stage::new();
    stage.sim.jump_clock("a", -5_000);
    stage.until(10);
    stage.succeed(occurrence(once()));
    stage.breaks(|found| matches!(found, Violation::Early { clock, .. } if *clock == nominal(5)));
}

#[test]
fn the_same_attempt_twice_is_a_double_that_only_an_interruption_excuses() {
    let twice = |between: &dyn Fn(&Stage)| {
        let stage = Stage::new();
        stage.until(10);
        stage.ledger.callback_began("a", occurrence(once()), 1);
        stage.sim.run_for(SECOND);
        between(&stage);
        stage.succeed(occurrence(once()));
        stage
    };
    twice(&|_| {}).breaks(|found| matches!(found, Violation::Double { attempt: 1, earlier: 1, .. }));
    assert_eq!(twice(&Stage::crash).holds().doubles, 1);
    assert_eq!(twice(&|stage| stage.sim.pause("a", SECOND)).holds().doubles, 1);
}

#[test]
fn a_callback_after_an_accepted_one_is_a_double_unless_its_outcome_could_not_be_durable_yet() {
    let again = |crash_after: Duration| {
        let stage = Stage::new();
        stage.until(10);
        stage.call(occurrence(once()), 1, true);
        stage.sim.run_for(crash_after);
        stage.crash();
        stage.succeed(occurrence(once()));
        stage
    };
    assert_eq!(again(SECOND / 2).holds().doubles, 1);
    again(SECOND * 2).breaks(|found| matches!(found, Violation::Double { .. }));
}

#[test]
fn only_a_later_attempt_after_a_failure_is_a_retry() {
    let then = |accepted: bool, attempt: u16| {
        let stage = Stage::new();
        stage.until(10);
        stage.call(occurrence(once()), 1, accepted);
        stage.call(occurrence(once()), attempt, true);
        stage.ledger.outcome(occurrence(once()), RunState::Succeeded);
        stage
    };
    then(false, 2).holds();
    then(false, 1).breaks(|found| matches!(found, Violation::Double { attempt: 1, .. }));
    then(true, 2).breaks(|found| matches!(found, Violation::Double { attempt: 2, .. }));
}

#[test]
fn an_attempt_that_died_with_its_member_is_not_in_flight_at_a_cancel() {
    let stage = Stage::new();
    stage.until(10);
    stage.ledger.callback_began("a", occurrence(once()), 1);
    stage.sim.run_for(SECOND);
    stage.crash();
    stage.ledger.cancelled(SCHEDULE);
    stage.holds();
}

#[test]
fn a_crash_before_a_callback_or_of_another_member_excuses_nothing() {
    let stage = Stage::new();
    stage.crash();
    let _b = stage.sim.member("b");
    stage.until(10);
    stage.call(occurrence(once()), 1, true);
    stage.sim.crash("b");
    stage.succeed(occurrence(once()));
    stage.breaks(|found| matches!(found, Violation::Double { .. }));
}

#[test]
fn a_callback_after_the_outcome_was_seen_is_wrong_whatever_crashed() {
    let stage = Stage::new();
    stage.until(10);
    stage.succeed(occurrence(once()));
    stage.crash();
    stage.call(occurrence(once()), 1, true);
    stage.breaks(|found| matches!(found, Violation::AfterOutcome { .. }));
}

#[test]
fn after_a_cancel_nothing_may_start() {
    let stage = Stage::new();
    stage.until(9);
    stage.ledger.cancelled(SCHEDULE);
    stage.holds();
    stage.until(10);
    stage.succeed(occurrence(once()));
    stage.breaks(|found| matches!(found, Violation::AfterCancel { .. }));
}

#[test]
fn cancelled_is_said_only_when_nothing_is_in_flight() {
    let cancel_in_flight = |answer: fn(&Ledger, Incarnation)| {
        let stage = Stage::new();
        stage.until(10);
        let callback = stage.ledger.callback_began("a", occurrence(once()), 1);
        stage.sim.run_for(SECOND);
        answer(&stage.ledger, SCHEDULE);
        stage.sim.run_for(SECOND);
        stage.ledger.callback_ended(callback, false);
        stage.ledger.outcome(occurrence(once()), RunState::Cancelled);
        stage
    };
    cancel_in_flight(Ledger::cancelled_too_late).holds();
    cancel_in_flight(Ledger::cancelled).breaks(|found| matches!(found, Violation::InFlightAtCancel { .. }));
    let retried = cancel_in_flight(Ledger::cancelled_too_late);
    retried.sim.run_for(SECOND * 5);
    retried.call(occurrence(once()), 2, true);
    let violations = retried.ledger.verdict().violations;
    assert!(violations.iter().any(|found| matches!(found, Violation::AfterCancel { .. })), "{violations:?}");
}

#[test]
fn a_callback_of_a_cancelled_schedule_still_gets_an_outcome() {
    let stage = Stage::new();
    stage.until(10);
    stage.call(occurrence(once()), 1, false);
    stage.ledger.outcome(occurrence(once()), RunState::Retrying);
    stage.sim.run_for(SECOND);
    stage.ledger.cancelled(SCHEDULE);
    stage.breaks(|found| *found == Violation::Unresolved(occurrence(once())));
    stage.ledger.outcome(occurrence(once()), RunState::Cancelled);
    stage.holds();
}

#[test]
fn a_final_outcome_never_changes() {
    let stage = Stage::new();
    stage.until(10);
    stage.succeed(occurrence(once()));
    stage.ledger.outcome(occurrence(once()), RunState::Succeeded);
    stage.holds();
    stage.ledger.outcome(occurrence(once()), RunState::Failed);
    stage.breaks(|found| matches!(found, Violation::OutcomeChanged { .. }));
}

#[test]
fn a_recorded_success_was_accepted_by_somebody() {
    let stage = Stage::new();
    stage.until(10);
    stage.call(occurrence(once()), 1, false);
    stage.ledger.outcome(occurrence(once()), RunState::Succeeded);
    stage.breaks(|found| *found == Violation::SucceededUnaccepted(occurrence(once())));
}

#[test]
fn nothing_is_recorded_as_cancelled_that_nobody_cancelled() {
    let stage = Stage::new();
    stage.until(10);
    stage.ledger.outcome(occurrence(once()), RunState::Cancelled);
    stage.breaks(|found| *found == Violation::CancelledUnasked(occurrence(once())));
}

#[test]
fn instants_that_the_schedule_does_not_have_are_not_called() {
    let stage = Stage::new();
    stage.until(11);
    stage.succeed(occurrence(once()));
    stage.succeed(occurrence(11));
    stage.breaks(|found| *found == Violation::Unexpected(occurrence(11)));
}

#[test]
fn schedules_that_nobody_was_told_of_come_only_from_creates_that_broke_off() {
    let stage = Stage::empty();
    stage.until(10);
    stage.succeed(occurrence(once()));
    stage.breaks(|found| *found == Violation::Unasked { schedules: 1, creates: 0 });
    stage.ledger.create_unanswered();
    stage.holds();
}

#[test]
fn a_series_is_judged_up_to_its_horizon() {
    let stage = Stage::series();
    for second in 1..=6 {
        stage.until(second);
        if second < 6 { stage.succeed(occurrence(second)) } else { stage.call(occurrence(second), 1, true) }
    }
    assert_eq!(stage.holds(), Verdict { expected: 5, callbacks: 6, ..Verdict::default() });
}

#[test]
fn missed_instants_count_as_resolved_once_and_are_not_called() {
    let stage = Stage::series();
    stage.until(5);
    stage.ledger.outcome(occurrence(1), RunState::Missed { last: nominal(4), count: 4 });
    stage.succeed(occurrence(5));
    assert_eq!(stage.holds().missed, 4);
    stage.succeed(occurrence(3));
    let violations = stage.ledger.verdict().violations;
    let (occurrence, own, first, last) = (occurrence(3), RunState::Succeeded, nominal(1), nominal(4));
    let twice = Violation::TwoOutcomes { occurrence, own, first, last };
    assert_eq!(violations, [twice, Violation::MissedAndCalled(occurrence)]);
}

#[test]
fn an_attempt_in_flight_at_a_crash_may_be_recorded_as_missed() {
    let stage = Stage::series();
    stage.until(3);
    stage.ledger.callback_began("a", occurrence(3), 1);
    stage.crash();
    stage.until(5);
    stage.ledger.outcome(occurrence(1), RunState::Missed { last: nominal(4), count: 4 });
    stage.succeed(occurrence(5));
    stage.holds();
}

#[test]
fn after_a_change_the_old_instants_are_over_and_the_new_ones_expected() {
    let stage = Stage::new();
    stage.until(5);
    stage.ledger.revised(SCHEDULE, Revision(1), Expected::once(nominal(20)));
    let new = Occurrence { revision: Revision(1), ..occurrence(20) };
    assert_eq!(stage.ledger.unresolved(), [new]);
    stage.until(20);
    stage.succeed(new);
    stage.holds();
    stage.succeed(occurrence(once()));
    stage.breaks(|found| matches!(found, Violation::OldRevision { .. }));
}

#[test]
fn an_unanswered_change_leaves_both_ways_open() {
    let stage = Stage::new();
    stage.ledger.change_unanswered(SCHEDULE);
    stage.until(10);
    stage.holds();
    stage.succeed(Occurrence { revision: Revision(1), ..occurrence(once()) });
    stage.holds();
}

#[test]
fn a_redriven_run_is_expected_and_may_start_after_a_cancel() {
    let stage = Stage::new();
    stage.until(10);
    stage.call(occurrence(once()), 1, false);
    stage.ledger.outcome(occurrence(once()), RunState::Failed);
    stage.ledger.cancelled(SCHEDULE);
    stage.sim.run_for(SECOND);
    let again = Occurrence { replay: 1, ..occurrence(once()) };
    stage.ledger.redriven(again);
    stage.breaks(|found| *found == Violation::Lost { occurrence: again, callbacks: 0 });
    stage.succeed(again);
    stage.holds();
}
