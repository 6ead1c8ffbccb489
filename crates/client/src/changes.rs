//! Changing what is there: merges, and changes that are made only to what was seen.

use api::{Cancelled, DryRun, Schedule, SchedulePatch, ScheduleRequest};
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderName, HeaderValue, Method};

use crate::retry::Repeat;
use crate::schedules::{DRY_RUN, path_of, put, summary};
use crate::transport::{Answer, Call};
use crate::{Client, Error, Put, ScheduleSummary, Tag};

/// What a change wants to find. Where it does not, nothing is done, and the error's code is `precondition_failed`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The schedule as it was when it had this tag.
    Is(Tag),
    /// A schedule that is not cancelled.
    Exists,
    /// None, or a cancelled one.
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

/// The answer of [`Client::update`].
#[derive(Clone, PartialEq, Debug)]
pub struct Updated {
    /// As it is now.
    pub schedule: ScheduleSummary,
    /// What it is called now; `None` if something on the way took it off.
    pub tag: Option<Tag>,
}

impl Client {
    /// Changes what `patch` names, and leaves all else; of two at once that name different things, both are kept. It can be sent
    /// again after any failure.
    ///
    /// # Errors
    /// `schedule_not_found`, `schedule_over`, `invalid_schedule`, and what [`Error`] lists.
    pub async fn update(&self, id: &str, patch: &SchedulePatch) -> Result<Updated, Error> {
        updated(&self.0.call(&Call::with_body(Method::PATCH, path_of(id), Repeat::Always, patch)).await?)
    }

    /// As [`Client::update`], if the schedule is as `condition` says. The server looks in the step that makes the change.
    ///
    /// Like the others with a condition it is not sent again if it may have been done: the condition would not hold any more.
    ///
    /// # Errors
    /// `precondition_failed`, and those of [`Client::update`].
    pub async fn update_if(&self, id: &str, patch: &SchedulePatch, condition: &Condition) -> Result<Updated, Error> {
        let call = Call::with_body(Method::PATCH, path_of(id), Repeat::IfUntouched, patch);
        updated(&self.0.call(&on(call, condition)).await?)
    }

    /// What [`Client::update`] would make of the schedule, and when it would fire: everything is checked, and nothing written.
    ///
    /// # Errors
    /// Those of [`Client::update`].
    pub async fn dry_run_update(&self, id: &str, patch: &SchedulePatch) -> Result<DryRun, Error> {
        let path = format!("{}?{DRY_RUN}", path_of(id));
        self.0.call(&Call::with_body(Method::PATCH, path, Repeat::Always, patch)).await?.read()
    }

    /// As [`Client::put`], if what is there is as `condition` says.
    ///
    /// # Errors
    /// `precondition_failed`, and those of [`Client::put`].
    pub async fn put_if(&self, id: &str, request: &ScheduleRequest, condition: &Condition) -> Result<Put, Error> {
        let call = Call::with_body(Method::PUT, path_of(id), Repeat::IfUntouched, request);
        put(&self.0.call(&on(call, condition)).await?)
    }

    /// As [`Client::cancel`], if the schedule is as `condition` says.
    ///
    /// # Errors
    /// `precondition_failed`, and those of [`Client::cancel`].
    pub async fn cancel_if(&self, id: &str, condition: &Condition) -> Result<Cancelled, Error> {
        let call = Call { repeat: Repeat::IfUntouched, ..Call::delete(path_of(id)) };
        self.0.call(&on(call, condition)).await?.read()
    }

    /// Reads a schedule, and what it is called; `None` if something on the way took that off.
    ///
    /// # Errors
    /// Those of [`Client::get`].
    pub async fn get_tagged(&self, id: &str) -> Result<(Schedule, Option<Tag>), Error> {
        let answer = self.0.call(&Call::get(path_of(id))).await?;
        Ok((answer.read()?, answer.tag.clone()))
    }
}

fn on(mut call: Call, condition: &Condition) -> Call {
    call.headers.push(condition.header());
    call
}

fn updated(answer: &Answer) -> Result<Updated, Error> {
    Ok(Updated { schedule: summary(answer)?, tag: answer.tag.clone() })
}
