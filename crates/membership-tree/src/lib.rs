//! Members and claims on a tree: the port [`Ownership`] for engines that have sessions of their own.
//!
//! A member has a session of the engine, whose timeout is its lease, and an ephemeral node `<root>/members/<id>` with what others may know of
//! it and the names that it has claimed. A claim is an ephemeral node `<root>/claims/<name>` besides, which one can make, in the same change as
//! the list. So a view is read from the members alone.
//!
//! A session that is not renewed in time is closed from here; if its process died, or is cut off, the engine ends it.

mod session;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use coordination::recipes::Client;
use coordination::tree::{
    Acl, CreateMode, Credentials, Done, Event, Expected, Node, NodePath, NodePathError, OPS_MAX, Op, SessionOptions,
    Stat, TreeError, Trees,
};
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::{FutureExt as _, StreamExt as _};
use membership::{
    Answer, ClaimName, LEASE_MAX, Member, MemberId, Ownership, OwnershipError, Renewed, View, check_names,
};
use runtime::{Runtime, TaskSet};
use tokio::sync::watch;

use self::session::{Renewing, Said, Session, view_of};

/// Between two tries to hear of changes.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// How often a change, or a look, is made again that others came between.
const TRIES: usize = 100;
/// Of members that have left, or were lost, so many are remembered: they do not come back.
const ENDED_MAX: usize = 1_000;

const MEMBERS: &str = "members";
const CLAIMS: &str = "claims";

/// A process's way to the members and claims of a cluster.
pub struct TreeOwnership(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    trees: Arc<dyn Trees>,
    options: SessionOptions,
    acl: Acl,
    /// For what is not of a member.
    client: Client,
    members: NodePath,
    claims: NodePath,
    /// Holds the place's id.
    id: NodePath,
    /// Touched at each renewal, whose time the engine tells.
    clock: NodePath,
    joined: Mutex<Joined>,
    /// Counts what happened to members and claims.
    changes: watch::Sender<u64>,
    _tasks: TaskSet,
}

#[derive(Default)]
struct Joined {
    sessions: BTreeMap<MemberId, Arc<Session>>,
    ended: VecDeque<MemberId>,
}

impl TreeOwnership {
    /// Of the cluster at `root`, which is made as needed, with `acl`; `credentials` are those of its members.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] if the path is too long.
    pub fn new(
        runtime: &Runtime,
        trees: Arc<dyn Trees>,
        root: &NodePath,
        acl: Acl,
        credentials: Vec<Credentials>,
    ) -> Result<Self, TreeError> {
        let options = SessionOptions { credentials, ..SessionOptions::default() };
        let client = Client::new(runtime, trees.clone(), options.clone());
        let tasks = TaskSet::new(runtime);
        let changes = watch::Sender::new(0);
        tasks.spawn("claims", hear(client.clone(), root.clone(), changes.clone()));
        Ok(TreeOwnership(Arc::new(Inner {
            runtime: runtime.clone(),
            trees,
            options,
            acl,
            client,
            members: root.join(MEMBERS)?,
            claims: root.join(CLAIMS)?,
            id: root.join("id")?,
            clock: root.join("clock")?,
            joined: Mutex::default(),
            changes,
            _tasks: tasks,
        })))
    }

    /// Of this place, made by whoever asks first, kept for ever: all who open it are told the same.
    ///
    /// # Errors
    /// As those of [`Ownership::view`].
    pub fn id(&self) -> Answer<'_, String> {
        let inner = self.0.clone();
        self.0.detached(async move {
            inner.id().await.map_err(|error| match error {
                TreeError::Forbidden => OwnershipError::Refused(
                    "the nodes there are closed to this cluster: another one keeps its own below this root, and each needs one"
                        .to_owned(),
                ),
                error => told_of_the_place(error),
            })
        })
    }
}

/// Counts what happens to members and claims, and what may have.
async fn hear(client: Client, root: NodePath, changes: watch::Sender<u64>) {
    let (Ok(members), Ok(claims)) = (root.join(MEMBERS), root.join(CLAIMS)) else { return };
    loop {
        let hearing = async {
            let tree = client.session().await?;
            let mut events = tree.watch_all(&root).await?;
            changes.send_modify(|count| *count += 1);
            while let Some(event) = events.next().await {
                let is_heard = match &event {
                    Event::Created(path) | Event::Changed(path) | Event::Deleted(path) => {
                        path.is_within(&members) || path.is_within(&claims)
                    }
                    Event::ChildrenChanged(_) | Event::Gap => true,
                };
                changes.send_modify(|count| *count += u64::from(is_heard));
            }
            Ok::<_, TreeError>(())
        };
        if let Err(error) = hearing.await {
            tracing::debug!(%error, "changes of members and claims are not heard of now");
        }
        client.runtime().sleep(RETRY_WAIT).await;
    }
}

