//! Lock for one writer or many readers. Processes that use Curator's `InterProcessReadWriteLock` can share the lock.

use bytes::Bytes;

use super::client::Client;
use super::guard::{Held, Trust};
use super::line::{Line, Members, Naming, Rule};
use super::lock::acquire;
use crate::tree::{Acl, NodePath, TreeError};

const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";

/// Handle with which one process uses a read-write lock. Processes get the lock in the order of their requests. A
/// reader waits for the writers before it. A writer waits for all requests before it. Therefore neither readers nor
/// writers starve. The lock is not reentrant: if a process that holds the lock as a reader requests it as a writer,
/// this request waits until the process releases the lock.
#[derive(Clone)]
pub struct RwLock {
    client: Client,
    path: NodePath,
    acl: Acl,
    trust: Trust,
}

impl RwLock {
    /// Creates a handle. `acl` is the access list of the nodes that the handle creates, including missing parents.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        RwLock { client: client.clone(), path, acl, trust: Trust::default() }
    }

    /// Sets the [`Trust`] of the guards from this handle. The default is [`Trust::UntilSuspended`].
    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        RwLock { trust, ..self }
    }

    /// Waits for the lock as a reader. Other readers may hold the lock at the same time.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::acquire`](super::Lock::acquire).
    pub async fn read(&self) -> Result<Held, TreeError> {
        self.acquire(READ, Rule::After(WRITE)).await
    }

    /// Waits for the lock as a writer. No other process holds the lock at the same time.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::acquire`](super::Lock::acquire).
    pub async fn write(&self) -> Result<Held, TreeError> {
        self.acquire(WRITE, Rule::Among(1)).await
    }

    async fn acquire(&self, name: &'static str, rule: Rule) -> Result<Held, TreeError> {
        let (parent, acl) = (self.path.clone(), self.acl.clone());
        let members = Members::Named(&[READ, WRITE]);
        let line = Line { parent, name: name.into(), naming: Naming::Protected, members, acl };
        acquire(&self.client, &line, rule, self.trust, &Bytes::new()).await
    }
}
