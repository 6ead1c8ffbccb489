//! Runs: the outcomes of occurrences, and redriving a dead letter.

use api::{Redriven, Run, RunPage};
use futures_util::stream::BoxStream;
use http::Method;

use crate::pages::escape;
use crate::retry::Repeat;
use crate::transport::Call;
use crate::{Client, Error};

const DEAD_LETTERS: &str = "/v1/runs?dead_letter=true";

impl Client {
    /// Streams the runs of a schedule with their attempts, and fetches them page by page.
    #[must_use]
    pub fn runs(&self, schedule: &str) -> BoxStream<'static, Result<Run, Error>> {
        self.pages::<RunPage>(runs_of(schedule))
    }

    /// Returns one page of [`Client::runs`], of at most `limit` runs (1 to 1,000).
    ///
    /// # Errors
    /// `schedule_not_found`, and the variants of [`Error`].
    pub async fn runs_page(&self, schedule: &str, limit: u16, token: Option<&str>) -> Result<RunPage, Error> {
        self.page(&runs_of(schedule), limit, token).await
    }

    /// Streams the tenant's dead letters, and fetches them page by page.
    #[must_use]
    pub fn dead_letters(&self) -> BoxStream<'static, Result<Run, Error>> {
        self.pages::<RunPage>(DEAD_LETTERS.to_owned())
    }

    /// Returns one page of [`Client::dead_letters`], of at most `limit` runs (1 to 1,000).
    ///
    /// # Errors
    /// The variants of [`Error`].
    pub async fn dead_letters_page(&self, limit: u16, token: Option<&str>) -> Result<RunPage, Error> {
        self.page(DEAD_LETTERS, limit, token).await
    }

    /// Runs a dead letter again at once. A run can be redriven only once. If [`Error::is_outcome_unknown`], call
    /// this function again: the code `not_dead_letter` then shows that the first call succeeded.
    ///
    /// # Errors
    /// `run_not_found`, `not_dead_letter`, and the variants of [`Error`].
    pub async fn redrive(&self, run: &str) -> Result<Redriven, Error> {
        let path = format!("/v1/runs/{}/redrive", escape(run));
        let call = Call { method: Method::POST, repeat: Repeat::IfUntouched, ..Call::get(path) };
        self.0.call(&call).await?.read()
    }
}

fn runs_of(schedule: &str) -> String {
    format!("/v1/schedules/{}/runs", escape(schedule))
}
