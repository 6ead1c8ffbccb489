//! Test cases of writes that every member may make: new schedules and tenants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::HttpTarget;
use domain::egress::Class;
use domain::occurrence::Run;
use domain::recurrence::Cron;
use domain::retry::RetryPolicy;
use domain::{
    ApiKey, Audit, DueKey, Egress, Incarnation, Quota, Quotas, Role, RunState, Schedule, ScheduleId, Secret,
    SigningSecret, Status, Target, Tenant, TenantId, Timestamp, When,
};
use futures_util::future::join;

use crate::Subject;
use crate::fixture::{
    Fixture, OTHER_TENANT, TENANT, due_of, id, insert_in, insert_of, minute, poller, run_of, yield_times,
};
use store::{Cancellation, Change, Cursor, Health, Insert, InsertLogEntry, Inserted, Outdated, Usage};

pub(super) async fn inserted_schedule_is_read_by_name_and_incarnation(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    assert_eq!(fixture.store.health(), Health::Ready);
    let named = fixture.create(fixture.named("invoice-7", minute(1))).await;
    let created = fixture.create(fixture.unnamed(minute(2))).await;

    let names = [&named, &created, &named].map(|schedule| (TENANT, schedule.id.clone()));
    let unknown = (TENANT, id("invoice-8"));
    let requested = vec![names[0].clone(), unknown, names[1].clone(), names[2].clone()];
    let got = fixture.store.get(requested).await.expect("the store accepts reads");
    assert_eq!(got, [Some(named.clone()), None, Some(created.clone()), Some(named.clone())]);

    let unknown = fixture.numbers.incarnation();
    let requested = vec![created.incarnation, unknown, named.incarnation, created.incarnation];
    let loaded = fixture.store.load(requested).await.expect("the store accepts reads");
    assert_eq!(loaded, [Some(created.clone()), None, Some(named), Some(created)]);
}

pub(super) async fn every_field_of_a_schedule_is_preserved(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let big: Bytes = (0..64 * 1024_u32).map(|at| at.to_le_bytes()[usize::from(at % 3 == 0)]).collect();
    let payloads =
        [Bytes::new(), Bytes::from_static(b"\xff\xfe\x00\xc3\x28"), Bytes::from_static(b" {\"a\" : 1}\n"), big];
    let every = When::every(Duration::from_millis(1_500));
    let cron = When::Cron(Cron::from_stored("0 7 * * * *", "Europe/Berlin"));
    let whens = [When::At(minute(1)), every, cron, When::At(Timestamp::MAX)];
    let longest = id(&"z".repeat(ScheduleId::LEN_MAX));
    let ids = [id("A_-9"), id("0"), longest, id("s")];

    let mut created = Vec::new();
    for ((payload, when), id) in payloads.into_iter().zip(whens).zip(ids) {
        let mut insert = insert_of(TENANT, fixture.numbers.incarnation(), id, minute(1));
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
                ("x-encrypted".to_owned(), Secret::Encrypted(Bytes::from_static(&[0, 255, b'\n', 128]))),
                ("x-b".to_owned(), "1".into()),
            ],
            timeout: Duration::from_millis(1),
        });
        created.push(fixture.create(insert).await);
    }
    for schedule in created {
        assert_eq!(fixture.get(TENANT, &schedule.id).await, Some(schedule.clone()));
        assert_eq!(fixture.load(schedule.incarnation).await, Some(schedule));
    }
}

pub(super) async fn insert_writes_due_row_and_insert_log_entry(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let insert = fixture.named("invoice-7", minute(1));
    let schedule = fixture.create(insert.clone()).await;
    assert_eq!(fixture.all_due(schedule.poller).await, [insert.due]);
    let arrivals = fixture.insert_log(&[schedule.poller.shard()], 10).await;
    let expected = InsertLogEntry { poller: schedule.poller, key: insert.due };
    assert!(!arrivals.is_empty() && arrivals.iter().all(|arrival| *arrival == expected), "{arrivals:?}");
}

