//! How long a leadership takes from one process to the next, beside a program with Curator; and what electors ask of the ensemble.
//!
//! Always true here: ours and the peer's take turns, hand-over by hand-over, on one ensemble in one run; both are told what to do by the same
//! lines (`tools/mixed-java`), and each crash is that of a process, by `kill -9`. The bench starts no ensemble and knows no Java: it is told
//! where the one is, and what starts the other (`cargo xtask election` has both).

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
    /// The ensemble, zookeeper://HOST:PORT,HOST:PORT/ROOT; without a peer any engine will do
    #[arg(long, env = "REVEILLE_COORDINATION", hide_env_values = true)]
    coordination: Url,
    /// Hand-overs of each kind, of ours and of the peer
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Hand-overs before the first that counts, so that the peer's code is compiled; of crashes a tenth as many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    warm_up: u32,
    /// The session's timeout of those that are killed
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u64).range(200..=60_000))]
    session_millis: u64,
    /// Kill at any moment, instead of right after a sign of life: the ensemble then notices the sooner, the older the last one is
    #[arg(long)]
    at_any_moment: bool,
    /// How many replicas ask their electors
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    replicas: Vec<u32>,
    /// Between two calls of each replica
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=4_000))]
    period_millis: u64,
    /// Seconds for which requests are counted while nothing happens
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    rest: u64,
    /// Hand-overs whose requests are counted, of each form and number of replicas
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    counted: u32,
    /// Only these parts
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// What starts the peer, which is given the ensemble's addresses and the session's timeout in milliseconds; without it ours is alone
    #[arg(last = true)]
    peer: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// A leader that resigns
    Graceful,
    /// A leader that is killed
    Crash,
    /// What replicas ask of the ensemble
    Requests,
}

/// # Errors
/// If a trial could not be made, if ours is slower than the peer, or if a hand-over among more replicas costs more requests though they watch.
pub(crate) async fn run(runtime: &Runtime, arguments: &ElectionArguments) -> anyhow::Result<()> {
    let found = Trial::open(runtime, arguments).await?.run().await?;
    let text = if arguments.json { serde_json::to_string_pretty(&found)? } else { found.in_words() };
    console::line(text.trim_end()).context("cannot write the result")?;
    found.judge()
}

struct Trial<'a> {
    runtime: &'a Runtime,
    arguments: &'a ElectionArguments,
    /// The bench's own way to the ensemble.
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
        let session = client.session().await.context("cannot open a session: is the ensemble there?")?;
        let given = session.session().timeout();
        ensure!(given == session_timeout, "the ensemble gives sessions of {given:?}: choose another --session-millis");
        let root = NodePath::new(&format!("/reveille-bench-{:016x}", runtime.random())).expect("it is a path");
        Ok(Trial { runtime, arguments, client, root, session_timeout })
    }

    async fn run(self) -> anyhow::Result<Found> {
        let mut found = Found::new(self.arguments.period_millis);
        let is_asked = |part: Part| self.arguments.only.is_empty() || self.arguments.only.contains(&part);
        if is_asked(Part::Graceful) || is_asked(Part::Crash) {
            let mut successors = Vec::new();
            for program in self.programs()? {
                successors.push(Peer::start(self.runtime, program).await?);
            }
            if is_asked(Part::Graceful) {
                found.hand_overs.push(handover::graceful(&self, &mut successors).await?);
            }
            if is_asked(Part::Crash) {
                found.hand_overs.push(handover::crash(&self, &mut successors).await?);
            }
            for successor in successors {
                successor.stop(self.runtime).await?;
            }
        }
        if is_asked(Part::Requests) {
            for count in &self.arguments.replicas {
                for form in [Form::Polling, Form::Watching] {
                    found.requests.push(replicas::measure(&self, *count, form).await?);
                }
            }
        }
        self.client.close().await?;
        Ok(found)
    }

    fn period(&self) -> Duration {
        Duration::from_millis(self.arguments.period_millis)
    }

    /// Ours, and the peer's.
    fn programs(&self) -> anyhow::Result<Vec<Program>> {
        let (url, timeout) = (self.arguments.coordination.as_str(), self.session_timeout);
        let mut programs = vec![Program::ours(url, timeout)?];
        if !self.arguments.peer.is_empty() {
            programs.push(Program::peer(&self.arguments.peer, url, timeout)?);
        }
        Ok(programs)
    }
}

#[derive(Debug, Serialize)]
struct Found {
    hand_overs: Vec<HandOvers>,
    /// Between two calls of each replica.
    period_ms: u64,
    requests: Vec<Requests>,
}

impl Found {
    fn new(period_ms: u64) -> Self {
        Found { hand_overs: Vec::new(), period_ms, requests: Vec::new() }
    }

    fn in_words(&self) -> String {
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

/// The first column to the left, the others to the right.
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

/// How values lie, in milliseconds.
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
    /// If there are none.
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (count, last) = (sorted.len(), sorted.len() - 1);
        let median = report::median(values.iter().copied()).expect("there are values");
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
