//! A node that stands for this process for as long as it lives, over the lives of its sessions.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;

use bytes::Bytes;
use runtime::TaskSet;
use tokio::sync::watch;

use super::client::Client;
use super::node::{NewPlain, OwnNode, Owned, stopped};
use crate::tree::{Acl, CreateMode, Expected, NodePath, SessionId, TreeError, check_data};

/// Whether a process is seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PresenceState {
    /// It was not yet, or its session was lost and another is being opened.
    NotNow,
    Present,
    /// Somebody else has its name.
    Taken,
    /// The engine refuses it, for a reason that stays.
    Refused(TreeError),
}

/// Dropped, the node is removed.
#[must_use = "dropped, this process is not seen any more"]
pub struct Presence {
    path: NodePath,
    data: watch::Sender<Bytes>,
    seen: watch::Receiver<PresenceState>,
    _tasks: TaskSet,
}

impl Presence {
    /// Begins to be seen at `path`. `acl` is of the node, and of parents that are missing, which are made as `parents`.
    pub(super) fn start(client: &Client, path: NodePath, parents: CreateMode, acl: Acl, data: Bytes) -> Self {
        let (told, seen) = watch::channel(PresenceState::NotNow);
        let (data, new) = watch::channel(data);
        let tasks = TaskSet::new(client.runtime());
        let keeper = Keeper { client: client.clone(), path: path.clone(), parents, acl, earlier: BTreeSet::new() };
        tasks.spawn("presence", keeper.run(new, told));
        Presence { path, data, seen, _tasks: tasks }
    }

    /// As it is now, and every change.
    #[must_use]
    pub fn seen(&self) -> watch::Receiver<PresenceState> {
        self.seen.clone()
    }

    /// Waits until it is seen.
    ///
    /// # Errors
    /// If the engine refuses it for a reason that stays.
    pub async fn present(&self) -> Result<(), TreeError> {
        let mut seen = self.seen.clone();
        let settled = seen.wait_for(|seen| matches!(seen, PresenceState::Present | PresenceState::Refused(_))).await;
        match settled.as_deref() {
            Ok(PresenceState::Refused(error)) => Err(error.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(stopped()),
        }
    }

    /// What others see from soon on.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if it is too much.
    pub fn set(&self, data: Bytes) -> Result<(), TreeError> {
        check_data(data.len())?;
        self.data.send_replace(data);
        Ok(())
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").field("path", &self.path).field("seen", &*self.seen.borrow()).finish_non_exhaustive()
    }
}

struct Keeper {
    client: Client,
    path: NodePath,
    parents: CreateMode,
    acl: Acl,
    /// The sessions in which it made its node.
    earlier: BTreeSet<SessionId>,
}

impl Keeper {
    async fn run(mut self, mut data: watch::Receiver<Bytes>, told: watch::Sender<PresenceState>) {
        loop {
            match self.be_seen(&mut data, &told).await {
                Err(TreeError::Disconnected(_) | TreeError::SessionLost | TreeError::NoNode) => {
                    told.send_replace(PresenceState::NotNow);
                }
                Err(error) => {
                    let refused = PresenceState::Refused(error);
                    if *told.borrow() != refused {
                        tracing::warn!(path = %self.path, ?refused, "this process cannot be seen: it is tried again");
                    }
                    told.send_replace(refused);
                }
                Ok(never) => match never {},
            }
            self.client.pause().await;
        }
    }

    /// Until the node is gone.
    async fn be_seen(
        &mut self,
        data: &mut watch::Receiver<Bytes>,
        told: &watch::Sender<PresenceState>,
    ) -> Result<Infallible, TreeError> {
        let owned = self.make(data, told).await?;
        let node = owned.node();
        told.send_replace(PresenceState::Present);
        let mut gone = Box::pin(node.gone());
        loop {
            tokio::select! {
                biased;
                gone = &mut gone => return Err(gone),
                changed = data.changed() => if changed.is_err() {
                    return Err(gone.await);
                }
            }
            let new = data.borrow_and_update().clone();
            self.client.patiently(|| set(node, new.clone())).await?;
        }
    }

    async fn make(
        &mut self,
        data: &mut watch::Receiver<Bytes>,
        told: &watch::Sender<PresenceState>,
    ) -> Result<Owned, TreeError> {
        let tree = self.client.session().await?;
        let session = tree.session().id();
        let parent = self.path.parent().ok_or(TreeError::NodeExists)?;
        loop {
            let (name, mode, acl) = (self.path.name().to_owned(), CreateMode::Ephemeral, self.acl.clone());
            let node = NewPlain { parent: parent.clone(), parents: self.parents, name, mode, acl };
            let now = data.borrow_and_update().clone();
            match node.make(&self.client, &tree, now).await {
                Err(TreeError::NodeExists) => {}
                made => {
                    self.earlier.insert(session);
                    return made;
                }
            }
            match self.client.patiently(|| tree.exists_and_watch(&self.path)).await? {
                // A session of ours that is over here may not be for the engine yet.
                (Some(stat), _)
                    if stat.owner.is_some_and(|owner| owner != session && self.earlier.contains(&owner)) =>
                {
                    match tree.delete(&self.path, Expected::Version(stat.version)).await {
                        Ok(()) | Err(TreeError::NoNode | TreeError::BadVersion) => {}
                        // Whether it was: it is looked at again, and not deleted again.
                        Err(error) if error.is_retryable() => self.client.pause().await,
                        Err(error) => return Err(error),
                    }
                }
                (Some(_), watch) => {
                    told.send_replace(PresenceState::Taken);
                    watch.await?;
                }
                (None, _) => {}
            }
        }
    }
}

/// Sets what it says, and nobody else's.
async fn set(node: &OwnNode, data: Bytes) -> Result<(), TreeError> {
    loop {
        let found = node.tree.exists(&node.path).await?.filter(|stat| stat.created == node.created);
        let expected = Expected::Version(found.ok_or(TreeError::NoNode)?.version);
        match node.tree.set(&node.path, data.clone(), expected).await {
            Err(TreeError::BadVersion) => {}
            done => return done.map(drop),
        }
    }
}
