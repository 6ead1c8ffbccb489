//! Role match, a recipe that gives each open job to one applicant, and one job to each applicant.
//!
//! The jobs are items of a [`Bag`]. The applicants wait in a [`LeaderQueue`](super::LeaderQueue). To take an open job,
//! the applicant at the front of the queue creates an ephemeral node with the job's number. The applicant then holds
//! the job and leaves the queue. If the holder's session ends, the engine removes the node, and the job is open again.
//! If another process removes the job from the bag, the holder removes the node.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use instants::Timestamp;
use tokio_util::sync::CancellationToken;

use super::bag::{Bag, id_named};
use super::client::Client;
use super::guard::{Held, Leading, Trust};
use super::line::{Line, Naming, Place, Rule};
use super::node::{NodeGuard, create_node, gone, join, stopped};
use crate::Term;
use crate::tree::{Acl, CreateMode, Done, Expected, NodePath, Op, Sequence, Tree, TreeError, Watch, Zxid};

const ASSIGNMENT: &str = "assignment";

/// Handle with which one process uses a role match.
#[derive(Clone)]
pub struct RoleMatch {
    client: Client,
    jobs: Bag,
    line: Line,
    assignments: NodePath,
    acl: Acl,
    trust: Trust,
}

/// Job that this process holds.
#[derive(Debug)]
#[must_use = "a drop of this value releases the job"]
pub struct Role {
    /// Number of the job in the bag.
    pub job: Sequence,
    /// Description of the job, from the bag.
    pub description: Bytes,
    /// Guard of the job. The guard ends when this process loses the job, or when another process removes the job.
    pub held: Held,
}

/// Job that [`RoleMatch::run`] gives to a task.
#[derive(Clone, Debug)]
pub struct Job {
    /// Number of the job in the bag.
    pub id: Sequence,
    /// Description of the job, from the bag.
    pub description: Bytes,
    /// View of the job's guard. The task must end when the guard or [`RoleMatch::run`] cancels [`Leading::over`].
    pub leading: Leading,
}

/// Assignment of a job to a holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Data that the holder published when it applied for a job.
    pub holder: Bytes,
    /// Time at which the holder took the job, according to the engine's clock.
    pub since: Timestamp,
    /// Term of the holder. It is greater than the term of every earlier holder of the job.
    pub term: Term,
}

impl RoleMatch {
    /// Creates a handle. `acl` is the access list of the nodes that the handle creates, including missing parents.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the path is too long.
    pub fn new(client: &Client, path: &NodePath, acl: Acl) -> Result<Self, TreeError> {
        let queue = join(&join(path, "queue")?, "candidate")?;
        Ok(RoleMatch {
            client: client.clone(),
            jobs: Bag::new(client, &join(path, "jobs")?, acl.clone())?,
            line: Line::new(queue, Naming::Plain, &["candidate"], acl.clone()),
            assignments: join(path, ASSIGNMENT)?,
            acl,
            trust: Trust::default(),
        })
    }

