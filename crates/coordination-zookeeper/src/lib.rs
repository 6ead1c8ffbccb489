//! The coordination tree on ZooKeeper. The tests use ZooKeeper 3.9. Older servers from version 3.6 on also support
//! recursive watches. But an older server drops a recursive watch when the same session sets another watch on the same
//! node. An older server also returns no stat for the nodes that a multi created. If a node has a recursive watch, an
//! older server reports its children only to this watch, so the client also tells the other watches.
//!
//! The module [`client`] speaks ZooKeeper's protocol: sessions, reconnects, watches across reconnects and the order of
//! requests. The rest of this crate adds the types and errors of the port.
//!
//! Invariants: the client abandons a session when it has expired by the clock of this process. The end of a session
//! never overloads the servers, because this crate limits the total path length of the session's ephemeral nodes
//! ([`EPHEMERAL_BYTES_MAX`]).
//!
//! docs/decisions/0222-speak-zookeepers-protocol.md gives the reasons for the design, and
//! docs/decisions/0224-encrypt-zookeeper-connections-by-the-url.md those for TLS and users.

#![warn(missing_docs)]

mod client;
mod limits;
mod translate;
mod url;

/// The crate `reveille-coordination`, whose ports this crate implements.
pub use coordination;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use coordination::tree::session::Session;
use coordination::tree::{
    Acl, Answer, Children, CreateMode, Created, Done, Events, Expected, Grant, Node, NodePath, Op, SessionOptions,
    Stat, Tree, TreeError, Trees, Watch, check_data, check_ops,
};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use runtime::Runtime;

use client::protocol::{Request, WireAcl, code, error_of, op, take_acl, take_stat, take_steps};
use client::{Client, OPEN_MAX, Reader, Receiver, Response, Settings, WatchKind, Watched};
pub use limits::EPHEMERAL_BYTES_MAX;
use limits::{Ephemerals, checked, malformed};
use translate::{acls_of, created_of, creator_acl, done_of, grants_of, version_of};
pub use url::{ZookeeperUrl, ZookeeperUrlError};

/// Engine that opens sessions on one server or on an ensemble.
pub struct ZookeeperTrees {
    runtime: Runtime,
    url: ZookeeperUrl,
}

impl ZookeeperTrees {
    /// Creates an engine for the servers in `url`. It connects when the caller opens a session.
    #[must_use]
    pub fn new(runtime: Runtime, url: ZookeeperUrl) -> Self {
        ZookeeperTrees { runtime, url }
    }

    async fn connect(&self, options: SessionOptions) -> Result<ZookeeperTree, TreeError> {
        let root = self.url.root().cloned();
        let (root_acl, creator) = (options.default_acl(), creator_acl(&options, self.url.identifies_client()));
        let settings = Settings {
            servers: self.url.servers().to_vec(),
            root: root.clone(),
            tls: self.url.tls().cloned(),
            user: self.url.user()?,
            options,
        };
        let client = Client::open(&self.runtime, settings).await?;
        let ephemerals = Ephemerals::new(root.as_ref());
        let has_root = AtomicBool::new(root.is_none());
        Ok(ZookeeperTree { client, root, root_acl, creator, has_root, ephemerals })
    }
}

impl Trees for ZookeeperTrees {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        Box::pin(async move {
            let opened = self.runtime.timeout(OPEN_MAX, self.connect(options)).await;
            let tree = opened.unwrap_or_else(|| {
                Err(TreeError::Disconnected(format!("cannot open a session on ZooKeeper within {OPEN_MAX:?}")))
            });
            tree.map(|tree| Arc::new(tree) as Arc<dyn Tree>)
        })
    }
}

/// Session of this process with ZooKeeper.
struct ZookeeperTree {
    client: Client,
    /// Node that the session sees as `/`.
    root: Option<NodePath>,
    /// Access list of the root, if this session creates it.
    root_acl: Acl,
    /// Entries that stand for the creator of a node in an access list.
    creator: Vec<WireAcl>,
    /// True after this session has seen or created the root.
    has_root: AtomicBool,
    ephemerals: Ephemerals,
}

impl ZookeeperTree {
    /// Runs a request that creates nodes. If the root is missing, creates the root and runs the request again.
    async fn with_root<T, F>(&self, request: impl Fn() -> F) -> Result<T, TreeError>
    where
        F: Future<Output = Result<T, TreeError>>,
    {
        let is_missing = |error: &TreeError| match error {
            TreeError::Multi { source, .. } => **source == TreeError::NoNode,
            error => *error == TreeError::NoNode,
        };
        match request().await {
            Err(error) if is_missing(&error) && !self.has_root.load(Ordering::Relaxed) => {
                self.create_root().await?;
                request().await
            }
            done => done,
        }
    }

