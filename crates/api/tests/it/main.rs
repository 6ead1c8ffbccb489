//! Tests of the wire format of the API types.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use reveille_api::{
    CancelResult, Cancelled, CauseKind, ClockChangeKind, Explanation, Preview, Quota, QuotaSheet, SchedulePatch,
    ScheduleRequest, ScheduleSummary, Time, Usage,
};

#[test]
fn schedule_request_is_unchanged_after_a_json_round_trip() {
    let text = r#"{"id":"a","cron":"0 7 * * *","zone":"UTC","target":{"http":{"url":"http://h/","method":"PUT","headers":{"x":"y"},"timeout":"3s"}},"payload":{ "b" : 1e0, "a": [null] },"labels":{"k":"v"},"retry":{"attempts_max":3,"backoff":"1s","backoff_max":"1m"}}"#;
    let request: ScheduleRequest = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&request).unwrap(), text);
}

#[test]
fn client_accepts_kinds_that_are_newer_than_itself() {
    let text = r#"{"zone":"UTC","occurrences":[{"at":"2030-01-02T03:04:05.000Z","local":"2030-01-02T03:04:05.000+00:00","clock_change":{"kind":"stretched","text":"a"}}],"dropped":[],"dropped_count":0}"#;
    let preview: Preview = serde_json::from_str(text).unwrap();
    assert_eq!(preview.occurrences[0].clock_change.as_ref().unwrap().kind, ClockChangeKind::Other);
    let text = r#"{"at":"2030-01-02T03:04:05.000Z","verdict":"fired","causes":[{"kind":"luck","text":"a"},{"kind":"late","text":"b"}]}"#;
    let explanation: Explanation = serde_json::from_str(text).unwrap();
    let kinds: Vec<CauseKind> = explanation.causes.iter().map(|cause| cause.kind).collect();
    assert_eq!(kinds, [CauseKind::Other, CauseKind::Late]);
}

#[test]
fn debug_output_of_a_request_hides_header_values() {
    let request =
        ScheduleRequest::every(Duration::from_secs(3_600), "http://h/").header("authorization", "Bearer hunter2");
    assert!(serde_json::to_string(&request).unwrap().contains("hunter2"));
    let shown = format!("{request:?}");
    assert!(shown.contains("authorization") && !shown.contains("hunter2"), "{shown}");
    let patch = SchedulePatch::new().header("authorization", "Bearer hunter2").label("a", "b");
    assert!(serde_json::to_string(&patch).unwrap().contains("hunter2"));
    assert_eq!(format!("{patch:?}"), r#"{"labels", "target"}"#);
}

#[test]
fn request_to_a_topic_has_only_a_bus_target() {
    let hour = Duration::from_secs(3_600);
    let request = ScheduleRequest::every(hour, "http://h/").to_topic("orders").header("x-a", "s3cret");
    let request = request.timeout(Duration::from_secs(2));
    let text = serde_json::to_string(&request).unwrap();
    let target = r#"{"bus":{"topic":"orders","headers":{"x-a":"s3cret"},"timeout":"2000ms"}}"#;
    assert_eq!(text, format!(r#"{{"every":"3600000ms","target":{target}}}"#));
    let shown = format!("{request:?}");
    assert!(shown.contains("x-a") && !shown.contains("s3cret"), "{shown}");

    let event = r#"{"mode":"structured","type":"a.b","source":"/c"}"#;
    let text = format!(r#"{{"every":"1h","target":{{"bus":{{"topic":"orders","key":"k","cloud_event":{event}}}}}}}"#);
    let request: ScheduleRequest = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&request).unwrap(), text);
    let patch = SchedulePatch::new().topic("orders");
    assert_eq!(serde_json::to_string(&patch).unwrap(), r#"{"target":{"bus":{"topic":"orders"}}}"#);
    for wrong in [r#"{"bus":{}}"#, r#"{"bus":{"topic":"a","partition":1}}"#, r#"{"kafka":{}}"#] {
        let text = format!(r#"{{"every":"1h","target":{wrong}}}"#);
        assert!(serde_json::from_str::<ScheduleRequest>(&text).is_err(), "{wrong}");
    }
}

#[test]
fn null_payload_differs_from_a_missing_payload() {
    let text = r#"{"at":"2035-01-02T03:04:05Z","target":{"http":{"url":"http://h/"}},"payload":null}"#;
    let request: ScheduleRequest = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&request).unwrap(), text);
    let without: ScheduleRequest = serde_json::from_str(&text.replace(r#","payload":null"#, "")).unwrap();
    assert!(without.payload.is_none());
}

#[test]
fn request_parser_rejects_an_unknown_field() {
    let text = r#"{"at":"2035-01-02T03:04:05Z","target":{"http":{"url":"http://h/"}},"later":1}"#;
    assert!(serde_json::from_str::<ScheduleRequest>(text).is_err());
}

#[test]
fn schedule_summary_is_unchanged_after_a_json_round_trip() {
    let text = r#"{"id":"a","state":"active","next":"2035-01-02T03:04:05.000Z","revision":0,"created_at":"2030-01-02T03:04:05.678Z","updated_at":"2030-01-02T03:04:05.678Z"}"#;
    let summary: ScheduleSummary<'_> = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&summary).unwrap(), text);
}

#[test]
fn cancel_response_has_a_result_and_an_optional_decision_deadline() {
    let pending = r#"{"result":"pending","decided_by":"2030-01-01T00:00:00.000Z"}"#;
    for text in [r#"{"result":"cancelled"}"#, r#"{"result":"too_late"}"#, pending] {
        let response: Cancelled = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&response).unwrap(), text);
    }
    let response: Cancelled = serde_json::from_str(pending).unwrap();
    assert_eq!((response.result, response.decided_by), (CancelResult::Pending, Some(Time(1_893_456_000_000))));
}

#[test]
fn response_parser_ignores_unknown_quotas() {
    let text = r#"{"quotas":{"pending_max":5,"later_max":7},"ceilings":{"later_max":null}}"#;
    let sheet: QuotaSheet = serde_json::from_str(text).unwrap();
    assert_eq!(sheet.quotas, BTreeMap::from([(Quota::PendingMax, Some(5))]));
    assert!(sheet.ceilings.is_empty());
    assert_eq!(sheet.usage, Usage::default());
}

proptest! {
    #[test]
    fn api_formats_a_time_like_the_jiff_crate_and_parses_it_back(millis in 0..253_402_207_200_000_i64) {
        let written = Time(millis).to_string();
        let instant = jiff::Timestamp::from_millisecond(millis).unwrap();
        prop_assert_eq!(&written, &format!("{instant:.3}"));
        let read: Time = serde_json::from_str(&format!("\"{written}\"")).unwrap();
        prop_assert_eq!(read, Time(millis));
    }
}
