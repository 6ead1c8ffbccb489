//! Tests against a real server: the ports' promises, and the effects of a server that stalls, dies or restarts.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod electors;
mod schema;
mod support;
mod tree;
