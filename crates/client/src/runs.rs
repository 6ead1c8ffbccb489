//! Runs: what became of occurrences, and running a dead letter again.

use api::{Redriven, Run, RunPage};
use futures_util::stream::BoxStream;
use http::Method;

use crate::pages::escape;
use crate::retry::Repeat;
use crate::transport::Call;
use crate::{Client, Error};

const DEAD_LETTERS: &str = "/v1/runs?dead_letter=true";

impl Client {
    /// The runs of a schedule with their attempts, page by page.
    #[must_use]
    pub fn runs(&self, schedule: &str) -> BoxStream<'static, Result<Run, Error>> {
        self.pages::<RunPage>(runs_of(schedule))
    }

    /// One page of [`Client::runs`], of at most `limit` (1 to 1,000).
    ///
    /// # Errors
    /// `schedule_not_found`, and what [`Error`] lists.
    pub async fn runs_page(&self, schedule: &str, limit: u16, token: Option<&str>) -> Result<RunPage, Error> {
        self.page(&runs_of(schedule), limit, token).await
    }

    /// The tenant's dead letters, page by page.
    #[must_use]
    pub fn dead_letters(&self) -> BoxStream<'static, Result<Run, Error>> {
        self.pages::<RunPage>(DEAD_LETTERS.to_owned())
    }

    /// One page of [`Client::dead_letters`], of at most `limit` (1 to 1,000).
    ///
    /// # Errors
    /// What [`Error`] lists.
    pub async fn dead_letters_page(&self, limit: u16, token: Option<&str>) -> Result<RunPage, Error> {
        self.page(DEAD_LETTERS, limit, token).await
    }

    /// Runs a dead letter again, at once. A run is redriven once: if [`Error::is_outcome_unknown`], ask again, and
    /// `not_dead_letter` then says that it was.
    ///
    /// # Errors
    /// `run_not_found`, `not_dead_letter`, and what [`Error`] lists.
    pub async fn redrive(&self, run: &str) -> Result<Redriven, Error> {
        let path = format!("/v1/runs/{}/redrive", escape(run));
        let call = Call { method: Method::POST, repeat: Repeat::IfUntouched, ..Call::get(path) };
        self.0.call(&call).await?.read()
    }
}

fn runs_of(schedule: &str) -> String {
    format!("/v1/schedules/{}/runs", escape(schedule))
}
