//! Signals that stop a program.

use std::io;

use runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit status of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;
/// Exit status of a process that SIGTERM ended.
const TERMINATED: i32 = 143;

/// Returns a token that the first SIGTERM or SIGINT (Ctrl-C) to this process cancels. A second signal ends the process at
/// once, with the status that shells report for the signal.
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
        for is_first in [true, false] {
            let status = tokio::select! {
                biased;
                _ = terminate.recv() => TERMINATED,
                _ = interrupt.recv() => INTERRUPTED,
            };
            if !is_first {
                std::process::exit(status);
            }
            stopped.cancel();
        }
    }));
    Ok(stop)
}
