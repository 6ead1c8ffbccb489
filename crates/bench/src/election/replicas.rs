//! What replicas ask of the ensemble while they ask their electors who leads: at rest, and for a hand-over.
//!
//! Requests are counted where the recipes make them (`coordination::tree::Counted`); pings are not among them, as the engine makes those. All that the servers
//! received in the same time, pings included, is told by themselves (`srvr`).

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

/// What each replica asks for.
const LEASE: Duration = Duration::from_secs(5);
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Something that should come about.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Who watches has asked all that it asks for a hand-over when it asks nothing for as long.
const QUIET: Duration = Duration::from_millis(300);
/// Who resigns may look at its own place once more, or have given up watching it before.
const ONE_LOOK: f64 = 1.0;
/// Sessions that are closed at a time.
const CLOSING: usize = 64;

/// What replicas asked.
#[derive(Debug, Serialize)]
pub(super) struct Requests {
    replicas: u32,
    #[serde(serialize_with = "as_word")]
    form: Form,
    at_rest_per_minute: f64,
    per_hand_over: Vec<f64>,
    /// By the servers' own count, pings included; `None` where they do not tell.
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
/// If the replicas cannot stand, or none leads.
pub(super) async fn measure(trial: &Trial<'_>, replicas: u32, form: Form) -> anyhow::Result<Requests> {
    let (runtime, arguments) = (trial.runtime, trial.arguments);
    let url = arguments.coordination.as_str();
    let group = NodePath::new(&format!("{}-{}-{replicas}", trial.root, word(form)))?;
    let trees = coordination_connect::trees(runtime, url, None).await?;
    let looking = Client::new(runtime, trees.clone(), options());
    let (mut living, count) = Replicas::start(trial, trees, &group, replicas, form);
    living.all_stand(&looking, &group).await?;
    // So that the servers are asked by the replicas alone; a session that is not closed asks nothing either.
    drop(looking.close().await);

    let (asked, had_received, since) = (count.requests(), received(url).await?, runtime.monotonic());
    runtime.sleep(Duration::from_secs(arguments.rest)).await;
    let (asked, has_received) = (count.requests() - asked, received(url).await?);
    let minutes = runtime.monotonic().since(since).as_secs_f64() / 60.0;
    let received = had_received.zip(has_received).map(|(before, after)| after.saturating_sub(before));

    let mut per_hand_over = Vec::new();
    for _ in 0..arguments.counted {
        per_hand_over.push(as_f64(living.hand_over(&count).await?));
    }
    living.close().await;
    // Persistent, as Petting Zoo has it.
    let removing = async {
        while !matches!(remove(&looking, &group).await, Ok(()) | Err(TreeError::NoNode)) {
            runtime.sleep(LOOK_EVERY).await;
        }
    };
    runtime.timeout(PATIENCE, removing).await.context("cannot remove the group of the replicas")?;
    drop(looking);
    let at_rest_per_minute = as_f64(asked) / minutes;
    let received_per_minute = received.map(|received| as_f64(received) / minutes);
    Ok(Requests { replicas, form, at_rest_per_minute, per_hand_over, received_per_minute })
}

async fn stat(looking: &Client, group: &NodePath) -> Result<Option<Stat>, TreeError> {
    looking.session().await?.exists(group).await
}

async fn remove(looking: &Client, group: &NodePath) -> Result<(), TreeError> {
    looking.session().await?.delete(group, Expected::Any).await
}

fn options() -> SessionOptions {
    SessionOptions { timeout: SESSION_TIMEOUT, ..SessionOptions::default() }
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Of all servers of a ZooKeeper, since they began.
async fn received(url: &str) -> anyhow::Result<Option<u64>> {
    let Some(rest) = url.strip_prefix("zookeeper://") else { return Ok(None) };
    let mut sum = 0;
    for server in rest.split('/').next().unwrap_or_default().split(',') {
        let address = if server.contains(':') { server.to_owned() } else { format!("{server}:2181") };
        let mut stream = TcpStream::connect(&address).await.with_context(|| format!("cannot reach {address}"))?;
        stream.write_all(b"srvr").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let Some(count) = text.lines().find_map(|line| line.strip_prefix("Received: ")) else { return Ok(None) };
        sum += count.trim().parse::<u64>().context("a server tells no count")?;
    }
    Ok(Some(sum))
}

/// Each with a session of its own, as if in a process of its own.
struct Replicas {
    runtime: Runtime,
    form: Form,
    /// Between two calls of each.
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
        let (told, leading) = watch::channel(None);
        let (tasks, mut all) = (TaskSet::new(runtime), Vec::new());
        for at in 0..replicas as usize {
            let client = Client::new(runtime, trees.clone(), options());
            let (resign, resigning) = mpsc::channel(1);
            let elector = TreeElector::new(&client, group.clone(), form, Acl::Open);
            tasks.spawn("replica", live(runtime.clone(), elector, at, period, told.clone(), resigning));
            all.push(Replica { client, resign });
        }
        (Replicas { runtime: runtime.clone(), form, period, replicas: all, leading, tasks }, count)
    }

    /// And each has looked at the one before it.
    async fn all_stand(&mut self, looking: &Client, group: &NodePath) -> anyhow::Result<()> {
        let (runtime, count) = (self.runtime.clone(), self.replicas.len());
        let standing = async {
            // What is not answered on a machine with much to do, is asked again.
            while !matches!(stat(looking, group).await, Ok(Some(stat)) if stat.children == count) {
                runtime.sleep(LOOK_EVERY).await;
            }
        };
        runtime.timeout(PATIENCE, standing).await.context("not all replicas stand")?;
        self.leader(None).await?;
        runtime.sleep(self.period).await;
        Ok(())
    }

    /// Another one than that.
    async fn leader(&mut self, last: Option<usize>) -> anyhow::Result<usize> {
        let is_new = |now: &Option<usize>| now.is_some() && *now != last;
        let leading = self.runtime.timeout(PATIENCE, self.leading.wait_for(is_new)).await;
        let leading = *leading.context("no replica leads")??;
        leading.context("one leads")
    }

    /// How many requests are made from when the leader resigns, until another knows that it leads and the first stands again, at the end.
    async fn hand_over(&mut self, count: &Counted) -> anyhow::Result<u64> {
        let leader = self.leader(None).await?;
        // At any moment of a replica's period.
        self.runtime.sleep(part_of(self.period, &self.runtime)).await;
        let before = count.requests();
        let (resigned, has_resigned) = oneshot::channel();
        self.replicas[leader].resign.send(resigned).await.context("a replica has ended")?;
        has_resigned.await.context("a replica does not resign")?;
        self.leader(Some(leader)).await?;
        if self.form == Form::Watching {
            self.be_quiet(count).await;
        }
        Ok(count.requests() - before)
    }

    async fn be_quiet(&self, count: &Counted) {
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
        // A session that is not closed ends by itself.
        stream::iter(closing).buffer_unordered(CLOSING).map(drop).collect::<()>().await;
    }
}

/// By chance.
fn part_of(period: Duration, runtime: &Runtime) -> Duration {
    period.mul_f64(as_f64(runtime.random() % 1_000) / 1_000.0)
}

/// Asks again and again, as a service does whose work is the leader's.
async fn live(
    runtime: Runtime,
    elector: TreeElector,
    at: usize,
    period: Duration,
    leading: watch::Sender<Option<usize>>,
    mut resigning: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let name = format!("replica-{at}-");
    let mut next = runtime.monotonic() + part_of(period, &runtime);
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
            // It stands again at once, at the end.
            if elector.resign(&name).await.is_ok() && elector.is_leader(&name, LEASE).await.is_ok() {
                let _nobody = resigned.send(());
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
        "a minute: at rest; each replica has a session of {SESSION_TIMEOUT:?} and asks for a lease of {LEASE:?} every {period:?}; received: by \
         the servers' own count, pings included\n"
    )
}

/// # Errors
/// If those who watch ask more for a hand-over when they are more.
pub(super) fn judge(all: &[Requests]) -> anyhow::Result<()> {
    let watching = all.iter().filter(|requests| requests.form == Form::Watching);
    let medians: Vec<(u32, f64)> =
        watching.map(|requests| (requests.replicas, Spread::of(&requests.per_hand_over).median)).collect();
    let Some((fewest, least)) = medians.iter().copied().min_by_key(|(replicas, _)| *replicas) else { return Ok(()) };
    for (replicas, median) in medians {
        ensure!(
            median <= least + ONE_LOOK,
            "a hand-over among {replicas} who watch costs {median} requests, and among {fewest} {least}"
        );
    }
    Ok(())
}

#[cfg(test)]
impl Requests {
    pub(super) fn found(replicas: u32, form: Form, per_hand_over: f64) -> Self {
        let per_hand_over = vec![per_hand_over];
        Requests { replicas, form, at_rest_per_minute: 0.0, per_hand_over, received_per_minute: Some(48.0) }
    }
}