    /// Creates the root and the missing nodes above it. Does nothing if the root exists. The root belongs to the
    /// credentials of this session. If it has none, every session may access the root. Every session may access the new
    /// nodes above the root, because other roots may lie below them.
    async fn create_root(&self) -> Result<(), TreeError> {
        let Some(root) = &self.root else { return Ok(()) };
        let existing = self.client.send(Request::read(op::EXISTS, root.as_str(), false), None).await?;
        if existing.code != code::NO_NODE {
            self.has_root.store(true, Ordering::Relaxed);
            return checked(existing).map(drop);
        }
        let ends = root.as_str().match_indices('/').skip(1).map(|(at, _)| at).chain([root.as_str().len()]);
        for end in ends {
            let acl = self.acls_of(if end == root.as_str().len() { &self.root_acl } else { &Acl::Open });
            let request = Request::create(&root.as_str()[..end], &[], CreateMode::Persistent, &acl);
            let response = self.client.send(request, None).await?;
            if response.code != code::NODE_EXISTS {
                checked(response)?;
            }
        }
        self.has_root.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn acls_of(&self, acl: &Acl) -> Vec<WireAcl> {
        acls_of(acl, &self.creator)
    }

    /// Returns the path that the server knows.
    fn full(&self, path: &NodePath) -> String {
        match &self.root {
            None => path.as_str().to_owned(),
            Some(root) if path.as_str() == "/" => root.as_str().to_owned(),
            Some(root) => format!("{root}{path}"),
        }
    }

    /// Returns the path of a new node. The server adds a number to the path of a sequential node, also to that of `/`.
    fn full_new(&self, path: &NodePath, mode: CreateMode) -> String {
        let full = self.full(path);
        if self.root.is_some() && path.as_str() == "/" && mode.is_sequential() { full + "/" } else { full }
    }

    /// Sends a request and returns a reader of its successful response.
    async fn request(&self, request: Request) -> Result<Reader, TreeError> {
        self.client.send(request, None).await.and_then(checked).map(|response| Reader::new(response.body))
    }

    /// Sends a request that sets a watch. The response may report an error.
    async fn watch(&self, request: Request, path: String, kind: WatchKind) -> Result<Response, TreeError> {
        self.client.send(request, Some((path, kind))).await
    }
}

/// Returns the watch that a request has set. A drop of the watch also removes it from the server.
fn watch_of(session: &Session, receiver: Option<(Receiver, Watched)>) -> Result<Watch, TreeError> {
    let Some((Receiver::Once(watch), guard)) = receiver else { return Err(no_watch()) };
    let session = session.clone();
    // The guard must be dropped after the watch.
    let watched = (watch, guard);
    Ok(Watch::of(async move {
        let (watch, _guard) = watched;
        tokio::select! {
            biased;
            event = watch => event,
            () = session.lost() => Err(TreeError::SessionLost),
        }
    }))
}

fn no_watch() -> TreeError {
    TreeError::Disconnected("the ZooKeeper server did not set a watch".to_owned())
}

impl Tree for ZookeeperTree {
    fn session(&self) -> &Session {
        self.client.session()
    }

    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created> {
        let path = path.clone();
        Box::pin(async move {
            check_data(data.len())?;
            if path == NodePath::root() && !mode.is_sequential() {
                self.create_root().await?;
                return Err(TreeError::NodeExists);
            }
            let (full, acl) = (self.full_new(&path, mode), self.acls_of(&acl));
            let reserved = self.ephemerals.reserve(&self.client, self.ephemerals.bytes_of(&path, mode)).await?;
            let create = || self.request(Request::create(&full, &data, mode, &acl));
            let created = self.with_root(create).await;
            reserved.confirm(&created);
            let mut reader = created?;
            let (path, stat) = (reader.text().map_err(malformed)?, take_stat(&mut reader).map_err(malformed)?);
            created_of(self.root.as_ref(), &path, stat)
        })
    }

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat> {
        let path = self.full(path);
        Box::pin(async move {
            check_data(data.len())?;
            let mut reader = self.request(Request::set(&path, &data, version_of(expected))).await?;
            take_stat(&mut reader).map_err(malformed)
        })
    }

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()> {
        let path = path.clone();
        Box::pin(async move { self.request(self.step(&Op::Delete { path, expected })?).await.map(drop) })
    }

    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>> {
        Box::pin(async move {
            check_ops(&ops)?;
            let mut steps = Vec::with_capacity(ops.len());
            for (at, op) in ops.iter().enumerate() {
                steps.push(self.step(op).map_err(|error| in_step(at, error))?);
            }
            let reserved = self.ephemerals.reserve(&self.client, self.ephemerals.bytes_of_all(&ops)).await?;
            let creates = |op: &Op| matches!(op, Op::Create { .. });
            let done = match ops.iter().any(creates) {
                true => self.with_root(|| self.run(&steps)).await,
                false => self.run(&steps).await,
            };
            reserved.confirm(&done);
            done
        })
    }

    fn get(&self, path: &NodePath) -> Answer<'_, Node> {
        let request = Request::read(op::GET_DATA, &self.full(path), false);
        Box::pin(async move { node_of(self.request(request).await?) })
    }

    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>> {
        let request = Request::read(op::EXISTS, &self.full(path), false);
        Box::pin(async move { self.client.send(request, None).await.and_then(existing_of) })
    }

