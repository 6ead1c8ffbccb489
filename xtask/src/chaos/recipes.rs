//! `cargo xtask chaos-recipes`: checks the recipes of the bus on a real Kafka broker: the election of a leader, the job that
//! several members share, and the buffered producer. The processes of the test are the example `bus_recipes` of the crate
//! `bus-kafka`, and the Java program `tools/kafka-java/KafkaRecipes.java`, which takes part in the same groups.
//!
//! Candidates and members send their claims to a witness in this process. The judge finds claims that overlap in time, terms
//! that do not rise, and ids at no member or at several members.
//!
//! Non-goal: exact repetition of a run. The seed determines the faults. The timing depends on the machine.

mod board;
mod election;
mod outage;
mod processes;
mod shards;
mod witness;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, ValueEnum};
use test_servers::kafka::Kafka;

use self::processes::Harness;
use super::build::build_example;
use super::log::{log_folder, now_millis};
use super::random::Random;

#[derive(Args, Debug)]
pub(crate) struct RecipesArguments {
    /// Number of hand-overs of the leadership
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    handovers: u32,
    /// Number of ids of the job that several members share
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    ids: u32,
    /// Seed for the faults [default: from the clock; printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Part of the test to run alone
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Deliberate bug of the processes in Rust, which the check must find
    #[arg(long, value_enum)]
    mutant: Option<Mutant>,
    /// Folder for the logs [default: a temporary folder, retained only after a failure]
    #[arg(long)]
    keep: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// Election of a leader
    Election,
    /// Job that several members share
    Shards,
    /// Buffered producer while the broker is dead for a minute
    Outage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Mutant {
    /// Bug: a leader continues its work for a second after it has handed over the leadership
    LateLeader,
}

/// Result of a part of the test.
struct Outcome {
    /// Measurements and counts.
    text: String,
    failures: Vec<String>,
}

/// # Errors
/// Returns an error if the run does not start or does not complete.
pub(crate) fn run(arguments: &RecipesArguments) -> anyhow::Result<ExitCode> {
    let seed = arguments.seed.unwrap_or_else(now_millis);
    eprintln!("chaos-recipes: seed {seed}");
    let binary = build_example("bus_recipes")?;
    let folder = log_folder(arguments.keep.as_deref(), "reveille-chaos-recipes-")?;
    // The proxies of a broker require a reference without a limit. The broker ends soon after this process.
    let kafka: &'static Kafka = Box::leak(Box::new(Kafka::start(1)?));
    let harness = Harness { kafka, binary, folder, began: Instant::now() };
    let mut random = Random::new(seed);
    let mut outcomes = Vec::new();
    for part in arguments.only.map_or(vec![Part::Election, Part::Shards, Part::Outage], |part| vec![part]) {
        outcomes.push(match part {
            Part::Election => election::run(&harness, arguments.handovers, arguments.mutant, &mut random)?,
            Part::Shards => shards::run(&harness, arguments.ids)?,
            Part::Outage => outage::run(&harness)?,
        });
    }
    let mut output = std::io::stdout().lock();
    for outcome in &outcomes {
        writeln!(output, "{}", outcome.text)?;
    }
    for failure in outcomes.iter().flat_map(|outcome| &outcome.failures) {
        writeln!(output, "failed: {failure}")?;
    }
    let is_good = outcomes.iter().all(|outcome| outcome.failures.is_empty());
    writeln!(output, "{}", if is_good { "all guarantees hold" } else { "guarantees VIOLATED" })?;
    if is_good && arguments.keep.is_none() {
        std::fs::remove_dir_all(&harness.folder)?;
    } else {
        eprintln!("the logs are in {}", harness.folder.display());
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
