//! Creates, finds and removes nodes on an engine that may not respond.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use runtime::Runtime;

use super::client::{Client, retry};
use crate::tree::{Acl, CreateMode, Expected, NodePath, Sequence, Stat, Tree, TreeError, Zxid};

/// Largest number of attempts to create a parent. Several attempts may be necessary, because other processes may delete
/// the parent while it is empty.
const PARENT_ATTEMPTS: usize = 50;
/// Longest time for which a release waits for the engine.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Node that a session of this process owns.
#[derive(Clone)]
pub(super) struct OwnNode {
    pub(super) client: Client,
    pub(super) tree: Arc<dyn Tree>,
    pub(super) path: NodePath,
    pub(super) created: Zxid,
    /// False if a later node may have the same path as this node, for example after another process has deleted the
    /// parent and created it again.
    is_unique: bool,
}

/// Guard of a node. A drop of the guard removes the node.
pub(super) struct NodeGuard {
    node: OwnNode,
    is_released: bool,
}

/// Node that a session of this process is going to create.
pub(super) struct NewNode {
    pub(super) parent: NodePath,
    /// Mode with which the session creates missing parents.
    pub(super) parents: CreateMode,
    pub(super) name: String,
    /// Mode of the node, which is ephemeral.
    pub(super) mode: CreateMode,
    pub(super) acl: Acl,
    /// Condition by which the process finds the node if the engine does not respond to the request that creates it.
    pub(super) node_match: NodeMatch,
}

/// Node that the cleanup task removes. The node and its session may or may not exist.
pub(super) struct AbandonedNode {
    pub(super) tree: Arc<dyn Tree>,
    pub(super) parent: NodePath,
    pub(super) node_match: NodeMatch,
}

/// Condition that identifies one node among the children of a given parent. The node belongs to a given session.
#[derive(Clone)]
pub(super) enum NodeMatch {
    /// The node at this path, if the change with this zxid created it.
    Created(NodePath, Zxid),
    /// The node at this path, if the engine created it after the change with this zxid.
    PathAfter(NodePath, Zxid),
    /// The node with this GUID in its name.
    Guid(String),
    /// The node whose name consists of this text and a number, if the engine created it after the change with this
    /// zxid.
    NamedAfter(String, Zxid),
}

impl NewNode {
    /// Creates the node. If the engine does not respond, the function checks whether the node exists. If the caller
    /// drops the future, the cleanup task removes the node.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`], except [`TreeError::Disconnected`].
    pub(super) async fn create(
        self,
        client: &Client,
        tree: &Arc<dyn Tree>,
        data: Bytes,
    ) -> Result<NodeGuard, TreeError> {
        let NewNode { parent, parents, name, mode, acl, node_match } = self;
        let (path, is_unique) = (join(&parent, &name)?, matches!(node_match, NodeMatch::Guid(_)));
        let abandoned = AbandonedNode { tree: tree.clone(), parent: parent.clone(), node_match };
        let mut uncertain = UncertainNode { client, abandoned: Some(abandoned) };
        for _ in 0..PARENT_ATTEMPTS {
            let created = match tree.create(&path, data.clone(), mode, acl.clone()).await {
                Ok(created) => Ok(Some((created.path, created.stat))),
                Err(error) if error.is_retryable() => client.retry(|| uncertain.find()).await,
                Err(error) => Err(error),
            };
            match created {
                Ok(Some((path, stat))) => {
                    uncertain.abandoned = None;
                    let (client, tree, created) = (client.clone(), tree.clone(), stat.created);
                    return Ok(NodeGuard::new(OwnNode { client, tree, path, created, is_unique }));
                }
                Ok(None) => {}
                Err(TreeError::NoNode) => {
                    // The create failed, so no node exists that the cleanup task must remove.
                    let abandoned = uncertain.abandoned.take();
                    client.retry(|| create_parents(&**tree, &parent, parents, &acl)).await?;
                    uncertain.abandoned = abandoned;
                }
                Err(error) => {
                    uncertain.abandoned = None;
                    return Err(error);
                }
            }
        }
        uncertain.abandoned = None;
        Err(TreeError::NoNode)
    }
}

