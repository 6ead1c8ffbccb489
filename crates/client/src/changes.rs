//! Changes to existing schedules: merge patches, and changes with a precondition.

use api::{Cancelled, DryRun, Schedule, SchedulePatch, ScheduleRequest};
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderName, HeaderValue, Method};

use crate::retry::Repeat;
use crate::schedules::{DRY_RUN, path_of, put, summary};
use crate::transport::{Call, SuccessResponse};
use crate::{Client, Error, Put, ScheduleSummary, Tag};

/// Precondition of a change. If it does not hold, the server changes nothing and returns the code
/// `precondition_failed`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The schedule still has this tag.
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
    /// The schedule after the change.
    pub schedule: ScheduleSummary,
    /// The schedule's tag after the change; `None` if a proxy removed the header.
    pub tag: Option<Tag>,
}

impl Client {
    /// Changes the fields that `patch` names, and leaves all others unchanged. Two concurrent updates of different
    /// fields both take effect. The client may repeat this request after any failure.
    ///
    /// # Errors
    /// `schedule_not_found`, `schedule_over`, `invalid_schedule`, and the variants of [`Error`].
    pub async fn update(&self, id: &str, patch: &SchedulePatch) -> Result<Updated, Error> {
        updated(&self.0.call(&Call::with_body(Method::PATCH, path_of(id), Repeat::Always, patch)).await?)
    }

    /// Works like [`Client::update`], but changes the schedule only if `condition` holds. The server checks the
    /// condition and applies the change in one atomic step.
    ///
    /// Like the other conditional requests, this one is not repeated if the server may have carried it out: the
    /// condition would no longer hold.
    ///
    /// # Errors
    /// `precondition_failed`, and the errors of [`Client::update`].
    pub async fn update_if(&self, id: &str, patch: &SchedulePatch, condition: &Condition) -> Result<Updated, Error> {
        let call = Call::with_body(Method::PATCH, path_of(id), Repeat::IfUntouched, patch);
        updated(&self.0.call(&on(call, condition)).await?)
    }

    /// Returns the schedule as [`Client::update`] would leave it, with its next occurrences. The server checks
    /// everything and writes nothing.
    ///
    /// # Errors
    /// The errors of [`Client::update`].
    pub async fn dry_run_update(&self, id: &str, patch: &SchedulePatch) -> Result<DryRun, Error> {
        let path = format!("{}?{DRY_RUN}", path_of(id));
        self.0.call(&Call::with_body(Method::PATCH, path, Repeat::Always, patch)).await?.read()
    }

    /// Works like [`Client::put`], but only if `condition` holds.
    ///
    /// # Errors
    /// `precondition_failed`, and the errors of [`Client::put`].
    pub async fn put_if(&self, id: &str, request: &ScheduleRequest, condition: &Condition) -> Result<Put, Error> {
        let call = Call::with_body(Method::PUT, path_of(id), Repeat::IfUntouched, request);
        put(&self.0.call(&on(call, condition)).await?)
    }

    /// Works like [`Client::cancel`], but only if `condition` holds.
    ///
    /// # Errors
    /// `precondition_failed`, and the errors of [`Client::cancel`].
    pub async fn cancel_if(&self, id: &str, condition: &Condition) -> Result<Cancelled, Error> {
        let call = Call { repeat: Repeat::IfUntouched, ..Call::delete(path_of(id)) };
        self.0.call(&on(call, condition)).await?.read()
    }

    /// Reads a schedule and its tag. The tag is `None` if a proxy removed the header.
    ///
    /// # Errors
    /// The errors of [`Client::get`].
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
