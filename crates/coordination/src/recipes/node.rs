//! Nodes that are made, found again and removed though the engine may not answer.

use std::sync::Arc;

use bytes::Bytes;
use runtime::Runtime;

use super::client::{Client, patiently};
use crate::tree::{Acl, CreateMode, Expected, NodePath, Sequence, Stat, Tree, TreeError, Zxid};

/// Others may take a parent away while it is empty: it is made again so often.
const PARENT_TRIES: usize = 50;

/// One of this process's session.
#[derive(Clone)]
pub(super) struct OwnNode {
    pub(super) client: Client,
    pub(super) tree: Arc<dyn Tree>,
    pub(super) path: NodePath,
    pub(super) created: Zxid,
    /// Another may come to have its path, if the parent is made anew.
    is_unique: bool,
}

/// Dropped, its node is removed.
pub(super) struct Owned {
    node: OwnNode,
    is_given_back: bool,
}

/// One that is to be there, of this process's session.
pub(super) struct NewNode {
    pub(super) parent: NodePath,
    /// What a missing parent is made as, and all above it.
    pub(super) parents: CreateMode,
    pub(super) name: String,
    /// An ephemeral one.
    pub(super) mode: CreateMode,
    pub(super) acl: Acl,
    /// How it is found if the engine does not answer.
    pub(super) which: Which,
}

/// One that may be there, of a session that may live.
pub(super) struct Remains {
    pub(super) tree: Arc<dyn Tree>,
    pub(super) parent: NodePath,
    pub(super) which: Which,
}

/// Of a parent's nodes that this session owns, the one.
#[derive(Clone)]
pub(super) enum Which {
    /// That was made then.
    Made(NodePath, Zxid),
    /// At this path, and made after that.
    OwnAfter(NodePath, Zxid),
    /// With this mark, which no other has.
    Marked(String),
    /// Of this name, and made after that.
    LastAfter(String, Zxid),
}

impl NewNode {
    /// If the engine does not answer, what may have been made is looked for; given up, it is removed.
    ///
    /// # Errors
    /// As those of a [`Tree`], but for [`TreeError::Disconnected`].
    pub(super) async fn make(self, client: &Client, tree: &Arc<dyn Tree>, data: Bytes) -> Result<Owned, TreeError> {
        let NewNode { parent, parents, name, mode, acl, which } = self;
        let (path, is_unique) = (join(&parent, &name)?, matches!(which, Which::Marked(_)));
        let remains = Remains { tree: tree.clone(), parent: parent.clone(), which };
        let mut unsure = Unsure { client, remains: Some(remains) };
        for _ in 0..PARENT_TRIES {
            let made = match tree.create(&path, data.clone(), mode, acl.clone()).await {
                Ok(created) => Ok(Some((created.path, created.stat))),
                Err(error) if error.is_retryable() => client.patiently(|| unsure.find()).await,
                Err(error) => Err(error),
            };
            match made {
                Ok(Some((path, stat))) => {
                    unsure.remains = None;
                    let (client, tree, created) = (client.clone(), tree.clone(), stat.created);
                    return Ok(Owned::new(OwnNode { client, tree, path, created, is_unique }));
                }
                Ok(None) => {}
                Err(TreeError::NoNode) => {
                    // Nothing was made.
                    let remains = unsure.remains.take();
                    client.patiently(|| make_parents(&**tree, &parent, parents, &acl)).await?;
                    unsure.remains = remains;
                }
                Err(error) => {
                    unsure.remains = None;
                    return Err(error);
                }
            }
        }
        unsure.remains = None;
        Err(TreeError::NoNode)
    }
}

/// One without a mark in its name. It is known as ours as the only one of this session that is newer than the last that was made here; so
/// one is made at a time, in a task, so that no caller holds the others up.
pub(super) struct NewPlain {
    pub(super) parent: NodePath,
    pub(super) parents: CreateMode,
    pub(super) name: String,
    pub(super) mode: CreateMode,
    pub(super) acl: Acl,
}

impl NewPlain {
    /// # Errors
    /// As [`NewNode::make`].
    pub(super) async fn make(self, client: &Client, tree: &Arc<dyn Tree>, data: Bytes) -> Result<Owned, TreeError> {
        let (runtime, client, tree) = (client.runtime().clone(), client.clone(), tree.clone());
        let made = runtime.detached("node", async move {
            let NewPlain { parent, parents, name, mode, acl } = self;
            let session = tree.session().id();
            let mut last = client.last_plain().await;
            if last.0 != session {
                *last = (session, Zxid::default());
            }
            let which = if mode.is_sequential() {
                Which::LastAfter(name.clone(), last.1)
            } else {
                Which::OwnAfter(join(&parent, &name)?, last.1)
            };
            let owned = NewNode { parent, parents, name, mode, acl, which }.make(&client, &tree, data).await?;
            last.1 = owned.node().created.max(last.1);
            Ok(owned)
        });
        made.await.unwrap_or_else(|| Err(stopped()))
    }
}

