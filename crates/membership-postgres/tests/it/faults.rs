//! Tests with a server or a connection that stalls, fails or recovers. No call hangs, and the sessions survive.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use domain::ShardId;
use futures_util::FutureExt as _;
use membership::{
    BeforeRenewal, ClaimName, MemberId, Membership, Options as MembershipOptions, Ownership, OwnershipError, Profile,
    Status,
};
use membership_postgres::{Options, PostgresOwnership};
use postgres_client::{Server, tokio_postgres};
use runtime::{Runtime, TaskSet};
use test_servers::postgres::shared;

use crate::support::{database, member, name_of, on_real, open, open_with_long_timeout, own_server};

const LONG: Duration = Duration::from_secs(60);
/// Longest duration of a call with the default options, plus a margin for a busy machine.
const CALL_MAX: Duration = Duration::from_millis(1_500);

fn shard(number: u16) -> ClaimName {
    ClaimName::shard(ShardId(number))
}

fn always() -> BeforeRenewal {
    Arc::new(|| async { true }.boxed())
}

fn profile(name: &str) -> Profile {
    Profile { name: name.to_owned(), address: format!("{name}:8081"), owns: true, build: "test".to_owned() }
}

async fn until(runtime: &Runtime, what: &str, limit: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    let end = runtime.monotonic() + limit;
    while !is_so().await {
        assert!(runtime.monotonic() < end, "condition not reached in time: {what}");
        runtime.sleep(Duration::from_millis(10)).await;
    }
}

/// Makes each call of the port once, while the database is unreachable. All calls must fail soon with a retryable
/// error.
async fn every_call_fails_soon(runtime: &Runtime, coordination: &PostgresOwnership, id: MemberId) {
    let limited = async |what: &str, call: membership::Answer<'_, ()>| {
        let began = runtime.monotonic();
        let response = runtime.timeout(LONG, call).await.unwrap_or(Ok(()));
        assert!(matches!(&response, Err(error) if error.is_retryable()), "{what}: {response:?}");
        let took = runtime.monotonic().since(began);
        assert!(took < CALL_MAX, "{what} took {took:?}");
    };
    limited("join", coordination.join(member(9), LONG).map(|it| it.map(drop)).boxed()).await;
    limited("renew", coordination.renew(id, LONG).map(|it| it.map(drop)).boxed()).await;
    limited("claim", coordination.claim(id, vec![shard(1)]).map(|it| it.map(drop)).boxed()).await;
    limited("release", coordination.release(id, vec![shard(1)])).await;
    limited("leave", coordination.leave(MemberId(9))).await;
    limited("view", coordination.view().map(|it| it.map(drop)).boxed()).await;
}

#[test]
fn calls_fail_soon_during_a_server_outage_and_sessions_survive_it() {
    on_real(async |runtime| {
        let (server, url) = own_server(&runtime).await;
        let options = Options { statement_timeout: Duration::from_millis(150), ..Options::default() };
        let coordination = PostgresOwnership::open(&runtime, &url, &options).await.unwrap();
        coordination.join(member(1), LONG).await.unwrap();
        assert_eq!(coordination.claim(MemberId(1), vec![shard(1)]).await, Ok(vec![true]));
        let back = async |what: &str| {
            until(&runtime, what, Duration::from_secs(20), async || {
                coordination.renew(MemberId(1), LONG).await.is_ok()
            })
            .await;
            let view = coordination.view().await.unwrap();
            assert_eq!(view.claims.get(&shard(1)), Some(&MemberId(1)), "{what}");
        };

        server.pause().unwrap();
        every_call_fails_soon(&runtime, &coordination, MemberId(1)).await;
        server.resume().unwrap();
        back("the server responds after a pause").await;

        // After the pause, the server executes the calls that it received during the pause. These calls may include the
        // join and the claim.
        until(&runtime, "the member leaves", LONG, async || coordination.leave(MemberId(9)).await.is_ok()).await;
        until(&runtime, "the member claims", LONG, async || {
            coordination.claim(MemberId(1), vec![shard(1)]).await == Ok(vec![true])
        })
        .await;

        server.restart().unwrap();
        back("the server responds after a restart").await;
        server.kill().unwrap();
        every_call_fails_soon(&runtime, &coordination, MemberId(1)).await;
        server.restart().unwrap();
        back("the server responds after a crash").await;

        // After the outage, the engine reports changes again.
        let other = open(&runtime, &url).await;
        until(&runtime, "a change is reported", Duration::from_secs(20), async || {
            let changed = coordination.changed();
            other.claim(MemberId(1), vec![shard(2)]).await.unwrap();
            let is_reported = runtime.timeout(Duration::from_millis(200), changed).await.is_some();
            other.release(MemberId(1), vec![shard(2)]).await.unwrap();
            is_reported
        })
        .await;
    });
}

