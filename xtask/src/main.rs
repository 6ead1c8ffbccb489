//! The chores of this checkout: `cargo xtask test` is everything that must be green, and what `.ci/run` calls.

mod chaos;
mod chores;
mod compare;
mod needs;
mod schemathesis;
mod stage;
mod suites;
mod test;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of this checkout.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand, Debug)]
enum Chore {
    /// Pass every test there is, in under 30 minutes on two cores
    Test,
    /// Send a real server what Schemathesis draws from its OpenAPI document; a part of `test`
    Schemathesis {
        /// Test this binary instead of a debug build of the sources
        #[arg(long)]
        binary: Option<PathBuf>,
    },
    /// Check the rules of the house that no compiler knows
    Tidy,
    /// Write the index of the decisions anew
    Index,
    /// Run whole simulated clusters from seeds
    #[command(disable_help_flag = true)]
    Simulate {
        /// For the simulator, as in `--seeds 100 --scenario owner`; `--help` lists them, and `--scenario paxos --help` those for
        /// paxos groups
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Disturb a real cluster under load in every way that it promises to survive, and judge it
    Chaos(chaos::ChaosArguments),
    /// Compare two builds of the binary: their help, and their answers to one file of requests
    Compare(compare::CompareArguments),
    /// Measure hand-overs beside Curator, and electors' requests, on an ensemble of three: `reveille bench election`
    #[command(disable_help_flag = true)]
    Election {
        /// For the bench, as in `--rounds 10 --only graceful`; `--help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Fuzz the parsers and the journal for longer than the tests do
    Fuzz {
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_440))]
        minutes: u32,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().chore {
        Chore::Test => test::run(),
        Chore::Schemathesis { binary } => test::schemathesis_alone(binary),
        Chore::Tidy => chores::tidy(),
        Chore::Index => chores::index(),
        Chore::Simulate { arguments } => chores::simulate(&arguments),
        Chore::Chaos(arguments) => chaos::run(&arguments),
        Chore::Compare(arguments) => compare::run(&arguments),
        Chore::Election { arguments } => chores::election(&arguments),
        Chore::Fuzz { minutes } => chores::fuzz(minutes),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