/// New node without a GUID in its name. If the response to the create request was lost, the process recognises the node
/// because it is newer than the session's previous node without a GUID. The client must therefore create nodes without
/// a GUID one at a time. A separate task creates each node, so a caller that no longer polls its future cannot block
/// other callers.
pub(super) struct NewPlain {
    pub(super) parent: NodePath,
    pub(super) parents: CreateMode,
    pub(super) name: String,
    pub(super) mode: CreateMode,
    pub(super) acl: Acl,
}

impl NewPlain {
    /// Creates the node.
    ///
    /// # Errors
    /// Returns the same errors as [`NewNode::create`].
    pub(super) async fn create(
        self,
        client: &Client,
        tree: &Arc<dyn Tree>,
        data: Bytes,
    ) -> Result<NodeGuard, TreeError> {
        let (runtime, client, tree) = (client.runtime().clone(), client.clone(), tree.clone());
        let creating = runtime.detached("node", async move {
            let NewPlain { parent, parents, name, mode, acl } = self;
            let session = tree.session().id();
            let mut last = client.last_plain().await;
            if last.0 != session {
                *last = (session, Zxid::default());
            }
            let node_match = if mode.is_sequential() {
                NodeMatch::NamedAfter(name.clone(), last.1)
            } else {
                NodeMatch::PathAfter(join(&parent, &name)?, last.1)
            };
            let owned = NewNode { parent, parents, name, mode, acl, node_match }.create(&client, &tree, data).await?;
            last.1 = owned.node().created.max(last.1);
            Ok(owned)
        });
        creating.await.unwrap_or_else(|| Err(stopped()))
    }
}

/// Node that the engine may have created. A drop of this value hands the node to the cleanup task.
struct UncertainNode<'a> {
    client: &'a Client,
    abandoned: Option<AbandonedNode>,
}

impl UncertainNode<'_> {
    async fn find(&self) -> Result<Option<(NodePath, Stat)>, TreeError> {
        match &self.abandoned {
            Some(abandoned) => abandoned.find().await,
            None => Ok(None),
        }
    }
}

impl Drop for UncertainNode<'_> {
    fn drop(&mut self) {
        if let Some(abandoned) = self.abandoned.take() {
            self.client.abandon(abandoned);
        }
    }
}

impl NodeGuard {
    fn new(node: OwnNode) -> Self {
        NodeGuard { node, is_released: false }
    }

    /// Creates a guard for the node at `path` that a multi of this session has created.
    pub(super) fn created(client: &Client, tree: &Arc<dyn Tree>, path: NodePath, created: Zxid) -> Self {
        let (client, tree) = (client.clone(), tree.clone());
        NodeGuard::new(OwnNode { client, tree, path, created, is_unique: false })
    }

    pub(super) fn node(&self) -> &OwnNode {
        &self.node
    }

    /// Removes the node. If the engine does not respond within [`RELEASE_WAIT_MAX`], the removal continues in the
    /// background.
    pub(super) async fn release(mut self) {
        let removed = self.node.client.runtime().timeout(RELEASE_WAIT_MAX, self.node.remove()).await;
        self.is_released = matches!(removed, Some(Ok(()) | Err(TreeError::NoNode | TreeError::SessionLost)));
    }
}

impl Drop for NodeGuard {
    fn drop(&mut self) {
        if !self.is_released {
            self.node.client.abandon(self.node.abandoned());
        }
    }
}

impl OwnNode {
    fn abandoned(&self) -> AbandonedNode {
        let parent = self.path.parent().unwrap_or_else(NodePath::root);
        AbandonedNode {
            tree: self.tree.clone(),
            parent,
            node_match: NodeMatch::Created(self.path.clone(), self.created),
        }
    }

    /// Checks that the node still exists.
    ///
    /// # Errors
    /// Returns [`TreeError::NoNode`] if the node no longer exists. Returns [`TreeError::SessionLost`] if its session
    /// was lost.
    pub(super) async fn check(&self) -> Result<(), TreeError> {
        let stat = self.client.retry(|| self.tree.exists(&self.path)).await?;
        stat.filter(|stat| stat.created == self.created).map(drop).ok_or(TreeError::NoNode)
    }

