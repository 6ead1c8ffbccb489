//! What any member writes: schedules and tenants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::egress::Class;
use domain::recurrence::Cron;
use domain::retry::RetryPolicy;
use domain::schedule::HttpTarget;
use domain::{
    ApiKey, Audit, DueKey, Egress, Incarnation, Quota, Quotas, Role, RunState, Schedule, ScheduleId, Secret,
    SigningSecret, Status, Target, Tenant, TenantId, Timestamp, When,
};
use futures_util::future::join;

use crate::Subject;
use crate::scene::{OTHER_TENANT, Scene, TENANT, id, insert_of, minute, poller, yield_times};
use store::{Arrival, Cursor, Health, Insert, Inserted, Mark, Outdated};

pub(super) async fn what_is_inserted_is_read_by_name_and_by_incarnation(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    assert_eq!(scene.store.health(), Health::Ready);
    let named = scene.create(scene.named("invoice-7", minute(1))).await;
    let made = scene.create(scene.unnamed(minute(2))).await;

    let names = [&named, &made, &named].map(|schedule| (TENANT, schedule.id.clone()));
    let unknown = (TENANT, id("invoice-8"));
    let asked = vec![names[0].clone(), unknown, names[1].clone(), names[2].clone()];
    let got = scene.store.get(asked).await.expect("the store is read");
    assert_eq!(got, [Some(named.clone()), None, Some(made.clone()), Some(named.clone())]);

    let unknown = scene.numbers.incarnation();
    let asked = vec![made.incarnation, unknown, named.incarnation, made.incarnation];
    let loaded = scene.store.load(asked).await.expect("the store is read");
    assert_eq!(loaded, [Some(made.clone()), None, Some(named), Some(made)]);
}

pub(super) async fn every_field_and_every_byte_of_a_schedule_is_kept(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let big: Bytes = (0..64 * 1024_u32).map(|at| at.to_le_bytes()[usize::from(at % 3 == 0)]).collect();
    let payloads =
        [Bytes::new(), Bytes::from_static(b"\xff\xfe\x00\xc3\x28"), Bytes::from_static(b" {\"a\" : 1}\n"), big];
    let every = When::Every(Duration::from_millis(1_500));
    let cron = When::Cron(Cron::from_stored("0 7 * * * *", "Europe/Berlin"));
    let whens = [When::At(minute(1)), every, cron, When::At(Timestamp::MAX)];
    let longest = id(&"z".repeat(ScheduleId::LEN_MAX));
    let ids = [id("A_-9"), id("0"), longest, id("s")];

    let mut created = Vec::new();
    for ((payload, when), id) in payloads.into_iter().zip(whens).zip(ids) {
        let mut insert = insert_of(TENANT, scene.numbers.incarnation(), id, minute(1));
        let schedule = Arc::make_mut(&mut insert.schedule);
        schedule.created_at = Timestamp::from_millis(1_234_567_890_123);
        schedule.updated_at = Timestamp::from_millis(1_234_567_890_124);
        schedule.spec.payload = payload;
        schedule.spec.when = when;
        schedule.spec.labels =
            BTreeMap::from([("team".to_owned(), "Zoë \u{1f980}".to_owned()), (String::new(), String::new())]);
        schedule.spec.retry = RetryPolicy {
            attempts_max: u16::MAX,
            backoff: Duration::from_millis(1),
            backoff_max: Duration::from_secs(86_400),
        };
        schedule.spec.target = Target::Http(HttpTarget {
            url: "http://[::1]:8080/a?b=%20#c".to_owned(),
            method: "PATCH".to_owned(),
            headers: vec![
                ("x-b".to_owned(), "2".into()),
                ("x-a".to_owned(), "".into()),
                ("x-sealed".to_owned(), Secret::Sealed(Bytes::from_static(&[0, 255, b'\n', 128]))),
                ("x-b".to_owned(), "1".into()),
            ],
            timeout: Duration::from_millis(1),
        });
        created.push(scene.create(insert).await);
    }
    for schedule in created {
        assert_eq!(scene.get(TENANT, &schedule.id).await, Some(schedule.clone()));
        assert_eq!(scene.load(schedule.incarnation).await, Some(schedule));
    }
}

