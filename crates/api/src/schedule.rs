//! Schedules: requests and responses.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::Time;

/// Body of `POST /v1/schedules`, of `PUT /v1/schedules/{id}`, and of one line of `POST /v1/schedules:batch`.
///
/// Exactly one of `at`, `cron` and `every` must be present.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleRequest {
    /// Id that matches `[A-Za-z0-9_-]{1,128}`. The server generates a missing id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Due instant of a one-shot schedule, in the format of RFC 3339 with any offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Cron expression of five fields, or of six fields that start with seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Interval between two occurrences, as a duration such as `30s`, `1h30m` or `PT30S`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// IANA time zone of `cron`. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Destination of the callbacks.
    pub target: TargetRequest,
    /// Any JSON value. The callback's body consists of exactly the bytes of this value in the request.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "payload_or_null")]
    pub payload: Option<Box<RawValue>>,
    /// Labels by name; at most 16, with at most 256 bytes in each name and each value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Retry policy. Missing fields get the server's defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
}

/// Parses a payload. A payload of `null` becomes `Some`, because it differs from a missing payload.
fn payload_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// Callback destination in a request that creates or replaces a schedule. Exactly one of `http` and `bus` must be present.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TargetRequest {
    /// HTTP target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<TargetRequestHttp>,
    /// Topic of the server's message bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<TargetRequestBus>,
}

/// HTTP target in a schedule request. Its `Debug` form hides header values, because they may be credentials.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TargetRequestHttp {
    /// URL with the scheme `http` or `https` and a host, without user name or fragment; at most 2,048 bytes.
    pub url: String,
    /// HTTP method. Default: `POST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Headers of the callback by name; at most 32, with at most 8 KiB in total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// Timeout of one attempt, as a duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

impl std::fmt::Debug for TargetRequestHttp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TargetRequestHttp { url, method, headers, timeout } = self;
        let mut shown = f.debug_struct("TargetRequestHttp");
        let headers = names(headers.as_ref());
        shown.field("url", url).field("method", method).field("headers", &headers).field("timeout", timeout).finish()
    }
}

/// Returns the names of headers, whose values may be credentials.
fn names(headers: Option<&BTreeMap<String, String>>) -> Option<Vec<&String>> {
    headers.map(|headers| headers.keys().collect())
}

/// Bus target in a schedule request. Each callback is a record in the topic, with the payload as its value. Its `Debug`
/// form hides header values, because they may be credentials.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TargetRequestBus {
    /// Name of the topic: 1 to 249 letters, digits, `.`, `_` and `-`. An operator must have listed the topic for the
    /// tenant.
    pub topic: String,
    /// Key of the records; at most 1,024 bytes. Records with the same key are in the same partition. The bus selects the
    /// partition of a record without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Headers of the records by name; at most 32, with at most 8 KiB in total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// Form of the records as CloudEvents. Default: the records are not CloudEvents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_event: Option<CloudEvent>,
    /// Timeout of one attempt, as a duration of at least 1 s. Default: 10 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

impl std::fmt::Debug for TargetRequestBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TargetRequestBus { topic, key, headers, cloud_event, timeout } = self;
        let mut shown = f.debug_struct("TargetRequestBus");
        shown.field("topic", topic).field("key", key).field("headers", &names(headers.as_ref()));
        shown.field("cloud_event", cloud_event).field("timeout", timeout).finish()
    }
}

/// Form of the records of a bus target as CloudEvents 1.0. The `id` of an event is the run's id, its `time` is the run's due
/// instant, and its `subject` is the schedule's id.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CloudEvent {
    /// Content mode of the events.
    pub mode: CloudEventMode,
    /// Attribute `type` of the events: 1 to 256 visible ASCII characters. Default: `reveille.callback`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Attribute `source` of the events: 1 to 256 visible ASCII characters. Default: the schedule's path in the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Content mode of a CloudEvent in a record (CloudEvents 1.0, Kafka protocol binding).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CloudEventMode {
    /// The attributes are headers of the record, and the payload is its value.
    Binary,
    /// The value of the record is a JSON object that contains the attributes and the payload.
    Structured,
}

/// Retry policy in a schedule request. Missing fields get the server's defaults.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// Number of attempts, including the first: 1 to 20. Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u16>,
    /// Upper bound of the wait before the first retry, as a duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
    /// Upper bound of the wait before each retry, as a duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_max: Option<String>,
}

/// State of a schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ScheduleState {
    /// The schedule has a further occurrence.
    Active,
    /// The schedule has no further occurrence.
    Ended,
    /// A client cancelled the schedule. Clients can read it until a request creates another schedule with its id.
    Cancelled,
}

/// Response to the POST, PUT or PATCH of a schedule, and to one line of a batch: the values that the server adds to
/// the request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct ScheduleSummary<'a> {
    /// Id of the schedule.
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    /// State of the schedule.
    pub state: ScheduleState,
    /// Next due instant; `null` if there is none.
    pub next: Option<Time>,
    /// Number of changes to this schedule; 0 after its creation.
    pub revision: u32,
    /// Instant of the schedule's creation. Later changes of the schedule do not change this instant.
    pub created_at: Time,
    /// Instant of the last request that created, replaced or patched the schedule. Its cancellation and its end do not
    /// change this instant.
    pub updated_at: Time,
    /// True if an attempt of the replaced schedule is in flight. No other attempt of the replaced schedule will start.
    /// The field is absent if it is false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub too_late: bool,
}

