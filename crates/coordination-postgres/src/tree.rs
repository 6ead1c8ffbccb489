//! The coordination tree as rows of PostgreSQL.
//!
//! Each change is one call of a server function (see `migrations/0003.sql`). A single row contains the number of the
//! last change. The function locks this row until its transaction ends. In the same transaction the function checks
//! that the session of the caller is alive. The row of a session contains the session's end by the database's clock. A
//! client that finds an expired session ends the session and deletes its nodes in a separate change. A change also
//! stores an event for each node that it affects. The module [`feed`] reads these events for the watches of this
//! process, after each NOTIFY and also periodically.
//!
//! Invariants: Before a read returns a state, the watches of this process receive all events up to this state. The
//! server applies the changes of a session in the order of the session's calls.
//!
//! docs/decisions/0142-serialize-tree-changes-on-one-row.md gives the reasons for the design.

mod feed;
mod rows;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use coordination::tree::session::{self, Session, SessionId};
use coordination::tree::{
    Acl, Answer, Children, CreateMode, Created, Credentials, Done, Events, Expected, Grant, Identity, Node, NodePath,
    Op, Permissions, SessionOptions, Stat, Tree, TreeError, Trees, Watch, Watchers, allows, check_data, check_ops,
    shown,
};
use futures_util::future::BoxFuture;
use postgres_client::Link;
use postgres_client::tokio_postgres::Row;
use postgres_client::tokio_postgres::types::ToSql;
use runtime::{Runtime, TaskSet};
use tokio::sync::{Semaphore, mpsc, oneshot};

use self::feed::Feed;
use self::rows::{Found, Step};
use crate::database::{Database, OnDrop};
use crate::{OpenError, Options};

/// Allowed timeouts of a session. The database stores events for longer than the longest timeout.
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
/// Largest number of dropped sessions that wait until this process closes them. Any further dropped session ends when
/// its lease expires.
const CLOSING_MAX: usize = 64;
/// Largest number of concurrent reads. A further read waits for its turn. The time limit of this read begins after the
/// wait.
const READS_MAX: usize = 64;

/// Access of one process to the tree in a database. Its connections close after the process drops this object and all
/// its sessions.
pub struct PostgresTrees {
    inner: Arc<Inner>,
}

struct Inner {
    database: Database,
    /// Connection for reads. Renewals use another connection, because they must not wait for reads.
    reads: Link,
    reading: Semaphore,
    feed: Feed,
    /// Dropped sessions that a task closes. Each entry keeps the connections open until the task has closed the
    /// session.
    closing: mpsc::Sender<(SessionId, Arc<Inner>)>,
}

impl PostgresTrees {
    /// Connects to the server and checks the schema that [`crate::migrate`] created.
    ///
    /// # Errors
    /// Returns [`OpenError`] if the URL is invalid, if the server is unreachable, or if this build needs another
    /// schema.
    pub async fn open(runtime: &Runtime, url: &str, options: &Options) -> Result<Self, OpenError> {
        let database = Database::open(runtime, url, options, "reveille_tree").await?;
        let (closing, closed) = mpsc::channel(CLOSING_MAX);
        let (reads, reading) = (database.link(), Semaphore::new(READS_MAX));
        let inner = Arc::new(Inner { database, reads, reading, feed: Feed::default(), closing });
        inner.database.tasks.spawn("tree feed", feed::run(Arc::downgrade(&inner)));
        inner.database.tasks.spawn("tree sessions", close(closed));
        Ok(PostgresTrees { inner })
    }
}

impl fmt::Debug for PostgresTrees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresTrees({})", self.inner.database.server)
    }
}

fn stopped() -> TreeError {
    TreeError::Disconnected("this process is stopping".to_owned())
}

/// Closes dropped sessions.
async fn close(mut dropped: mpsc::Receiver<(SessionId, Arc<Inner>)>) {
    while let Some((id, inner)) = dropped.recv().await {
        if let Err(error) = inner.close(id).await {
            tracing::debug!(session = %id, %error, "cannot close a dropped session; it ends when its lease expires");
        }
    }
}

