//! Many sessions of several processes work on few nodes, calm, or cut off and lost again and again. What they were answered is a
//! [history](crate::history), which is checked.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join, join_all};

use super::draw::Draw;
use super::*;
use crate::history::{Answer, Call, History, Operation, Seen, Value};

const PROCESSES: usize = 3;
/// Two of each process.
const SESSIONS: usize = 6;
const NAMES: [&str; 2] = ["/a", "/b"];
/// After so many calls come other nodes: what is to be tried to explain a node's answers grows with their number.
const STRETCH: usize = 100;
/// A history of fewer shows little.
const ANSWERS_MIN: usize = 300;
const CUTS: u64 = 10;
/// A call without an answer is given up after this, if there are cuts.
const PATIENCE: Duration = Duration::from_millis(300);

pub(super) async fn what_many_ask_at_once_is_answered_in_one_order(subject: &dyn Subject) {
    let scene = Scene::new(subject, LIMIT, LIMIT).await;
    scene.work().await;
    scene.check().await;
}

pub(super) async fn what_is_cut_off_and_lost_is_answered_in_one_order(subject: &dyn Subject) {
    let scene = Scene::new(subject, subject.timeout() / 2, PATIENCE).await;
    scene.is_calm.set(false);
    join(scene.work(), scene.trouble()).await;
    scene.check().await;
}

struct Scene<'a> {
    subject: &'a dyn Subject,
    runtime: Runtime,
    processes: Vec<Arc<dyn Process>>,
    timeout: Duration,
    patience: Duration,
    seed: u64,
    history: RefCell<History>,
    /// So many were opened.
    sessions: Cell<usize>,
    /// Nothing is cut off any more.
    is_calm: Cell<bool>,
}

