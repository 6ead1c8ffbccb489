//! A number that processes share. Curator's `DistributedAtomicLong` shares it.

use bytes::Bytes;

use super::client::Client;
use super::node::make;
use crate::tree::{Acl, CreateMode, Expected, NodePath, TreeError};

/// A process's way to a counter, which is zero at first.
#[derive(Clone)]
pub struct Counter {
    client: Client,
    path: NodePath,
    acl: Acl,
}

impl Counter {
    /// `acl` is of the node if it is made here, and of parents that are missing.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Counter { client: client.clone(), path, acl }
    }

    /// As it is now.
    ///
    /// # Errors
    /// As those of a [`Tree`](crate::tree::Tree); [`TreeError::Invalid`] if the node holds something else.
    pub async fn get(&self) -> Result<i64, TreeError> {
        let tree = self.client.session().await?;
        tree.sync().await?;
        match tree.get(&self.path).await {
            Ok(node) => self.decode(&node.data),
            Err(TreeError::NoNode) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Adds to it, and answers the sum, which wraps around.
    ///
    /// # Errors
    /// As those of a [`Tree`](crate::tree::Tree). With [`TreeError::Disconnected`] and [`TreeError::SessionLost`] it is not known whether it was
    /// added: whoever counts what must not be counted twice keeps a name for it elsewhere. [`TreeError::Invalid`] if the node holds something else.
    pub async fn add(&self, more: i64) -> Result<i64, TreeError> {
        let tree = self.client.session().await?;
        loop {
            let node = match self.client.patiently(|| tree.get(&self.path)).await {
                Err(TreeError::NoNode) => {
                    make(&self.client, &*tree, &self.path, encode(0), CreateMode::Container, &self.acl).await?;
                    continue;
                }
                node => node?,
            };
            let sum = self.decode(&node.data)?.wrapping_add(more);
            match tree.set(&self.path, encode(sum), Expected::Version(node.stat.version)).await {
                // Somebody else was faster, who thus got on: so all do in the end.
                Err(TreeError::BadVersion | TreeError::NoNode) => {}
                done => return done.map(|_| sum),
            }
        }
    }

    fn decode(&self, data: &[u8]) -> Result<i64, TreeError> {
        let eight = data.try_into().map_err(|_| {
            TreeError::Invalid(format!("{} holds {} bytes, and no counter's eight", self.path, data.len()))
        })?;
        Ok(i64::from_be_bytes(eight))
    }
}

fn encode(count: i64) -> Bytes {
    Bytes::copy_from_slice(&count.to_be_bytes())
}
