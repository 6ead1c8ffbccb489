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
pub(super) struct NewNode<'a> {
    pub(super) parent: &'a NodePath,
    /// What a missing parent is made as, and all above it.
    pub(super) parents: CreateMode,
    pub(super) name: &'a str,
    /// An ephemeral one.
    pub(super) mode: CreateMode,
    pub(super) acl: &'a Acl,
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
    /// At this path.
    Own(NodePath),
    /// With this mark, which no other has.
    Marked(String),
    /// Of this name, and made after that.
    LastAfter(Arc<str>, Zxid),
}

impl NewNode<'_> {
    /// If the engine does not answer, what may have been made is looked for; given up, it is removed.
    ///
    /// # Errors
    /// As those of a [`Tree`], but for [`TreeError::Disconnected`].
    pub(super) async fn make(self, client: &Client, tree: &Arc<dyn Tree>, data: Bytes) -> Result<Owned, TreeError> {
        let NewNode { parent, parents, name, mode, acl, which } = self;
        let (path, is_unique) = (join(parent, name)?, matches!(which, Which::Marked(_)));
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
                    client.patiently(|| make_parents(&**tree, parent, parents, acl)).await?;
                }
                Err(error) => {
                    unsure.remains = None;
                    return Err(error);
                }
            }
        }
        Err(TreeError::NoNode)
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
    /// As those of a [`Tree`]; [`TreeError::NoNode`] if it is gone.
    pub(super) async fn remove(&self) -> Result<(), TreeError> {
        if self.is_unique { self.tree.delete(&self.path, Expected::Any).await } else { self.remains().delete().await }
    }

    /// Ready when it is not there any more, with [`TreeError::NoNode`]; or when its session is lost.
    pub(super) async fn gone(&self) -> TreeError {
        loop {
            let looked = self.client.patiently(|| self.tree.exists_and_watch(&self.path)).await;
            let ended = match looked {
                Ok((Some(stat), watch)) if stat.created == self.created => watch.await.map(drop),
                Ok(_) => Err(TreeError::NoNode),
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                return error;
            }
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
            Which::Made(path, _) | Which::Own(path) => vec![path.name().to_owned()],
            Which::Marked(_) | Which::LastAfter(..) => match tree.children(parent).await {
                Err(TreeError::NoNode) => return Ok(None),
                children => children?.names,
            },
        };
        for name in names.iter().filter(|name| which.is_named(name)) {
            let path = join(parent, name)?;
            let found = tree.exists(&path).await?;
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
            Which::Made(path, _) | Which::Own(path) => path.name() == name,
            Which::Marked(mark) => name.strip_prefix("_c_").is_some_and(|rest| rest.starts_with(mark)),
            Which::LastAfter(prefix, _) => name.starts_with(&**prefix) && Sequence::after(name, prefix).is_some(),
        }
    }

    fn is_made(&self, stat: &Stat) -> bool {
        match self {
            Which::Made(_, created) => stat.created == *created,
            Which::LastAfter(_, last) => stat.created > *last,
            Which::Own(_) | Which::Marked(_) => true,
        }
    }
}

/// Of a name that a recipe made, or that the engine told.
///
/// # Errors
/// [`TreeError::Invalid`] if the path would be none.
pub(super) fn join(parent: &NodePath, name: &str) -> Result<NodePath, TreeError> {
    parent.join(name).map_err(|error| TreeError::Invalid(error.to_string()))
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

/// A persistent one, and all above it; harmless if it is there.
///
/// # Errors
/// As those of a [`Tree`], but for [`TreeError::Disconnected`].
pub(super) async fn make(
    client: &Client,
    tree: &dyn Tree,
    path: &NodePath,
    data: Bytes,
    acl: &Acl,
) -> Result<(), TreeError> {
    for _ in 0..PARENT_TRIES {
        match client.patiently(|| tree.create(path, data.clone(), CreateMode::Persistent, acl.clone())).await {
            Ok(_) | Err(TreeError::NodeExists) => return Ok(()),
            Err(TreeError::NoNode) => {
                let parent = path.parent().unwrap_or_else(NodePath::root);
                client.patiently(|| make_parents(tree, &parent, CreateMode::Container, acl)).await?;
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
