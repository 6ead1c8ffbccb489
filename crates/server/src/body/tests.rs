use domain::egress::Class;
use domain::limits::Limits;
use domain::{Egress, Timestamp, When};
use proptest::prelude::*;
use serde_json::Value;

use super::*;

const NOW: Timestamp = Timestamp::from_millis(2_000_000_000_000);

fn read(bytes: &[u8]) -> Result<ParsedSchedule, Box<api::Problem>> {
    let allow_topics = vec!["orders*".parse().unwrap()];
    let egress = Egress { allow: Class::ALL.into(), allow_topics, ..Egress::default() };
    let limits = Limits { has_bus: true, ..Limits::default() };
    read_schedule(bytes, None, &limits, &egress, NOW).map_err(|rejected| Box::new(rejected.into_problem(None)))
}

const VALID: [&str; 6] = [
    r#"{"at":"2035-01-02T03:04:05Z","target":{"http":{"url":"http://127.0.0.1:9/hook"}}}"#,
    r#"{"id":"a-b_C","every":"1h30m","target":{"http":{"url":"https://example.org","method":"PUT","headers":{"X-A":"b"},"timeout":"3s"}},"payload":{"a":[1,2.5,null]},"labels":{"k":"v\u00e9"},"retry":{"attempts_max":3,"backoff":"1s","backoff_max":"1m"}}"#,
    r#"{"cron":"0 7 * * *","zone":"Europe/Berlin","target":{"http":{"url":"http://h/","headers":null}},"payload":null}"#,
    r#" { "retry" : { } , "payload" : "x" , "target" : { "http" : { "url" : "http:\/\/h" } } , "every" : "PT30S" } "#,
    r#"{"every":"1h","target":{"bus":{"topic":"orders","key":"k\u00e9","headers":{"X-A":"b"},"cloud_event":{"mode":"binary","type":"t","source":"/s"},"timeout":"3s"}}}"#,
    r#"{"every":"1h","target":{"http":null,"bus":{"topic":"orders-eu","key":null,"cloud_event":{"mode":"structured"}}},"payload":[1]}"#,
];

#[test]
fn parser_accepts_valid_bodies() {
    for body in VALID {
        assert!(read(body.as_bytes()).is_ok(), "{body}: {:?}", read(body.as_bytes()));
    }
}

#[test]
fn parser_reports_an_instant_before_the_epoch_as_past() {
    let body = VALID[0].replace("2035", "0001");
    assert_eq!(read(body.as_bytes()).unwrap_err().errors[0].code, "time_in_past");
}

#[test]
fn parser_rounds_an_instant_up_to_the_next_millisecond() {
    let body = VALID[0].replace("05Z", "05.000000001Z");
    let When::At(at) = read(body.as_bytes()).unwrap().spec.when else { panic!("the body has an instant") };
    assert_eq!(at.as_millis() % 1_000, 1);
}

#[test]
fn error_shortens_a_long_unknown_field_name() {
    let name = "zon".repeat(400_000);
    let body = VALID[0].replacen('{', &format!("{{\"{name}\":1,"), 1);
    let problem = read(body.as_bytes()).unwrap_err();
    let error = &problem.errors[0];
    let shown = format!("/{}…", &name[..64]);
    assert_eq!((&*error.code, error.pointer.as_deref()), ("unknown_field", Some(&*shown)));
    assert!(error.hint.as_deref().unwrap().starts_with("known fields: id, at"), "{error:?}");
    let body = VALID[0].replacen('{', &format!("{{\"labels\":{{\"{name}\":1}},"), 1);
    assert_eq!(read(body.as_bytes()).unwrap_err().errors[0].pointer.as_deref(), Some(&*format!("/labels{shown}")));
}

