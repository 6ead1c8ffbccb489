//! Who uses which connection.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use postgres_client::{Failure, Link, Server, Session};
use prometheus_client::metrics::counter::Counter;
use runtime::{Runtime, TaskSet};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

/// Reads of one statement each, several of them under way on one connection.
pub(crate) struct Shared {
    links: Vec<Link>,
    next: AtomicUsize,
    /// Statements that were begun.
    pub(crate) begun: Counter,
}

impl Shared {
    pub(crate) fn start(count: usize, start: impl Fn() -> Link) -> Self {
        let links = (0..count.max(1)).map(|_| start()).collect();
        Shared { links, next: AtomicUsize::new(0), begun: Counter::default() }
    }

    /// The rows of one statement.
    pub(crate) async fn query(
        &self,
        text: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.links.len();
        let (later, first) = self.links.split_at(turn);
        // In turn, but for those that are down while another is up.
        let link = first.iter().chain(later).find(|link| link.is_up()).unwrap_or(&self.links[turn]);
        let session = link.session().await?;
        self.begun.inc();
        query(&session, text, parameters).await
    }

    /// Waits until each has been connected, or one has failed to.
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

/// Transactions: one at a time on each connection.
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

    /// A connection for the caller alone, waited for at most as long as a statement may take.
    pub(crate) async fn hold(&self) -> Result<Held<'_>, Failure> {
        let waited = self.server.statement_timeout();
        let permit = self.runtime.timeout(waited, Box::pin(self.permits.acquire())).await;
        let Some(Ok(permit)) = permit else {
            return Err(Failure::Silent { server: self.server.to_string(), waited });
        };
        let slot = Slot { pool: self, link: Some(self.take_free()), _permit: permit };
        let session = slot.link.as_ref().expect("it is taken by the drop only").session().await?;
        Ok(Held { session, in_transaction: false, _slot: slot })
    }
}

impl Exclusive {
    /// One that is up, if any is. The caller has a permit, so there is one.
    fn take_free(&self) -> Link {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.iter().position(Link::is_up).unwrap_or(0);
        free.swap_remove(at)
    }
}

/// Gives the link back, also if there is no session on it.
struct Slot<'a> {
    pool: &'a Exclusive,
    link: Option<Link>,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        // Before the permit goes.
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.link.take());
    }
}

/// A connection of one caller. If it is dropped within a transaction, the connection ends, and with it the transaction.
pub(crate) struct Held<'a> {
    session: Arc<Session>,
    in_transaction: bool,
    _slot: Slot<'a>,
}

impl Held<'_> {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// From here to [`Held::ended`] there may be a transaction.
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

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.in_transaction {
            self.session.abandon();
        }
    }
}

/// What starts links.
pub(crate) struct Starter<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) tasks: &'a TaskSet,
    pub(crate) server: &'a Arc<Server>,
    pub(crate) stop: &'a CancellationToken,
}

impl Starter<'_> {
    pub(crate) fn link(&self) -> Link {
        Link::start(self.runtime, self.tasks, self.server, self.stop.clone())
    }
}
