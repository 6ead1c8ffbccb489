//! Cronulla, a cron scheduler. One of several replicas calls a service at the times of a cron expression. When this
//! replica dies, another replica takes over. Start two or more replicas, and kill the leader:
//!
//! ```sh
//! cargo run -p reveille-coordination --example cronulla -- zookeeper://127.0.0.1:2181 --credentials shop.credentials --call http://127.0.0.1:8080/clean-up
//! ```
//!
//! Promises: a firing is a pair (job, instant). The header `idempotency-key` identifies the firing, and the service
//! must ignore a second call with the same key. The leader never calls the service before the instant of the firing.
//! Several firings may become due while no leader exists or the service does not respond. The next call is then late,
//! and it is only for the latest firing: the leader skips the earlier firings. The header `x-term` contains the term of
//! the leader, and each leader has a greater term than the leader before it. A service can therefore reject a delayed
//! call that arrives after a call of the next leader.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the example reports its progress")]

#[path = "access/options.rs"]
mod access;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Parser;
use coordination_connect::{ConnectOptions, connect_with};
use domain::{Cron, Timestamp};
use http::{Request, Uri};
use http_body_util::Empty;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use reveille_coordination::recipes::{Candidate, Client, LeaderSelector, Leading};
use reveille_coordination::tree::{CreateMode, Expected, NodePath, Op, Tree, TreeError};
use runtime::Runtime;

#[derive(Parser)]
struct Arguments {
    /// Coordination engine of the replicas: zookeeper://HOST:PORT,HOST:PORT/ROOT or
    /// postgres://USER:PASSWORD@HOST:PORT/DATABASE
    coordination: String,
    #[command(flatten)]
    access: access::Access,
    /// URL that the leader calls by POST at each firing
    #[arg(long)]
    call: Uri,
    /// Name of the job
    #[arg(long, default_value = "contacts-clean-up")]
    job: String,
    /// Cron expression: second, minute, hour, day of the month, month, day of the week
    #[arg(long, default_value = "0 7 * * * *")]
    cron: String,
    /// Time zone of the cron expression
    #[arg(long, default_value = "UTC")]
    zone: String,
    /// Name of this replica
    #[arg(long, default_value_t = format!("replica-{}", std::process::id()))]
    replica: String,
    /// Milliseconds without contact with the engine after which a replica loses its leadership
    #[arg(long, default_value_t = 10_000)]
    session_millis: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let cron = Cron::parse(&arguments.cron, &arguments.zone).context("--cron")?;
    let job = NodePath::new("/cronulla/jobs")?.join(&arguments.job).context("--job")?;
    // 1. Create the client from a connection string.
    let session_timeout = Duration::from_millis(arguments.session_millis);
    let options = ConnectOptions { session_timeout, ..ConnectOptions::default() };
    let client = connect_with(&arguments.coordination, arguments.access.choice()?, options).await?;
    let runtime = client.runtime().clone();

    // 2. Create the leader selector from the client, the path of the job's leader group, and the options of this
    //    candidate.
    let candidate = Candidate::new(&arguments.replica);
    let group = NodePath::new("/cronulla/leaders")?.join(&arguments.job).context("--job")?;
    let selector = LeaderSelector::new(&client, group, candidate);

    // 3. `run` enters the queue of candidates again after each leadership, like Curator's `autoRequeue`.
    // 4. `run` calls this closure in each leadership, as Curator calls `takeLeadership`.
    // After a signal to stop, the leader releases its leadership, and the next candidate leads at once.
    let stop = coordination_connect::stop_signal()?;
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
    let scheduler = Scheduler { arguments, cron, job, runtime, client: client.clone(), http };
    selector.run(&stop, |leading| scheduler.take_leadership(leading)).await?;
    client.close().await?;
    Ok(())
}

struct Scheduler {
    arguments: Arguments,
    cron: Cron,
    /// Node that stores the last instant for which a leader called the service.
    job: NodePath,
    runtime: Runtime,
    client: Client,
    http: hyper_util::client::legacy::Client<HttpConnector, Empty<Bytes>>,
}

