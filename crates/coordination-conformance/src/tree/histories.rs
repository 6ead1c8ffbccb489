//! Cases in which many sessions of several processes read and change a few nodes. One case runs without faults. The
//! other case repeatedly cuts connections, and some sessions are lost. Each case records the [history](crate::history)
//! of all calls and checks this history.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join, join_all};

use super::draw::Draw;
use super::*;
use crate::history::{Call, History, Observation, Operation, Response, Value};

const PROCESSES: usize = 3;
/// Number of concurrent sessions, two per process.
const SESSIONS: usize = 6;
const NAMES: [&str; 2] = ["/a", "/b"];
/// Number of calls after which the sessions use new nodes. With more calls per node, the check of a history takes
/// longer, because it searches for a valid order of the calls.
const CALLS_PER_NODE: usize = 100;
/// Smallest number of responses with which a history is a useful test.
const RESPONSES_MIN: usize = 300;
const CUTS: u64 = 10;
/// Timeout of a call in the case that cuts connections.
const CALL_TIMEOUT: Duration = Duration::from_millis(300);

pub(super) async fn concurrent_calls_are_linearizable(subject: &dyn Subject) {
    let workload = Workload::new(subject, LIMIT, LIMIT).await;
    workload.work().await;
    workload.check().await;
}

pub(super) async fn calls_with_cuts_and_lost_sessions_are_linearizable(subject: &dyn Subject) {
    let workload = Workload::new(subject, subject.timeout() / 2, CALL_TIMEOUT).await;
    workload.is_calm.set(false);
    join(workload.work(), workload.inject_faults()).await;
    workload.check().await;
}

struct Workload<'a> {
    subject: &'a dyn Subject,
    runtime: Runtime,
    processes: Vec<Arc<dyn Process>>,
    timeout: Duration,
    call_timeout: Duration,
    seed: u64,
    history: RefCell<History>,
    /// Number of sessions that the workload has opened.
    sessions: Cell<usize>,
    /// True if the test cuts no connection from now on.
    is_calm: Cell<bool>,
}

