//! Tree in memory. It is the reference model of the tree port, the engine of many tests, and the engine of programs
//! that run as a single process. The tree is not durable. It ends with its last handle.
//!
//! Invariants: a change and all of its events happen in one step under one mutex, and no user code runs in that step.

mod state;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use instants::{Monotonic, Timestamp};
use runtime::{MemoryLink, Runtime, TaskSet};

use self::state::State;
use super::{MemoryOptions, link};
use crate::tree::session::{self, Session, SessionId};
use crate::tree::{
    Acl, Answer, Children, CreateMode, Created, Credentials, Done, Event, Events, Expected, Grant, Node, NodePath, Op,
    SessionOptions, Stat, Tree, TreeError, Trees, Watch, Watchers, check_data, check_ops,
};

/// Shortest interval between two searches for containers that have lost their last child. A search runs only when a
/// process calls the engine.
const COLLECT_PERIOD: Duration = Duration::from_secs(1);

/// Engine with a tree in the memory of this process. [`MemoryTrees::reopen`] returns another handle of the same tree.
pub struct MemoryTrees {
    runtime: Runtime,
    engine: Arc<Engine>,
    link: Arc<MemoryLink>,
}

struct Engine {
    clock: Runtime,
    options: MemoryOptions,
    inner: Mutex<Inner>,
}

struct Inner {
    state: State,
    last_session: i64,
    /// Timeout and end time of each open session. The end time is `None` if the session never expires.
    ends: BTreeMap<SessionId, (Duration, Option<Monotonic>)>,
    watchers: Watchers,
    collected: Monotonic,
    /// Time of the current step by the engine's wall clock.
    at: Timestamp,
}

impl MemoryTrees {
    /// Creates an empty tree that uses the clocks of `runtime`.
    #[must_use]
    pub fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        let inner = Inner {
            state: State::new(runtime.now()),
            last_session: 0,
            ends: BTreeMap::new(),
            watchers: Watchers::default(),
            collected: runtime.monotonic(),
            at: runtime.now(),
        };
        let link = Arc::new(link(runtime.clone(), &options));
        let engine = Engine { clock: runtime.clone(), options, inner: Mutex::new(inner) };
        MemoryTrees { runtime, engine: Arc::new(engine), link }
    }

    /// Opens the same tree for another process.
    #[must_use]
    pub fn reopen(&self, runtime: Runtime) -> Self {
        let link = Arc::new(link(runtime.clone(), &self.engine.options));
        MemoryTrees { runtime, engine: self.engine.clone(), link }
    }

    /// Cuts or restores the connection of the sessions of this handle. While the connection is cut, calls get no
    /// response, and calls in progress may or may not take effect.
    pub fn cut(&self, is_cut: bool) {
        self.link.cut(is_cut);
    }

    /// Blocks all responses to the sessions of this handle. Requests take effect but get no response until
    /// [`MemoryTrees::cut`] restores the connection.
    pub fn cut_answers(&self) {
        self.link.cut_answers();
    }

    async fn connect(&self, options: SessionOptions) -> Result<MemoryTree, TreeError> {
        let (sent, link) = (self.runtime.monotonic(), &self.link);
        let SessionOptions { timeout, credentials } = options;
        let identities = credentials.iter().map(Credentials::identity).collect();
        let sessions_end = self.engine.options.sessions_end;
        let opened = link.call(|| {
            self.engine.step(|inner, now| {
                inner.last_session += 1;
                let id = SessionId(inner.last_session);
                inner.state.open(id, identities);
                inner.ends.insert(id, (timeout, sessions_end.then(|| now + timeout)));
                id
            })
        });
        let id = opened.await.map_err(TreeError::Disconnected)?;
        let session = Session::new(id, if sessions_end { timeout } else { Duration::MAX }, sent);
        let tree = MemoryTree {
            engine: self.engine.clone(),
            link: link.clone(),
            session: session.clone(),
            tasks: TaskSet::new(&self.runtime),
        };
        let (engine, link, runtime) = (self.engine.clone(), link.clone(), self.runtime.clone());
        tree.tasks.spawn("tree session", async move {
            if sessions_end {
                let ping = || -> BoxFuture<'static, Result<(), TreeError>> {
                    let (engine, link, session) = (engine.clone(), link.clone(), session.clone());
                    Box::pin(async move { engine.call(&link, &session, |_| Ok(())).await })
                };
                session::keep(&runtime, &session, ping).await;
            }
        });
        Ok(tree)
    }

    /// Ends a session as if its timeout had passed without a request.
    pub fn expire(&self, session: SessionId) {
        self.engine.step(|inner, _| inner.end_session(session));
    }

    /// Sets the number of the next sequential child of `path`.
    pub fn set_sequence(&self, path: &NodePath, next: i32) {
        self.engine.step(|inner, _| inner.state.set_creations(path, next));
    }
}

