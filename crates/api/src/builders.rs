//! Builder methods for requests.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::value::to_raw_value;

use crate::{
    Egress, RetryRequest, ScheduleRequest, TargetRequest, TargetRequestBus, TargetRequestHttp, TenantRequest, Time,
};

impl ScheduleRequest {
    /// Creates a request for a schedule that fires once at `instant`: a [`Time`], or RFC 3339 text with an offset.
    #[must_use]
    pub fn at(instant: impl ToString, url: impl Into<String>) -> Self {
        ScheduleRequest { at: Some(instant.to_string()), ..ScheduleRequest::to(url) }
    }

    /// Creates a request for a schedule with a cron expression of five fields, or of six fields that start with
    /// seconds. The zone is UTC, unless [`ScheduleRequest::zone`] sets another zone.
    #[must_use]
    pub fn cron(expression: impl Into<String>, url: impl Into<String>) -> Self {
        ScheduleRequest { cron: Some(expression.into()), ..ScheduleRequest::to(url) }
    }

    /// Creates a request for a schedule that fires once per `interval`. Rounds `interval` up to whole milliseconds.
    #[must_use]
    pub fn every(interval: Duration, url: impl Into<String>) -> Self {
        ScheduleRequest { every: Some(text(interval)), ..ScheduleRequest::to(url) }
    }

    fn to(url: impl Into<String>) -> Self {
        let http = Some(TargetRequestHttp { url: url.into(), ..TargetRequestHttp::default() });
        ScheduleRequest { target: TargetRequest { http, bus: None }, ..ScheduleRequest::default() }
    }

    /// Replaces the target with a topic of the server's message bus. The methods [`ScheduleRequest::header`] and
    /// [`ScheduleRequest::timeout`] then change the new target.
    #[must_use]
    pub fn to_topic(self, topic: impl Into<String>) -> Self {
        let bus = Some(TargetRequestBus { topic: topic.into(), ..TargetRequestBus::default() });
        ScheduleRequest { target: TargetRequest { http: None, bus }, ..self }
    }

    /// Sets the schedule's id, which must match `[A-Za-z0-9_-]{1,128}`. The server generates a missing id.
    #[must_use]
    pub fn id(self, id: impl Into<String>) -> Self {
        ScheduleRequest { id: Some(id.into()), ..self }
    }

    /// Sets the IANA zone of the cron expression.
    #[must_use]
    pub fn zone(self, zone: impl Into<String>) -> Self {
        ScheduleRequest { zone: Some(zone.into()), ..self }
    }

    /// Sets the body of the callback: `payload` as JSON.
    ///
    /// # Errors
    /// Returns an error if `payload` cannot be written as JSON, for example because a map has keys that are not text.
    pub fn payload(self, payload: &(impl Serialize + ?Sized)) -> serde_json::Result<Self> {
        Ok(ScheduleRequest { payload: Some(to_raw_value(payload)?), ..self })
    }

    /// Adds a label, or replaces the label with this name.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.get_or_insert_with(BTreeMap::new).insert(name.into(), value.into());
        self
    }

    /// Sets a header of the callback or, for a topic, of the record.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let headers = match &mut self.target {
            TargetRequest { bus: Some(bus), .. } => &mut bus.headers,
            TargetRequest { http, .. } => &mut http.get_or_insert_default().headers,
        };
        headers.get_or_insert_with(BTreeMap::new).insert(name.into(), value.into());
        self
    }

    /// Sets the timeout of one attempt. Rounds the timeout up to whole milliseconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        let field = match &mut self.target {
            TargetRequest { bus: Some(bus), .. } => &mut bus.timeout,
            TargetRequest { http, .. } => &mut http.get_or_insert_default().timeout,
        };
        *field = Some(text(timeout));
        self
    }

    /// Sets the total number of attempts, and the upper bound of the wait after the first attempt. The bound doubles
    /// after each further attempt.
    #[must_use]
    pub fn retry(self, attempts_max: u16, backoff: Duration) -> Self {
        let (attempts_max, backoff) = (Some(attempts_max), Some(text(backoff)));
        ScheduleRequest { retry: Some(RetryRequest { attempts_max, backoff, backoff_max: None }), ..self }
    }
}

/// Returns the duration in the text form of the API, rounded up to whole milliseconds.
pub(crate) fn text(duration: Duration) -> String {
    format!("{}ms", duration.as_nanos().div_ceil(1_000_000))
}

impl TenantRequest {
    /// Creates a request for a tenant with the service's default settings.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        TenantRequest {
            name: name.into(),
            quotas: BTreeMap::new(),
            ceilings: BTreeMap::new(),
            egress: Egress::default(),
        }
    }
}

impl From<SystemTime> for Time {
    /// Rounds the instant up to a whole millisecond, so that no callback is early. An instant before 1970 becomes
    /// 1970-01-01.
    fn from(instant: SystemTime) -> Self {
        let since = instant.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Time(i64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX))
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;

    fn add(self, rhs: Duration) -> Time {
        Time(self.0.saturating_add(i64::try_from(rhs.as_millis()).unwrap_or(i64::MAX)))
    }
}
