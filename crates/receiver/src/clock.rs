//! The crate's only access to clocks and timers. The crate runs in the user's process and on the user's tokio
//! runtime, so it does not use the crate `runtime`.

#![expect(
    clippy::disallowed_methods,
    reason = "this module wraps the clocks and timers for the crate; see the comment of the module"
)]

use std::time::{Duration, SystemTime};

pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// Returns the output of the future, or `None` if `limit` passed before the future completed.
pub(crate) async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}
