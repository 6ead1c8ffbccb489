use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::Cron;

const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

fn spec() -> Spec {
    Spec {
        when: When::At(NOW + Duration::from_secs(60)),
        target: target("https://example.org/hook"),
        payload: Bytes::from_static(b"{}"),
        labels: BTreeMap::from([("team".to_owned(), "päyments".to_owned())]),
        retry: RetryPolicy::default(),
    }
}

fn target(url: &str) -> Target {
    Target::Http(HttpTarget {
        url: url.to_owned(),
        method: "POST".to_owned(),
        headers: vec![("authorization".to_owned(), "Bearer x".into())],
        timeout: Duration::from_secs(10),
    })
}

fn fields(spec: &Spec) -> Vec<Field> {
    violations(spec, &Limits::default(), NOW).iter().map(Violation::field).collect()
}

fn with_http(change: impl FnOnce(&mut HttpTarget)) -> Spec {
    let mut spec = spec();
    let Target::Http(http) = &mut spec.target else { panic!("the target is an HTTP target") };
    change(http);
    spec
}

#[test]
fn spec_within_all_limits_has_no_violations() {
    assert_eq!(violations(&spec(), &Limits::default(), NOW), []);
}

#[test]
fn validation_rejects_headers_that_reveille_or_http_reserves() {
    for name in ["Webhook-Id", "reveille-anything", "traceparent", "tracestate", "Host", "content-length", "te"] {
        let spec = with_http(|http| http.headers = vec![(name.to_owned(), "x".into())]);
        assert!(matches!(violations(&spec, &Limits::default(), NOW)[..], [Violation::HeaderReserved { .. }]), "{name}");
    }
    for name in ["authorization", "content-type", "user-agent", "x-webhook-id", "accept"] {
        let spec = with_http(|http| http.headers = vec![(name.to_owned(), "x".into())]);
        assert_eq!(violations(&spec, &Limits::default(), NOW), [], "{name}");
    }
}

#[test]
fn validation_rejects_an_instant_too_far_in_the_past_or_future() {
    let Limits { past_max, horizon, .. } = Limits::default();
    let resolution = Duration::from_millis(1);
    for (at, expected) in [
        (NOW - past_max, None),
        (NOW - past_max - resolution, Some(Field::At)),
        (NOW + horizon, None),
        (NOW + horizon + resolution, Some(Field::At)),
        (Timestamp::from_millis(i64::MIN), Some(Field::At)),
        (Timestamp::from_millis(i64::MAX), Some(Field::At)),
    ] {
        let spec = Spec { when: When::At(at), ..spec() };
        assert_eq!(fields(&spec).first().cloned(), expected, "{}", at.as_millis());
    }
}

#[test]
fn validation_rejects_a_schedule_that_fires_too_often() {
    let limits = Limits { interval_min: Duration::from_secs(60), ..Limits::default() };
    let cron = |text| When::Cron(Cron::parse(text, "UTC").expect("a cron"));
    for (when, expected) in [
        (When::every(Duration::from_secs(60)), None),
        (When::every(Duration::from_millis(59_999)), Some(Field::Every)),
        (When::every(Duration::ZERO), Some(Field::Every)),
        (When::every(Duration::MAX), Some(Field::Every)),
        (cron("* * * * *"), None),
        (cron("0,30 * * * * *"), Some(Field::Cron)),
        (cron("0,59 0,1 * * * *"), Some(Field::Cron)),
    ] {
        let spec = Spec { when: when.clone(), ..spec() };
        let found = violations(&spec, &limits, NOW);
        assert_eq!(found.first().map(Violation::field), expected, "{when:?}");
    }
    let zero = Limits { interval_min: Duration::ZERO, ..limits };
    let never_resting = Spec { when: When::every(Duration::ZERO), ..spec() };
    assert_eq!(violations(&never_resting, &zero, NOW).len(), 1);
}

