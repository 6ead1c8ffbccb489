//! Command that simulates paxos groups with many seeds on all processor cores, or replays one seed.
//!
//! docs/decisions/0156-simulate-paxos-groups-separately.md gives the reasons for the design.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the command prints its results")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use paxos_simulator::{Coverage, Failure, Fault, Mutation, RunConfig, catch, moves_table, run_core, run_pieces};

/// Minimum number of seeds for which the command checks that every kind of incident occurs in at least 1 % of the
/// seeds.
const SEEDS_THAT_COVER: u64 = 1_000;
/// Maximum number of seeds that the command runs to detect each deliberate bug.
const SEEDS_THAT_CATCH: u64 = 10_000;

/// Simulate paxos groups while machines, disks, clocks and networks fail
#[derive(Parser)]
struct Arguments {
    /// Number of seeds to run
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// File that records the finished seeds, so that the same build can continue a stopped run
    #[arg(long)]
    state: Option<PathBuf>,
    /// Instead of a normal run: for each deliberate bug, search for a seed that detects it
    #[arg(long)]
    mutants: bool,
    /// Instead of a normal run: number of moves to measure for each kind of move
    #[arg(long, num_args = 0..=1, default_missing_value = "100")]
    moves: Option<u64>,
    /// Single seed to run
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: trace of every event
    #[arg(long, requires = "seed")]
    trace: bool,
    /// With --seed: kind of fault to disable (may be repeated)
    #[arg(long, requires = "seed")]
    without: Vec<String>,
    /// With --seed: number of events after which the run ends
    #[arg(long, requires = "seed")]
    steps: Option<u64>,
    /// With --seed: omission of the final phase, in which a quorum of nodes has no faults
    #[arg(long, requires = "seed")]
    no_healing: bool,
    /// With --seed: deliberate bug to enable
    #[arg(long, requires = "seed")]
    mutant: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    // The panic hook prints nothing when an assertion fails, because the run reports the failure as a violation.
    std::panic::set_hook(Box::new(|_| {}));
    let is_good = match (arguments.seed, arguments.moves) {
        (Some(seed), _) => replay(&arguments, seed)?,
        (None, Some(count)) => move_masters(count),
        (None, None) if arguments.mutants => catch_all(),
        (None, None) => run_all(&arguments)?,
    };
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_all(arguments: &Arguments) -> anyhow::Result<bool> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let seeds = (arguments.first_seed, arguments.seeds);
    let progress = |coverage: &Coverage| {
        if coverage.seeds.is_multiple_of(10_000) {
            eprintln!("{} seeds, {} steps", coverage.seeds, coverage.steps);
        }
    };
    let result = run_pieces(seeds, threads, arguments.state.as_deref(), progress).with_context(|| {
        format!("cannot read or write the state file {}", arguments.state.clone().unwrap_or_default().display())
    })?;
    let coverage = match result {
        Ok(coverage) => coverage,
        Err(failure) => {
            eprintln!("{failure}");
            return Ok(false);
        }
    };
    print!("{coverage}");
    let missing = coverage.missing();
    let is_covered = missing.is_empty() || coverage.seeds < SEEDS_THAT_COVER;
    if !is_covered {
        eprintln!("these incidents occurred in less than 1 % of the seeds, so the run does not test them: {missing:?}");
    }
    Ok(is_covered)
}

fn catch_all() -> bool {
    let mut are_caught = true;
    for mutation in Mutation::all() {
        match catch(mutation, 0..SEEDS_THAT_CATCH) {
            Some((seed, violation)) => println!("{mutation}: caught after {} seeds, {violation}", seed + 1),
            None => {
                println!("{mutation}: none of {SEEDS_THAT_CATCH} seeds detects this deliberate bug");
                are_caught = false;
            }
        }
    }
    are_caught
}

fn move_masters(count: u64) -> bool {
    match moves_table(count) {
        Ok(table) => print!("{table}"),
        Err(violation) => {
            eprintln!("{violation}");
            return false;
        }
    }
    true
}

fn replay(arguments: &Arguments, seed: u64) -> anyhow::Result<bool> {
    let mutant = arguments.mutant.as_deref().map(|name| {
        let found = Mutation::all().find(|mutation| mutation.to_string().eq_ignore_ascii_case(name));
        let names = || Mutation::all().map(|mutation| mutation.to_string()).collect::<Vec<_>>().join(", ");
        found.with_context(|| format!("unknown deliberate bug {name}; use one of {}", names()))
    });
    let mut config = RunConfig::draw(seed, mutant.transpose()?.unwrap_or_default());
    for name in &arguments.without {
        let found = Fault::ALL.into_iter().find(|fault| format!("{fault:?}").eq_ignore_ascii_case(name));
        ensure!(found.is_some(), "unknown kind of fault {name}; use one of {:?}", Fault::ALL);
        config.without |= found.map_or(0, Fault::bit);
    }
    config.steps = arguments.steps.unwrap_or(config.steps);
    config.heals &= !arguments.no_healing;
    let outcome = run_core(&config, arguments.trace);
    for line in &outcome.lines {
        println!("{line}");
    }
    if let Some(failure) = Failure::of(&config, &outcome) {
        eprintln!("{failure}");
        return Ok(false);
    }
    println!("seed {seed} breaks no rule: {} steps, trace hash {:016x}", outcome.steps, outcome.trace_hash);
    Ok(true)
}