    /// Removes the node.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`]. Returns [`TreeError::NoNode`] if the node does not exist.
    pub(super) async fn remove(&self) -> Result<(), TreeError> {
        if self.is_unique { self.tree.delete(&self.path, Expected::Any).await } else { self.abandoned().delete().await }
    }

    /// Completes with [`TreeError::NoNode`] when the node no longer exists. Completes with another error when its
    /// session is lost.
    pub(super) async fn gone(&self) -> TreeError {
        gone(&self.client, &*self.tree, &self.path, Some(self.created)).await
    }
}

/// Completes with [`TreeError::NoNode`] when the node no longer exists. Completes with another error when the session
/// is lost or has no permission to read the node. If `created` is set, a node that another change created counts as
/// missing.
pub(super) async fn gone(client: &Client, tree: &dyn Tree, path: &NodePath, created: Option<Zxid>) -> TreeError {
    let is_same = |stat: &Stat| created.is_none_or(|created| stat.created == created);
    loop {
        let ended = match client.retry(|| tree.exists_and_watch(path)).await {
            Ok((Some(stat), watch)) if is_same(&stat) => watch.await.map(drop),
            Ok(_) => Err(TreeError::NoNode),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            return error;
        }
    }
}

impl AbandonedNode {
    /// Removes the node. If its session has ended, the engine removes the node itself.
    pub(super) async fn remove(self, runtime: &Runtime) {
        match retry(runtime, || self.delete()).await {
            Ok(()) | Err(TreeError::NoNode | TreeError::SessionLost) => {}
            Err(error) => {
                tracing::warn!(
                    parent = %self.parent,
                    %error,
                    "cannot remove a node; the engine removes it when the node's session ends"
                )
            }
        }
    }

    /// Makes one attempt to remove the node.
    ///
    /// # Errors
    /// Returns [`TreeError::NoNode`] if the node does not exist. All other errors are the same as those of a [`Tree`].
    pub(super) async fn delete(&self) -> Result<(), TreeError> {
        let (path, _) = self.find().await?.ok_or(TreeError::NoNode)?;
        self.tree.delete(&path, Expected::Any).await
    }

    /// Returns the node's path and state, or `None` if the node does not exist. If the function returns `None`, the
    /// engine does not create the node later.
    async fn find(&self) -> Result<Option<(NodePath, Stat)>, TreeError> {
        let AbandonedNode { tree, parent, node_match } = self;
        if !matches!(node_match, NodeMatch::Created(..)) {
            tree.sync().await?;
        }
        let names = match node_match {
            NodeMatch::Created(path, _) | NodeMatch::PathAfter(path, _) => vec![path.name().to_owned()],
            NodeMatch::Guid(_) | NodeMatch::NamedAfter(..) => match tree.children(parent).await {
                Err(TreeError::NoNode) => return Ok(None),
                children => children?.names,
            },
        };
        let mut named: Vec<&String> = names.iter().filter(|name| node_match.matches_name(name)).collect();
        // The sort puts the newest node first. If the newest node is too old to match, all other nodes are too old.
        named.sort_unstable_by_key(|name| std::cmp::Reverse(Sequence::of(name)));
        for name in named {
            let path = join(parent, name)?;
            let found = tree.exists(&path).await?;
            if let (NodeMatch::NamedAfter(_, last), Some(stat)) = (node_match, &found)
                && stat.created <= *last
            {
                return Ok(None);
            }
            if let Some(stat) =
                found.filter(|stat| stat.owner == Some(tree.session().id()) && node_match.matches_stat(stat))
            {
                return Ok(Some((path, stat)));
            }
        }
        Ok(None)
    }
}