#[test]
fn url_must_be_absolute_http_with_a_host_and_no_user_name() {
    for url in [
        "http://example.org",
        "https://example.org:8443/a/b?c=d",
        "http://127.0.0.1:9000/",
        "http://[::1]:9000/",
        "HTTPS://EXAMPLE.ORG/%20",
        "http://my_service.internal/",
    ] {
        assert_eq!(fields(&Spec { target: target(url), ..spec() }), [], "{url}");
    }
    let long = format!("http://example.org/{}", "x".repeat(2_048));
    for (url, expected) in [
        ("", UrlProblem::Syntax),
        ("/hook", UrlProblem::Scheme),
        ("example.org", UrlProblem::Scheme),
        ("ftp://example.org/", UrlProblem::Scheme),
        ("file:///etc/passwd", UrlProblem::Syntax),
        ("http://", UrlProblem::Syntax),
        ("http:///path", UrlProblem::Syntax),
        ("http://:80/", UrlProblem::Host),
        ("http://user:secret@example.org/", UrlProblem::UserInfo),
        ("http://example.org:0/", UrlProblem::Port),
        ("http://example.org:70000/", UrlProblem::Port),
        ("http://example.org:/", UrlProblem::Port),
        ("http://example.org/#part", UrlProblem::Fragment),
        ("http://[::1/", UrlProblem::Syntax),
        ("http://[zz]/", UrlProblem::Host),
        ("http://a!b/", UrlProblem::Host),
        ("http://example.org/a b", UrlProblem::Character { at: 20, found: ' ' }),
        ("http://example.org/\r\nX: y", UrlProblem::Character { at: 19, found: '\r' }),
        ("http://bücher.example/", UrlProblem::Character { at: 8, found: 'ü' }),
        (&long, UrlProblem::Long { bytes: long.len(), bytes_max: 2_048 }),
    ] {
        let found = violations(&Spec { target: target(url), ..spec() }, &Limits::default(), NOW);
        assert_eq!(found, [Violation::Url(expected)], "{url}");
    }
}

#[test]
fn validation_rejects_malformed_and_forbidden_methods() {
    for method in ["", "PO ST", "GET\r\n", "CONNECT", "TRACE", "É", &"X".repeat(10_000)] {
        assert_eq!(fields(&with_http(|http| http.method = method.to_owned())), [Field::Method], "{method}");
    }
    for method in ["GET", "PUT", "DELETE", "PROPFIND"] {
        assert_eq!(fields(&with_http(|http| http.method = method.to_owned())), [], "{method}");
    }
    for method in ["get", "Post", "DELETe"] {
        assert_eq!(fields(&with_http(|http| http.method = method.to_owned())), [Field::Method], "{method}");
    }
    assert_eq!(Violation::MethodCase(Method::GET).to_string(), "methods are case-sensitive; write GET");
}

#[test]
fn validation_rejects_malformed_and_reserved_headers() {
    for (name, value) in [
        ("x-a", "b\r\nx-c: d"),
        ("x-a", "b\n"),
        ("x-a", "\0"),
        ("x-a", "ü"),
        ("x a", "b"),
        ("", "b"),
        ("x-a:", "b"),
        (":path", "/"),
        ("ü", "b"),
        ("host", "b"),
        ("Content-Length", "3"),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("traceparent", "00-1"),
        ("webhook-id", "x"),
        ("Webhook-Signature", "x"),
        ("reveille-term", "9"),
    ] {
        let spec = with_http(|http| http.headers = vec![(name.to_owned(), value.into())]);
        assert_eq!(fields(&spec), [Field::Header(name.to_owned())], "{name:?}: {value:?}");
    }
    let plain = [("authorization", "Bearer a.b"), ("content-type", "text/plain"), ("x-tab", "a\tb"), ("x-empty", "")];
    let headers = plain.map(|(name, value)| (name.to_owned(), value.into())).to_vec();
    assert_eq!(fields(&with_http(|http| http.headers = headers)), []);
}

#[test]
fn validation_rejects_the_redaction_placeholder_as_a_header_value() {
    let spec = with_http(|http| http.headers = vec![("x-token".to_owned(), Secret::REDACTED.into())]);
    assert_eq!(violations(&spec, &Limits::default(), NOW), [Violation::HeaderRedacted { name: "x-token".to_owned() }]);
}

