//! The tree on PostgreSQL's rows.
//!
//! Each change is one call of a function on the server (see `migrations/0003.sql`), which holds the one row with the last change's
//! number until it commits, and checks in the same transaction that its session still lives. A session's end is in its row, by the
//! database's clock; whoever finds it past, ends the session and its nodes in a change of its own. A change notes what it did to which
//! node; [`feed`] reads these notes for the watches of this process, woken by NOTIFY and now and then without it.
//!
//! Always true here: a read tells its watches what happened up to it before it answers; of a session's changes none is made after a later
//! one.

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
use self::rows::{Asked, Found};
use crate::database::{Database, Dropped};
use crate::{OpenError, Options};

/// What a session's timeout may be; events are kept for longer.
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
/// Sessions that were dropped and wait to be closed. Of more, some end by their leases.
const CLOSING_MAX: usize = 64;
/// Reads under way at once. Their limits in time count from when they are.
const READS_MAX: usize = 64;

/// One process's way to the tree in a database. Dropped with the last of its sessions, it closes its connections.
pub struct PostgresTrees {
    inner: Arc<Inner>,
}

struct Inner {
    database: Database,
    /// Apart from renewals, which are not to wait for them.
    reads: Link,
    reading: Semaphore,
    feed: Feed,
    /// What is closed keeps the connections until then.
    closing: mpsc::Sender<(SessionId, Arc<Inner>)>,
}

impl PostgresTrees {
    /// Connects, and checks the schema that [`crate::migrate`] has made.
    ///
    /// # Errors
    /// If the URL cannot be used, the server cannot be reached, or its schema is not the one of this build.
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

/// Closes what was dropped.
async fn close(mut dropped: mpsc::Receiver<(SessionId, Arc<Inner>)>) {
    while let Some((id, inner)) = dropped.recv().await {
        if let Err(error) = inner.close(id).await {
            tracing::debug!(session = %id, %error, "a session that was dropped ends by its lease");
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
            let who = rows::who_of(&identities)?;
            let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
            let sent = inner.database.runtime.monotonic();
            let opened = inner.ask(&inner.database.work, rows::OPEN, &[&who, &millis]).await?;
            let id: i64 = opened.first().and_then(|row| row.try_get(0).ok()).ok_or_else(rows::unexpected)?;
            let session = Session::new(SessionId(id), timeout, sent);
            Ok(Arc::new(PostgresTree::keep(inner.clone(), session, identities)) as Arc<dyn Tree>)
        })
    }
}