impl NodeMatch {
    fn matches_name(&self, name: &str) -> bool {
        match self {
            NodeMatch::Created(path, _) | NodeMatch::PathAfter(path, _) => path.name() == name,
            NodeMatch::Guid(guid) => name.strip_prefix("_c_").is_some_and(|rest| rest.starts_with(guid)),
            NodeMatch::NamedAfter(prefix, _) => name.starts_with(prefix) && Sequence::after(name, prefix).is_some(),
        }
    }

    fn matches_stat(&self, stat: &Stat) -> bool {
        match self {
            NodeMatch::Created(_, created) => stat.created == *created,
            NodeMatch::NamedAfter(_, last) | NodeMatch::PathAfter(_, last) => stat.created > *last,
            NodeMatch::Guid(_) => true,
        }
    }
}

/// Joins a path with a name from a recipe or from the engine.
///
/// # Errors
/// Returns [`TreeError::Invalid`] if the result is not a valid path.
pub(super) fn join(parent: &NodePath, name: &str) -> Result<NodePath, TreeError> {
    Ok(parent.join(name)?)
}

/// Joins a path with a name from a user. The name must be a single part of a path.
///
/// # Errors
/// Returns [`TreeError::Invalid`] if the text is not a valid node name.
pub(super) fn child(parent: &NodePath, name: &str) -> Result<NodePath, TreeError> {
    if name.contains('/') {
        return Err(TreeError::Invalid(format!("invalid node name {name:?}: it must not contain `/`")));
    }
    join(parent, name)
}

/// Creates a random GUID in the form of a UUID of version 4.
pub(super) fn guid(runtime: &Runtime) -> String {
    guid_of(runtime.random_u128())
}

fn guid_of(random: u128) -> String {
    let bits = random & !(0xf << 76) | 0x4 << 76;
    let bits = bits & !(0x3 << 62) | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

pub(super) fn stopped() -> TreeError {
    TreeError::Disconnected("this process is stopping".to_owned())
}

/// Creates the node and its missing parents. All of these nodes have the mode `mode`. The engine removes containers
/// when they are empty.
///
/// # Errors
/// Returns the same errors as [`Tree::create`].
async fn create_parents(tree: &dyn Tree, path: &NodePath, mode: CreateMode, acl: &Acl) -> Result<(), TreeError> {
    let mut missing = vec![path.clone()];
    for _ in 0..PARENT_ATTEMPTS {
        let Some(next) = missing.last() else { return Ok(()) };
        match tree.create(next, Bytes::new(), mode, acl.clone()).await {
            Ok(_) | Err(TreeError::NodeExists) => drop(missing.pop()),
            Err(TreeError::NoNode) => missing.extend(next.parent()),
            Err(error) => return Err(error),
        }
    }
    Err(TreeError::NoNode)
}

/// Creates a persistent node, and its missing parents with the mode `parents`. Does nothing if the node exists.
///
/// # Errors
/// Returns the same errors as a [`Tree`], except [`TreeError::Disconnected`].
pub(super) async fn create_node(
    client: &Client,
    tree: &dyn Tree,
    path: &NodePath,
    data: Bytes,
    parents: CreateMode,
    acl: &Acl,
) -> Result<(), TreeError> {
    for _ in 0..PARENT_ATTEMPTS {
        match client.retry(|| tree.create(path, data.clone(), CreateMode::Persistent, acl.clone())).await {
            Ok(_) | Err(TreeError::NodeExists) => return Ok(()),
            Err(TreeError::NoNode) => {
                let parent = path.parent().unwrap_or_else(NodePath::root);
                client.retry(|| create_parents(tree, &parent, parents, acl)).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Err(TreeError::NoNode)
}

/// Deletes a node. Does nothing if the node does not exist.
///
/// # Errors
/// Returns the same errors as [`create_node`].
pub(super) async fn delete(client: &Client, tree: &dyn Tree, path: &NodePath) -> Result<(), TreeError> {
    match client.retry(|| tree.delete(path, Expected::Any)).await {
        Ok(()) | Err(TreeError::NoNode) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guid_has_the_format_that_curator_expects() {
        let guid = guid_of(u128::MAX);
        assert_eq!(guid, "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(guid.len(), 36);
    }
}