#[test]
fn header_limit_counts_encrypted_values_by_their_plaintext_length() {
    let sealed = |bytes: usize| Secret::Encrypted(vec![b'\n'; bytes + Secret::ENCRYPTION_OVERHEAD].into());
    let header = |bytes: usize| ("x-a".to_owned(), sealed(bytes));
    assert_eq!(fields(&with_http(|http| http.headers = vec![header(8 * 1024 - 3)])), []);
    assert_eq!(fields(&with_http(|http| http.headers = vec![header(8 * 1024 - 2)])), [Field::Headers]);
}

#[test]
fn validation_limits_the_number_and_the_total_bytes_of_headers() {
    let header = |bytes: usize| ("x-a".to_owned(), Secret::from("v".repeat(bytes)));
    assert_eq!(fields(&with_http(|http| http.headers = vec![header(1); 32])), []);
    assert_eq!(fields(&with_http(|http| http.headers = vec![header(1); 33])), [Field::Headers]);
    assert_eq!(fields(&with_http(|http| http.headers = vec![header(8 * 1024 - 3)])), []);
    assert_eq!(fields(&with_http(|http| http.headers = vec![header(8 * 1024 - 2)])), [Field::Headers]);
}

#[test]
fn validation_rejects_labels_that_have_no_name_or_exceed_a_limit() {
    let labels = |pairs: &[(&str, &str)]| Spec {
        labels: pairs.iter().map(|(name, value)| (String::from(*name), String::from(*value))).collect(),
        ..spec()
    };
    let long = "x".repeat(257);
    assert_eq!(fields(&labels(&[("", "x")])), [Field::Label(String::new())]);
    assert_eq!(fields(&labels(&[("a", "b\nc")])), [Field::Label("a".to_owned())]);
    assert_eq!(fields(&labels(&[("a", &long), (&long, "b")])).len(), 2);
    assert_eq!(fields(&labels(&[("a", &long[1..])])), []);
    let many = Spec { labels: (0..17).map(|n| (n.to_string(), String::new())).collect(), ..spec() };
    assert_eq!(fields(&many), [Field::Labels]);
}

#[test]
fn validation_returns_all_violations_in_field_order() {
    let mut spec = with_http(|http| {
        http.url = "gopher://example.org".to_owned();
        http.timeout = Duration::ZERO;
    });
    spec.when = When::every(Duration::ZERO);
    spec.payload = Bytes::from(vec![b' '; 64 * 1024 + 1]);
    spec.retry = RetryPolicy { attempts_max: 0, backoff: Duration::MAX, backoff_max: Duration::from_secs(86_401) };
    let expected = [
        Field::Every,
        Field::Url,
        Field::Timeout,
        Field::Payload,
        Field::AttemptsMax,
        Field::BackoffMax,
        Field::Backoff,
    ];
    assert_eq!(fields(&spec), expected);
}

#[test]
fn error_text_for_a_short_interval_states_the_minimum() {
    let spec = Spec { when: When::every(Duration::from_millis(10)), ..spec() };
    let texts: Vec<String> = violations(&spec, &Limits::default(), NOW).iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["interval 10ms is too short; the minimum is 1s"]);
}

proptest! {
    #[test]
    fn validation_accepts_only_usable_urls_and_methods_and_headers(
        url in "(http|HTTP|https|ftp)?(://)?[a-z0-9.:@\\[\\]-]{0,12}[/?#]?\\PC{0,10}",
        name in "\\PC{0,8}|[a-zA-Z-]{1,12}",
        value in "\\PC{0,8}|[ -~\\t\\r\\n]{0,8}",
        method in "\\PC{0,6}|[A-Z]{0,8}",
    ) {
        let spec = with_http(|http| {
            (http.url, http.method) = (url.clone(), method.clone());
            http.headers = vec![(name.clone(), value.as_str().into())];
        });
        let found = fields(&spec);
        if !found.contains(&Field::Url) {
            let uri: Uri = url.parse().expect("the URL was accepted");
            prop_assert!(uri.host().is_some_and(|host| !host.is_empty()) && !url.contains(['#', ' ']));
            prop_assert!(uri.authority().is_some_and(|authority| !authority.as_str().contains('@')));
            prop_assert!(uri.port().is_none_or(|port| port.as_u16() > 0));
        }
        if !found.contains(&Field::Method) {
            prop_assert!(method.bytes().all(|c| c.is_ascii_graphic()));
        }
        if !found.contains(&Field::Header(name.clone())) {
            prop_assert!(!name.is_empty() && !value.contains(['\r', '\n', '\0']));
            prop_assert!(name.parse::<HeaderName>().is_ok());
        }
    }
}

