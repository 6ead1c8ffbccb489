//! Runs the conformance suite of the electors with a separate database for each case. Also tests calls to a server that
//! pauses or dies.

use std::sync::Arc;
use std::time::Duration;

use coordination::{Answer, Elector};
use coordination_conformance::Case;
use coordination_conformance::elector::Subject;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use reveille_coordination_postgres::{GroupName, Options, PostgresElector, PostgresElectors};
use runtime::{Monotonic, Runtime};

use crate::support::{database, name_of, on_real, own_server};

coordination_conformance::elector_conformance_tests!(run);

fn run(case: Case<dyn Subject>) {
    let url = database();
    on_real(async |runtime| case.run(&Electors { runtime, url }).await);
}

struct Electors {
    runtime: Runtime,
    url: String,
}

impl Subject for Electors {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(700)
    }

    fn elector<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Arc<dyn Elector>> {
        async {
            // The statement timeout is long, because the machine may be busy with other tests. No case depends on this
            // timeout.
            let options = Options { statement_timeout: Duration::from_secs(10), ..Options::default() };
            let electors = PostgresElectors::open(&self.runtime, &self.url, &options).await.unwrap();
            Arc::new(electors.elector(&GroupName::new(group).unwrap())) as Arc<dyn Elector>
        }
        .boxed()
    }
}

const LONG: Duration = Duration::from_secs(60);
/// Longest duration of a call with the default options, including a margin for a busy machine.
const CALL_MAX: Duration = Duration::from_millis(1_500);

pub(crate) fn group() -> GroupName {
    GroupName::new("group").unwrap()
}

pub(crate) async fn open(runtime: &Runtime, url: &str) -> PostgresElectors {
    PostgresElectors::open(runtime, url, &Options::default()).await.unwrap()
}

async fn until(runtime: &Runtime, what: &str, limit: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    let end = runtime.monotonic() + limit;
    while !is_so().await {
        assert!(runtime.monotonic() < end, "the condition did not become true in time: {what}");
        runtime.sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn calls_to_a_paused_or_dead_server_fail_within_the_call_timeout() {
    on_real(async |runtime| {
        let (server, url) = own_server(&runtime).await;
        let elector = open(&runtime, &url).await.elector(&group());
        let limited = async |what: &str, call: Answer<'_, ()>| {
            let began = runtime.monotonic();
            let response = runtime.timeout(LONG, call).await.unwrap_or(Ok(()));
            assert!(matches!(&response, Err(error) if error.is_retryable()), "{what}: {response:?}");
            let took = runtime.monotonic().since(began);
            assert!(took < CALL_MAX, "{what} took {took:?}");
        };
        let all = async || {
            limited("is_leader", elector.is_leader("a", LONG).map(|it| it.map(drop)).boxed()).await;
            limited("followers", elector.followers().map(|it| it.map(drop)).boxed()).await;
        };
        server.pause().unwrap();
        all().await;
        server.resume().unwrap();
        server.kill().unwrap();
        all().await;
    });
}

#[test]
fn lease_survives_a_server_crash_and_the_next_term_is_higher() {
    on_real(async |runtime| {
        let (server, url) = own_server(&runtime).await;
        let lease = Duration::from_secs(1);
        let (a, b) = (open(&runtime, &url).await, open(&runtime, &url).await);
        let (a, b) = (a.elector(&group()), b.elector(&group()));
        let called: Monotonic = runtime.monotonic();
        let first = a.is_leader("a", lease).await.unwrap();
        assert!(first.leads);
        server.kill().unwrap();
        server.restart().unwrap();
        let mut second = first;
        until(&runtime, "b leads", LONG, async || {
            second = b.is_leader("b", lease).await.unwrap_or(first);
            second.leads && second != first
        })
        .await;
        assert!(runtime.monotonic().since(called) >= lease, "the lease survives the crash");
        assert!(second.term > first.term);
        assert!(!a.is_leader("a", lease).await.is_ok_and(|leadership| leadership.leads));
    });
}

#[test]
fn parser_rejects_group_names_with_invalid_length_or_characters() {
    assert!(GroupName::new("a/B-9_.").is_ok() && GroupName::new(&"a".repeat(128)).is_ok());
    for name in ["", &"a".repeat(129), "a b"] {
        assert!(GroupName::new(name).is_err(), "{name}");
    }
}

/// Moves the clock of a database. The functions of the schema call `clock_timestamp` without a schema, so a function of
/// this name that the search path contains before `pg_catalog` replaces the server's function.
struct MovableClock {
    database: String,
}

impl MovableClock {
    /// Makes the clock of the database movable for later connections.
    fn new(url: &str) -> Self {
        let clock = MovableClock { database: name_of(url).to_owned() };
        clock.sql(&format!(
            "create schema moved; create table moved.clock (ahead interval); insert into moved.clock values ('0');
             create function moved.clock_timestamp() returns timestamptz language sql volatile
                 as 'select pg_catalog.clock_timestamp() + ahead from moved.clock';
             alter database {} set search_path = moved, pg_catalog",
            clock.database
        ));
        clock
    }

    /// Sets the clock to this number of seconds ahead of the real time.
    fn set_ahead(&self, seconds: u64) {
        self.sql(&format!("update moved.clock set ahead = interval '{seconds} seconds'"));
    }

    fn sql(&self, statements: &str) -> String {
        test_servers::postgres::shared().sql(&self.database, statements).unwrap()
    }
}

#[test]
fn jump_of_the_databases_clock_moves_the_end_of_a_lease_but_terms_rise() {
    on_real(async |runtime| {
        let url = database();
        let clock = MovableClock::new(&url);
        let (a, b) = (open(&runtime, &url).await, open(&runtime, &url).await);
        let (a, b) = (a.elector(&group()), b.elector(&group()));
        // `LONG` is 60 s.
        let leads = async |elector: &PostgresElector, replica: &str| {
            let leadership = elector.is_leader(replica, LONG).await.unwrap();
            leadership.leads.then_some(leadership.term)
        };
        let first = leads(&a, "a").await;
        assert!(first.is_some());

        // Forward by less than a lease: the lease has become shorter, but it has not ended.
        clock.set_ahead(30);
        assert_eq!(leads(&b, "b").await, None);
        assert_eq!(a.followers().await.unwrap().len(), 2);
        // Forward by more than the rest of the lease: another replica leads at once, under a later term.
        clock.set_ahead(61);
        let second = leads(&b, "b").await;
        assert!(second > first, "{second:?} after {first:?}");
        assert_eq!(leads(&a, "a").await, None);
        // The leader calls first after the early end of its lease, and leads under a later term.
        clock.set_ahead(122);
        let third = leads(&b, "b").await;
        assert!(third > second, "{third:?} after {second:?}");

        // Back by less than a lease and by more than a lease: the lease has become longer.
        for ahead in [92, 0] {
            clock.set_ahead(ahead);
            assert_eq!(leads(&a, "a").await, None);
        }
        assert_eq!(leads(&b, "b").await, third, "the leader keeps its term");
        // The last call of the leader has corrected the end of the lease. Without the correction, the lease would last
        // until the clock is 182 s ahead.
        clock.set_ahead(61);
        assert!(leads(&a, "a").await > third);
    });
}
