use std::collections::BTreeMap;

use bytes::Bytes;
use domain::occurrence::Run;
use domain::recurrence::Cron;
use domain::retry::RetryPolicy;
use domain::{
    Attempt, AttemptResult, DueKey, HttpTarget, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule,
    ScheduleId, Secret, Spec, Status, Target, TargetKey, When,
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
        duration().prop_map(When::Every),
    ]
}

fn spec() -> impl Strategy<Value = Spec> {
    let value =
        prop_oneof![".{0,9}".prop_map(Secret::from), vec(any::<u8>(), 0..80).prop_map(|it| Secret::Sealed(it.into()))];
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

fn a_run_of_any_kind() -> impl Strategy<Value = Run> {
    let state = prop_oneof![
        Just(RunState::Retrying),
        Just(RunState::Succeeded),
        Just(RunState::Failed),
        Just(RunState::Cancelled),
        (at(), any::<u64>()).prop_map(|(last, count)| RunState::Missed { last, count }),
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
    });
    (any::<u32>(), occurrence(), state, vec(attempt, 0..4)).prop_map(|(tenant, occurrence, state, attempts)| Run {
        tenant: TenantId(tenant),
        occurrence,
        state,
        attempts,
    })
}

fn named() -> impl Strategy<Value = SchedulerNamed> {
    let incarnation = option::of(any::<u128>().prop_map(Incarnation));
    (any::<u32>(), id(), incarnation, spec()).prop_map(|(tenant, id, incarnation, spec)| SchedulerNamed {
        tenant: TenantId(tenant),
        id,
        incarnation,
        spec,
    })
}

fn shards() -> impl Strategy<Value = Vec<ShardId>> {
    vec(any::<u16>().prop_map(ShardId), 0..300)
}

fn edition() -> impl Strategy<Value = Edition> {
    (any::<u128>(), any::<u32>()).prop_map(|(incarnation, revision)| Edition {
        incarnation: Incarnation(incarnation),
        revision: Revision(revision),
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        vec(named(), 0..5).prop_map(Ask::Create),
        named().prop_map(Ask::Put),
        (named(), option::of((edition(), option::of(at()))), any::<bool>()).prop_map(|(named, seen, kept)| {
            Ask::PutIf {
                named,
                seen: seen.map(|(edition, next)| Seen { edition, next }),
                timing: if kept { Timing::Kept } else { Timing::Anew },
            }
        }),
        (poller(), edition()).prop_map(|(poller, edition)| Ask::CancelIf { poller, edition }),
        (poller(), any::<u128>(), any::<bool>()).prop_map(|(poller, incarnation, applied)| Ask::Cancel {
            poller,
            incarnation: Incarnation(incarnation),
            applied
        }),
        (any::<u32>(), occurrence()).prop_map(|(tenant, of)| Ask::Redrive { tenant: TenantId(tenant), of }),
        (any::<u128>(), shards()).prop_map(|(member, shards)| Ask::LetGo { member: MemberId(member), shards }),
        (poller(), a_run_of_any_kind(), option::of(due()), any::<bool>())
            .prop_map(|(poller, run, then, ends)| Ask::Outcome(SchedulerOutcome { poller, run, then, ends })),
        Just(Ask::Nudge),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    let refusal =
        || prop_oneof![Just(CreateRefusal::Exists), Just(CreateRefusal::Unreachable), Just(CreateRefusal::NeverFires)];
    let put = (schedule(), any::<bool>(), any::<bool>()).prop_map(|(schedule, created, too_late)| PutAnswer {
        schedule,
        created,
        too_late,
    });
    let cancelled = prop_oneof![
        Just(CancelAnswer::NotFound),
        Just(CancelAnswer::Cancelled),
        Just(CancelAnswer::TooLate),
        at().prop_map(|decided_by| CancelAnswer::Pending { decided_by }),
    ];
    let redriven = prop_oneof![
        Just(RedriveAnswer::NotFound),
        Just(RedriveAnswer::NotDead),
        occurrence().prop_map(RedriveAnswer::Redriven),
    ];
    let failed = (0..3, ".{0,30}").prop_map(|(kind, text)| match kind {
        0 => StoreError::Unavailable(text),
        1 => StoreError::Full(text),
        _ => StoreError::Damaged(text),
    });
    prop_oneof![
        vec(prop_oneof![schedule().prop_map(Ok), refusal().prop_map(Err)], 0..5).prop_map(Reply::Created),
        prop_oneof![put.prop_map(Ok), refusal().prop_map(Err)].prop_map(Reply::Put),
        cancelled.prop_map(Reply::Cancelled),
        redriven.prop_map(Reply::Redriven),
        shards().prop_map(Reply::LetGo),
        Just(Reply::Heard),
        Just(Reply::NotOwned),
        Just(Reply::Changed),
        failed.prop_map(Reply::Failed),
    ]
}

proptest! {
    #[test]
    fn an_ask_comes_back_as_it_was(ask in ask()) {
        prop_assert_eq!(decode_ask(&encode_ask(&ask)).unwrap(), ask);
    }

    #[test]
    fn a_reply_comes_back_as_it_was(reply in reply()) {
        prop_assert_eq!(decode_reply(&encode_reply(&reply)).unwrap(), reply);
    }

    #[test]
    fn what_is_cut_or_goes_on_is_refused(ask in ask(), reply in reply(), cut in any::<prop::sample::Index>()) {
        let (ask, reply) = (encode_ask(&ask), encode_reply(&reply));
        prop_assert!(decode_ask(&ask[..cut.index(ask.len())]).is_err());
        prop_assert!(decode_reply(&reply[..cut.index(reply.len())]).is_err());
        prop_assert!(matches!(decode_ask(&[&ask[..], &[0]].concat()), Err(Malformed::Rest(1))));
        prop_assert!(matches!(decode_reply(&[&reply[..], &[0]].concat()), Err(Malformed::Rest(1))));
    }

    #[test]
    fn changed_and_strange_bytes_never_panic(
        ask in ask(), reply in reply(), noise in vec(any::<u8>(), 0..80),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)
    ) {
        for mut bytes in [encode_ask(&ask), encode_reply(&reply), noise] {
            for (at, byte) in &changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
                let _any = (decode_ask(&bytes), decode_reply(&bytes));
            }
        }
    }
}

