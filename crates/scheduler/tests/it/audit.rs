//! Tests of the auditor: it names a fault once, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    AttemptResult, Cron, DifferenceKind, DueKey, Incarnation, Occurrence, PollerId, Revision, RunState, Schedule,
    ScheduleId, Status, TenantId, Timestamp, When,
};
use scheduler::{AuditReport, Delivery, Options, Scheduler};
use simulator::Simulation;
use store::memory::{MemoryOptions, MemoryStore};
use store::{Change, Insert, OwnerWrite, Positions, Store};

use crate::harness::{Harness, TENANT, ok, put_tenant, simulate, spec, tenant};
use crate::test_cluster::{TestCluster, quick};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

async fn report(harness: &Harness, tenant: Option<TenantId>) -> AuditReport {
    harness.scheduler.audit(tenant).await.unwrap()
}

fn value(scheduler: &Scheduler, metric: &str) -> Option<String> {
    let text = scheduler.metrics_text();
    text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' ').map(str::to_owned))
}

fn gauge(harness: &Harness) -> Option<String> {
    value(&harness.scheduler, "reveille_unaccounted")
}

/// Writes a schedule that is due every hour, and whose first outcome is removed. Returns the occurrence without an
/// outcome.
async fn plant_missing_outcome(store: &MemoryStore, tenant: TenantId, now: Timestamp) -> Occurrence {
    let at = |half_hours: u32| now - HOUR * 3 + HOUR / 2 * half_hours;
    let incarnation = Incarnation::new(at(1), 7);
    let id = ScheduleId::from_incarnation(incarnation);
    let poller = PollerId::of(tenant, 0, 4, &id);
    let schedule = Schedule {
        tenant,
        id,
        incarnation,
        poller,
        revision: Revision(0),
        status: Status::Active,
        created_at: at(1),
        updated_at: at(1),
        next: Some(at(3)),
        spec: spec(When::every(HOUR), "http://receiver.test/a"),
    };
    let due = |nominal| {
        let occurrence = Occurrence { incarnation, nominal, revision: Revision(0), replay: 0 };
        DueKey { position: nominal, occurrence, attempt: 1, target: schedule.spec.target.key() }
    };
    store.insert(vec![Insert { schedule: Arc::new(schedule.clone()), due: due(at(3)), by: None }]).await.unwrap();
    let term = store.take(vec![poller.shard()]).await.unwrap()[0];
    let advance = |to| Change::Advance { incarnation, revision: Revision(0), due: due(to) };
    let (occurrence, state) = (due(at(5)).occurrence, RunState::Succeeded);
    let run = Run { tenant, occurrence, state, attempts: Vec::new() };
    let done = now - MINUTE;
    let changes = [
        advance(at(5)),
        Change::Run { run, then: None, ends: false, origin: None },
        advance(at(7)),
        Change::Positions(Positions { closed: done, done }),
    ];
    let writes = changes.into_iter().map(|change| OwnerWrite { term, poller, change }).collect();
    let written = store.write(writes).await.unwrap();
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    due(at(3)).occurrence
}

#[test]
fn auditor_names_a_removed_outcome_and_sets_its_gauge() {
    simulate(|runtime| async move {
        runtime.sleep(HOUR * 4).await;
        let store = MemoryStore::new(runtime.clone(), MemoryOptions::default());
        for id in [1, 2] {
            put_tenant(&store, tenant(TenantId(id))).await.unwrap();
        }
        let planted = plant_missing_outcome(&store, TENANT, runtime.now()).await;
        // The stretch has two hours.
        let options = Options { history: HOUR * 4, ..Options::default() };
        let harness = Harness::reopen(runtime, store, options, ok).await.unwrap();
        assert_eq!((report(&harness, None).await, gauge(&harness)), (AuditReport::default(), Some("0".to_owned())));
        harness.runtime.sleep(MINUTE).await;
        let found = report(&harness, None).await;
        let [finding] = &found.findings[..] else { panic!("{found:?}") };
        let difference = (finding.difference.occurrence, finding.difference.kind);
        assert_eq!(difference, (planted, DifferenceKind::MissingOutcome));
        assert_eq!((found.unaccounted, found.is_truncated, gauge(&harness)), (1, false, Some("1".to_owned())));
        // Later audits find the same difference.
        harness.runtime.sleep(MINUTE * 5).await;
        let again = report(&harness, Some(TENANT)).await;
        assert_eq!(again.findings, found.findings);
        assert!(again.completed_at > found.completed_at);
        let other = report(&harness, Some(TenantId(2))).await;
        assert_eq!((other.unaccounted, other.findings.len()), (0, 0), "the difference belongs to another tenant");
        // The instant leaves the stretch.
        harness.runtime.sleep(MINUTE * 40).await;
        assert_eq!((report(&harness, None).await.unaccounted, gauge(&harness)), (0, Some("0".to_owned())));
    });
}

