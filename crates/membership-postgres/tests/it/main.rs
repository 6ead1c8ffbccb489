//! Tests against a real PostgreSQL server: the promises of the port `Ownership`, and the effects of a server that
//! stalls, dies or restarts.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod conformance;
mod differential;
mod faults;
mod fight;
mod schema;
mod support;
