//! Progress of the server's runs, according to its metrics.

use std::time::Duration;

use anyhow::ensure;
use domain::Timestamp;
use runtime::Runtime;

use crate::server::Server;

/// Interval between two reads of the metrics. The server uses processor time for each read.
const PERIOD: Duration = Duration::from_millis(50);

/// Counts of final outcomes since the start of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Outcomes {
    pub(super) succeeded: u64,
    pub(super) failed: u64,
}

/// Times from the first due instant to the end of the last run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Finished {
    /// Time until all attempts had ended.
    pub(super) attempted: Duration,
    /// Time until the metrics showed that all outcomes were durable.
    pub(super) durable: Duration,
    /// Outcomes since the start of the trial.
    pub(super) outcomes: Outcomes,
}

/// Outcomes, and the number of attempts whose outcome is not durable. The numbers are up to 1 s old, and the server
/// counts an outcome before it is durable.
async fn read(server: &Server) -> anyhow::Result<(Outcomes, u64)> {
    let metrics = server.metrics().await?;
    let outcome = |name| metrics.one(&format!("reveille_occurrences_total{{outcome=\"{name}\"}}")).unwrap_or(0);
    let outcomes = Outcomes { succeeded: outcome("succeeded"), failed: outcome("failed") };
    Ok((outcomes, metrics.one("reveille_in_flight").unwrap_or(0)))
}

impl Outcomes {
    pub(super) async fn read(server: &Server) -> anyhow::Result<Self> {
        Ok(read(server).await?.0)
    }

    /// Waits until the server has `count` further final outcomes, and until they are durable.
    ///
    /// # Errors
    /// Returns an error if this takes longer than `limit`.
    pub(super) async fn wait(
        self,
        runtime: &Runtime,
        server: &Server,
        count: u64,
        first_at: Timestamp,
        limit: Duration,
    ) -> anyhow::Result<Finished> {
        let mut attempted = None;
        loop {
            let (now, in_flight) = read(server).await?;
            let since = runtime.now().since(first_at);
            let outcomes = Outcomes { succeeded: now.succeeded - self.succeeded, failed: now.failed - self.failed };
            if outcomes.succeeded + outcomes.failed >= count {
                let attempted = *attempted.get_or_insert(since);
                if in_flight == 0 {
                    return Ok(Finished { attempted, durable: since, outcomes });
                }
            }
            ensure!(
                since < limit,
                "only {} of {count} callbacks had a durable outcome within {limit:?}; see the server's log",
                outcomes.succeeded + outcomes.failed
            );
            runtime.sleep(PERIOD).await;
        }
    }
}
