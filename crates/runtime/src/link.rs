//! A caller's way to an engine in memory, which is as slow and as faulty as a network. The ports' engines in memory are
//! models of engines that are reached over one.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::Runtime;

/// The way to an engine and back.
pub struct MemoryLink {
    runtime: Runtime,
    latency: Option<RangeInclusive<Duration>>,
    fail_one_in: Option<u32>,
    is_cut: AtomicBool,
    /// What the engine answers is lost.
    is_deaf: AtomicBool,
    /// Woken when it is not any more. (Not a `watch`, which wakes its receivers in an order that no seed gives.)
    mended: Notify,
}

impl MemoryLink {
    /// `latency` is the time that a call takes before its effect, and again after it; one call in `fail_one_in` fails,
    /// before its effect or after it.
    #[must_use]
    pub fn new(runtime: Runtime, latency: Option<RangeInclusive<Duration>>, fail_one_in: Option<u32>) -> Self {
        let (is_cut, is_deaf) = (AtomicBool::new(false), AtomicBool::new(false));
        MemoryLink { runtime, latency, fail_one_in, is_cut, is_deaf, mended: Notify::new() }
    }

    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// While it is cut, no call is answered, and a call under way may or may not take effect.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
        if !is_cut {
            self.is_deaf.store(false, Ordering::Relaxed);
            self.mended.notify_waiters();
        }
    }

    /// From now on calls take effect and are not answered, until [`MemoryLink::cut`] mends the link.
    pub fn cut_answers(&self) {
        self.is_deaf.store(true, Ordering::Relaxed);
    }

    fn is_silent(&self) -> bool {
        self.is_cut() || self.is_deaf.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Carries a call to the engine, where `effect` happens in one step, and its answer back.
    ///
    /// # Errors
    /// The reason why there is no answer: the call failed, or the connection was lost. It is not known whether it took
    /// effect.
    pub async fn call<T>(&self, effect: impl FnOnce() -> T) -> Result<T, String> {
        let fails = |one_in: u32| self.runtime.random().is_multiple_of(u64::from(one_in));
        let failure = self.fail_one_in.filter(|one_in| fails(*one_in)).map(|_| self.runtime.random() % 2);
        self.travel(MemoryLink::is_cut).await?;
        if failure == Some(0) {
            return Err("in memory, it failed before its effect".to_owned());
        }
        let answer = effect();
        self.travel(MemoryLink::is_silent).await?;
        match failure {
            None => Ok(answer),
            Some(_) => Err("in memory, it failed after its effect".to_owned()),
        }
    }

    /// Waits until the engine's messages arrive.
    pub async fn open(&self) {
        while self.is_silent() {
            let mut mended = std::pin::pin!(self.mended.notified());
            mended.as_mut().enable();
            if self.is_silent() {
                mended.await;
            }
        }
    }

    /// A message that does not arrive is lost; its sender learns that when the link is mended.
    async fn travel(&self, is_blocked: impl Fn(&MemoryLink) -> bool) -> Result<(), String> {
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
