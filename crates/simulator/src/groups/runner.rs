//! Runs seeds, and says how to see a failure again.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::checks::{Rule, Violation};
use super::knobs::{Fault, Knobs};
use super::program::{Incident, Program};
use super::world::World;
use crate::executor::panic_message;

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub result: Result<(), Violation>,
    pub steps: u64,
    pub trace_hash: u64,
    /// Bits of [`Incident`]s.
    pub incidents: u64,
    pub acknowledged: u64,
    /// If asked for.
    pub lines: Vec<String>,
}

/// One run; with its events as lines if `is_read`.
pub fn run<P: Program>(knobs: &Knobs, is_read: bool) -> Outcome {
    let mut world = World::<P>::new(knobs.clone(), is_read);
    let result = catch_unwind(AssertUnwindSafe(|| {
        world.run(knobs.steps, u64::MAX)?;
        if knobs.heals { world.heal() } else { Ok(()) }
    }));
    let result =
        result.unwrap_or_else(|payload| Err(Violation { rule: Rule::Assertion, story: panic_message(&*payload) }));
    Outcome {
        result,
        steps: world.steps,
        trace_hash: world.hash(),
        incidents: world.checks.incidents(),
        acknowledged: world.checks.acknowledgements(),
        lines: world.lines.take().unwrap_or_default(),
    }
}

/// The same violation with less trouble and fewer steps, if there is one.
#[must_use]
pub fn shrink<P: Program>(knobs: &Knobs, violation: &Violation) -> Knobs {
    let fails = |knobs: &Knobs| match run::<P>(knobs, false) {
        Outcome { result: Err(found), steps, .. } if found.rule == violation.rule => Some(steps),
        _ => None,
    };
    let mut least = knobs.clone();
    for fault in Fault::ALL {
        let simpler = Knobs { without: least.without | fault.bit(), ..least.clone() };
        if fails(&simpler).is_some() {
            least = simpler;
        }
    }
    if let Some(steps) = fails(&least)
        && violation.rule != Rule::GoesOn
    {
        (least.steps, least.heals) = (steps, least.heals && steps > least.steps);
    }
    least
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
    pub fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.steps += outcome.steps;
        self.acknowledged += outcome.acknowledged;
        for (index, count) in self.counts.iter_mut().enumerate() {
            *count += outcome.incidents >> index & 1;
        }
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
