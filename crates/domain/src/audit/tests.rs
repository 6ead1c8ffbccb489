use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::decide::{CatchUp, Start, after_attempt, after_outcome, at_start, first, kept, redrive};
use crate::{
    Attempt, AttemptResult, Cron, HttpTarget, Incarnation, PollerId, RetryPolicy, ScheduleId, Spec, Target, TenantId,
    TimingEnd,
};

const MILLI: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 3_600);

fn at(second: u64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000) + Duration::from_secs(second)
}

fn every_ten_seconds() -> When {
    When::every(Duration::from_secs(10))
}

/// Store with one schedule, whose due rows an owner processes. The owner is correct, but it may fail in an attempt, and
/// it may defer rows.
#[derive(Clone, Debug)]
struct World {
    schedule: Schedule,
    past: Vec<PastTiming>,
    runs: BTreeMap<Occurrence, Run>,
    due: BTreeSet<DueKey>,
    done: Timestamp,
    now: Timestamp,
}

/// Fate of an attempt.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Succeeds,
    Fails,
    /// The owner fails during the attempt. The due row stays.
    IsLost,
    IsDeferred,
}

#[derive(Clone, Debug)]
enum Step {
    /// The time passes, and the owner processes up to `fates.len()` due rows.
    Pass {
        seconds: u64,
        fates: Vec<Fate>,
    },
    Put {
        when: When,
        keeps_timing: bool,
    },
    Cancel,
    Redrive,
}

impl World {
    fn new(when: When) -> Self {
        let incarnation = Incarnation::new(at(0), 7);
        let id = ScheduleId::from_incarnation(incarnation);
        let target = Target::Http(HttpTarget {
            url: "https://example.org/hook".to_owned(),
            method: "POST".to_owned(),
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
        });
        let retry =
            RetryPolicy { attempts_max: 2, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(20) };
        let schedule = Schedule {
            tenant: TenantId(1),
            poller: PollerId::of(TenantId(1), 0, 4, &id),
            id,
            incarnation,
            revision: Revision(0),
            status: Status::Active,
            created_at: at(0),
            updated_at: at(0),
            next: None,
            spec: Spec { when, target, payload: Bytes::new(), labels: BTreeMap::new(), retry },
        };
        let mut world = World {
            schedule,
            past: Vec::new(),
            runs: BTreeMap::new(),
            due: BTreeSet::new(),
            done: at(0) - MILLI,
            now: at(0),
        };
        let due = first(&world.schedule, at(0)).unwrap();
        world.schedule.next = Some(due.occurrence.nominal);
        world.due.insert(due);
        world
    }

