use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use domain::recurrence::Cron;
use domain::retry::RetryPolicy;
use domain::{
    Attempt, AttemptResult, HttpTarget, Revision, RunState, Secret, Status, Target, TargetKey, Timestamp, When,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;

fn at() -> impl Strategy<Value = Timestamp> {
    prop_oneof![Just(Timestamp::MIN), Just(Timestamp::MAX), (0..i64::MAX).prop_map(Timestamp::from_millis)]
}

fn poller() -> impl Strategy<Value = PollerId> {
    (any::<u32>(), any::<u16>(), any::<u16>()).prop_map(|(tenant, generation, number)| PollerId {
        tenant: TenantId(tenant),
        generation,
        number,
    })
}

fn occurrence() -> impl Strategy<Value = Occurrence> {
    (any::<u128>(), at(), any::<u32>(), any::<u16>()).prop_map(|(incarnation, nominal, revision, replay)| Occurrence {
        incarnation: Incarnation(incarnation),
        nominal,
        revision: Revision(revision),
        replay,
    })
}

fn due() -> impl Strategy<Value = DueKey> {
    (at(), occurrence(), any::<u16>(), any::<u32>()).prop_map(|(position, occurrence, attempt, target)| DueKey {
        position,
        occurrence,
        attempt,
        target: TargetKey(target),
    })
}

fn duration() -> impl Strategy<Value = Duration> {
    (any::<u64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos))
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        at().prop_map(When::At),
        (".{0,20}", ".{0,20}").prop_map(|(expression, zone)| When::Cron(Cron::from_stored(expression, zone))),
        duration().prop_map(When::every),
    ]
}

fn spec() -> impl Strategy<Value = Spec> {
    let value = prop_oneof![
        ".{0,9}".prop_map(Secret::from),
        vec(any::<u8>(), 0..80).prop_map(|it| Secret::Encrypted(it.into()))
    ];
    let target = (".{0,40}", "[A-Z]{1,7}", vec((".{0,9}", value), 0..4), duration())
        .prop_map(|(url, method, headers, timeout)| Target::Http(HttpTarget { url, method, headers, timeout }));
    let retry = (any::<u16>(), duration(), duration()).prop_map(|(attempts_max, backoff, backoff_max)| RetryPolicy {
        attempts_max,
        backoff,
        backoff_max,
    });
    (when(), target, vec(any::<u8>(), 0..50), btree_map(".{0,9}", ".{0,9}", 0..4), retry).prop_map(
        |(when, target, payload, labels, retry)| Spec { when, target, payload: Bytes::from(payload), labels, retry },
    )
}

fn id() -> impl Strategy<Value = ScheduleId> {
    "[A-Za-z0-9_-]{1,128}".prop_map(|text| ScheduleId::new(&text).unwrap())
}

fn schedule() -> impl Strategy<Value = Arc<Schedule>> {
    let status = prop_oneof![Just(Status::Active), Just(Status::Ended), Just(Status::Cancelled)];
    let head = (any::<u32>(), id(), any::<u128>(), poller());
    let state = (any::<u32>(), status, at(), at(), option::of(at()));
    (head, state, spec()).prop_map(|((tenant, id, incarnation, poller), state, spec)| {
        let (revision, status, created_at, updated_at, next) = state;
        Arc::new(Schedule {
            tenant: TenantId(tenant),
            id,
            incarnation: Incarnation(incarnation),
            poller,
            revision: Revision(revision),
            status,
            created_at,
            updated_at,
            next,
            spec,
        })
    })
}

fn run() -> impl Strategy<Value = Run> {
    let state = prop_oneof![
        Just(RunState::Retrying),
        Just(RunState::Succeeded),
        Just(RunState::Failed),
        Just(RunState::Cancelled),
        (at(), any::<u64>(), any::<bool>()).prop_map(|(last, count, attempt_possible)| RunState::Missed {
            last,
            count,
            attempt_possible
        }),
    ];
    let result = prop_oneof![
        any::<u16>().prop_map(AttemptResult::Answered),
        ".{0,30}".prop_map(AttemptResult::Unreachable),
        Just(AttemptResult::TimedOut),
        Just(AttemptResult::Panicked),
    ];
    let attempt = (any::<u16>(), at(), duration(), result).prop_map(|(number, started_at, duration, result)| Attempt {
        number,
        started_at,
        duration,
        result,
        delay: None,
        excerpt: None,
    });
    (any::<u32>(), occurrence(), state, vec(attempt, 0..4)).prop_map(|(tenant, occurrence, state, attempts)| Run {
        tenant: TenantId(tenant),
        occurrence,
        state,
        attempts,
    })
}