fn with_bus(change: impl FnOnce(&mut BusTarget)) -> Spec {
    let mut bus = BusTarget {
        topic: "orders".to_owned(),
        key: Some("schlüssel".to_owned()),
        headers: vec![("x-team".to_owned(), "payments".into())],
        cloud_event: None,
        timeout: Duration::from_secs(10),
    };
    change(&mut bus);
    Spec { target: Target::Bus(bus), ..spec() }
}

fn bus_violations(spec: &Spec) -> Vec<Violation> {
    violations(spec, &Limits { has_bus: true, ..Limits::default() }, NOW)
}

#[test]
fn bus_target_within_all_limits_has_no_violations() {
    assert_eq!(bus_violations(&with_bus(|_| ())), []);
    let event = |mode| CloudEvent { mode, kind: "com.example.due".to_owned(), source: Some("/orders".to_owned()) };
    for mode in [CloudEventMode::Binary, CloudEventMode::Structured] {
        assert_eq!(bus_violations(&with_bus(|bus| bus.cloud_event = Some(event(mode)))), []);
    }
}

#[test]
fn bus_target_is_rejected_without_a_bus() {
    assert_eq!(violations(&with_bus(|_| ()), &Limits::default(), NOW), [Violation::BusNotConfigured]);
}

#[test]
fn validation_reports_each_invalid_part_of_a_bus_target() {
    let event = |kind: &str, source: &str| CloudEvent {
        mode: CloudEventMode::Structured,
        kind: kind.to_owned(),
        source: Some(source.to_owned()),
    };
    let fields = |change: &dyn Fn(&mut BusTarget)| {
        bus_violations(&with_bus(change)).iter().map(Violation::field).collect::<Vec<_>>()
    };
    for topic in ["", ".", "..", "a b", "ordérs", "a/b", "orders%20", "o\0"] {
        assert_eq!(fields(&|bus| bus.topic = topic.to_owned()), [Field::Topic], "{topic:?}");
    }
    assert_eq!(fields(&|bus| bus.topic = "a".repeat(250)), [Field::Topic]);
    assert_eq!(fields(&|bus| bus.key = Some("k".repeat(1_025))), [Field::Key]);
    assert_eq!(fields(&|bus| bus.timeout = Duration::from_millis(999)), [Field::Timeout]);
    assert_eq!(fields(&|bus| bus.timeout = Duration::from_secs(301)), [Field::Timeout]);
    assert_eq!(fields(&|bus| bus.cloud_event = Some(event("", "/a"))), [Field::CloudEventType]);
    assert_eq!(fields(&|bus| bus.cloud_event = Some(event("a b", "/a"))), [Field::CloudEventType]);
    assert_eq!(fields(&|bus| bus.cloud_event = Some(event("a", "/ü"))), [Field::CloudEventSource]);
    assert_eq!(fields(&|bus| bus.cloud_event = Some(event("a", &"a".repeat(257)))), [Field::CloudEventSource]);
    for name in ["webhook-id", "Reveille-Term", "CE_id", "traceparent"] {
        let headers = vec![(name.to_owned(), "x".into())];
        assert_eq!(fields(&|bus| bus.headers = headers.clone()), [Field::Header(name.to_owned())]);
    }
    let content_type = vec![("content-type".to_owned(), "text/plain".into())];
    assert_eq!(fields(&|bus| bus.headers = content_type.clone()), []);
    let structured = fields(&|bus| {
        bus.headers = content_type.clone();
        bus.cloud_event = Some(event("a", "/a"));
    });
    assert_eq!(structured, [Field::Header("content-type".to_owned())]);
}
