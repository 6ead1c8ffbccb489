//! Schedules: what is asked for, and what is answered.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::Time;

/// The body of `POST /v1/schedules`, of `PUT /v1/schedules/{id}`, and a line of `POST /v1/schedules:batch`.
///
/// Exactly one of `at`, `cron` and `every` is there.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleRequest {
    /// `[A-Za-z0-9_-]{1,128}`; the server makes one if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// RFC 3339, any offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Five fields, or six with seconds first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// A duration: `30s`, `1h30m`, `PT30S`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// The IANA zone of `cron`; UTC if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    pub target: TargetRequest,
    /// Any JSON; its bytes are the callback's body, exactly as they are here.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "even_null")]
    pub payload: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryRequest>,
}

/// A payload of `null` is a payload; only a missing one is none.
fn even_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TargetRequest {
    pub http: TargetRequestHttp,
}

/// Its `Debug` shows no header's value: it may be a credential.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TargetRequestHttp {
    pub url: String,
    /// `POST` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// A duration, for one attempt.
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

/// What is left out takes the server's default.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u16>,
    /// A duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
    /// A duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_max: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScheduleState {
    Active,
    /// It has no further occurrence.
    Ended,
    Cancelled,
}

/// The answer of POST and PUT, and of a batch's line: what the server added to what was sent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScheduleSummary<'a> {
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    pub state: ScheduleState,
    /// The next due instant; `null` once there is none.
    pub next: Option<Time>,
    /// Counts the changes made to this schedule, from 0.
    pub revision: u32,
    pub created_at: Time,
    pub updated_at: Time,
    /// An attempt of what a PUT replaced is in flight; no other of it will start. Left out if there is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub too_late: bool,
}

impl ScheduleSummary<'_> {
    /// Apart from the text that it was read from.
    #[must_use]
    pub fn into_owned(self) -> ScheduleSummary<'static> {
        let ScheduleSummary { id, state, next, revision, created_at, updated_at, too_late } = self;
        let id = Cow::Owned(id.into_owned());
        ScheduleSummary { id, state, next, revision, created_at, updated_at, too_late }
    }
}

/// The answer of `GET /v1/schedules/{id}`.
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
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "even_null")]
    pub payload: Option<Box<RawValue>>,
    pub labels: BTreeMap<String, String>,
    pub retry: Retry,
}

/// The answer of `GET /v1/schedules`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SchedulePage {
    /// May be fewer than were asked for, or none, and yet not all.
    pub schedules: Vec<Schedule>,
    /// Asks for the next page; `null` on the last one.
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
    /// Each value is `[redacted]`: only the target is told it.
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

/// The answer of POST, PUT and PATCH with `dry_run=true`: everything was checked, and nothing was written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DryRun {
    /// Always true.
    pub dry_run: bool,
    /// What the request would be answered in earnest: 201 if it would make a schedule, 200 if it would change one.
    pub status: u16,
    /// As it would be. An id that the server makes is another one in earnest.
    pub schedule: Schedule,
    /// Its next instants, the first of which is `schedule.next`; at most five.
    pub upcoming: Vec<Time>,
}
