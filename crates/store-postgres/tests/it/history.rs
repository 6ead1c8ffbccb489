//! Tests of the deletion of history. The store deletes old runs and schedules, and keeps all other rows.

use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{
    Audit, DueKey, Incarnation, Occurrence, PollerId, Quota, RunState, Schedule, ScheduleId, SigningSecret, Tenant,
    TenantId, Term, Timestamp,
};
use runtime::{Runtime, TaskSet};
use store::{Change, Insert, Inserted, OwnerWrite, Positions, Store, Written};
use store_postgres::{Options, migrate};
use test_servers::postgres::shared;

use crate::support::{Home, OtherSession, POLLER, TENANT, database, name_of, on_real, one_shot, outcome, owned};

pub(crate) const DAY: Duration = Duration::from_secs(86_400);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Store, and the term under which the test owns the shard of [`POLLER`].
pub(crate) struct Owned<'a> {
    pub(crate) store: &'a dyn Store,
    term: Term,
}

impl<'a> Owned<'a> {
    pub(crate) async fn take(store: &'a dyn Store) -> Self {
        Owned { store, term: store.take(vec![POLLER.shard()]).await.unwrap()[0] }
    }

    pub(crate) async fn write(&self, change: Change) -> Written {
        self.store.write(vec![owned(self.term, change)]).await.unwrap().remove(0).unwrap()
    }

    pub(crate) async fn done(&self, at: Timestamp) {
        self.write(Change::Positions(Positions { closed: at, done: at })).await;
    }

    pub(crate) async fn has_schedule(&self, insert: &Insert) -> bool {
        self.store.load(vec![insert.due.occurrence.incarnation]).await.unwrap()[0].is_some()
    }

    pub(crate) async fn has_run(&self, insert: &Insert) -> bool {
        self.store.find_runs(vec![insert.due.occurrence]).await.unwrap()[0].is_some()
    }
}

fn named(insert: Insert, id: &str) -> Insert {
    let schedule = Schedule { id: ScheduleId::new(id).unwrap(), ..(*insert.schedule).clone() };
    Insert { schedule: Arc::new(schedule), ..insert }
}

pub(crate) fn run(insert: &Insert, state: RunState) -> Run {
    Run { tenant: TENANT, occurrence: insert.due.occurrence, state, attempts: Vec::new() }
}

pub(crate) fn runs_in(url: &str, table: &str) -> String {
    shared().sql(name_of(url), &format!("select count(*) from reveille.{table}")).unwrap().trim().to_owned()
}

fn asked_rows(url: &str) -> String {
    shared().sql(name_of(url), "select count(*) from reveille.asked").unwrap().trim().to_owned()
}

/// Returns an instant that is later than every write before this call, and earlier than every write after this call.
async fn between(runtime: &Runtime) -> Timestamp {
    runtime.sleep(Duration::from_millis(2)).await;
    let between = runtime.now();
    runtime.sleep(Duration::from_millis(2)).await;
    between
}

