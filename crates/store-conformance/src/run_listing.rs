//! Test cases of listings of runs by time.

use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Attempt, AttemptResult, DueKey, HttpTarget, Incarnation, Occurrence, RunFilter, RunState, RunStateKind, Schedule,
    ScheduleId, Target, TenantId, Timestamp,
};

use crate::Subject;
use crate::fixture::{Fixture, OTHER_TENANT, TENANT, due_of, insert_of, minute, poller, run_of, yield_times};
use store::runs::{EXAMINED_MAX, Monotonic, RunListing, SCHEDULES_MAX, page};
use store::{Change, Order, RunRead};

const ORDERS: [Order; 2] = [Order::Oldest, Order::Newest];

/// Listing of all runs of the tenant.
const ALL: RunListing<'_> = RunListing {
    tenant: TENANT,
    schedule: None,
    label: None,
    host: None,
    filter: RunFilter { state: None, status: None, late_by: None },
    from: Timestamp::MIN,
    until: Timestamp::MAX,
    order: Order::Oldest,
    after: None,
    limit: 100,
};

/// Lists runs in pages of `limit` runs.
async fn listed_by(fixture: &Fixture, listing: &RunListing<'_>, limit: usize) -> Vec<Run> {
    let (mut runs, mut listing) = (Vec::new(), RunListing { limit, ..listing.clone() });
    loop {
        let page = page(&*fixture.store, &listing, Default::default, || async {}).await;
        let page = page.expect("the store accepts reads");
        assert!(page.runs.len() <= limit, "a page contains at most `limit` runs");
        assert_eq!(page.unreadable, 0, "the store can read every run");
        let schedules = page.runs.iter().map(|(run, _)| run.occurrence.incarnation).collect();
        let schedules = fixture.store.load(schedules).await.expect("the store accepts reads");
        for ((run, id), schedule) in page.runs.into_iter().zip(schedules) {
            assert_eq!(id, schedule.map(|schedule| schedule.id.clone()), "a listed run has the id of its schedule");
            runs.push(run);
        }
        assert!(page.next.is_none_or(|next| Some(next) != listing.after), "the next page is after this page");
        listing.after = page.next;
        if page.next.is_none() {
            return runs;
        }
    }
}

/// Lists runs in both orders and in pages of several sizes. Asserts that all these listings contain the same runs, and
/// returns the runs with the oldest first.
async fn listed(fixture: &Fixture, listing: &RunListing<'_>) -> Vec<Run> {
    let expected = listed_by(fixture, listing, 1_000).await;
    for order in ORDERS {
        for limit in [1, 3, 100] {
            let mut runs = listed_by(fixture, &RunListing { order, ..listing.clone() }, limit).await;
            if order == Order::Newest {
                runs.reverse();
            }
            assert_eq!(runs, expected, "{order:?} by {limit}");
        }
    }
    expected
}

/// Returns the runs of the schedules that match `is_wanted`, as the store returns them for each schedule.
async fn runs_of(fixture: &Fixture, schedules: &[Arc<Schedule>], is_wanted: impl Fn(&Run) -> bool) -> Vec<Run> {
    let mut runs = Vec::new();
    for schedule in schedules {
        let read = fixture.store.runs(schedule.incarnation, None, usize::MAX).await;
        runs.extend(read.expect("the store accepts reads").into_iter().filter(&is_wanted));
    }
    runs.sort_by_key(|run| run.occurrence.by_time());
    runs
}

async fn write(fixture: &Fixture, schedule: &Schedule, run: Run) {
    let then = (run.state == RunState::Retrying).then(|| {
        let due = due_of(schedule, run.occurrence.nominal);
        DueKey { position: minute(10_000), occurrence: run.occurrence, attempt: 2, ..due }
    });
    let owner = fixture.owner(schedule.poller).await;
    owner.write(Change::Run { run, then, ends: false, origin: None }).await;
}