impl<'a> Scene<'a> {
    async fn new(subject: &'a dyn Subject, timeout: Duration, patience: Duration) -> Scene<'a> {
        let runtime = subject.runtime();
        let processes = join_all((0..PROCESSES).map(|_| subject.process())).await;
        let seed = runtime.random();
        Scene {
            subject,
            runtime,
            processes,
            timeout,
            patience,
            seed,
            history: RefCell::default(),
            sessions: Cell::new(0),
            is_calm: Cell::new(true),
        }
    }

    async fn work(&self) {
        let all = join_all((0..SESSIONS).map(|at| self.work_as(at)));
        // Cuts and the end of a session take their time, and a machine that stands still more.
        let worked = self.runtime.timeout(LIMIT * 3, all).await;
        assert!(worked.is_some(), "only {} calls were answered, with the seed {}", self.answers(), self.seed);
    }

    async fn work_as(&self, at: usize) {
        let mut draw = Draw::new(self.seed.wrapping_add(at as u64 + 1));
        let (process, mut versions) = (&self.processes[at % PROCESSES], BTreeMap::new());
        while !self.is_over() {
            let Some(tree) = self.open(&**process).await else { continue };
            let (session, mut in_doubt) = (self.session(), None);
            while !self.is_over() && !tree.session().state().borrow().is_lost() {
                let (key, call) = self.draw(&mut draw, &versions, in_doubt.take());
                let patience = match draw.below(12) {
                    0 if !self.is_calm.get() => Duration::from_millis(draw.below(4)),
                    _ => self.patience,
                };
                match self.ask(&*tree, session, &key, call, patience).await {
                    Some(Answer::Node(seen)) => drop(versions.insert(key, seen.version)),
                    Some(_) => {}
                    None => in_doubt = Some(key),
                }
                if draw.below(4) == 0 {
                    self.runtime.sleep(Duration::from_millis(draw.below(40))).await;
                }
                if !self.is_calm.get() && draw.below(60) == 0 {
                    break;
                }
            }
            if draw.below(2) == 0 {
                // What this waits for may be cut off.
                let _given_up = self.runtime.timeout(PATIENCE, tree.close()).await;
            }
        }
    }

    /// `None` after a while, if there is no answer.
    async fn open(&self, process: &dyn Process) -> Option<Arc<dyn Tree>> {
        let options = SessionOptions { timeout: self.timeout, credentials: Vec::new() };
        let opened = self.runtime.timeout(self.subject.timeout(), process.open(options)).await;
        if let Some(Ok(tree)) = opened {
            return Some(tree);
        }
        self.runtime.sleep(Duration::from_millis(20)).await;
        None
    }

    /// Something to ask for; often, what is there where there was no answer.
    fn draw(&self, draw: &mut Draw, versions: &BTreeMap<String, i32>, in_doubt: Option<String>) -> (String, Call) {
        if let Some(key) = in_doubt.filter(|_| draw.below(2) == 0) {
            return (key, Call::SyncedRead);
        }
        let stretch = self.history.borrow().operations().len() / STRETCH;
        let key = format!("{}{stretch}", draw.of(&NAMES));
        let version = versions.get(&key).copied().unwrap_or(0);
        let expected =
            draw.of(&[Expected::Any, Expected::Version(version), Expected::Version(version), Expected::Version(0)]);
        let call = match draw.below(20) {
            0..4 => Call::Create,
            4..9 => Call::Set(expected),
            9..12 => Call::Delete(expected),
            12..16 => Call::SyncedRead,
            _ => Call::Read,
        };
        (key, call)
    }

    async fn ask(&self, tree: &dyn Tree, session: usize, key: &str, call: Call, patience: Duration) -> Option<Answer> {
        let value = self.history.borrow_mut().ask(session, key, call);
        let answer = self.runtime.timeout(patience, perform(tree, &path(key), call, value)).await??;
        self.history.borrow_mut().answer(value, answer);
        Some(answer)
    }

    /// Cuts processes off, one of them for longer than its sessions live.
    async fn trouble(&self) {
        let mut draw = Draw::new(self.seed);
        for round in 0..CUTS {
            self.runtime.sleep(Duration::from_millis(20 + draw.below(100))).await;
            let process = draw.of(&self.processes);
            process.cut(true);
            let is_long = round == CUTS / 2;
            let cut = if is_long { self.timeout * 3 / 2 } else { Duration::from_millis(1 + draw.below(60)) };
            self.runtime.sleep(cut).await;
            process.cut(false);
        }
        self.is_calm.set(true);
    }

    fn session(&self) -> usize {
        self.sessions.set(self.sessions.get() + 1);
        self.sessions.get()
    }

    fn is_over(&self) -> bool {
        self.is_calm.get() && self.answers() >= ANSWERS_MIN
    }

    fn answers(&self) -> usize {
        self.history.borrow().operations().iter().filter(|call| call.answer.is_some()).count()
    }

    /// At all nodes.
    async fn look(&self) {
        let process = self.subject.process().await;
        let mut keys: BTreeSet<String> =
            self.history.borrow().operations().iter().map(|call| call.key.clone()).collect();
        let mut tree = None;
        while let Some(key) = keys.first().cloned() {
            match &tree {
                None => tree = self.open(&*process).await.map(|tree| (self.session(), tree)),
                Some((session, opened)) => {
                    let answer = self.ask(&**opened, *session, &key, Call::SyncedRead, self.subject.timeout()).await;
                    match answer {
                        Some(_) => drop(keys.pop_first()),
                        None => tree = None,
                    }
                }
            }
        }
    }

    /// After a last look.
    async fn check(&self) {
        let looked = self.runtime.timeout(LIMIT, self.look()).await;
        assert!(looked.is_some(), "with the seed {}, the engine does not answer in the end", self.seed);
        let history = self.history.borrow();
        let is_made = |call: &Operation| call.call != Call::Read && matches!(call.answer, Some((_, Answer::Node(_))));
        let made = history.operations().iter().filter(|call| is_made(call)).count();
        assert!(made > ANSWERS_MIN / 10, "with the seed {}, {made} calls found or made a node", self.seed);
        if let Err(reason) = history.check() {
            panic!("with the seed {}: {reason}", self.seed);
        }
    }
}

/// `None` if there was no answer.
async fn perform(tree: &dyn Tree, path: &NodePath, call: Call, value: Value) -> Option<Answer> {
    let data = Bytes::from(value.0.to_string());
    let seen = |value: Option<Value>, stat: &Stat| {
        let Stat { version, created, modified, .. } = *stat;
        Answer::Node(Seen { value, version, created, modified })
    };
    let read = |node: &Node| {
        let written = std::str::from_utf8(&node.data).ok().and_then(|text| text.parse().ok());
        seen(Some(Value(written.expect("nobody wrote anything else"))), &node.stat)
    };
    let answer = match call {
        Call::Create => {
            let created = tree.create(path, data, CreateMode::Persistent, Acl::Open).await;
            created.map(|created| seen(Some(value), &created.stat))
        }
        Call::Set(expected) => tree.set(path, data, expected).await.map(|stat| seen(Some(value), &stat)),
        Call::Delete(expected) => tree.delete(path, expected).await.map(|()| Answer::Deleted),
        Call::SyncedRead => {
            tree.sync().await.ok()?;
            tree.get(path).await.map(|node| read(&node))
        }
        // One way or the other.
        Call::Read if value.0.is_multiple_of(3) => {
            let stat = tree.exists(path).await;
            stat.map(|stat| stat.map_or(Answer::NoNode, |stat| seen(None, &stat)))
        }
        Call::Read => tree.get(path).await.map(|node| read(&node)),
    };
    match answer {
        Ok(answer) => Some(answer),
        Err(TreeError::NoNode) => Some(Answer::NoNode),
        Err(TreeError::NodeExists) => Some(Answer::NodeExists),
        Err(TreeError::BadVersion) => Some(Answer::BadVersion),
        Err(TreeError::Disconnected(_) | TreeError::SessionLost) => None,
        Err(error) => panic!("nothing that was asked has this answer: {error}"),
    }
}
