//! Values that a task updates when the tree changes. If a session is lost, the task continues in another session.
//!
//! docs/decisions/0146-follow-a-subtree-with-one-watch.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use futures_util::TryFutureExt as _;
use futures_util::stream::{self, FuturesUnordered, StreamExt as _, TryStreamExt as _};
use runtime::TaskSet;
use tokio::sync::watch;

use super::client::Client;
use super::node::join;
use crate::tree::{Event, Node, NodePath, SessionState, Tree, TreeError, Watch};

/// Largest number of concurrent reads of nodes.
const READS: usize = 32;

/// Value that follows the tree and never goes back to an older state. A drop of this object ends the updates.
#[must_use = "a drop of this value stops the updates"]
pub struct Followed<T> {
    value: watch::Receiver<T>,
    _tasks: TaskSet,
}

impl<T: Clone + Send + Sync + 'static> Followed<T> {
    pub(super) fn start<F>(client: &Client, first: T, follow: impl FnOnce(watch::Sender<T>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, value) = watch::channel(first);
        let tasks = TaskSet::new(client.runtime());
        tasks.spawn("follower", follow(sender));
        Followed { value, _tasks: tasks }
    }

    /// Returns another follower. Its value is the result of `transform` for the value of this follower.
    pub(super) fn map<U>(self, client: &Client, mut transform: impl FnMut(&T) -> U + Send + 'static) -> Followed<U>
    where
        U: Clone + PartialEq + Send + Sync + 'static,
    {
        let mut values = self.receiver();
        let first = transform(&values.borrow_and_update());
        Followed::start(client, first, |sender| async move {
            let _followed = self;
            while values.changed().await.is_ok() {
                let now = transform(&values.borrow_and_update());
                sender.send_if_modified(|known| {
                    let is_new = *known != now;
                    *known = now;
                    is_new
                });
            }
        })
    }

    /// Returns the value after the last update.
    #[must_use]
    pub fn now(&self) -> T {
        self.value.borrow().clone()
    }

    /// Waits until the value has changed since the last call of this function, and returns the value. Never completes
    /// if no more updates come.
    pub async fn changed(&mut self) -> T {
        match self.value.changed().await {
            Ok(()) => self.value.borrow_and_update().clone(),
            Err(_ended) => std::future::pending().await,
        }
    }

    /// Waits until the value meets `condition`, and returns the value. Never completes if no more updates come.
    pub async fn until(&mut self, mut condition: impl FnMut(&T) -> bool) -> T {
        let mut value = self.value.borrow_and_update().clone();
        while !condition(&value) {
            value = self.changed().await;
        }
        value
    }

    /// Returns a receiver of the value for another reader. The receiver gets no more updates after a drop of this
    /// follower.
    #[must_use]
    pub fn receiver(&self) -> watch::Receiver<T> {
        self.value.clone()
    }
}

impl<T: fmt::Debug> fmt::Debug for Followed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Followed").field(&*self.value.borrow()).finish()
    }
}

/// Passes the names of the children of `parent` to `update`, at the start and after each change. A missing parent
/// counts as a parent without children. The function ends only when `update` returns false.
pub(super) async fn follow_children(client: &Client, parent: &NodePath, mut update: impl FnMut(Vec<String>) -> bool) {
    loop {
        let followed = async {
            let tree = client.session().await?;
            // The server of this session may know fewer changes than the server of the last session. After the sync,
            // the server knows all of these changes.
            tree.sync().await?;
            loop {
                let (names, watch) = match tree.children_and_watch(parent).await {
                    Ok((children, watch)) => (children.names, watch),
                    Err(TreeError::NoNode) => match tree.exists_and_watch(parent).await? {
                        (Some(_), _) => continue,
                        (None, watch) => (Vec::new(), watch),
                    },
                    Err(error) => return Err(error),
                };
                if !update(names) {
                    return Ok(());
                }
                watch.await?;
            }
        };
        match followed.await {
            Ok(()) => return,
            Err(TreeError::Disconnected(_) | TreeError::SessionLost) => {}
            Err(error) => tracing::warn!(%parent, %error, "cannot read the children of a node; retrying"),
        }
        client.back_off().await;
    }
}

/// A node and all nodes below it.
#[derive(Clone, Debug, Default)]
pub(super) struct Subtree {
    pub(super) nodes: Arc<BTreeMap<NodePath, Node>>,
    /// True if the engine responded recently, so that `nodes` is up to date.
    pub(super) is_current: bool,
}

