//! Trials of leader election. They measure the time of a hand-over from one process to the next. They compare
//! Reveille's program with the peer, a program that uses Curator. They also count the requests that electors send to
//! the ZooKeeper ensemble.
//!
//! Invariants: In one run, Reveille's program and the peer use the same ensemble and alternate after each hand-over.
//! Both programs receive the same commands (`tools/mixed-java`). A crash is a `kill -9` of a process. The bench starts
//! no ensemble and has no Java code: the caller passes the ensemble's addresses and the peer's command (`cargo xtask
//! election` supplies both).

pub(crate) mod candidate;
mod handover;
mod peer;
mod replicas;

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use cli_support::Url;
use cli_support::console;
use coordination::recipes::{Client, Form};
use coordination::tree::{NodePath, SessionOptions};
use runtime::Runtime;
use serde::Serialize;

use crate::report;
use handover::HandOvers;
use peer::{Peer, Program};
use replicas::Requests;

#[derive(Args, Debug)]
pub struct ElectionArguments {
    /// URL of the ensemble, zookeeper://HOST:PORT,HOST:PORT/ROOT; without a peer, any engine works
    #[arg(long, env = "REVEILLE_COORDINATION", hide_env_values = true)]
    coordination: Url,
    /// Number of measured hand-overs of each kind, for Reveille and for the peer
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Number of unmeasured hand-overs before the first measured hand-over, so that the JVM compiles the peer's code;
    /// for crashes, a tenth of this number
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    warm_up: u32,
    /// Session timeout of the killed leaders, in milliseconds
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u64).range(200..=60_000))]
    session_millis: u64,
    /// Kill the leader at a random moment instead of right after a heartbeat; the older the last heartbeat, the sooner
    /// the ensemble notices the crash
    #[arg(long)]
    at_any_moment: bool,
    /// Numbers of replicas for which the bench counts requests
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    replicas: Vec<u32>,
    /// Milliseconds between two calls of the elector by one replica.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=4_000))]
    period_millis: u64,
    /// Seconds during which the bench counts requests while no hand-over happens
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    rest: u64,
    /// Number of hand-overs whose requests the bench counts, for each number of replicas, first with polling and then
    /// with watching replicas
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    counted: u32,
    /// Parts to run [default: all]
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Command that starts the peer; the bench appends the ensemble's addresses and the session timeout in
    /// milliseconds. Without a peer, the bench measures only Reveille
    #[arg(last = true)]
    peer: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Hand-over from a leader that resigns
    Graceful,
    /// Hand-over from a leader that is killed
    Crash,
    /// Requests that replicas send to the ensemble
    Requests,
}

/// # Errors
/// Returns an error if a trial fails, if Reveille is slower than the peer, or if the number of requests per hand-over
/// grows with the number of watching replicas.
pub(crate) async fn run(runtime: &Runtime, arguments: &ElectionArguments) -> anyhow::Result<()> {
    let results = Trial::open(runtime, arguments).await?.run().await?;
    let text = if arguments.json { serde_json::to_string_pretty(&results)? } else { results.to_text() };
    console::line(text.trim_end()).context("cannot write the result to standard output")?;
    results.judge()
}

struct Trial<'a> {
    runtime: &'a Runtime,
    arguments: &'a ElectionArguments,
    /// Client with which the bench itself accesses the ensemble.
    client: Client,
    root: NodePath,
    session_timeout: Duration,
}

impl<'a> Trial<'a> {
    async fn open(runtime: &'a Runtime, arguments: &'a ElectionArguments) -> anyhow::Result<Self> {
        let session_timeout = Duration::from_millis(arguments.session_millis);
        let trees = coordination_connect::trees(runtime, arguments.coordination.as_str(), None).await;
        let options = SessionOptions { timeout: session_timeout, ..SessionOptions::default() };
        let client = Client::new(runtime, trees.context("--coordination")?, options);
        let session = client
            .session()
            .await
            .context("cannot open a session; check that the ensemble runs and that --coordination has its address")?;
        let given = session.session().timeout();
        ensure!(
            given == session_timeout,
            "the ensemble granted a session timeout of {given:?} instead of {session_timeout:?}; choose another \
             --session-millis"
        );
        let root = NodePath::new(&format!("/reveille-bench-{:016x}", runtime.random()))
            .expect("a path of one name that ends with a hexadecimal number is valid");
        Ok(Trial { runtime, arguments, client, root, session_timeout })
    }

