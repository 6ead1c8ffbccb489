//! Test cases of acknowledged writes that survive a close and an open of the store. The tests of each engine cover
//! kills and crashes.

use std::sync::Arc;

use domain::{Audit, DueKey, Occurrence, Revision, RunState, Schedule, Secret, SigningSecret, Status, Target, Tenant};

use crate::Subject;
use crate::fixture::{Fixture, OTHER_TENANT, TENANT, due_of, id, insert_in, minute, poller, run_of};
use store::{Change, Cursor, Inserted, Usage, WriteRejection};

pub(super) async fn data_survives_a_reopen(subject: &dyn Subject) {
    let mut fixture = Fixture::open(subject).await;
    let poller = poller(TENANT, 0);
    let owner = fixture.owner(poller).await;
    let mut schedules = Vec::new();
    for name in ["active", "ended", "cancelled", "retrying", "redriven", "replaced"] {
        let insert = insert_in(poller, fixture.numbers.incarnation(), id(name), minute(5));
        schedules.push(fixture.create(insert).await);
    }
    schedules.push(fixture.create(fixture.unnamed_in(poller, minute(6))).await);
    let [_, ended, cancelled, retrying, redriven, replaced, _] = &schedules[..] else {
        unreachable!("the case created seven schedules")
    };
    owner.finish(ended, RunState::Failed).await;
    owner.write(Change::Cancel(cancelled.incarnation)).await;
    let first = due_of(retrying, minute(5));
    let run = run_of(TENANT, first.occurrence, RunState::Retrying);
    owner
        .write(Change::Run {
            run,
            then: Some(DueKey { position: minute(7), attempt: 2, ..first }),
            ends: false,
            origin: None,
        })
        .await;
    let dead = owner.finish(redriven, RunState::Failed).await.occurrence;
    let again = Occurrence { replay: 1, ..dead };
    let due = DueKey { position: minute(8), occurrence: again, ..first };
    owner.write(Change::Redrive { of: dead, due }).await;
    owner.put(&insert_in(poller, fixture.numbers.incarnation(), replaced.id.clone(), minute(9))).await;
    let usages = fixture.store.usage(vec![OTHER_TENANT, TENANT]).await.expect("the store accepts reads");
    assert_eq!(usages[0], Usage::default());
    assert_eq!((usages[1].active, usages[1].ended, usages[1].cancelled), (4, 2, 1));
    owner.close(minute(4), minute(3)).await;
    let tenant = Tenant::new(TENANT, "default", 1, SigningSecret::first(vec![7; 24], minute(0)));
    let entry = Audit::of(&tenant, minute(0), "test", "tenant.create", "default");
    assert_eq!(fixture.store.put_tenant(tenant, entry).await, Ok(Ok(())));

    let before = everything(&fixture, &schedules).await;
    // The first reopen reads the data that the close wrote. The second reopen reads the data that the first reopen
    // wrote.
    for _ in 0..2 {
        fixture = fixture.reopen(subject).await;
        assert_eq!(everything(&fixture, &schedules).await, before);
    }
}

/// Returns the schedule with this header value.
fn with_header(schedule: &Schedule, value: u8) -> Arc<Schedule> {
    let mut schedule = schedule.clone();
    let Target::Http(http) = &mut schedule.spec.target else { panic!("the target is an HTTP target") };
    http.headers = vec![("authorization".to_owned(), Secret::Encrypted(vec![value; 60].into()))];
    Arc::new(schedule)
}

pub(super) async fn reencrypted_headers_change_nothing_else(subject: &dyn Subject) {
    let mut fixture = Fixture::open(subject).await;
    let mut insert = fixture.named("invoice-7", minute(1));
    insert.schedule = with_header(&insert.schedule, 1);
    let schedule = fixture.create(insert.clone()).await;
    let owner = fixture.owner(schedule.poller).await;
    let usage = async || fixture.store.usage(vec![TENANT]).await.expect("the store accepts reads");
    let before = usage().await;
    owner.write(Change::Reencrypt(with_header(&schedule, 2))).await;
    assert_eq!(fixture.now(&schedule).await, with_header(&schedule, 2));
    assert_eq!((fixture.all_due(schedule.poller).await, usage().await), (vec![insert.due], before));

    let newer = Schedule { revision: Revision(schedule.revision.0 + 1), ..Schedule::clone(&schedule) };
    owner.write(Change::Reencrypt(with_header(&newer, 3))).await;
    assert_eq!(fixture.now(&schedule).await, with_header(&schedule, 2), "the stored schedule has another revision");
    let unknown = Schedule { incarnation: fixture.numbers.incarnation(), ..Schedule::clone(&schedule) };
    let response = owner.try_write(Change::Reencrypt(Arc::new(unknown))).await;
    assert_eq!(response, Err(WriteRejection::NotFound));

    let replacing = insert_in(schedule.poller, fixture.numbers.incarnation(), schedule.id.clone(), minute(2));
    let (replaced, ..) = owner.put(&replacing).await;
    owner.finish(&replaced, RunState::Succeeded).await;
    let ended = fixture.now(&schedule).await;
    // The caller has read the schedule before it ended.
    owner.write(Change::Reencrypt(with_header(&replaced, 4))).await;
    let expected = with_header(&ended, 4);
    assert_eq!((fixture.now(&schedule).await, ended.status), (expected.clone(), Status::Ended));
    fixture = fixture.reopen(subject).await;
    assert_eq!(fixture.now(&schedule).await, expected);
}