#[test]
fn store_deletes_only_old_history_of_ended_schedules() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        let now = runtime.now();
        // The first seven schedules of this test are due on seven different days in the past.
        let due = |days: u32| one_shot(&runtime, now - DAY * days);
        let [fired, retrying, redriven, late, put_off, put_far_off, old] = [3, 4, 5, 6, 7, 8, 300].map(due);
        let [cancelled, pending] = [one_shot(&runtime, now + HOUR), one_shot(&runtime, now + HOUR)];
        let name = named(one_shot(&runtime, now + HOUR), "name");
        let changed = named(one_shot(&runtime, now + HOUR), "changed");
        let every =
            [&fired, &retrying, &redriven, &late, &put_off, &put_far_off, &old, &cancelled, &pending, &name, &changed];
        owned.store.insert(every.map(Insert::clone).to_vec()).await.unwrap();
        owned.write(outcome(&fired)).await;
        owned.write(outcome(&old)).await;
        assert_eq!(runs_in(&url, "run_rest"), "1", "a run of an old day goes to the default partition");
        let retry = DueKey { position: now + HOUR, attempt: 2, ..retrying.due };
        owned
            .write(Change::Run {
                run: run(&retrying, RunState::Retrying),
                then: Some(retry),
                ends: false,
                origin: None,
            })
            .await;
        owned.write(Change::Run { run: run(&redriven, RunState::Failed), then: None, ends: true, origin: None }).await;
        owned.write(Change::Defer(DueKey { position: now + HOUR, ..put_off.due })).await;
        let end = |insert: &Insert| {
            let Occurrence { incarnation, revision, .. } = insert.due.occurrence;
            Change::End { incarnation, revision }
        };
        owned.write(Change::Defer(DueKey { position: now + DAY * 30, ..put_far_off.due })).await;
        owned.write(end(&put_off)).await;
        owned.write(end(&put_far_off)).await;
        owned.write(end(&late)).await;
        for over in [&cancelled, &name] {
            owned.write(Change::Cancel(over.due.occurrence.incarnation)).await;
        }
        owned.write(Change::Put(named(one_shot(&runtime, now + HOUR), "changed"))).await;
        assert_eq!(asked_rows(&url), "1");
        assert_eq!(runs_in(&url, "past_timing"), "3", "two cancellations and a replacement");

        let before = between(&runtime).await;
        let replay = Occurrence { replay: 1, ..redriven.due.occurrence };
        let again = DueKey { position: now + HOUR, occurrence: replay, ..redriven.due };
        owned.write(Change::Redrive { of: redriven.due.occurrence, due: again }).await;
        owned.write(outcome(&late)).await;
        owned.done(before).await;
        assert!(owned.store.maintain(now, before).await.unwrap() >= 5);

        for gone in [&fired, &old, &cancelled, &name] {
            assert!(!owned.has_schedule(gone).await && !owned.has_run(gone).await, "{gone:?}");
        }
        for stays in [&retrying, &redriven, &late] {
            assert!(owned.has_schedule(stays).await && owned.has_run(stays).await, "{stays:?}");
        }
        for stays in [&put_off, &put_far_off, &pending, &changed] {
            assert!(owned.has_schedule(stays).await, "{stays:?}");
        }
        assert_eq!(asked_rows(&url), "0");
        assert_eq!(runs_in(&url, "past_timing"), "0");

        // The deletion of the schedule `name` freed its id, so that a new schedule can take the id.
        let renamed = named(one_shot(&runtime, now + HOUR), "name");
        let inserted = owned.store.insert(vec![renamed.clone()]).await.unwrap();
        assert!(matches!(inserted[0], Inserted::Placed(_)), "{inserted:?}");
        let named = owned.store.get(vec![(TENANT, ScheduleId::new("name").unwrap())]).await.unwrap();
        assert_eq!(named[0].as_ref().map(|schedule| schedule.incarnation), Some(renamed.due.occurrence.incarnation));

        // The test writes the missing outcomes and raises `done`, so that the store deletes more schedules.
        let outcome_of_replay = Run { occurrence: replay, ..run(&redriven, RunState::Succeeded) };
        owned.write(Change::Run { run: outcome_of_replay, then: None, ends: true, origin: None }).await;
        owned.write(outcome(&retrying)).await;
        owned.done(now + HOUR).await;
        let before = between(&runtime).await;
        owned.store.maintain(now, before).await.unwrap();
        for gone in [&retrying, &redriven, &late, &put_off] {
            assert!(!owned.has_schedule(gone).await && !owned.has_run(gone).await, "{gone:?}");
        }
        for stays in [&put_far_off, &pending, &changed, &renamed] {
            assert!(owned.has_schedule(stays).await, "{stays:?}");
        }
        home.close().await;
    });
}

pub(crate) const OTHER: PollerId = PollerId { tenant: TenantId(POLLER.tenant.0 + 1), ..POLLER };

/// Creates or changes a tenant with a class of retention.
pub(crate) async fn put_class(store: &dyn Store, id: TenantId, version: u64, days: Option<u32>) {
    let secret = SigningSecret::first(vec![1; 24], Timestamp::MIN);
    let mut tenant = Tenant { version, ..Tenant::new(id, &format!("tenant-{}", id.0), 4, secret) };
    tenant.quotas.set(Quota::RetentionDays, days);
    let entry = Audit::of(&tenant, Timestamp::MIN, "test", "quotas.update", "");
    store.put_tenant(tenant, entry).await.unwrap().unwrap();
}

