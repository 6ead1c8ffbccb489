//! The tree's suite, each case in a database of its own; and what only this engine has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use coordination::conformance::Case;
use coordination::conformance::tree::Subject;
use coordination::tree::{
    Acl, CreateMode, Created, Event, NodePath, SessionId, SessionOptions, SessionState, Tree, TreeError, Trees as _,
};
use coordination_postgres::{Options, PostgresTrees};
use engines::Proxy;
use engines::postgres::shared;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;

use crate::support::{database, name_of, on_real, own_server};

coordination::tree_conformance_tests!(run);

fn run(case: Case<dyn Subject>) {
    let url = database();
    on_real(async |runtime| case.run(&Forest::new(runtime, &url)).await);
}

struct Forest {
    runtime: Runtime,
    url: String,
    /// The way of each session's process.
    opened: Mutex<BTreeMap<SessionId, Proxy>>,
    killed: Mutex<Vec<Arc<dyn Tree>>>,
}

impl Forest {
    fn new(runtime: Runtime, url: &str) -> Self {
        Forest { runtime, url: url.to_owned(), opened: Mutex::default(), killed: Mutex::default() }
    }

    /// A process's own way.
    async fn trees(&self) -> (Proxy, PostgresTrees) {
        let server = ([127, 0, 0, 1], shared().port()).into();
        let proxy = Proxy::start(server).unwrap();
        let url = self.url.replace(&server.to_string(), &proxy.address().to_string());
        let trees = PostgresTrees::open(&self.runtime, &url, &patient()).await.unwrap();
        (proxy, trees)
    }
}

impl Subject for Forest {
    fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Arc<dyn Tree>> {
        async {
            let (proxy, trees) = self.trees().await;
            let tree = trees.open(options).await.unwrap();
            self.opened.lock().unwrap().insert(tree.session().id(), proxy);
            tree
        }
        .boxed()
    }

    fn kill(&self, tree: Arc<dyn Tree>) -> BoxFuture<'_, ()> {
        self.opened.lock().unwrap()[&tree.session().id()].cut();
        self.killed.lock().unwrap().push(tree);
        async {}.boxed()
    }
}

/// Where no limit is looked at: the machine may be busy with other tests.
fn patient() -> Options {
    Options { statement_timeout: Duration::from_secs(10), ..Options::default() }
}

fn node(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

async fn make(tree: &dyn Tree, at: &str, mode: CreateMode) -> Result<Created, TreeError> {
    tree.create(&node(at), Bytes::new(), mode, Acl::Open).await
}

/// A process with a session that lasts.
async fn open(runtime: &Runtime, url: &str) -> Arc<dyn Tree> {
    let trees = PostgresTrees::open(runtime, url, &patient()).await.unwrap();
    trees.open(SessionOptions { timeout: Duration::from_secs(60), ..SessionOptions::default() }).await.unwrap()
}

fn sql(url: &str, statement: &str) {
    shared().sql(name_of(url), statement).unwrap();
}

/// Where nobody has ended it yet: its own clock may be slow.
#[test]
fn a_session_past_its_end_changes_nothing() {
    let url = database();
    on_real(async |runtime| {
        let (late, other) = (open(&runtime, &url).await, open(&runtime, &url).await);
        make(&*late, "/mine", CreateMode::Ephemeral).await.unwrap();
        let id = late.session().id().0;
        // Nobody looks for those whose time has come while the tree is held.
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
        assert_eq!(make(&*late, "/later", CreateMode::Persistent).await, Err(TreeError::SessionLost));
        other.sync().await.unwrap();
        while other.exists(&node("/mine")).await.unwrap().is_some() {
            runtime.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(other.children(&node("/")).await.unwrap().names, Vec::<String>::new());
    });
}

/// A change that was given up, and is executed after those that came later.
#[test]
fn a_change_that_comes_late_is_not_made() {
    let url = database();
    on_real(async |runtime| {
        let tree = open(&runtime, &url).await;
        for number in 0..3 {
            make(&*tree, &format!("/{number}"), CreateMode::Persistent).await.unwrap();
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
fn a_watch_fires_though_no_notice_came() {
    let url = database();
    on_real(async |runtime| {
        let (watcher, other) = (open(&runtime, &url).await, open(&runtime, &url).await);
        let (_, watch) = watcher.exists_and_watch(&node("/a")).await.unwrap();
        let deaf = "select pg_terminate_backend(pid) from pg_stat_activity where query like 'listen %'
            and datname = current_database()";
        sql(&url, deaf);
        make(&*other, "/a", CreateMode::Persistent).await.unwrap();
        let told = runtime.timeout(Duration::from_secs(10), watch).await;
        assert_eq!(told, Some(Ok(Event::Created(node("/a")))));
    });
}

#[test]
fn who_has_slept_for_longer_than_events_are_kept_starts_anew() {
    let url = database();
    on_real(async |runtime| {
        let (sleeper, other) = (open(&runtime, &url).await, open(&runtime, &url).await);
        let (_, watch) = sleeper.exists_and_watch(&node("/a")).await.unwrap();
        let forgotten = "begin; update reveille_coordination.tree set last = last + 10, forgotten = last + 5; commit";
        sql(&url, forgotten);
        make(&*other, "/a", CreateMode::Persistent).await.unwrap();
        assert_eq!(runtime.timeout(Duration::from_secs(10), watch).await, Some(Err(TreeError::SessionLost)));
        assert!(sleeper.session().state().borrow().is_lost());
        assert_eq!(sleeper.exists(&node("/a")).await, Err(TreeError::SessionLost));
    });
}

#[test]
fn events_are_forgotten_after_a_while_and_nodes_are_not() {
    let url = database();
    on_real(async |runtime| {
        let tree = open(&runtime, &url).await;
        make(&*tree, "/a", CreateMode::Persistent).await.unwrap();
        sql(&url, "update reveille_coordination.tree_event set at = at - interval '1 hour'");
        make(&*tree, "/b", CreateMode::Persistent).await.unwrap();
        let count = "select count(*) from reveille_coordination.tree_event";
        let counted = async || shared().sql(name_of(&url), count).unwrap().trim().to_owned();
        while counted().await != "1" {
            runtime.sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(tree.children(&node("/")).await.unwrap().names, ["a", "b"]);
    });
}

/// Sessions and nodes are rows, whatever becomes of connections and of the server itself.
#[test]
fn a_session_outlives_a_crash_of_the_server() {
    on_real(async |runtime| {
        let (server, url) = own_server(&runtime).await;
        let tree = open(&runtime, &url).await;
        let kept = make(&*tree, "/mine", CreateMode::Ephemeral).await.unwrap();
        let (_, watch) = tree.exists_and_watch(&node("/b")).await.unwrap();
        server.kill().unwrap();
        let refused = make(&*tree, "/b", CreateMode::Persistent).await;
        assert!(matches!(refused, Err(TreeError::Disconnected(_))), "{refused:?}");
        server.restart().unwrap();
        let made = async {
            while make(&*tree, "/b", CreateMode::Persistent).await.is_err() {
                runtime.sleep(Duration::from_millis(50)).await;
            }
        };
        runtime.timeout(Duration::from_secs(30), made).await.unwrap();
        assert_eq!(watch.await, Ok(Event::Created(node("/b"))));
        assert_eq!(tree.exists(&node("/mine")).await.unwrap(), Some(kept.stat));
        assert!(!tree.session().state().borrow().is_lost());
    });
}

/// Dropping what waits for an answer breaks nobody else's connection.
#[test]
fn requests_that_nobody_waits_for_disturb_no_others() {
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