impl Inner {
    async fn ask(
        &self,
        link: &Link,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, TreeError> {
        let asked = self.database.ask(link, statement, parameters, Dropped::Leaves).await;
        asked.map_err(|failure| TreeError::Disconnected(failure.to_string()))
    }

    /// What answers whether there is more to do, until there is not.
    async fn ask_until_done(
        &self,
        link: &Link,
        statement: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<(), TreeError> {
        let mut is_more = true;
        while is_more {
            let rows = self.ask(link, statement, parameters).await?;
            is_more = rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(rows::unexpected)?;
        }
        Ok(())
    }

    /// Those of a burst wait here, where no limit counts, and not on the connection.
    async fn read(&self, statement: &'static str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, TreeError> {
        let _turn = self.reading.acquire().await;
        self.ask(&self.reads, statement, parameters).await
    }

    async fn close(&self, id: SessionId) -> Result<(), TreeError> {
        self.ask_until_done(&self.database.work, rows::CLOSE, &[&id.0]).await
    }
}

struct PostgresTree {
    kept: Arc<Kept>,
    _tasks: TaskSet,
}

/// Changes of one session that wait for their turn. The caller of a further change waits until a place is free or the session
/// ends.
const CHANGES_MAX: usize = 1_024;

/// One session.
struct Kept {
    inner: Arc<Inner>,
    session: Session,
    identities: Vec<Identity>,
    changes: mpsc::Sender<Asking>,
    /// Changes that were asked for.
    asked: AtomicU64,
    /// As many of them are made or never will be; of the others nobody knows.
    settled: AtomicU64,
    is_closed: AtomicBool,
}

/// A change, and who wants to know.
struct Asking {
    steps: Vec<Asked>,
    answer: oneshot::Sender<Result<Changed, TreeError>>,
}

/// What a change did; or which step failed.
type Changed = Result<Vec<Done>, (usize, TreeError)>;

impl PostgresTree {
    fn keep(inner: Arc<Inner>, session: Session, identities: Vec<Identity>) -> Self {
        let tasks = TaskSet::new(&inner.database.runtime);
        inner.feed.join(session.clone());
        let (kept, renewing) = (session.clone(), inner.clone());
        tasks.spawn("tree session", async move {
            let ping = || -> BoxFuture<'static, Result<(), TreeError>> {
                let (inner, id) = (renewing.clone(), kept.id().0);
                Box::pin(async move {
                    let rows = inner.ask(&inner.database.pulse, rows::RENEW, &[&id]).await?;
                    let lives = rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(rows::unexpected)?;
                    if lives { Ok(()) } else { Err(TreeError::SessionLost) }
                })
            };
            session::keep(&renewing.database.runtime, &kept, ping).await;
            renewing.feed.leave(kept.id());
        });
        let (changes, asked) = mpsc::channel(CHANGES_MAX);
        let kept = Arc::new(Kept {
            inner,
            session,
            identities,
            changes,
            asked: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        tasks.spawn("tree changes", kept.clone().make(asked));
        PostgresTree { kept, _tasks: tasks }
    }
}

impl Kept {
    /// What `request` answers, unless the session ends first.
    async fn within<T>(&self, request: impl Future<Output = Result<T, TreeError>>) -> Result<T, TreeError> {
        if !self.session.is_valid(self.inner.database.runtime.monotonic()) {
            return Err(TreeError::SessionLost);
        }
        let answer = tokio::select! {
            biased;
            () = self.session.lost() => Err(TreeError::SessionLost),
            answer = request => answer,
        };
        match &answer {
            Err(TreeError::SessionLost) => self.session.lose(),
            Err(TreeError::Disconnected(_)) => self.session.suspend(),
            Ok(_) | Err(_) => {}
        }
        answer
    }

    /// Makes changes one after the other, in the order in which they were asked for.
    async fn make(self: Arc<Self>, mut asked: mpsc::Receiver<Asking>) {
        let Kept { inner, session, identities, .. } = &*self;
        let (mut taken, mut call) = (0, 0);
        while let Some(Asking { steps, answer }) = asked.recv().await {
            taken += 1;
            if answer.is_closed() {
                continue;
            }
            call += 1;
            let changed = rows::Change::new(identities, &steps).ask(inner, session.id(), call).await;
            if changed.is_ok() {
                // Any that had no answer was before this one, or never comes.
                self.settled.store(taken, Ordering::Release);
            }
            if let Ok(Ok((zxid, _))) = &changed {
                // The change was made, whether or not its own events can be had now: a read will want them.
                drop(inner.feed.catch_up(inner, *zxid).await);
            }
            drop(answer.send(changed.map(|changed| changed.map(|(_, done)| done))));
        }
    }

    /// With an error, which step's it is.
    async fn change(&self, steps: Vec<Asked>) -> Changed {
        let changed = self.within(async {
            let (answer, answered) = oneshot::channel();
            let permit = self.changes.reserve().await.map_err(|_| stopped())?;
            // Only a change that is certain to enter the queue counts; `make` counts the same changes.
            self.asked.fetch_add(1, Ordering::AcqRel);
            permit.send(Asking { steps, answer });
            answered.await.unwrap_or_else(|_| Err(stopped()))
        });
        changed.await.map_err(|error| (0, error))?
    }

    /// A change of one step.
    async fn change_one(&self, step: Asked) -> Result<Done, TreeError> {
        let done = self.change(vec![step]).await.map_err(|(_, error)| error)?;
        done.into_iter().next().ok_or_else(rows::unexpected)
    }

    /// As [`Kept::within`]. Reads wait for one another, but for no caller.
    fn within_detached<T: Send + 'static>(
        &self,
        read: impl Future<Output = Result<T, TreeError>> + Send + 'static,
    ) -> impl Future<Output = Result<T, TreeError>> {
        let answer = self.inner.database.runtime.detached("tree read", read);
        self.within(async { answer.await.unwrap_or_else(|| Err(stopped())) })
    }

    /// What a node is, and what its watches are told of before.
    async fn read(&self, statement: &'static str, path: &NodePath) -> Result<Found, TreeError> {
        let (inner, path) = (self.inner.clone(), path.clone());
        self.within_detached(async move {
            let found = Found::ask(&inner, statement, &path).await?;
            inner.feed.catch_up(&inner, found.zxid).await?;
            Ok(found)
        })
        .await
    }

    /// As [`PostgresTree::read`]; `watch` is what hears of all that happens after it.
    async fn read_and<W: Send + 'static>(
        &self,
        statement: &'static str,
        path: &NodePath,
        watch: impl FnOnce(&mut Watchers, SessionId, &NodePath) -> W + Send + 'static,
    ) -> Result<(Found, W), TreeError> {
        let (inner, id, path) = (self.inner.clone(), self.session.id(), path.clone());
        self.within_detached(async move {
            let mut turn = inner.feed.turn().await;
            let found = Found::ask(&inner, statement, &path).await?;
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
        &self.kept.session
    }

    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created> {
        let path = path.clone();
        Box::pin(async move {
            check_data(data.len())?;
            match self.kept.change_one(Asked::Op(Op::Create { path, data, mode, acl })).await? {
                Done::Create(created) => Ok(created),
                _ => Err(rows::unexpected()),
            }
        })
    }

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat> {
        let path = path.clone();
        Box::pin(async move {
            check_data(data.len())?;
            match self.kept.change_one(Asked::Op(Op::Set { path, data, expected })).await? {
                Done::Set(stat) => Ok(stat),
                _ => Err(rows::unexpected()),
            }
        })
    }

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()> {
        let path = path.clone();
        Box::pin(async move { self.kept.change_one(Asked::Op(Op::Delete { path, expected })).await.map(drop) })
    }

    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>> {
        Box::pin(async move {
            check_ops(&ops)?;
            let done = self.kept.change(ops.into_iter().map(Asked::Op).collect()).await;
            done.map_err(|(at, error)| match error {
                TreeError::SessionLost | TreeError::Disconnected(_) => error,
                of_a_step => TreeError::Multi { at, source: Box::new(of_a_step) },
            })
        })
    }

    fn get(&self, path: &NodePath) -> Answer<'_, Node> {
        let path = path.clone();
        Box::pin(async move { Ok(self.kept.readable(self.kept.read(rows::GET, &path).await?)?.0) })
    }

    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>> {
        let path = path.clone();
        Box::pin(async move { Ok(self.kept.read(rows::EXISTS, &path).await?.node.map(|node| node.stat)) })
    }

    fn children(&self, path: &NodePath) -> Answer<'_, Children> {
        let path = path.clone();
        Box::pin(async move {
            let (node, names) = self.kept.readable(self.kept.read(rows::CHILDREN, &path).await?)?;
            Ok(Children { names, stat: node.stat })
        })
    }

    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)> {
        let path = path.clone();
        Box::pin(async move {
            let (found, watch) = self.kept.read_and(rows::GET, &path, Watchers::node).await?;
            Ok((self.kept.readable(found)?.0, watch))
        })
    }

    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)> {
        let path = path.clone();
        Box::pin(async move {
            let (found, watch) = self.kept.read_and(rows::EXISTS, &path, Watchers::node).await?;
            Ok((found.node.map(|node| node.stat), watch))
        })
    }

    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)> {
        let path = path.clone();
        Box::pin(async move {
            let (found, watch) = self.kept.read_and(rows::CHILDREN, &path, Watchers::children).await?;
            let (node, names) = self.kept.readable(found)?;
            Ok((Children { names, stat: node.stat }, watch))
        })
    }

    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events> {
        let path = path.clone();
        Box::pin(async move { Ok(self.kept.read_and(rows::EXISTS, &path, Watchers::all).await?.1) })
    }

    fn sync(&self) -> Answer<'_, ()> {
        Box::pin(async {
            if self.kept.asked.load(Ordering::Acquire) != self.kept.settled.load(Ordering::Acquire) {
                self.kept.change(Vec::new()).await.map_err(|(_, error)| error)?;
            }
            self.kept.read(rows::EXISTS, &NodePath::root()).await.map(drop)
        })
    }

    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>> {
        let path = path.clone();
        Box::pin(async move {
            let found = self.kept.read(rows::EXISTS, &path).await?;
            found.node.ok_or(TreeError::NoNode)?;
            shown(found.grants, &self.kept.identities)
        })
    }

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat> {
        let path = path.clone();
        Box::pin(async move {
            match self.kept.change_one(Asked::SetAcl { path, acl }).await? {
                Done::Set(stat) => Ok(stat),
                _ => Err(rows::unexpected()),
            }
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.kept.session.lose();
            if self.kept.is_closed.load(Ordering::Acquire) {
                return Ok(());
            }
            self.kept.inner.close(self.kept.session.id()).await?;
            self.kept.is_closed.store(true, Ordering::Release);
            Ok(())
        })
    }
}

impl Drop for PostgresTree {
    fn drop(&mut self) {
        self.kept.session.lose();
        self.kept.inner.feed.leave(self.kept.session.id());
        if !self.kept.is_closed.load(Ordering::Acquire) {
            // If too many are waiting, its lease ends it.
            let _full = self.kept.inner.closing.try_send((self.kept.session.id(), self.kept.inner.clone()));
        }
    }
}
