//! Places in a line: the node of each is made under one parent, and the engine numbers them.
//!
//! What locks and leaders stand on. Each waits for the one before it, so that one is woken when one goes.

use std::sync::Arc;

use bytes::Bytes;

use super::client::{Client, PARENT_TRIES, Remains, make_containers};
use crate::tree::{Acl, CreateMode, Expected, NodePath, Sequence, Stat, Tree, TreeError, Watch, Zxid};

#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) parent: NodePath,
    /// What stands before a number: Curator's `lock-`, say.
    pub(super) name: &'static str,
    /// Of its places, and of the parents that are missing.
    pub(super) acl: Acl,
}

/// Dropped, its node is removed.
pub(super) struct Place {
    node: OwnNode,
    line: Line,
    created: Zxid,
    /// `None` once it is given back.
    remains: Option<Remains>,
}

#[derive(Clone)]
pub(super) struct OwnNode {
    pub(super) client: Client,
    pub(super) tree: Arc<dyn Tree>,
    pub(super) path: NodePath,
}

/// What a place waits for.
enum Turn {
    Come,
    /// Somebody who is before it.
    After(Watch),
    Unsure,
}

impl Line {
    /// Those who stand in line, the first one first. Names that are not of its form are passed over.
    pub(super) async fn names(&self, tree: &dyn Tree) -> Result<Vec<String>, TreeError> {
        let children = tree.children(&self.parent).await?;
        let numbered = |name: String| Some((Sequence::after(&name, self.name)?, name));
        Ok(in_order(children.names.into_iter().filter_map(numbered).collect()))
    }

    /// The last place in it. If the engine does not answer, what may have been made is looked for; given up, it is removed.
    pub(super) async fn join(&self, client: &Client, data: Bytes) -> Result<Place, TreeError> {
        let tree = client.session().await?;
        // As Curator's `ProtectedUtils` has it, so that a node is known to be ours though nobody told us its number.
        let start = format!("_c_{}-", guid(client.runtime().random_u128()));
        let path = self.parent.join(&format!("{start}{}", self.name));
        let path = path.map_err(|error| TreeError::Invalid(error.to_string()))?;
        let mut unsure =
            Unsure { client, remains: Some(Remains { tree: tree.clone(), parent: self.parent.clone(), start }) };
        for _ in 0..PARENT_TRIES {
            let made = tree.create(&path, data.clone(), CreateMode::EphemeralSequential, self.acl.clone()).await;
            let made = match made {
                Ok(created) => Ok(Some((created.path, created.stat))),
                Err(error) if error.is_retryable() => client.patiently(|| unsure.find()).await,
                Err(error) => Err(error),
            };
            match made {
                Ok(Some((path, stat))) => {
                    let remains = unsure.remains.take();
                    let node = OwnNode { client: client.clone(), tree, path };
                    return Ok(Place { node, line: self.clone(), created: stat.created, remains });
                }
                Ok(None) => {}
                Err(TreeError::NoNode) => {
                    client.patiently(|| make_containers(&*tree, &self.parent, &self.acl)).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(TreeError::NoNode)
    }
}

/// A place that may have been made.
struct Unsure<'a> {
    client: &'a Client,
    remains: Option<Remains>,
}

impl Unsure<'_> {
    async fn find(&self) -> Result<Option<(NodePath, Stat)>, TreeError> {
        match &self.remains {
            Some(remains) => remains.find().await,
            None => Ok(None),
        }
    }
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        if let Some(remains) = self.remains.take() {
            self.client.leave(remains);
        }
    }
}

impl Place {
    pub(super) fn node(&self) -> &OwnNode {
        &self.node
    }

    /// Rises from place to place, whatever becomes of the parent in between.
    pub(super) fn created(&self) -> Zxid {
        self.created
    }

    /// Ready when fewer than `places` are before it.
    ///
    /// # Errors
    /// [`TreeError::NoNode`] if somebody took its node away, [`TreeError::SessionLost`].
    pub(super) async fn turn(&self, places: usize) -> Result<(), TreeError> {
        let mut gone = Box::pin(self.node.gone());
        loop {
            let waiting = async {
                match self.node.client.patiently(|| self.look(places)).await? {
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
                return Ok(());
            }
        }
    }

    async fn look(&self, places: usize) -> Result<Turn, TreeError> {
        let OwnNode { tree, path, .. } = &self.node;
        let names = self.line.names(&**tree).await?;
        let at = names.iter().position(|name| name == path.name()).ok_or(TreeError::NoNode)?;
        let Some(before) = at.checked_sub(places) else { return Ok(Turn::Come) };
        let before = self.line.parent.join(&names[before]).map_err(|error| TreeError::Invalid(error.to_string()))?;
        match tree.exists_and_watch(&before).await? {
            (Some(_), watch) => Ok(Turn::After(watch)),
            (None, _) => Ok(Turn::Unsure),
        }
    }

    /// Gives it back. If the engine does not answer, that goes on in the background.
    pub(super) async fn release(mut self) {
        if let Ok(()) | Err(TreeError::NoNode | TreeError::SessionLost) =
            self.node.tree.delete(&self.node.path, Expected::Any).await
        {
            self.remains = None;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(remains) = self.remains.take() {
            self.node.client.leave(remains);
        }
    }
}

impl OwnNode {
    /// Ready when it is not there any more, with [`TreeError::NoNode`]; or when its session is lost.
    pub(super) async fn gone(&self) -> TreeError {
        loop {
            let looked = self.client.patiently(|| self.tree.exists_and_watch(&self.path)).await;
            let ended = match looked {
                Ok((None, _)) => Err(TreeError::NoNode),
                Ok((Some(_), watch)) => watch.await.map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                return error;
            }
        }
    }
}

/// In the order of their making: after the greatest number comes the least, so the first is the one after the widest gap.
fn in_order(mut numbered: Vec<(Sequence, String)>) -> Vec<String> {
    numbered.sort_unstable();
    let count = numbered.len();
    let gap_before = |at: usize| {
        let before = numbered[(at + count - 1) % count].0;
        numbered[at].0.0.wrapping_sub(before.0).cast_unsigned().wrapping_sub(1)
    };
    let first = (0..count).max_by_key(|at| (gap_before(*at), std::cmp::Reverse(*at))).unwrap_or(0);
    numbered.rotate_left(first);
    numbered.into_iter().map(|(_, name)| name).collect()
}

/// In the form of a UUID of version 4.
fn guid(random: u128) -> String {
    let bits = random & !(0xf << 76) | 0x4 << 76;
    let bits = bits & !(0x3 << 62) | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
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
        /// Wherever the count began.
        #[test]
        fn places_are_in_the_order_of_their_making(first: i32, steps in proptest::collection::vec(1..50_000_i32, 0..40)) {
            let mut made = vec![first];
            steps.iter().for_each(|step| made.push(made[made.len() - 1].wrapping_add(*step)));
            let mut shown = made.clone();
            shown.sort_unstable();
            prop_assert_eq!(ordered(&shown), made);
        }
    }

    #[test]
    fn a_guid_has_the_form_that_curator_looks_for() {
        let guid = guid(u128::MAX);
        assert_eq!(guid, "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(guid.len(), 36);
    }
}
