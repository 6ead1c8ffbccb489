//! Tests of the crate's middleware over real sockets, with a real PostgreSQL server.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod handled;
mod once;
mod requests;
mod support;
mod verify;
