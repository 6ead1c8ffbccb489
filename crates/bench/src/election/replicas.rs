//! Counts the requests that replicas send to the ensemble while they ask their electors for the leader. The bench
//! counts them in a period without a hand-over, and during each hand-over.
//!
//! The bench counts the requests that the recipes send (`coordination::tree::Counted`). This count excludes pings,
//! because the engine sends them. The servers report the number of all requests that they received in the same time,
//! including pings (command `srvr`).

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use coordination::Elector as _;
use coordination::recipes::{Client, Form, TreeElector};
use coordination::tree::{Acl, Counted, Expected, NodePath, SessionOptions, Stat, TreeError, Trees};
use futures_util::stream::{self, StreamExt as _};
use runtime::{Runtime, TaskSet};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Spread, Trial};

/// Lease that each replica requests.
const LEASE: Duration = Duration::from_secs(5);
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that the bench waits for all candidates, for a leader or for the removal of a node.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time without requests after which the bench considers a hand-over among watching replicas complete.
const QUIET: Duration = Duration::from_millis(300);
/// Allowed difference between the numbers of requests of two hand-overs. The watch of a resigning replica's own node
/// may cause one more read, unless the replica stops watching the node first.
const ONE_READ: f64 = 1.0;
/// Number of sessions that the bench closes concurrently.
const CLOSING: usize = 64;

/// Counts of the requests that replicas sent.
#[derive(Debug, Serialize)]
pub(super) struct Requests {
    replicas: u32,
    #[serde(serialize_with = "as_word")]
    form: Form,
    at_rest_per_minute: f64,
    per_hand_over: Vec<f64>,
    /// Requests per minute that the servers report, including pings; `None` if the servers report no count.
    received_per_minute: Option<f64>,
}

fn as_word<S: serde::Serializer>(form: &Form, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(word(*form))
}

fn word(form: Form) -> &'static str {
    match form {
        Form::Polling => "polling",
        Form::Watching => "watching",
    }
}

/// # Errors
/// Returns an error if the replicas cannot become candidates, or if no replica becomes leader.
pub(super) async fn measure(trial: &Trial<'_>, replicas: u32, form: Form) -> anyhow::Result<Requests> {
    let (runtime, arguments) = (trial.runtime, trial.arguments);
    let url = arguments.coordination.as_str();
    let group = NodePath::new(&format!("{}-{}-{replicas}", trial.root, word(form)))?;
    let trees = coordination_connect::trees(runtime, url, None).await?;
    let observer = Client::new(runtime, trees.clone(), options());
    let (mut replicas_running, count) = Replicas::start(trial, trees, &group, replicas, form);
    replicas_running.wait_for_all(&observer, &group).await?;
    // The bench closes its own session, so that only the replicas send requests to the servers. Even if closing fails,
    // the session sends no more requests.
    drop(observer.close().await);

    let (sent, received_before, since) = (count.requests(), requests_received(url).await?, runtime.monotonic());
    runtime.sleep(Duration::from_secs(arguments.rest)).await;
    let (sent, received_after) = (count.requests() - sent, requests_received(url).await?);
    let minutes = runtime.monotonic().since(since).as_secs_f64() / 60.0;
    let received = received_before.zip(received_after).map(|(before, after)| after.saturating_sub(before));

    let mut per_hand_over = Vec::new();
    for _ in 0..arguments.counted {
        per_hand_over.push(as_f64(replicas_running.hand_over(&count).await?));
    }
    replicas_running.close().await;
    // The bench removes the group's node, because the recipe creates a persistent node, as does the library Petting
    // Zoo.
    let removing = async {
        while !matches!(remove(&observer, &group).await, Ok(()) | Err(TreeError::NoNode)) {
            runtime.sleep(POLL_INTERVAL).await;
        }
    };
    let removed = runtime.timeout(TIMEOUT, removing).await;
    removed.with_context(|| format!("cannot remove the node {group} within {TIMEOUT:?}"))?;
    drop(observer);
    let at_rest_per_minute = as_f64(sent) / minutes;
    let received_per_minute = received.map(|received| as_f64(received) / minutes);
    Ok(Requests { replicas, form, at_rest_per_minute, per_hand_over, received_per_minute })
}

async fn stat(observer: &Client, group: &NodePath) -> Result<Option<Stat>, TreeError> {
    observer.session().await?.exists(group).await
}

