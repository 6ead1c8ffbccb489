//! The SDK's only access to clocks, randomness and timers. The SDK runs in the user's process and on the user's tokio
//! runtime, so it does not use the crate `runtime`. Apart from this module, only the code for connections uses the
//! operating system.

#![expect(
    clippy::disallowed_methods,
    reason = "the rest of the SDK uses clocks, timers and randomness only through this module"
)]

use std::time::{Duration, Instant, SystemTime};

pub(crate) fn monotonic() -> Instant {
    Instant::now()
}

pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

pub(crate) async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Returns `None` if `limit` passed before the future completed.
pub(crate) async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Returns 64 unpredictable bits.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the operating system's source of randomness is available")
}
