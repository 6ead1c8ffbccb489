//! Tests of a PostgreSQL server that restarts, crashes or freezes, and of an owner that still writes after another
//! member took its shard.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use domain::{Incarnation, Status};
use futures_util::future::{join, join_all};
use runtime::Runtime;
use store::{
    Answer, Cancellation, Change, Health, Insert, Inserted, Positions, Store, StoreError, WriteRejection, Written,
};
use store_postgres::{Options, PostgresStore};
use test_servers::Proxy;
use test_servers::postgres::{Postgres, shared};

use crate::support::{Home, POLLER, TENANT, database, due_after, migrated, name_of, on_real, one_shot, outcome, owned};

/// State that [`create_and_finish`] shares with its test.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    /// Number of schedules whose outcome the store has acknowledged.
    finished: AtomicUsize,
}

impl Load {
    /// Waits until the store has acknowledged 10 more outcomes. Panics after a minute, so that the test fails if the
    /// store makes no progress.
    async fn until_more_is_finished(&self, runtime: &Runtime) {
        let enough = self.finished.load(Ordering::Relaxed) + 10;
        let waited = runtime.timeout(Duration::from_secs(60), async {
            while self.finished.load(Ordering::Relaxed) < enough {
                runtime.sleep(Duration::from_millis(2)).await;
            }
        });
        assert!(waited.await.is_some(), "fewer than 10 schedules were finished in a minute");
    }
}

