//! Conversion of fields to values, and checks of these values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use api::FieldError;
use bytes::Bytes;
use domain::limits::Limits;
use domain::validate::{Field, Violation, violations};
use domain::{
    BusTarget, CloudEvent, CloudEventMode, Cron, CronError, EGRESS_REJECTED, Egress, HttpTarget, RetryPolicy,
    ScheduleId, Secret, Spec, Target, Timestamp, When, duration,
};
use serde::de::MapAccess;
use serde_json::value::RawValue;

use super::ParsedSchedule;
use super::merge::kind_name;
use super::pointer::Errors;
use super::reader::{Fields, Pairs, object, pairs, text, whole};

/// Default timeout of one attempt.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Default of the attribute `type` of a CloudEvent.
const CLOUD_EVENT_TYPE: &str = "reveille.callback";

#[derive(Default)]
pub(super) struct ScheduleFields<'de> {
    id: Option<Cow<'de, str>>,
    at: Option<Cow<'de, str>>,
    cron: Option<Cow<'de, str>>,
    every: Option<Cow<'de, str>>,
    zone: Option<Cow<'de, str>>,
    target: Option<TargetFields<'de>>,
    payload: Option<&'de RawValue>,
    labels: Option<Pairs<'de>>,
    retry: Option<RetryFields<'de>>,
}

impl<'de> Fields<'de> for ScheduleFields<'de> {
    const NAMES: &'static [&'static str] =
        &["id", "at", "cron", "every", "zone", "target", "payload", "labels", "retry"];

    fn read<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A, errors: &mut Errors<'_>) -> Result<(), A::Error> {
        match name {
            "id" => self.id = text(map, name, errors)?,
            "at" => self.at = text(map, name, errors)?,
            "cron" => self.cron = text(map, name, errors)?,
            "every" => self.every = text(map, name, errors)?,
            "zone" => self.zone = text(map, name, errors)?,
            "target" => self.target = object(map, name, errors)?,
            "payload" => self.payload = Some(map.next_value()?),
            "labels" => self.labels = pairs(map, name, errors)?,
            "retry" => self.retry = object(map, name, errors)?,
            other => unreachable!("{other} is not in `NAMES`"),
        }
        Ok(())
    }
}

#[derive(Default)]
struct TargetFields<'de> {
    http: Option<HttpFields<'de>>,
    bus: Option<BusFields<'de>>,
}

impl<'de> Fields<'de> for TargetFields<'de> {
    const NAMES: &'static [&'static str] = &["http", "bus"];

    fn read<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A, errors: &mut Errors<'_>) -> Result<(), A::Error> {
        match name {
            "http" => self.http = object(map, name, errors)?,
            "bus" => self.bus = object(map, name, errors)?,
            other => unreachable!("{other} is not in `NAMES`"),
        }
        Ok(())
    }
}

#[derive(Default)]
struct BusFields<'de> {
    topic: Option<Cow<'de, str>>,
    key: Option<Cow<'de, str>>,
    headers: Option<Pairs<'de>>,
    cloud_event: Option<CloudEventFields<'de>>,
    timeout: Option<Cow<'de, str>>,
}

impl<'de> Fields<'de> for BusFields<'de> {
    const NAMES: &'static [&'static str] = &["topic", "key", "headers", "cloud_event", "timeout"];

    fn read<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A, errors: &mut Errors<'_>) -> Result<(), A::Error> {
        match name {
            "topic" => self.topic = text(map, name, errors)?,
            "key" => self.key = text(map, name, errors)?,
            "headers" => self.headers = pairs(map, name, errors)?,
            "cloud_event" => self.cloud_event = object(map, name, errors)?,
            "timeout" => self.timeout = text(map, name, errors)?,
            other => unreachable!("{other} is not in `NAMES`"),
        }
        Ok(())
    }
}

#[derive(Default)]
struct CloudEventFields<'de> {
    mode: Option<Cow<'de, str>>,
    kind: Option<Cow<'de, str>>,
    source: Option<Cow<'de, str>>,
}

