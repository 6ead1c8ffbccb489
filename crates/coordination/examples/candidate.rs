//! A candidate for leader that does what a leader does, and tells of it: what the tests of faults run, kill, stop and cut off.
//!
//! `candidate URL GROUP ID SESSION_MILLIS SINK` stands for leader of GROUP. While it leads, it writes its term again and again: to the node
//! `/work`, with the fence of its hold, and to SINK, a socket of a service that refuses terms below the highest it has heard of. Once its
//! leadership is over it tries both once more, as somebody does who did not look. Then it stands again.
//!
//! It says on its standard output, in nanoseconds of `CLOCK_BOOTTIME`, which all processes of a machine share:
//!
//! ```text
//! start TERM NANOS     it leads
//! live TERM NANOS      at this instant, or a little later, its hold could be relied on
//! wrote TERM ZXID      the tree took a write
//! refused TERM TO WHY  the tree or the sink did not, while it leads
//! stop TERM NANOS      it has seen that it does not lead any more
//! late TERM TO taken   what it wrote after that, through its old session, through a new one, and to the sink
//! late TERM TO refused
//! ```

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use coordination::recipes::{Candidate, Client, Held, LeaderSelector, Trust};
use coordination::tree::{Acl, CreateMode, Done, Expected, NodePath, Op, SessionOptions, Tree, TreeError};
use runtime::Runtime;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

/// Between two looks, and two writes.
const PERIOD: Duration = Duration::from_millis(5);

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, group, id, millis, sink] = &arguments[..] else {
        anyhow::bail!("candidate URL GROUP ID SESSION_MILLIS SINK");
    };
    let runtime = Runtime::real();
    let trees = coordination_connect::trees(&runtime, url, None).await?;
    let timeout = Duration::from_millis(millis.parse().context("SESSION_MILLIS is a number")?);
    let client = Client::new(&runtime, trees, SessionOptions { timeout, credentials: Vec::new() });
    // For as long as can be: it is to be shown that this is not too long.
    let candidate = Candidate { acl: Acl::Open, trust: Trust::UntilLost, ..Candidate::new(id) };
    let selector = LeaderSelector::new(&client, NodePath::new(group)?, candidate);
    let mut sink = Sink(BufReader::new(UnixStream::connect(sink).await.context("no service at SINK")?));
    loop {
        let held = selector.lead().await?;
        lead(&runtime, &client, &held, &mut sink).await?;
        held.release().await;
    }
}

async fn lead(runtime: &Runtime, client: &Client, held: &Held, sink: &mut Sink) -> anyhow::Result<()> {
    let term = held.term().0;
    say(format_args!("start {term} {}", nanos(runtime)));
    let tree = client.session().await?;
    tokio::try_join!(look(runtime, held, sink), work(runtime, &tree, held))?;
    say(format_args!("stop {term} {}", nanos(runtime)));

    let taken = |is_taken: bool| if is_taken { "taken" } else { "refused" };
    let by_old = matches!(write(&tree, held).await, Ok(Some(_)));
    say(format_args!("late {term} session {}", taken(by_old)));
    let by_new = loop {
        match another_try(client, held).await {
            Err(error) if error.is_retryable() || error == TreeError::SessionLost => runtime.sleep(PERIOD).await,
            outcome => break outcome?.is_some(),
        }
    };
    say(format_args!("late {term} tree {}", taken(by_new)));
    say(format_args!("late {term} sink {}", taken(sink.write(term).await?)));
    Ok(())
}

async fn another_try(client: &Client, held: &Held) -> Result<Option<i64>, TreeError> {
    write(&client.session().await?, held).await
}

/// Whether it still leads, and what goes with that.
async fn look(runtime: &Runtime, held: &Held, sink: &mut Sink) -> anyhow::Result<()> {
    let term = held.term().0;
    loop {
        // The instant first: it was held then, if it is held after that.
        let at = nanos(runtime);
        if !held.is_valid() {
            return Ok(());
        }
        say(format_args!("live {term} {at}"));
        if !sink.write(term).await? {
            say(format_args!("refused {term} sink a later term was there"));
        }
        runtime.sleep(PERIOD).await;
    }
}

async fn work(runtime: &Runtime, tree: &Arc<dyn Tree>, held: &Held) -> anyhow::Result<()> {
    let term = held.term().0;
    while held.is_valid() {
        match write(tree, held).await {
            Ok(Some(zxid)) => say(format_args!("wrote {term} {zxid}")),
            Ok(None) => say(format_args!("refused {term} tree its fence is broken")),
            // Whether it was done is not known.
            Err(error) => say(format_args!("refused {term} tree {error}")),
        }
        runtime.sleep(PERIOD).await;
    }
    Ok(())
}

/// The change that it was, or `None` if the fence stopped it.
async fn write(tree: &Arc<dyn Tree>, held: &Held) -> Result<Option<i64>, TreeError> {
    let path = NodePath::new("/work").expect("it is a path");
    let data = Bytes::from(held.term().0.to_string());
    let set = Op::Set { path: path.clone(), data: data.clone(), expected: Expected::Any };
    let fence = held.fence();
    match tree.multi(fence.iter().cloned().chain([set]).collect()).await {
        Ok(done) => match done.last() {
            Some(Done::Set(stat)) => Ok(Some(stat.modified.0)),
            _ => Err(TreeError::Invalid("it was another change".to_owned())),
        },
        Err(TreeError::Multi { at, .. }) if at < fence.len() => Ok(None),
        Err(TreeError::Multi { source, .. }) if *source == TreeError::NoNode => {
            match tree.create(&path, Bytes::new(), CreateMode::Persistent, Acl::Open).await {
                Ok(_) | Err(TreeError::NodeExists) => Box::pin(write(tree, held)).await,
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// A service that knows nothing of the tree.
struct Sink(BufReader<UnixStream>);

impl Sink {
    /// Whether it took it.
    async fn write(&mut self, term: u64) -> anyhow::Result<bool> {
        self.0.write_all(format!("{term}\n").as_bytes()).await?;
        let mut answer = String::new();
        self.0.read_line(&mut answer).await?;
        ensure!(!answer.is_empty(), "the sink has ended");
        Ok(answer == "taken\n")
    }
}

fn nanos(runtime: &Runtime) -> u128 {
    runtime.monotonic().since_start().as_nanos()
}

#[expect(clippy::print_stdout, reason = "it is read by who has started it")]
fn say(line: std::fmt::Arguments<'_>) {
    println!("{line}");
}
