//! Runs of seeds, and reports of failures. A report contains the command that replays the failure.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use simulator::panic_message;

use crate::checks::{Rule, Violation};
use crate::config::{Fault, RunConfig};
use crate::core_program::{Core, hash_of};
use crate::program::{Incident, Program};
use crate::world::World;
use crate::{Mutation, run_core};

/// Result of a run of one seed.
#[derive(Clone, Debug)]
pub struct RunReport {
    pub result: Result<(), Violation>,
    pub steps: u64,
    /// True if the run reached its final phase, in which a quorum of nodes has no faults.
    pub is_healed: bool,
    pub trace_hash: u64,
    /// Bit set of [`Incident`]s.
    pub incidents: u64,
    pub acknowledged: u64,
    /// Events as lines of text; empty if the caller did not request them.
    pub lines: Vec<String>,
}

/// Runs the simulation of a program once. If `is_read` is true, the report contains the events as lines of text.
pub fn run<P: Program>(config: &RunConfig, is_read: bool) -> RunReport {
    let mut world = World::<P>::new(config.clone(), is_read);
    let result = catch_unwind(AssertUnwindSafe(|| {
        world.run(config.steps, u64::MAX)?;
        if config.heals { world.heal() } else { Ok(()) }
    }));
    let result =
        result.unwrap_or_else(|payload| Err(Violation { rule: Rule::Assertion, detail: panic_message(&*payload) }));
    RunReport {
        result,
        steps: world.steps,
        is_healed: world.faults_stopped,
        trace_hash: world.trace,
        incidents: world.checks.incidents(),
        acknowledged: world.checks.acknowledgements().iter().sum(),
        lines: world.lines.take().unwrap_or_default(),
    }
}

/// Searches for a smaller configuration whose run breaks the same rule as `violation`. Returns the configuration with
/// the fewest steps and the fewest kinds of faults that the search finds.
#[must_use]
pub fn shrink<P: Program>(config: &RunConfig, violation: &Violation) -> RunConfig {
    let fails = |config: &RunConfig| match run::<P>(config, false) {
        RunReport { result: Err(found), steps, is_healed, .. } if found.rule == violation.rule => {
            Some((steps, is_healed))
        }
        _ => None,
    };
    let mut least = config.clone();
    let Some((mut steps, mut is_healed)) = fails(&least) else { return least };
    for fault in Fault::ALL {
        let simpler = RunConfig { without: least.without | fault.bit(), ..least.clone() };
        if let Some(found) = fails(&simpler).filter(|(fewer, _)| *fewer <= steps) {
            (least, (steps, is_healed)) = (simpler, found);
        }
    }
    // If the violation occurred in the final phase, a run reproduces it only with all steps before this phase.
    if !is_healed {
        (least.steps, least.heals) = (steps, false);
    }
    least
}

/// Violation of a rule in the run of a seed, with the smallest configuration that reproduces the violation.
#[derive(Clone, Debug)]
pub struct Failure {
    pub violation: Violation,
    /// Configuration whose run breaks the same rule as `violation`, with the fewest steps and the fewest kinds of
    /// faults that the search found.
    pub least: RunConfig,
    /// False if a second run of the seed differed from the first run. The program then depends on a value that the seed
    /// does not determine.
    pub is_repeatable: bool,
}

impl Failure {
    #[must_use]
    pub fn of(config: &RunConfig, outcome: &RunReport) -> Option<Failure> {
        let violation = outcome.result.clone().err()?;
        let is_repeatable = run_core(config, false).trace_hash == outcome.trace_hash;
        let least = shrink::<Core>(config, &violation);
        Some(Failure { violation, least, is_repeatable })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunConfig { seed, steps, mutant, .. } = self.least;
        writeln!(f, "seed {seed} fails: {}", self.violation)?;
        if !self.is_repeatable {
            writeln!(
                f,
                "a second run of this seed has another result: the program depends on a clock, a thread or the \
                 iteration order of a map that the simulation does not control"
            )?;
        }
        let left_out: Vec<_> = Fault::ALL.iter().filter(|fault| !self.least.has(**fault)).collect();
        writeln!(f, "smallest configuration that fails: {:?}; disabled kinds of faults: {left_out:?}", self.least)?;
        write!(f, "replay: cargo xtask simulate --scenario paxos --seed {seed} --steps {steps} --trace")?;
        if !self.least.heals {
            write!(f, " --no-healing")?;
        }
        for fault in left_out {
            write!(f, " --without {fault:?}")?;
        }
        match mutant {
            Mutation::None => Ok(()),
            Mutation::Core(_) | Mutation::WallClock => write!(f, " --mutant {mutant}"),
        }
    }
}

/// Number of seeds in a piece. The runner runs and records the seeds of a piece together.
const PIECE: u64 = 1_000;