impl<'de> Fields<'de> for CloudEventFields<'de> {
    const NAMES: &'static [&'static str] = &["mode", "type", "source"];

    fn read<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A, errors: &mut Errors<'_>) -> Result<(), A::Error> {
        match name {
            "mode" => self.mode = text(map, name, errors)?,
            "type" => self.kind = text(map, name, errors)?,
            "source" => self.source = text(map, name, errors)?,
            other => unreachable!("{other} is not in `NAMES`"),
        }
        Ok(())
    }
}

#[derive(Default)]
struct HttpFields<'de> {
    url: Option<Cow<'de, str>>,
    method: Option<Cow<'de, str>>,
    headers: Option<Pairs<'de>>,
    timeout: Option<Cow<'de, str>>,
}

impl<'de> Fields<'de> for HttpFields<'de> {
    const NAMES: &'static [&'static str] = &["url", "method", "headers", "timeout"];

    fn read<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A, errors: &mut Errors<'_>) -> Result<(), A::Error> {
        match name {
            "url" => self.url = text(map, name, errors)?,
            "method" => self.method = text(map, name, errors)?,
            "headers" => self.headers = pairs(map, name, errors)?,
            "timeout" => self.timeout = text(map, name, errors)?,
            other => unreachable!("{other} is not in `NAMES`"),
        }
        Ok(())
    }
}

#[derive(Default)]
struct RetryFields<'de> {
    attempts_max: Option<i64>,
    backoff: Option<Cow<'de, str>>,
    backoff_max: Option<Cow<'de, str>>,
}

impl<'de> Fields<'de> for RetryFields<'de> {
    const NAMES: &'static [&'static str] = &["attempts_max", "backoff", "backoff_max"];

    fn read<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A, errors: &mut Errors<'_>) -> Result<(), A::Error> {
        match name {
            "attempts_max" => self.attempts_max = whole(map, name, errors)?,
            "backoff" => self.backoff = text(map, name, errors)?,
            "backoff_max" => self.backoff_max = text(map, name, errors)?,
            other => unreachable!("{other} is not in `NAMES`"),
        }
        Ok(())
    }
}

/// Converts and checks the fields. For an invalid field, the function records an error and continues with a valid
/// substitute, so that it also checks the other fields. The caller may use the result only if the function recorded no
/// error. The result contains `headers_kept` and the headers of the body.
pub(super) fn check(
    fields: ScheduleFields<'_>,
    named: Option<&ScheduleId>,
    limits: &Limits,
    egress: &Egress,
    now: Timestamp,
    headers_kept: Vec<(String, Secret)>,
    errors: &mut Errors<'_>,
) -> ParsedSchedule {
    let id = check_id(fields.id.as_deref(), named, errors);
    let when = check_when(&fields, now, errors);
    let target = required(fields.target, "target", errors, |target, errors| check_target(target, limits, errors));
    let has_target = target.is_some();
    let mut spec = Spec {
        when,
        target: target.unwrap_or_else(|| Target::Http(stand_in_target())),
        payload: fields.payload.map_or_else(Bytes::new, |raw| Bytes::copy_from_slice(raw.get().as_bytes())),
        labels: fields.labels.map_or_else(BTreeMap::new, |labels| check_labels(labels, limits, errors)),
        retry: fields.retry.map_or_else(RetryPolicy::default, |retry| check_retry(&retry, &mut errors.at("retry"))),
    };
    spec.target.headers_mut().splice(0..0, headers_kept);
    for violation in violations(&spec, limits, now) {
        note_violation(&violation, &spec.target, errors);
    }
    if has_target {
        check_egress(&spec.target, egress, errors);
    }
    spec.target.headers_mut().iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
    ParsedSchedule { id, spec }
}

