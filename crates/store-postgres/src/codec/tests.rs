use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z\\-]{1,8}", Just("Zo\u{eb} \u{1f980}".to_owned())]
}

fn secrets() -> impl Strategy<Value = Secret> {
    let sealed = prop::collection::vec(any::<u8>(), 0..80).prop_map(|bytes| Secret::Sealed(bytes.into()));
    prop_oneof![texts().prop_map(Secret::from), sealed]
}

fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(Duration::ZERO), Just(Duration::MAX), (0..1_000_000_u64).prop_map(Duration::from_millis)]
}

fn instants() -> impl Strategy<Value = Timestamp> {
    any::<i64>().prop_map(Timestamp::from_millis)
}

fn specs() -> impl Strategy<Value = Spec> {
    let when = prop_oneof![
        instants().prop_map(When::At),
        durations().prop_map(When::Every),
        Just(When::Cron(Cron::from_stored("0 7 * * * *", "Europe/Berlin"))),
    ];
    let headers = prop::collection::vec((texts(), secrets()), 0..4);
    let http = (texts(), texts(), headers, durations())
        .prop_map(|(url, method, headers, timeout)| Target::Http(HttpTarget { url, method, headers, timeout }));
    let labels = prop::collection::btree_map(texts(), texts(), 0..4);
    let retry = (any::<u16>(), durations(), durations()).prop_map(|(attempts_max, backoff, backoff_max)| RetryPolicy {
        attempts_max,
        backoff,
        backoff_max,
    });
    let payload = prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
    (when, http, payload, labels, retry).prop_map(|(when, target, payload, labels, retry)| Spec {
        when,
        target,
        payload,
        labels,
        retry,
    })
}

fn attempts() -> impl Strategy<Value = Vec<Attempt>> {
    let result = prop_oneof![
        any::<u16>().prop_map(AttemptResult::Answered),
        texts().prop_map(AttemptResult::Unreachable),
        Just(AttemptResult::TimedOut),
        Just(AttemptResult::Panicked),
    ];
    let attempt = (any::<u16>(), instants(), durations(), result)
        .prop_map(|(number, started_at, duration, result)| Attempt { number, started_at, duration, result });
    prop::collection::vec(attempt, 0..5)
}

fn states() -> impl Strategy<Value = RunState> {
    prop_oneof![
        Just(RunState::Retrying),
        Just(RunState::Succeeded),
        Just(RunState::Failed),
        Just(RunState::Cancelled),
        (instants(), any::<u64>()).prop_map(|(last, count)| RunState::Missed { last, count }),
    ]
}

fn keys() -> impl Strategy<Value = DueKey> {
    let occurrence =
        (any::<u128>(), instants(), any::<u32>(), any::<u16>()).prop_map(|(incarnation, nominal, revision, replay)| {
            Occurrence { incarnation: Incarnation(incarnation), nominal, revision: Revision(revision), replay }
        });
    (instants(), occurrence, any::<u16>(), any::<u32>()).prop_map(|(position, occurrence, attempt, target)| DueKey {
        position,
        occurrence,
        attempt,
        target: TargetKey(target),
    })
}

fn hand_overs() -> impl Strategy<Value = Vec<HandedOver>> {
    let poller = (any::<u32>(), any::<u16>(), any::<u16>()).prop_map(|(tenant, generation, number)| PollerId {
        tenant: TenantId(tenant),
        generation,
        number,
    });
    let attempt = (poller, keys(), instants()).prop_map(|(poller, key, until)| HandedOver { poller, key, until });
    prop::collection::vec(attempt, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_is_decoded(
        spec in specs(), attempts in attempts(), state in states(), key in keys(), handed_over in hand_overs(),
    ) {
        prop_assert_eq!(take_spec(&Bytes::from(put_spec(&spec))), Ok(spec));
        let run = Run { tenant: TenantId(7), occurrence: key.occurrence, state, attempts };
        let stored = put_run(&run);
        prop_assert_eq!(take_run(run.tenant, run.occurrence, state_number(state), &stored), Ok(run));
        prop_assert_eq!(take_handed_over(&put_handed_over(&handed_over)), Ok(handed_over));
    }

    #[test]
    fn anything_else_is_an_error_and_no_panic(spec in specs(), cut in any::<prop::sample::Index>(), noise: Vec<u8>) {
        let stored = put_spec(&spec);
        let cut = cut.index(stored.len());
        prop_assert!(take_spec(&Bytes::copy_from_slice(&stored[..cut])).is_err());
        let occurrence = Occurrence {
            incarnation: Incarnation(0),
            nominal: Timestamp::MIN,
            revision: Revision(0),
            replay: 0,
        };
        drop(take_spec(&Bytes::from(noise.clone())));
        drop(take_run(TenantId(1), occurrence, i16::from(noise.first().copied().unwrap_or(0)), &noise));
        drop(take_handed_over(&noise));
        drop(take_tenant(TenantId(1), &noise));
    }
}

/// What version 1 wrote is what every later build reads: this file never changes.
#[test]
fn the_stored_forms_are_those_of_version_1() {
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
    });
    let run = Run { tenant: TenantId(7), occurrence, state: RunState::Failed, attempts: attempts.collect() };
    let missed = Run { state: RunState::Missed { last: at, count: 3 }, attempts: Vec::new(), ..run.clone() };
    let key = DueKey { position: at, occurrence, attempt: 4, target: TargetKey(9) };
    let poller = PollerId { tenant: TenantId(7), generation: 1, number: 3 };
    let forms = [
        ("spec at", put_spec(&spec(When::At(at)))),
        ("spec cron", put_spec(&spec(When::Cron(Cron::from_stored("0 7 * * * *", "Europe/Berlin"))))),
        ("spec every", put_spec(&spec(When::Every(Duration::from_secs(90))))),
        ("run", put_run(&run)),
        ("run missed", put_run(&missed)),
        ("handed over", put_handed_over(&[HandedOver { poller, key, until: at }])),
    ];
    let mut text = String::new();
    for (name, bytes) in forms {
        write!(text, "{name}:").unwrap();
        bytes.iter().for_each(|byte| write!(text, " {byte:02x}").unwrap());
        text.push('\n');
    }
    expect_test::expect_file!["../../testdata/stored-v1.txt"].assert_eq(&text);
}

/// The row of builds that counted no changes.
#[test]
fn what_an_earlier_build_wrote_of_a_tenant_is_read() {
    const ROW: &str = "01 07 00 00 00 62 69 6c 6c 69 6e 67 02 00 00 00 01 00 04 00 18 00 00 00 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 01 00 00 00 02 00 00 00 6b 31 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 02 00";
    let row: Vec<u8> = ROW.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let tenant = take_tenant(TenantId(7), &row).unwrap();
    let (secret, at) = (SigningSecret::first(vec![1; 24], Timestamp::MIN), Timestamp::MIN);
    let mut expected = Tenant { version: 0, ..Tenant::new(TenantId(7), "billing", 1, secret) };
    expected.generations.push(4);
    expected.keys.push(ApiKey::admin("k1", [2; 32], at));
    assert_eq!(tenant, expected);
    assert_eq!(take_tenant(TenantId(7), &stored::tenant::encode(&expected)), Ok(expected));
}
