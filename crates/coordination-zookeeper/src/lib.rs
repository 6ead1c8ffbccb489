//! The coordination tree on ZooKeeper, through the client library of kezhuw. The tests use ZooKeeper 3.9. Older servers
//! from version 3.6 on also support recursive watches. But an older server drops a recursive watch when the same
//! session sets another watch on the same node. An older server also returns no stat for the nodes that a multi
//! created.
//!
//! The client library handles sessions, reconnects, watches across reconnects and the order of requests. This crate
//! adds the types and errors of the port, and it reports a gap in [`Events`] after a lost connection. It also computes
//! the deadline of the session by the clock of this process (`coordination::tree::session`).
//!
//! Invariants: this crate abandons the client and its session when the session has expired by the clock of this
//! process. The end of a session never overloads the servers, because this crate limits the total path length of the
//! session's ephemeral nodes ([`EPHEMERAL_BYTES_MAX`]). The watches of a session survive a reconnect, because this
//! crate also limits the total length of the watched paths ([`WATCHED_BYTES_MAX`]).
//!
//! docs/decisions/0141-use-kezhuws-zookeeper-client.md gives the reasons for the design.

#![warn(missing_docs)]

mod limits;
mod translate;
mod url;

/// The crate `reveille-coordination`, whose ports this crate implements.
pub use coordination;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use coordination::tree::session::{self, Session, SessionId};
use coordination::tree::{
    Acl, Answer, Children, CreateMode, Created, Credentials, Done, Event, Events, Expected, Grant, Node, NodePath, Op,
    Sequence, SessionOptions, Stat, Tree, TreeError, Trees, Watch, check_data, check_ops,
};
use futures_util::future::BoxFuture;
use futures_util::stream;
use runtime::{Runtime, TaskSet};
use zookeeper_client as zk;

use limits::{CountedWatch, Ephemerals, WatchKind, Watches};
pub use limits::{EPHEMERAL_BYTES_MAX, WATCHED_BYTES_MAX};
use translate::{acls_of, error_of, event_of, grants_of, mode_of, stat_of, version_of};
pub use url::{ZookeeperUrl, ZookeeperUrlError};

/// Longest duration of one call of [`Trees::open`].
const OPEN_MAX: Duration = Duration::from_secs(30);
/// Longest time that [`Tree::close`] waits for the server's response.
const CLOSE_MAX: Duration = Duration::from_secs(5);

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

    async fn connect(&self, options: &SessionOptions) -> Result<zk::Client, TreeError> {
        let mut connector = zk::Client::connector().with_session_timeout(options.timeout);
        for Credentials { name, password } in &options.credentials {
            connector = connector.with_auth("digest", format!("{name}:{password}").as_bytes());
        }
        let client = connector.connect(self.url.servers()).await.map_err(|error| match error {
            zk::Error::BadArguments(reason) => TreeError::Invalid((*reason).to_owned()),
            error => TreeError::Disconnected(format!(
                "cannot open a session on any of the ZooKeeper servers {}: {error}",
                self.url.servers()
            )),
        })?;
        let Some(root) = self.url.root() else { return Ok(client) };
        // If the root node of the URL is missing, this function creates it. Every session may then access this node,
        // like ZooKeeper's own root. A user who wants to protect the root node must create it in advance.
        let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
        client.mkdir(root.as_str(), &options).await.map_err(error_of)?;
        client.chroot(root.as_str().to_owned()).map_err(|_| TreeError::Invalid(format!("invalid root: {root}")))
    }
}

impl Trees for ZookeeperTrees {
    fn open(&self, options: SessionOptions) -> BoxFuture<'_, Result<Arc<dyn Tree>, TreeError>> {
        Box::pin(async move {
            let opened = self.runtime.timeout(OPEN_MAX, async {
                let client = self.connect(&options).await?;
                // The connection attempt may have taken a long time. The deadline of the session therefore counts from
                // the next request, whose sending time is known.
                let sent = self.runtime.monotonic();
                client.check_stat("/").await.map_err(error_of)?;
                let session = Session::new(SessionId(client.session_id().0), client.session_timeout(), sent);
                Ok(Arc::new(ZookeeperTree::start(&self.runtime, session, client, self.url.root())) as Arc<dyn Tree>)
            });
            opened.await.unwrap_or_else(|| {
                Err(TreeError::Disconnected(format!(
                    "none of the ZooKeeper servers {} responded within {OPEN_MAX:?}",
                    self.url.servers()
                )))
            })
        })
    }
}

