//! Who is there: a group of processes, each with a name. Curator's `GroupMember` shares it.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::client::Client;
use super::follow::{Followed, Scope, Subtree, follow};
use super::node::child;
use super::presence::Presence;
use crate::tree::{Acl, CreateMode, NodePath, TreeError};

/// A process's way to a group.
#[derive(Clone)]
pub struct Group {
    client: Client,
    path: NodePath,
    acl: Acl,
}

/// Those who are there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Members {
    /// By name, with what each says of itself.
    pub members: BTreeMap<String, Bytes>,
    /// Whether the engine was heard of lately; if not, who went or came is not known.
    pub is_current: bool,
}

impl Group {
    /// `acl` is of the nodes that are made here, and of parents that are missing.
    #[must_use]
    pub fn new(client: &Client, path: NodePath, acl: Acl) -> Self {
        Group { client: client.clone(), path, acl }
    }

    /// Is seen as `name` for as long as this process lives and what is answered is kept, over the ends of sessions.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if `name` cannot be one.
    pub fn join(&self, name: &str, data: Bytes) -> Result<Presence, TreeError> {
        let path = child(&self.path, name)?;
        Ok(Presence::start(&self.client, path, CreateMode::Container, self.acl.clone(), data))
    }

    /// Those who are there, from now on.
    ///
    /// # Errors
    /// As those of a [`Tree`](crate::tree::Tree).
    pub async fn members(&self) -> Result<Followed<Members>, TreeError> {
        let subtree = follow(&self.client, Scope::Subtree(self.path.clone())).await?;
        let path = self.path.clone();
        Ok(subtree.map(&self.client, move |subtree| members(&path, subtree)))
    }
}

fn members(group: &NodePath, subtree: &Subtree) -> Members {
    let direct = subtree.nodes.iter().filter(|(path, _)| path.parent().as_ref() == Some(group));
    let members = direct.map(|(path, node)| (path.name().to_owned(), node.data.clone())).collect();
    Members { members, is_current: subtree.is_current }
}
