//! Which faults come when: drawn from the seed before anything starts.

use std::time::Duration;

use super::chance::Chance;
use super::log::Kind;
use super::member::LEASE_SECONDS;

/// The members that are there from the start; one more comes and goes.
pub(super) const MEMBERS: [&str; 3] = ["a", "b", "c"];
pub(super) const GUEST: &str = "d";

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Step {
    /// Since the fault before was healed, or began if this one overlaps it.
    pub(super) after: Duration,
    /// Begins while the one before is not healed yet.
    pub(super) overlaps: bool,
    pub(super) kind: Kind,
    /// In [`MEMBERS`]; of no meaning for the database's.
    pub(super) member: usize,
    /// How long the disturbance lasts.
    pub(super) lasts: Duration,
    /// Of a cut: who tries learns that there is no way.
    pub(super) is_told: bool,
}

/// Steps without an end; as many are taken as there is time for. `hurry`: for a run of a few minutes.
pub(super) struct Plan {
    chance: Chance,
    hurry: bool,
    /// What is to be drawn before it is filled again: each kind comes in every round.
    bag: Vec<Kind>,
    before: Option<Step>,
}

impl Plan {
    pub(super) fn new(chance: Chance, hurry: bool) -> Self {
        Plan { chance, hurry, bag: Vec::new(), before: None }
    }

    pub(super) fn next(&mut self) -> Step {
        if self.bag.is_empty() {
            self.bag = Kind::ALL.to_vec();
            self.chance.shuffle(&mut self.bag);
        }
        let kind = self.bag.pop().expect("it was just filled");
        let millis = |chance: &mut Chance, low, high| Duration::from_millis(chance.between(low, high));
        let member = usize::try_from(self.chance.between(0, MEMBERS.len() as u64 - 1)).expect("it is small");
        let lasts = self.lasts(kind);
        let calm = if self.hurry { (500, 2_000) } else { (5_000, 15_000) };
        let mut step = Step {
            after: millis(&mut self.chance, calm.0, calm.1),
            overlaps: false,
            kind,
            member,
            lasts,
            is_told: self.chance.percent(50),
        };
        if self.before.as_ref().is_some_and(|before| !before.overlaps && may_overlap(before, &step))
            && self.chance.percent(30)
        {
            step.overlaps = true;
            step.after = millis(&mut self.chance, 100, 2_000);
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
            Kind::CutOff | Kind::CutFromDatabase | Kind::CutFromPeers | Kind::CutFromReceiver if self.hurry => {
                (2_000, 4_000)
            }
            Kind::CutOff | Kind::CutFromDatabase | Kind::CutFromPeers | Kind::CutFromReceiver => (3_000, 10_000),
            Kind::Stopped => (0, 5_000),
            Kind::JoinedAndLeft if self.hurry => (2_000, 3_000),
            Kind::JoinedAndLeft => (5_000, 15_000),
            Kind::DatabasePaused => (500, 2_000),
        };
        Duration::from_millis(self.chance.between(low, high))
    }
}

/// Not two on one member, nor two on the database.
fn may_overlap(first: &Step, second: &Step) -> bool {
    let on = |step: &Step| match step.kind {
        kind if kind.is_of_database() => MEMBERS.len(),
        Kind::JoinedAndLeft => MEMBERS.len() + 1,
        _ => step.member,
    };
    on(first) != on(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(seed: u64, count: usize) -> Vec<Step> {
        let mut plan = Plan::new(Chance::new(seed), false);
        (0..count).map(|_| plan.next()).collect()
    }

    #[test]
    fn a_seed_draws_one_plan_and_another_seed_another() {
        assert_eq!(steps(1, 60), steps(1, 60));
        assert_ne!(steps(1, 60), steps(2, 60));
    }

    #[test]
    fn every_kind_comes_several_times_in_sixty() {
        for seed in 0..100 {
            let steps = steps(seed, 60);
            for kind in Kind::ALL {
                assert_eq!(steps.iter().filter(|step| step.kind == kind).count(), 5, "{kind:?}");
            }
        }
    }

    #[test]
    fn what_overlaps_is_not_on_the_same_member() {
        let steps = steps(7, 1_000);
        let overlapping: Vec<_> = steps.windows(2).filter(|pair| pair[1].overlaps).collect();
        assert!(overlapping.len() > 50);
        assert!(overlapping.iter().all(|pair| may_overlap(&pair[0], &pair[1]) && !pair[0].overlaps));
    }
}
