//! The word to stop, and who hears of it: whatever balances load, by `/readyz`, and the service manager.
//!
//! Always true here: where there is no service manager nothing is told, and nothing fails.

use std::time::Duration;

use anyhow::Context;
use runtime::Runtime;
use sd_notify::NotifyState;
use server::Readiness;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, from now on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// # Errors
    /// If the process cannot listen for them.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        Ok(Signals { terminate, interrupt })
    }

    /// Resolves at the next of either.
    pub(crate) async fn next(&mut self) {
        let terminated = std::pin::pin!(self.terminate.recv());
        let interrupted = std::pin::pin!(self.interrupt.recv());
        futures_util::future::select(terminated, interrupted).await;
    }
}

/// How long a stop takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// From the word to stop to the stop itself.
    pub(crate) notice: Duration,
    /// Of the stop, if nothing goes wrong with the disk.
    pub(crate) drain: Duration,
}

/// Resolves when it is time to stop: a notice after the first signal, or at the second.
pub(crate) async fn is_due(runtime: Runtime, mut signals: Signals, readiness: Readiness, patience: Patience) {
    /// What is in memory is flushed at the end.
    const FLUSH: Duration = Duration::from_secs(15);
    signals.next().await;
    readiness.withdraw();
    let all = u32::try_from((patience.notice + patience.drain + FLUSH).as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(all)]);
    if !patience.notice.is_zero() {
        tracing::info!(notice = ?patience.notice, "told to stop: /readyz says so, and requests are still answered");
        let _second = runtime.timeout(patience.notice, signals.next()).await;
    }
}

/// The service manager hears that requests are taken.
pub(crate) fn tell_ready() {
    tell(&[NotifyState::Ready]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told how this service does, and may end it");
    }
}