async fn remove(observer: &Client, group: &NodePath) -> Result<(), TreeError> {
    observer.session().await?.delete(group, Expected::Any).await
}

fn options() -> SessionOptions {
    SessionOptions { timeout: SESSION_TIMEOUT, ..SessionOptions::default() }
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests stay far below 2^52")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Returns the number of requests that all ZooKeeper servers have received since they started.
async fn requests_received(url: &str) -> anyhow::Result<Option<u64>> {
    let Some(rest) = url.strip_prefix("zookeeper://") else { return Ok(None) };
    let mut sum = 0;
    for server in rest.split('/').next().unwrap_or_default().split(',') {
        let address = if server.contains(':') { server.to_owned() } else { format!("{server}:2181") };
        let mut stream = TcpStream::connect(&address).await.with_context(|| format!("cannot reach {address}"))?;
        stream.write_all(b"srvr").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let Some(count) = text.lines().find_map(|line| line.strip_prefix("Received: ")) else { return Ok(None) };
        let count = count.trim().parse::<u64>();
        sum += count.with_context(|| format!("{address} reports an invalid number of received requests"))?;
    }
    Ok(Some(sum))
}

/// Replicas of a service. Each replica has its own session, as if it ran in its own process.
struct Replicas {
    runtime: Runtime,
    form: Form,
    /// Time between two calls of the elector by the same replica.
    period: Duration,
    replicas: Vec<Replica>,
    leading: watch::Receiver<Option<usize>>,
    tasks: TaskSet,
}

struct Replica {
    client: Client,
    resign: mpsc::Sender<oneshot::Sender<()>>,
}

impl Replicas {
    fn start(
        trial: &Trial<'_>,
        trees: Arc<dyn Trees>,
        group: &NodePath,
        replicas: u32,
        form: Form,
    ) -> (Self, Arc<Counted>) {
        let (runtime, period) = (trial.runtime, trial.period());
        let count = Arc::new(Counted::new(trees));
        let trees: Arc<dyn Trees> = count.clone();
        let (leading_sender, leading) = watch::channel(None);
        let (tasks, mut all) = (TaskSet::new(runtime), Vec::new());
        for at in 0..replicas as usize {
            let client = Client::new(runtime, trees.clone(), options());
            let (resign, resigning) = mpsc::channel(1);
            let elector = TreeElector::new(&client, group.clone(), form, Acl::Open);
            tasks
                .spawn("replica", run_replica(runtime.clone(), elector, at, period, leading_sender.clone(), resigning));
            all.push(Replica { client, resign });
        }
        (Replicas { runtime: runtime.clone(), form, period, replicas: all, leading, tasks }, count)
    }

    /// Waits until all replicas are candidates and each replica has read the node of its predecessor.
    async fn wait_for_all(&mut self, observer: &Client, group: &NodePath) -> anyhow::Result<()> {
        let (runtime, count) = (self.runtime.clone(), self.replicas.len());
        let standing = async {
            // A request can fail on a busy machine, so this loop repeats it.
            while !matches!(stat(observer, group).await, Ok(Some(stat)) if stat.children == count) {
                runtime.sleep(POLL_INTERVAL).await;
            }
        };
        let all = runtime.timeout(TIMEOUT, standing).await;
        all.with_context(|| format!("not all {count} replicas became candidates within {TIMEOUT:?}"))?;
        self.leader(None).await?;
        runtime.sleep(self.period).await;
        Ok(())
    }

    /// Waits until a replica other than `last` is the leader.
    async fn leader(&mut self, last: Option<usize>) -> anyhow::Result<usize> {
        let is_new = |now: &Option<usize>| now.is_some() && *now != last;
        let leading = self.runtime.timeout(TIMEOUT, self.leading.wait_for(is_new)).await;
        let leading = *leading.with_context(|| format!("no replica became leader within {TIMEOUT:?}"))??;
        leading.context("no replica leads")
    }

    /// Returns the number of requests of one hand-over. The hand-over starts when the leader resigns. The hand-over
    /// ends when another replica knows that it leads, and the old leader is again a candidate at the end of the queue.
    async fn hand_over(&mut self, count: &Counted) -> anyhow::Result<u64> {
        let leader = self.leader(None).await?;
        // The leader resigns at a random moment between two of its calls of the elector.
        self.runtime.sleep(random_part(self.period, &self.runtime)).await;
        let before = count.requests();
        let (resigned, has_resigned) = oneshot::channel();
        self.replicas[leader].resign.send(resigned).await.context("the task of the leading replica has ended")?;
        has_resigned.await.context("the leading replica failed to resign")?;
        self.leader(Some(leader)).await?;
        if self.form == Form::Watching {
            self.wait_until_quiet(count).await;
        }
        Ok(count.requests() - before)
    }

    async fn wait_until_quiet(&self, count: &Counted) {
        let mut last = count.requests();
        loop {
            self.runtime.sleep(QUIET).await;
            let now = count.requests();
            if now == last {
                return;
            }
            last = now;
        }
    }

    async fn close(self) {
        drop(self.tasks);
        let closing = self.replicas.iter().map(|replica| replica.client.close());
        // The bench ignores failures to close a session, because the ensemble expires an unclosed session.
        stream::iter(closing).buffer_unordered(CLOSING).map(drop).collect::<()>().await;
    }
}

/// Returns a random part of `period`.
fn random_part(period: Duration, runtime: &Runtime) -> Duration {
    period.mul_f64(as_f64(runtime.random() % 1_000) / 1_000.0)
}

/// Calls the elector periodically, like a service in which only the leader works.
async fn run_replica(
    runtime: Runtime,
    elector: TreeElector,
    at: usize,
    period: Duration,
    leading: watch::Sender<Option<usize>>,
    mut resigning: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let name = format!("replica-{at}-");
    let mut next = runtime.monotonic() + random_part(period, &runtime);
    loop {
        let resigned = tokio::select! {
            biased;
            resigned = resigning.recv() => match resigned {
                Some(resigned) => Some(resigned),
                None => return,
            },
            () = runtime.sleep_until(next) => None,
        };
        if let Some(resigned) = resigned {
            // The replica becomes a candidate again at once, at the end of the queue.
            if elector.resign(&name).await.is_ok() && elector.is_leader(&name, LEASE).await.is_ok() {
                let _closed = resigned.send(());
            }
            continue;
        }
        next = next + period;
        if elector.is_leader(&name, LEASE).await.is_ok_and(|leadership| leadership.leads) {
            leading.send_if_modified(|now| now.replace(at) != Some(at));
        }
    }
}

impl Requests {
    pub(super) fn cells(&self) -> [String; 7] {
        let whole = |figure: f64| format!("{figure:.0}");
        let Spread { min, median, max, .. } = Spread::of(&self.per_hand_over);
        [
            self.replicas.to_string(),
            word(self.form).to_owned(),
            whole(self.at_rest_per_minute),
            whole(median),
            whole(min),
            whole(max),
            self.received_per_minute.map_or("-".to_owned(), whole),
        ]
    }
}

pub(super) fn note(period: Duration) -> String {
    format!(
        "requests/min: requests of the replicas while no hand-over happens; each replica has a session timeout of \
         {SESSION_TIMEOUT:?} and requests a lease of {LEASE:?} every {period:?}; received/min: requests that the \
         servers received, including pings\n"
    )
}

/// # Errors
/// Returns an error if the number of requests per hand-over grows with the number of watching replicas.
pub(super) fn judge(all: &[Requests]) -> anyhow::Result<()> {
    let watching = all.iter().filter(|requests| requests.form == Form::Watching);
    let medians: Vec<(u32, f64)> =
        watching.map(|requests| (requests.replicas, Spread::of(&requests.per_hand_over).median)).collect();
    let Some((fewest, least)) = medians.iter().copied().min_by_key(|(replicas, _)| *replicas) else { return Ok(()) };
    for (replicas, median) in medians {
        ensure!(
            median <= least + ONE_READ,
            "a hand-over among {replicas} watching replicas requires {median} requests, but a hand-over among {fewest} \
             watching replicas requires only {least}"
        );
    }
    Ok(())
}

#[cfg(test)]
impl Requests {
    pub(super) fn with_values(replicas: u32, form: Form, per_hand_over: f64) -> Self {
        let per_hand_over = vec![per_hand_over];
        Requests { replicas, form, at_rest_per_minute: 0.0, per_hand_over, received_per_minute: Some(48.0) }
    }
}
