//! Runs a scenario with many seeds, and says how to see a failure again.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::executor::panic_message;
use crate::faults::{Coverage, Incidents};
use crate::simulation::Simulation;
use crate::trace::Text;

/// How many lines of the trace a failure shows.
const TAIL_SHOWN: usize = 40;

/// What one seed made of a scenario.
#[derive(Clone, Debug)]
pub struct SeedReport {
    pub seed: u64,
    /// The message of the panic that ended it.
    pub result: Result<(), String>,
    pub incidents: Incidents,
    pub trace_hash: u64,
    /// With [`Text::Tail`].
    pub trace_tail: Vec<String>,
}

/// Runs `scenario` once; it fails by panicking.
pub fn run_seed(seed: u64, text: Text, scenario: impl Fn(&Simulation)) -> SeedReport {
    let sim = Simulation::new(seed);
    sim.set_trace_text(text);
    let result = catch_unwind(AssertUnwindSafe(|| scenario(&sim))).map_err(|payload| panic_message(&*payload));
    SeedReport { seed, result, incidents: sim.incidents(), trace_hash: sim.trace_hash(), trace_tail: sim.trace_tail() }
}

/// A scenario that did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    pub name: String,
    pub seed: u64,
    pub message: String,
    pub trace_tail: Vec<String>,
    /// Run again, it went another way: something looks outside of its [`runtime::Runtime`].
    pub repeatable: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { name, seed, message, trace_tail, repeatable } = self;
        writeln!(f, "scenario {name} fails with seed {seed}: {message}")?;
        let shown = trace_tail.len().saturating_sub(TAIL_SHOWN);
        trace_tail[shown..].iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        if !repeatable {
            writeln!(f, "the seed's second run went another way: a clock, a thread or a map's order is not simulated")?;
        }
        write!(f, "replay: cargo xtask simulate --scenario {name} --seed {seed} --trace")
    }
}

impl std::error::Error for Failure {}

/// Runs `scenario` with each seed, the first one twice, and says what went wrong in how many of the runs.
///
/// # Errors
/// With the first seed that fails, or whose second run is not the first one again.
pub fn try_seeds(
    name: &str,
    seeds: impl IntoIterator<Item = u64>,
    scenario: impl Fn(&Simulation),
) -> Result<Coverage, Failure> {
    let mut coverage = Coverage::default();
    for seed in seeds {
        let outcome = run_seed(seed, Text::Off, &scenario);
        if let Err(message) = outcome.result {
            let again = run_seed(seed, Text::Tail, &scenario);
            let repeatable = again.trace_hash == outcome.trace_hash;
            return Err(Failure { name: name.to_owned(), seed, message, trace_tail: again.trace_tail, repeatable });
        }
        if coverage.seeds == 0 && run_seed(seed, Text::Off, &scenario).trace_hash != outcome.trace_hash {
            let message = "two runs of one seed have different traces".to_owned();
            return Err(Failure { name: name.to_owned(), seed, message, trace_tail: Vec::new(), repeatable: false });
        }
        coverage.add(&outcome.incidents);
    }
    Ok(coverage)
}

/// As [`try_seeds`], but each seed once, and with every event printed.
fn print_seeds(
    name: &str,
    seeds: impl IntoIterator<Item = u64>,
    scenario: impl Fn(&Simulation),
) -> Result<Coverage, Failure> {
    let mut coverage = Coverage::default();
    for seed in seeds {
        let outcome = run_seed(seed, Text::Print, &scenario);
        if let Err(message) = outcome.result {
            return Err(Failure { name: name.to_owned(), seed, message, trace_tail: Vec::new(), repeatable: true });
        }
        coverage.add(&outcome.incidents);
    }
    Ok(coverage)
}

/// As [`try_seeds`], for tests.
///
/// # Panics
/// With the [`Failure`], the command that replays it included.
pub fn run_seeds(name: &str, seeds: impl IntoIterator<Item = u64>, scenario: impl Fn(&Simulation)) -> Coverage {
    match try_seeds(name, seeds, scenario) {
        Ok(coverage) => coverage,
        Err(failure) => panic!("{failure}"),
    }
}

/// How a deliberate bug was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caught {
    pub seed: u64,
    /// How many runs it took.
    pub runs: u64,
    pub message: String,
}

/// Asserts that `scenario`, which has the deliberate bug `mutant` switched on, fails with one of the seeds, and with
/// a message that has `symptom` in it: a scenario that fails for another reason has not caught the bug.
///
/// The same scenario without the bug must hold with the same seeds; [`run_seeds`] says whether it does.
///
/// # Panics
/// If the bug is not caught.
pub fn assert_caught(
    mutant: impl fmt::Debug,
    symptom: &str,
    seeds: impl IntoIterator<Item = u64>,
    scenario: impl Fn(&Simulation),
) -> Caught {
    let mut runs = 0;
    for seed in seeds {
        runs += 1;
        if let Err(message) = run_seed(seed, Text::Off, &scenario).result {
            assert!(message.contains(symptom), "seed {seed} fails with {mutant:?}, but not by {symptom:?}: {message}");
            return Caught { seed, runs, message };
        }
    }
    panic!("the deliberate bug {mutant:?} goes unnoticed in {runs} runs: the scenario tests too little")
}

/// What to run of a [`Suite`].
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// One scenario; all without it.
    pub scenario: Option<String>,
    /// One seed, instead of `seeds`.
    pub seed: Option<u64>,
    /// How many seeds, from `first_seed` on, each scenario gets.
    pub seeds: u64,
    pub first_seed: u64,
    /// Print every event to standard error.
    pub trace: bool,
}

type Run = Box<dyn Fn(&Simulation)>;

/// Named scenarios, for a command that runs many seeds or replays one.
#[derive(Default)]
pub struct Suite {
    scenarios: Vec<(&'static str, Run)>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum SuiteError {
    #[error("there is no scenario {0}; there are: {1}")]
    Unknown(String, String),
    #[error(transparent)]
    Failed(#[from] Box<Failure>),
}

impl Suite {
    #[must_use]
    pub fn new() -> Self {
        Suite::default()
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, scenario: impl Fn(&Simulation) + 'static) -> Self {
        self.scenarios.push((name, Box::new(scenario)));
        self
    }

    /// Runs what is ordered, and tells each scenario's coverage as it ends.
    ///
    /// # Errors
    /// If there is no such scenario, or with the first that fails.
    pub fn run(&self, order: &Order, mut told: impl FnMut(&str, &Coverage)) -> Result<(), SuiteError> {
        let chosen = |name: &str| order.scenario.as_deref().is_none_or(|only| only == name);
        if let Some(only) = order.scenario.as_ref().filter(|only| self.scenarios.iter().all(|(name, _)| name != only)) {
            let names: Vec<_> = self.scenarios.iter().map(|(name, _)| *name).collect();
            return Err(SuiteError::Unknown(only.clone(), names.join(", ")));
        }
        let seeds = match order.seed {
            Some(seed) => seed..seed.saturating_add(1),
            None => order.first_seed..order.first_seed.saturating_add(order.seeds),
        };
        for (name, scenario) in self.scenarios.iter().filter(|(name, _)| chosen(name)) {
            let coverage = match order.trace {
                true => print_seeds(name, seeds.clone(), scenario),
                false => try_seeds(name, seeds.clone(), scenario),
            };
            let coverage = coverage.map_err(Box::new)?;
            told(name, &coverage);
        }
        Ok(())
    }
}