/// Session of this process with ZooKeeper. The client library closes the session when this process drops the last clone
/// of the client.
struct ZookeeperTree {
    runtime: Runtime,
    session: Session,
    /// Client of the session, or `None` once the session has ended.
    client: Arc<Mutex<Option<zk::Client>>>,
    ephemerals: Ephemerals,
    watches: Watches,
    _tasks: TaskSet,
}

impl ZookeeperTree {
    fn start(runtime: &Runtime, session: Session, client: zk::Client, root: Option<&NodePath>) -> Self {
        let (tasks, pinged) = (TaskSet::new(runtime), client.clone());
        let client = Arc::new(Mutex::new(Some(client)));
        let (task_runtime, kept_session, kept_client) = (runtime.clone(), session.clone(), client.clone());
        tasks.spawn("zookeeper session", async move {
            let ping = || -> BoxFuture<'static, Result<(), TreeError>> {
                let client = pinged.clone();
                Box::pin(async move { client.check_stat("/").await.map(drop).map_err(error_of) })
            };
            session::keep(&task_runtime, &kept_session, ping).await;
            drop(kept_client.lock().expect("no code panics while it holds this mutex").take());
        });
        let (ephemerals, watches) = (Ephemerals::new(root), Watches::new(root));
        ZookeeperTree { runtime: runtime.clone(), session, client, ephemerals, watches, _tasks: tasks }
    }

    fn client(&self) -> Result<zk::Client, TreeError> {
        let client = self.client.lock().expect("no code panics while it holds this mutex").clone();
        client.filter(|_| self.session.is_valid(self.runtime.monotonic())).ok_or(TreeError::SessionLost)
    }

    /// Sends a request. Only pings move the deadline of the session. The response to another request does not move the
    /// deadline, because an error may come from the client library in this process and not from the server.
    async fn request<T, F>(&self, request: impl FnOnce(zk::Client) -> F) -> Result<T, TreeError>
    where
        F: Future<Output = Result<T, TreeError>>,
    {
        let client = self.client()?;
        let answer = tokio::select! {
            biased;
            () = self.session.lost() => Err(TreeError::SessionLost),
            answer = request(client) => answer,
        };
        match &answer {
            Err(TreeError::SessionLost) => self.session.lose(),
            Err(TreeError::Disconnected(_)) => self.session.suspend(),
            Ok(_) | Err(_) => {}
        }
        answer
    }

    fn watch(&self, inner: zk::OneshotWatcher, counted: CountedWatch) -> Watch {
        let session = self.session.clone();
        Watch::of(async move {
            let _counted = counted;
            tokio::select! {
                biased;
                event = inner.changed() => event_of(&event).ok_or(TreeError::SessionLost),
                () = session.lost() => Err(TreeError::SessionLost),
            }
        })
    }

    fn events(&self, path: NodePath, watcher: zk::PersistentWatcher, counted: CountedWatch) -> Events {
        let (client, session) = (self.client.clone(), self.session.clone());
        let watched = Watched { path, watcher, client, session, _counted: counted };
        Events::of(stream::unfold(watched, async |mut watched| watched.next().await.map(|event| (event, watched))))
    }
}

/// Events of a node and of all nodes below it, across the connections of a session.
struct Watched {
    path: NodePath,
    watcher: zk::PersistentWatcher,
    client: Arc<Mutex<Option<zk::Client>>>,
    session: Session,
    _counted: CountedWatch,
}

impl Watched {
    async fn next(&mut self) -> Option<Event> {
        loop {
            let event = tokio::select! {
                biased;
                event = self.watcher.changed() => event,
                () = self.session.lost() => return None,
            };
            match (event.event_type, event.session_state) {
                (zk::EventType::Session, state) if state.is_terminated() => return None,
                // The stream has not received the events from the time without a connection.
                (zk::EventType::Session, zk::SessionState::SyncConnected) if self.watch_again().await => {
                    return Some(Event::Gap);
                }
                (zk::EventType::Session, _) => {}
                _ => return Some(event_of(&event).unwrap_or(Event::Gap)),
            }
        }
    }

    /// Sets the recursive watch again. The client library (0.11.2, `resend_watches`) does so for watches that fire
    /// once, but not for recursive watches. Returns false if the connection is lost again. The client library then
    /// reports the next reconnect too.
    async fn watch_again(&mut self) -> bool {
        let client = self.client.lock().expect("no code panics while it holds this mutex").clone();
        let Some(client) = client else { return false };
        let watching = client.watch(self.path.as_str(), zk::AddWatchMode::PersistentRecursive);
        let watcher = tokio::select! {
            biased;
            () = self.session.lost() => return false,
            watcher = watching => watcher,
        };
        watcher.map(|watcher| self.watcher = watcher).is_ok()
    }
}

