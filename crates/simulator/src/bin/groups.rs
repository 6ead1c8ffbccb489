//! Runs paxos groups with many seeds, on all cores and in pieces, or replays one.

use std::process::ExitCode;

use clap::Parser;
use simulator::groups::{Core, Coverage, Fault, Knobs, Mutation, Outcome, catch, run, shrink};

/// Simulates paxos groups, while machines, disks, clocks and networks fail.
#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event.
    #[arg(long)]
    trace: bool,
    /// Kinds of trouble to leave out.
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// End after so many events.
    #[arg(long)]
    steps: Option<u64>,
    /// With this deliberate bug.
    #[arg(long)]
    mutant: Option<String>,
    /// Catch all deliberate bugs.
    #[arg(long)]
    mutants: bool,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is what the command is for")]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    std::panic::set_hook(Box::new(|_| {}));
    let without = arguments.without.iter().map(|name| {
        let fault = Fault::ALL.into_iter().find(|fault| format!("{fault:?}").eq_ignore_ascii_case(name));
        fault.unwrap_or_else(|| panic!("there is no trouble {name}")).bit()
    });
    let without = without.sum();
    if arguments.mutants {
        for mutation in Mutation::all() {
            match catch(mutation, 10_000) {
                Some((seed, violation)) => {
                    println!("{mutation}: {seed}: {}", violation.to_string().chars().take(150).collect::<String>())
                }
                None => println!("{mutation}: NOT CAUGHT"),
            }
        }
        return ExitCode::SUCCESS;
    }
    let mutation = arguments.mutant.map_or(Mutation::None, |name| {
        let found = Mutation::all().find(|mutation| mutation.to_string().eq_ignore_ascii_case(&name));
        found.unwrap_or_else(|| panic!("there is no bug {name}"))
    });
    let seeds = match arguments.seed {
        Some(seed) => seed..seed + 1,
        None => arguments.first_seed..arguments.first_seed + arguments.seeds,
    };
    let began = std::time::Instant::now();
    let mut coverage = Coverage::default();
    for seed in seeds {
        let mut knobs = Knobs { without, ..Knobs::draw(seed, mutation) };
        knobs.steps = arguments.steps.unwrap_or(knobs.steps);
        let outcome = run::<Core>(&knobs, arguments.trace);
        for line in &outcome.lines {
            println!("{line}");
        }
        coverage.add(&outcome);
        if let Outcome { result: Err(violation), .. } = outcome {
            eprintln!("seed {seed}: {violation}");
            let least = shrink::<Core>(&knobs, &violation);
            let names: Vec<_> =
                Fault::ALL.iter().filter(|fault| !least.has(**fault)).map(|fault| format!("{fault:?}")).collect();
            eprintln!("replay: --seed {seed} --steps {} --without {} --trace", least.steps, names.join(","));
            eprintln!("{least:#?}");
            return ExitCode::FAILURE;
        }
    }
    println!("{coverage}{:?}", began.elapsed());
    ExitCode::SUCCESS
}
