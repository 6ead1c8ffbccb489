//! Distributed bag, compatible with the library Petting Zoo. Every process may add items to a bag and remove items from
//! it. The listeners of the bag receive its changes.
//!
//! An item is a numbered node. Petting Zoo's processes do not watch items. They watch a second node, the token, which
//! has the number of the last item. A listener of this crate has one watch over all items, so it receives one message
//! for each change.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use runtime::TaskSet;
use tokio::sync::mpsc;

use super::client::Client;
use super::line::{Line, Naming, Rule};
use super::node::{NodeGuard, create_node, delete, join};
use crate::tree::{Acl, CreateMode, Event, NodePath, Sequence, Tree, TreeError, Zxid};

const ITEM: &str = "item";
const TOKEN: &str = "token";
/// Largest number of changes that wait until a listener receives them. A listener that is too slow receives only the
/// difference between the items that it knows and the present items.
const WAITING_MAX: usize = 1_024;

/// Handle of a bag in one process.
#[derive(Clone)]
pub struct Bag {
    client: Client,
    items: NodePath,
    tokens: NodePath,
    acl: Acl,
}

/// Item that ends with this process's session. A drop of this value removes the item from the bag.
#[must_use = "a drop of this value removes the item from the bag"]
pub struct OwnItem {
    id: Sequence,
    owned: NodeGuard,
}

/// Change of a bag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BagChange {
    /// The item with this number is now in the bag.
    Added(Sequence),
    /// The item with this number is no longer in the bag.
    Removed(Sequence),
}

/// Receiver of the changes of a bag. A drop of this value stops the listener.
#[must_use = "a drop of this value stops the listener"]
pub struct BagListener {
    present: BTreeSet<Sequence>,
    changes: mpsc::Receiver<BagChange>,
    _tasks: TaskSet,
}

impl Bag {
    /// Creates a handle. `acl` is the access list of the nodes that the handle creates, including missing parents. If
    /// Petting Zoo's processes share the bag, `acl` must be [`Acl::Open`].
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the path is too long.
    pub fn new(client: &Client, path: &NodePath, acl: Acl) -> Result<Self, TreeError> {
        Ok(Bag { client: client.clone(), items: join(path, ITEM)?, tokens: join(path, TOKEN)?, acl })
    }

    /// Adds `data` as an item that stays until a process removes it. Its number is greater than the numbers of all
    /// earlier items, including the removed items.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`]. After [`TreeError::Disconnected`] or [`TreeError::SessionLost`] the item
    /// may or may not be in the bag.
    pub async fn add(&self, data: Bytes) -> Result<Sequence, TreeError> {
        let tree = self.client.session().await?;
        let item = join(&self.items, ITEM)?;
        let create = || tree.create(&item, data.clone(), CreateMode::PersistentSequential, self.acl.clone());
        let created = match create().await {
            Err(TreeError::NoNode) => {
                create_node(&self.client, &*tree, &self.items, Bytes::new(), CreateMode::Persistent, &self.acl).await?;
                create().await?
            }
            created => created?,
        };
        let id = id_of(&created.path).ok_or(TreeError::NoNode)?;
        self.create_token(&*tree, id).await;
        Ok(id)
    }

    /// Adds `data` as an item. The item ends when the caller drops the returned value or when this process's session
    /// ends.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`]. After an error the item is not in the bag.
    pub async fn add_own(&self, data: Bytes) -> Result<OwnItem, TreeError> {
        let line = Line::new(self.items.clone(), Naming::Plain, &[ITEM], self.acl.clone());
        let owned = line.join(&self.client, data, Rule::Among(1)).await?.into_owned();
        let id = id_of(&owned.node().path).ok_or(TreeError::NoNode)?;
        self.create_token(&*owned.node().tree, id).await;
        Ok(OwnItem { id, owned })
    }

    /// Creates the token of an item for Petting Zoo's listeners. If the creation fails, these listeners see the item
    /// only when the next token appears.
    async fn create_token(&self, tree: &dyn Tree, id: Sequence) {
        let creating = async {
            let token = join(&self.tokens, &format!("{TOKEN}{id}"))?;
            create_node(&self.client, tree, &token, Bytes::new(), CreateMode::Persistent, &self.acl).await?;
            for name in tree.children(&self.tokens).await?.names {
                if Sequence::after(&name, TOKEN).is_some_and(|other| other < id) {
                    delete(&self.client, tree, &join(&self.tokens, &name)?).await?;
                }
            }
            Ok::<_, TreeError>(())
        };
        if let Err(error) = creating.await {
            tracing::debug!(
                items = %self.items,
                %id,
                %error,
                "cannot create the token of an item; Petting Zoo's listeners see the item only when the next token \
                 appears"
            );
        }
    }

    /// Removes an item. Returns false if the item is not in the bag.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`]. After [`TreeError::Disconnected`] or [`TreeError::SessionLost`] the item
    /// may or may not be in the bag.
    pub async fn remove(&self, id: Sequence) -> Result<bool, TreeError> {
        let tree = self.client.session().await?;
        match tree.delete(&self.path(id)?, crate::tree::Expected::Any).await {
            Ok(()) => Ok(true),
            Err(TreeError::NoNode) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the data of an item, or `None` if the item is not in the bag.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`].
    pub async fn get(&self, id: Sequence) -> Result<Option<Bytes>, TreeError> {
        let tree = self.client.session().await?;
        match tree.get(&self.path(id)?).await {
            Ok(node) => Ok(Some(node.data)),
            Err(TreeError::NoNode) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the numbers of all items. The list may be slightly out of date.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`].
    pub async fn ids(&self) -> Result<BTreeSet<Sequence>, TreeError> {
        let tree = self.client.session().await?;
        Ok(list(&*tree, &self.items).await?.ids)
    }

    /// Starts a listener. The listener contains the present items and receives every later change.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`].
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
            Ok(Listed { ids, created: Some(children.stat.created) })
        }
        Err(TreeError::NoNode) => Ok(Listed::default()),
        Err(error) => Err(error),
    }
}