impl Trees for PostgresTrees {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        Box::pin(async move {
            let inner = &self.inner;
            let SessionOptions { timeout, credentials } = options;
            let timeout = timeout.clamp(*TIMEOUTS.start(), *TIMEOUTS.end());
            let identities: Vec<Identity> = credentials.iter().map(Credentials::identity).collect();
            let names = rows::identity_names(&identities)?;
            let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
            let sent = inner.database.runtime.monotonic();
            let opened = inner.query(&inner.database.serial, rows::OPEN, &[&names, &millis]).await?;
            let id: i64 = opened.first().and_then(|row| row.try_get(0).ok()).ok_or_else(rows::unexpected)?;
            let session = Session::new(SessionId(id), timeout, sent);
            Ok(Arc::new(PostgresTree::start(inner.clone(), session, identities)) as Arc<dyn Tree>)
        })
    }
}

impl Inner {
    async fn query(
        &self,
        link: &Link,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, TreeError> {
        let rows = self.database.query(link, statement, parameters, OnDrop::Keep).await;
        rows.map_err(|failure| TreeError::Disconnected(failure.to_string()))
    }

    /// Repeats `statement` until the server reports that no work is left.
    async fn query_until_done(
        &self,
        link: &Link,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(), TreeError> {
        let mut is_more = true;
        while is_more {
            let rows = self.query(link, statement, parameters).await?;
            is_more = rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(rows::unexpected)?;
        }
        Ok(())
    }

    /// Runs a statement on the connection for reads. If [`READS_MAX`] reads are in progress, the function first waits
    /// until another read completes. The time limit of the new read begins after this wait.
    async fn read(&self, statement: &'static str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, TreeError> {
        let _turn = self.reading.acquire().await;
        self.query(&self.reads, statement, parameters).await
    }

    async fn close(&self, id: SessionId) -> Result<(), TreeError> {
        self.query_until_done(&self.database.serial, rows::CLOSE, &[&id.0]).await
    }
}

struct PostgresTree {
    shared: Arc<Shared>,
    _tasks: TaskSet,
}

/// Capacity of the queue in which the changes of a session wait for their turn. The caller of a further change waits
/// until the queue has a free entry or the session ends.
const CHANGES_MAX: usize = 1_024;

/// State of one session. The [`PostgresTree`] and the tasks of the session share this state.
struct Shared {
    inner: Arc<Inner>,
    session: Session,
    identities: Vec<Identity>,
    changes: mpsc::Sender<PendingChange>,
    /// Number of changes that callers have requested.
    requested: AtomicU64,
    /// Number of the requested changes whose outcome is final. The server has applied such a change or will never apply
    /// it. The outcome of the other requested changes is unknown.
    completed: AtomicU64,
    is_closed: AtomicBool,
}

/// Change that waits for its turn, with the channel for its result.
struct PendingChange {
    steps: Vec<Step>,
    result: oneshot::Sender<Result<Changed, TreeError>>,
}

/// Results of a change's steps, or the failed step and its error.
type Changed = Result<Vec<Done>, (usize, TreeError)>;

impl PostgresTree {
    fn start(inner: Arc<Inner>, session: Session, identities: Vec<Identity>) -> Self {
        let tasks = TaskSet::new(&inner.database.runtime);
        inner.feed.join(session.clone());
        let (renewed, renewing) = (session.clone(), inner.clone());
        tasks.spawn("tree session", async move {
            let ping = || -> BoxFuture<'static, Result<(), TreeError>> {
                let (inner, id) = (renewing.clone(), renewed.id().0);
                Box::pin(async move {
                    let rows = inner.query(&inner.database.urgent, rows::RENEW, &[&id]).await?;
                    let lives = rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(rows::unexpected)?;
                    if lives { Ok(()) } else { Err(TreeError::SessionLost) }
                })
            };
            session::keep(&renewing.database.runtime, &renewed, ping).await;
            renewing.feed.leave(renewed.id());
        });
        let (changes, pending) = mpsc::channel(CHANGES_MAX);
        let shared = Arc::new(Shared {
            inner,
            session,
            identities,
            changes,
            requested: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        tasks.spawn("tree changes", shared.clone().apply_changes(pending));
        PostgresTree { shared, _tasks: tasks }
    }
}

impl Shared {
    /// Awaits `request`. Returns an error if the session ends before `request` completes.
    async fn within<T>(&self, request: impl Future<Output = Result<T, TreeError>>) -> Result<T, TreeError> {
        if !self.session.is_valid(self.inner.database.runtime.monotonic()) {
            return Err(TreeError::SessionLost);
        }
        let response = tokio::select! {
            biased;
            () = self.session.lost() => Err(TreeError::SessionLost),
            response = request => response,
        };
        match &response {
            Err(TreeError::SessionLost) => self.session.lose(),
            Err(TreeError::Disconnected(_)) => self.session.suspend(),
            Ok(_) | Err(_) => {}
        }
        response
    }

    /// Applies changes one after another, in the order of the requests.
    async fn apply_changes(self: Arc<Self>, mut pending: mpsc::Receiver<PendingChange>) {
        let Shared { inner, session, identities, .. } = &*self;
        let (mut taken, mut call) = (0, 0);
        while let Some(PendingChange { steps, result }) = pending.recv().await {
            taken += 1;
            if result.is_closed() {
                continue;
            }
            call += 1;
            let changed = rows::Change::new(identities, &steps).query(inner, session.id(), call).await;
            if changed.is_ok() {
                // If an earlier change got no response, the server either applied it before this change or will never
                // apply it.
                self.completed.store(taken, Ordering::Release);
            }
            if let Ok(Ok((zxid, _))) = &changed {
                // The function ignores a failure to fetch the events of the change, because the server has already
                // applied the change. A later read fetches the events.
                drop(inner.feed.catch_up(inner, *zxid).await);
            }
            drop(result.send(changed.map(|changed| changed.map(|(_, done)| done))));
        }
    }

    /// Requests a change. An error contains the index of the step that failed.
    async fn change(&self, steps: Vec<Step>) -> Changed {
        let changed = self.within(async {
            let (result, response) = oneshot::channel();
            let permit = self.changes.reserve().await.map_err(|_| stopped())?;
            // The counter `requested` includes only changes that enter the queue, because `apply_changes` also counts
            // only these changes.
            self.requested.fetch_add(1, Ordering::AcqRel);
            permit.send(PendingChange { steps, result });
            response.await.unwrap_or_else(|_| Err(stopped()))
        });
        changed.await.map_err(|error| (0, error))?
    }

    /// Requests a change of one step.
    async fn change_one(&self, step: Step) -> Result<Done, TreeError> {
        let done = self.change(vec![step]).await.map_err(|(_, error)| error)?;
        done.into_iter().next().ok_or_else(rows::unexpected)
    }

    /// Works like [`Shared::within`], but polls the read in a separate task. The read therefore continues even while
    /// the caller does not poll it.
    fn within_detached<T: Send + 'static>(
        &self,
        read: impl Future<Output = Result<T, TreeError>> + Send + 'static,
    ) -> impl Future<Output = Result<T, TreeError>> {
        let response = self.inner.database.runtime.detached("tree read", read);
        self.within(async { response.await.unwrap_or_else(|| Err(stopped())) })
    }

    /// Reads a node. The watches receive all events up to the node's state before the function returns the node.
    async fn read(&self, statement: &'static str, path: &NodePath) -> Result<Found, TreeError> {
        let (inner, path) = (self.inner.clone(), path.clone());
        self.within_detached(async move {
            let found = Found::query(&inner, statement, &path).await?;
            inner.feed.catch_up(&inner, found.zxid).await?;
            Ok(found)
        })
        .await
    }

    /// Works like [`Shared::read`], and also registers a watch for all events after the read.
    async fn read_and<W: Send + 'static>(
        &self,
        statement: &'static str,
        path: &NodePath,
        watch: impl FnOnce(&mut Watchers, SessionId, &NodePath) -> W + Send + 'static,
    ) -> Result<(Found, W), TreeError> {
        let (inner, id, path) = (self.inner.clone(), self.session.id(), path.clone());
        self.within_detached(async move {
            let mut turn = inner.feed.turn().await;
            let found = Found::query(&inner, statement, &path).await?;
            inner.feed.follow(&mut turn, &inner, found.zxid).await?;
            let watch = inner.feed.watch(id, |watchers| watch(watchers, id, &path))?;
            Ok((found, watch))
        })
        .await
    }

    fn readable(&self, found: Found) -> Result<(Node, Vec<String>), TreeError> {
        let Found { node, grants, names, .. } = found;
        let node = node.ok_or(TreeError::NoNode)?;
        if allows(&grants, &self.identities, Permissions::READ) { Ok((node, names)) } else { Err(TreeError::Forbidden) }
    }
}

impl Tree for PostgresTree {
    fn session(&self) -> &Session {
        &self.shared.session
    }

    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created> {
        let path = path.clone();
        Box::pin(async move {
            check_data(data.len())?;
            match self.shared.change_one(Step::Op(Op::Create { path, data, mode, acl })).await? {
                Done::Create(created) => Ok(created),
                _ => Err(rows::unexpected()),
            }
        })
    }

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat> {
        let path = path.clone();
        Box::pin(async move {
            check_data(data.len())?;
            match self.shared.change_one(Step::Op(Op::Set { path, data, expected })).await? {
                Done::Set(stat) => Ok(stat),
                _ => Err(rows::unexpected()),
            }
        })
    }

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()> {
        let path = path.clone();
        Box::pin(async move { self.shared.change_one(Step::Op(Op::Delete { path, expected })).await.map(drop) })
    }

    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>> {
        Box::pin(async move {
            check_ops(&ops)?;
            let done = self.shared.change(ops.into_iter().map(Step::Op).collect()).await;
            done.map_err(|(at, error)| match error {
                TreeError::SessionLost | TreeError::Disconnected(_) => error,
                step_error => TreeError::Multi { at, source: Box::new(step_error) },
            })
        })
    }

