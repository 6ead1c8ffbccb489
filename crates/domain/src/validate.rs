//! Validation of a schedule. It finds all violations at once and reports the field of each violation.
//!
//! The server validates a schedule before it stores anything. If the text of a cron expression, a duration or an
//! instant is malformed, the parser of this text returns an error, and the server creates no [`Spec`].
//!
//! Invariant: if a spec has no violations, the server can send requests to its target without changes to the URL, the
//! method or the headers. No header of the target can start another header line, change the framing of the message, or
//! imitate a header of Reveille.
//!
//! docs/decisions/0052-validate-targets-with-http-types.md gives the reasons for the design.

use std::fmt;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Uri};

use crate::limits::Limits;
use crate::{
    BusTarget, CloudEvent, CloudEventMode, HttpTarget, RetryPolicy, Secret, Spec, Target, Timestamp, When, duration,
    topic,
};

/// Returns all violations of `spec`, in the order of the fields. If the list is empty, the caller may store `spec`.
#[must_use]
pub fn violations(spec: &Spec, limits: &Limits, now: Timestamp) -> Vec<Violation> {
    let mut found = Vec::new();
    check_when(&spec.when, limits, now, &mut found);
    match &spec.target {
        Target::Http(http) => check_http(http, limits, &mut found),
        Target::Bus(bus) => check_bus(bus, limits, &mut found),
    }
    if spec.payload.len() > limits.payload_bytes_max {
        found.push(Violation::Payload { bytes: spec.payload.len(), bytes_max: limits.payload_bytes_max });
    }
    check_labels(spec, limits, &mut found);
    check_retry(spec.retry, limits, &mut found);
    found
}

/// Returns true for headers that Reveille sets itself and for headers that belong to one connection (RFC 9110, section
/// 7.6.1). `name` must be in lower case.
#[must_use]
pub fn is_header_reserved(name: &str) -> bool {
    const NAMES: [&str; 15] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "traceparent",
        "tracestate",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    NAMES.contains(&name) || name.starts_with("webhook-") || name.starts_with("reveille-")
}

/// Returns true for headers that Reveille sets itself in the records of a bus. In a structured CloudEvent, `content-type`
/// is one of them. `name` must be in lower case.
#[must_use]
pub fn is_record_header_reserved(name: &str, cloud_event: Option<&CloudEvent>) -> bool {
    let is_structured = cloud_event.is_some_and(|event| event.mode == CloudEventMode::Structured);
    let prefixes = ["webhook-", "reveille-", "ce_"];
    ["traceparent", "tracestate"].contains(&name)
        || prefixes.iter().any(|prefix| name.starts_with(prefix))
        || (name == "content-type" && is_structured)
}

fn check_when(when: &When, limits: &Limits, now: Timestamp, found: &mut Vec<Violation>) {
    match when {
        When::At(at) if now.since(*at) > limits.past_max => {
            found.push(Violation::AtPast { at: *at, now, past_max: limits.past_max });
        }
        When::At(at) if at.since(now) > limits.horizon || *at > Timestamp::MAX => {
            found.push(Violation::AtFar { at: *at, now, horizon: limits.horizon });
        }
        When::At(_) => {}
        When::Cron(cron) => {
            let distance = Duration::from_secs(cron.distance_min_secs().into());
            if distance < limits.interval_min {
                found.push(Violation::CronOften { distance, interval_min: limits.interval_min });
            }
        }
        When::Every { interval, .. } => {
            if *interval < limits.interval_min.max(RESOLUTION) {
                found.push(Violation::EveryShort {
                    interval: *interval,
                    interval_min: limits.interval_min.max(RESOLUTION),
                });
            }
            if *interval > limits.horizon {
                found.push(Violation::EveryLong { interval: *interval, horizon: limits.horizon });
            }
        }
    }
}

/// Resolution of all instants and durations.
const RESOLUTION: Duration = Duration::from_millis(1);

fn check_http(http: &HttpTarget, limits: &Limits, found: &mut Vec<Violation>) {
    if let Err(problem) = check_url(&http.url, limits.url_bytes_max) {
        found.push(Violation::Url(problem));
    }
    if let Some(method) = method_in_lower_case(&http.method) {
        found.push(Violation::MethodCase(method));
    } else if !is_method_usable(&http.method) {
        found.push(Violation::Method(shortened(&http.method)));
    }
    check_headers(&http.headers, limits, is_header_reserved, found);
    if http.timeout < RESOLUTION || http.timeout > limits.timeout_max {
        found.push(Violation::Timeout { timeout: http.timeout, timeout_max: limits.timeout_max });
    }
}