impl Trees for MemoryTrees {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        Box::pin(async move { Ok(Arc::new(self.connect(options).await?) as Arc<dyn Tree>) })
    }
}

impl Engine {
    /// Ends the expired sessions, and then runs one step of the engine.
    fn step<T>(&self, step: impl FnOnce(&mut Inner, Monotonic) -> T) -> T {
        let now = self.clock.monotonic();
        let mut inner = self.inner.lock().expect("no code panics while it holds this mutex");
        inner.at = self.clock.now();
        inner.end_sessions(now);
        step(&mut inner, now)
    }

    /// Runs a request of a session. The request also renews the session.
    async fn call<T>(
        &self,
        link: &MemoryLink,
        session: &Session,
        effect: impl FnOnce(&mut Inner) -> Result<T, TreeError>,
    ) -> Result<T, TreeError> {
        let runtime = link.runtime();
        let sent = runtime.monotonic();
        if !session.is_valid(sent) {
            return Err(TreeError::SessionLost);
        }
        let answer = link.call(|| {
            self.step(|inner, now| {
                inner.renew(session.id(), now)?;
                effect(inner)
            })
        });
        let answer = tokio::select! {
            biased;
            () = session.lost() => return Err(TreeError::SessionLost),
            answer = answer => answer,
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(reason) => {
                session.suspend();
                return Err(TreeError::Disconnected(reason));
            }
        };
        if matches!(answer, Err(TreeError::SessionLost)) {
            session.lose();
        } else {
            session.answered(runtime.monotonic(), sent);
        }
        answer
    }
}

impl Inner {
    fn end_sessions(&mut self, now: Monotonic) {
        let is_over = |end: &Option<Monotonic>| end.is_some_and(|end| end <= now);
        let over: Vec<SessionId> = self.ends.iter().filter(|(_, (_, end))| is_over(end)).map(|(id, _)| *id).collect();
        for id in over {
            self.end_session(id);
        }
        if now.since(self.collected) >= COLLECT_PERIOD {
            self.collected = now;
            self.watchers.sweep();
            let events = self.state.collect(self.at);
            self.report(&events);
        }
    }

    fn end_session(&mut self, id: SessionId) {
        self.ends.remove(&id);
        self.watchers.end(id);
        let events = self.state.close(id, self.at);
        self.report(&events);
    }

    fn renew(&mut self, id: SessionId, now: Monotonic) -> Result<(), TreeError> {
        let (timeout, end) = self.ends.get_mut(&id).ok_or(TreeError::SessionLost)?;
        *end = end.map(|_| now + *timeout);
        Ok(())
    }

    fn multi(&mut self, session: SessionId, ops: Vec<Op>) -> Result<Vec<Done>, (usize, TreeError)> {
        let (done, events) = self.state.multi(session, self.at, ops)?;
        self.report(&events);
        Ok(done)
    }

    fn report(&mut self, events: &[Event]) {
        events.iter().for_each(|event| self.watchers.tell(event));
    }
}

struct MemoryTree {
    engine: Arc<Engine>,
    link: Arc<MemoryLink>,
    session: Session,
    tasks: TaskSet,
}

