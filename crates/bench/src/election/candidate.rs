//! Child process of `bench election` that uses Reveille's recipes. It accepts the same commands as the peer that uses
//! Curator (`tools/mixed-java/README.md`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use cli_support::Url;
use cli_support::console;
use coordination::recipes::{Candidate, Client, LeaderSelector, Leading};
use coordination::tree::{NodePath, SessionOptions, Trees};
use runtime::{Monotonic, Runtime, TaskSet};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Interval at which the program checks whether both candidates exist. The peer uses the same interval.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const WATCH_DELAY: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub struct CandidateArguments {
    #[arg(long, env = "REVEILLE_COORDINATION", hide_env_values = true)]
    coordination: Url,
    #[arg(long)]
    session_millis: u64,
}

/// Runs the commands from standard input until the input ends.
///
/// # Errors
/// Returns an error if the ensemble is unreachable.
pub(crate) async fn run(runtime: &Runtime, arguments: &CandidateArguments) -> anyhow::Result<()> {
    let trees = coordination_connect::trees(runtime, arguments.coordination.as_str(), None).await?;
    let options =
        SessionOptions { timeout: Duration::from_millis(arguments.session_millis), ..SessionOptions::default() };
    let client = Client::new(runtime, trees.clone(), options.clone());
    client.session().await?;
    let (runtime, candidates, pairs) = (runtime.clone(), BTreeMap::new(), BTreeMap::new());
    let mut process = CandidateProcess { runtime, trees, options, client, candidates, pairs };
    console::line("event connected")?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let words: Vec<&str> = line.split(' ').collect();
        let response = match words.as_slice() {
            [_, command @ ..] => process.serve(command).await,
            [] => continue,
        };
        match response {
            Ok(values) => console::line(format!("{} ok {values}", words[0]).trim_end())?,
            Err(error) => console::line(&format!("{} error {error:#}", words[0]))?,
        }
    }
    process.close().await
}

struct CandidateProcess {
    runtime: Runtime,
    trees: Arc<dyn Trees>,
    options: SessionOptions,
    client: Client,
    /// Running candidates, each under its path and id.
    candidates: BTreeMap<String, ActiveCandidate>,
    /// Pairs of candidates, each under its path.
    pairs: BTreeMap<String, Pair>,
}

/// Candidate that leads or waits until a command stops it.
struct ActiveCandidate {
    stop: CancellationToken,
    /// Receiver of the notification that the candidate has resigned.
    resigned: oneshot::Receiver<()>,
    _tasks: TaskSet,
}

impl CandidateProcess {
    async fn serve(&mut self, command: &[&str]) -> anyhow::Result<String> {
        match *command {
            ["lead", path, id, "selector"] => self.lead(path, id)?,
            ["resign", path, id] => {
                let candidate = self.candidates.remove(&format!("{path} {id}"));
                let candidate =
                    candidate.with_context(|| format!("no candidate has the path {path} and the id {id}"))?;
                candidate.stop.cancel();
                candidate.resigned.await.context("the candidate failed before it resigned")?;
            }
            ["touch", path] => {
                self.client.session().await?.exists(&NodePath::new(path)?).await?;
            }
            ["bench-handover", path, rounds] => return self.hand_over(path, rounds.parse()?).await,
            _ => bail!("unknown command: {}", command.join(" ")),
        }
        Ok(String::new())
    }

    fn lead(&mut self, path: &str, id: &str) -> anyhow::Result<()> {
        let (stop, tasks, (done, resigned)) =
            (CancellationToken::new(), TaskSet::new(&self.runtime), oneshot::channel());
        let (selector, stopped, leads) =
            (selector(&self.client, path, id)?, stop.clone(), format!("event leads {path} {id}"));
        tasks.spawn("candidate", async move {
            let task = async |leading: Leading| {
                let _closed = console::line(&leads);
                leading.over.cancelled().await;
            };
            match selector.run(&stopped, task).await {
                Ok(()) => drop(done.send(())),
                Err(error) => tracing::error!(%error, "cannot lead"),
            }
        });
        self.candidates.insert(format!("{path} {id}"), ActiveCandidate { stop, resigned, _tasks: tasks });
        Ok(())
    }

