//! What was answered is there after the store was closed and opened. (Kills and crashes are each engine's own tests.)

use domain::{Audit, DueKey, Occurrence, RunState, Schedule, SigningSecret, Tenant};

use crate::Subject;
use crate::scene::{OTHER_TENANT, Scene, TENANT, due_of, id, insert_in, minute, poller, run_of};
use store::{Change, Cursor, Inserted, WriteRefusal};

pub(super) async fn everything_is_there_after_a_reopen(subject: &dyn Subject) {
    let mut scene = Scene::open(subject).await;
    let poller = poller(TENANT, 0);
    let owner = scene.owner(poller).await;
    let mut schedules = Vec::new();
    for name in ["active", "ended", "cancelled", "retrying", "redriven", "replaced"] {
        let insert = insert_in(poller, scene.numbers.incarnation(), id(name), minute(5));
        schedules.push(scene.create(insert).await);
    }
    schedules.push(scene.create(scene.unnamed_in(poller, minute(6))).await);
    let [_, ended, cancelled, retrying, redriven, replaced, _] = &schedules[..] else {
        unreachable!("seven were made")
    };
    owner.finish(ended, RunState::Failed).await;
    owner.write(Change::Cancel(cancelled.incarnation)).await;
    let first = due_of(retrying, minute(5));
    let run = run_of(TENANT, first.occurrence, RunState::Retrying);
    owner
        .write(Change::Run { run, then: Some(DueKey { position: minute(7), attempt: 2, ..first }), ends: false })
        .await;
    let dead = owner.finish(redriven, RunState::Failed).await.occurrence;
    let again = Occurrence { replay: 1, ..dead };
    let due = DueKey { position: minute(8), occurrence: again, ..first };
    owner.write(Change::Redrive { of: dead, due }).await;
    owner.put(&insert_in(poller, scene.numbers.incarnation(), replaced.id.clone(), minute(9))).await;
    assert_eq!(scene.store.active(vec![OTHER_TENANT, TENANT]).await, Ok(vec![0, 4]));
    owner.close(minute(4), minute(3)).await;
    let tenant = Tenant::new(TENANT, "default", 1, SigningSecret::first(vec![7; 24], minute(0)));
    let entry = Audit::of(&tenant, minute(0), "test", "tenant.create", "default");
    assert_eq!(scene.store.put_tenant(tenant, entry).await, Ok(Ok(())));

    let before = everything(&scene, &schedules).await;
    // Twice: the first opening may work from what the closing left, the second from what the first made of it.
    for _ in 0..2 {
        scene = scene.reopen(subject).await;
        assert_eq!(everything(&scene, &schedules).await, before);
    }
}

/// All that the store tells about `schedules`, which share a poller, as text that can be compared.
async fn everything(scene: &Scene, schedules: &[std::sync::Arc<Schedule>]) -> String {
    use std::fmt::Write as _;

    let store = &scene.store;
    let mut told = String::new();
    let mut tell = |what: &dyn std::fmt::Debug| writeln!(told, "{what:?}").expect("a string takes all");
    let names = schedules.iter().map(|schedule| (TENANT, schedule.id.clone())).collect();
    tell(&store.get(names).await);
    tell(&store.active(vec![TENANT]).await);
    tell(&store.load(schedules.iter().map(|schedule| schedule.incarnation).collect()).await);
    for schedule in schedules {
        tell(&store.runs(schedule.incarnation, None, 10).await);
    }
    let poller = schedules[0].poller;
    tell(&scene.dead_letters(TENANT).await);
    tell(&scene.all_due(poller).await);
    tell(&scene.positions(poller).await);
    let tenants = store.tenants().await.expect("the store is read");
    let secrets: Vec<_> =
        tenants.iter().flat_map(|tenant| &tenant.signing_secrets).map(|it| it.secret.plain().cloned()).collect();
    tell(&(tenants, secrets));
    told
}

pub(super) async fn a_reopened_store_goes_on_where_it_was(subject: &dyn Subject) {
    let mut scene = Scene::open(subject).await;
    let insert = scene.named("invoice-7", minute(5));
    let schedule = scene.create(insert.clone()).await;
    let before = scene.take(schedule.poller.shard()).await;
    scene = scene.reopen(subject).await;

    let owner = scene.owner(schedule.poller).await;
    assert!(owner.term > before, "a term is above those from before");
    let old = super::scene::Owner { term: before, ..owner };
    assert_eq!(old.try_write(Change::Cancel(schedule.incarnation)).await, Err(WriteRefusal::Superseded));
    assert_eq!(scene.insert(&insert).await, Inserted::Exists(schedule.incarnation));
    let other = scene.named("invoice-7", minute(6));
    assert_eq!(scene.insert(&other).await, Inserted::Exists(schedule.incarnation));

    let run = owner.finish(&schedule, RunState::Succeeded).await;
    scene = scene.reopen(subject).await;
    let owner = scene.owner(schedule.poller).await;
    let again = owner.try_write(Change::Run { run, then: None, ends: true }).await;
    assert_eq!(again, Err(WriteRefusal::Resolved), "an outcome from before is final");
    owner.close(minute(5), minute(5)).await;
    scene = scene.reopen(subject).await;
    let late = scene.unnamed_in(schedule.poller, minute(4));
    let Inserted::Placed(placed) = scene.insert(&late).await else { panic!("the schedule is new") };
    let passed = placed.position <= scene.positions(schedule.poller).await.closed;
    assert_eq!(passed, !placed.settled, "`closed` from before counts");
    let told = scene.arrivals(&[schedule.poller.shard()], 10).await;
    assert!(told.iter().any(|arrival| arrival.key.occurrence == late.due.occurrence), "arrivals are told again");
}

pub(super) async fn marks_outlive_a_reopen(subject: &dyn Subject) {
    let mut scene = Scene::open(subject).await;
    let schedule = scene.create(scene.named("invoice-7", minute(5))).await;
    let applied = scene.mark(TENANT, &schedule.id).await.applied;
    let before = scene.now(&schedule).await;
    scene = scene.reopen(subject).await;
    assert_eq!(scene.now(&schedule).await, before);
    let (told, _) = scene.marks(schedule.poller.shard(), Cursor::default()).await;
    assert_eq!(told.contains(&schedule.incarnation), !applied, "what the engine left to the owner is still told");
}