/// Nodes to follow. The follower ignores nodes that this process has no permission to read.
pub(super) enum Scope {
    /// A node and all nodes below it. The follower uses one watch in total, and one read for each node that changes.
    Subtree(NodePath),
    /// A few nodes, each with its own watch.
    Nodes(Vec<NodePath>),
}

/// Follows the nodes of `scope`. Returns a follower when it has read all of these nodes once.
///
/// # Errors
/// Returns the errors of the first read, which are the same as those of a [`Tree`].
pub(super) async fn follow(client: &Client, scope: Scope) -> Result<Followed<Subtree>, TreeError> {
    let tree = client.session().await?;
    let first = match &scope {
        Scope::Subtree(root) => std::slice::from_ref(root),
        Scope::Nodes(paths) => paths,
    };
    for path in first {
        // The follower's task reads the nodes again. This first read only ensures that the caller receives a permanent
        // error at once.
        match client.retry(|| tree.get(path)).await {
            Ok(_) | Err(TreeError::NoNode | TreeError::SessionLost) => {}
            Err(error) => return Err(error),
        }
    }
    let following = client.clone();
    let followed = Followed::start(client, Subtree::default(), |sender| async move {
        let mut warned = None;
        loop {
            let followed = match &scope {
                Scope::Subtree(root) => follow_subtree(&following, root, &sender).await,
                Scope::Nodes(paths) => follow_nodes(&following, paths, &sender).await,
            };
            match followed {
                Ok(()) => return,
                Err(TreeError::Disconnected(_) | TreeError::SessionLost) => {}
                Err(error) => {
                    if warned.as_ref() != Some(&error) {
                        tracing::warn!(%error, "cannot read the followed nodes; retrying");
                    }
                    warned = Some(error);
                }
            }
            sender.send_if_modified(|subtree| std::mem::replace(&mut subtree.is_current, false));
            following.back_off().await;
        }
    });
    drop(followed.receiver().wait_for(|subtree| subtree.is_current).await);
    Ok(followed)
}

/// Follows a subtree in one session. Returns when no receiver of the subtree exists, or at the first error.
async fn follow_subtree(client: &Client, root: &NodePath, sender: &watch::Sender<Subtree>) -> Result<(), TreeError> {
    let tree = client.session().await?;
    let mut state = tree.session().state();
    let mut events = tree.watch_all(root).await?;
    // The server of this session may know fewer changes than the server of the last session. After the sync, the server
    // knows all of these changes.
    tree.sync().await?;
    let mut all = Some(read_below(&*tree, root).await?);
    let mut changed = Vec::new();
    loop {
        let is_current = *state.borrow_and_update() == SessionState::Connected;
        publish(sender, is_current, all.take(), &mut changed);
        let event = tokio::select! {
            biased;
            () = sender.closed() => return Ok(()),
            changed_state = state.changed() => {
                changed_state.map_err(|_closed| TreeError::SessionLost)?;
                if *state.borrow() == SessionState::Connected {
                    // The session received no events while the connection was lost. The function therefore reads all
                    // nodes again.
                    all = Some(read_below(&*tree, root).await?);
                }
                continue;
            }
            event = events.next() => event.ok_or(TreeError::SessionLost)?,
        };
        let mut paths = BTreeSet::new();
        let mut is_gap = false;
        for event in std::iter::once(event).chain(std::iter::from_fn(|| events.try_next())) {
            match event {
                Event::Created(path) | Event::Changed(path) | Event::Deleted(path) => drop(paths.insert(path)),
                Event::ChildrenChanged(_) | Event::Gap => is_gap = true,
            }
        }
        if is_gap {
            all = Some(read_below(&*tree, root).await?);
        } else {
            let reads = stream::iter(paths.into_iter().map(|path| read_at(&*tree, path))).buffer_unordered(READS);
            changed = reads.try_collect().await?;
        }
    }
}

