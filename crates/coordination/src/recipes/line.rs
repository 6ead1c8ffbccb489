//! Places in a line: the node of each is made under one parent, and the engine numbers them.
//!
//! What locks and leaders stand on. Each waits for the one before it, so that one is woken when one goes.

use std::sync::Arc;

use bytes::Bytes;

use super::client::Client;
use super::node::{NewNode, NewPlain, OwnNode, Owned, Which, guid, join};
use crate::tree::{Acl, CreateMode, Node, NodePath, Sequence, Tree, TreeError, Watch};

#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) parent: NodePath,
    /// What stands before the number of a place that is made here: Curator's `lock-`, say.
    pub(super) name: Arc<str>,
    pub(super) naming: Naming,
    pub(super) members: Members,
    /// Of its places, and of the parents that are missing.
    pub(super) acl: Acl,
}

/// Whose places stand in a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Members {
    /// Those with one of these before the number.
    Named(&'static [&'static str]),
    /// All with a number.
    Numbered,
}

/// How a place is known as ours though nobody told us its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Naming {
    /// By a mark in its name, as Curator's `ProtectedUtils` has it.
    Marked,
    /// It is the last that this session made here. For the sake of that, a process makes one such place at a time.
    Plain,
}

/// Whom a place waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// Until fewer than so many are before it.
    Among(usize),
    /// Until none of this name is before it.
    After(&'static str),
}

/// Dropped, its node is removed.
pub(super) struct Place {
    owned: Owned,
    line: Line,
    rule: Rule,
}

/// What a place waits for.
enum Turn {
    Come,
    /// Somebody who is before it.
    After(Watch),
    Unsure,
}

impl Line {
    /// All of one name.
    pub(super) fn new(parent: NodePath, naming: Naming, names: &'static [&'static str; 1], acl: Acl) -> Self {
        Line { parent, name: names[0].into(), naming, members: Members::Named(names), acl }
    }

    /// The first one first. Names that are not of its form are passed over.
    pub(super) fn sorted(&self, names: Vec<String>) -> Vec<String> {
        let number = |name: &str| match self.members {
            Members::Named(names) => names.iter().find_map(|prefix| Sequence::after(name, prefix)),
            Members::Numbered => Sequence::of(name),
        };
        in_order(names.into_iter().filter_map(|name| Some((number(&name)?, name))).collect())
    }

    /// Those who stand in line, the first one first.
    pub(super) async fn names(&self, tree: &dyn Tree) -> Result<Vec<String>, TreeError> {
        Ok(self.sorted(tree.children(&self.parent).await?.names))
    }

    /// What those who stand in line brought, the first one first.
    pub(super) async fn nodes(&self, tree: &dyn Tree) -> Result<Vec<Node>, TreeError> {
        let names = match self.names(tree).await {
            Err(TreeError::NoNode) => Vec::new(),
            names => names?,
        };
        let mut nodes = Vec::with_capacity(names.len());
        for name in names {
            match tree.get(&join(&self.parent, &name)?).await {
                // It went meanwhile.
                Err(TreeError::NoNode) => {}
                node => nodes.push(node?),
            }
        }
        Ok(nodes)
    }

    /// The last place in it.
    ///
    /// # Errors
    /// As those of a [`Tree`], but for [`TreeError::Disconnected`], which is seen only if no session can be had.
    pub(super) async fn join(&self, client: &Client, data: Bytes, rule: Rule) -> Result<Place, TreeError> {
        let tree = client.session().await?;
        let mode = CreateMode::EphemeralSequential;
        let (parent, acl) = (self.parent.clone(), self.acl.clone());
        let owned = match self.naming {
            Naming::Marked => {
                let mark = guid(client.runtime());
                let name = format!("_c_{mark}-{}", self.name);
                let (parents, which) = (CreateMode::Container, Which::Marked(mark));
                NewNode { parent, parents, name, mode, acl, which }.make(client, &tree, data).await?
            }
            Naming::Plain => {
                // Petting Zoo's processes do not expect that a parent goes.
                let (parents, name) = (CreateMode::Persistent, self.name.to_string());
                NewPlain { parent, parents, name, mode, acl }.make(client, &tree, data).await?
            }
        };
        Ok(Place { owned, line: self.clone(), rule })
    }
}

