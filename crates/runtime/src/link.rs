//! Simulated link between a caller and an in-memory engine, with the latency and the faults of a network. The in-memory
//! engine of a port simulates an engine that callers reach over a network.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::Runtime;

/// Link to an in-memory engine.
pub struct MemoryLink {
    runtime: Runtime,
    latency: Option<RangeInclusive<Duration>>,
    fail_one_in: Option<u32>,
    is_cut: AtomicBool,
    /// True while the link loses the engine's responses.
    loses_responses: AtomicBool,
    /// Wakes all waiting calls when the link works again. The field is not a `watch` channel, because the seed of a
    /// simulation does not determine the order in which a `watch` channel wakes its receivers.
    restored: Notify,
}

impl MemoryLink {
    /// Creates a working link. A call has a random delay in the range `latency` before its effect, and another delay
    /// after its effect. On average, one call in `fail_one_in` fails, before or after its effect.
    #[must_use]
    pub fn new(runtime: Runtime, latency: Option<RangeInclusive<Duration>>, fail_one_in: Option<u32>) -> Self {
        let (is_cut, loses_responses) = (AtomicBool::new(false), AtomicBool::new(false));
        MemoryLink { runtime, latency, fail_one_in, is_cut, loses_responses, restored: Notify::new() }
    }

    /// Returns the runtime that provides the delays and the randomness of this link.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Cuts or restores the link. While the link is cut, no call returns, and a call in progress may or may not take
    /// effect.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
        if !is_cut {
            self.loses_responses.store(false, Ordering::Relaxed);
            self.restored.notify_waiters();
        }
    }

    /// Loses the responses of all calls until [`MemoryLink::cut`] restores the link. The calls still take effect.
    pub fn cut_answers(&self) {
        self.loses_responses.store(true, Ordering::Relaxed);
    }

    fn is_silent(&self) -> bool {
        self.is_cut() || self.loses_responses.load(Ordering::Relaxed)
    }

    /// Returns true if [`MemoryLink::cut`] has cut the link. [`MemoryLink::cut_answers`] does not affect the result.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Sends a call to the engine and returns the response. The engine executes `effect` in one step.
    ///
    /// # Errors
    /// Returns a description of the error if the call fails or the connection is lost. In both cases no response
    /// arrives, and the call may or may not have taken effect.
    pub async fn call<T>(&self, effect: impl FnOnce() -> T) -> Result<T, String> {
        let fails = |one_in: u32| self.runtime.random().is_multiple_of(u64::from(one_in));
        let failure = self.fail_one_in.filter(|one_in| fails(*one_in)).map(|_| self.runtime.random() % 2);
        self.travel(MemoryLink::is_cut).await?;
        if failure == Some(0) {
            return Err("fault injection: the in-memory engine did not execute the call".to_owned());
        }
        let response = effect();
        self.travel(MemoryLink::is_silent).await?;
        match failure {
            None => Ok(response),
            Some(_) => Err("fault injection: the in-memory engine executed the call but lost the response".to_owned()),
        }
    }

    /// Waits until the caller can receive the engine's messages.
    pub async fn open(&self) {
        while self.is_silent() {
            let mut restored = std::pin::pin!(self.restored.notified());
            restored.as_mut().enable();
            if self.is_silent() {
                restored.await;
            }
        }
    }

    /// Delays a message. If `is_blocked` returns true, loses the message, and returns an error after the link is
    /// restored.
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
        Err("the connection to the in-memory engine was lost".to_owned())
    }
}
