//! A lock with one holder at a time, in the order of the requests. Processes with Curator's `InterProcessMutex` can
//! share it.

use bytes::Bytes;

use super::client::Client;
use super::guard::{Held, Trust};
use super::line::{Line, Naming, Rule};
use crate::tree::{Acl, NodePath, TreeError};

/// Handle of a lock in one process. The lock is not reentrant: a holder that acquires it again waits for itself.
#[derive(Clone)]
pub struct Lock {
    client: Client,
    line: Line,
    trust: Trust,
}

impl Lock {
    /// Creates the handle. `acl` is the access list of the nodes created here, including missing parents.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Lock {
            client: client.clone(),
            line: Line::new(path, Naming::Protected, &["lock-"], acl),
            trust: Trust::default(),
        }
    }

    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        Lock { trust, ..self }
    }

    /// Waits for the lock without a time limit. If a session is lost, the wait continues at the end of the line.
    /// Dropping the future withdraws the request. A future that is kept but not polled keeps its place, and the places
    /// behind it wait.
    ///
    /// # Errors
    /// Errors that waiting cannot resolve: [`TreeError::Forbidden`], [`TreeError::InvalidAcl`], [`TreeError::Invalid`].
    pub async fn acquire(&self) -> Result<Held, TreeError> {
        acquire(&self.client, &self.line, Rule::Among(1), self.trust, &Bytes::new()).await
    }
}

/// Joins the line and waits for the turn, across sessions.
pub(super) async fn acquire(
    client: &Client,
    line: &Line,
    rule: Rule,
    trust: Trust,
    data: &Bytes,
) -> Result<Held, TreeError> {
    loop {
        match acquire_once(client, line, rule, trust, data).await {
            // The node or its session is gone, so the process joins again at the end of the line.
            Err(TreeError::NoNode | TreeError::SessionLost) => client.back_off().await,
            held => return held,
        }
    }
}

/// Joins the line and waits for the turn like [`acquire`], within one session.
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
