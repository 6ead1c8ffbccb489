//! Jobs that are matched with applicants, one each: seed 001's role match.
//!
//! The jobs lie in a [`Bag`], the applicants stand in a [`LeaderQueue`](super::LeaderQueue)'s line. The one at the front takes an open job by a
//! node of its own session with the job's number, and leaves the line; with that session, or the job, the node goes, and the job is open,
//! or gone.

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
use super::held::{Held, Leading, Trust};
use super::line::{Line, Naming, Place, Rule};
use super::node::{Owned, gone, join, make, stopped};
use crate::Term;
use crate::tree::{Acl, CreateMode, Done, Expected, NodePath, Op, Sequence, Tree, TreeError, Watch, Zxid};

const ASSIGNMENT: &str = "assignment";

/// A process's way to a role match.
#[derive(Clone)]
pub struct RoleMatch {
    client: Client,
    jobs: Bag,
    line: Line,
    assignments: NodePath,
    acl: Acl,
    trust: Trust,
}

/// A job that this process has.
#[derive(Debug)]
#[must_use = "dropped, the job is open"]
pub struct Role {
    pub job: Sequence,
    /// What was put into the bag.
    pub description: Bytes,
    /// Over when the job is withdrawn, too.
    pub held: Held,
}

/// What a task is told of its job.
#[derive(Clone, Debug)]
pub struct Job {
    pub id: Sequence,
    pub description: Bytes,
    pub leading: Leading,
}

/// Who has a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// What the applicant said of itself.
    pub holder: Bytes,
    /// By the engine's clock.
    pub since: Timestamp,
    pub term: Term,
}

impl RoleMatch {
    /// `acl` is of the nodes that are made here, and of parents that are missing.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if the path is too long.
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

    #[must_use]
    pub fn with_trust(self, trust: Trust) -> Self {
        RoleMatch { trust, ..self }
    }

    /// The jobs, to add to and to withdraw from.
    #[must_use]
    pub fn jobs(&self) -> &Bag {
        &self.jobs
    }

    /// Waits until it has a job, for as long as it takes, over the ends of sessions; `who` is for all to see. Dropped, it applies no more; kept and not
    /// polled, it keeps its place, and those behind it wait.
    ///
    /// # Errors
    /// What waiting does not mend: [`TreeError::Forbidden`], [`TreeError::InvalidAcl`], [`TreeError::Invalid`].
    pub async fn apply(&self, who: &Bytes) -> Result<Role, TreeError> {
        loop {
            let applied = async {
                let place = self.client.patiently(|| self.line.join(&self.client, who.clone(), Rule::Among(1))).await?;
                place.turn().await?;
                let taken = self.take_a_job(&place, who).await?;
                place.into_owned().release().await;
                self.role(taken).await
            };
            match applied.await {
                Err(TreeError::NoNode | TreeError::SessionLost) => self.client.pause().await,
                role => return role,
            }
        }
    }