impl ScheduleSummary<'_> {
    /// Copies the borrowed text, so that the summary outlives the text that it was parsed from.
    #[must_use]
    pub fn into_owned(self) -> ScheduleSummary<'static> {
        let ScheduleSummary { id, state, next, revision, created_at, updated_at, too_late } = self;
        let id = Cow::Owned(id.into_owned());
        ScheduleSummary { id, state, next, revision, created_at, updated_at, too_late }
    }
}

/// Response of `GET /v1/schedules/{id}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Schedule {
    /// Id of the schedule.
    pub id: String,
    /// State of the schedule.
    pub state: ScheduleState,
    /// Next due instant; `null` if there is none.
    pub next: Option<Time>,
    /// Number of changes to this schedule; 0 after its creation.
    pub revision: u32,
    /// Instant of the schedule's creation. Later changes of the schedule do not change this instant.
    pub created_at: Time,
    /// Instant of the last request that created, replaced or patched the schedule. Its cancellation and its end do not
    /// change this instant.
    pub updated_at: Time,
    /// Due instant of a one-shot schedule; absent for other schedules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Cron expression of five fields, or of six fields that start with seconds; absent for schedules without a cron
    /// expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Interval as a duration such as `1h30m`; absent for schedules without an interval. The intervals count from the
    /// last request that set the timing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// IANA time zone of `cron`; absent for schedules without `cron`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Destination of the callbacks.
    pub target: Target,
    /// Body of the callback, byte for byte; absent if the schedule has no payload.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "payload_or_null")]
    pub payload: Option<Box<RawValue>>,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// Retry policy.
    pub retry: Retry,
}

/// Response of `GET /v1/schedules:count`: counts of the tenant's schedules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct ScheduleCount {
    /// Number of active schedules. The quota `pending_max` limits this number.
    pub active: u64,
    /// Number of ended schedules that the service still retains.
    #[serde(default)]
    pub ended: u64,
    /// Number of cancelled schedules that the service still retains.
    #[serde(default)]
    pub cancelled: u64,
}

/// Response of `GET /v1/schedules`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct SchedulePage {
    /// Schedules of this page. A page may be short or empty although more pages follow.
    pub schedules: Vec<Schedule>,
    /// Token of the next page; `null` on the last page.
    pub next_page_token: Option<String>,
}

/// Destination of a schedule's callbacks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Target {
    /// HTTP request.
    Http(HttpTarget),
    /// Record in a topic of the server's message bus.
    Bus(BusTarget),
}

impl Target {
    /// Returns the HTTP target, or `None` for a target of another kind.
    #[must_use]
    pub fn http(&self) -> Option<&HttpTarget> {
        match self {
            Target::Http(http) => Some(http),
            Target::Bus(_) => None,
        }
    }

    /// Returns the bus target, or `None` for a target of another kind.
    #[must_use]
    pub fn bus(&self) -> Option<&BusTarget> {
        match self {
            Target::Bus(bus) => Some(bus),
            Target::Http(_) => None,
        }
    }
}

/// HTTP target of a stored schedule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct HttpTarget {
    /// URL of the callback.
    pub url: String,
    /// HTTP method of the callback.
    pub method: String,
    /// Headers of the callback. Every value is `[redacted]`, because only the target receives the real values.
    pub headers: BTreeMap<String, String>,
    /// Timeout of one attempt, from connecting to the end of the response, as a duration such as `10s`.
    pub timeout: String,
}

/// Bus target of a stored schedule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct BusTarget {
    /// Name of the topic.
    pub topic: String,
    /// Key of the records; absent for records without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Headers of the records. Every value is `[redacted]`, because only the target receives the real values.
    pub headers: BTreeMap<String, String>,
    /// Form of the records as CloudEvents; absent for records that are not CloudEvents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_event: Option<CloudEvent>,
    /// Timeout of one attempt, from its start until all in-sync replicas have stored the record, as a duration such as
    /// `10s`.
    pub timeout: String,
}

/// Retry policy of a stored schedule. Each wait before a retry is uniformly random below its upper bound.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct Retry {
    /// Number of attempts, including the first.
    pub attempts_max: u16,
    /// Upper bound of the wait before the first retry, as a duration such as `1s`. The bound doubles for each further
    /// retry.
    pub backoff: String,
    /// Upper bound of the wait before each retry, as a duration such as `10m`.
    pub backoff_max: String,
}

/// Response of POST, PUT and PATCH with `dry_run=true`: the server checked the request and wrote nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(not(feature = "construct"), non_exhaustive)]
pub struct DryRun {
    /// Always true.
    pub dry_run: bool,
    /// Status of the same request without `dry_run`: 201 if it would create a schedule, 200 if it would change one.
    pub status: u16,
    /// Schedule as the same request would store it without `dry_run`. A server-generated id differs from the id that
    /// this request would get.
    pub schedule: Schedule,
    /// Next due instants of the schedule, at most five. The first instant equals `schedule.next`.
    pub upcoming: Vec<Time>,
}