pub(super) async fn chosen_id_is_assigned_once(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let first = fixture.named("invoice-7", minute(1));
    let schedule = fixture.create(first.clone()).await;
    let second = fixture.named("invoice-7", minute(2));
    assert_eq!(fixture.insert(&second).await, Inserted::Exists(schedule.incarnation));
    assert_eq!(fixture.get(TENANT, &schedule.id).await, Some(schedule.clone()));
    assert_eq!(fixture.load(second.schedule.incarnation).await, None);
    assert_eq!(fixture.all_due(schedule.poller).await, [first.due], "the rejected insert writes no due row");
}

pub(super) async fn first_insert_of_an_id_in_a_batch_wins(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let first = fixture.named("invoice-7", minute(1));
    let second = fixture.named("invoice-7", minute(2));
    let other = fixture.named("invoice-8", minute(3));
    let batch = vec![first.clone(), second, other.clone()];
    let responses = fixture.store.insert(batch).await.expect("the store accepts inserts");
    let [Inserted::Placed(_), Inserted::Exists(winner), Inserted::Placed(_)] = &*responses else {
        panic!("the store must reject only the second insert: {responses:?}");
    };
    assert_eq!(*winner, first.schedule.incarnation);
    assert_eq!(fixture.get(TENANT, &first.schedule.id).await, Some(first.schedule));
    assert_eq!(fixture.get(TENANT, &other.schedule.id).await, Some(other.schedule));
}

/// Two members may both consider themselves the owner of an id's home shard, for example after one of them was paused.
pub(super) async fn one_of_several_concurrent_calls_takes_an_id(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    for round in 0..20 {
        let name = format!("invoice-{round}");
        let inserts = [1, 2, 3].map(|at| fixture.named(&name, minute(at)));
        let put = fixture.named(&name, minute(4));
        let owner = fixture.owner(put.schedule.poller).await;
        let insert = async |at: usize| {
            yield_times((round + 3 * at) % 8).await;
            fixture.insert(&inserts[at]).await
        };
        let putting = async {
            yield_times(round % 5).await;
            owner.put(&put).await
        };
        let ((first, second), (third, (created, _, before))) =
            join(join(insert(0), insert(1)), join(insert(2), putting)).await;

        let holder = fixture.get(TENANT, &put.schedule.id).await.expect("one of the concurrent calls took the id");
        assert_eq!(holder, created, "the put returns the schedule that has the id, whichever call created it");
        let mut taken = usize::from(before.is_none());
        for (insert, response) in inserts.iter().zip([first, second, third]) {
            taken += usize::from(matches!(response, Inserted::Placed(_)));
            let returned = if let Inserted::Exists(known) = response { known } else { insert.schedule.incarnation };
            assert_eq!(returned, holder.incarnation, "each result names the schedule that has the id");
        }
        assert_eq!(taken, 1, "exactly one result reports that its call took the id");
        for loser in inserts.iter().chain([&put]).map(|insert| insert.schedule.incarnation) {
            let loaded = fixture.load(loser).await;
            assert_eq!(
                loaded.is_some(),
                loser == holder.incarnation,
                "a call that did not take the id creates no schedule"
            );
        }
    }
}

pub(super) async fn repeated_insert_returns_exists(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    for insert in [fixture.named("invoice-7", minute(1)), fixture.unnamed(minute(1))] {
        let schedule = fixture.create(insert.clone()).await;
        assert_eq!(
            fixture.insert(&insert).await,
            Inserted::Exists(schedule.incarnation),
            "a repeated insert returns the incarnation of the first insert"
        );

        let owner = fixture.owner(schedule.poller).await;
        owner.write(Change::Cancel(schedule.incarnation)).await;
        assert_eq!(
            fixture.insert(&insert).await,
            Inserted::Exists(schedule.incarnation),
            "a repeated insert does not revert the cancellation"
        );
        assert_eq!(fixture.now(&schedule).await.status, Status::Cancelled);

        // Another schedule, the successor, takes the id of the cancelled schedule. The owner then cancels the
        // successor, too.
        let successor = insert_of(TENANT, fixture.numbers.incarnation(), schedule.id.clone(), minute(1));
        let successor = fixture.create(successor).await;
        assert_eq!(fixture.insert(&insert).await, Inserted::Exists(successor.incarnation));
        owner.write(Change::Cancel(successor.incarnation)).await;
        assert_eq!(fixture.insert(&insert).await, Inserted::Exists(successor.incarnation));
        assert_eq!(fixture.now(&schedule).await.status, Status::Cancelled);
    }
}