/// Creates `count` schedules of `tenant`, each with runs at three instants. Runs of different schedules have the same
/// instants, and the store receives the runs in another order than their instants.
async fn schedules_with_runs(fixture: &Fixture, tenant: TenantId, count: i64) -> Vec<Arc<Schedule>> {
    let mut schedules = Vec::new();
    for number in 0..count {
        let incarnation = fixture.numbers.incarnation();
        let insert = insert_of(tenant, incarnation, ScheduleId::from_incarnation(incarnation), minute(1));
        let schedule = fixture.create(insert).await;
        for at in [number % 3 + 2, 10 - number, 1] {
            let occurrence = due_of(&schedule, minute(at)).occurrence;
            write(fixture, &schedule, run_of(tenant, occurrence, RunState::Succeeded)).await;
        }
        schedules.push(schedule);
    }
    schedules
}

pub(super) async fn runs_are_listed_by_time(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let ours = schedules_with_runs(&fixture, TENANT, 7).await;
    let theirs = schedules_with_runs(&fixture, OTHER_TENANT, 2).await;
    let all = runs_of(&fixture, &ours, |_| true).await;
    assert_eq!(all.len(), 21);
    assert_eq!(listed(&fixture, &ALL).await, all);
    let others = RunListing { tenant: OTHER_TENANT, ..ALL };
    assert_eq!(listed(&fixture, &others).await, runs_of(&fixture, &theirs, |_| true).await);
    assert_eq!(listed(&fixture, &RunListing { tenant: TenantId(3), ..ALL }).await, []);
    for (from, until) in
        [(1, 4), (4, 5), (2, 2), (5, 100), (100, 200)].map(|(from, until)| (minute(from), minute(until)))
    {
        let in_range = RunListing { from, until, ..ALL };
        let expected = runs_of(&fixture, &ours, |run| (from..until).contains(&run.occurrence.nominal)).await;
        assert_eq!(listed(&fixture, &in_range).await, expected, "the range includes its start and excludes its end");
    }
    // A page can start after an occurrence that has no run.
    let between = Occurrence { incarnation: Incarnation(0), ..due_of(&ours[0], minute(4)).occurrence };
    let later = RunListing { after: Some(between), ..ALL };
    let expected = runs_of(&fixture, &ours, |run| run.occurrence.nominal >= minute(4)).await;
    assert_eq!(listed_by(&fixture, &later, 3).await, expected);
    let whole = page(&*fixture.store, &RunListing { limit: 21, ..ALL }, Default::default, || async {}).await;
    assert_eq!(whole.expect("the store accepts reads").next, None, "there is no page after the last run");

    let fixture = fixture.reopen(subject).await;
    assert_eq!(listed(&fixture, &ALL).await, all);
}

pub(super) async fn runs_are_listed_by_state_status_and_lateness(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.unnamed(minute(1))).await;
    let missed = RunState::Missed { last: minute(900), count: 2, attempt_possible: false };
    let states = [RunState::Succeeded, RunState::Retrying, RunState::Failed, missed, RunState::Cancelled];
    let results = [
        vec![AttemptResult::Answered(200)],
        vec![AttemptResult::Answered(503), AttemptResult::Answered(204)],
        vec![AttemptResult::TimedOut, AttemptResult::Answered(500), AttemptResult::Answered(503)],
        vec![AttemptResult::Stored { partition: 1, offset: 2 }],
        Vec::new(),
    ];
    for (number, (state, results)) in
        (0_u32..).zip(states.iter().flat_map(|state| results.iter().map(move |it| (state, it))))
    {
        let replay = u16::from(number.is_multiple_of(9));
        let occurrence = Occurrence { replay, ..due_of(&schedule, minute(i64::from(number))).occurrence };
        let attempts = (1_u16..).zip(results).map(|(attempt, result)| Attempt {
            number: attempt,
            started_at: occurrence.nominal + number * Duration::from_millis(100),
            duration: Duration::from_millis(7),
            result: result.clone(),
            delay: None,
            excerpt: None,
        });
        let run = Run { tenant: TENANT, occurrence, state: *state, attempts: attempts.collect() };
        write(&fixture, &schedule, run).await;
    }
    let schedules = [schedule.clone()];
    let filters = RunStateKind::ALL.map(Some).into_iter().chain([None]).flat_map(|state| {
        let statuses = [None, Some(503), Some(204), Some(404)];
        statuses.into_iter().map(move |status| RunFilter { state, status, late_by: None })
    });
    let by_lateness = [0, 300, 1_200, 9_000].map(Duration::from_millis).map(|late_by| {
        let state = (late_by.as_millis() == 300).then_some(RunStateKind::Succeeded);
        RunFilter { late_by: Some(late_by), state, status: None }
    });
    let mut counts = Vec::new();
    for filter in filters.chain(by_lateness) {
        let expected = runs_of(&fixture, &schedules, |run| filter.matches(&domain::RunOutline::of(run))).await;
        for schedule in [None, Some(schedule.incarnation)] {
            for order in ORDERS {
                let mut runs = listed_by(&fixture, &RunListing { filter, schedule, order, ..ALL }, 4).await;
                if order == Order::Newest {
                    runs.reverse();
                }
                assert_eq!(runs, expected, "{filter:?}");
            }
        }
        counts.push(expected.len());
    }
    assert_eq!(counts[20..], [25, 10, 5, 0, 18, 1, 9, 0], "the filters select these numbers of runs");
}

