use std::time::Duration;

use bytes::Bytes;
use domain::limits::Limits;
use domain::{
    Cron, Egress, HttpTarget, Incarnation, PollerId, RetryPolicy, Revision, Schedule, ScheduleId, Spec, Status, Target,
    TenantId, Timestamp, When,
};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::read_merged;
use super::{merge, merge_value};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn stored() -> Schedule {
    let id = ScheduleId::new("invoice-7").unwrap();
    let headers = [("authorization", "Bearer a.b"), ("x-team", "red")];
    Schedule {
        tenant: TenantId(1),
        incarnation: Incarnation(7),
        poller: PollerId::of(TenantId(1), 0, 4, &id),
        id,
        revision: Revision(2),
        status: Status::Active,
        created_at: NOW,
        updated_at: NOW,
        next: Some(NOW + Duration::from_secs(60)),
        spec: Spec {
            when: When::Cron(Cron::parse("30 2 * * *", "Europe/Berlin").unwrap()),
            target: Target::Http(HttpTarget {
                url: "https://example.org/a".to_owned(),
                method: "PUT".to_owned(),
                headers: headers.map(|(name, value)| (name.to_owned(), value.into())).to_vec(),
                timeout: Duration::from_millis(1_500),
            }),
            payload: Bytes::from_static(b"{ \"b\" : 1.50, \"a\":{\"x\":1,  \"y\":123456789012345678901234567890} }"),
            labels: [("a", "1"), ("b", "2")].map(|(name, value)| (name.to_owned(), value.into())).into(),
            retry: RetryPolicy {
                attempts_max: 3,
                backoff: Duration::from_secs(2),
                backoff_max: Duration::from_secs(60),
            },
        },
    }
}

/// Merges a change. Returns the spec, and true if the change sets the timing.
fn read(change: &str) -> Result<(Spec, bool), String> {
    let stored = stored();
    let read = merge(&stored, change.as_bytes()).and_then(|merged| {
        let names_timing = merged.names_timing;
        Ok((read_merged(merged, &stored, &Limits::default(), &Egress::default(), NOW)?, names_timing))
    });
    read.map_err(|rejected| rejected.to_string())
}

/// Checks that the merged spec equals the stored spec after `edit`.
#[track_caller]
fn check_merge(change: &str, names_timing: bool, edit: impl FnOnce(&mut Spec)) {
    let mut spec = stored().spec;
    edit(&mut spec);
    assert_eq!(read(change), Ok((spec, names_timing)), "{change}");
}

fn http(spec: &mut Spec) -> &mut HttpTarget {
    let Target::Http(http) = &mut spec.target else { panic!("the target is an HTTP target") };
    http
}

#[test]
fn merge_keeps_the_fields_that_the_change_does_not_name() {
    check_merge("{}", false, |_| {});
    check_merge(r#"{"retry":{"backoff":"3s"}}"#, false, |spec| spec.retry.backoff = Duration::from_secs(3));
    check_merge(r#"{"target":{"http":{"url":"https://example.org/b"}}}"#, false, |spec| {
        http(spec).url = "https://example.org/b".to_owned();
    });
    check_merge(r#"{"labels":{"b":null,"c":"3"}}"#, false, |spec| {
        spec.labels.remove("b");
        spec.labels.insert("c".to_owned(), "3".to_owned());
    });
    check_merge(r#"{"id":"invoice-7"}"#, false, |_| {});
}