fn named() -> impl Strategy<Value = Named> {
    let incarnation = option::of(any::<u128>().prop_map(Incarnation));
    (any::<u32>(), id(), incarnation, spec()).prop_map(|(tenant, id, incarnation, spec)| Named {
        tenant: TenantId(tenant),
        id,
        incarnation,
        spec,
    })
}

fn shards() -> impl Strategy<Value = Vec<ShardId>> {
    vec(any::<u16>().prop_map(ShardId), 0..300)
}

fn edition() -> impl Strategy<Value = ScheduleVersion> {
    (any::<u128>(), any::<u32>()).prop_map(|(incarnation, revision)| ScheduleVersion {
        incarnation: Incarnation(incarnation),
        revision: Revision(revision),
    })
}

fn seen() -> impl Strategy<Value = Precondition> {
    (edition(), option::of(at())).prop_map(|(edition, next)| Precondition { edition, next })
}

fn timing() -> impl Strategy<Value = Timing> {
    prop_oneof![Just(Timing::Restarted), Just(Timing::Kept)]
}

fn outcome() -> impl Strategy<Value = AttemptOutcome> {
    (poller(), run(), option::of(due()), any::<bool>()).prop_map(|(poller, run, then, ends)| AttemptOutcome {
        poller,
        run,
        then,
        ends,
    })
}

fn refusal() -> impl Strategy<Value = CreateRejection> {
    prop_oneof![Just(CreateRejection::Exists), Just(CreateRejection::Unreachable), Just(CreateRejection::NeverFires)]
}

fn put_answer() -> impl Strategy<Value = Result<PutResponse, CreateRejection>> {
    let put = (schedule(), any::<bool>(), any::<bool>()).prop_map(|(schedule, created, too_late)| PutResponse {
        schedule,
        created,
        too_late,
    });
    prop_oneof![put.prop_map(Ok), refusal().prop_map(Err)]
}

fn cancel_answer() -> impl Strategy<Value = CancelResponse> {
    prop_oneof![
        Just(CancelResponse::NotFound),
        Just(CancelResponse::Cancelled),
        Just(CancelResponse::TooLate),
        at().prop_map(|decided_by| CancelResponse::Pending { decided_by }),
    ]
}

fn redrive_answer() -> impl Strategy<Value = RedriveResponse> {
    prop_oneof![
        Just(RedriveResponse::NotFound),
        Just(RedriveResponse::NotDead),
        occurrence().prop_map(RedriveResponse::Redriven),
    ]
}

fn delay() -> impl Strategy<Value = Delay> {
    prop_oneof![
        (prop::sample::select(&Quota::ALL[..]), at()).prop_map(|(quota, since)| Delay::Quota { quota, since }),
        Just(Delay::Slot),
        option::of(at()).prop_map(|until| Delay::Circuit { until }),
        at().prop_map(|until| Delay::MemberDown { until }),
    ]
}

fn undone() -> impl Strategy<Value = OwnerError> {
    prop_oneof![
        Just(OwnerError::NotOwned),
        (0..4, ".{0,30}").prop_map(|(kind, text)| {
            OwnerError::Failed(match kind {
                0 => StoreError::Unavailable(text),
                1 => StoreError::Full(text),
                2 => StoreError::Unindexed(text),
                _ => StoreError::Damaged(text),
            })
        }),
    ]
}

fn audit_report() -> impl Strategy<Value = AuditReport> {
    let difference = (occurrence(), prop::sample::select(&DifferenceKind::ALL[..]))
        .prop_map(|(occurrence, kind)| Difference { occurrence, kind });
    let finding = (any::<u32>().prop_map(TenantId), id(), difference, at());
    let finding = finding.prop_map(|(tenant, schedule, difference, found_at)| AuditFinding {
        tenant,
        schedule,
        difference,
        found_at,
    });
    let report = (option::of(at()), option::of(at()), any::<u32>(), any::<[bool; 2]>(), vec(finding, 0..4));
    report.prop_map(|(from, completed_at, unaccounted, [is_truncated, is_incomplete], findings)| AuditReport {
        from,
        completed_at,
        unaccounted,
        is_truncated,
        is_incomplete,
        findings,
    })
}