pub(super) async fn retried_run_is_listed_in_its_new_state(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.unnamed(minute(1))).await;
    let finals = [RunState::Succeeded, RunState::Failed, RunState::Cancelled];
    let mut runs = Vec::new();
    for (at, state) in (1..).zip(finals) {
        let mut run = run_of(TENANT, due_of(&schedule, minute(at)).occurrence, RunState::Retrying);
        write(&fixture, &schedule, run.clone()).await;
        write(&fixture, &schedule, run.clone()).await;
        assert_eq!(listed(&fixture, &by_state(RunStateKind::Retrying)).await, [run.clone()]);
        run.state = state;
        write(&fixture, &schedule, run.clone()).await;
        assert_eq!(listed(&fixture, &by_state(state.kind())).await, [run.clone()]);
        runs.push(run);
    }
    assert_eq!(listed(&fixture, &by_state(RunStateKind::Retrying)).await, []);
    assert_eq!(listed(&fixture, &ALL).await, runs);
    let fixture = fixture.reopen(subject).await;
    assert_eq!(listed(&fixture, &ALL).await, runs);
}

pub(super) async fn runs_with_the_same_instant_are_listed(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let mut schedules = Vec::new();
    for _ in 0..3 {
        let schedule = fixture.create(fixture.unnamed(minute(1))).await;
        for (at, replay) in [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)] {
            let occurrence = Occurrence { replay, ..due_of(&schedule, minute(at)).occurrence };
            write(&fixture, &schedule, run_of(TENANT, occurrence, RunState::Succeeded)).await;
        }
        schedules.push(schedule);
    }
    let all = runs_of(&fixture, &schedules, |_| true).await;
    assert_eq!(listed(&fixture, &ALL).await, all);
    for schedule in &schedules {
        let of_schedule = RunListing { schedule: Some(schedule.incarnation), ..ALL };
        let expected = runs_of(&fixture, std::slice::from_ref(schedule), |_| true).await;
        assert_eq!(listed(&fixture, &of_schedule).await, expected);
    }
    let several: Vec<Incarnation> = schedules.iter().map(|schedule| schedule.incarnation).collect();
    for order in ORDERS {
        let (from, until) = (Timestamp::MIN, Timestamp::MAX);
        let filter = RunFilter::default();
        let schedules = Some(several.clone());
        let mut read = RunRead { tenant: TENANT, schedules, from, until, filter, order, after: None, limit: 1 };
        let mut found = Vec::new();
        loop {
            let list = fixture.store.list_runs(read.clone()).await.expect("the store accepts reads");
            found.extend(list.runs);
            read.after = list.next;
            if list.next.is_none() {
                break;
            }
        }
        if order == Order::Newest {
            found.reverse();
        }
        assert_eq!(found, all, "{order:?}");
    }
}

