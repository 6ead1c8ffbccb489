//! Tests with a short history for each guarantee. The check must find each violation, and must find no violation in a
//! correct history.

use super::super::log::{Answer, Callback, Fault, Kind, Loss, Operation, Placement, Request, RunRecord};
use super::{Promise, Records, Verdict, duplicates, judge};

pub(in super::super) const DUE: u64 = 100_000;
/// 2026-01-01T00:01:40Z.
const DUE_IN_2026: u64 = 1_767_225_700_000;

fn request(operation: Operation, version: u32, asked_ms: u64, answer: Answer) -> Request {
    Request {
        token: "t".to_owned(),
        operation,
        version,
        at_ms: Some(DUE),
        every_ms: None,
        cron: None,
        member: "a".to_owned(),
        asked_ms,
        answered_ms: asked_ms + 10,
        answer,
        status: 200,
        id: None,
        next_ms: None,
        decided_by_ms: None,
        is_kept: false,
        too_late: false,
        said: None,
    }
}

pub(in super::super) fn create() -> Request {
    request(Operation::Create, 1, 90_000, Answer::Acknowledged)
}

fn cancel(asked_ms: u64, answer: Answer) -> Request {
    request(Operation::Cancel, 1, asked_ms, answer)
}

pub(in super::super) fn callback(started_ms: u64, from: &str) -> Callback {
    Callback {
        token: "t".to_owned(),
        version: 1,
        arrived_ms: started_ms + 1,
        started_ms,
        nominal_ms: DUE,
        run: "r".to_owned(),
        schedule: "s".to_owned(),
        attempt: 1,
        term: 1,
        from: from.to_owned(),
        answered_with: 200,
        answered_after_ms: 0,
        is_record: false,
    }
}

fn fault(kind: Kind, member: &str, start_ms: u64, end_ms: u64) -> Fault {
    Fault { number: 1, kind, member: member.to_owned(), start_ms, end_ms, healed_ms: end_ms, lost: None }
}

/// Returns a fail-over that lost commits between the two instants.
pub(in super::super) fn failover(from_ms: u64, until_ms: u64) -> Fault {
    let lost = Some(Loss { from_ms, until_ms });
    Fault { lost, ..fault(Kind::DatabaseFailedOver, "", from_ms - 2_000, until_ms + 300) }
}

fn verdict(requests: Vec<Request>, callbacks: Vec<Callback>, faults: Vec<Fault>) -> Verdict {
    let placements = vec![Placement { token: "t".to_owned(), poller: 7 }];
    judge(&Records::new(requests, callbacks, faults, placements, Vec::new()))
}

#[track_caller]
fn check(requests: Vec<Request>, callbacks: Vec<Callback>, faults: Vec<Fault>, expected: &[Promise]) {
    let broken: Vec<Promise> = verdict(requests, callbacks, faults).broken.iter().map(|one| one.promise).collect();
    assert_eq!(broken, expected);
}

#[test]
fn check_reports_missing_callback_and_accepts_late_callback() {
    check(vec![create()], vec![], vec![], &[Promise::NothingLost]);
    check(vec![create()], vec![callback(DUE + 50_000, "a")], vec![], &[]);
    check(vec![request(Operation::Create, 1, 90_000, Answer::Unknown)], vec![], vec![], &[]);
    check(vec![create(), cancel(95_000, Answer::Unknown)], vec![], vec![], &[]);
    let put = |answer| request(Operation::Put, 2, 95_000, answer);
    let of_first = || vec![callback(DUE, "a")];
    check(vec![create(), put(Answer::Unknown)], of_first(), vec![], &[]);
    check(vec![create(), put(Answer::Unknown)], vec![], vec![], &[Promise::NothingLost]);
    let replaced = [Promise::NothingLost, Promise::NothingAfterReplacement];
    check(vec![create(), put(Answer::Acknowledged)], of_first(), vec![], &replaced);
}

#[test]
fn check_reports_callback_that_arrives_before_its_due_instant() {
    check(vec![create()], vec![callback(DUE - 2, "a")], vec![], &[Promise::NothingEarly]);
}

