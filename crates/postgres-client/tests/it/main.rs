//! Tests with a real PostgreSQL server: established, rejected and lost connections.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

mod connecting;
mod pooler;
mod reconnecting;
