//! Leader queue, as in the library Petting Zoo. Every candidate for the leadership sees its position in the queue.

use std::fmt;
use std::sync::Mutex;

use bytes::Bytes;
use tokio::sync::watch;

use super::client::Client;
use super::follow::{Followed, follow_children};
use super::guard::{Held, Trust};
use super::line::{Line, Naming, Place, Rule};
use super::node::join;
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
    position: Mutex<Option<Followed<Position>>>,
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
        Ok(Candidacy { place, line: self.line.clone(), trust: self.trust, position: Mutex::default() })
    }

    /// Returns the candidates in their order, the leader first. The list may be slightly out of date.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree).
    pub async fn candidates(&self) -> Result<Vec<Node>, TreeError> {
        let tree = self.client.session().await?;
        self.line.nodes(&*tree).await
    }

    /// Follows the number of candidates that wait behind the leader. The value is `None` until the engine has responded
    /// for the first time.
    pub fn spare(&self) -> Followed<Option<usize>> {
        let (client, line) = (self.client.clone(), self.line.clone());
        Followed::start(&self.client, None, |spare| async move {
            follow_children(&client, &line.parent, |names| {
                let count = line.sorted(names).len().saturating_sub(1);
                spare.send_if_modified(|known| known.replace(count) != Some(count));
                !spare.is_closed()
            })
            .await;
        })
    }
}

impl Candidacy {
    /// Returns a receiver of the candidate's position. The first value is [`Position::Queued`] with `usize::MAX`. The
    /// client reads the list of all candidates after each change of the queue. A caller that only waits for the
    /// leadership needs fewer requests with [`Candidacy::lead`], which watches only one candidate.
    #[must_use]
    pub fn position(&self) -> watch::Receiver<Position> {
        let mut position = self.position.lock().expect("no code panics while it holds this mutex");
        let followed = position.get_or_insert_with(|| {
            let (node, line) = (self.place.node().clone(), self.line.clone());
            let client = node.client.clone();
            Followed::start(&client, Position::Queued(usize::MAX), |position| async move {
                let set = |at: Position| {
                    position.send_if_modified(|known| std::mem::replace(known, at) != at);
                };
                let watching = async {
                    loop {
                        let listed = node.client.retry(|| node.tree.children_and_watch(&line.parent)).await;
                        let Ok((children, watch)) = listed else { return };
                        let names = line.sorted(children.names);
                        match names.iter().position(|name| name == node.path.name()) {
                            Some(0) => set(Position::Front),
                            Some(before) => set(Position::Queued(before)),
                            None => return,
                        }
                        if watch.await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    biased;
                    _ = node.gone() => {}
                    () = watching => {}
                }
                set(Position::Out);
            })
        });
        followed.receiver()
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

    /// Removes the candidate from the queue. If the engine does not respond, the removal continues in the background.
    pub async fn leave(self) {
        self.place.into_owned().release().await;
    }
}

impl fmt::Debug for Candidacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidacy").field("path", &self.place.node().path).finish_non_exhaustive()
    }
}