#[test]
fn check_reports_a_callback_that_arrives_after_a_cancellation() {
    let cancelled = || vec![create(), cancel(DUE + 100, Answer::Cancelled)];
    check(cancelled(), vec![callback(DUE, "a")], vec![], &[]);
    check(cancelled(), vec![callback(DUE + 200, "a")], vec![], &[Promise::NothingAfterCancel]);
    let late = || vec![Callback { arrived_ms: DUE + 3_000, ..callback(DUE, "a") }];
    check(cancelled(), late(), vec![], &[Promise::NothingAfterCancel]);
    check(cancelled(), late(), vec![fault(Kind::CutOff, "b", DUE - 10, DUE + 2_500)], &[Promise::NothingAfterCancel]);
    check(cancelled(), late(), vec![fault(Kind::CutOff, "a", DUE - 10, DUE + 2_500)], &[]);
    let too_late = vec![create(), cancel(DUE + 100, Answer::TooLate)];
    check(too_late.clone(), vec![callback(DUE + 99, "a")], vec![], &[]);
    // The check accepts the attempt that is in flight at the cancellation. It rejects a second attempt, and an attempt
    // that starts more than 1 s after the cancellation.
    check(too_late.clone(), vec![callback(DUE + 150, "a")], vec![], &[]);
    let failed = || Callback { answered_with: 500, answered_after_ms: 100, ..callback(DUE + 50, "a") };
    let again = vec![failed(), Callback { attempt: 2, ..callback(DUE + 400, "a") }];
    check(too_late.clone(), again, vec![], &[Promise::NothingAfterCancel]);
    check(too_late, vec![callback(DUE + 1_200, "a")], vec![], &[Promise::NothingAfterCancel]);
    let pending = Request { decided_by_ms: Some(DUE + 2_000), ..cancel(DUE + 100, Answer::Pending) };
    check(vec![create(), pending.clone()], vec![callback(DUE + 1_999, "a")], vec![], &[]);
    check(vec![create(), pending], vec![callback(DUE + 2_001, "a")], vec![], &[Promise::NothingAfterCancel]);
}

#[test]
fn check_accepts_a_duplicate_only_after_an_interrupted_attempt() {
    let twice = || vec![callback(DUE, "a"), callback(DUE + 3_000, "a")];
    let found = [Promise::DuplicatesOnlyInFlight];
    check(vec![create()], twice(), vec![], &found);
    for kind in [Kind::KilledAndLeftDead, Kind::Paused, Kind::CutFromReceiver, Kind::DatabaseKilled] {
        check(vec![create()], twice(), vec![fault(kind, "a", DUE + 500, DUE + 500)], &[]);
        check(vec![create()], twice(), vec![fault(kind, "a", DUE + 1_100, DUE + 1_200)], &found);
    }
    check(vec![create()], twice(), vec![fault(Kind::KilledAndLeftDead, "b", DUE + 500, DUE + 500)], &found);
    check(vec![create()], twice(), vec![fault(Kind::Stopped, "a", DUE + 10, DUE + 500)], &found);
    check(vec![create()], twice(), vec![fault(Kind::JoinedAndLeft, "a", DUE + 10, DUE + 500)], &found);
}

#[test]
fn only_faults_that_affect_the_bus_explain_duplicate_records() {
    let record = |attempt, started_ms| Callback { attempt, is_record: true, ..callback(started_ms, "a") };
    let records = || vec![record(1, DUE), record(2, DUE + 3_000)];
    let callbacks = || vec![callback(DUE, "a"), Callback { attempt: 2, ..callback(DUE + 3_000, "a") }];
    let found = [Promise::DuplicatesOnlyInFlight];
    check(vec![create()], records(), vec![], &found);
    for (kind, member) in [(Kind::BusKilled, ""), (Kind::BusPaused, ""), (Kind::CutFromBus, "a")] {
        check(vec![create()], records(), vec![fault(kind, member, DUE + 500, DUE + 500)], &[]);
        check(vec![create()], callbacks(), vec![fault(kind, member, DUE + 500, DUE + 500)], &found);
    }
    check(vec![create()], records(), vec![fault(Kind::CutFromReceiver, "a", DUE + 500, DUE + 500)], &found);
}

