//! One member's session, and what its node says.

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

use super::{Inner, not_ours, touch};

/// One member's.
pub(super) struct Session {
    pub(super) tree: Arc<dyn Tree>,
    pub(super) node: NodePath,
    pub(super) lease: Duration,
    /// What its node says; `None` if a change of it was not answered. Held while it is changed.
    pub(super) said: tokio::sync::Mutex<Option<Said>>,
    life: Mutex<Life>,
    /// Told when a renewal has ended.
    renewed: Notify,
    _tasks: TaskSet,
}

pub(super) struct Life {
    /// When it is closed here.
    pub(super) end: Monotonic,
    /// Renewals under way, which may put that off.
    renewing: usize,
    pub(super) is_over: bool,
}

/// What a member's node says.
#[derive(Clone)]
pub(super) struct Said {
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
        said: Said,
        end: Monotonic,
    ) -> Arc<Session> {
        let tasks = TaskSet::new(&inner.runtime);
        Arc::new_cyclic(|session: &Weak<Session>| {
            tasks.spawn("member", over(Arc::downgrade(inner), session.clone(), member));
            let life = Mutex::new(Life { end, renewing: 0, is_over: false });
            let said = tokio::sync::Mutex::new(Some(said));
            Session { tree, node, lease, said, life, renewed: Notify::new(), _tasks: tasks }
        })
    }

    pub(super) fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().expect("no holder of this lock panics")
    }

    pub(super) fn check_lease(&self, lease: Duration) -> Result<(), OwnershipError> {
        if lease > self.lease {
            let text = format!("a lease is for a session's life here: {:?}, and not {lease:?}", self.lease);
            return Err(OwnershipError::Refused(text));
        }
        Ok(())
    }

    /// Changes what the node says, together with `steps`, which are made of what it said before.
    pub(super) async fn change(
        &self,
        clock: &NodePath,
        lease: Duration,
        change: impl Fn(&mut Said),
        steps: impl Fn(&Said) -> Result<Vec<Op>, TreeError>,
    ) -> Result<(), TreeError> {
        let mut said = self.said.lock().await;
        let before = match said.take() {
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
                *said = Some(after);
            }
            // It is not as it was believed to be, or not known to be.
            Err(TreeError::Multi { at: 0, .. } | TreeError::Disconnected(_)) => {}
            Err(_) => *said = Some(before),
        }
        changed.map(drop)
    }

    async fn read(&self) -> Result<Said, TreeError> {
        self.tree.sync().await?;
        let node = self.tree.get(&self.node).await.map_err(|error| match error {
            TreeError::NoNode => TreeError::SessionLost,
            error => error,
        })?;
        let (said, _) = Said::decode(&node.data).ok_or_else(not_ours)?;
        Ok(Said { version: node.stat.version, ..said })
    }
}

/// Closes the session when nobody has renewed it.
async fn over(inner: Weak<Inner>, session: Weak<Session>, member: MemberId) {
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
                tracing::debug!(%member, %error, "a session that is over is ended by the engine");
            }
            return;
        }
    }
}

/// A renewal that is under way.
pub(super) struct Renewing<'a> {
    pub(super) session: &'a Session,
}

impl<'a> Renewing<'a> {
    /// `None` if it is too late.
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

impl Said {
    pub(super) fn encode(&self, lease: Duration) -> Bytes {
        let Said { member, claims, .. } = self;
        let said = json!({
            "id": member.id.to_string(),
            "name": member.name,
            "address": member.address,
            "owns": member.owns,
            "build": member.build,
            "lease_ms": u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
            "claims": claims.iter().map(ClaimName::as_str).collect::<Vec<_>>(),
        });
        said.to_string().into()
    }

    /// With the lease.
    pub(super) fn decode(data: &[u8]) -> Option<(Self, Duration)> {
        let said: Value = serde_json::from_slice(data).ok()?;
        let text = |key: &str| said.get(key)?.as_str().map(str::to_owned);
        let member = Member {
            id: MemberId(u128::from_str_radix(&text("id")?, 16).ok()?),
            name: text("name")?,
            address: text("address")?,
            owns: said.get("owns")?.as_bool()?,
            build: text("build")?,
        };
        let claims = said.get("claims")?.as_array()?.iter();
        let claims = claims.map(|name| ClaimName::new(name.as_str()?).ok()).collect::<Option<_>>()?;
        let lease = Duration::from_millis(said.get("lease_ms")?.as_u64()?);
        Some((Said { member, claims, version: 0 }, lease))
    }
}

/// Of each member what it says, and its lease.
pub(super) fn view_of(all: Vec<(Said, Duration)>) -> View {
    let first_end = all.iter().map(|(_, lease)| *lease).min();
    let mut view = View { first_end, ..View::default() };
    for (Said { member, claims, .. }, _) in all {
        view.claims.extend(claims.into_iter().map(|name| (name, member.id)));
        view.members.push(member);
    }
    view.members.sort_by_key(|member| member.id);
    view
}
