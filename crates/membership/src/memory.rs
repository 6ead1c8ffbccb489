//! In-memory engine. It is the reference model of the port and a test double. With sessions that never end, it is also
//! the engine of a single process.
//!
//! Members of one cluster share the data through [`MemoryOwnership::reopen`]. The engine uses the clocks of the
//! `Runtime` that created it; each handle takes the delays of its calls from its own `Runtime`.
//!
//! Invariants: A call takes effect in one step, once or not at all. The same calls, on simulated `Runtime`s with the
//! same seed, give the same results.

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

/// Behavior of the in-memory engine. The port permits every combination of these options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineOptions {
    /// True if sessions end with their leases. If false, a session ends only when its member leaves. Use false for
    /// a single process, whose exit also ends this engine. Default true.
    pub sessions_end: bool,
    /// Range of the two delays of a call: one delay before the call takes effect, and one after it. By default, calls
    /// have no delays.
    pub latency: Option<RangeInclusive<Duration>>,
    /// Average number of calls per failed call. A failed call may or may not have taken effect. By default, no call
    /// fails.
    pub fail_one_in: Option<u32>,
    /// Time by which the engine's wall clock is ahead of the wall clock of its `Runtime`. Default 0.
    pub clock_ahead_millis: i64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { sessions_end: true, latency: None, fail_one_in: None, clock_ahead_millis: 0 }
    }
}

/// Handle to the in-memory engine. The documentation of the module describes the engine.
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
    /// Creates an engine without members. The engine uses the clocks of `runtime`.
    #[must_use]
    pub fn new(runtime: Runtime, options: EngineOptions) -> Self {
        let link = link(runtime.clone(), &options);
        let changes = watch::Sender::new(());
        let engine = Engine { clock: runtime, options, model: Mutex::new(Model::default()), changes };
        MemoryOwnership { link, engine: Arc::new(engine) }
    }

    /// Creates an engine for a single process. Sessions never end, so a lease of `Duration::MAX` lasts without
    /// renewals.
    #[must_use]
    pub fn single(runtime: Runtime) -> Self {
        MemoryOwnership::new(runtime, EngineOptions { sessions_end: false, ..EngineOptions::default() })
    }

    /// Returns another handle to the same engine, for another member or for the same member after a crash.
    #[must_use]
    pub fn reopen(&self, runtime: Runtime) -> Self {
        MemoryOwnership { link: link(runtime, &self.engine.options), engine: self.engine.clone() }
    }

    /// Cuts or restores the connection. While the connection is cut, calls of this handle do not return, and calls in
    /// progress may or may not take effect.
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
            let result = effect(&mut model, &moment);
            is_changed |= model.changes != before;
            if is_changed {
                self.engine.changes.send_replace(());
            }
            result
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
        assert!(
            !lease.is_zero() && lease <= most,
            "invalid lease {lease:?}: it must be above zero and at most {most:?}"
        );
    }
}

fn link(runtime: Runtime, options: &EngineOptions) -> MemoryLink {
    MemoryLink::new(runtime, options.latency.clone(), options.fail_one_in)
}

/// Time at which a call takes effect, by the engine's clocks.
struct Moment {
    monotonic: Monotonic,
    wall: Timestamp,
    sessions_end: bool,
}

impl Moment {
    /// Returns the end of a lease that starts now. Returns `None` if sessions never end.
    fn end_of(&self, lease: Duration) -> Option<Monotonic> {
        self.sessions_end.then(|| self.monotonic + lease)
    }

    fn renewed(&self) -> Renewed {
        Renewed { engine_now: self.wall }
    }
}

impl Ownership for MemoryOwnership {
    fn join(&self, member: Member, lease: Duration) -> Answer<'_, Renewed> {
        self.check_lease(lease);
        Box::pin(async move {
            member.check()?;
            self.call(|model, moment| model.join(member, moment.end_of(lease)).then(|| moment.renewed()))
                .await?
                .ok_or(OwnershipError::Lost)
        })
    }

    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Renewed> {
        self.check_lease(lease);
        Box::pin(async move {
            self.call(|model, moment| model.renew(member, moment.end_of(lease)).then(|| moment.renewed()))
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
                // All handles to the engine are dropped, so no change can follow.
                std::future::pending::<()>().await;
            }
        })
    }
}