    /// Returns a schedule of which the owner has processed each occurrence in time until second `until`.
    fn processed(when: When, until: u64) -> Self {
        let mut world = World::new(when);
        for _ in 0..until {
            world.pass(1, &[Fate::Succeeds; 3]);
        }
        world
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Pass { seconds, fates } => self.pass(*seconds, fates),
            Step::Put { when, keeps_timing } => self.put(when.clone(), *keeps_timing),
            Step::Cancel => self.cancel(),
            Step::Redrive => self.redrive(),
        }
    }

    fn pass(&mut self, seconds: u64, fates: &[Fate]) {
        self.now = self.now + Duration::from_secs(seconds);
        let mut lost = BTreeSet::new();
        for fate in fates {
            let next = self.due.iter().find(|key| key.position <= self.now && !lost.contains(*key)).copied();
            let Some(key) = next else { break };
            if self.process(key, *fate) {
                self.due.remove(&key);
            } else {
                lost.insert(key);
            }
        }
        let open = self.due.first().map_or(self.now, |key| key.position.min(self.now));
        self.done = self.done.max(open - MILLI);
    }

    /// Processes a due row. Returns false if its attempt has no outcome.
    fn process(&mut self, key: DueKey, fate: Fate) -> bool {
        let (schedule, now) = (self.schedule.clone(), self.now);
        let run = self.runs.get(&key.occurrence).cloned();
        let has_outcome = |run: &Run| run.state.is_final() || run.attempts.iter().any(|it| it.number >= key.attempt);
        if let Some(run) = run.as_ref().filter(|run| has_outcome(run)) {
            self.advance(after_outcome(&schedule, run, key.target, now));
            return true;
        }
        match at_start(&schedule, &key, CatchUp::Latest, Timestamp::MIN, now) {
            Start::Fire { advance } => {
                if let Fate::IsDeferred = fate {
                    self.due.insert(DueKey { position: now + Duration::from_secs(7), ..key });
                    return true;
                }
                self.advance(advance);
                let result = match fate {
                    Fate::Succeeds | Fate::IsDeferred => AttemptResult::Answered(200),
                    Fate::Fails => AttemptResult::Answered(500),
                    Fate::IsLost => return false,
                };
                let outcome = after_attempt(&schedule, &key, &result, None, now, u64::MAX / 2);
                self.due.extend(outcome.then);
                let mut attempts = run.map_or_else(Vec::new, |run| run.attempts);
                let (number, duration) = (key.attempt, Duration::ZERO);
                attempts.push(Attempt { number, started_at: now, duration, result, delay: None, excerpt: None });
                self.write(key.occurrence, outcome.state, attempts);
                if outcome.ends {
                    (self.schedule.status, self.schedule.next) = (Status::Ended, None);
                }
            }
            Start::Skip { missed, latest } => {
                self.write(missed.occurrence, missed.state, missed.attempts);
                self.advance(Some(latest));
            }
            Start::Move { next } => self.advance(Some(next)),
            Start::Drop(_) => {}
            Start::Cancel => {
                self.write(key.occurrence, RunState::Cancelled, run.map_or_else(Vec::new, |run| run.attempts));
            }
            Start::Unreadable { error } => panic!("the expression is readable: {error}"),
        }
        true
    }

    fn write(&mut self, occurrence: Occurrence, state: RunState, attempts: Vec<Attempt>) {
        self.runs.insert(occurrence, Run { tenant: TenantId(1), occurrence, state, attempts });
    }

    fn advance(&mut self, due: Option<DueKey>) {
        let Some(due) = due.filter(|_| self.schedule.status == Status::Active) else { return };
        if self.schedule.next <= Some(due.occurrence.nominal) {
            self.schedule.next = Some(due.occurrence.nominal);
            self.due.insert(due);
        }
    }

    fn end_revision(&mut self, end: TimingEnd) {
        self.past.push(PastTiming {
            edition: self.schedule.edition(),
            when: self.schedule.spec.when.clone(),
            from: self.schedule.updated_at,
            until: Some(self.now),
            end,
            by: None,
        });
        self.schedule.revision.0 += 1;
    }

    fn put(&mut self, when: When, keeps_timing: bool) {
        let anchor = self.schedule.updated_at;
        if self.schedule.status == Status::Cancelled {
            return;
        }
        let mut planned = self.schedule.clone();
        (planned.updated_at, planned.status) = (self.now, Status::Active);
        planned.revision.0 += 1;
        if keeps_timing {
            planned.spec.when.keep_since(anchor);
        } else {
            planned.spec.when = when;
        }
        let due = if keeps_timing { kept(&planned, self.now) } else { first(&planned, self.now) };
        let Some(due) = due else { return };
        self.end_revision(TimingEnd::Replaced);
        planned.next = Some(due.occurrence.nominal);
        self.schedule = planned;
        self.due.insert(due);
    }

    fn cancel(&mut self) {
        if self.schedule.status != Status::Cancelled {
            self.end_revision(TimingEnd::Cancelled);
            (self.schedule.status, self.schedule.next) = (Status::Cancelled, None);
        }
    }

    fn redrive(&mut self) {
        let dead = |run: &&Run| {
            let again = Occurrence { replay: run.occurrence.replay + 1, ..run.occurrence };
            run.state == RunState::Failed && !self.runs.contains_key(&again)
        };
        let Some(of) = self.runs.values().find(dead).map(|run| run.occurrence) else { return };
        let due = redrive(of, self.schedule.spec.target.key(), self.now).unwrap();
        if !self.due.iter().any(|key| key.occurrence == due.occurrence) {
            self.due.insert(due);
        }
    }

    fn due_rows(&self) -> Vec<DueKey> {
        self.due.iter().filter(|key| key.position > self.done).copied().collect()
    }

    /// Compares the records between `from` and `done`.
    fn compare(&self, from: Timestamp) -> Differences {
        let before = self.runs.values().rfind(|run| run.occurrence.nominal < from);
        let within = self.runs.values().filter(|run| from <= run.occurrence.nominal);
        let runs: Vec<Run> = before.into_iter().chain(within).cloned().collect();
        let (schedule, past, until) = (&self.schedule, &self.past, self.done);
        differences(&Facts { schedule, past, runs: &runs, due: &self.due_rows(), from, until })
    }

    /// Returns the differences between `from` and `done`, and the missing due row.
    fn differences(&self, from: Timestamp) -> Vec<Difference> {
        let next_has_run = self.schedule.next.is_some_and(|nominal| {
            let next = Occurrence { nominal, replay: 0, ..self.occurrence(0) };
            self.runs.contains_key(&next)
        });
        let mut found = self.compare(from).found;
        found.extend(missing_due_row(&self.schedule, &self.due_rows(), next_has_run));
        found
    }

    fn expect(&self, second: u64, kind: DifferenceKind) {
        let expected = Difference { occurrence: self.occurrence(second), kind };
        assert_eq!(self.differences(at(0)), [expected]);
    }

    fn occurrence(&self, second: u64) -> Occurrence {
        let Schedule { incarnation, revision, .. } = self.schedule;
        Occurrence { incarnation, nominal: at(second), revision, replay: 0 }
    }
}

