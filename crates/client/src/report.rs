//! Calls that report about the runs of a tenant.

use api::{Report, ReportBy, RunState, Time};
use http::HeaderValue;
use http::header::ACCEPT;

use crate::pages::escape;
use crate::transport::Call;
use crate::{Client, Error};

/// Range and rows of a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportQuery {
    /// Start of the range of due instants. The server rounds it down to a whole hour.
    pub from: Time,
    /// End of the range of due instants, exclusive. The server rounds it up to a whole hour. `None` is the server's
    /// present time.
    pub to: Option<Time>,
    /// Property by which the report has rows.
    pub by: ReportBy,
    /// State of the runs to count. `None` counts the runs in all final states.
    pub state: Option<RunState>,
}

impl ReportQuery {
    fn path(&self) -> String {
        let parameters = [
            ("from", Some(self.from.to_string())),
            ("to", self.to.map(|to| to.to_string())),
            ("by", word(&self.by)),
            ("state", self.state.and_then(|state| word(&state))),
        ];
        let given = parameters.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", escape(&value?))));
        format!("/v1/report?{}", given.collect::<Vec<_>>().join("&"))
    }
}

/// Returns the name that the API uses for a value of an enum.
fn word(value: &impl serde::Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}

impl Client {
    /// Counts the tenant's runs that have ended and were due in a range of at most 92 days.
    ///
    /// # Errors
    /// Returns an error with the code `invalid_parameter`, or another variant of [`Error`].
    pub async fn report(&self, query: &ReportQuery) -> Result<Report, Error> {
        self.0.call(&Call::get(query.path())).await?.read()
    }

    /// Returns the same report as [`Client::report`], as CSV. A label or host with which a spreadsheet would begin a
    /// formula starts with an apostrophe.
    ///
    /// # Errors
    /// Returns an error with the code `invalid_parameter`, or another variant of [`Error`].
    pub async fn report_csv(&self, query: &ReportQuery) -> Result<String, Error> {
        let headers = vec![(ACCEPT, HeaderValue::from_static("text/csv"))];
        Ok(self.0.call(&Call { headers, ..Call::get(query.path()) }).await?.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_contains_the_given_parameters() {
        let query = ReportQuery { from: Time(0), to: None, by: ReportBy::Host, state: None };
        assert_eq!(query.path(), format!("/v1/report?from={}&by=host", escape(&Time(0).to_string())));
        let query = ReportQuery { to: Some(Time(1)), state: Some(RunState::Failed), ..query };
        let end = format!("&to={}&by=host&state=failed", escape(&Time(1).to_string()));
        assert!(query.path().ends_with(&end), "{}", query.path());
    }
}
