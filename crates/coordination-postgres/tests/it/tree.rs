//! Runs the conformance suite of the tree with a separate database for each case. Also tests properties that are
//! specific to this engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coordination::tree::{
    Acl, CreateMode, Created, Event, Events, Expected, NodePath, Op, SessionOptions, SessionState, Tree, TreeError,
    Trees,
};
use coordination_conformance::Case;
use coordination_conformance::tree::{Process, Subject};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use reveille_coordination_postgres::{Options, PostgresTrees};
use runtime::Runtime;
use test_servers::Proxy;
use test_servers::postgres::shared;

use crate::support::{database, name_of, on_real, own_server};

coordination_conformance::tree_conformance_tests!(run);

mod recipes {
    coordination_conformance::recipe_conformance_tests!(super::run);
}

mod load {
    coordination_conformance::load_conformance_tests!(super::run);
}

fn run(case: Case<dyn Subject>) {
    let url = database();
    on_real(async |runtime| case.run(&Forest { runtime, url }).await);
}

struct Forest {
    runtime: Runtime,
    url: String,
}

struct Connected {
    proxy: Proxy,
    trees: PostgresTrees,
}

impl Subject for Forest {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>> {
        async {
            let server = SocketAddr::from(([127, 0, 0, 1], shared().port()));
            let proxy = Proxy::start(server).unwrap();
            let url = self.url.replace(&server.to_string(), &proxy.address().to_string());
            let trees = PostgresTrees::open(&self.runtime, &url, &long_timeout()).await.unwrap();
            Arc::new(Connected { proxy, trees }) as Arc<dyn Process>
        }
        .boxed()
    }
}

impl Trees for Connected {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        self.trees.open(options)
    }
}

impl Process for Connected {
    fn cut(&self, is_cut: bool) {
        self.proxy.cut(is_cut);
    }

    fn cut_answers(&self) {
        self.proxy.cut_answers();
    }
}

/// Returns options with a long timeout, because the machine may be busy. The tests that use these options do not depend
/// on a time limit.
fn long_timeout() -> Options {
    Options { statement_timeout: Duration::from_secs(10), ..Options::default() }
}

