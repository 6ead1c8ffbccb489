//! Leader and followers, seed 002's task scheduler: the leader hands tasks to all replicas, itself among them, and takes back what a dead one had.
//! Start some replicas, and give them something to do; a task is a shell command:
//! `cargo run -p coordination --example tasks -- zookeeper://127.0.0.1:2181 work`
//! `cargo run -p coordination --example tasks -- zookeeper://127.0.0.1:2181 add 'sleep 1; echo one' 'sleep 1; echo two'`
//! `cargo run -p coordination --example tasks -- zookeeper://127.0.0.1:2181 list`
//!
//! A task is a node, and is at any time in one place: below `waiting`, below `given/REPLICA`, or below `done`. It moves as a whole or not at all,
//! from where its mover has seen it; so a leader that does not know yet that it leads no more loses none.
//!
//! What is promised: a task whose `add` was answered is done, whoever is killed. It is done twice only if its replica had begun it, and then died,
//! or was not heard of for so long that it counted as dead, or if a leader that stood still takes it away long after it was followed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it tells its story")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::{Parser, Subcommand, ValueEnum};
use coordination::recipes::{Client, Form};
use coordination::tree::{Acl, CreateMode, Expected, NodePath, Op, SessionOptions, TreeError};
use coordination::{Elector, Follower};
use runtime::{Monotonic, Runtime};
use tokio::process;

/// How many tasks a replica is given at once. With one, it waits for the leader after each; with many, a new replica waits for tasks.
const GIVEN_MAX: usize = 4;
/// Before another try of what failed.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Parser)]
struct Arguments {
    /// Where the replicas meet: zookeeper://HOST:PORT,HOST:PORT/ROOT or postgres://USER:PASSWORD@HOST:PORT/DATABASE
    coordination: String,
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
    /// Show where each task is
    List,
    /// Do tasks, and lead the others if it is this replica's turn
    Work(Work),
}

#[derive(clap::Args)]
struct Work {
    /// This replica's name, which no other has [default: one by chance]
    #[arg(long)]
    replica: Option<String>,
    /// Milliseconds for which the leader leads without asking again
    #[arg(long, default_value_t = 3_000)]
    lease_millis: u64,
    /// How it is told who leads [default: on PostgreSQL by a lease in a row, on ZooKeeper by watching]
    #[arg(long)]
    elector: Option<Told>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Told {
    /// Nodes of a tree, listed again and again
    Polling,
    /// Nodes of a tree, each watching the one before it
    Watching,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { coordination: url, command } = Arguments::parse();
    let runtime = Runtime::real();
    let trees = coordination_connect::trees(&runtime, &url, None).await?;
    let client = Client::new(&runtime, trees, SessionOptions::default());
    let opened = client.connect(Duration::from_secs(10)).await;
    opened.context("cannot open a session: is the engine there, and reachable from here?")?;
    let tasks = Tasks::new(client.clone()).await?;
    match command {
        Command::Add { tasks: commands } => {
            for command in commands {
                println!("{} waits", tasks.add(command).await?);
            }
        }
        Command::List => {
            for (place, task) in tasks.list().await? {
                println!("{task}  {place}");
            }
        }
        Command::Work(Work { replica, lease_millis, elector }) => {
            let (group, lease) = (NodePath::new("/tasks/nodes")?, Duration::from_millis(lease_millis));
            let form = elector.map(|told| match told {
                Told::Polling => Form::Polling,
                Told::Watching => Form::Watching,
            });
            let options = coordination_connect::Options::default();
            let elector = coordination_connect::elector(&runtime, &url, &group, lease, form, &options).await?;
            let name = replica.unwrap_or_else(|| format!("replica-{:032x}", runtime.random_u128()));
            ensure!(!name.contains('/'), "--replica: a name has no `/`");
            // It can be given tasks before anybody knows of it.
            client.ensure(&tasks.given.join(&name).context("--replica")?, &Acl::Open).await?;
            let replica = Replica { runtime, tasks, elector, name, lease, stood: Cell::default() };
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
    /// When the elector was asked last that has answered: until a lease after that, this is a follower, or leads.
    stood: Cell<Option<Monotonic>>,
}

impl Replica {
    /// Asks whether it leads, and leads if so, again and again.
    async fn lead(&self) -> anyhow::Result<()> {
        let (period, mut led, mut known) = (self.lease / 3, false, Vec::new());
        loop {
            let asked = self.runtime.monotonic();
            let leads = match self.elector.is_leader(&self.name, self.lease).await {
                Ok(leadership) => {
                    self.stood.set(Some(asked));
                    leadership.leads
                }
                Err(error) if error.is_retryable() => false,
                Err(error) => return Err(error).context("the elector"),
            };
            if leads != led {
                println!("{} {}", self.name, if leads { "leads" } else { "follows" });
            }
            led = leads;
            if leads {
                let left = self.lease.saturating_sub(self.runtime.monotonic().since(asked));
                if let Some(Err(error)) = self.runtime.timeout(left.min(period), self.hand_out(&mut known)).await {
                    eprintln!("{error:#}; it is tried again");
                }
            }
            self.runtime.sleep_until(asked + period).await;
        }
    }

    /// Hands out what waits, and again as soon as one of the followers, who are `known` from the last time, has left.
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

    /// Does what it is given, while it stands in the group: what those have who do not is given to others.
    async fn work(&self) {
        loop {
            let stands = self.stood.get().is_some_and(|stood| self.runtime.monotonic() < stood + self.lease);
            if !stands {
                self.runtime.sleep(PAUSE).await;
                continue;
            }
            if let Err(error) = self.tasks.work_off(&self.name).await {
                eprintln!("{error:#}; it is tried again");
            }
            self.runtime.sleep(PAUSE).await;
        }
    }
}

/// The tasks' nodes.
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
            tasks.client.ensure(place, &Acl::Open).await?;
        }
        Ok(tasks)
    }

