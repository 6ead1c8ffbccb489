//! Electors on a tree. A replica polls or watches the tree to learn whether it leads.
//!
//! A replica is an ephemeral node `<group>/<replica><number>`. The replica with the least number leads. The leader's
//! term is the number of the change that created the leader's node.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use runtime::TaskSet;
use tokio::sync::watch;

use super::client::Client;
use super::leader::follow_leader;
use super::line::{Line, Members, Naming, Place, Rule};
use super::node::{join, stopped};
use crate::tree::{Acl, NodePath, Sequence, SessionId, TreeError};
use crate::{
    Answer, Elector, ElectorError, Followed, Follower, KnownLeader, Leadership, Term, check_replica, departed,
    poll_departures,
};

/// Way in which a replica learns that it leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The replica lists all replicas of the replica group at each call of [`Elector::is_leader`].
    Polling,
    /// The replica watches the replica before it in the queue. A call of [`Elector::is_leader`] therefore sends no
    /// request to the engine, unless the replica must first join the queue.
    Watching,
}

/// Elector of one process for one replica group. A leadership never lasts longer than the client's session, because the
/// elector grants a lease only if the lease ends before the session's deadline.
pub struct TreeElector(Arc<Inner>);

struct Inner {
    client: Client,
    group: NodePath,
    form: Form,
    acl: Acl,
    joined: Mutex<BTreeMap<String, Arc<JoinedReplica>>>,
    /// Mutex that a task locks while it adds a replica to the queue.
    joining: tokio::sync::Mutex<()>,
}

/// Place of a replica in the queue of its replica group.
struct JoinedReplica {
    place: Arc<Place>,
    /// Progress of the replica towards the leadership. `None` if the replica polls the tree.
    turn: Option<watch::Receiver<Turn>>,
    _tasks: TaskSet,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    NotYet,
    Come,
    /// The replica's node no longer exists, or its session has ended.
    Over,
}

impl TreeElector {
    /// Creates the elector. `acl` is the access list of the nodes that the elector creates, including missing parents.
    #[must_use]
    pub fn new(client: &Client, group: NodePath, form: Form, acl: Acl) -> Self {
        let (joined, joining) = (Mutex::default(), tokio::sync::Mutex::default());
        TreeElector(Arc::new(Inner { client: client.clone(), group, form, acl, joined, joining }))
    }
}

impl Inner {
    /// Returns a handle of the queue that contains all replicas of the replica group. The name of each place that the
    /// handle creates consists of `replica` and a number.
    fn line(&self, replica: &str) -> Line {
        let (parent, acl) = (self.group.clone(), self.acl.clone());
        Line { parent, name: replica.into(), naming: Naming::Plain, members: Members::Numbered, acl }
    }

