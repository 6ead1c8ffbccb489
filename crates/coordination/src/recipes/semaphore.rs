//! A semaphore with a fixed number of holders at a time. Processes with Curator's `InterProcessSemaphoreV2` can share
//! it.

use bytes::Bytes;

use super::client::Client;
use super::guard::{Held, Trust};
use super::line::{Line, Naming, Rule};
use super::lock::{Lock, acquire_once};
use super::node::join;
use crate::tree::{Acl, NodePath, TreeError};

/// Handle of a semaphore in one process. All processes that share it must use the same number of leases.
#[derive(Clone)]
pub struct Semaphore {
    client: Client,
    /// Lock that a process holds while it waits for a lease. The next requests wait for this lock. Curator counts
    /// leases, and therefore sees at most one too many.
    locks: Lock,
    leases: Line,
    count: usize,
    trust: Trust,
}

impl Semaphore {
    /// Creates a semaphore with `count` leases, at least one. `acl` is the access list of the nodes created here,
    /// including missing parents.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the path is too long or `count` is zero.
    pub fn new(client: &Client, path: &NodePath, count: usize, acl: Acl) -> Result<Self, TreeError> {
        if count == 0 {
            return Err(TreeError::Invalid("invalid semaphore: it must have at least one lease".to_owned()));
        }
        let locks = Lock::new(client, join(path, "locks")?, acl.clone());
        let leases = Line::new(join(path, "leases")?, Naming::Protected, &["lease-"], acl);
        Ok(Semaphore { client: client.clone(), locks, leases, count, trust: Trust::default() })
    }

    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        Semaphore { trust, ..self }
    }

    /// Waits for one lease, in the order of the requests.
    ///
    /// # Errors
    /// The same as [`Lock::acquire`].
    pub async fn acquire(&self) -> Result<Held, TreeError> {
        loop {
            let lock = self.locks.acquire().await?;
            let rule = Rule::Among(self.count);
            let lease = acquire_once(&self.client, &self.leases, rule, self.trust, &Bytes::new()).await;
            lock.release().await;
            match lease {
                // The loss of the session also removed the place in the line of the lock.
                Err(TreeError::NoNode | TreeError::SessionLost) => self.client.back_off().await,
                lease => return lease,
            }
        }
    }
}
