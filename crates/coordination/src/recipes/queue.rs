//! A line in which all see where they stand: Petting Zoo's leader queue (seed 001).

use std::fmt;
use std::sync::Mutex;

use bytes::Bytes;
use tokio::sync::watch;

use super::client::Client;
use super::follow::{Followed, follow_children};
use super::held::{Held, Trust};
use super::line::{Line, Naming, Place, Rule};
use super::node::join;
use crate::tree::{Acl, Node, NodePath, TreeError};

/// A process's way to a queue.
#[derive(Clone)]
pub struct LeaderQueue {
    client: Client,
    line: Line,
    trust: Trust,
}

/// Where a candidate stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Position {
    /// So many are before it.
    Queued(usize),
    Front,
    /// Its node was taken away, or its session ended: it does not come back.
    Out,
}

/// One who stands in the queue. Dropped, it leaves it.
#[must_use = "dropped, it leaves the queue"]
pub struct Candidacy {
    place: Place,
    line: Line,
    trust: Trust,
    position: Mutex<Option<Followed<Position>>>,
}

impl LeaderQueue {
    /// `acl` is of the nodes that are made here, and of parents that are missing: [`Acl::Open`] in a group with Petting Zoo's processes.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if the path is too long.
    pub fn new(client: &Client, path: &NodePath, acl: Acl) -> Result<Self, TreeError> {
        let line = Line::new(join(path, "candidate")?, Naming::Plain, &["candidate"], acl);
        Ok(LeaderQueue { client: client.clone(), line, trust: Trust::default() })
    }

    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        LeaderQueue { trust, ..self }
    }

    /// Stands at its end, with `data` for all to see.
    ///
    /// # Errors
    /// As those of a [`Tree`](crate::tree::Tree); with [`TreeError::Disconnected`], too, it does not stand there.
    pub async fn join(&self, data: Bytes) -> Result<Candidacy, TreeError> {
        let place = self.line.join(&self.client, data, Rule::Among(1)).await?;
        Ok(Candidacy { place, line: self.line.clone(), trust: self.trust, position: Mutex::default() })
    }

    /// Those who stand in it, the leader first: as the engine saw it a moment ago.
    ///
    /// # Errors
    /// As those of a [`Tree`](crate::tree::Tree).
    pub async fn candidates(&self) -> Result<Vec<Node>, TreeError> {
        let tree = self.client.session().await?;
        self.line.nodes(&*tree).await
    }

    /// How many wait behind the leader: what could take over. `None` until the engine has answered.
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
    /// Where it stands, from now on; at first as if it were [`Position::Queued`] behind nobody known. Costs a listing at each change of the
    /// queue: to wait for the leadership, [`Candidacy::lead`] is enough, which looks at the one before it only.
    #[must_use]
    pub fn position(&self) -> watch::Receiver<Position> {
        let mut position = self.position.lock().expect("no holder of this lock panics");
        let followed = position.get_or_insert_with(|| {
            let (node, line) = (self.place.node().clone(), self.line.clone());
            let client = node.client.clone();
            Followed::start(&client, Position::Queued(usize::MAX), |position| async move {
                let tell = |at: Position| {
                    position.send_if_modified(|known| std::mem::replace(known, at) != at);
                };
                let looking = async {
                    loop {
                        let looked = node.client.patiently(|| node.tree.children_and_watch(&line.parent)).await;
                        let Ok((children, watch)) = looked else { return };
                        let names = line.sorted(children.names);
                        match names.iter().position(|name| name == node.path.name()) {
                            Some(0) => tell(Position::Front),
                            Some(before) => tell(Position::Queued(before)),
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
                    () = looking => {}
                }
                tell(Position::Out);
            })
        });
        followed.receiver()
    }

    /// Waits until it is at the front.
    ///
    /// # Errors
    /// [`TreeError::NoNode`] if its node was taken away, [`TreeError::SessionLost`]: it is out.
    pub async fn lead(self) -> Result<Held, TreeError> {
        self.place.turn().await?;
        Held::of(self.place.into_owned(), self.trust).await
    }

    /// Leaves the queue. If the engine does not answer, that goes on in the background.
    pub async fn leave(self) {
        self.place.into_owned().release().await;
    }
}

impl fmt::Debug for Candidacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidacy").field("path", &self.place.node().path).finish_non_exhaustive()
    }
}
