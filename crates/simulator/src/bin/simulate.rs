//! Runs the scenarios with many seeds, or replays one seed.

use clap::Parser;
use simulator::{Order, SuiteError};

/// Simulate the scheduler over each store, as a single node and in clusters, under load and with injected faults.
#[derive(Parser)]
struct Arguments {
    /// Number of seeds for each scenario.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// First seed. With this option, several commands can share a long run.
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Name of the only scenario to run. The scenario `paxos` has its own options: `cargo xtask simulate --scenario
    /// paxos --help`.
    #[arg(long)]
    scenario: Option<String>,
    /// Number of the only seed to run.
    #[arg(long)]
    seed: Option<u64>,
    /// Output of every event to standard error.
    #[arg(long)]
    trace: bool,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "printing is the purpose of this command")]
fn main() -> std::process::ExitCode {
    let Arguments { seeds, first_seed, scenario, seed, trace } = Arguments::parse();
    if !trace {
        // This hook hides the messages of panics, because some scenarios cause panics deliberately. The checkers report
        // the effects of all other panics as violations.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let order = Order { scenario, seed, seeds, first_seed, trace };
    match simulator::suite().run(&order, |name, coverage| println!("{name}: {coverage}")) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            if matches!(error, SuiteError::Unknown(..)) {
                eprintln!("only `cargo xtask simulate --scenario paxos` can run the scenario paxos");
            }
            std::process::ExitCode::FAILURE
        }
    }
}
