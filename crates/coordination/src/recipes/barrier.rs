//! Where processes wait for one another. Curator's `DistributedBarrier` and `DistributedDoubleBarrier` share them.

use bytes::Bytes;

use super::client::Client;
use super::node::{NewPlain, Owned, delete, gone, guid, join, make};
use crate::tree::{Acl, CreateMode, NodePath, Tree, TreeError};

/// Closed while its node is there.
#[derive(Clone)]
pub struct Barrier {
    client: Client,
    path: NodePath,
    acl: Acl,
}

impl Barrier {
    /// `acl` is of the nodes that are made here, and of parents that are missing.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Barrier { client: client.clone(), path, acl }
    }

    /// Closes it; harmless if it is closed. It stays so over the end of this process.
    ///
    /// # Errors
    /// As those of a [`Tree`], but for [`TreeError::Disconnected`]: it is asked again.
    pub async fn close(&self) -> Result<(), TreeError> {
        let tree = self.client.session().await?;
        make(&self.client, &*tree, &self.path, Bytes::new(), CreateMode::Container, &self.acl).await
    }

    /// Lets all through; harmless if it is open.
    ///
    /// # Errors
    /// As [`Barrier::close`].
    pub async fn open(&self) -> Result<(), TreeError> {
        let tree = self.client.session().await?;
        delete(&self.client, &*tree, &self.path).await
    }

    /// Waits until it is open, for as long as it takes, over the ends of sessions.
    ///
    /// # Errors
    /// What waiting does not mend: [`TreeError::Forbidden`], say.
    pub async fn passed(&self) -> Result<(), TreeError> {
        loop {
            match self.passed_in_a_session().await {
                Err(TreeError::SessionLost | TreeError::Disconnected(_)) => self.client.pause().await,
                passed => return passed,
            }
        }
    }

    async fn passed_in_a_session(&self) -> Result<(), TreeError> {
        let tree = self.client.session().await?;
        tree.sync().await?;
        match gone(&self.client, &*tree, &self.path, None).await {
            TreeError::NoNode => Ok(()),
            error => Err(error),
        }
    }
}

/// Lets so many in at once, and out at once: a common begin and a common end.
#[derive(Clone)]
pub struct DoubleBarrier {
    client: Client,
    path: NodePath,
    ready: NodePath,
    count: usize,
    acl: Acl,
}

/// Inside. Dropped, it counts as one that has left; [`Entered::leave`] waits for the others.
#[must_use = "dropped, it has left"]
pub struct Entered {
    barrier: DoubleBarrier,
    owned: Owned,
}

const READY: &str = "ready";

impl DoubleBarrier {
    /// For `count` processes. `acl` is of the nodes that are made here, and of parents that are missing.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if the path is too long, or it is for nobody.
    pub fn new(client: &Client, path: NodePath, count: usize, acl: Acl) -> Result<Self, TreeError> {
        if count == 0 {
            return Err(TreeError::Invalid("a barrier is for one process at least".to_owned()));
        }
        let ready = join(&path, READY)?;
        Ok(DoubleBarrier { client: client.clone(), path, ready, count, acl })
    }

    /// Waits until all are here. Dropped, it is not.
    ///
    /// # Errors
    /// [`TreeError::SessionLost`]: it is not here any more, and may come again. Others as those of a [`Tree`].
    pub async fn enter(&self) -> Result<Entered, TreeError> {
        let tree = self.client.session().await?;
        let (name, parent, acl) = (guid(self.client.runtime()), self.path.clone(), self.acl.clone());
        let (parents, mode) = (CreateMode::Container, CreateMode::Ephemeral);
        let node = NewPlain { parent, parents, name, mode, acl };
        let owned = node.make(&self.client, &tree, Bytes::new()).await?;
        let created = owned.node().created;
        let entered = Entered { barrier: self.clone(), owned };
        loop {
            let (ready, watch) = self.client.patiently(|| tree.exists_and_watch(&self.ready)).await?;
            // One that was left over is of an earlier time.
            if ready.as_ref().is_some_and(|ready| ready.created > created) {
                return Ok(entered);
            }
            if self.inside(&*tree).await? >= self.count {
                if ready.is_some() {
                    delete(&self.client, &*tree, &self.ready).await?;
                }
                make(&self.client, &*tree, &self.ready, Bytes::new(), CreateMode::Container, &self.acl).await?;
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
        let children = self.client.patiently(|| tree.children(&self.path)).await?;
        Ok(children.names.iter().filter(|name| *name != READY).count())
    }
}

impl Entered {
    /// Waits until all have left.
    ///
    /// # Errors
    /// As those of a [`Tree`]; this process has left all the same.
    pub async fn leave(self) -> Result<(), TreeError> {
        let Entered { barrier: DoubleBarrier { client, path, ready, .. }, owned } = self;
        let tree = owned.node().tree.clone();
        owned.release().await;
        loop {
            let (children, watch) = match client.patiently(|| tree.children_and_watch(&path)).await {
                Err(TreeError::NoNode) => return Ok(()),
                seen => seen?,
            };
            // It is there until all have left, and whoever is inside without it has come again.
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
