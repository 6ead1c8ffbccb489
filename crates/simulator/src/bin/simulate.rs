//! Runs the scenarios with many seeds, or replays one.

use clap::Parser;
use simulator::{Order, SuiteError};

/// Simulates the scheduler over each store, alone and in clusters, under load, while machines and networks fail.
#[derive(Parser)]
struct Arguments {
    /// Seeds for each scenario.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first of them: long runs can be made in pieces.
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Only this scenario. `paxos` has options of its own: `cargo xtask simulate --scenario paxos --help`.
    #[arg(long)]
    scenario: Option<String>,
    /// Only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event to standard error.
    #[arg(long)]
    trace: bool,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is what the command is for")]
fn main() -> std::process::ExitCode {
    let Arguments { seeds, first_seed, scenario, seed, trace } = Arguments::parse();
    if !trace {
        // Panics on purpose are part of the scenarios; what they break is reported as a violation.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let order = Order { scenario, seed, seeds, first_seed, trace };
    match simulator::suite().run(&order, |name, coverage| println!("{name}: {coverage}")) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            if matches!(error, SuiteError::Unknown(..)) {
                eprintln!("And paxos, by `cargo xtask simulate --scenario paxos`.");
            }
            std::process::ExitCode::FAILURE
        }
    }
}
