//! What a schedule is to be changed in.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The body of `PATCH /v1/schedules/{id}`, an RFC 7396 merge patch of a [`ScheduleRequest`](crate::ScheduleRequest): what it
/// names is set, within objects name by name; `null` takes away; all else stays.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SchedulePatch(pub Map<String, Value>);

/// What it names at the top: headers may be credentials.
impl fmt::Debug for SchedulePatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl SchedulePatch {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        SchedulePatch::default()
    }

    /// Once, at an instant: a [`Time`](crate::Time), or RFC 3339 text with an offset. What the schedule had of `cron` or `every`
    /// goes.
    #[must_use]
    pub fn at(self, instant: impl ToString) -> Self {
        self.set(&["at"], instant.to_string())
    }

    /// By a cron expression, in the zone that is set, or that there was, or UTC.
    #[must_use]
    pub fn cron(self, expression: impl Into<String>) -> Self {
        self.set(&["cron"], expression.into())
    }

    /// Every so often, counted from now.
    #[must_use]
    pub fn every(self, duration: impl Into<String>) -> Self {
        self.set(&["every"], duration.into())
    }

    #[must_use]
    pub fn zone(self, zone: impl Into<String>) -> Self {
        self.set(&["zone"], zone.into())
    }

    #[must_use]
    pub fn url(self, url: impl Into<String>) -> Self {
        self.set(&["target", "http", "url"], url.into())
    }

    #[must_use]
    pub fn method(self, method: impl Into<String>) -> Self {
        self.set(&["target", "http", "method"], method.into())
    }

    /// For one attempt: a duration.
    #[must_use]
    pub fn timeout(self, timeout: impl Into<String>) -> Self {
        self.set(&["target", "http", "timeout"], timeout.into())
    }

    /// Merged into the payload there is, if both are objects; else in its place. (A PUT has the payload as it is.)
    ///
    /// # Errors
    /// If it cannot be written as JSON, as a map whose keys are no text.
    pub fn payload(self, payload: &(impl Serialize + ?Sized)) -> serde_json::Result<Self> {
        let payload = serde_json::to_value(payload)?;
        Ok(self.set(&["payload"], payload))
    }

    /// The callback's body is of no bytes.
    #[must_use]
    pub fn without_payload(self) -> Self {
        self.set(&["payload"], Value::Null)
    }

    #[must_use]
    pub fn label(self, name: &str, value: impl Into<String>) -> Self {
        self.set(&["labels", name], value.into())
    }

    #[must_use]
    pub fn without_label(self, name: &str) -> Self {
        self.set(&["labels", name], Value::Null)
    }

    /// A header of the callback.
    #[must_use]
    pub fn header(self, name: &str, value: impl Into<String>) -> Self {
        self.set(&["target", "http", "headers", name], value.into())
    }

    #[must_use]
    pub fn without_header(self, name: &str) -> Self {
        self.set(&["target", "http", "headers", name], Value::Null)
    }

    /// Attempts in all; further ones after the first wait, `backoff`, which doubles.
    #[must_use]
    pub fn retry(self, attempts_max: u16, backoff: impl Into<String>) -> Self {
        self.set(&["retry", "attempts_max"], attempts_max).set(&["retry", "backoff"], backoff.into())
    }

    fn set(mut self, path: &[&str], value: impl Into<Value>) -> Self {
        let mut place = &mut self.0;
        let (last, objects) = path.split_last().expect("a path names something");
        for name in objects {
            let inner = place.entry(*name).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            place = inner.as_object_mut().expect("it was made one");
        }
        place.insert((*last).to_owned(), value.into());
        self
    }
}