impl Inner {
    fn joined(&self) -> MutexGuard<'_, Joined> {
        self.joined.lock().expect("no holder of this lock panics")
    }

    fn session(&self, member: MemberId) -> Result<Arc<Session>, OwnershipError> {
        let session = self.joined().sessions.get(&member).cloned();
        session.filter(|session| !session.life().is_over).ok_or(OwnershipError::Lost)
    }

    /// It does not come back.
    fn end(&self, member: MemberId) -> Option<Arc<Session>> {
        let mut joined = self.joined();
        let session = joined.sessions.remove(&member)?;
        session.life().is_over = true;
        joined.ended.push_back(member);
        if joined.ended.len() > ENDED_MAX {
            joined.ended.pop_front();
        }
        Some(session)
    }

    async fn id(&self) -> Result<String, TreeError> {
        let tree = self.client.session().await?;
        let id = Bytes::from(MemberId::random(&self.runtime).to_string());
        self.client.make(&*tree, &self.id, id, &self.acl).await?;
        tree.sync().await?;
        let node = tree.get(&self.id).await?;
        String::from_utf8(node.data.to_vec()).map_err(|_| not_ours())
    }

    async fn join(self: Arc<Self>, member: Member, lease: Duration) -> Result<Renewed, OwnershipError> {
        if self.joined().sessions.contains_key(&member.id) {
            let session = self.session(member.id)?;
            session.check_lease(lease)?;
            let tell = |said: &mut Said| said.member.clone_from(&member);
            session.change(&self.clock, lease, tell, |_| Ok(Vec::new())).await.map_err(told)?;
            return self.renew(member.id, lease).await;
        }
        if self.joined().ended.contains(&member.id) {
            return Err(OwnershipError::Lost);
        }
        let options = SessionOptions { timeout: lease, ..self.options.clone() };
        let tree = self.trees.open(options).await.map_err(told)?;
        let granted = tree.session().timeout();
        if granted < lease {
            drop(tree.close().await);
            let text = format!("the engine keeps a session for {granted:?} at most, and the lease is {lease:?}");
            return Err(OwnershipError::Refused(text));
        }
        for path in [&self.members, &self.claims, &self.clock] {
            self.client.make(&*tree, path, Bytes::new(), &self.acl).await.map_err(told)?;
        }
        let node = self.members.join(&member.id.to_string()).map_err(|error| told(error.into()))?;
        let said = Said { member: member.clone(), claims: BTreeSet::new(), version: 0 };
        let (data, mode, acl) = (said.encode(lease), CreateMode::Ephemeral, self.acl.clone());
        let steps = vec![Op::Create { path: node.clone(), data, mode, acl }, touch(&self.clock)];
        let seen = seen(tree.multi(steps).await)?;
        let end = self.runtime.monotonic() + lease;
        let session = Session::keep(&self, member.id, tree, node, lease, said, end);
        self.joined().sessions.insert(member.id, session);
        Ok(seen)
    }

    async fn renew(&self, member: MemberId, lease: Duration) -> Result<Renewed, OwnershipError> {
        let session = self.session(member)?;
        session.check_lease(lease)?;
        let renewing = Renewing::begin(&session).ok_or(OwnershipError::Lost)?;
        let check = Op::Check { path: session.node.clone(), expected: Expected::Any };
        let seen = seen(session.tree.multi(vec![check, touch(&self.clock)]).await)?;
        renewing.session.life().end = self.runtime.monotonic() + lease;
        Ok(seen)
    }

    async fn leave(&self, member: MemberId) -> Result<(), OwnershipError> {
        let Some(session) = self.end(member) else { return Ok(()) };
        session.tree.close().await.map_err(told)
    }

    async fn claim(self: Arc<Self>, member: MemberId, names: Vec<ClaimName>) -> Result<Vec<bool>, OwnershipError> {
        let session = self.session(member)?;
        let mut taken = BTreeSet::new();
        let distinct: Vec<ClaimName> = names.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect();
        // An empty batch, too, asks whether the session lives.
        let mut batches: Vec<&[ClaimName]> = distinct.chunks(OPS_MAX - 2).collect();
        if batches.is_empty() {
            batches.push(&[]);
        }
        for batch in batches {
            loop {
                let wanted = |said: &Said| -> Vec<ClaimName> {
                    let is_wanted = |name: &&ClaimName| !said.claims.contains(*name) && !taken.contains(*name);
                    batch.iter().filter(is_wanted).cloned().collect()
                };
                let add = |said: &mut Said| said.claims.extend(wanted(said));
                let create = |said: &Said| {
                    let create = |name: &ClaimName| {
                        let (path, data) = (self.claim_path(name)?, Bytes::from(member.to_string()));
                        Ok(Op::Create { path, data, mode: CreateMode::Ephemeral, acl: self.acl.clone() })
                    };
                    wanted(said).iter().map(create).collect()
                };
                match session.change(&self.clock, session.lease, add, create).await {
                    Err(TreeError::Multi { at, source }) if at > 0 && *source == TreeError::NodeExists => {
                        let others = self.taken(&session, batch).await?;
                        // Where it was given back at this moment, it is asked for again.
                        taken.extend(others);
                    }
                    changed => break changed.map_err(told)?,
                }
            }
        }
        Ok(names.iter().map(|name| !taken.contains(name)).collect())
    }

    fn claim_path(&self, name: &ClaimName) -> Result<NodePath, TreeError> {
        Ok(self.claims.join(&name.as_str().replace('/', "%2F").replace('.', "%2E"))?)
    }

    /// Those that others hold.
    async fn taken(&self, session: &Session, names: &[ClaimName]) -> Result<Vec<ClaimName>, OwnershipError> {
        let own = session.tree.session().id();
        let look = async |name: &ClaimName| {
            let stat = session.tree.exists(&self.claim_path(name)?).await?;
            Ok::<_, TreeError>(stat.filter(|stat| stat.owner != Some(own)).map(|_| name.clone()))
        };
        session.tree.sync().await.map_err(told)?;
        let looked = try_join_all(names.iter().map(look)).await.map_err(told)?;
        Ok(looked.into_iter().flatten().collect())
    }

    async fn release(self: Arc<Self>, member: MemberId, names: Vec<ClaimName>) -> Result<(), OwnershipError> {
        let Ok(session) = self.session(member) else { return Ok(()) };
        // That somebody else has taken away.
        let mut missing = BTreeSet::new();
        for batch in names.chunks(OPS_MAX - 2) {
            loop {
                let held = |said: &Said| -> Vec<ClaimName> {
                    let is_held = |name: &&ClaimName| said.claims.contains(*name) && !missing.contains(*name);
                    batch.iter().collect::<BTreeSet<_>>().into_iter().filter(is_held).cloned().collect()
                };
                let remove = |said: &mut Said| said.claims.retain(|name| !batch.contains(name));
                let delete = |said: &Said| {
                    let delete =
                        |name: &ClaimName| Ok(Op::Delete { path: self.claim_path(name)?, expected: Expected::Any });
                    held(said).iter().map(delete).collect()
                };
                let gone = match session.change(&self.clock, session.lease, remove, delete).await {
                    Err(TreeError::Multi { at, source }) if at > 0 && *source == TreeError::NoNode => at - 1,
                    Err(error) if told(error.clone()) == OwnershipError::Lost => return Ok(()),
                    changed => break changed.map_err(told)?,
                };
                let said = session.said.lock().await.clone();
                missing.extend(said.and_then(|said| held(&said).get(gone).cloned()));
            }
        }
        Ok(())
    }

    /// One moment's state: what was read is looked at again, until nothing has changed in between.
    async fn view(&self) -> Result<View, TreeError> {
        let tree = self.client.session().await?;
        tree.sync().await?;
        for _ in 0..TRIES {
            let children = match tree.children(&self.members).await {
                Err(TreeError::NoNode) => return Ok(View::default()),
                children => children?,
            };
            let paths: Vec<NodePath> =
                children.names.iter().map(|name| self.members.join(name)).collect::<Result<_, NodePathError>>()?;
            let read = async |path: &NodePath| match tree.get(path).await {
                Ok(node) => Ok(Some(node)),
                Err(TreeError::NoNode) => Ok(None),
                Err(error) => Err(error),
            };
            let nodes = try_join_all(paths.iter().map(read)).await?;
            let look = async |path: &NodePath| tree.exists(path).await;
            let stats: Vec<Option<Stat>> = try_join_all(paths.iter().map(look)).await?;
            let again = tree.children(&self.members).await?;
            let is_same = |(node, stat): (&Option<Node>, &Option<Stat>)| match (node, stat) {
                (Some(node), Some(stat)) => node.stat.modified == stat.modified,
                _ => false,
            };
            let is_still = again.stat.children_modified == children.stat.children_modified;
            if is_still && nodes.iter().zip(&stats).all(is_same) {
                let said = nodes.iter().flatten().map(|node| Said::decode(&node.data));
                return Ok(view_of(said.collect::<Option<Vec<_>>>().ok_or_else(not_ours)?));
            }
        }
        Err(TreeError::Disconnected("members change faster than they can be read".to_owned()))
    }
}