/// Shortest timeout of a bus target. A bus acknowledges a record after several servers have stored it.
pub const BUS_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Largest size of the key of a bus target, in bytes.
pub const BUS_KEY_BYTES_MAX: usize = 1_024;

/// Largest size of an attribute of a CloudEvent, in bytes.
pub const ATTRIBUTE_BYTES_MAX: usize = 256;

fn check_bus(bus: &BusTarget, limits: &Limits, found: &mut Vec<Violation>) {
    if !limits.has_bus {
        found.push(Violation::BusNotConfigured);
    }
    if !topic::is_name(&bus.topic) {
        found.push(Violation::Topic(shortened(&bus.topic)));
    }
    if let Some(key) = bus.key.as_ref().filter(|key| key.len() > BUS_KEY_BYTES_MAX) {
        found.push(Violation::KeyBytes { bytes: key.len() });
    }
    if let Some(CloudEvent { mode: _, kind, source }) = &bus.cloud_event {
        let is_attribute = |text: &str| {
            (1..=ATTRIBUTE_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if !is_attribute(kind) {
            found.push(Violation::CloudEventType);
        }
        if !source.as_deref().is_none_or(is_attribute) {
            found.push(Violation::CloudEventSource);
        }
    }
    let is_reserved = |name: &str| is_record_header_reserved(name, bus.cloud_event.as_ref());
    check_headers(&bus.headers, limits, is_reserved, found);
    if bus.timeout < BUS_TIMEOUT_MIN || bus.timeout > limits.timeout_max {
        found.push(Violation::BusTimeout { timeout: bus.timeout, timeout_max: limits.timeout_max });
    }
}

fn check_headers(
    headers: &[(String, Secret)],
    limits: &Limits,
    is_reserved: impl Fn(&str) -> bool,
    found: &mut Vec<Violation>,
) {
    let bytes = headers.iter().map(|(name, value)| name.len() + value.plain_len()).sum();
    if headers.len() > limits.headers_max {
        found.push(Violation::HeaderCount { count: headers.len(), count_max: limits.headers_max });
    } else if bytes > limits.header_bytes_max {
        found.push(Violation::HeaderBytes { bytes, bytes_max: limits.header_bytes_max });
    } else {
        found.extend(headers.iter().filter_map(|(name, value)| header_violation(name, value, &is_reserved)));
    }
}

fn check_url(url: &str, bytes_max: usize) -> Result<(), UrlProblem> {
    if url.len() > bytes_max {
        return Err(UrlProblem::Long { bytes: url.len(), bytes_max });
    }
    if let Some((at, found)) = url.char_indices().find(|(_, c)| !c.is_ascii_graphic()) {
        return Err(UrlProblem::Character { at, found });
    }
    if url.contains('#') {
        return Err(UrlProblem::Fragment);
    }
    let uri: Uri = url.parse().map_err(|_| UrlProblem::Syntax)?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(UrlProblem::Scheme);
    }
    let authority = uri.authority().ok_or(UrlProblem::Host)?;
    if authority.as_str().contains('@') {
        return Err(UrlProblem::UserInfo);
    }
    let host = authority.host();
    let port = authority.as_str().get(host.len()..).unwrap_or_default();
    let is_name = |host: &str| host.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c));
    let is_address = |host: &str| {
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
    };
    if host.is_empty() || !(is_name(host) || is_address(host)) {
        return Err(UrlProblem::Host);
    }
    if !port.is_empty() && authority.port_u16().is_none_or(|port| port == 0) {
        return Err(UrlProblem::Port);
    }
    Ok(())
}

/// Returns false for a method that is malformed or too long, and for `CONNECT` and `TRACE`, which cannot carry a
/// callback. `CONNECT` opens a tunnel, and `TRACE` must not have a body.
fn is_method_usable(method: &str) -> bool {
    const METHOD_BYTES_MAX: usize = 32;
    let parsed = Method::from_bytes(method.as_bytes());
    let is_forbidden = |method: &Method| *method == Method::CONNECT || *method == Method::TRACE;
    method.len() <= METHOD_BYTES_MAX && parsed.is_ok_and(|method| !is_forbidden(&method))
}

/// Returns the standard method that differs from `method` only in the case of its letters. Methods are case-sensitive
/// (RFC 9110, section 9.1), so a server would reject each attempt with `method`.
fn method_in_lower_case(method: &str) -> Option<Method> {
    const STANDARD: [Method; 7] =
        [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];
    STANDARD.into_iter().find(|known| known.as_str() != method && known.as_str().eq_ignore_ascii_case(method))
}