#[test]
fn lengths_that_are_claimed_and_nestings_without_end_cost_nothing() {
    // An array, a text, a byte string of 2^62 items; arrays in arrays in arrays.
    for claim in [0x9b, 0x7b, 0x5b, 0xbb] {
        let mut create = vec![0x82, 0x00, 0x81, claim];
        create.extend((1_u64 << 62).to_be_bytes());
        assert!(decode_ask(&create).is_err());
        assert!(decode_reply(&create).is_err());
    }
    for nest in [0x81, 0x9f, 0xa1, 0xbf, 0xc1] {
        let mut deep = vec![0x82, 0x06, 0x81];
        deep.extend(std::iter::repeat_n(nest, 1 << 20));
        assert!(decode_ask(&deep).is_err());
    }
}

#[test]
fn values_that_nothing_can_have_are_refused() {
    let spec = an_ask_to_put().spec;
    let bad_id = Named { tenant: 1, id: "a.b", spec: SpecForm::of(&spec), incarnation: None };
    assert!(matches!(decode_ask(&encode(AskForm::Put(bad_id))), Err(Malformed::Value(_))));
    let before_1970 = ReplyForm::Cancelled(CancelForm::Pending(-1));
    assert!(matches!(decode_reply(&encode(before_1970)), Err(Malformed::Value(_))));
    assert!(Span(1, 1_000_000_000).take().is_err());
}

/// Asks as a later build may have them.
#[derive(Encode)]
struct LaterNamed<'a> {
    #[n(0)]
    tenant: u32,
    #[b(1)]
    id: &'a str,
    #[b(2)]
    spec: SpecForm<'a>,
    #[n(4)]
    hurry: Option<Vec<u16>>,
}

#[derive(Encode)]
enum LaterAsk<'a> {
    #[n(1)]
    Put(#[b(0)] Box<LaterNamed<'a>>),
    #[n(99)]
    Dance,
}

type SpecForm<'a> = schedule::Spec<'a>;

#[test]
fn a_field_of_a_later_build_is_skipped_and_an_ask_of_one_is_refused() {
    let named = an_ask_to_put();
    let (tenant, id, spec) = (named.tenant.0, named.id.as_str(), SpecForm::of(&named.spec));
    let later = LaterAsk::Put(Box::new(LaterNamed { tenant, id, spec, hurry: Some(vec![1, 2]) }));
    assert_eq!(decode_ask(&encode(later)).unwrap(), Ask::Put(named.clone()));
    assert!(matches!(decode_ask(&encode(LaterAsk::Dance)), Err(Malformed::Form(_))));
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

fn an_ask_to_put() -> SchedulerNamed {
    let when = When::Cron(Cron::from_stored("0 9 * * 1", "Europe/Berlin"));
    SchedulerNamed {
        tenant: TenantId(7),
        id: ScheduleId::new("order-17").unwrap(),
        incarnation: None,
        spec: a_spec(when),
    }
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
        spec: a_spec(When::Every(Duration::from_millis(1500))),
    })
}