impl Tree for ZookeeperTree {
    fn session(&self) -> &Session {
        &self.session
    }

    fn create(&self, path: &NodePath, data: Bytes, mode: CreateMode, acl: Acl) -> Answer<'_, Created> {
        let path = path.clone();
        Box::pin(async move {
            check_data(data.len())?;
            let acls = acls_of(&acl)?;
            self.request(async |client| {
                let bytes = self.ephemerals.bytes_of(&path, mode);
                let reserved = self.ephemerals.reserve(&client, bytes).await?;
                let options = mode_of(mode).with_acls(zk::Acls::new(&acls));
                let result = client.create(path.as_str(), &data, &options).await.map_err(error_of);
                reserved.confirm(&result);
                let (stat, sequence) = result?;
                let path = match mode.is_sequential() {
                    true => numbered(&path, sequence)?,
                    false => path.clone(),
                };
                Ok(Created { path, stat: stat_of(&stat) })
            })
            .await
        })
    }

    fn set(&self, path: &NodePath, data: Bytes, expected: Expected) -> Answer<'_, Stat> {
        let path = path.clone();
        Box::pin(async move {
            check_data(data.len())?;
            self.request(async |client| {
                let set = client.set_data(path.as_str(), &data, version_of(expected)).await;
                set.map(|stat| stat_of(&stat)).map_err(error_of)
            })
            .await
        })
    }

    fn delete(&self, path: &NodePath, expected: Expected) -> Answer<'_, ()> {
        let path = path.clone();
        Box::pin(async move {
            self.request(async |client| client.delete(path.as_str(), version_of(expected)).await.map_err(error_of))
                .await
        })
    }

    fn multi(&self, ops: Vec<Op>) -> Answer<'_, Vec<Done>> {
        Box::pin(async move {
            check_ops(&ops)?;
            self.request(async |client| {
                let mut writer = client.new_multi_writer();
                for (at, op) in ops.iter().enumerate() {
                    let added = add(&mut writer, op);
                    added.map_err(|error| TreeError::Multi { at, source: Box::new(error) })?;
                }
                let bytes = self.ephemerals.bytes_of_all(&ops);
                let reserved = self.ephemerals.reserve(&client, bytes).await?;
                let done = writer.commit().await.map_err(|error| match error {
                    zk::MultiWriteError::RequestFailed { source } => error_of(source),
                    zk::MultiWriteError::OperationFailed { index: at, source } => {
                        TreeError::Multi { at, source: Box::new(error_of(source)) }
                    }
                });
                reserved.confirm(&done);
                done?.into_iter().map(translate::done_of).collect()
            })
            .await
        })
    }

    fn get(&self, path: &NodePath) -> Answer<'_, Node> {
        let path = path.clone();
        Box::pin(async move {
            self.request(async |client| {
                let (data, stat) = client.get_data(path.as_str()).await.map_err(error_of)?;
                Ok(Node { data: data.into(), stat: stat_of(&stat) })
            })
            .await
        })
    }

    fn exists(&self, path: &NodePath) -> Answer<'_, Option<Stat>> {
        let path = path.clone();
        Box::pin(async move {
            self.request(async |client| {
                let stat = client.check_stat(path.as_str()).await.map_err(error_of)?;
                Ok(stat.map(|stat| stat_of(&stat)))
            })
            .await
        })
    }

    fn children(&self, path: &NodePath) -> Answer<'_, Children> {
        let path = path.clone();
        Box::pin(async move {
            self.request(async |client| {
                let (names, stat) = client.get_children(path.as_str()).await.map_err(error_of)?;
                Ok(in_order(names, &stat))
            })
            .await
        })
    }

    fn get_and_watch(&self, path: &NodePath) -> Answer<'_, (Node, Watch)> {
        let path = path.clone();
        Box::pin(async move {
            self.request(async |client| {
                let counted = self.watches.count(&path, WatchKind::Data)?;
                let (data, stat, watcher) = client.get_and_watch_data(path.as_str()).await.map_err(error_of)?;
                Ok((Node { data: data.into(), stat: stat_of(&stat) }, self.watch(watcher, counted)))
            })
            .await
        })
    }

    fn exists_and_watch(&self, path: &NodePath) -> Answer<'_, (Option<Stat>, Watch)> {
        let path = path.clone();
        Box::pin(async move {
            self.request(async |client| {
                let counted = self.watches.count(&path, WatchKind::Exists)?;
                let (stat, watcher) = client.check_and_watch_stat(path.as_str()).await.map_err(error_of)?;
                Ok((stat.map(|stat| stat_of(&stat)), self.watch(watcher, counted)))
            })
            .await
        })
    }

    fn children_and_watch(&self, path: &NodePath) -> Answer<'_, (Children, Watch)> {
        let path = path.clone();
        Box::pin(async move {
            self.request(async |client| {
                let counted = self.watches.count(&path, WatchKind::Children)?;
                let (names, stat, watcher) = client.get_and_watch_children(path.as_str()).await.map_err(error_of)?;
                Ok((in_order(names, &stat), self.watch(watcher, counted)))
            })
            .await
        })
    }

    fn watch_all(&self, path: &NodePath) -> Answer<'_, Events> {
        let path = path.clone();
        Box::pin(async move {
            self.request(async |client| {
                let (counted, mode) =
                    (self.watches.count(&path, WatchKind::All)?, zk::AddWatchMode::PersistentRecursive);
                let watcher = client.watch(path.as_str(), mode).await.map_err(error_of)?;
                Ok(self.events(path.clone(), watcher, counted))
            })
            .await
        })
    }

    fn sync(&self) -> Answer<'_, ()> {
        Box::pin(self.request(async |client| client.sync("/").await.map_err(error_of)))
    }

    fn acl(&self, path: &NodePath) -> Answer<'_, Vec<Grant>> {
        let path = path.clone();
        Box::pin(async move {
            self.request(async |client| {
                let (acls, _) = client.get_acl(path.as_str()).await.map_err(error_of)?;
                Ok(grants_of(&acls))
            })
            .await
        })
    }

    fn set_acl(&self, path: &NodePath, acl: Acl) -> Answer<'_, Stat> {
        let path = path.clone();
        Box::pin(async move {
            let acls = acls_of(&acl)?;
            self.request(async |client| {
                let set = client.set_acl(path.as_str(), &acls, None).await;
                set.map(|stat| stat_of(&stat)).map_err(error_of)
            })
            .await
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let client = self.client.lock().expect("no code panics while it holds this mutex").take();
            self.session.lose();
            let Some(client) = client else { return Ok(()) };
            let mut states = client.state_watcher();
            drop(client);
            let closed =
                async { while !states.peek_state().is_terminated() && !states.changed().await.is_terminated() {} };
            match self.runtime.timeout(CLOSE_MAX, closed).await {
                Some(()) => Ok(()),
                None => Err(TreeError::Disconnected(format!(
                    "the server did not confirm within {CLOSE_MAX:?} that it closed the session; \
                     the session expires after its timeout"
                ))),
            }
        })
    }
}

