//! Barriers at which processes wait for one another. Processes that use Curator's `DistributedBarrier` and
//! `DistributedDoubleBarrier` can share the barriers.

use bytes::Bytes;

use super::client::Client;
use super::node::{NewPlain, NodeGuard, create_node, delete, gone, guid, join};
use crate::tree::{Acl, CreateMode, NodePath, Tree, TreeError};

/// Barrier that is closed while its node exists.
#[derive(Clone)]
pub struct Barrier {
    client: Client,
    path: NodePath,
    acl: Acl,
}

impl Barrier {
    /// Creates a handle. `acl` is the access list of the nodes that the handle creates, including missing parents.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Barrier { client: client.clone(), path, acl }
    }

    /// Closes the barrier. Does nothing if the barrier is closed. The barrier stays closed after this process has
    /// ended.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`]. Once a session is open, the function never returns
    /// [`TreeError::Disconnected`], because it sends the request again until the engine responds.
    pub async fn close(&self) -> Result<(), TreeError> {
        let tree = self.client.session().await?;
        create_node(&self.client, &*tree, &self.path, Bytes::new(), CreateMode::Container, &self.acl).await
    }

    /// Opens the barrier and lets all waiting processes pass. Does nothing if the barrier is open.
    ///
    /// # Errors
    /// Returns the same errors as [`Barrier::close`].
    pub async fn open(&self) -> Result<(), TreeError> {
        let tree = self.client.session().await?;
        delete(&self.client, &*tree, &self.path).await
    }

    /// Waits until the barrier is open. The wait has no time limit and continues in a new session if a session is lost.
    ///
    /// # Errors
    /// Returns only errors that do not disappear while the caller waits, for example [`TreeError::Forbidden`].
    pub async fn passed(&self) -> Result<(), TreeError> {
        loop {
            match self.pass_in_one_session().await {
                Err(TreeError::SessionLost | TreeError::Disconnected(_)) => self.client.back_off().await,
                passed => return passed,
            }
        }
    }

    async fn pass_in_one_session(&self) -> Result<(), TreeError> {
        let tree = self.client.session().await?;
        tree.sync().await?;
        match gone(&self.client, &*tree, &self.path, None).await {
            TreeError::NoNode => Ok(()),
            error => Err(error),
        }
    }
}

/// Barrier that a fixed number of processes enter together and leave together.
#[derive(Clone)]
pub struct DoubleBarrier {
    client: Client,
    path: NodePath,
    ready: NodePath,
    count: usize,
    acl: Acl,
}

/// Entry of this process into a double barrier. When the caller drops this value, the process leaves the barrier
/// without waiting for the other processes. [`Entered::leave`] waits for them.
#[must_use = "the process leaves the barrier when this value is dropped"]
pub struct Entered {
    barrier: DoubleBarrier,
    owned: NodeGuard,
}

const READY: &str = "ready";

impl DoubleBarrier {
    /// Creates a barrier for `count` processes. `acl` is the access list of the nodes that the barrier creates,
    /// including missing parents.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the path is too long or `count` is zero.
    pub fn new(client: &Client, path: NodePath, count: usize, acl: Acl) -> Result<Self, TreeError> {
        if count == 0 {
            return Err(TreeError::Invalid("invalid barrier: `count` must be at least 1".to_owned()));
        }
        let ready = join(&path, READY)?;
        Ok(DoubleBarrier { client: client.clone(), path, ready, count, acl })
    }

    /// Enters the barrier and waits until all processes have entered it. If the caller drops the future, this process
    /// leaves the barrier.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`]. After [`TreeError::SessionLost`] this process no longer waits at the
    /// barrier, and it may enter the barrier again.
    pub async fn enter(&self) -> Result<Entered, TreeError> {
        let tree = self.client.session().await?;
        let (name, parent, acl) = (guid(self.client.runtime()), self.path.clone(), self.acl.clone());
        let (parents, mode) = (CreateMode::Container, CreateMode::Ephemeral);
        let node = NewPlain { parent, parents, name, mode, acl };
        let owned = node.create(&self.client, &tree, Bytes::new()).await?;
        let created = owned.node().created;
        let entered = Entered { barrier: self.clone(), owned };
        loop {
            let (ready, watch) = self.client.retry(|| tree.exists_and_watch(&self.ready)).await?;
            // The node `ready` shows that all processes have entered. If it is older than this process's node, it
            // belongs to an earlier round.
            if ready.as_ref().is_some_and(|ready| ready.created > created) {
                return Ok(entered);
            }
            if self.inside(&*tree).await? >= self.count {
                if ready.is_some() {
                    delete(&self.client, &*tree, &self.ready).await?;
                }
                create_node(&self.client, &*tree, &self.ready, Bytes::new(), CreateMode::Container, &self.acl).await?;
                return Ok(entered);
            }
            tokio::select! {
                biased;
                gone = entered.owned.node().gone() => return Err(gone),
                fired = watch => drop(fired?),
            }
        }
    }

    async fn inside(&self, tree: &dyn Tree) -> Result<usize, TreeError> {
        let children = self.client.retry(|| tree.children(&self.path)).await?;
        Ok(children.names.iter().filter(|name| *name != READY).count())
    }
}

impl Entered {
    /// Leaves the barrier and waits until all processes have left it.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`]. This process has left the barrier even if the function returns an error.
    pub async fn leave(self) -> Result<(), TreeError> {
        let Entered { barrier: DoubleBarrier { client, path, ready, .. }, owned } = self;
        let tree = owned.node().tree.clone();
        owned.release().await;
        loop {
            let (children, watch) = match client.retry(|| tree.children_and_watch(&path)).await {
                Err(TreeError::NoNode) => return Ok(()),
                listed => listed?,
            };
            // The node `ready` exists until all processes have left the barrier. If it does not exist, the remaining
            // nodes belong to the next round.
            if !children.names.iter().any(|name| name == READY) {
                return Ok(());
            }
            if children.names.len() == 1 {
                return delete(&client, &*tree, &ready).await;
            }
            watch.await?;
        }
    }
}
