//! Counter that processes share. Processes that use Curator's `DistributedAtomicLong` can share the counter too.

use bytes::Bytes;

use super::client::Client;
use super::node::create_node;
use crate::tree::{Acl, CreateMode, Expected, NodePath, TreeError};

/// Handle of a counter in one process. A new counter is zero.
#[derive(Clone)]
pub struct Counter {
    client: Client,
    path: NodePath,
    acl: Acl,
}

impl Counter {
    /// Creates a handle. `acl` is the access list of the counter's node and of missing parents, if the handle creates
    /// them.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Counter { client: client.clone(), path, acl }
    }

    /// Returns the present value of the counter.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree). Returns [`TreeError::Invalid`] if the node does not
    /// contain a counter.
    pub async fn get(&self) -> Result<i64, TreeError> {
        let tree = self.client.session().await?;
        tree.sync().await?;
        match tree.get(&self.path).await {
            Ok(node) => self.decode(&node.data),
            Err(TreeError::NoNode) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Adds `more` to the counter and returns the sum. The sum wraps around at the limits of `i64`.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree). After [`TreeError::Disconnected`] or
    /// [`TreeError::SessionLost`] the addition may or may not have happened. A caller that must not count an event
    /// twice must therefore also record the event elsewhere, under a unique name. Returns [`TreeError::Invalid`] if the
    /// node does not contain a counter.
    pub async fn add(&self, more: i64) -> Result<i64, TreeError> {
        let tree = self.client.session().await?;
        loop {
            let node = match self.client.retry(|| tree.get(&self.path)).await {
                Err(TreeError::NoNode) => {
                    create_node(&self.client, &*tree, &self.path, encode(0), CreateMode::Container, &self.acl).await?;
                    continue;
                }
                node => node?,
            };
            let sum = self.decode(&node.data)?.wrapping_add(more);
            match tree.set(&self.path, encode(sum), Expected::Version(node.stat.version)).await {
                // Another process changed or deleted the node of the counter first. The loop therefore repeats the
                // addition.
                Err(TreeError::BadVersion | TreeError::NoNode) => {}
                done => return done.map(|_| sum),
            }
        }
    }

    fn decode(&self, data: &[u8]) -> Result<i64, TreeError> {
        let eight = data.try_into().map_err(|_| {
            TreeError::Invalid(format!("invalid counter at {}: expected 8 bytes, found {}", self.path, data.len()))
        })?;
        Ok(i64::from_be_bytes(eight))
    }
}

fn encode(count: i64) -> Bytes {
    Bytes::copy_from_slice(&count.to_be_bytes())
}
