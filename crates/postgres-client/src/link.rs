//! Link: one connection to PostgreSQL. The link opens a new connection whenever the connection ends.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use runtime::{Runtime, TaskSet};
use tokio::sync::watch;
use tokio_postgres::{Client, Statement};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::server::{Messages, Server};

/// Backoff between two attempts to connect. The backoff starts at the minimum and doubles up to the maximum. Randomness
/// shortens each wait by up to half.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Time that the client waits for the response after the statement timeout. A server that still responds cancels the
/// statement during this time.
const RESPONSE_GRACE: Duration = Duration::from_secs(1);

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
    /// The last attempt to connect failed. The task will make another attempt.
    Down(Failure),
    Stopped,
}

/// One connection and its prepared statements. Concurrent calls are pipelined: the client sends a request without
/// waiting for the responses to earlier requests. The server runs the requests one after the other.
pub struct Session {
    runtime: Runtime,
    server: Arc<Server>,
    client: Client,
    prepared: Mutex<HashMap<&'static str, Statement>>,
    abandoned: CancellationToken,
}

impl Link {
    /// Starts a task in `tasks` that connects to the server, and connects again whenever the connection ends.
    #[must_use]
    pub fn start(runtime: &Runtime, tasks: &TaskSet, server: &Arc<Server>, stop: CancellationToken) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let connector = Connector { runtime: runtime.clone(), server: server.clone(), state: sender, stop };
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

impl Session {
    /// Runs `body` on a new connection. The connection ends when `body` ends.
    ///
    /// # Errors
    /// Returns an error if there is no connection, or if `body` fails.
    pub async fn once<T, E: From<Failure>>(
        runtime: &Runtime,
        server: &Arc<Server>,
        body: impl AsyncFnOnce(&Session) -> Result<T, E>,
    ) -> Result<T, E> {
        let (client, mut messages) = server.connect(runtime).await?;
        let session = Session::new(runtime, server, client);
        let polling = async move {
            while let Some(Ok(_)) = messages.next().await {}
            // Dropping `messages` closes the connection, so that the statements under way fail.
            drop(messages);
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            done = body(&session) => done,
            never = polling => match never {},
        }
    }

    fn new(runtime: &Runtime, server: &Arc<Server>, client: Client) -> Self {
        Session {
            runtime: runtime.clone(),
            server: server.clone(),
            client,
            prepared: Mutex::new(HashMap::new()),
            abandoned: CancellationToken::new(),
        }
    }

    /// Returns the client of this connection. The caller passes each request of the client to [`Session::within`],
    /// which limits the wait for the response.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Prepares `text` once on this connection. `text` is also the statement's name, so it must be a constant of the
    /// program.
    ///
    /// # Errors
    /// Returns an error if the server rejects the statement or is unreachable.
    pub async fn prepare(&self, text: &'static str) -> Result<Statement, Failure> {
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.within(self.client.prepare(text)).await?;
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(text, statement.clone());
        Ok(statement)
    }

    /// Waits for `request`, which uses this session's client. If the server does not respond within the statement
    /// timeout, this method ends the connection and all requests under way on it.
    ///
    /// # Errors
    /// Returns an error if the server rejects the request or does not respond, or if the connection ends.
    pub async fn within<T>(
        &self,
        request: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        let waited = self.server.statement_timeout() + RESPONSE_GRACE;
        match self.runtime.timeout(waited, request).await {
            Some(answer) => answer.map_err(|error| {
                let failure = self.server.failure(&error);
                // A primary that became a standby keeps its connections. This method therefore ends the connection, so
                // that the link connects to the new primary.
                if matches!(failure, Failure::Unreachable { .. }) {
                    self.abandon();
                }
                failure
            }),
            None => {
                self.abandon();
                Err(Failure::Silent { server: self.server.to_string(), waited })
            }
        }
    }

    /// Runs statements that return no rows. Semicolons separate the statements.
    ///
    /// # Errors
    /// Returns the same errors as [`Session::within`].
    pub async fn run(&self, statements: &str) -> Result<(), Failure> {
        self.within(self.client.batch_execute(statements)).await
    }

    /// Ends the connection. The link opens a new one.
    pub fn abandon(&self) {
        self.abandoned.cancel();
    }
}

struct Connector {
    runtime: Runtime,
    server: Arc<Server>,
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
                    self.hold(client, messages).await;
                    self.state.send_replace(State::Connecting);
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

    /// Publishes the session of a new connection, and returns when the connection ends.
    async fn hold(&self, client: Client, mut messages: Messages) {
        let session = Session::new(&self.runtime, &self.server, client);
        let abandoned = session.abandoned.clone();
        self.state.send_replace(State::Up(Arc::new(session)));
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = abandoned.cancelled() => return,
                message = messages.next() => match message {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return,
                },
            }
        }
    }
}
