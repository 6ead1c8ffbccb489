//! A process's sessions, and what it leaves behind.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use runtime::{Runtime, TaskSet};
use tokio::sync::{Mutex, Notify};

use super::node::{Remains, make, stopped};
use crate::tree::{Acl, CreateMode, NodePath, SessionId, SessionOptions, Tree, TreeError, Trees, Zxid};

/// Between two tries of what the engine did not answer.
const RETRY_WAIT: Duration = Duration::from_millis(100);

/// A process's way to a tree, over the lives of its sessions. A cheap clone.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    trees: Arc<dyn Trees>,
    options: SessionOptions,
    /// The present session; held while one is opened.
    current: Mutex<Option<Arc<dyn Tree>>>,
    /// The last node that was made here without a mark, and by which session; held while one is made.
    last_plain: Mutex<(SessionId, Zxid)>,
    left: Arc<Left>,
    _tasks: TaskSet,
}

/// What is to be removed, by the task that does so.
#[derive(Default)]
struct Left {
    queue: std::sync::Mutex<Queue>,
    added: Notify,
    removed: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Remains>,
    /// Those that are being removed among them.
    count: usize,
}

impl Client {
    /// Sessions of `trees` are opened as they are needed.
    #[must_use]
    pub fn new(runtime: &Runtime, trees: Arc<dyn Trees>, options: SessionOptions) -> Self {
        let (left, tasks) = (Arc::<Left>::default(), TaskSet::new(runtime));
        tasks.spawn("remains", remove(runtime.clone(), left.clone()));
        let (runtime, current) = (runtime.clone(), Mutex::default());
        let last_plain = Mutex::new((SessionId(0), Zxid::default()));
        Client(Arc::new(Inner { runtime, trees, options, current, last_plain, left, _tasks: tasks }))
    }

    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// The present session; another one if that was lost.
    ///
    /// # Errors
    /// As [`Trees::open`].
    pub async fn session(&self) -> Result<Arc<dyn Tree>, TreeError> {
        let inner = self.0.clone();
        let opened = self.runtime().detached("tree session", async move { inner.session().await });
        opened.await.unwrap_or_else(|| Err(stopped()))
    }

    /// Opens a session, again and again for `limit` while the engine does not answer: a program may start before its engine has.
    ///
    /// # Errors
    /// As [`Client::session`], the last time.
    pub async fn connect(&self, limit: Duration) -> Result<(), TreeError> {
        let mut last = TreeError::Disconnected("it did not in time".to_owned());
        let opening = async {
            loop {
                match self.session().await {
                    Err(error) if error.is_retryable() => last = error,
                    opened => return opened.map(drop),
                }
                self.pause().await;
            }
        };
        let opened = self.runtime().timeout(limit, opening).await;
        opened.unwrap_or(Err(last))
    }

    /// Makes a persistent node with `data` through the session of `tree`, and all that is missing above it. Harmless if it
    /// is there.
    ///
    /// # Errors
    /// As those of a [`Tree`], except [`TreeError::Disconnected`].
    pub async fn make(&self, tree: &dyn Tree, path: &NodePath, data: Bytes, acl: &Acl) -> Result<(), TreeError> {
        make(self, tree, path, data, CreateMode::Persistent, acl).await
    }

    /// Makes a node that stays, without data, and all that is missing above it. Harmless if it is there.
    ///
    /// # Errors
    /// As those of a [`Tree`], but for [`TreeError::Disconnected`] once a session is open.
    pub async fn ensure(&self, path: &NodePath, acl: &Acl) -> Result<(), TreeError> {
        let tree = self.session().await?;
        self.make(&*tree, path, Bytes::new(), acl).await
    }

    /// Waits until what was dropped is removed, and closes the session. What is held is over.
    ///
    /// # Errors
    /// As [`Tree::close`].
    pub async fn close(&self) -> Result<(), TreeError> {
        self.0.left.emptied().await;
        let last = self.0.current.lock().await.take();
        match last {
            Some(tree) => tree.close().await,
            None => Ok(()),
        }
    }

    /// For who makes one, in a task of its own.
    pub(super) async fn last_plain(&self) -> tokio::sync::MutexGuard<'_, (SessionId, Zxid)> {
        self.0.last_plain.lock().await
    }

    /// Before another try.
    pub(super) async fn pause(&self) {
        self.runtime().sleep(RETRY_WAIT).await;
    }

    /// Has it removed.
    pub(super) fn leave(&self, remains: Remains) {
        self.0.left.add(remains);
    }

    /// What `ask` answers, asked again while the engine does not answer.
    ///
    /// # Errors
    /// Any but [`TreeError::Disconnected`].
    pub(super) async fn patiently<T, F>(&self, ask: impl Fn() -> F) -> Result<T, TreeError>
    where
        F: Future<Output = Result<T, TreeError>>,
    {
        patiently(self.runtime(), ask).await
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

/// The session's end is what it ends with at the latest.
pub(super) async fn patiently<T, F>(runtime: &Runtime, ask: impl Fn() -> F) -> Result<T, TreeError>
where
    F: Future<Output = Result<T, TreeError>>,
{
    loop {
        match ask().await {
            Err(error) if error.is_retryable() => runtime.sleep(RETRY_WAIT).await,
            answer => return answer,
        }
    }
}

impl Left {
    fn add(&self, remains: Remains) {
        let mut queue = self.lock();
        queue.waiting.push(remains);
        queue.count += 1;
        drop(queue);
        self.added.notify_one();
    }

    /// Ready when nothing is to be removed.
    async fn emptied(&self) {
        loop {
            let mut removed = std::pin::pin!(self.removed.notified());
            removed.as_mut().enable();
            if self.lock().count == 0 {
                return;
            }
            removed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder of this lock panics")
    }
}

/// Removes what is left, each as soon as its engine answers.
async fn remove(runtime: Runtime, left: Arc<Left>) {
    let mut removing = FuturesUnordered::new();
    loop {
        let waiting = std::mem::take(&mut left.lock().waiting);
        removing.extend(waiting.into_iter().map(|remains| remains.remove(&runtime)));
        tokio::select! {
            biased;
            Some(()) = removing.next() => {
                left.lock().count -= 1;
                left.removed.notify_waiters();
            }
            () = left.added.notified() => {}
        }
    }
}