pub(super) async fn a_due_row_and_an_arrival_come_with_the_schedule(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let insert = scene.named("invoice-7", minute(1));
    let schedule = scene.create(insert.clone()).await;
    assert_eq!(scene.all_due(schedule.poller).await, [insert.due]);
    let arrivals = scene.arrivals(&[schedule.poller.shard()], 10).await;
    let expected = Arrival { poller: schedule.poller, key: insert.due };
    assert!(!arrivals.is_empty() && arrivals.iter().all(|arrival| *arrival == expected), "{arrivals:?}");
}

pub(super) async fn a_chosen_id_is_given_once(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let first = scene.named("invoice-7", minute(1));
    let schedule = scene.create(first.clone()).await;
    let second = scene.named("invoice-7", minute(2));
    assert_eq!(scene.insert(&second).await, Inserted::Exists(schedule.incarnation));
    assert_eq!(scene.get(TENANT, &schedule.id).await, Some(schedule.clone()));
    assert_eq!(scene.load(second.schedule.incarnation).await, None);
    assert_eq!(scene.all_due(schedule.poller).await, [first.due], "the refused one left no row");
}

pub(super) async fn of_two_inserts_of_one_id_in_a_batch_the_first_wins(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let first = scene.named("invoice-7", minute(1));
    let second = scene.named("invoice-7", minute(2));
    let other = scene.named("invoice-8", minute(3));
    let batch = vec![first.clone(), second, other.clone()];
    let answers = scene.store.insert(batch).await.expect("the store takes inserts");
    let [Inserted::Placed(_), Inserted::Exists(winner), Inserted::Placed(_)] = &*answers else {
        panic!("the second is refused, and only it: {answers:?}");
    };
    assert_eq!(*winner, first.schedule.incarnation);
    assert_eq!(scene.get(TENANT, &first.schedule.id).await, Some(first.schedule));
    assert_eq!(scene.get(TENANT, &other.schedule.id).await, Some(other.schedule));
}

/// Two members may both hold themselves for the owner of an id's home shard, one of them since before it was paused.
pub(super) async fn of_calls_at_once_one_takes_a_chosen_id(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    for round in 0..20 {
        let name = format!("invoice-{round}");
        let inserts = [1, 2, 3].map(|at| scene.named(&name, minute(at)));
        let put = scene.named(&name, minute(4));
        let owner = scene.owner(put.schedule.poller).await;
        let insert = async |at: usize| {
            yield_times((round + 3 * at) % 8).await;
            scene.insert(&inserts[at]).await
        };
        let putting = async {
            yield_times(round % 5).await;
            owner.put(&put).await
        };
        let ((first, second), (third, (made, _, before))) =
            join(join(insert(0), insert(1)), join(insert(2), putting)).await;

        let holder = scene.get(TENANT, &put.schedule.id).await.expect("one of them took the id");
        assert_eq!(holder, made, "a put leaves what it says, whoever took the id");
        let mut taken = usize::from(before.is_none());
        for (insert, answer) in inserts.iter().zip([first, second, third]) {
            taken += usize::from(matches!(answer, Inserted::Placed(_)));
            let told = if let Inserted::Exists(known) = answer { known } else { insert.schedule.incarnation };
            assert_eq!(told, holder.incarnation, "each is told who has the id");
        }
        assert_eq!(taken, 1, "one of them took the id, and says so");
        for loser in inserts.iter().chain([&put]).map(|insert| insert.schedule.incarnation) {
            let loaded = scene.load(loser).await;
            assert_eq!(loaded.is_some(), loser == holder.incarnation, "who did not take the id made nothing");
        }
    }
}

