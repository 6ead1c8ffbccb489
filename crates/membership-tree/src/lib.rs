//! Members and claims of a cluster on a coordination tree. This crate implements the port [`Ownership`] for tree
//! engines with their own sessions, such as ZooKeeper.
//!
//! A member has an engine session and an ephemeral node `<root>/members/<id>`. The timeout of the session is the
//! member's lease. The node contains the member's public information and the names of its claims. Each claim also has
//! an ephemeral node `<root>/claims/<name>`, which only one member can create. The member creates this node in the same
//! change that adds the name to the member's own node. A read of the view therefore needs only the members' nodes.
//!
//! The member's process closes a session that it could not renew in time. If the process died or cannot reach the
//! engine, the engine ends the session.
//!
//! docs/decisions/0147-keep-members-and-claims-on-a-tree.md gives the reasons for the design.

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

use self::session::{NodeContent, Renewing, Session, view_of};

/// Time between two attempts to watch for changes.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Largest number of attempts to read the view. An attempt fails if the view changes during the attempt.
const TRIES: usize = 100;
/// Number of ended sessions whose ids this process retains, so that it opens no second session with the same id.
const ENDED_MAX: usize = 1_000;

const MEMBERS: &str = "members";
const CLAIMS: &str = "claims";

/// Access of one process to the members and claims of a cluster.
pub struct TreeOwnership(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    trees: Arc<dyn Trees>,
    options: SessionOptions,
    acl: Acl,
    /// Client for requests that do not belong to a member's session.
    client: Client,
    members: NodePath,
    claims: NodePath,
    /// Path of the node that contains the cluster's id.
    id: NodePath,
    /// Path of the node that each renewal changes. The engine responds with the time of the change, which is a reading
    /// of its clock.
    clock: NodePath,
    joined: Mutex<Joined>,
    /// Number of observed changes of members and claims.
    changes: watch::Sender<u64>,
    _tasks: TaskSet,
}

#[derive(Default)]
struct Joined {
    sessions: BTreeMap<MemberId, Arc<Session>>,
    ended: VecDeque<MemberId>,
}

impl TreeOwnership {
    /// Opens the cluster at `root`. Members create the cluster's nodes on demand, with the access list `acl`. The
    /// sessions of the members use `credentials`.
    ///
    /// # Errors
    /// Returns [`TreeError::Invalid`] if the path of a node below `root` is too long.
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
        tasks.spawn("claims", watch_changes(client.clone(), root.clone(), changes.clone()));
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

    /// Returns the cluster's id. The first call creates the id, and the id never changes. All processes that open this
    /// cluster get the same id.
    ///
    /// # Errors
    /// Returns the same errors as [`Ownership::view`].
    pub fn id(&self) -> Answer<'_, String> {
        let inner = self.0.clone();
        self.0.detached(async move { inner.id().await.map_err(id_error) })
    }

    /// Returns the cluster's id. Unlike [`TreeOwnership::id`], creates nothing.
    ///
    /// # Errors
    /// Returns [`OwnershipError::Rejected`] if no member of a cluster has used this root path. All other errors are the
    /// same as those of [`Ownership::view`].
    pub fn existing_id(&self) -> Answer<'_, String> {
        let inner = self.0.clone();
        self.0.detached(async move { inner.existing_id().await.map_err(id_error) })
    }
}

fn id_error(error: TreeError) -> OwnershipError {
    match error {
        TreeError::Forbidden => OwnershipError::Rejected(
            "another cluster uses this root path; configure a different root path for each cluster".to_owned(),
        ),
        TreeError::NoNode => OwnershipError::Rejected(
            "no member of a cluster has used this root path; check the coordination URL, or start a member".to_owned(),
        ),
        error => cluster_error(error),
    }
}