pub(super) async fn ended_schedule_keeps_its_id(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let schedule = fixture.create(fixture.named("invoice-7", minute(1))).await;
    fixture.owner(schedule.poller).await.finish(&schedule, RunState::Succeeded).await;
    let again = fixture.named("invoice-7", minute(2));
    assert_eq!(fixture.insert(&again).await, Inserted::Exists(schedule.incarnation));
    assert_eq!(fixture.now(&schedule).await.status, Status::Ended);
}

pub(super) async fn id_of_cancelled_schedule_can_be_taken(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let first = fixture.create(fixture.named("invoice-7", minute(1))).await;
    fixture.owner(first.poller).await.write(Change::Cancel(first.incarnation)).await;
    let cancelled = fixture.now(&first).await;
    assert_eq!(
        fixture.get(TENANT, &first.id).await,
        Some(cancelled.clone()),
        "a cancelled schedule keeps its id until another schedule takes the id"
    );

    let second = fixture.create(fixture.named("invoice-7", minute(2))).await;
    assert_ne!(second.incarnation, first.incarnation);
    assert_eq!(fixture.get(TENANT, &first.id).await, Some(second.clone()));
    assert_eq!(
        fixture.load(first.incarnation).await,
        Some(cancelled),
        "a look-up by incarnation still finds the cancelled schedule"
    );

    let late = fixture.insert(&fixture.named("invoice-7", minute(3))).await;
    assert_eq!(late, Inserted::Exists(second.incarnation));
}

/// Some engines derive the incarnation from a server-made id without a table of ids. They must not mistake an id that a
/// caller chose for a server-made id.
pub(super) async fn chosen_id_in_server_made_form_is_only_a_name(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let created = fixture.create(fixture.unnamed(minute(1))).await;

    let theirs =
        fixture.create(insert_of(OTHER_TENANT, fixture.numbers.incarnation(), created.id.clone(), minute(2))).await;
    assert_eq!(fixture.get(TENANT, &created.id).await, Some(created.clone()));
    assert_eq!(fixture.get(OTHER_TENANT, &created.id).await, Some(theirs));

    let unused_id = ScheduleId::from_incarnation(fixture.numbers.incarnation());
    assert_eq!(fixture.get(TENANT, &unused_id).await, None);
    let chosen = fixture.create(insert_of(TENANT, fixture.numbers.incarnation(), unused_id.clone(), minute(3))).await;
    assert_eq!(fixture.get(TENANT, &unused_id).await, Some(chosen.clone()));
    assert_eq!(fixture.load(unused_id.to_incarnation().expect("the id has the form of a server-made id")).await, None);
    let again = insert_of(TENANT, fixture.numbers.incarnation(), unused_id, minute(4));
    assert_eq!(fixture.insert(&again).await, Inserted::Exists(chosen.incarnation));

    let taken = insert_of(TENANT, fixture.numbers.incarnation(), created.id.clone(), minute(5));
    assert_eq!(fixture.insert(&taken).await, Inserted::Exists(created.incarnation));
    fixture.owner(created.poller).await.write(Change::Cancel(created.incarnation)).await;
    let successor = fixture.create(taken).await;
    assert_eq!(
        fixture.get(TENANT, &created.id).await,
        Some(successor),
        "a caller can choose a server-made id if the schedule with this id is cancelled"
    );
    assert_eq!(fixture.now(&created).await.status, Status::Cancelled);
}