/// Encodes a request of the operation `O` and its response, and checks that each decodes to the original value. Also
/// checks that the decoder does not panic on shortened, extended and changed bytes.
fn check<O>(request: impl Strategy<Value = O>, response: impl Strategy<Value = O::Answer>)
where
    O: Operation + PartialEq + Debug,
    O::Answer: PartialEq + Debug,
{
    let response = prop_oneof![3 => response.prop_map(Ok), 1 => undone().prop_map(Err)];
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 1..5);
    let case = (request, response, any::<prop::sample::Index>(), changes, vec(any::<u8>(), 0..80));
    proptest!(|((request, response, cut, changes, noise) in case)| {
        let (request_bytes, response_bytes) = (encode_request(&request), encode_response::<O>(&response));
        prop_assert_eq!(decode_request::<O>(&request_bytes).unwrap(), request);
        prop_assert_eq!(decode_response::<O>(&response_bytes).unwrap(), response);
        prop_assert!(decode_request::<O>(&request_bytes[..cut.index(request_bytes.len())]).is_err());
        prop_assert!(decode_response::<O>(&response_bytes[..cut.index(response_bytes.len())]).is_err());
        prop_assert!(decode_request::<O>(&[&request_bytes[..], &[0]].concat()).is_err());
        prop_assert!(decode_response::<O>(&[&response_bytes[..], &[0]].concat()).is_err());
        for mut bytes in [request_bytes.to_vec(), response_bytes.to_vec(), noise] {
            for (at, byte) in &changes {
                if bytes.is_empty() {
                    break;
                }
                let at = at.index(bytes.len());
                bytes[at] = *byte;
                let _any = (decode_request::<O>(&bytes), decode_response::<O>(&bytes));
            }
        }
    });
}

#[test]
fn every_operation_decodes_only_from_its_complete_bytes() {
    let created = prop_oneof![schedule().prop_map(Ok), refusal().prop_map(Err)];
    check(vec(named(), 0..5).prop_map(CreateNamed), vec(created, 0..5));
    check(named().prop_map(Put), put_answer());
    check((named(), ".{0,9}").prop_map(|(named, by)| PutBy { put: Put(named), by }), put_answer());
    let put_if_by = (named(), option::of(seen()), timing(), ".{0,9}");
    let put_if_by = put_if_by.prop_map(|(named, seen, timing, by)| PutIfBy { put: PutIf { named, seen, timing }, by });
    check(put_if_by, option::of(put_answer()));
    let put_if = (named(), option::of(seen()), timing());
    check(put_if.prop_map(|(named, seen, timing)| PutIf { named, seen, timing }), option::of(put_answer()));
    let cancel = (poller(), any::<u128>().prop_map(Incarnation), any::<bool>());
    let cancel = cancel.prop_map(|(poller, incarnation, applied)| Cancel { poller, incarnation, applied });
    check(cancel, cancel_answer());
    let by = (poller(), edition(), ".{0,9}");
    let by = by.prop_map(|(poller, edition, by)| CancelIfBy { cancel: CancelIf { poller, edition }, by });
    check(by, option::of(cancel_answer()));
    let cancel_if = (poller(), edition()).prop_map(|(poller, edition)| CancelIf { poller, edition });
    check(cancel_if, option::of(cancel_answer()));
    let redrive = (any::<u32>().prop_map(TenantId), occurrence()).prop_map(|(tenant, of)| Redrive { tenant, of });
    check(redrive, redrive_answer());
    let waiting = (poller(), any::<u128>().prop_map(Incarnation), at(), any::<u32>().prop_map(TargetKey), at());
    let waiting = waiting.prop_map(|(poller, incarnation, nominal, target, due)| Waiting {
        poller,
        incarnation,
        nominal,
        target,
        due,
    });
    let progress = (any::<bool>(), option::of(delay()));
    check(waiting, progress.prop_map(|(is_in_flight, delay)| Progress { is_in_flight, delay }));
    let audit = option::of(any::<u32>().prop_map(TenantId)).prop_map(|tenant| AuditRequest { tenant });
    check(audit, audit_report());
    let release = (any::<u128>().prop_map(MemberId), shards());
    check(release.prop_map(|(member, shards)| Release { member, shards }), shards());
    check(outcome(), Just(()));
    check(Just(Nudge), Just(()));
}

#[test]
fn decoder_rejects_a_count_that_exceeds_the_items_that_follow() {
    let mut create = vec![VERSION];
    create.extend(u32::MAX.to_le_bytes());
    assert!(decode_request::<CreateNamed>(&create).is_err());
    assert!(decode_response::<Release>(&[&[VERSION, 1][..], &u32::MAX.to_le_bytes()].concat()).is_err());
    // The declared count equals the number of bytes that follow. Each item needs several bytes, so the items are
    // incomplete.
    create.truncate(1);
    create.extend(1_000_000_u32.to_le_bytes());
    create.resize(1_000_005, 0xff);
    assert!(decode_request::<CreateNamed>(&create).is_err());
}