#[test]
fn removed_outcome_is_named() {
    let mut world = World::processed(every_ten_seconds(), 100);
    assert_eq!(world.differences(at(0)), []);
    world.runs.remove(&world.occurrence(40)).unwrap();
    world.expect(40, DifferenceKind::MissingOutcome);
    assert_eq!(world.differences(at(41)), [], "the stretch starts later");

    let mut world = World::processed(When::At(at(10)), 20);
    assert_eq!((world.schedule.status, world.differences(at(0))), (Status::Ended, Vec::new()));
    world.runs.clear();
    world.expect(10, DifferenceKind::MissingOutcome);
}

#[test]
fn removed_due_row_is_named() {
    let mut world = World::processed(every_ten_seconds(), 100);
    world.due.clear();
    world.expect(110, DifferenceKind::MissingDueRow);
    let mut world = World::new(When::At(at(10)));
    world.due.clear();
    world.expect(10, DifferenceKind::MissingDueRow);
}

#[test]
fn advanced_done_is_named() {
    let mut world = World::new(When::At(at(10)));
    world.done = at(9);
    assert_eq!(world.differences(at(0)), []);
    world.done = at(10);
    world.expect(10, DifferenceKind::MissingDueRow);
    let mut world = World::processed(every_ten_seconds(), 100);
    world.done = at(500);
    world.expect(110, DifferenceKind::MissingDueRow);
}

#[test]
fn outcome_of_no_occurrence_is_named() {
    let mut world = World::processed(every_ten_seconds(), 100);
    let healthy = world.clone();
    world.write(world.occurrence(45), RunState::Succeeded, Vec::new());
    world.expect(45, DifferenceKind::NoSuchOccurrence);

    let mut world = healthy.clone();
    let future = Occurrence { revision: Revision(1), ..world.occurrence(40) };
    world.write(future, RunState::Succeeded, Vec::new());
    let expected = Difference { occurrence: future, kind: DifferenceKind::NoSuchRevision };
    assert_eq!(world.differences(at(0)), [expected]);

    let mut world = healthy.clone();
    world.done = at(200);
    world.write(world.occurrence(150), RunState::Succeeded, Vec::new());
    let named = world.differences(at(0));
    let expected = Difference { occurrence: world.occurrence(150), kind: DifferenceKind::NotStarted };
    assert!(named.contains(&expected), "{named:?}");

    let mut world = healthy;
    let replay = Occurrence { replay: 1, ..world.occurrence(40) };
    world.write(replay, RunState::Succeeded, Vec::new());
    let expected = Difference { occurrence: replay, kind: DifferenceKind::NotRedriven };
    assert_eq!(world.differences(at(0)), [expected]);
}

#[test]
fn duplicate_and_wrong_count_are_named() {
    let mut world = World::new(every_ten_seconds());
    world.pass(100, &[Fate::Succeeds; 2]);
    assert_eq!(world.differences(at(0)), []);
    assert_eq!(world.differences(at(50)), [], "the record covers instants after its own instant");
    let mut counted = world.clone();
    world.write(world.occurrence(40), RunState::Succeeded, Vec::new());
    world.expect(40, DifferenceKind::Duplicate);
    let state = RunState::Missed { last: at(90), count: 8, attempt_possible: false };
    counted.write(counted.occurrence(10), state, Vec::new());
    counted.expect(10, DifferenceKind::WrongCount);
}

#[test]
fn retry_without_a_due_row_is_named_after_its_wait() {
    let mut world = World::new(When::At(at(10)));
    world.pass(10, &[Fate::Fails]);
    world.due.clear();
    world.done = at(29);
    assert_eq!(world.differences(at(0)), []);
    world.done = at(30);
    world.expect(10, DifferenceKind::MissingRetry);
}

#[test]
fn void_occurrence_of_an_ended_revision_is_not_named() {
    let mut world = World::processed(every_ten_seconds(), 35);
    world.pass(6, &[Fate::IsLost]);
    world.pass(10, &[]);
    world.put(every_ten_seconds(), false);
    world.pass(30, &[Fate::Succeeds; 4]);
    assert!(!world.runs.keys().any(|of| of.nominal == at(40)));
    assert_eq!(world.differences(at(0)), []);
}