/// Returns all data of `schedules` as text for a comparison. The schedules share a poller.
async fn everything(fixture: &Fixture, schedules: &[Arc<Schedule>]) -> String {
    use std::fmt::Write as _;

    let store = &fixture.store;
    let mut text = String::new();
    let mut record =
        |value: &dyn std::fmt::Debug| writeln!(text, "{value:?}").expect("writing to a string never fails");
    let names = schedules.iter().map(|schedule| (TENANT, schedule.id.clone())).collect();
    record(&store.get(names).await);
    record(&store.usage(vec![TENANT]).await);
    record(&store.load(schedules.iter().map(|schedule| schedule.incarnation).collect()).await);
    for schedule in schedules {
        record(&store.runs(schedule.incarnation, None, 10).await);
    }
    let poller = schedules[0].poller;
    record(&fixture.dead_letters(TENANT).await);
    record(&fixture.all_due(poller).await);
    record(&fixture.positions(poller).await);
    let tenants = store.tenants().await.expect("the store accepts reads");
    let secrets: Vec<_> =
        tenants.iter().flat_map(|tenant| &tenant.signing_secrets).map(|it| it.secret.plain().cloned()).collect();
    record(&(tenants, secrets));
    text
}

pub(super) async fn reopened_store_continues_from_its_state(subject: &dyn Subject) {
    let mut fixture = Fixture::open(subject).await;
    let insert = fixture.named("invoice-7", minute(5));
    let schedule = fixture.create(insert.clone()).await;
    let before = fixture.take(schedule.poller.shard()).await;
    fixture = fixture.reopen(subject).await;

    let owner = fixture.owner(schedule.poller).await;
    assert!(owner.term > before, "a new term is higher than the terms before the reopen");
    let old = super::fixture::Owner { term: before, ..owner };
    assert_eq!(old.try_write(Change::Cancel(schedule.incarnation)).await, Err(WriteRejection::Superseded));
    assert_eq!(fixture.insert(&insert).await, Inserted::Exists(schedule.incarnation));
    let other = fixture.named("invoice-7", minute(6));
    assert_eq!(fixture.insert(&other).await, Inserted::Exists(schedule.incarnation));

    let run = owner.finish(&schedule, RunState::Succeeded).await;
    fixture = fixture.reopen(subject).await;
    let owner = fixture.owner(schedule.poller).await;
    let again = owner.try_write(Change::Run { run, then: None, ends: true, origin: None }).await;
    assert_eq!(again, Err(WriteRejection::Resolved), "an outcome that the owner wrote before the reopen is final");
    owner.close(minute(5), minute(5)).await;
    fixture = fixture.reopen(subject).await;
    let late = fixture.unnamed_in(schedule.poller, minute(4));
    let Inserted::Placed(placed) = fixture.insert(&late).await else {
        panic!("an insert of a new schedule returns `Inserted::Placed`")
    };
    let passed = placed.position <= fixture.positions(schedule.poller).await.closed;
    assert_eq!(passed, !placed.settled, "the store keeps the value of `closed` across a reopen");
    let entries = fixture.insert_log(&[schedule.poller.shard()], 10).await;
    assert!(
        entries.iter().any(|arrival| arrival.key.occurrence == late.due.occurrence),
        "after the reopen, the insert log contains each new insert"
    );
}

pub(super) async fn cancellation_records_survive_a_reopen(subject: &dyn Subject) {
    let mut fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.named("invoice-7", minute(5))).await;
    let applied = fixture.append_cancellations(TENANT, &schedule.id).await.applied;
    let before = fixture.now(&schedule).await;
    fixture = fixture.reopen(subject).await;
    assert_eq!(fixture.now(&schedule).await, before);
    let (records, _) = fixture.cancellations(schedule.poller.shard(), Cursor::default()).await;
    assert_eq!(
        records.contains(&schedule.incarnation),
        !applied,
        "after a reopen, the store returns a cancellation record if and only if it has not applied the record"
    );
}
