//! Against a real server: the port's promises, and what becomes of them when the server stalls, dies or comes back.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod conformance;
mod differential;
mod faults;
mod fight;
mod schema;
mod support;