    fn joined(&self) -> MutexGuard<'_, BTreeMap<String, Arc<JoinedReplica>>> {
        self.joined.lock().expect("no code panics while it holds this mutex")
    }

    fn present(&self, replica: &str, session: SessionId) -> Option<Arc<JoinedReplica>> {
        let is_present = |joined: &&Arc<JoinedReplica>| {
            let is_over = joined.turn.as_ref().is_some_and(|turn| *turn.borrow() == Turn::Over);
            joined.place.node().tree.session().id() == session && !is_over
        };
        self.joined().get(replica).filter(is_present).cloned()
    }

    /// Returns the replica's place in the queue. Joins the queue if the replica has no place in the present session.
    async fn join_line(self: &Arc<Self>, replica: &str) -> Result<Arc<JoinedReplica>, TreeError> {
        let tree = self.client.session().await?;
        let session = tree.session().id();
        if let Some(joined) = self.present(replica, session) {
            return Ok(joined);
        }
        let (inner, replica) = (self.clone(), replica.to_owned());
        let joining = self.client.runtime().detached("replica", async move {
            let _joining = inner.joining.lock().await;
            if let Some(joined) = inner.present(&replica, session) {
                return Ok(joined);
            }
            let place = inner.line(&replica).join(&inner.client, Bytes::new(), Rule::Among(1)).await?;
            let joined = Arc::new(JoinedReplica::new(&inner.client, place, inner.form));
            inner.joined().insert(replica, joined.clone());
            Ok(joined)
        });
        joining.await.unwrap_or_else(|| Err(stopped()))
    }

    async fn is_leader(self: &Arc<Self>, replica: &str, lease: Duration) -> Result<Leadership, TreeError> {
        let runtime = self.client.runtime();
        let until = runtime.monotonic() + lease;
        let joined = self.join_line(replica).await?;
        let node = joined.place.node();
        let session = node.tree.session();
        // While the engine responds to pings, a session always has at least half of its timeout left. A lease that is
        // longer than this half could end after the session's deadline.
        let most = session.timeout() / 2;
        if lease > most {
            let text = format!(
                "lease {lease:?} is too long; use at most {most:?}, which is half of the session timeout {:?}",
                session.timeout()
            );
            return Err(TreeError::Invalid(text));
        }
        let own = Term::of_change(node.created);
        if let Some(turn) = &joined.turn {
            let is_first = *turn.borrow() == Turn::Come;
            let leads = is_first && session.is_valid(runtime.monotonic()) && session.deadline() >= until;
            return Ok(Leadership { leads, term: if leads { own } else { Term(0) } });
        }
        loop {
            let names = self.line(replica).names(&*node.tree).await?;
            if !names.iter().any(|name| name == node.path.name()) {
                return Err(TreeError::NoNode);
            }
            let first = join(&self.group, &names[0])?;
            let Some(stat) = node.tree.exists(&first).await? else { continue };
            let leads = first == node.path && stat.created == node.created && session.deadline() >= until;
            return Ok(Leadership { leads, term: Term::of_change(stat.created) });
        }
    }

    /// Returns the replicas whose node names are in `names`, sorted by the names of the replicas.
    fn followers_of(&self, names: Vec<String>) -> Vec<Follower> {
        let sorted = self.line("").sorted(names);
        let follower = |(at, name): (usize, &String)| Follower { replica: replica_in(name), leads: at == 0 };
        let mut followers: Vec<Follower> = sorted.iter().enumerate().map(follower).collect();
        followers.sort();
        followers
    }

    async fn followers(&self) -> Result<Vec<Follower>, TreeError> {
        let tree = self.client.session().await?;
        tree.sync().await?;
        match tree.children(&self.group).await {
            Ok(children) => Ok(self.followers_of(children.names)),
            Err(TreeError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    async fn watch_departures(&self, replica: &str, known: &[Follower]) -> Result<Option<Vec<Follower>>, TreeError> {
        let tree = self.client.session().await?;
        loop {
            let (children, watch) = match tree.children_and_watch(&self.group).await {
                Err(TreeError::NoNode) => return Ok(None),
                listed => listed?,
            };
            let departed = departed(replica, known, &self.followers_of(children.names));
            if departed.as_ref().is_none_or(|departed| !departed.is_empty()) {
                return Ok(departed);
            }
            watch.await?;
        }
    }

    async fn resign(&self, replica: &str) -> Result<(), TreeError> {
        let joined = self.joined().remove(replica);
        let Some(joined) = joined else { return Ok(()) };
        match joined.place.node().remove().await {
            Ok(()) | Err(TreeError::NoNode | TreeError::SessionLost) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl JoinedReplica {
    fn new(client: &Client, place: Place, form: Form) -> Self {
        let (place, tasks) = (Arc::new(place), TaskSet::new(client.runtime()));
        let turn = (form == Form::Watching).then(|| {
            let (sender, turn) = watch::channel(Turn::NotYet);
            let place = place.clone();
            tasks.spawn("replica", async move {
                if place.turn().await.is_ok() {
                    sender.send_replace(Turn::Come);
                    drop(place.node().gone().await);
                }
                sender.send_replace(Turn::Over);
            });
            turn
        });
        JoinedReplica { place, turn, _tasks: tasks }
    }
}

/// Returns the name of the replica from the name of its node, which consists of this text and a number.
fn replica_in(name: &str) -> String {
    let number = Sequence::of(name).map_or_else(String::new, |number| number.to_string());
    name.strip_suffix(&number).unwrap_or(name).to_owned()
}

fn elector_error(error: TreeError) -> ElectorError {
    match error {
        TreeError::Disconnected(_) | TreeError::SessionLost | TreeError::NoNode => {
            ElectorError::Unavailable(error.to_string())
        }
        TreeError::Invalid(text) => ElectorError::Rejected(text),
        error => ElectorError::Rejected(error.to_string()),
    }
}

impl Elector for TreeElector {
    fn is_leader(&self, replica: &str, lease: Duration) -> Answer<'_, Leadership> {
        let replica = replica.to_owned();
        Box::pin(async move {
            check_replica(&replica)?;
            if replica.contains('/') {
                let text = format!("invalid replica name {replica:?}: it must not contain `/`");
                return Err(ElectorError::Rejected(text));
            }
            match self.0.is_leader(&replica, lease).await {
                // The replica's place in the queue, or the session of this place, no longer exists. The replica
                // therefore joins again at the end of the queue.
                Err(TreeError::NoNode | TreeError::SessionLost) => {
                    self.0.joined().remove(&replica);
                    self.0.is_leader(&replica, lease).await.map_err(elector_error)
                }
                leadership => leadership.map_err(elector_error),
            }
        })
    }

    fn resign(&self, replica: &str) -> Answer<'_, ()> {
        let replica = replica.to_owned();
        Box::pin(async move { self.0.resign(&replica).await.map_err(elector_error) })
    }

    fn followers(&self) -> Answer<'_, Vec<Follower>> {
        Box::pin(async move { self.0.followers().await.map_err(elector_error) })
    }

    fn departures(&self, replica: &str, known: Vec<Follower>) -> Answer<'_, Option<Vec<Follower>>> {
        let replica = replica.to_owned();
        Box::pin(async move {
            match self.0.form {
                Form::Polling => poll_departures(self.0.client.runtime(), self, &replica, &known).await,
                Form::Watching => self.0.watch_departures(&replica, &known).await.map_err(elector_error),
            }
        })
    }

    fn follow_leader(&self) -> Answer<'_, Followed<KnownLeader>> {
        Box::pin(async move {
            let followed = follow_leader(&self.0.client, self.0.line(""), |name, _node| replica_in(name));
            followed.await.map_err(elector_error)
        })
    }
}

impl fmt::Debug for TreeElector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeElector").field("group", &self.0.group).field("form", &self.0.form).finish_non_exhaustive()
    }
}
