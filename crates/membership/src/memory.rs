//! The engine within one process: the reference model of the port, the double that tests use, and, with sessions that
//! never end, what a single process runs on.
//!
//! Members of one cluster share the data through [`MemoryOwnership::reopen`]. The engine has clocks of its own, those
//! of the `Runtime` that it was made with; each handle waits on its own `Runtime`.
//!
//! Always true here: a call takes effect in one step, once, or not at all; with the same `Runtime`s and the same calls,
//! the same happens.

mod model;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use instants::{Monotonic, Timestamp};
use runtime::{MemoryLink, Runtime};
use tokio::sync::watch;

use self::model::Model;
use crate::{Answer, ClaimName, LEASE_MAX, Member, MemberId, Ownership, OwnershipError, Renewed, View, check_names};

/// How the engine in memory behaves within what the port allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineOptions {
    /// False: a session ends only when its member leaves, whatever its lease. For one process alone, whose end is
    /// the end of this engine, too. Default true.
    pub sessions_end: bool,
    /// How long a call takes before its effect, and again after it. Default none.
    pub latency: Option<RangeInclusive<Duration>>,
    /// One call in so many fails, before its effect or after it. Default never.
    pub fail_one_in: Option<u32>,
    /// How far the engine's wall clock is ahead of its `Runtime`'s. Default 0.
    pub clock_ahead_millis: i64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { sessions_end: true, latency: None, fail_one_in: None, clock_ahead_millis: 0 }
    }
}

/// See the module's documentation.
pub struct MemoryOwnership {
    link: MemoryLink,
    engine: Arc<Engine>,
}

struct Engine {
    clock: Runtime,
    options: EngineOptions,
    model: Mutex<Model>,
    changes: watch::Sender<()>,
}

impl MemoryOwnership {
    /// An engine without members. Its clocks are `runtime`'s.
    #[must_use]
    pub fn new(runtime: Runtime, options: EngineOptions) -> Self {
        let link = link(runtime.clone(), &options);
        let changes = watch::Sender::new(());
        let engine = Engine { clock: runtime, options, model: Mutex::new(Model::default()), changes };
        MemoryOwnership { link, engine: Arc::new(engine) }
    }

    /// For one process alone: sessions never end, so that a lease of `Duration::MAX` is kept without renewals.
    #[must_use]
    pub fn single(runtime: Runtime) -> Self {
        MemoryOwnership::new(runtime, EngineOptions { sessions_end: false, ..EngineOptions::default() })
    }

    /// The same engine, for another member or for the same one after its crash.
    #[must_use]
    pub fn reopen(&self, runtime: Runtime) -> Self {
        MemoryOwnership { link: link(runtime, &self.engine.options), engine: self.engine.clone() }
    }

    /// While cut, calls of this handle are never answered, and those under way may or may not take effect.
    pub fn cut(&self, is_cut: bool) {
        self.link.cut(is_cut);
    }

    async fn call<T>(&self, effect: impl FnOnce(&mut Model, &Moment) -> T) -> Result<T, OwnershipError> {
        let effect = || {
            let clock = &self.engine.clock;
            let moment = Moment { monotonic: clock.monotonic(), wall: self.wall(), sessions_end: self.sessions_end() };
            let mut model = self.engine.model.lock().expect("no holder of this lock panics");
            let mut is_changed = model.end_sessions(moment.monotonic);
            let before = model.changes;
            let answer = effect(&mut model, &moment);
            is_changed |= model.changes != before;
            if is_changed {
                self.engine.changes.send_replace(());
            }
            answer
        };
        self.link.call(effect).await.map_err(OwnershipError::Unavailable)
    }

    fn sessions_end(&self) -> bool {
        self.engine.options.sessions_end
    }

    fn wall(&self) -> Timestamp {
        let ahead = self.engine.options.clock_ahead_millis;
        Timestamp::from_millis(self.engine.clock.now().as_millis().saturating_add(ahead))
    }

    fn check_lease(&self, lease: Duration) {
        let most = if self.sessions_end() { LEASE_MAX } else { Duration::MAX };
        assert!(!lease.is_zero() && lease <= most, "a lease is above zero and at most {most:?}: {lease:?}");
    }
}

fn link(runtime: Runtime, options: &EngineOptions) -> MemoryLink {
    MemoryLink::new(runtime, options.latency.clone(), options.fail_one_in)
}

/// When a call took effect, by the engine's clocks.
struct Moment {
    monotonic: Monotonic,
    wall: Timestamp,
    sessions_end: bool,
}

impl Moment {
    /// `None`: never.
    fn end_of(&self, lease: Duration) -> Option<Monotonic> {
        self.sessions_end.then(|| self.monotonic + lease)
    }

    fn seen(&self) -> Renewed {
        Renewed { engine_now: self.wall }
    }
}

impl Ownership for MemoryOwnership {
    fn join(&self, member: Member, lease: Duration) -> Answer<'_, Renewed> {
        self.check_lease(lease);
        Box::pin(async move {
            member.check()?;
            self.call(|model, moment| model.join(member, moment.end_of(lease)).then(|| moment.seen()))
                .await?
                .ok_or(OwnershipError::Lost)
        })
    }

    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Renewed> {
        self.check_lease(lease);
        Box::pin(async move {
            self.call(|model, moment| model.renew(member, moment.end_of(lease)).then(|| moment.seen()))
                .await?
                .ok_or(OwnershipError::Lost)
        })
    }

    fn leave(&self, member: MemberId) -> Answer<'_, ()> {
        Box::pin(self.call(move |model, _| model.leave(member)))
    }

    fn claim(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, Vec<bool>> {
        check_names(&names);
        Box::pin(async move { self.call(|model, _| model.claim(member, names)).await?.ok_or(OwnershipError::Lost) })
    }

    fn release(&self, member: MemberId, names: Vec<ClaimName>) -> Answer<'_, ()> {
        check_names(&names);
        Box::pin(self.call(move |model, _| model.release(member, &names)))
    }

    fn view(&self) -> Answer<'_, View> {
        Box::pin(self.call(|model, moment| model.view(moment.monotonic)))
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        let mut changes = self.engine.changes.subscribe();
        Box::pin(async move {
            if changes.changed().await.is_err() {
                // The engine is gone, and nothing will ever change.
                std::future::pending::<()>().await;
            }
        })
    }
}
