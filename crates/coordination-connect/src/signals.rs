//! Signals that stop a program.

use std::io;

use runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Returns a token that the first SIGTERM or SIGINT (Ctrl-C) to this process cancels. From this call on, these signals
/// do not end the process.
///
/// # Errors
/// Returns an error if the process cannot listen for the signals.
///
/// # Panics
/// Panics if the caller is outside a tokio runtime.
pub fn stop_signal() -> io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    drop(Runtime::real().spawn("stop signal", async move {
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopped.cancel();
    }));
    Ok(stop)
}