fn an_outcome() -> SchedulerOutcome {
    let started_at = Timestamp::from_millis(1_800_000_000_456);
    let attempt = |number, result| Attempt { number, started_at, duration: Duration::from_millis(12), result };
    let results = [
        AttemptResult::Answered(503),
        AttemptResult::Unreachable("refused".to_owned()),
        AttemptResult::TimedOut,
        AttemptResult::Panicked,
    ];
    let run = Run {
        tenant: TenantId(7),
        occurrence: an_occurrence(),
        state: RunState::Missed { last: Timestamp::from_millis(1_800_000_009_000), count: 3 },
        attempts: (1..).zip(results).map(|(number, result)| attempt(number, result)).collect(),
    };
    let then = DueKey { position: started_at, occurrence: an_occurrence(), attempt: 2, target: TargetKey(0xdead_beef) };
    SchedulerOutcome { poller: a_schedule().poller, run, then: Some(then), ends: true }
}

fn asks() -> [(&'static str, Ask); 11] {
    let once = SchedulerNamed { spec: a_spec(When::At(an_occurrence().nominal)), ..an_ask_to_put() };
    let Schedule { poller, incarnation, .. } = *a_schedule();
    let ended = Seen { next: None, ..a_schedule().seen() };
    [
        ("create", Ask::Create(vec![once, an_ask_to_put()])),
        ("put", Ask::Put(an_ask_to_put())),
        ("cancel", Ask::Cancel { poller, incarnation, applied: true }),
        ("redrive", Ask::Redrive { tenant: TenantId(7), of: an_occurrence() }),
        ("let go", Ask::LetGo { member: MemberId(9), shards: vec![ShardId(0), ShardId(255)] }),
        ("outcome", Ask::Outcome(an_outcome())),
        ("nudge", Ask::Nudge),
        ("put if new", Ask::PutIf { named: an_ask_to_put(), seen: None, timing: Timing::Anew }),
        ("put if seen", Ask::PutIf { named: an_ask_to_put(), seen: Some(a_schedule().seen()), timing: Timing::Kept }),
        ("put if ended", Ask::PutIf { named: an_ask_to_put(), seen: Some(ended), timing: Timing::Anew }),
        ("cancel if", Ask::CancelIf { poller, edition: a_schedule().edition() }),
    ]
}

fn replies() -> Vec<(&'static str, Reply)> {
    let put = PutAnswer { schedule: a_schedule(), created: true, too_late: false };
    let decided_by = Timestamp::from_millis(1_800_000_000_789);
    vec![
        (
            "created",
            Reply::Created(vec![
                Ok(a_schedule()),
                Err(CreateRefusal::Exists),
                Err(CreateRefusal::Unreachable),
                Err(CreateRefusal::NeverFires),
            ]),
        ),
        ("put", Reply::Put(Ok(put))),
        ("put refused", Reply::Put(Err(CreateRefusal::NeverFires))),
        ("not found", Reply::Cancelled(CancelAnswer::NotFound)),
        ("cancelled", Reply::Cancelled(CancelAnswer::Cancelled)),
        ("too late", Reply::Cancelled(CancelAnswer::TooLate)),
        ("pending", Reply::Cancelled(CancelAnswer::Pending { decided_by })),
        ("redrive of nothing", Reply::Redriven(RedriveAnswer::NotFound)),
        ("redrive of the living", Reply::Redriven(RedriveAnswer::NotDead)),
        ("redriven", Reply::Redriven(RedriveAnswer::Redriven(an_occurrence()))),
        ("let go", Reply::LetGo(vec![ShardId(1), ShardId(300)])),
        ("heard", Reply::Heard),
        ("not owned", Reply::NotOwned),
        ("unavailable", Reply::Failed(StoreError::Unavailable("gone".to_owned()))),
        ("full", Reply::Failed(StoreError::Full("97%".to_owned()))),
        ("damaged", Reply::Failed(StoreError::Damaged("row".to_owned()))),
        ("changed", Reply::Changed),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every form that members of two builds must agree on, one a line. A line never changes; new ones may follow.
#[test]
fn the_wire_is_what_it_has_always_been() {
    let asks = asks().map(|(name, ask)| format!("ask {name}: {}\n", hex(&encode_ask(&ask))));
    let replies = replies().into_iter().map(|(name, reply)| format!("reply {name}: {}\n", hex(&encode_reply(&reply))));
    let found: String = asks.into_iter().chain(replies).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/wire-v1.txt");
    let known = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(found, known, "members of an earlier build read {path}, not this");
}