/// Counts changes of members and claims. Also counts one change if the watch may have missed changes.
async fn watch_changes(client: Client, root: NodePath, changes: watch::Sender<u64>) {
    let (Ok(members), Ok(claims)) = (root.join(MEMBERS), root.join(CLAIMS)) else { return };
    loop {
        let watching = async {
            let tree = client.session().await?;
            let mut events = tree.watch_all(&root).await?;
            changes.send_modify(|count| *count += 1);
            while let Some(event) = events.next().await {
                let is_relevant = match &event {
                    Event::Created(path) | Event::Changed(path) | Event::Deleted(path) => {
                        path.is_within(&members) || path.is_within(&claims)
                    }
                    Event::ChildrenChanged(_) | Event::Gap => true,
                };
                changes.send_modify(|count| *count += u64::from(is_relevant));
            }
            Ok::<_, TreeError>(())
        };
        if let Err(error) = watching.await {
            tracing::debug!(%error, "cannot watch members and claims; retrying");
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

    /// Marks the session as ended, so that no later session can use its id.
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
        self.existing_id().await
    }

    async fn existing_id(&self) -> Result<String, TreeError> {
        let tree = self.client.session().await?;
        tree.sync().await?;
        let node = tree.get(&self.id).await?;
        String::from_utf8(node.data.to_vec()).map_err(|_| malformed_node())
    }

    async fn join(self: Arc<Self>, member: Member, lease: Duration) -> Result<Renewed, OwnershipError> {
        if self.joined().sessions.contains_key(&member.id) {
            let session = self.session(member.id)?;
            session.check_lease(lease)?;
            let update = |content: &mut NodeContent| content.member.clone_from(&member);
            session.change(&self.clock, lease, update, |_| Ok(Vec::new())).await.map_err(ownership_error)?;
            return self.renew(member.id, lease).await;
        }
        if self.joined().ended.contains(&member.id) {
            return Err(OwnershipError::Lost);
        }
        let options = SessionOptions { timeout: lease, ..self.options.clone() };
        let tree = self.trees.open(options).await.map_err(ownership_error)?;
        let granted = tree.session().timeout();
        if granted < lease {
            drop(tree.close().await);
            let text = format!("the lease {lease:?} exceeds the engine's limit; configure at most {granted:?}");
            return Err(OwnershipError::Rejected(text));
        }
        for path in [&self.members, &self.claims, &self.clock] {
            self.client.make(&*tree, path, Bytes::new(), &self.acl).await.map_err(ownership_error)?;
        }
        let node = self.members.join(&member.id.to_string()).map_err(|error| ownership_error(error.into()))?;
        let content = NodeContent { member: member.clone(), claims: BTreeSet::new(), version: 0 };
        let (data, mode, acl) = (content.encode(lease), CreateMode::Ephemeral, self.acl.clone());
        let steps = vec![Op::Create { path: node.clone(), data, mode, acl }, touch(&self.clock)];
        let renewed = renewed(tree.multi(steps).await)?;
        let end = self.runtime.monotonic() + lease;
        let session = Session::keep(&self, member.id, tree, node, lease, content, end);
        self.joined().sessions.insert(member.id, session);
        Ok(renewed)
    }

    async fn renew(&self, member: MemberId, lease: Duration) -> Result<Renewed, OwnershipError> {
        let session = self.session(member)?;
        session.check_lease(lease)?;
        let renewing = Renewing::begin(&session).ok_or(OwnershipError::Lost)?;
        let check = Op::Check { path: session.node.clone(), expected: Expected::Any };
        let renewed = renewed(session.tree.multi(vec![check, touch(&self.clock)]).await)?;
        renewing.session.life().end = self.runtime.monotonic() + lease;
        Ok(renewed)
    }

    async fn leave(&self, member: MemberId) -> Result<(), OwnershipError> {
        let Some(session) = self.end(member) else { return Ok(()) };
        session.tree.close().await.map_err(ownership_error)
    }

    async fn claim(self: Arc<Self>, member: MemberId, names: Vec<ClaimName>) -> Result<Vec<bool>, OwnershipError> {
        let session = self.session(member)?;
        let mut taken = BTreeSet::new();
        let distinct: Vec<ClaimName> = names.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect();
        // If `names` is empty, one empty batch checks that the session is open.
        let mut batches: Vec<&[ClaimName]> = distinct.chunks(OPS_MAX - 2).collect();
        if batches.is_empty() {
            batches.push(&[]);
        }
        for batch in batches {
            loop {
                let wanted = |content: &NodeContent| -> Vec<ClaimName> {
                    let is_wanted = |name: &&ClaimName| !content.claims.contains(*name) && !taken.contains(*name);
                    batch.iter().filter(is_wanted).cloned().collect()
                };
                let add = |content: &mut NodeContent| content.claims.extend(wanted(content));
                let create = |content: &NodeContent| {
                    let create = |name: &ClaimName| {
                        let (path, data) = (self.claim_path(name)?, Bytes::from(member.to_string()));
                        Ok(Op::Create { path, data, mode: CreateMode::Ephemeral, acl: self.acl.clone() })
                    };
                    wanted(content).iter().map(create).collect()
                };
                match session.change(&self.clock, session.lease, add, create).await {
                    Err(TreeError::Multi { at, source }) if at > 0 && *source == TreeError::NodeExists => {
                        let others = self.held_by_others(&session, batch).await?;
                        // If the holder of a name has released the name since the failed attempt, the next attempt
                        // claims the name again.
                        taken.extend(others);
                    }
                    changed => break changed.map_err(ownership_error)?,
                }
            }
        }
        Ok(names.iter().map(|name| !taken.contains(name)).collect())
    }

    fn claim_path(&self, name: &ClaimName) -> Result<NodePath, TreeError> {
        Ok(self.claims.join(&name.as_str().replace('/', "%2F").replace('.', "%2E"))?)
    }

    /// Returns the given names that other members hold.
    async fn held_by_others(&self, session: &Session, names: &[ClaimName]) -> Result<Vec<ClaimName>, OwnershipError> {
        let own = session.tree.session().id();
        let look = async |name: &ClaimName| {
            let stat = session.tree.exists(&self.claim_path(name)?).await?;
            Ok::<_, TreeError>(stat.filter(|stat| stat.owner != Some(own)).map(|_| name.clone()))
        };
        session.tree.sync().await.map_err(ownership_error)?;
        let looked = try_join_all(names.iter().map(look)).await.map_err(ownership_error)?;
        Ok(looked.into_iter().flatten().collect())
    }

    async fn release(self: Arc<Self>, member: MemberId, names: Vec<ClaimName>) -> Result<(), OwnershipError> {
        let Ok(session) = self.session(member) else { return Ok(()) };
        // Names of this member's claims whose nodes another client has deleted.
        let mut missing = BTreeSet::new();
        for batch in names.chunks(OPS_MAX - 2) {
            loop {
                let held = |content: &NodeContent| -> Vec<ClaimName> {
                    let is_held = |name: &&ClaimName| content.claims.contains(*name) && !missing.contains(*name);
                    batch.iter().collect::<BTreeSet<_>>().into_iter().filter(is_held).cloned().collect()
                };
                let remove = |content: &mut NodeContent| content.claims.retain(|name| !batch.contains(name));
                let delete = |content: &NodeContent| {
                    let delete =
                        |name: &ClaimName| Ok(Op::Delete { path: self.claim_path(name)?, expected: Expected::Any });
                    held(content).iter().map(delete).collect()
                };
                let gone = match session.change(&self.clock, session.lease, remove, delete).await {
                    Err(TreeError::Multi { at, source }) if at > 0 && *source == TreeError::NoNode => at - 1,
                    Err(error) if ownership_error(error.clone()) == OwnershipError::Lost => return Ok(()),
                    changed => break changed.map_err(ownership_error)?,
                };
                let content = session.content.lock().await.clone();
                missing.extend(content.and_then(|content| held(&content).get(gone).cloned()));
            }
        }
        Ok(())
    }

    /// Reads a consistent view: reads the nodes, checks their versions, and repeats these steps until no node has
    /// changed between the read and the check.
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
                let content = nodes.iter().flatten().map(|node| NodeContent::decode(&node.data));
                return Ok(view_of(content.collect::<Option<Vec<_>>>().ok_or_else(malformed_node)?));
            }
        }
        Err(TreeError::Disconnected("the members changed during every attempt to read them; retry the read".to_owned()))
    }
}

