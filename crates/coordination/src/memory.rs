//! The engine within one process: the reference model of the port, the double that tests use, and, with sessions that
//! never end, what a single process runs on.
//!
//! Members of one cluster share the data through [`MemoryOwnership::reopen`]. The engine has clocks of its own, those
//! of the `Runtime` that it was made with; each handle waits on its own `Runtime`.
//!
//! Always true here: a call takes effect in one step, once, or not at all; with the same `Runtime`s and the same calls,
//! the same happens.

mod elector;
mod model;
mod tree;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::Timestamp;
use futures_util::future::BoxFuture;
use runtime::Runtime;
use tokio::sync::{Notify, watch};

use self::model::Model;
use crate::{Answer, ClaimName, LEASE_MAX, Member, MemberId, Ownership, OwnershipError, Seen, View, check_names};

pub use elector::MemoryElector;
pub use tree::MemoryTrees;

/// How the engine in memory behaves within what the port allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
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

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions { sessions_end: true, latency: None, fail_one_in: None, clock_ahead_millis: 0 }
    }
}

/// See the module's documentation.
pub struct MemoryOwnership {
    link: Link,
    engine: Arc<Engine>,
}

struct Engine {
    clock: Runtime,
    options: MemoryOptions,
    model: Mutex<Model>,
    changes: watch::Sender<()>,
}

impl MemoryOwnership {
    /// An engine without members. Its clocks are `runtime`'s.
    #[must_use]
    pub fn new(runtime: Runtime, options: MemoryOptions) -> Self {
        let link = Link::new(runtime.clone(), &options);
        let changes = watch::Sender::new(());
        let engine = Engine { clock: runtime, options, model: Mutex::new(Model::default()), changes };
        MemoryOwnership { link, engine: Arc::new(engine) }
    }

    /// For one process alone: sessions never end, so that a lease of `Duration::MAX` is kept without renewals.
    #[must_use]
    pub fn single(runtime: Runtime) -> Self {
        MemoryOwnership::new(runtime, MemoryOptions { sessions_end: false, ..MemoryOptions::default() })
    }

    /// The same engine, for another member or for the same one after its crash.
    #[must_use]
    pub fn reopen(&self, runtime: Runtime) -> Self {
        MemoryOwnership { link: Link::new(runtime, &self.engine.options), engine: self.engine.clone() }
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

/// When a call took effect, by the engine's clocks.
struct Moment {
    monotonic: runtime::Monotonic,
    wall: Timestamp,
    sessions_end: bool,
}

impl Moment {
    /// `None`: never.
    fn end_of(&self, lease: Duration) -> Option<runtime::Monotonic> {
        self.sessions_end.then(|| self.monotonic + lease)
    }

    fn seen(&self) -> Seen {
        Seen { engine_now: self.wall }
    }
}

impl Ownership for MemoryOwnership {
    fn join(&self, member: Member, lease: Duration) -> Answer<'_, Seen> {
        self.check_lease(lease);
        Box::pin(async move {
            member.check()?;
            self.call(|model, moment| model.join(member, moment.end_of(lease)).then(|| moment.seen()))
                .await?
                .ok_or(OwnershipError::Lost)
        })
    }

    fn renew(&self, member: MemberId, lease: Duration) -> Answer<'_, Seen> {
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

/// A caller's way to the engine and back.
struct Link {
    runtime: Runtime,
    latency: Option<RangeInclusive<Duration>>,
    fail_one_in: Option<u32>,
    is_cut: AtomicBool,
    /// What the engine answers is lost.
    is_deaf: AtomicBool,
    /// Woken when it is not any more. (Not a `watch`, which wakes its receivers in an order that no seed gives.)
    mended: Notify,
}

impl Link {
    fn new(runtime: Runtime, options: &MemoryOptions) -> Self {
        let MemoryOptions { latency, fail_one_in, .. } = options.clone();
        let (is_cut, is_deaf) = (AtomicBool::new(false), AtomicBool::new(false));
        Link { runtime, latency, fail_one_in, is_cut, is_deaf, mended: Notify::new() }
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
        if !is_cut {
            self.is_deaf.store(false, Ordering::Relaxed);
            self.mended.notify_waiters();
        }
    }

    /// Until it is mended.
    fn cut_answers(&self) {
        self.is_deaf.store(true, Ordering::Relaxed);
    }

    fn is_silent(&self) -> bool {
        self.is_cut() || self.is_deaf.load(Ordering::Relaxed)
    }

    fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Why there was no answer, if there was none.
    async fn call<T>(&self, effect: impl FnOnce() -> T) -> Result<T, String> {
        let fails = |one_in: u32| self.runtime.random().is_multiple_of(u64::from(one_in));
        let failure = self.fail_one_in.filter(|one_in| fails(*one_in)).map(|_| self.runtime.random() % 2);
        self.travel(Link::is_cut).await?;
        if failure == Some(0) {
            return Err("in memory, it failed before its effect".to_owned());
        }
        let answer = effect();
        self.travel(Link::is_silent).await?;
        match failure {
            None => Ok(answer),
            Some(_) => Err("in memory, it failed after its effect".to_owned()),
        }
    }

    /// Ready when what the engine says gets through.
    async fn open(&self) {
        while self.is_silent() {
            let mut mended = std::pin::pin!(self.mended.notified());
            mended.as_mut().enable();
            if self.is_silent() {
                mended.await;
            }
        }
    }

    /// What does not arrive is told to be lost when it is mended.
    async fn travel(&self, is_blocked: impl Fn(&Link) -> bool) -> Result<(), String> {
        if let Some(latency) = &self.latency {
            let (least, most) = (latency.start().as_nanos(), latency.end().as_nanos());
            let spread = u64::try_from(most.saturating_sub(least)).unwrap_or(u64::MAX).saturating_add(1);
            self.runtime.sleep(*latency.start() + Duration::from_nanos(self.runtime.random() % spread)).await;
        }
        if !is_blocked(self) {
            return Ok(());
        }
        self.open().await;
        Err("in memory, the connection was lost".to_owned())
    }
}
