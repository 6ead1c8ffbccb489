//! Electors on a tree: seed 002's contract, by looking or by watching.
//!
//! A replica is an ephemeral node `<group>/<replica><number>`; the least number leads, and so its node's making is the term.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use runtime::TaskSet;
use tokio::sync::watch;

use super::client::Client;
use super::line::{Line, Members, Naming, Place, Rule};
use super::node::{join, stopped};
use crate::tree::{Acl, NodePath, Sequence, SessionId, TreeError};
use crate::{Answer, Elector, ElectorError, Follower, Leadership, Term, check_replica, departed, poll_departures};

/// How a replica learns that it leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// It lists the group at each call.
    Polling,
    /// It watches the one before it: a call costs nothing.
    Watching,
}

/// One group of replicas, for one process. What it answered holds for no longer than the client's session: a lease is at most half
/// of the session's timeout.
pub struct TreeElector(Arc<Inner>);

struct Inner {
    client: Client,
    group: NodePath,
    form: Form,
    acl: Acl,
    standing: Mutex<BTreeMap<String, Arc<Standing>>>,
    /// Held while a replica is given a place, in a task.
    joining: tokio::sync::Mutex<()>,
}

/// A replica's place.
struct Standing {
    place: Arc<Place>,
    /// Whether its turn has come, where it watches.
    turn: Option<watch::Receiver<Turn>>,
    _tasks: TaskSet,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    NotYet,
    Come,
    /// Its node was taken away.
    Over,
}

impl TreeElector {
    /// `acl` is of the nodes that are made here, and of parents that are missing.
    #[must_use]
    pub fn new(client: &Client, group: NodePath, form: Form, acl: Acl) -> Self {
        let (standing, joining) = (Mutex::default(), tokio::sync::Mutex::default());
        TreeElector(Arc::new(Inner { client: client.clone(), group, form, acl, standing, joining }))
    }
}

impl Inner {
    /// Those who stand in the group, whatever their names.
    fn line(&self, replica: &str) -> Line {
        let (parent, acl) = (self.group.clone(), self.acl.clone());
        Line { parent, name: replica.into(), naming: Naming::Plain, members: Members::Numbered, acl }
    }

