//! Member group in which each process has one name. Processes that use Curator's `GroupMember` can share the group.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::client::Client;
use super::follow::{Scope, Subtree, follow};
use super::node::child;
use super::presence::Presence;
use crate::Followed;
use crate::tree::{Acl, CreateMode, NodePath, TreeError};

/// Handle of a member group in one process.
#[derive(Clone)]
pub struct Group {
    client: Client,
    path: NodePath,
    acl: Acl,
}

/// Present members of a member group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Members {
    /// Data of each member, by name.
    pub members: BTreeMap<String, Bytes>,
    /// True if the engine responded recently. If false, this process does not know later joins and departures.
    pub is_current: bool,
}

impl Group {
    /// Creates a handle. `acl` is the access list of the nodes that the handle creates, including missing parents.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Group { client: client.clone(), path, acl }
    }

    /// Joins the member group as `name` until this process ends or the caller drops the returned value. If the session
    /// is lost, this process joins the member group again.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if `name` is not a valid node name.
    pub fn join(&self, name: &str, data: Bytes) -> Result<Presence, TreeError> {
        let path = child(&self.path, name)?;
        Ok(Presence::start(&self.client, path, CreateMode::Container, self.acl.clone(), data))
    }

    /// Follows the members of the group from now on.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree).
    pub async fn follow(&self) -> Result<Followed<Members>, TreeError> {
        let subtree = follow(&self.client, Scope::Subtree(self.path.clone())).await?;
        let path = self.path.clone();
        Ok(subtree.map(self.client.runtime(), move |subtree| members(&path, subtree)))
    }
}

fn members(group: &NodePath, subtree: &Subtree) -> Members {
    let direct = subtree.nodes.iter().filter(|(path, _)| path.parent().as_ref() == Some(group));
    let members = direct.map(|(path, node)| (path.name().to_owned(), node.data.clone())).collect();
    Members { members, is_current: subtree.is_current }
}
