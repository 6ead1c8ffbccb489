//! Deliberate bugs in a tree. The suite must detect each of them.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use coordination_conformance::tree::{Process, Subject, case};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use reveille_coordination::tree::{
    Acl, Answer, Children, CreateMode, Created, Credentials, DATA_BYTES_MAX, Done, Events, Expected, Grant, Node,
    NodePath, Op, Session, SessionOptions, Stat, Tree, TreeError, Trees, Watch,
};
use runtime::Runtime;
use simulator::Simulation;

use crate::support::{MemoryForest, slow};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    AccessIsOpen,
    ChangesHappenTwice,
    ChildrenWatchesAreOfData,
    ClosingLeavesNodes,
    ContainersArePersistent,
    DeletionsComeLate,
    DeletionsExpectNothing,
    EverySessionIsAlice,
    AbandonedChangesComeLate,
    LimitsAreIgnored,
    MultiIsNotAtomic,
    MultiHidesItsStep,
    NumbersAreNotCounted,
    ReadsAreStale,
    RejectedChangesHappen,
    SetsExpectNothing,
    SyncsDoNothing,
    ViewsGoBack,
    WatchesComeLate,
    WatchesOutliveSessions,
}

const CAUGHT_BY: &[(Bug, &str)] = &[
    (Bug::AccessIsOpen, "creators_node_is_closed_to_others"),
    (Bug::AccessIsOpen, "access_list_is_returned_as_created"),
    (Bug::ChangesHappenTwice, "concurrent_calls_are_linearizable"),
    (Bug::ChildrenWatchesAreOfData, "child_watch_fires_only_for_direct_children"),
    (Bug::ClosingLeavesNodes, "ephemerals_are_deleted_when_their_session_closes"),
    (Bug::ContainersArePersistent, "container_is_deleted_after_its_last_child"),
    (Bug::DeletionsComeLate, "concurrent_calls_are_linearizable"),
    (Bug::DeletionsExpectNothing, "wrong_expected_version_changes_nothing"),
    (Bug::DeletionsExpectNothing, "concurrent_calls_are_linearizable"),
    (Bug::EverySessionIsAlice, "readable_node_is_changed_only_by_its_creator"),
    (Bug::AbandonedChangesComeLate, "calls_with_cuts_and_lost_sessions_are_linearizable"),
    (Bug::LimitsAreIgnored, "oversized_data_is_rejected"),
    (Bug::MultiIsNotAtomic, "failed_multi_changes_nothing_and_names_its_step"),
    (Bug::MultiIsNotAtomic, "multi_is_one_change"),
    (Bug::MultiHidesItsStep, "check_guards_the_other_steps_of_a_multi"),
    (Bug::NumbersAreNotCounted, "sequential_names_rise_and_are_never_reused"),
    (Bug::ReadsAreStale, "sync_makes_changes_of_others_visible"),
    (Bug::ReadsAreStale, "calls_with_cuts_and_lost_sessions_are_linearizable"),
    (Bug::RejectedChangesHappen, "concurrent_calls_are_linearizable"),
    (Bug::SetsExpectNothing, "versioned_increments_are_never_lost"),
    (Bug::SetsExpectNothing, "concurrent_calls_are_linearizable"),
    (Bug::SyncsDoNothing, "concurrent_calls_are_linearizable"),
    (Bug::ViewsGoBack, "concurrent_calls_are_linearizable"),
    (Bug::WatchesComeLate, "watch_fires_before_the_change_is_read"),
    (Bug::WatchesOutliveSessions, "watches_end_with_their_session"),
];

#[test]
fn conformance_suite_detects_each_deliberate_bug_in_a_tree_engine() {
    let missed: Vec<_> =
        CAUGHT_BY.iter().filter(|(bug, case)| !(0..20).any(|seed| catches(*bug, case, seed))).collect();
    assert!(missed.is_empty(), "no seed detects {missed:?}");
}

/// Returns true if the case fails on an engine with this bug. The tests of the suite show that the case passes on an
/// engine without bugs.
fn catches(bug: Bug, name: &str, seed: u64) -> bool {
    let simulation = Simulation::new(seed);
    simulation.run_until(async {
        let subject = BrokenForest { bug, inner: MemoryForest::new(simulation.outside(), slow()) };
        AssertUnwindSafe(case(name).run(&subject)).catch_unwind().await.is_err()
    })
}

