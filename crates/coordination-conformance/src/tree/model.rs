//! Case that applies random changes to the engine under test and to the in-memory engine, which is the model.

use std::collections::BTreeMap;

use super::draw::Draw;
use super::*;
use coordination::memory::MemoryOptions;
use coordination::tree::{Done, Grant, Identity, Op, Permissions, Zxid};

const ROUNDS: u32 = 200;

impl Draw {
    fn path(&mut self) -> NodePath {
        let texts = ["/a", "/b", "/a/a", "/a/b", "/a/b/c", "/b/a", "/b/a/a", "/a/n0000000000", "/b/n0000000001"];
        path(self.of(&texts))
    }

    fn expected(&mut self) -> Expected {
        self.of(&[Expected::Any, Expected::Any, Expected::Any, Expected::Version(0), Expected::Version(1)])
    }

    fn acl(&mut self) -> Acl {
        let reader = Grant { to: Identity::Anyone, permissions: Permissions::READ.and(Permissions::CREATE) };
        let grants = Acl::Grants(vec![Grant { to: alice().identity(), permissions: Permissions::ALL }, reader]);
        self.of(&[&[Acl::Creator, Acl::CreatorReadable, grants][..], &vec![Acl::Open; 9]].concat())
    }

    fn op(&mut self) -> Op {
        let (path, data) = (self.path(), Bytes::from(vec![0; usize::try_from(self.below(20)).unwrap_or(0)]));
        match self.below(10) {
            0..5 => {
                let mode = self.of(&[
                    CreateMode::Persistent,
                    CreateMode::Persistent,
                    CreateMode::PersistentSequential,
                    CreateMode::Ephemeral,
                    CreateMode::EphemeralSequential,
                ]);
                let path = if mode.is_sequential() { below(&path, "n") } else { path };
                Op::Create { path, data, mode, acl: self.acl() }
            }
            5 => Op::Check { path, expected: self.expected() },
            6..8 => Op::Set { path, data, expected: self.expected() },
            _ => Op::Delete { path, expected: self.expected() },
        }
    }
}

fn alice() -> Credentials {
    Credentials { name: "alice".to_owned(), password: "of the looking-glass".to_owned() }
}

fn below(above: &NodePath, name: &str) -> NodePath {
    above.join(name).expect("the name of the child node is valid")
}

/// Data about a node on which both engines must agree.
#[derive(PartialEq, Debug)]
struct Summary {
    path: Option<NodePath>,
    versions: [i32; 3],
    is_owned: bool,
    sizes: [usize; 2],
    children: Vec<String>,
}

fn summary(path: Option<NodePath>, stat: &Stat) -> Summary {
    Summary {
        path,
        versions: [stat.version, stat.children_version, stat.acl_version],
        is_owned: stat.owner.is_some(),
        sizes: [stat.data_bytes, stat.children],
        children: Vec::new(),
    }
}

fn done(done: &[Done]) -> Vec<Option<Summary>> {
    let summary_of = |done: &Done| match done {
        Done::Check | Done::Delete => None,
        Done::Create(Created { path, stat }) => Some(summary(Some(path.clone()), stat)),
        Done::Set(stat) => Some(summary(None, stat)),
    };
    done.iter().map(summary_of).collect()
}

/// Removes the text of an error, because this text differs between engines.
fn plain(error: TreeError) -> TreeError {
    match error {
        TreeError::Invalid(_) => TreeError::Invalid(String::new()),
        TreeError::Multi { at, source } => TreeError::Multi { at, source: Box::new(plain(*source)) },
        other => other,
    }
}

async fn inspect(tree: &dyn Tree, at: &NodePath) -> Result<(Summary, Bytes, Vec<Grant>, [Zxid; 3]), TreeError> {
    tree.sync().await?;
    let node = tree.get(at).await?;
    let children = tree.children(at).await?;
    assert_eq!(children.stat, node.stat, "the node does not change between the two reads");
    let Stat { created, modified, children_modified, .. } = node.stat;
    let summary = Summary { children: children.names, ..summary(None, &node.stat) };
    Ok((summary, node.data, tree.acl(at).await?, [created, modified, children_modified]))
}

/// A session of the engine under test and a session of the model. Both receive the same calls.
struct Twins {
    _process: Arc<dyn Process>,
    here: Arc<dyn Tree>,
    there: Arc<dyn Tree>,
}

