//! Receivers over real sockets, with a real PostgreSQL behind them.

#![expect(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod marks;
mod once;
mod requests;
mod support;
mod verify;