    /// Applies again and again, each time with one `task`, which ends when its job is withdrawn or lost; after one that ends by itself the job is
    /// open, for whoever is next in line, unless the task withdrew it. Until `stop` is cancelled: then the task is told, too, and has `grace`
    /// to end.
    ///
    /// # Errors
    /// As [`RoleMatch::apply`].
    pub async fn run<F>(
        &self,
        stop: &CancellationToken,
        who: &Bytes,
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
                role = self.apply(who) => role?,
            };
            held.run(stop, grace, |leading| task(Job { id, description, leading })).await;
        }
        Ok(())
    }

    /// Who has which job, as the engine saw it a moment ago.
    ///
    /// # Errors
    /// As those of a [`Tree`].
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
                    let term = Term(u64::try_from(node.stat.created.0).unwrap_or(0));
                    let assignment = Assignment { holder: node.data, since: node.stat.created_at, term };
                    assignments.insert(job, assignment);
                }
            }
        }
        Ok(assignments)
    }

    /// At the front of the line: the first open job.
    async fn take_a_job(&self, place: &Place, who: &Bytes) -> Result<Taken, TreeError> {
        let tree = &place.node().tree;
        let mut gone = Box::pin(place.node().gone());
        loop {
            let looking = async {
                let (jobs, jobs_watch) = self.numbers(tree, self.jobs.items(), id_named).await?;
                let assigned = |name: &str| Sequence::after(name, ASSIGNMENT);
                let (taken, taken_watch) = self.numbers(tree, &self.assignments, assigned).await?;
                for job in jobs.iter().filter(|job| taken.binary_search(job).is_err()) {
                    if let Some(taken) = self.take(place, *job, who).await? {
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
                taken = looking => taken?,
            };
            if let Some(taken) = taken {
                return Ok(taken);
            }
        }
    }

    /// In order; none if the parent is not there.
    async fn numbers(
        &self,
        tree: &Arc<dyn Tree>,
        parent: &NodePath,
        number: impl Fn(&str) -> Option<Sequence>,
    ) -> Result<(Vec<Sequence>, Watch), TreeError> {
        loop {
            match self.client.patiently(|| tree.children_and_watch(parent)).await {
                Ok((children, watch)) => {
                    let mut numbers: Vec<_> = children.names.iter().filter_map(|name| number(name)).collect();
                    numbers.sort_unstable();
                    return Ok((numbers, watch));
                }
                Err(TreeError::NoNode) => {
                    make(&self.client, &**tree, parent, Bytes::new(), CreateMode::Persistent, &self.acl).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// `None` if it is not open any more. In a task: dropped at any moment, it leaves no job with a holder that does not know.
    async fn take(&self, place: &Place, job: Sequence, who: &Bytes) -> Result<Option<Taken>, TreeError> {
        let (client, tree) = (self.client.clone(), place.node().tree.clone());
        let (item, own) = (self.jobs.path(job)?, place.node().path.clone());
        let path = join(&self.assignments, &format!("{ASSIGNMENT}{job}"))?;
        let (who, acl) = (who.clone(), self.acl.clone());
        let taken = self.client.runtime().detached("role", async move {
            let node = match client.patiently(|| tree.get(&item)).await {
                Err(TreeError::NoNode) => return Ok(None),
                node => node?,
            };
            // Each holder raises the item's version, by which its fence is told from another's.
            let version = node.stat.version;
            let (data, expected) = (node.data.clone(), Expected::Version(version));
            let steps = vec![
                Op::Set { path: item.clone(), data, expected },
                Op::Check { path: own, expected: Expected::Any },
                Op::Create { path: path.clone(), data: who, mode: CreateMode::Ephemeral, acl },
            ];
            let created = match tree.multi(steps).await {
                Ok(done) => match done.last() {
                    Some(Done::Create(made)) => Some(made.stat.created),
                    _ => None,
                },
                Err(TreeError::Multi { at: 0, .. }) => None,
                Err(TreeError::Multi { at: 2, source }) if *source == TreeError::NodeExists => None,
                Err(TreeError::Multi { source, .. }) => return Err(*source),
                Err(error) if error.is_retryable() => {
                    client.patiently(|| made_by_us(&tree, &item, version, &path)).await?
                }
                Err(error) => return Err(error),
            };
            Ok(created.map(|created| Taken {
                job,
                description: node.data,
                item: Op::Check { path: item, expected: Expected::Version(version.wrapping_add(1)) },
                item_created: node.stat.created,
                owned: Owned::made(&client, &tree, path, created),
            }))
        });
        taken.await.unwrap_or_else(|| Err(stopped()))
    }

    async fn role(&self, taken: Taken) -> Result<Role, TreeError> {
        let Taken { job, description, item, item_created, owned } = taken;
        let (client, tree, path) = (self.client.clone(), owned.node().tree.clone(), item.path().clone());
        let withdrawn = async move { drop(gone(&client, &*tree, &path, Some(item_created)).await) };
        let held = Held::until(owned, Some(item), self.trust, withdrawn).await?;
        Ok(Role { job, description, held })
    }
}

/// A job that was taken just now.
struct Taken {
    job: Sequence,
    description: Bytes,
    /// Whether it is still as its holder left it.
    item: Op,
    item_created: Zxid,
    owned: Owned,
}

/// After a lost answer: when the node was made, if this session has made it and the item is as it was left then.
fn made_by_us<'a>(
    tree: &'a Arc<dyn Tree>,
    item: &'a NodePath,
    version: i32,
    path: &'a NodePath,
) -> BoxFuture<'a, Result<Option<Zxid>, TreeError>> {
    Box::pin(async move {
        tree.sync().await?;
        let raised = tree.exists(item).await?.filter(|stat| stat.version == version.wrapping_add(1));
        let made = tree.exists(path).await?.filter(|stat| stat.owner == Some(tree.session().id()));
        Ok(raised.and(made).map(|stat| stat.created))
    })
}

impl fmt::Debug for RoleMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoleMatch").field("assignments", &self.assignments).finish_non_exhaustive()
    }
}