#[test]
fn sender_of_a_record_is_the_owner_of_its_term() {
    let record = |term, started_ms| Callback { is_record: true, term, run: "q".to_owned(), ..callback(started_ms, "") };
    let callbacks = vec![callback(DUE, "a"), record(1, DUE + 5), record(2, DUE + 9)];
    let placements = vec![Placement { token: "t".to_owned(), poller: 7 }];
    let records = Records::new(vec![create()], callbacks, Vec::new(), placements, Vec::new());
    let senders: Vec<&str> = records.histories["t"].callbacks.iter().map(|callback| callback.from.as_str()).collect();
    assert_eq!(senders, ["a", "a", ""]);
}

#[test]
fn next_attempt_after_a_failed_attempt_is_not_a_duplicate() {
    let failed = Callback { answered_with: 500, ..callback(DUE, "a") };
    let again = Callback { attempt: 2, ..callback(DUE + 700, "a") };
    check(vec![create()], vec![failed.clone(), again], vec![], &[]);
    check(vec![create()], vec![failed, callback(DUE + 700, "a")], vec![], &[Promise::DuplicatesOnlyInFlight]);
}

#[test]
fn check_reports_attempt_of_older_term_after_attempt_of_newer_term() {
    let of = |token: &str, term, started_ms, from: &str| Callback {
        token: token.to_owned(),
        run: token.to_owned(),
        term,
        ..callback(started_ms, from)
    };
    let requests = || vec![create(), Request { token: "u".to_owned(), ..create() }];
    let placements = || ["t", "u"].map(|token| Placement { token: token.to_owned(), poller: 7 }).to_vec();
    let broken = |first: Callback, second: Callback| {
        let records = Records::new(requests(), vec![first, second], Vec::new(), placements(), Vec::new());
        judge(&records).broken.iter().map(|one| one.promise).collect::<Vec<_>>()
    };
    assert_eq!(broken(of("t", 1, DUE, "a"), of("u", 2, DUE + 5, "b")), []);
    assert_eq!(broken(of("t", 2, DUE, "b"), of("u", 1, DUE + 5, "a")), [Promise::OneOwnerAtATime]);
    assert_eq!(broken(of("t", 1, DUE, "a"), of("u", 1, DUE + 5, "b")), [Promise::OneOwnerAtATime]);
}

#[test]
fn check_reports_occurrence_with_neither_callback_nor_outcome() {
    let every = |request: Request| Request { at_ms: None, every_ms: Some(2_000), next_ms: Some(DUE), ..request };
    let requests = || {
        vec![
            every(request(Operation::Put, 1, 98_000, Answer::Acknowledged)),
            every(cancel(DUE + 5_500, Answer::Cancelled)),
        ]
    };
    let at = |nominal_ms: u64| Callback { nominal_ms, run: nominal_ms.to_string(), ..callback(nominal_ms, "a") };
    check(requests(), vec![at(DUE), at(DUE + 2_000), at(DUE + 4_000)], vec![], &[]);
    check(requests(), vec![at(DUE), at(DUE + 4_000)], vec![], &[Promise::EveryInstantAccountedFor]);
    check(requests(), vec![at(DUE), at(DUE + 2_000)], vec![], &[Promise::EveryInstantAccountedFor]);
    // The shard has no owner at the third due instant, and a client cancels the schedule before the shard has an owner
    // again.
    check(
        requests(),
        vec![at(DUE), at(DUE + 2_000)],
        vec![fault(Kind::KilledAndLeftDead, "a", DUE + 3_000, DUE + 3_000)],
        &[],
    );
    // A missed run explains the missing callback. A failed or cancelled run explains it only if the run has attempts.
    // Other runs do not explain it.
    let run_record = |state: &str, attempts| RunRecord {
        token: "t".to_owned(),
        id: "s".to_owned(),
        state: state.to_owned(),
        nominal_ms: DUE + 2_000,
        missed_last_ms: None,
        attempt_possible: false,
        attempts,
    };
    let is_accounted_for = |run_record: RunRecord| {
        let came = vec![at(DUE), at(DUE + 4_000)];
        let placements = vec![Placement { token: "t".to_owned(), poller: 7 }];
        judge(&Records::new(requests(), came, Vec::new(), placements, vec![run_record])).broken.is_empty()
    };
    for (state, attempts) in [("missed", 0), ("failed", 3), ("cancelled", 1)] {
        assert!(is_accounted_for(run_record(state, attempts)), "{state}");
    }
    for (state, attempts) in [("failed", 0), ("cancelled", 0), ("succeeded", 1), ("retrying", 1)] {
        assert!(!is_accounted_for(run_record(state, attempts)), "{state}");
    }
}

