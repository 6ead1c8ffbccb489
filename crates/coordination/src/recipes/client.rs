//! Opens the sessions of a process and removes its abandoned nodes.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use runtime::{Runtime, TaskSet};
use tokio::sync::{Mutex, Notify};

use super::node::{AbandonedNode, create_node, stopped};
use crate::tree::{Acl, CreateMode, NodePath, SessionId, SessionOptions, Tree, TreeError, Trees, Zxid};

/// Time between two attempts of a request that got no response.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Longest time for which [`Client::close`] waits for the engine.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(2);

/// Handle of a tree for one process. It opens a new session when a session is lost. A clone of the handle is cheap.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    trees: Arc<dyn Trees>,
    options: SessionOptions,
    /// Present session. A task locks this mutex while it opens a session.
    current: Mutex<Option<Arc<dyn Tree>>>,
    /// Record of the last node that this client created without a GUID in the name. The record contains the session of
    /// the node and the change that created the node. A task locks this mutex while it creates such a node.
    last_plain: Mutex<(SessionId, Zxid)>,
    cleanup: Arc<Cleanup>,
    _tasks: TaskSet,
}

/// Queue of abandoned nodes for the cleanup task, with a signal for each added node and each removed node.
#[derive(Default)]
struct Cleanup {
    queue: std::sync::Mutex<CleanupQueue>,
    added: Notify,
    removed: Notify,
}

#[derive(Default)]
struct CleanupQueue {
    waiting: Vec<AbandonedNode>,
    /// Number of nodes that the cleanup task has not removed yet.
    count: usize,
}

impl Client {
    /// Creates a client. The client opens a session of `trees` when it needs a session.
    #[must_use]
    pub fn new(runtime: &Runtime, trees: Arc<dyn Trees>, options: SessionOptions) -> Self {
        let (cleanup, tasks) = (Arc::<Cleanup>::default(), TaskSet::new(runtime));
        tasks.spawn("remains", remove(runtime.clone(), cleanup.clone()));
        let (runtime, current) = (runtime.clone(), Mutex::default());
        let last_plain = Mutex::new((SessionId(0), Zxid::default()));
        Client(Arc::new(Inner { runtime, trees, options, current, last_plain, cleanup, _tasks: tasks }))
    }

    /// Returns the runtime whose tasks, clocks and randomness this client and its recipes use.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// Returns the access list for nodes whose creator names none ([`SessionOptions::default_acl`]).
    #[must_use]
    pub fn default_acl(&self) -> Acl {
        self.0.options.default_acl()
    }

    /// Returns the present session. Opens another session if no session exists or the present session was lost.
    ///
    /// # Errors
    /// Returns the same errors as [`Trees::open`].
    pub async fn session(&self) -> Result<Arc<dyn Tree>, TreeError> {
        let inner = self.0.clone();
        let opened = self.runtime().detached("tree session", async move { inner.session().await });
        opened.await.unwrap_or_else(|| Err(stopped()))
    }

    /// Opens a session. Repeats the attempt for up to `limit` while the engine does not respond, because a program may
    /// start before its engine.
    ///
    /// # Errors
    /// Returns the error of [`Client::session`] at the last attempt.
    pub async fn connect(&self, limit: Duration) -> Result<(), TreeError> {
        let mut last = TreeError::Disconnected(format!("the client could not open a session within {limit:?}"));
        let opening = async {
            loop {
                match self.session().await {
                    Err(error) if error.is_retryable() => last = error,
                    opened => return opened.map(drop),
                }
                self.back_off().await;
            }
        };
        let opened = self.runtime().timeout(limit, opening).await;
        opened.unwrap_or(Err(last))
    }

    /// Creates a persistent node with `data`, and its missing parents, through the session of `tree`. Does nothing if
    /// the node exists.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`], except [`TreeError::Disconnected`].
    pub async fn make(&self, tree: &dyn Tree, path: &NodePath, data: Bytes, acl: &Acl) -> Result<(), TreeError> {
        create_node(self, tree, path, data, CreateMode::Persistent, acl).await
    }

    /// Creates a persistent node without data, and its missing parents. Does nothing if the node exists.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`], except [`TreeError::Disconnected`] once a session is open.
    pub async fn ensure(&self, path: &NodePath, acl: &Acl) -> Result<(), TreeError> {
        let tree = self.session().await?;
        self.make(&*tree, path, Bytes::new(), acl).await
    }

