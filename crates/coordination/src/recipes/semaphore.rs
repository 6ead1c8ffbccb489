//! So many holders at a time. Curator's `InterProcessSemaphoreV2` shares it.

use bytes::Bytes;

use super::client::Client;
use super::held::{Held, Trust};
use super::line::{Line, Naming, Rule};
use super::lock::{Lock, hold_once};
use super::node::join;
use crate::tree::{Acl, NodePath, TreeError};

/// A process's way to a semaphore. All who share it say the same number of leases.
#[derive(Clone)]
pub struct Semaphore {
    client: Client,
    /// Held while one waits for a lease: those behind it wait here, so Curator, which counts leases, sees at most one too many.
    locks: Lock,
    leases: Line,
    count: usize,
    trust: Trust,
}

impl Semaphore {
    /// With `count` leases, at least one. `acl` is of the nodes that are made here, and of parents that are missing.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if the path is too long, or there are no leases.
    pub fn new(client: &Client, path: &NodePath, count: usize, acl: Acl) -> Result<Self, TreeError> {
        if count == 0 {
            return Err(TreeError::Invalid("a semaphore has at least one lease".to_owned()));
        }
        let locks = Lock::new(client, join(path, "locks")?, acl.clone());
        let leases = Line::new(join(path, "leases")?, Naming::Marked, &["lease-"], acl);
        Ok(Semaphore { client: client.clone(), locks, leases, count, trust: Trust::default() })
    }

    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        Semaphore { trust, ..self }
    }

    /// One lease, in the order of asking.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn acquire(&self) -> Result<Held, TreeError> {
        loop {
            let next = self.locks.acquire().await?;
            let rule = Rule::Among(self.count);
            let lease = hold_once(&self.client, &self.leases, rule, self.trust, &Bytes::new()).await;
            next.release().await;
            match lease {
                // With the session its place among those who wait went, too.
                Err(TreeError::NoNode | TreeError::SessionLost) => self.client.pause().await,
                lease => return lease,
            }
        }
    }
}
