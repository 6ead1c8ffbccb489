use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use ::bytes::Bytes;
use domain::occurrence::Run;
use domain::recurrence::Cron;
use domain::retry::RetryPolicy;
use domain::{
    ApiKey, Attempt, AttemptResult, Audit, BusTarget, CloudEvent, CloudEventMode, Delay, DueKey, HttpTarget,
    Incarnation, LabelKey, Occurrence, PastTiming, PollerId, Revision, RunState, Schedule, ScheduleId, Secret,
    SigningSecret, Spec, Status, Target, TargetKey, Tenant, TenantId, Timestamp, TimingEnd, When,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use store::HandedOver;

use crate::schedule::Head;
use crate::{Take, hand_over, run, schedule, tenant, timing};

fn timestamp() -> impl Strategy<Value = Timestamp> {
    prop_oneof![Just(Timestamp::MIN), Just(Timestamp::MAX), any::<i64>().prop_map(Timestamp::from_millis)]
}

fn poller() -> impl Strategy<Value = PollerId> {
    (any::<u32>(), any::<u16>(), any::<u16>()).prop_map(|(tenant, generation, number)| PollerId {
        tenant: TenantId(tenant),
        generation,
        number,
    })
}

fn occurrence() -> impl Strategy<Value = Occurrence> {
    (any::<u128>(), timestamp(), any::<u32>(), any::<u16>()).prop_map(|(incarnation, nominal, revision, replay)| {
        Occurrence { incarnation: Incarnation(incarnation), nominal, revision: Revision(revision), replay }
    })
}

fn due() -> impl Strategy<Value = DueKey> {
    (timestamp(), occurrence(), any::<u16>(), any::<u32>()).prop_map(|(position, occurrence, attempt, target)| DueKey {
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
        timestamp().prop_map(When::At),
        (".{0,20}", ".{0,20}").prop_map(|(expression, zone)| When::Cron(Cron::from_stored(expression, zone))),
        duration().prop_map(When::every),
        (duration(), timestamp()).prop_map(|(interval, since)| When::Every { interval, since: Some(since) }),
    ]
}

fn secret() -> impl Strategy<Value = Secret> {
    prop_oneof![".{0,9}".prop_map(Secret::from), vec(any::<u8>(), 0..80).prop_map(|it| Secret::Encrypted(it.into()))]
}

fn target() -> impl Strategy<Value = Target> {
    let headers = || vec((".{0,9}", secret()), 0..4);
    let http = (".{0,40}", "[A-Z]{1,7}", headers(), duration())
        .prop_map(|(url, method, headers, timeout)| Target::Http(HttpTarget { url, method, headers, timeout }));
    let mode = prop_oneof![Just(CloudEventMode::Binary), Just(CloudEventMode::Structured)];
    let event = (mode, ".{0,9}", option::of(".{0,9}"));
    let event = event.prop_map(|(mode, kind, source)| CloudEvent { mode, kind, source });
    let bus = (".{0,40}", option::of(".{0,9}"), headers(), option::of(event), duration());
    let bus = bus.prop_map(|(topic, key, headers, cloud_event, timeout)| {
        Target::Bus(BusTarget { topic, key, headers, cloud_event, timeout })
    });
    prop_oneof![http, bus]
}

fn spec() -> impl Strategy<Value = Spec> {
    let retry = (any::<u16>(), duration(), duration()).prop_map(|(attempts_max, backoff, backoff_max)| RetryPolicy {
        attempts_max,
        backoff,
        backoff_max,
    });
    (when(), target(), vec(any::<u8>(), 0..50), btree_map(".{0,9}", ".{0,9}", 0..4), retry).prop_map(
        |(when, target, payload, labels, retry)| Spec { when, target, payload: Bytes::from(payload), labels, retry },
    )
}

fn status() -> impl Strategy<Value = Status> {
    prop_oneof![Just(Status::Active), Just(Status::Ended), Just(Status::Cancelled)]
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let head = (any::<u32>(), "[A-Za-z0-9_-]{1,128}", any::<u128>(), poller());
    let state = (any::<u32>(), status(), timestamp(), timestamp(), option::of(timestamp()));
    (head, state, spec()).prop_map(|((tenant, id, incarnation, poller), state, spec)| {
        let (revision, status, created_at, updated_at, next) = state;
        Schedule {
            tenant: TenantId(tenant),
            id: ScheduleId::new(&id).unwrap(),
            incarnation: Incarnation(incarnation),
            poller,
            revision: Revision(revision),
            status,
            created_at,
            updated_at,
            next,
            spec,
        }
    })
}

fn delay() -> impl Strategy<Value = Delay> {
    prop_oneof![
        (0..run::DELAYING.len(), timestamp())
            .prop_map(|(number, since)| Delay::Quota { quota: run::DELAYING[number], since }),
        Just(Delay::Slot),
        option::of(timestamp()).prop_map(|until| Delay::Circuit { until }),
        timestamp().prop_map(|until| Delay::MemberDown { until }),
    ]
}

fn run() -> impl Strategy<Value = Run> {
    let state = prop_oneof![
        Just(RunState::Retrying),
        Just(RunState::Succeeded),
        Just(RunState::Failed),
        Just(RunState::Cancelled),
        (timestamp(), any::<u64>(), any::<bool>()).prop_map(|(last, count, attempt_possible)| RunState::Missed {
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
        (any::<u32>(), any::<u64>()).prop_map(|(partition, offset)| AttemptResult::Stored { partition, offset }),
    ];
    let excerpt = (any::<bool>(), vec(any::<u8>(), 0..40)).prop_map(|(is_encrypted, bytes)| match is_encrypted {
        true => Secret::Encrypted(bytes.into()),
        false => Secret::Plain(bytes.into()),
    });
    let attempt = (any::<u16>(), timestamp(), duration(), result, option::of(delay()), option::of(excerpt)).prop_map(
        |(number, started_at, duration, result, delay, excerpt)| Attempt {
            number,
            started_at,
            duration,
            result,
            delay,
            excerpt,
        },
    );
    (any::<u32>(), occurrence(), state, vec(attempt, 0..4)).prop_map(|(tenant, occurrence, state, attempts)| Run {
        tenant: TenantId(tenant),
        occurrence,
        state,
        attempts,
    })
}

fn handed_over() -> impl Strategy<Value = Vec<HandedOver>> {
    let attempt = (poller(), due(), timestamp()).prop_map(|(poller, key, until)| HandedOver { poller, key, until });
    vec(attempt, 0..4)
}

fn encoded(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out);
    out
}

fn schedule_row(schedule: &Schedule) -> Bytes {
    encoded(|out| schedule::put(out, schedule)).into()
}

proptest! {
    #[test]
    fn decoding_an_encoded_schedule_returns_the_same_schedule(schedule in schedule()) {
        let row = schedule_row(&schedule);
        prop_assert_eq!(schedule::head(&row), Ok(Head::of(&schedule)));
        prop_assert_eq!(schedule::head_and_id(&row), Ok((Head::of(&schedule), schedule.id.as_str())));
        let labels: Vec<_> = schedule.spec.labels.iter().map(|(name, value)| LabelKey::of(name, value)).collect();
        prop_assert_eq!(schedule::labels(&row), Ok(labels));
        let spec = schedule::decode_spec(&schedule::encode_spec(&schedule.spec).into());
        prop_assert_eq!(spec.as_ref(), Ok(&schedule.spec));
        prop_assert_eq!(schedule::decode(&row), Ok(schedule));
    }

    #[test]
    fn patch_changes_all_fields_of_a_schedule_row_except_id_and_spec(old in schedule(), new in schedule()) {
        let patched = schedule::patch(&schedule_row(&old), &Head::of(&new));
        prop_assert_eq!(schedule::decode(&patched.into()), Ok(Schedule { id: old.id, spec: old.spec, ..new }));
    }

    #[test]
    fn decoding_an_encoded_run_returns_the_same_run(run in run()) {
        let bytes = encoded(|out| run::put(out, &run));
        prop_assert_eq!(run::summary(&bytes), Ok((run.tenant, run.occurrence, run.state)));
        let (state, rest) = (run::state_number(run.state), run::encode_rest(&run));
        let read = run::decode_rest(run.tenant, run.occurrence, state, &rest);
        prop_assert_eq!(read.as_ref(), Ok(&run));
        prop_assert_eq!(run::outline(&bytes), Ok(domain::RunOutline::of(&run)));
        let duration = run.attempts.last().map(|attempt| attempt.duration);
        prop_assert_eq!(run::outline_with_duration(&bytes), Ok((domain::RunOutline::of(&run), duration)));
        prop_assert_eq!(run::decode(&bytes), Ok(run));
    }

    #[test]
    fn decoding_an_encoded_past_timing_returns_the_same_timing(
        schedule in schedule(),
        until in option::of(timestamp()),
        by in option::of(".{0,20}"),
        is_cancelled in any::<bool>()
    ) {
        let end = if is_cancelled { TimingEnd::Cancelled } else { TimingEnd::Replaced };
        let (when, from) = (schedule.spec.when.clone(), schedule.updated_at);
        let past = PastTiming { edition: schedule.edition(), when: when.clone(), from, until, end, by };
        let bytes = timing::encode(schedule.tenant, &past);
        prop_assert_eq!(timing::tenant(&bytes), Ok(schedule.tenant));
        prop_assert_eq!(timing::decode(schedule.edition(), &bytes), Ok(past));
        for len in 0..bytes.len() {
            prop_assert!(timing::decode(schedule.edition(), &bytes[..len]).is_err());
        }
        let spec = schedule::encode_spec(&schedule.spec);
        let start = &spec[..spec.len().min(schedule::WHEN_LEN_MAX)];
        prop_assert_eq!(schedule::when_of_spec(start), Ok(when.clone()));
        prop_assert_eq!(schedule::when(&schedule_row(&schedule)), Ok(when));
    }

    #[test]
    fn decoding_an_encoded_hand_over_returns_the_same_attempts(attempts in handed_over()) {
        prop_assert_eq!(hand_over::decode(&hand_over::encode(&attempts)), Ok(attempts));
    }

    #[test]
    fn decoding_truncated_bytes_returns_an_error(
        schedule in schedule(), run in run(), attempts in handed_over(), cut in any::<prop::sample::Index>()
    ) {
        let cut = |mut bytes: Vec<u8>| {
            bytes.truncate(cut.index(bytes.len()));
            Bytes::from(bytes)
        };
        prop_assert!(schedule::decode(&cut(schedule_row(&schedule).into())).is_err());
        prop_assert!(schedule::decode_spec(&cut(schedule::encode_spec(&schedule.spec))).is_err());
        prop_assert!(run::decode(&cut(encoded(|out| run::put(out, &run)))).is_err());
        prop_assert!(run::outline(&cut(encoded(|out| run::put(out, &run)))).is_err());
        let rest = cut(run::encode_rest(&run));
        prop_assert!(run::decode_rest(run.tenant, run.occurrence, run::state_number(run.state), &rest).is_err());
        prop_assert!(hand_over::decode(&cut(hand_over::encode(&attempts))).is_err());
    }

    #[test]
    fn decoding_arbitrary_bytes_never_panics(noise in vec(any::<u8>(), 0..80), state: u8) {
        let noise = Bytes::from(noise);
        let _any = (schedule::decode(&noise), schedule::decode_spec(&noise), schedule::labels(&noise));
        let _any = (run::decode(&noise), run::outline(&noise), run::decode_rest(TenantId(1), an_occurrence(), state, &noise));
        let _any = (hand_over::decode(&noise), tenant::decode(TenantId(1), &noise), tenant::decode_audit(&noise));
        let _any = tenant::take_first(TenantId(1), Take::new("a tenant", &noise));
    }
}

fn an_occurrence() -> Occurrence {
    Occurrence {
        incarnation: Incarnation(0x0190_a1b2_c3d4_0000_1111_2222_3333_4444),
        nominal: Timestamp::from_millis(1_800_000_000_123),
        revision: Revision(5),
        replay: 1,
    }
}

fn a_schedule() -> Schedule {
    Schedule {
        tenant: TenantId(7),
        id: ScheduleId::new("order-17").unwrap(),
        incarnation: an_occurrence().incarnation,
        poller: PollerId { tenant: TenantId(7), generation: 1, number: 2 },
        revision: Revision(5),
        status: Status::Active,
        created_at: Timestamp::from_millis(1_700_000_000_000),
        updated_at: Timestamp::from_millis(1_700_000_000_001),
        next: Some(an_occurrence().nominal),
        spec: Spec {
            when: When::every(Duration::from_millis(1500)),
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
                backoff: Duration::from_secs(1),
                backoff_max: Duration::from_secs(60),
            },
        },
    }
}

fn a_run() -> Run {
    let attempt = |number, result| Attempt {
        number,
        started_at: Timestamp::from_millis(1_800_000_000_456),
        duration: Duration::from_millis(12),
        result,
        delay: None,
        excerpt: None,
    };
    Run {
        tenant: TenantId(7),
        occurrence: an_occurrence(),
        state: RunState::Missed { last: Timestamp::from_millis(1_800_000_009_000), count: 3, attempt_possible: false },
        attempts: vec![
            attempt(1, AttemptResult::Answered(503)),
            attempt(2, AttemptResult::Unreachable("refused".to_owned())),
            attempt(3, AttemptResult::TimedOut),
            attempt(4, AttemptResult::Panicked),
        ],
    }
}

fn a_tenant() -> Tenant {
    let mut tenant = Tenant::new(TenantId(7), "acme", 4, SigningSecret::first(vec![1; 24], Timestamp::from_millis(5)));
    tenant.generations.push(8);
    tenant.keys.push(ApiKey::admin("k1", [2; 32], Timestamp::from_millis(6)));
    tenant
}

/// Each line of the golden file contains an encoded schedule, run, tenant or audit entry. The file never changes: a new
/// encoding gets a new version and a new file.
#[test]
fn encoded_values_match_the_golden_file_of_version_1() {
    let mut encrypted = a_schedule();
    let Target::Http(http) = &mut encrypted.spec.target else { panic!("the target is an HTTP target") };
    http.headers.push(("authorization".to_owned(), Secret::Encrypted(Bytes::from_static(&[0x5a; 50]))));
    encrypted.spec.when = When::Cron(Cron::from_stored("0 7 * * * *", "Europe/Berlin"));
    let encrypted = Schedule { status: Status::Ended, next: None, ..encrypted };
    let mut cancelled = Schedule { status: Status::Cancelled, ..a_schedule() };
    cancelled.spec.when = When::At(Timestamp::from_millis(1_800_000_000_123));
    let mut text = String::new();
    let schedules = [
        ("schedule", a_schedule()),
        ("schedule with an encrypted header", encrypted),
        ("schedule cancelled", cancelled),
    ];
    for (name, schedule) in schedules {
        writeln!(text, "{name}: {}", hex(&schedule_row(&schedule))).unwrap();
    }
    let short = |state| Run { state, attempts: Vec::new(), ..a_run() };
    let runs = [
        ("retrying", short(RunState::Retrying)),
        ("succeeded", short(RunState::Succeeded)),
        ("failed", short(RunState::Failed)),
        ("cancelled", short(RunState::Cancelled)),
        ("missed", a_run()),
    ];
    for (name, run) in runs {
        writeln!(text, "run {name}: {}", hex(&encoded(|out| run::put(out, &run)))).unwrap();
    }
    let audit = Audit::of(&a_tenant(), Timestamp::from_millis(11), "k1", "key.create", "k2");
    for (name, json) in [("tenant", tenant::encode(&a_tenant())), ("audit", tenant::encode_audit(&audit))] {
        writeln!(text, "{name}: {}", String::from_utf8(json).unwrap()).unwrap();
    }
    expect_test::expect_file!["../testdata/stored-v1.txt"].assert_eq(&text);
}

/// Each line of the golden file contains a run in version 2, as a row or as the value of a column. The file never
/// changes: a new encoding gets a new version and a new file.
#[test]
fn encoded_runs_match_the_golden_file_of_version_2() {
    let last = Timestamp::from_millis(1_800_000_009_000);
    let marked = Run { state: RunState::Missed { last, count: 3, attempt_possible: true }, ..a_run() };
    let text = format!(
        "run missed: {}\ncolumn run missed: {}\n",
        hex(&encoded(|out| run::put(out, &marked))),
        hex(&run::encode_rest(&marked))
    );
    expect_test::expect_file!["../testdata/runs-v2.txt"].assert_eq(&text);
}

/// Each line of the golden file contains a run with excerpts, as a row or as the value of a column. The file never
/// changes.
#[test]
fn encoded_runs_match_the_golden_file_of_excerpts() {
    let mut run = Run { state: RunState::Failed, ..a_run() };
    run.attempts[0].excerpt = Some("busy".into());
    run.attempts[2].excerpt = Some(Secret::Encrypted(vec![1, 2, 3].into()));
    let text =
        format!("run: {}\ncolumn run: {}\n", hex(&encoded(|out| run::put(out, &run))), hex(&run::encode_rest(&run)));
    expect_test::expect_file!["../testdata/excerpts-v1.txt"].assert_eq(&text);
}

#[test]
fn missed_run_of_version_1_has_no_mark() {
    let unmarked = a_run();
    let bytes = encoded(|out| run::put(out, &unmarked));
    assert_eq!(bytes[0], 1, "an older build can read a run without the mark");
    assert_eq!(run::decode(&bytes), Ok(unmarked.clone()));
    let mut of_version_2 = bytes;
    of_version_2[0] = 2;
    let RunState::Missed { last, count, .. } = unmarked.state else { panic!("the run is missed") };
    let marked = Run { state: RunState::Missed { last, count, attempt_possible: true }, ..unmarked };
    assert_eq!(run::decode(&of_version_2), Ok(marked));
    of_version_2[0] = 3;
    assert!(run::decode(&of_version_2).is_err(), "this build cannot read a later version");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Each line of the golden file contains an encoded value of a column, for engines that store a row in several columns.
/// The file never changes: a new encoding gets a new version and a new file.
#[test]
fn encoded_column_values_match_the_golden_file_of_version_1() {
    let http = HttpTarget {
        url: "https://example.com/hook".to_owned(),
        method: "POST".to_owned(),
        headers: vec![("x-a".to_owned(), "1".into())],
        timeout: Duration::from_secs(10),
    };
    let spec = |when| Spec {
        when,
        target: Target::Http(http.clone()),
        payload: Bytes::from_static(b"{\"n\":1}"),
        labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
        retry: RetryPolicy {
            attempts_max: 3,
            backoff: Duration::from_millis(1_500),
            backoff_max: Duration::from_secs(60),
        },
    };
    let at = Timestamp::from_millis(1_800_000_000_123);
    let occurrence = Occurrence { incarnation: Incarnation(255), nominal: at, revision: Revision(2), replay: 1 };
    let results = [
        AttemptResult::Answered(503),
        AttemptResult::Unreachable("refused".to_owned()),
        AttemptResult::TimedOut,
        AttemptResult::Panicked,
    ];
    let attempts = results.into_iter().zip(1..).map(|(result, number)| Attempt {
        number,
        started_at: at,
        duration: Duration::from_millis(12),
        result,
        delay: None,
        excerpt: None,
    });
    let run = Run { tenant: TenantId(7), occurrence, state: RunState::Failed, attempts: attempts.collect() };
    let missed = Run {
        state: RunState::Missed { last: at, count: 3, attempt_possible: false },
        attempts: Vec::new(),
        ..run.clone()
    };
    let key = DueKey { position: at, occurrence, attempt: 4, target: TargetKey(9) };
    let poller = PollerId { tenant: TenantId(7), generation: 1, number: 3 };
    let forms = [
        ("spec at", schedule::encode_spec(&spec(When::At(at)))),
        ("spec cron", schedule::encode_spec(&spec(When::Cron(Cron::from_stored("0 7 * * * *", "Europe/Berlin"))))),
        ("spec every", schedule::encode_spec(&spec(When::every(Duration::from_secs(90))))),
        (
            "spec every since",
            schedule::encode_spec(&spec(When::Every { interval: Duration::from_secs(90), since: Some(at) })),
        ),
        ("run", run::encode_rest(&run)),
        ("run missed", run::encode_rest(&missed)),
        ("handed over", hand_over::encode(&[HandedOver { poller, key, until: at }])),
    ];
    let mut text = String::new();
    for (name, bytes) in forms {
        write!(text, "{name}:").unwrap();
        bytes.iter().for_each(|byte| write!(text, " {byte:02x}").unwrap());
        text.push('\n');
    }
    expect_test::expect_file!["../testdata/columns-v1.txt"].assert_eq(&text);
}