#[test]
fn schedule_whose_next_instant_moved_fires_at_the_new_instant() {
    const CAIRO: &str = "Africa/Cairo";
    simulate(|runtime| async move {
        let store = MemoryStore::new(runtime.clone(), MemoryOptions::default());
        put_tenant(&store, tenant(TENANT)).await.unwrap();
        let (now, when) = (runtime.now(), When::Cron(Cron::parse("0 9 * * *", CAIRO).unwrap()));
        let nominal = when.next_after(now, now + HOUR * 3).unwrap();
        let (incarnation, id) = (Incarnation::new(now, 7), ScheduleId::new("moved").unwrap());
        let schedule = Schedule {
            tenant: TENANT,
            poller: PollerId::of(TENANT, 0, 4, &id),
            id,
            incarnation,
            revision: Revision(0),
            status: Status::Active,
            created_at: now,
            updated_at: now,
            // Earlier data of the zone determined this instant.
            next: Some(nominal - HOUR),
            spec: spec(when.clone(), "http://receiver.test/a"),
        };
        let occurrence = Occurrence { incarnation, nominal: nominal - HOUR, revision: Revision(0), replay: 0 };
        let due = DueKey { position: nominal - HOUR, occurrence, attempt: 1, target: schedule.spec.target.key() };
        store.insert(vec![Insert { schedule: Arc::new(schedule), due, by: None }]).await.unwrap();
        let harness = Harness::reopen(runtime, store, Options::default(), ok).await.unwrap();
        harness.runtime.sleep(nominal.since(now) + HOUR).await;
        let calls: Vec<Timestamp> = harness.calls().iter().map(|call| call.occurrence.nominal).collect();
        assert_eq!(calls, [nominal]);
        let stored = harness.store.load(vec![incarnation]).await.unwrap().remove(0).unwrap();
        assert_eq!(stored.next, when.next_after(now, nominal));
        let found = report(&harness, None).await;
        assert_eq!((found.unaccounted, found.is_incomplete), (0, false), "{found:?}");
        assert!(found.completed_at > Some(nominal), "{found:?}");
    });
}

#[test]
fn deferred_rows_of_a_tenant_hide_no_difference_of_another() {
    simulate(|runtime| async move {
        runtime.sleep(HOUR * 4).await;
        let now = runtime.now();
        let store = MemoryStore::new(runtime.clone(), MemoryOptions::default());
        for id in [1, 2] {
            put_tenant(&store, tenant(TenantId(id))).await.unwrap();
        }
        // Each of these rows is at another position than its instant, so each schedule is a suspect.
        let inserts = (0..10_100_u32).map(|number| {
            let incarnation = Incarnation::new(now - HOUR, u128::from(number));
            let id = ScheduleId::from_incarnation(incarnation);
            let schedule = Schedule {
                tenant: TENANT,
                poller: PollerId::of(TENANT, 0, 4, &id),
                id,
                incarnation,
                revision: Revision(0),
                status: Status::Active,
                created_at: now - HOUR,
                updated_at: now - HOUR,
                next: Some(now - MINUTE),
                spec: spec(When::At(now - MINUTE), "http://receiver.test/a"),
            };
            let occurrence = Occurrence { incarnation, nominal: now - MINUTE, revision: Revision(0), replay: 0 };
            let target = schedule.spec.target.key();
            let due = DueKey { position: now + HOUR, occurrence, attempt: 1, target };
            Insert { schedule: Arc::new(schedule), due, by: None }
        });
        store.insert(inserts.collect()).await.unwrap();
        let planted = plant_missing_outcome(&store, TenantId(2), now).await;
        let harness = Harness::reopen(runtime, store, Options::default(), ok).await.unwrap();
        harness.runtime.sleep(MINUTE * 2).await;
        let found = report(&harness, None).await;
        let [finding] = &found.findings[..] else { panic!("{found:?}") };
        assert_eq!((finding.tenant, finding.difference.occurrence), (TenantId(2), planted));
        assert_eq!((found.unaccounted, found.is_truncated, found.is_incomplete), (1, false, false));
    });
}

