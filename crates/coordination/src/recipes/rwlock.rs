//! One writer, or many readers. Curator's `InterProcessReadWriteLock` shares it.

use bytes::Bytes;

use super::client::Client;
use super::held::{Held, Trust};
use super::line::{Line, Members, Naming, Rule};
use super::lock::hold;
use crate::tree::{Acl, NodePath, TreeError};

const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";

/// A process's way to a read-write lock. In the order of asking: a reader waits for the writers before it, a writer for all before it, so
/// neither starves. Not reentrant: who reads and asks to write waits for itself.
#[derive(Clone)]
pub struct RwLock {
    client: Client,
    path: NodePath,
    acl: Acl,
    trust: Trust,
}

impl RwLock {
    /// `acl` is of the nodes that are made here, and of parents that are missing.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        RwLock { client: client.clone(), path, acl, trust: Trust::default() }
    }

    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        RwLock { trust, ..self }
    }

    /// Beside other readers.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire).
    pub async fn read(&self) -> Result<Held, TreeError> {
        self.hold(READ, Rule::After(WRITE)).await
    }

    /// Alone.
    ///
    /// # Errors
    /// As [`Lock::acquire`](super::Lock::acquire).
    pub async fn write(&self) -> Result<Held, TreeError> {
        self.hold(WRITE, Rule::Among(1)).await
    }

    async fn hold(&self, name: &'static str, rule: Rule) -> Result<Held, TreeError> {
        let (parent, acl) = (self.path.clone(), self.acl.clone());
        let members = Members::Named(&[READ, WRITE]);
        let line = Line { parent, name: name.into(), naming: Naming::Marked, members, acl };
        hold(&self.client, &line, rule, self.trust, &Bytes::new()).await
    }
}