fn by_state(state: RunStateKind) -> RunListing<'static> {
    RunListing { filter: RunFilter { state: Some(state), ..RunFilter::default() }, ..ALL }
}

pub(super) async fn runs_are_listed_by_schedule_label_and_host(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let many = i64::try_from(SCHEDULES_MAX).expect("the number is small") + 6;
    let mut schedules = Vec::new();
    for number in 0..many {
        let mut insert = fixture.unnamed_in(poller(TENANT, 0), minute(number % 7));
        let spec = &mut Arc::make_mut(&mut insert.schedule).spec;
        spec.labels.insert("team".to_owned(), "blue".to_owned());
        if number % 30 == 5 {
            spec.labels.insert("order".to_owned(), number.to_string());
            spec.labels.insert("rare".to_owned(), "yes".to_owned());
        }
        let host = if number % 3 == 0 { "https://Shop.example:8443/" } else { "http://127.1/" };
        let Target::Http(http) = &spec.target else { panic!("the fixture creates schedules with URLs") };
        spec.target = Target::Http(HttpTarget { url: host.to_owned(), ..http.clone() });
        let schedule = fixture.create(insert).await;
        let state = if number % 2 == 0 { RunState::Succeeded } else { RunState::Failed };
        write(&fixture, &schedule, run_of(TENANT, due_of(&schedule, minute(number % 7)).occurrence, state)).await;
        schedules.push(schedule);
    }
    let with = |is_wanted: &dyn Fn(usize) -> bool| {
        let wanted = schedules.iter().enumerate().filter(|(number, _)| is_wanted(*number));
        wanted.map(|(_, schedule)| schedule.clone()).collect::<Vec<_>>()
    };
    let all = runs_of(&fixture, &schedules, |_| true).await;
    let blue = RunListing { label: Some(("team", "blue")), ..ALL };
    assert_eq!(listed(&fixture, &blue).await, all);
    let rare = runs_of(&fixture, &with(&|number| number % 30 == 5), |_| true).await;
    assert_eq!(rare.len(), 3);
    assert_eq!(listed(&fixture, &RunListing { label: Some(("rare", "yes")), ..ALL }).await, rare);
    assert_eq!(listed(&fixture, &RunListing { label: Some(("rare", "no")), ..ALL }).await, []);
    let shop = runs_of(&fixture, &with(&|number| number % 3 == 0), |_| true).await;
    assert_eq!(listed(&fixture, &RunListing { host: Some("shop.example"), ..ALL }).await, shop);
    assert_eq!(listed(&fixture, &RunListing { host: Some("example.com"), ..ALL }).await, []);
    let filter = RunFilter { state: Some(RunStateKind::Failed), ..RunFilter::default() };
    let failed = runs_of(&fixture, &with(&|number| number % 3 == 0 && number % 2 == 1), |_| true).await;
    assert_eq!(listed(&fixture, &RunListing { host: Some("shop.example"), filter, ..blue.clone() }).await, failed);
    let (one, incarnation) = (&schedules[5..6], schedules[5].incarnation);
    let of_schedule = RunListing { schedule: Some(incarnation), ..ALL };
    assert_eq!(listed(&fixture, &of_schedule).await, runs_of(&fixture, one, |_| true).await);
    assert_eq!(listed(&fixture, &RunListing { label: Some(("order", "5")), ..of_schedule.clone() }).await.len(), 1);
    assert_eq!(listed(&fixture, &RunListing { label: Some(("order", "35")), ..of_schedule.clone() }).await, []);
    assert_eq!(listed(&fixture, &RunListing { tenant: OTHER_TENANT, ..of_schedule }).await, []);
}

