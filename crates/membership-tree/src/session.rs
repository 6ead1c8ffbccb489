//! Session of one member, and the content of the member's node.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use coordination::tree::{Expected, NodePath, Op, Tree, TreeError};
use instants::Monotonic;
use membership::{ClaimName, Member, MemberId, OwnershipError, View};
use runtime::TaskSet;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{Inner, malformed_node, touch};

/// Session of one member.
pub(super) struct Session {
    pub(super) tree: Arc<dyn Tree>,
    pub(super) node: NodePath,
    pub(super) lease: Duration,
    /// Cached content of the member's node. `None` if the content in the tree is unknown, for example because a change
    /// got no response. A call that changes the node holds the lock until the change ends.
    pub(super) content: tokio::sync::Mutex<Option<NodeContent>>,
    life: Mutex<Life>,
    /// Signal that a renewal has ended. It wakes the task that closes the session when the lease ends.
    renewed: Notify,
    _tasks: TaskSet,
}

pub(super) struct Life {
    /// Time at which this process closes the session.
    pub(super) end: Monotonic,
    /// Number of renewals in progress. Each renewal may postpone `end`.
    renewing: usize,
    pub(super) is_over: bool,
}

/// Content of a member's node.
#[derive(Clone)]
pub(super) struct NodeContent {
    pub(super) member: Member,
    pub(super) claims: BTreeSet<ClaimName>,
    pub(super) version: i32,
}

impl Session {
    pub(super) fn keep(
        inner: &Arc<Inner>,
        member: MemberId,
        tree: Arc<dyn Tree>,
        node: NodePath,
        lease: Duration,
        content: NodeContent,
        end: Monotonic,
    ) -> Arc<Session> {
        let tasks = TaskSet::new(&inner.runtime);
        Arc::new_cyclic(|session: &Weak<Session>| {
            tasks.spawn("member", close_when_expired(Arc::downgrade(inner), session.clone(), member));
            let life = Mutex::new(Life { end, renewing: 0, is_over: false });
            let content = tokio::sync::Mutex::new(Some(content));
            Session { tree, node, lease, content, life, renewed: Notify::new(), _tasks: tasks }
        })
    }

    pub(super) fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().expect("no holder of this lock panics")
    }

    pub(super) fn check_lease(&self, lease: Duration) -> Result<(), OwnershipError> {
        if lease > self.lease {
            let text = format!(
                "the lease {lease:?} exceeds {:?}, the lease of the first join; join with a new id and a longer lease",
                self.lease
            );
            return Err(OwnershipError::Rejected(text));
        }
        Ok(())
    }

    /// Changes the content of the member's node, and executes the operations of `steps` in the same atomic request.
    /// `steps` computes these operations from the content before the change.
    pub(super) async fn change(
        &self,
        clock: &NodePath,
        lease: Duration,
        change: impl Fn(&mut NodeContent),
        steps: impl Fn(&NodeContent) -> Result<Vec<Op>, TreeError>,
    ) -> Result<(), TreeError> {
        let mut content = self.content.lock().await;
        let before = match content.take() {
            Some(before) => before,
            None => self.read().await?,
        };
        let mut after = before.clone();
        change(&mut after);
        let expected = Expected::Version(before.version);
        let mut ops = vec![Op::Set { path: self.node.clone(), data: after.encode(lease), expected }];
        ops.extend(steps(&before)?);
        ops.push(touch(clock));
        let changed = self.tree.multi(ops).await;
        match &changed {
            Ok(_) => {
                after.version += 1;
                *content = Some(after);
            }
            // The node's content in the tree differs from the expected content, or is unknown. The cache therefore
            // stays empty.
            Err(TreeError::Multi { at: 0, .. } | TreeError::Disconnected(_)) => {}
            Err(_) => *content = Some(before),
        }
        changed.map(drop)
    }

    async fn read(&self) -> Result<NodeContent, TreeError> {
        self.tree.sync().await?;
        let node = self.tree.get(&self.node).await.map_err(|error| match error {
            TreeError::NoNode => TreeError::SessionLost,
            error => error,
        })?;
        let (content, _) = NodeContent::decode(&node.data).ok_or_else(malformed_node)?;
        Ok(NodeContent { version: node.stat.version, ..content })
    }
}

/// Closes the session when its lease ends without a renewal.
async fn close_when_expired(inner: Weak<Inner>, session: Weak<Session>, member: MemberId) {
    let Some(runtime) = inner.upgrade().map(|inner| inner.runtime.clone()) else { return };
    loop {
        let end = {
            let Some(session) = session.upgrade() else { return };
            let renewed = session.renewed.notified();
            let is_renewing = session.life().renewing > 0;
            if is_renewing {
                renewed.await;
            }
            session.life().end
        };
        runtime.sleep_until(end).await;
        let (Some(inner), Some(session)) = (inner.upgrade(), session.upgrade()) else { return };
        let is_over = {
            let mut life = session.life();
            life.is_over |= life.renewing == 0 && life.end <= runtime.monotonic();
            life.is_over
        };
        if is_over {
            drop(inner.end(member));
            if let Err(error) = session.tree.close().await {
                tracing::debug!(%member, %error, "cannot close an expired session; the engine will end it");
            }
            return;
        }
    }
}

/// Renewal in progress.
pub(super) struct Renewing<'a> {
    pub(super) session: &'a Session,
}

impl<'a> Renewing<'a> {
    /// Begins a renewal. Returns `None` if the session has ended.
    pub(super) fn begin(session: &'a Session) -> Option<Self> {
        let mut life = session.life();
        if life.is_over {
            return None;
        }
        life.renewing += 1;
        Some(Renewing { session })
    }
}

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        self.session.life().renewing -= 1;
        self.session.renewed.notify_waiters();
    }
}

impl NodeContent {
    pub(super) fn encode(&self, lease: Duration) -> Bytes {
        let NodeContent { member, claims, .. } = self;
        let content = json!({
            "id": member.id.to_string(),
            "name": member.name,
            "address": member.address,
            "owns": member.owns,
            "build": member.build,
            "lease_ms": u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
            "claims": claims.iter().map(ClaimName::as_str).collect::<Vec<_>>(),
        });
        content.to_string().into()
    }

    /// Decodes a node's content and the lease in it.
    pub(super) fn decode(data: &[u8]) -> Option<(Self, Duration)> {
        let content: Value = serde_json::from_slice(data).ok()?;
        let text = |key: &str| content.get(key)?.as_str().map(str::to_owned);
        let member = Member {
            id: MemberId(u128::from_str_radix(&text("id")?, 16).ok()?),
            name: text("name")?,
            address: text("address")?,
            owns: content.get("owns")?.as_bool()?,
            build: text("build")?,
        };
        let claims = content.get("claims")?.as_array()?.iter();
        let claims = claims.map(|name| ClaimName::new(name.as_str()?).ok()).collect::<Option<_>>()?;
        let lease = Duration::from_millis(content.get("lease_ms")?.as_u64()?);
        Some((NodeContent { member, claims, version: 0 }, lease))
    }
}

/// Returns the view of the members in `all`, with their claims. `all` contains, for each member, the content of the
/// member's node and the member's lease.
pub(super) fn view_of(all: Vec<(NodeContent, Duration)>) -> View {
    let first_end = all.iter().map(|(_, lease)| *lease).min();
    let mut view = View { first_end, ..View::default() };
    for (NodeContent { member, claims, .. }, _) in all {
        view.claims.extend(claims.into_iter().map(|name| (name, member.id)));
        view.members.push(member);
    }
    view.members.sort_by_key(|member| member.id);
    view
}