#[test]
fn hint_explains_a_misplaced_field_or_an_invalid_duration() {
    let hint_of = |body: &str| {
        let problem = read(body.as_bytes()).unwrap_err();
        problem.errors[0].hint.clone().unwrap_or_default()
    };
    let misplaced = hint_of(r#"{"url":"http://h","every":"30s","target":{"http":{"url":"http://h"}}}"#);
    assert_eq!(misplaced, r#"`url` is a field of "target": {"http": {…}}"#);
    let misplaced = hint_of(r#"{"every":"30s","target":{"http":{"url":"http://h","backoff":"1s"}}}"#);
    assert_eq!(misplaced, r#"`backoff` is a field of "retry": {…}"#);
    let number = hint_of(r#"{"every":3600,"target":{"http":{"url":"http://h"}}}"#);
    assert!(number.contains("quotation marks") && number.contains("30s"), "{number}");
}

#[test]
fn error_for_too_many_headers_or_labels_contains_their_number() {
    let pairs: Vec<String> = (0..100_000).map(|number| format!("\"{number:06}\":\"\"")).collect();
    let pairs = pairs.join(",");
    let body = format!(
        r#"{{"every":"1h","target":{{"http":{{"url":"http://h","headers":{{{pairs}}}}}}},"labels":{{{pairs}}}}}"#
    );
    let errors = read(body.as_bytes()).unwrap_err().errors;
    let shown: Vec<_> = errors.iter().map(|error| (error.pointer.as_deref().unwrap(), &*error.code)).collect();
    assert_eq!(shown, [("/target/http/headers", "too_many"), ("/labels", "too_many")]);
    assert!(errors.iter().all(|error| error.detail.contains("100000")), "{errors:?}");
}

/// Class of an error of this crate's parser. It shows whether serde's derived parser of the wire types also rejects the
/// body.
enum Shape {
    /// This crate's parser and serde's derived parser reject the body.
    Wrong,
    /// Only this crate's parser rejects the body. The derived parser accepts arrays for structs, repeated keys, and
    /// values outside the limits.
    Stricter,
    /// The shape of the body is valid. The error concerns the meaning of a field.
    Right,
}

fn shape(error: &FieldError) -> Shape {
    match &*error.code {
        "missing_field" if error.detail.starts_with("one of ") => Shape::Right,
        "invalid_cloud_event" if error.pointer.as_deref() == Some("/target/bus/cloud_event/mode") => Shape::Wrong,
        "wrong_type" if error.detail.ends_with("but found an array") => Shape::Stricter,
        // This crate's parser does not check the two targets of a schedule any further.
        "conflicting_fields" if error.pointer.as_deref() == Some("/target") => Shape::Stricter,
        // If an error has the code `out_of_range`, the derived parser may reject or accept the body. It rejects a
        // number that does not fit into a `u16`.
        "duplicate_field" | "out_of_range" => Shape::Stricter,
        "wrong_type" | "unknown_field" | "missing_field" => Shape::Wrong,
        _ => Shape::Right,
    }
}

/// Checks that the derived parser of the wire types and this crate's parser accept bodies of the same shapes.
fn agrees_with_the_wire_types(text: &str) {
    let derived = serde_json::from_str::<api::ScheduleRequest>(text);
    let errors = match read(text.as_bytes()) {
        Ok(_) => Vec::new(),
        Err(problem) if problem.code == "malformed_json" => {
            assert!(derived.is_err(), "{text}: {problem:?}");
            return;
        }
        Err(problem) => problem.errors,
    };
    if errors.iter().any(|error| matches!(shape(error), Shape::Wrong)) {
        assert!(derived.is_err(), "{text}: {errors:?}");
    } else if errors.iter().all(|error| matches!(shape(error), Shape::Right)) {
        assert!(derived.is_ok(), "{text}: {:?} {errors:?}", derived.err());
    }
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![Just("1h"), Just("2035-01-02T03:04:05Z"), Just("http://h/"), Just("UTC"), Just("* * * * *")]
            .prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof![
            prop::sample::select(vec!["at", "cron", "every", "id", "zone", "target", "http", "url", "headers"]),
            prop::sample::select(vec!["payload", "labels", "retry", "attempts_max", "backoff", "method", "x"]),
            prop::sample::select(vec!["bus", "topic", "key", "cloud_event", "mode", "type", "source"]),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..5)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// Generates bodies that differ from valid bodies by one replaced value or one added key.
fn nearly_valid() -> impl Strategy<Value = String> {
    (prop::sample::select(VALID.to_vec()), json(), any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(body, replacement, index, is_added)| {
            let mut body: Value = serde_json::from_str(body).unwrap();
            let mut pointers = Vec::new();
            list_pointers(&body, String::new(), &mut pointers);
            let pointer = index.get(&pointers).clone();
            let target = body.pointer_mut(&pointer).unwrap();
            match target {
                Value::Object(fields) if is_added => drop(fields.insert("zone".to_owned(), replacement)),
                target => *target = replacement,
            }
            body.to_string()
        },
    )
}

fn list_pointers(value: &Value, at: String, into: &mut Vec<String>) {
    if let Value::Object(fields) = value {
        for (name, field) in fields {
            list_pointers(field, format!("{at}/{name}"), into);
        }
    }
    into.push(at);
}

/// Generates bodies that differ from valid bodies by a few changed, removed or duplicated bytes.
fn mangled() -> impl Strategy<Value = Vec<u8>> {
    let edit = (
        any::<prop::sample::Index>(),
        0..3_u8,
        prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\",:\\0".to_vec())],
    );
    (prop::sample::select(VALID.to_vec()), prop::collection::vec(edit, 1..4)).prop_map(|(body, edits)| {
        let mut bytes = body.as_bytes().to_vec();
        for (index, kind, byte) in edits {
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parser_rejects_random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read(&bytes).is_err());
    }

    #[test]
    fn parser_and_serde_agree_on_the_shape_of_corrupted_bodies(bytes in mangled()) {
        match std::str::from_utf8(&bytes) {
            Ok(text) => agrees_with_the_wire_types(text),
            Err(_) => prop_assert_eq!(read(&bytes).unwrap_err().code, "not_utf8"),
        }
    }

    #[test]
    fn parser_and_serde_agree_on_the_shape_of_random_json_bodies(body in json()) {
        agrees_with_the_wire_types(&body.to_string());
    }

    #[test]
    fn parser_and_serde_agree_on_the_shape_of_nearly_valid_bodies(body in nearly_valid()) {
        agrees_with_the_wire_types(&body);
    }

    #[test]
    fn pointer_of_each_error_names_a_location_in_the_body(body in nearly_valid()) {
        let sent: Value = serde_json::from_str(&body).unwrap();
        for error in read(body.as_bytes()).err().map(|problem| problem.errors).unwrap_or_default() {
            let pointer = error.pointer.unwrap();
            let is_there = sent.pointer(&pointer).is_some() || error.code == "missing_field";
            prop_assert!(is_there, "{} is not in {}", pointer, body);
        }
    }
}