pub(super) async fn an_insert_made_again_is_told_that_it_exists(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    for insert in [scene.named("invoice-7", minute(1)), scene.unnamed(minute(1))] {
        let schedule = scene.create(insert.clone()).await;
        assert_eq!(
            scene.insert(&insert).await,
            Inserted::Exists(schedule.incarnation),
            "by a creator that tries again"
        );

        let owner = scene.owner(schedule.poller).await;
        owner.write(store::Change::Cancel(schedule.incarnation)).await;
        assert_eq!(scene.insert(&insert).await, Inserted::Exists(schedule.incarnation), "what was cancelled stays so");
        assert_eq!(scene.now(&schedule).await.status, Status::Cancelled);

        // Another takes the id, and is cancelled, too.
        let successor = insert_of(TENANT, scene.numbers.incarnation(), schedule.id.clone(), minute(1));
        let successor = scene.create(successor).await;
        assert_eq!(scene.insert(&insert).await, Inserted::Exists(successor.incarnation));
        owner.write(store::Change::Cancel(successor.incarnation)).await;
        assert_eq!(scene.insert(&insert).await, Inserted::Exists(successor.incarnation));
        assert_eq!(scene.now(&schedule).await.status, Status::Cancelled);
    }
}

pub(super) async fn an_ended_schedule_keeps_its_id(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let schedule = scene.create(scene.named("invoice-7", minute(1))).await;
    scene.owner(schedule.poller).await.finish(&schedule, RunState::Succeeded).await;
    let again = scene.named("invoice-7", minute(2));
    assert_eq!(scene.insert(&again).await, Inserted::Exists(schedule.incarnation));
    assert_eq!(scene.now(&schedule).await.status, Status::Ended);
}

pub(super) async fn a_cancelled_id_can_be_taken_again(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let first = scene.create(scene.named("invoice-7", minute(1))).await;
    scene.owner(first.poller).await.write(store::Change::Cancel(first.incarnation)).await;
    let cancelled = scene.now(&first).await;
    assert_eq!(scene.get(TENANT, &first.id).await, Some(cancelled.clone()), "it has its id until another takes it");

    let second = scene.create(scene.named("invoice-7", minute(2))).await;
    assert_ne!(second.incarnation, first.incarnation);
    assert_eq!(scene.get(TENANT, &first.id).await, Some(second.clone()));
    assert_eq!(scene.load(first.incarnation).await, Some(cancelled), "what was before is still found by incarnation");

    let late = scene.insert(&scene.named("invoice-7", minute(3))).await;
    assert_eq!(late, Inserted::Exists(second.incarnation));
}

/// An engine that finds a made id without a table of ids must not take a chosen one for it.
pub(super) async fn a_chosen_id_in_the_form_of_a_made_one_is_only_a_name(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let made = scene.create(scene.unnamed(minute(1))).await;

    let theirs = scene.create(insert_of(OTHER_TENANT, scene.numbers.incarnation(), made.id.clone(), minute(2))).await;
    assert_eq!(scene.get(TENANT, &made.id).await, Some(made.clone()));
    assert_eq!(scene.get(OTHER_TENANT, &made.id).await, Some(theirs));

    let no_one = ScheduleId::from_incarnation(scene.numbers.incarnation());
    assert_eq!(scene.get(TENANT, &no_one).await, None);
    let chosen = scene.create(insert_of(TENANT, scene.numbers.incarnation(), no_one.clone(), minute(3))).await;
    assert_eq!(scene.get(TENANT, &no_one).await, Some(chosen.clone()));
    assert_eq!(scene.load(no_one.to_incarnation().expect("it has the form")).await, None);
    let again = insert_of(TENANT, scene.numbers.incarnation(), no_one, minute(4));
    assert_eq!(scene.insert(&again).await, Inserted::Exists(chosen.incarnation));

    let taken = insert_of(TENANT, scene.numbers.incarnation(), made.id.clone(), minute(5));
    assert_eq!(scene.insert(&taken).await, Inserted::Exists(made.incarnation));
    scene.owner(made.poller).await.write(store::Change::Cancel(made.incarnation)).await;
    let successor = scene.create(taken).await;
    assert_eq!(scene.get(TENANT, &made.id).await, Some(successor), "a made id can be chosen once it is free");
    assert_eq!(scene.now(&made).await.status, Status::Cancelled);
}

