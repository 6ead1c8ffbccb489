//! Probe: a connection whose only use is to detect that the server no longer responds. Without a probe, a client cannot
//! distinguish a server that does not respond from a server that runs a long statement, until the statement timeout.
//!
//! docs/decisions/0207-bound-the-effects-of-a-half-dead-member.md gives the reasons for the design.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use runtime::{Runtime, TaskSet};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::server::Server;
use crate::session::Session;

/// Time between a response and the next query of the probe, and between two checks for a response.
const PERIOD: Duration = Duration::from_millis(400);
/// Number of consecutive checks without a response after which the server counts as silent. The probe counts checks
/// instead of time, because a process that was paused has not read the response yet.
const CHECKS_MAX: u32 = 4;
/// Longest time from the last response until the server counts as silent.
pub(crate) const SILENCE_MAX: Duration = PERIOD.saturating_mul(CHECKS_MAX + 1);

/// Handle to a probe. A clone is cheap. The links of [`Link::start_admitted`](crate::Link::start_admitted) close their
/// connections when the probe detects that the server is silent. The statements on these connections then fail. The
/// probe's task ends when the caller cancels the token `stop` of [`Probe::start`].
#[derive(Clone)]
pub struct Probe {
    is_silent: watch::Receiver<bool>,
}

impl Probe {
    /// Starts a task in `tasks` that opens a connection to the server and sends short queries on it.
    #[must_use]
    pub fn start(runtime: &Runtime, tasks: &TaskSet, server: &Arc<Server>, stop: CancellationToken) -> Self {
        let (sender, is_silent) = watch::channel(false);
        let prober = Prober { runtime: runtime.clone(), server: server.clone(), is_silent: sender };
        tasks.spawn("postgres probe", async move {
            stop.run_until_cancelled(prober.run()).await;
        });
        Probe { is_silent }
    }

    /// Returns whether the server has become silent and has not responded to the probe since then.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        *self.is_silent.borrow()
    }

    /// Returns a future that waits until the server becomes silent after this call. It waits forever after the end of the
    /// probe's task.
    pub(crate) fn silence(mut self) -> impl Future<Output = ()> + Send {
        // A connection that a link opens while the server is silent may work.
        self.is_silent.mark_unchanged();
        async move {
            loop {
                if self.is_silent.changed().await.is_err() {
                    return std::future::pending().await;
                }
                if *self.is_silent.borrow_and_update() {
                    return;
                }
            }
        }
    }
}

struct Prober {
    runtime: Runtime,
    server: Arc<Server>,
    is_silent: watch::Sender<bool>,
}

impl Prober {
    async fn run(self) {
        loop {
            // The links report a server that rejects or closes connections.
            let _ended = Session::once(&self.runtime, &self.server, async |session| self.watch(session).await).await;
            self.runtime.sleep(PERIOD).await;
        }
    }

    /// Sends queries until the connection ends or the server is silent.
    async fn watch(&self, session: &Session) -> Result<(), Failure> {
        loop {
            let mut response = pin!(session.run("select 1"));
            let mut checks = 0;
            loop {
                if let Some(response) = self.runtime.timeout(PERIOD, &mut response).await {
                    response?;
                    break;
                }
                checks += 1;
                if checks == CHECKS_MAX {
                    self.set_silent(true);
                    return Ok(());
                }
            }
            self.set_silent(false);
            self.runtime.sleep(PERIOD).await;
        }
    }

    fn set_silent(&self, is_silent: bool) {
        let is_changed = self.is_silent.send_if_modified(|known| std::mem::replace(known, is_silent) != is_silent);
        let server = &self.server;
        match (is_changed, is_silent) {
            (true, true) => tracing::warn!(%server, "PostgreSQL does not respond; closing the connections to it"),
            (true, false) => tracing::info!(%server, "PostgreSQL responds again"),
            (false, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_detects_a_silent_server_in_less_than_three_seconds() {
        assert!(SILENCE_MAX < Duration::from_secs(3), "{SILENCE_MAX:?}");
    }
}
