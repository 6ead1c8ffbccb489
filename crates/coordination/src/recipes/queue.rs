//! Leader queue, as in the library Petting Zoo. Every candidate for the leadership sees its position in the queue.

use std::fmt;

use bytes::Bytes;

use super::client::Client;
use super::follow::follow_children;
use super::guard::{Held, Trust};
use super::line::{Line, Naming, Place, Rule};
use super::node::join;
use crate::Followed;
use crate::followed::send_if_new;
use crate::tree::{Acl, Node, NodePath, TreeError};

/// Handle with which one process uses a leader queue.
#[derive(Clone)]
pub struct LeaderQueue {
    client: Client,
    line: Line,
    trust: Trust,
}

/// Position of a candidate in the queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Position {
    /// The candidate waits. The value is the number of candidates before it in the queue.
    Queued(usize),
    /// The candidate is the first in the queue.
    Front,
    /// The candidate's node no longer exists, or the candidate's session has ended. The candidate does not return to
    /// the queue.
    Out,
}

/// Candidate in the queue. A drop of this value removes the candidate from the queue.
#[must_use = "a drop of this value removes the candidate from the queue"]
pub struct Candidacy {
    place: Place,
    line: Line,
    trust: Trust,
}

impl LeaderQueue {
    /// Creates a handle. `acl` is the access list of the nodes that the handle creates, including missing parents. If
    /// processes that use the library Petting Zoo share the queue, `acl` must be [`Acl::Open`].
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the path is too long.
    pub fn new(client: &Client, path: &NodePath, acl: Acl) -> Result<Self, TreeError> {
        let line = Line::new(join(path, "candidate")?, Naming::Plain, &["candidate"], acl);
        Ok(LeaderQueue { client: client.clone(), line, trust: Trust::default() })
    }

    /// Sets the [`Trust`] of the guards that later candidates get. The default is [`Trust::UntilSuspended`].
    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        LeaderQueue { trust, ..self }
    }

    /// Adds a candidate to the end of the queue. Every process with access to the queue can read the candidate's
    /// `data`.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree). After an error, including [`TreeError::Disconnected`],
    /// the candidate is not in the queue.
    pub async fn join(&self, data: Bytes) -> Result<Candidacy, TreeError> {
        let place = self.line.join(&self.client, data, Rule::Among(1)).await?;
        Ok(Candidacy { place, line: self.line.clone(), trust: self.trust })
    }

    /// Returns the candidates in their order, the leader first. The list may be slightly out of date.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree).
    pub async fn candidates(&self) -> Result<Vec<Node>, TreeError> {
        let tree = self.client.session().await?;
        self.line.nodes(&*tree).await
    }

    /// Follows the number of candidates that wait behind the leader, from now on.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree).
    pub async fn follow_spare(&self) -> Result<Followed<usize>, TreeError> {
        // The follower's task lists the candidates again. This first call only ensures that the caller receives a
        // permanent error at once.
        let tree = self.client.session().await?;
        match self.client.retry(|| tree.children(&self.line.parent)).await {
            Ok(_) | Err(TreeError::NoNode | TreeError::SessionLost) => {}
            Err(error) => return Err(error),
        }
        let (client, line) = (self.client.clone(), self.line.clone());
        let mut spare = Followed::start(self.client.runtime(), usize::MAX, |spare| async move {
            follow_children(&client, &line.parent, |names| {
                send_if_new(&spare, line.sorted(names).len().saturating_sub(1));
                !spare.is_closed()
            })
            .await;
        });
        spare.changed().await;
        Ok(spare)
    }
}

impl Candidacy {
    /// Follows the candidate's position from now on. The client reads the list of all candidates after each change of
    /// the queue. A caller that only waits for the leadership needs fewer requests with [`Candidacy::lead`], which
    /// watches only one candidate.
    pub async fn follow(&self) -> Followed<Position> {
        let (node, line) = (self.place.node().clone(), self.line.clone());
        let runtime = node.client.runtime().clone();
        let mut followed = Followed::start(&runtime, Position::Queued(usize::MAX), |position| async move {
            let watching = async {
                loop {
                    let listed = node.client.retry(|| node.tree.children_and_watch(&line.parent)).await;
                    let Ok((children, watch)) = listed else { return };
                    let names = line.sorted(children.names);
                    match names.iter().position(|name| name == node.path.name()) {
                        Some(0) => send_if_new(&position, Position::Front),
                        Some(before) => send_if_new(&position, Position::Queued(before)),
                        None => return,
                    }
                    if watch.await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                biased;
                () = position.closed() => return,
                _ = node.gone() => {}
                () = watching => {}
            }
            send_if_new(&position, Position::Out);
        });
        followed.changed().await;
        followed
    }

    /// Waits until the candidate is at the front of the queue. Returns the guard of its leadership.
    ///
    /// # Errors
    /// Returns [`TreeError::NoNode`] if the candidate's node no longer exists. Returns [`TreeError::SessionLost`] if
    /// its session was lost. In both cases the candidate is no longer in the queue.
    pub async fn lead(self) -> Result<Held, TreeError> {
        self.place.turn().await?;
        Held::new(self.place.into_owned(), self.trust).await
    }

    /// Removes the candidate from the queue. If the engine does not respond within 1 s, the removal continues in the
    /// background.
    pub async fn leave(self) {
        self.place.into_owned().release().await;
    }
}

impl fmt::Debug for Candidacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidacy").field("path", &self.place.node().path).finish_non_exhaustive()
    }
}
