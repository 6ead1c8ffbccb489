//! Lock with one holder at a time. Processes get the lock in the order of their requests. Processes that use Curator's
//! `InterProcessMutex` can share the lock.

use std::time::Duration;

use bytes::Bytes;

use super::client::Client;
use super::guard::{Held, Trust};
use super::line::{Line, Naming, Rule};
use crate::tree::{Acl, NodePath, TreeError};

/// Handle of a lock in one process. The lock is not reentrant. A holder that acquires the lock again waits for itself.
#[derive(Clone)]
pub struct Lock {
    client: Client,
    line: Line,
    trust: Trust,
}

impl Lock {
    /// Creates a handle. `acl` is the access list of the nodes that the handle creates, including missing parents.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Lock {
            client: client.clone(),
            line: Line::new(path, Naming::Protected, &["lock-"], acl),
            trust: Trust::default(),
        }
    }

    /// Sets the [`Trust`] of the guards from this handle. The default is [`Trust::UntilSuspended`].
    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        Lock { trust, ..self }
    }

    /// Waits for the lock without a time limit. If a session is lost, the wait continues at the end of the queue. If
    /// the caller drops the future, the process leaves the queue. If the caller keeps the future but does not poll it,
    /// the process keeps its place, and the processes behind it must wait.
    ///
    /// # Errors
    /// Returns only errors that do not disappear while the caller waits: [`TreeError::Forbidden`],
    /// [`TreeError::InvalidAcl`] and [`TreeError::Invalid`].
    pub async fn acquire(&self) -> Result<Held, TreeError> {
        acquire(&self.client, &self.line, Rule::Among(1), self.trust, &Bytes::new()).await
    }

    /// Waits for the lock like [`Lock::acquire`], but at most for `limit`. Returns `None` if this process does not
    /// obtain the lock in this time.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::acquire`].
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Option<Held>, TreeError> {
        self.client.runtime().timeout(limit, self.acquire()).await.transpose()
    }

    /// Acquires the lock if no process holds it or waits for it, and returns `None` otherwise. Another attempt at the
    /// same time counts as well, so two attempts may both return `None`. Waits only for responses of the engine.
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::acquire`].
    pub async fn try_acquire(&self) -> Result<Option<Held>, TreeError> {
        loop {
            let attempt = async {
                let place = self.client.retry(|| self.line.join(&self.client, Bytes::new(), Rule::Among(1))).await?;
                if !place.has_turn().await? {
                    place.into_owned().release().await;
                    return Ok(None);
                }
                Held::new(place.into_owned(), self.trust).await.map(Some)
            };
            match attempt.await {
                Err(TreeError::NoNode | TreeError::SessionLost) => self.client.back_off().await,
                done => return done,
            }
        }
    }
}

/// Joins the queue and waits for the turn of the new place. If a session is lost, the function joins the queue again in
/// a new session.
pub(super) async fn acquire(
    client: &Client,
    line: &Line,
    rule: Rule,
    trust: Trust,
    data: &Bytes,
) -> Result<Held, TreeError> {
    loop {
        match acquire_once(client, line, rule, trust, data).await {
            // The node of the place, or the session of this node, no longer exists. The process therefore joins the
            // queue again at its end.
            Err(TreeError::NoNode | TreeError::SessionLost) => client.back_off().await,
            held => return held,
        }
    }
}

/// Joins the queue and waits for the turn of the new place, like [`acquire`]. Returns an error if the session is lost.
pub(super) async fn acquire_once(
    client: &Client,
    line: &Line,
    rule: Rule,
    trust: Trust,
    data: &Bytes,
) -> Result<Held, TreeError> {
    let place = client.retry(|| line.join(client, data.clone(), rule)).await?;
    place.turn().await?;
    Held::new(place.into_owned(), trust).await
}
