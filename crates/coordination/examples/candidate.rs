//! Candidate for the leadership of a replica group. It writes its term while it leads, and it reports each step. The
//! fault tests start, kill and pause this program, and cut its connection to the engine.
//!
//! `candidate URL GROUP ID SESSION_MILLIS SINK --credentials FILE` stands for election in GROUP. While it leads, it
//! writes its term repeatedly to two targets. The first target is the node `/work`, and each write to it contains the
//! fence of the guard. The second target is SINK, the socket of a service that rejects terms below the greatest term
//! that it has received. After its leadership it tries both writes once more, like a program that does not check its
//! leadership. Then it stands for election again.
//!
//! The program writes events to its standard output. Times are nanoseconds of `CLOCK_BOOTTIME`, which all processes of
//! a machine share:
//!
//! ```text
//! start TERM NANOS     the candidate leads
//! live TERM NANOS      the guard of the candidate was valid at this instant
//! wrote TERM ZXID      the tree accepted a write
//! refused TERM TO WHY  the tree or the sink rejected a write during the leadership
//! stop TERM NANOS      the candidate has noticed the end of its leadership
//! late TERM TO taken   the old session, a new session or the sink accepted a write after the end of the leadership
//! late TERM TO refused the tree or the sink rejected a write after the end of the leadership
//! ```

#[path = "access/options.rs"]
mod access;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Parser;
use coordination_connect::{ConnectOptions, connect_with};
use reveille_coordination::recipes::{Candidate, Client, Held, LeaderSelector, Trust};
use reveille_coordination::tree::{CreateMode, Done, Expected, NodePath, Op, Tree, TreeError};
use runtime::Runtime;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

/// Time between two checks of the guard, and between two writes to the tree.
const PERIOD: Duration = Duration::from_millis(5);

#[derive(Parser)]
struct Arguments {
    /// Coordination engine
    url: String,
    group: String,
    id: String,
    session_millis: u64,
    /// Unix socket of the service
    sink: PathBuf,
    #[command(flatten)]
    access: access::Access,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let Arguments { url, group, id, session_millis, sink, access } = Arguments::parse();
    let runtime = Runtime::real();
    let session_timeout = Duration::from_millis(session_millis);
    let options = ConnectOptions { session_timeout, limit: Duration::from_secs(60), ..ConnectOptions::default() };
    let client = connect_with(&url, access.choice()?, options).await?;
    // With `Trust::UntilLost`, a guard remains valid for the longest time. The tests show that even such a guard ends
    // before the next leader leads.
    let candidate = Candidate { trust: Trust::UntilLost, ..Candidate::new(&id) };
    let selector = LeaderSelector::new(&client, NodePath::new(&group)?, candidate);
    let stream = UnixStream::connect(&sink).await;
    let stream = stream.with_context(|| format!("cannot connect to the Unix socket {}", sink.display()))?;
    let mut sink = Sink(BufReader::new(stream));
    loop {
        let held = selector.lead().await?;
        lead(&runtime, &client, &held, &mut sink).await?;
        held.release().await;
    }
}

async fn lead(runtime: &Runtime, client: &Client, held: &Held, sink: &mut Sink) -> anyhow::Result<()> {
    let term = held.term().0;
    report(format_args!("start {term} {}", nanos(runtime)));
    let tree = client.session().await?;
    tokio::try_join!(check(runtime, held, sink), work(client, &tree, held))?;
    report(format_args!("stop {term} {}", nanos(runtime)));

    let taken = |is_taken: bool| if is_taken { "taken" } else { "refused" };
    let is_taken_by_old_session = matches!(write(client, &tree, held).await, Ok(Some(_)));
    report(format_args!("late {term} session {}", taken(is_taken_by_old_session)));
    let is_taken_by_new_session = loop {
        match write_in_new_session(client, held).await {
            Err(error) if error.is_retryable() || error == TreeError::SessionLost => runtime.sleep(PERIOD).await,
            outcome => break outcome?.is_some(),
        }
    };
    report(format_args!("late {term} tree {}", taken(is_taken_by_new_session)));
    report(format_args!("late {term} sink {}", taken(sink.write(term).await?)));
    Ok(())
}

async fn write_in_new_session(client: &Client, held: &Held) -> Result<Option<i64>, TreeError> {
    write(client, &client.session().await?, held).await
}

/// Checks repeatedly whether the process still leads. While the process leads, the function reports the leadership and
/// writes the term to the sink.
async fn check(runtime: &Runtime, held: &Held, sink: &mut Sink) -> anyhow::Result<()> {
    let term = held.term().0;
    loop {
        // The function reads the clock before it checks the guard. If the guard is valid, it was also valid at the time
        // `at`.
        let at = nanos(runtime);
        if !held.is_valid() {
            return Ok(());
        }
        report(format_args!("live {term} {at}"));
        if !sink.write(term).await? {
            report(format_args!("refused {term} sink (reason: the sink has already seen a later term)"));
        }
        runtime.sleep(PERIOD).await;
    }
}

async fn work(client: &Client, tree: &Arc<dyn Tree>, held: &Held) -> anyhow::Result<()> {
    let term = held.term().0;
    while held.is_valid() {
        match write(client, tree, held).await {
            Ok(Some(zxid)) => report(format_args!("wrote {term} {zxid}")),
            Ok(None) => report(format_args!("refused {term} tree (reason: the fence rejected the write)")),
            // The tree may or may not have executed the write.
            Err(error) => report(format_args!("refused {term} tree (reason: {error})")),
        }
        client.runtime().sleep(PERIOD).await;
    }
    Ok(())
}

/// Writes the term to `/work`, in one change with the fence of the guard. Returns the zxid of the write, or `None` if
/// the fence rejected the write.
async fn write(client: &Client, tree: &Arc<dyn Tree>, held: &Held) -> Result<Option<i64>, TreeError> {
    let path = NodePath::new("/work").expect("`/work` is a valid path");
    let data = Bytes::from(held.term().0.to_string());
    let set = Op::Set { path: path.clone(), data: data.clone(), expected: Expected::Any };
    let fence = held.fence();
    match tree.multi(fence.iter().cloned().chain([set]).collect()).await {
        Ok(done) => match done.last() {
            Some(Done::Set(stat)) => Ok(Some(stat.modified.0)),
            _ => Err(TreeError::Invalid(
                "the last result of the multi is not the result of its set operation".to_owned(),
            )),
        },
        Err(TreeError::Multi { at, .. }) if at < fence.len() => Ok(None),
        Err(TreeError::Multi { source, .. }) if *source == TreeError::NoNode => {
            match tree.create(&path, Bytes::new(), CreateMode::Persistent, client.default_acl()).await {
                Ok(_) | Err(TreeError::NodeExists) => Box::pin(write(client, tree, held)).await,
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// Connection to a service that does not use the tree.
struct Sink(BufReader<UnixStream>);

impl Sink {
    /// Sends a term, and returns true if the service accepted it.
    async fn write(&mut self, term: u64) -> anyhow::Result<bool> {
        self.0.write_all(format!("{term}\n").as_bytes()).await?;
        let mut answer = String::new();
        self.0.read_line(&mut answer).await?;
        ensure!(!answer.is_empty(), "the sink has closed the connection");
        Ok(answer == "taken\n")
    }
}

fn nanos(runtime: &Runtime) -> u128 {
    runtime.monotonic().since_start().as_nanos()
}

#[expect(clippy::print_stdout, reason = "the test that started the program reads its output")]
fn report(line: std::fmt::Arguments<'_>) {
    println!("{line}");
}
