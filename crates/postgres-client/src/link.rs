//! One connection that is made again whenever it ends.

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

/// Between two tries to connect: the first wait, doubled up to the last, each shortened by chance by up to half.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The server's own limit comes first, if it can still speak.
const SILENCE: Duration = Duration::from_secs(1);

/// A cheap handle. The task behind it ends when `stop` is cancelled.
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
    /// The last try failed; another follows.
    Down(Failure),
    Stopped,
}

/// A connection while it lasts, and the statements that were prepared on it. Calls at once are sent without waiting for
/// each other's answers, and done one after the other.
pub struct Session {
    runtime: Runtime,
    server: Arc<Server>,
    client: Client,
    prepared: Mutex<HashMap<&'static str, Statement>>,
    abandoned: CancellationToken,
}

impl Link {
    /// Connects, in a task of `tasks`.
    #[must_use]
    pub fn start(runtime: &Runtime, tasks: &TaskSet, server: &Arc<Server>, stop: CancellationToken) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let keeper = Keeper { runtime: runtime.clone(), server: server.clone(), state: sender, stop };
        tasks.spawn("postgres link", keeper.run());
        Link { runtime: runtime.clone(), server: server.clone(), state }
    }

    /// The connection, waited for while it is being made; a failure at once if the last try to make it failed.
    ///
    /// # Errors
    /// If there is none.
    pub async fn session(&self) -> Result<Arc<Session>, Failure> {
        let mut state = self.state.clone();
        let settled = Box::pin(state.wait_for(|state| !matches!(state, State::Connecting)));
        let limit = self.server.statement_timeout();
        let unreachable =
            |reason: &str| Err(Failure::Unreachable { server: self.server.to_string(), reason: reason.to_owned() });
        match self.runtime.timeout(limit, settled).await.map(|settled| settled.map(|state| state.clone())) {
            Some(Ok(State::Up(session))) => Ok(session),
            Some(Ok(State::Down(failure))) => Err(failure),
            Some(Ok(State::Stopped) | Err(_)) => unreachable("this store is closed"),
            Some(Ok(State::Connecting)) | None => unreachable("it is still being connected to"),
        }
    }

    /// Whether there is a connection at this moment, as far as is known.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), State::Up(_))
    }

    /// Comes back when there may be another answer to [`Link::is_up`] than there was.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Session {
    /// Runs `body` on a connection of its own, which ends with it.
    ///
    /// # Errors
    /// If there is no connection, or that of `body`.
    pub async fn once<T, E: From<Failure>>(
        runtime: &Runtime,
        server: &Arc<Server>,
        body: impl AsyncFnOnce(&Session) -> Result<T, E>,
    ) -> Result<T, E> {
        let (client, mut messages) = server.connect(runtime).await?;
        let session = Session::new(runtime, server, client);
        let polling = async move {
            while let Some(Ok(_)) = messages.next().await {}
            // The statements under way fail once the connection is dropped.
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

    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// `text` prepared on this connection, once. `text` is the statement's name here, so it is one of the program's own.
    ///
    /// # Errors
    /// If the server refuses it, or cannot be reached.
    pub async fn prepare(&self, text: &'static str) -> Result<Statement, Failure> {
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.within(self.client.prepare(text)).await?;
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(text, statement.clone());
        Ok(statement)
    }

    /// The outcome of `asking`, which uses this session's client. A server that stays silent beyond the statement timeout
    /// loses the connection, with all that is under way on it.
    ///
    /// # Errors
    /// If the server refuses, is silent, or the connection ends.
    pub async fn within<T>(
        &self,
        asking: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        let waited = self.server.statement_timeout() + SILENCE;
        match self.runtime.timeout(waited, asking).await {
            Some(answer) => answer.map_err(|error| {
                let failure = self.server.failure(&error);
                // A server that has become a standby keeps its connections: look for the one that takes writes now.
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

    /// Runs statements that return nothing, separated by semicolons.
    ///
    /// # Errors
    /// As [`Session::within`].
    pub async fn run(&self, statements: &str) -> Result<(), Failure> {
        self.within(self.client.batch_execute(statements)).await
    }

    /// Ends the connection; another is made.
    pub fn abandon(&self) {
        self.abandoned.cancel();
    }
}

struct Keeper {
    runtime: Runtime,
    server: Arc<Server>,
    state: watch::Sender<State>,
    stop: CancellationToken,
}

impl Keeper {
    async fn run(self) {
        let mut backoff = BACKOFF_MIN;
        let mut told = false;
        while !self.stop.is_cancelled() {
            let connected = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                connected = self.server.connect(&self.runtime) => connected,
            };
            match connected {
                Ok((client, messages)) => {
                    if std::mem::take(&mut told) {
                        tracing::info!(server = %self.server, "connected to PostgreSQL again");
                    }
                    backoff = BACKOFF_MIN;
                    self.keep(client, messages).await;
                    self.state.send_replace(State::Connecting);
                }
                Err(failure) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%failure, "no connection to PostgreSQL; trying again until there is one");
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

    /// Until the connection ends.
    async fn keep(&self, client: Client, mut messages: Messages) {
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