#[test]
fn decoder_rejects_invalid_schedule_id_and_invalid_boolean() {
    let mut put = encode_request(&Put(a_named())).to_vec();
    let at = put.windows(8).position(|bytes| bytes == b"order-17").unwrap();
    put[at + 5] = b'.';
    assert!(decode_request::<Put>(&put).is_err(), "an invalid schedule id");
    let cancel = Cancel { poller: a_schedule().poller, incarnation: Incarnation(1), applied: true };
    let mut cancel = encode_request(&cancel).to_vec();
    *cancel.last_mut().unwrap() = 2;
    assert!(decode_request::<Cancel>(&cancel).is_err(), "an invalid boolean");
}

#[test]
fn decoder_rejects_message_of_another_format_version() {
    let mut nudge = encode_request(&Nudge).to_vec();
    nudge[0] += 1;
    assert!(decode_request::<Nudge>(&nudge).is_err());
}

fn an_occurrence() -> Occurrence {
    Occurrence {
        incarnation: Incarnation(0x0190_a1b2_c3d4_0000_1111_2222_3333_4444),
        nominal: Timestamp::from_millis(1_800_000_000_123),
        revision: Revision(5),
        replay: 1,
    }
}

fn a_spec(when: When) -> Spec {
    Spec {
        when,
        target: Target::Http(HttpTarget {
            url: "https://example.org/hook".to_owned(),
            method: "POST".to_owned(),
            headers: vec![("x-a".to_owned(), "b".into())],
            timeout: Duration::from_secs(10),
        }),
        payload: Bytes::from_static(b"{\"n\":1}"),
        labels: BTreeMap::from([("team".to_owned(), "blue".to_owned())]),
        retry: RetryPolicy {
            attempts_max: 3,
            backoff: Duration::from_millis(1500),
            backoff_max: Duration::from_secs(60),
        },
    }
}

fn a_named() -> Named {
    let when = When::Cron(Cron::from_stored("0 9 * * 1", "Europe/Berlin"));
    Named { tenant: TenantId(7), id: ScheduleId::new("order-17").unwrap(), incarnation: None, spec: a_spec(when) }
}

fn a_schedule() -> Arc<Schedule> {
    Arc::new(Schedule {
        tenant: TenantId(7),
        id: ScheduleId::new("order-17").unwrap(),
        incarnation: an_occurrence().incarnation,
        poller: PollerId { tenant: TenantId(7), generation: 1, number: 2 },
        revision: Revision(5),
        status: Status::Active,
        created_at: Timestamp::from_millis(1_700_000_000_000),
        updated_at: Timestamp::from_millis(1_700_000_000_001),
        next: Some(an_occurrence().nominal),
        spec: a_spec(When::every(Duration::from_millis(1500))),
    })
}

fn an_outcome() -> AttemptOutcome {
    let started_at = Timestamp::from_millis(1_800_000_000_456);
    let duration = Duration::from_millis(12);
    let attempt = |number, result| Attempt { number, started_at, duration, result, delay: None, excerpt: None };
    let results = [
        AttemptResult::Answered(503),
        AttemptResult::Unreachable("refused".to_owned()),
        AttemptResult::TimedOut,
        AttemptResult::Panicked,
    ];
    let run = Run {
        tenant: TenantId(7),
        occurrence: an_occurrence(),
        state: RunState::Missed { last: Timestamp::from_millis(1_800_000_009_000), count: 3, attempt_possible: false },
        attempts: (1..).zip(results).map(|(number, result)| attempt(number, result)).collect(),
    };
    let then = DueKey { position: started_at, occurrence: an_occurrence(), attempt: 2, target: TargetKey(0xdead_beef) };
    AttemptOutcome { poller: a_schedule().poller, run, then: Some(then), ends: true }
}

/// Earlier builds can decode neither the delay nor the excerpt of an attempt.
#[test]
fn forwarded_outcome_has_the_bytes_of_earlier_builds() {
    let mut outcome = an_outcome();
    let since = Timestamp::from_millis(1_800_000_000_123);
    outcome.run.attempts[0].excerpt = Some(Secret::Plain(b"out of paper".to_vec().into()));
    outcome.run.attempts[2].delay = Some(Delay::Quota { quota: Quota::CallbacksPerMinute, since });
    outcome.run.attempts[3].excerpt = Some(Secret::Encrypted(vec![7; 64].into()));
    assert_ne!(encode_request(&outcome), encode_request(&an_outcome()));
    assert_eq!(encode_request(&outcome.for_any_build()), encode_request(&an_outcome()));
}