struct BrokenForest {
    bug: Bug,
    inner: MemoryForest,
}

impl Subject for BrokenForest {
    fn runtime(&self) -> Runtime {
        self.inner.runtime()
    }

    fn process(&self) -> BoxFuture<'_, Arc<dyn Process>> {
        async {
            let (bug, runtime, inner) = (self.bug, self.inner.runtime(), self.inner.process().await);
            Arc::new(BrokenProcess { bug, runtime, inner }) as Arc<dyn Process>
        }
        .boxed()
    }
}

struct BrokenProcess {
    bug: Bug,
    runtime: Runtime,
    inner: Arc<dyn Process>,
}

impl Process for BrokenProcess {
    fn cut(&self, is_cut: bool) {
        self.inner.cut(is_cut);
    }

    fn cut_answers(&self) {
        self.inner.cut_answers();
    }
}

impl Trees for BrokenProcess {
    fn open(&self, mut options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        if self.bug == Bug::EverySessionIsAlice {
            let (name, password) = ("alice".to_owned(), "of the looking-glass".to_owned());
            options.credentials = vec![Credentials { name, password }];
        }
        async {
            let (bug, runtime) = (self.bug, self.runtime.clone());
            let (inner, seen) = (self.inner.open(options).await?, Mutex::default());
            Ok(Arc::new(Broken { bug, runtime, inner, seen }) as Arc<dyn Tree>)
        }
        .boxed()
    }
}

struct Broken {
    bug: Bug,
    runtime: Runtime,
    inner: Arc<dyn Tree>,
    /// Node at each path, as the session first read it after the last reset of this map.
    seen: Mutex<BTreeMap<NodePath, Node>>,
}

impl Broken {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn watch(&self, mut inner: Watch) -> Watch {
        if !self.is(Bug::WatchesComeLate) && !self.is(Bug::WatchesOutliveSessions) {
            return inner;
        }
        let ((sender, watch), runtime, is_late) = (Watch::new(), self.runtime.clone(), self.is(Bug::WatchesComeLate));
        let task = self.runtime.spawn("watch", async move {
            match (&mut inner).await {
                Ok(event) => {
                    runtime.sleep(if is_late { Duration::from_secs(1) } else { Duration::ZERO }).await;
                    sender.fire(event);
                }
                Err(_) if is_late => {}
                Err(_) => std::future::pending().await,
            }
        });
        drop(task);
        watch
    }

    fn data(&self, data: Bytes) -> Bytes {
        let len = if self.is(Bug::LimitsAreIgnored) { data.len().min(DATA_BYTES_MAX) } else { data.len() };
        data.slice(..len)
    }

    fn expected(&self, expected: Expected, bug: Bug) -> Expected {
        if self.is(bug) { Expected::Any } else { expected }
    }

    fn forget_if(&self, bug: Bug) {
        if self.is(bug) {
            self.seen.lock().expect("no code panics while it holds this mutex").clear();
        }
    }

    /// Runs the function `change` on the tree after a delay. The caller does not wait for the function.
    fn after_all(&self, change: impl FnOnce(Arc<dyn Tree>) -> BoxFuture<'static, ()> + Send + 'static) {
        let (runtime, inner) = (self.runtime.clone(), self.inner.clone());
        let task = self.runtime.spawn("late", async move {
            runtime.sleep(Duration::from_millis(30)).await;
            change(inner).await;
        });
        drop(task);
    }

    fn set_after_all(&self, path: NodePath, data: Bytes) {
        self.after_all(|inner| async move { drop(inner.set(&path, data, Expected::Any).await) }.boxed());
    }
}

/// Request that sets the data of a node. A caller awaits the result of the request.
struct Waited<'a> {
    broken: &'a Broken,
    set: Option<(NodePath, Bytes)>,
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        if let Some((path, data)) = self.set.take().filter(|_| self.broken.is(Bug::AbandonedChangesComeLate)) {
            self.broken.set_after_all(path, data);
        }
    }
}

