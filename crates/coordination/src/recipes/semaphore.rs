//! Semaphore that limits the number of leases that processes hold at the same time. Processes that use Curator's
//! `InterProcessSemaphoreV2` can share the semaphore.

use bytes::Bytes;

use super::client::Client;
use super::guard::{Held, Trust};
use super::line::{Line, Naming, Rule};
use super::lock::{Lock, acquire_once};
use super::node::join;
use crate::tree::{Acl, NodePath, TreeError};

/// Handle with which one process uses a semaphore. All processes that share the semaphore must use the same number of
/// leases.
#[derive(Clone)]
pub struct Semaphore {
    client: Client,
    /// Lock that a process holds while it waits for a lease. Therefore only one process at a time waits for a lease,
    /// and later processes wait for this lock. Processes that use Curator count the lease nodes, and a process that
    /// waits for a lease already has a lease node. Their count is therefore at most one too high.
    locks: Lock,
    leases: Line,
    count: usize,
    trust: Trust,
}

impl Semaphore {
    /// Creates a handle of a semaphore with `count` leases. `acl` is the access list of the nodes that the handle
    /// creates, including missing parents.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the path is too long or `count` is zero.
    pub fn new(client: &Client, path: &NodePath, count: usize, acl: Acl) -> Result<Self, TreeError> {
        if count == 0 {
            return Err(TreeError::Invalid("invalid semaphore: `count` must be at least 1".to_owned()));
        }
        let locks = Lock::new(client, join(path, "locks")?, acl.clone());
        let leases = Line::new(join(path, "leases")?, Naming::Protected, &["lease-"], acl);
        Ok(Semaphore { client: client.clone(), locks, leases, count, trust: Trust::default() })
    }

    /// Sets the [`Trust`] of the guards from this handle. The default is [`Trust::UntilSuspended`].
    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        Semaphore { trust, ..self }
    }

    /// Waits for one lease. Processes get leases in the order of their requests.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::acquire`].
    pub async fn acquire(&self) -> Result<Held, TreeError> {
        loop {
            let lock = self.locks.acquire().await?;
            let rule = Rule::Among(self.count);
            let lease = acquire_once(&self.client, &self.leases, rule, self.trust, &Bytes::new()).await;
            lock.release().await;
            match lease {
                // The lease node or the session no longer exists, so the process acquires the lock and a lease again.
                Err(TreeError::NoNode | TreeError::SessionLost) => self.client.back_off().await,
                lease => return lease,
            }
        }
    }
}