/// Creates and finishes schedules until the test sets `load.stop`. Returns the schedules whose creation the store
/// acknowledged, and the schedules whose outcome the store acknowledged.
async fn create_and_finish(
    runtime: &Runtime,
    store: &PostgresStore,
    load: &Load,
) -> (Vec<Incarnation>, Vec<Incarnation>) {
    let (mut created, mut finished) = (Vec::new(), Vec::new());
    let mut term = None;
    while !load.stop.load(Ordering::Relaxed) {
        let insert = one_shot(runtime, runtime.now() + Duration::from_secs(600));
        match store.insert(vec![insert.clone()]).await {
            Ok(responses) => {
                assert!(matches!(responses[..], [Inserted::Placed(_)]));
                created.push(insert.schedule.incarnation);
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                runtime.sleep(Duration::from_millis(5)).await;
                continue;
            }
        }
        if term.is_none() {
            term = store.take(vec![POLLER.shard()]).await.ok().map(|terms| terms[0]);
        }
        let Some(under) = term else { continue };
        match store.write(vec![owned(under, outcome(&insert))]).await {
            Ok(responses) => match responses[..] {
                [Ok(Written::Done)] => {
                    finished.push(insert.schedule.incarnation);
                    load.finished.fetch_add(1, Ordering::Relaxed);
                }
                // Another concurrent `create_and_finish` of this test took the shard.
                [Err(WriteRejection::Superseded)] => term = None,
                _ => panic!("{responses:?}"),
            },
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    (created, finished)
}

async fn until_health(runtime: &Runtime, store: &PostgresStore, health: Health) {
    while store.health() != health {
        runtime.sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn restart_of_the_server_under_load_loses_no_acknowledged_write() {
    let postgres = Postgres::start().unwrap();
    let url = migrated(&postgres);
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let store = home.store.clone();
        let load = Load::default();
        let faults = async {
            for kill in [true, false, true] {
                load.until_more_is_finished(&runtime).await;
                if kill {
                    postgres.kill().unwrap()
                } else {
                    postgres.stop().unwrap()
                }
                until_health(&runtime, &store, Health::Unreachable).await;
                let error = store.positions(vec![POLLER]).await.unwrap_err();
                assert!(
                    matches!(&error, StoreError::Unavailable(why) if why.contains("postgresql://postgres@")),
                    "{error}"
                );
                postgres.restart().unwrap();
                until_health(&runtime, &store, Health::Ready).await;
            }
            load.until_more_is_finished(&runtime).await;
            load.stop.store(true, Ordering::Relaxed);
        };
        let loads = (0..4).map(|_| create_and_finish(&runtime, &store, &load));
        let (acknowledged, ()) = join(join_all(loads), faults).await;
        let (created, finished): (Vec<_>, Vec<_>) = acknowledged.into_iter().unzip();
        let (created, finished) = (created.concat(), finished.concat());
        assert!(created.len() > 20 && finished.len() > 10, "{} and {}", created.len(), finished.len());

        postgres.kill().unwrap();
        postgres.restart().unwrap();
        // Reads fail until the store notices that the server has restarted. The test therefore repeats the read.
        let loaded = loop {
            match store.load(created.clone()).await {
                Ok(loaded) => break loaded,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            runtime.sleep(Duration::from_millis(5)).await;
        };
        until_health(&runtime, &store, Health::Ready).await;
        assert!(loaded.iter().all(Option::is_some), "an acknowledged schedule is lost");
        let due = due_after(&*store, domain::Timestamp::MIN).await;
        let due: std::collections::HashSet<_> = due.iter().map(|key| key.occurrence.incarnation).collect();
        assert!(created.iter().all(|incarnation| due.contains(incarnation)), "a due row is lost");
        for incarnation in finished {
            assert_eq!(store.runs(incarnation, None, 10).await.unwrap().len(), 1, "an outcome is lost");
        }
        drop(store);
        home.close().await;
    });
}

#[test]
fn calls_to_a_paused_server_fail_within_their_timeout() {
    let postgres = Postgres::start().unwrap();
    let url = migrated(&postgres);
    on_real(async |runtime| {
        let limit = Duration::from_millis(300);
        let options = Options { statement_timeout: limit, connect_timeout: limit, ..Options::default() };
        let home = Home::try_open(&runtime, &url, options).await.unwrap();
        let store = &*home.store;
        let soon = || one_shot(&runtime, runtime.now() + Duration::from_secs(60));
        store.insert(vec![soon()]).await.unwrap();
        postgres.pause().unwrap();
        let start = runtime.monotonic();
        let calls = (0..20).map(|_| store.insert(vec![soon()]));
        let inserted = join_all(calls);
        let reads = (0..20).map(|_| store.positions(vec![POLLER]));
        let taken = join(store.take(vec![POLLER.shard()]), join_all(reads));
        let (inserted, (taken, read)) = join(inserted, taken).await;
        let failures =
            inserted.into_iter().map(Result::err).chain([taken.err()]).chain(read.into_iter().map(Result::err));
        for failure in failures {
            assert!(matches!(failure, Some(StoreError::Unavailable(_))), "{failure:?}");
        }
        let waited = runtime.monotonic().since(start);
        assert!(waited < Duration::from_secs(10), "{waited:?}");
        postgres.resume().unwrap();
        until_health(&runtime, store, Health::Ready).await;
        while let Err(error) = store.insert(vec![soon()]).await {
            assert!(error.is_retryable(), "{error}");
        }
        home.close().await;
    });
}

/// Without the probe, the calls would wait for their statement timeout.
#[test]
fn calls_fail_soon_if_the_server_stops_responding() {
    let postgres = Postgres::start().unwrap();
    let url = migrated(&postgres);
    let proxy = Proxy::start(([127, 0, 0, 1], postgres.port()).into()).unwrap();
    let cut = url.replace(&format!(":{}/", postgres.port()), &format!(":{}/", proxy.address().port()));
    on_real(async |runtime| {
        let long = Duration::from_secs(600);
        let options = Options { statement_timeout: long, ..Options::default() };
        let home = Home::try_open(&runtime, &cut, options).await.unwrap();
        let store = &*home.store;
        let soon = || one_shot(&runtime, runtime.now() + Duration::from_secs(60));
        let insert = soon();
        let term = store.take(vec![POLLER.shard()]).await.unwrap()[0];
        store.insert(vec![insert.clone()]).await.unwrap();
        for proxy_is_cut in [true, false] {
            if proxy_is_cut {
                proxy.cut(true)
            } else {
                postgres.pause().unwrap()
            }
            // These calls are under way when the store detects that the server does not respond. The test repeats them
            // afterwards.
            for _ in 0..2 {
                let mark = Cancellation { tenant: TENANT, id: insert.schedule.id.clone(), author: None };
                let failures = async {
                    let (inserted, read) = join(store.insert(vec![soon()]), store.positions(vec![POLLER])).await;
                    let changed = store.write(vec![owned(term, outcome(&insert))]);
                    let (changed, marked) = join(changed, store.append_cancellations(vec![mark])).await;
                    let taken = store.take(vec![POLLER.shard()]).await;
                    [inserted.err(), read.err(), changed.err(), marked.err(), taken.err()]
                };
                let failures = runtime.timeout(Duration::from_secs(60), failures).await.unwrap();
                for failure in failures {
                    assert!(matches!(failure, Some(StoreError::Unavailable(_))), "{failure:?}");
                }
                assert_eq!(store.health(), Health::Unreachable);
            }
            if proxy_is_cut {
                proxy.cut(false)
            } else {
                postgres.resume().unwrap()
            }
            until_health(&runtime, store, Health::Ready).await;
            while let Err(error) = store.insert(vec![soon()]).await {
                assert!(error.is_retryable(), "{error}");
            }
        }
        home.close().await;
    });
}

#[test]
fn only_the_member_with_the_newest_term_can_write() {
    let url = database();
    on_real(async |runtime| {
        let (one, other) = (Home::open(&runtime, &url).await, Home::open(&runtime, &url).await);
        let mut owners = [one.store.clone(), other.store.clone()];
        let mut term = owners[0].take(vec![POLLER.shard()]).await.unwrap()[0];
        let (mut written, mut rejected) = (0, 0);
        for round in 0..60_u64 {
            let insert = one_shot(&runtime, runtime.now() + Duration::from_secs(60));
            owners[1].insert(vec![insert.clone()]).await.unwrap();
            let write = async {
                runtime.sleep(Duration::from_micros(round * 37 % 1_500)).await;
                owners[0].write(vec![owned(term, outcome(&insert))]).await.unwrap().remove(0)
            };
            let take = async {
                runtime.sleep(Duration::from_micros(round * 53 % 1_500)).await;
                let term = owners[1].take(vec![POLLER.shard()]).await.unwrap()[0];
                (term, owners[1].find_runs(vec![insert.due.occurrence]).await.unwrap().remove(0))
            };
            let (response, (newer, seen)) = join(write, take).await;
            assert!(newer > term);
            match response {
                Ok(_) => {
                    written += 1;
                    assert!(seen.is_some(), "an accepted write is visible before the take returns");
                }
                Err(WriteRejection::Superseded) => {
                    rejected += 1;
                    assert_eq!(seen, None);
                    assert_eq!(owners[1].find_runs(vec![insert.due.occurrence]).await, Ok(vec![None]));
                }
                Err(other) => panic!("{other}"),
            }
            term = newer;
            owners.swap(0, 1);
        }
        assert!(written > 0 && rejected > 0, "{written} written, {rejected} rejected: the test proves nothing");
        drop(owners);
        one.close().await;
        other.close().await;
    });
}

/// Polls `write` up to `polls` times. If `write` ends, replaces it by a future that never ends.
async fn poll_some<'a, T: 'a>(runtime: &Runtime, write: &mut Answer<'a, T>, polls: u32) {
    for _ in 0..polls {
        let once = std::future::poll_fn(|context| std::task::Poll::Ready(write.as_mut().poll(context).is_ready()));
        if once.await {
            *write = Box::pin(std::future::pending());
            return;
        }
        runtime.sleep(Duration::from_micros(300)).await;
    }
}

#[test]
fn dropping_the_future_of_a_write_releases_its_shard_lock() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let mut term = store.take(vec![POLLER.shard()]).await.unwrap()[0];
        for polls in 1..30 {
            let mut write = store.write(vec![owned(term, Change::Positions(Positions::default()))]);
            poll_some(&runtime, &mut write, polls).await;
            drop(write);
            let start = runtime.monotonic();
            term = store.take(vec![POLLER.shard()]).await.unwrap()[0];
            let waited = runtime.monotonic().since(start);
            assert!(waited < Duration::from_secs(2), "a take waited {waited:?} after {polls} polls");
        }
        home.close().await;
    });
}