    /// Answers the task's name.
    async fn add(&self, command: String) -> anyhow::Result<String> {
        let (tree, path) = (self.client.session().await?, self.waiting.join("task")?);
        let added = tree.create(&path, command.into(), CreateMode::PersistentSequential, Acl::Open).await;
        Ok(added.context("it is not known whether the task was added")?.path.name().to_owned())
    }

    /// Each task's place and name.
    async fn list(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        for task in self.names(&self.waiting).await? {
            all.push(("waits".to_owned(), task));
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

    /// The leader's part.
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
                    // With the next pass, if it was given something at this moment.
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

    /// The follower's part: all that it is given now; if that is nothing, it waits until it is given something.
    async fn work_off(&self, replica: &str) -> anyhow::Result<()> {
        let (tree, place) = (self.client.session().await?, self.given.join(replica)?);
        let (given, change) = match tree.children_and_watch(&place).await {
            // Taken away with all that was there, as of one that is gone.
            Err(TreeError::NoNode) => return Ok(self.client.ensure(&place, &Acl::Open).await?),
            seen => seen?,
        };
        if given.names.is_empty() {
            change.await?;
        }
        for task in given.names {
            // It may have been given to another.
            tree.sync().await?;
            let Some(command) = self.data(&place.join(&task)?).await? else { continue };
            let command = String::from_utf8_lossy(&command).into_owned();
            let status = process::Command::new("sh").arg("-c").arg(command).kill_on_drop(true).status().await?;
            println!("{task}: {status}");
            // Noted until that is answered: else it would be done again.
            let by = Bytes::from(format!("{replica}, {status}"));
            let was_there = loop {
                match self.move_to(&place, &self.done, &task, by.clone()).await {
                    Ok(was_there) => break was_there,
                    Err(error) => eprintln!("{error:#}; it is tried again"),
                }
                self.client.runtime().sleep(PAUSE).await;
            };
            if !was_there {
                println!("{task} was taken away while it was done: another does it, too");
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

    /// False if it is not there any more.
    async fn move_to(&self, from: &NodePath, to: &NodePath, task: &str, data: Bytes) -> anyhow::Result<bool> {
        let (path, mode, acl) = (to.join(task)?, CreateMode::Persistent, Acl::Open);
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