fn header_violation(name: &str, value: &Secret, is_reserved: impl Fn(&str) -> bool) -> Option<Violation> {
    let lower = name.to_ascii_lowercase();
    if HeaderName::from_bytes(lower.as_bytes()).is_err() {
        return Some(Violation::HeaderName { name: name.to_owned() });
    }
    if is_reserved(&lower) {
        return Some(Violation::HeaderReserved { name: name.to_owned() });
    }
    // Reveille validates a header value before it encrypts the value, so an encrypted value needs no check.
    let value = value.plain()?;
    if value == Secret::REDACTED {
        return Some(Violation::HeaderRedacted { name: name.to_owned() });
    }
    // The check allows only visible ASCII, spaces and tabs, because all receivers interpret these characters in the
    // same way.
    let is_good = value.is_ascii() && HeaderValue::from_bytes(value).is_ok();
    (!is_good).then(|| Violation::HeaderValue { name: name.to_owned() })
}

fn check_labels(spec: &Spec, limits: &Limits, found: &mut Vec<Violation>) {
    if spec.labels.len() > limits.labels_max {
        found.push(Violation::LabelCount { count: spec.labels.len(), count_max: limits.labels_max });
        return;
    }
    for (name, value) in &spec.labels {
        if name.is_empty() || name.chars().chain(value.chars()).any(char::is_control) {
            found.push(Violation::LabelText { name: shortened(name) });
        } else if name.len().max(value.len()) > limits.label_bytes_max {
            let bytes = name.len().max(value.len());
            found.push(Violation::LabelBytes { name: shortened(name), bytes, bytes_max: limits.label_bytes_max });
        }
    }
}

fn check_retry(retry: RetryPolicy, limits: &Limits, found: &mut Vec<Violation>) {
    if !(1..=limits.attempts_max).contains(&retry.attempts_max) {
        found.push(Violation::AttemptsMax { requested: retry.attempts_max, limit: limits.attempts_max });
    }
    if retry.backoff_max < RESOLUTION || retry.backoff_max > limits.backoff_max {
        found.push(Violation::BackoffMax { requested: retry.backoff_max, limit: limits.backoff_max });
    }
    if retry.backoff > retry.backoff_max {
        found.push(Violation::Backoff { requested: retry.backoff, backoff_max: retry.backoff_max });
    }
}

/// Shortens a text that may be very long, but leaves enough of the text for a user to recognize it.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Field of a schedule in the body of a user's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Field {
    At,
    Cron,
    Every,
    Payload,
    /// Target as a whole.
    Target,
    Url,
    Method,
    Topic,
    /// Key of the record of a bus target.
    Key,
    CloudEventType,
    CloudEventSource,
    Headers,
    /// Header, with the name that the user sent.
    Header(String),
    Timeout,
    Labels,
    /// Label, with the first 64 characters of its name.
    Label(String),
    AttemptsMax,
    Backoff,
    BackoffMax,
}