#[test]
fn check_reports_response_that_contradicts_earlier_requests() {
    let exists = request(Operation::Create, 1, 90_000, Answer::Exists);
    check(vec![exists], vec![callback(DUE, "a")], vec![], &[Promise::ResponsesAsDocumented]);
    check(vec![create(), cancel(95_000, Answer::NotFound)], vec![], vec![], &[Promise::ResponsesAsDocumented]);
}

#[test]
fn check_reports_one_shot_schedule_with_two_run_ids() {
    let other = Callback { run: "other".to_owned(), ..callback(DUE + 5, "a") };
    check(vec![create()], vec![callback(DUE, "a"), other], vec![], &[Promise::OneIdPerRun]);
}

#[test]
fn check_reports_missed_run_without_mark_if_its_callback_arrived() {
    let every = |request: Request| Request { at_ms: None, every_ms: Some(2_000), next_ms: Some(DUE), ..request };
    let requests = vec![
        every(request(Operation::Put, 1, 98_000, Answer::Acknowledged)),
        every(cancel(DUE + 5_500, Answer::Cancelled)),
    ];
    let at = |nominal_ms: u64| Callback { nominal_ms, run: nominal_ms.to_string(), ..callback(nominal_ms, "a") };
    let broken = |came: &[u64], attempt_possible| {
        let missed = RunRecord {
            token: "t".to_owned(),
            id: "s".to_owned(),
            state: "missed".to_owned(),
            nominal_ms: DUE,
            missed_last_ms: Some(DUE + 2_000),
            attempt_possible,
            attempts: 0,
        };
        let callbacks = came.iter().map(|nominal_ms| at(*nominal_ms)).collect();
        let placements = vec![Placement { token: "t".to_owned(), poller: 7 }];
        let verdict = judge(&Records::new(requests.clone(), callbacks, Vec::new(), placements, vec![missed]));
        verdict.broken.iter().map(|one| one.promise).collect::<Vec<_>>()
    };
    assert_eq!(broken(&[DUE + 4_000], false), []);
    assert_eq!(broken(&[DUE, DUE + 4_000], true), []);
    assert_eq!(broken(&[DUE, DUE + 4_000], false), [Promise::MissedIsMarked]);
    assert_eq!(broken(&[DUE + 2_000, DUE + 4_000], true), [Promise::MissedIsMarked]);
}

#[test]
fn check_reports_cron_schedule_that_fires_at_another_instant() {
    // 2026-01-01T00:01:40Z is 05:46:40 in Kathmandu. The expression names the seconds 40 and 42 of each minute.
    let cron = |request: Request| Request {
        at_ms: None,
        cron: Some(("40,42 * 5,6 * * *".to_owned(), "Asia/Kathmandu".to_owned())),
        next_ms: Some(DUE_IN_2026),
        ..request
    };
    let requests = |next_ms: u64| {
        let put = cron(request(Operation::Put, 1, DUE_IN_2026 - 2_000, Answer::Acknowledged));
        vec![Request { next_ms: Some(next_ms), ..put }, cron(cancel(DUE_IN_2026 + 5_500, Answer::Cancelled))]
    };
    let at = |nominal_ms: u64| Callback { nominal_ms, run: nominal_ms.to_string(), ..callback(nominal_ms, "a") };
    let both = || vec![at(DUE_IN_2026), at(DUE_IN_2026 + 2_000)];
    check(requests(DUE_IN_2026), both(), vec![], &[]);
    check(requests(DUE_IN_2026), vec![at(DUE_IN_2026)], vec![], &[Promise::EveryInstantAccountedFor]);
    let other = both().into_iter().chain([at(DUE_IN_2026 + 4_000)]).collect();
    check(requests(DUE_IN_2026), other, vec![], &[Promise::CronInstants]);
    check(requests(DUE_IN_2026 + 1_000), both(), vec![], &[Promise::CronInstants]);
}