fn required<T, U>(
    field: Option<T>,
    name: &str,
    errors: &mut Errors<'_>,
    check: impl FnOnce(T, &mut Errors<'_>) -> Option<U>,
) -> Option<U> {
    let mut errors = errors.at(name);
    let Some(field) = field else {
        note_missing(&mut errors);
        return None;
    };
    check(field, &mut errors)
}

/// Records that a required field is missing, unless `errors` already contains an error of this field.
fn note_missing(errors: &mut Errors<'_>) {
    if !errors.has_error_here() {
        note(errors, "missing_field", "the field is required", None);
    }
}

fn check_id(sent: Option<&str>, named: Option<&ScheduleId>, errors: &mut Errors<'_>) -> Option<ScheduleId> {
    let Some(sent) = sent else { return named.cloned() };
    match (ScheduleId::new(sent), named) {
        (Ok(id), Some(named)) if id != *named => {
            let hint = "leave the id out of the body, because the path contains it";
            note(&mut errors.at("id"), "id_mismatch", "the id differs from the id in the path", Some(hint));
            None
        }
        (Ok(id), _) => Some(id),
        (Err(error), _) => {
            let hint = "leave the id out to get a generated id";
            note(&mut errors.at("id"), "invalid_id", &error.to_string(), Some(hint));
            None
        }
    }
}

fn check_when(fields: &ScheduleFields<'_>, now: Timestamp, errors: &mut Errors<'_>) -> When {
    let stand_in = When::At(now);
    if fields.zone.is_some() && fields.cron.is_none() && !errors.at("cron").has_error_here() {
        let hint = "leave the zone out; `at` contains its own offset, and `every` needs no zone";
        note(&mut errors.at("zone"), "zone_without_cron", "a zone requires a cron expression", Some(hint));
    }
    match (&fields.at, &fields.cron, &fields.every) {
        (Some(at), None, None) => check_at(at, &mut errors.at("at")).map_or(stand_in, When::At),
        (None, Some(cron), None) => check_cron(cron, fields.zone.as_deref(), errors).map_or(stand_in, When::Cron),
        (None, None, Some(every)) => check_duration(every, &mut errors.at("every")).map_or(stand_in, When::every),
        (None, None, None) => {
            if !["at", "cron", "every"].iter().any(|name| errors.at(name).has_error_here()) {
                let hint =
                    "add \"at\": \"2030-01-02T03:04:05Z\", \"cron\": \"0 7 * * *\" or \"every\": \"30s\", for example";
                note(errors, "missing_field", "one of at, cron and every is required", Some(hint));
            }
            stand_in
        }
        _ => {
            let hint = "keep one of these fields, and create a separate schedule for each of the others";
            note(errors, "conflicting_fields", "at, cron and every exclude each other", Some(hint));
            stand_in
        }
    }
}

fn check_at(text: &str, errors: &mut Errors<'_>) -> Option<Timestamp> {
    const HINT: &str = "send RFC 3339 with an offset, like 2030-01-02T03:04:05Z or 2030-01-02T03:04:05.678+01:00";
    if !is_rfc3339(text.as_bytes()) {
        note(errors, "invalid_time", "the value is not an instant in the format of RFC 3339", Some(HINT));
        return None;
    }
    match text.parse::<jiff::Timestamp>() {
        Ok(instant) => Some(rounded_up(instant)),
        Err(error) => {
            note(errors, "invalid_time", &format!("the instant does not exist: {error}"), Some(HINT));
            None
        }
    }
}

/// Returns true if the text has the form of RFC 3339, section 5.6. The calendar library checks whether the date exists,
/// but would also accept shorter forms.
fn is_rfc3339(text: &[u8]) -> bool {
    let is_shape = |text: &[u8], shape: &[u8]| {
        let fits = |(byte, expected): (&u8, &u8)| match expected {
            b'0' => byte.is_ascii_digit(),
            letter => byte.eq_ignore_ascii_case(letter),
        };
        text.len() == shape.len() && text.iter().zip(shape).all(fits)
    };
    let Some((start, rest)) = text.split_at_checked(19) else { return false };
    let offset = match rest.split_first() {
        Some((b'.', rest)) => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if !(1..=9).contains(&digits) {
                return false;
            }
            &rest[digits..]
        }
        _ => rest,
    };
    let is_offset = is_shape(offset, b"Z") || is_shape(offset, b"+00:00") || is_shape(offset, b"-00:00");
    is_shape(start, b"0000-00-00T00:00:00") && is_offset
}

/// Rounds the instant up to a whole millisecond, so that no callback is early.
fn rounded_up(instant: jiff::Timestamp) -> Timestamp {
    let nanos = instant.as_nanosecond();
    let millis = nanos.div_euclid(1_000_000) + i128::from(nanos.rem_euclid(1_000_000) != 0);
    Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
}