    fn get(&self, path: &NodePath) -> Answer<'_, Node> {
        let path = path.clone();
        Box::pin(async move { Ok(self.shared.readable(self.shared.read(rows::GET, &path).await?)?.0) })
    }

    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>> {
        let path = path.clone();
        Box::pin(async move { Ok(self.shared.read(rows::EXISTS, &path).await?.node.map(|node| node.stat)) })
    }

    fn children(&self, path: &NodePath) -> Answer<'_, Children> {
        let path = path.clone();
        Box::pin(async move {
            let (node, names) = self.shared.readable(self.shared.read(rows::CHILDREN, &path).await?)?;
            Ok(Children { names, stat: node.stat })
        })
    }

    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)> {
        let path = path.clone();
        Box::pin(async move {
            let (found, watch) = self.shared.read_and(rows::GET, &path, Watchers::node).await?;
            Ok((self.shared.readable(found)?.0, watch))
        })
    }

    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)> {
        let path = path.clone();
        Box::pin(async move {
            let (found, watch) = self.shared.read_and(rows::EXISTS, &path, Watchers::node).await?;
            Ok((found.node.map(|node| node.stat), watch))
        })
    }

    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)> {
        let path = path.clone();
        Box::pin(async move {
            let (found, watch) = self.shared.read_and(rows::CHILDREN, &path, Watchers::children).await?;
            let (node, names) = self.shared.readable(found)?;
            Ok((Children { names, stat: node.stat }, watch))
        })
    }

    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events> {
        let path = path.clone();
        Box::pin(async move { Ok(self.shared.read_and(rows::EXISTS, &path, Watchers::all).await?.1) })
    }

    fn sync(&self) -> Answer<'_, ()> {
        Box::pin(async {
            if self.shared.requested.load(Ordering::Acquire) != self.shared.completed.load(Ordering::Acquire) {
                self.shared.change(Vec::new()).await.map_err(|(_, error)| error)?;
            }
            self.shared.read(rows::EXISTS, &NodePath::root()).await.map(drop)
        })
    }

    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>> {
        let path = path.clone();
        Box::pin(async move {
            let found = self.shared.read(rows::EXISTS, &path).await?;
            found.node.ok_or(TreeError::NoNode)?;
            shown(found.grants, &self.shared.identities)
        })
    }

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat> {
        let path = path.clone();
        Box::pin(async move {
            match self.shared.change_one(Step::SetAcl { path, acl }).await? {
                Done::Set(stat) => Ok(stat),
                _ => Err(rows::unexpected()),
            }
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.shared.session.lose();
            if self.shared.is_closed.load(Ordering::Acquire) {
                return Ok(());
            }
            self.shared.inner.close(self.shared.session.id()).await?;
            self.shared.is_closed.store(true, Ordering::Release);
            Ok(())
        })
    }
}

impl Drop for PostgresTree {
    fn drop(&mut self) {
        self.shared.session.lose();
        self.shared.inner.feed.leave(self.shared.session.id());
        if !self.shared.is_closed.load(Ordering::Acquire) {
            // If the queue of dropped sessions is full, this process does not close the session. The session then ends
            // when its lease expires.
            let _full = self.shared.inner.closing.try_send((self.shared.session.id(), self.shared.inner.clone()));
        }
    }
}