impl Tree for Broken {
    fn session(&self) -> &Session {
        self.inner.session()
    }

    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created> {
        self.forget_if(Bug::SyncsDoNothing);
        let acl = if self.is(Bug::AccessIsOpen) { Acl::Open } else { acl };
        let (path, data) = (path.clone(), self.data(data));
        async move {
            let mode = match mode {
                CreateMode::Ephemeral if self.is(Bug::ClosingLeavesNodes) => CreateMode::Persistent,
                CreateMode::Container if self.is(Bug::ContainersArePersistent) => CreateMode::Persistent,
                mode if mode.is_sequential() && self.is(Bug::NumbersAreNotCounted) => {
                    let parent = path.parent().expect("a sequential node is not the root");
                    let count = self.inner.children(&parent).await?.names.len();
                    let numbered = NodePath::new(&format!("{path}{count:010}")).expect("a number extends a valid path");
                    return self.inner.create(&numbered, data, CreateMode::Persistent, acl).await;
                }
                mode => mode,
            };
            self.inner.create(&path, data, mode, acl).await
        }
        .boxed()
    }

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat> {
        self.forget_if(Bug::SyncsDoNothing);
        let set = (path.clone(), self.data(data));
        async move {
            let mut waited = Waited { broken: self, set: Some(set.clone()) };
            let (path, data) = set;
            let answer = self.inner.set(&path, data.clone(), self.expected(expected, Bug::SetsExpectNothing)).await;
            waited.set = None;
            let is_rejected = answer == Err(TreeError::BadVersion);
            if self.is(Bug::ChangesHappenTwice) || (self.is(Bug::RejectedChangesHappen) && is_rejected) {
                self.set_after_all(path, data);
            }
            answer
        }
        .boxed()
    }

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()> {
        self.forget_if(Bug::SyncsDoNothing);
        let expected = self.expected(expected, Bug::DeletionsExpectNothing);
        if !self.is(Bug::DeletionsComeLate) || expected != Expected::Any {
            return self.inner.delete(path, expected);
        }
        let path = path.clone();
        async move {
            self.inner.exists(&path).await?.ok_or(TreeError::NoNode)?;
            self.after_all(|inner| async move { drop(inner.delete(&path, Expected::Any).await) }.boxed());
            Ok(())
        }
        .boxed()
    }

    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>> {
        async move {
            if !self.is(Bug::MultiIsNotAtomic) {
                return self.inner.multi(ops).await.map_err(|error| match error {
                    TreeError::Multi { source, .. } if self.is(Bug::MultiHidesItsStep) => *source,
                    error => error,
                });
            }
            let mut done = Vec::new();
            for (at, op) in ops.into_iter().enumerate() {
                let one = self.inner.multi(vec![op]).await.map_err(|error| match error {
                    TreeError::Multi { source, .. } => TreeError::Multi { at, source },
                    error => error,
                });
                done.extend(one?);
            }
            Ok(done)
        }
        .boxed()
    }

    fn get(&self, path: &NodePath) -> Answer<'_, Node> {
        let path = path.clone();
        async move {
            let node = self.inner.get(&path).await?;
            let mut seen = self.seen.lock().expect("no code panics while it holds this mutex");
            let first = seen.entry(path).or_insert_with(|| node.clone()).clone();
            let is_stale = [Bug::ReadsAreStale, Bug::SyncsDoNothing, Bug::ViewsGoBack].contains(&self.bug);
            Ok(if is_stale { first } else { node })
        }
        .boxed()
    }

    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>> {
        self.inner.exists(path)
    }

    fn children(&self, path: &NodePath) -> Answer<'_, Children> {
        self.inner.children(path)
    }

    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)> {
        let path = path.clone();
        async move {
            let (node, watch) = self.inner.get_and_watch(&path).await?;
            Ok((node, self.watch(watch)))
        }
        .boxed()
    }

    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)> {
        self.inner.exists_and_watch(path)
    }

    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)> {
        let path = path.clone();
        async move {
            let (children, watch) = self.inner.children_and_watch(&path).await?;
            let watch = match self.is(Bug::ChildrenWatchesAreOfData) {
                true => self.inner.get_and_watch(&path).await?.1,
                false => watch,
            };
            Ok((children, self.watch(watch)))
        }
        .boxed()
    }

    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events> {
        self.inner.watch_all(path)
    }

    fn sync(&self) -> Answer<'_, ()> {
        self.forget_if(Bug::ViewsGoBack);
        self.inner.sync()
    }

    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>> {
        self.inner.acl(path)
    }

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat> {
        self.inner.set_acl(path, acl)
    }

    fn close(&self) -> Answer<'_, ()> {
        self.inner.close()
    }
}
