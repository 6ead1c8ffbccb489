//! Against real servers, which `test-servers` starts.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod conformance;
mod connections;
mod many;
mod mixed;
mod support;