/// Opens a connection as another client. Executes `statement` in a transaction, and leaves the transaction open.
async fn stalled(runtime: &Runtime, url: &str, tasks: &TaskSet, statement: &str) -> tokio_postgres::Client {
    let server = Server::new(url, postgres_client::Options::default()).unwrap();
    let (client, mut messages) = server.connect(runtime).await.unwrap();
    tasks.spawn("stalled", async move { while futures_util::StreamExt::next(&mut messages).await.is_some() {} });
    client.batch_execute("begin").await.unwrap();
    client.batch_execute(statement).await.unwrap();
    client
}

#[test]
fn member_renews_its_session_while_clients_lock_the_claims() {
    let url = database();
    on_real(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        let coordination = open(&runtime, &url).await;
        coordination.join(member(1), LONG).await.unwrap();
        coordination.claim(MemberId(1), vec![shard(1)]).await.unwrap();
        for held in [
            "select from reveille_coordination.turn for update",
            "select from reveille_coordination.claim for update",
            "lock table reveille_coordination.claim in share mode",
        ] {
            let other = stalled(&runtime, &url, &tasks, held).await;
            let began = runtime.monotonic();
            let released = coordination.release(MemberId(1), vec![shard(1)]).await;
            let took = runtime.monotonic().since(began);
            assert!(matches!(&released, Err(error) if error.is_retryable()), "{held}: {released:?}");
            assert!(took < CALL_MAX, "{held}: {took:?}");
            coordination.renew(MemberId(1), LONG).await.expect("renewals wait for no other call");
            assert_eq!(coordination.view().await.unwrap().claims.len(), 1, "views lock nothing");
            other.batch_execute("rollback").await.unwrap();
            assert_eq!(coordination.claim(MemberId(1), vec![shard(2)]).await, Ok(vec![true]), "{held}");
            coordination.release(MemberId(1), vec![shard(2)]).await.unwrap();
        }
    });
}

#[test]
fn renewal_does_not_wait_for_a_blocked_claim() {
    let url = database();
    on_real(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        let coordination = open(&runtime, &url).await;
        coordination.join(member(1), LONG).await.unwrap();
        let other = stalled(&runtime, &url, &tasks, "select from reveille_coordination.turn for update").await;
        let mut claim = coordination.claim(MemberId(1), vec![shard(1)]);
        for _ in 0..3 {
            let renewed = futures_util::future::select(coordination.renew(MemberId(1), LONG), claim).await;
            let futures_util::future::Either::Left((renewed, waiting)) = renewed else {
                panic!("the claim completed first")
            };
            renewed.unwrap();
            claim = waiting;
        }
        assert!(claim.await.is_err());
        other.batch_execute("rollback").await.unwrap();
    });
}

/// The server executed the renewal, but did not commit it before the lease ended. A concurrent claim waits until the
/// renewal's transaction commits or rolls back.
#[test]
fn claim_at_the_end_of_a_lease_waits_for_an_uncommitted_renewal() {
    let url = database();
    on_real(async |runtime| {
        let tasks = TaskSet::new(&runtime);
        let coordination = open_with_long_timeout(&runtime, &url).await;
        coordination.join(member(2), LONG).await.unwrap();
        for (number, end, is_kept) in [(1, "commit", true), (3, "rollback", false)] {
            let id = MemberId(number);
            let lease = Duration::from_millis(400);
            coordination.join(member(number), lease).await.unwrap();
            assert_eq!(coordination.claim(id, vec![shard(1)]).await, Ok(vec![true]));
            let renew = format!("select reveille_coordination.renew('{id}', 60000)");
            let renewing = stalled(&runtime, &url, &tasks, &renew).await;
            runtime.sleep(lease).await;
            let claiming = coordination.claim(MemberId(2), vec![shard(1)]);
            let ending = async {
                runtime.sleep(Duration::from_millis(100)).await;
                renewing.batch_execute(end).await.unwrap();
            };
            let (claimed, ()) = futures_util::future::join(claiming, ending).await;
            assert_eq!(claimed, Ok(vec![!is_kept]), "{end}");
            let renewed = coordination.renew(id, LONG).await.map(drop);
            assert_eq!(renewed, if is_kept { Ok(()) } else { Err(OwnershipError::Lost) }, "{end}");
            let holder = if is_kept { id } else { MemberId(2) };
            assert_eq!(coordination.view().await.unwrap().claims.get(&shard(1)), Some(&holder));
            coordination.leave(id).await.unwrap();
        }
    });
}

