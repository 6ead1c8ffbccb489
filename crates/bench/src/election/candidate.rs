//! The child of `bench election` with our recipes: it obeys the same lines as the peer with Curator (`tools/mixed-java/README.md`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use cli_support::Url;
use cli_support::console;
use coordination::recipes::{Candidate, Client, LeaderSelector, Leading};
use coordination::tree::{Acl, NodePath, SessionOptions, Trees};
use runtime::{Monotonic, Runtime, TaskSet};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// As the peer has them.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const REST: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub struct CandidateArguments {
    #[arg(long, env = "REVEILLE_COORDINATION", hide_env_values = true)]
    coordination: Url,
    #[arg(long)]
    session_millis: u64,
}

/// Until its input ends.
///
/// # Errors
/// If the ensemble cannot be reached.
pub(crate) async fn obey(runtime: &Runtime, arguments: &CandidateArguments) -> anyhow::Result<()> {
    let trees = coordination_connect::trees(runtime, arguments.coordination.as_str(), None).await?;
    let options =
        SessionOptions { timeout: Duration::from_millis(arguments.session_millis), ..SessionOptions::default() };
    let client = Client::new(runtime, trees.clone(), options.clone());
    client.session().await?;
    let (runtime, candidates, pairs) = (runtime.clone(), BTreeMap::new(), BTreeMap::new());
    let mut here = Here { runtime, trees, options, client, candidates, pairs };
    console::line("event connected")?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words.as_slice() {
            [_, command @ ..] => here.serve(command).await,
            [] => continue,
        };
        match answer {
            Ok(values) => console::line(format!("{} ok {values}", words[0]).trim_end())?,
            Err(error) => console::line(&format!("{} error {error:#}", words[0]))?,
        }
    }
    here.close().await
}

struct Here {
    runtime: Runtime,
    trees: Arc<dyn Trees>,
    options: SessionOptions,
    client: Client,
    /// By path and id.
    candidates: BTreeMap<String, Standing>,
    /// By path.
    pairs: BTreeMap<String, Pair>,
}

/// One that leads, or waits for it, until it is told to stop.
struct Standing {
    stop: CancellationToken,
    /// When it stands no longer.
    resigned: oneshot::Receiver<()>,
    _tasks: TaskSet,
}

impl Here {
    async fn serve(&mut self, command: &[&str]) -> anyhow::Result<String> {
        match *command {
            ["lead", path, id, "selector"] => self.lead(path, id)?,
            ["resign", path, id] => {
                let standing = self.candidates.remove(&format!("{path} {id}")).context("it does not stand here")?;
                standing.stop.cancel();
                standing.resigned.await.context("it did not resign")?;
            }
            ["touch", path] => {
                self.client.session().await?.exists(&NodePath::new(path)?).await?;
            }
            ["bench-handover", path, rounds] => return self.hand_over(path, rounds.parse()?).await,
            _ => bail!("no such verb: {}", command.join(" ")),
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
                let _nobody = console::line(&leads);
                leading.over.cancelled().await;
            };
            match selector.run(&stopped, task).await {
                Ok(()) => drop(done.send(())),
                Err(error) => tracing::error!(%error, "cannot lead"),
            }
        });
        self.candidates.insert(format!("{path} {id}"), Standing { stop, resigned, _tasks: tasks });
        Ok(())
    }

    /// Microseconds from the end of one's leadership to the other's beginning, of each round.
    async fn hand_over(&mut self, path: &str, rounds: u32) -> anyhow::Result<String> {
        if !self.pairs.contains_key(path) {
            let mut leader = Player::start(self, path, "first").await?;
            leader.led.recv().await.context("it does not lead")?;
            let next = Player::start(self, path, "second").await?;
            self.pairs.insert(path.to_owned(), Pair { leader, next, selector: selector(&self.client, path, "")? });
        }
        let pair = self.pairs.get_mut(path).context("it was just made")?;
        let mut micros = Vec::new();
        for _ in 0..rounds {
            micros.push(pair.hand_over(&self.runtime).await?.as_micros().to_string());
        }
        Ok(micros.join(" "))
    }

    async fn close(self) -> anyhow::Result<()> {
        for pair in self.pairs.into_values() {
            for player in [pair.leader, pair.next] {
                drop(player._tasks);
                player.client.close().await?;
            }
        }
        drop(self.candidates);
        Ok(self.client.close().await?)
    }
}

fn selector(client: &Client, path: &str, id: &str) -> anyhow::Result<LeaderSelector> {
    let candidate = Candidate { acl: Acl::Open, ..Candidate::new(id) };
    Ok(LeaderSelector::new(client, NodePath::new(path)?, candidate))
}

/// Who leads, and who waits.
struct Pair {
    leader: Player,
    next: Player,
    selector: LeaderSelector,
}

impl Pair {
    async fn hand_over(&mut self, runtime: &Runtime) -> anyhow::Result<Duration> {
        while self.selector.participants().await?.len() < 2 {
            runtime.sleep(LOOK_EVERY).await;
        }
        // Its watch is set by then, too.
        runtime.sleep(REST).await;
        self.leader.resign.notify_one();
        let ended = self.leader.ended.recv().await.context("it leads on")?;
        let led = self.next.led.recv().await.context("it does not lead")?;
        std::mem::swap(&mut self.leader, &mut self.next);
        Ok(led.since(ended))
    }
}

/// A candidate with a session of its own. It leads again and again, each time until it is to resign.
struct Player {
    client: Client,
    resign: Arc<Notify>,
    led: mpsc::Receiver<Monotonic>,
    ended: mpsc::Receiver<Monotonic>,
    _tasks: TaskSet,
}

impl Player {
    async fn start(here: &Here, path: &str, id: &str) -> anyhow::Result<Self> {
        let client = Client::new(&here.runtime, here.trees.clone(), here.options.clone());
        let (selector, runtime) = (selector(&client, path, id)?, here.runtime.clone());
        let ((leads, led), (ends, ended)) = (mpsc::channel(1), mpsc::channel(1));
        let (resign, tasks) = (Arc::<Notify>::default(), TaskSet::new(&runtime));
        let told = resign.clone();
        tasks.spawn("player", async move {
            let never = CancellationToken::new();
            let task = async |_| {
                let _nobody = leads.send(runtime.monotonic()).await;
                told.notified().await;
                let _nobody = ends.send(runtime.monotonic()).await;
            };
            if let Err(error) = selector.run(&never, task).await {
                tracing::error!(%error, "cannot lead");
            }
        });
        Ok(Player { client, resign, led, ended, _tasks: tasks })
    }
}