impl Scheduler {
    async fn take_leadership(&self, leading: Leading) {
        println!("{} leads, term {}", self.arguments.replica, leading.term.0);
        let ended = self.schedule(&leading).await;
        println!("{} no longer leads", self.arguments.replica);
        if let Err(error) = ended {
            eprintln!("{error:#}");
            // The error may affect only this replica. This replica therefore ends its leadership, so that another
            // replica can lead. If no other candidate exists, this replica leads again after 200 ms.
            self.runtime.sleep(Duration::from_millis(200)).await;
        }
    }

    /// Calls the service at each firing until the leadership ends.
    async fn schedule(&self, leading: &Leading) -> anyhow::Result<()> {
        let tree = self.client.session().await?;
        let mut last = self.last(&*tree, leading).await?;
        while let Some(next) = self.cron.next_after(last) {
            tokio::select! {
                biased;
                () = leading.over.cancelled() => return Ok(()),
                () = self.wait_for(next) => {}
            }
            // This process may have been paused, and another replica may lead now.
            if !leading.is_valid() {
                return Ok(());
            }
            // If several firings are due, the leader calls the service only for the latest firing.
            let due = self.cron.latest_at(self.runtime.now()).map_or(next, |latest| latest.max(next));
            if let Err(error) = self.call(due, leading).await {
                eprintln!("the call to the service for the instant {due} failed; retrying: {error:#}");
                self.runtime.sleep(Duration::from_millis(200)).await;
                continue;
            }
            // The leader stores the instant of the firing after the call. If this process dies between the call and
            // this write, the next leader repeats the call with the same `idempotency-key`. The fence rejects the write
            // of a process that has lost its leadership without noticing it.
            let store = Op::Set { path: self.job.clone(), data: text(due), expected: Expected::Any };
            tree.multi([leading.fence.clone(), vec![store]].concat())
                .await
                .context("cannot store the instant of the firing")?;
            println!("{} called the service for {due}", self.arguments.replica);
            last = due;
        }
        Ok(())
    }

    /// Returns the last instant for which a leader called the service. If no leader has stored an instant, the function
    /// stores the present instant and returns it.
    async fn last(&self, tree: &dyn Tree, leading: &Leading) -> anyhow::Result<Timestamp> {
        let jobs = self.job.parent().expect("the path of a job has a parent");
        self.client.ensure(&jobs, &self.client.default_acl()).await?;
        let (path, data) = (self.job.clone(), text(self.runtime.now()));
        let first = Op::Create { path, data, mode: CreateMode::Persistent, acl: self.client.default_acl() };
        match tree.multi([leading.fence.clone(), vec![first]].concat()).await {
            Err(TreeError::Multi { source, .. }) if *source == TreeError::NodeExists => {}
            created => drop(created.context("cannot create the job's node")?),
        }
        let stored = tree.get(&self.job).await?.data;
        let millis = std::str::from_utf8(&stored).ok().and_then(|text| text.parse().ok());
        Ok(Timestamp::from_millis(millis.with_context(|| {
            format!("node {} does not contain an instant in milliseconds; delete the node", self.job)
        })?))
    }

    async fn wait_for(&self, instant: Timestamp) {
        loop {
            let now = self.runtime.now();
            if now >= instant {
                return;
            }
            self.runtime.sleep(instant.since(now)).await;
        }
    }

    async fn call(&self, due: Timestamp, leading: &Leading) -> anyhow::Result<()> {
        let request = Request::post(&self.arguments.call)
            .header("idempotency-key", format!("{}/{due}", self.arguments.job))
            .header("x-replica", &self.arguments.replica)
            .header("x-term", leading.term.0)
            .body(Empty::new())?;
        let response = self.runtime.timeout(Duration::from_secs(5), self.http.request(request)).await;
        let status = response.context("the service did not respond within 5 s")??.status();
        ensure!(status.is_success(), "{} returned {status}", self.arguments.call);
        Ok(())
    }
}

fn text(instant: Timestamp) -> Bytes {
    instant.as_millis().to_string().into()
}
