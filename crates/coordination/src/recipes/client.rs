//! A process's sessions, and what it leaves behind.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use runtime::{Runtime, TaskSet};
use tokio::sync::Notify;

use crate::tree::{Acl, CreateMode, Expected, NodePath, SessionOptions, Stat, Tree, TreeError, Trees};

/// Between two tries of what the engine did not answer.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Others may take a parent away while it is empty: it is made again so often.
pub(super) const PARENT_TRIES: usize = 50;

/// A process's way to a tree, over the lives of its sessions. A cheap clone.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    trees: Arc<dyn Trees>,
    options: SessionOptions,
    /// The present session; held while one is opened.
    current: tokio::sync::Mutex<Option<Arc<dyn Tree>>>,
    left: Arc<Left>,
    _tasks: TaskSet,
}

/// What is to be removed, by the task that does so.
#[derive(Default)]
struct Left {
    queue: Mutex<Queue>,
    added: Notify,
    removed: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Remains>,
    /// Those that are being removed among them.
    count: usize,
}

/// A node that may be there, of a session that may live.
pub(super) struct Remains {
    pub(super) tree: Arc<dyn Tree>,
    pub(super) parent: NodePath,
    /// How its name begins, which no other's does.
    pub(super) start: String,
}

impl Client {
    /// Sessions of `trees` are opened as they are needed.
    #[must_use]
    pub fn new(runtime: &Runtime, trees: Arc<dyn Trees>, options: SessionOptions) -> Self {
        let (left, tasks) = (Arc::<Left>::default(), TaskSet::new(runtime));
        tasks.spawn("remains", remove(runtime.clone(), left.clone()));
        let current = tokio::sync::Mutex::new(None);
        Client(Arc::new(Inner { runtime: runtime.clone(), trees, options, current, left, _tasks: tasks }))
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
        opened.await.unwrap_or_else(|| Err(TreeError::Disconnected("this process is stopping".to_owned())))
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
async fn patiently<T, F>(runtime: &Runtime, ask: impl Fn() -> F) -> Result<T, TreeError>
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

/// Makes the node and all above it, as containers: so they go when nobody uses them any more.
///
/// # Errors
/// As [`Tree::create`].
pub(super) async fn make_containers(tree: &dyn Tree, path: &NodePath, acl: &Acl) -> Result<(), TreeError> {
    let mut missing = vec![path.clone()];
    for _ in 0..PARENT_TRIES {
        let Some(next) = missing.last() else { return Ok(()) };
        match tree.create(next, bytes::Bytes::new(), CreateMode::Container, acl.clone()).await {
            Ok(_) | Err(TreeError::NodeExists) => drop(missing.pop()),
            Err(TreeError::NoNode) => missing.extend(next.parent()),
            Err(error) => return Err(error),
        }
    }
    Err(TreeError::NoNode)
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

impl Remains {
    /// What belongs to a session that has ended, goes with it.
    async fn remove(self, runtime: &Runtime) {
        match patiently(runtime, || self.delete()).await {
            Ok(()) | Err(TreeError::NoNode | TreeError::SessionLost) => {}
            Err(error) => tracing::warn!(parent = %self.parent, %error, "a node of ours stays until its session ends"),
        }
    }

    async fn delete(&self) -> Result<(), TreeError> {
        let (path, _) = self.find().await?.ok_or(TreeError::NoNode)?;
        self.tree.delete(&path, Expected::Any).await
    }

    /// The node, if it is there; if not, it does not come later.
    pub(super) async fn find(&self) -> Result<Option<(NodePath, Stat)>, TreeError> {
        self.tree.sync().await?;
        let children = match self.tree.children(&self.parent).await {
            Ok(children) => children,
            Err(TreeError::NoNode) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(name) = children.names.iter().find(|name| name.starts_with(&self.start)) else { return Ok(None) };
        let path = self.parent.join(name).map_err(|error| TreeError::Invalid(error.to_string()))?;
        let found = self.tree.exists(&path).await?;
        Ok(found.filter(|stat| stat.owner == Some(self.tree.session().id())).map(|stat| (path, stat)))
    }
}
