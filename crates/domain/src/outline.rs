//! Outlines of runs: the properties by which a listing filters runs.

use std::time::Duration;

use crate::occurrence::{AttemptResult, Occurrence, Run, RunState};

/// State of a run without its details.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RunStateKind {
    Retrying,
    Succeeded,
    Failed,
    Missed,
    Cancelled,
}

impl RunStateKind {
    pub const ALL: [RunStateKind; 5] = [
        RunStateKind::Retrying,
        RunStateKind::Succeeded,
        RunStateKind::Failed,
        RunStateKind::Missed,
        RunStateKind::Cancelled,
    ];
}

impl RunState {
    #[must_use]
    pub fn kind(self) -> RunStateKind {
        match self {
            RunState::Retrying => RunStateKind::Retrying,
            RunState::Succeeded => RunStateKind::Succeeded,
            RunState::Failed => RunStateKind::Failed,
            RunState::Missed { .. } => RunStateKind::Missed,
            RunState::Cancelled => RunStateKind::Cancelled,
        }
    }
}

/// Properties of a run by which a listing filters runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunOutline {
    pub state: RunStateKind,
    /// Duration from the nominal instant to the start of the first attempt. `None` if the run has no attempt, if the
    /// record of a long run no longer contains its first attempt, or if the run is that of a redriven dead letter,
    /// because a user chose its start.
    pub lateness: Option<Duration>,
    /// HTTP statuses of the stored attempts, without repetitions.
    pub statuses: Vec<u16>,
}

impl RunOutline {
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let mut outline = RunOutline { state: run.state.kind(), lateness: None, statuses: Vec::new() };
        outline.lateness =
            run.attempts.first().and_then(|first| lateness(&run.occurrence, first.number, first.started_at));
        for attempt in &run.attempts {
            if let AttemptResult::Answered(status) = attempt.result {
                outline.add_status(status);
            }
        }
        outline
    }

    /// Adds the status of a stored attempt.
    pub fn add_status(&mut self, status: u16) {
        if !self.statuses.contains(&status) {
            self.statuses.push(status);
        }
    }
}

/// Returns the lateness of a run whose first stored attempt has this number and started at `started_at`.
#[must_use]
pub fn lateness(of: &Occurrence, number: u16, started_at: crate::Timestamp) -> Option<Duration> {
    (of.replay == 0 && number == 1).then(|| started_at.since(of.nominal))
}

/// Filter of a listing of runs. A run matches if it meets all conditions that are not `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunFilter {
    pub state: Option<RunStateKind>,
    /// HTTP status that at least one stored attempt of the run has.
    pub status: Option<u16>,
    /// Minimum lateness of the run.
    pub late_by: Option<Duration>,
}

impl RunFilter {
    #[must_use]
    pub fn matches(&self, outline: &RunOutline) -> bool {
        self.state.is_none_or(|state| outline.state == state)
            && self.status.is_none_or(|status| outline.statuses.contains(&status))
            && self.late_by.is_none_or(|late_by| outline.lateness.is_some_and(|lateness| lateness >= late_by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attempt, Incarnation, Revision, TenantId, Timestamp};

    fn run(replay: u16, results: &[AttemptResult]) -> Run {
        let nominal = Timestamp::from_millis(10_000);
        let attempts = (1_u16..).zip(results).map(|(number, result)| Attempt {
            number,
            started_at: nominal + Duration::from_secs(u64::from(number)),
            duration: Duration::ZERO,
            result: result.clone(),
            delay: None,
            excerpt: None,
        });
        let attempts = attempts.collect();
        let occurrence = Occurrence { incarnation: Incarnation(1), nominal, revision: Revision(0), replay };
        Run { tenant: TenantId(1), occurrence, state: RunState::Failed, attempts }
    }

    #[test]
    fn filter_matches_a_run_that_meets_all_conditions() {
        let results = [503, 500, 503].map(AttemptResult::Answered);
        let outline = RunOutline::of(&run(0, &results));
        assert_eq!((&outline.statuses[..], outline.lateness), (&[503, 500][..], Some(Duration::from_secs(1))));
        let matches = |filter: RunFilter| filter.matches(&outline);
        let all = RunFilter { state: Some(RunStateKind::Failed), status: Some(500), late_by: outline.lateness };
        assert!(matches(RunFilter::default()) && matches(all));
        assert!(!matches(RunFilter { state: Some(RunStateKind::Succeeded), ..all }));
        assert!(!matches(RunFilter { status: Some(501), ..all }));
        assert!(!matches(RunFilter { late_by: Some(Duration::from_millis(1_001)), ..all }));
    }

    #[test]
    fn run_without_a_due_start_has_no_lateness() {
        assert_eq!(RunOutline::of(&run(0, &[])).lateness, None);
        assert_eq!(RunOutline::of(&run(1, &[AttemptResult::TimedOut])).lateness, None);
        let mut long = run(0, &[AttemptResult::TimedOut, AttemptResult::TimedOut]);
        long.attempts.remove(0);
        assert_eq!(RunOutline::of(&long).lateness, None, "the record has lost its first attempt");
    }
}
