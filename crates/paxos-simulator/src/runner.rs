//! Runs seeds, and says how to see a failure again.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use simulator::panic_message;

use crate::checks::{Rule, Violation};
use crate::knobs::{Fault, Knobs};
use crate::program::{Incident, Program};
use crate::seat::{Core, hash_of};
use crate::world::World;
use crate::{Mutation, run_core};

/// What a run came to.
#[derive(Clone, Debug)]
pub struct RunReport {
    pub result: Result<(), Violation>,
    pub steps: u64,
    /// It came to the healing.
    pub is_healed: bool,
    pub trace_hash: u64,
    /// Bits of [`Incident`]s.
    pub incidents: u64,
    pub acknowledged: u64,
    /// If asked for.
    pub lines: Vec<String>,
}

/// One run; with its events as lines if `is_read`.
pub fn run<P: Program>(knobs: &Knobs, is_read: bool) -> RunReport {
    let mut world = World::<P>::new(knobs.clone(), is_read);
    let result = catch_unwind(AssertUnwindSafe(|| {
        world.run(knobs.steps, u64::MAX)?;
        if knobs.heals { world.heal() } else { Ok(()) }
    }));
    let result =
        result.unwrap_or_else(|payload| Err(Violation { rule: Rule::Assertion, story: panic_message(&*payload) }));
    RunReport {
        result,
        steps: world.steps,
        is_healed: world.is_peaceful,
        trace_hash: world.trace,
        incidents: world.checks.incidents(),
        acknowledged: world.checks.acknowledgements().iter().sum(),
        lines: world.lines.take().unwrap_or_default(),
    }
}

/// The same violation with less trouble and fewer steps, if there is one.
#[must_use]
pub fn shrink<P: Program>(knobs: &Knobs, violation: &Violation) -> Knobs {
    let fails = |knobs: &Knobs| match run::<P>(knobs, false) {
        RunReport { result: Err(found), steps, is_healed, .. } if found.rule == violation.rule => {
            Some((steps, is_healed))
        }
        _ => None,
    };
    let mut least = knobs.clone();
    let Some((mut steps, mut is_healed)) = fails(&least) else { return least };
    for fault in Fault::ALL {
        let simpler = Knobs { without: least.without | fault.bit(), ..least.clone() };
        if let Some(found) = fails(&simpler).filter(|(fewer, _)| *fewer <= steps) {
            (least, (steps, is_healed)) = (simpler, found);
        }
    }
    // What comes to be in the healing needs all that was before it.
    if !is_healed {
        (least.steps, least.heals) = (steps, false);
    }
    least
}

/// A seed that did not hold, and the least that shows it.
#[derive(Clone, Debug)]
pub struct Failure {
    pub violation: Violation,
    /// With the shortest story that was found.
    pub least: Knobs,
    /// Run again, it went another way: something looks outside of its seed.
    pub is_repeatable: bool,
}

impl Failure {
    #[must_use]
    pub fn of(knobs: &Knobs, outcome: &RunReport) -> Option<Failure> {
        let violation = outcome.result.clone().err()?;
        let is_repeatable = run_core(knobs, false).trace_hash == outcome.trace_hash;
        let least = shrink::<Core>(knobs, &violation);
        Some(Failure { violation, least, is_repeatable })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Knobs { seed, steps, mutant, .. } = self.least;
        writeln!(f, "seed {seed} fails: {}", self.violation)?;
        if !self.is_repeatable {
            writeln!(f, "its second run went another way: a clock, a thread or a map's order is not simulated")?;
        }
        let left_out: Vec<_> = Fault::ALL.iter().filter(|fault| !self.least.has(**fault)).collect();
        writeln!(f, "the least that fails so: {:?}, and left out are {left_out:?}", self.least)?;
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

/// Seeds that are run, and written down, together.
const PIECE: u64 = 1_000;

/// All seeds from `first` on, on so many threads. With a `state` file, what it has of an earlier run is not run again,
/// and each piece is added to it.
///
/// # Errors
/// If the file cannot be read or written, is of another build, or another run writes to it; within, the first seed found that
/// fails.
pub fn run_pieces(
    (first, seeds): (u64, u64),
    threads: usize,
    state: Option<&Path>,
    told: impl Fn(&Coverage) + Sync,
) -> std::io::Result<Result<Coverage, Box<Failure>>> {
    let (mut file, known) = match state {
        Some(path) => open_state(path).map(|(file, known)| (Some(file), known))?,
        None => (None, Vec::new()),
    };
    let all = (first..first + seeds).step_by(usize::try_from(PIECE).expect("it is small"));
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
                    told(&total.0);
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

/// A line that stands for this build, and then the pieces that it has run.
fn open_state(path: &Path) -> std::io::Result<(File, Vec<Piece>)> {
    let build = format!("{:016x}", hash_of(0, &std::fs::read(std::env::current_exe()?)?));
    let mut file = File::options().create(true).read(true).append(true).open(path)?;
    file.try_lock().map_err(|why| std::io::Error::other(format!("another run writes to {}: {why}", path.display())))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    match text.lines().next() {
        Some(first) if first == build => {}
        None => writeln!(file, "{build}")?,
        Some(_) => {
            let story = format!("{} is of another build: begin another file", path.display());
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, story));
        }
    }
    Ok((file, text.lines().filter_map(Piece::read).collect()))
}

fn run_piece((first, count): (u64, u64)) -> (Coverage, Option<Box<Failure>>) {
    let mut coverage = Coverage::default();
    for seed in first..first + count {
        let knobs = Knobs::draw(seed, Mutation::None);
        let outcome = run_core(&knobs, false);
        if let Some(failure) = Failure::of(&knobs, &outcome) {
            return (coverage, Some(Box::new(failure)));
        }
        coverage.add(&outcome);
    }
    (coverage, None)
}

/// A line of a state file: numbers, apart by blanks.
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

/// In how many of the runs each incident was.
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

    /// What happened in less than one seed of a hundred: a run that does not come across it has not tried it.
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
        writeln!(f, "{seeds} seeds, {steps} steps, {acknowledged} acknowledged; of the seeds have:")?;
        for incident in Incident::ALL {
            let share = self.of(incident) as f64 * 100.0 / (*seeds).max(1) as f64;
            writeln!(f, "{share:>7.2} % {incident:?}")?;
        }
        Ok(())
    }
}
