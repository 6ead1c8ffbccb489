//! Election of a leader in a leader group. Processes that use Curator's `LeaderSelector` or `LeaderLatch` can join the
//! same leader group.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::guard::{Ended, Held, Leading, Trust};
use super::leader::follow_leader;
use super::line::{Line, Naming, Rule};
use super::lock::acquire;
use crate::tree::{Acl, Node, NodePath, TreeError};
use crate::{Followed, KnownLeader};

/// Layout of the nodes of a leader group. All candidates of a leader group must use the same layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// Layout of Curator's `LeaderSelector` and `InterProcessMutex`.
    #[default]
    Selector,
    /// Layout of Curator's `LeaderLatch`.
    Latch,
}

/// Options of a candidate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Text that the other candidates see, for example a host name. It does not have to be unique.
    pub id: String,
    /// Access list of the nodes that the candidate creates, including missing parents. The default is
    /// [`Client::default_acl`].
    pub acl: Option<Acl>,
    /// Layout of the nodes. The default is [`Layout::Selector`].
    pub layout: Layout,
    /// Time for which a leadership lasts without a response of the engine. The default is [`Trust::UntilSuspended`].
    pub trust: Trust,
    /// Time for which a task may continue after its leadership has ended. The default is 10 s. If the time is too
    /// short, the selector aborts a task that would end cleanly. If the time is too long, a task may run for a long
    /// time while the next leader leads.
    pub grace: Duration,
}

impl Candidate {
    /// Creates the options of a candidate with the text `id`. All other options have their defaults.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Candidate {
            id: id.to_owned(),
            acl: None,
            layout: Layout::default(),
            trust: Trust::default(),
            grace: Duration::from_secs(10),
        }
    }
}

/// Candidate in the queue of a leader group. The first candidate in the queue is the leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Participant {
    /// Text of the candidate, from [`Candidate::id`]. The character U+FFFD replaces bytes that are not UTF-8.
    pub id: String,
    /// True if the candidate is the first in the queue.
    pub leads: bool,
}

/// Handle with which one process uses a leader group.
#[derive(Clone)]
pub struct LeaderSelector {
    client: Client,
    line: Line,
    candidate: Candidate,
}

impl LeaderSelector {
    /// Creates a handle of the leader group at `group`, which is the parent of the candidates' nodes.
    #[must_use]
    pub fn new(client: &Client, group: NodePath, candidate: Candidate) -> Self {
        let names = match candidate.layout {
            Layout::Selector => &["lock-"],
            Layout::Latch => &["latch-"],
        };
        let acl = candidate.acl.clone().unwrap_or_else(|| client.default_acl());
        let line = Line::new(group, Naming::Protected, names, acl);
        LeaderSelector { client: client.clone(), line, candidate }
    }

    /// Waits for the leadership without a time limit. If the session is lost, the candidate opens another session and
    /// waits at the end of the queue. If the caller drops the future, the candidate leaves the queue.
    ///
    /// # Errors
    /// Returns only errors that a longer wait does not resolve: [`TreeError::Forbidden`], [`TreeError::InvalidAcl`] and
    /// [`TreeError::Invalid`].
    pub async fn lead(&self) -> Result<Held, TreeError> {
        let data = Bytes::copy_from_slice(self.candidate.id.as_bytes());
        acquire(&self.client, &self.line, Rule::Among(1), self.candidate.trust, &data).await
    }

    /// Repeatedly waits for the leadership, and runs one `task` in each leadership. When the leadership ends or a
    /// caller cancels `stop`, the function cancels [`Leading::over`], and the task must end. If the task ends by
    /// itself, the next candidate in the queue leads. After a caller has cancelled `stop`, the function waits for the
    /// end of the task and returns.
    ///
    /// # Errors
    /// Returns the same errors as [`LeaderSelector::lead`].
    pub async fn run<T, F>(&self, stop: &CancellationToken, mut task: impl FnMut(Leading) -> F) -> Result<(), TreeError>
    where
        F: Future<Output = T>,
    {
        while !stop.is_cancelled() {
            let held = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                held = self.lead() => held?,
            };
            let ended = held.run(stop, self.candidate.grace, &mut task).await;
            tracing::info!(group = %self.line.parent, how = ended.name(), "leadership ended");
        }
        Ok(())
    }

    /// Returns the candidates in the order of the queue, the leader first. The list may be slightly out of date.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree).
    pub async fn participants(&self) -> Result<Vec<Participant>, TreeError> {
        let tree = self.client.session().await?;
        let places = self.line.nodes(&*tree).await?.into_iter().enumerate();
        let participant = |(at, node): (usize, Node)| Participant { id: id_of(&node), leads: at == 0 };
        Ok(places.map(participant).collect())
    }

    /// Follows the leader of the leader group, which is the first candidate in the queue, from now on. The caller does
    /// not become a candidate. Another candidate may already lead when the follower still shows the previous leader, so
    /// the value grants no right.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`](crate::tree::Tree).
    pub async fn follow_leader(&self) -> Result<Followed<KnownLeader>, TreeError> {
        follow_leader(&self.client, self.line.clone(), |_name, node| id_of(node)).await
    }
}

fn id_of(node: &Node) -> String {
    String::from_utf8_lossy(&node.data).into_owned()
}

impl fmt::Debug for LeaderSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderSelector")
            .field("group", &self.line.parent)
            .field("candidate", &self.candidate)
            .finish_non_exhaustive()
    }
}

impl<T> Ended<T> {
    fn name(&self) -> &'static str {
        match self {
            Ended::Done(_) => "the task ended while the guard was valid",
            Ended::DoneInGrace(_) => "the task ended within the grace period",
            Ended::Aborted => "the task ran longer than the grace period",
        }
    }
}
