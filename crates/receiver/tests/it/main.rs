//! Tests of receivers over real sockets, with a real PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod handled;
mod once;
mod requests;
mod support;
mod verify;