/// Returns the insert of a schedule that a client created at `created` and that belongs to `poller`.
pub(crate) fn created(insert: &Insert, created: Timestamp, poller: PollerId) -> Insert {
    let incarnation = Incarnation::new(created, insert.due.occurrence.incarnation.0 & 0xffff_ffff);
    let id = ScheduleId::from_incarnation(incarnation);
    let schedule = Schedule { tenant: poller.tenant, poller, incarnation, id, ..(*insert.schedule).clone() };
    let occurrence = Occurrence { incarnation, ..insert.due.occurrence };
    Insert { schedule: Arc::new(schedule), due: DueKey { occurrence, ..insert.due }, by: None }
}

/// Sets the times of all writes of runs, and the ends of all schedules, back by `days`.
pub(crate) fn age(url: &str, days: u32) {
    for statement in ["run set written_at = written_at", "schedule set ended_at = ended_at"] {
        let statement = format!("update reveille.{statement} - {days} * 86400000::bigint");
        shared().sql(name_of(url), &statement).unwrap();
    }
}

/// A class deletes only runs of its tenants. A partition disappears as a whole once no tenant keeps its runs of the
/// day. A poller that lags prevents the deletions after its position.
#[test]
fn class_of_a_tenant_bounds_its_history() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        let other_term = owned.store.take(vec![OTHER.shard()]).await.unwrap()[0];
        let write_other = async |change| {
            let write = OwnerWrite { term: other_term, poller: OTHER, change };
            owned.store.write(vec![write]).await.unwrap().remove(0).unwrap()
        };
        put_class(owned.store, TENANT, 1, Some(1)).await;
        put_class(owned.store, OTHER.tenant, 1, None).await;
        let now = runtime.now();
        let default = now - DAY * 30;
        let old = |insert: Insert, poller| created(&insert, now - DAY * 6, poller);
        let day = |days: u32, poller| old(one_shot(&runtime, now - DAY * days), poller);
        // The run `shared` is in the partition of a run of the other tenant, and the run `alone` is not.
        let [shared_day, alone, recent] = [day(3, POLLER), day(5, POLLER), one_shot(&runtime, now)];
        let other = day(3, OTHER);
        let cancelled = old(one_shot(&runtime, now + HOUR), POLLER);
        let all = [&shared_day, &alone, &recent, &other, &cancelled].map(Insert::clone);
        owned.store.insert(all.to_vec()).await.unwrap();
        for insert in [&shared_day, &alone] {
            owned.write(outcome(insert)).await;
        }
        owned.write(Change::Cancel(cancelled.due.occurrence.incarnation)).await;
        let run_of_other = Run { tenant: OTHER.tenant, ..run(&other, RunState::Succeeded) };
        write_other(Change::Run { run: run_of_other, then: None, ends: true, origin: None }).await;
        age(&url, 3);
        owned.write(outcome(&recent)).await;
        owned.done(now).await;
        let done_of_other = other.due.position - Duration::from_millis(1);
        write_other(Change::Positions(Positions { closed: now, done: done_of_other })).await;
        let deleted = owned.store.maintain(now, default).await;
        assert_eq!(
            deleted,
            Ok(1),
            "the store drops a partition of due rows, because a poller lags by more than the class"
        );
        assert!(owned.has_run(&shared_day).await && owned.has_run(&alone).await);

        write_other(Change::Positions(Positions { closed: now, done: now })).await;
        let deleted = owned.store.maintain(now, default).await;
        assert_eq!(deleted, Ok(12), "two partitions, one run, three schedules, and counts of two hours");
        for gone in [&shared_day, &alone] {
            assert!(!owned.has_run(gone).await && !owned.has_schedule(gone).await, "{gone:?}");
        }
        assert!(!owned.has_schedule(&cancelled).await);
        for stays in [&recent, &other] {
            assert!(owned.has_run(stays).await && owned.has_schedule(stays).await, "{stays:?}");
        }
        let partitions = || {
            let count = "select count(*) from pg_inherits
                where inhparent = 'reveille.run'::regclass and inhrelid::regclass::text like '%run_2%'";
            shared().sql(name_of(&url), count).unwrap().trim().parse::<u32>().unwrap()
        };
        let before = partitions();
        let usage = owned.store.usage(vec![TENANT, OTHER.tenant]).await.unwrap();
        assert_eq!((usage[0].ended, usage[0].cancelled, usage[1].ended), (1, 0, 1));

        // The other tenant chooses a longer class, and then the shortest class.
        put_class(owned.store, OTHER.tenant, 2, Some(90)).await;
        age(&url, 32);
        owned.store.maintain(now, now - DAY * 2).await.unwrap();
        assert!(owned.has_run(&other).await && owned.has_schedule(&other).await, "the class is longer than the option");
        put_class(owned.store, OTHER.tenant, 3, Some(1)).await;
        owned.store.maintain(now, default).await.unwrap();
        assert!(!owned.has_run(&other).await && !owned.has_schedule(&other).await);
        assert_eq!(partitions() + 1, before, "the store drops the partition of the day");
        let usage = owned.store.usage(vec![OTHER.tenant]).await.unwrap();
        assert_eq!((usage[0].ended, usage[0].bytes), (0, 0));
        home.close().await;
    });
}