/// The connections stay open but deliver no responses, as if the network dropped their packets.
#[test]
fn engine_replaces_a_silent_connection_despite_short_timeouts() {
    let url = database();
    on_real(async |runtime| {
        let coordination = open(&runtime, &url).await;
        coordination.join(member(1), LONG).await.unwrap();
        coordination.view().await.unwrap();
        let of_ours = "select pid from pg_stat_activity where datname = current_database() \
                       and application_name = 'reveille coordination'";
        let pids = shared().sql(name_of(&url), of_ours).unwrap();
        let signal = |signal: &str| {
            assert!(Command::new("kill").arg(signal).args(pids.split_whitespace()).status().unwrap().success());
        };
        signal("-STOP");
        let short = Duration::from_millis(50);
        until(&runtime, "another connection responds", Duration::from_secs(10), async || {
            runtime.timeout(short, coordination.renew(MemberId(1), LONG)).await.is_some_and(|it| it.is_ok())
        })
        .await;
        until(&runtime, "another connection claims", Duration::from_secs(10), async || {
            let claiming = coordination.claim(MemberId(1), vec![shard(1)]);
            runtime.timeout(short * 4, claiming).await.is_some_and(|it| it.is_ok())
        })
        .await;
        signal("-CONT");
    });
}

#[test]
fn delayed_release_removes_no_claim_with_a_higher_sequence_number() {
    let url = database();
    on_real(async |runtime| {
        let coordination = open(&runtime, &url).await;
        coordination.join(member(1), LONG).await.unwrap();
        coordination.claim(MemberId(1), vec![shard(1), shard(2)]).await.unwrap();
        // The release has the sequence number 2. The claim after it has the number 3.
        coordination.release(MemberId(1), vec![shard(3)]).await.unwrap();
        coordination.claim(MemberId(1), vec![shard(1)]).await.unwrap();
        let late =
            format!("select reveille_coordination.release('{}'::uuid, array['shard/1', 'shard/2'], 2)", MemberId(1));
        shared().sql(name_of(&url), &late).unwrap();
        let view = coordination.view().await.unwrap();
        assert_eq!(view.claims.keys().collect::<Vec<_>>(), [&shard(1)], "the claim after that release stays");
    });
}

#[test]
fn member_loses_its_lease_on_time_while_the_database_is_paused() {
    on_real(async |runtime| {
        let (server, url) = own_server(&runtime).await;
        let lease_length = Duration::from_secs(2);
        let tasks = TaskSet::new(&runtime);
        let coordination =
            Arc::new(PostgresOwnership::open(&runtime, &url, &Options::with_lease(lease_length)).await.unwrap());
        let options = MembershipOptions::with_lease(lease_length);
        let membership = Membership::join(&runtime, &tasks, coordination, profile("a"), options, always());
        let lease = membership.joined().await.unwrap();
        membership.claim(vec![shard(1)]).await.unwrap();
        let mut status = membership.status();
        server.pause().unwrap();
        let paused = runtime.monotonic();
        let is_lost = runtime.timeout(LONG, status.wait_for(|status| matches!(status, Status::Lost))).await.is_some();
        let took = runtime.monotonic().since(paused);
        assert!(is_lost && !lease.is_valid(runtime.monotonic()));
        assert!(took < lease_length, "the loss was reported {took:?} after the server was paused");
        server.resume().unwrap();
        let again = membership.joined().await.unwrap();
        assert_ne!(again.member(), lease.member());
        // After the lease and the calls in progress have ended, no member and no claim of the first session remain.
        until(&runtime, "the old claims are gone", LONG, async || {
            membership.refresh().await.is_ok_and(|view| view.claims.is_empty() && view.members.len() == 1)
        })
        .await;
        membership.leave().await;
    });
}

/// The member compares the machine's clock with a database clock that is right, ahead or behind.
#[test]
fn member_detects_wrong_database_clock() {
    for (ahead_seconds, is_off) in [(0, false), (5, true), (-5, true)] {
        let url = database();
        let skew = format!(
            "create or replace function reveille_coordination.millis(at timestamptz) returns bigint \
             language sql immutable as $$ select floor(extract(epoch from at) * 1000)::bigint + {ahead_seconds} * 1000 $$"
        );
        shared().sql(name_of(&url), &skew).unwrap();
        on_real(async |runtime| {
            let tasks = TaskSet::new(&runtime);
            let coordination = Arc::new(open(&runtime, &url).await);
            let options = MembershipOptions::default();
            let membership = Membership::join(&runtime, &tasks, coordination, profile("a"), options, always());
            membership.joined().await.unwrap();
            let offset = membership.clock_offset().unwrap();
            let wrong_by = Duration::from_millis(offset.ahead_millis.abs_diff(ahead_seconds * 1000));
            assert!(wrong_by <= offset.uncertainty + Duration::from_millis(1), "{offset:?}");
            assert_eq!(membership.clock_is_off(), is_off, "{offset:?}");
            membership.leave().await;
        });
    }
}

#[test]
fn renewal_and_claim_fail_after_the_session_row_is_deleted() {
    let url = database();
    on_real(async |runtime| {
        let coordination = open(&runtime, &url).await;
        coordination.join(member(1), LONG).await.unwrap();
        let delete = "delete from reveille_coordination.member";
        shared().sql(name_of(&url), delete).unwrap();
        assert_eq!(coordination.renew(MemberId(1), LONG).await.map(drop), Err(OwnershipError::Lost));
        assert_eq!(coordination.claim(MemberId(1), vec![shard(1)]).await, Err(OwnershipError::Lost));
    });
}
