//! Follows the leader of a queue of candidates.

use tokio::sync::watch;

use super::client::Client;
use super::follow::{Failures, children_and_watch};
use super::line::Line;
use super::node::join;
use crate::followed::{Followed, send_if_new};
use crate::tree::{Node, SessionState, Tree, TreeError, Watch};
use crate::{KnownLeader, Leader, Term};

/// Function that returns the text of a candidate from the name and the content of its node.
pub(super) type IdOf = fn(&str, &Node) -> String;

/// Follows the first place of `line`. The follower watches only the leader's node, so candidates that join or leave the
/// queue behind the leader cause no requests.
///
/// # Errors
/// Returns the errors of the first read, which are the same as those of a [`Tree`].
pub(super) async fn follow_leader(
    client: &Client,
    line: Line,
    id_of: IdOf,
) -> Result<Followed<KnownLeader>, TreeError> {
    let tree = client.session().await?;
    // The follower's task looks again. This first call only ensures that the caller receives a permanent error at once.
    match client.retry(|| look(&*tree, &line, id_of)).await {
        Ok(_) | Err(TreeError::SessionLost) => {}
        Err(error) => return Err(error),
    }
    let following = client.clone();
    let mut followed = Followed::start(client.runtime(), KnownLeader::default(), |sender| async move {
        let mut failures = Failures::default();
        while let Err(error) = follow_in_session(&following, &line, id_of, &sender).await {
            failures.report(error);
            sender.send_if_modified(|known| std::mem::replace(&mut known.is_current, false));
            following.back_off().await;
        }
    });
    followed.until(|known| known.is_current).await;
    Ok(followed)
}

/// Follows the leader in one session. Returns when no reader of the leader exists, or at the first error.
async fn follow_in_session(
    client: &Client,
    line: &Line,
    id_of: IdOf,
    sender: &watch::Sender<KnownLeader>,
) -> Result<(), TreeError> {
    let tree = client.session().await?;
    let mut state = tree.session().state();
    // The server of this session may know fewer changes than the server of the last session. After the sync, the server
    // knows all of these changes.
    tree.sync().await?;
    loop {
        let (leader, watch) = look(&*tree, line, id_of).await?;
        send_if_new(sender, KnownLeader { leader, is_current: true });
        tokio::select! {
            biased;
            () = sender.closed() => return Ok(()),
            // The session receives no events while the connection is lost.
            _ = state.wait_for(|state| *state != SessionState::Connected) => return Err(TreeError::SessionLost),
            fired = watch => drop(fired?),
        }
    }
}

/// Returns the leader, and a watch that fires when the leader's node changes. If no candidate leads, the watch fires
/// when the list of candidates changes.
async fn look(tree: &dyn Tree, line: &Line, id_of: IdOf) -> Result<(Option<Leader>, Watch), TreeError> {
    loop {
        let names = match line.names(tree).await {
            Err(TreeError::NoNode) => Vec::new(),
            names => names?,
        };
        let Some(first) = names.first() else {
            let (names, watch) = children_and_watch(tree, &line.parent).await?;
            if line.sorted(names).is_empty() {
                return Ok((None, watch));
            }
            continue;
        };
        match tree.get_and_watch(&join(&line.parent, first)?).await {
            Ok((node, watch)) => {
                let leader = Leader { id: id_of(first, &node), term: Term::of_change(node.stat.created) };
                return Ok((Some(leader), watch));
            }
            // The leader left the queue after the tree had returned the list of candidates.
            Err(TreeError::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
}
