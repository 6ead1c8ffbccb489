//! Queue of waiting processes. The place of each process is a node below one parent, and the engine numbers these
//! nodes.
//!
//! Locks and leader elections use such queues. If only one process may have its turn at a time, each process watches
//! only the place before its own place. When a process leaves the queue, it therefore wakes only one other process.
//!
//! docs/decisions/0143-build-locks-on-lines-of-places.md gives the reasons for the design.

use std::sync::Arc;

use bytes::Bytes;

use super::client::Client;
use super::node::{NewNode, NewPlain, NodeGuard, NodeMatch, OwnNode, guid, join};
use crate::tree::{Acl, CreateMode, Node, NodePath, Sequence, Tree, TreeError, Watch};

#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) parent: NodePath,
    /// Text before the number in the name of a new place, for example Curator's `lock-`.
    pub(super) name: Arc<str>,
    pub(super) naming: Naming,
    pub(super) members: Members,
    /// Access list of the places and of missing parents.
    pub(super) acl: Acl,
}

/// Condition under which a node counts as a place of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Members {
    /// The node's name ends with one of these texts and a number.
    Named(&'static [&'static str]),
    /// The node's name ends with a number.
    Numbered,
}

/// Way to recognise a node of this process if the response to its creation was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Naming {
    /// The node has a GUID in its name, as in Curator's `ProtectedUtils`.
    Protected,
    /// The process recognises its node as the last node that this session created below the parent. A process with this
    /// naming creates only one node below the parent at a time.
    Plain,
}

/// Condition under which a place has its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// Fewer than this number of places are before the place.
    Among(usize),
    /// No place whose name ends with this text and a number is before the place.
    After(&'static str),
}

/// Place in a queue. A drop of this value removes the node of the place.
pub(super) struct Place {
    owned: NodeGuard,
    line: Line,
    rule: Rule,
}

/// Progress of a place towards its turn.
enum Turn {
    Come,
    /// This place must wait for another place. The watch fires when the other place or the list of places changes.
    After(Watch),
    Unknown,
}

impl Line {
    /// Creates a handle of a queue in which the names of all places have the same text before the number.
    pub(super) fn new(parent: NodePath, naming: Naming, names: &'static [&'static str; 1], acl: Acl) -> Self {
        Line { parent, name: names[0].into(), naming, members: Members::Named(names), acl }
    }

    /// Selects the names of places from `names`, and returns them in the order of their turns.
    pub(super) fn sorted(&self, names: Vec<String>) -> Vec<String> {
        let number = |name: &str| match self.members {
            Members::Named(names) => names.iter().find_map(|prefix| Sequence::after(name, prefix)),
            Members::Numbered => Sequence::of(name),
        };
        in_order(names.into_iter().filter_map(|name| Some((number(&name)?, name))).collect())
    }

    /// Returns the names of all places in the order of their turns.
    pub(super) async fn names(&self, tree: &dyn Tree) -> Result<Vec<String>, TreeError> {
        Ok(self.sorted(tree.children(&self.parent).await?.names))
    }

    /// Returns the nodes of all places in the order of their turns.
    pub(super) async fn nodes(&self, tree: &dyn Tree) -> Result<Vec<Node>, TreeError> {
        let names = match self.names(tree).await {
            Err(TreeError::NoNode) => Vec::new(),
            names => names?,
        };
        let mut nodes = Vec::with_capacity(names.len());
        for name in names {
            match tree.get(&join(&self.parent, &name)?).await {
                // A process or the engine removed this place after the tree had returned the list of places.
                Err(TreeError::NoNode) => {}
                node => nodes.push(node?),
            }
        }
        Ok(nodes)
    }

    /// Joins the queue at its end.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`]. Returns [`TreeError::Disconnected`] only if the client cannot open a
    /// session.
    pub(super) async fn join(&self, client: &Client, data: Bytes, rule: Rule) -> Result<Place, TreeError> {
        let tree = client.session().await?;
        let mode = CreateMode::EphemeralSequential;
        let (parent, acl) = (self.parent.clone(), self.acl.clone());
        let owned = match self.naming {
            Naming::Protected => {
                let guid = guid(client.runtime());
                let name = format!("_c_{guid}-{}", self.name);
                let (parents, node_match) = (CreateMode::Container, NodeMatch::Guid(guid));
                NewNode { parent, parents, name, mode, acl, node_match }.create(client, &tree, data).await?
            }
            Naming::Plain => {
                // The parents are persistent, because Petting Zoo's processes do not expect that a parent disappears.
                let (parents, name) = (CreateMode::Persistent, self.name.to_string());
                NewPlain { parent, parents, name, mode, acl }.create(client, &tree, data).await?
            }
        };
        Ok(Place { owned, line: self.clone(), rule })
    }
}

impl Place {
    pub(super) fn node(&self) -> &OwnNode {
        self.owned.node()
    }