/// While a due row is after `done`, its owner needs the run record to find out whether it has already fired the row.
#[test]
fn store_keeps_history_while_a_due_row_is_after_the_watermark() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        let now = runtime.now();
        let [fired, cancelled] = [now - DAY * 3, now + HOUR].map(|at| one_shot(&runtime, at));
        owned.store.insert(vec![fired.clone(), cancelled.clone()]).await.unwrap();
        owned.write(outcome(&fired)).await;
        owned.write(Change::Cancel(cancelled.due.occurrence.incarnation)).await;
        let before = between(&runtime).await;
        owned.done(fired.due.position - Duration::from_millis(1)).await;
        assert_eq!(owned.store.maintain(now, before).await, Ok(0));
        assert!(
            owned.has_run(&fired).await && owned.has_schedule(&fired).await && owned.has_schedule(&cancelled).await
        );
        owned.done(fired.due.position).await;
        assert!(owned.store.maintain(now, before).await.unwrap() >= 3);
        assert!(
            !owned.has_run(&fired).await && !owned.has_schedule(&fired).await && !owned.has_schedule(&cancelled).await
        );
        home.close().await;
    });
}

#[test]
fn one_maintenance_call_deletes_thousands_of_cancelled_schedules() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        let now = runtime.now();
        let inserts: Vec<_> = (0..2_500).map(|_| one_shot(&runtime, now + HOUR)).collect();
        owned.store.insert(inserts.clone()).await.unwrap();
        let cancels = inserts[..2_300].iter().map(|insert| Change::Cancel(insert.due.occurrence.incarnation));
        let cancels = cancels.map(|change| crate::support::owned(owned.term, change)).collect();
        owned.store.write(cancels).await.unwrap();
        let before = between(&runtime).await;
        // Each cancellation left a past timing.
        assert_eq!(owned.store.maintain(now, before).await, Ok(2 * 2_300));
        let all = inserts.iter().map(|insert| insert.due.occurrence.incarnation).collect();
        let left = owned.store.load(all).await.unwrap();
        assert!(left[..2_300].iter().all(Option::is_none) && left[2_300..].iter().all(Option::is_some));
        home.close().await;
    });
}

#[test]
fn history_deletion_skips_locked_or_reactivated_schedule() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        let now = runtime.now();
        let all = ["over", "held", "live"].map(|id| named(one_shot(&runtime, now + HOUR), id));
        owned.store.insert(all.to_vec()).await.unwrap();
        for insert in &all {
            owned.write(Change::Cancel(insert.due.occurrence.incarnation)).await;
        }
        let before = between(&runtime).await;
        let tasks = TaskSet::new(&runtime);
        let other_session = OtherSession::new(&runtime, &tasks, &url);
        // Like an earlier build, the statement reactivates the schedule `live` but does not clear its `ended_at`.
        other_session.execute("update reveille.schedule set status = 0 where id = 'live'").await;
        other_session.execute("begin; select from reveille.schedule where id = 'held' for update").await;
        let [over, held, live] = &all;
        assert_eq!(owned.store.maintain(now, before).await, Ok(1 + 3), "one schedule and three past timings");
        assert!(!owned.has_schedule(over).await && owned.has_schedule(held).await && owned.has_schedule(live).await);
        other_session.execute("commit").await;
        assert_eq!(owned.store.maintain(now, before).await, Ok(1));
        assert!(!owned.has_schedule(held).await && owned.has_schedule(live).await);
        home.close().await;
    });
}

