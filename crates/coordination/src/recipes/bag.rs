//! Things that anybody may put in and take out, and of which all who listen are told: Petting Zoo's distributed bag (seed 001).
//!
//! An item is a numbered node, and beside it stands a token of the same number, as Petting Zoo's processes watch the tokens, of which
//! there is one, the last. Here a listener has one watch over all items, so that each change costs it one message.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use runtime::TaskSet;
use tokio::sync::mpsc;

use super::client::Client;
use super::line::{Line, Naming, Rule};
use super::node::{Owned, delete, join, make};
use crate::tree::{Acl, CreateMode, Event, NodePath, Sequence, Tree, TreeError, Zxid};

const ITEM: &str = "item";
const TOKEN: &str = "token";
/// Changes that wait for a listener; one that is slower is told of those that stand in the end.
const WAITING_MAX: usize = 1_024;

/// A process's way to a bag.
#[derive(Clone)]
pub struct Bag {
    client: Client,
    items: NodePath,
    tokens: NodePath,
    acl: Acl,
}

/// An item that goes with this process's session. Dropped, it is taken out.
#[must_use = "dropped, it is taken out"]
pub struct OwnItem {
    id: Sequence,
    owned: Owned,
}

/// What happened to a bag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BagChange {
    Added(Sequence),
    Removed(Sequence),
}

/// Tells what happens to a bag. Dropped, it listens no more.
#[must_use = "dropped, it listens no more"]
pub struct BagListener {
    present: BTreeSet<Sequence>,
    changes: mpsc::Receiver<BagChange>,
    _tasks: TaskSet,
}

impl Bag {
    /// `acl` is of the nodes that are made here, and of parents that are missing: [`Acl::Open`] in a group with Petting Zoo's processes.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if the path is too long.
    pub fn new(client: &Client, path: &NodePath, acl: Acl) -> Result<Self, TreeError> {
        Ok(Bag { client: client.clone(), items: join(path, ITEM)?, tokens: join(path, TOKEN)?, acl })
    }

    /// Puts `data` in, to stay until somebody takes it out. Its number is above every earlier one's, whatever was taken out.
    ///
    /// # Errors
    /// As those of a [`Tree`]. With [`TreeError::Disconnected`] and [`TreeError::SessionLost`] it is not known whether it was put in.
    pub async fn add(&self, data: Bytes) -> Result<Sequence, TreeError> {
        let tree = self.client.session().await?;
        let item = join(&self.items, ITEM)?;
        let create = || tree.create(&item, data.clone(), CreateMode::PersistentSequential, self.acl.clone());
        let made = match create().await {
            Err(TreeError::NoNode) => {
                make(&self.client, &*tree, &self.items, Bytes::new(), CreateMode::Persistent, &self.acl).await?;
                create().await?
            }
            made => made?,
        };
        let id = id_of(&made.path).ok_or(TreeError::NoNode)?;
        self.tell(&*tree, id).await;
        Ok(id)
    }

    /// Puts `data` in, to go with the item, or with this process's session.
    ///
    /// # Errors
    /// As those of a [`Tree`]; it is not in then.
    pub async fn add_own(&self, data: Bytes) -> Result<OwnItem, TreeError> {
        let line = Line::new(self.items.clone(), Naming::Plain, &[ITEM], self.acl.clone());
        let owned = line.join(&self.client, data, Rule::Among(1)).await?.into_owned();
        let id = id_of(&owned.node().path).ok_or(TreeError::NoNode)?;
        self.tell(&*owned.node().tree, id).await;
        Ok(OwnItem { id, owned })
    }

    /// The token of an item, for Petting Zoo's listeners. If it cannot be made, they see the item with the next one.
    async fn tell(&self, tree: &dyn Tree, id: Sequence) {
        let telling = async {
            let token = join(&self.tokens, &format!("{TOKEN}{id}"))?;
            make(&self.client, tree, &token, Bytes::new(), CreateMode::Persistent, &self.acl).await?;
            for name in tree.children(&self.tokens).await?.names {
                if Sequence::after(&name, TOKEN).is_some_and(|other| other < id) {
                    delete(&self.client, tree, &join(&self.tokens, &name)?).await?;
                }
            }
            Ok::<_, TreeError>(())
        };
        if let Err(error) = telling.await {
            tracing::debug!(items = %self.items, %id, %error, "Petting Zoo's listeners are told of an item with the next");
        }
    }

