//! Plan of the faults. The seed determines the plan.

use std::time::Duration;

use super::log::Kind;
use super::member::LEASE_SECONDS;
use super::random::Random;

/// Members that run from the start of the test. A further member joins and leaves during the test.
pub(super) const MEMBERS: [&str; 3] = ["a", "b", "c"];
pub(super) const GUEST: &str = "d";

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Step {
    /// Time from the end of the previous fault to the start of this fault, or from the start of the previous fault if
    /// the two faults overlap.
    pub(super) after: Duration,
    /// True if the fault begins before the previous fault ends.
    pub(super) overlaps: bool,
    pub(super) kind: Kind,
    /// Index of the affected member in [`MEMBERS`]. Faults of the database, of the ensemble and of the bus ignore the
    /// index.
    pub(super) member: usize,
    /// Duration of the fault. For a fail-over, time in which the standby receives no commits.
    pub(super) lasts: Duration,
    /// True if the member receives an error when it sends packets to processes from which the fault cuts it off; false
    /// if it receives no response.
    pub(super) is_unreachable: bool,
}

/// Endless sequence of faults. A test injects as many faults as its duration allows. `hurry` is true if the test lasts
/// only a few minutes.
pub(super) struct Plan {
    random: Random,
    hurry: bool,
    /// Kinds of faults of the cluster.
    kinds: Vec<Kind>,
    /// Kinds of faults that remain in this round. Each round contains every kind once.
    bag: Vec<Kind>,
    before: Option<Step>,
}

impl Plan {
    pub(super) fn new(random: Random, hurry: bool, has_ensemble: bool, has_bus: bool) -> Self {
        let is_possible = |kind: &Kind| (has_ensemble || !kind.needs_ensemble()) && (has_bus || !kind.needs_bus());
        let kinds = Kind::ALL.into_iter().filter(is_possible).collect();
        Plan { random, hurry, kinds, bag: Vec::new(), before: None }
    }

    pub(super) fn next(&mut self) -> Step {
        if self.bag.is_empty() {
            self.bag = self.kinds.clone();
            self.random.shuffle(&mut self.bag);
        }
        let kind = self.bag.pop().expect("the list of fault kinds is not empty, because the lines above refill it");
        let millis = |random: &mut Random, low, high| Duration::from_millis(random.between(low, high));
        let member = usize::try_from(self.random.between(0, MEMBERS.len() as u64 - 1))
            .expect("a member's index fits into usize");
        let lasts = self.lasts(kind);
        let calm = if self.hurry { (500, 2_000) } else { (5_000, 15_000) };
        let mut step = Step {
            after: millis(&mut self.random, calm.0, calm.1),
            overlaps: false,
            kind,
            member,
            lasts,
            is_unreachable: self.random.percent(50),
        };
        if self.before.as_ref().is_some_and(|before| !before.overlaps && may_overlap(before, &step))
            && self.random.percent(30)
        {
            step.overlaps = true;
            step.after = millis(&mut self.random, 100, 2_000);
        }
        self.before = Some(step.clone());
        step
    }

    fn lasts(&mut self, kind: Kind) -> Duration {
        let lease_ms = 1_000 * LEASE_SECONDS;
        let (low, high) = match kind {
            Kind::KilledAndLeftDead if self.hurry => (3_000, 5_000),
            Kind::KilledAndLeftDead => (10_000, 30_000),
            Kind::KilledAndRestarted | Kind::DatabaseRestarted | Kind::DatabaseKilled => (0, 0),
            Kind::Paused => (lease_ms + 1_000, lease_ms + if self.hurry { 2_000 } else { 5_000 }),
            Kind::CutOff
            | Kind::CutFromDatabase
            | Kind::CutFromEnsemble
            | Kind::CutFromPeers
            | Kind::CutFromReceiver
            | Kind::CutFromBus
            | Kind::EnsemblePaused => {
                if self.hurry {
                    (2_000, 4_000)
                } else {
                    (3_000, 10_000)
                }
            }
            Kind::EnsembleKilled | Kind::BusKilled | Kind::Stopped => (0, 5_000),
            // Some of these pauses are longer than the timeout of an attempt.
            Kind::BusPaused if self.hurry => (2_000, 6_000),
            Kind::BusPaused => (2_000, 10_000),
            Kind::JoinedAndLeft if self.hurry => (2_000, 3_000),
            Kind::JoinedAndLeft => (5_000, 15_000),
            Kind::DatabasePaused => (500, 2_000),
            Kind::DatabaseFailedOver if self.hurry => (1_000, 3_000),
            Kind::DatabaseFailedOver => (1_000, 8_000),
        };
        Duration::from_millis(self.random.between(low, high))
    }
}

/// Returns true if the two faults affect different members, and at most one of them affects the database, the ensemble
/// or the bus.
fn may_overlap(first: &Step, second: &Step) -> bool {
    let on = |step: &Step| match step.kind {
        kind if kind.is_of_all() => MEMBERS.len(),
        Kind::JoinedAndLeft => MEMBERS.len() + 1,
        _ => step.member,
    };
    on(first) != on(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(seed: u64, count: usize) -> Vec<Step> {
        let mut plan = Plan::new(Random::new(seed), false, true, true);
        (0..count).map(|_| plan.next()).collect()
    }

    #[test]
    fn same_seed_yields_the_same_plan() {
        assert_eq!(steps(1, 60), steps(1, 60));
        assert_ne!(steps(1, 60), steps(2, 60));
    }

    #[test]
    fn five_rounds_have_each_kind_of_fault_five_times() {
        for seed in 0..100 {
            let steps = steps(seed, 5 * Kind::ALL.len());
            for kind in Kind::ALL {
                assert_eq!(steps.iter().filter(|step| step.kind == kind).count(), 5, "{kind:?}");
            }
        }
    }

    #[test]
    fn cluster_has_only_faults_of_its_own_servers() {
        let kinds_of = |has_ensemble, has_bus| {
            let mut plan = Plan::new(Random::new(1), false, has_ensemble, has_bus);
            let kinds: Vec<Kind> = (0..200).map(|_| plan.next().kind).collect();
            Kind::ALL.into_iter().filter(|kind| kinds.contains(kind)).collect::<Vec<Kind>>()
        };
        let [neither, ensemble, bus, both] = [(false, false), (true, false), (false, true), (true, true)]
            .map(|(has_ensemble, has_bus)| kinds_of(has_ensemble, has_bus));
        assert_eq!((neither.len(), ensemble.len(), bus.len()), (13, 16, 16));
        assert!(!ensemble.contains(&Kind::CutFromBus) && !bus.contains(&Kind::CutFromEnsemble));
        assert_eq!(both, Kind::ALL);
    }

    #[test]
    fn overlapping_faults_affect_different_members() {
        let steps = steps(7, 1_000);
        let overlapping: Vec<_> = steps.windows(2).filter(|pair| pair[1].overlaps).collect();
        assert!(overlapping.len() > 50);
        assert!(overlapping.iter().all(|pair| may_overlap(&pair[0], &pair[1]) && !pair[0].overlaps));
    }
}