#[test]
fn null_removes_field_or_restores_its_default() {
    check_merge(r#"{"labels":null,"payload":null,"retry":null}"#, false, |spec| {
        spec.labels.clear();
        spec.payload = Bytes::new();
        spec.retry = RetryPolicy::default();
    });
    check_merge(r#"{"target":{"http":{"method":null,"headers":null}}}"#, false, |spec| {
        http(spec).method = "POST".to_owned();
        http(spec).headers.clear();
    });
    assert_eq!(read(r#"{"target":null}"#), Err("/target: the field is required".to_owned()));
}

#[test]
fn merge_rejects_a_new_origin_if_it_would_keep_a_stored_header() {
    for url in ["https://other.example.org/a", "http://example.org/a", "https://example.org:8443/a"] {
        let moved = |headers: &str| read(&format!(r#"{{"target":{{"http":{{"url":"{url}"{headers}}}}}}}"#));
        assert!(moved("").unwrap_err().contains("another scheme"), "{:?}", moved(""));
        assert!(moved(r#","headers":{"authorization":"x"}"#).is_err(), "the other header is kept");
        assert!(moved(r#","headers":{"authorization":"x","x-team":null}"#).is_ok());
        assert!(moved(r#","headers":null"#).is_ok());
    }
    assert!(read(r#"{"target":{"http":{"url":"https://EXAMPLE.org/b"}}}"#).is_ok());
}

#[test]
fn merge_rejects_deeply_nested_change_before_parsing() {
    let nested = |levels: usize| format!(r#"{{"payload":{}1{}}}"#, r#"{"a\"[":"#.repeat(levels), "}".repeat(levels));
    assert!(read(&nested(63)).is_ok(), "{:?}", read(&nested(63)));
    assert!(read(&nested(64)).unwrap_err().contains("nests deeper"));
    assert!(read(&nested(50_000)).unwrap_err().contains("nests deeper"));
}

#[test]
fn merge_ignores_the_case_of_header_names() {
    let header = |name: &str, value: &str| (name.to_owned(), value.into());
    check_merge(r#"{"target":{"http":{"headers":{"X-TEAM":"blue"}}}}"#, false, |spec| {
        http(spec).headers = vec![header("authorization", "Bearer a.b"), header("x-team", "blue")];
    });
    check_merge(r#"{"target":{"http":{"headers":{"Authorization":null,"x-new":"1"}}}}"#, false, |spec| {
        http(spec).headers = vec![header("x-team", "red"), header("x-new", "1")];
    });
    let twice = read(r#"{"target":{"http":{"headers":{"x-a":"1","X-A":"2"}}}}"#).unwrap_err();
    assert!(twice.starts_with("/target/http/headers/X-A: "), "{twice}");
    let many: Vec<String> = (0..31).map(|number| format!("\"x-{number}\":\"v\"")).collect();
    let many = read(&format!(r#"{{"target":{{"http":{{"headers":{{{}}}}}}}}}"#, many.join(","))).unwrap_err();
    assert!(
        many.starts_with("/target/http/headers: "),
        "31 new headers and 2 stored ones exceed the limit by one: {many}"
    );
}

#[test]
fn new_kind_of_timing_replaces_the_old_timing() {
    let at = Timestamp::from_millis(1_893_553_445_000);
    check_merge(r#"{"at":"2030-01-02T03:04:05Z"}"#, true, |spec| spec.when = When::At(at));
    check_merge(r#"{"every":"1h"}"#, true, |spec| spec.when = When::every(Duration::from_secs(3_600)));
    let cron = |text, zone| When::Cron(Cron::parse(text, zone).unwrap());
    check_merge(r#"{"cron":"0 7 * * *"}"#, true, |spec| spec.when = cron("0 7 * * *", "Europe/Berlin"));
    check_merge(r#"{"zone":"Asia/Tokyo"}"#, true, |spec| spec.when = cron("30 2 * * *", "Asia/Tokyo"));
    check_merge(r#"{"cron":"0 7 * * *","zone":null}"#, true, |spec| spec.when = cron("0 7 * * *", "UTC"));
    check_merge(r#"{"at":null}"#, true, |_| {});
    assert!(read(r#"{"at":"2030-01-02T03:04:05Z","every":"1h"}"#).unwrap_err().contains("exclude each other"));
    assert!(read(r#"{"cron":null,"zone":null}"#).unwrap_err().contains("one of at, cron and every is required"));
    assert!(read(r#"{"at":"2020-01-02T03:04:05Z"}"#).unwrap_err().starts_with("/at: "));
}

#[test]
fn merge_keeps_the_bytes_of_payload_parts_that_it_does_not_change() {
    check_merge(r#"{"payload":{"a":{"x":null,"z":[null, 2]}}}"#, false, |spec| {
        spec.payload = Bytes::from_static(b"{\"b\":1.50,\"a\":{\"y\":123456789012345678901234567890,\"z\":[null, 2]}}");
    });
    check_merge(r#"{"payload":[1,  2]}"#, false, |spec| spec.payload = Bytes::from_static(b"[1,  2]"));
}

#[test]
fn error_of_an_invalid_change_contains_a_pointer_to_the_field() {
    for (change, error) in [
        ("[1]", ": expected an object, but found an array"),
        ("null", ": expected an object, but found null"),
        (r#"{"oops":1}"#, "/oops: unknown field"),
        (r#"{"state":"active"}"#, "/state: unknown field"),
        (r#"{"id":"invoice-8"}"#, "/id: the id differs from the id in the path"),
        (r#"{"labels":{"a":1}}"#, "/labels/a: expected a string, but found a number"),
        (r#"{"labels":7}"#, "/labels: expected an object whose values are strings, but found a number"),
        (
            r#"{"target":{"http":{"headers":"x"}}}"#,
            "/target/http/headers: expected an object whose values are strings, but found a string",
        ),
        (r#"{"every":"1h","every":"2h"}"#, "/every: the field is repeated"),
    ] {
        assert_eq!(read(change), Err(error.to_owned()), "{change}");
    }
    for broken in ["", "{", "{\"a\":}", "{}{}", "\u{feff}{}"] {
        assert!(read(broken).is_err(), "{broken:?}");
    }
    assert!(merge(&stored(), b"{\"a\":\"\xff\"}").is_err());
}

#[test]
fn merge_applies_stored_values_only_to_the_last_copy_of_a_field() {
    let mut stored = stored();
    stored.spec.payload = format!(r#"{{"big":"{}"}}"#, "x".repeat(64 << 10)).into();
    let change = format!("{{{}}}", vec![r#""payload":{}"#; 1_000].join(","));
    let Ok(merged) = merge(&stored, change.as_bytes()) else { panic!("a merge does not check the result") };
    assert!(merged.text.len() < stored.spec.payload.len() + change.len() + 1_000, "{}", merged.text.len());

    stored.spec.payload = Bytes::from_static(br#"{"a":{"x":1}}"#);
    let Ok(merged) = merge(&stored, br#"{"payload":{"a":{"y":2},"a":{"z":3}}}"#) else {
        panic!("the change is well-formed")
    };
    assert!(merged.text.contains(r#"{"a":{"y":2},"a":{"x":1,"z":3}}"#), "{}", merged.text);
}

/// The test uses the examples of RFC 7396, appendix A.
#[test]
fn merge_returns_the_results_of_the_rfc_7396_examples() {
    for (stored, change, merged) in [
        (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
        (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
        (json!({"a":"b"}), json!({"a":null}), json!({})),
        (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
        (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
        (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
        (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
        (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a":"b"}), json!(["c"]), json!(["c"])),
        (json!({"a":"foo"}), json!(null), json!(null)),
        (json!({"a":"foo"}), json!("bar"), json!("bar")),
        (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
        (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
        (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
    ] {
        assert_eq!(merged_text(&stored, &change), merged, "{stored} and {change}");
    }
}

fn merged_text(stored: &Value, change: &Value) -> Value {
    let raw = |value: &Value| RawValue::from_string(value.to_string()).unwrap();
    let mut out = String::new();
    merge_value(Some(&raw(stored)), &raw(change), &mut out);
    serde_json::from_str(&out).unwrap()
}

/// Implements the pseudocode of RFC 7396, section 2.
fn reference_merge(stored: &Value, change: &Value) -> Value {
    let Value::Object(change) = change else { return change.clone() };
    let mut target = stored.as_object().cloned().unwrap_or_default();
    for (name, value) in change {
        match value {
            Value::Null => drop(target.remove(name)),
            value => {
                let merged = reference_merge(target.get(name).unwrap_or(&Value::Null), value);
                target.insert(name.clone(), merged);
            }
        }
    }
    Value::Object(target)
}

fn value() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![Just(Value::Null), any::<i8>().prop_map(Value::from), "[a\"\\\\é]{0,3}".prop_map(Value::from)];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[ab\"\\\\]{0,2}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn merge_matches_the_rfc_7396_pseudocode_for_any_two_values(stored in value(), change in value()) {
        prop_assert_eq!(merged_text(&stored, &change), reference_merge(&stored, &change));
    }
}
