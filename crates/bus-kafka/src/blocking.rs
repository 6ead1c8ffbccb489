//! Calls of librdkafka that block their thread.

#![expect(clippy::disallowed_methods, reason = "librdkafka has its own threads, so this engine is never simulated")]

use tokio::runtime::Handle;

/// Runs a call on a thread for blocking calls. If the caller drops the future, the call still ends.
pub(crate) async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(call).await {
        Ok(output) => output,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and drops this task next.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Drops a client of librdkafka. The drop may wait for a broker, so a thread for blocking calls makes it.
pub(crate) fn drop_elsewhere<T: Send + 'static>(client: T) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn_blocking(move || drop(client));
    }
}
