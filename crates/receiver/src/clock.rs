//! The door to clock and timers. This crate lives in its user's process and on its user's tokio, so it has a door of its own.

#![expect(clippy::disallowed_methods, reason = "this is the door; see above")]

use std::time::{Duration, SystemTime};

pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// `None` if `limit` passed first.
pub(crate) async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}
