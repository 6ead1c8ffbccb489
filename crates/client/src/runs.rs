//! Calls that read and list runs, and that redrive dead letters.

use api::{Redriven, Run, RunPage};
use futures_util::stream::BoxStream;
use http::Method;

use crate::pages::escape;
use crate::retry::Repeat;
use crate::transport::Call;
use crate::{Client, Error};

const DEAD_LETTERS: &str = "/v1/runs?dead_letter=true";

impl Client {
    /// Reads a run by its id, which is the `webhook-id` of its callbacks.
    ///
    /// # Errors
    /// Returns an error with the code `run_not_found`, or another variant of [`Error`].
    pub async fn run(&self, run: &str) -> Result<Run, Error> {
        self.0.call(&Call::get(path_of(run))).await?.read()
    }

    /// Streams the runs of a schedule with their attempts. The client fetches the runs page by page.
    #[must_use]
    pub fn runs(&self, schedule: &str) -> BoxStream<'static, Result<Run, Error>> {
        self.pages::<RunPage>(runs_of(schedule))
    }

    /// Returns one page of the runs that [`Client::runs`] streams, with at most `limit` runs (1 to 1,000).
    ///
    /// # Errors
    /// Returns an error with the code `schedule_not_found`, or another variant of [`Error`].
    pub async fn runs_page(&self, schedule: &str, limit: u16, token: Option<&str>) -> Result<RunPage, Error> {
        self.page(&runs_of(schedule), limit, token).await
    }

    /// Streams the tenant's dead letters. The client fetches the dead letters page by page.
    #[must_use]
    pub fn dead_letters(&self) -> BoxStream<'static, Result<Run, Error>> {
        self.pages::<RunPage>(DEAD_LETTERS.to_owned())
    }

    /// Returns one page of the tenant's dead letters, with at most `limit` dead letters (1 to 1,000).
    ///
    /// # Errors
    /// Returns an [`Error`] if the call fails.
    pub async fn dead_letters_page(&self, limit: u16, token: Option<&str>) -> Result<RunPage, Error> {
        self.page(DEAD_LETTERS, limit, token).await
    }

    /// Redrives a dead letter: the server runs its occurrence again at once. The server redrives a run only once. If
    /// [`Error::is_outcome_unknown`] returns true for an error, call this function again. The code `not_dead_letter`
    /// then shows that the first call succeeded.
    ///
    /// # Errors
    /// Returns an error with the code `run_not_found` or `not_dead_letter`, or another variant of [`Error`].
    pub async fn redrive(&self, run: &str) -> Result<Redriven, Error> {
        let path = format!("{}/redrive", path_of(run));
        let call = Call { method: Method::POST, repeat: Repeat::IfUntouched, ..Call::get(path) };
        self.0.call(&call).await?.read()
    }
}

fn path_of(run: &str) -> String {
    format!("/v1/runs/{}", escape(run))
}

fn runs_of(schedule: &str) -> String {
    format!("/v1/schedules/{}/runs", escape(schedule))
}