    /// Waits until the cleanup task has removed all abandoned nodes, and then closes the session. The locks and the
    /// ephemeral nodes of the session then also end. Waits for the engine for at most 2 s.
    ///
    /// # Errors
    /// Returns the same errors as [`Tree::close`]. Returns [`TreeError::Disconnected`] if the engine does not respond in
    /// time. After a drop of the client, the engine then ends the session when its timeout has passed.
    pub async fn close(&self) -> Result<(), TreeError> {
        let closing = async {
            self.0.cleanup.drained().await;
            let last = self.0.current.lock().await.take();
            match last {
                Some(tree) => tree.close().await,
                None => Ok(()),
            }
        };
        self.runtime().timeout(CLOSE_WAIT_MAX, closing).await.unwrap_or_else(|| {
            Err(TreeError::Disconnected(format!(
                "no response within {CLOSE_WAIT_MAX:?}; the session ends after its timeout"
            )))
        })
    }

    /// Locks the record of the last node without a GUID in its name. Only a task that creates such a node may call this
    /// function.
    pub(super) async fn last_plain(&self) -> tokio::sync::MutexGuard<'_, (SessionId, Zxid)> {
        self.0.last_plain.lock().await
    }

    /// Waits for the time between two attempts of a request.
    pub(super) async fn back_off(&self) {
        self.runtime().sleep(RETRY_WAIT).await;
    }

    /// Hands a node to the task that removes abandoned nodes.
    pub(super) fn abandon(&self, abandoned: AbandonedNode) {
        self.0.cleanup.add(abandoned);
    }

    /// Sends a request. Sends it again while the engine does not respond.
    ///
    /// # Errors
    /// Returns the errors of the request, except [`TreeError::Disconnected`].
    pub(super) async fn retry<T, F>(&self, request: impl Fn() -> F) -> Result<T, TreeError>
    where
        F: Future<Output = Result<T, TreeError>>,
    {
        retry(self.runtime(), request).await
    }
}

impl Inner {
    async fn session(&self) -> Result<Arc<dyn Tree>, TreeError> {
        let mut current = self.current.lock().await;
        if let Some(tree) = &*current
            && tree.session().is_valid(self.runtime.monotonic())
        {
            return Ok(tree.clone());
        }
        let tree = self.trees.open(self.options.clone()).await?;
        *current = Some(tree.clone());
        Ok(tree)
    }
}

/// Sends a request repeatedly until the engine responds. The loop ends at the latest when the session ends.
pub(super) async fn retry<T, F>(runtime: &Runtime, request: impl Fn() -> F) -> Result<T, TreeError>
where
    F: Future<Output = Result<T, TreeError>>,
{
    loop {
        match request().await {
            Err(error) if error.is_retryable() => runtime.sleep(RETRY_WAIT).await,
            answer => return answer,
        }
    }
}

impl Cleanup {
    fn add(&self, abandoned: AbandonedNode) {
        let mut queue = self.lock();
        queue.waiting.push(abandoned);
        queue.count += 1;
        drop(queue);
        self.added.notify_one();
    }

    /// Completes when the cleanup task has removed all abandoned nodes.
    async fn drained(&self) {
        loop {
            let mut removed = std::pin::pin!(self.removed.notified());
            removed.as_mut().enable();
            if self.lock().count == 0 {
                return;
            }
            removed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, CleanupQueue> {
        self.queue.lock().expect("no code panics while it holds this mutex")
    }
}

/// Runs the cleanup task, which removes each abandoned node as soon as the engine responds.
async fn remove(runtime: Runtime, cleanup: Arc<Cleanup>) {
    let mut removing = FuturesUnordered::new();
    loop {
        let waiting = std::mem::take(&mut cleanup.lock().waiting);
        removing.extend(waiting.into_iter().map(|abandoned| abandoned.remove(&runtime)));
        tokio::select! {
            biased;
            Some(()) = removing.next() => {
                cleanup.lock().count -= 1;
                cleanup.removed.notify_waiters();
            }
            () = cleanup.added.notified() => {}
        }
    }
}
