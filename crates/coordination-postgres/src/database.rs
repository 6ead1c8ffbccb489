//! One process's connections to the database: one for what must not wait, one for what takes its turn, one that listens.

use std::sync::Arc;
use std::time::Duration;

use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Failure, Link, Server, Session};
use runtime::{Runtime, TaskSet};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{OpenError, Options, listener, schema};

/// After the server's own limit it has this long to say so.
const SILENCE: Duration = Duration::from_millis(250);

/// The connections, and the schema behind them.
pub struct Database {
    /// Made with the schema, kept for ever: all who open this place are told the same.
    pub id: String,
    pub runtime: Runtime,
    pub server: Arc<Server>,
    statement_timeout: Duration,
    /// What must not wait: renewals and reads.
    pub pulse: Link,
    /// What takes its turn.
    pub work: Link,
    /// Told when something may have changed.
    pub changes: watch::Sender<()>,
    stop: CancellationToken,
    pub tasks: TaskSet,
}

impl Database {
    /// Connects, checks the schema that [`crate::migrate`] has made, and listens on `channel`.
    ///
    /// # Errors
    /// If the URL cannot be used, the server cannot be reached, or its schema is not the one of this build.
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
            pulse: Link::start(runtime, &tasks, &server, stop.clone()),
            work: Link::start(runtime, &tasks, &server, stop.clone()),
            server,
            changes,
            stop,
            tasks,
        })
    }

    /// One more connection.
    pub(crate) fn link(&self) -> Link {
        Link::start(&self.runtime, &self.tasks, &self.server, self.stop.clone())
    }

    /// The rows that `statement` answers. Dropped, it may still be done.
    ///
    /// # Errors
    /// If the server cannot be reached, does not answer in time, or refuses the statement.
    pub async fn ask(
        &self,
        link: &Link,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
        dropped: Dropped,
    ) -> Result<Vec<Row>, Failure> {
        let mut unanswered = Unanswered { session: None, gives_up: dropped == Dropped::GivesUp };
        let asking = async {
            let session = link.session().await?;
            unanswered.session = Some(session.clone());
            let statement = session.prepare(statement).await?;
            session.client().query(&statement, parameters).await.map_err(|error| self.server.failure(&error))
        };
        let waited = self.statement_timeout + SILENCE;
        let answer = self.runtime.timeout(waited, asking).await;
        unanswered.gives_up = answer.is_none();
        answer.unwrap_or_else(|| Err(Failure::Silent { server: self.server.to_string(), waited }))
    }
}

/// What it means that nobody waits for an answer any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// The server was too slow for a limit of the caller's, and would swallow the next call, too.
    GivesUp,
    /// The caller does not want to know.
    Leaves,
}

/// A call under way: whoever gives it up gives its connection up.
struct Unanswered {
    session: Option<Arc<Session>>,
    gives_up: bool,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(session) = self.session.take().filter(|_| self.gives_up) {
            session.abandon();
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
