//! Partial change of a schedule.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::builders::text;

/// Body of `PATCH /v1/schedules/{id}`: an RFC 7396 merge patch of a [`ScheduleRequest`](crate::ScheduleRequest). The
/// patch sets the fields that it names, and merges objects name by name. `null` removes a field. Other fields keep
/// their values.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SchedulePatch(pub Map<String, Value>);

/// Shows only the names of the patch's top-level fields in debug output, because header values may be credentials.
impl fmt::Debug for SchedulePatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl SchedulePatch {
    /// Creates an empty patch.
    #[must_use]
    pub fn new() -> Self {
        SchedulePatch::default()
    }

    /// Makes the schedule fire once at `instant`: a [`Time`](crate::Time), or RFC 3339 text with an offset. The server
    /// removes the schedule's `cron` or `every`.
    #[must_use]
    pub fn at(self, instant: impl ToString) -> Self {
        self.set(&["at"], instant.to_string())
    }

    /// Sets a cron expression. If this patch sets no zone, the expression uses the schedule's current zone, or UTC if
    /// the schedule has no zone.
    #[must_use]
    pub fn cron(self, expression: impl Into<String>) -> Self {
        self.set(&["cron"], expression.into())
    }

    /// Makes the schedule fire once per `interval`. Rounds `interval` up to whole milliseconds. The first
    /// interval starts at the time of the change.
    #[must_use]
    pub fn every(self, interval: Duration) -> Self {
        self.set(&["every"], text(interval))
    }

    /// Sets the IANA zone of the cron expression.
    #[must_use]
    pub fn zone(self, zone: impl Into<String>) -> Self {
        self.set(&["zone"], zone.into())
    }

    /// Sets the target's URL. If the scheme, host or port changes, the patch must set or remove each stored header.
    #[must_use]
    pub fn url(self, url: impl Into<String>) -> Self {
        self.set(&["target", "http", "url"], url.into())
    }

    /// Sets the topic of the message bus to which the callbacks are sent. If the schedule has an HTTP target, the server
    /// replaces it.
    #[must_use]
    pub fn topic(self, topic: impl Into<String>) -> Self {
        self.set(&["target", "bus", "topic"], topic.into())
    }

    /// Sets the HTTP method of the callback.
    #[must_use]
    pub fn method(self, method: impl Into<String>) -> Self {
        self.set(&["target", "http", "method"], method.into())
    }

    /// Merges `payload` into the current payload if both are objects, and replaces the current payload otherwise. (A
    /// PUT always replaces the payload.)
    ///
    /// # Errors
    /// Returns an error if `payload` cannot be written as JSON, for example because a map has keys that are not text.
    pub fn payload(self, payload: &(impl Serialize + ?Sized)) -> serde_json::Result<Self> {
        let payload = serde_json::to_value(payload)?;
        Ok(self.set(&["payload"], payload))
    }

    /// Removes the payload, so that the callback's body is empty.
    #[must_use]
    pub fn without_payload(self) -> Self {
        self.set(&["payload"], Value::Null)
    }

    /// Sets a label. Other labels keep their values.
    #[must_use]
    pub fn label(self, name: &str, value: impl Into<String>) -> Self {
        self.set(&["labels", name], value.into())
    }

    /// Removes a label. Other labels keep their values.
    #[must_use]
    pub fn without_label(self, name: &str) -> Self {
        self.set(&["labels", name], Value::Null)
    }

    /// Sets a header of an HTTP callback.
    #[must_use]
    pub fn header(self, name: &str, value: impl Into<String>) -> Self {
        self.set(&["target", "http", "headers", name], value.into())
    }

    /// Removes a header of an HTTP callback. The server compares header names without regard to case.
    #[must_use]
    pub fn without_header(self, name: &str) -> Self {
        self.set(&["target", "http", "headers", name], Value::Null)
    }

    /// Sets the timeout of one attempt to an HTTP target. Rounds the timeout up to whole milliseconds.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set(&["target", "http", "timeout"], text(timeout))
    }

    /// Sets the total number of attempts, and the upper bound of the wait after the first attempt. The bound doubles
    /// after each further attempt.
    #[must_use]
    pub fn retry(self, attempts_max: u16, backoff: Duration) -> Self {
        self.set(&["retry", "attempts_max"], attempts_max).set(&["retry", "backoff"], text(backoff))
    }

    fn set(mut self, path: &[&str], value: impl Into<Value>) -> Self {
        let mut parent = &mut self.0;
        let (last, objects) = path.split_last().expect("every path in a patch has at least one field name");
        for name in objects {
            let inner = parent.entry(*name).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            parent =
                inner.as_object_mut().expect("the function `set` replaces every parent value that is not an object");
        }
        parent.insert((*last).to_owned(), value.into());
        self
    }
}