/// One that may have been made.
struct Unsure<'a> {
    client: &'a Client,
    remains: Option<Remains>,
}

impl Unsure<'_> {
    async fn find(&self) -> Result<Option<(NodePath, Stat)>, TreeError> {
        match &self.remains {
            Some(remains) => remains.find().await,
            None => Ok(None),
        }
    }
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        if let Some(remains) = self.remains.take() {
            self.client.leave(remains);
        }
    }
}

impl Owned {
    fn new(node: OwnNode) -> Self {
        Owned { node, is_given_back: false }
    }

    /// What a multi has made, in this session, at this path.
    pub(super) fn made(client: &Client, tree: &Arc<dyn Tree>, path: NodePath, created: Zxid) -> Self {
        let (client, tree) = (client.clone(), tree.clone());
        Owned::new(OwnNode { client, tree, path, created, is_unique: false })
    }

    pub(super) fn node(&self) -> &OwnNode {
        &self.node
    }

    /// Gives it back. If the engine does not answer, that goes on in the background.
    pub(super) async fn release(mut self) {
        self.is_given_back =
            matches!(self.node.remove().await, Ok(()) | Err(TreeError::NoNode | TreeError::SessionLost));
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.is_given_back {
            self.node.client.leave(self.node.remains());
        }
    }
}

impl OwnNode {
    fn remains(&self) -> Remains {
        let parent = self.path.parent().unwrap_or_else(NodePath::root);
        Remains { tree: self.tree.clone(), parent, which: Which::Made(self.path.clone(), self.created) }
    }

    /// # Errors
    /// [`TreeError::NoNode`] if it is not there any more, [`TreeError::SessionLost`].
    pub(super) async fn check(&self) -> Result<(), TreeError> {
        let stat = self.client.patiently(|| self.tree.exists(&self.path)).await?;
        stat.filter(|stat| stat.created == self.created).map(drop).ok_or(TreeError::NoNode)
    }

    /// # Errors
    /// As those of a [`Tree`]; [`TreeError::NoNode`] if it is gone.
    pub(super) async fn remove(&self) -> Result<(), TreeError> {
        if self.is_unique { self.tree.delete(&self.path, Expected::Any).await } else { self.remains().delete().await }
    }

    /// Ready when it is not there any more, with [`TreeError::NoNode`]; or when its session is lost.
    pub(super) async fn gone(&self) -> TreeError {
        gone(&self.client, &*self.tree, &self.path, Some(self.created)).await
    }
}

