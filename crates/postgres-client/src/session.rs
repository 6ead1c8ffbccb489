//! Session: one connection to PostgreSQL.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use runtime::Runtime;
use tokio_postgres::{Client, Statement};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::server::Server;

/// Time that the client waits for the response after the statement timeout. A server that still responds cancels the
/// statement during this time.
const RESPONSE_GRACE: Duration = Duration::from_secs(1);

/// One connection and its prepared statements. Concurrent calls are pipelined: the client sends a request without
/// waiting for the responses to earlier requests. The server runs the requests one after the other.
pub struct Session {
    runtime: Runtime,
    server: Arc<Server>,
    client: Client,
    prepared: Mutex<HashMap<&'static str, Statement>>,
    /// Cancelled when [`Session::abandon`] is called.
    pub(crate) abandoned: CancellationToken,
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

    pub(crate) fn new(runtime: &Runtime, server: &Arc<Server>, client: Client) -> Self {
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