/// Follows single nodes in one session. Returns when no receiver of the nodes' data exists, or at the first error.
async fn follow_nodes(client: &Client, paths: &[NodePath], sender: &watch::Sender<Subtree>) -> Result<(), TreeError> {
    let tree = client.session().await?;
    let mut state = tree.session().state();
    // The server of this session may know fewer changes than the server of the last session. After the sync, the server
    // knows all of these changes.
    tree.sync().await?;
    let mut watches = FuturesUnordered::new();
    let mut changed = Vec::new();
    let mut fired = paths.to_vec();
    loop {
        for path in fired.drain(..) {
            let (node, watch) = read_and_watch(&*tree, &path).await?;
            changed.push((path.clone(), node));
            watches.push(watch.map_ok(|_event| path));
        }
        let is_current = *state.borrow_and_update() == SessionState::Connected;
        publish(sender, is_current, None, &mut changed);
        tokio::select! {
            biased;
            () = sender.closed() => return Ok(()),
            changed_state = state.changed() => {
                changed_state.map_err(|_closed| TreeError::SessionLost)?;
                if *state.borrow() == SessionState::Connected {
                    // The session received no events while the connection was lost. The function therefore reads all
                    // nodes again.
                    for path in paths {
                        changed.push((path.clone(), read(&*tree, path).await?));
                    }
                }
            }
            Some(path) = watches.next() => fired.push(path?),
        }
    }
}

async fn read_and_watch(tree: &dyn Tree, path: &NodePath) -> Result<(Option<Node>, Watch), TreeError> {
    loop {
        match tree.get_and_watch(path).await {
            Ok((node, watch)) => return Ok((Some(node), watch)),
            Err(TreeError::NoNode | TreeError::Forbidden) => {}
            Err(error) => return Err(error),
        }
        let (found, watch) = tree.exists_and_watch(path).await?;
        let is_closed = async || matches!(tree.get(path).await, Err(TreeError::Forbidden));
        if found.is_none() || is_closed().await {
            return Ok((None, watch));
        }
    }
}

fn publish(
    sender: &watch::Sender<Subtree>,
    is_current: bool,
    all: Option<BTreeMap<NodePath, Node>>,
    changed: &mut Vec<(NodePath, Option<Node>)>,
) {
    sender.send_if_modified(|subtree| {
        let mut is_new = std::mem::replace(&mut subtree.is_current, is_current) != is_current;
        if let Some(all) = all.filter(|all| *subtree.nodes != *all) {
            subtree.nodes = Arc::new(all);
            is_new = true;
        }
        for (path, node) in changed.drain(..) {
            if subtree.nodes.get(&path) == node.as_ref() {
                continue;
            }
            is_new = true;
            let nodes = Arc::make_mut(&mut subtree.nodes);
            match node {
                Some(node) => drop(nodes.insert(path, node)),
                None => drop(nodes.remove(&path)),
            }
        }
        is_new
    });
}

async fn read_at(tree: &dyn Tree, path: NodePath) -> Result<(NodePath, Option<Node>), TreeError> {
    let node = read(tree, &path).await;
    node.map(|node| (path, node))
}

/// Reads a node. Returns `None` if the node does not exist or this process has no permission to read it.
async fn read(tree: &dyn Tree, path: &NodePath) -> Result<Option<Node>, TreeError> {
    match tree.get(path).await {
        Ok(node) => Ok(Some(node)),
        Err(TreeError::NoNode | TreeError::Forbidden) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn read_below(tree: &dyn Tree, root: &NodePath) -> Result<BTreeMap<NodePath, Node>, TreeError> {
    let mut found = BTreeMap::new();
    let mut unread = vec![root.clone()];
    while !unread.is_empty() {
        let mut reads = stream::iter(unread.drain(..).map(|path| read_at(tree, path))).buffer_unordered(READS);
        let mut parents = Vec::new();
        while let Some((path, node)) = reads.try_next().await? {
            let Some(node) = node else { continue };
            if node.stat.children > 0 {
                parents.push(path.clone());
            }
            found.insert(path, node);
        }
        drop(reads);
        let mut lists = stream::iter(parents.into_iter().map(|path| children_of(tree, path))).buffer_unordered(READS);
        let mut next = Vec::new();
        while let Some(children) = lists.try_next().await? {
            next.extend(children);
        }
        drop(lists);
        unread = next;
    }
    Ok(found)
}

async fn children_of(tree: &dyn Tree, parent: NodePath) -> Result<Vec<NodePath>, TreeError> {
    match tree.children(&parent).await {
        // The function ignores a path above the length limit, because such a path cannot belong to a recipe of this
        // crate.
        Ok(children) => Ok(children.names.iter().filter_map(|name| join(&parent, name).ok()).collect()),
        Err(TreeError::NoNode | TreeError::Forbidden) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