fn check_cron(expression: &str, zone: Option<&str>, errors: &mut Errors<'_>) -> Option<Cron> {
    let error = match Cron::parse(expression, zone.unwrap_or("UTC")) {
        Ok(cron) => return Some(cron),
        Err(error) => error,
    };
    let (field, code) = match &error {
        CronError::TooLong { .. } => ("cron", "too_long"),
        CronError::NeverFires => ("cron", "never_fires"),
        CronError::Zone(_) => ("zone", "unknown_zone"),
        CronError::FieldCount(_) | CronError::Field { .. } | CronError::Expression(_) => ("cron", "invalid_cron"),
    };
    note_with_hint(&mut errors.at(field), code, &error.to_string());
    None
}

fn check_duration(text: &str, errors: &mut Errors<'_>) -> Option<Duration> {
    match duration::parse(text) {
        Ok(duration) => Some(duration),
        Err(error) => {
            note_with_hint(errors, "invalid_duration", &error.to_string());
            None
        }
    }
}

/// Checks the target, which must be of exactly one kind.
fn check_target(fields: TargetFields<'_>, limits: &Limits, errors: &mut Errors<'_>) -> Option<Target> {
    let http = fields.http.map(|http| check_http(http, limits, &mut errors.at("http")));
    let bus = fields.bus.map(|bus| check_bus(bus, limits, &mut errors.at("bus")));
    match (http, bus) {
        (Some(http), None) => Some(Target::Http(http)),
        (None, Some(bus)) => Some(Target::Bus(bus)),
        (None, None) => {
            if !["http", "bus"].iter().any(|name| errors.at(name).has_error_here()) {
                let hint = r#"add "http": {"url": "https://example.org/hook"}, for example"#;
                note(errors, "missing_field", "one of http and bus is required", Some(hint));
            }
            None
        }
        (Some(_), Some(_)) => {
            let hint = "keep one of these fields, and create a separate schedule for the other target";
            note(errors, "conflicting_fields", "http and bus exclude each other", Some(hint));
            None
        }
    }
}

fn check_bus(fields: BusFields<'_>, limits: &Limits, errors: &mut Errors<'_>) -> BusTarget {
    let timeout = fields.timeout.and_then(|timeout| check_duration(&timeout, &mut errors.at("timeout")));
    let event = fields.cloud_event.and_then(|fields| check_cloud_event(fields, &mut errors.at("cloud_event")));
    BusTarget {
        topic: required(fields.topic, "topic", errors, |topic, _| Some(topic.into_owned()))
            .unwrap_or_else(|| "topic".to_owned()),
        key: fields.key.map(Cow::into_owned),
        headers: (fields.headers)
            .map_or_else(Vec::new, |headers| check_headers(headers, limits, &mut errors.at("headers"))),
        cloud_event: event,
        timeout: timeout.unwrap_or(TIMEOUT_DEFAULT),
    }
}

fn check_cloud_event(fields: CloudEventFields<'_>, errors: &mut Errors<'_>) -> Option<CloudEvent> {
    let mode = required(fields.mode, "mode", errors, |mode, errors| match &*mode {
        "binary" => Some(CloudEventMode::Binary),
        "structured" => Some(CloudEventMode::Structured),
        _ => {
            let hint = r#"use "binary" or "structured""#;
            note(errors, "invalid_cloud_event", "the mode is neither binary nor structured", Some(hint));
            None
        }
    })?;
    let kind = fields.kind.map_or_else(|| CLOUD_EVENT_TYPE.to_owned(), Cow::into_owned);
    Some(CloudEvent { mode, kind, source: fields.source.map(Cow::into_owned) })
}

fn check_http(fields: HttpFields<'_>, limits: &Limits, errors: &mut Errors<'_>) -> HttpTarget {
    let stand_in = stand_in_target();
    let timeout = fields.timeout.and_then(|timeout| check_duration(&timeout, &mut errors.at("timeout")));
    HttpTarget {
        url: required(fields.url, "url", errors, |url, _| Some(url.into_owned())).unwrap_or(stand_in.url),
        method: fields.method.map_or(stand_in.method, Cow::into_owned),
        headers: fields
            .headers
            .map_or_else(Vec::new, |headers| check_headers(headers, limits, &mut errors.at("headers"))),
        timeout: timeout.unwrap_or(stand_in.timeout),
    }
}