/// Runs `seeds` seeds, beginning with the seed `first`, on `threads` threads. Skips the pieces of seeds that an earlier
/// run recorded in the `state` file, and adds each newly finished piece to this file.
///
/// # Errors
/// Returns an error if the program cannot read or write the file, if the file belongs to another build, or if another
/// run is using it. The inner `Err` contains the failure of a seed. After a failure, the runner begins no further
/// piece.
pub fn run_pieces(
    (first, seeds): (u64, u64),
    threads: usize,
    state: Option<&Path>,
    progress: impl Fn(&Coverage) + Sync,
) -> std::io::Result<Result<Coverage, Box<Failure>>> {
    let (mut file, known) = match state {
        Some(path) => open_state(path).map(|(file, known)| (Some(file), known))?,
        None => (None, Vec::new()),
    };
    let all = (first..first + seeds).step_by(usize::try_from(PIECE).expect("the constant `PIECE` fits into a `usize`"));
    let pieces = all.map(|start| (start, PIECE.min(first + seeds - start)));
    let (done, open): (Vec<_>, Vec<_>) = pieces.partition(|piece| known.iter().any(|known| known.seeds == *piece));
    let mut coverage = Coverage::default();
    for piece in known.iter().filter(|known| done.contains(&known.seeds)) {
        coverage.merge(&piece.coverage);
    }
    let next = AtomicU64::new(0);
    let total = Mutex::new((coverage, None::<Box<Failure>>));
    let (send, receive) = std::sync::mpsc::channel::<Piece>();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let send = send.clone();
            scope.spawn(|| {
                let send = send;
                while let Some(piece) =
                    open.get(usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap_or(usize::MAX))
                {
                    let (coverage, failure) = run_piece(*piece);
                    let mut total = total.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    if failure.is_some() {
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                        total.1 = failure;
                        return;
                    }
                    total.0.merge(&coverage);
                    progress(&total.0);
                    drop(total);
                    let _ = send.send(Piece { seeds: *piece, coverage });
                }
            });
        }
        drop(send);
        for piece in receive {
            if let Some(file) = &mut file {
                writeln!(file, "{piece}")?;
            }
        }
        std::io::Result::Ok(())
    })?;
    let (coverage, failure) = total.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(failure.map_or(Ok(coverage), Err))
}

/// Opens a state file and returns its pieces. The first line of the file identifies the build, and each further line is
/// a finished piece.
fn open_state(path: &Path) -> std::io::Result<(File, Vec<Piece>)> {
    let build = format!("{:016x}", hash_of(0, &std::fs::read(std::env::current_exe()?)?));
    let mut file = File::options().create(true).read(true).append(true).open(path)?;
    file.try_lock().map_err(|why| {
        std::io::Error::other(format!(
            "cannot lock the state file {}: {why}; another run may be writing to it: wait for \
             that run or use another file",
            path.display()
        ))
    })?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    match text.lines().next() {
        Some(first) if first == build => {}
        None => writeln!(file, "{build}")?,
        Some(_) => {
            let detail = format!("the state file {} belongs to another build; use a new file", path.display());
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, detail));
        }
    }
    Ok((file, text.lines().filter_map(Piece::read).collect()))
}

fn run_piece((first, count): (u64, u64)) -> (Coverage, Option<Box<Failure>>) {
    let mut coverage = Coverage::default();
    for seed in first..first + count {
        let config = RunConfig::draw(seed, Mutation::None);
        let outcome = run_core(&config, false);
        if let Some(failure) = Failure::of(&config, &outcome) {
            return (coverage, Some(Box::new(failure)));
        }
        coverage.add(&outcome);
    }
    (coverage, None)
}

/// Finished piece of seeds. In a state file, a piece is one line of numbers with blanks between them.
struct Piece {
    seeds: (u64, u64),
    coverage: Coverage,
}

impl Piece {
    fn read(line: &str) -> Option<Piece> {
        let numbers: Option<Vec<u64>> = line.split(' ').map(|word| word.parse().ok()).collect();
        let [first, count, steps, acknowledged, counts @ ..] = numbers.as_deref()? else { return None };
        let counts = counts.try_into().ok()?;
        let coverage = Coverage { seeds: *count, steps: *steps, acknowledged: *acknowledged, counts };
        Some(Piece { seeds: (*first, *count), coverage })
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coverage { steps, acknowledged, counts, .. } = &self.coverage;
        write!(f, "{} {} {steps} {acknowledged}", self.seeds.0, self.seeds.1)?;
        counts.iter().try_for_each(|count| write!(f, " {count}"))
    }
}

/// Total numbers of seeds, steps and acknowledgements in many runs, and the number of runs in which each incident
/// occurred.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    pub seeds: u64,
    pub steps: u64,
    pub acknowledged: u64,
    counts: [u64; Incident::ALL.len()],
}

impl Coverage {
    pub fn add(&mut self, outcome: &RunReport) {
        self.seeds += 1;
        self.steps += outcome.steps;
        self.acknowledged += outcome.acknowledged;
        for (index, count) in self.counts.iter_mut().enumerate() {
            *count += outcome.incidents >> index & 1;
        }
    }

    fn merge(&mut self, other: &Coverage) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.acknowledged += other.acknowledged;
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
    }

    /// Returns the incidents that occurred in less than one per cent of the seeds. If an incident is so rare, the runs
    /// do not test it sufficiently.
    #[must_use]
    pub fn missing(&self) -> Vec<Incident> {
        Incident::ALL.into_iter().filter(|incident| self.of(*incident) * 100 < self.seeds).collect()
    }

    #[must_use]
    pub fn of(&self, incident: Incident) -> u64 {
        self.counts[incident as usize]
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Coverage { seeds, steps, acknowledged, .. } = self;
        writeln!(
            f,
            "{seeds} seeds, {steps} steps, {acknowledged} acknowledgements; share of seeds with each incident:"
        )?;
        for incident in Incident::ALL {
            let share = self.of(incident) as f64 * 100.0 / (*seeds).max(1) as f64;
            writeln!(f, "{share:>7.2} % {incident:?}")?;
        }
        Ok(())
    }
}
