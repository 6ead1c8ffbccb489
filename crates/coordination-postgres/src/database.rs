//! Connections of one process to the database. The first connection is for urgent requests. The second connection is
//! for changes, which run one at a time. The third connection receives notifications.

use std::sync::Arc;
use std::time::Duration;

use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Failure, Link, Server, Session};
use runtime::{Runtime, TaskSet};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{OpenError, Options, listener, schema};

/// Time that a client waits beyond the statement timeout, so that it receives the server's own report of the timeout.
const REPORT_GRACE: Duration = Duration::from_millis(250);

/// Connections to a database whose schema this build supports.
pub struct Database {
    /// Id of the schema. The migration creates it together with the schema, and it never changes. All processes that
    /// open this database get the same id.
    pub id: String,
    /// Runtime that the connections use for their tasks and time limits.
    pub runtime: Runtime,
    /// Address and connection options of the server.
    pub server: Arc<Server>,
    statement_timeout: Duration,
    /// Connection for renewals and reads, because these requests must not wait for changes.
    pub urgent: Link,
    /// Connection for changes, which run one at a time.
    pub serial: Link,
    /// Channel on which the listener reports that data may have changed.
    pub changes: watch::Sender<()>,
    stop: CancellationToken,
    /// Tasks of the connections, and tasks of the engine that uses the connections. A drop of the [`Database`] aborts
    /// these tasks.
    pub tasks: TaskSet,
}

impl Database {
    /// Connects to the server, checks the schema that [`crate::migrate`] created, and listens on the notification
    /// channel `channel`.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the URL is invalid, if the server is unreachable, or if this build needs another
    /// schema.
    pub async fn open(
        runtime: &Runtime,
        url: &str,
        options: &Options,
        channel: &'static str,
    ) -> Result<Self, OpenError> {
        let server = options.server(url)?;
        let id = schema::check(runtime, &server).await?;
        let (tasks, stop) = (TaskSet::new(runtime), CancellationToken::new());
        let changes = watch::Sender::new(());
        let listening = listener::run(runtime.clone(), server.clone(), channel, changes.clone(), stop.clone());
        tasks.spawn("coordination listener", listening);
        Ok(Database {
            id,
            runtime: runtime.clone(),
            statement_timeout: options.statement_timeout,
            urgent: Link::start(runtime, &tasks, &server, stop.clone()),
            serial: Link::start(runtime, &tasks, &server, stop.clone()),
            server,
            changes,
            stop,
            tasks,
        })
    }

    /// Opens another connection.
    pub(crate) fn link(&self) -> Link {
        Link::start(&self.runtime, &self.tasks, &self.server, self.stop.clone())
    }

    /// Runs `statement` and returns its rows. If the caller drops the future, the server may still execute the
    /// statement.
    ///
    /// # Errors
    /// Returns [`Failure`] if the server is unreachable, does not respond in time, or rejects the statement.
    pub async fn query(
        &self,
        link: &Link,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
        on_drop: OnDrop,
    ) -> Result<Vec<Row>, Failure> {
        let mut in_flight = InFlight { session: None, is_abandoned: on_drop == OnDrop::Abandon };
        let querying = async {
            let session = link.session().await?;
            in_flight.session = Some(session.clone());
            let statement = session.prepare(statement).await?;
            session.client().query(&statement, parameters).await.map_err(|error| self.server.failure(&error))
        };
        let waited = self.statement_timeout + REPORT_GRACE;
        let response = self.runtime.timeout(waited, querying).await;
        in_flight.is_abandoned = response.is_none();
        response.unwrap_or_else(|| Err(Failure::Silent { server: self.server.to_string(), waited }))
    }
}

/// Action on a connection when a caller drops its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnDrop {
    /// Closes the connection. The server has exceeded a time limit of the caller, so the server would also delay the
    /// next request.
    Abandon,
    /// Keeps the connection. The caller no longer needs the response, but the server has not exceeded a time limit.
    Keep,
}

/// Request in progress. A drop of this value closes the connection if the caller has abandoned the request.
struct InFlight {
    session: Option<Arc<Session>>,
    is_abandoned: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(session) = self.session.take().filter(|_| self.is_abandoned) {
            session.abandon();
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
