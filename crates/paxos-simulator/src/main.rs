//! Runs paxos groups with many seeds, on all cores and in pieces, or replays one.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is what the command is for")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use paxos_simulator::{Coverage, Failure, Fault, Knobs, Mutation, catch, moves_table, run_core, run_pieces};

/// Of a run of fewer, nobody can say that it came across everything.
const SEEDS_THAT_COVER: u64 = 1_000;
/// Each deliberate bug has to be caught by one of so many.
const SEEDS_THAT_CATCH: u64 = 10_000;

/// Simulates paxos groups, while machines, disks, clocks and networks fail.
#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// A file that remembers what has been run: a run that was stopped goes on from there.
    #[arg(long)]
    state: Option<PathBuf>,
    /// Catch all deliberate bugs instead.
    #[arg(long)]
    mutants: bool,
    /// Measure how long it takes to move a master instead, with so many moves of each kind.
    #[arg(long, num_args = 0..=1, default_missing_value = "100")]
    moves: Option<u64>,
    /// Only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: print every event.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// With --seed: a kind of trouble to leave out.
    #[arg(long, requires = "seed")]
    without: Vec<String>,
    /// With --seed: end after so many events.
    #[arg(long, requires = "seed")]
    steps: Option<u64>,
    /// With --seed: do not heal a core of nodes in the end.
    #[arg(long, requires = "seed")]
    no_healing: bool,
    /// With --seed: a deliberate bug.
    #[arg(long, requires = "seed")]
    mutant: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    // What breaks an assertion is told as a violation.
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
    let told = |coverage: &Coverage| {
        if coverage.seeds.is_multiple_of(10_000) {
            eprintln!("{} seeds, {} steps", coverage.seeds, coverage.steps);
        }
    };
    let result = run_pieces(seeds, threads, arguments.state.as_deref(), told).context("cannot use the state file")?;
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
        eprintln!("in less than 1 % of the seeds: {missing:?}; what does not happen is not tried");
    }
    Ok(is_covered)
}

fn catch_all() -> bool {
    let mut are_caught = true;
    for mutation in Mutation::all() {
        match catch(mutation, 0..SEEDS_THAT_CATCH) {
            Some((seed, violation)) => println!("{mutation}: after {} seeds, {violation}", seed + 1),
            None => {
                println!("{mutation}: not caught by {SEEDS_THAT_CATCH} seeds");
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
        found.with_context(|| format!("there is no deliberate bug {name}; there are {}", names()))
    });
    let mut knobs = Knobs::draw(seed, mutant.transpose()?.unwrap_or_default());
    for name in &arguments.without {
        let found = Fault::ALL.into_iter().find(|fault| format!("{fault:?}").eq_ignore_ascii_case(name));
        ensure!(found.is_some(), "there is no kind of trouble {name}; there are {:?}", Fault::ALL);
        knobs.without |= found.map_or(0, Fault::bit);
    }
    knobs.steps = arguments.steps.unwrap_or(knobs.steps);
    knobs.heals &= !arguments.no_healing;
    let outcome = run_core(&knobs, arguments.trace);
    for line in &outcome.lines {
        println!("{line}");
    }
    if let Some(failure) = Failure::of(&knobs, &outcome) {
        eprintln!("{failure}");
        return Ok(false);
    }
    println!("seed {seed} holds: {} steps, trace {:016x}", outcome.steps, outcome.trace_hash);
    Ok(true)
}
