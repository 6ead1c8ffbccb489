//! One leader of a group at a time (seed 000's Cronulla). Curator's `LeaderSelector` and `LeaderLatch` share the groups.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::held::{Ended, Held, Leading, Trust};
use super::line::{Line, Naming, Rule};
use super::lock::hold;
use crate::tree::{Acl, Node, NodePath, TreeError};

/// Whose nodes a group has: a group is of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// Curator's `LeaderSelector`, and its `InterProcessMutex`.
    #[default]
    Selector,
    /// Curator's `LeaderLatch`.
    Latch,
}

/// Who stands for leader, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// What the others see: a host's name, say. Need not be unique.
    pub id: String,
    /// Of the nodes that are made here, and of parents that are missing. Default: closed to all who do not give the same credentials.
    pub acl: Acl,
    pub layout: Layout,
    pub trust: Trust,
    /// How long a task may go on once its leadership is over. Default 10 s. Too short: what could have been ended well is broken off; too
    /// long: the next leader works beside it.
    pub grace: Duration,
}

impl Candidate {
    #[must_use]
    pub fn new(id: &str) -> Self {
        Candidate {
            id: id.to_owned(),
            acl: Acl::Creator,
            layout: Layout::default(),
            trust: Trust::default(),
            grace: Duration::from_secs(10),
        }
    }
}

/// Who stands in a group's line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Participant {
    pub id: String,
    /// Whether it is the first.
    pub leads: bool,
}

/// A process's way to a group.
#[derive(Clone)]
pub struct LeaderSelector {
    client: Client,
    line: Line,
    candidate: Candidate,
}

impl LeaderSelector {
    #[must_use]
    pub fn new(client: &Client, group: NodePath, candidate: Candidate) -> Self {
        let names = match candidate.layout {
            Layout::Selector => &["lock-"],
            Layout::Latch => &["latch-"],
        };
        let line = Line::new(group, Naming::Marked, names, candidate.acl.clone());
        LeaderSelector { client: client.clone(), line, candidate }
    }

    /// Waits until it leads, for as long as it takes, over the ends of sessions. Dropped, it does not stand for leader any more.
    ///
    /// # Errors
    /// What waiting does not mend: [`TreeError::Forbidden`], [`TreeError::InvalidAcl`], [`TreeError::Invalid`].
    pub async fn lead(&self) -> Result<Held, TreeError> {
        let data = Bytes::copy_from_slice(self.candidate.id.as_bytes());
        hold(&self.client, &self.line, Rule::Among(1), self.candidate.trust, &data).await
    }

    /// Leads again and again, each time with one `task`, which ends when its leadership does; one that ends by itself gives the leadership to
    /// the next in line. Until `stop` is cancelled: then the task is told, too.
    ///
    /// # Errors
    /// As [`LeaderSelector::lead`].
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
            tracing::info!(group = %self.line.parent, how = ended.name(), "a leadership has ended");
        }
        Ok(())
    }

    /// Those who stand in line, the leader first: as the engine saw it a moment ago.
    ///
    /// # Errors
    /// As those of a [`Tree`](crate::tree::Tree).
    pub async fn participants(&self) -> Result<Vec<Participant>, TreeError> {
        let tree = self.client.session().await?;
        let standing = self.line.nodes(&*tree).await?.into_iter().enumerate();
        let participant = |(at, node): (usize, Node)| Participant {
            id: String::from_utf8_lossy(&node.data).into_owned(),
            leads: at == 0,
        };
        Ok(standing.map(participant).collect())
    }
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
            Ended::Done(_) => "by itself",
            Ended::DoneInGrace(_) => "in its grace",
            Ended::Aborted => "aborted",
        }
    }
}