    fn standing(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Standing>>> {
        self.standing.lock().expect("no holder of this lock panics")
    }

    fn present(&self, replica: &str, session: SessionId) -> Option<Arc<Standing>> {
        let is_present = |standing: &&Arc<Standing>| {
            let is_over = standing.turn.as_ref().is_some_and(|turn| *turn.borrow() == Turn::Over);
            standing.place.node().tree.session().id() == session && !is_over
        };
        self.standing().get(replica).filter(is_present).cloned()
    }

    /// The replica's place under the present session.
    async fn stand(self: &Arc<Self>, replica: &str) -> Result<Arc<Standing>, TreeError> {
        let tree = self.client.session().await?;
        let session = tree.session().id();
        if let Some(standing) = self.present(replica, session) {
            return Ok(standing);
        }
        let (inner, replica) = (self.clone(), replica.to_owned());
        let stood = self.client.runtime().detached("replica", async move {
            let _joining = inner.joining.lock().await;
            if let Some(standing) = inner.present(&replica, session) {
                return Ok(standing);
            }
            let place = inner.line(&replica).join(&inner.client, Bytes::new(), Rule::Among(1)).await?;
            let standing = Arc::new(Standing::new(&inner.client, place, inner.form));
            inner.standing().insert(replica, standing.clone());
            Ok(standing)
        });
        stood.await.unwrap_or_else(|| Err(stopped()))
    }

    async fn is_leader(self: &Arc<Self>, replica: &str, lease: Duration) -> Result<Leadership, TreeError> {
        let runtime = self.client.runtime();
        let until = runtime.monotonic() + lease;
        let standing = self.stand(replica).await?;
        let node = standing.place.node();
        let session = node.tree.session();
        // What is left of it right before its next ping is more.
        let most = session.timeout() / 2;
        if lease > most {
            let text = format!("a lease is at most {most:?} with sessions of {:?}: {lease:?}", session.timeout());
            return Err(TreeError::Invalid(text));
        }
        let own = Term(u64::try_from(node.created.0).unwrap_or(0));
        if let Some(turn) = &standing.turn {
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
            return Ok(Leadership { leads, term: Term(u64::try_from(stat.created.0).unwrap_or(0)) });
        }
    }

    /// Those who stand in the group, by name.
    fn seen(&self, names: Vec<String>) -> Vec<Follower> {
        let sorted = self.line("").sorted(names);
        let follower = |(at, name): (usize, &String)| {
            let number = Sequence::of(name)?.to_string();
            Some(Follower { replica: name.strip_suffix(&number)?.to_owned(), leads: at == 0 })
        };
        let mut followers: Vec<Follower> = sorted.iter().enumerate().filter_map(follower).collect();
        followers.sort();
        followers
    }

    async fn followers(&self) -> Result<Vec<Follower>, TreeError> {
        let tree = self.client.session().await?;
        tree.sync().await?;
        match tree.children(&self.group).await {
            Ok(children) => Ok(self.seen(children.names)),
            Err(TreeError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    async fn watch_departures(&self, replica: &str, known: &[Follower]) -> Result<Option<Vec<Follower>>, TreeError> {
        let tree = self.client.session().await?;
        loop {
            let (children, watch) = match tree.children_and_watch(&self.group).await {
                Err(TreeError::NoNode) => return Ok(None),
                seen => seen?,
            };
            let departed = departed(replica, known, &self.seen(children.names));
            if departed.as_ref().is_none_or(|departed| !departed.is_empty()) {
                return Ok(departed);
            }
            watch.await?;
        }
    }

    async fn resign(&self, replica: &str) -> Result<(), TreeError> {
        let standing = self.standing().remove(replica);
        let Some(standing) = standing else { return Ok(()) };
        match standing.place.node().remove().await {
            Ok(()) | Err(TreeError::NoNode | TreeError::SessionLost) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Standing {
    fn new(client: &Client, place: Place, form: Form) -> Self {
        let (place, tasks) = (Arc::new(place), TaskSet::new(client.runtime()));
        let turn = (form == Form::Watching).then(|| {
            let (told, turn) = watch::channel(Turn::NotYet);
            let place = place.clone();
            tasks.spawn("replica", async move {
                if place.turn().await.is_ok() {
                    told.send_replace(Turn::Come);
                    drop(place.node().gone().await);
                }
                told.send_replace(Turn::Over);
            });
            turn
        });
        Standing { place, turn, _tasks: tasks }
    }
}

fn told(error: TreeError) -> ElectorError {
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
                return Err(ElectorError::Rejected("on a tree, a replica's name has no `/`".to_owned()));
            }
            match self.0.is_leader(&replica, lease).await {
                // Its place went, or its session: another one, at the end.
                Err(TreeError::NoNode | TreeError::SessionLost) => {
                    self.0.standing().remove(&replica);
                    self.0.is_leader(&replica, lease).await.map_err(told)
                }
                leadership => leadership.map_err(told),
            }
        })
    }

    fn resign(&self, replica: &str) -> Answer<'_, ()> {
        let replica = replica.to_owned();
        Box::pin(async move { self.0.resign(&replica).await.map_err(told) })
    }

    fn followers(&self) -> Answer<'_, Vec<Follower>> {
        Box::pin(async move { self.0.followers().await.map_err(told) })
    }

    fn departures(&self, replica: &str, known: Vec<Follower>) -> Answer<'_, Option<Vec<Follower>>> {
        let replica = replica.to_owned();
        Box::pin(async move {
            match self.0.form {
                Form::Polling => poll_departures(self.0.client.runtime(), self, &replica, &known).await,
                Form::Watching => self.0.watch_departures(&replica, &known).await.map_err(told),
            }
        })
    }
}

impl fmt::Debug for TreeElector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeElector").field("group", &self.0.group).field("form", &self.0.form).finish_non_exhaustive()
    }
}