pub(super) async fn tenants_are_apart(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let ours = scene.create(scene.named("invoice-7", minute(1))).await;
    assert_eq!(scene.get(OTHER_TENANT, &ours.id).await, None);
    let theirs = scene.create(insert_of(OTHER_TENANT, scene.numbers.incarnation(), id("invoice-7"), minute(1))).await;
    assert_eq!(scene.get(TENANT, &ours.id).await, Some(ours.clone()));
    assert_eq!(scene.get(OTHER_TENANT, &ours.id).await, Some(theirs.clone()));

    let answer = scene.mark(TenantId(3), &ours.id).await;
    assert_eq!((answer.before, answer.applied), (None, true));
    for schedule in [&ours, &theirs] {
        assert_eq!(scene.now(schedule).await.status, Status::Active);
    }
    let dead = scene.owner(theirs.poller).await.finish(&theirs, RunState::Failed).await;
    assert_eq!(scene.dead_letters(TENANT).await, []);
    assert_eq!(scene.dead_letters(OTHER_TENANT).await, [dead]);
    assert_eq!(scene.now(&ours).await, ours);
}

pub(super) async fn a_batch_of_ten_thousand_is_answered_in_order(subject: &dyn Subject) {
    const ROWS: usize = 10_000;
    let scene = Scene::open(subject).await;
    let mut inserts: Vec<Insert> = (0..ROWS).map(|_| scene.unnamed(minute(1))).collect();
    for (at, insert) in inserts.iter_mut().enumerate() {
        Arc::make_mut(&mut insert.schedule).spec.payload = Bytes::from(format!("{{\"row\":{at}}}"));
    }
    let answers = scene.store.insert(inserts.clone()).await.expect("the store takes a large batch");
    assert_eq!(answers.len(), ROWS);
    assert!(answers.iter().all(|answer| matches!(answer, Inserted::Placed(_))));

    // Backwards, so that order is not got for nothing.
    let backwards: Vec<Incarnation> = inserts.iter().rev().map(|insert| insert.schedule.incarnation).collect();
    let loaded = scene.store.load(backwards).await.expect("the store is read");
    let expected = inserts.iter().rev().map(|insert| Some(insert.schedule.clone()));
    assert!(loaded.into_iter().eq(expected), "each row is where it was asked for, as it was written");

    let mut due = 0;
    for number in 0..4 {
        due += scene.all_due(poller(TENANT, number)).await.len();
    }
    assert_eq!(due, ROWS);
}