fn stand_in_target() -> HttpTarget {
    HttpTarget {
        url: "http://localhost".to_owned(),
        method: "POST".to_owned(),
        headers: Vec::new(),
        timeout: TIMEOUT_DEFAULT,
    }
}

/// Converts headers and checks their names for duplicates. The comparison of the names takes quadratic time, so the
/// function rejects too many headers before it compares them.
fn check_headers(headers: Pairs<'_>, limits: &Limits, errors: &mut Errors<'_>) -> Vec<(String, Secret)> {
    if headers.len() > limits.headers_max {
        note_text_of(&Violation::HeaderCount { count: headers.len(), count_max: limits.headers_max }, errors);
        return Vec::new();
    }
    let mut checked: Vec<(String, Secret)> = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        if checked.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name)) {
            let hint = "join the values with commas if the header allows a list";
            note(&mut errors.at(&name), "duplicate_field", "the header is repeated", Some(hint));
            continue;
        }
        checked.push((name.into_owned(), value.into_owned().into()));
    }
    checked
}

fn check_labels(labels: Pairs<'_>, limits: &Limits, errors: &mut Errors<'_>) -> BTreeMap<String, String> {
    let mut errors = errors.at("labels");
    if labels.len() > limits.labels_max {
        note_text_of(&Violation::LabelCount { count: labels.len(), count_max: limits.labels_max }, &mut errors);
        return BTreeMap::new();
    }
    let mut checked = BTreeMap::new();
    for (name, value) in labels {
        if checked.contains_key(&*name) {
            note(&mut errors.at(&name), "duplicate_field", "the label is repeated", None);
        }
        checked.insert(name.into_owned(), value.into_owned());
    }
    checked
}

fn check_retry(fields: &RetryFields<'_>, errors: &mut Errors<'_>) -> RetryPolicy {
    let default = RetryPolicy::default();
    let mut duration = |text: &Option<Cow<'_, str>>, name: &str| {
        text.as_deref().and_then(|text| check_duration(text, &mut errors.at(name)))
    };
    let backoff = duration(&fields.backoff, "backoff");
    let backoff_max = duration(&fields.backoff_max, "backoff_max");
    // A number that does not fit into `u16` becomes 0 or `u16::MAX`, so that it remains outside the limits.
    let attempts_max = fields.attempts_max.map(|number| u16::try_from(number.max(0)).unwrap_or(u16::MAX));
    RetryPolicy {
        attempts_max: attempts_max.unwrap_or(default.attempts_max),
        // If the body contains only `backoff`, `backoff_max` gets its default value, but at least `backoff`. If the
        // body contains only `backoff_max`, `backoff` gets its default value, but at most `backoff_max`.
        backoff: backoff.unwrap_or(default.backoff.min(backoff_max.unwrap_or(default.backoff))),
        backoff_max: backoff_max.unwrap_or(default.backoff_max.max(backoff.unwrap_or_default())),
    }
}

/// Checks the target against the tenant's egress policy. If a URL contains a host name, each attempt resolves the name and
/// checks its addresses.
fn check_egress(target: &Target, egress: &Egress, errors: &mut Errors<'_>) {
    let (kind, field, checked) = match target {
        Target::Http(http) => ("http", "url", http.url.parse().map_or(Ok(()), |url| egress.check_url(&url))),
        Target::Bus(bus) => ("bus", "topic", egress.check_topic(&bus.topic)),
    };
    let mut errors = errors.at("target");
    let mut errors = errors.at(kind);
    let mut errors = errors.at(field);
    // If the URL or the topic is missing or invalid, another check has reported it.
    if let Err(rejection) = checked
        && !errors.has_error_here()
    {
        note_with_hint(&mut errors, EGRESS_REJECTED, &rejection.to_string());
    }
}

