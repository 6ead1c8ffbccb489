//! So many nodes and watches in one session that they are too much for one message of the servers', unless somebody counts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coordination::recipes::{Client, Lock};
use coordination::tree::{
    Acl, CreateMode, Event, Expected, NodePath, Op, SessionOptions, SessionState, Tree, TreeError, Watch,
};
use coordination_conformance::tree::{Process, Subject as _};
use coordination_zookeeper::{EPHEMERAL_BYTES_MAX, WATCHED_BYTES_MAX};
use futures_util::StreamExt as _;
use runtime::Runtime;

use crate::support::{Forest, ensemble, on_real};

const LIMIT: Duration = Duration::from_secs(30);

fn node(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

async fn open(forest: &Forest, timeout: Duration) -> (Arc<dyn Process>, Arc<dyn Tree>) {
    let process = forest.process().await;
    let tree = process.open(SessionOptions { timeout, ..SessionOptions::default() }).await.unwrap();
    (process, tree)
}

fn made(at: String, mode: CreateMode) -> Op {
    Op::Create { path: node(&at), data: Bytes::new(), mode, acl: Acl::Open }
}

/// Waits until it has seen `state`.
async fn becomes(runtime: &Runtime, tree: &dyn Tree, state: SessionState) {
    let mut states = tree.session().state();
    let becomes = states.wait_for(|now| *now == state);
    runtime.timeout(LIMIT, becomes).await.unwrap().unwrap();
}

async fn fires(runtime: &Runtime, watch: Watch) -> Event {
    runtime.timeout(LIMIT, watch).await.expect("the watch fires").expect("its session lives")
}

/// As many as fit; the path of the last, and why there are no more.
async fn fill(tree: &dyn Tree, parent: &str) -> (usize, TreeError) {
    const EACH: usize = 500;
    let mut count = 0;
    loop {
        let some = (count..count + EACH).map(|number| made(format!("{parent}/{number:050}"), CreateMode::Ephemeral));
        match tree.multi(some.collect()).await {
            Ok(_) => count += EACH,
            Err(error) => return (count, error),
        }
    }
}

/// With more, the end of the session would stop the ensemble, again and again.
#[test]
fn a_session_has_no_more_ephemerals_than_the_ensemble_outlives() {
    on_real(async |runtime| {
        let forest = Forest::new(runtime.clone(), ensemble());
        let (process, dying) = open(&forest, Duration::from_secs(8)).await;
        let (_process, other) = open(&forest, LIMIT).await;
        for at in ["/all", "/others"] {
            other.create(&node(at), Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
        }
        dying.sync().await.unwrap();
        let (count, refused) = fill(&*dying, "/all").await;
        assert!(count > EPHEMERAL_BYTES_MAX / 120, "{count}");
        let TreeError::Invalid(text) = &refused else { panic!("{refused:?}") };
        assert!(text.contains("open another session"), "{text}");
        let one = dying.create(&node(&format!("/all/{:0500}", 1)), Bytes::new(), CreateMode::Ephemeral, Acl::Open);
        one.await.unwrap();

        // What is gone makes room, whoever took it away.
        let gone = |number: usize| Op::Delete { path: node(&format!("/all/{number:050}")), expected: Expected::Any };
        other.multi((0..1_000).map(gone).collect()).await.unwrap();
        dying.sync().await.unwrap();
        dying.multi((0..1_000).map(|n| made(format!("/all/{n:050}"), CreateMode::Ephemeral)).collect()).await.unwrap();
        let (more, refused) = fill(&*dying, "/all/more").await;
        assert_eq!((more, refused), (0, TreeError::Invalid(text.clone())));

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

/// With more, the client would not get over a lost connection.
#[test]
fn a_session_has_no_more_watches_than_outlive_a_lost_connection() {
    on_real(async |runtime| {
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
        let (mut coming, mut next) = (Vec::new(), 3);
        let mut fill = async |coming: &mut Vec<(usize, Watch)>| loop {
            match tree.exists_and_watch(&at(next)).await {
                Ok((_, watch)) => coming.push((next, watch)),
                Err(error) => break error,
            }
            next += 1;
        };
        let refused = fill(&mut coming).await;
        let TreeError::Invalid(text) = &refused else { panic!("{refused:?}") };
        assert!(text.contains("open another session"), "{text}");
        assert_eq!(coming.len(), WATCHED_BYTES_MAX / (at(0).as_str().len() + "/test-".len() + 32) - 3);
        assert_eq!(tree.get_and_watch(&at(1)).await.err(), Some(refused.clone()));
        assert_eq!(tree.children_and_watch(&at(0)).await.err(), Some(refused.clone()));
        assert_eq!(tree.watch_all(&at(0)).await.err(), Some(refused.clone()));
        // Of one path and kind there may be any number.
        let mut same = Vec::new();
        for _ in 0..200 {
            same.push(tree.get_and_watch(&at(0)).await.unwrap().1);
        }
        // Each that is given up makes room for another.
        drop(coming.drain(..2));
        let before = coming.len();
        assert_eq!(fill(&mut coming).await, refused);
        assert_eq!(coming.len(), before + 2);

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
        // And what happens from now on.
        let below = at(1).join("below").unwrap();
        other.create(&below, Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
        assert_eq!(fires(&runtime, children).await, Event::ChildrenChanged(at(1)));
        for (number, watch) in coming {
            other.create(&at(number), Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
            assert_eq!(fires(&runtime, watch).await, Event::Created(at(number)));
        }
    });
}

/// What is gone is found out by several at once, and the room for it is had once.
#[test]
fn room_for_ephemerals_is_given_once_to_those_who_ask_at_once() {
    on_real(async |runtime| {
        let forest = Forest::new(runtime.clone(), ensemble());
        let (_process, tree) = open(&forest, LIMIT).await;
        tree.create(&node("/all"), Bytes::new(), CreateMode::Persistent, Acl::Open).await.unwrap();
        let (count, _refused) = fill(&*tree, "/all").await;
        let half = count / 2 + 500;
        for some in (0..half).collect::<Vec<_>>().chunks(500) {
            let gone = |n: &usize| Op::Delete { path: node(&format!("/all/{n:050}")), expected: Expected::Any };
            tree.multi(some.iter().map(gone).collect()).await.unwrap();
        }
        // More than there is room for, all asked for before any is answered.
        let again = |from: usize| {
            let some = (from..from + 1_000).map(|n| made(format!("/all/again{n:045}"), CreateMode::Ephemeral));
            tree.multi(some.collect())
        };
        let asked = futures_util::future::join_all((0..half / 1_000 + 3).map(|at| again(at * 1_000))).await;
        let refused = asked.iter().filter(|answer| matches!(answer, Err(TreeError::Invalid(_)))).count();
        assert!((2..6).contains(&refused), "{refused} of {}: {:?}", asked.len(), asked.iter().find(|one| one.is_err()));
        let names = tree.children(&node("/all")).await.unwrap().names;
        let bytes: usize = names.iter().map(|name| name.len() + "/all/".len() + "/test-".len() + 32 + 4).sum();
        assert!(bytes <= EPHEMERAL_BYTES_MAX, "{bytes}");
    });
}

/// Without a watch it is looked at now and then.
#[test]
fn a_hold_lasts_though_its_session_may_watch_no_more() {
    on_real(async |runtime| {
        let forest = Forest::new(runtime.clone(), ensemble());
        let process = forest.process().await;
        let options = SessionOptions { timeout: LIMIT, ..SessionOptions::default() };
        let client = Client::new(&runtime, process.clone(), options);
        let tree = client.session().await.unwrap();
        let mut watches = Vec::new();
        while let Ok((_, watch)) = tree.exists_and_watch(&node(&format!("/{:0800}", watches.len()))).await {
            watches.push(watch);
        }
        let mut number = 0;
        while let Ok((_, watch)) = tree.exists_and_watch(&node(&format!("/{number}"))).await {
            watches.push(watch);
            number += 1;
        }
        let held = Lock::new(&client, node("/lock"), Acl::Open).acquire().await.unwrap();
        runtime.sleep(Duration::from_millis(500)).await;
        assert!(held.is_valid());
        let (_process, other) = open(&forest, LIMIT).await;
        other.sync().await.unwrap();
        let place = other.children(&node("/lock")).await.unwrap().names.remove(0);
        other.delete(&node("/lock").join(&place).unwrap(), Expected::Any).await.unwrap();
        runtime.timeout(LIMIT, held.cancelled()).await.expect("it is over");
    });
}
