//! Tests of sessions with many nodes and watches. Without a limit, a session could have more nodes or watches than one
//! message can contain.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coordination::tree::{
    Acl, CreateMode, Event, Expected, NodePath, Op, SessionOptions, SessionState, Tree, TreeError, Watch,
};
use coordination_conformance::tree::{Process, Subject as _};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use reveille_coordination_zookeeper::EPHEMERAL_BYTES_MAX;
use runtime::Runtime;

use crate::support::{Forest, ensemble, with_real_runtime};

const LIMIT: Duration = Duration::from_secs(30);

fn node(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

async fn open(forest: &Forest, timeout: Duration) -> (Arc<dyn Process>, Arc<dyn Tree>) {
    let process = forest.process().await;
    let tree = process.open(SessionOptions { timeout, ..SessionOptions::default() }).await.unwrap();
    (process, tree)
}

fn create_op(at: String, mode: CreateMode) -> Op {
    Op::Create { path: node(&at), data: Bytes::new(), mode, acl: Acl::Open }
}

/// Waits until the session is in `state`.
async fn becomes(runtime: &Runtime, tree: &dyn Tree, state: SessionState) {
    let mut states = tree.session().state();
    let becomes = states.wait_for(|now| *now == state);
    runtime.timeout(LIMIT, becomes).await.unwrap().unwrap();
}

async fn fires(runtime: &Runtime, watch: Watch) -> Event {
    runtime.timeout(LIMIT, watch).await.expect("the watch fires in time").expect("the session of the watch lives")
}

/// Creates as many ephemeral nodes as possible. Returns their number and the error of the next creation.
async fn fill(tree: &dyn Tree, parent: &str) -> (usize, TreeError) {
    const EACH: usize = 500;
    let mut count = 0;
    loop {
        let some =
            (count..count + EACH).map(|number| create_op(format!("{parent}/{number:050}"), CreateMode::Ephemeral));
        match tree.multi(some.collect()).await {
            Ok(_) => count += EACH,
            Err(error) => return (count, error),
        }
    }
}

/// If a session had more ephemeral nodes than the limit allows, the end of the session would stop the ensemble
/// repeatedly.
#[test]
fn ensemble_survives_the_end_of_a_session_at_its_node_limit() {
    with_real_runtime(async |runtime| {
        let forest = Forest::new(runtime.clone(), ensemble());
        let (process, dying) = open(&forest, Duration::from_secs(8)).await;
        let (_process, other) = open(&forest, LIMIT).await;
        for at in ["/all", "/others"] {
            other.create(&node(at), Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
        }
        dying.sync().await.unwrap();
        let (count, rejected) = fill(&*dying, "/all").await;
        assert!(count > EPHEMERAL_BYTES_MAX / 120, "{count}");
        let TreeError::Invalid(text) = &rejected else { panic!("{rejected:?}") };
        assert!(text.contains("open another session"), "{text}");
        let one = dying.create(&node(&format!("/all/{:0500}", 1)), Bytes::new(), CreateMode::Ephemeral, Acl::Open);
        one.await.unwrap();

        // A deleted node frees space for a new node, even if another session deleted it.
        let gone = |number: usize| Op::Delete { path: node(&format!("/all/{number:050}")), expected: Expected::Any };
        other.multi((0..1_000).map(gone).collect()).await.unwrap();
        dying.sync().await.unwrap();
        dying
            .multi((0..1_000).map(|n| create_op(format!("/all/{n:050}"), CreateMode::Ephemeral)).collect())
            .await
            .unwrap();
        let (more, rejected) = fill(&*dying, "/all/more").await;
        assert_eq!((more, rejected), (0, TreeError::Invalid(text.clone())));

        let kept = other.create(&node("/others/kept"), Bytes::new(), CreateMode::Ephemeral, Acl::Open).await.unwrap();
        process.cut(true);
        let (mut last, mut watch) = other.children_and_watch(&node("/all")).await.unwrap();
        while !last.names.is_empty() {
            assert_eq!(fires(&runtime, watch).await, Event::ChildrenChanged(node("/all")));
            (last, watch) = other.children_and_watch(&node("/all")).await.unwrap();
        }
        for _ in 0..ensemble().count() {
            let (_process, tree) = open(&forest, LIMIT).await;
            tree.sync().await.unwrap();
            assert_eq!(tree.exists(&node("/others/kept")).await.unwrap(), Some(kept.stat.clone()));
        }
        assert_eq!(other.session().state().borrow().clone(), SessionState::Connected);
    });
}

/// After a reconnect, the client requests these watches again in more than ten messages.
#[test]
fn session_with_many_watches_keeps_all_of_them_after_a_reconnect() {
    with_real_runtime(async |runtime| {
        let forest = Forest::new(runtime.clone(), ensemble());
        let ((process, tree), (_process, other)) = (open(&forest, LIMIT).await, open(&forest, LIMIT).await);
        let at = |number: usize| node(&format!("/{number:0800}"));
        for number in [0, 1] {
            other.create(&at(number), Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
        }
        tree.sync().await.unwrap();
        let mut events = tree.watch_all(&at(2)).await.unwrap();
        let (_, data) = tree.get_and_watch(&at(0)).await.unwrap();
        let (_, children) = tree.children_and_watch(&at(1)).await.unwrap();
        let paths: Vec<NodePath> = (3..2_000).map(at).collect();
        let coming = join_all(paths.iter().map(|path| tree.exists_and_watch(path))).await;
        let mut coming: Vec<(usize, Watch)> = (3..).zip(coming.into_iter().map(|read| read.unwrap().1)).collect();
        let first = at(0);
        let same = join_all((0..200).map(|_| tree.get_and_watch(&first))).await;
        let same: Vec<Watch> = same.into_iter().map(|read| read.unwrap().1).collect();

        process.cut(true);
        becomes(&runtime, &*tree, SessionState::Suspended).await;
        other.set(&at(0), Bytes::from_static(b"x"), Expected::Any).await.unwrap();
        let (first, early) = coming.pop().unwrap();
        other.create(&at(first), Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
        process.cut(false);
        becomes(&runtime, &*tree, SessionState::Connected).await;
        assert_eq!(fires(&runtime, early).await, Event::Created(at(first)));
        for data in same.into_iter().chain([data]) {
            assert_eq!(fires(&runtime, data).await, Event::Changed(at(0)));
        }
        assert_eq!(runtime.timeout(LIMIT, events.next()).await, Some(Some(Event::Gap)));
        // The remaining watches still report new changes.
        let below = at(1).join("below").unwrap();
        other.create(&below, Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
        assert_eq!(fires(&runtime, children).await, Event::ChildrenChanged(at(1)));
        for (number, watch) in coming.into_iter().step_by(20) {
            other.create(&at(number), Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
            assert_eq!(fires(&runtime, watch).await, Event::Created(at(number)));
        }
    });
}

/// Several requests find at the same time that earlier nodes of the session no longer exist. Only one request may use
/// the space of each deleted node.
#[test]
fn concurrent_creations_never_exceed_the_ephemeral_node_limit() {
    with_real_runtime(async |runtime| {
        let forest = Forest::new(runtime.clone(), ensemble());
        let (_process, tree) = open(&forest, LIMIT).await;
        tree.create(&node("/all"), Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
        let (count, _rejected) = fill(&*tree, "/all").await;
        let half = count / 2 + 500;
        for some in (0..half).collect::<Vec<_>>().chunks(500) {
            let gone = |n: &usize| Op::Delete { path: node(&format!("/all/{n:050}")), expected: Expected::Any };
            tree.multi(some.iter().map(gone).collect()).await.unwrap();
        }
        // The test requests more nodes than the limit allows. It sends all requests before the first response.
        let again = |from: usize| {
            let some = (from..from + 1_000).map(|n| create_op(format!("/all/again{n:045}"), CreateMode::Ephemeral));
            tree.multi(some.collect())
        };
        let asked = join_all((0..half / 1_000 + 3).map(|at| again(at * 1_000))).await;
        let rejected = asked.iter().filter(|answer| matches!(answer, Err(TreeError::Invalid(_)))).count();
        assert!(
            (2..6).contains(&rejected),
            "{rejected} of {}: {:?}",
            asked.len(),
            asked.iter().find(|one| one.is_err())
        );
        let names = tree.children(&node("/all")).await.unwrap().names;
        let bytes: usize = names.iter().map(|name| name.len() + "/all/".len() + "/test-".len() + 32 + 4).sum();
        assert!(bytes <= EPHEMERAL_BYTES_MAX, "{bytes}");
    });
}
