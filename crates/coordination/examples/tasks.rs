//! Task scheduler with a leader and followers. The leader assigns tasks to all replicas, including itself, and takes
//! back the tasks of dead replicas. Start some replicas and add tasks. A task is a shell command:
//!
//! ```sh
//! cargo run -p reveille-coordination --example tasks -- zookeeper://127.0.0.1:2181 --credentials shop.credentials work
//! cargo run -p reveille-coordination --example tasks -- zookeeper://127.0.0.1:2181 --credentials shop.credentials add 'sleep 1; echo one' 'echo two'
//! cargo run -p reveille-coordination --example tasks -- zookeeper://127.0.0.1:2181 --credentials shop.credentials list
//! ```
//!
//! A task is a node. At any time the node is in one place: below `waiting`, below `given/REPLICA`, or below `done`. A
//! replica moves a task completely or not at all, and only from the place in which the replica has seen the task. A
//! leader that has lost its leadership without noticing it therefore loses no task.
//!
//! Promises: if the `add` of a task succeeds, a replica does the task, even if other replicas die. A second replica
//! does the same task only in two cases. In the first case, the first replica starts the task, and then dies or loses
//! contact for so long that it counts as dead. In the second case, a leader is paused, and takes the task from the
//! first replica long after another leader has taken over.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the example reports its progress")]

#[path = "access/options.rs"]
mod access;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::{Parser, Subcommand, ValueEnum};
use coordination_connect::connect;
use reveille_coordination::recipes::{Client, Form};
use reveille_coordination::tree::{CreateMode, Expected, NodePath, Op, TreeError};
use reveille_coordination::{Elector, Follower};
use runtime::{Monotonic, Runtime};
use tokio::process;

/// Largest number of tasks that a replica has at the same time. With a limit of one, a replica would wait for the
/// leader after each task. With a large limit, a new replica would find no waiting tasks.
const GIVEN_MAX: usize = 4;
/// Time that a replica waits before it repeats a failed request or looks for tasks again.
const RETRY_WAIT: Duration = Duration::from_millis(200);

#[derive(Parser)]
struct Arguments {
    /// Coordination engine of the replicas: zookeeper://HOST:PORT,HOST:PORT/ROOT or
    /// postgres://USER:PASSWORD@HOST:PORT/DATABASE
    coordination: String,
    #[command(flatten)]
    access: access::Access,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Add tasks, which are shell commands
    Add {
        #[arg(required = true)]
        tasks: Vec<String>,
    },
    /// Show which tasks wait, which replica has each assigned task, and which tasks are done
    List,
    /// Do tasks, and lead the other replicas when this replica is elected
    Work(Work),
}