/// Ready when a node, the one that was `created` then if that is told, is not there any more, with [`TreeError::NoNode`]; or when the
/// session is lost, or it may not be looked at.
pub(super) async fn gone(client: &Client, tree: &dyn Tree, path: &NodePath, created: Option<Zxid>) -> TreeError {
    let is_it = |stat: &Stat| created.is_none_or(|created| stat.created == created);
    loop {
        let ended = match client.patiently(|| tree.exists_and_watch(path)).await {
            Ok((Some(stat), watch)) if is_it(&stat) => watch.await.map(drop),
            Ok(_) => Err(TreeError::NoNode),
            // The session has as many watches as it may: it is looked at now and then.
            Err(TreeError::Invalid(_)) => {
                client.pause().await;
                let stat = client.patiently(|| tree.exists(path)).await;
                stat.and_then(|stat| stat.filter(is_it).map(drop).ok_or(TreeError::NoNode))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            return error;
        }
    }
}

impl Remains {
    /// What belongs to a session that has ended, goes with it.
    pub(super) async fn remove(self, runtime: &Runtime) {
        match patiently(runtime, || self.delete()).await {
            Ok(()) | Err(TreeError::NoNode | TreeError::SessionLost) => {}
            Err(error) => tracing::warn!(parent = %self.parent, %error, "a node of ours stays until its session ends"),
        }
    }

    /// # Errors
    /// [`TreeError::NoNode`] if it is not there, and others as those of a [`Tree`].
    pub(super) async fn delete(&self) -> Result<(), TreeError> {
        let (path, _) = self.find().await?.ok_or(TreeError::NoNode)?;
        self.tree.delete(&path, Expected::Any).await
    }

    /// The node, if it is there; if not, it does not come later.
    async fn find(&self) -> Result<Option<(NodePath, Stat)>, TreeError> {
        let Remains { tree, parent, which } = self;
        if !matches!(which, Which::Made(..)) {
            tree.sync().await?;
        }
        let names = match which {
            Which::Made(path, _) | Which::OwnAfter(path, _) => vec![path.name().to_owned()],
            Which::Marked(_) | Which::LastAfter(..) => match tree.children(parent).await {
                Err(TreeError::NoNode) => return Ok(None),
                children => children?.names,
            },
        };
        let mut named: Vec<&String> = names.iter().filter(|name| which.is_named(name)).collect();
        // The newest first: it is the one, or older ones are not, either.
        named.sort_unstable_by_key(|name| std::cmp::Reverse(Sequence::of(name)));
        for name in named {
            let path = join(parent, name)?;
            let found = tree.exists(&path).await?;
            if let (Which::LastAfter(_, last), Some(stat)) = (which, &found)
                && stat.created <= *last
            {
                return Ok(None);
            }
            if let Some(stat) = found.filter(|stat| stat.owner == Some(tree.session().id()) && which.is_made(stat)) {
                return Ok(Some((path, stat)));
            }
        }
        Ok(None)
    }
}

impl Which {
    fn is_named(&self, name: &str) -> bool {
        match self {
            Which::Made(path, _) | Which::OwnAfter(path, _) => path.name() == name,
            Which::Marked(mark) => name.strip_prefix("_c_").is_some_and(|rest| rest.starts_with(mark)),
            Which::LastAfter(prefix, _) => name.starts_with(prefix) && Sequence::after(name, prefix).is_some(),
        }
    }

    fn is_made(&self, stat: &Stat) -> bool {
        match self {
            Which::Made(_, created) => stat.created == *created,
            Which::LastAfter(_, last) | Which::OwnAfter(_, last) => stat.created > *last,
            Which::Marked(_) => true,
        }
    }
}

/// Of a name that a recipe made, or that the engine told.
///
/// # Errors
/// [`TreeError::Invalid`] if the path would be none.
pub(super) fn join(parent: &NodePath, name: &str) -> Result<NodePath, TreeError> {
    Ok(parent.join(name)?)
}

/// Of a name that a user gave: one part.
///
/// # Errors
/// [`TreeError::Invalid`] if it is no node's name.
pub(super) fn child(parent: &NodePath, name: &str) -> Result<NodePath, TreeError> {
    if name.contains('/') {
        return Err(TreeError::Invalid(format!("a name here has no `/`: {name}")));
    }
    join(parent, name)
}

/// In the form of a UUID of version 4.
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

/// Makes the node and all above it. Containers go when nobody uses them any more.
///
/// # Errors
/// As [`Tree::create`].
async fn make_parents(tree: &dyn Tree, path: &NodePath, mode: CreateMode, acl: &Acl) -> Result<(), TreeError> {
    let mut missing = vec![path.clone()];
    for _ in 0..PARENT_TRIES {
        let Some(next) = missing.last() else { return Ok(()) };
        match tree.create(next, Bytes::new(), mode, acl.clone()).await {
            Ok(_) | Err(TreeError::NodeExists) => drop(missing.pop()),
            Err(TreeError::NoNode) => missing.extend(next.parent()),
            Err(error) => return Err(error),
        }
    }
    Err(TreeError::NoNode)
}

/// A persistent one, and all above it as `parents`; harmless if it is there.
///
/// # Errors
/// As those of a [`Tree`], but for [`TreeError::Disconnected`].
pub(super) async fn make(
    client: &Client,
    tree: &dyn Tree,
    path: &NodePath,
    data: Bytes,
    parents: CreateMode,
    acl: &Acl,
) -> Result<(), TreeError> {
    for _ in 0..PARENT_TRIES {
        match client.patiently(|| tree.create(path, data.clone(), CreateMode::Persistent, acl.clone())).await {
            Ok(_) | Err(TreeError::NodeExists) => return Ok(()),
            Err(TreeError::NoNode) => {
                let parent = path.parent().unwrap_or_else(NodePath::root);
                client.patiently(|| make_parents(tree, &parent, parents, acl)).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Err(TreeError::NoNode)
}

/// Harmless if it is gone.
///
/// # Errors
/// As [`make`].
pub(super) async fn delete(client: &Client, tree: &dyn Tree, path: &NodePath) -> Result<(), TreeError> {
    match client.patiently(|| tree.delete(path, Expected::Any)).await {
        Ok(()) | Err(TreeError::NoNode) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_has_the_form_that_curator_looks_for() {
        let guid = guid_of(u128::MAX);
        assert_eq!(guid, "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(guid.len(), 36);
    }
}