    async fn run(self) -> anyhow::Result<Results> {
        let mut results = Results::new(self.arguments.period_millis);
        let is_selected = |part: Part| self.arguments.only.is_empty() || self.arguments.only.contains(&part);
        if is_selected(Part::Graceful) || is_selected(Part::Crash) {
            let mut successors = Vec::new();
            for program in self.programs()? {
                successors.push(Peer::start(self.runtime, program).await?);
            }
            if is_selected(Part::Graceful) {
                results.hand_overs.push(handover::graceful(&self, &mut successors).await?);
            }
            if is_selected(Part::Crash) {
                results.hand_overs.push(handover::crash(&self, &mut successors).await?);
            }
            for successor in successors {
                successor.stop(self.runtime).await?;
            }
        }
        if is_selected(Part::Requests) {
            for count in &self.arguments.replicas {
                for form in [Form::Polling, Form::Watching] {
                    results.requests.push(replicas::measure(&self, *count, form).await?);
                }
            }
        }
        self.client.close().await?;
        Ok(results)
    }

    fn period(&self) -> Duration {
        Duration::from_millis(self.arguments.period_millis)
    }

    /// Returns Reveille's program and, if the caller named a peer, the peer's program.
    fn programs(&self) -> anyhow::Result<Vec<Program>> {
        let (url, timeout) = (self.arguments.coordination.as_str(), self.session_timeout);
        let mut programs = vec![Program::reveille(url, timeout)?];
        if !self.arguments.peer.is_empty() {
            programs.push(Program::peer(&self.arguments.peer, url, timeout)?);
        }
        Ok(programs)
    }
}

#[derive(Debug, Serialize)]
struct Results {
    hand_overs: Vec<HandOvers>,
    /// Milliseconds between two calls of the elector by one replica.
    period_ms: u64,
    requests: Vec<Requests>,
}

impl Results {
    fn new(period_ms: u64) -> Self {
        Results { hand_overs: Vec::new(), period_ms, requests: Vec::new() }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        if !self.hand_overs.is_empty() {
            let names = ["hand-over, ms", "count", "min", "25 %", "median", "75 %", "max", "ratio"];
            text += &table(&names, self.hand_overs.iter().flat_map(HandOvers::cells));
            self.hand_overs.iter().filter_map(HandOvers::note).for_each(|note| text += &format!("{note}\n"));
            text.push('\n');
        }
        if !self.requests.is_empty() {
            let names = ["replicas", "form", "requests/min", "per hand-over", "min", "max", "received/min"];
            text += &table(&names, self.requests.iter().map(Requests::cells));
            text += &replicas::note(Duration::from_millis(self.period_ms));
        }
        text
    }

    fn judge(&self) -> anyhow::Result<()> {
        for hand_overs in &self.hand_overs {
            hand_overs.judge()?;
        }
        replicas::judge(&self.requests)
    }
}

/// Formats a table. The first column is left-aligned, and the other columns are right-aligned.
fn table<const N: usize>(names: &[&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut lines = vec![names.map(str::to_owned)];
    lines.extend(rows);
    let widths: Vec<usize> =
        (0..N).map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0 => format!("{cell:width$}"),
            _ => format!("  {cell:>width$}"),
        });
        text += cells.collect::<String>().trim_end();
        text.push('\n');
    }
    text
}

/// Distribution of measured values: their number, extremes, quartiles and median.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Spread {
    count: usize,
    min: f64,
    quarter: f64,
    median: f64,
    three_quarters: f64,
    max: f64,
}

impl Spread {
    /// # Panics
    /// Panics if `values` is empty.
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (count, last) = (sorted.len(), sorted.len() - 1);
        let median = report::median(values.iter().copied()).expect("the caller passes at least one value");
        let [quarter, three_quarters] = [last / 4, last - last / 4].map(|at| sorted[at]);
        Spread { count, min: sorted[0], quarter, median, three_quarters, max: sorted[last] }
    }

    fn cells(&self) -> [String; 6] {
        let figures = [self.min, self.quarter, self.median, self.three_quarters, self.max];
        let [a, b, c, d, e] = figures.map(|figure| format!("{figure:.2}"));
        [self.count.to_string(), a, b, c, d, e]
    }
}

#[cfg(test)]
mod tests;