/// Items of a bag at one moment.
#[derive(Default)]
struct Listed {
    ids: BTreeSet<Sequence>,
    /// Zxid of the change that created the items' parent. If a process deletes the parent and creates it again, the
    /// item numbers start at zero again.
    created: Option<Zxid>,
}

impl OwnItem {
    /// Returns the number of the item in the bag.
    #[must_use]
    pub fn id(&self) -> Sequence {
        self.id
    }

    /// Completes when the item is no longer in the bag, because a process removed it or the session was lost.
    pub async fn gone(&self) {
        drop(self.owned.node().gone().await);
    }

    /// Removes the item. If the engine does not respond within 1 s, the removal continues in the
    /// background.
    pub async fn remove(self) {
        self.owned.release().await;
    }
}

impl BagListener {
    /// Returns the items that were in the bag when the listener started.
    #[must_use]
    pub fn present(&self) -> &BTreeSet<Sequence> {
        &self.present
    }

    /// Waits for the next change of the bag and returns it. The listener reports added items in the order of their
    /// numbers. The listener can miss an item that other processes add and remove while the connection is lost.
    pub async fn next(&mut self) -> BagChange {
        match self.changes.recv().await {
            Some(change) => change,
            None => std::future::pending().await,
        }
    }
}

/// State of a listener in one session.
struct Listening {
    tree: Arc<dyn Tree>,
    events: crate::tree::Events,
    listed: Listed,
}

impl Listening {
    async fn begin(client: &Client, items: &NodePath) -> Result<Self, TreeError> {
        let tree = client.session().await?;
        let events = client.retry(|| tree.watch_all(items)).await?;
        // The server of this session may know fewer changes than the server of the last session. After the sync, the
        // server knows all of these changes.
        client.retry(|| tree.sync()).await?;
        let listed = client.retry(|| list(&*tree, items)).await?;
        Ok(Listening { tree, events, listed })
    }
}

/// Sends the changes of the bag to the listener until the caller drops the listener.
async fn listen(client: Client, items: NodePath, first: Listening, changes: mpsc::Sender<BagChange>) {
    let mut reported = Reported::default();
    drop(reported.replace_all(&first.listed));
    let mut next = Some(first);
    while !changes.is_closed() {
        let begun = match next.take() {
            Some(first) => Ok(first),
            None => Listening::begin(&client, &items).await,
        };
        match begun {
            Ok(listening) => reported.report_session(&client, &items, listening, &changes).await,
            Err(error) => tracing::debug!(%items, %error, "cannot listen to the bag; retrying"),
        }
        client.back_off().await;
    }
}

#[derive(Default)]
struct Reported {
    known: BTreeSet<Sequence>,
    /// Greatest item number that the listener has seen. Later items have greater numbers.
    last: Option<Sequence>,
    created: Option<Zxid>,
}

impl Reported {
    /// Sends the changes of the bag to the listener until the session ends or the caller drops the listener.
    async fn report_session(
        &mut self,
        client: &Client,
        items: &NodePath,
        listening: Listening,
        changes: &mpsc::Sender<BagChange>,
    ) {
        let Listening { tree, mut events, listed } = listening;
        let mut now = Some(listed);
        loop {
            for change in now.take().map_or_else(Vec::new, |now| self.replace_all(&now)) {
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
                // A process has created the parent of the items. The item numbers below a new parent start at zero, so
                // the listener lists the items again.
                Some(Event::Created(path)) if path == *items => {
                    match client.retry(|| list(&*tree, items)).await {
                        Ok(all) => now = Some(all),
                        Err(_lost) => return,
                    }
                    None
                }
                Some(Event::Created(path)) => self.added(items, &path),
                Some(Event::Deleted(path)) => self.removed(items, &path),
                Some(Event::Changed(_)) => None,
                Some(Event::ChildrenChanged(_) | Event::Gap) => match client.retry(|| list(&*tree, items)).await {
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

    /// Replaces the known items by the items of `now`. Returns the differences as changes.
    fn replace_all(&mut self, now: &Listed) -> Vec<BagChange> {
        let mut changes = Vec::new();
        if now.created != self.created {
            changes.extend(std::mem::take(&mut self.known).into_iter().map(BagChange::Removed));
            (self.last, self.created) = (None, now.created);
        }
        changes.extend(self.known.difference(&now.ids).map(|id| BagChange::Removed(*id)));
        let mut added: Vec<Sequence> = now.ids.difference(&self.known).copied().collect();
        if let Some(last) = self.last {
            added.sort_unstable_by_key(|id| id.0.wrapping_sub(last.0));
        }
        self.last = added.last().copied().or(self.last);
        changes.extend(added.into_iter().map(BagChange::Added));
        self.known.clone_from(&now.ids);
        changes
    }

    /// Records the item that a process has created at `path`. Returns `None` if the listener already knows the item or
    /// if the node is not an item.
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