#[test]
fn run_under_earlier_zone_data_is_not_named() {
    let cron = Cron::parse("30 3 * * *", "Africa/Cairo").unwrap();
    let mut world = World::processed(When::Cron(cron), 1);
    let next = world.schedule.next.unwrap();
    // An earlier build fired an hour later.
    let fired = Occurrence { nominal: next + Duration::from_secs(3_600), ..world.occurrence(0) };
    world.write(fired, RunState::Succeeded, Vec::new());
    world.schedule.next = Some(next + Duration::from_secs(90_000));
    world.due = BTreeSet::from([DueKey {
        position: world.schedule.next.unwrap(),
        occurrence: Occurrence { nominal: world.schedule.next.unwrap(), ..fired },
        attempt: 1,
        target: world.schedule.spec.target.key(),
    }]);
    world.done = next + Duration::from_secs(7_200);
    assert_eq!(world.differences(at(0)), []);
    // No data of a time zone moves an instant by some seconds.
    let odd = Occurrence { nominal: next + Duration::from_secs(7), ..fired };
    world.write(odd, RunState::Succeeded, Vec::new());
    let expected = Difference { occurrence: odd, kind: DifferenceKind::NoSuchOccurrence };
    assert_eq!(world.differences(at(0)), [expected]);
}

/// Returns a schedule that is due daily, and its first two instants. No run exists, and the schedule waits for an
/// instant some days later.
fn daily(waits_for: impl Fn(Timestamp) -> Timestamp) -> (World, [Timestamp; 2]) {
    let cron = Cron::parse("30 3 * * *", "Africa/Cairo").unwrap();
    let mut world = World::new(When::Cron(cron));
    let first = world.schedule.next.unwrap();
    let next = waits_for(first);
    world.schedule.next = Some(next);
    let due = world.due.pop_first().unwrap();
    let occurrence = Occurrence { nominal: next, ..due.occurrence };
    world.due.insert(DueKey { position: next, occurrence, ..due });
    world.done = first + Duration::from_secs(25 * 3_600);
    (world, [first, first + DAY])
}

#[test]
fn outcome_before_new_zone_data_is_not_named() {
    let hour = Duration::from_secs(3_600);
    let (world, instants) = daily(|first| first + DAY * 2);
    let missing = instants.map(|nominal| Difference {
        occurrence: Occurrence { nominal, ..world.occurrence(0) },
        kind: DifferenceKind::MissingOutcome,
    });
    assert_eq!(world.differences(at(0)), missing);
    // A run before the stretch shows that an earlier build had other data.
    let mut earlier = world.clone();
    let fired = Occurrence { nominal: instants[0] + hour, ..world.occurrence(0) };
    earlier.write(fired, RunState::Succeeded, Vec::new());
    assert_eq!(earlier.differences(instants[0] + hour * 2), []);
    assert!(earlier.compare(instants[0] + hour * 2).has_other_zone_data);
    // The next instant shows it.
    let (world, _) = daily(|first| first + DAY * 2 - hour);
    assert_eq!(world.differences(at(0)), []);
}

#[test]
fn run_before_the_clock_of_the_creator_is_not_named() {
    let mut world = World::processed(every_ten_seconds(), 35);
    world.schedule.created_at = at(69);
    assert_eq!(world.differences(at(0)), [], "the clock of the change is a minute behind");
    world.schedule.created_at = at(70);
    world.expect(10, DifferenceKind::NoSuchOccurrence);
}

#[test]
fn waiting_retry_does_not_hide_a_removed_due_row() {
    let mut world = World::processed(every_ten_seconds(), 35);
    world.pass(6, &[Fate::Fails]);
    assert_eq!(world.differences(at(0)), []);
    world.due.retain(|key| key.attempt > 1);
    assert_eq!(world.due.len(), 1, "the retry waits");
    world.expect(50, DifferenceKind::MissingDueRow);
}

#[test]
fn comparison_reports_that_it_is_cut() {
    let mut world = World::processed(When::every(Duration::from_secs(1)), 1_010);
    world.runs.retain(|of, _| of.nominal >= at(1_001));
    let all = world.compare(at(0));
    assert_eq!((all.found.len(), all.is_cut), (DIFFERENCES_MAX, false));
    world.runs.pop_first();
    let cut = world.compare(at(0));
    assert_eq!((cut.found.len(), cut.is_cut), (DIFFERENCES_MAX, true));
}

