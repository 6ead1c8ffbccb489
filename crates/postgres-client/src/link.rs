//! Link: one connection to PostgreSQL. The link opens a new connection whenever the connection ends.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FusedFuture as _};
use futures_util::{FutureExt as _, StreamExt as _};
use runtime::{Runtime, TaskSet};
use tokio::sync::watch;
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

/// Check of a new connection. It returns a token, and the link closes the connection when the caller cancels the token.
pub type Admission = Arc<dyn Fn(Arc<Session>) -> BoxFuture<'static, Result<CancellationToken, Failure>> + Send + Sync>;

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

    /// Starts a link like [`Link::start`], with two additional conditions for its connection. When `probe` detects that
    /// the server is silent, the link closes its connection. Until the link has another connection, [`Link::session`]
    /// fails at once. Callers receive a new connection only after `admission` has accepted it.
    #[must_use]
    pub fn start_admitted(
        runtime: &Runtime,
        tasks: &TaskSet,
        server: &Arc<Server>,
        probe: &Probe,
        admission: Admission,
        stop: CancellationToken,
    ) -> Self {
        Link::spawn(runtime, tasks, server, Some((probe.clone(), admission)), stop)
    }

    fn spawn(
        runtime: &Runtime,
        tasks: &TaskSet,
        server: &Arc<Server>,
        conditions: Option<(Probe, Admission)>,
        stop: CancellationToken,
    ) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let (runtime_of_link, server_of_link) = (runtime.clone(), server.clone());
        let (probe, admission) = conditions.unzip();
        let connector =
            Connector { runtime: runtime_of_link, server: server_of_link, probe, admission, state: sender, stop };
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

struct Connection {
    session: Arc<Session>,
    messages: Messages,
    /// Token of the admission.
    revoked: CancellationToken,
}

struct Connector {
    runtime: Runtime,
    server: Arc<Server>,
    probe: Option<Probe>,
    admission: Option<Admission>,
    state: watch::Sender<State>,
    stop: CancellationToken,
}

impl Connector {
    async fn run(self) {
        let mut backoff = BACKOFF_MIN;
        let mut warned = false;
        while !self.stop.is_cancelled() {
            // The server may become silent before the connection is ready for use.
            let mut silence = self.silence();
            let connected = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                () = &mut silence => Err(self.silent()),
                connected = self.connect() => connected,
            };
            match connected {
                Ok(connection) => {
                    if std::mem::take(&mut warned) {
                        tracing::info!(server = %self.server, "reconnected to PostgreSQL");
                    }
                    backoff = BACKOFF_MIN;
                    let state = self.hold(connection, silence).await;
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

    /// Returns a future that waits until the probe detects that the server has become silent.
    fn silence(&self) -> BoxFuture<'static, ()> {
        match &self.probe {
            Some(probe) => Box::pin(probe.clone().silence()),
            None => Box::pin(std::future::pending()),
        }
    }

    fn silent(&self) -> Failure {
        Failure::Silent { server: self.server.to_string(), waited: SILENCE_MAX }
    }

    /// Opens a connection that the admission accepts.
    async fn connect(&self) -> Result<Connection, Failure> {
        let (client, mut messages) = self.server.connect(&self.runtime).await?;
        let session = Arc::new(Session::new(&self.runtime, &self.server, client));
        let Some(admission) = &self.admission else {
            return Ok(Connection { session, messages, revoked: CancellationToken::new() });
        };
        // The connection makes progress only while this function polls `messages`. After its end, the admission fails.
        let polling = async { while let Some(Ok(_)) = messages.next().await {} };
        let mut polling = std::pin::pin!(polling.fuse());
        let mut admitted = admission(session.clone());
        let revoked = loop {
            tokio::select! {
                biased;
                admitted = &mut admitted => break admitted?,
                () = &mut polling, if !polling.is_terminated() => {}
            }
        };
        Ok(Connection { session, messages, revoked })
    }

    /// Publishes the session of a new connection. When the connection ends, returns the next state.
    async fn hold(&self, connection: Connection, mut silence: BoxFuture<'static, ()>) -> State {
        let Connection { session, mut messages, revoked } = connection;
        let abandoned = session.abandoned.clone();
        self.state.send_replace(State::Up(session));
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return State::Connecting,
                () = abandoned.cancelled() => return State::Connecting,
                () = revoked.cancelled() => return State::Connecting,
                () = &mut silence => return State::Down(self.silent()),
                message = messages.next() => match message {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return State::Connecting,
                },
            }
        }
    }
}
