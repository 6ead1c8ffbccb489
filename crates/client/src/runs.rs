//! Calls that read and list runs, and that redrive dead letters.

use std::time::Duration;

use api::{Redriven, Run, RunPage, RunState, Time};
use futures_util::stream::BoxStream;
use http::Method;

use crate::pages::escape;
use crate::retry::Repeat;
use crate::transport::Call;
use crate::{Client, Error};

const DEAD_LETTERS: &str = "/v1/runs?dead_letter=true";

/// Order of a list of runs by their due instants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RunOrder {
    /// The newest runs are first.
    #[default]
    Newest,
    /// The oldest runs are first.
    Oldest,
}

/// Filter for a list of runs. A run is in the list if it meets all conditions that are not `None`. For a first page, the
/// filter needs a `schedule` or the start of a range in `from`. A page token contains the range of its list, so a filter
/// for a further page needs no range.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunQuery {
    /// State of the runs.
    pub state: Option<RunState>,
    /// Id of the schedule of the runs.
    pub schedule: Option<String>,
    /// Name and value of a label that the schedules of the runs have now. The name contains no `=`.
    pub label: Option<(String, String)>,
    /// Host of the target that the schedules of the runs have now, without a port.
    pub host: Option<String>,
    /// HTTP status that at least one attempt of a run has.
    pub status: Option<u16>,
    /// Minimum duration from the due instant of a run to the start of its first attempt, in whole milliseconds.
    pub late_by: Option<Duration>,
    /// Earliest due instant of the runs.
    pub from: Option<Time>,
    /// End of the range of due instants, exclusive.
    pub until: Option<Time>,
    /// Order of the list.
    pub order: RunOrder,
}

impl RunQuery {
    fn path(&self) -> String {
        let state = self.state.map(|state| {
            let state = serde_json::to_value(state).expect("a run's state serializes to a JSON string");
            state.as_str().unwrap_or_default().to_owned()
        });
        let order = (self.order == RunOrder::Oldest).then(|| "oldest".to_owned());
        let parameters = [
            ("state", state),
            ("schedule", self.schedule.clone()),
            ("label", self.label.as_ref().map(|(name, value)| format!("{name}={value}"))),
            ("host", self.host.clone()),
            ("status", self.status.map(|status| status.to_string())),
            ("late_by", self.late_by.map(|late_by| format!("{}ms", late_by.as_millis()))),
            ("from", self.from.map(|from| from.to_string())),
            ("until", self.until.map(|until| until.to_string())),
            ("order", order),
        ];
        let given = parameters.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", escape(&value?))));
        format!("/v1/runs?{}", given.collect::<Vec<_>>().join("&"))
    }
}

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

    /// Streams the tenant's runs that match the filter. The client fetches the runs page by page. A run that changes
    /// during the call may be missing. The stream skips damaged runs, which [`Client::list_runs_page`] counts.
    #[must_use]
    pub fn list_runs(&self, query: &RunQuery) -> BoxStream<'static, Result<Run, Error>> {
        self.pages::<RunPage>(query.path())
    }

    /// Returns one page of the runs that [`Client::list_runs`] streams, with at most `limit` runs (1 to 1,000). The
    /// page may be short or empty although there is a next page, because the server limits the time for one page.
    ///
    /// # Errors
    /// Returns an error with the code `invalid_parameter`, `schedule_not_found` or `runs_not_indexed`, or another
    /// variant of [`Error`].
    pub async fn list_runs_page(&self, query: &RunQuery, limit: u16, token: Option<&str>) -> Result<RunPage, Error> {
        self.page(&query.path(), limit, token).await
    }

    /// Returns the server's time in whole seconds, rounded down, or `None` if the response does not contain the time. A
    /// program that lists new runs again and again can ask for the time before each list. The list then contains every
    /// matching run whose outcome the server stored before that time, also if the clocks of the machines differ.
    ///
    /// # Errors
    /// Returns an [`Error`] if the call fails.
    pub async fn server_time(&self) -> Result<Option<Time>, Error> {
        Ok(self.0.call(&Call::get("/v1/quotas".to_owned())).await?.date)
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
