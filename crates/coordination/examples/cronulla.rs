//! Cronulla, seed 000's cron scheduler: of several replicas one calls a service when a cron expression says so, and another goes on when that
//! one dies. Start two or more, and kill whoever leads:
//! `cargo run -p coordination --example cronulla -- zookeeper://127.0.0.1:2181 --call http://127.0.0.1:8080/clean-up`
//!
//! What is promised: a firing is one (job, instant), named so in `idempotency-key`, and the service drops a second call of that name. None is called
//! before its instant. Those that are due while nobody leads, or while the service does not answer: the latest is called for late, once, and those
//! before it are skipped. `x-term` rises from leader to leader: by it a service can refuse a call that was held up until the next leader had called.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it tells its story")]

use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Parser;
use coordination::recipes::{Candidate, Client, LeaderSelector, Leading};
use coordination::tree::{Acl, CreateMode, Expected, NodePath, Op, SessionOptions, Tree, TreeError};
use domain::{Cron, Timestamp};
use http::{Request, Uri};
use http_body_util::Empty;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use runtime::Runtime;
use tokio_util::sync::CancellationToken;

#[derive(Parser)]
struct Arguments {
    /// Where the replicas meet: zookeeper://HOST:PORT,HOST:PORT/ROOT or postgres://USER:PASSWORD@HOST:PORT/DATABASE
    coordination: String,
    /// What is called by POST each time
    #[arg(long)]
    call: Uri,
    /// The job's name
    #[arg(long, default_value = "contacts-clean-up")]
    job: String,
    /// When: second, minute, hour, day of the month, month, day of the week
    #[arg(long, default_value = "0 7 * * * *")]
    cron: String,
    /// Whose clock the expression means
    #[arg(long, default_value = "UTC")]
    zone: String,
    /// This replica's name
    #[arg(long, default_value_t = format!("replica-{}", std::process::id()))]
    replica: String,
    /// Milliseconds after which a replica that is not heard of has lost its leadership
    #[arg(long, default_value_t = 10_000)]
    session_millis: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let cron = Cron::parse(&arguments.cron, &arguments.zone).context("--cron")?;
    let job = NodePath::new("/cronulla/jobs")?.join(&arguments.job).context("--job")?;
    let runtime = Runtime::real();

    // 1. The client, from a connection string.
    let trees = coordination_connect::trees(&runtime, &arguments.coordination, None).await?;
    let session =
        SessionOptions { timeout: Duration::from_millis(arguments.session_millis), ..SessionOptions::default() };
    let client = Client::new(&runtime, trees, session);
    let opened = client.connect(Duration::from_secs(10)).await;
    opened.context("cannot open a session: is the engine there, and reachable from here?")?;

    // 2. The leader selector: the client, the path of the group, which is the job's own, and who this is.
    let candidate = Candidate { acl: Acl::Open, ..Candidate::new(&arguments.replica) };
    let group = NodePath::new("/cronulla/leaders")?.join(&arguments.job).context("--job")?;
    let selector = LeaderSelector::new(&client, group, candidate);

    // 3. It queues again whenever it has led, as with Curator's `autoRequeue`, and 4. calls this each time, as `takeLeadership`.
    let stop = stopped_by_the_terminal(&runtime);
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
    let scheduler = Scheduler { arguments, cron, job, runtime, client: client.clone(), http };
    selector.run(&stop, |leading| scheduler.take_leadership(leading)).await?;
    client.close().await?;
    Ok(())
}

struct Scheduler {
    arguments: Arguments,
    cron: Cron,
    /// The node that keeps the last instant that was called for.
    job: NodePath,
    runtime: Runtime,
    client: Client,
    http: hyper_util::client::legacy::Client<HttpConnector, Empty<Bytes>>,
}

impl Scheduler {
    async fn take_leadership(&self, leading: Leading) {
        println!("{} leads, term {}", self.arguments.replica, leading.term.0);
        let ended = self.schedule(&leading).await;
        println!("{} leads no more", self.arguments.replica);
        if let Err(error) = ended {
            eprintln!("{error:#}");
            // Whoever leads next may do better; and if nobody else is there, this is not asked at once.
            self.runtime.sleep(Duration::from_millis(200)).await;
        }
    }

    /// Until the leadership is over.
    async fn schedule(&self, leading: &Leading) -> anyhow::Result<()> {
        let tree = self.client.session().await?;
        let mut last = self.last(&*tree, leading).await?;
        while let Some(next) = self.cron.next_after(last) {
            tokio::select! {
                biased;
                () = leading.over.cancelled() => return Ok(()),
                () = self.wait_for(next) => {}
            }
            // It may have stood still meanwhile, and another may lead now.
            if !leading.is_valid() {
                return Ok(());
            }
            // The policy: of several that are due, the latest.
            let due = self.cron.latest_at(self.runtime.now()).map_or(next, |latest| latest.max(next));
            if let Err(error) = self.call(due, leading).await {
                eprintln!("{due} is tried again: {error:#}");
                self.runtime.sleep(Duration::from_millis(200)).await;
                continue;
            }
            // After the call: who dies in between leaves it to the next leader, whose call has the same name. And under the fence: who does not
            // know yet that it leads no more moves nothing.
            let noted = Op::Set { path: self.job.clone(), data: text(due), expected: Expected::Any };
            tree.multi([leading.fence.clone(), vec![noted]].concat())
                .await
                .context("cannot note what was called for")?;
            println!("{} called for {due}", self.arguments.replica);
            last = due;
        }
        Ok(())
    }

    /// The last instant that was called for; if this is the first leader ever, the present one.
    async fn last(&self, tree: &dyn Tree, leading: &Leading) -> anyhow::Result<Timestamp> {
        let jobs = self.job.parent().expect("it is below the root");
        self.client.ensure(&jobs, &Acl::Open).await?;
        let (path, data) = (self.job.clone(), text(self.runtime.now()));
        let first = Op::Create { path, data, mode: CreateMode::Persistent, acl: Acl::Open };
        match tree.multi([leading.fence.clone(), vec![first]].concat()).await {
            Err(TreeError::Multi { source, .. }) if *source == TreeError::NodeExists => {}
            made => drop(made.context("cannot make the job's node")?),
        }
        let noted = tree.get(&self.job).await?.data;
        let millis = std::str::from_utf8(&noted).ok().and_then(|text| text.parse().ok());
        Ok(Timestamp::from_millis(millis.with_context(|| format!("{} holds no instant", self.job))?))
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
        let answered = self.runtime.timeout(Duration::from_secs(5), self.http.request(request)).await;
        let status = answered.context("no answer within 5 s")??.status();
        ensure!(status.is_success(), "{} answered {status}", self.arguments.call);
        Ok(())
    }
}

fn text(instant: Timestamp) -> Bytes {
    instant.as_millis().to_string().into()
}

/// Cancelled by Ctrl-C: then the leadership is given back, and the next in line has it at once.
fn stopped_by_the_terminal(runtime: &Runtime) -> CancellationToken {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    drop(runtime.spawn("Ctrl-C", async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stopped.cancel();
        }
    }));
    stop
}
