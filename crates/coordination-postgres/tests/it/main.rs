//! Tests against a real server. They test the promises of the ports, and the effects of a server that stalls, dies or
//! restarts.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod electors;
mod schema;
mod support;
mod tree;