fn malformed_node() -> TreeError {
    TreeError::Invalid("a tree node has invalid content; check whether another program changed it".to_owned())
}

fn touch(clock: &NodePath) -> Op {
    Op::Set { path: clock.clone(), data: Bytes::new(), expected: Expected::Any }
}

/// Returns the engine's time from the result of an atomic request whose last operation writes the clock node.
fn renewed(done: Result<Vec<Done>, TreeError>) -> Result<Renewed, OwnershipError> {
    match done.map_err(ownership_error)?.last() {
        Some(Done::Set(stat)) => Ok(Renewed { engine_now: stat.modified_at }),
        _ => Err(OwnershipError::Unavailable("the engine returned no result for the clock node".to_owned())),
    }
}

fn ownership_error(error: TreeError) -> OwnershipError {
    match error {
        TreeError::SessionLost => OwnershipError::Lost,
        TreeError::Disconnected(text) => OwnershipError::Unavailable(text),
        TreeError::Multi { at: 0, source } if matches!(*source, TreeError::NoNode | TreeError::NodeExists) => {
            OwnershipError::Lost
        }
        error => OwnershipError::Rejected(error.to_string()),
    }
}

/// Converts an error of the client's session, which belongs to no member. The next call opens another session.
fn cluster_error(error: TreeError) -> OwnershipError {
    match error {
        TreeError::SessionLost => OwnershipError::Unavailable(error.to_string()),
        error => ownership_error(error),
    }
}

fn check_lease(lease: Duration) {
    assert!(
        !lease.is_zero() && lease <= LEASE_MAX,
        "invalid lease {lease:?}: it must be above zero and at most {LEASE_MAX:?}"
    );
}

impl Inner {
    /// Runs a call in its own task. If the caller drops the future, the call still runs to its end, and does not block
    /// other callers.
    fn detached<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, OwnershipError>> + Send + 'static,
    ) -> Answer<'static, T> {
        let called = self.runtime.detached("ownership", call);
        called
            .map(|called| {
                called.unwrap_or_else(|| Err(OwnershipError::Unavailable("this process is stopping".to_owned())))
            })
            .boxed()
    }
}

impl Ownership for TreeOwnership {
    fn join(&self, member: Member, lease: Duration) -> Answer<'_, Renewed> {
        check_lease(lease);
        match member.check() {
            Ok(()) => self.0.detached(self.0.clone().join(member, lease)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
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
        self.0.detached(async move { inner.view().await.map_err(cluster_error) })
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