#[test]
fn blocked_history_deletion_does_not_delay_new_writes() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        let now = runtime.now();
        let tasks = TaskSet::new(&runtime);
        let other_session = OtherSession::new(&runtime, &tasks, &url);
        other_session.execute("insert into reveille.asked values ('00000000-0000-0000-0000-000000000001')").await;
        other_session.execute("begin; select from reveille.asked for update").await;
        let forgetting = async {
            home.store.maintain(now, now).await.unwrap();
            runtime.monotonic()
        };
        let waits = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'";
        let working = async {
            while shared().sql(name_of(&url), waits).unwrap().trim() == "0" {
                runtime.sleep(Duration::from_millis(10)).await;
            }
            // The rows of the schedules `far` and `fired` need partitions that do not exist yet.
            let (far, fired) = (one_shot(&runtime, now + DAY * 400), one_shot(&runtime, now - DAY * 2));
            owned.store.insert(vec![far, fired.clone()]).await.unwrap();
            owned.write(outcome(&fired)).await;
            let done = runtime.monotonic();
            other_session.execute("rollback").await;
            done
        };
        let (forgot, worked) = futures_util::future::join(forgetting, working).await;
        assert!(worked < forgot, "the writes waited for the deletion");
        home.close().await;
    });
}

/// The test locks the default partition of the runs, as a dump of the database may do for hours.
#[test]
fn default_partition_contains_runs_of_days_without_a_partition() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        let tasks = TaskSet::new(&runtime);
        let other_session = OtherSession::new(&runtime, &tasks, &url);
        other_session.execute("begin; select from reveille.run_rest").await;
        let today = one_shot(&runtime, runtime.now());
        owned.store.insert(vec![today.clone()]).await.unwrap();
        let writing = Box::pin(owned.write(outcome(&today)));
        runtime.timeout(Duration::from_secs(5), writing).await.expect("the write does not wait for the lock");
        assert_eq!(runs_in(&url, "run_rest"), "1");
        other_session.execute("rollback").await;
        // After `other_session` has released its lock, later runs of today still go to the default partition, and reads
        // find these runs.
        let later = one_shot(&runtime, runtime.now());
        owned.store.insert(vec![later.clone()]).await.unwrap();
        owned.write(outcome(&later)).await;
        assert_eq!(runs_in(&url, "run_rest"), "2");
        assert!(owned.has_run(&today).await && owned.has_run(&later).await);
        home.close().await;
    });
}

#[test]
fn dropping_a_partition_loses_no_concurrently_written_outcome() {
    let url = database();
    on_real(async |runtime| {
        let (one, other) = (Home::open(&runtime, &url).await, Home::open(&runtime, &url).await);
        let owned = Owned::take(&*one.store).await;
        let now = runtime.now();
        let mut dropped = 0;
        for round in 0..24_u64 {
            let [early, late] = [0, 1].map(|millis| one_shot(&runtime, now - DAY * 3 + Duration::from_millis(millis)));
            owned.store.insert(vec![early.clone(), late.clone()]).await.unwrap();
            owned.write(outcome(&early)).await;
            owned.done(now).await;
            let before = between(&runtime).await;
            let writing = async {
                runtime.sleep(Duration::from_micros(round * 977 % 20_000)).await;
                owned.write(outcome(&late)).await
            };
            let forgetting = async { other.store.maintain(now, before).await.unwrap() };
            let (_, count) = futures_util::future::join(writing, forgetting).await;
            dropped += count;
            assert!(owned.has_run(&late).await, "in round {round}");
        }
        assert!(dropped >= 8, "only {dropped} rows and partitions were deleted: the test proves nothing");
        one.close().await;
        other.close().await;
    });
}

