//! Link: one connection to PostgreSQL. The link opens a new connection whenever the connection ends.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use runtime::{Runtime, TaskSet};
use tokio::sync::watch;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::probe::{Probe, SILENCE_MAX};
use crate::server::{Messages, Server};
use crate::session::Session;

/// Backoff between two attempts to connect. The backoff starts at the minimum and doubles up to the maximum. Randomness
/// shortens each wait by up to half.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Handle to a connection that a task opens and reopens. A clone is cheap. The task ends when the caller cancels the
/// token `stop` of [`Link::start`].
#[derive(Clone)]
pub struct Link {
    runtime: Runtime,
    server: Arc<Server>,
    state: watch::Receiver<State>,
}

#[derive(Clone)]
enum State {
    Connecting,
    Up(Arc<Session>),
    /// The last attempt to connect failed, or the server became silent. The task will make another attempt.
    Down(Failure),
    Stopped,
}

impl Link {
    /// Starts a task in `tasks` that connects to the server, and connects again whenever the connection ends.
    #[must_use]
    pub fn start(runtime: &Runtime, tasks: &TaskSet, server: &Arc<Server>, stop: CancellationToken) -> Self {
        Link::spawn(runtime, tasks, server, None, stop)
    }

    /// Starts a link like [`Link::start`]. When `probe` detects that the server is silent, the link also closes its
    /// connection. Until the link has another connection, [`Link::session`] fails at once.
    #[must_use]
    pub fn start_probed(
        runtime: &Runtime,
        tasks: &TaskSet,
        server: &Arc<Server>,
        probe: &Probe,
        stop: CancellationToken,
    ) -> Self {
        Link::spawn(runtime, tasks, server, Some(probe.clone()), stop)
    }

    fn spawn(
        runtime: &Runtime,
        tasks: &TaskSet,
        server: &Arc<Server>,
        probe: Option<Probe>,
        stop: CancellationToken,
    ) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let connector = Connector { runtime: runtime.clone(), server: server.clone(), probe, state: sender, stop };
        tasks.spawn("postgres link", connector.run());
        Link { runtime: runtime.clone(), server: server.clone(), state }
    }

    /// Returns the session of the current connection. The call waits while an attempt to connect is under way. It fails
    /// at once if the last attempt failed.
    ///
    /// # Errors
    /// Returns an error if there is no connection.
    pub async fn session(&self) -> Result<Arc<Session>, Failure> {
        let mut state = self.state.clone();
        let decided = Box::pin(state.wait_for(|state| !matches!(state, State::Connecting)));
        let limit = self.server.statement_timeout();
        let unreachable =
            |reason: &str| Err(Failure::Unreachable { server: self.server.to_string(), reason: reason.to_owned() });
        match self.runtime.timeout(limit, decided).await.map(|decided| decided.map(|state| state.clone())) {
            Some(Ok(State::Up(session))) => Ok(session),
            Some(Ok(State::Down(failure))) => Err(failure),
            Some(Ok(State::Stopped) | Err(_)) => unreachable("this process has stopped its connection to the server"),
            Some(Ok(State::Connecting)) | None => {
                unreachable(&format!("the connection attempt did not end within {limit:?}"))
            }
        }
    }

    /// Returns whether the link has a connection. The connection may have ended without the client's knowledge.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), State::Up(_))
    }

    /// Waits until the result of [`Link::is_up`] may have changed.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

struct Connector {
    runtime: Runtime,
    server: Arc<Server>,
    probe: Option<Probe>,
    state: watch::Sender<State>,
    stop: CancellationToken,
}

impl Connector {
    async fn run(self) {
        let mut backoff = BACKOFF_MIN;
        let mut warned = false;
        while !self.stop.is_cancelled() {
            let connected = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                connected = self.server.connect(&self.runtime) => connected,
            };
            match connected {
                Ok((client, messages)) => {
                    if std::mem::take(&mut warned) {
                        tracing::info!(server = %self.server, "reconnected to PostgreSQL");
                    }
                    backoff = BACKOFF_MIN;
                    let state = self.hold(client, messages).await;
                    self.state.send_replace(state);
                }
                Err(failure) => {
                    if !std::mem::replace(&mut warned, true) {
                        tracing::warn!(%failure, "connection to PostgreSQL failed; retrying");
                    }
                    self.state.send_replace(State::Down(failure));
                    let half = u64::try_from(backoff.as_millis() / 2).unwrap_or(0);
                    let wait = Duration::from_millis(half + self.runtime.random() % half.max(1));
                    tokio::select! {
                        biased;
                        () = self.stop.cancelled() => break,
                        () = self.runtime.sleep(wait) => {}
                    }
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
        self.state.send_replace(State::Stopped);
    }

    /// Publishes the session of a new connection. When the connection ends, returns the next state.
    async fn hold(&self, client: Client, mut messages: Messages) -> State {
        let session = Session::new(&self.runtime, &self.server, client);
        let abandoned = session.abandoned.clone();
        self.state.send_replace(State::Up(Arc::new(session)));
        let silence = async {
            match &self.probe {
                Some(probe) => probe.clone().silence().await,
                None => std::future::pending().await,
            }
        };
        let mut silence = std::pin::pin!(silence);
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return State::Connecting,
                () = abandoned.cancelled() => return State::Connecting,
                () = &mut silence => {
                    return State::Down(Failure::Silent { server: self.server.to_string(), waited: SILENCE_MAX });
                }
                message = messages.next() => match message {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return State::Connecting,
                },
            }
        }
    }
}