impl<'a> Workload<'a> {
    async fn new(subject: &'a dyn Subject, timeout: Duration, call_timeout: Duration) -> Workload<'a> {
        let runtime = subject.runtime();
        let processes = join_all((0..PROCESSES).map(|_| subject.process())).await;
        let seed = runtime.random();
        Workload {
            subject,
            runtime,
            processes,
            timeout,
            call_timeout,
            seed,
            history: RefCell::default(),
            sessions: Cell::new(0),
            is_calm: Cell::new(true),
        }
    }

    async fn work(&self) {
        let all = join_all((0..SESSIONS).map(|at| self.work_as(at)));
        // The time limit is large, because cut connections, lost sessions and pauses of the machine delay the calls.
        let worked = self.runtime.timeout(LIMIT * 3, all).await;
        assert!(
            worked.is_some(),
            "the sessions did not finish in time: only {} calls received a response, seed {}",
            self.responses(),
            self.seed
        );
    }

    async fn work_as(&self, at: usize) {
        let mut draw = Draw::new(self.seed.wrapping_add(at as u64 + 1));
        let (process, mut versions) = (&self.processes[at % PROCESSES], BTreeMap::new());
        while !self.is_over() {
            let Some(tree) = self.open(&**process).await else { continue };
            let (session, mut in_doubt) = (self.session(), None);
            while !self.is_over() && !tree.session().state().borrow().is_lost() {
                let (key, call) = self.draw(&mut draw, &versions, in_doubt.take());
                let limit = match draw.below(12) {
                    0 if !self.is_calm.get() => Duration::from_millis(draw.below(4)),
                    _ => self.call_timeout,
                };
                match self.request(&*tree, session, &key, call, limit).await {
                    Some(Response::Node(observed)) => drop(versions.insert(key, observed.version)),
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
                // The request to close the session may fail, because the test may have cut the connection.
                let _given_up = self.runtime.timeout(CALL_TIMEOUT, tree.close()).await;
            }
        }
    }

    /// Opens a session. Returns `None` if the attempt fails or takes too long.
    async fn open(&self, process: &dyn Process) -> Option<Arc<dyn Tree>> {
        let options = SessionOptions { timeout: self.timeout, credentials: Vec::new() };
        let opened = self.runtime.timeout(self.subject.timeout(), process.open(options)).await;
        if let Some(Ok(tree)) = opened {
            return Some(tree);
        }
        self.runtime.sleep(Duration::from_millis(20)).await;
        None
    }

    /// Selects a random call. After a call without a response, the selected call is often a read of the same node.
    fn draw(&self, draw: &mut Draw, versions: &BTreeMap<String, i32>, in_doubt: Option<String>) -> (String, Call) {
        if let Some(key) = in_doubt.filter(|_| draw.below(2) == 0) {
            return (key, Call::SyncedRead);
        }
        let period = self.history.borrow().operations().len() / CALLS_PER_NODE;
        let key = format!("{}{period}", draw.of(&NAMES));
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

    async fn request(
        &self,
        tree: &dyn Tree,
        session: usize,
        key: &str,
        call: Call,
        limit: Duration,
    ) -> Option<Response> {
        let value = self.history.borrow_mut().request(session, key, call);
        let response = self.runtime.timeout(limit, perform(tree, &path(key), call, value)).await??;
        self.history.borrow_mut().respond(value, response);
        Some(response)
    }

    /// Repeatedly disconnects processes from the engine. One disconnection lasts longer than the session timeout.
    async fn inject_faults(&self) {
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
        self.is_calm.get() && self.responses() >= RESPONSES_MIN
    }

    fn responses(&self) -> usize {
        self.history.borrow().operations().iter().filter(|call| call.response.is_some()).count()
    }

    /// Reads each node once, after a sync.
    async fn read_all(&self) {
        let process = self.subject.process().await;
        let mut keys: BTreeSet<String> =
            self.history.borrow().operations().iter().map(|call| call.key.clone()).collect();
        let mut tree = None;
        while let Some(key) = keys.first().cloned() {
            match &tree {
                None => tree = self.open(&*process).await.map(|tree| (self.session(), tree)),
                Some((session, opened)) => {
                    let response =
                        self.request(&**opened, *session, &key, Call::SyncedRead, self.subject.timeout()).await;
                    match response {
                        Some(_) => drop(keys.pop_first()),
                        None => tree = None,
                    }
                }
            }
        }
    }

    /// Checks the history after a final read of all nodes.
    async fn check(&self) {
        let read = self.runtime.timeout(LIMIT, self.read_all()).await;
        assert!(read.is_some(), "seed {}: the final reads did not finish within {LIMIT:?}", self.seed);
        let history = self.history.borrow();
        let is_created =
            |call: &Operation| call.call != Call::Read && matches!(call.response, Some((_, Response::Node(_))));
        let made = history.operations().iter().filter(|call| is_created(call)).count();
        assert!(made > RESPONSES_MIN / 10, "seed {}: only {made} calls found or created a node", self.seed);
        if let Err(reason) = history.check() {
            panic!("seed {}: {reason}", self.seed);
        }
    }
}

/// Performs a call. Returns `None` if no response arrived.
async fn perform(tree: &dyn Tree, path: &NodePath, call: Call, value: Value) -> Option<Response> {
    let data = Bytes::from(value.0.to_string());
    let observed = |value: Option<Value>, stat: &Stat| {
        let Stat { version, created, modified, .. } = *stat;
        Response::Node(Observation { value, version, created, modified })
    };
    let read = |node: &Node| {
        let written = std::str::from_utf8(&node.data).ok().and_then(|text| text.parse().ok());
        observed(Some(Value(written.expect("the sessions write only numbers"))), &node.stat)
    };
    let response = match call {
        Call::Create => {
            let created = tree.create(path, data, CreateMode::Persistent, Acl::Open).await;
            created.map(|created| observed(Some(value), &created.stat))
        }
        Call::Set(expected) => tree.set(path, data, expected).await.map(|stat| observed(Some(value), &stat)),
        Call::Delete(expected) => tree.delete(path, expected).await.map(|()| Response::Deleted),
        Call::SyncedRead => {
            tree.sync().await.ok()?;
            tree.get(path).await.map(|node| read(&node))
        }
        // Some reads use `exists`. The others use `get`.
        Call::Read if value.0.is_multiple_of(3) => {
            let stat = tree.exists(path).await;
            stat.map(|stat| stat.map_or(Response::NoNode, |stat| observed(None, &stat)))
        }
        Call::Read => tree.get(path).await.map(|node| read(&node)),
    };
    match response {
        Ok(response) => Some(response),
        Err(TreeError::NoNode) => Some(Response::NoNode),
        Err(TreeError::NodeExists) => Some(Response::NodeExists),
        Err(TreeError::BadVersion) => Some(Response::BadVersion),
        Err(TreeError::Disconnected(_) | TreeError::SessionLost) => None,
        Err(error) => panic!("unexpected error: {error}"),
    }
}