#[test]
fn migration_from_an_older_schema_keeps_the_stored_history() {
    let url = database();
    let old = shared().create_database().unwrap();
    on_real(async |runtime| {
        let now = runtime.now();
        let inserts: Vec<_> = [0, 1, 40].into_iter().map(|days| one_shot(&runtime, now - DAY * days)).collect();
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        owned.store.insert(inserts.clone()).await.unwrap();
        for insert in &inserts {
            owned.write(outcome(insert)).await;
        }
        let occurrences: Vec<_> = inserts.iter().map(|insert| insert.due.occurrence).collect();
        let runs = owned.store.find_runs(occurrences.clone()).await.unwrap();
        assert!(runs.iter().all(Option::is_some));
        home.close().await;

        let tasks = TaskSet::new(&runtime);
        let first = OtherSession::new(&runtime, &tasks, &old);
        first.execute(include_str!("../../migrations/0001-first.sql")).await;
        first.execute("insert into reveille.meta (version) values (1)").await;
        for (table, columns) in [
            (
                "schedule",
                "incarnation, tenant, poller, id, is_current, revision, status, created_at, updated_at, next, spec",
            ),
            ("run", "incarnation, nominal, version, tenant, state, is_redriven, value"),
        ] {
            let rows = format!("select quote_literal(r::text) from (select {columns} from reveille.{table}) r");
            for row in shared().sql(name_of(&url), &rows).unwrap().lines() {
                first
                    .execute(&format!("insert into reveille.{table} ({columns}) select ({row}::reveille.{table}).*"))
                    .await;
            }
        }
        let migrated = migrate(&runtime, &old, &Options::default()).await.unwrap();
        assert_eq!((migrated.from, migrated.to), (Some(1), store_postgres::SCHEMA_VERSION));

        let home = Home::open(&runtime, &old).await;
        assert_eq!(home.store.find_runs(occurrences.clone()).await.unwrap(), runs);
        // The migration does not know when a schedule ended, so it sets `ended_at` to the time of the migration.
        assert_eq!(home.store.maintain(now, now - HOUR).await, Ok(0));
        let owned = Owned::take(&*home.store).await;
        let [today, past] = [1, 41].map(|days| one_shot(&runtime, now - DAY * days));
        owned.store.insert(vec![today.clone(), past.clone()]).await.unwrap();
        for insert in [&today, &past] {
            owned.write(outcome(insert)).await;
            assert!(owned.has_run(insert).await);
        }
        assert_eq!(home.store.find_runs(occurrences.clone()).await.unwrap(), runs);
        assert_eq!(runs_in(&old, "run_before"), "5", "runs until the day after tomorrow go to the migrated partition");

        owned.done(now).await;
        home.store.maintain(now, now + DAY * 3).await.unwrap();
        assert_eq!(home.store.find_runs(occurrences).await.unwrap(), [None, None, None]);
        assert!(!owned.has_schedule(&inserts[0]).await && !owned.has_schedule(&past).await);
        home.close().await;
    });
}

/// When the store writes the first runs of a day, the day's partition has no statistics. PostgreSQL keeps the query
/// plans that it makes at that time.
#[test]
fn query_of_run_outcomes_reads_only_the_rows_of_the_requested_runs() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        let now = runtime.now();
        for _ in 0..40 {
            let inserts: Vec<_> =
                (0..50).map(|millis| one_shot(&runtime, now - Duration::from_millis(millis))).collect();
            owned.store.insert(inserts.clone()).await.unwrap();
            let outcomes = inserts.iter().map(|insert| crate::support::owned(owned.term, outcome(insert))).collect();
            owned.store.write(outcomes).await.unwrap();
            let asked = inserts.iter().map(|insert| insert.due.occurrence).collect();
            assert!(owned.store.find_runs(asked).await.unwrap().iter().all(Option::is_some));
        }
        // The test does not call `close`, because `close` checks the usage and therefore reads all rows.
        home.stop().await;
    });
    // A connection reports its statistics to the PostgreSQL server when the connection ends.
    let read = "select coalesce(sum(idx_tup_read + seq_tup_read), 0) from (
        select pg_stat_get_tuples_returned(c.oid) seq_tup_read,
            (select sum(pg_stat_get_tuples_returned(i.indexrelid)) from pg_index i where i.indrelid = c.oid) idx_tup_read
        from pg_class c where c.relname like 'run\\_%' and c.relkind = 'r') t";
    let read_count = || shared().sql(name_of(&url), read).unwrap().trim().parse::<u64>().unwrap();
    let read = (0..100)
        .map(|_| read_count())
        .find(|read| *read >= 2_000)
        .expect("the connections have reported their statistics");
    assert!((2_000..=4_000).contains(&read), "{read} rows were read, but only 2,000 exist");
}