impl MemoryTree {
    fn call<'a, T: Send + 'a>(
        &'a self,
        effect: impl FnOnce(&mut Inner, SessionId) -> Result<T, TreeError> + Send + 'a,
    ) -> Answer<'a, T> {
        let id = self.session.id();
        Box::pin(self.engine.call(&self.link, &self.session, move |inner| effect(inner, id)))
    }

    /// Wraps a watch so that it reports nothing while the connection is cut.
    fn through_link(&self, watch: Watch) -> Watch {
        let (link, session) = (self.link.clone(), self.session.clone());
        Watch::of(async move {
            let delivered = async {
                let event = watch.await;
                link.open().await;
                event
            };
            tokio::select! {
                biased;
                event = delivered => event,
                () = session.lost() => Err(TreeError::SessionLost),
            }
        })
    }

    /// Runs a change that consists of the single step `op`.
    fn change<'a, T: Send + 'a>(&'a self, op: Op, done: impl FnOnce(Done) -> Option<T> + Send + 'a) -> Answer<'a, T> {
        if let Err(error) = check_data(op.data().len()) {
            return Box::pin(async move { Err(error) });
        }
        self.call(move |inner, id| {
            let all = inner.multi(id, vec![op]).map_err(|(_, error)| error)?;
            Ok(all.into_iter().next().and_then(done).expect("the result of a step has the same kind as the step"))
        })
    }
}

impl Tree for MemoryTree {
    fn session(&self) -> &Session {
        &self.session
    }

    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created> {
        self.change(Op::Create { path: path.clone(), data, mode, acl }, |done| match done {
            Done::Create(created) => Some(created),
            Done::Check | Done::Set(_) | Done::Delete => None,
        })
    }

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat> {
        self.change(Op::Set { path: path.clone(), data, expected }, |done| match done {
            Done::Set(stat) => Some(stat),
            Done::Check | Done::Create(_) | Done::Delete => None,
        })
    }

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()> {
        self.change(Op::Delete { path: path.clone(), expected }, |done| (done == Done::Delete).then_some(()))
    }

    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>> {
        if let Err(error) = check_ops(&ops) {
            return Box::pin(async move { Err(error) });
        }
        self.call(move |inner, id| {
            inner.multi(id, ops).map_err(|(at, error)| match error {
                TreeError::SessionLost => error,
                step_error => TreeError::Multi { at, source: Box::new(step_error) },
            })
        })
    }

    fn get(&self, path: &NodePath) -> Answer<'_, Node> {
        let path = path.clone();
        self.call(move |inner, id| inner.state.get(id, &path))
    }

    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>> {
        let path = path.clone();
        self.call(move |inner, _| Ok(inner.state.exists(&path)))
    }

    fn children(&self, path: &NodePath) -> Answer<'_, Children> {
        let path = path.clone();
        self.call(move |inner, id| inner.state.children(id, &path))
    }

    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)> {
        let path = path.clone();
        self.call(move |inner, id| Ok((inner.state.get(id, &path)?, self.through_link(inner.watchers.node(id, &path)))))
    }

    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)> {
        let path = path.clone();
        self.call(move |inner, id| Ok((inner.state.exists(&path), self.through_link(inner.watchers.node(id, &path)))))
    }

    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)> {
        let path = path.clone();
        self.call(move |inner, id| {
            Ok((inner.state.children(id, &path)?, self.through_link(inner.watchers.children(id, &path))))
        })
    }

    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events> {
        let path = path.clone();
        self.call(move |inner, id| {
            let (events, link, session) = (inner.watchers.all(id, &path), self.link.clone(), self.session.clone());
            let delivered = stream::unfold(events, move |mut events| {
                let link = link.clone();
                async move {
                    let event = events.next().await;
                    link.open().await;
                    event.map(|event| (event, events))
                }
            });
            Ok(Events::of(delivered.take_until(async move { session.lost().await })))
        })
    }

    fn sync(&self) -> Answer<'_, ()> {
        self.call(|_, _| Ok(()))
    }

    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>> {
        let path = path.clone();
        self.call(move |inner, id| inner.state.acl(id, &path))
    }

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat> {
        let path = path.clone();
        self.call(move |inner, id| inner.state.set_acl(id, &path, &acl))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let closed = self.call(move |inner, id| {
                inner.end_session(id);
                Ok(())
            });
            let answer = closed.await;
            self.session.lose();
            match answer {
                Err(TreeError::SessionLost) => Ok(()),
                answer => answer,
            }
        })
    }
}

impl Drop for MemoryTree {
    fn drop(&mut self) {
        let id = self.session.id();
        self.session.lose();
        if !self.link.is_cut() {
            self.engine.step(|inner, _| inner.end_session(id));
        }
    }
}