#[test]
fn schedule_may_be_lost_only_if_a_fail_over_lost_its_request() {
    let of = |request: Request, from_ms, until_ms, expected: &[Promise]| {
        check(vec![request], vec![], vec![failover(from_ms, until_ms)], expected);
    };
    // A client sends the request at 90,000 ms and receives its response at 90,010 ms.
    of(create(), 90_010, 95_000, &[]);
    of(create(), 85_000, 90_000, &[]);
    of(create(), 90_011, 95_000, &[Promise::NothingLost]);
    of(create(), 85_000, 89_999, &[Promise::NothingLost]);
    of(Request { is_kept: true, ..create() }, 90_010, 95_000, &[Promise::NothingLost]);
}

#[test]
fn fail_over_may_undo_a_replacement_but_not_the_schedule() {
    let requests = || vec![create(), request(Operation::Put, 2, 95_000, Answer::Acknowledged)];
    let of = |callbacks: Vec<Callback>, from_ms, until_ms, expected: &[Promise]| {
        check(requests(), callbacks, vec![failover(from_ms, until_ms)], expected);
    };
    let first = || vec![callback(DUE, "a")];
    let second = || vec![Callback { version: 2, ..callback(DUE, "a") }];
    of(first(), 94_000, 96_000, &[]);
    of(second(), 94_000, 96_000, &[]);
    of(vec![], 94_000, 96_000, &[Promise::NothingLost]);
    // The replacement is in effect until the end of the primary.
    of(first(), 94_000, DUE + 1, &[Promise::NothingAfterReplacement]);
    of(first(), 95_011, 96_000, &[Promise::NothingLost, Promise::NothingAfterReplacement]);
    // A later replacement that the database has kept forbids both versions.
    let third = request(Operation::Put, 3, 97_000, Answer::Acknowledged);
    let requests = requests().into_iter().chain([third]).collect();
    let both = vec![Promise::NothingLost, Promise::NothingAfterReplacement];
    check(requests, second(), vec![failover(94_000, 96_000)], &both);
}

#[test]
fn fail_over_may_undo_a_cancellation_after_the_end_of_the_primary() {
    let cancelled = |asked_ms| vec![create(), cancel(asked_ms, Answer::Cancelled)];
    let fired = || vec![callback(DUE, "a")];
    check(cancelled(95_000), fired(), vec![failover(94_000, 96_000)], &[]);
    check(cancelled(95_000), fired(), vec![failover(94_000, DUE + 1)], &[Promise::NothingAfterCancel]);
    check(cancelled(95_000), fired(), vec![failover(95_011, 96_000)], &[Promise::NothingAfterCancel]);
    check(cancelled(96_001), fired(), vec![failover(94_000, 96_000)], &[Promise::NothingAfterCancel]);
}

#[test]
fn earlier_owner_may_miss_a_cancellation_only_shortly_after_the_fail_over() {
    let fired = |started_ms, term| {
        let cancelled = vec![create(), cancel(DUE + 500, Answer::Cancelled)];
        let callbacks = vec![Callback { term, ..callback(started_ms, "a") }];
        let verdict = verdict(cancelled, callbacks, vec![failover(DUE - 3_000, DUE)]);
        verdict.broken.iter().map(|one| one.promise).collect::<Vec<_>>()
    };
    assert_eq!(fired(DUE + 3_000, 1), []);
    assert_eq!(fired(DUE + 3_001, 1), [Promise::NothingAfterCancel]);
    assert_eq!(fired(DUE + 3_000, 1 << 20), [Promise::NothingAfterCancel]);
}

#[test]
fn schedule_may_be_unknown_only_after_a_fail_over_that_lost_it() {
    let requests = || vec![create(), cancel(95_000, Answer::NotFound)];
    check(requests(), vec![], vec![failover(89_000, 94_000)], &[]);
    check(requests(), vec![], vec![failover(89_000, 95_100)], &[Promise::ResponsesAsDocumented]);
    check(requests(), vec![], vec![failover(91_000, 94_000)], &[Promise::ResponsesAsDocumented]);
}

