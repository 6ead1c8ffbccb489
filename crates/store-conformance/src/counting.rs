//! Test cases of the counts of final runs. Each case compares the counts with the counts of a scan of all runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Attempt, AttemptResult, Counts, DueKey, Facet, Hour, Occurrence, RunOrigin, RunSample, RunState, RunStateKind,
    Schedule, ScheduleId, TenantId, Timestamp,
};
use futures_util::future::join_all;
use store::report::{HOURS_AT_ONCE, ReportBy, ReportRead, ReportRow, RowKey, report};
use store::{Change, CountRead, WriteRejection};

use crate::Subject;
use crate::fixture::{Fixture, OTHER_TENANT, TENANT, due_of, insert_in, minute, poller, run_of};

/// Number of pollers of each tenant in these cases. The pollers have different shards.
const POLLERS: u16 = 6;

/// Sequence of numbers that look random, and are the same in each run of the tests.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % end
    }
}

/// Runs of schedules, each with the origin that the store received with it.
#[derive(Default)]
struct Known {
    schedules: Vec<Arc<Schedule>>,
    origins: BTreeMap<Occurrence, Option<RunOrigin>>,
}

impl Known {
    async fn create(&mut self, fixture: &Fixture, tenant: TenantId, count: u16) {
        for number in 0..count {
            let incarnation = fixture.numbers.incarnation();
            let poller = poller(tenant, number % POLLERS);
            let insert = insert_in(poller, incarnation, ScheduleId::from_incarnation(incarnation), minute(1));
            self.schedules.push(fixture.create(insert).await);
        }
    }

    /// Returns the counts of a facet that a scan of the runs gives.
    async fn scanned(&self, fixture: &Fixture, tenant: TenantId, facet: Facet) -> Vec<(Hour, Counts)> {
        let mut hours: BTreeMap<Hour, Counts> = BTreeMap::new();
        for schedule in self.schedules.iter().filter(|schedule| schedule.tenant == tenant) {
            let runs = fixture.store.runs(schedule.incarnation, None, usize::MAX).await;
            for run in runs.expect("the store accepts reads") {
                if let Some(sample) = RunSample::of(&run) {
                    let hour = hours.entry(Hour::of(run.occurrence.nominal)).or_default();
                    hour.record(facet, self.origins[&run.occurrence].as_ref(), &sample);
                }
            }
        }
        hours.into_iter().collect()
    }

    /// Asserts that the counts of both tenants equal the counts of a scan.
    async fn check(&self, fixture: &Fixture) {
        let (from, until) = (Hour::of(minute(0)), Hour::of(minute(100 * 60)));
        for tenant in [TENANT, OTHER_TENANT] {
            for facet in Facet::ALL {
                let page = fixture.store.counts(CountRead { tenant, facet, from, until }).await;
                let page = page.expect("the store accepts reads");
                assert_eq!(page.hours, self.scanned(fixture, tenant, facet).await, "{tenant:?} {facet:?}");
                assert!(page.counted_from <= from, "a new store counts all runs");
            }
        }
    }
}

fn attempt(number: u16, started_at: Timestamp, duration: u64) -> Attempt {
    let duration = Duration::from_millis(duration);
    let result = AttemptResult::Answered(503);
    Attempt { number, started_at, duration, result, delay: None, excerpt: None }
}

fn origin(numbers: &mut Numbers) -> Option<RunOrigin> {
    let host = (numbers.below(4) > 0).then(|| format!("host-{}.example", numbers.below(5)));
    let team = ("team".to_owned(), format!("team-{}", numbers.below(3)));
    let app = ("app".to_owned(), "a=\"b\"\n".to_owned());
    let labels = [team, app].into_iter().take(usize::try_from(numbers.below(3)).unwrap_or(0)).collect();
    (numbers.below(5) > 0).then_some(RunOrigin { host, labels })
}

