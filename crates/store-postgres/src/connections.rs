//! Connections of the store: shared connections for reads, and exclusive connections for transactions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Admission, Failure, Link, Probe, Server, Session};
use prometheus_client::metrics::counter::Counter;
use runtime::{Runtime, TaskSet};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

/// Shared connections for reads that consist of one statement. Each connection pipelines several reads.
pub(crate) struct Shared {
    links: Vec<Link>,
    next: AtomicUsize,
    /// Number of statements that the store has sent on these connections.
    pub(crate) begun: Counter,
}

impl Shared {
    pub(crate) fn start(count: usize, start: impl Fn() -> Link) -> Self {
        let links = (0..count.max(1)).map(|_| start()).collect();
        Shared { links, next: AtomicUsize::new(0), begun: Counter::default() }
    }

    /// Runs one statement and returns its rows.
    pub(crate) async fn query(
        &self,
        text: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        let session = self.session().await?;
        query(&session, text, parameters).await
    }

    /// Runs one statement, whose text another call is unlikely to repeat, and returns its rows. The connection prepares
    /// the statement for this call only.
    pub(crate) async fn query_once(&self, text: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failure> {
        let session = self.session().await?;
        session.within(session.client().query(text, parameters)).await
    }

    /// Returns the session for the next statement, and counts the statement.
    async fn session(&self) -> Result<Arc<Session>, Failure> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.links.len();
        let (later, first) = self.links.split_at(turn);
        // The store uses the links in turn (round robin). It skips a link without a connection if another link has one.
        let link = first.iter().chain(later).find(|link| link.is_up()).unwrap_or(&self.links[turn]);
        let session = link.session().await?;
        self.begun.inc();
        Ok(session)
    }

    /// Waits until every link has a connection, or until one link has failed to connect.
    pub(crate) async fn connected(&self) -> Result<(), Failure> {
        for link in &self.links {
            link.session().await?;
        }
        Ok(())
    }

    pub(crate) fn is_up(&self) -> bool {
        self.links.iter().any(Link::is_up)
    }
}

pub(crate) async fn query(
    session: &Session,
    text: &'static str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, Failure> {
    let statement = session.prepare(text).await?;
    session.within(session.client().query(&statement, parameters)).await
}

/// Exclusive connections for transactions. Each connection runs one transaction at a time.
pub(crate) struct Exclusive {
    runtime: Runtime,
    server: Arc<Server>,
    free: Mutex<Vec<Link>>,
    permits: Semaphore,
}

impl Exclusive {
    pub(crate) fn start(runtime: &Runtime, server: &Arc<Server>, count: usize, start: impl Fn() -> Link) -> Self {
        let links: Vec<Link> = (0..count.max(1)).map(|_| start()).collect();
        let permits = Semaphore::new(links.len());
        Exclusive { runtime: runtime.clone(), server: server.clone(), free: Mutex::new(links), permits }
    }

    /// Acquires a connection for exclusive use by the caller. Waits for a free connection for at most the statement
    /// timeout.
    pub(crate) async fn acquire(&self) -> Result<ConnectionGuard<'_>, Failure> {
        let waited = self.server.statement_timeout();
        let permit = self.runtime.timeout(waited, Box::pin(self.permits.acquire())).await;
        let Some(Ok(permit)) = permit else {
            return Err(Failure::Silent { server: self.server.to_string(), waited });
        };
        let slot = Slot { pool: self, link: Some(self.take_free()), _permit: permit };
        let session = slot.link.as_ref().expect("a slot contains its link until the slot is dropped").session().await?;
        Ok(ConnectionGuard { session, in_transaction: false, _slot: slot })
    }
}

impl Exclusive {
    /// Takes a free link, preferably a link with a connection. The caller has a permit, so at least one link is free.
    fn take_free(&self) -> Link {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.iter().position(Link::is_up).unwrap_or(0);
        free.swap_remove(at)
    }
}

/// Guard of a link. A drop of the guard releases the link, even if the link has no session.
struct Slot<'a> {
    pool: &'a Exclusive,
    link: Option<Link>,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        // The drop releases the link before the permit, so that a caller with a permit always finds a free link.
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.link.take());
    }
}

/// Guard of a connection that one caller uses exclusively. If the caller drops the guard within a transaction, the
/// connection and its transaction end.
pub(crate) struct ConnectionGuard<'a> {
    session: Arc<Session>,
    in_transaction: bool,
    _slot: Slot<'a>,
}

impl ConnectionGuard<'_> {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Records that a transaction may be open from this call until [`ConnectionGuard::ended`].
    pub(crate) fn begins(&mut self) {
        self.in_transaction = true;
    }

    pub(crate) fn ended(&mut self) {
        self.in_transaction = false;
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), Failure> {
        self.session.within(self.session.client().batch_execute("rollback")).await?;
        self.in_transaction = false;
        Ok(())
    }
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        if self.in_transaction {
            self.session.abandon();
        }
    }
}

/// Arguments of [`Link::start_admitted`], which starts a link to the server.
pub(crate) struct Starter<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) tasks: &'a TaskSet,
    pub(crate) server: &'a Arc<Server>,
    pub(crate) probe: &'a Probe,
    pub(crate) admission: Admission,
    pub(crate) stop: &'a CancellationToken,
}

impl Starter<'_> {
    pub(crate) fn link(&self) -> Link {
        Link::start_admitted(
            self.runtime,
            self.tasks,
            self.server,
            self.probe,
            self.admission.clone(),
            self.stop.clone(),
        )
    }
}
