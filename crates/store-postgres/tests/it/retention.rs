//! Tests of the classes of retention. A class bounds the history of its tenants, and of no other tenant.

use std::time::Duration;

use domain::retention::start_of_day;
use domain::{DueKey, PollerId, RunState, Term, Timestamp};
use runtime::Runtime;
use store::{Change, Insert, OwnerWrite, Positions, Store};
use test_servers::postgres::shared;

use crate::history::{DAY, HOUR, OTHER, Owned, age, created, put_class, run, runs_in};
use crate::support::{Home, POLLER, TENANT, database, name_of, on_real, one_shot, outcome};

/// Writes the changes of the owner of [`OTHER`].
async fn write_other(store: &dyn Store, term: Term, changes: impl IntoIterator<Item = Change>) {
    let write = |change| OwnerWrite { term, poller: OTHER, change };
    for written in store.write(changes.into_iter().map(write).collect()).await.unwrap() {
        written.unwrap();
    }
}

/// Sets the times of all past timings back by `days`.
fn age_timings(url: &str, days: u32) {
    let statement = format!("update reveille.past_timing set written_at = written_at - {days} * 86400000::bigint");
    shared().sql(name_of(url), &statement).unwrap();
}

/// Returns a schedule of `poller` that was created six days ago and was due at `at`.
fn old(runtime: &Runtime, at: Timestamp, poller: PollerId) -> Insert {
    created(&one_shot(runtime, at), runtime.now() - DAY * 6, poller)
}

/// The pending run keeps the partition of the day, which no tenant keeps by its class.
#[test]
fn pending_run_keeps_no_other_run_of_its_day() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        put_class(owned.store, TENANT, 1, Some(1)).await;
        let now = runtime.now();
        // The two occurrences are in the middle of a UTC day, and therefore in one partition.
        let noon = start_of_day(now - DAY * 3) + HOUR * 12;
        let [fired, retrying] = [0, 1].map(|millis| old(&runtime, noon + Duration::from_millis(millis), POLLER));
        owned.store.insert(vec![fired.clone(), retrying.clone()]).await.unwrap();
        owned.write(outcome(&fired)).await;
        let retry = DueKey { position: now + HOUR, attempt: 2, ..retrying.due };
        let retried = run(&retrying, RunState::Retrying);
        owned.write(Change::Run { run: retried, then: Some(retry), ends: false, origin: None }).await;
        age(&url, 3);
        owned.done(now).await;

        owned.store.maintain(now, now - DAY * 30).await.unwrap();
        assert!(!owned.has_run(&fired).await && !owned.has_schedule(&fired).await);
        assert!(owned.has_run(&retrying).await && owned.has_schedule(&retrying).await);

        owned.write(outcome(&retrying)).await;
        age(&url, 3);
        owned.done(now + HOUR).await;
        owned.store.maintain(now, now - DAY * 30).await.unwrap();
        assert!(!owned.has_run(&retrying).await && !owned.has_schedule(&retrying).await);
        home.close().await;
    });
}

#[test]
fn malformed_row_of_a_tenant_keeps_only_its_history() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        let term = owned.store.take(vec![OTHER.shard()]).await.unwrap()[0];
        put_class(owned.store, TENANT, 1, Some(1)).await;
        put_class(owned.store, OTHER.tenant, 1, Some(1)).await;
        let now = runtime.now();
        let [ours, theirs] = [(3, POLLER), (4, OTHER)].map(|(days, poller)| old(&runtime, now - DAY * days, poller));
        owned.store.insert(vec![ours.clone(), theirs.clone()]).await.unwrap();
        owned.write(outcome(&ours)).await;
        let run_of_other = domain::occurrence::Run { tenant: OTHER.tenant, ..run(&theirs, RunState::Succeeded) };
        let fired = Change::Run { run: run_of_other, then: None, ends: true, origin: None };
        write_other(owned.store, term, [fired, Change::Positions(Positions { closed: now, done: now })]).await;
        owned.done(now).await;
        age(&url, 3);

        let tenant = OTHER.tenant.0;
        let sql = |statement: &str| shared().sql(name_of(&url), statement).unwrap().trim().to_owned();
        let row = sql(&format!("select encode(value, 'hex') from reveille.tenant where tenant = {tenant}"));
        let put = |hex: &str| {
            sql(&format!("update reveille.tenant set value = decode('{hex}', 'hex') where tenant = {tenant}"))
        };
        put("ff");
        owned.store.maintain(now, now - DAY * 2).await.unwrap();
        assert!(!owned.has_run(&ours).await && !owned.has_schedule(&ours).await);
        assert!(owned.has_run(&theirs).await && owned.has_schedule(&theirs).await, "the limit is not known");
        put(&row);
        owned.store.maintain(now, now - DAY * 2).await.unwrap();
        assert!(!owned.has_run(&theirs).await && !owned.has_schedule(&theirs).await);
        home.close().await;
    });
}

/// The kept past timings are older than the expired ones, and fill more than one page of the sweep.
#[test]
fn sweep_deletes_past_timings_after_pages_of_kept_ones() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let owned = Owned::take(&*home.store).await;
        let term = owned.store.take(vec![OTHER.shard()]).await.unwrap()[0];
        put_class(owned.store, TENANT, 1, Some(1)).await;
        put_class(owned.store, OTHER.tenant, 1, Some(90)).await;
        let now = runtime.now();
        let kept: Vec<_> = (0..2_100).map(|_| old(&runtime, now + HOUR, OTHER)).collect();
        let over: Vec<_> = (0..3).map(|_| old(&runtime, now + HOUR, POLLER)).collect();
        owned.store.insert([kept.clone(), over.clone()].concat()).await.unwrap();
        let cancelled = kept.iter().map(|insert| Change::Cancel(insert.due.occurrence.incarnation));
        write_other(owned.store, term, cancelled).await;
        write_other(owned.store, term, [Change::Positions(Positions { closed: now, done: now })]).await;
        age_timings(&url, 1);
        for insert in &over {
            owned.write(Change::Cancel(insert.due.occurrence.incarnation)).await;
        }
        owned.done(now).await;
        age_timings(&url, 3);
        age(&url, 4);
        assert_eq!(runs_in(&url, "past_timing"), "2103");
        owned.store.maintain(now, now - DAY * 30).await.unwrap();
        assert_eq!(runs_in(&url, "past_timing"), "2100");
        assert!(owned.has_schedule(&kept[0]).await && !owned.has_schedule(&over[0]).await);

        put_class(owned.store, OTHER.tenant, 2, Some(1)).await;
        owned.store.maintain(now, now - DAY * 30).await.unwrap();
        assert_eq!(runs_in(&url, "past_timing"), "0");
        home.close().await;
    });
}
