//! Tests of the verdict, with a correct history for every kind of promise and an incorrect history for every
//! [`Violation`].

use std::time::Duration;

use domain::{Incarnation, Occurrence, Revision, RunState, Timestamp};

use super::{Expected, History, Verdict, Violation};
use crate::{EPOCH, Simulation};

const SECOND: Duration = Duration::from_secs(1);

/// History of one schedule, in a simulated world with one member. In most tests, the schedule is due once, ten seconds
/// after the start of the simulation.
struct Fixture {
    sim: Simulation,
    history: History,
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

impl Fixture {
    fn empty() -> Self {
        let sim = Simulation::new(0);
        let _a = sim.member("a");
        let history = History::new(&sim, SECOND);
        Fixture { sim, history }
    }

    fn new() -> Self {
        let fixture = Fixture::empty();
        fixture.history.created(SCHEDULE, Expected::once(nominal(once())));
        fixture
    }

    /// Creates a schedule that is due at every second from the first to the fifth.
    fn series() -> Self {
        let fixture = Fixture::empty();
        fixture.history.created(SCHEDULE, Expected::series((1..100).map(nominal), nominal(5)));
        fixture
    }

    fn until(&self, seconds: u64) {
        self.sim.run_for(Duration::from_secs(seconds) - self.sim.elapsed());
    }

    /// Records a callback that takes 100 ms.
    fn call(&self, occurrence: Occurrence, attempt: u16, accepted: bool) {
        let callback = self.history.callback_began("a", occurrence, attempt);
        self.sim.run_for(SECOND / 10);
        self.history.callback_ended(callback, accepted);
    }

    fn succeed(&self, occurrence: Occurrence) {
        self.call(occurrence, 1, true);
        self.history.outcome(occurrence, RunState::Succeeded);
    }

    fn crash(&self) {
        self.sim.crash("a");
        let _up = self.sim.restart("a");
        self.sim.run_for(SECOND / 100);
    }

    #[track_caller]
    fn holds(&self) -> Verdict {
        self.history.check()
    }