#[test]
fn fail_over_permits_duplicates_only_of_attempts_whose_outcomes_it_lost() {
    let twice = || vec![callback(DUE, "a"), Callback { term: 2, ..callback(DUE + 3_000, "b") }];
    let found = [Promise::DuplicatesOnlyInFlight];
    check(vec![create()], twice(), vec![failover(DUE + 500, DUE + 2_500)], &[]);
    check(vec![create()], twice(), vec![failover(DUE + 500, DUE + 3_001)], &found);
    check(vec![create()], twice(), vec![failover(DUE + 1_002, DUE + 2_500)], &found);
    // The outcomes of earlier owners are lost until these owners notice the fail-over.
    check(vec![create()], twice(), vec![failover(DUE - 9_000, DUE - 3_000)], &[]);
    check(vec![create()], twice(), vec![failover(DUE - 9_000, DUE - 3_001)], &found);
}

#[test]
fn only_fail_over_may_repeat_more_attempts_than_may_be_in_flight() {
    let capped = |fault: Fault| {
        let mut verdict = Verdict::default();
        verdict.duplicates.insert(fault.number, (5_000, 0));
        duplicates::judge_cap(&[fault], &mut verdict);
        !verdict.broken.is_empty()
    };
    assert!(capped(fault(Kind::DatabaseKilled, "", DUE, DUE)));
    assert!(!capped(failover(DUE, DUE + 5_000)));
}

#[test]
fn two_owners_may_start_attempts_only_shortly_after_a_fail_over() {
    const NEW: u64 = 2 << 20;
    let broken = |callbacks: [(u64, u64); 2], fault: Fault| {
        let requests = ["t", "u"].map(|token| Request { token: token.to_owned(), ..create() }).to_vec();
        let of = |(token, (started_ms, term)): (&str, (u64, u64))| Callback {
            token: token.to_owned(),
            run: token.to_owned(),
            term,
            ..callback(started_ms, token)
        };
        let callbacks = ["t", "u"].into_iter().zip(callbacks).map(of).collect();
        let placements = ["t", "u"].map(|token| Placement { token: token.to_owned(), poller: 7 }).to_vec();
        let verdict = judge(&Records::new(requests, callbacks, vec![fault], placements, Vec::new()));
        verdict.broken.iter().map(|one| one.promise).collect::<Vec<_>>()
    };
    let failed_over = || failover(DUE - 3_000, DUE);
    assert_eq!(broken([(DUE + 500, NEW), (DUE + 3_000, 1)], failed_over()), []);
    assert_eq!(broken([(DUE + 500, NEW), (DUE + 3_001, 1)], failed_over()), [Promise::OneOwnerAtATime]);
    assert_eq!(broken([(DUE + 500, NEW + 1), (DUE + 3_000, NEW)], failed_over()), [Promise::OneOwnerAtATime]);
    assert_eq!(
        broken([(DUE + 500, NEW), (DUE + 900, 1)], failover(DUE - 3_000, DUE + 600)),
        [Promise::OneOwnerAtATime]
    );
    assert_eq!(broken([(DUE + 500, NEW), (DUE + 3_000, NEW)], failed_over()), [Promise::OneOwnerAtATime]);
}