impl Place {
    pub(super) fn node(&self) -> &OwnNode {
        self.owned.node()
    }

    /// Ready when it waits for nobody any more.
    ///
    /// # Errors
    /// [`TreeError::NoNode`] if somebody took its node away, [`TreeError::SessionLost`].
    pub(super) async fn turn(&self) -> Result<(), TreeError> {
        let mut gone = Box::pin(self.node().gone());
        loop {
            let waiting = async {
                match self.node().client.patiently(|| self.look()).await? {
                    Turn::Come => Ok(true),
                    Turn::After(watch) => watch.await.map(|_| false),
                    Turn::Unsure => Ok(false),
                }
            };
            let come = tokio::select! {
                biased;
                gone = &mut gone => return Err(gone),
                come = waiting => come?,
            };
            if come {
                // Where a name may be another's, if the parent was made anew.
                return if self.line.naming == Naming::Plain { self.node().check().await } else { Ok(()) };
            }
        }
    }

    async fn look(&self) -> Result<Turn, TreeError> {
        let OwnNode { tree, path, .. } = self.node();
        // Where one of several before it may go, it looks at all of them: a release of any may be its turn.
        let (names, watch) = if matches!(self.rule, Rule::Among(2..)) {
            let (children, watch) = tree.children_and_watch(&self.line.parent).await?;
            (self.line.sorted(children.names), Some(watch))
        } else {
            (self.line.names(&**tree).await?, None)
        };
        let at = names.iter().position(|name| name == path.name()).ok_or(TreeError::NoNode)?;
        let Some(before) = self.rule.before(&names[..at]) else { return Ok(Turn::Come) };
        if let Some(watch) = watch {
            return Ok(Turn::After(watch));
        }
        match tree.exists_and_watch(&join(&self.line.parent, before)?).await? {
            (Some(_), watch) => Ok(Turn::After(watch)),
            (None, _) => Ok(Turn::Unsure),
        }
    }

    pub(super) fn into_owned(self) -> Owned {
        self.owned
    }
}

impl Rule {
    /// Whom one waits for who stands behind these.
    fn before(self, names: &[String]) -> Option<&str> {
        let before = match self {
            Rule::Among(places) => names.len().checked_sub(places).and_then(|at| names.get(at)),
            Rule::After(prefix) => names.iter().rfind(|name| Sequence::after(name, prefix).is_some()),
        };
        before.map(String::as_str)
    }
}

/// In the order of their making: after the greatest number comes the least, so the first is the one after the widest gap.
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
    fn after_the_greatest_number_comes_the_least() {
        assert!(ordered(&[]).is_empty());
        assert_eq!(ordered(&[7]), [7]);
        assert_eq!(ordered(&[12, 3, 7]), [3, 7, 12]);
        assert_eq!(ordered(&[i32::MIN, i32::MAX]), [i32::MAX, i32::MIN]);
        assert_eq!(ordered(&[i32::MIN + 5, i32::MAX - 1, i32::MIN]), [i32::MAX - 1, i32::MIN, i32::MIN + 5]);
    }

    proptest! {
        /// Wherever the count began; and two may have one number, where Curator makes a reader of a writer.
        #[test]
        fn places_are_in_the_order_of_their_making(first: i32, steps in proptest::collection::vec(0..50_000_i32, 0..40)) {
            let mut made = vec![first];
            steps.iter().for_each(|step| made.push(made[made.len() - 1].wrapping_add(*step)));
            let mut shown = made.clone();
            shown.sort_unstable();
            prop_assert_eq!(ordered(&shown), made);
        }
    }
}
