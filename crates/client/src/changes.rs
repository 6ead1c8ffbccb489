//! Changes to existing schedules: merge patches, and changes with a precondition.

use api::{Cancelled, DryRun, Schedule, SchedulePatch, ScheduleRequest};
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderName, HeaderValue, Method};

use crate::retry::Repeat;
use crate::schedules::{DRY_RUN, path_of, put, summary};
use crate::transport::{Call, SuccessResponse};
use crate::{Client, Error, Put, ScheduleSummary, Tag};

/// Precondition of a change. If the precondition does not hold, the server changes nothing and returns the code
/// `precondition_failed`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The schedule still has this tag, which means that no request has changed the schedule since the caller read the
    /// tag.
    Is(Tag),
    /// The schedule exists and is not cancelled.
    Exists,
    /// No schedule has this id, or the schedule is cancelled.
    Absent,
}

impl Condition {
    fn header(&self) -> (HeaderName, HeaderValue) {
        match self {
            Condition::Is(tag) => (IF_MATCH, tag.0.clone()),
            Condition::Exists => (IF_MATCH, HeaderValue::from_static("*")),
            Condition::Absent => (IF_NONE_MATCH, HeaderValue::from_static("*")),
        }
    }
}

/// Result of [`Client::update`].
#[derive(Clone, PartialEq, Debug)]
pub struct Updated {
    /// State of the schedule after the change.
    pub schedule: ScheduleSummary,
    /// Tag of the schedule after the change; `None` if a proxy removed the `ETag` header.
    pub tag: Option<Tag>,
}

impl Client {
    /// Changes the fields that `patch` names, and leaves all other fields unchanged. Two concurrent updates of
    /// different fields both take effect. The client may repeat this request after any failure.
    ///
    /// # Errors
    /// Returns an error with the code `schedule_not_found`, `schedule_over` or `invalid_schedule`, or another variant
    /// of [`Error`].
    pub async fn update(&self, id: &str, patch: &SchedulePatch) -> Result<Updated, Error> {
        updated(&self.0.call(&Call::with_body(Method::PATCH, path_of(id), Repeat::Always, patch)).await?)
    }

    /// Works like [`Client::update`], but changes the schedule only if `condition` holds. The server checks the
    /// condition and applies the change in one atomic step.
    ///
    /// The client does not repeat a conditional request that the server may have carried out. If the server has changed
    /// the schedule in response to the first request, it may reject a second request with `precondition_failed`.
    ///
    /// # Errors
    /// Returns an error with the code `precondition_failed`, or the same errors as [`Client::update`].
    pub async fn update_if(&self, id: &str, patch: &SchedulePatch, condition: &Condition) -> Result<Updated, Error> {
        let call = Call::with_body(Method::PATCH, path_of(id), Repeat::IfUntouched, patch);
        updated(&self.0.call(&on(call, condition)).await?)
    }

    /// Returns the schedule that would result from [`Client::update`], with its next occurrences. The server makes the
    /// same checks as for an update but writes nothing.
    ///
    /// # Errors
    /// Returns the same errors as [`Client::update`].
    pub async fn dry_run_update(&self, id: &str, patch: &SchedulePatch) -> Result<DryRun, Error> {
        let path = format!("{}?{DRY_RUN}", path_of(id));
        self.0.call(&Call::with_body(Method::PATCH, path, Repeat::Always, patch)).await?.read()
    }

    /// Works like [`Client::put`], but creates or replaces the schedule only if `condition` holds.
    ///
    /// # Errors
    /// Returns an error with the code `precondition_failed`, or the same errors as [`Client::put`].
    pub async fn put_if(&self, id: &str, request: &ScheduleRequest, condition: &Condition) -> Result<Put, Error> {
        let call = Call::with_body(Method::PUT, path_of(id), Repeat::IfUntouched, request);
        put(&self.0.call(&on(call, condition)).await?)
    }

    /// Works like [`Client::cancel`], but cancels the schedule only if `condition` holds.
    ///
    /// # Errors
    /// Returns an error with the code `precondition_failed`, or the same errors as [`Client::cancel`].
    pub async fn cancel_if(&self, id: &str, condition: &Condition) -> Result<Cancelled, Error> {
        let call = Call { repeat: Repeat::IfUntouched, ..Call::delete(path_of(id)) };
        self.0.call(&on(call, condition)).await?.read()
    }

    /// Reads a schedule and its tag. The tag is `None` if a proxy removed the `ETag` header.
    ///
    /// # Errors
    /// Returns the same errors as [`Client::get`].
    pub async fn get_tagged(&self, id: &str) -> Result<(Schedule, Option<Tag>), Error> {
        let response = self.0.call(&Call::get(path_of(id))).await?;
        Ok((response.read()?, response.tag.clone()))
    }
}

fn on(mut call: Call, condition: &Condition) -> Call {
    call.headers.push(condition.header());
    call
}

fn updated(response: &SuccessResponse) -> Result<Updated, Error> {
    Ok(Updated { schedule: summary(response)?, tag: response.tag.clone() })
}