    /// Sets the [`Trust`] of the guards from this handle. The default is [`Trust::UntilSuspended`].
    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        RoleMatch { trust, ..self }
    }

    /// Returns the bag of the jobs. Callers add jobs to the bag and remove jobs from it.
    #[must_use]
    pub fn jobs(&self) -> &Bag {
        &self.jobs
    }

    /// Applies for a job, and waits for it without a time limit. Other processes can read the data `applicant`. If a
    /// session is lost, the wait continues at the end of the queue. If the caller drops the future, the process leaves
    /// the queue. If the caller keeps the future but does not poll it, the process keeps its place in the queue, and
    /// the applicants behind it must wait.
    ///
    /// # Errors
    /// Returns only errors that a longer wait does not resolve: [`TreeError::Forbidden`], [`TreeError::InvalidAcl`] and
    /// [`TreeError::Invalid`].
    pub async fn apply(&self, applicant: &Bytes) -> Result<Role, TreeError> {
        loop {
            let applied = async {
                let place =
                    self.client.retry(|| self.line.join(&self.client, applicant.clone(), Rule::Among(1))).await?;
                place.turn().await?;
                let taken = self.take_open_job(&place, applicant).await?;
                place.into_owned().release().await;
                self.role(taken).await
            };
            match applied.await {
                Err(TreeError::NoNode | TreeError::SessionLost) => self.client.back_off().await,
                role => return role,
            }
        }
    }

    /// Repeatedly applies for a job, and runs one `task` for each job that this process gets. The function cancels
    /// [`Leading::over`] when another process removes the job, when this process loses the job, or when a caller
    /// cancels `stop`. The task must then end within `grace`. If the task ends by itself, another applicant can take
    /// the job, unless the task has removed the job. The function returns after a caller has cancelled `stop`.
    ///
    /// # Errors
    /// Returns the same errors as [`RoleMatch::apply`].
    pub async fn run<F>(
        &self,
        stop: &CancellationToken,
        applicant: &Bytes,
        grace: Duration,
        mut task: impl FnMut(Job) -> F,
    ) -> Result<(), TreeError>
    where
        F: Future,
    {
        while !stop.is_cancelled() {
            let Role { job: id, description, held } = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                role = self.apply(applicant) => role?,
            };
            held.run(stop, grace, |leading| task(Job { id, description, leading })).await;
        }
        Ok(())
    }

    /// Returns the holder of each assigned job. The result may be slightly out of date.
    ///
    /// # Errors
    /// Returns the same errors as a [`Tree`].
    pub async fn assignments(&self) -> Result<BTreeMap<Sequence, Assignment>, TreeError> {
        let tree = self.client.session().await?;
        let names = match tree.children(&self.assignments).await {
            Err(TreeError::NoNode) => Vec::new(),
            children => children?.names,
        };
        let mut assignments = BTreeMap::new();
        for (job, name) in names.iter().filter_map(|name| Some((Sequence::after(name, ASSIGNMENT)?, name))) {
            match tree.get(&join(&self.assignments, name)?).await {
                Err(TreeError::NoNode) => {}
                node => {
                    let node = node?;
                    let term = Term::of_change(node.stat.created);
                    let assignment = Assignment { holder: node.data, since: node.stat.created_at, term };
                    assignments.insert(job, assignment);
                }
            }
        }
        Ok(assignments)
    }

    /// Takes the open job with the lowest number. Waits while no job is open. `place` must be the first place in the
    /// queue.
    async fn take_open_job(&self, place: &Place, applicant: &Bytes) -> Result<Taken, TreeError> {
        let tree = &place.node().tree;
        let mut gone = Box::pin(place.node().gone());
        loop {
            let searching = async {
                let (jobs, jobs_watch) = self.numbers(tree, self.jobs.items(), id_named).await?;
                let assigned = |name: &str| Sequence::after(name, ASSIGNMENT);
                let (taken, taken_watch) = self.numbers(tree, &self.assignments, assigned).await?;
                for job in jobs.iter().filter(|job| taken.binary_search(job).is_err()) {
                    if let Some(taken) = self.take(place, *job, applicant).await? {
                        return Ok::<_, TreeError>(Some(taken));
                    }
                }
                tokio::select! {
                    biased;
                    fired = jobs_watch => fired?,
                    fired = taken_watch => fired?,
                };
                Ok(None)
            };
            let taken = tokio::select! {
                biased;
                gone = &mut gone => return Err(gone),
                taken = searching => taken?,
            };
            if let Some(taken) = taken {
                return Ok(taken);
            }
        }
    }

    /// Returns the numbers in the names of the children of `parent`, in ascending order, and a watch on the children.
    /// Creates the node `parent` if it is missing.
    async fn numbers(
        &self,
        tree: &Arc<dyn Tree>,
        parent: &NodePath,
        number: impl Fn(&str) -> Option<Sequence>,
    ) -> Result<(Vec<Sequence>, Watch), TreeError> {
        loop {
            match self.client.retry(|| tree.children_and_watch(parent)).await {
                Ok((children, watch)) => {
                    let mut numbers: Vec<_> = children.names.iter().filter_map(|name| number(name)).collect();
                    numbers.sort_unstable();
                    return Ok((numbers, watch));
                }
                Err(TreeError::NoNode) => {
                    create_node(&self.client, &**tree, parent, Bytes::new(), CreateMode::Persistent, &self.acl).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a job. Returns `None` if the job is no longer open. A separate task sends the request. If the caller drops
    /// the future of this function, the task still receives the response and releases the job.
    async fn take(&self, place: &Place, job: Sequence, applicant: &Bytes) -> Result<Option<Taken>, TreeError> {
        let (client, tree) = (self.client.clone(), place.node().tree.clone());
        let (item, own) = (self.jobs.path(job)?, place.node().path.clone());
        let path = join(&self.assignments, &format!("{ASSIGNMENT}{job}"))?;
        let (applicant, acl) = (applicant.clone(), self.acl.clone());
        let taken = self.client.runtime().detached("role", async move {
            let node = match client.retry(|| tree.get(&item)).await {
                Err(TreeError::NoNode) => return Ok(None),
                node => node?,
            };
            // Each process that takes the job increments the version of the job's item in the bag. The guard's fence
            // checks this version, so the engine rejects the fenced writes of earlier holders.
            let version = node.stat.version;
            let (data, expected) = (node.data.clone(), Expected::Version(version));
            let steps = vec![
                Op::Set { path: item.clone(), data, expected },
                Op::Check { path: own, expected: Expected::Any },
                Op::Create { path: path.clone(), data: applicant, mode: CreateMode::Ephemeral, acl },
            ];
            let created = match tree.multi(steps).await {
                Ok(done) => match done.last() {
                    Some(Done::Create(result)) => Some(result.stat.created),
                    _ => None,
                },
                Err(TreeError::Multi { at: 0, .. }) => None,
                Err(TreeError::Multi { at: 2, source }) if *source == TreeError::NodeExists => None,
                Err(TreeError::Multi { source, .. }) => return Err(*source),
                Err(error) if error.is_retryable() => {
                    client.retry(|| find_created(&tree, &item, version, &path)).await?
                }
                Err(error) => return Err(error),
            };
            Ok(created.map(|created| Taken {
                job,
                description: node.data,
                item: Op::Check { path: item, expected: Expected::Version(version.wrapping_add(1)) },
                item_created: node.stat.created,
                owned: NodeGuard::created(&client, &tree, path, created),
            }))
        });
        taken.await.unwrap_or_else(|| Err(stopped()))
    }

    async fn role(&self, taken: Taken) -> Result<Role, TreeError> {
        let Taken { job, description, item, item_created, owned } = taken;
        let (client, tree, path) = (self.client.clone(), owned.node().tree.clone(), item.path().clone());
        let withdrawn = async move { drop(gone(&client, &*tree, &path, Some(item_created)).await) };
        let held = Held::until_withdrawn(owned, Some(item), self.trust, withdrawn).await?;
        Ok(Role { job, description, held })
    }
}

/// Job that this process has just taken.
struct Taken {
    job: Sequence,
    description: Bytes,
    /// Step of the guard's fence. It checks that the job's item in the bag has not changed since this process took the
    /// job.
    item: Op,
    item_created: Zxid,
    owned: NodeGuard,
}

/// Looks for the node that assigns the job to this process, after the response to the node's creation was lost. Returns
/// the number of the change that created the node. Returns `None` if this session does not own the node, or if the
/// version of the job's item is not one above `version`.
fn find_created<'a>(
    tree: &'a Arc<dyn Tree>,
    item: &'a NodePath,
    version: i32,
    path: &'a NodePath,
) -> BoxFuture<'a, Result<Option<Zxid>, TreeError>> {
    Box::pin(async move {
        tree.sync().await?;
        let raised = tree.exists(item).await?.filter(|stat| stat.version == version.wrapping_add(1));
        let created = tree.exists(path).await?.filter(|stat| stat.owner == Some(tree.session().id()));
        Ok(raised.and(created).map(|stat| stat.created))
    })
}

impl fmt::Debug for RoleMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoleMatch").field("assignments", &self.assignments).finish_non_exhaustive()
    }
}