#[test]
fn lost_recurring_schedule_needs_no_outcomes_but_a_kept_one_does() {
    let every = |request: Request| Request { at_ms: None, every_ms: Some(2_000), next_ms: Some(DUE), ..request };
    let at = |nominal_ms: u64| Callback { nominal_ms, run: nominal_ms.to_string(), ..callback(nominal_ms, "a") };
    let requests = || {
        vec![
            every(request(Operation::Put, 1, 98_000, Answer::Acknowledged)),
            every(cancel(DUE + 30_000, Answer::NotFound)),
        ]
    };
    let missing = [Promise::EveryInstantAccountedFor; 2];
    let lost = || failover(97_000, DUE + 3_000);
    // The primary ends before the third occurrence, so an earlier owner can start its attempt.
    let fired = || vec![at(DUE), at(DUE + 2_000), at(DUE + 4_000)];
    check(requests(), fired(), vec![lost()], &[]);
    let kept = |mut requests: Vec<Request>| {
        requests[1].answer = Answer::Cancelled;
        requests
    };
    let with_gap = || fired().into_iter().chain([at(DUE + 10_000)]).collect();
    let until = |cancel_ms: u64| {
        let mut requests = kept(requests());
        (requests[1].asked_ms, requests[1].answered_ms) = (cancel_ms, cancel_ms + 10);
        requests
    };
    check(until(DUE + 11_500), with_gap(), vec![lost()], &missing);
    // The occurrences depend on a later replacement that the database may have lost.
    let mut replaced = until(DUE + 5_500);
    replaced[0].asked_ms = 90_000;
    replaced[0].answered_ms = 90_010;
    replaced.push(every(request(Operation::Put, 2, 98_000, Answer::Acknowledged)));
    check(replaced, vec![at(DUE + 4_000)], vec![failover(97_000, 99_000)], &[]);
}

#[test]
fn missed_run_needs_no_mark_if_a_fail_over_lost_its_attempt() {
    let every = |request: Request| Request { at_ms: None, every_ms: Some(2_000), next_ms: Some(DUE), ..request };
    let requests = vec![
        every(request(Operation::Put, 1, 90_000, Answer::Acknowledged)),
        every(cancel(DUE + 5_500, Answer::Cancelled)),
    ];
    let at = |nominal_ms: u64| Callback { nominal_ms, run: nominal_ms.to_string(), ..callback(nominal_ms, "a") };
    let broken = |faults: Vec<Fault>| {
        let missed = RunRecord {
            token: "t".to_owned(),
            id: "s".to_owned(),
            state: "missed".to_owned(),
            nominal_ms: DUE,
            missed_last_ms: None,
            attempt_possible: false,
            attempts: 0,
        };
        let callbacks = vec![at(DUE), at(DUE + 2_000), at(DUE + 4_000)];
        let verdict = judge(&Records::new(requests.clone(), callbacks, faults, Vec::new(), vec![missed]));
        verdict.broken.iter().map(|one| one.promise).collect::<Vec<_>>()
    };
    assert_eq!(broken(vec![failover(DUE + 1_000, DUE + 3_000)]), []);
    assert_eq!(broken(vec![failover(DUE + 1_100, DUE + 3_000)]), [Promise::MissedIsMarked]);
    assert_eq!(broken(vec![failover(DUE - 9_000, DUE - 3_001)]), [Promise::MissedIsMarked]);
    // A cut of the sender delays the record until after the beginning of the loss.
    let cut = fault(Kind::CutFromDatabase, "a", DUE - 500, DUE + 500);
    assert_eq!(broken(vec![cut, failover(DUE + 1_100, DUE + 3_000)]), []);
}

#[test]
fn fail_over_may_lose_the_outcome_of_an_instant_until_a_later_outcome_is_kept() {
    let every = |request: Request| Request { at_ms: None, every_ms: Some(2_000), next_ms: Some(DUE), ..request };
    let at = |nominal_ms: u64| Callback { nominal_ms, run: nominal_ms.to_string(), ..callback(nominal_ms, "a") };
    let requests = || {
        vec![
            every(request(Operation::Put, 1, 90_000, Answer::Acknowledged)),
            every(cancel(DUE + 12_500, Answer::Cancelled)),
        ]
    };
    // No callback came for DUE + 2,000. The fail-over ends 3 s before the last instant at which an owner may start an
    // attempt without a lasting record.
    let came = |last: u64| vec![at(DUE), at(DUE + 4_000), at(last)];
    let missing = [Promise::EveryInstantAccountedFor];
    check(requests(), came(DUE + 6_000), vec![failover(DUE + 3_000, DUE + 5_000)], &[]);
    check(requests(), came(DUE + 6_000), vec![failover(DUE + 5_500, DUE + 6_500)], &missing);
    let until = DUE + 5_000;
    let all = |last: u64| [0, 4, 6, 8].map(|second| at(DUE + 1_000 * second)).into_iter().chain([at(last)]).collect();
    check(requests(), all(DUE + 10_000), vec![failover(DUE + 3_000, until)], &missing);
}