#[test]
fn former_leader_forgets_its_result() {
    const COMPLETED: &str = "reveille_audit_completed_timestamp_seconds";
    let sim = Simulation::new(1);
    sim.run_until(async {
        let cluster = TestCluster::new(&sim, MemoryOptions::default(), quick).await;
        let members = [cluster.join("a").await, cluster.join("b").await];
        cluster.wait_until_balanced(&[&members[0], &members[1]]).await;
        cluster.sleep(MINUTE).await;
        let leader = members.iter().position(|member| member.leads()).expect("a member leads");
        let has_result = |member: &Scheduler| value(member, COMPLETED) != Some("0".to_owned());
        assert_eq!([has_result(&members[leader]), has_result(&members[1 - leader])], [true, false]);
        // The leader learns that its clock is wrong.
        sim.jump_clock(["a", "b"][leader], 3_600_000);
        for _ in 0..60 {
            cluster.sleep(Duration::from_secs(1)).await;
            if !members[leader].leads() {
                break;
            }
        }
        assert!(!members[leader].leads(), "the member with the wrong clock resigns");
        cluster.sleep(Duration::from_secs(2)).await;
        assert!(!has_result(&members[leader]));
    });
}

/// Responds late, fails sometimes, and fails for some schedules always.
fn mixed(delivery: &Delivery) -> (Duration, AttemptResult) {
    let number = delivery.occurrence.nominal.as_millis() / 1_000 + i64::from(delivery.attempt);
    let status = match number % 7 {
        0 | 3 => 503,
        _ if delivery.schedule.id.as_str().starts_with("dead") => 500,
        _ => 200,
    };
    (Duration::from_millis(u64::try_from(number % 5).unwrap() * 700), AttemptResult::Answered(status))
}

#[test]
fn auditor_finds_nothing_after_crashes_and_changes() {
    let sim = Simulation::new(3);
    sim.run_until(async {
        drop(sim.member("a"));
        sim.crash("a");
        for (options, name) in [(MemoryOptions::default(), "atomic"), (MemoryOptions::weak(), "weak")] {
            let latency = Duration::from_millis(1)..=Duration::from_millis(20);
            let options = MemoryOptions { latency: Some(latency), fail_one_in: Some(50), ..options };
            let store = MemoryStore::new(sim.outside(), MemoryOptions::default());
            put_tenant(&store, tenant(TENANT)).await.unwrap();
            let store = store.with_options(options);
            churn(&sim, store, name).await;
        }
    });
}

/// Changes schedules while their member crashes, and then expects that an audit finds nothing.
async fn churn(sim: &Simulation, store: MemoryStore, name: &str) {
    let mut store = store;
    for round in 0..6_u64 {
        let runtime = sim.restart("a");
        store = store.reopen(runtime.clone());
        let opened = loop {
            match Harness::reopen(runtime.clone(), store.reopen(runtime.clone()), Options::default(), mixed).await {
                Ok(harness) => break harness,
                Err(_) => runtime.sleep(Duration::from_secs(1)).await,
            }
        };
        for number in 0..5_u64 {
            let when = match number {
                0 => When::At(opened.in_ms(3_000)),
                1 => When::every(Duration::from_secs(1)),
                2 => When::every(Duration::from_secs(7)),
                3 => When::At(opened.in_ms(30_000)),
                _ => When::every(MINUTE),
            };
            let prefix = if number == 3 { "dead" } else { name };
            let id = format!("{prefix}-{round}-{number}");
            // The store may fail. The create may then have taken effect.
            let _may_fail = opened.try_create(TENANT, &id, when, "http://receiver.test/a").await;
        }
        sim.outside().sleep(Duration::from_secs(20 + round)).await;
        let cancelled = ScheduleId::new(&format!("{name}-{round}-1")).unwrap();
        let _may_fail = opened.scheduler.cancel(TENANT, cancelled, None).await;
        if round < 5 {
            sim.outside().sleep(Duration::from_secs(3)).await;
            sim.crash("a");
            sim.outside().sleep(Duration::from_secs(15)).await;
            continue;
        }
        sim.outside().sleep(MINUTE * 5).await;
        let audit = report(&opened, None).await;
        assert!(audit.completed_at.is_some(), "{name}: the auditor completes an audit");
        assert_eq!(audit.findings, [], "{name}");
        sim.crash("a");
    }
}
