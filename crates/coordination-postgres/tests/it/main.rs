//! Tests against a real PostgreSQL server. They test the promises of the ports, also while the server stalls, dies or
//! restarts.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod electors;
mod schema;
mod support;
mod tree;
