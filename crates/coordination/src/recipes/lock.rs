//! One holder at a time, in the order of asking. Curator's `InterProcessMutex` shares it.

use bytes::Bytes;

use super::client::Client;
use super::held::{Held, Trust};
use super::line::{Line, Naming, Rule};
use crate::tree::{Acl, NodePath, TreeError};

/// A process's way to a lock. Not reentrant: who holds it and asks again waits for itself.
#[derive(Clone)]
pub struct Lock {
    client: Client,
    line: Line,
    trust: Trust,
}

impl Lock {
    /// `acl` is of the nodes that are made here, and of parents that are missing.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Lock { client: client.clone(), line: Line::new(path, Naming::Marked, &["lock-"], acl), trust: Trust::default() }
    }

    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        Lock { trust, ..self }
    }

    /// Waits for as long as it takes, over the ends of sessions: then it begins at the end of the line. Dropped, it asks no more; kept and not
    /// polled, it keeps its place, and those behind it wait.
    ///
    /// # Errors
    /// What waiting does not mend: [`TreeError::Forbidden`], [`TreeError::InvalidAcl`], [`TreeError::Invalid`].
    pub async fn acquire(&self) -> Result<Held, TreeError> {
        hold(&self.client, &self.line, Rule::Among(1), self.trust, &Bytes::new()).await
    }
}

/// A place of a line whose turn has come, whatever it takes.
pub(super) async fn hold(
    client: &Client,
    line: &Line,
    rule: Rule,
    trust: Trust,
    data: &Bytes,
) -> Result<Held, TreeError> {
    loop {
        match hold_once(client, line, rule, trust, data).await {
            // Its node or its session went: another one, at the end.
            Err(TreeError::NoNode | TreeError::SessionLost) => client.pause().await,
            held => return held,
        }
    }
}

/// As [`hold`], in one session.
pub(super) async fn hold_once(
    client: &Client,
    line: &Line,
    rule: Rule,
    trust: Trust,
    data: &Bytes,
) -> Result<Held, TreeError> {
    let place = client.patiently(|| line.join(client, data.clone(), rule)).await?;
    place.turn().await?;
    Held::of(place.into_owned(), trust).await
}