fn not_ours() -> TreeError {
    TreeError::Invalid("a member's node holds what no member wrote".to_owned())
}

fn touch(clock: &NodePath) -> Op {
    Op::Set { path: clock.clone(), data: Bytes::new(), expected: Expected::Any }
}

/// The engine's time, of a multi that ends with a touch of its clock.
fn seen(done: Result<Vec<Done>, TreeError>) -> Result<Renewed, OwnershipError> {
    match done.map_err(told)?.last() {
        Some(Done::Set(stat)) => Ok(Renewed { engine_now: stat.modified_at }),
        _ => Err(OwnershipError::Unavailable("the engine answered something else".to_owned())),
    }
}

fn told(error: TreeError) -> OwnershipError {
    match error {
        TreeError::SessionLost => OwnershipError::Lost,
        TreeError::Disconnected(text) => OwnershipError::Unavailable(text),
        TreeError::Multi { at: 0, source } if matches!(*source, TreeError::NoNode | TreeError::NodeExists) => {
            OwnershipError::Lost
        }
        error => OwnershipError::Refused(error.to_string()),
    }
}

/// Through a session that is none of a member's: the next call has another.
fn told_of_the_place(error: TreeError) -> OwnershipError {
    match error {
        TreeError::SessionLost => OwnershipError::Unavailable(error.to_string()),
        error => told(error),
    }
}