pub(super) async fn an_empty_batch_is_answered(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let store = &scene.store;
    assert_eq!(store.insert(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.closed(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.place(Vec::<(_, DueKey)>::new()).await, Ok(Vec::new()));
    assert!(store.mark(Vec::<Mark>::new()).await.is_ok_and(|answers| answers.is_empty()));
    assert_eq!(store.get(Vec::new()).await, Ok(Vec::<Option<Arc<Schedule>>>::new()));
    assert_eq!(store.load(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.find_runs(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.take(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.positions(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.due(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.write(Vec::new()).await, Ok(Vec::new()));
    let nothing = store.arrivals(Vec::new().into(), Cursor::default(), 10).await.expect("the store is read");
    assert_eq!(nothing.0, []);
}

pub(super) async fn tenants_are_kept_and_replaced(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    assert_eq!(scene.store.tenants().await, Ok(Vec::new()));
    let (first, second) = two_tenants();
    for tenant in [&second, &first] {
        assert_eq!(put_tenant(&scene, tenant, "tenant.create").await, Ok(()));
    }
    let read = async || {
        let mut tenants = scene.store.tenants().await.expect("the store is read");
        tenants.sort_by_key(|tenant| tenant.id);
        tenants
    };
    assert_eq!(read().await, [first.clone(), second.clone()]);
    let key = first.keys[0].clone();
    let quotas = Quotas::NONE.with(Quota::PendingMax, 0).with(Quota::CallbacksPerMinute, u32::MAX);
    let ceilings = Quotas::NONE.with(Quota::PendingMax, 7);
    let keys = vec![key.clone(), key];
    let replaced = Tenant { version: 2, generations: vec![1, 4], keys, quotas, ceilings, ..first };
    assert_eq!(put_tenant(&scene, &replaced, "key.create").await, Ok(()));
    assert_eq!(read().await, [replaced, second]);
}

pub(super) async fn a_tenant_is_changed_by_who_knows_its_last_version(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let (first, _) = two_tenants();
    assert_eq!(put_tenant(&scene, &first, "tenant.create").await, Ok(()));
    for version in [0, 1, 3] {
        let unaware = Tenant { version, name: "stolen".to_owned(), ..first.clone() };
        assert_eq!(put_tenant(&scene, &unaware, "tenant.change").await, Err(Outdated), "version {version}");
    }
    assert_eq!(scene.store.tenants().await, Ok(vec![first.clone()]));
    for version in 2..12 {
        let put = async |name: &str| {
            let changed = Tenant { version, name: name.to_owned(), ..first.clone() };
            put_tenant(&scene, &changed, name).await
        };
        let (one, other) = join(put("one"), put("other")).await;
        let winner = match (one, other) {
            (Ok(()), Err(Outdated)) => "one",
            (Err(Outdated), Ok(())) => "other",
            both => panic!("of two changes at once one is made: {both:?}"),
        };
        let tenants = scene.store.tenants().await.expect("the store is read");
        assert_eq!((&*tenants[0].name, tenants[0].version), (winner, version));
        let told = scene.store.audit(TENANT, version - 1, 10).await.expect("the store is read");
        assert_eq!(told.iter().map(|entry| &*entry.action).collect::<Vec<_>>(), [winner], "and told");
    }
}

pub(super) async fn changes_of_tenants_are_told_in_order(subject: &dyn Subject) {
    let scene = Scene::open(subject).await;
    let (first, second) = two_tenants();
    let mut expected = Vec::new();
    for version in 1..=5 {
        let tenant = Tenant { version, ..first.clone() };
        assert_eq!(put_tenant(&scene, &tenant, &format!("change.{version}")).await, Ok(()));
        expected.push(Audit::of(&tenant, minute(0), "k1", &format!("change.{version}"), "billing \u{1f980}"));
    }
    assert_eq!(put_tenant(&scene, &second, "tenant.create").await, Ok(()));
    let scene = scene.reopen(subject).await;
    let audit = async |after, limit| scene.store.audit(TENANT, after, limit).await.expect("the store is read");
    assert_eq!(audit(0, 10).await, expected);
    assert_eq!(audit(0, 2).await, expected[..2]);
    assert_eq!(audit(2, 2).await, expected[2..4]);
    assert_eq!(audit(5, 10).await, []);
    assert_eq!(scene.store.audit(TenantId(99), 0, 10).await, Ok(Vec::new()));
}

async fn put_tenant(scene: &Scene, tenant: &Tenant, action: &str) -> Result<(), Outdated> {
    let entry = Audit::of(tenant, minute(0), "k1", action, "billing \u{1f980}");
    scene.store.put_tenant(tenant.clone(), entry).await.expect("the store takes tenants")
}

fn two_tenants() -> (Tenant, Tenant) {
    let key = ApiKey {
        name: "the night shift's \u{1f980}".to_owned(),
        role: Role::Reader,
        expires_at: Some(minute(3)),
        ..ApiKey::admin("k1", [0xab; 32], minute(1))
    };
    let mut first = Tenant::new(TENANT, "default", 1, SigningSecret::first((0..24).collect(), minute(2)));
    first.keys.push(key);
    let mut second = Tenant::new(
        OTHER_TENANT,
        "billing",
        2,
        SigningSecret::first((0..64).map(|byte| !byte).collect(), Timestamp::MAX),
    );
    second.generations.extend([16, u16::MAX]);
    second.egress = Egress {
        allow: [Class::Loopback].into(),
        allow_networks: vec!["10.1.0.0/16".parse().expect("it is a network")],
        forbid_http: true,
    };
    let sealed = Secret::Sealed((0..80).rev().collect::<Vec<u8>>().into());
    let (id, created_at) = ("s2".to_owned(), minute(2));
    second.signing_secrets.push(SigningSecret { id, secret: sealed, created_at });
    (first, second)
}