    /// Takes it out; false if it is not in.
    ///
    /// # Errors
    /// As those of a [`Tree`]. With [`TreeError::Disconnected`] and [`TreeError::SessionLost`] it is not known whether it was taken out.
    pub async fn remove(&self, id: Sequence) -> Result<bool, TreeError> {
        let tree = self.client.session().await?;
        match tree.delete(&self.path(id)?, crate::tree::Expected::Any).await {
            Ok(()) => Ok(true),
            Err(TreeError::NoNode) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What was put in; `None` if it is not in any more.
    ///
    /// # Errors
    /// As those of a [`Tree`].
    pub async fn get(&self, id: Sequence) -> Result<Option<Bytes>, TreeError> {
        let tree = self.client.session().await?;
        match tree.get(&self.path(id)?).await {
            Ok(node) => Ok(Some(node.data)),
            Err(TreeError::NoNode) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is in, as the engine saw it a moment ago.
    ///
    /// # Errors
    /// As those of a [`Tree`].
    pub async fn ids(&self) -> Result<BTreeSet<Sequence>, TreeError> {
        let tree = self.client.session().await?;
        Ok(list(&*tree, &self.items).await?.ids)
    }

    /// Listens: what is in now, and every change from then on.
    ///
    /// # Errors
    /// As those of a [`Tree`].
    pub async fn listen(&self) -> Result<BagListener, TreeError> {
        let first = Listening::begin(&self.client, &self.items).await?;
        let present = first.listed.ids.clone();
        let (sender, changes) = mpsc::channel(WAITING_MAX);
        let tasks = TaskSet::new(self.client.runtime());
        tasks.spawn("bag listener", listen(self.client.clone(), self.items.clone(), first, sender));
        Ok(BagListener { present, changes, _tasks: tasks })
    }

    pub(super) fn path(&self, id: Sequence) -> Result<NodePath, TreeError> {
        join(&self.items, &format!("{ITEM}{id}"))
    }

    pub(super) fn items(&self) -> &NodePath {
        &self.items
    }
}

pub(super) fn id_of(path: &NodePath) -> Option<Sequence> {
    id_named(path.name())
}

pub(super) fn id_named(name: &str) -> Option<Sequence> {
    name.strip_prefix(ITEM).and_then(|_| Sequence::after(name, ITEM))
}

async fn list(tree: &dyn Tree, items: &NodePath) -> Result<Listed, TreeError> {
    match tree.children(items).await {
        Ok(children) => {
            let ids = children.names.iter().filter_map(|name| id_named(name)).collect();
            Ok(Listed { ids, made: Some(children.stat.created) })
        }
        Err(TreeError::NoNode) => Ok(Listed::default()),
        Err(error) => Err(error),
    }
}

/// What is in a bag.
#[derive(Default)]
struct Listed {
    ids: BTreeSet<Sequence>,
    /// When the parent of the items was: who makes it anew counts from zero again.
    made: Option<Zxid>,
}

impl OwnItem {
    #[must_use]
    pub fn id(&self) -> Sequence {
        self.id
    }

    /// Ready when it is not in any more: somebody took it out, or the session is lost.
    pub async fn gone(&self) {
        drop(self.owned.node().gone().await);
    }

    /// Takes it out. If the engine does not answer, that goes on in the background.
    pub async fn remove(self) {
        self.owned.release().await;
    }
}

impl BagListener {
    /// What was in when it began to listen.
    #[must_use]
    pub fn present(&self) -> &BTreeSet<Sequence> {
        &self.present
    }

    /// The next change. Additions come in the order of their numbers; of what was put in and taken out while the connection was lost, nothing
    /// may be told.
    pub async fn next(&mut self) -> BagChange {
        match self.changes.recv().await {
            Some(change) => change,
            None => std::future::pending().await,
        }
    }
}

/// One session's.
struct Listening {
    tree: Arc<dyn Tree>,
    events: crate::tree::Events,
    listed: Listed,
}

impl Listening {
    async fn begin(client: &Client, items: &NodePath) -> Result<Self, TreeError> {
        let tree = client.session().await?;
        let events = client.patiently(|| tree.watch_all(items)).await?;
        // Its server may know less than the last session's did.
        client.patiently(|| tree.sync()).await?;
        let listed = client.patiently(|| list(&*tree, items)).await?;
        Ok(Listening { tree, events, listed })
    }
}

/// Until nobody listens any more.
async fn listen(client: Client, items: NodePath, first: Listening, changes: mpsc::Sender<BagChange>) {
    let mut told = Told::default();
    drop(told.become_all(&first.listed));
    let mut next = Some(first);
    while !changes.is_closed() {
        let begun = match next.take() {
            Some(first) => Ok(first),
            None => Listening::begin(&client, &items).await,
        };
        match begun {
            Ok(listening) => told.go_on(&client, &items, listening, &changes).await,
            Err(error) => tracing::debug!(%items, %error, "a bag cannot be listened to now"),
        }
        client.pause().await;
    }
}

#[derive(Default)]
struct Told {
    known: BTreeSet<Sequence>,
    /// The last number of all that was ever in: what comes later is after it.
    last: Option<Sequence>,
    made: Option<Zxid>,
}

impl Told {
    /// Until the session ends, or nobody listens any more.
    async fn go_on(
        &mut self,
        client: &Client,
        items: &NodePath,
        listening: Listening,
        changes: &mpsc::Sender<BagChange>,
    ) {
        let Listening { tree, mut events, listed } = listening;
        let mut now = Some(listed);
        loop {
            for change in now.take().map_or_else(Vec::new, |now| self.become_all(&now)) {
                if changes.send(change).await.is_err() {
                    return;
                }
            }
            let event = tokio::select! {
                biased;
                () = changes.closed() => return,
                event = events.next() => event,
            };
            let change = match event {
                // With it numbers begin anew: it is listed.
                Some(Event::Created(path)) if path == *items => {
                    match client.patiently(|| list(&*tree, items)).await {
                        Ok(all) => now = Some(all),
                        Err(_lost) => return,
                    }
                    None
                }
                Some(Event::Created(path)) => self.added(items, &path),
                Some(Event::Deleted(path)) => self.removed(items, &path),
                Some(Event::Changed(_)) => None,
                Some(Event::ChildrenChanged(_) | Event::Gap) => match client.patiently(|| list(&*tree, items)).await {
                    Ok(all) => {
                        now = Some(all);
                        None
                    }
                    Err(_lost) => return,
                },
                None => return,
            };
            if let Some(change) = change
                && changes.send(change).await.is_err()
            {
                return;
            }
        }
    }

    /// After what is in was listed.
    fn become_all(&mut self, now: &Listed) -> Vec<BagChange> {
        let mut changes = Vec::new();
        if now.made != self.made {
            changes.extend(std::mem::take(&mut self.known).into_iter().map(BagChange::Removed));
            (self.last, self.made) = (None, now.made);
        }
        changes.extend(self.known.difference(&now.ids).map(|id| BagChange::Removed(*id)));
        let mut come: Vec<Sequence> = now.ids.difference(&self.known).copied().collect();
        if let Some(last) = self.last {
            come.sort_unstable_by_key(|id| id.0.wrapping_sub(last.0));
        }
        self.last = come.last().copied().or(self.last);
        changes.extend(come.into_iter().map(BagChange::Added));
        self.known.clone_from(&now.ids);
        changes
    }

    /// Nothing, if it was listed after it happened.
    fn added(&mut self, items: &NodePath, path: &NodePath) -> Option<BagChange> {
        let is_later = |id: &Sequence| self.last.is_none_or(|last| id.0.wrapping_sub(last.0) > 0);
        let id = id_of(path).filter(|id| path.parent().as_ref() == Some(items) && is_later(id))?;
        self.last = Some(id);
        self.known.insert(id).then_some(BagChange::Added(id))
    }

    fn removed(&mut self, items: &NodePath, path: &NodePath) -> Option<BagChange> {
        let id = id_of(path).filter(|id| path.parent().as_ref() == Some(items) && self.known.remove(id))?;
        Some(BagChange::Removed(id))
    }
}

impl fmt::Debug for OwnItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnItem").field("path", &self.owned.node().path).finish_non_exhaustive()
    }
}

impl fmt::Debug for BagListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BagListener").field("present", &self.present).finish_non_exhaustive()
    }
}