/// Map from the change numbers of the model to the change numbers of the engine under test. If one change has a greater
/// number than another in the model, it must also have a greater number in the engine.
#[derive(Default)]
struct Numbers(BTreeMap<Zxid, Zxid>);

impl Numbers {
    fn check(&mut self, pairs: impl IntoIterator<Item = (Zxid, Zxid)>) {
        self.0.extend(pairs);
        assert!(
            self.0.values().is_sorted_by(|one, next| one < next),
            "the engine's change numbers increase in the order of the changes"
        );
    }
}

impl Twins {
    async fn open(subject: &dyn Subject, model: &MemoryTrees, credentials: &[Credentials]) -> Twins {
        let options = SessionOptions { timeout: LIMIT, credentials: credentials.to_vec() };
        let process = subject.process().await;
        let here = process.open(options.clone()).await.expect("the engine opens a session");
        Twins { _process: process, here, there: model.open(options).await.expect("the model responds") }
    }

    async fn change(&self, ops: Vec<Op>) {
        let (here, there) = (self.here.multi(ops.clone()).await, self.there.multi(ops).await);
        let (here, there) = (here.as_deref().map(done), there.as_deref().map(done));
        assert_eq!(here.map_err(|error| plain(error.clone())), there.map_err(|error| plain(error.clone())));
    }

    /// Compares the node `at`, and all nodes below it that the session may read, in the two engines.
    async fn compare(&self, at: &NodePath, numbers: &mut Numbers) {
        let mut left = vec![at.clone()];
        while let Some(at) = left.pop() {
            let (here, there) = (inspect(&*self.here, &at).await, inspect(&*self.there, &at).await);
            match (here, there) {
                (Ok((summary, data, grants, zxids)), Ok((summary_there, data_there, grants_there, zxids_there))) => {
                    assert_eq!((&summary, data, grants), (&summary_there, data_there, grants_there), "{at}");
                    // The root has no change number, because it exists before all changes.
                    let of_changes =
                        zxids_there.into_iter().zip(zxids).filter(|(there, _)| there.0 > 0 && !at.is_root());
                    numbers.check(of_changes);
                    left.extend(summary.children.iter().map(|name| below(&at, name)));
                }
                (here, there) => {
                    let error = |looked: Result<_, TreeError>| looked.map(drop).map_err(plain);
                    assert_eq!(error(here), error(there), "{at}");
                }
            }
        }
    }
}

pub(super) async fn random_changes_match_the_in_memory_engine(subject: &dyn Subject) {
    let runtime = subject.runtime();
    let model = MemoryTrees::new(runtime.clone(), MemoryOptions { sessions_end: false, ..MemoryOptions::default() });
    let (open, alice) = (Twins::open(subject, &model, &[]).await, Twins::open(subject, &model, &[alice()]).await);
    let twins = [&open, &alice];
    let (seed, mut numbers) = (runtime.random(), Numbers::default());
    let mut draw = Draw::new(seed);
    let within = async |round: u32, step: &str, work: futures_util::future::LocalBoxFuture<'_, ()>| {
        let worked = std::panic::AssertUnwindSafe(work).catch_unwind().await;
        assert!(worked.is_ok(), "seed {seed}, round {round}: {step}");
    };
    for at in ["/a", "/b", "/a/b"].map(path) {
        open.change(vec![Op::Create { path: at, data: Bytes::new(), mode: CreateMode::Persistent, acl: Acl::Open }])
            .await;
    }
    for round in 0..ROUNDS {
        let ops: Vec<Op> = (0..draw.of(&[1, 1, 1, 2, 3])).map(|_| draw.op()).collect();
        let (who, at) = (draw.of(&twins), draw.path());
        within(round, &format!("{ops:?}"), who.change(ops.clone()).boxed_local()).await;
        within(
            round,
            "the engine and the model have equal states after the change",
            who.compare(&at, &mut numbers).boxed_local(),
        )
        .await;
    }
    let root = NodePath::root();
    within(ROUNDS, "all", alice.compare(&root, &mut numbers).boxed_local()).await;
    open.here.close().await.expect("the engine responds");
    open.there.close().await.expect("the model responds");
    within(
        ROUNDS,
        "the engine and the model have equal states after a session ends",
        alice.compare(&root, &mut numbers).boxed_local(),
    )
    .await;
    assert!(
        numbers.0.len() > 5,
        "seed {seed}: only {} changes succeeded; the case requires more than 5",
        numbers.0.len()
    );
}