fn check_lease(lease: Duration) {
    assert!(!lease.is_zero() && lease <= LEASE_MAX, "a lease is above zero and at most {LEASE_MAX:?}: {lease:?}");
}

impl Inner {
    /// In a task of its own: whoever drops a call leaves nothing half done, and holds nobody up.
    fn detached<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, OwnershipError>> + Send + 'static,
    ) -> Answer<'static, T> {
        let called = self.runtime.detached("ownership", call);
        called
            .map(|called| called.unwrap_or_else(|| Err(OwnershipError::Unavailable("it is stopping".to_owned()))))
            .boxed()
    }
}

impl Ownership for TreeOwnership {
    fn join(&self, member: Member, lease: Duration) -> Answer<'_, Renewed> {
        check_lease(lease);
        match member.check() {
            Ok(()) => self.0.detached(self.0.clone().join(member, lease)),
            Err(refused) => Box::pin(std::future::ready(Err(refused))),
        }
    }

    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Renewed> {
        check_lease(lease);
        let inner = self.0.clone();
        self.0.detached(async move { inner.renew(member, lease).await })
    }

    fn leave(&self, member: MemberId) -> Answer<'_, ()> {
        let inner = self.0.clone();
        self.0.detached(async move { inner.leave(member).await })
    }

    fn claim(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, Vec<bool>> {
        check_names(&names);
        self.0.detached(self.0.clone().claim(member, names))
    }

    fn release(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, ()> {
        check_names(&names);
        self.0.detached(self.0.clone().release(member, names))
    }

    fn view(&self) -> Answer<'_, View> {
        let inner = self.0.clone();
        self.0.detached(async move { inner.view().await.map_err(told_of_the_place) })
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        let mut changes = self.0.changes.subscribe();
        Box::pin(async move {
            if changes.changed().await.is_err() {
                std::future::pending().await
            }
        })
    }
}

impl fmt::Debug for TreeOwnership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeOwnership").field("members", &self.0.members).finish_non_exhaustive()
    }
}