fn any_when() -> impl Strategy<Value = When> {
    let cron = |text| When::Cron(Cron::parse(text, "UTC").unwrap());
    prop_oneof![
        (0..400_u64).prop_map(|second| When::At(at(second))),
        (1..40_u64).prop_map(|seconds| When::every(Duration::from_secs(seconds))),
        Just(cron("*/7 * * * * *")),
        Just(cron("* * * * *")),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        6 => Just(Fate::Succeeds),
        2 => Just(Fate::Fails),
        1 => Just(Fate::IsLost),
        1 => Just(Fate::IsDeferred),
    ];
    let pass = (0..60_u64, prop::collection::vec(fate, 0..6));
    prop_oneof![
        20 => pass.prop_map(|(seconds, fates)| Step::Pass { seconds, fates }),
        2 => (any_when(), any::<bool>()).prop_map(|(when, keeps_timing)| Step::Put { when, keeps_timing }),
        1 => Just(Step::Cancel),
        2 => Just(Step::Redrive),
    ]
}

fn any_world() -> impl Strategy<Value = World> {
    (any_when(), prop::collection::vec(any_step(), 1..60)).prop_map(|(when, steps)| {
        let mut world = World::new(when);
        steps.iter().for_each(|step| world.apply(step));
        world
    })
}

proptest! {
    #[test]
    fn history_without_faults_has_no_difference(world in any_world(), from in 0..1_000_u64) {
        prop_assert_eq!(world.differences(at(from)), []);
    }

    #[test]
    fn each_planted_fault_is_named(world in any_world(), pick in any::<prop::sample::Index>()) {
        let mut planted = Vec::new();
        let Schedule { revision, status, next, updated_at, .. } = world.schedule;
        let is_one_shot = matches!(world.schedule.spec.when, When::At(_));
        let is_first = |of: &Occurrence| of.replay == 0 && of.revision == revision;
        let is_behind = |of: &&Occurrence| {
            let is_alone = world.runs.keys().filter(|it| it.nominal == of.nominal && it.replay == 0).count() == 1;
            let has_started = next.map_or(status == Status::Ended, |next| of.nominal < next);
            let is_open = world.due.iter().any(|key| key.occurrence == **of && key.attempt == 1);
            let is_required = is_one_shot || of.nominal > updated_at;
            is_first(of) && is_alone && has_started && !is_open && is_required && of.nominal <= world.done
        };
        let behind: Vec<Occurrence> = world.runs.keys().filter(is_behind).copied().collect();
        if !behind.is_empty() {
            let mut faulty = world.clone();
            let of = *pick.get(&behind);
            faulty.runs.remove(&of);
            planted.push((faulty, of, DifferenceKind::MissingOutcome));
        }
        if let (Status::Active, Some(next)) = (status, next) {
            let waiting = Occurrence { nominal: next, revision, ..world.occurrence(0) };
            let is_ended = matches!(world.schedule.spec.when, When::At(_)) && world.runs.contains_key(&waiting);
            if !is_ended {
                let mut faulty = world.clone();
                faulty.due.clear();
                planted.push((faulty, waiting, DifferenceKind::MissingDueRow));
                let mut faulty = world.clone();
                faulty.done = faulty.due.last().map_or(next, |key| key.position.max(next));
                planted.push((faulty, waiting, DifferenceKind::MissingDueRow));
            }
        }
        if world.done >= at(1) && status != Status::Cancelled {
            let mut faulty = world.clone();
            let second = Duration::from_secs(world.done.since(at(0)).as_secs());
            let of = Occurrence { nominal: at(0) + second + MILLI, ..world.occurrence(0) };
            if of.nominal <= world.done {
                faulty.write(of, RunState::Succeeded, Vec::new());
                planted.push((faulty, of, DifferenceKind::NoSuchOccurrence));
            }
        }
        let missed = world.runs.values().find_map(|run| match run.state {
            RunState::Missed { last, .. } if is_first(&run.occurrence) && last > run.occurrence.nominal => {
                Some(Occurrence { nominal: last, ..run.occurrence })
            }
            _ => None,
        });
        if let Some(of) = missed.filter(|of| of.nominal <= world.done) {
            let mut faulty = world.clone();
            faulty.write(of, RunState::Succeeded, Vec::new());
            planted.push((faulty, of, DifferenceKind::Duplicate));
        }
        for (faulty, occurrence, kind) in planted {
            let named = faulty.differences(at(0));
            prop_assert!(named.contains(&Difference { occurrence, kind }), "{:?} {:?} {:?}", kind, occurrence, named);
        }
    }
}