pub(super) async fn tenants_are_isolated(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let ours = fixture.create(fixture.named("invoice-7", minute(1))).await;
    assert_eq!(fixture.get(OTHER_TENANT, &ours.id).await, None);
    let theirs =
        fixture.create(insert_of(OTHER_TENANT, fixture.numbers.incarnation(), id("invoice-7"), minute(1))).await;
    assert_eq!(fixture.get(TENANT, &ours.id).await, Some(ours.clone()));
    assert_eq!(fixture.get(OTHER_TENANT, &ours.id).await, Some(theirs.clone()));

    let response = fixture.append_cancellations(TenantId(3), &ours.id).await;
    assert_eq!((response.before, response.applied), (None, true));
    for schedule in [&ours, &theirs] {
        assert_eq!(fixture.now(schedule).await.status, Status::Active);
    }
    let dead = fixture.owner(theirs.poller).await.finish(&theirs, RunState::Failed).await;
    assert_eq!(fixture.dead_letters(TENANT).await, []);
    assert_eq!(fixture.dead_letters(OTHER_TENANT).await, [dead]);
    assert_eq!(fixture.now(&ours).await, ours);
}

pub(super) async fn results_of_10000_inserts_are_in_order(subject: &dyn Subject) {
    const ROWS: usize = 10_000;
    let fixture = Fixture::open(subject).await;
    let mut inserts: Vec<Insert> = (0..ROWS).map(|_| fixture.unnamed(minute(1))).collect();
    for (at, insert) in inserts.iter_mut().enumerate() {
        Arc::make_mut(&mut insert.schedule).spec.payload = Bytes::from(format!("{{\"row\":{at}}}"));
    }
    let responses = fixture.store.insert(inserts.clone()).await.expect("the store accepts a batch of 10,000 inserts");
    assert_eq!(responses.len(), ROWS);
    assert!(responses.iter().all(|response| matches!(response, Inserted::Placed(_))));

    // The test looks the schedules up in the reverse order of the inserts.
    let backwards: Vec<Incarnation> = inserts.iter().rev().map(|insert| insert.schedule.incarnation).collect();
    let loaded = fixture.store.load(backwards).await.expect("the store accepts reads");
    let expected = inserts.iter().rev().map(|insert| Some(insert.schedule.clone()));
    assert!(loaded.into_iter().eq(expected), "the store returns the inserted schedules in the order of the look-ups");

    let mut due = 0;
    for number in 0..4 {
        due += fixture.all_due(poller(TENANT, number)).await.len();
    }
    assert_eq!(due, ROWS);
}