/// The old owner of the shard behaves like a process that pauses, or loses its connection, between two statements of a
/// transaction.
#[test]
fn owner_paused_in_a_transaction_does_not_block_a_new_owner() {
    let url = database();
    on_real(async |runtime| {
        let options = || Options { statement_timeout: Duration::from_secs(4), ..Options::default() };
        let old_home = Home::try_open(&runtime, &url, options()).await.unwrap();
        let new_home = Home::try_open(&runtime, &url, options()).await.unwrap();
        let old = old_home.store.take(vec![POLLER.shard()]).await.unwrap()[0];
        let insert = one_shot(&runtime, runtime.now() + Duration::from_secs(60));
        old_home.store.insert(vec![insert.clone()]).await.unwrap();
        // The test stops polling these writes at different points, so that at least one of them still holds the lock on
        // the shard's row.
        let mut stopped: Vec<_> = (0..3).map(|_| old_home.store.write(vec![owned(old, outcome(&insert))])).collect();
        for (write, polls) in stopped.iter_mut().zip([2, 5, 8]) {
            poll_some(&runtime, write, polls).await;
        }
        let new = new_home.store.take(vec![POLLER.shard()]).await.unwrap()[0];
        assert!(new > old);
        let seen = new_home.store.find_runs(vec![insert.due.occurrence]).await.unwrap();
        for write in stopped {
            let late = runtime.timeout(Duration::from_secs(5), write).await;
            assert!(!matches!(&late, Some(Ok(responses)) if responses[0].is_ok() && seen[0].is_none()), "{late:?}");
        }
        assert_eq!(new_home.store.find_runs(vec![insert.due.occurrence]).await.unwrap(), seen);
        drop(old_home);
        new_home.close().await;
    });
}

#[test]
fn damaged_schedule_does_not_prevent_cancellation_of_others() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let at = runtime.now() + Duration::from_secs(60);
        let inserts = [one_shot(&runtime, at), one_shot(&runtime, at), one_shot(&runtime, at)];
        home.store.insert(inserts.to_vec()).await.unwrap();
        let incarnation = inserts[1].schedule.incarnation;
        let damage = format!(
            "update reveille.schedule set spec = 'x' where incarnation = '{}'",
            uuid::Uuid::from_u128(incarnation.0)
        );
        shared().sql(name_of(&url), &damage).unwrap();
        let mark = |insert: &Insert| {
            home.store.append_cancellations(vec![Cancellation {
                tenant: TENANT,
                id: insert.schedule.id.clone(),
                author: None,
            }])
        };
        let responses = join_all(inserts.iter().map(mark)).await;
        assert!(matches!(responses[1], Err(StoreError::Damaged(_))), "{responses:?}");
        for (insert, response) in [(&inserts[0], &responses[0]), (&inserts[2], &responses[2])] {
            assert!(response.as_ref().is_ok_and(|marked| marked[0].applied), "{response:?}");
            let now = home.store.load(vec![insert.schedule.incarnation]).await.unwrap().remove(0).unwrap();
            assert_eq!(now.status, Status::Cancelled);
        }
        home.close().await;
    });
}