    fn children(&self, path: &NodePath) -> Answer<'_, Children> {
        let request = Request::read(op::GET_CHILDREN_AND_STAT, &self.full(path), false);
        Box::pin(async move { children_of(self.request(request).await?) })
    }

    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)> {
        let path = self.full(path);
        Box::pin(async move {
            let request = Request::read(op::GET_DATA, &path, true);
            let response = checked(self.watch(request, path, WatchKind::Data).await?)?;
            Ok((node_of(Reader::new(response.body))?, watch_of(self.session(), response.watch)?))
        })
    }

    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)> {
        let path = self.full(path);
        Box::pin(async move {
            let request = Request::read(op::EXISTS, &path, true);
            let mut response = self.watch(request, path, WatchKind::Exists).await?;
            let receiver = response.watch.take();
            Ok((existing_of(response)?, watch_of(self.session(), receiver)?))
        })
    }

    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)> {
        let path = self.full(path);
        Box::pin(async move {
            let request = Request::read(op::GET_CHILDREN_AND_STAT, &path, true);
            let response = checked(self.watch(request, path, WatchKind::Children).await?)?;
            Ok((children_of(Reader::new(response.body))?, watch_of(self.session(), response.watch)?))
        })
    }

    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events> {
        let path = self.full(path);
        Box::pin(async move {
            let request = Request::watch_all(&path);
            let response = checked(self.watch(request, path, WatchKind::All).await?)?;
            let Some((Receiver::Stream(events), guard)) = response.watch else { return Err(no_watch()) };
            let lost = {
                let session = self.session().clone();
                async move { session.lost().await }
            };
            Ok(Events::of(events.take_until(lost).inspect(move |_| _ = &guard)))
        })
    }

    fn sync(&self) -> Answer<'_, ()> {
        let request = Request::path(op::SYNC, &self.full(&NodePath::root()));
        Box::pin(async move { self.request(request).await.map(drop) })
    }

    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>> {
        let request = Request::path(op::GET_ACL, &self.full(path));
        Box::pin(async move {
            let acls = take_acl(&mut self.request(request).await?).map_err(malformed)?;
            Ok(grants_of(&acls))
        })
    }

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat> {
        let path = self.full(path);
        Box::pin(async move {
            let mut reader = self.request(Request::set_acl(&path, &self.acls_of(&acl))).await?;
            take_stat(&mut reader).map_err(malformed)
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(self.client.close())
    }
}

impl ZookeeperTree {
    /// Returns the request for one step of a multi.
    fn step(&self, op: &Op) -> Result<Request, TreeError> {
        if matches!(op, Op::Delete { .. }) && *op.path() == NodePath::root() {
            return Err(TreeError::Invalid("the root cannot be deleted".to_owned()));
        }
        let path = self.full(op.path());
        Ok(match op {
            Op::Check { expected, .. } => Request::versioned(op::CHECK, &path, version_of(*expected)),
            Op::Create { path, data, mode, acl } => {
                Request::create(&self.full_new(path, *mode), data, *mode, &self.acls_of(acl))
            }
            Op::Set { data, expected, .. } => Request::set(&path, data, version_of(*expected)),
            Op::Delete { expected, .. } => Request::versioned(op::DELETE, &path, version_of(*expected)),
        })
    }

    async fn run(&self, steps: &[Request]) -> Result<Vec<Done>, TreeError> {
        let response = self.client.send(Request::multi(steps), None).await?;
        let results = take_steps(&mut Reader::new(response.body));
        let Ok(results) = results else {
            return Err(if response.code == code::OK { malformed(client::Malformed) } else { error_of(response.code) });
        };
        // If a step fails, the server returns an error for each step: the steps before it have the number 0, and the
        // steps after it have a number of their own.
        let is_cause = |number: i32| number != code::OK && number != code::RUNTIME_INCONSISTENCY;
        let failed = results.iter().enumerate().find_map(|(at, step)| match step {
            client::protocol::Step::Error(number) if is_cause(*number) => Some((at, *number)),
            _ => None,
        });
        if let Some((at, number)) = failed {
            return Err(in_step(at, error_of(number)));
        }
        if response.code != code::OK {
            return Err(error_of(response.code));
        }
        results.into_iter().map(|step| done_of(self.root.as_ref(), step)).collect()
    }
}

fn in_step(at: usize, error: TreeError) -> TreeError {
    TreeError::Multi { at, source: Box::new(error) }
}

fn node_of(mut reader: Reader) -> Result<Node, TreeError> {
    // A copy, because the message shares a larger buffer, which the data would keep in memory.
    let data = Bytes::copy_from_slice(&reader.buffer().map_err(malformed)?);
    Ok(Node { data, stat: take_stat(&mut reader).map_err(malformed)? })
}

fn existing_of(response: Response) -> Result<Option<Stat>, TreeError> {
    if response.code == code::NO_NODE {
        return Ok(None);
    }
    take_stat(&mut Reader::new(checked(response)?.body)).map(Some).map_err(malformed)
}

fn children_of(mut reader: Reader) -> Result<Children, TreeError> {
    let mut names = reader.list(Reader::text).map_err(malformed)?;
    names.sort_unstable();
    Ok(Children { names, stat: take_stat(&mut reader).map_err(malformed)? })
}