/// Returns the changes that write a run: first its retries, if it has any, and then its final record.
fn changes_of(schedule: &Schedule, nominal: Timestamp, numbers: &mut Numbers, known: &mut Known) -> Vec<Change> {
    let due = due_of(schedule, nominal);
    let occurrence = Occurrence { replay: u16::try_from(numbers.below(2)).unwrap_or(0), ..due.occurrence };
    let origin = origin(numbers);
    known.origins.insert(occurrence, origin.clone());
    let run = |state, attempts| Run { tenant: schedule.tenant, occurrence, state, attempts };
    let mut changes = Vec::new();
    let mut attempts = Vec::new();
    for number in 1..=u16::try_from(numbers.below(3)).unwrap_or(0) {
        attempts.push(attempt(number, nominal + Duration::from_millis(numbers.below(100_000)), numbers.below(9_000)));
        let then = Some(DueKey { occurrence, position: minute(90 * 60), attempt: number + 1, ..due });
        let run = run(RunState::Retrying, attempts.clone());
        changes.push(Change::Run { run, then, ends: false, origin: None });
    }
    let missed = RunState::Missed { last: nominal, count: 3, attempt_possible: false };
    let states = [RunState::Succeeded, RunState::Failed, RunState::Cancelled, missed];
    let state = states[usize::try_from(numbers.below(4)).unwrap_or(0)];
    if matches!(state, RunState::Succeeded | RunState::Failed) {
        let number = u16::try_from(attempts.len()).unwrap_or(0) + 1;
        attempts.push(attempt(number, nominal + Duration::from_millis(numbers.below(50)), numbers.below(9_000)));
    }
    // Some runs stay in the state `retrying`, and count nowhere.
    if changes.is_empty() || numbers.below(4) > 0 {
        changes.push(Change::Run { run: run(state, attempts), then: None, ends: false, origin });
    }
    changes
}

/// Writes random runs of the schedules, in batches of several runs.
async fn write_some(fixture: &Fixture, known: &mut Known, numbers: &mut Numbers, from_hour: i64) {
    for schedule in known.schedules.clone() {
        let owner = fixture.owner(schedule.poller).await;
        let mut batch = Vec::new();
        for number in 0..6 {
            let at = minute(from_hour * 60 + i64::try_from(numbers.below(180)).unwrap_or(0) + number * 200);
            batch.extend(changes_of(&schedule, at, numbers, known));
        }
        // Half of the batches are single writes, so that a run reaches its final record in a later call.
        if numbers.below(2) == 0 {
            let writes = batch.iter().map(|change| owner.request(change.clone())).collect();
            let results = fixture.store.write(writes).await.expect("the store accepts an owner's writes");
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        } else {
            for change in &batch {
                owner.write(change.clone()).await;
            }
        }
        // A repeated outcome has no effect, so it does not count.
        if let Some(last @ Change::Run { run, .. }) = batch.last()
            && run.state.is_final()
        {
            assert_eq!(owner.try_write(last.clone()).await, Err(WriteRejection::Resolved));
        }
    }
}

pub(super) async fn counts_equal_a_scan_of_the_runs(subject: &dyn Subject) {
    let mut fixture = Fixture::open(subject).await;
    let (mut known, mut numbers) = (Known::default(), Numbers(7));
    known.create(&fixture, TENANT, 8).await;
    known.create(&fixture, OTHER_TENANT, 2).await;
    for round in 0..3 {
        // The rounds overlap, so that a reopened store adds runs to the counts of earlier hours.
        write_some(&fixture, &mut known, &mut numbers, round * 10).await;
        known.check(&fixture).await;
        fixture = fixture.reopen(subject).await;
        known.check(&fixture).await;
    }
    let states = known.scanned(&fixture, TENANT, Facet::All).await;
    let runs: u64 = states.iter().flat_map(|(_, counts)| counts.groups().values()).flatten().map(|(_, t)| t.runs).sum();
    assert!(runs > 50, "the case writes many runs: {runs}");
}