fn note_violation(violation: &Violation, target: &Target, errors: &mut Errors<'_>) {
    let code = violation_code(violation);
    let text = violation.to_string();
    let mut note_at = |path: &[&str]| match *path {
        [a] => note_with_hint(&mut errors.at(a), code, &text),
        [a, b] => note_with_hint(&mut errors.at(a).at(b), code, &text),
        [a, b, c] => note_with_hint(&mut errors.at(a).at(b).at(c), code, &text),
        [a, b, c, d] => note_with_hint(&mut errors.at(a).at(b).at(c).at(d), code, &text),
        _ => unreachable!("the path of a field has one to four names"),
    };
    let kind = kind_name(target);
    match violation.field() {
        Field::At => note_at(&["at"]),
        Field::Cron => note_at(&["cron"]),
        Field::Every => note_at(&["every"]),
        Field::Payload => note_at(&["payload"]),
        Field::Target => note_at(&["target", kind]),
        Field::Url => note_at(&["target", kind, "url"]),
        Field::Method => note_at(&["target", kind, "method"]),
        Field::Topic => note_at(&["target", kind, "topic"]),
        Field::Key => note_at(&["target", kind, "key"]),
        Field::CloudEventType => note_at(&["target", kind, "cloud_event", "type"]),
        Field::CloudEventSource => note_at(&["target", kind, "cloud_event", "source"]),
        Field::Headers => note_at(&["target", kind, "headers"]),
        Field::Header(name) => note_at(&["target", kind, "headers", &name]),
        Field::Timeout => note_at(&["target", kind, "timeout"]),
        Field::Labels => note_at(&["labels"]),
        Field::Label(name) => note_at(&["labels", &name]),
        Field::AttemptsMax => note_at(&["retry", "attempts_max"]),
        Field::Backoff => note_at(&["retry", "backoff"]),
        Field::BackoffMax => note_at(&["retry", "backoff_max"]),
    }
}

fn violation_code(violation: &Violation) -> &'static str {
    match violation {
        Violation::AtPast { .. } => "time_in_past",
        Violation::AtFar { .. } => "time_too_far",
        Violation::CronOften { .. } | Violation::EveryShort { .. } => "too_frequent",
        Violation::EveryLong { .. } => "interval_too_long",
        Violation::Payload { .. } => "payload_too_large",
        Violation::Url(_) => "invalid_url",
        Violation::BusNotConfigured => "bus_not_configured",
        Violation::Topic(_) => "invalid_topic",
        Violation::KeyBytes { .. } => "too_long",
        Violation::CloudEventType | Violation::CloudEventSource => "invalid_cloud_event",
        Violation::Method(_) | Violation::MethodCase(_) => "invalid_method",
        Violation::HeaderCount { .. } | Violation::LabelCount { .. } => "too_many",
        Violation::HeaderBytes { .. } | Violation::LabelBytes { .. } => "too_long",
        Violation::HeaderName { .. } | Violation::HeaderValue { .. } => "invalid_header",
        Violation::HeaderRedacted { .. } => "redacted_header",
        Violation::HeaderReserved { .. } => "reserved_header",
        Violation::LabelText { .. } => "invalid_label",
        Violation::Timeout { .. }
        | Violation::BusTimeout { .. }
        | Violation::AttemptsMax { .. }
        | Violation::BackoffMax { .. }
        | Violation::Backoff { .. } => "out_of_range",
    }
}

/// Records a violation of the field at the current location of `errors`.
fn note_text_of(violation: &Violation, errors: &mut Errors<'_>) {
    note_with_hint(errors, violation_code(violation), &violation.to_string());
}

/// Records an error text of the crate `domain`. The part after the last semicolon is the hint.
fn note_with_hint(errors: &mut Errors<'_>, code: &'static str, text: &str) {
    match text.rsplit_once("; ") {
        Some((detail, hint)) => note(errors, code, detail, Some(hint)),
        None => note(errors, code, text, None),
    }
}

fn note(errors: &mut Errors<'_>, code: &'static str, detail: &str, hint: Option<&str>) {
    errors.note(FieldError {
        code: Cow::Borrowed(code),
        detail: detail.to_owned(),
        hint: hint.map(str::to_owned),
        ..FieldError::default()
    });
}
