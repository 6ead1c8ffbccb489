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
    /// Instant in RFC 3339 with any offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Cron expression of five fields, or of six fields that start with seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Interval as a duration: `30s`, `1h30m`, `PT30S`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// IANA zone of `cron`. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    pub target: TargetRequest,
    /// Any JSON value. The callback's body has exactly the same bytes.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "payload_or_null")]
    pub payload: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
}

/// Keeps a payload of `null`, which differs from a missing payload.
fn payload_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TargetRequest {
    pub http: TargetRequestHttp,
}

/// HTTP target of a request. Its `Debug` form hides header values, because they may be credentials.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TargetRequestHttp {
    pub url: String,
    /// HTTP method. Default: `POST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// Timeout of one attempt, as a duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

impl std::fmt::Debug for TargetRequestHttp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TargetRequestHttp { url, method, headers, timeout } = self;
        let headers: Option<Vec<_>> = headers.as_ref().map(|headers| headers.keys().collect());
        let mut shown = f.debug_struct("TargetRequestHttp");
        shown.field("url", url).field("method", method).field("headers", &headers).field("timeout", timeout).finish()
    }
}

/// Retry policy of a request. Missing fields get the server's defaults.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u16>,
    /// Upper bound of the first wait, as a duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
    /// Upper bound of every wait, as a duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_max: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScheduleState {
    Active,
    /// The schedule has no further occurrence.
    Ended,
    Cancelled,
}

/// Response of POST and PUT, and of a batch line: the values that the server added to the request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduleSummary<'a> {
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    pub state: ScheduleState,
    /// Next due instant; `null` if there is none.
    pub next: Option<Time>,
    /// Number of changes to this schedule; 0 after its creation.
    pub revision: u32,
    pub created_at: Time,
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
pub struct Schedule {
    pub id: String,
    pub state: ScheduleState,
    pub next: Option<Time>,
    pub revision: u32,
    pub created_at: Time,
    pub updated_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    pub target: Target,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "payload_or_null")]
    pub payload: Option<Box<RawValue>>,
    pub labels: BTreeMap<String, String>,
    pub retry: Retry,
}

/// Response of `GET /v1/schedules:count`: numbers of the tenant's schedules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduleCount {
    /// Number of active schedules. The quota `pending_max` limits this number.
    pub active: u64,
}

/// Response of `GET /v1/schedules`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SchedulePage {
    /// Schedules of this page. A page may be short or empty although more pages follow.
    pub schedules: Vec<Schedule>,
    /// Token of the next page; `null` on the last page.
    pub next_page_token: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Http(HttpTarget),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HttpTarget {
    pub url: String,
    pub method: String,
    /// Headers. Every value is `[redacted]`, because only the target receives the real values.
    pub headers: BTreeMap<String, String>,
    pub timeout: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Retry {
    pub attempts_max: u16,
    pub backoff: String,
    pub backoff_max: String,
}

/// Response of POST, PUT and PATCH with `dry_run=true`: the server checked everything and wrote nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DryRun {
    /// Always true.
    pub dry_run: bool,
    /// Status of the same request without `dry_run`: 201 if it would create a schedule, 200 if it would change one.
    pub status: u16,
    /// Resulting schedule. A server-generated id differs from the id that the real request would get.
    pub schedule: Schedule,
    /// Next instants, at most five. The first equals `schedule.next`.
    pub upcoming: Vec<Time>,
}
