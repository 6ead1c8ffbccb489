//! The SDK's door to clock, chance and timers. It lives in its user's process and on its user's tokio, so it has a door of
//! its own, and nothing else here goes outside but the connections.

#![expect(clippy::disallowed_methods, reason = "this is the door; see above")]

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

/// `None` if `limit` passed first.
pub(crate) async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// 64 unpredictable bits.
pub(crate) fn random() -> u64 {
    getrandom::u64().expect("the system's random source is there")
}