    /// Returns, for each round, the microseconds from the end of one leadership to the start of the next.
    async fn hand_over(&mut self, path: &str, rounds: u32) -> anyhow::Result<String> {
        if !self.pairs.contains_key(path) {
            let mut leader = PairCandidate::start(self, path, "first").await?;
            leader.led.recv().await.context("the first candidate ended before it became leader")?;
            let next = PairCandidate::start(self, path, "second").await?;
            self.pairs.insert(path.to_owned(), Pair { leader, next, selector: selector(&self.client, path, "")? });
        }
        let pair = self.pairs.get_mut(path).with_context(|| format!("no pair of candidates has the path {path}"))?;
        let mut micros = Vec::new();
        for _ in 0..rounds {
            micros.push(pair.hand_over(&self.runtime).await?.as_micros().to_string());
        }
        Ok(micros.join(" "))
    }

    async fn close(self) -> anyhow::Result<()> {
        for pair in self.pairs.into_values() {
            for candidate in [pair.leader, pair.next] {
                drop(candidate._tasks);
                candidate.client.close().await?;
            }
        }
        drop(self.candidates);
        Ok(self.client.close().await?)
    }
}

fn selector(client: &Client, path: &str, id: &str) -> anyhow::Result<LeaderSelector> {
    let candidate = Candidate::new(id);
    Ok(LeaderSelector::new(client, NodePath::new(path)?, candidate))
}

/// Two candidates. One candidate leads while the other candidate waits.
struct Pair {
    leader: PairCandidate,
    next: PairCandidate,
    selector: LeaderSelector,
}

impl Pair {
    async fn hand_over(&mut self, runtime: &Runtime) -> anyhow::Result<Duration> {
        while self.selector.participants().await?.len() < 2 {
            runtime.sleep(POLL_INTERVAL).await;
        }
        // The waiting candidate is a participant, but it may not have set its watch yet.
        runtime.sleep(WATCH_DELAY).await;
        self.leader.resign.notify_one();
        let ended = self.leader.ended.recv().await.context("the leader ended before it resigned")?;
        let led = self.next.led.recv().await.context("the waiting candidate ended before it became leader")?;
        std::mem::swap(&mut self.leader, &mut self.next);
        Ok(led.since(ended))
    }
}

/// Candidate with its own session. It leads repeatedly, each time until it receives a request to resign.
struct PairCandidate {
    client: Client,
    resign: Arc<Notify>,
    led: mpsc::Receiver<Monotonic>,
    ended: mpsc::Receiver<Monotonic>,
    _tasks: TaskSet,
}

impl PairCandidate {
    async fn start(process: &CandidateProcess, path: &str, id: &str) -> anyhow::Result<Self> {
        let client = Client::new(&process.runtime, process.trees.clone(), process.options.clone());
        let (selector, runtime) = (selector(&client, path, id)?, process.runtime.clone());
        let ((leads, led), (ends, ended)) = (mpsc::channel(1), mpsc::channel(1));
        let (resign, tasks) = (Arc::<Notify>::default(), TaskSet::new(&runtime));
        let resign_requested = resign.clone();
        tasks.spawn("candidate", async move {
            let never = CancellationToken::new();
            let task = async |_| {
                let _closed = leads.send(runtime.monotonic()).await;
                resign_requested.notified().await;
                let _closed = ends.send(runtime.monotonic()).await;
            };
            if let Err(error) = selector.run(&never, task).await {
                tracing::error!(%error, "cannot lead");
            }
        });
        Ok(PairCandidate { client, resign, led, ended, _tasks: tasks })
    }
}