    /// Waits for the turn of this place.
    ///
    /// # Errors
    /// Returns [`TreeError::NoNode`] if the node of the place no longer exists. Returns [`TreeError::SessionLost`] if
    /// its session was lost.
    pub(super) async fn turn(&self) -> Result<(), TreeError> {
        let mut gone = Box::pin(self.node().gone());
        loop {
            let waiting = async {
                match self.node().client.retry(|| self.look()).await? {
                    Turn::Come => Ok(true),
                    Turn::After(watch) => watch.await.map(|_| false),
                    Turn::Unknown => Ok(false),
                }
            };
            let has_come = tokio::select! {
                biased;
                gone = &mut gone => return Err(gone),
                has_come = waiting => has_come?,
            };
            if has_come {
                // If another process deletes the parent and creates it again, a name without a GUID may belong to
                // another node.
                return if self.line.naming == Naming::Plain { self.node().check().await } else { Ok(()) };
            }
        }
    }

    /// Returns whether this place has its turn now. Only for [`Naming::Protected`]: the function does not check whether
    /// another node has the name of this place.
    ///
    /// # Errors
    /// Returns the same errors as [`Place::turn`].
    pub(super) async fn has_turn(&self) -> Result<bool, TreeError> {
        let OwnNode { client, tree, path, .. } = self.node();
        let names = client.retry(|| self.line.names(&**tree)).await?;
        Ok(self.rule.before(&names, path.name())?.is_none())
    }

    async fn look(&self) -> Result<Turn, TreeError> {
        let OwnNode { tree, path, .. } = self.node();
        // If several places may have their turn at the same time, this process must learn when any of them leaves the
        // queue. It therefore watches all children of the parent.
        let (names, watch) = if matches!(self.rule, Rule::Among(2..)) {
            let (children, watch) = tree.children_and_watch(&self.line.parent).await?;
            (self.line.sorted(children.names), Some(watch))
        } else {
            (self.line.names(&**tree).await?, None)
        };
        let Some(before) = self.rule.before(&names, path.name())? else { return Ok(Turn::Come) };
        if let Some(watch) = watch {
            return Ok(Turn::After(watch));
        }
        match tree.exists_and_watch(&join(&self.line.parent, before)?).await? {
            (Some(_), watch) => Ok(Turn::After(watch)),
            (None, _) => Ok(Turn::Unknown),
        }
    }

    pub(super) fn into_owned(self) -> NodeGuard {
        self.owned
    }
}

impl Rule {
    /// Returns the name of the place that the place `own` must wait for, or `None` if `own` has its turn. `names`
    /// contains all places in the order of their turns.
    ///
    /// # Errors
    /// Returns [`TreeError::NoNode`] if `names` does not contain `own`.
    fn before<'a>(self, names: &'a [String], own: &str) -> Result<Option<&'a str>, TreeError> {
        let at = names.iter().position(|name| name == own).ok_or(TreeError::NoNode)?;
        let before = match self {
            Rule::Among(places) => at.checked_sub(places).map(|at| &names[at]),
            Rule::After(prefix) => names[..at].iter().rfind(|name| Sequence::after(name, prefix).is_some()),
        };
        Ok(before.map(String::as_str))
    }
}

/// Sorts names in the order in which the engine created their nodes. After the greatest number, the engine continues
/// with the least number. The first place is therefore the place after the widest gap between numbers.
fn in_order(mut numbered: Vec<(Sequence, String)>) -> Vec<String> {
    numbered.sort_unstable();
    let count = numbered.len();
    let gap_before = |at: usize| {
        let before = numbered[(at + count - 1) % count].0;
        numbered[at].0.0.wrapping_sub(before.0).cast_unsigned()
    };
    let first = (0..count).max_by_key(|at| (gap_before(*at), std::cmp::Reverse(*at))).unwrap_or(0);
    numbered.rotate_left(first);
    numbered.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ordered(numbers: &[i32]) -> Vec<i32> {
        let named = numbers.iter().map(|number| (Sequence(*number), number.to_string())).collect();
        in_order(named).iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn smallest_sequence_number_follows_the_largest_after_overflow() {
        assert!(ordered(&[]).is_empty());
        assert_eq!(ordered(&[7]), [7]);
        assert_eq!(ordered(&[12, 3, 7]), [3, 7, 12]);
        assert_eq!(ordered(&[i32::MIN, i32::MAX]), [i32::MAX, i32::MIN]);
        assert_eq!(ordered(&[i32::MIN + 5, i32::MAX - 1, i32::MIN]), [i32::MAX - 1, i32::MIN, i32::MIN + 5]);
    }

    proptest! {
        /// The first place may have any number. Two places may have the same number, because Curator keeps the number
        /// when it changes a write lock into a read lock.
        #[test]
        fn node_names_are_sorted_in_the_order_of_their_creation(
            first: i32,
            steps in proptest::collection::vec(0..50_000_i32, 0..40),
        ) {
            let mut created = vec![first];
            steps.iter().for_each(|step| created.push(created[created.len() - 1].wrapping_add(*step)));
            let mut sorted = created.clone();
            sorted.sort_unstable();
            prop_assert_eq!(ordered(&sorted), created);
        }
    }
}