fn line<O: Operation>(name: &str, request: &O, responses: &[Result<O::Answer, OwnerError>]) -> String {
    let mut lines = format!("{} {name}: {}\n", O::NAME, hex(&encode_request(request)));
    for response in responses {
        lines += &format!("    {}\n", hex(&encode_response::<O>(response)));
    }
    lines
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The golden file contains every format that members of different builds exchange. A developer may append lines to the
/// file, but must never change a line.
#[test]
fn encoder_output_equals_the_bytes_in_the_golden_file() {
    let once = Named { spec: a_spec(When::At(an_occurrence().nominal)), ..a_named() };
    let Schedule { poller, incarnation, .. } = *a_schedule();
    let put = || Ok(PutResponse { schedule: a_schedule(), created: true, too_late: false });
    let created = vec![
        Ok(a_schedule()),
        Err(CreateRejection::Exists),
        Err(CreateRejection::Unreachable),
        Err(CreateRejection::NeverFires),
    ];
    let put_if = |seen, timing| PutIf { named: a_named(), seen, timing };
    let seen = a_schedule().seen();
    let decided_by = Timestamp::from_millis(1_800_000_000_789);
    let shards = |numbers: [u16; 2]| numbers.map(ShardId).to_vec();
    let delayed = |delay| Ok(Progress { is_in_flight: false, delay: Some(delay) });
    let found = [
        line("two", &CreateNamed(vec![once, a_named()]), &[Ok(created)]),
        line("one", &Put(a_named()), &[Ok(put()), Ok(Err(CreateRejection::NeverFires)), Err(OwnerError::NotOwned)]),
        line("new", &put_if(None, Timing::Restarted), &[Ok(None), Ok(Some(put()))]),
        line(
            "seen",
            &put_if(Some(seen), Timing::Kept),
            &[Err(OwnerError::Failed(StoreError::Unavailable("gone".to_owned())))],
        ),
        line("ended", &put_if(Some(Precondition { next: None, ..seen }), Timing::Restarted), &[]),
        line(
            "applied",
            &Cancel { poller, incarnation, applied: true },
            &[
                Ok(CancelResponse::NotFound),
                Ok(CancelResponse::Cancelled),
                Ok(CancelResponse::TooLate),
                Ok(CancelResponse::Pending { decided_by }),
            ],
        ),
        line("edition", &CancelIf { poller, edition: seen.edition }, &[Ok(None), Ok(Some(CancelResponse::Cancelled))]),
        line(
            "occurrence",
            &Redrive { tenant: TenantId(7), of: an_occurrence() },
            &[
                Ok(RedriveResponse::NotFound),
                Ok(RedriveResponse::NotDead),
                Ok(RedriveResponse::Redriven(an_occurrence())),
                Err(OwnerError::Failed(StoreError::Full("97%".to_owned()))),
                Err(OwnerError::Failed(StoreError::Damaged("row".to_owned()))),
            ],
        ),
        line("shards", &Release { member: MemberId(9), shards: shards([0, 255]) }, &[Ok(shards([1, 300]))]),
        line("attempt", &an_outcome(), &[Ok(())]),
        line("rows", &Nudge, &[Ok(())]),
        line("key", &PutBy { put: Put(a_named()), by: "k1".to_owned() }, &[Ok(put())]),
        line(
            "key",
            &PutIfBy { put: put_if(None, Timing::Restarted), by: "k1".to_owned() },
            &[Ok(None), Ok(Some(put()))],
        ),
        line(
            "key",
            &CancelIfBy { cancel: CancelIf { poller, edition: seen.edition }, by: "k1".to_owned() },
            &[Ok(None)],
        ),
        line(
            "key",
            &Waiting { poller, incarnation, nominal: decided_by, target: TargetKey(0xdead_beef), due: decided_by },
            &[
                Ok(Progress { is_in_flight: true, delay: None }),
                delayed(Delay::Quota { quota: Quota::CallbacksPerMinute, since: decided_by }),
                delayed(Delay::Slot),
                delayed(Delay::Circuit { until: Some(decided_by) }),
                delayed(Delay::MemberDown { until: decided_by }),
            ],
        ),
    ]
    .concat();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/operations-v1.txt");
    let known = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(found, known, "members of an earlier build use the bytes in {path}");
}
