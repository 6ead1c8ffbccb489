//! Tests against a real server: connections, rejected connections and lost connections.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

mod connecting;
mod reconnecting;
