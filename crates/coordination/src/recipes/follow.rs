//! Tasks that update a [`Followed`] value when the tree changes. If a session is lost, the task continues in another
//! session.
//!
//! docs/decisions/0146-follow-a-subtree-with-one-watch.md gives the reasons for the design.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::TryFutureExt as _;
use futures_util::stream::{self, FuturesUnordered, StreamExt as _, TryStreamExt as _};
use tokio::sync::watch;

use super::client::Client;
use super::node::join;
use crate::followed::Followed;
use crate::tree::{Event, Node, NodePath, SessionState, Tree, TreeError, Watch};

/// Largest number of concurrent reads of nodes.
const READS: usize = 32;

/// Passes the names of the children of `parent` to `update`, at the start and after each change. A missing parent
/// counts as a parent without children. The function ends only when `update` returns false.
pub(super) async fn follow_children(client: &Client, parent: &NodePath, mut update: impl FnMut(Vec<String>) -> bool) {
    let mut failures = Failures::default();
    loop {
        let followed = async {
            let tree = client.session().await?;
            // The server of this session may know fewer changes than the server of the last session. After the sync,
            // the server knows all of these changes.
            tree.sync().await?;
            loop {
                let (names, watch) = children_and_watch(&*tree, parent).await?;
                if !update(names) {
                    return Ok(());
                }
                watch.await?;
            }
        };
        let Err(error) = followed.await else { return };
        failures.report(error);
        client.back_off().await;
    }
}

/// Returns the names of the children of `parent`, and a watch that fires when they change. A missing parent counts as a
/// parent without children.
pub(super) async fn children_and_watch(tree: &dyn Tree, parent: &NodePath) -> Result<(Vec<String>, Watch), TreeError> {
    loop {
        match tree.children_and_watch(parent).await {
            Ok((children, watch)) => return Ok((children.names, watch)),
            Err(TreeError::NoNode) => {
                if let (None, watch) = tree.exists_and_watch(parent).await? {
                    return Ok((Vec::new(), watch));
                }
            }
            Err(error) => return Err(error),
        }
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
    let mut followed = Followed::start(client.runtime(), Subtree::default(), |sender| async move {
        let mut failures = Failures::default();
        loop {
            let followed = match &scope {
                Scope::Subtree(root) => follow_subtree(&following, root, &sender).await,
                Scope::Nodes(paths) => follow_nodes(&following, paths, &sender).await,
            };
            let Err(error) = followed else { return };
            failures.report(error);
            sender.send_if_modified(|subtree| std::mem::replace(&mut subtree.is_current, false));
            following.back_off().await;
        }
    });
    followed.until(|subtree| subtree.is_current).await;
    Ok(followed)
}

/// Errors of a follower. The follower logs an error only once while the error persists, and logs no loss of the
/// connection.
#[derive(Default)]
pub(super) struct Failures(Option<TreeError>);

impl Failures {
    pub(super) fn report(&mut self, error: TreeError) {
        let is_loss = matches!(error, TreeError::Disconnected(_) | TreeError::SessionLost);
        if !is_loss && self.0.as_ref() != Some(&error) {
            tracing::warn!(%error, "cannot read the followed nodes; retrying");
            self.0 = Some(error);
        }
    }
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
