//! Leader election for a leader group. Processes with Curator's `LeaderSelector` and `LeaderLatch` can share leader
//! groups.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::guard::{Ended, Held, Leading, Trust};
use super::line::{Line, Naming, Rule};
use super::lock::acquire;
use crate::tree::{Acl, Node, NodePath, TreeError};

/// Node layout of a leader group. All candidates of a leader group use the same layout.
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
    /// Access list of the nodes created here, including missing parents. The default admits only sessions with the same
    /// credentials.
    pub acl: Acl,
    pub layout: Layout,
    pub trust: Trust,
    /// Time that a task may continue after its leadership has ended. Default 10 s. If it is too short, a task that
    /// could end cleanly is aborted. If it is too long, the task runs beside the next leader for that time.
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

/// Candidate in the line of a leader group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Participant {
    pub id: String,
    /// True if the candidate is the first in the line.
    pub leads: bool,
}

/// Handle of a leader group in one process.
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
        let line = Line::new(group, Naming::Protected, names, candidate.acl.clone());
        LeaderSelector { client: client.clone(), line, candidate }
    }

    /// Waits for the leadership without a time limit, across sessions. Dropping the future withdraws the candidate.
    ///
    /// # Errors
    /// Errors that waiting cannot resolve: [`TreeError::Forbidden`], [`TreeError::InvalidAcl`], [`TreeError::Invalid`].
    pub async fn lead(&self) -> Result<Held, TreeError> {
        let data = Bytes::copy_from_slice(self.candidate.id.as_bytes());
        acquire(&self.client, &self.line, Rule::Among(1), self.candidate.trust, &data).await
    }

    /// Leads repeatedly and runs one `task` in each leadership. The task is asked to end when its leadership ends. If
    /// the task ends by itself, the next candidate in the line leads. The loop ends when `stop` is cancelled. The task
    /// is then asked to end, too.
    ///
    /// # Errors
    /// The same as [`LeaderSelector::lead`].
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

    /// Returns the candidates in the line, the leader first. The list may be slightly out of date.
    ///
    /// # Errors
    /// The same as those of a [`Tree`](crate::tree::Tree).
    pub async fn participants(&self) -> Result<Vec<Participant>, TreeError> {
        let tree = self.client.session().await?;
        let places = self.line.nodes(&*tree).await?.into_iter().enumerate();
        let participant = |(at, node): (usize, Node)| Participant {
            id: String::from_utf8_lossy(&node.data).into_owned(),
            leads: at == 0,
        };
        Ok(places.map(participant).collect())
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
            Ended::DoneInGrace(_) => "within the grace period",
            Ended::Aborted => "aborted",
        }
    }
}