/// Violation of a validation rule. Its error text states the fault. If the text contains a remedy, the remedy follows
/// the last semicolon.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    #[error("{at} is too far in the past (server time: {now}); the maximum age is {}", text(past_max))]
    AtPast { at: Timestamp, now: Timestamp, past_max: Duration },
    #[error("{at} is too far in the future (server time: {now}); the maximum delay is {}", text(horizon))]
    AtFar { at: Timestamp, now: Timestamp, horizon: Duration },
    #[error(
        "the shortest interval of the cron expression is {}; the minimum is {}",
        text(distance),
        text(interval_min)
    )]
    CronOften { distance: Duration, interval_min: Duration },
    #[error("interval {} is too short; the minimum is {}", text(interval), text(interval_min))]
    EveryShort { interval: Duration, interval_min: Duration },
    #[error("interval {} is too long; the maximum is {}", text(interval), text(horizon))]
    EveryLong { interval: Duration, horizon: Duration },
    #[error("payload has {bytes} bytes, more than the limit of {bytes_max}; send a reference to larger data")]
    Payload { bytes: usize, bytes_max: usize },
    #[error(transparent)]
    Url(UrlProblem),
    #[error("method {0:?} cannot be used; use POST, PUT, PATCH, GET or DELETE")]
    Method(String),
    #[error("methods are case-sensitive; write {0}")]
    MethodCase(Method),
    #[error("this server has no message bus; use an HTTP target, or ask an operator to start the server with --bus")]
    BusNotConfigured,
    #[error("{0:?} is not the name of a topic; use 1 to 249 letters, digits, `.`, `_` and `-`")]
    Topic(String),
    #[error("key has {bytes} bytes, more than the limit of {BUS_KEY_BYTES_MAX}; use a shorter key")]
    KeyBytes { bytes: usize },
    #[error("the type of a CloudEvent must have 1 to {ATTRIBUTE_BYTES_MAX} visible ASCII characters")]
    CloudEventType,
    #[error(
        "the source of a CloudEvent must be a URI reference of 1 to {ATTRIBUTE_BYTES_MAX} visible ASCII characters"
    )]
    CloudEventSource,
    #[error(
        "timeout is {}, but must be at least {} and at most {}",
        text(timeout),
        text(&BUS_TIMEOUT_MIN),
        text(timeout_max)
    )]
    BusTimeout { timeout: Duration, timeout_max: Duration },
    #[error("target has {count} headers, more than the limit of {count_max}")]
    HeaderCount { count: usize, count_max: usize },
    #[error("headers have {bytes} bytes in total, more than the limit of {bytes_max}")]
    HeaderBytes { bytes: usize, bytes_max: usize },
    #[error("invalid header name: only letters, digits and !#$%&'*+-.^_`|~ are allowed")]
    HeaderName { name: String },
    #[error("Reveille or the connection sets this header; leave it out")]
    HeaderReserved { name: String },
    #[error("invalid header value: only visible ASCII characters, spaces and tabs on one line are allowed")]
    HeaderValue { name: String },
    #[error("this is the placeholder that responses show for a secret header value; send the value itself")]
    HeaderRedacted { name: String },
    #[error("timeout is {}, but must be at least 1ms and at most {}", text(timeout), text(timeout_max))]
    Timeout { timeout: Duration, timeout_max: Duration },
    #[error("schedule has {count} labels, more than the limit of {count_max}")]
    LabelCount { count: usize, count_max: usize },
    #[error("a label needs a name, and its name and value must not contain control characters")]
    LabelText { name: String },
    #[error("label name or value has {bytes} bytes, more than the limit of {bytes_max}")]
    LabelBytes { name: String, bytes: usize, bytes_max: usize },
    #[error("attempts_max is {requested}, but must be from 1 to {limit}")]
    AttemptsMax { requested: u16, limit: u16 },
    #[error("backoff_max is {}, but must be at least 1ms and at most {}", text(requested), text(limit))]
    BackoffMax { requested: Duration, limit: Duration },
    #[error("backoff is {}, but must be at most backoff_max ({})", text(requested), text(backoff_max))]
    Backoff { requested: Duration, backoff_max: Duration },
}

impl Violation {
    #[must_use]
    pub fn field(&self) -> Field {
        match self {
            Violation::AtPast { .. } | Violation::AtFar { .. } => Field::At,
            Violation::CronOften { .. } => Field::Cron,
            Violation::EveryShort { .. } | Violation::EveryLong { .. } => Field::Every,
            Violation::Payload { .. } => Field::Payload,
            Violation::Url(_) => Field::Url,
            Violation::Method(_) | Violation::MethodCase(_) => Field::Method,
            Violation::HeaderCount { .. } | Violation::HeaderBytes { .. } => Field::Headers,
            Violation::HeaderName { name }
            | Violation::HeaderReserved { name }
            | Violation::HeaderValue { name }
            | Violation::HeaderRedacted { name } => Field::Header(name.clone()),
            Violation::Timeout { .. } | Violation::BusTimeout { .. } => Field::Timeout,
            Violation::BusNotConfigured => Field::Target,
            Violation::Topic(_) => Field::Topic,
            Violation::KeyBytes { .. } => Field::Key,
            Violation::CloudEventType => Field::CloudEventType,
            Violation::CloudEventSource => Field::CloudEventSource,
            Violation::LabelCount { .. } => Field::Labels,
            Violation::LabelText { name } | Violation::LabelBytes { name, .. } => Field::Label(name.clone()),
            Violation::AttemptsMax { .. } => Field::AttemptsMax,
            Violation::BackoffMax { .. } => Field::BackoffMax,
            Violation::Backoff { .. } => Field::Backoff,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UrlProblem {
    #[error("URL has {bytes} bytes, more than the limit of {bytes_max} bytes; shorten the URL")]
    Long { bytes: usize, bytes_max: usize },
    #[error("URL contains {found:?} at byte {at}, but may contain only visible ASCII characters; percent-encode it")]
    Character { at: usize, found: char },
    #[error("URL has a fragment, which is never sent; leave out # and the text after it")]
    Fragment,
    #[error("this is not an absolute URL; write a URL such as https://example.org/hook")]
    Syntax,
    #[error("URL must start with http:// or https://")]
    Scheme,
    #[error("URL has no valid host; use a DNS name, an IPv4 address, or an IPv6 address in brackets")]
    Host,
    #[error("URL contains a user name, which logs would show; send an Authorization header instead")]
    UserInfo,
    #[error("URL port must be a number from 1 to 65535")]
    Port,
}

fn text(duration: &Duration) -> impl fmt::Display + use<> {
    duration::format(*duration)
}

#[cfg(test)]
mod tests;
