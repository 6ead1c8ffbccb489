//! Runner of scenarios. It runs a scenario with many seeds, and prints the command that replays a failure.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::executor::panic_message;
use crate::faults::{Coverage, Incidents};
use crate::simulation::Simulation;
use crate::trace::Text;

/// Largest number of trace lines in the message of a [`Failure`].
const TAIL_SHOWN: usize = 40;

/// Result of one run of a scenario with one seed.
#[derive(Clone, Debug)]
pub struct SeedReport {
    pub seed: u64,
    /// Result of the run. `Err` contains the message of the panic that ended the run.
    pub result: Result<(), String>,
    pub incidents: Incidents,
    pub trace_hash: u64,
    /// Last lines of the trace, if the run used [`Text::Tail`].
    pub trace_tail: Vec<String>,
}

/// Runs `scenario` once. A panic in the scenario is a failure of the run.
pub fn run_seed(seed: u64, text: Text, scenario: impl Fn(&Simulation)) -> SeedReport {
    let sim = Simulation::new(seed);
    sim.set_trace_text(text);
    let result = catch_unwind(AssertUnwindSafe(|| scenario(&sim))).map_err(|payload| panic_message(&*payload));
    SeedReport { seed, result, incidents: sim.incidents(), trace_hash: sim.trace_hash(), trace_tail: sim.trace_tail() }
}

/// Failure of a scenario.
#[derive(Clone, Debug)]
pub struct Failure {
    pub name: String,
    pub seed: u64,
    pub message: String,
    pub trace_tail: Vec<String>,
    /// False if a second run with the same seed had a different trace. The code under test then uses a source of
    /// randomness outside of its [`runtime::Runtime`].
    pub repeatable: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { name, seed, message, trace_tail, repeatable } = self;
        writeln!(f, "scenario {name} fails with seed {seed}: {message}")?;
        let shown = trace_tail.len().saturating_sub(TAIL_SHOWN);
        trace_tail[shown..].iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        if !repeatable {
            writeln!(
                f,
                "two runs of the seed differ: the code uses a real clock, a thread or a map with a random order"
            )?;
        }
        write!(f, "replay: cargo xtask simulate --scenario {name} --seed {seed} --trace")
    }
}

impl std::error::Error for Failure {}

/// Runs `scenario` with each seed, and twice with the first seed. Counts the runs with each incident.
///
/// # Errors
/// Returns the [`Failure`] for the first seed with which the scenario fails, or with which two runs differ.
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
            let message = "two runs of the same seed have different traces".to_owned();
            return Err(Failure { name: name.to_owned(), seed, message, trace_tail: Vec::new(), repeatable: false });
        }
        coverage.add(&outcome.incidents);
    }
    Ok(coverage)
}

/// Runs `scenario` once with each seed, and prints every event.
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

/// Runs [`try_seeds`] in a test.
///
/// # Panics
/// Panics if the scenario fails with a seed. The message contains the [`Failure`] and the command that replays it.
pub fn run_seeds(name: &str, seeds: impl IntoIterator<Item = u64>, scenario: impl Fn(&Simulation)) -> Coverage {
    match try_seeds(name, seeds, scenario) {
        Ok(coverage) => coverage,
        Err(failure) => panic!("{failure}"),
    }
}

/// Detection of a deliberate bug.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caught {
    pub seed: u64,
    /// Number of runs up to and including the run that detected the bug.
    pub runs: u64,
    pub message: String,
}

/// Asserts that `scenario` detects the deliberate bug `mutant`. The caller has added the bug to the scenario. The
/// scenario must fail with at least one of the seeds, and the message of the first failure must contain one of the
/// `symptoms`. Several checks can detect some bugs, and the first failing seed decides which of them does.
///
/// The same scenario without the bug must succeed with the same seeds. [`run_seeds`] checks this.
///
/// # Panics
/// Panics if no run fails, or if the message of the first failure contains none of the `symptoms`.
pub fn assert_caught(
    mutant: impl fmt::Debug,
    symptoms: &[&str],
    seeds: impl IntoIterator<Item = u64>,
    scenario: impl Fn(&Simulation),
) -> Caught {
    let mut runs = 0;
    for seed in seeds {
        runs += 1;
        if let Err(message) = run_seed(seed, Text::Off, &scenario).result {
            assert!(
                symptoms.iter().any(|symptom| message.contains(symptom)),
                "seed {seed} failed with the bug {mutant:?}, but the message contains none of {symptoms:?}: {message}"
            );
            return Caught { seed, runs, message };
        }
    }
    panic!("{runs} runs did not detect the deliberate bug {mutant:?}; extend the scenario or add seeds")
}

/// Selection of scenarios and seeds of a [`Suite`].
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// Name of the only scenario to run. If it is `None`, all scenarios run.
    pub scenario: Option<String>,
    /// Only seed to run. If it is `None`, the suite runs a range of seeds that starts with `first_seed`.
    pub seed: Option<u64>,
    /// Number of seeds for each scenario. The first seed is `first_seed`.
    pub seeds: u64,
    pub first_seed: u64,
    /// True if the run prints every event to standard error.
    pub trace: bool,
}

type Run = Box<dyn Fn(&Simulation)>;

/// List of named scenarios, for a command that runs many seeds or replays one seed.
#[derive(Default)]
pub struct Suite {
    scenarios: Vec<(&'static str, Run)>,
}

/// Failure of a run of a [`Suite`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum SuiteError {
    #[error("unknown scenario {0}; use one of: {1}")]
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

    /// Runs the selected scenarios and seeds. Calls `reported` with the coverage of each scenario after its last seed.
    ///
    /// # Errors
    /// Returns an error if the suite does not contain the selected scenario, or if a scenario fails with a seed.
    pub fn run(&self, order: &Order, mut reported: impl FnMut(&str, &Coverage)) -> Result<(), SuiteError> {
        let is_selected = |name: &str| order.scenario.as_deref().is_none_or(|only| only == name);
        if let Some(only) = order.scenario.as_ref().filter(|only| self.scenarios.iter().all(|(name, _)| name != only)) {
            let names: Vec<_> = self.scenarios.iter().map(|(name, _)| *name).collect();
            return Err(SuiteError::Unknown(only.clone(), names.join(", ")));
        }
        let seeds = match order.seed {
            Some(seed) => seed..seed.saturating_add(1),
            None => order.first_seed..order.first_seed.saturating_add(order.seeds),
        };
        for (name, scenario) in self.scenarios.iter().filter(|(name, _)| is_selected(name)) {
            let coverage = match order.trace {
                true => print_seeds(name, seeds.clone(), scenario),
                false => try_seeds(name, seeds.clone(), scenario),
            };
            let coverage = coverage.map_err(Box::new)?;
            reported(name, &coverage);
        }
        Ok(())
    }
}