impl Drop for ZookeeperTree {
    fn drop(&mut self) {
        self.session.lose();
        // The event streams share the client of this tree. They cannot use the client after this function has removed
        // it.
        drop(self.client.lock().expect("no code panics while it holds this mutex").take());
    }
}

fn in_order(mut names: Vec<String>, stat: &zk::Stat) -> Children {
    names.sort_unstable();
    Children { names, stat: stat_of(stat) }
}

fn numbered(path: &NodePath, sequence: zk::CreateSequence) -> Result<NodePath, TreeError> {
    let received = sequence.into_i64();
    let number = i32::try_from(received).map(Sequence);
    let numbered = number.ok().and_then(|number| NodePath::new(&format!("{path}{number}")).ok());
    numbered.ok_or_else(|| {
        TreeError::Invalid(format!(
            "the server returned the sequence number {received}, which exceeds 32 bits or makes the path too long"
        ))
    })
}

fn add(writer: &mut zk::MultiWriter<'_>, op: &Op) -> Result<(), TreeError> {
    let added = match op {
        Op::Check { path, expected } => writer.add_check_version(path.as_str(), version_of(*expected).unwrap_or(-1)),
        Op::Create { path, data, mode, acl } => {
            let acls = acls_of(acl)?;
            writer.add_create(path.as_str(), data, &mode_of(*mode).with_acls(zk::Acls::new(&acls)))
        }
        Op::Set { path, data, expected } => writer.add_set_data(path.as_str(), data, version_of(*expected)),
        Op::Delete { path, expected } => writer.add_delete(path.as_str(), version_of(*expected)),
    };
    added.map_err(error_of)
}