#[derive(clap::Args)]
struct Work {
    /// Name of this replica, unique among the replicas [default: a random name]
    #[arg(long)]
    replica: Option<String>,
    /// Milliseconds that a leadership lasts without a renewal
    #[arg(long, default_value_t = 3_000)]
    lease_millis: u64,
    /// Kind of election [default: a lease in a table row on PostgreSQL, watching on ZooKeeper]
    #[arg(long)]
    elector: Option<ElectorForm>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ElectorForm {
    /// Nodes of a tree, which each replica lists repeatedly
    Polling,
    /// Nodes of a tree, where each replica watches the node before its own
    Watching,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { coordination: url, access, command } = Arguments::parse();
    let access = access.choice()?;
    let client = connect(&url, access.clone()).await?;
    let runtime = client.runtime().clone();
    let tasks = Tasks::new(client.clone()).await?;
    match command {
        Command::Add { tasks: commands } => {
            for command in commands {
                println!("{} is waiting", tasks.add(command).await?);
            }
        }
        Command::List => {
            for (place, task) in tasks.list().await? {
                println!("{task}  {place}");
            }
        }
        Command::Work(Work { replica, lease_millis, elector }) => {
            let (group, lease) = (NodePath::new("/tasks/nodes")?, Duration::from_millis(lease_millis));
            let form = elector.map(|form| match form {
                ElectorForm::Polling => Form::Polling,
                ElectorForm::Watching => Form::Watching,
            });
            let credentials = access.credentials().to_vec();
            let options = coordination_connect::Options { credentials, password: None };
            let elector = coordination_connect::elector(&runtime, &url, &group, lease, form, &options).await?;
            let name = replica.unwrap_or_else(|| format!("replica-{:032x}", runtime.random_u128()));
            ensure!(!name.contains('/'), "--replica: the name {name:?} must not contain `/`");
            // The program creates the parent node of the replica's tasks before the replica joins. The leader can then
            // assign tasks to the replica at once.
            client.ensure(&tasks.given.join(&name).context("--replica")?, &client.default_acl()).await?;
            let replica = Replica { runtime, tasks, elector, name, lease, followed: Cell::default() };
            tokio::select! {
                ended = replica.lead() => ended?,
                () = replica.work() => {}
                _ = tokio::signal::ctrl_c() => replica.elector.resign(&replica.name).await?,
            }
        }
    }
    client.close().await?;
    Ok(())
}

struct Replica {
    runtime: Runtime,
    tasks: Tasks,
    elector: Arc<dyn Elector>,
    name: String,
    lease: Duration,
    /// Start of the last successful call of the elector. From this time on, this replica follows or leads for the
    /// duration of one lease.
    followed: Cell<Option<Monotonic>>,
}

impl Replica {
    /// Calls the elector repeatedly. While the elector reports that this replica leads, the function assigns tasks.
    async fn lead(&self) -> anyhow::Result<()> {
        let (period, mut led, mut known) = (self.lease / 3, false, Vec::new());
        loop {
            let called = self.runtime.monotonic();
            let leads = match self.elector.is_leader(&self.name, self.lease).await {
                Ok(leadership) => {
                    self.followed.set(Some(called));
                    leadership.leads
                }
                Err(error) if error.is_retryable() => false,
                Err(error) => return Err(error).context("the elector rejected the replica's name or lease"),
            };
            if leads != led {
                println!("{} {}", self.name, if leads { "leads" } else { "follows" });
            }
            led = leads;
            if leads {
                let left = self.lease.saturating_sub(self.runtime.monotonic().since(called));
                if let Some(Err(error)) = self.runtime.timeout(left.min(period), self.hand_out(&mut known)).await {
                    eprintln!("{error:#}; retrying");
                }
            }
            self.runtime.sleep_until(called + period).await;
        }
    }

    /// Assigns the waiting tasks, and assigns tasks again as soon as a follower has left. Ends when this replica no
    /// longer leads.
    async fn hand_out(&self, known: &mut Vec<Follower>) -> anyhow::Result<()> {
        loop {
            let followers = self.elector.followers().await?;
            for gone in known.iter().filter(|known| followers.iter().all(|other| other.replica != known.replica)) {
                println!("{} is gone", gone.replica);
            }
            known.clone_from(&followers);
            self.tasks.hand_out(&followers).await?;
            if self.elector.departures(&self.name, followers).await?.is_none() {
                return Ok(());
            }
        }
    }

    /// Does the assigned tasks while this replica counts as a follower. When it no longer counts as a follower, the
    /// leader gives its tasks to other replicas.
    async fn work(&self) {
        loop {
            let follows = self.followed.get().is_some_and(|followed| self.runtime.monotonic() < followed + self.lease);
            if !follows {
                self.runtime.sleep(RETRY_WAIT).await;
                continue;
            }
            if let Err(error) = self.tasks.do_given(&self.name).await {
                eprintln!("{error:#}; retrying");
            }
            self.runtime.sleep(RETRY_WAIT).await;
        }
    }
}

/// Parent nodes of the waiting, the given and the done tasks, and the client that accesses these nodes.
struct Tasks {
    client: Client,
    waiting: NodePath,
    given: NodePath,
    done: NodePath,
}

impl Tasks {
    async fn new(client: Client) -> anyhow::Result<Self> {
        let [waiting, given, done] = ["/tasks/waiting", "/tasks/given", "/tasks/done"].map(NodePath::new);
        let tasks = Tasks { client, waiting: waiting?, given: given?, done: done? };
        for place in [&tasks.waiting, &tasks.given, &tasks.done] {
            tasks.client.ensure(place, &tasks.client.default_acl()).await?;
        }
        Ok(tasks)
    }

    /// Adds a task and returns its name.
    async fn add(&self, command: String) -> anyhow::Result<String> {
        let (tree, path) = (self.client.session().await?, self.waiting.join("task")?);
        let (mode, acl) = (CreateMode::PersistentSequential, self.client.default_acl());
        let added = tree.create(&path, command.into(), mode, acl).await;
        let added =
            added.context("cannot confirm that the task was added; run the command `list` before you add it again")?;
        Ok(added.path.name().to_owned())
    }