fn node(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

async fn create(tree: &dyn Tree, at: &str, mode: CreateMode) -> Result<Created, TreeError> {
    tree.create(&node(at), Bytes::new(), mode, Acl::Open).await
}

/// Opens the tree as a new process, with a session that does not expire during a test.
async fn open(runtime: &Runtime, url: &str) -> Arc<dyn Tree> {
    let trees = PostgresTrees::open(runtime, url, &long_timeout()).await.unwrap();
    trees.open(SessionOptions { timeout: Duration::from_secs(60), ..SessionOptions::default() }).await.unwrap()
}

fn sql(url: &str, statement: &str) {
    shared().sql(name_of(url), statement).unwrap();
}

/// The server must compare the end of a session with the server's own clock, for two reasons. The row of the session
/// still exists after the session has ended, and the client's clock may be slow.
#[test]
fn expired_session_cannot_change_nodes() {
    let url = database();
    on_real(async |runtime| {
        let (late, other) = (open(&runtime, &url).await, open(&runtime, &url).await);
        create(&*late, "/mine", CreateMode::Ephemeral).await.unwrap();
        let id = late.session().id().0;
        // While this transaction locks the tree, no process ends expired sessions.
        let past = format!(
            "begin; select 1 from reveille_coordination.tree for update;
             update reveille_coordination.tree_session set lease_end = clock_timestamp() where id = {id};
             select 1 / (problem = 'session_lost')::integer from reveille_coordination.tree_change(
                {id}, 99, '{{create}}', '{{/late}}', '{{/}}', '{{\"\"}}', '{{null}}', '{{0}}', '{{31 anyone}}'
             );
             commit"
        );
        sql(&url, &past);
        late.session().lost().await;
        assert_eq!(create(&*late, "/later", CreateMode::Persistent).await, Err(TreeError::SessionLost));
        other.sync().await.unwrap();
        while other.exists(&node("/mine")).await.unwrap().is_some() {
            runtime.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(other.children(&node("/")).await.unwrap().names, Vec::<String>::new());
    });
}

/// Simulates a request that the caller dropped, and that reaches the server after later changes of the same session.
#[test]
fn server_rejects_a_change_that_arrives_after_a_newer_change() {
    let url = database();
    on_real(async |runtime| {
        let tree = open(&runtime, &url).await;
        for number in 0..3 {
            create(&*tree, &format!("/{number}"), CreateMode::Persistent).await.unwrap();
        }
        let late = format!(
            "select 1 / (problem = 'overtaken')::integer from reveille_coordination.tree_change(
                {}, 2, '{{delete}}', '{{/1}}', '{{/}}', '{{\"\"}}', '{{null}}', '{{0}}', '{{null}}'
             )",
            tree.session().id().0
        );
        sql(&url, &late);
        assert_eq!(tree.children(&node("/")).await.unwrap().names, ["0", "1", "2"]);
    });
}

#[test]
fn watch_fires_without_a_database_notification() {
    let url = database();
    on_real(async |runtime| {
        let (watcher, other) = (open(&runtime, &url).await, open(&runtime, &url).await);
        let (_, watch) = watcher.exists_and_watch(&node("/a")).await.unwrap();
        let disconnect = "select pg_terminate_backend(pid) from pg_stat_activity where query like 'listen %'
            and datname = current_database()";
        sql(&url, disconnect);
        create(&*other, "/a", CreateMode::Persistent).await.unwrap();
        let event = runtime.timeout(Duration::from_secs(10), watch).await;
        assert_eq!(event, Some(Ok(Event::Created(node("/a")))));
    });
}

#[test]
fn session_ends_if_the_server_deletes_its_unread_events() {
    let url = database();
    on_real(async |runtime| {
        let (paused, other) = (open(&runtime, &url).await, open(&runtime, &url).await);
        let (_, watch) = paused.exists_and_watch(&node("/a")).await.unwrap();
        let forgotten = "begin; update reveille_coordination.tree set last = last + 10, forgotten = last + 5; commit";
        sql(&url, forgotten);
        create(&*other, "/a", CreateMode::Persistent).await.unwrap();
        assert_eq!(runtime.timeout(Duration::from_secs(10), watch).await, Some(Err(TreeError::SessionLost)));
        assert!(paused.session().state().borrow().is_lost());
        assert_eq!(paused.exists(&node("/a")).await, Err(TreeError::SessionLost));
    });
}

#[test]
fn engine_deletes_old_events_but_no_nodes() {
    let url = database();
    on_real(async |runtime| {
        let tree = open(&runtime, &url).await;
        create(&*tree, "/a", CreateMode::Persistent).await.unwrap();
        sql(&url, "update reveille_coordination.tree_event set at = at - interval '1 hour'");
        create(&*tree, "/b", CreateMode::Persistent).await.unwrap();
        let count = "select count(*) from reveille_coordination.tree_event";
        let counted = async || shared().sql(name_of(&url), count).unwrap().trim().to_owned();
        while counted().await != "1" {
            runtime.sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(tree.children(&node("/")).await.unwrap().names, ["a", "b"]);
    });
}

/// Sessions and nodes are rows, so they survive lost connections and a crash of the server.
#[test]
fn session_survives_a_server_crash() {
    on_real(async |runtime| {
        let (server, url) = own_server(&runtime).await;
        let tree = open(&runtime, &url).await;
        let kept = create(&*tree, "/mine", CreateMode::Ephemeral).await.unwrap();
        let (_, watch) = tree.exists_and_watch(&node("/b")).await.unwrap();
        server.kill().unwrap();
        let failed = create(&*tree, "/b", CreateMode::Persistent).await;
        assert!(matches!(failed, Err(TreeError::Disconnected(_))), "{failed:?}");
        server.restart().unwrap();
        let created = async {
            while create(&*tree, "/b", CreateMode::Persistent).await.is_err() {
                runtime.sleep(Duration::from_millis(50)).await;
            }
        };
        runtime.timeout(Duration::from_secs(30), created).await.unwrap();
        assert_eq!(watch.await, Ok(Event::Created(node("/b"))));
        assert_eq!(tree.exists(&node("/mine")).await.unwrap(), Some(kept.stat));
        assert!(!tree.session().state().borrow().is_lost());
    });
}

/// If a caller drops a request, the connection stays open for the other requests.
#[test]
fn connection_serves_other_requests_after_a_request_is_dropped() {
    let url = database();
    on_real(async |runtime| {
        let tree = open(&runtime, &url).await;
        for _ in 0..200 {
            let (dropped, kept) = (tree.get(&node("/")), tree.exists(&node("/")));
            let both = async {
                let first = runtime.timeout(Duration::ZERO, dropped).await;
                (first.is_none(), kept.await)
            };
            assert!(both.await.1.unwrap().is_some());
        }
        assert_eq!(*tree.session().state().borrow(), SessionState::Connected);
    });
}

#[test]
fn sync_waits_for_pending_changes_of_its_session() {
    let url = database();
    on_real(async |runtime| {
        let tree = open(&runtime, &url).await;
        let last_call =
            || shared().sql(name_of(&url), "select last_call from reveille_coordination.tree_call").unwrap();
        create(&*tree, "/a", CreateMode::Persistent).await.unwrap();
        tree.sync().await.unwrap();
        assert_eq!(last_call().trim(), "1", "no change is outstanding");
        let (path, other) = (node("/b"), node("/c"));
        let mut pending = tree.create(&path, Bytes::new(), CreateMode::Persistent, Acl::Open);
        // The first poll sends the request. On a busy machine, the response may arrive during this poll.
        let early = (&mut pending).now_or_never();
        tree.sync().await.unwrap();
        assert_eq!(last_call().trim(), "3", "the pending change precedes the sync");
        let created = match early {
            Some(created) => created,
            None => pending.await,
        };
        assert_eq!(created.unwrap().path, path);
        let dropped = tree.create(&other, Bytes::new(), CreateMode::Persistent, Acl::Open);
        drop(dropped.now_or_never());
        tree.sync().await.unwrap();
        // The task that applies changes may start the creation of `/c` before the caller drops the request. In this
        // case the server creates `/c` before the sync.
        let is_made = tree.exists(&other).await.unwrap().is_some();
        let calls = if is_made { "5" } else { "4" };
        assert_eq!(last_call().trim(), calls, "a change that is dropped before it starts is not applied");
    });
}

/// The session has more nodes than one read of events returns, and more nodes than one call of `tree_close` deletes.
#[test]
fn closing_a_session_deletes_all_of_its_thousands_of_nodes() {
    const COUNT: usize = 6_000;
    let url = database();
    on_real(async |runtime| {
        let (dying, watcher) = (open(&runtime, &url).await, open(&runtime, &url).await);
        create(&*dying, "/all", CreateMode::Persistent).await.unwrap();
        for some in (0..COUNT).collect::<Vec<_>>().chunks(500) {
            let made = some.iter().map(|number| Op::Create {
                path: node(&format!("/all/{number:05}")),
                data: Bytes::new(),
                mode: CreateMode::Ephemeral,
                acl: Acl::Open,
            });
            dying.multi(made.collect()).await.unwrap();
        }
        let (_, watch) = watcher.exists_and_watch(&node("/all/05999")).await.unwrap();
        let mut events = watcher.watch_all(&node("/all")).await.unwrap();
        dying.close().await.unwrap();
        assert_eq!(runtime.timeout(Duration::from_secs(20), watch).await, Some(Ok(Event::Deleted(node("/all/05999")))));
        assert_eq!(watcher.children(&node("/all")).await.unwrap().names, Vec::<String>::new());
        // At most `WAITING_MAX` events wait in the stream. The last of them is a gap, which replaces all later events.
        for _ in 0..Events::WAITING_MAX - 1 {
            let event = events.next().await;
            assert!(matches!(event, Some(Event::Deleted(_))), "{event:?}");
        }
        assert_eq!(events.next().await, Some(Event::Gap));
    });
}

#[test]
fn dropping_the_last_handle_of_a_session_closes_the_session() {
    let url = database();
    on_real(async |runtime| {
        let (dropped, other) = (open(&runtime, &url).await, open(&runtime, &url).await);
        create(&*dropped, "/mine", CreateMode::Ephemeral).await.unwrap();
        drop(dropped);
        let gone = async {
            while other.exists(&node("/mine")).await.unwrap().is_some() {
                runtime.sleep(Duration::from_millis(20)).await;
            }
        };
        runtime.timeout(Duration::from_secs(10), gone).await.unwrap();
    });
}

#[test]
fn server_stores_the_call_number_of_a_rejected_change() {
    let url = database();
    on_real(async |runtime| {
        let tree = open(&runtime, &url).await;
        assert_eq!(tree.delete(&node("/a"), Expected::Any).await, Err(TreeError::NoNode));
        let last_call = shared().sql(name_of(&url), "select last_call from reveille_coordination.tree_call").unwrap();
        assert_eq!(last_call.trim(), "1", "the server rejects an earlier change that arrives late");
    });
}

#[test]
fn locks_and_bags_keep_their_order_when_sequence_numbers_overflow() {
    let url = database();
    let set_next = |path: &NodePath, next: i32| {
        sql(&url, &format!("update reveille_coordination.tree_node set creations = {next} where path = '{path}'"));
    };
    on_real(async |runtime| {
        let forest = Forest { runtime, url: url.clone() };
        coordination_conformance::recipes::locks_and_bags_keep_their_order_when_sequence_numbers_overflow(
            &forest, set_next,
        )
        .await;
    });
}

#[test]
fn negative_sequence_numbers_are_padded_to_ten_characters() {
    let url = database();
    on_real(async |runtime| {
        let tree = open(&runtime, &url).await;
        for (count, expected) in [
            (i32::MAX, ["n2147483647", "n-2147483648"]),
            (-1_000_000_000, ["n-1000000000", "n-999999999"]),
            (-5, ["n-000000005", "n-000000004"]),
        ] {
            sql(&url, &format!("update reveille_coordination.tree_node set creations = {count} where path = '/'"));
            for expected in expected {
                let made = create(&*tree, "/n", CreateMode::PersistentSequential).await.unwrap();
                assert_eq!(made.path.name(), expected);
            }
        }
    });
}

/// Simulates a fail-over to a standby that lagged.
#[test]
fn session_ends_when_the_database_returns_to_an_earlier_state() {
    let url = database();
    on_real(async |runtime| {
        let (tree, other) = (open(&runtime, &url).await, open(&runtime, &url).await);
        for number in 0..3 {
            create(&*other, &format!("/{number}"), CreateMode::Persistent).await.unwrap();
        }
        let (_, watch) = tree.exists_and_watch(&node("/a")).await.unwrap();
        sql(&url, "update reveille_coordination.tree set last = last - 2");
        assert_eq!(tree.exists_and_watch(&node("/b")).await.map(drop), Err(TreeError::SessionLost));
        assert_eq!(watch.await, Err(TreeError::SessionLost));

        // A process that only waits for a watch also detects that the database has returned to an earlier state.
        let waiting = open(&runtime, &url).await;
        let (_, watch) = waiting.exists_and_watch(&node("/a")).await.unwrap();
        sql(&url, "update reveille_coordination.tree set last = last - 1");
        assert_eq!(runtime.timeout(Duration::from_secs(10), watch).await, Some(Err(TreeError::SessionLost)));
    });
}
