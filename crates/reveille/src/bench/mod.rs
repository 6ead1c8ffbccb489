//! `reveille bench`: every figure that is claimed of Reveille, and the way to see it on one's own machine.
//!
//! Always true here: load stays on this machine unless a URL is given, every trial is bounded in time and in count,
//! and what was lost, doubled or early is decided from the receiver's log, never from the server's word.

mod arrivals;
mod limit;
mod limit_handler;
mod load;
mod message;
mod process;
mod report;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use runtime::Runtime;

use crate::console;
use report::Row;

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// What this machine can do at most: the bare handler, the bare durable handler, the bare client
    Limit(LimitArguments),
    /// The child of `limit` that stands for a server
    #[command(hide = true)]
    LimitHandler {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        journal: Option<PathBuf>,
    },
    /// The child of `limit` that posts
    #[command(hide = true)]
    LimitClient {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        target: SocketAddr,
        #[arg(long)]
        connections: usize,
    },
}

/// What every trial takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// The folder of the trial's data, made if missing and used again by the next trial
    #[arg(long, default_value = "bench-data")]
    data: PathBuf,
    /// How often the trial is run; all runs are printed, and the median
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Keep-alive connections of the load generator
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl Common {
    fn connections(&self) -> usize {
        usize::try_from(self.connections).unwrap_or(1)
    }
}

#[derive(Args, Debug)]
pub(crate) struct LimitArguments {
    #[command(flatten)]
    common: Common,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    duration: u64,
    /// Only these parts
    #[arg(long, value_enum)]
    only: Vec<limit::Part>,
}

/// # Errors
/// If a trial could not be made; what it found is not an error.
pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let runtime = Runtime::real();
    match command {
        Command::Limit(arguments) => run_limit(&runtime, &arguments).await,
        Command::LimitHandler { listen, journal } => limit_handler::serve(&runtime, listen, journal).await,
        Command::LimitClient { listen, target, connections } => {
            limit::serve_client(&runtime, target, connections, listen).await
        }
    }
}

async fn run_limit(runtime: &Runtime, arguments: &LimitArguments) -> anyhow::Result<()> {
    let folder = &arguments.common.data;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let size =
        limit::Size { connections: arguments.common.connections(), duration: Duration::from_secs(arguments.duration) };
    let parts = if arguments.only.is_empty() { limit::Part::ALL.to_vec() } else { arguments.only.clone() };
    let mut runs = vec![Vec::new(); parts.len()];
    for _ in 0..arguments.common.runs {
        for (part, rows) in parts.iter().zip(&mut runs) {
            rows.push(limit::measure(runtime, *part, size, folder).await?);
        }
    }
    let mut rows = Vec::new();
    for trial in runs {
        rows.extend(with_summary(trial));
    }
    print(&arguments.common, &rows)
}

/// The runs of one trial, and their median if there are several.
fn with_summary(runs: Vec<Row>) -> Vec<Row> {
    let mut rows = runs;
    if rows.len() > 1 {
        let name = rows[0].trial.clone();
        rows.push(report::summary(&name, &rows));
    }
    rows
}

fn print(common: &Common, rows: &[Row]) -> anyhow::Result<()> {
    let text = if common.json { serde_json::to_string_pretty(rows)? } else { report::table(rows) };
    console::line(text.trim_end()).context("cannot write the result")
}