    #[track_caller]
    fn breaks(&self, with: impl Fn(&Violation) -> bool) {
        let violations = self.history.verdict().violations;
        assert!(matches!(violations.as_slice(), [only] if with(only)), "{violations:?}");
    }
}

#[test]
fn verdict_accepts_callback_on_time_with_an_outcome() {
    let fixture = Fixture::new();
    assert_eq!(fixture.history.unresolved(), [occurrence(once())]);
    fixture.until(10);
    fixture.succeed(occurrence(once()));
    assert_eq!(fixture.history.unresolved(), []);
    assert_eq!(fixture.holds(), Verdict { expected: 1, callbacks: 1, ..Verdict::default() });
}

#[test]
fn verdict_reports_an_occurrence_without_an_outcome_as_lost() {
    let fixture = Fixture::new();
    fixture.until(10);
    fixture.breaks(|found| *found == Violation::Lost { occurrence: occurrence(once()), callbacks: 0 });
    fixture.call(occurrence(once()), 1, false);
    fixture.history.outcome(occurrence(once()), RunState::Retrying);
    fixture.breaks(|found| *found == Violation::Lost { occurrence: occurrence(once()), callbacks: 1 });
}

#[test]
fn verdict_does_not_count_retry_after_failure_as_duplicate() {
    let fixture = Fixture::new();
    fixture.until(10);
    fixture.call(occurrence(once()), 1, false);
    fixture.history.outcome(occurrence(once()), RunState::Retrying);
    fixture.call(occurrence(once()), 2, false);
    fixture.history.outcome(occurrence(once()), RunState::Failed);
    assert_eq!(fixture.holds().duplicates, 0);
}

#[test]
fn verdict_reports_callback_before_its_instant_as_early() {
    let fixture = Fixture::new();
    fixture.until(9);
    fixture.succeed(occurrence(once()));
    fixture.breaks(|found| matches!(found, Violation::Early { .. }));
}

#[test]
fn verdict_reports_late_callbacks_of_members_that_report_that_they_are_well() {
    let late_callback = |is_well: fn() -> bool| {
        let fixture = Fixture::new();
        let outside = fixture.sim.outside();
        fixture.sim.run_until(fixture.history.observe_health(is_well, outside.sleep(SECOND * 41)));
        fixture.succeed(occurrence(once()));
        fixture
    };
    late_callback(|| true).breaks(|found| matches!(found, Violation::Silent { .. }));
    late_callback(|| false).holds();
}

#[test]
fn verdict_uses_the_members_clock_to_detect_early_callbacks() {
    let fixture = Fixture::new();
    fixture.sim.jump_clock("a", 1_000);
    fixture.until(9);
    fixture.succeed(occurrence(once()));
    fixture.holds();

    let fixture = Fixture::new();
    fixture.sim.jump_clock("a", -5_000);
    fixture.until(10);
    fixture.succeed(occurrence(once()));
    fixture.breaks(|found| matches!(found, Violation::Early { clock, .. } if *clock == nominal(5)));
}

#[test]
fn verdict_permits_duplicate_only_if_the_member_was_interrupted() {
    let twice = |between: &dyn Fn(&Fixture)| {
        let fixture = Fixture::new();
        fixture.until(10);
        fixture.history.callback_began("a", occurrence(once()), 1);
        fixture.sim.run_for(SECOND);
        between(&fixture);
        fixture.succeed(occurrence(once()));
        fixture
    };
    twice(&|_| {}).breaks(|found| matches!(found, Violation::Duplicate { attempt: 1, earlier: 1, .. }));
    assert_eq!(twice(&Fixture::crash).holds().duplicates, 1);
    assert_eq!(twice(&|fixture| fixture.sim.pause("a", SECOND)).holds().duplicates, 1);
}

#[test]
fn verdict_reports_callback_after_a_durable_success_as_duplicate() {
    let again = |crash_after: Duration| {
        let fixture = Fixture::new();
        fixture.until(10);
        fixture.call(occurrence(once()), 1, true);
        fixture.sim.run_for(crash_after);
        fixture.crash();
        fixture.succeed(occurrence(once()));
        fixture
    };
    assert_eq!(again(SECOND / 2).holds().duplicates, 1);
    again(SECOND * 2).breaks(|found| matches!(found, Violation::Duplicate { .. }));
}

#[test]
fn verdict_accepts_a_retry_only_with_a_higher_attempt_number() {
    let then = |accepted: bool, attempt: u16| {
        let fixture = Fixture::new();
        fixture.until(10);
        fixture.call(occurrence(once()), 1, accepted);
        fixture.call(occurrence(once()), attempt, true);
        fixture.history.outcome(occurrence(once()), RunState::Succeeded);
        fixture
    };
    then(false, 2).holds();
    then(false, 1).breaks(|found| matches!(found, Violation::Duplicate { attempt: 1, .. }));
    then(true, 2).breaks(|found| matches!(found, Violation::Duplicate { attempt: 2, .. }));
}

#[test]
fn verdict_accepts_a_cancellation_after_an_interrupted_attempt() {
    let fixture = Fixture::new();
    fixture.until(10);
    fixture.history.callback_began("a", occurrence(once()), 1);
    fixture.sim.run_for(SECOND);
    fixture.crash();
    fixture.history.cancelled(SCHEDULE);
    fixture.holds();
}

#[test]
fn verdict_reports_a_duplicate_if_no_crash_interrupted_the_attempt() {
    let fixture = Fixture::new();
    fixture.crash();
    let _b = fixture.sim.member("b");
    fixture.until(10);
    fixture.call(occurrence(once()), 1, true);
    fixture.sim.crash("b");
    fixture.succeed(occurrence(once()));
    fixture.breaks(|found| matches!(found, Violation::Duplicate { .. }));
}

#[test]
fn callback_after_an_observed_final_outcome_is_a_violation() {
    let fixture = Fixture::new();
    fixture.until(10);
    fixture.succeed(occurrence(once()));
    fixture.crash();
    fixture.call(occurrence(once()), 1, true);
    fixture.breaks(|found| matches!(found, Violation::AfterOutcome { .. }));
}

#[test]
fn callback_that_starts_after_a_cancellation_is_a_violation() {
    let fixture = Fixture::new();
    fixture.until(9);
    fixture.history.cancelled(SCHEDULE);
    fixture.holds();
    fixture.until(10);
    fixture.succeed(occurrence(once()));
    fixture.breaks(|found| matches!(found, Violation::AfterCancel { .. }));
}

#[test]
fn successful_cancellation_during_an_attempt_is_a_violation() {
    let cancel_in_flight = |cancel: fn(&History, Incarnation)| {
        let fixture = Fixture::new();
        fixture.until(10);
        let callback = fixture.history.callback_began("a", occurrence(once()), 1);
        fixture.sim.run_for(SECOND);
        cancel(&fixture.history, SCHEDULE);
        fixture.sim.run_for(SECOND);
        fixture.history.callback_ended(callback, false);
        fixture.history.outcome(occurrence(once()), RunState::Cancelled);
        fixture
    };
    cancel_in_flight(History::cancelled_too_late).holds();
    cancel_in_flight(History::cancelled).breaks(|found| matches!(found, Violation::InFlightAtCancel { .. }));
    let retried = cancel_in_flight(History::cancelled_too_late);
    retried.sim.run_for(SECOND * 5);
    retried.call(occurrence(once()), 2, true);
    let violations = retried.history.verdict().violations;
    assert!(violations.iter().any(|found| matches!(found, Violation::AfterCancel { .. })), "{violations:?}");
}

#[test]
fn cancelled_occurrence_with_a_callback_needs_an_outcome() {
    let fixture = Fixture::new();
    fixture.until(10);
    fixture.call(occurrence(once()), 1, false);
    fixture.history.outcome(occurrence(once()), RunState::Retrying);
    fixture.sim.run_for(SECOND);
    fixture.history.cancelled(SCHEDULE);
    fixture.breaks(|found| *found == Violation::Unresolved(occurrence(once())));
    fixture.history.outcome(occurrence(once()), RunState::Cancelled);
    fixture.holds();
}

#[test]
fn change_of_a_final_outcome_is_a_violation() {
    let fixture = Fixture::new();
    fixture.until(10);
    fixture.succeed(occurrence(once()));
    fixture.history.outcome(occurrence(once()), RunState::Succeeded);
    fixture.holds();
    fixture.history.outcome(occurrence(once()), RunState::Failed);
    fixture.breaks(|found| matches!(found, Violation::OutcomeChanged { .. }));
}

#[test]
fn success_is_a_violation_if_no_receiver_accepted_the_callback() {
    let fixture = Fixture::new();
    fixture.until(10);
    fixture.call(occurrence(once()), 1, false);
    fixture.history.outcome(occurrence(once()), RunState::Succeeded);
    fixture.breaks(|found| *found == Violation::SucceededUnaccepted(occurrence(once())));
}

#[test]
fn recorded_cancellation_is_a_violation_if_no_client_requested_it() {
    let fixture = Fixture::new();
    fixture.until(10);
    fixture.history.outcome(occurrence(once()), RunState::Cancelled);
    fixture.breaks(|found| *found == Violation::CancelledUnrequested(occurrence(once())));
}

#[test]
fn callback_at_an_instant_outside_the_schedule_is_a_violation() {
    let fixture = Fixture::new();
    fixture.until(11);
    fixture.succeed(occurrence(once()));
    fixture.succeed(occurrence(11));
    fixture.breaks(|found| *found == Violation::Unexpected(occurrence(11)));
}

#[test]
fn verdict_permits_earlier_instants_of_a_create_with_several_tries() {
    let fixture = Fixture::new();
    fixture.history.created_in_steps(SCHEDULE);
    fixture.until(11);
    fixture.succeed(occurrence(once() - 1));
    fixture.succeed(occurrence(once()));
    fixture.holds();
    fixture.succeed(occurrence(once() + 1));
    fixture.breaks(|found| *found == Violation::Unexpected(occurrence(once() + 1)));
}

#[test]
fn verdict_rejects_a_schedule_that_no_client_requested() {
    let fixture = Fixture::empty();
    fixture.until(10);
    fixture.succeed(occurrence(once()));
    fixture.breaks(|found| *found == Violation::Unrequested { schedules: 1, creates: 0 });
    fixture.history.create_without_response();
    fixture.holds();
}

#[test]
fn verdict_requires_no_outcome_after_the_end_of_a_series() {
    let fixture = Fixture::series();
    for second in 1..=6 {
        fixture.until(second);
        if second < 6 { fixture.succeed(occurrence(second)) } else { fixture.call(occurrence(second), 1, true) }
    }
    assert_eq!(fixture.holds(), Verdict { expected: 5, callbacks: 6, ..Verdict::default() });
}

#[test]
fn verdict_rejects_a_callback_and_a_success_of_a_missed_occurrence() {
    let fixture = Fixture::series();
    fixture.until(5);
    fixture.history.outcome(occurrence(1), RunState::Missed { last: nominal(4), count: 4, attempt_possible: false });
    fixture.succeed(occurrence(5));
    assert_eq!(fixture.holds().missed, 4);
    fixture.succeed(occurrence(3));
    let violations = fixture.history.verdict().violations;
    let (occurrence, own, first, last) = (occurrence(3), RunState::Succeeded, nominal(1), nominal(4));
    let twice = Violation::TwoOutcomes { occurrence, own, first, last };
    assert_eq!(violations, [twice, Violation::MissedAndCalled(occurrence)]);
}

/// Records that a crash interrupted the callback of the occurrence at `called`, and that all occurrences from the first
/// to the fourth are missed.
fn missed_after_an_interrupted_callback(called: u64, attempt_possible: bool) -> Fixture {
    let fixture = Fixture::series();
    fixture.until(called);
    fixture.history.callback_began("a", occurrence(called), 1);
    fixture.crash();
    fixture.until(5);
    fixture.history.outcome(occurrence(1), RunState::Missed { last: nominal(4), count: 4, attempt_possible });
    fixture.succeed(occurrence(5));
    fixture
}

#[test]
fn verdict_accepts_an_interrupted_occurrence_as_missed_with_a_mark() {
    missed_after_an_interrupted_callback(1, true).holds();
    missed_after_an_interrupted_callback(1, false).breaks(|found| *found == Violation::MissedUnmarked(occurrence(1)));
    // The mark applies only to the first occurrence of the record.
    missed_after_an_interrupted_callback(3, true).breaks(|found| *found == Violation::MissedUnmarked(occurrence(3)));
}

#[test]
fn verdict_reports_a_wrong_count_of_missed_instants() {
    for count in 3..=5 {
        let fixture = Fixture::series();
        fixture.until(5);
        fixture.history.outcome(occurrence(1), RunState::Missed { last: nominal(4), count, attempt_possible: false });
        fixture.succeed(occurrence(5));
        match count {
            4 => drop(fixture.holds()),
            _ => fixture.breaks(|found| matches!(found, Violation::Miscounted { expected: 4, .. })),
        }
    }
}

#[test]
fn verdict_reports_a_mark_on_a_run_that_no_earlier_owner_can_have_started() {
    let fixture = Fixture::empty();
    fixture.history.marked(occurrence(9), nominal(4));
    fixture.holds();
    fixture.history.marked(occurrence(10), nominal(4));
    fixture.breaks(|found| matches!(found, Violation::MarkedUnstarted { .. }));
}

#[test]
fn acknowledged_change_replaces_the_expected_instants() {
    let fixture = Fixture::new();
    fixture.until(5);
    fixture.history.revised(SCHEDULE, Revision(1), Expected::once(nominal(20)));
    let new = Occurrence { revision: Revision(1), ..occurrence(20) };
    assert_eq!(fixture.history.unresolved(), [new]);
    fixture.until(20);
    fixture.succeed(new);
    fixture.holds();
    fixture.succeed(occurrence(once()));
    fixture.breaks(|found| matches!(found, Violation::OldRevision { .. }));
}

#[test]
fn verdict_accepts_a_revision_from_a_change_without_response() {
    let fixture = Fixture::new();
    fixture.history.change_without_response(SCHEDULE);
    fixture.until(10);
    fixture.holds();
    fixture.succeed(Occurrence { revision: Revision(1), ..occurrence(once()) });
    fixture.holds();
}

#[test]
fn redriven_run_requires_an_outcome_even_after_a_cancellation() {
    let fixture = Fixture::new();
    fixture.until(10);
    fixture.call(occurrence(once()), 1, false);
    fixture.history.outcome(occurrence(once()), RunState::Failed);
    fixture.history.cancelled(SCHEDULE);
    fixture.sim.run_for(SECOND);
    let again = Occurrence { replay: 1, ..occurrence(once()) };
    fixture.history.redriven(again);
    fixture.breaks(|found| *found == Violation::Lost { occurrence: again, callbacks: 0 });
    fixture.succeed(again);
    fixture.holds();
}

#[test]
fn verdict_requires_a_record_for_the_success_of_a_topic() {
    let succeed = |is_stored: bool| {
        let fixture = Fixture::new();
        fixture.until(10);
        let callback = fixture.history.attempt_to_topic_began("a", occurrence(once()), 1);
        fixture.sim.run_for(SECOND);
        fixture.history.callback_ended(callback, true);
        if is_stored {
            fixture.history.record_stored(callback, SECOND * 11);
        }
        fixture.history.outcome(occurrence(once()), RunState::Succeeded);
        fixture
    };
    succeed(true).holds();
    succeed(false).breaks(|found| *found == Violation::SucceededUnaccepted(occurrence(once())));
}

#[test]
fn verdict_reports_record_after_the_end_of_its_attempt() {
    let fail_and_store = |stored_at: Duration, crashes: bool| {
        let fixture = Fixture::new();
        fixture.until(10);
        let callback = fixture.history.attempt_to_topic_began("a", occurrence(once()), 1);
        fixture.sim.run_for(SECOND);
        fixture.history.callback_ended(callback, false);
        fixture.history.outcome(occurrence(once()), RunState::Failed);
        if crashes {
            fixture.crash();
        }
        fixture.history.record_stored(callback, stored_at);
        fixture
    };
    fail_and_store(SECOND * 11, false).holds();
    fail_and_store(SECOND * 12, false).breaks(|found| matches!(found, Violation::LateRecord { .. }));
    // A pause or a crash of the member may delay its last request.
    fail_and_store(SECOND * 12, true).holds();
}

#[test]
fn verdict_ignores_withdrawn_callback_unless_it_has_a_record() {
    let withdraw = |is_stored: bool| {
        let fixture = Fixture::new();
        fixture.until(10);
        let callback = fixture.history.attempt_to_topic_began("a", occurrence(once()), 1);
        fixture.history.callback_withdrawn(callback);
        if is_stored {
            fixture.history.record_stored(callback, SECOND * 10);
        }
        fixture.until(11);
        fixture.succeed(occurrence(once()));
        fixture
    };
    assert_eq!(withdraw(false).holds().callbacks, 1);
    withdraw(true).breaks(|found| matches!(found, Violation::LateRecord { .. }));
}
