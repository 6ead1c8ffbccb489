//! Development commands of this checkout. `cargo xtask test` runs all checks that must pass, and `.ci/run` calls this
//! command.

mod bench_bus;
mod chaos;
mod chores;
mod compare;
mod dist;
mod examples;
mod generators;
mod needs;
mod packages;
mod prose;
mod sample;
mod schemathesis;
mod stage;
mod suites;
mod test;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Run a development command of this checkout.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand, Debug)]
enum Chore {
    /// Run all checks and tests, in under 30 minutes on two cores
    Test,
    /// Send a real server the requests that Schemathesis generates from its OpenAPI document; a part of `test`
    Schemathesis {
        /// Binary to test instead of a debug build of the sources
        #[arg(long)]
        binary: Option<PathBuf>,
    },
    /// Run the programs of `docs/examples` against a real server; not a part of `test`
    Examples {
        /// Binary to test instead of a debug build of the sources
        #[arg(long)]
        binary: Option<PathBuf>,
    },
    /// Generate API clients with four generators, and run each client against a real server; a part of `test`
    Generators {
        /// Binary to test instead of a debug build of the sources
        #[arg(long)]
        binary: Option<PathBuf>,
    },
    /// Check the project's rules that no compiler checks
    Tidy,
    /// Write the index of the decisions, and copy tested code into the documents
    Index,
    /// Pack the published crates, and build their examples outside this workspace with the packages
    Packages,
    /// Set the version of all crates
    Version {
        /// Three numbers, as 1.2.3
        version: String,
    },
    /// Print comments, messages and test names drawn at random, to grade their language
    Sample {
        /// Seed of the sample, usually the hash of the last commit that changed prose
        #[arg(long)]
        seed: String,
    },
    /// Run whole simulated clusters from seeds
    #[command(disable_help_flag = true)]
    Simulate {
        /// Arguments of the simulator, such as `--seeds 100 --scenario owner`; `--help` lists them, and `--scenario
        /// paxos --help` lists the arguments for paxos groups
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Inject faults into a real cluster under load, and check its guarantees
    Chaos(chaos::ChaosArguments),
    /// Inject faults into Kafka brokers and a group of consumers, and check the guarantees of the consumer runtime
    ChaosBus(chaos::bus::BusArguments),
    /// Let the processes of an election, of a shared job and of a buffered producer fail on a Kafka broker, and check the
    /// recipes of the bus
    ChaosRecipes(chaos::recipes::RecipesArguments),
    /// Compare two builds of the binary: their help texts and their responses to the requests of a file
    Compare(compare::CompareArguments),
    /// Run `reveille bench election` on three ZooKeeper servers: compare hand-overs of leadership with Curator's, and
    /// count the requests of electors
    #[command(disable_help_flag = true)]
    Election {
        /// Arguments of the benchmark, such as `--rounds 10 --only graceful`; `--help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run `reveille bench consume` on one Kafka broker: compare the processor with other consumers
    #[command(disable_help_flag = true)]
    Consume {
        /// Arguments of the benchmark, such as `--rounds 1 --only slow`; `--help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run a trial of `reveille bench` on one Kafka broker that the trial can kill: `fire`, `bus-outage` or `fairness --attack
    /// bus`
    #[command(disable_help_flag = true)]
    BenchBus {
        /// Name of the trial and its arguments, such as `fire --count 100000 --with-limit`; `fire --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        arguments: Vec<String>,
    },
    /// Start a Kafka broker and a ZooKeeper server for a trial, and print their URLs; needs Java and Maven
    Engines,
    /// Build a tarball, a Debian package and an image for container engines from the release binary
    Dist(dist::DistArguments),
    /// Install each package of `dist` in a clean Debian 12, start the server, and wait for a callback
    DistTest,
    /// Fuzz the parsers and the journal for longer than `test` does
    Fuzz {
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_440))]
        minutes: u32,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().chore {
        Chore::Test => test::run(),
        Chore::Schemathesis { binary } => test::alone(schemathesis::run(binary)),
        Chore::Examples { binary } => test::alone(examples::run(binary)),
        Chore::Generators { binary } => test::alone(generators::run(binary)),
        Chore::Tidy => chores::tidy(),
        Chore::Index => chores::index(),
        Chore::Packages => packages::build_examples().map(|_| ExitCode::SUCCESS),
        Chore::Version { version } => packages::set_version(&version).map(|()| ExitCode::SUCCESS),
        Chore::Sample { seed } => sample::run(&seed),
        Chore::Simulate { arguments } => chores::simulate(&arguments),
        Chore::Chaos(arguments) => chaos::run(&arguments),
        Chore::ChaosBus(arguments) => chaos::bus::run(&arguments),
        Chore::ChaosRecipes(arguments) => chaos::recipes::run(&arguments),
        Chore::Compare(arguments) => compare::run(&arguments),
        Chore::Election { arguments } => chores::election(&arguments),
        Chore::Consume { arguments } => chores::consume(&arguments),
        Chore::BenchBus { arguments } => bench_bus::run(&arguments),
        Chore::Engines => chores::engines(),
        Chore::Dist(arguments) => dist::run(arguments),
        Chore::DistTest => dist::trial::run(),
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