pub(super) async fn page_of_runs_is_bounded(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let (schedules, each) = (20, EXAMINED_MAX / 20 + 15);
    let count = schedules * each;
    let mut incarnations = Vec::new();
    for at in 0..schedules {
        let schedule = fixture.create(fixture.unnamed(minute(1))).await;
        let owner = fixture.owner(schedule.poller).await;
        // One schedule has only failed runs, so that the parts of a read have different numbers of runs.
        let state = if at == 0 { RunState::Failed } else { RunState::Succeeded };
        let runs = (0..each).map(|number| {
            let at = minute(1) + Duration::from_millis(number as u64);
            run_of(TENANT, Occurrence { nominal: at, ..due_of(&schedule, minute(1)).occurrence }, state)
        });
        let writes =
            runs.map(|run| owner.request(Change::Run { run, then: None, ends: false, origin: None })).collect();
        fixture.store.write(writes).await.expect("the store accepts an owner's writes");
        incarnations.push(schedule.incarnation);
    }
    let late = RunFilter { late_by: Some(Duration::from_secs(3_600)), ..RunFilter::default() };
    let unknown = RunFilter { status: Some(404), ..RunFilter::default() };
    let reads = [late, unknown].into_iter().flat_map(|filter| {
        let schedules = [None, Some(incarnations.clone())];
        schedules.into_iter().flat_map(move |schedules| ORDERS.map(|order| (filter, schedules.clone(), order)))
    });
    for (filter, schedules, order) in reads {
        let (from, until) = (Timestamp::MIN, Timestamp::MAX);
        let mut read = RunRead { tenant: TENANT, schedules, from, until, filter, order, after: None, limit: 10 };
        let mut examined = 0;
        loop {
            let list = fixture.store.list_runs(read.clone()).await.expect("the store accepts reads");
            assert_eq!(list.runs, [], "no run matches {filter:?}");
            assert!((1..=EXAMINED_MAX).contains(&list.examined), "{} runs", list.examined);
            examined += list.examined;
            let is_later = list.next.is_none_or(|next| read.contains(&next));
            assert!(is_later, "the next page starts after this page: {:?} and {:?}", read.after, list.next);
            read.after = list.next;
            if list.next.is_none() {
                break;
            }
        }
        assert!(examined >= count, "{examined} of {count} runs were examined");
    }
    // The time of each page is over after one read.
    let time = std::cell::Cell::new(Duration::ZERO);
    let clock = || {
        time.set(time.get() + Duration::from_secs(1));
        Monotonic::from_start(time.get())
    };
    let (mut listing, mut pages, mut found) = (RunListing { host: Some("example.com"), limit: 5_000, ..ALL }, 0, 0);
    loop {
        let page = page(&*fixture.store, &listing, clock, || async {}).await.expect("the store accepts reads");
        (pages, found) = (pages + 1, found + page.runs.len());
        listing.after = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert!(found == count && pages > 1, "{found} runs in {pages} pages");
}

pub(super) async fn listing_of_runs_is_complete_during_changes(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.unnamed(minute(1))).await;
    let owner = fixture.owner(schedule.poller).await;
    let run = |at: i64, state| run_of(TENANT, due_of(&schedule, minute(at)).occurrence, state);
    let retry = |at: i64| DueKey { position: minute(10_000), attempt: 2, ..due_of(&schedule, minute(at)) };
    for at in 0..60 {
        let state = if at % 2 == 0 { RunState::Retrying } else { RunState::Succeeded };
        let then = (state == RunState::Retrying).then(|| retry(at));
        owner.write(Change::Run { run: run(at, state), then, ends: false, origin: None }).await;
    }
    let change = async {
        for at in (0..60).step_by(2) {
            yield_times(3).await;
            let run = run(at, RunState::Succeeded);
            owner.write(Change::Run { run, then: None, ends: false, origin: None }).await;
        }
    };
    let list = async {
        for number in 0..12 {
            let order = ORDERS[number % 2];
            let runs = listed_by(&fixture, &RunListing { order, ..ALL }, 7).await;
            let mut instants: Vec<Timestamp> = runs.iter().map(|run| run.occurrence.nominal).collect();
            if order == Order::Newest {
                instants.reverse();
            }
            assert!(instants.iter().eq((0..60).map(minute).collect::<Vec<_>>().iter()), "{instants:?}");
        }
    };
    futures_util::future::join(change, list).await;
    assert_eq!(listed(&fixture, &by_state(RunStateKind::Retrying)).await, []);
}