pub(super) async fn concurrent_outcomes_of_an_hour_are_all_counted(subject: &dyn Subject) {
    const RUNS: i64 = 20;
    let fixture = Fixture::open(subject).await;
    let mut known = Known::default();
    known.create(&fixture, TENANT, 2 * POLLERS).await;
    let mut owners = BTreeMap::new();
    for schedule in &known.schedules {
        if let std::collections::btree_map::Entry::Vacant(vacant) = owners.entry(schedule.poller) {
            vacant.insert(fixture.owner(schedule.poller).await);
        }
    }
    let origin = Some(RunOrigin { host: Some("a.example".to_owned()), labels: Vec::new() });
    let mut writes = Vec::new();
    for number in 0..RUNS {
        for schedule in &known.schedules {
            let occurrence = due_of(schedule, minute(number % 3)).occurrence;
            let occurrence = Occurrence { replay: u16::try_from(number).unwrap_or(0), ..occurrence };
            known.origins.insert(occurrence, origin.clone());
            let run = run_of(TENANT, occurrence, RunState::Succeeded);
            let change = Change::Run { run, then: None, ends: false, origin: origin.clone() };
            let owner = &owners[&schedule.poller];
            writes.push(async move { owner.write(change).await });
        }
    }
    join_all(writes).await;
    known.check(&fixture).await;
    let fixture = fixture.reopen(subject).await;
    known.check(&fixture).await;
}

pub(super) async fn report_adds_up_the_hours_of_its_range(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let mut known = Known::default();
    known.create(&fixture, TENANT, 1).await;
    let schedule = known.schedules[0].clone();
    let owner = fixture.owner(schedule.poller).await;
    let first = Hour::of(minute(0));
    // The range has several slices. The runs are in the first and the last hour of a slice.
    let hours = [0, 1, HOURS_AT_ONCE - 1, HOURS_AT_ONCE, 2 * HOURS_AT_ONCE];
    for (number, hour) in (0..).zip(hours) {
        let nominal = Hour(first.0 + hour).start();
        let state = if number == 1 { RunState::Failed } else { RunState::Succeeded };
        let mut run = run_of(TENANT, due_of(&schedule, nominal).occurrence, state);
        run.attempts = vec![attempt(1, nominal + Duration::from_millis(number), 100)];
        let labels = vec![("team".to_owned(), if number < 2 { "blue" } else { "red" }.to_owned())];
        let origin = Some(RunOrigin { host: Some(format!("host-{}.example", number % 2)), labels });
        owner.write(Change::Run { run, then: None, ends: false, origin }).await;
    }
    let last = Hour(first.0 + 2 * HOURS_AT_ONCE);
    let whole = ReportRead { tenant: TENANT, by: ReportBy::State, from: first, until: Hour(last.0 + 1), state: None };
    let rows = async |read: ReportRead| {
        let report = report(&*fixture.store, &read, || async {}).await.expect("the store accepts reads");
        assert_eq!(report.counted_from, None);
        report.rows
    };
    let runs = |rows: BTreeMap<RowKey, ReportRow>| rows.values().map(ReportRow::runs).collect::<Vec<_>>();

    let by_state = rows(whole).await;
    let succeeded = &by_state[&RowKey::State(RunStateKind::Succeeded)];
    assert_eq!((succeeded.runs(), by_state[&RowKey::State(RunStateKind::Failed)].runs()), (4, 1));
    assert_eq!((succeeded.lateness.percentile(50), succeeded.lateness.max()), (Some(2), Some(4)));
    assert_eq!(succeeded.duration.percentile(99), Some(100));
    let by_hour = rows(ReportRead { by: ReportBy::Hour, ..whole }).await;
    let expected: Vec<RowKey> = hours.iter().map(|hour| RowKey::Hour(Hour(first.0 + hour))).collect();
    assert_eq!(by_hour.keys().cloned().collect::<Vec<_>>(), expected);
    assert_eq!(runs(rows(ReportRead { by: ReportBy::Host, ..whole }).await), [3, 2]);
    assert_eq!(runs(rows(ReportRead { by: ReportBy::Label, ..whole }).await), [2, 3]);
    let failed = ReportRead { by: ReportBy::Label, state: Some(RunStateKind::Failed), ..whole };
    assert_eq!(runs(rows(failed).await), [1]);
    assert_eq!(runs(rows(ReportRead { until: last, ..whole }).await), [3, 1], "the range excludes its end");
    assert_eq!(runs(rows(ReportRead { from: Hour(first.0 + 2), ..whole }).await), [3]);
    assert_eq!(runs(rows(ReportRead { from: last, until: last, ..whole }).await), []);
    assert_eq!(runs(rows(ReportRead { tenant: OTHER_TENANT, ..whole }).await), [], "an empty tenant has no rows");
}
