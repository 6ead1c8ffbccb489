//! Node that represents this process while the process lives. If the node's session is lost, the process creates the
//! node again.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;

use bytes::Bytes;
use runtime::TaskSet;
use tokio::sync::watch;

use super::client::Client;
use super::node::{NewPlain, NodeGuard, OwnNode, stopped};
use crate::Followed;
use crate::tree::{Acl, CreateMode, Expected, NodePath, SessionId, TreeError, check_data};

/// State of the node that represents a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PresenceState {
    /// The node does not exist yet, or its session was lost and the client is opening another session.
    NotNow,
    /// The node exists and belongs to this process.
    Present,
    /// A node of another process exists at the path.
    Taken,
    /// The engine rejects the node for a permanent reason.
    Rejected(TreeError),
}

/// Node that represents this process. A drop of this value removes the node.
#[must_use = "a drop of this value removes the node"]
pub struct Presence {
    path: NodePath,
    data: watch::Sender<Bytes>,
    state: watch::Receiver<PresenceState>,
    _tasks: TaskSet,
}

impl Presence {
    /// Starts a task that creates the node at `path`, and creates it again after each lost session. `acl` is the access
    /// list of the node and of missing parents, which have the mode `parents`.
    pub(super) fn start(client: &Client, path: NodePath, parents: CreateMode, acl: Acl, data: Bytes) -> Self {
        let (sender, state) = watch::channel(PresenceState::NotNow);
        let (data, new) = watch::channel(data);
        let tasks = TaskSet::new(client.runtime());
        let keeper =
            Keeper { client: client.clone(), path: path.clone(), parents, acl, earlier_sessions: BTreeSet::new() };
        tasks.spawn("presence", keeper.run(new, sender));
        Presence { path, data, state, _tasks: tasks }
    }

    /// Follows the state of the node. The updates end when the caller drops this presence.
    pub fn follow(&self) -> Followed<PresenceState> {
        Followed::of(&self.state)
    }

    /// Waits until the node exists.
    ///
    /// # Errors
    /// Returns an error if the engine rejects the node for a permanent reason.
    pub async fn present(&self) -> Result<(), TreeError> {
        let mut state = self.state.clone();
        let outcome =
            state.wait_for(|state| matches!(state, PresenceState::Present | PresenceState::Rejected(_))).await;
        match outcome.as_deref() {
            Ok(PresenceState::Rejected(error)) => Err(error.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(stopped()),
        }
    }

    /// Replaces the node's data. Other processes see the new data shortly after the call.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the data is too large.
    pub fn set(&self, data: Bytes) -> Result<(), TreeError> {
        check_data(data.len())?;
        self.data.send_replace(data);
        Ok(())
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence")
            .field("path", &self.path)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

struct Keeper {
    client: Client,
    path: NodePath,
    parents: CreateMode,
    acl: Acl,
    /// Sessions of this process that have created the node.
    earlier_sessions: BTreeSet<SessionId>,
}

impl Keeper {
    async fn run(mut self, mut data: watch::Receiver<Bytes>, state: watch::Sender<PresenceState>) {
        loop {
            match self.stay_present(&mut data, &state).await {
                Err(TreeError::Disconnected(_) | TreeError::SessionLost | TreeError::NoNode) => {
                    state.send_replace(PresenceState::NotNow);
                }
                Err(error) => {
                    let rejected = PresenceState::Rejected(error);
                    if *state.borrow() != rejected {
                        tracing::warn!(path = %self.path, ?rejected, "the engine rejected the presence node; retrying");
                    }
                    state.send_replace(rejected);
                }
                Ok(never) => match never {},
            }
            self.client.back_off().await;
        }
    }

    /// Creates the node and updates its data until the node no longer exists.
    async fn stay_present(
        &mut self,
        data: &mut watch::Receiver<Bytes>,
        state: &watch::Sender<PresenceState>,
    ) -> Result<Infallible, TreeError> {
        let owned = self.create_node(data, state).await?;
        let node = owned.node();
        state.send_replace(PresenceState::Present);
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
            self.client.retry(|| set(node, new.clone())).await?;
        }
    }

    async fn create_node(
        &mut self,
        data: &mut watch::Receiver<Bytes>,
        state: &watch::Sender<PresenceState>,
    ) -> Result<NodeGuard, TreeError> {
        let tree = self.client.session().await?;
        let session = tree.session().id();
        let parent = self.path.parent().ok_or(TreeError::NodeExists)?;
        loop {
            let (name, mode, acl) = (self.path.name().to_owned(), CreateMode::Ephemeral, self.acl.clone());
            let node = NewPlain { parent: parent.clone(), parents: self.parents, name, mode, acl };
            let now = data.borrow_and_update().clone();
            match node.create(&self.client, &tree, now).await {
                Err(TreeError::NodeExists) => {}
                created => {
                    self.earlier_sessions.insert(session);
                    return created;
                }
            }
            match self.client.retry(|| tree.exists_and_watch(&self.path)).await? {
                // The node belongs to an earlier session of this process. By the clock of this process, that session
                // has ended, but the engine may not have ended it yet.
                (Some(stat), _)
                    if stat.owner.is_some_and(|owner| owner != session && self.earlier_sessions.contains(&owner)) =>
                {
                    match tree.delete(&self.path, Expected::Version(stat.version)).await {
                        Ok(()) | Err(TreeError::NoNode | TreeError::BadVersion) => {}
                        // The engine may have executed the delete request, so the loop reads the node again before it
                        // sends another delete request.
                        Err(error) if error.is_retryable() => self.client.back_off().await,
                        Err(error) => return Err(error),
                    }
                }
                (Some(_), watch) => {
                    state.send_replace(PresenceState::Taken);
                    watch.await?;
                }
                (None, _) => {}
            }
        }
    }
}

/// Sets the data of this process's node. Never sets the data of another node at the same path.
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
