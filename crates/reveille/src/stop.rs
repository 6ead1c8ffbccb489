//! Signals to stop, and notifications about the stop. A load balancer learns of the stop from `/readyz`, and the
//! service manager from a message in systemd's protocol.
//!
//! Invariant: if no service manager runs, this module sends no notification and returns no error.
//!
//! docs/decisions/0086-notify-systemd-of-start-and-stop.md gives the reasons for the design.

use std::time::Duration;

use anyhow::Context;
use runtime::Runtime;
use sd_notify::NotifyState;
use server::Readiness;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Listener for the signals SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts to listen for SIGTERM and SIGINT. From this moment, these signals do not end the process.
    ///
    /// # Errors
    /// Returns an error if the process cannot listen for the signals.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        Ok(Signals { terminate, interrupt })
    }

    /// Waits for the next SIGTERM or SIGINT.
    pub(crate) async fn next(&mut self) {
        let terminated = std::pin::pin!(self.terminate.recv());
        let interrupted = std::pin::pin!(self.interrupt.recv());
        futures_util::future::select(terminated, interrupted).await;
    }
}

/// The process received a signal to stop while it waited for a server.
#[derive(Debug, thiserror::Error)]
#[error("the process stopped before the server was reachable")]
pub(crate) struct StoppedWaiting;

/// Calls `open` until it succeeds or returns an error that is not retryable ([`Runtime::open_when_reachable`]).
///
/// # Errors
/// Returns [`StoppedWaiting`] after a signal to stop. Returns an error if the process cannot listen for signals.
pub(crate) async fn open_when_reachable<T, E: std::fmt::Display>(
    runtime: &Runtime,
    open: impl AsyncFnMut() -> Result<T, E>,
    is_retryable: impl Fn(&E) -> bool,
) -> anyhow::Result<Result<T, E>> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        biased;
        () = signals.next() => Err(StoppedWaiting.into()),
        opened = runtime.open_when_reachable(open, is_retryable) => Ok(opened),
    }
}

/// Durations of the two phases of a stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StopTimeouts {
    /// Longest time between the first signal to stop and the start of the stop.
    pub(crate) notice: Duration,
    /// Maximum duration of the stop itself, without the final flush to the disk.
    pub(crate) drain: Duration,
}

/// Waits until the stop of the server must begin. The stop begins at the second signal, or at the end of the time
/// [`StopTimeouts::notice`] after the first signal. The cancellation of `folder_lost` has the effect of a first signal.
pub(crate) async fn is_due(
    runtime: Runtime,
    mut signals: Signals,
    folder_lost: CancellationToken,
    readiness: Readiness,
    timeouts: StopTimeouts,
) {
    /// Time that a stop may need for the final flush of the data in memory.
    const FLUSH: Duration = Duration::from_secs(15);
    let _signal = folder_lost.run_until_cancelled(signals.next()).await;
    readiness.withdraw();
    let all = u32::try_from((timeouts.notice + timeouts.drain + FLUSH).as_micros()).unwrap_or(u32::MAX);
    notify(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(all)]);
    if !timeouts.notice.is_zero() {
        tracing::info!(notice = ?timeouts.notice, "the server will stop: /readyz returns 503 from now on");
        let _second = runtime.timeout(timeouts.notice, signals.next()).await;
    }
}

/// Notifies the service manager that the server is ready for requests.
pub(crate) fn notify_ready() {
    notify(&[NotifyState::Ready]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(
            %error,
            "cannot report the state of this process to the service manager, which may kill the process"
        );
    }
}