pub(super) async fn empty_batch_returns_empty_result(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let store = &fixture.store;
    assert_eq!(store.insert(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.closed(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.place(Vec::<(_, DueKey)>::new()).await, Ok(Vec::new()));
    assert!(store.append_cancellations(Vec::<Cancellation>::new()).await.is_ok_and(|responses| responses.is_empty()));
    assert_eq!(store.get(Vec::new()).await, Ok(Vec::<Option<Arc<Schedule>>>::new()));
    assert_eq!(store.load(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.find_runs(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.take(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.positions(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.due(Vec::new()).await, Ok(Vec::new()));
    assert_eq!(store.write(Vec::new()).await, Ok(Vec::new()));
    let nothing = store.insert_log(Vec::new().into(), Cursor::default(), 10).await.expect("the store accepts reads");
    assert_eq!(nothing.0, []);
}

pub(super) async fn tenants_are_stored_and_replaced(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    assert_eq!(fixture.store.tenants().await, Ok(Vec::new()));
    let (first, second) = two_tenants();
    for tenant in [&second, &first] {
        assert_eq!(put_tenant(&fixture, tenant, "tenant.create").await, Ok(()));
    }
    let read = async || {
        let mut tenants = fixture.store.tenants().await.expect("the store accepts reads");
        tenants.sort_by_key(|tenant| tenant.id);
        tenants
    };
    assert_eq!(read().await, [first.clone(), second.clone()]);
    let key = first.keys[0].clone();
    let quotas = Quotas::NONE.with(Quota::PendingMax, 0).with(Quota::CallbacksPerMinute, u32::MAX);
    let ceilings = Quotas::NONE.with(Quota::PendingMax, 7);
    let keys = vec![key.clone(), key];
    let replaced = Tenant { version: 2, generations: vec![1, 4], keys, quotas, ceilings, ..first };
    assert_eq!(put_tenant(&fixture, &replaced, "key.create").await, Ok(()));
    assert_eq!(read().await, [replaced, second]);
}

pub(super) async fn tenant_change_requires_the_latest_version(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let (first, _) = two_tenants();
    assert_eq!(put_tenant(&fixture, &first, "tenant.create").await, Ok(()));
    for version in [0, 1, 3] {
        let outdated = Tenant { version, name: "stolen".to_owned(), ..first.clone() };
        assert_eq!(put_tenant(&fixture, &outdated, "tenant.change").await, Err(Outdated), "version {version}");
    }
    assert_eq!(fixture.store.tenants().await, Ok(vec![first.clone()]));
    for version in 2..12 {
        let put = async |name: &str| {
            let changed = Tenant { version, name: name.to_owned(), ..first.clone() };
            put_tenant(&fixture, &changed, name).await
        };
        let (one, other) = join(put("one"), put("other")).await;
        let winner = match (one, other) {
            (Ok(()), Err(Outdated)) => "one",
            (Err(Outdated), Ok(())) => "other",
            both => panic!("exactly one of two concurrent changes of a tenant must succeed: {both:?}"),
        };
        let tenants = fixture.store.tenants().await.expect("the store accepts reads");
        assert_eq!((&*tenants[0].name, tenants[0].version), (winner, version));
        let entries = fixture.store.audit(TENANT, version - 1, 10).await.expect("the store accepts reads");
        assert_eq!(
            entries.iter().map(|entry| &*entry.action).collect::<Vec<_>>(),
            [winner],
            "the audit log contains only the change that succeeded"
        );
    }
}

pub(super) async fn audit_log_lists_tenant_changes_in_order(subject: &dyn Subject) {
    let fixture = Fixture::open(subject).await;
    let (first, second) = two_tenants();
    let mut expected = Vec::new();
    for version in 1..=5 {
        let tenant = Tenant { version, ..first.clone() };
        assert_eq!(put_tenant(&fixture, &tenant, &format!("change.{version}")).await, Ok(()));
        expected.push(Audit::of(&tenant, minute(0), "k1", &format!("change.{version}"), "billing \u{1f980}"));
    }
    assert_eq!(put_tenant(&fixture, &second, "tenant.create").await, Ok(()));
    let fixture = fixture.reopen(subject).await;
    let audit = async |after, limit| fixture.store.audit(TENANT, after, limit).await.expect("the store accepts reads");
    assert_eq!(audit(0, 10).await, expected);
    assert_eq!(audit(0, 2).await, expected[..2]);
    assert_eq!(audit(2, 2).await, expected[2..4]);
    assert_eq!(audit(5, 10).await, []);
    assert_eq!(fixture.store.audit(TenantId(99), 0, 10).await, Ok(Vec::new()));
}

async fn put_tenant(fixture: &Fixture, tenant: &Tenant, action: &str) -> Result<(), Outdated> {
    let entry = Audit::of(tenant, minute(0), "k1", action, "billing \u{1f980}");
    fixture.store.put_tenant(tenant.clone(), entry).await.expect("the store accepts changes of tenants")
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
        allow_networks: vec!["10.1.0.0/16".parse().expect("the text is a valid network address range")],
        forbid_http: true,
        allow_topics: vec!["orders-*".parse().expect("the text is a valid pattern of topics")],
    };
    second.excerpts = true;
    let encrypted = Secret::Encrypted((0..80).rev().collect::<Vec<u8>>().into());
    let (id, created_at) = ("s2".to_owned(), minute(2));
    second.signing_secrets.push(SigningSecret { id, secret: encrypted, created_at });
    (first, second)
}

pub(super) async fn usage_follows_schedules_and_runs(subject: &dyn Subject) {
    /// Maximum number of bytes that an engine counts for one row in addition to the payload.
    const ROW_BYTES_MAX: u64 = 1_024;
    const PAYLOAD: u64 = 10_000;
    const EXCERPT_BYTES: usize = 1_073;

    let fixture = Fixture::open(subject).await;
    let usage = async || {
        let usages = fixture.store.usage(vec![TENANT, OTHER_TENANT]).await.expect("the store accepts reads");
        assert_eq!(usages[1], Usage::default());
        usages[0]
    };
    let grown = |before: Usage, after: Usage, bytes: u64| {
        let more = after.bytes - before.bytes;
        assert!(
            (bytes..=bytes + ROW_BYTES_MAX).contains(&more),
            "a write of {bytes} bytes increased the usage by {more} bytes"
        );
    };
    assert_eq!(usage().await, Usage::default());

    let poller = poller(TENANT, 0);
    let owner = fixture.owner(poller).await;
    let sized = |name: &str, payload: u64| {
        let mut insert = insert_in(poller, fixture.numbers.incarnation(), id(name), minute(5));
        Arc::make_mut(&mut insert.schedule).spec.payload = vec![b'1'; usize::try_from(payload).unwrap_or(0)].into();
        insert
    };
    let first = fixture.create(sized("first", PAYLOAD)).await;
    let created = usage().await;
    grown(Usage::default(), created, PAYLOAD);
    assert_eq!((created.active, created.ended, created.cancelled), (1, 0, 0));

    // A repeated insert stores nothing.
    assert!(matches!(fixture.insert(&sized("first", PAYLOAD)).await, Inserted::Exists(_)));
    assert_eq!(usage().await, created);

    // If several puts replace the spec of a schedule, the store retains only the latest spec.
    for _ in 0..3 {
        owner.put(&sized("first", 2 * PAYLOAD)).await;
    }
    let replaced = usage().await;
    assert!(replaced.bytes >= 2 * PAYLOAD, "{replaced:?}");
    assert!(replaced.bytes <= 3 * PAYLOAD + 2 * ROW_BYTES_MAX, "{replaced:?}");
    assert_eq!(replaced.active, 1);

    let current = fixture.get(TENANT, &first.id).await.expect("the schedule exists");
    let due = due_of(&current, minute(5));
    let run = run_of(TENANT, due.occurrence, RunState::Retrying);
    let again = DueKey { position: minute(7), attempt: 2, ..due };
    owner.write(Change::Run { run: run.clone(), then: Some(again), ends: false, origin: None }).await;
    let retrying = usage().await;
    grown(replaced, retrying, 1);
    owner
        .write(Change::Run { run: Run { state: RunState::Failed, ..run }, then: None, ends: true, origin: None })
        .await;
    let ended = usage().await;
    // The record of the failed run replaces the record of the retrying run, which has the same length. The counts of
    // the hour may be new rows.
    grown(retrying, ended, 0);
    assert_eq!((ended.active, ended.ended, ended.cancelled), (0, 1, 0));

    owner.write(Change::Cancel(current.incarnation)).await;
    let cancelled = usage().await;
    assert_eq!((cancelled.active, cancelled.ended, cancelled.cancelled), (0, 0, 1));
    grown(ended, cancelled, 0);
    let other = fixture.create(sized("other", 0)).await;
    fixture.append_cancellations(TENANT, &other.id).await;
    let both = usage().await;
    grown(cancelled, both, 0);
    assert_eq!(both.active + both.cancelled, 2);

    let answered = fixture.create(sized("answered", 0)).await;
    let before = usage().await;
    let mut run = run_of(TENANT, due_of(&answered, minute(5)).occurrence, RunState::Succeeded);
    run.attempts[0].excerpt = Some(Secret::Encrypted(vec![7; EXCERPT_BYTES].into()));
    owner.write(Change::Run { run, then: None, ends: true, origin: None }).await;
    grown(before, usage().await, EXCERPT_BYTES as u64);
}