    /// Returns the place and the name of each task.
    async fn list(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        for task in self.names(&self.waiting).await? {
            all.push(("is waiting".to_owned(), task));
        }
        for replica in self.names(&self.given).await? {
            for task in self.names(&self.given.join(&replica)?).await? {
                all.push((format!("is given to {replica}"), task));
            }
        }
        for task in self.names(&self.done).await? {
            let by = self.client.session().await?.get(&self.done.join(&task)?).await?.data;
            all.push((format!("is done: {}", String::from_utf8_lossy(&by)), task));
        }
        Ok(all)
    }

    /// Assigns waiting tasks to the followers, and takes back the tasks of departed replicas. Only the leader calls
    /// this function.
    async fn hand_out(&self, followers: &[Follower]) -> anyhow::Result<()> {
        let mut given: BTreeMap<String, usize> =
            followers.iter().map(|follower| (follower.replica.clone(), 0)).collect();
        for replica in self.names(&self.given).await? {
            let place = self.given.join(&replica)?;
            let tasks = self.names(&place).await?;
            match given.get_mut(&replica) {
                Some(count) => *count = tasks.len(),
                None => {
                    for task in tasks {
                        self.give(&place, &self.waiting, &task).await?;
                    }
                    // Another leader may assign a task to the departed replica at this moment. The next call of this
                    // function takes the task back.
                    match self.client.session().await?.delete(&place, Expected::Any).await {
                        Ok(()) | Err(TreeError::NoNode | TreeError::NotEmpty) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        for task in self.names(&self.waiting).await? {
            let Some((replica, count)) = given.iter_mut().min_by_key(|(_, count)| **count) else { break };
            if *count >= GIVEN_MAX {
                break;
            }
            *count += 1;
            self.give(&self.waiting, &self.given.join(replica)?, &task).await?;
        }
        Ok(())
    }

    /// Does all tasks that this replica has. If it has none, the function waits until the leader assigns a task.
    async fn do_given(&self, replica: &str) -> anyhow::Result<()> {
        let (tree, place) = (self.client.session().await?, self.given.join(replica)?);
        let (given, change) = match tree.children_and_watch(&place).await {
            // A leader considered this replica dead, moved all of its tasks away and deleted the node `given/REPLICA`.
            Err(TreeError::NoNode) => return Ok(self.client.ensure(&place, &self.client.default_acl()).await?),
            listed => listed?,
        };
        if given.names.is_empty() {
            change.await?;
        }
        for task in given.names {
            // The leader may have given the task to another replica.
            tree.sync().await?;
            let Some(command) = self.data(&place.join(&task)?).await? else { continue };
            let command = String::from_utf8_lossy(&command).into_owned();
            let status = process::Command::new("sh").arg("-c").arg(command).kill_on_drop(true).status().await?;
            println!("{task}: {status}");
            // The replica repeats this request until the tree has stored the result. Otherwise this or another replica
            // would do the task again.
            let by = Bytes::from(format!("{replica}, {status}"));
            let was_there = loop {
                match self.move_to(&place, &self.done, &task, by.clone()).await {
                    Ok(was_there) => break was_there,
                    Err(error) => eprintln!("{error:#}; retrying"),
                }
                self.client.runtime().sleep(RETRY_WAIT).await;
            };
            if !was_there {
                println!("the leader moved task {task} to another replica during its execution; the task runs twice");
            }
        }
        Ok(())
    }

    async fn give(&self, from: &NodePath, to: &NodePath, task: &str) -> anyhow::Result<()> {
        if let Some(command) = self.data(&from.join(task)?).await? {
            self.move_to(from, to, task, command).await?;
        }
        Ok(())
    }

    /// Moves a task from the place `from` to the place `to`. Returns false if the task is no longer in the place
    /// `from`.
    async fn move_to(&self, from: &NodePath, to: &NodePath, task: &str, data: Bytes) -> anyhow::Result<bool> {
        let (path, mode, acl) = (to.join(task)?, CreateMode::Persistent, self.client.default_acl());
        let steps =
            vec![Op::Delete { path: from.join(task)?, expected: Expected::Any }, Op::Create { path, data, mode, acl }];
        match self.client.session().await?.multi(steps).await {
            Err(TreeError::Multi { at: 0, source }) if *source == TreeError::NoNode => Ok(false),
            moved => Ok(moved.map(|_| true)?),
        }
    }

    async fn data(&self, path: &NodePath) -> anyhow::Result<Option<Bytes>> {
        match self.client.session().await?.get(path).await {
            Err(TreeError::NoNode) => Ok(None),
            node => Ok(Some(node?.data)),
        }
    }

    async fn names(&self, path: &NodePath) -> anyhow::Result<Vec<String>> {
        Ok(self.client.session().await?.children(path).await?.names)
    }
}
